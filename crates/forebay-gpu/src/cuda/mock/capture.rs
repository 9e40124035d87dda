//! Graph captures in the simulated driver: which threads are refused, and which calls invalidate a
//! capture.

#![expect(unsafe_code, reason = "mocks a C library")]

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_base::lock::{Lock, MutexGuard};

use super::Status;

const RELAXED: c_int = 2;

/// Global-mode captures in progress, and calls refused because of one.
static CAPTURES: AtomicU64 = AtomicU64::new(0);
static REFUSALS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The default mode is `CU_STREAM_CAPTURE_MODE_GLOBAL`.
    static MODE: Cell<c_int> = const { Cell::new(0) };
}

/// A global-mode capture on another library's stream, active until dropped; one at a time.
pub struct Capture {
    refusals: u64,
    _alone: MutexGuard<'static, ()>,
}

impl Capture {
    pub fn begin() -> Self {
        static ALONE: Lock<()> = Lock::new(());
        let alone = ALONE.lock();
        CAPTURES.fetch_add(1, Ordering::SeqCst);
        Self { refusals: REFUSALS.load(Ordering::SeqCst), _alone: alone }
    }

    /// Whether no call has invalidated the capture.
    pub fn is_whole(&self) -> bool {
        REFUSALS.load(Ordering::SeqCst) == self.refusals
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        CAPTURES.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The status for a thread that is not in relaxed mode during a capture; `None`: the call is
/// allowed.
pub(super) fn refusal() -> Option<Status> {
    let refused = MODE.get() != RELAXED && CAPTURES.load(Ordering::SeqCst) > 0;
    refused.then(|| {
        REFUSALS.fetch_add(1, Ordering::SeqCst);
        900
    })
}

/// Sets this thread's mode and returns the previous one, as a caller of ours would.
pub fn swap_mode(mode: c_int) -> c_int {
    MODE.replace(mode)
}

pub(super) unsafe extern "C" fn thread_exchange_stream_capture_mode(mode: *mut c_int) -> Status {
    // SAFETY: the table's callers pass a mode that can be read and written.
    unsafe { mode.write(swap_mode(mode.read())) }
    0
}
