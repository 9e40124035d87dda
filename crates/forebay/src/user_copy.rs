//! Copies between memory of this library and memory of a caller, made by the kernel.
//!
//! A caller's memory may be a mapping of a file that became shorter. The processor raises SIGBUS
//! where it touches a page beyond the end, which ends the process. The kernel fails with EFAULT, as
//! it does in `pread` and `pwrite`.

#![expect(unsafe_code, reason = "has the kernel copy between raw addresses")]

use std::os::fd::AsRawFd;

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

/// A write of so many bytes to an empty pipe never blocks.
const PIPE_PART: usize = 4096;

/// Copies `len` bytes from memory of this library to a caller's.
///
/// # Errors
/// EFAULT where the caller's memory is not accessible; part of the bytes may be copied then.
///
/// # Safety
/// `own` is readable for `len` bytes. A caller has lent `target` for writing; it is not read or
/// written by others until this returns.
pub(crate) unsafe fn copy_to_user(
    own: *const u8,
    target: *mut u8,
    len: usize,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe { copy(own, target, len, Side::Target) }
}

/// Copies `len` bytes from a caller's memory to memory of this library.
///
/// # Errors
/// EFAULT where the caller's memory is not accessible; part of the bytes may be copied then.
///
/// # Safety
/// `own` is writable for `len` bytes. A caller has lent `source` for reading; it is not written
/// until this returns.
pub(crate) unsafe fn copy_from_user(
    source: *const u8,
    own: *mut u8,
    len: usize,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe { copy(source, own, len, Side::Source) }
}

/// Which side of a copy is the caller's.
#[derive(Debug, Clone, Copy)]
enum Side {
    Source,
    Target,
}

/// # Safety
/// As for the two calls above.
unsafe fn copy(source: *const u8, target: *mut u8, len: usize, user: Side) -> Result<(), Errno> {
    let mut done = 0;
    while done < len {
        let (source, target, len) =
            (source.wrapping_add(done), target.wrapping_add(done), len - done);
        // SAFETY: the caller's promise, of the rest.
        match unsafe { copy_within_process(source, target, len, user) } {
            Ok(0) => return Err(Errno::FAULT),
            Ok(copied) => done += copied,
            Err(errno @ (Errno::FAULT | Errno::NOMEM)) => return Err(errno),
            // A sandbox may refuse the call.
            // SAFETY: the same.
            Err(_) => return unsafe { copy_through_pipe(source, target, len) },
        }
    }
    Ok(())
}

/// Copies by the call that copies between processes. The kernel pins the pages of our side and
/// copies to or from the caller's as in `pread`, so that memory which cannot be pinned serves too.
///
/// # Safety
/// As for [`copy`].
unsafe fn copy_within_process(
    source: *const u8,
    target: *mut u8,
    len: usize,
    user: Side,
) -> Result<usize, Errno> {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    let source = libc::iovec { iov_base: source.cast_mut().cast(), iov_len: len };
    let target = libc::iovec { iov_base: target.cast(), iov_len: len };
    // SAFETY: the vectors of one outlive the call; the caller promises the memory.
    let copied = unsafe {
        match user {
            Side::Source => {
                libc::process_vm_writev(process, &raw const source, 1, &raw const target, 1, 0)
            }
            Side::Target => {
                libc::process_vm_readv(process, &raw const target, 1, &raw const source, 1, 0)
            }
        }
    };
    usize::try_from(copied).map_err(|_| last_error())
}

/// # Safety
/// As for [`copy`].
unsafe fn copy_through_pipe(source: *const u8, target: *mut u8, len: usize) -> Result<(), Errno> {
    let (output, input) = pipe_with(PipeFlags::CLOEXEC)?;
    for at in (0..len).step_by(PIPE_PART) {
        let part = PIPE_PART.min(len - at);
        // SAFETY: the caller promises the memory, of which this is a part.
        let (written, read) = unsafe {
            let written = libc::write(input.as_raw_fd(), source.wrapping_add(at).cast(), part);
            if written < 0 {
                return Err(last_error());
            }
            (written, libc::read(output.as_raw_fd(), target.wrapping_add(at).cast(), part))
        };
        if read < 0 {
            return Err(last_error());
        }
        if usize::try_from(written) != Ok(part) || read != written {
            return Err(Errno::FAULT);
        }
    }
    Ok(())
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::FAULT)
}
