//! Time-limited probes of files that may never answer: the server is down, or a FUSE program hangs.
//!
//! Such a call ends by no timeout, and no signal is sure to interrupt it. So a probe runs on its
//! own thread, which is abandoned if it does not return in time. A path that timed out is not
//! probed again. `probe` and `look` use this; a replayed system does not need it, because its
//! answers come from a record.

use std::path::{Path, PathBuf};

use forebay_base::lock::Lock;
use forebay_base::timeout::within;

use super::answers::{Answer, LOOK_MAX, Refusal, Trail};

/// Maximum number of unresponsive paths kept; further ones time out again.
const SILENT_MAX: usize = 1024;

/// The paths that did not answer, with the link targets noted for them.
#[derive(Debug, Default)]
pub(super) struct Patience {
    silent: Lock<Vec<(PathBuf, Option<Trail>)>>,
}

impl Clone for Patience {
    fn clone(&self) -> Self {
        Self { silent: Lock::new(self.silent.lock().clone()) }
    }
}

impl Patience {
    /// Runs a probe of `path` and waits for it up to the timeout. The probe thread shares the
    /// mounts and the rights of the calling thread.
    pub(super) fn look<T: Send + 'static>(
        &self,
        path: &Path,
        look: impl FnOnce() -> T + Send + 'static,
    ) -> Answer<T> {
        if self.is_silent(path) {
            return Err(Refusal::Silent);
        }
        // If no thread can be spawned, the path counts as unresponsive.
        within(LOOK_MAX, "forebay-look", look).ok().flatten().ok_or_else(|| {
            self.pass_over(path);
            Refusal::Silent
        })
    }

    /// Marks `path` and everything below it as unresponsive.
    pub(super) fn pass_over(&self, path: &Path) {
        let mut silent = self.silent.lock();
        if silent.len() < SILENT_MAX {
            silent.push((path.to_owned(), None));
        }
    }

    /// Notes the link targets of an unresponsive path, as far as they are known.
    pub(super) fn note(&self, path: &Path, trail: Trail) {
        if let Some(known) = self.silent.lock().iter_mut().find(|(silent, _)| silent == path) {
            known.1 = Some(trail);
        }
    }

    /// The link targets noted for a path.
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
    fn a_path_without_an_answer_is_queried_once() {
        let patience = Patience::default();
        let (hold, held) = sync_channel::<()>(0);
        let answer = patience.look(Path::new("/a/b"), move || held.recv().is_ok());
        assert_eq!(answer, Err(Refusal::Silent));
        let start = Instant::now();
        assert_eq!(
            patience.look(Path::new("/a/b/c"), || true),
            Err(Refusal::Silent),
            "below it as well"
        );
        assert!(start.elapsed() < LOOK_MAX, "no thread waited again");
        assert_eq!(patience.look(Path::new("/a/bc"), || true), Ok(true));
        assert_eq!(patience.look(Path::new("/a"), || true), Ok(true));
        drop(hold);
    }

    #[test]
    fn a_look_that_panics_is_no_answer() {
        let patience = Patience::default();
        let answer = patience.look(Path::new("/a"), || -> u8 { panic!("on purpose") });
        assert_eq!(answer, Err(Refusal::Silent));
    }
}
