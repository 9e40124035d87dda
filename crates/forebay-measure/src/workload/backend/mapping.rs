//! A mapped file whose read errors are reported as errors. When a mapped file becomes shorter or
//! its drive fails, access to the mapping raises a signal that kills the process.
//!
//! While a mapping exists, the signal handler maps zeros over everything from the missing page on,
//! and records its address. So the copy finishes, at full speed if nothing is missing. The caller
//! calls [`Mapping::check`] before it trusts the bytes.

#![expect(unsafe_code, reason = "a file is mapped and viewed as bytes, and a signal is handled")]

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::path::Path;
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay::units::align_down;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::failure::{Failure, Result};
use crate::memory::whole;
use crate::results::Direction;

/// Held by the only mapping, since a signal handler can only use static state.
static ONE: Mutex<()> = Mutex::new(());
static START: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);
static PAGE: AtomicUsize = AtomicUsize::new(0);
/// The first address without a page; [`usize::MAX`] as long as all exist.
static MISSING: AtomicUsize = AtomicUsize::new(usize::MAX);

/// A part of a file, mapped.
pub(super) struct Mapping {
    start: *mut u8,
    len: usize,
    /// Bytes before the part: a mapping begins at a page.
    skipped: usize,
    /// The offset of the part in the file.
    offset: u64,
    /// The previous signal handler.
    before: libc::sigaction,
    _one: MutexGuard<'static, ()>,
}

impl Mapping {
    /// Maps `len` bytes at `offset`.
    ///
    /// # Errors
    /// System errors.
    pub(super) fn of(
        file: &File,
        path: &Path,
        (offset, len): (u64, u64),
        direction: Direction,
    ) -> Result<Self> {
        let failed = |error: io::Error| Failure::at("map", path, &error);
        let access = match direction {
            Direction::Read => ProtFlags::READ,
            Direction::Write => ProtFlags::READ | ProtFlags::WRITE,
        };
        let page = rustix::param::page_size();
        let first = align_down(offset, page as u64);
        let skipped = whole(offset - first);
        let len = usize::try_from(len).ok().and_then(|len| len.checked_add(skipped));
        let len = len.ok_or_else(|| failed(io::ErrorKind::OutOfMemory.into()))?;
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: a new mapping at an address of the kernel's choice affects no other memory.
        let start = unsafe { mmap(ptr::null_mut(), len, access, MapFlags::SHARED, file, first) };
        let start: *mut u8 = start.map_err(|error| failed(error.into()))?.cast();
        START.store(start.expose_provenance(), Ordering::Relaxed);
        END.store(start.addr() + len, Ordering::Relaxed);
        PAGE.store(page, Ordering::Relaxed);
        MISSING.store(usize::MAX, Ordering::Relaxed);
        Ok(Self { start, len, skipped, offset, before: take_signal(), _one: one })
    }

    /// Its bytes; zeros from a missing page on.
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is `len` bytes and lives as long as `self`. Another process may
        // change the user's file during the copy. The bytes are only copied and never interpreted,
        // and wrong ones are found by the check.
        unsafe { &slice::from_raw_parts(self.start, self.len)[self.skipped..] }
    }

    /// Its bytes, mutable.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; only scratch, which no other process touches, is mapped for
        // writing.
        unsafe { &mut slice::from_raw_parts_mut(self.start, self.len)[self.skipped..] }
    }

    /// Checks that all bytes accessed so far were the file's.
    ///
    /// # Errors
    /// If a page was missing.
    pub(super) fn check(&self, path: &Path, direction: Direction) -> Result<()> {
        let missing = MISSING.load(Ordering::Relaxed);
        if missing == usize::MAX {
            return Ok(());
        }
        let (verb, path) = (direction.name(), path.display());
        let at = (missing - self.start.addr()).saturating_sub(self.skipped) as u64 + self.offset;
        Err(Failure::new(format!("cannot {verb} `{path}` at {at} through a mapping"))
            .because("the kernel has no page there: the file became shorter, or its drive failed")
            .hint("do not change the file during a run; otherwise check the log (`dmesg`)"))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the previous handler is still valid. This value owns the mapping, with the zeros
        // that may be mapped over it, and nothing borrows it any more.
        unsafe {
            libc::sigaction(libc::SIGBUS, &raw const self.before, ptr::null_mut());
            let _ = munmap(self.start.cast(), self.len);
        }
    }
}

/// Installs the handler that replaces missing pages; returns the previous one.
fn take_signal() -> libc::sigaction {
    let mut before = MaybeUninit::zeroed();
    // SAFETY: an action of zeros is valid, and so are the fields set here; the output stays zero if
    // the call should fail, which it does not for this signal.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = replace as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &raw const action, before.as_mut_ptr());
        before.assume_init()
    }
}

/// The signal handler: loads, stores and system calls only, since it may interrupt anything.
extern "C" fn replace(
    _signal: libc::c_int,
    facts: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    let (start, end) = (START.load(Ordering::Relaxed), END.load(Ordering::Relaxed));
    // SAFETY: the kernel passes the facts of this signal.
    let at = unsafe { (*facts).si_addr() }.addr();
    let page = at - at % PAGE.load(Ordering::Relaxed);
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: only the rest of this mapping is replaced, which was accessed. For any
    // other address the default action is restored, and the access is repeated.
    unsafe {
        let is_ours = (start..end).contains(&at)
            && libc::mmap(ptr::with_exposed_provenance_mut(page), end - page, access, how, -1, 0)
                != libc::MAP_FAILED;
        if is_ours {
            MISSING.fetch_min(at, Ordering::Relaxed);
        } else {
            libc::signal(libc::SIGBUS, libc::SIG_DFL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn a_file_that_becomes_shorter_is_an_error_and_no_death() {
        let temporary = tempfile::NamedTempFile::new().unwrap();
        let page = rustix::param::page_size();
        let (file, len) = (temporary.as_file(), 8 * page as u64);
        std::fs::write(temporary.path(), vec![7; 8 * page]).unwrap();
        let (path, read) = (temporary.path(), Direction::Read);
        for kept in [len, 5 * page as u64, 0] {
            file.set_len(len).unwrap();
            std::fs::write(temporary.path(), vec![7; 8 * page]).unwrap();
            let mapping = Mapping::of(file, path, (0, len), read).unwrap();
            file.set_len(kept).unwrap();
            let mut target = vec![1; 8 * page];
            target.copy_from_slice(mapping.bytes());
            let there = usize::try_from(kept).unwrap();
            assert!(target[..there].iter().all(|byte| *byte == 7));
            assert!(target[there..].iter().all(|byte| *byte == 0));
            match mapping.check(path, read) {
                Ok(()) => assert_eq!(kept, len),
                Err(failure) => {
                    // The copy may begin at its end.
                    let at = failure.message.split_once(" at ").unwrap().1;
                    let at: u64 = at.split(' ').next().unwrap().parse().unwrap();
                    assert!(kept < len && (kept..len).contains(&at), "{failure:?}");
                }
            }
        }
    }
}
