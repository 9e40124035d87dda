//! GPUs behind one small trait, so that the rest of the library holds no type of any vendor.
//!
//! [`cuda`] fills it from the driver library found at run time, [`sim`] from host memory. Streams
//! and events are plain handles that belong to the device that made them; whoever makes one
//! destroys it. Every call may come from any thread: an implementation makes its context current
//! for the call and puts the caller's back.

#![expect(unsafe_code, reason = "the trait's calls take raw addresses; each states its contract")]

mod address;
pub mod cuda;
mod failure;
pub(crate) mod nvml;
mod range;
mod select;
mod sensors;
pub mod sim;

use std::fmt::{self, Debug, Display};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::time::Duration;

pub use address::AddressKind;
pub use failure::{DeviceError, DeviceResult};
pub(crate) use failure::{NONSENSE, check_home};
use failure::{check_pairs, unsupported};
pub(crate) use range::{NotDeviceMemory, check_range};
pub(crate) use select::address_kind;
pub use select::{GpuSelector, absence_reason, open, visible};
pub use sensors::{NoSensors, Sensed, Sensors, ThrottleReasons};

/// The kind of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DeviceKind {
    /// An NVIDIA GPU behind the CUDA driver.
    Cuda,
    /// Host memory that plays a GPU.
    Sim,
}

/// Which GPU: its kind and its index in that kind's own order.
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

/// What there is to know about a GPU before it is used. Unknown text is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Which GPU.
    pub id: DeviceId,
    /// Its name, as the vendor gives it.
    pub name: String,
    /// `GPU-…` and `MIG-…` for NVIDIA.
    pub uuid: String,
    /// `DDDD:BB:DD.F`, lower case, as in `/sys/bus/pci/devices`.
    pub pci_address: String,
    /// The driver's version, as `580.159`, or the highest CUDA version that it speaks where the
    /// former cannot be read; of a simulated GPU its settings.
    pub driver: String,
    /// Bytes of memory on the device.
    pub memory: u64,
    /// Whether a copy here is only played.
    pub simulated: bool,
}

/// A queue of work on a device. Copies on one stream run in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stream(pub u64);

/// A stream that a caller made, by the address or the number that its driver knows it by: a
/// `CUstream` or `cudaStream_t`, of which 0 is the default stream, 1 the legacy one and 2 that of
/// each thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallerStream(pub u64);

/// A mark in a stream that says when all work before it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Event(pub u64);

/// One copy of a batch; which way it goes is the call's to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceCopy {
    /// First byte in pinned host memory.
    pub host: NonNull<u8>,
    /// First address on the GPU.
    pub device: u64,
    /// Bytes.
    pub len: usize,
}

/// The most copies that go to a driver in one call: larger batches are cut. Of pieces of 16 KiB,
/// batches of 512 move 48.5 GB/s on an H200 and batches of 4,096 only 33.7.
pub const BATCH_MAX: usize = 512;

/// Only this crate makes devices: callers rely on what [`Device`] says of a copy's end to decide
/// when memory may be given back.
pub(crate) mod sealed {
    use crate::process::Home;

    /// See the module's own text.
    pub trait Sealed {
        /// The process that opened the device: no child of it may use it.
        fn home(&self) -> &Home;
    }
}

/// Whether nothing that was queued on `stream` runs any more, as far as its device says: a driver
/// that panics does not say so. The first answer may only be a failure that is known already.
pub(crate) fn is_quiet(device: &dyn Device, stream: Stream) -> bool {
    let ask = || device.synchronize(stream).is_ok();
    (0..2).any(|_| catch_unwind(AssertUnwindSafe(ask)).unwrap_or(false))
}

/// One GPU. Addresses on it are 64-bit numbers that are never dereferenced here.
pub trait Device: Send + Sync + Debug + sealed::Sealed {
    /// What is known about it.
    fn info(&self) -> &DeviceInfo;

    /// Which GPU it is.
    fn id(&self) -> DeviceId {
        self.info().id
    }

    /// Who keeps what host memory is [registered](Self::register): that of one device serves all of
    /// its kind with the same number.
    fn registry(&self) -> u64;

    /// Bytes free and bytes in all.
    ///
    /// # Errors
    /// The driver's.
    fn memory(&self) -> DeviceResult<(u64, u64)>;

    /// Reserves `len` bytes (more than zero) and returns their address, aligned to 256 or more.
    ///
    /// # Errors
    /// The driver's, for want of memory above all.
    fn allocate(&self, len: u64) -> DeviceResult<u64>;

    /// Gives memory back.
    ///
    /// # Safety
    /// `address` came from [`allocate`](Self::allocate) of this device, is given back once, and no
    /// copy that touches it is queued.
    ///
    /// # Errors
    /// The driver's.
    unsafe fn free(&self, address: u64) -> DeviceResult<()>;

    /// Pins `len` bytes of host memory for copies to and from any GPU of this kind.
    ///
    /// # Safety
    /// The memory is mapped and stays so until [`unregister`](Self::unregister).
    ///
    /// # Errors
    /// The driver's.
    unsafe fn register(&self, host: NonNull<u8>, len: usize) -> DeviceResult<()>;

    /// Pins `len` bytes of host memory that is only read from, as pages of a file are. Copies go on
    /// reading the pages that are there now, also where the file gets others in their place.
    ///
    /// # Safety
    /// The memory is mapped and stays so until [`unregister`](Self::unregister).
    ///
    /// # Errors
    /// The driver's, also where it pins no such memory.
    unsafe fn register_read_only(&self, _host: NonNull<u8>, _len: usize) -> DeviceResult<()> {
        Err(unsupported("register_read_only"))
    }

    /// Undoes [`register`](Self::register) and [`register_read_only`](Self::register_read_only).
    ///
    /// # Safety
    /// `host` was registered here, and no copy that touches it is queued.
    ///
    /// # Errors
    /// The driver's.
    unsafe fn unregister(&self, host: NonNull<u8>) -> DeviceResult<()>;

    /// Makes a stream that never synchronises with the default stream.
    ///
    /// # Errors
    /// The driver's.
    fn create_stream(&self) -> DeviceResult<Stream>;

    /// Destroys a stream; work that is queued on it still runs.
    ///
    /// # Errors
    /// The driver's, also for a handle that is none of this device's.
    fn destroy_stream(&self, stream: Stream) -> DeviceResult<()>;

    /// Makes an event without timing.
    ///
    /// # Errors
    /// The driver's.
    fn create_event(&self) -> DeviceResult<Event>;

    /// Makes an event that knows when it was passed.
    ///
    /// # Errors
    /// The driver's.
    fn create_timer(&self) -> DeviceResult<Event>;

    /// The time between two events of [`create_timer`](Self::create_timer) that are done.
    ///
    /// # Errors
    /// The driver's, also where one of them is not done.
    fn elapsed(&self, from: Event, to: Event) -> DeviceResult<Duration>;

    /// Destroys an event.
    ///
    /// # Errors
    /// The driver's, also for a handle that is none of this device's.
    fn destroy_event(&self, event: Event) -> DeviceResult<()>;

    /// Queues a copy from pinned host memory to the GPU.
    ///
    /// # Safety
    /// Both ranges are valid and stay so, and the host bytes unchanged, until the copy is done.
    ///
    /// # Errors
    /// The driver's; nothing is queued then.
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
    /// Both ranges are valid and stay so, the host bytes untouched, until the copy is done.
    ///
    /// # Errors
    /// The driver's; nothing is queued then.
    unsafe fn copy_to_host(
        &self,
        stream: Stream,
        target: NonNull<u8>,
        source: u64,
        len: usize,
    ) -> DeviceResult<()>;

    /// Whether a batch of copies costs the link's latency once; else each of them pays it.
    fn has_batches(&self) -> bool;

    /// Queues copies from pinned host memory to the GPU, in groups of at most [`BATCH_MAX`].
    ///
    /// Copies of one call have no order among themselves, so no two of them may touch the same
    /// bytes on the GPU. What is queued on the stream before and after them keeps its order.
    ///
    /// # Safety
    /// As for [`copy_to_device`](Self::copy_to_device), for each of them.
    ///
    /// # Errors
    /// The driver's. Which of the copies are queued then, nobody knows: none, some or all. Their
    /// memory stays in use until the stream has been synchronised.
    unsafe fn copy_batch_to_device(
        &self,
        stream: Stream,
        copies: &[DeviceCopy],
    ) -> DeviceResult<()>;

    /// Queues copies from the GPU to pinned host memory, in groups of at most [`BATCH_MAX`].
    ///
    /// Copies of one call have no order among themselves, so no two of them may touch the same
    /// bytes on the host. What is queued on the stream before and after them keeps its order.
    ///
    /// # Safety
    /// As for [`copy_to_host`](Self::copy_to_host), for each of them.
    ///
    /// # Errors
    /// As for [`copy_batch_to_device`](Self::copy_batch_to_device).
    unsafe fn copy_batch_to_host(&self, stream: Stream, copies: &[DeviceCopy]) -> DeviceResult<()>;

    /// Queues the filling of `len` bytes at `address` with `byte`.
    ///
    /// # Safety
    /// The range is valid and stays so until the fill is done.
    ///
    /// # Errors
    /// The driver's; nothing is queued then.
    unsafe fn fill(&self, stream: Stream, address: u64, byte: u8, len: u64) -> DeviceResult<()>;

    /// Queues an exclusive or of each 8 of the `len` bytes at `address` with `key`: work of the GPU
    /// beside what is copied, for measurements.
    ///
    /// # Safety
    /// The range is valid and stays so until that is done.
    ///
    /// # Errors
    /// The driver's, also where it starts no kernels, and that address or length is no multiple of
    /// 16; nothing is queued then.
    unsafe fn xor(&self, _stream: Stream, _address: u64, _key: u64, _len: u64) -> DeviceResult<()> {
        Err(unsupported("xor"))
    }

    /// Bytes per second that its memory moves in theory, reads and writes together; `None`: nobody
    /// tells.
    fn memory_rate(&self) -> Option<u64> {
        None
    }

    /// Puts `event` behind all that is queued on `stream` now.
    ///
    /// # Errors
    /// The driver's.
    fn record(&self, event: Event, stream: Stream) -> DeviceResult<()>;

    /// Whether all before the last [`record`](Self::record) of `event` is done.
    ///
    /// # Errors
    /// The driver's; a failed copy is reported here at the latest.
    fn is_done(&self, event: Event) -> DeviceResult<bool>;

    /// Makes later work on `stream` wait for `event`.
    ///
    /// # Errors
    /// The driver's.
    fn wait_event(&self, stream: Stream, event: Event) -> DeviceResult<()>;

    /// Blocks until all that is queued on `stream` is done.
    ///
    /// # Errors
    /// The driver's; a failed copy is reported here at the latest.
    fn synchronize(&self, stream: Stream) -> DeviceResult<()>;

    /// Why streams cannot be made to wait for numbers in host memory here; `None`: they can.
    fn no_gates(&self) -> Option<String> {
        Some("it has no stream memory operations".into())
    }

    /// Makes later work on `stream` wait until a number in registered host memory is at least
    /// `least`, as the difference of both as a signed number says.
    ///
    /// # Safety
    /// The number stays where it is until it was waited for.
    ///
    /// # Errors
    /// The driver's.
    unsafe fn wait_number(
        &self,
        _stream: Stream,
        _number: NonNull<u32>,
        _least: u32,
    ) -> DeviceResult<()> {
        Err(unsupported("wait_number"))
    }

    /// Queues the writing of a number in registered host memory, behind all that is queued before
    /// it and visible after that.
    ///
    /// # Safety
    /// The number stays where it is until it was written.
    ///
    /// # Errors
    /// The driver's.
    unsafe fn write_number(
        &self,
        _stream: Stream,
        _number: NonNull<u32>,
        _value: u32,
    ) -> DeviceResult<()> {
        Err(unsupported("write_number"))
    }

    /// Puts `event` behind all that is queued on a caller's stream now.
    ///
    /// # Safety
    /// The stream is alive, and one of this device.
    ///
    /// # Errors
    /// The driver's.
    unsafe fn record_on_caller(&self, _event: Event, _stream: CallerStream) -> DeviceResult<()> {
        Err(unsupported("record_on_caller"))
    }

    /// Makes later work on a caller's stream wait for `event`.
    ///
    /// # Safety
    /// As for [`record_on_caller`](Self::record_on_caller).
    ///
    /// # Errors
    /// The driver's.
    unsafe fn hold_caller(&self, _stream: CallerStream, _event: Event) -> DeviceResult<()> {
        Err(unsupported("hold_caller"))
    }

    /// Whether what is queued on a caller's stream becomes part of a graph instead.
    ///
    /// # Safety
    /// As for [`record_on_caller`](Self::record_on_caller).
    ///
    /// # Errors
    /// The driver's.
    unsafe fn is_capturing(&self, _stream: CallerStream) -> DeviceResult<bool> {
        Err(unsupported("is_capturing"))
    }

    /// Runs `work` with this GPU current on the thread, as libraries beside the driver need it.
    ///
    /// # Errors
    /// The driver's; `work` has not run then.
    fn within(&self, work: &mut dyn FnMut()) -> DeviceResult<()> {
        work();
        Ok(())
    }

    /// The address by which libraries beside the driver reach the bytes at `address`: on a
    /// simulated GPU, where they are in host memory. They are in use until
    /// [`let_go`](Self::let_go).
    ///
    /// # Errors
    /// The GPU has no such bytes.
    fn hold(&self, address: u64, _len: u64) -> DeviceResult<u64> {
        Ok(address)
    }

    /// Undoes [`hold`](Self::hold) of bytes at `address`.
    fn let_go(&self, _address: u64) {}

    /// The driver's own name for a stream, for libraries beside it; `None`: there are none that
    /// know it.
    fn native(&self, _stream: Stream) -> Option<u64> {
        None
    }

    /// How a simulated GPU has cuFile played, and the seed of that.
    fn played_cufile(&self) -> Option<(sim::CuFilePlay, u64)> {
        None
    }

    /// What `address` is.
    fn address_kind(&self, address: u64) -> AddressKind;
}
