//! A simulated GPU whose calls can fail, not only its copies.

#![expect(unsafe_code, reason = "passes the trait's calls on")]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_base::lock::Lock;

use super::tally::Tally;
use super::world::Faults;
use crate::gpu::sim::{Dice, SimDevice};
use crate::gpu::{
    AddressKind, Device, DeviceCopy, DeviceError, DeviceInfo, DeviceResult, Event, Stream,
};

/// A simulated GPU with faulty calls.
#[derive(Debug)]
pub(super) struct FaultyDevice {
    inner: SimDevice,
    dice: Lock<(Dice, Tally)>,
    faults: Faults,
    /// Whether calls may fail.
    pub(super) armed: AtomicBool,
    /// Whether the GPU is lost: no call succeeds while it is armed.
    gone: AtomicBool,
}

impl FaultyDevice {
    pub(super) fn new(inner: SimDevice, dice: Dice, faults: Faults) -> Self {
        let dice = Lock::new((dice, Tally::default()));
        Self { inner, dice, faults, armed: AtomicBool::default(), gone: AtomicBool::default() }
    }

    /// The faults of this device so far.
    pub(super) fn tally(&self) -> Tally {
        self.dice.lock().1.clone()
    }

    /// Fails a call in this `share` of cases; counted as `what`.
    fn fail(&self, call: &'static str, what: &'static str, share: f64) -> DeviceResult<()> {
        if !self.armed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (dice, tally) = &mut *self.dice.lock();
        if !self.gone.load(Ordering::Relaxed) {
            let goes = tally.note("gpu-gone", dice.roll(self.faults.gone));
            self.gone.store(goes, Ordering::Relaxed);
        }
        // Allocation still works after a loss: later transfers use memory as if from before it.
        let gone = what != "gpu-memory" && self.gone.load(Ordering::Relaxed);
        if tally.note(what, dice.roll(share)) || gone {
            let (name, detail) = ("SIM_CALL_FAULT".into(), String::new());
            return Err(DeviceError { call, code: 99, name, detail });
        }
        Ok(())
    }

    fn may_fail(&self, call: &'static str) -> DeviceResult<()> {
        self.fail(call, "gpu-call", self.faults.calls)
    }

    /// Counts failed copies that the driver reports.
    fn record<T>(&self, answer: DeviceResult<T>) -> DeviceResult<T> {
        let (_, tally) = &mut *self.dice.lock();
        tally.note("gpu-copy", answer.is_err());
        answer
    }
}

impl crate::gpu::sealed::Sealed for FaultyDevice {
    fn home(&self) -> &forebay_base::process::Home {
        self.inner.home()
    }
}

impl Device for FaultyDevice {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn registry(&self) -> u64 {
        self.inner.registry()
    }

    fn memory(&self) -> DeviceResult<(u64, u64)> {
        self.inner.memory()
    }

    fn allocate(&self, len: u64) -> DeviceResult<u64> {
        self.fail("allocate", "gpu-memory", self.faults.memory)?;
        self.inner.allocate(len)
    }

    unsafe fn free(&self, address: u64) -> DeviceResult<()> {
        // SAFETY: the caller's promise.
        unsafe { self.inner.free(address) }
    }

    unsafe fn register(&self, host: NonNull<u8>, len: usize) -> DeviceResult<()> {
        self.fail("register", "gpu-memory", self.faults.memory)?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.register(host, len) }
    }

    unsafe fn unregister(&self, host: NonNull<u8>) -> DeviceResult<()> {
        // SAFETY: the caller's promise.
        unsafe { self.inner.unregister(host) }
    }

    fn create_stream(&self) -> DeviceResult<Stream> {
        self.inner.create_stream()
    }

    fn destroy_stream(&self, stream: Stream) -> DeviceResult<()> {
        self.inner.destroy_stream(stream)
    }

    fn create_event(&self) -> DeviceResult<Event> {
        self.may_fail("create_event")?;
        self.inner.create_event()
    }

    fn create_timer(&self) -> DeviceResult<Event> {
        self.may_fail("create_event")?;
        self.inner.create_timer()
    }

    fn elapsed(&self, from: Event, to: Event) -> DeviceResult<Duration> {
        self.inner.elapsed(from, to)
    }

    fn destroy_event(&self, event: Event) -> DeviceResult<()> {
        self.inner.destroy_event(event)
    }

    unsafe fn copy_to_device(
        &self,
        stream: Stream,
        target: u64,
        source: NonNull<u8>,
        len: usize,
    ) -> DeviceResult<()> {
        self.may_fail("copy_to_device")?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.copy_to_device(stream, target, source, len) }
    }

    unsafe fn copy_to_host(
        &self,
        stream: Stream,
        target: NonNull<u8>,
        source: u64,
        len: usize,
    ) -> DeviceResult<()> {
        self.may_fail("copy_to_host")?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.copy_to_host(stream, target, source, len) }
    }

    fn has_batches(&self) -> bool {
        self.inner.has_batches()
    }

    unsafe fn copy_batch_to_device(
        &self,
        stream: Stream,
        copies: &[DeviceCopy],
    ) -> DeviceResult<()> {
        let failed = self.may_fail("copy_batch_to_device");
        // A failed batch leaves some of its copies queued.
        let queued = if failed.is_ok() { copies } else { &copies[..copies.len() / 2] };
        // SAFETY: the caller's promise.
        unsafe { self.inner.copy_batch_to_device(stream, queued) }.and(failed)
    }

    unsafe fn copy_batch_to_host(&self, stream: Stream, copies: &[DeviceCopy]) -> DeviceResult<()> {
        let failed = self.may_fail("copy_batch_to_host");
        let queued = if failed.is_ok() { copies } else { &copies[..copies.len() / 2] };
        // SAFETY: the caller's promise.
        unsafe { self.inner.copy_batch_to_host(stream, queued) }.and(failed)
    }

    unsafe fn fill(&self, stream: Stream, address: u64, byte: u8, len: u64) -> DeviceResult<()> {
        // SAFETY: the caller's promise.
        unsafe { self.inner.fill(stream, address, byte, len) }
    }

    fn record(&self, event: Event, stream: Stream) -> DeviceResult<()> {
        self.may_fail("record")?;
        self.inner.record(event, stream)
    }

    fn is_done(&self, event: Event) -> DeviceResult<bool> {
        self.may_fail("is_done")?;
        self.record(self.inner.is_done(event))
    }

    fn wait_event(&self, stream: Stream, event: Event) -> DeviceResult<()> {
        self.inner.wait_event(stream, event)
    }

    fn synchronize(&self, stream: Stream) -> DeviceResult<()> {
        self.fail("synchronize", "gpu-call", 0.0)?;
        self.record(self.inner.synchronize(stream))
    }

    fn hold(&self, address: u64, len: u64) -> DeviceResult<u64> {
        self.fail("hold", "gpu-call", 0.0)?;
        self.inner.hold(address, len)
    }

    fn dispose(&self, address: u64) {
        self.inner.dispose(address);
    }

    fn address_kind(&self, address: u64) -> AddressKind {
        self.inner.address_kind(address)
    }
}
