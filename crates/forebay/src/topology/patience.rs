//! Looks at files that may never be answered: the server is gone, or a program behind FUSE hangs.
//!
//! No signal ends such a call for sure and none has a bound of its own, so each is made on a thread
//! of its own, which is left behind where it does not come back in time. What did not answer once
//! is not looked at again. `probe` and `look` bring their looks here; a played system has no
//! patience, since its answers lie in a record.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::probe::Trail;
use crate::aside::within;
use crate::lock::Lock;

/// How long one look may take. A drive that sleeps answers within some seconds, and has nothing to
/// read for most looks.
pub(super) const LOOK_MAX: Duration = Duration::from_secs(3);
/// Paths that are kept; a system with more of them waits again.
const SILENT_MAX: usize = 1024;

/// Nobody answered in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Silent;

/// See the module's own text.
#[derive(Debug, Default)]
pub(super) struct Patience {
    silent: Lock<Vec<(PathBuf, Option<Trail>)>>,
}

impl Patience {
    /// Makes a look at `path`, and waits for it for a limited time. The look has the mounts and the
    /// rights of the calling thread.
    pub(super) fn look<T: Send + 'static>(
        &self,
        path: &Path,
        look: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Silent> {
        if self.is_silent(path) {
            return Err(Silent);
        }
        // Without a thread nobody can look and go on.
        within(LOOK_MAX, "forebay-look", look).ok().flatten().ok_or_else(|| {
            self.pass_over(path);
            Silent
        })
    }

    /// Takes for granted that what is at `path` and below it does not answer.
    pub(super) fn pass_over(&self, path: &Path) {
        let mut silent = self.silent.lock();
        if silent.len() < SILENT_MAX {
            silent.push((path.to_owned(), None));
        }
    }

    /// Takes over what another one has learned.
    pub(super) fn inherit(&self, other: &Self) {
        let known = other.silent.lock().clone();
        self.silent.lock().extend(known);
    }

    /// Keeps where a path that does not answer leads, as far as is known.
    pub(super) fn note(&self, path: &Path, trail: Trail) {
        if let Some(known) = self.silent.lock().iter_mut().find(|(silent, _)| silent == path) {
            known.1 = Some(trail);
        }
    }

    /// What was noted of a path.
    pub(super) fn known(&self, path: &Path) -> Option<Trail> {
        self.silent.lock().iter().find(|(silent, _)| silent == path)?.1.clone()
    }

    fn is_silent(&self, path: &Path) -> bool {
        self.silent.lock().iter().any(|(silent, _)| path.starts_with(silent))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;
    use std::time::Instant;

    #[test]
    fn what_does_not_answer_is_asked_once() {
        let patience = Patience::default();
        let (hold, held) = sync_channel::<()>(0);
        let answer = patience.look(Path::new("/a/b"), move || held.recv().is_ok());
        assert_eq!(answer, Err(Silent));
        let start = Instant::now();
        assert_eq!(patience.look(Path::new("/a/b/c"), || true), Err(Silent), "below it as well");
        assert!(start.elapsed() < LOOK_MAX, "nobody waited again");
        assert_eq!(patience.look(Path::new("/a/bc"), || true), Ok(true));
        assert_eq!(patience.look(Path::new("/a"), || true), Ok(true));
        drop(hold);
    }

    #[test]
    fn a_look_that_panics_is_no_answer() {
        let patience = Patience::default();
        let answer = patience.look(Path::new("/a"), || -> u8 { panic!("on purpose") });
        assert_eq!(answer, Err(Silent));
    }
}
