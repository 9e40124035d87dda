//! Files that this command makes, and removes if it ends early.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::fs::OFlags;

use crate::cleanup::{self, Undo};
use crate::held::Made;

/// The folder that a file is in.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."))
}

/// Makes the new file `path` with this `mode`; until [`cleanup::end`] an early end of the command
/// removes it.
pub fn create(path: &Path, mode: u32) -> io::Result<File> {
    // Files in one folder share its descriptor.
    static LAST: Mutex<Weak<Made>> = Mutex::new(Weak::new());
    cleanup::with(|| {
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        let neighbour = last.upgrade();
        let (made, file) = Made::create(path, OFlags::RDWR, mode, neighbour.as_deref())?;
        let made = Arc::new(made);
        *last = Arc::downgrade(&made);
        Ok((file, path.into(), Box::new(move || made.remove()) as Undo))
    })
}
