//! Memory that two processes share: a mapped file without a name.

#![expect(unsafe_code, reason = "a mapping is made, viewed and ended by raw address")]

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::ptr::{self, NonNull};
use std::slice;

use forebay::units::format_size;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::failure::{Failure, Result};

/// A mapped file without a name.
#[derive(Debug)]
pub(super) struct Shared {
    start: NonNull<u8>,
    len: usize,
    file: File,
}

// SAFETY: plain memory of the mapping that this value owns; access follows Rust's borrows of it,
// and the other process accesses it only between a request and its answer.
unsafe impl Send for Shared {}
// SAFETY: as above; a shared reference only reads.
unsafe impl Sync for Shared {}

impl Shared {
    /// Reserves `len` bytes, one or more, zero at first.
    pub(super) fn allocate(len: u64) -> Result<Self> {
        let reserved = || {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let file = memfd_create("forebay-bench", flags)?;
            ftruncate(&file, len)?;
            // The file must not be shortened: accessing missing pages would be fatal.
            fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
            Self::map(file.into(), len)
        };
        reserved().map_err(|error| {
            Failure::io(format!("cannot share {} of memory", format_size(len)), &error)
        })
    }

    /// Maps `len` bytes that another process has reserved at `path`.
    pub(super) fn open(path: &str, len: u64) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        let has = file.metadata()?.len();
        // Other files could become shorter.
        let seals = rustix::fs::fcntl_get_seals(&file)?;
        match seals.contains(SealFlags::SHRINK) && has >= len {
            true => Self::map(file, len),
            false => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn map(file: File, len: u64) -> io::Result<Self> {
        let bytes = usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let fd = file.as_fd();
        // SAFETY: a new mapping at an address of the kernel's choice affects no other memory, and
        // the file cannot become shorter.
        let start = unsafe { mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED, fd, 0) }?;
        let start = NonNull::new(start.cast()).expect("a mapping is never at address zero");
        Ok(Self { start, len: bytes, file })
    }

    /// The path by which another process of this user opens it.
    pub(super) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// Its bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is `len` bytes and lives as long as `self`. The other process is
        // between an answer and the next request. If it writes nevertheless, a byte may be wrong,
        // and bytes are only compared or copied.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// Its bytes, mutable.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; the exclusive borrow of `self` excludes all other access in this
        // process.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and nothing borrows it any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast::<c_void>(), self.len) };
    }
}
