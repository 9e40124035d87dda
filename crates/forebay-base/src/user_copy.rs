//! Copies between the library's memory and a caller's, made by the kernel.
//!
//! A caller's memory may map a file that became shorter. If the processor touches a page after the
//! end, it raises SIGBUS, which kills the process. The kernel returns EFAULT instead, as it does in
//! `pread` and `pwrite`.

#![expect(unsafe_code, reason = "has the kernel copy between raw addresses")]

use std::os::fd::AsRawFd;

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

/// A write of this size to an empty pipe never blocks.
const PIPE_PART: usize = 4096;

/// Copies `len` bytes from the library's memory to a caller's.
///
/// # Errors
/// EFAULT if the caller's memory is not accessible; some bytes may have been copied.
///
/// # Safety
/// `own` is readable for `len` bytes. A caller has lent `target` for writing; no other code reads
/// or writes it until this returns.
pub unsafe fn copy_to_user(own: *const u8, target: *mut u8, len: usize) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe { copy(own, target, len, Side::Target) }
}

/// Copies `len` bytes from a caller's memory to the library's.
///
/// # Errors
/// EFAULT if the caller's memory is not accessible; some bytes may have been copied.
///
/// # Safety
/// `own` is writable for `len` bytes. A caller has lent `source` for reading; no other code writes
/// it until this returns.
pub unsafe fn copy_from_user(source: *const u8, own: *mut u8, len: usize) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe { copy(source, own, len, Side::Source) }
}

/// The side of a copy that is the caller's memory.
#[derive(Debug, Clone, Copy)]
enum Side {
    Source,
    Target,
}

/// # Safety
/// As for the two functions above.
unsafe fn copy(source: *const u8, target: *mut u8, len: usize, user: Side) -> Result<(), Errno> {
    let mut done = 0;
    while done < len {
        let (source, target, len) =
            (source.wrapping_add(done), target.wrapping_add(done), len - done);
        // SAFETY: the caller's promise, for the remaining bytes.
        match unsafe { copy_within_process(source, target, len, user) } {
            Ok(0) => return Err(Errno::FAULT),
            Ok(copied) => done += copied,
            Err(errno @ (Errno::FAULT | Errno::NOMEM)) => return Err(errno),
            // A sandbox may refuse the call.
            // SAFETY: as above.
            Err(_) => return unsafe { copy_through_pipe(source, target, len) },
        }
    }
    Ok(())
}

/// Copies with `process_vm_writev` or `process_vm_readv`. The kernel pins the pages of our side and
/// accesses the caller's side as in `pread`, so memory that cannot be pinned works too.
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
    // SAFETY: both vectors outlive the call; the caller promises the memory.
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
