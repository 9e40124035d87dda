//! Handle tables for the driver's streams and events.
//!
//! The driver dereferences a stale pointer without a check, but the calls that take a handle are
//! safe Rust. So callers hold a number that is never reused. One compare-and-swap before a call
//! checks that the handle is alive and keeps it alive until the call returns. Only creating and
//! destroying a handle takes a lock.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use forebay_base::lock::Lock;

/// Handles of one kind that can be alive at once on one device.
const SLOTS: u64 = 4096;

/// Distance of slots that are used in succession. Threads with a stream each then write different
/// cache lines.
const STRIDE: u64 = 128 / size_of::<Slot>() as u64;

/// Bits of a slot's state that count the calls in progress.
const CALLS: u64 = 0xFFFF;
/// Bit that marks the handle alive. The bits above it hold its serial number.
const ALIVE: u64 = CALLS + 1;
const SERIAL: u64 = ALIVE << 1;

/// Serial numbers are unique in the process, so that a handle of another device is never accepted.
static NEXT_SERIAL: AtomicU64 = AtomicU64::new(1);

#[derive(Debug)]
struct Slot {
    state: AtomicU64,
    raw: AtomicPtr<c_void>,
}

/// The driver's pointers behind one device's handles of one kind.
#[derive(Debug)]
pub(super) struct Handles {
    slots: Box<[Slot]>,
    free: Lock<Vec<u64>>,
}

impl Handles {
    pub(super) fn new() -> Self {
        let empty = |_| Slot { state: AtomicU64::new(0), raw: AtomicPtr::new(ptr::null_mut()) };
        let apart = |number| number * STRIDE % SLOTS + number * STRIDE / SLOTS;
        let free = (0..SLOTS).rev().map(apart).collect();
        Self { slots: (0..SLOTS).map(empty).collect(), free: Lock::new(free) }
    }

    /// Makes a handle for `raw`; `None` if too many are alive.
    pub(super) fn insert(&self, raw: *mut c_void) -> Option<u64> {
        let index = self.free.lock().pop()?;
        let serial = NEXT_SERIAL.fetch_add(1, Ordering::Relaxed);
        let handle = serial * SLOTS + index;
        let slot = self.slot(handle);
        slot.raw.store(raw, Ordering::Relaxed);
        slot.state.store(serial * SERIAL + ALIVE, Ordering::Release);
        Some(handle)
    }

    /// Keeps the handle alive for a call; `None` if it is unknown or destroyed.
    #[inline]
    pub(super) fn enter(&self, handle: u64) -> Option<InUse<'_>> {
        let slot = self.slot(handle);
        let alive = alive_state(handle);
        let count_up =
            |state: u64| (state & !CALLS == alive && state & CALLS != CALLS).then(|| state + 1);
        slot.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, count_up).ok()?;
        Some(InUse { slot, raw: slot.raw.load(Ordering::Relaxed) })
    }

    /// Invalidates the handle, waits for its calls in progress and returns its pointer.
    pub(super) fn remove(&self, handle: u64) -> Option<*mut c_void> {
        let slot = self.slot(handle);
        let alive = alive_state(handle);
        let end = |state: u64| (state & !CALLS == alive).then(|| state - ALIVE);
        slot.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, end).ok()?;
        while slot.state.load(Ordering::Acquire) & CALLS != 0 {
            // Reached only if another thread is still in a call on the handle that is destroyed.
            thread::sleep(Duration::from_micros(50));
        }
        let raw = slot.raw.swap(ptr::null_mut(), Ordering::Relaxed);
        slot.state.store(0, Ordering::Release);
        self.free.lock().push(handle % SLOTS);
        Some(raw)
    }

    /// Invalidates all live handles and returns their pointers.
    pub(super) fn drain(&mut self) -> Vec<*mut c_void> {
        let take = |slot: &mut Slot| {
            *slot.state.get_mut() = 0;
            std::mem::replace(slot.raw.get_mut(), ptr::null_mut())
        };
        self.slots.iter_mut().map(take).filter(|raw| !raw.is_null()).collect()
    }

    fn slot(&self, handle: u64) -> &Slot {
        let index = usize::try_from(handle % SLOTS).expect("a slot's index is small");
        &self.slots[index]
    }
}

/// The state of a slot that holds this handle alive with no call in progress. For a number that was
/// never issued no slot has this state: its serial is zero or unused.
const fn alive_state(handle: u64) -> u64 {
    (handle / SLOTS).wrapping_mul(SERIAL) | ALIVE
}

/// Keeps a handle alive until dropped.
#[derive(Debug)]
pub(super) struct InUse<'a> {
    slot: &'a Slot,
    pub(super) raw: *mut c_void,
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.slot.state.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn raw(number: usize) -> *mut c_void {
        ptr::without_provenance_mut(number)
    }

    #[test]
    fn a_handle_lives_from_insert_to_remove() {
        let handles = Handles::new();
        let handle = handles.insert(raw(8)).unwrap();
        assert_eq!(handles.enter(handle).unwrap().raw, raw(8));
        assert_eq!(handles.remove(handle), Some(raw(8)));
        assert!(handles.enter(handle).is_none());
        assert_eq!(handles.remove(handle), None);
        let later = handles.insert(raw(8)).unwrap();
        assert_ne!(later, handle);
        assert!(handles.enter(handle).is_none());
    }

    #[test]
    fn numbers_that_were_never_given_out_are_refused() {
        let (handles, other) = (Handles::new(), Handles::new());
        let foreign = other.insert(raw(8)).unwrap();
        handles.insert(raw(16)).unwrap();
        for number in [0, 1, 4096, foreign, u64::MAX, u64::MAX - 4095] {
            assert!(handles.enter(number).is_none(), "{number}");
            assert_eq!(handles.remove(number), None);
        }
    }

    #[test]
    fn handles_are_bounded_and_all_are_drained() {
        let mut handles = Handles::new();
        let given: Vec<_> = (1..=4096).map(|n| handles.insert(raw(n)).unwrap()).collect();
        assert_eq!(handles.insert(raw(1)), None);
        handles.remove(given[7]).unwrap();
        assert!(handles.insert(raw(5000)).is_some());
        assert_eq!(handles.drain().len(), 4096);
        assert!(handles.enter(given[0]).is_none());
    }

    #[test]
    fn remove_waits_for_calls_in_progress() {
        let handles = Handles::new();
        let handle = handles.insert(raw(8)).unwrap();
        let in_use = handles.enter(handle).unwrap();
        let left = AtomicBool::new(false);
        thread::scope(|scope| {
            let remover = scope.spawn(|| {
                assert_eq!(handles.remove(handle), Some(raw(8)));
                assert!(left.load(Ordering::SeqCst));
            });
            // Once the other thread has invalidated the handle, `enter` fails.
            while handles.enter(handle).is_some() {
                thread::yield_now();
            }
            left.store(true, Ordering::SeqCst);
            drop(in_use);
            remover.join().unwrap();
        });
    }
}
