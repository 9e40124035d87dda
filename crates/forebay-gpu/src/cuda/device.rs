//! An NVIDIA GPU behind the [`Device`] trait, through its primary context.
//!
//! Other libraries of the process (PyTorch, the CUDA runtime) use the same context, so copies reach
//! their memory. Each call makes the context current, does not disturb graph captures, and then
//! restores the caller's context. The calls of the data path allocate nothing and take no lock.

#![expect(unsafe_code, reason = "calls the driver")]

use std::ffi::{c_int, c_uint};
use std::ptr::{self, NonNull};
use std::time::Duration;

use forebay_base::process::Home;

use super::capture::Relaxed;
use super::driver::driver;
use super::handles::{Handles, InUse};
use super::kernels::{self, Kernels};
use super::query;
use super::table::{
    Address, CudaTable, ERROR_CONTEXT_IS_DESTROYED, ERROR_INVALID_HANDLE, ERROR_NOT_READY, Opaque,
    Ordinal, SUCCESS, SharedHandle, Status, nonsense,
};
use crate::{
    AddressKind, CallerStream, CopyDirection, Device, DeviceCopy, DeviceError, DeviceInfo,
    DeviceResult, Event, Signal, Stream, check_home, check_pairs,
};

/// `CU_MEMHOSTREGISTER_PORTABLE`: pinned for every context.
const REGISTER_PORTABLE: c_uint = 1;

/// `CU_MEMHOSTREGISTER_READ_ONLY`: for memory that may be mapped read-only (CUDA 11.1).
const REGISTER_READ_ONLY: c_uint = 8;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, the only flag.
const LAZY_PEER_ACCESS: c_uint = 1;
/// `CU_STREAM_NON_BLOCKING`: does not synchronise with the default stream.
const STREAM_NON_BLOCKING: c_uint = 1;
/// A priority that the driver clamps to its highest.
const PRIORITY_MOST: c_int = -1000;
/// `CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM`.
const SAME_ADDRESS_FOR_REGISTERED: c_int = 91;
/// `CU_STREAM_WAIT_VALUE_GEQ`: wait until the signed difference is not negative.
const WAIT_VALUE_GEQ: c_uint = 0;

fn raw_of(stream: CallerStream) -> Opaque {
    ptr::without_provenance_mut(usize::try_from(stream.0).unwrap_or(usize::MAX))
}

/// Purpose of an event, as the driver's flag.
#[derive(Debug, Clone, Copy)]
#[repr(u32)]
pub(super) enum EventKind {
    /// `CU_EVENT_DEFAULT`: records when it completes.
    Timer = 0,
    /// `CU_EVENT_DISABLE_TIMING`: only marks a place; cheaper.
    Mark = 2,
}

/// A device's context: an opaque pointer that every thread may use.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context(pub(super) Opaque);

// SAFETY: the driver's contexts may be used by several threads; the pointer is never dereferenced.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// The driver's number for it; `None` once it is destroyed.
    #[inline]
    fn id(self, cuda: &CudaTable) -> Option<u64> {
        let mut id = 0;
        // SAFETY: the output outlives the call; the driver looks the pointer up.
        (unsafe { (cuda.ctx_get_id)(self.0, &raw mut id) } == SUCCESS).then_some(id)
    }
}

/// An NVIDIA GPU. It keeps the GPU's primary context alive until dropped.
#[derive(Debug)]
#[repr(align(128))] // as the engine has its own
pub struct CudaDevice {
    pub(super) cuda: &'static CudaTable,
    pub(super) ordinal: Ordinal,
    pub(super) context: Context,
    /// The driver's number for the context. After a reset (`cudaDeviceReset`) the next primary
    /// context has another number, often at the same address (H200, driver 580).
    context_id: u64,
    pub(super) info: DeviceInfo,
    streams: Handles,
    pub(super) events: Handles,
    pub(super) kernels: Kernels,
    home: Home,
}

impl CudaDevice {
    /// Opens the GPU with this index in the driver's order.
    ///
    /// # Errors
    /// The reason, as text for users.
    pub fn open(index: u32) -> Result<Self, String> {
        Self::open_with(driver()?, index).map_err(|error| error.to_string())
    }

    /// Opens the GPU with this index of the driver with these functions.
    ///
    /// # Errors
    /// The driver's.
    #[doc(hidden)]
    pub fn open_with(cuda: &'static CudaTable, index: u32) -> DeviceResult<Self> {
        let _relaxed = Relaxed::enter(cuda)?;
        let (ordinal, info) = query::one(cuda, index)?;
        let mut context = ptr::null_mut();
        // SAFETY: the ordinal is the driver's, the output outlives the call; `drop` releases it.
        let status = unsafe { (cuda.primary_ctx_retain)(&raw mut context, ordinal) };
        cuda.check("cuDevicePrimaryCtxRetain", status)?;
        if context.is_null() {
            // Without a context every call would go to the one that is current.
            // SAFETY: it was just retained, according to the driver.
            let _ = unsafe { (cuda.primary_ctx_release)(ordinal) };
            return Err(nonsense("cuDevicePrimaryCtxRetain", "gives no context"));
        }
        let context = Context(context);
        let Some(context_id) = context.id(cuda) else {
            // SAFETY: as above.
            let _ = unsafe { (cuda.primary_ctx_release)(ordinal) };
            return Err(cuda.error("cuCtxGetId", ERROR_CONTEXT_IS_DESTROYED));
        };
        let (streams, events) = (Handles::new(), Handles::new());
        let (kernels, home) = (Kernels::default(), Home::here());
        Ok(Self { cuda, ordinal, context, context_id, info, streams, events, kernels, home })
    }

    /// Makes our context current until the guard is dropped, and puts the thread into relaxed
    /// capture mode. A forked child is refused before it calls the driver, whose locks may be held
    /// by threads that do not exist in the child. A context that was reset is refused too: its
    /// handles and addresses may be those of the next context by now.
    #[inline]
    pub(super) fn enter(&self) -> DeviceResult<Current<'_>> {
        check_home(&self.home, "cuCtxGetCurrent")?;
        if self.is_reset() {
            return Err(self.reset("cuCtxGetId"));
        }
        let relaxed = Relaxed::enter(self.cuda)?;
        let mut current = ptr::null_mut();
        // SAFETY: the output outlives the call.
        let status = unsafe { (self.cuda.ctx_get_current)(&raw mut current) };
        self.check("cuCtxGetCurrent", status)?;
        let pushed = current != self.context.0;
        if pushed {
            // SAFETY: the context is retained as long as `self` lives.
            let status = unsafe { (self.cuda.ctx_push_current)(self.context.0) };
            self.check("cuCtxPushCurrent", status)?;
        }
        Ok(Current { cuda: self.cuda, pushed, _relaxed: relaxed })
    }

    /// Whether its context is destroyed. The query takes 16 ns (H200, driver 580).
    #[inline]
    fn is_reset(&self) -> bool {
        self.context.id(self.cuda) != Some(self.context_id)
    }

    #[cold]
    fn reset(&self, call: &'static str) -> DeviceError {
        let detail = "the GPU was reset, for example by `cudaDeviceReset`".into();
        DeviceError { detail, ..self.cuda.error(call, ERROR_CONTEXT_IS_DESTROYED) }
    }

    /// Turns a status into a result. A reset during the call has many names, such as
    /// `CUDA_ERROR_INVALID_HANDLE` for a stream of ours.
    #[inline]
    pub(super) fn check(&self, call: &'static str, status: Status) -> DeviceResult<()> {
        self.cuda.check(call, status).map_err(|error| match self.is_reset() {
            true => self.reset(call),
            false => error,
        })
    }

    #[inline]
    pub(super) fn stream(&self, call: &'static str, stream: Stream) -> DeviceResult<InUse<'_>> {
        self.streams.enter(stream.0).ok_or_else(|| self.unknown(call, "stream"))
    }

    #[inline]
    pub(super) fn event(&self, call: &'static str, event: Event) -> DeviceResult<InUse<'_>> {
        self.events.enter(event.0).ok_or_else(|| self.unknown(call, "event"))
    }

    fn new_stream(&self, priority: c_int) -> DeviceResult<Stream> {
        let call = "cuStreamCreateWithPriority";
        let _current = self.enter()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the output outlives the call.
        let status =
            unsafe { (self.cuda.stream_create)(&raw mut raw, STREAM_NON_BLOCKING, priority) };
        self.check(call, status)?;
        if raw.is_null() {
            // A null handle is the default stream, which waits for other streams.
            return Err(nonsense(call, "gives no stream"));
        }
        self.streams.insert(raw).map(Stream).ok_or_else(|| {
            // SAFETY: it was just created, and no other code has it.
            let _ = unsafe { (self.cuda.stream_destroy)(raw) };
            self.too_many(call, "streams")
        })
    }

    /// # Safety
    /// As for [`Device::register`].
    unsafe fn register_as(&self, host: NonNull<u8>, len: usize, how: c_uint) -> DeviceResult<()> {
        let _current = self.enter()?;
        // SAFETY: the caller's promise.
        let status = unsafe { (self.cuda.mem_host_register)(host.as_ptr().cast(), len, how) };
        self.check("cuMemHostRegister", status)
    }

    /// The answer to a query whether queued work is done.
    #[inline]
    fn is_over(&self, call: &'static str, status: Status) -> DeviceResult<bool> {
        if status == ERROR_NOT_READY {
            return Ok(false);
        }
        self.check(call, status).map(|()| true)
    }

    #[cold]
    fn unknown(&self, call: &'static str, what: &str) -> DeviceError {
        let detail = format!("no {what} of this device, or one that is destroyed");
        DeviceError { detail, ..self.cuda.error(call, ERROR_INVALID_HANDLE) }
    }

    pub(super) fn too_many(&self, call: &'static str, what: &str) -> DeviceError {
        let detail = format!("too many {what} are alive on this device");
        DeviceError { detail, ..self.cuda.error(call, ERROR_INVALID_HANDLE) }
    }
}

/// Keeps our context current on this thread until dropped.
pub(super) struct Current<'a> {
    cuda: &'a CudaTable,
    pushed: bool,
    /// Dropped after `drop` has restored the context.
    _relaxed: Relaxed<'a>,
}

impl Drop for Current<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = ptr::null_mut();
            // This fails only if the driver is shutting down; then nothing remains to restore.
            // SAFETY: `enter` pushed the context on this thread, and the guard never leaves it.
            let _ = unsafe { (self.cuda.ctx_pop_current)(&raw mut popped) };
        }
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        if !self.home.is_here() {
            return; // the context is the parent's
        }
        let (streams, events) = (self.streams.drain(), self.events.drain());
        let mut kernels = std::mem::take(&mut self.kernels);
        if let Ok(_current) = self.enter() {
            // A failure here means that the driver is shutting down and has destroyed them itself.
            for event in events {
                // SAFETY: the event is ours and alive, and no call uses it: `drop` has the only
                // reference to `self`.
                let _ = unsafe { (self.cuda.event_destroy)(event) };
            }
            for stream in streams {
                // SAFETY: as above.
                let _ = unsafe { (self.cuda.stream_destroy)(stream) };
            }
            kernels.unload(self.cuda);
        }
        let _relaxed = Relaxed::enter(self.cuda);
        // SAFETY: retained once in `open_with`.
        let _ = unsafe { (self.cuda.primary_ctx_release)(self.ordinal) };
    }
}

impl crate::sealed::Sealed for CudaDevice {
    fn home(&self) -> &Home {
        &self.home
    }
}

impl Device for CudaDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn registry(&self) -> u64 {
        0 // all GPUs of the process share the driver's registry
    }

    fn memory(&self) -> DeviceResult<(u64, u64)> {
        let _current = self.enter()?;
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: the outputs outlive the call.
        let status = unsafe { (self.cuda.mem_get_info)(&raw mut free, &raw mut total) };
        self.check("cuMemGetInfo", status)?;
        Ok((free as u64, total as u64))
    }

    fn allocate(&self, len: u64) -> DeviceResult<u64> {
        let _current = self.enter()?;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let mut address = 0;
        // SAFETY: the output outlives the call.
        let status = unsafe { (self.cuda.mem_alloc)(&raw mut address, len) };
        self.check("cuMemAlloc", status)?;
        match address.checked_add(len as u64) {
            Some(_) if address != 0 => Ok(address),
            _ => Err(nonsense("cuMemAlloc", format_args!("gives {len} bytes at {address:#x}"))),
        }
    }

    unsafe fn free(&self, address: u64) -> DeviceResult<()> {
        let _current = self.enter()?;
        // SAFETY: the caller frees an address from `allocate`, once, with nothing queued on it.
        let status = unsafe { (self.cuda.mem_free)(address) };
        self.check("cuMemFree", status)
    }

    fn share(&self, address: u64) -> DeviceResult<[u8; 64]> {
        let _current = self.enter()?;
        let mut handle = SharedHandle([0; 64]);
        // SAFETY: the output outlives the call.
        let status = unsafe { (self.cuda.ipc_get_mem_handle)(&raw mut handle, address) };
        self.check("cuIpcGetMemHandle", status)?;
        Ok(handle.0)
    }

    fn map_shared(&self, handle: [u8; 64]) -> DeviceResult<(u64, u64)> {
        let (call, _current) = ("cuIpcOpenMemHandle", self.enter()?);
        let (handle, mut address) = (SharedHandle(handle), 0);
        // SAFETY: the output outlives the call; the driver checks the handle.
        let status =
            unsafe { (self.cuda.ipc_open_mem_handle)(&raw mut address, handle, LAZY_PEER_ACCESS) };
        self.check(call, status)?;
        // The driver may map a larger allocation that the memory is a part of.
        if let AddressKind::Device { base, len, .. } = self.address_kind(address)
            && let Some(left) = address.checked_sub(base).and_then(|at| len.checked_sub(at))
            && left > 0
        {
            return Ok((address, left));
        }
        // SAFETY: just mapped, with nothing queued on it.
        let _ = unsafe { self.unmap_shared(address) };
        Err(nonsense(call, format_args!("gives {address:#x}, memory of unknown length")))
    }

    unsafe fn unmap_shared(&self, address: u64) -> DeviceResult<()> {
        let _current = self.enter()?;
        // SAFETY: the caller unmaps an address from `map_shared`, with nothing queued on it.
        let status = unsafe { (self.cuda.ipc_close_mem_handle)(address) };
        self.check("cuIpcCloseMemHandle", status)
    }

    unsafe fn register(&self, host: NonNull<u8>, len: usize) -> DeviceResult<()> {
        // SAFETY: the caller's promise.
        unsafe { self.register_as(host, len, REGISTER_PORTABLE) }
    }

    unsafe fn register_read_only(&self, host: NonNull<u8>, len: usize) -> DeviceResult<()> {
        // SAFETY: the caller's promise.
        unsafe { self.register_as(host, len, REGISTER_PORTABLE | REGISTER_READ_ONLY) }
    }

    unsafe fn unregister(&self, host: NonNull<u8>) -> DeviceResult<()> {
        let _current = self.enter()?;
        // SAFETY: the caller registered it, and nothing is queued on it.
        let status = unsafe { (self.cuda.mem_host_unregister)(host.as_ptr().cast()) };
        self.check("cuMemHostUnregister", status)
    }

    fn create_stream(&self) -> DeviceResult<Stream> {
        self.new_stream(0)
    }

    fn create_urgent_stream(&self) -> DeviceResult<Stream> {
        self.new_stream(PRIORITY_MOST)
    }

    fn destroy_stream(&self, stream: Stream) -> DeviceResult<()> {
        let call = "cuStreamDestroy";
        let _current = self.enter()?;
        let raw = self.streams.remove(stream.0).ok_or_else(|| self.unknown(call, "stream"))?;
        // SAFETY: it was alive, and no call uses it any more.
        let status = unsafe { (self.cuda.stream_destroy)(raw) };
        self.check(call, status)
    }

    fn create_event(&self) -> DeviceResult<Event> {
        self.new_event(EventKind::Mark)
    }

    fn create_timer(&self) -> DeviceResult<Event> {
        self.new_event(EventKind::Timer)
    }

    fn elapsed(&self, from: Event, to: Event) -> DeviceResult<Duration> {
        self.time_between(from, to)
    }

    fn destroy_event(&self, event: Event) -> DeviceResult<()> {
        let call = "cuEventDestroy";
        let _current = self.enter()?;
        let raw = self.events.remove(event.0).ok_or_else(|| self.unknown(call, "event"))?;
        // SAFETY: it was alive, and no call uses it any more.
        let status = unsafe { (self.cuda.event_destroy)(raw) };
        self.check(call, status)
    }

    unsafe fn copy_to_device(
        &self,
        stream: Stream,
        target: u64,
        source: NonNull<u8>,
        len: usize,
    ) -> DeviceResult<()> {
        let call = "cuMemcpyHtoDAsync";
        let stream = self.stream(call, stream)?;
        let _current = self.enter()?;
        let source = source.as_ptr().cast_const().cast();
        // SAFETY: the caller keeps both ranges valid until the copy is done; the stream is alive.
        let status = unsafe { (self.cuda.memcpy_htod_async)(target, source, len, stream.raw) };
        self.check(call, status)
    }

    unsafe fn copy_to_host(
        &self,
        stream: Stream,
        target: NonNull<u8>,
        source: u64,
        len: usize,
    ) -> DeviceResult<()> {
        let call = "cuMemcpyDtoHAsync";
        let stream = self.stream(call, stream)?;
        let _current = self.enter()?;
        let target = target.as_ptr().cast();
        // SAFETY: the caller keeps both ranges valid until the copy is done; the stream is alive.
        let status = unsafe { (self.cuda.memcpy_dtoh_async)(target, source, len, stream.raw) };
        self.check(call, status)
    }

    fn reaches(&self, peer: &dyn Device, address: u64) -> bool {
        self.can_reach(peer.id(), address)
    }

    unsafe fn copy_to_peer(
        &self,
        stream: Stream,
        source: u64,
        _peer: &dyn Device,
        target: u64,
        len: usize,
    ) -> DeviceResult<()> {
        // SAFETY: the caller's promise.
        unsafe { self.copy_on(stream, source, target, len) }
    }

    fn no_gates(&self) -> Option<String> {
        if let Err(forked) = check_home(&self.home, "cuDeviceGetAttribute") {
            return Some(forked.detail);
        }
        // The GPU reads the number at its host address.
        let (mut same, attribute) = (0, SAME_ADDRESS_FOR_REGISTERED);
        // SAFETY: the output outlives the call.
        let status =
            unsafe { (self.cuda.device_get_attribute)(&raw mut same, attribute, self.ordinal) };
        let answer = self.check("cuDeviceGetAttribute", status);
        match answer {
            Ok(()) if same != 0 => None,
            Ok(()) => Some("registered host memory has another address on this GPU".into()),
            Err(error) => Some(error.to_string()),
        }
    }

    unsafe fn wait_number(
        &self,
        stream: Stream,
        number: NonNull<u32>,
        least: u32,
    ) -> DeviceResult<()> {
        let call = "cuStreamWaitValue32";
        let stream = self.stream(call, stream)?;
        let _current = self.enter()?;
        let address = number.as_ptr() as Address;
        // SAFETY: the caller keeps the number where it is; the stream is alive.
        let status =
            unsafe { (self.cuda.stream_wait_value32)(stream.raw, address, least, WAIT_VALUE_GEQ) };
        self.check(call, status)
    }

    unsafe fn write_number(
        &self,
        stream: Stream,
        number: NonNull<u32>,
        value: u32,
    ) -> DeviceResult<()> {
        let call = "cuStreamWriteValue32";
        let stream = self.stream(call, stream)?;
        let _current = self.enter()?;
        let address = number.as_ptr() as Address;
        // SAFETY: as above. Flags zero: the results of earlier work are visible before the number
        // is.
        let status = unsafe { (self.cuda.stream_write_value32)(stream.raw, address, value, 0) };
        self.check(call, status)
    }

    unsafe fn record_on_caller(&self, event: Event, stream: CallerStream) -> DeviceResult<()> {
        let call = "cuEventRecord";
        let event = self.event(call, event)?;
        let _current = self.enter()?;
        // SAFETY: the event is alive, and so is the stream, by the caller's promise.
        let status = unsafe { (self.cuda.event_record)(event.raw, raw_of(stream)) };
        self.check(call, status)
    }

    unsafe fn hold_caller(&self, stream: CallerStream, event: Event) -> DeviceResult<()> {
        let call = "cuStreamWaitEvent";
        let event = self.event(call, event)?;
        let _current = self.enter()?;
        // SAFETY: as above.
        let status = unsafe { (self.cuda.stream_wait_event)(raw_of(stream), event.raw, 0) };
        self.check(call, status)
    }

    unsafe fn is_capturing(&self, stream: CallerStream) -> DeviceResult<bool> {
        let _current = self.enter()?;
        let mut state = 0;
        // SAFETY: the stream is alive, by the caller's promise; the output outlives the call.
        let status = unsafe { (self.cuda.stream_is_capturing)(raw_of(stream), &raw mut state) };
        self.check("cuStreamIsCapturing", status)?;
        Ok(state != 0)
    }

    unsafe fn is_idle(&self, stream: CallerStream) -> DeviceResult<bool> {
        let _current = self.enter()?;
        // SAFETY: as above.
        let status = unsafe { (self.cuda.stream_query)(raw_of(stream)) };
        self.is_over("cuStreamQuery", status)
    }

    fn has_batches(&self) -> bool {
        self.cuda.memcpy_batch_async.is_some()
    }

    unsafe fn copy_batch_to_device(
        &self,
        stream: Stream,
        copies: &[DeviceCopy],
    ) -> DeviceResult<()> {
        // SAFETY: the caller's promise.
        unsafe { self.copy_batch(stream, CopyDirection::ToDevice, copies) }
    }

    fn load_gather(&self) {
        if let (Some(table), None, Ok(_current)) =
            (&self.cuda.kernels, self.no_gates(), self.enter())
        {
            self.kernels.load_gather(self.cuda, table);
        }
    }

    fn gathers(&self, copies: &[DeviceCopy]) -> bool {
        let Ok(_current) = self.enter() else { return false };
        self.kernels.can_gather() && self.reaches(copies)
    }

    unsafe fn gather(
        &self,
        stream: Stream,
        copies: &[DeviceCopy],
        signal: Signal,
    ) -> DeviceResult<()> {
        let stream = self.stream(kernels::LAUNCH, stream)?;
        let table = self.cuda.kernels.as_ref().ok_or_else(kernels::no_kernels)?;
        let _current = self.enter()?;
        // SAFETY: the caller's promise; the stream is alive, and the context is current.
        unsafe { self.kernels.queue_gather(self.cuda, table, stream.raw, copies, signal) }
    }

    unsafe fn copy_batch_to_host(&self, stream: Stream, copies: &[DeviceCopy]) -> DeviceResult<()> {
        // SAFETY: the caller's promise.
        unsafe { self.copy_batch(stream, CopyDirection::ToHost, copies) }
    }

    unsafe fn fill(&self, stream: Stream, address: u64, byte: u8, len: u64) -> DeviceResult<()> {
        let call = "cuMemsetD8Async";
        let stream = self.stream(call, stream)?;
        if len == 0 {
            return Ok(());
        }
        let _current = self.enter()?;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        // SAFETY: the caller keeps the range valid until the fill is done; the stream is alive.
        let status = unsafe { (self.cuda.memset_d8_async)(address, byte, len, stream.raw) };
        self.check(call, status)
    }

    unsafe fn xor(&self, stream: Stream, address: u64, key: u64, len: u64) -> DeviceResult<()> {
        let stream = self.stream(kernels::LAUNCH, stream)?;
        check_pairs(kernels::LAUNCH, address, len)?;
        let table = self.cuda.kernels.as_ref().ok_or_else(kernels::no_kernels)?;
        if len == 0 {
            return Ok(());
        }
        let _current = self.enter()?;
        // SAFETY: the caller's promise; the stream is alive, and the context is current.
        unsafe { self.kernels.queue_xor(self.cuda, table, stream.raw, (address, len), key) }
    }

    fn memory_rate(&self) -> Option<u64> {
        check_home(&self.home, "cuDeviceGetAttribute").ok()?;
        kernels::memory_rate(self.cuda, self.ordinal)
    }

    fn record(&self, event: Event, stream: Stream) -> DeviceResult<()> {
        let call = "cuEventRecord";
        let event = self.event(call, event)?;
        let stream = self.stream(call, stream)?;
        let _current = self.enter()?;
        // SAFETY: both are alive.
        let status = unsafe { (self.cuda.event_record)(event.raw, stream.raw) };
        self.check(call, status)
    }

    fn is_done(&self, event: Event) -> DeviceResult<bool> {
        let call = "cuEventQuery";
        let event = self.event(call, event)?;
        let _current = self.enter()?;
        // SAFETY: it is alive.
        let status = unsafe { (self.cuda.event_query)(event.raw) };
        self.is_over(call, status)
    }

    fn wait_event(&self, stream: Stream, event: Event) -> DeviceResult<()> {
        let call = "cuStreamWaitEvent";
        let stream = self.stream(call, stream)?;
        let event = self.event(call, event)?;
        let _current = self.enter()?;
        // SAFETY: both are alive; there are no flags.
        let status = unsafe { (self.cuda.stream_wait_event)(stream.raw, event.raw, 0) };
        self.check(call, status)
    }

    fn synchronize(&self, stream: Stream) -> DeviceResult<()> {
        let call = "cuStreamSynchronize";
        let stream = self.stream(call, stream)?;
        let _current = self.enter()?;
        // SAFETY: it is alive.
        let status = unsafe { (self.cuda.stream_synchronize)(stream.raw) };
        self.check(call, status)
    }

    fn within(&self, work: &mut dyn FnMut()) -> DeviceResult<()> {
        let _current = self.enter()?;
        work();
        Ok(())
    }

    fn native(&self, stream: Stream) -> Option<u64> {
        self.streams.enter(stream.0).map(|stream| stream.raw as u64)
    }

    fn address_kind(&self, address: u64) -> AddressKind {
        if !self.home.is_here() {
            return AddressKind::Unknown;
        }
        // If no context can be made current the driver still reports the kind, but not the bounds.
        let _current = self.enter();
        query::kind(self.cuda, address, self.info.id)
    }
}

impl CudaDevice {
    /// Creates an event.
    pub(super) fn new_event(&self, kind: EventKind) -> DeviceResult<Event> {
        let _current = self.enter()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the output outlives the call.
        let status = unsafe { (self.cuda.event_create)(&raw mut raw, kind as c_uint) };
        self.check("cuEventCreate", status)?;
        if raw.is_null() {
            return Err(nonsense("cuEventCreate", "gives no event"));
        }
        self.events.insert(raw).map(Event).ok_or_else(|| {
            // SAFETY: it was just created, and no other code has it.
            let _ = unsafe { (self.cuda.event_destroy)(raw) };
            self.too_many("cuEventCreate", "events")
        })
    }

    /// The time between two completed timers.
    pub(super) fn time_between(&self, from: Event, to: Event) -> DeviceResult<Duration> {
        let call = "cuEventElapsedTime";
        let (from, to) = (self.event(call, from)?, self.event(call, to)?);
        let _current = self.enter()?;
        let mut milliseconds = 0.0_f32;
        // SAFETY: both are alive, and the output outlives the call.
        let status =
            unsafe { (self.cuda.event_elapsed_time)(&raw mut milliseconds, from.raw, to.raw) };
        self.check(call, status)?;
        // Events of two streams may complete in the opposite order, which gives a negative time.
        Duration::try_from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3)
            .map_err(|_| nonsense(call, "gives no time"))
    }
}
