//! A new file that replaces another one in one step.
//!
//! The folder is found by descriptors, one part of the path after another, and everything is done
//! in it, even if it is renamed. A link is followed as the kernel follows it with
//! `fs.protected_symlinks`: not that of another user in a folder that all may write to.
//!
//! The object owns its descriptors and the file. If it is dropped before `commit`, at whatever
//! moment, the file is removed, except by a child of a fork. A process that is killed leaves the
//! file; it held a lock on it, so the next writer of the same name removes a file without a lock.

#![expect(unsafe_code, reason = "closes a descriptor, and keeps the error")]

use std::collections::VecDeque;
use std::ffi::{CStr, OsStr, OsString};
use std::fmt::Write as _;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat, fsync, openat,
    readlinkat, renameat, syncfs, unlinkat,
};
use rustix::io::Errno;

use crate::file::path_of;

/// Most bytes of a file name on Linux.
const NAME_MAX: usize = 255;

/// Bytes of the random part of a name, which has two digits for each.
const RANDOM: usize = 16;

const ENDING: &[u8] = b".tmp";

/// Most links on the way to a file, as in the kernel.
const LINKS_MAX: usize = 40;

/// Opens a file or folder without access to its content.
const FIND: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Creates a file.
const CREATE: OFlags = OFlags::RDWR
    .union(OFlags::CREATE)
    .union(OFlags::EXCL)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// A step that failed, and the error of the system.
type Failed = (&'static str, Errno);

/// A new file next to the one that it replaces.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Replacement {
    state: Mutex<State>,
    path: PathBuf,
}

/// No descriptor outlives the save, even if an exception keeps the object: one of a removed file
/// would keep its space.
enum State {
    Open(New),
    Closed,
}

/// A file that has no name of its own yet, of the process that created it.
struct New {
    file: OwnedFd,
    temporary: OsString,
    target: Target,
    process: u32,
}

/// Where a path leads.
struct Target {
    path: PathBuf,
    folder: OwnedFd,
    name: OsString,
    old: Option<OwnedFd>,
}

#[pymethods]
impl Replacement {
    /// Creates a file next to `path`, and removes those that killed writers of `path` left.
    ///
    /// Raises `OSError`, whose `strerror` is the step that failed.
    #[new]
    fn new(path: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (py, path) = (path.py(), path_of(path)?);
        let made = py.detach(|| {
            let target = resolved(&path)?;
            let own = prefix(&target.name);
            // A folder that may not be listed keeps them.
            let _ = remove_left(&target.folder, |start| start == own);
            // Only its owner may open the new file before it has the old one's permissions.
            let mode = if target.old.is_some() { 0o600 } else { 0o666 };
            let (temporary, file) =
                created(&target.folder, &target.name, Mode::from_raw_mode(mode))
                    .map_err(|errno| ("cannot create a file next to", errno))?;
            let path = target.path.clone();
            let process = std::process::id();
            let state = Mutex::new(State::Open(New { file, temporary, target, process }));
            Ok(Self { state, path })
        });
        made.map_err(raised)
    }

    /// The path of the file, with all links resolved.
    #[getter]
    fn path(&self) -> OsString {
        self.path.clone().into()
    }

    /// The descriptor of the new file.
    #[getter]
    fn number(&self) -> PyResult<RawFd> {
        match &*self.lock() {
            State::Open(new) => Ok(new.file.as_raw_fd()),
            State::Closed => Err(PyValueError::new_err("the file is closed")),
        }
    }

    /// A descriptor of the old file, with `O_PATH`; `None` if there is no file, or the new one has
    /// its name.
    #[getter]
    fn old(&self) -> Option<RawFd> {
        match &*self.lock() {
            State::Open(new) => new.target.old.as_ref().map(OwnedFd::as_raw_fd),
            State::Closed => None,
        }
    }

    /// Gives the new file its name. With `sync`, its bytes are on the drive before, and its name
    /// afterwards.
    ///
    /// Raises `OSError`, whose `strerror` is the step that failed.
    fn commit(&self, py: Python<'_>, sync: bool) -> PyResult<()> {
        py.detach(|| self.committed(sync)).map_err(raised)
    }

    fn __enter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    /// Removes the new file, unless it has its name.
    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: Bound<'_, PyAny>) {
        py.detach(|| self.discard());
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        let discarded = Python::try_attach(|py| py.detach(|| self.discard()));
        if discarded.is_none() {
            self.discard(); // the interpreter is ending
        }
    }
}

impl Replacement {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn committed(&self, sync: bool) -> Result<(), Failed> {
        // Not under the lock, for which threads wait that are attached to the interpreter.
        let State::Open(new) = std::mem::replace(&mut *self.lock(), State::Closed) else {
            return Err(("cannot replace", Errno::BADF));
        };
        let is_own = new.process == std::process::id();
        let named = if is_own {
            new.give_name(sync)
        } else {
            Err(("a child of a fork cannot replace", Errno::PERM))
        };
        if let Err(failed) = named {
            *self.lock() = State::Open(new);
            return Err(failed);
        }
        match sync {
            true => new.sync_name().map_err(|errno| ("cannot sync the folder of", errno)),
            false => Ok(()),
        }
    }

    fn discard(&self) {
        let state = std::mem::replace(&mut *self.lock(), State::Closed);
        if let State::Open(New { file, temporary, target, process }) = state {
            drop(file); // some file systems rename an open file instead of removing it
            if process == std::process::id() {
                // The error that led here counts.
                let _ = unlinkat(&target.folder, &temporary, AtFlags::empty());
            }
        }
    }
}

impl New {
    fn give_name(&self, sync: bool) -> Result<(), Failed> {
        let Self { file, temporary, target: Target { folder, name, .. }, .. } = self;
        if sync {
            uninterrupted(|| fsync(file))
                .map_err(|errno| ("cannot sync the replacement of", errno))?;
        }
        // Closing a copy shows the errors that a server reports then; the file keeps its lock.
        let copy = rustix::io::fcntl_dupfd_cloexec(file, 3);
        let copy = copy.map_err(|errno| ("cannot close the replacement of", errno))?;
        close(copy).map_err(|errno| ("cannot close the replacement of", errno))?;
        renameat(folder, temporary, folder, name).map_err(|errno| ("cannot replace", errno))
    }

    /// Syncs the folder, which has the name of the file. A folder that may not be read cannot be
    /// synced alone, so its file system is.
    fn sync_name(&self) -> Result<(), Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let synced = match openat(&self.target.folder, ".", flags, Mode::empty()) {
            Ok(folder) => uninterrupted(|| fsync(&folder)),
            Err(Errno::ACCESS | Errno::PERM) => uninterrupted(|| syncfs(&self.file)),
            Err(errno) => Err(errno),
        };
        match synced {
            // Some file systems cannot sync a folder.
            Err(Errno::INVAL | Errno::NOTSUP | Errno::NOSYS) => Ok(()),
            synced => synced,
        }
    }
}

/// Finds the folder of a path and its last part; links are followed.
fn resolved(path: &Path) -> Result<Target, Failed> {
    const OPEN: &str = "cannot open the folder of";
    let mut left: VecDeque<OsString> = parts(path);
    let mut whole = match path.is_absolute() {
        true => PathBuf::from("/"),
        false => std::env::current_dir().unwrap_or_default(),
    };
    let folder_flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let first = if path.is_absolute() { "/" } else { "." };
    let mut folder =
        openat(CWD, first, folder_flags, Mode::empty()).map_err(|errno| (OPEN, errno))?;
    let mut links = 0;
    while let Some(name) = left.pop_front() {
        if name == "." {
            match left.is_empty() {
                true => break,
                false => continue, // the end of a link's target
            }
        }
        if name == ".." {
            folder = openat(&folder, "..", folder_flags, Mode::empty())
                .map_err(|errno| (OPEN, errno))?;
            whole.pop();
            continue;
        }
        let found = match openat(&folder, &name, FIND, Mode::empty()) {
            Ok(found) => found,
            Err(Errno::NOENT) if left.is_empty() => {
                return Ok(Target { path: whole.join(&name), folder, name, old: None });
            }
            Err(errno) => return Err((OPEN, errno)),
        };
        let stat = fstat(&found).map_err(|errno| (OPEN, errno))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => {
                links += 1;
                let target = followed(&folder, &found, &stat, links)?;
                if target.is_absolute() {
                    folder = openat(CWD, "/", folder_flags, Mode::empty())
                        .map_err(|errno| (OPEN, errno))?;
                    whole = PathBuf::from("/");
                }
                for part in parts(&target).into_iter().rev() {
                    left.push_front(part);
                }
            }
            FileType::Directory if !left.is_empty() => {
                (folder, whole) = (found, whole.join(&name));
            }
            _ if !left.is_empty() => return Err((OPEN, Errno::NOTDIR)),
            FileType::RegularFile => {
                return Ok(Target { path: whole.join(&name), folder, name, old: Some(found) });
            }
            FileType::Directory => break,
            _ => return Err(("cannot replace what is no regular file:", Errno::INVAL)),
        }
    }
    Err(("cannot replace", Errno::ISDIR))
}

/// The names in a path; the last one is `.` if the path can only name a folder.
fn parts(path: &Path) -> VecDeque<OsString> {
    let named = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    };
    let bytes = path.as_os_str().as_bytes();
    let end = (bytes.ends_with(b"/") || bytes.ends_with(b"/.")).then(|| ".".into());
    path.components().filter_map(named).chain(end).collect()
}

/// The target of a link, if the kernel would follow it with `fs.protected_symlinks`
/// (`Documentation/admin-guide/sysctl/fs.rst`).
fn followed(
    folder: &OwnedFd,
    link: &OwnedFd,
    about: &Stat,
    links: usize,
) -> Result<PathBuf, Failed> {
    const FOLLOW: &str = "cannot follow the link of another user to";
    let above = fstat(folder).map_err(|errno| (FOLLOW, errno))?;
    let is_shared = above.st_mode & 0o1002 == 0o1002;
    let is_own = about.st_uid == rustix::process::geteuid().as_raw();
    if is_shared && !is_own && about.st_uid != above.st_uid {
        return Err((FOLLOW, Errno::ACCESS));
    }
    if links > LINKS_MAX {
        return Err(("cannot follow the links to", Errno::LOOP));
    }
    let target = readlinkat(link, "", Vec::new()).map_err(|errno| (FOLLOW, errno))?;
    Ok(OsString::from_vec(target.into_bytes()).into())
}

/// Creates and locks a file with a random name.
fn created(folder: &OwnedFd, name: &OsStr, mode: Mode) -> Result<(OsString, OwnedFd), Errno> {
    loop {
        let temporary = temporary(name)?;
        let file = openat(folder, &temporary, CREATE, mode)?;
        // Without locks, as on some network drives, files of killed writers stay.
        let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
        // Another writer may have removed it before it was locked.
        if fstat(&file)?.st_nlink > 0 {
            return Ok((temporary, file));
        }
    }
}

/// A random name: a dot, the start of the file's own name, and an ending.
fn temporary(name: &OsStr) -> Result<OsString, Errno> {
    let mut random = [0; RANDOM];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let mut ending = String::from(".");
    for byte in random {
        let _ = write!(ending, "{byte:02x}"); // writing to a string cannot fail
    }
    let mut made = prefix(name);
    made.extend_from_slice(ending.as_bytes());
    made.extend_from_slice(ENDING);
    Ok(OsString::from_vec(made))
}

/// The start of a temporary name.
fn prefix(name: &OsStr) -> Vec<u8> {
    let room = NAME_MAX - (2 + 2 * RANDOM + ENDING.len());
    let name = name.as_bytes();
    [b".", &name[..name.len().min(room)]].concat()
}

/// Removes files that killed writers left, of names whose start `is_of` accepts. Returns how many
/// others there are, which may be in use.
fn remove_left(folder: &OwnedFd, is_of: impl Fn(&[u8]) -> bool) -> Result<usize, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut used = 0;
    for entry in openat(folder, ".", flags, Mode::empty()).and_then(Dir::new)?.flatten() {
        let found = entry.file_name();
        if !named(found).is_some_and(&is_of) {
            continue;
        }
        if is_left(folder, found) {
            let _ = unlinkat(folder, found, AtFlags::empty());
        } else {
            used += 1;
        }
    }
    Ok(used)
}

/// The start of a temporary name, without the random part.
fn named(name: &CStr) -> Option<&[u8]> {
    let rest = name.to_bytes().strip_suffix(ENDING)?;
    let (start, random) = rest.split_at_checked(rest.len().checked_sub(1 + 2 * RANDOM)?)?;
    let is_digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    let is_random = random[0] == b'.' && random[1..].iter().all(is_digit);
    (is_random && start.starts_with(b".")).then_some(start)
}

/// Removes the files that killed writers left in a folder, of names that begin with `start`.
/// Returns how many others there are, which may be in use. Raises `OSError`.
#[pyfunction]
pub(crate) fn remove_temporary(folder: &Bound<'_, PyAny>, start: &str) -> PyResult<usize> {
    let (py, folder) = (folder.py(), path_of(folder)?);
    let start = format!(".{start}");
    let used = py.detach(|| {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = openat(CWD, &folder, flags, Mode::empty())?;
        remove_left(&folder, |found| found.starts_with(start.as_bytes()))
    });
    used.map_err(|errno| raised(("cannot list the folder", errno)))
}

/// Whether a file is not locked, so that no process writes to it.
fn is_left(folder: &OwnedFd, name: &CStr) -> bool {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(file) = openat(folder, name, flags, Mode::empty()) else { return false };
    let is_file = fstat(&file).map(|stat| FileType::from_raw_mode(stat.st_mode).is_file());
    is_file == Ok(true) && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// Repeats a call that a signal interrupts.
fn uninterrupted(mut call: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

fn raised((step, errno): Failed) -> PyErr {
    PyOSError::new_err((errno.raw_os_error(), step))
}

/// Closes a file, and returns the errors that a file server reports then.
pub(crate) fn close(file: OwnedFd) -> Result<(), Errno> {
    // SAFETY: the descriptor is this function's, and not used afterwards.
    unsafe { rustix::io::try_close(file.into_raw_fd()) }
}
