//! The simulated GPU behind the [`Device`] trait.

#![expect(unsafe_code, reason = "the trait's calls take raw addresses")]

use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use forebay_base::clock::Clock;
use forebay_base::lock::{Lock, MutexGuard};
use forebay_base::process::Home;

use super::SimulatedCuFile;
use super::config::SimConfig;
use super::fault::Fault;
use super::hang::{Hang, SimCall};
use super::memory::{HostAddress, Registrations, copied};
use super::timeline::Timeline;
use super::uplink::Uplink;
use crate::{
    AddressKind, BATCH_MAX, CallerStream, CopyDirection, Device, DeviceCopy, DeviceId, DeviceInfo,
    DeviceKind, DeviceResult, Event, Stream, check_home, check_pairs,
};

/// Interval at which the background thread checks numbers.
const LOOK: Duration = Duration::from_micros(50);

/// A GPU simulated in host memory.
#[derive(Debug)]
pub struct SimDevice {
    info: DeviceInfo,
    clock: Arc<dyn Clock>,
    registered: Arc<Lock<Registrations>>,
    timeline: Arc<Lock<Timeline>>,
    uplink: Option<Arc<Uplink>>,
    /// Whether a background thread runs due work; otherwise calls run it.
    has_runner: Arc<AtomicBool>,
    /// Copies left until it is lost.
    left: AtomicU64,
    lost: AtomicBool,
    hang: Hang,
    /// Whether it refuses to pin memory, and the number of attempts.
    refuses_pinning: AtomicBool,
    pinnings: AtomicU64,
    /// Limit of pinned file pages, in bytes.
    pages: Option<u64>,
    /// Behaviour of its cuFile, and the seed for that.
    cufile: Option<(SimulatedCuFile, u64)>,
    home: Home,
}

impl SimDevice {
    /// A device without siblings; no host memory is registered with it yet.
    #[must_use]
    pub fn new(index: u32, config: SimConfig, clock: Arc<dyn Clock>) -> Self {
        let uplink = config.uplink.map(|rate| Arc::new(Uplink::new(rate)));
        Self::with(index, config, clock, Arc::default(), uplink)
    }

    /// Another device on the same host. It has the same clock, and memory registered with one of
    /// the two serves copies of both. If the uplink rates are equal they share the uplink.
    #[must_use]
    pub fn sibling(&self, index: u32, config: SimConfig) -> Self {
        let uplink = config.uplink.map(|rate| match &self.uplink {
            Some(own) if own.rate == rate => Arc::clone(own),
            _ => Arc::new(Uplink::new(rate)),
        });
        let registered = Arc::clone(&self.registered);
        Self::with(index, config, Arc::clone(&self.clock), registered, uplink)
    }

    /// Sets its PCI address.
    #[must_use]
    pub fn at(mut self, pci_address: &str) -> Self {
        self.info.pci_address = pci_address.into();
        self
    }

    fn with(
        index: u32,
        config: SimConfig,
        clock: Arc<dyn Clock>,
        registered: Arc<Lock<Registrations>>,
        uplink: Option<Arc<Uplink>>,
    ) -> Self {
        let cufile = config.cufile.map(|play| (play, config.seed));
        let info = DeviceInfo {
            id: DeviceId { kind: DeviceKind::Sim, index },
            name: "simulated GPU".into(),
            uuid: String::new(),
            pci_address: String::new(),
            driver: config.to_string(),
            memory: config.memory,
            simulated: true,
        };
        let left = AtomicU64::new(config.lost_after.unwrap_or(u64::MAX));
        let pages = config.pages;
        let timeline = Timeline::new(config, Arc::clone(&registered), uplink.clone());
        let timeline = Arc::new(Lock::new(timeline));
        let (has_runner, lost, home) = (Arc::default(), AtomicBool::new(false), Home::here());
        let hang = Hang::default();
        let (refuses_pinning, pinnings) = (AtomicBool::new(false), AtomicU64::new(0));
        Self {
            info,
            clock,
            registered,
            timeline,
            uplink,
            has_runner,
            left,
            lost,
            hang,
            refuses_pinning,
            pinnings,
            pages,
            cufile,
            home,
        }
    }

    /// Makes a call hang, and no other, until this is called again; `None`: no call hangs.
    pub fn hang(&self, call: Option<SimCall>) {
        self.hang.set(call);
    }

    /// Sets whether pinning host memory is refused.
    pub fn refuse_pinning(&self, on: bool) {
        self.refuses_pinning.store(on, Ordering::Release);
    }

    /// Number of attempts to pin host memory.
    pub fn pinnings(&self) -> u64 {
        self.pinnings.load(Ordering::Acquire)
    }

    /// Number of threads in a [hanging](Self::hang) call.
    pub fn hanging(&self) -> usize {
        self.hang.threads()
    }

    /// Marks a stream as capturing or not.
    ///
    /// # Errors
    /// For a stream of another device.
    pub fn set_capturing(&self, stream: Stream, on: bool) -> DeviceResult<()> {
        self.timeline("set_capturing")?.set_capturing(stream.0, on)
    }

    /// Number of live events.
    pub fn events(&self) -> usize {
        self.timeline.lock().events.len()
    }

    /// Number of `is_done` calls.
    pub fn queries(&self) -> u64 {
        self.timeline.lock().queries
    }

    /// Number of host memory ranges registered with it and its siblings.
    pub fn registrations(&self) -> usize {
        self.registered.lock().count()
    }

    /// The most bytes of host memory that were registered with it and its siblings at one time.
    pub fn most_registered(&self) -> u64 {
        self.registered.lock().most()
    }

    /// Number of attempts to free its memory, or to unregister host memory, while queued work used
    /// it. A real GPU need not detect this.
    pub fn misused(&self) -> usize {
        let unregistered = self.registered.lock().misused();
        unregistered + self.timeline.lock().memory.misused()
    }

    /// Keeps a caller's stream busy for `time`, like a kernel.
    ///
    /// # Errors
    /// For a stream of another device.
    pub fn work(&self, stream: CallerStream, time: Duration) -> DeviceResult<()> {
        self.timeline("work")?.work(self.clock.now(), stream.0, time)
    }

    /// Loses the device, like a GPU that falls off its bus: every call fails from now on. Queued
    /// work still runs, so tests detect code that frees its memory too early.
    pub fn lose(&self) {
        self.lost.store(true, Ordering::Release);
        self.run_in_background();
    }

    fn check_lost(&self, call: &'static str) -> DeviceResult<()> {
        if self.lost.load(Ordering::Acquire) {
            return Err(Fault::Lost.in_call(call, "the device is gone"));
        }
        Ok(())
    }

    /// Counts copies; the device is lost after the last that it accepts.
    fn wear(&self, copies: usize) {
        let copies = u64::try_from(copies).unwrap_or(u64::MAX);
        let fewer = |left: u64| (left != u64::MAX).then(|| left.saturating_sub(copies));
        let before = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
        if before.is_ok_and(|before| before <= copies) {
            self.lose();
        }
    }

    /// Starts a background thread that runs due work while any is pending: code that waits for a
    /// number that the GPU writes makes no calls.
    fn run_in_background(&self) {
        if self.has_runner.swap(true, Ordering::AcqRel) {
            return;
        }
        let (timeline, clock) = (Arc::downgrade(&self.timeline), Arc::clone(&self.clock));
        let has_runner = Arc::clone(&self.has_runner);
        let run = move || {
            while let Some(timeline) = timeline.upgrade() {
                let mut timeline = timeline.lock();
                timeline.run_due(clock.now());
                if !timeline.is_busy() {
                    // The timeline is locked, so nothing can be queued before the flag is cleared.
                    has_runner.store(false, Ordering::Release);
                    return;
                }
                drop(timeline);
                std::thread::sleep(LOOK);
            }
        };
        let started = std::thread::Builder::new().name("forebay-sim".into()).spawn(run);
        if started.is_err() {
            self.has_runner.store(false, Ordering::Release); // the next call tries again
        }
    }

    /// Queues copies; each group of them pays the link's latency once.
    ///
    /// # Safety
    /// The host ranges may be read or written, according to the direction, until the copies are
    /// done.
    unsafe fn copy(
        &self,
        stream: Stream,
        direction: CopyDirection,
        copies: &[DeviceCopy],
    ) -> DeviceResult<()> {
        if direction == CopyDirection::ToDevice {
            self.hang.pass(SimCall::CopyToDevice);
        }
        let (now, mut timeline) = (self.clock.now(), self.timeline(direction.call())?);
        for group in copies.chunks(BATCH_MAX) {
            // SAFETY: the caller's promise.
            unsafe { timeline.copy(now, stream.0, direction, group)? };
        }
        drop(timeline);
        self.wear(copies.len());
        Ok(())
    }

    /// Locks the timeline. A forked child is refused: there the lock may never be released, and
    /// the copies' memory is missing.
    fn timeline(&self, call: &'static str) -> DeviceResult<MutexGuard<'_, Timeline>> {
        check_home(&self.home, call)?;
        self.check_lost(call)?;
        Ok(self.timeline.lock())
    }

    fn registered(&self, call: &'static str) -> DeviceResult<MutexGuard<'_, Registrations>> {
        check_home(&self.home, call)?;
        self.check_lost(call)?;
        Ok(self.registered.lock())
    }
}

impl crate::sealed::Sealed for SimDevice {
    fn home(&self) -> &Home {
        &self.home
    }
}

impl Device for SimDevice {
    fn hold(&self, address: u64, len: u64) -> DeviceResult<u64> {
        let mut timeline = self.timeline("hold")?;
        timeline.memory.hold("hold", address, len)?;
        Ok(timeline.memory.place(address) as u64)
    }

    fn dispose(&self, address: u64) {
        self.timeline.lock().memory.dispose(address);
    }

    fn native(&self, stream: Stream) -> Option<u64> {
        Some(stream.0)
    }

    fn simulated_cufile(&self) -> Option<(SimulatedCuFile, u64)> {
        self.cufile
    }

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn registry(&self) -> u64 {
        Arc::as_ptr(&self.registered).addr() as u64
    }

    fn memory(&self) -> DeviceResult<(u64, u64)> {
        let timeline = self.timeline("memory")?;
        Ok((timeline.memory.free_bytes(), timeline.memory.capacity()))
    }

    fn allocate(&self, len: u64) -> DeviceResult<u64> {
        self.timeline("allocate")?.memory.allocate(len)
    }

    unsafe fn free(&self, address: u64) -> DeviceResult<()> {
        let (now, mut timeline) = (self.clock.now(), self.timeline("free")?);
        timeline.run_due(now); // completed copies no longer block it
        timeline.memory.release(address)
    }

    unsafe fn register(&self, host: NonNull<u8>, len: usize) -> DeviceResult<()> {
        self.pinnings.fetch_add(1, Ordering::AcqRel);
        if self.refuses_pinning.load(Ordering::Acquire) {
            return Err(Fault::HostRefused.in_call("register", "the host pins no more memory"));
        }
        self.registered("register")?.add(HostAddress(host), len)
    }

    unsafe fn register_read_only(&self, host: NonNull<u8>, len: usize) -> DeviceResult<()> {
        // SAFETY: the caller keeps the memory mapped until it is unregistered.
        let kept = unsafe { copied(HostAddress(host), len) }?;
        self.registered("register")?.add_read_only(HostAddress(host), kept, self.pages)
    }

    unsafe fn unregister(&self, host: NonNull<u8>) -> DeviceResult<()> {
        self.registered("unregister")?.remove(HostAddress(host))
    }

    fn create_stream(&self) -> DeviceResult<Stream> {
        Ok(Stream(self.timeline("create_stream")?.create_stream()))
    }

    fn destroy_stream(&self, stream: Stream) -> DeviceResult<()> {
        self.timeline("destroy_stream")?.destroy_stream(stream.0)
    }

    fn create_event(&self) -> DeviceResult<Event> {
        Ok(Event(self.timeline("create_event")?.create_event()))
    }

    fn create_timer(&self) -> DeviceResult<Event> {
        self.create_event() // all events of a simulated GPU record their time
    }

    fn elapsed(&self, from: Event, to: Event) -> DeviceResult<Duration> {
        self.timeline("elapsed")?.elapsed(self.clock.now(), from.0, to.0)
    }

    fn destroy_event(&self, event: Event) -> DeviceResult<()> {
        self.timeline("destroy_event")?.destroy_event(event.0)
    }

    unsafe fn copy_to_device(
        &self,
        stream: Stream,
        target: u64,
        source: NonNull<u8>,
        len: usize,
    ) -> DeviceResult<()> {
        let copy = DeviceCopy { host: source, device: target, len };
        // SAFETY: the caller keeps the source readable until the copy is done.
        unsafe { self.copy(stream, CopyDirection::ToDevice, &[copy]) }
    }

    unsafe fn copy_to_host(
        &self,
        stream: Stream,
        target: NonNull<u8>,
        source: u64,
        len: usize,
    ) -> DeviceResult<()> {
        let copy = DeviceCopy { host: target, device: source, len };
        // SAFETY: the caller keeps the target writable until the copy is done.
        unsafe { self.copy(stream, CopyDirection::ToHost, &[copy]) }
    }

    fn reaches(&self, peer: &dyn Device, _address: u64) -> bool {
        peer.registry() == self.registry()
    }

    /// The copy is over when the call returns, whatever the stream does.
    unsafe fn copy_to_peer(
        &self,
        _stream: Stream,
        source: u64,
        peer: &dyn Device,
        target: u64,
        len: usize,
    ) -> DeviceResult<()> {
        let from = self.hold(source, len as u64)?;
        let copied = peer.hold(target, len as u64).map(|to| {
            // SAFETY: both ranges are held, and nothing else uses them, by the caller's promise.
            unsafe { ptr::copy(from as *const u8, to as *mut u8, len) };
            peer.dispose(target);
        });
        self.dispose(source);
        copied
    }

    fn no_gates(&self) -> Option<String> {
        None
    }

    unsafe fn wait_number(
        &self,
        stream: Stream,
        number: NonNull<u32>,
        least: u32,
    ) -> DeviceResult<()> {
        self.timeline("wait_number")?.wait_number(stream.0, number, least)?;
        self.run_in_background();
        Ok(())
    }

    unsafe fn write_number(
        &self,
        stream: Stream,
        number: NonNull<u32>,
        value: u32,
    ) -> DeviceResult<()> {
        self.timeline("write_number")?.write_number(self.clock.now(), stream.0, number, value)?;
        self.run_in_background();
        Ok(())
    }

    unsafe fn record_on_caller(&self, event: Event, stream: CallerStream) -> DeviceResult<()> {
        self.hang.pass(SimCall::RecordOnCaller);
        self.record(event, Stream(stream.0))
    }

    unsafe fn hold_caller(&self, stream: CallerStream, event: Event) -> DeviceResult<()> {
        self.wait_event(Stream(stream.0), event)
    }

    unsafe fn is_capturing(&self, stream: CallerStream) -> DeviceResult<bool> {
        self.timeline("is_capturing")?.is_capturing(stream.0)
    }

    unsafe fn is_idle(&self, stream: CallerStream) -> DeviceResult<bool> {
        let (now, mut timeline) = (self.clock.now(), self.timeline("is_idle")?);
        timeline.run_due(now);
        Ok(timeline.stream_due(stream.0)? <= now && !timeline.is_held(stream.0))
    }

    fn has_batches(&self) -> bool {
        true
    }

    unsafe fn copy_batch_to_device(
        &self,
        stream: Stream,
        copies: &[DeviceCopy],
    ) -> DeviceResult<()> {
        // SAFETY: the caller keeps the sources readable until the copies are done.
        unsafe { self.copy(stream, CopyDirection::ToDevice, copies) }
    }

    unsafe fn copy_batch_to_host(&self, stream: Stream, copies: &[DeviceCopy]) -> DeviceResult<()> {
        // SAFETY: the caller keeps the targets writable until the copies are done.
        unsafe { self.copy(stream, CopyDirection::ToHost, copies) }
    }

    unsafe fn fill(&self, stream: Stream, address: u64, byte: u8, len: u64) -> DeviceResult<()> {
        self.timeline("fill")?.fill(self.clock.now(), stream.0, address, byte, len)
    }

    unsafe fn xor(&self, stream: Stream, address: u64, key: u64, len: u64) -> DeviceResult<()> {
        check_pairs("xor", address, len)?;
        self.timeline("xor")?.xor(self.clock.now(), stream.0, address, key, len)
    }

    fn record(&self, event: Event, stream: Stream) -> DeviceResult<()> {
        self.timeline("record")?.record(self.clock.now(), event.0, stream.0)
    }

    fn is_done(&self, event: Event) -> DeviceResult<bool> {
        self.timeline("is_done")?.is_done(self.clock.now(), event.0)
    }

    fn wait_event(&self, stream: Stream, event: Event) -> DeviceResult<()> {
        self.timeline("wait_event")?.wait_event(stream.0, event.0)
    }

    fn synchronize(&self, stream: Stream) -> DeviceResult<()> {
        loop {
            let (now, mut timeline) = (self.clock.now(), self.timeline("synchronize")?);
            timeline.run_due(now);
            let due = timeline.stream_due(stream.0)?;
            let held = timeline.is_held(stream.0);
            if now >= due && !held {
                return timeline.settle(now, stream.0);
            }
            // Unlock so that other threads can continue while this one sleeps.
            drop(timeline);
            self.clock.sleep(if held { LOOK } else { due - now });
        }
    }

    fn address_kind(&self, address: u64) -> AddressKind {
        if !self.home.is_here() || self.check_lost("address_kind").is_err() {
            return AddressKind::Unknown;
        }
        if let Some((base, len)) = self.timeline.lock().memory.holding(address) {
            return AddressKind::Device { device: self.info.id, base, len };
        }
        if self.registered.lock().contains(address) {
            return AddressKind::PinnedHost;
        }
        AddressKind::Unknown
    }
}
