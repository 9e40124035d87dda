//! Whether files stayed what they were while a GPU copied their pages: looked at again when the
//! copies are over, since whoever takes layers runs ahead of them.

use std::collections::VecDeque;
use std::sync::Arc;

use super::group::Group;
use super::mapped::Stamps;
use super::mapper::Wish;
use super::marks::Mark;
use super::shared::{FromPages, Loaded, Shared, State};
use crate::engine::File;
use crate::error::{Error, Operation, Result};

/// Layers that were taken while copies of their pages may have been under way.
#[derive(Debug, Default)]
pub(super) struct Copied {
    /// In the order of their copies.
    all: VecDeque<One>,
    /// What was found, until somebody is told.
    changed: VecDeque<Error>,
}

/// One of them.
#[derive(Debug, Clone)]
pub(super) struct One {
    unit: usize,
    /// Passed when its copies are over.
    ready: Mark,
    stamps: Stamps,
}

impl Copied {
    /// Hands out layers whose files are about to be changed by way of the stream itself: whoever
    /// does that looks at them before.
    pub(super) fn take(&mut self, of: impl Iterator<Item = usize>) -> Vec<One> {
        let wanted: Vec<usize> = of.collect();
        let all = std::mem::take(&mut self.all).into_iter();
        let (taken, left) = all.partition(|one| wanted.contains(&one.unit));
        self.all = left;
        Vec::from(taken)
    }

    /// Takes layers back whose files are not changed after all.
    pub(super) fn put_back(&mut self, layers: Vec<One>) {
        layers.into_iter().rev().for_each(|one| self.all.push_front(one));
    }

    /// What was found and not told yet, one layer after the other.
    ///
    /// # Errors
    /// A file that changed while its pages were copied.
    pub(super) fn told(&mut self) -> Result<()> {
        self.changed.pop_front().map_or(Ok(()), Err)
    }
}

impl One {
    /// Passed when its copies are over.
    pub(super) fn ready(&self) -> &Mark {
        &self.ready
    }
}

impl Shared {
    /// Has the files of a layer that is taken looked at again, if it came from their pages.
    pub(super) fn look_after(&self, state: &mut State, unit: usize, loaded: &Loaded) {
        let Some(FromPages { stamps, .. }) = &loaded.pages else { return };
        if state.copied.all.is_empty() {
            self.group.wish(Wish::Look);
        }
        let (ready, stamps) = (loaded.ready.clone(), stamps.clone());
        state.copied.all.push_back(One { unit, ready, stamps });
    }

    /// Looks at the files of layers whose copies are over by now. One that is another than before
    /// is told with the layer, whose bytes may be of both; and its pages go.
    pub(super) fn look_again(&self) {
        loop {
            let Some(first) = self.lock().copied.all.front().cloned() else { return };
            let changed = match first.ready.is_passed() {
                Ok(true) => self.changed(&first),
                Ok(false) => return,
                Err(_) => return self.lock().copied.all.clear(), // the GPU fails, which others tell
            };
            let mut state = self.lock();
            let is_first = |one: &One| one.ready.event() == first.ready.event();
            // Another thread may have looked at it meanwhile, or is about to.
            if state.copied.all.front().is_some_and(is_first) {
                state.copied.all.pop_front();
                self.tell_changed(&mut state, first.unit, changed);
            }
        }
    }

    /// Looks at the files of a layer whose copies are over.
    pub(super) fn judge(&self, one: &One) {
        let changed = self.changed(one);
        self.tell_changed(&mut self.lock(), one.unit, changed);
    }

    /// What a change of its files since it was pinned means.
    fn changed(&self, one: &One) -> Option<Error> {
        one.stamps.outdated().map(|file| self.overwritten(one.unit, file))
    }

    fn tell_changed(&self, state: &mut State, unit: usize, changed: Option<Error>) {
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

impl Group {
    /// Looks at the files of layers that were copied; whether copies of others are under way.
    pub(super) fn look_again(&self) -> bool {
        let look = |stream: &Arc<Shared>| {
            stream.look_again();
            !stream.lock().copied.all.is_empty()
        };
        // Each is looked at, whatever the others say.
        let still = self.streams().iter().filter(|stream| look(stream)).count();
        still > 0
    }
}
