//! GPUs behind one trait, so that an engine uses no vendor's types.
//!
//! [`cuda`] implements it with the CUDA driver, [`sim`] with host memory.
//! Streams and events are plain handles that belong to the device that made them; the code that
//! creates one destroys it. Every call may come from any thread: an implementation makes its
//! context current for the call and then restores the caller's.

#![expect(unsafe_code, reason = "the trait's calls take raw addresses; each states its contract")]

mod address;
pub mod cuda;
mod direct;
mod failure;
mod name;
mod range;
pub mod sim;

use std::fmt::{self, Debug, Display};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::time::Duration;

pub use address::AddressKind;
pub use direct::{DirectFile, DirectProvider, NoPort, Port, PortError};
use failure::unsupported;
pub use failure::{DeviceError, DeviceResult, NONSENSE, check_home, check_pairs};
pub use name::GpuName;
pub use range::{NotDeviceMemory, check_range};

/// The kind of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceKind {
    /// An NVIDIA GPU behind the CUDA driver.
    Cuda,
    /// Host memory that simulates a GPU.
    Sim,
}

/// Identifies a GPU: its kind and its index in that kind's own order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId {
    /// The kind.
    pub kind: DeviceKind,
    /// The index, from 0.
    pub index: u32,
}

impl Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            DeviceKind::Cuda => write!(f, "cuda:{}", self.index),
            DeviceKind::Sim => write!(f, "sim:{}", self.index),
        }
    }
}

/// Direction of a copy between host memory and a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyDirection {
    /// To the GPU.
    ToDevice,
    /// To the host.
    ToHost,
}

impl CopyDirection {
    /// The name of the trait's call for one copy.
    const fn call(self) -> &'static str {
        match self {
            Self::ToDevice => "copy_to_device",
            Self::ToHost => "copy_to_host",
        }
    }
}

/// A GPU's identity and size, known before it is used. Unknown text is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The GPU's kind and index.
    pub id: DeviceId,
    /// Its name, as the vendor gives it.
    pub name: String,
    /// UUID; starts with `GPU-` or, for a MIG instance, `MIG-` on NVIDIA.
    pub uuid: String,
    /// `DDDD:BB:DD.F`, lower case, as in `/sys/bus/pci/devices`.
    pub pci_address: String,
    /// The driver's version, as `580.159`. If that cannot be read, the highest CUDA version that
    /// the driver supports; for a simulated GPU, its settings.
    pub driver: String,
    /// Bytes of memory on the device.
    pub memory: u64,
    /// Whether this device is simulated.
    pub simulated: bool,
}

/// A queue of work on a device. Copies on one stream run in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stream(pub u64);

/// A stream that a caller made, as the driver's handle: a `CUstream` or `cudaStream_t`. 0 is the
/// default stream, 1 the legacy default stream, 2 the per-thread default stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallerStream(pub u64);

/// An event: a mark in a stream that is done once all work before it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Event(pub u64);

/// One copy of a batch. The call that takes the batch sets the direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceCopy {
    /// First byte in pinned host memory.
    pub host: NonNull<u8>,
    /// First address on the GPU.
    pub device: u64,
    /// Bytes.
    pub len: usize,
}

/// Largest number of copies in one driver call; larger batches are split. With 16 KiB copies,
/// batches of 512 move 48.5 GB/s on an H200 and batches of 4,096 only 33.7.
pub const BATCH_MAX: usize = 512;

/// Two numbers in registered host memory by which a [gather](Device::gather) can be withdrawn.
///
/// The kernel writes `number` to the first one as it begins. If the second one is `number` by then,
/// it copies nothing.
#[derive(Debug, Clone, Copy)]
pub struct Signal {
    /// The two numbers, one after the other.
    pub words: NonNull<u32>,
    /// Differs from that of the gather before.
    pub number: u32,
}

/// Keeps [`Device`] implementable by this crate and the engine only: callers rely on its report
/// that a copy is done to decide when memory may be returned.
#[doc(hidden)]
pub mod sealed {
    use forebay_base::process::Home;

    /// Supertrait that callers of the engine cannot name.
    pub trait Sealed {
        /// The process that opened the device; its forked children must not use it.
        fn home(&self) -> &Home;
    }
}

/// True if the device confirms that no work queued on `stream` is still running. A driver that
/// panics does not confirm it. It is queried twice, because the first answer may be a failure that
/// was already known.
#[must_use]
pub fn is_quiet(device: &dyn Device, stream: Stream) -> bool {
    let has_ended = || device.synchronize(stream).is_ok();
    (0..2).any(|_| catch_unwind(AssertUnwindSafe(has_ended)).unwrap_or(false))
}

/// One GPU. Addresses on it are 64-bit numbers that are never dereferenced here.
pub trait Device: Send + Sync + Debug + sealed::Sealed {
    /// The GPU's identity and size.
    fn info(&self) -> &DeviceInfo;

    /// The GPU's kind and index.
    fn id(&self) -> DeviceId {
        self.info().id
    }

    /// Whether this process opened the GPU, and is not a forked child of the one that did.
    fn is_of_this_process(&self) -> bool {
        self.home().is_here()
    }

    /// Identifies the registry that keeps [registered](Self::register) host memory. Devices of one
    /// kind with the same number share their registrations.
    fn registry(&self) -> u64;

    /// Free and total bytes of memory.
    ///
    /// # Errors
    /// The driver's error.
    fn memory(&self) -> DeviceResult<(u64, u64)>;

    /// Reserves `len` bytes (more than zero) and returns their address, aligned to 256 or more.
    ///
    /// # Errors
    /// The driver's error, usually because the GPU is out of memory.
    fn allocate(&self, len: u64) -> DeviceResult<u64>;

    /// Frees memory.
    ///
    /// # Safety
    /// `address` came from [`allocate`](Self::allocate) of this device, is freed once, and no
    /// queued copy touches it.
    ///
    /// # Errors
    /// The driver's error.
    unsafe fn free(&self, address: u64) -> DeviceResult<()>;

    /// A handle by which other processes of this host [map](Self::map_shared) memory.
    ///
    /// # Errors
    /// The driver's error, also for memory that is not from [`allocate`](Self::allocate).
    fn share(&self, _address: u64) -> DeviceResult<[u8; 64]> {
        Err(unsupported("share"))
    }

    /// Maps memory that a different process [shares](Self::share), which may be on a different GPU
    /// that this one reaches; returns its address and length. Copies of this GPU reach it as they
    /// reach its own.
    ///
    /// # Errors
    /// The driver's error, also if the process is this one.
    fn map_shared(&self, _handle: [u8; 64]) -> DeviceResult<(u64, u64)> {
        Err(unsupported("map_shared"))
    }

    /// Undoes [`map_shared`](Self::map_shared).
    ///
    /// # Safety
    /// `address` came from it, is unmapped once, and no queued copy touches it.
    ///
    /// # Errors
    /// The driver's error.
    unsafe fn unmap_shared(&self, _address: u64) -> DeviceResult<()> {
        Err(unsupported("unmap_shared"))
    }

    /// Pins `len` bytes of host memory for copies to and from any GPU of this kind.
    ///
    /// # Safety
    /// The memory is mapped and stays so until [`unregister`](Self::unregister).
    ///
    /// # Errors
    /// The driver's error.
    unsafe fn register(&self, host: NonNull<u8>, len: usize) -> DeviceResult<()>;

    /// Pins `len` bytes of host memory that is only read from, such as mapped file pages. Copies
    /// keep reading the pages that are mapped now, even if the file's pages are replaced later.
    ///
    /// # Safety
    /// The memory is mapped and stays so until [`unregister`](Self::unregister).
    ///
    /// # Errors
    /// The driver's error, also if it cannot pin memory of this kind.
    unsafe fn register_read_only(&self, _host: NonNull<u8>, _len: usize) -> DeviceResult<()> {
        Err(unsupported("register_read_only"))
    }

    /// Undoes [`register`](Self::register) and [`register_read_only`](Self::register_read_only).
    ///
    /// # Safety
    /// `host` was registered here, and no queued copy touches it.
    ///
    /// # Errors
    /// The driver's error.
    unsafe fn unregister(&self, host: NonNull<u8>) -> DeviceResult<()>;

    /// Makes a stream that never synchronises with the default stream.
    ///
    /// # Errors
    /// The driver's error.
    fn create_stream(&self) -> DeviceResult<Stream>;

    /// Makes such a stream, whose kernels begin before those of other streams.
    ///
    /// # Errors
    /// The driver's error.
    fn create_urgent_stream(&self) -> DeviceResult<Stream> {
        self.create_stream()
    }

    /// Destroys a stream; work already queued on it still runs.
    ///
    /// # Errors
    /// The driver's error, also for a handle of another device.
    fn destroy_stream(&self, stream: Stream) -> DeviceResult<()>;

    /// Makes an event without timing.
    ///
    /// # Errors
    /// The driver's error.
    fn create_event(&self) -> DeviceResult<Event>;

    /// Makes an event that records the time at which it completes.
    ///
    /// # Errors
    /// The driver's error.
    fn create_timer(&self) -> DeviceResult<Event>;

    /// The time between two completed events of [`create_timer`](Self::create_timer).
    ///
    /// # Errors
    /// The driver's error, also if one of them is not complete.
    fn elapsed(&self, from: Event, to: Event) -> DeviceResult<Duration>;

    /// Destroys an event.
    ///
    /// # Errors
    /// The driver's error, also for a handle of another device.
    fn destroy_event(&self, event: Event) -> DeviceResult<()>;

    /// Queues a copy from pinned host memory to the GPU.
    ///
    /// # Safety
    /// Both ranges stay valid, and the host bytes unchanged, until the copy is done.
    ///
    /// # Errors
    /// The driver's error; nothing is queued then.
    unsafe fn copy_to_device(
        &self,
        stream: Stream,
        target: u64,
        source: NonNull<u8>,
        len: usize,
    ) -> DeviceResult<()>;

    /// Queues a copy from the GPU to pinned host memory.
    ///
    /// # Safety
    /// Both ranges stay valid, and the host bytes untouched, until the copy is done.
    ///
    /// # Errors
    /// The driver's error; nothing is queued then.
    unsafe fn copy_to_host(
        &self,
        stream: Stream,
        target: NonNull<u8>,
        source: u64,
        len: usize,
    ) -> DeviceResult<()>;

    /// Whether copies of this GPU reach an address of `peer`, which may be the same GPU. The driver
    /// may report so although the machine's bus delivers other bytes.
    fn reaches(&self, _peer: &dyn Device, _address: u64) -> bool {
        false
    }

    /// Queues a copy from this GPU to an address of `peer` that it [reaches](Self::reaches).
    ///
    /// # Safety
    /// Both ranges stay valid, and the source unchanged, until the copy is done.
    ///
    /// # Errors
    /// The driver's error; nothing is queued then.
    unsafe fn copy_to_peer(
        &self,
        _stream: Stream,
        _source: u64,
        _peer: &dyn Device,
        _target: u64,
        _len: usize,
    ) -> DeviceResult<()> {
        Err(unsupported("copy_to_peer"))
    }

    /// Whether a batch of copies pays the link's latency once instead of once per copy.
    fn has_batches(&self) -> bool;

    /// Queues copies from pinned host memory to the GPU, in groups of at most [`BATCH_MAX`].
    ///
    /// Copies of one call run in no particular order, so no two of them may touch the same bytes on
    /// the GPU. Work queued on the stream before and after the call keeps its order.
    ///
    /// # Safety
    /// As for [`copy_to_device`](Self::copy_to_device), for each copy.
    ///
    /// # Errors
    /// The driver's error. None, some or all of the copies may be queued then; their memory stays
    /// in use until the stream has been synchronised.
    unsafe fn copy_batch_to_device(
        &self,
        stream: Stream,
        copies: &[DeviceCopy],
    ) -> DeviceResult<()>;

    /// Loads the kernel for [`gather`](Self::gather), if there is one. Needs 2 ms, or 50 if the
    /// driver must compile it, and waits for kernels that run on the GPU.
    fn load_gather(&self) {}

    /// Whether the kernel is loaded, and reaches the targets of these copies.
    fn gathers(&self, _copies: &[DeviceCopy]) -> bool {
        false
    }

    /// Queues copies like [`copy_batch_to_device`](Self::copy_batch_to_device), by a kernel. It
    /// moves many small pieces faster, but begins late while kernels of other streams occupy the
    /// GPU.
    ///
    /// # Safety
    /// As for `copy_batch_to_device`. Both addresses of a copy have the same remainder modulo 16.
    /// The targets are memory that this device allocated, or [`gathers`](Self::gathers) was true
    /// for them and they are not freed. The numbers of `signal` keep their address. After a
    /// withdrawal in time, only they are in use.
    ///
    /// # Errors
    /// As for `copy_batch_to_device`.
    unsafe fn gather(
        &self,
        _stream: Stream,
        _copies: &[DeviceCopy],
        _signal: Signal,
    ) -> DeviceResult<()> {
        Err(unsupported("gather"))
    }

    /// Queues copies from the GPU to pinned host memory, in groups of at most [`BATCH_MAX`].
    ///
    /// Copies of one call run in no particular order, so no two of them may touch the same bytes on
    /// the host. Work queued on the stream before and after the call keeps its order.
    ///
    /// # Safety
    /// As for [`copy_to_host`](Self::copy_to_host), for each copy.
    ///
    /// # Errors
    /// As for [`copy_batch_to_device`](Self::copy_batch_to_device).
    unsafe fn copy_batch_to_host(&self, stream: Stream, copies: &[DeviceCopy]) -> DeviceResult<()>;

    /// Queues a fill of `len` bytes at `address` with `byte`.
    ///
    /// # Safety
    /// The range stays valid until the fill is done.
    ///
    /// # Errors
    /// The driver's error; nothing is queued then.
    unsafe fn fill(&self, stream: Stream, address: u64, byte: u8, len: u64) -> DeviceResult<()>;

    /// Queues a kernel that XORs each 8 bytes of the range with `key`. Measurements use it as GPU
    /// work that runs concurrently with copies.
    ///
    /// # Safety
    /// The range stays valid until the kernel is done.
    ///
    /// # Errors
    /// The driver's error, also if it cannot start kernels, or if `address` or `len` is no multiple
    /// of 16; nothing is queued then.
    unsafe fn xor(&self, _stream: Stream, _address: u64, _key: u64, _len: u64) -> DeviceResult<()> {
        Err(unsupported("xor"))
    }

    /// Theoretical memory bandwidth in bytes per second, reads and writes together; `None` if
    /// unknown.
    fn memory_rate(&self) -> Option<u64> {
        None
    }

    /// Records `event` behind all work queued on `stream` now.
    ///
    /// # Errors
    /// The driver's error.
    fn record(&self, event: Event, stream: Stream) -> DeviceResult<()>;

    /// Whether all work before the last [`record`](Self::record) of `event` is done.
    ///
    /// # Errors
    /// The driver's error. A failed copy is reported here at the latest.
    fn is_done(&self, event: Event) -> DeviceResult<bool>;

    /// Makes later work on `stream` wait for `event`.
    ///
    /// # Errors
    /// The driver's error.
    fn wait_event(&self, stream: Stream, event: Event) -> DeviceResult<()>;

    /// Blocks until all work queued on `stream` is done.
    ///
    /// # Errors
    /// The driver's error. A failed copy is reported here at the latest.
    fn synchronize(&self, stream: Stream) -> DeviceResult<()>;

    /// Why streams cannot wait for numbers in host memory on this device; `None` if they can.
    fn no_gates(&self) -> Option<String> {
        Some("it has no stream memory operations".into())
    }

    /// Makes later work on `stream` wait until a number in registered host memory is at least
    /// `least`. The comparison is on the signed difference, so numbers may wrap.
    ///
    /// # Safety
    /// The number keeps its address until the wait is over.
    ///
    /// # Errors
    /// The driver's error.
    unsafe fn wait_number(
        &self,
        _stream: Stream,
        _number: NonNull<u32>,
        _least: u32,
    ) -> DeviceResult<()> {
        Err(unsupported("wait_number"))
    }

    /// Queues a write of a number in registered host memory. It runs after all work queued before
    /// it and becomes visible after that work's results.
    ///
    /// # Safety
    /// The number keeps its address until it is written.
    ///
    /// # Errors
    /// The driver's error.
    unsafe fn write_number(
        &self,
        _stream: Stream,
        _number: NonNull<u32>,
        _value: u32,
    ) -> DeviceResult<()> {
        Err(unsupported("write_number"))
    }

    /// Records `event` behind all work queued on a caller's stream now.
    ///
    /// # Safety
    /// The stream is alive and belongs to this device.
    ///
    /// # Errors
    /// The driver's error.
    unsafe fn record_on_caller(&self, _event: Event, _stream: CallerStream) -> DeviceResult<()> {
        Err(unsupported("record_on_caller"))
    }

    /// Makes later work on a caller's stream wait for `event`.
    ///
    /// # Safety
    /// As for [`record_on_caller`](Self::record_on_caller).
    ///
    /// # Errors
    /// The driver's error.
    unsafe fn hold_caller(&self, _stream: CallerStream, _event: Event) -> DeviceResult<()> {
        Err(unsupported("hold_caller"))
    }

    /// Whether a caller's stream is being captured, so that work queued on it becomes part of a
    /// graph.
    ///
    /// # Safety
    /// As for [`record_on_caller`](Self::record_on_caller).
    ///
    /// # Errors
    /// The driver's error.
    unsafe fn is_capturing(&self, _stream: CallerStream) -> DeviceResult<bool> {
        Err(unsupported("is_capturing"))
    }

    /// Whether all work queued on a caller's stream is done. The stream must not be capturing: the
    /// query would end the capture.
    ///
    /// # Safety
    /// As for [`record_on_caller`](Self::record_on_caller).
    ///
    /// # Errors
    /// The driver's error.
    unsafe fn is_idle(&self, _stream: CallerStream) -> DeviceResult<bool> {
        Err(unsupported("is_idle"))
    }

    /// Runs `work` with this GPU's context current on the thread, as libraries such as cuFile need
    /// it.
    ///
    /// # Errors
    /// The driver's error; `work` has not run then.
    fn within(&self, work: &mut dyn FnMut()) -> DeviceResult<()> {
        work();
        Ok(())
    }

    /// The address by which libraries other than the driver reach the bytes at `address`. It
    /// differs only on a simulated GPU, whose bytes are in host memory. The bytes are in use until
    /// [`dispose`](Self::dispose).
    ///
    /// # Errors
    /// The GPU has no allocation that holds the range.
    fn hold(&self, address: u64, _len: u64) -> DeviceResult<u64> {
        Ok(address)
    }

    /// Undoes [`hold`](Self::hold) of bytes at `address`.
    fn dispose(&self, _address: u64) {}

    /// The driver's handle of a stream, for other libraries; `None` if no other library knows it.
    fn native(&self, _stream: Stream) -> Option<u64> {
        None
    }

    /// How a simulated GPU simulates cuFile, and the random seed for it.
    fn simulated_cufile(&self) -> Option<(sim::SimulatedCuFile, u64)> {
        None
    }

    /// The kind of memory at `address`.
    fn address_kind(&self, address: u64) -> AddressKind;
}
