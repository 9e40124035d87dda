//! The memory that bytes move to and from: a GPU's, or the host's if there is no GPU.

#![expect(
    unsafe_code,
    reason = "mappings are made, viewed and ended by raw address, files by number"
)]

use std::convert::Infallible;
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::IntoRawFd as _;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use forebay::Buffer;
use forebay::gpu::{Device, DeviceId};
use forebay::units::{MIB, align_up, format_size};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::data::{PIECE, Pattern};
use super::parallel::{cores, each_piece};
use crate::failure::{Failure, Result};

/// Bytes of one step when GPU memory is filled: enough for the link's full rate.
const STEP: u64 = 16 * MIB;

/// Closes a file. Some file systems report a failed write only here: network file systems, or those
/// with a quota.
///
/// # Errors
/// System errors.
pub(crate) fn close(file: File) -> io::Result<()> {
    // SAFETY: `file` has given up its descriptor, so nothing else closes it.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            // Linux has closed it anyway.
            error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            error => Err(error),
        },
    }
}

/// Closes the file at `path`; its error counts if the file was written.
///
/// # Errors
/// System errors.
pub(crate) fn end(file: File, path: &Path, written: bool) -> Result<()> {
    match close(file) {
        Err(error) if written => {
            Err(Failure::io(format!("cannot close `{}`", path.display()), &error))
        }
        _ => Ok(()),
    }
}

/// Closes a duplicate of the descriptor, so that the file system reports errors as at the last
/// close.
///
/// # Errors
/// System errors.
pub(crate) fn flush(file: &File, path: &Path) -> Result<()> {
    let failed = |error| Failure::io(format!("cannot close `{}`", path.display()), &error);
    end(file.try_clone().map_err(failed)?, path, true)
}

/// Page-aligned, zero-initialised host memory, on huge pages if the system has them.
#[derive(Debug)]
pub struct HostMemory {
    start: NonNull<u8>,
    len: usize,
    mapped: usize,
}

// SAFETY: it is plain memory that this value alone owns; access follows Rust's borrows of it.
unsafe impl Send for HostMemory {}
// SAFETY: as above; a shared reference only reads.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Allocates `len` bytes.
    ///
    /// # Errors
    /// System errors, for lack of memory.
    pub fn allocate(len: u64) -> Result<Self> {
        let failed = |error: io::Error| {
            Failure::io(format!("cannot allocate {} of host memory", format_size(len)), &error)
                .hint("give a smaller `--size`")
        };
        let too_large = || failed(io::ErrorKind::OutOfMemory.into());
        let bytes = usize::try_from(len).map_err(|_| too_large())?;
        let mapped = usize::try_from(align_up(len.max(1), 2 * MIB)).map_err(|_| too_large())?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice affects no other memory.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), mapped, access, MapFlags::PRIVATE) }
            .map_err(|error| failed(error.into()))?;
        // SAFETY: the range is the mapping made above. Huge pages are optional.
        let _ = unsafe { madvise(start, mapped, Advice::LinuxHugepage) };
        let start = NonNull::new(start.cast()).expect("a mapping is never at address zero");
        Ok(Self { start, len: bytes, mapped })
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is `len` bytes or more, initialised (zero at first), and lives as
        // long as `self`, whose shared borrow excludes writers.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// Its bytes, mutable.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; the exclusive borrow of `self` excludes all other access.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and nothing borrows it any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast::<c_void>(), self.mapped) };
    }
}

/// Memory of one GPU.
#[derive(Debug)]
pub struct GpuMemory {
    /// The memory itself.
    pub buffer: Buffer,
    /// The GPU.
    pub device: Arc<dyn Device>,
}

/// The target of reads and source of writes.
#[derive(Debug)]
pub enum Memory {
    /// Host memory, if the target is not a GPU.
    Host(HostMemory),
    /// GPU memory.
    Gpu(GpuMemory),
}

impl Memory {
    /// The GPU; `None` for the host.
    #[must_use]
    pub fn device(&self) -> Option<DeviceId> {
        match self {
            Self::Host(_) => None,
            Self::Gpu(gpu) => Some(gpu.device.id()),
        }
    }

    /// Its name in reports: `host`, `cuda:0`, `sim:0`.
    #[must_use]
    pub fn name(&self) -> String {
        self.device().map_or_else(|| "host".into(), |id| id.to_string())
    }

    /// Sets every byte to `byte`.
    ///
    /// # Errors
    /// GPU errors.
    pub fn set(&mut self, byte: u8) -> Result<()> {
        match self {
            Self::Host(memory) => set_bytes(memory.bytes_mut(), byte),
            Self::Gpu(gpu) => gpu.buffer.fill(byte)?,
        }
        Ok(())
    }

    /// Writes the first `len` bytes of `pattern` here.
    ///
    /// # Errors
    /// GPU errors.
    pub fn put(&mut self, pattern: Pattern, len: u64) -> Result<()> {
        match self {
            Self::Host(memory) => put_bytes(&mut memory.bytes_mut()[..whole(len)], pattern, 0),
            Self::Gpu(gpu) => put_into(&mut gpu.buffer, pattern, len)?,
        }
        Ok(())
    }
}

/// Sets every byte to `byte`, on all cores.
pub(crate) fn set_bytes(bytes: &mut [u8], byte: u8) {
    let set: Result<(), Infallible> = each_piece(bytes, piece(), cores(), |_, bytes| {
        bytes.fill(byte);
        Ok(())
    });
    set.unwrap_or_else(|never| match never {});
}

/// Fills `bytes` with the part of `pattern` that begins at `start`, on all cores.
pub(crate) fn put_bytes(bytes: &mut [u8], pattern: Pattern, start: u64) {
    let put: Result<(), Infallible> = each_piece(bytes, piece(), cores(), |at, bytes| {
        pattern.fill(start + at, bytes);
        Ok(())
    });
    put.unwrap_or_else(|never| match never {});
}

/// Writes the first `len` bytes of `pattern` into a buffer in any memory.
///
/// # Errors
/// GPU errors.
pub(crate) fn put_into(buffer: &mut Buffer, pattern: Pattern, len: u64) -> Result<()> {
    if let Some(bytes) = buffer.as_mut_slice() {
        put_bytes(&mut bytes[..whole(len)], pattern, 0);
        return Ok(());
    }
    let mut step = vec![0; whole(STEP.min(len))];
    let mut start = 0;
    while start < len {
        let bytes = &mut step[..whole(STEP.min(len - start))];
        put_bytes(bytes, pattern, start);
        buffer.upload(start, bytes)?;
        start += bytes.len() as u64;
    }
    Ok(())
}

fn piece() -> usize {
    whole(PIECE)
}

/// `len`, the size of something in memory, as an index.
pub(crate) fn whole(len: u64) -> usize {
    usize::try_from(len).expect("memory is addressed by 64 bits here")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(memory: &Memory, expected: Pattern, len: u64) -> bool {
        match memory {
            Memory::Host(memory) => expected.matches(0, &memory.bytes()[..whole(len)]),
            Memory::Gpu(_) => unreachable!("host memory was made"),
        }
    }

    #[test]
    fn host_memory_holds_what_was_put_there() {
        let len = 33 * MIB + 5;
        let mut memory = Memory::Host(HostMemory::allocate(len).unwrap());
        let pattern = Pattern::new(1);
        memory.put(pattern, len).unwrap();
        assert!(holds(&memory, pattern, len));
        for at in [0, whole(STEP), whole(len) - 1] {
            flip(&mut memory, at);
            assert!(!holds(&memory, pattern, len), "{at}");
            flip(&mut memory, at);
        }
        assert!(holds(&memory, pattern, len));
    }

    fn flip(memory: &mut Memory, at: usize) {
        match memory {
            Memory::Host(host) => host.bytes_mut()[at] ^= 1,
            Memory::Gpu(_) => unreachable!("host memory was made"),
        }
    }

    #[test]
    fn no_memory_is_an_error() {
        assert!(HostMemory::allocate(1 << 60).is_err());
        assert!(HostMemory::allocate(0).unwrap().bytes().is_empty());
    }
}
