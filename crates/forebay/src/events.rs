//! `tracing` events of the control path, a function per event, so that levels and fields are
//! defined together. `docs/observe.md` lists the messages.
//!
//! No event is emitted while a lock of the engine is held: a subscriber may be slow or call the
//! engine. Without a subscriber an event costs a load and a branch. Single requests, windows and
//! copies emit no events; see `statistics` and `trace` for these.

use std::error::Error as StdError;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_base::units::ByteRange;
use forebay_topology::Queue;
use rustix::io::Errno;
use tracing::field::display;
use tracing::{Level, Span, debug, debug_span, enabled, info, warn};

use crate::error::Error;
use crate::gpu::{DeviceError, DeviceId, DeviceInfo};
use crate::options::Options;
use crate::outcome::{Outcome, RouteShare};
use crate::plan::{Direction, Reason, Route};

const ENGINE: &str = "forebay::engine";
const GPU: &str = "forebay::gpu";
const MEMORY: &str = "forebay::memory";
const DRIVE: &str = "forebay::drive";
const FILE: &str = "forebay::file";
const TRANSFER: &str = "forebay::transfer";

/// The type of error fields, with their causes.
type Cause<'a> = &'a (dyn StdError + 'static);

/// Calls a subscriber and catches its panic. A panic would end an engine thread and the transfers
/// that depend on it; the panic hook already reported it.
fn guarded<T>(emit: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(emit)).ok()
}

/// Emits an event; a subscriber's panic is caught.
macro_rules! emit {
    ($level:ident, $($event:tt)*) => {
        { guarded(|| $level!($($event)*)); }
    };
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

pub(crate) fn engine_made(options: &Options, readers: usize) {
    guarded(|| {
        let Options { threads, in_flight, slot_size, segment_size, .. } = *options;
        debug!(target: ENGINE, readers, threads, in_flight, slot_size, segment_size, "engine made");
    });
}

/// `all`: whether all threads have ended; otherwise some are blocked and keep their resources.
pub(crate) fn engine_ended(all: bool) {
    guarded(|| match all {
        true => debug!(target: ENGINE, "engine ended"),
        false => warn!(
            target: ENGINE,
            "engine ended, but for threads that a drive or a GPU holds up: they keep their memory"
        ),
    });
}

/// A note for users about a degraded engine.
pub(crate) fn note(note: &str) {
    emit!(info, target: ENGINE, note, "the engine does without something");
}

/// The kernel refused a faster method.
pub(crate) fn refused(what: &'static str, errno: Errno) {
    emit!(info, target: ENGINE, what, error = &errno as Cause<'_>, "refused by the kernel");
}

pub(crate) fn readers_started(readers: usize) {
    emit!(debug, target: ENGINE, readers, "readers started");
}

/// The engine continues with fewer threads.
pub(crate) fn thread_refused(what: &'static str, error: Cause<'_>) {
    emit!(info, target: ENGINE, what, error, "thread refused");
}

pub(crate) fn gpu_found(info: &DeviceInfo) {
    guarded(|| {
        let DeviceInfo { id, name, pci_address, driver, memory, simulated, .. } = info;
        let (gpu, name) = (display(id), name.as_str());
        let pci_address = Some(pci_address.as_str()).filter(|address| !address.is_empty());
        let (driver, memory, simulated) = (driver.as_str(), *memory, *simulated);
        debug!(target: GPU, gpu, name, pci_address, driver, memory, simulated, "GPU brought in");
    });
}

/// A panic left the engine in an unknown state: all its current and new transfers fail.
pub(crate) fn engine_failed(cause: &str) {
    emit!(warn, target: ENGINE, cause, "engine failed");
}

/// Every later call of this process to the GPU fails.
pub(crate) fn gpu_lost(gpu: DeviceId, error: &DeviceError) {
    emit!(warn, target: GPU, gpu = %gpu, error = error as Cause<'_>, "GPU lost");
}

/// The GPU does not report whether a copy is over, so the copy's memory is leaked.
pub(crate) fn copy_not_over(gpu: DeviceId, error: &DeviceError) {
    emit!(
        warn, target: GPU, gpu = %gpu, error = error as Cause<'_>, "copy not over, memory given up"
    );
}

/// `gpu`: the GPU whose slots are in the memory.
pub(crate) fn memory_made(len: u64, gpu: Option<DeviceId>) {
    emit!(debug, target: MEMORY, len, gpu = gpu.map(display), "pinned memory made");
}

pub(crate) fn memory_refused(error: &Error) {
    emit!(warn, target: MEMORY, error = error as Cause<'_>, "pinned memory refused");
}

/// A new queue for a drive, or for a volume of several drives.
pub(crate) fn drive_found(number: usize, drive: Option<&str>, queue: &Queue, depth_max: usize) {
    let (layout, members) = (queue.layout.name(), queue.members.len());
    emit!(
        debug, target: DRIVE, queue = number, drive, layout, members, depth_max, "drive found"
    );
}

pub(crate) fn ring_made(ring: usize) {
    emit!(debug, target: DRIVE, ring, "ring made");
}

/// `reopened`: why the file was opened again for its transfers.
pub(crate) fn file_opened(path: &Path, file_system: &str, writes: bool, reopened: Option<&str>) {
    emit!(
        debug, target: FILE, path = %path.display(), file_system, writes, reopened, "file opened"
    );
}

/// A file got a second descriptor, for O_DIRECT.
pub(crate) fn direct_opened(path: &Path, unit: u32) {
    emit!(debug, target: FILE, path = %path.display(), unit, "O_DIRECT opened");
}

/// Transfers use the page cache unless a route is required; `lasts`: permanently.
pub(crate) fn direct_refused(path: &Path, reason: &str, lasts: bool) {
    guarded(|| {
        let path = display(path.display());
        match lasts {
            true => info!(target: FILE, path, reason, "no O_DIRECT, through the page cache"),
            false => debug!(target: FILE, path, reason, "no O_DIRECT now, through the page cache"),
        }
    });
}

/// A transfer's call.
#[derive(Debug, Clone)]
pub(crate) struct Begin {
    pub(crate) direction: &'static str,
    /// Number of pieces, which may be in several files.
    pub(crate) pieces: Option<usize>,
    pub(crate) gpu: Option<DeviceId>,
    /// The route for bytes outside the page cache; `None` if it differs by file or part.
    pub(crate) route: Option<(Route, Reason)>,
    /// Why nothing is transferred directly to the GPU, although a direct path may exist.
    pub(crate) not_direct: Option<Arc<str>>,
}

impl Begin {
    /// A read or write of this many pieces.
    pub(crate) fn of_pieces(direction: Direction, pieces: usize, gpu: Option<DeviceId>) -> Self {
        Self {
            direction: direction.name(),
            pieces: Some(pieces),
            gpu,
            route: None,
            not_direct: None,
        }
    }
}

/// State kept between a transfer's start event and its end event.
#[derive(Debug)]
pub(crate) struct OpenSpan {
    span: Span,
    direction: &'static str,
}

/// A transfer starts; its span is a child of the caller's.
pub(crate) fn transfer_begins(path: &Path, range: ByteRange, len: u64, begin: &Begin) -> OpenSpan {
    let Begin { direction, pieces, gpu, route, .. } = *begin;
    let not_direct = begin.not_direct.as_deref();
    // With several pieces the range is not a single file's.
    let offset = pieces.is_none().then_some(range.start);
    let span = guarded(|| {
        debug_span!(
            target: TRANSFER, "transfer", direction, path = %path.display(), offset, len, pieces
        )
    });
    let span = span.unwrap_or_else(Span::none);
    let (route, reason) = (route.map(|it| it.0.name()), route.map(|it| it.1.text()));
    emit!(
        debug, target: TRANSFER, parent: &span, direction, path = %path.display(), offset, len,
        pieces, gpu = gpu.map(display), route, reason, not_direct, "transfer begins"
    );
    OpenSpan { span, direction }
}

/// Bytes by route, as text.
struct Routes<'a>(&'a [RouteShare]);

impl fmt::Display for Routes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, RouteShare { route, reason, bytes }) in self.0.iter().enumerate() {
            let between = if index == 0 { "" } else { "; " };
            write!(f, "{between}{bytes} {route}: {reason}")?;
        }
        Ok(())
    }
}

/// A transfer ended. Emitted before waiting threads are notified.
pub(crate) fn transfer_ended(
    open: &OpenSpan,
    path: &Path,
    took: Duration,
    result: &Result<Outcome, Error>,
) {
    guarded(|| {
        let OpenSpan { span, direction } = open;
        let (path, elapsed_ns) = (display(path.display()), ns(took));
        match result {
            Ok(Outcome { bytes, routes, not_direct, .. }) => debug!(
                target: TRANSFER, parent: span, direction, path, bytes, routes = %Routes(routes),
                not_direct = not_direct.as_deref(), elapsed_ns, "transfer ended"
            ),
            // Reaching the end of the file is often expected, and the caller gets the error.
            Err(error @ (Error::Cancelled { .. } | Error::EndOfFile { .. })) => debug!(
                target: TRANSFER, parent: span, direction, path, error = error as Cause<'_>,
                elapsed_ns, "transfer ended early"
            ),
            Err(error) => warn!(
                target: TRANSFER, parent: span, direction, path, error = error as Cause<'_>,
                elapsed_ns, "transfer failed"
            ),
        }
    });
}

/// A transfer on its caller's own thread ended: its only event.
pub(crate) fn small_ended(
    direction: &'static str,
    path: &Path,
    (offset, len): (u64, u64),
    result: &Result<Outcome, Error>,
) {
    guarded(|| {
        let path = display(path.display());
        match result {
            Ok(Outcome { bytes, routes, not_direct, elapsed, .. }) => debug!(
                target: TRANSFER, direction, path, offset, len, bytes, routes = %Routes(routes),
                not_direct = not_direct.as_deref(), elapsed_ns = ns(*elapsed), small = true,
                "transfer ended"
            ),
            Err(error @ Error::EndOfFile { .. }) => debug!(
                target: TRANSFER, direction, path, offset, len, error = error as Cause<'_>,
                small = true, "transfer ended early"
            ),
            Err(error) => warn!(
                target: TRANSFER, direction, path, offset, len, error = error as Cause<'_>,
                small = true, "transfer failed"
            ),
        }
    });
}

/// Whether cancel events are enabled; describing a transfer is not free.
pub(crate) fn hears_cancels() -> bool {
    guarded(|| enabled!(target: TRANSFER, Level::DEBUG)).unwrap_or(false)
}

/// A transfer in progress was cancelled.
pub(crate) fn cancel_requested(path: &Path, range: ByteRange, done: u64) {
    guarded(|| {
        let (offset, len) = (range.start, range.len());
        debug!(
            target: TRANSFER, path = %path.display(), offset, len, bytes = done, "cancel requested"
        );
    });
}

/// A stream-ordered transfer made no progress for so long that it was abandoned.
pub(crate) fn watchdog_fired(path: &Path, bound: Duration) {
    emit!(warn, target: TRANSFER, path = %path.display(), bound_ns = ns(bound), "watchdog fired");
}
