//! Remembers what was learned about each drive, in a small file under the user's cache folder.
//!
//! It is a hint, so nothing that happens to the file is an error: what cannot be read is not known,
//! what cannot be written is not remembered. The folder is opened once for each use and must belong
//! to this user alone, and the file is read only if it is this user's, plain and small. It is
//! never written in place: a new one is made beside it and takes its name, under a lock on the
//! folder, with the entries that others have written meanwhile.

mod format;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::queue::Direction;
use crate::tune::Learned;
use format::{Entry, Text};

/// The file's name in its folder.
const NAME: &str = "learned";
/// How often, and after which time each, a lock that another process holds is asked for again.
const LOCK_TRIES: (u32, Duration) = (20, Duration::from_millis(2));

/// See the module's own text.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// None: nothing is read or written.
    folder: Option<PathBuf>,
    known: Vec<Entry>,
    /// What the file does not hold yet.
    new: Vec<Entry>,
}

impl Memory {
    /// What is remembered in the user's cache folder; with `on` false, nothing, ever.
    pub(crate) fn open(on: bool) -> Self {
        Self::of(on, |name| std::env::var_os(name).map(PathBuf::from))
    }

    fn of(on: bool, lookup: impl Fn(&str) -> Option<PathBuf>) -> Self {
        // A relative path in these variables is to be ignored (XDG base directories, 0.8).
        let path = |name: &str| lookup(name).filter(|path| path.is_absolute());
        let cache = path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")));
        match cache.filter(|_| on) {
            Some(cache) => Self::at(cache.join("forebay")),
            None => Self::default(),
        }
    }

    /// What is remembered in `folder`.
    pub(crate) fn at(folder: PathBuf) -> Self {
        let entries = match open_folder(&folder).and_then(|folder| read(&folder)) {
            Ok(Text::Entries(entries)) => entries,
            Ok(Text::Later) | Err(_) => Vec::new(),
        };
        Self { folder: Some(folder), known: entries, new: Vec::new() }
    }

    /// What is known of a drive.
    pub(crate) fn recall(&self, identity: &str, direction: Direction) -> Option<Learned> {
        let is_it = |entry: &&Entry| entry.identity == identity && entry.direction == direction;
        self.known.iter().find(is_it).map(|entry| entry.learned)
    }

    /// Notes what was learned, to be kept by [`save`](Self::save).
    pub(crate) fn note(&mut self, identity: &str, direction: Direction, learned: Learned) {
        if self.folder.is_none() || self.recall(identity, direction) == Some(learned) {
            return;
        }
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let written_s = since.map_or(0, |since| since.as_secs());
        if let Some(entry) = Entry::new(identity, direction, learned, written_s) {
            format::insert(&mut self.known, entry.clone());
            format::insert(&mut self.new, entry);
        }
    }

    /// Whether anything is kept at all.
    pub(crate) fn is_kept(&self) -> bool {
        self.folder.is_some()
    }

    /// Writes what was noted. False: it could not be, and is tried again with the next call.
    pub(crate) fn save(&mut self) -> bool {
        if let Some(folder) = &self.folder
            && !self.new.is_empty()
            && write(folder, &self.new).is_ok()
        {
            self.new.clear();
        }
        self.new.is_empty()
    }
}

/// Opens the folder, if nobody else can change what lies in it.
fn open_folder(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::open(path, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&folder)?;
    let others_write = Mode::from_raw_mode(stat.st_mode).intersects(Mode::WGRP | Mode::WOTH);
    if others_write || stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(Errno::ACCESS);
    }
    Ok(folder)
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

fn read(folder: &OwnedFd) -> Result<Text, Errno> {
    // A FIFO in its place must not hold us up, nor a link lead elsewhere.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(folder, NAME, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(Text::Entries(Vec::new())),
        opened => opened?,
    };
    let stat = rustix::fs::fstat(&file)?;
    let plain = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if !plain || stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(Errno::ACCESS);
    }
    let mut bytes = Vec::new();
    let mut file = File::from(file).take(format::FILE_MAX + 1);
    file.read_to_end(&mut bytes).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
    if bytes.len() as u64 > format::FILE_MAX {
        return Ok(Text::Entries(Vec::new()));
    }
    Ok(format::parse(&bytes))
}

fn write(folder: &Path, new: &[Entry]) -> Result<(), Errno> {
    let folder = match open_folder(folder) {
        Err(Errno::NOENT) => make_folder(folder),
        opened => opened,
    }?;
    lock(&folder)?;
    let mut entries = match read(&folder) {
        Ok(Text::Entries(entries)) => entries,
        Ok(Text::Later) => return Err(Errno::NOTSUP),
        // What is no file of ours is replaced; the name is, not what it leads to.
        Err(Errno::LOOP | Errno::ACCESS) => Vec::new(),
        Err(errno) => return Err(errno),
    };
    new.iter().for_each(|entry| format::insert(&mut entries, entry.clone()));
    replace(&folder, format::format(&entries).as_bytes())
}

/// Keeps other processes from writing as long as `folder` is open.
fn lock(folder: &OwnedFd) -> Result<(), Errno> {
    for _ in 0..LOCK_TRIES.0 {
        match rustix::fs::flock(folder, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::AGAIN) => std::thread::sleep(LOCK_TRIES.1),
            Err(Errno::INTR) => {}
            Ok(()) => return Ok(()),
            // Without locks one of two who write at once may be forgotten, and no more.
            Err(_) => return Ok(()),
        }
    }
    Err(Errno::AGAIN)
}

/// Writes a new file and gives it the name.
fn replace(folder: &OwnedFd, bytes: &[u8]) -> Result<(), Errno> {
    // The thread's number keeps those apart who could not lock.
    let name = format!("{NAME}.{}.new", rustix::thread::gettid().as_raw_nonzero());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
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
            rustix::fs::renameat_with(folder, &name, folder, NAME, RenameFlags::empty())
        });
    if written.is_err() {
        // It may be gone already; then there is nothing to clean up.
        let _ = rustix::fs::unlinkat(folder, &name, AtFlags::empty());
    }
    written
}
