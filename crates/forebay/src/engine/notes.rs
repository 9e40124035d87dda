//! Notes for the user about features that the machine refuses.

use std::error::Error as _;
use std::iter::successors;

use rustix::io::Errno;

use crate::error::Error;
use crate::gpu::DeviceId;

/// The note that more threads than the options allow may run.
pub(super) fn unbounded(errno: Errno) -> String {
    let remedy = if errno == Errno::INVAL { ": Linux 5.15 and newer can" } else { "" };
    format!(
        "the kernel does not bound the threads that it starts itself for io_uring ({errno}), of \
         which a drive that hangs may hold many{remedy}"
    )
}

/// The note that threads serve a file system although io_uring is available.
pub(super) fn by_threads(file_system: &str) -> String {
    format!(
        "files on `{file_system}` are read and written by threads: io_uring is used only where the \
         file system is known to complete requests in full, since it may go on with a short one at \
         the wrong offset"
    )
}

/// The note that threads replace a failed ring.
pub(super) fn ring_lost(errno: Errno) -> String {
    format!("io_uring takes no more requests here ({errno}): threads read and write instead")
}

/// The note that pinned memory may be far from its GPU.
pub(super) fn misplaced(errno: Errno) -> String {
    format!(
        "the kernel does not place memory here ({errno}), so pinned memory may lie on another NUMA \
         node than its GPU: `numactl` can place the whole process"
    )
}

/// The note that readers may run far from the GPU.
pub(super) fn unseated(errno: Errno) -> String {
    format!("readers may not choose their processors here ({errno}), and may run far from the GPU")
}

/// The note that small transfers of a GPU have no pinned memory.
pub(super) fn no_lane(gpu: DeviceId, error: &Error) -> String {
    let causes = successors(error.source(), |&error| error.source());
    let reason = causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"));
    format!("small transfers to and from {gpu} take longer, through other threads: {reason}")
}

/// The hint if the kernel may not lock memory for a ring.
const LOCKED: &str = ": raise the limit on locked memory (`ulimit -l`)";

/// The note that `most` threads read each drive because there is no ring.
pub(super) fn no_ring(errno: Errno, most: usize) -> String {
    let remedy = if errno == Errno::NOMEM { LOCKED } else { "" };
    format!(
        "io_uring is refused here ({errno}): up to {most} threads read each drive instead{remedy}"
    )
}
