//! The simulated GPU behind the [`Device`] trait.

#![expect(unsafe_code, reason = "the trait's calls take raw addresses")]

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard};

use super::config::SimConfig;
use super::memory::{HostAddress, Registrations};
use super::timeline::{Direction, Timeline, lock};
use crate::clock::Clock;
use crate::gpu::{
    AddressKind, Device, DeviceId, DeviceInfo, DeviceKind, DeviceResult, Event, Stream, check_home,
};
use crate::process::Home;

/// A GPU played by host memory.
#[derive(Debug)]
pub struct SimDevice {
    info: DeviceInfo,
    clock: Arc<dyn Clock>,
    registered: Arc<Mutex<Registrations>>,
    timeline: Mutex<Timeline>,
    home: Home,
}

impl SimDevice {
    /// A device of its own, to which no host memory is registered yet.
    #[must_use]
    pub fn new(index: u32, config: SimConfig, clock: Arc<dyn Clock>) -> Self {
        Self::with_registered(index, config, clock, Arc::default())
    }

    /// Another device of the same host: the same clock, and memory registered with one of the two
    /// serves copies of both.
    #[must_use]
    pub fn beside(&self, index: u32, config: SimConfig) -> Self {
        let registered = Arc::clone(&self.registered);
        Self::with_registered(index, config, Arc::clone(&self.clock), registered)
    }

    /// The same, at a place on PCI.
    #[cfg(test)]
    pub(crate) fn at(mut self, pci_address: &str) -> Self {
        self.info.pci_address = pci_address.into();
        self
    }

    fn with_registered(
        index: u32,
        config: SimConfig,
        clock: Arc<dyn Clock>,
        registered: Arc<Mutex<Registrations>>,
    ) -> Self {
        let info = DeviceInfo {
            id: DeviceId { kind: DeviceKind::Sim, index },
            name: "simulated GPU".into(),
            uuid: String::new(),
            pci_address: String::new(),
            driver: config.to_string(),
            memory: config.memory,
            simulated: true,
        };
        let timeline = Mutex::new(Timeline::new(config, Arc::clone(&registered)));
        Self { info, clock, registered, timeline, home: Home::here() }
    }

    /// Its timeline, which in a forked child may be locked for ever, and has copies of memory that
    /// is not there.
    fn timeline(&self, call: &'static str) -> DeviceResult<MutexGuard<'_, Timeline>> {
        check_home(&self.home, call)?;
        Ok(lock(&self.timeline))
    }

    fn registered(&self, call: &'static str) -> DeviceResult<MutexGuard<'_, Registrations>> {
        check_home(&self.home, call)?;
        Ok(lock(&self.registered))
    }
}

impl crate::gpu::sealed::Sealed for SimDevice {
    fn home(&self) -> &Home {
        &self.home
    }
}

impl Device for SimDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> DeviceResult<(u64, u64)> {
        let timeline = self.timeline("memory")?;
        Ok((timeline.memory.free_bytes(), timeline.memory.capacity()))
    }

    fn allocate(&self, len: u64) -> DeviceResult<u64> {
        self.timeline("allocate")?.memory.allocate(len)
    }

    unsafe fn free(&self, address: u64) -> DeviceResult<()> {
        self.timeline("free")?.memory.release(address)
    }

    unsafe fn register(&self, host: NonNull<u8>, len: usize) -> DeviceResult<()> {
        self.registered("register")?.add(HostAddress(host), len)
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
        let (now, host) = (self.clock.now(), HostAddress(source));
        let mut timeline = self.timeline("copy_to_device")?;
        // SAFETY: the caller keeps the source readable until the copy is done.
        unsafe { timeline.copy(now, stream.0, Direction::ToDevice, host, target, len) }
    }

    unsafe fn copy_to_host(
        &self,
        stream: Stream,
        target: NonNull<u8>,
        source: u64,
        len: usize,
    ) -> DeviceResult<()> {
        let (now, host) = (self.clock.now(), HostAddress(target));
        let mut timeline = self.timeline("copy_to_host")?;
        // SAFETY: the caller keeps the target writable until the copy is done.
        unsafe { timeline.copy(now, stream.0, Direction::ToHost, host, source, len) }
    }

    unsafe fn fill(&self, stream: Stream, address: u64, byte: u8, len: u64) -> DeviceResult<()> {
        self.timeline("fill")?.fill(self.clock.now(), stream.0, address, byte, len)
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
        let due = self.timeline("synchronize")?.stream_due(stream.0)?;
        loop {
            let now = self.clock.now();
            if now >= due {
                return self.timeline("synchronize")?.settle(now, stream.0);
            }
            // Others go on while this thread sleeps: the timeline is not locked here.
            self.clock.sleep(due - now);
        }
    }

    fn address_kind(&self, address: u64) -> AddressKind {
        if !self.home.is_here() {
            return AddressKind::Unknown;
        }
        if let Some((base, len)) = lock(&self.timeline).memory.holding(address) {
            return AddressKind::Device { device: self.info.id, base, len };
        }
        if lock(&self.registered).contains(address) {
            return AddressKind::PinnedHost;
        }
        AddressKind::Unknown
    }
}
