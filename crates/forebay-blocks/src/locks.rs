//! Locks on bytes of a root's file `lock`. They belong to the process: the kernel releases them
//! when it dies, a forked child does not inherit them, and processes of several containers
//! share them.
//!
//! The kernel releases all of a process's locks on a file when the process closes any descriptor of
//! it. So the stores of a process share a descriptor.

#![expect(unsafe_code, reason = "no crate at hand has locks on ranges of a file")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use forebay_base::lock::{Lock, MutexGuard};
use forebay_base::per_process::PerProcess;

use crate::files;

/// Shared by all processes with the root open.
const OPEN: i64 = 0;
/// Held while a root is made or opened.
const SETUP: i64 = 1;
/// Held while the index changes.
const INDEX: i64 = 2;
/// The lock of a key that is being written is at this byte plus a hash of the key.
const KEYS: i64 = 1 << 40;
/// Bytes of the data that are being written are locked at this byte plus their offset.
const DATA: i64 = 1 << 41;

/// How long to wait for a lock that processes hold for microseconds. A stopped process may
/// hold it for longer.
const WAIT_MAX: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_micros(50);

/// The locks of this process on a root.
#[derive(Debug)]
pub(crate) struct Locks {
    file: File,
    identity: (u64, u64),
    /// Starts and ends of the bytes that this process's threads have claimed.
    claimed: Lock<BTreeMap<i64, i64>>,
    /// The threads of the process make the root and change its index in turn: its locks are the
    /// process's.
    setup: Lock<Turn<SETUP>>,
    index: Lock<Turn<INDEX>>,
}

/// The turn of a thread.
#[derive(Debug, Default)]
struct Turn<const BYTE: i64>;

/// A share of the process's locks on a root. Dropping the last share closes the file.
#[derive(Debug)]
pub(crate) struct Share(Option<Arc<Locks>>);

static ALL: PerProcess<Lock<Vec<Arc<Locks>>>> = PerProcess::new();

/// A lock, until it is dropped.
#[derive(Debug)]
pub(crate) struct Locked<'a, const BYTE: i64> {
    locks: &'a Locks,
    _turn: MutexGuard<'a, Turn<BYTE>>,
}

/// The right to write a key or some data, until it is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    locks: Share,
    start: i64,
}

impl Share {
    /// Opens the file, or makes it.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let mut all = ALL.get_or_init(Lock::default).lock();
        // Not by opening it: closing that descriptor would release the locks.
        if let Ok(there) = std::fs::symlink_metadata(path)
            && let Some(locks) = all.iter().find(|it| it.identity == (there.dev(), there.ino()))
        {
            return Ok(Self(Some(Arc::clone(locks))));
        }
        let file = files::own(path)?;
        let made = file.metadata()?;
        let (identity, claimed) = ((made.dev(), made.ino()), Lock::default());
        let (setup, index) = (Lock::default(), Lock::default());
        let locks = Arc::new(Locks { file, identity, claimed, setup, index });
        all.push(Arc::clone(&locks));
        Ok(Self(Some(locks)))
    }

    fn locks(&self) -> &Arc<Locks> {
        self.0.as_ref().expect("until it is dropped")
    }

    /// Device and number of the file.
    pub(crate) fn identity(&self) -> (u64, u64) {
        self.locks().identity
    }

    /// Waits for the lock under which a root is made.
    pub(crate) fn set_up(&self, bound: Duration) -> io::Result<Locked<'_, SETUP>> {
        let locks = self.locks();
        locks.wait(locks.setup.lock(), bound)
    }

    /// Waits for the lock under which the index changes.
    pub(crate) fn index(&self) -> io::Result<Locked<'_, INDEX>> {
        let locks = self.locks();
        locks.wait(locks.index.lock(), WAIT_MAX)
    }

    /// Marks the root as open, under the lock of the setup. True if no other process and no other
    /// store of this one has it open.
    pub(crate) fn mark_open(&self) -> io::Result<bool> {
        let locks = self.locks();
        // This share and the list have it, and claims.
        let is_only = Arc::strong_count(locks) - locks.claimed.lock().len() == 2;
        let is_alone = is_only && locks.set(libc::F_WRLCK, OPEN)?;
        locks.set(libc::F_RDLCK, OPEN)?;
        Ok(is_alone)
    }

    /// Claims a key for writing; `None` if a writer holds it.
    pub(crate) fn claim_key(&self, hash: u64) -> io::Result<Option<Claim>> {
        let byte = KEYS + i64::try_from(hash >> 24).expect("40 bits");
        Ok(self.claim(byte, 1)?.ok())
    }

    /// Claims bytes of the data for writing, or returns the end of those that a writer holds.
    pub(crate) fn claim_data(&self, start: u64, len: u64) -> io::Result<Result<Claim, u64>> {
        let [start, len] = [start, len].map(|it| i64::try_from(it).expect("in the longest file"));
        let claim = self.claim(DATA + start, len)?;
        Ok(claim.map_err(|end| u64::try_from(end - DATA).unwrap_or(u64::MAX)))
    }

    fn claim(&self, start: i64, len: i64) -> io::Result<Result<Claim, i64>> {
        let (locks, end) = (self.locks(), start + len);
        let mut claimed = locks.claimed.lock();
        if let Some((_, &other)) = claimed.range(..end).next_back()
            && other > start
        {
            return Ok(Err(other));
        }
        while !locks.change(&mut lock_of(libc::F_WRLCK, start, len), libc::F_SETLK)? {
            let mut other = lock_of(libc::F_WRLCK, start, len);
            locks.change(&mut other, libc::F_GETLK)?;
            // Its writer may have ended just now.
            if libc::c_int::from(other.l_type) != libc::F_UNLCK {
                return Ok(Err(other.l_start + other.l_len));
            }
        }
        claimed.insert(start, end);
        Ok(Ok(Claim { locks: Self(Some(Arc::clone(locks))), start }))
    }
}

fn lock_of(kind: libc::c_int, start: i64, len: i64) -> libc::flock {
    libc::flock {
        l_type: libc::c_short::try_from(kind).expect("three small numbers"),
        l_whence: libc::c_short::try_from(libc::SEEK_SET).expect("zero"),
        l_start: start,
        l_len: len,
        l_pid: 0,
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let Some(locks) = self.0.take() else { return };
        let Some(all) = ALL.get() else { return }; // of the parent of this process
        // Under the lock: closing the file would release the locks of a new descriptor.
        let mut all = all.lock();
        drop(locks);
        all.retain(|it| Arc::strong_count(it) > 1);
    }
}

impl<const BYTE: i64> Drop for Locked<'_, BYTE> {
    fn drop(&mut self) {
        // Fails only for a bad argument; the end of the process releases it too.
        let _ = self.locks.set(libc::F_UNLCK, BYTE);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let locks = self.locks.locks();
        let mut claimed = locks.claimed.lock();
        let Some(end) = claimed.remove(&self.start) else { return };
        let mut bytes = lock_of(libc::F_UNLCK, self.start, end - self.start);
        let _ = locks.change(&mut bytes, libc::F_SETLK);
    }
}

impl Locks {
    fn wait<'a, const BYTE: i64>(
        &'a self,
        turn: MutexGuard<'a, Turn<BYTE>>,
        bound: Duration,
    ) -> io::Result<Locked<'a, BYTE>> {
        let started = Instant::now();
        while !self.set(libc::F_WRLCK, BYTE)? {
            if started.elapsed() > bound {
                let text = format!("another process has kept its lock for {bound:?}");
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            thread::sleep(LOOK_AGAIN);
        }
        Ok(Locked { locks: self, _turn: turn })
    }

    /// Sets a lock; false if a different process holds a conflicting lock.
    fn set(&self, kind: libc::c_int, byte: i64) -> io::Result<bool> {
        self.change(&mut lock_of(kind, byte, 1), libc::F_SETLK)
    }

    fn change(&self, lock: &mut libc::flock, command: libc::c_int) -> io::Result<bool> {
        // SAFETY: the descriptor is open, and the call reads and writes the structure only.
        match unsafe { libc::fcntl(self.file.as_raw_fd(), command, &raw mut *lock) } {
            -1 => match io::Error::last_os_error() {
                error if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
                    Ok(false)
                }
                error => Err(error),
            },
            _ => Ok(true),
        }
    }
}
