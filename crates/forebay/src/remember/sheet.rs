//! One small file in the user's cache folder.
//!
//! The folder is opened once for each use and must belong to this user alone, and the file is read
//! only if it does as well, and is plain and small. It is never written in place: a new one is made
//! beside it and takes its name, under a lock on the folder, out of what others have written
//! meanwhile.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

/// How often, and after which time each, a lock that another process holds is asked for again.
const LOCK_TRIES: (u32, Duration) = (20, Duration::from_millis(2));

/// See the module's own text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sheet {
    folder: PathBuf,
    name: &'static str,
    len_max: u64,
}

impl Sheet {
    /// The file `name` in this user's cache folder, of which more than `len_max` bytes are nothing;
    /// `None`: there is no such folder.
    pub(super) fn found(
        name: &'static str,
        len_max: u64,
        lookup: impl Fn(&str) -> Option<PathBuf>,
    ) -> Option<Self> {
        // A relative path in these variables is to be ignored (XDG base directories, 0.8).
        let path = |name: &str| lookup(name).filter(|path| path.is_absolute());
        let cache = path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")))?;
        Some(Self::at(cache.join("forebay"), name, len_max))
    }

    /// The file `name` in `folder`.
    pub(crate) fn at(folder: PathBuf, name: &'static str, len_max: u64) -> Self {
        Self { folder, name, len_max }
    }

    /// What it holds; nothing, where there is none or too much of it.
    pub(crate) fn read(&self) -> Result<Vec<u8>, Errno> {
        self.read_in(&open_folder(&self.folder)?)
    }

    /// Has `make` make a new one out of what it holds, which others leave as it is meanwhile.
    ///
    /// # Errors
    /// It cannot be written, or `make` gave nothing.
    pub(crate) fn change(&self, make: impl FnOnce(&[u8]) -> Option<String>) -> Result<(), Errno> {
        let folder = self.folder()?;
        lock(&folder)?;
        let old = match self.read_in(&folder) {
            // What is no file of ours is replaced; the name is, not what it leads to.
            Err(Errno::LOOP | Errno::ACCESS) => Vec::new(),
            read => read?,
        };
        self.replace(&folder, make(&old).ok_or(Errno::NOTSUP)?.as_bytes())
    }

    /// The folder, made where there is none.
    fn folder(&self) -> Result<OwnedFd, Errno> {
        match open_folder(&self.folder) {
            Err(Errno::NOENT) => make_folder(&self.folder),
            opened => opened,
        }
    }

    fn read_in(&self, folder: &OwnedFd) -> Result<Vec<u8>, Errno> {
        // A FIFO in its place must not hold us up, nor a link lead elsewhere.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(folder, self.name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(Vec::new()),
            opened => opened?,
        };
        check_own(&file)?;
        let mut bytes = Vec::new();
        let mut file = File::from(file).take(self.len_max + 1);
        file.read_to_end(&mut bytes).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
        if bytes.len() as u64 > self.len_max {
            bytes.clear();
        }
        Ok(bytes)
    }

    /// Writes a new file and gives it the name.
    fn replace(&self, folder: &OwnedFd, bytes: &[u8]) -> Result<(), Errno> {
        // The thread's number keeps those apart who could not lock.
        let name = format!("{}.{}.new", self.name, rustix::thread::gettid().as_raw_nonzero());
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let create = || rustix::fs::openat(folder, &name, flags, Mode::RUSR | Mode::WUSR);
        let file = match create() {
            // Left behind by a process that was killed, whose number has come round again.
            Err(Errno::EXIST) => {
                rustix::fs::unlinkat(folder, &name, AtFlags::empty())?;
                create()
            }
            created => created,
        }?;
        let written = File::from(file)
            .write_all(bytes)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
            .and_then(|()| {
                rustix::fs::renameat_with(folder, &name, folder, self.name, RenameFlags::empty())
            });
        if written.is_err() {
            // It may be gone already; then there is nothing to clean up.
            let _ = rustix::fs::unlinkat(folder, &name, AtFlags::empty());
        }
        written
    }
}

/// A path in a variable of this process.
pub(super) fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from)
}

/// Opens the folder, if nobody else can change what lies in it.
fn open_folder(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::open(path, flags, Mode::empty())?;
    if is_ours(&rustix::fs::fstat(&folder)?) { Ok(folder) } else { Err(Errno::ACCESS) }
}

/// Makes the folder, and the cache folder above it, for this user alone.
fn make_folder(path: &Path) -> Result<OwnedFd, Errno> {
    let make = |path: &Path| match rustix::fs::mkdir(path, Mode::RWXU) {
        Err(errno) if errno != Errno::EXIST => Err(errno),
        _ => Ok(()),
    };
    if let Some(above) = path.parent().filter(|above| !above.exists()) {
        make(above)?;
    }
    make(path)?;
    open_folder(path)
}

/// Refuses what is no plain file of this user's alone.
fn check_own(file: &OwnedFd) -> Result<(), Errno> {
    let stat = rustix::fs::fstat(file)?;
    let plain = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if plain && is_ours(&stat) { Ok(()) } else { Err(Errno::ACCESS) }
}

/// Whether only this user can change it.
fn is_ours(stat: &Stat) -> bool {
    let others_write = Mode::from_raw_mode(stat.st_mode).intersects(Mode::WGRP | Mode::WOTH);
    !others_write && stat.st_uid == rustix::process::geteuid().as_raw()
}

/// Keeps other processes from writing as long as `folder` is open.
fn lock(folder: &OwnedFd) -> Result<(), Errno> {
    for _ in 0..LOCK_TRIES.0 {
        match rustix::fs::flock(folder, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::AGAIN) => thread::sleep(LOCK_TRIES.1),
            Err(Errno::INTR) => {}
            Ok(()) => return Ok(()),
            // Without locks one of two who write at once may be forgotten, and no more.
            Err(_) => return Ok(()),
        }
    }
    Err(Errno::AGAIN)
}
