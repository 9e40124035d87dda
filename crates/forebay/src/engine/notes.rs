//! Notes for the user about features that the machine refuses.

use rustix::io::Errno;

use crate::error::Error;
use crate::gpu::DeviceId;

/// The note that more threads than the options allow may run.
pub(super) fn unbounded(errno: Errno) -> String {
    let remedy = if errno == Errno::INVAL { ": Linux 5.15 and newer can" } else { "" };
    format!(
        "the kernel cannot limit its own io_uring threads ({errno}), so a hung drive may occupy \
         more threads than `FOREBAY_THREADS` allows{remedy}"
    )
}

/// The note that threads serve a file system although io_uring is available.
pub(crate) fn by_threads(file_system: &str) -> String {
    format!(
        "files on `{file_system}` are read and written by threads: io_uring is used only where the \
         file system is known to complete requests in full, because io_uring may continue a short \
         request at the wrong offset"
    )
}

/// The note that threads replace a failed ring.
pub(super) fn ring_lost(errno: Errno) -> String {
    format!("io_uring takes no more requests here ({errno}): threads read and write instead")
}

/// The note that pinned memory may be far from its GPU.
pub(super) fn misplaced(errno: Errno) -> String {
    format!(
        "the kernel refused to place memory on a NUMA node ({errno}), so pinned memory may be on \
         another node than its GPU: `numactl` can place the whole process"
    )
}

/// The note that readers may run far from the GPU.
pub(super) fn unseated(errno: Errno) -> String {
    format!(
        "the kernel refused to set the readers' CPU affinity ({errno}), so they may run far from \
         the GPU"
    )
}

/// The note that small transfers of a GPU have no pinned memory.
pub(super) fn no_lane(gpu: DeviceId, error: &Error) -> String {
    format!(
        "small transfers to and from {gpu} have no pinned memory and take longer, through other \
         threads: {}",
        error.with_causes()
    )
}

/// The hint if the kernel may not lock memory for a ring.
const LOCKED: &str = ": raise the limit on locked memory (`ulimit -l`)";

/// The note that `most` threads read a drive because no ring is available.
pub(super) fn no_ring(errno: Errno, most: usize) -> String {
    let remedy = if errno == Errno::NOMEM { LOCKED } else { "" };
    format!(
        "io_uring is refused here ({errno}): up to {most} threads read each drive instead{remedy}"
    )
}
