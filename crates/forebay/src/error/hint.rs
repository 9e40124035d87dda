//! Remedies for errors.

use std::path::Path;

use forebay_gpu::DeviceError;
use libc::{
    EACCES, EBADF, EBUSY, EDQUOT, EEXIST, EFAULT, EINVAL, EIO, EISDIR, EMFILE, ENFILE, ENOENT,
    ENOMEM, ENOSPC, ENOTDIR, EPERM, EROFS,
};

use super::{Error, Operation, SystemError};

const COPY_NOT_OVER: &str = "restart the process, which can no longer use that memory; the \
                             kernel's log (`dmesg`) may show what happened to the GPU";
const ENGINE_FAILED: &str = "make another engine, or start the process anew; this is a bug of \
                             Forebay: please report it with the panic's message";

impl Error {
    /// The remedy, as one sentence without a period; `None` if the message says everything.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Io { source: SystemError(ENOENT), place, .. } => missing_hint(&place.path).into(),
            Self::Io { source, operation, .. } => return io_hint(*source, *operation),
            Self::EndOfFile { .. } => {
                "request fewer bytes, or check that the file was written completely".into()
            }
            Self::FileChanged { .. } => {
                "read it again when no process writes to it; a writer should replace it by a rename"
                    .into()
            }
            Self::FileOverwritten { .. } => {
                "results computed from it may be wrong: compute them again when no process writes \
                 to it; a writer should replace it by a rename"
                    .into()
            }
            Self::NoProgress { .. } => {
                "look whether the file changed meanwhile; if it did not, its file system reports a \
                 size that it does not have"
                    .into()
            }
            Self::StaleCache { .. } => {
                "write a file from one engine, without the route `staged`, or at places that are \
                 at least 2 MiB apart; then write these bytes again"
                    .into()
            }
            Self::NotAFile { .. } => "give a regular file or a block device".into(),
            Self::RouteUnavailable { .. } => {
                "omit the route to use the fastest available one".into()
            }
            Self::NoDevice { .. } => {
                "`--gpu none` moves bytes to host memory, `--gpu sim` to a simulated GPU".into()
            }
            Self::NotDeviceMemory { .. } => {
                "give the address of memory that is allocated on a GPU, and a length within it; \
                 host memory is moved to and from as a slice"
                    .into()
            }
            Self::Device { operation, source, .. } => return device_hint(*operation, source),
            Self::CopyNotOver { .. } => COPY_NOT_OVER.into(),
            Self::HostMemory { .. } => {
                "set `FOREBAY_ARENA_SIZE` to less, or raise the memory limit of this process".into()
            }
            Self::HostCopy { source, .. } => return io_hint(*source, Operation::Copy),
            Self::MemoryLimit { file, .. } => format!(
                "set `FOREBAY_ARENA_SIZE` or `FOREBAY_SLOT_SIZE` to less, or raise the limit in \
                 `{}`",
                file.display()
            ),
            Self::PinnedLimit { .. } => {
                "set a larger `FOREBAY_ARENA_SIZE`, or make fewer calls at the same time".into()
            }
            Self::Resource { what, source } => resource_hint(what, *source).into(),
            Self::EngineFailed { .. } => ENGINE_FAILED.into(),
            Self::TimedOut { place, .. } => match &place.drive {
                Some(drive) => format!("look at the kernel's log for errors of {drive}"),
                None => "look whether the file system still answers".into(),
            },
            Self::Forked { .. } => {
                "make an engine after the fork, in the process that uses it; if the parent has \
                 opened a GPU, start a new program (`exec`), because the driver does not work in a \
                 forked child"
                    .into()
            }
            Self::Layer { source, .. } => return source.hint(),
            Self::BadOption { .. }
            | Self::BadState { .. }
            | Self::Cancelled { .. }
            | Self::BadRequest { .. } => return None,
        })
    }
}

fn device_hint(operation: Operation, source: &DeviceError) -> Option<String> {
    let hint = if source.name.ends_with("CONTEXT_IS_DESTROYED") {
        "make another engine, or restart the process; reset a GPU only when no engine uses it"
    } else if source.is_loss() {
        "restart the process, which can no longer use the GPU; the kernel's log (`dmesg`) may show \
         the cause"
    } else if source.is_nonsense() {
        "look whether the driver's library and its kernel module are of one version (`nvidia-smi` \
         says so), or load another"
    } else if operation == Operation::Allocate {
        "free memory on the GPU, or move the file in parts"
    } else if operation == Operation::GiveLayers {
        "free memory on the GPU, or set a smaller `gpu_budget`: if it does not hold two layers, \
         they are loaded in slices"
    } else {
        return None;
    };
    Some(hint.into())
}

fn resource_hint(what: &str, SystemError(source): SystemError) -> &'static str {
    match (what, source) {
        ("io_uring", _) => "leave `FOREBAY_RING` at `auto` to use threads with `pread` instead",
        (_, EBUSY) => "look for a hung drive, server or GPU: pending closes and frees wait for it",
        _ => "raise the limit on threads and open files (`ulimit -u`, `ulimit -n`)",
    }
}

/// The remedy for a path that does not exist: it may not be a path of this machine at all.
fn missing_hint(path: &Path) -> &'static str {
    if path.is_symlink() {
        return "it is a link whose target is missing";
    }
    let path = path.as_os_str().as_encoded_bytes();
    let scheme = path.iter().position(|byte| !byte.is_ascii_alphanumeric()).unwrap_or(0);
    if scheme > 1 && path[scheme..].starts_with(b":/") {
        "addresses such as `https://`, `s3://` and `hf://` are not supported: give a local path"
    } else if path.starts_with(b"~") {
        "`~` is not expanded: give the path of the home directory"
    } else {
        "look at the path's spelling; a relative path is relative to the current directory"
    }
}

fn io_hint(SystemError(errno): SystemError, operation: Operation) -> Option<String> {
    Some(
        match errno {
            EISDIR => "give a regular file or a block device",
            EEXIST if operation == Operation::Open => {
                "give another path, or open the existing file"
            }
            ENOTDIR => "a part of the path that should be a folder is a file: look at its spelling",
            EACCES => "get the permission from the owner, or run as the owner",
            EPERM => {
                "run as the owner, or look whether the file is immutable (`lsattr`, `chattr -i`)"
            }
            ENOSPC | EDQUOT => "free room on that file system, or write elsewhere",
            EROFS => "the file system is mounted read-only: remount it or write elsewhere",
            EIO if operation == Operation::Sync => {
                "the drive or its file system failed, or another engine or program wrote to the \
                 file through the page cache during a write with O_DIRECT (\"Page cache \
                 invalidation failure\" in the kernel's log, `dmesg`): write a file from one \
                 engine, or without the route `staged`"
            }
            EIO => "the drive or its file system failed: look at the kernel's log (`dmesg`)",
            EBADF if operation == Operation::Open => "give a descriptor that is open",
            ENOMEM => "raise the memory limit of this process",
            EFAULT => {
                "the memory given to the call is not accessible: it is unmapped, or maps a file \
                 that became shorter; map it anew"
            }
            EMFILE | ENFILE => "raise the limit on open files (`ulimit -n`)",
            EINVAL if matches!(operation, Operation::Read | Operation::Write) => {
                "the file system refuses this alignment: `FOREBAY_DIRECT_IO=off` avoids O_DIRECT"
            }
            _ => return None,
        }
        .into(),
    )
}
