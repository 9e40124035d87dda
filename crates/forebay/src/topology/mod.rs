//! What is under a file: the drive whose queue serves it, as the kernel's `/sys` tells.
//!
//! Everything is read below an injected root, and nothing there is trusted: a file that is
//! missing, empty, endless, binary or no file at all means "not known" and never an error, for
//! this knowledge picks a queue and a name, and no byte's place depends on it.

mod system;

pub(crate) use system::{Drive, System};

/// Which queue serves a file: the device number of the whole drive where it is known, else the
/// number that the file system gives its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct DriveKey(pub(crate) u64);

#[cfg(test)]
mod tests;
