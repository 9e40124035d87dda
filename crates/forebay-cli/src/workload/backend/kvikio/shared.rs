//! Memory that two processes share: a mapped file without a name.

#![expect(unsafe_code, reason = "a mapping is made, viewed and ended by raw address")]

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
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
    file: OwnedFd,
}

// SAFETY: plain memory of the mapping that this value owns; access follows Rust's borrows of it,
// and the other process writes to it only between an order and its answer.
unsafe impl Send for Shared {}
// SAFETY: as above; a shared reference only reads.
unsafe impl Sync for Shared {}

impl Shared {
    /// Reserves `len` bytes, one or more, zero at first.
    pub(super) fn allocate(len: u64) -> Result<Self> {
        let failed = |error: io::Error| {
            Failure::io(format!("cannot share {} of memory", format_size(len)), &error)
        };
        let bytes = usize::try_from(len).map_err(|_| failed(io::ErrorKind::OutOfMemory.into()))?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("forebay-bench", flags).map_err(|errno| failed(errno.into()))?;
        ftruncate(&file, len).map_err(|errno| failed(errno.into()))?;
        // The file must not be shortened: accessing missing pages would be fatal.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&file, seals).map_err(|errno| failed(errno.into()))?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice affects no other memory, and
        // the file's length is fixed.
        let start = unsafe { mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED, &file, 0) };
        let start = start.map_err(|errno| failed(errno.into()))?;
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
        // and bytes are only used for comparison.
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
