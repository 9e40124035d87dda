//! Checks that files did not change while a GPU copied their pinned pages. The check runs again
//! after the copies are done, because callers run ahead of them.

use forebay::{Error, File, Operation};

use super::mapped::One;
use super::mapper::Wish;
use super::shared::{FromPages, Loaded, Shared, State};

impl Shared {
    /// Schedules a further check of a held layer's files, if it was copied from their pages.
    pub(super) fn look_after(&self, state: &mut State, unit: usize, loaded: &Loaded) {
        let Some(FromPages { stamps, .. }) = &loaded.pages else { return };
        if state.copied.all.is_empty() {
            self.group.wish(Wish::Look);
        }
        let (ready, stamps) = (loaded.ready.clone(), stamps.clone());
        state.copied.all.push_back(One { unit, ready, stamps });
    }

    /// Checks the files of layers whose copies are done. If a file changed, the error names the
    /// layer, which may hold old and new bytes, and its pages are unpinned.
    pub(super) fn look_again(&self) {
        loop {
            let Some(first) = self.lock().copied.all.front().cloned() else { return };
            let changed = match first.ready.is_passed() {
                Ok(true) => self.changed(&first),
                Ok(false) => return,
                Err(_) => return self.lock().copied.all.clear(), // GPU failure: reported elsewhere
            };
            let mut state = self.lock();
            let is_first = |one: &One| one.ready.event() == first.ready.event();
            // A second thread may have checked it in between, or be about to.
            if state.copied.all.front().is_some_and(is_first) {
                state.copied.all.pop_front();
                self.report_changed(&mut state, first.unit, changed);
            }
        }
    }

    /// Checks the files of a layer whose copies are done.
    pub(super) fn judge(&self, one: &One) {
        let changed = self.changed(one);
        self.report_changed(&mut self.lock(), one.unit, changed);
    }

    /// The error to report if a file of the layer changed since it was pinned.
    fn changed(&self, one: &One) -> Option<Error> {
        one.stamps.outdated().map(|file| self.overwritten(one.unit, file))
    }

    fn report_changed(&self, state: &mut State, unit: usize, changed: Option<Error>) {
        if let Some(error) = changed {
            self.group.let_pages_go(unit);
            state.copied.changed.push_back(error);
        }
    }

    fn overwritten(&self, unit: usize, file: &File) -> Error {
        let unit = &self.units()[unit];
        let part = unit.parts.iter().find(|part| part.file.is_same(file)).unwrap_or(&unit.first);
        let place = part.file.place(part.offset, part.len);
        Error::FileOverwritten { place }.of_layer(Operation::Read, &unit.name)
    }
}
