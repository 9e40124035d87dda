//! Memory that bytes move to and from: our own buffers on a GPU or pinned on the host, borrowed GPU
//! memory, and memory that a caller lends to a blocking call.
//!
//! A [`Buffer`] is the only safe way to hand memory to a non-blocking call: the transfer owns it
//! until neither the kernel nor the GPU can touch it any more.

#![expect(unsafe_code, reason = "maps memory, hands out slices of it, and frees that of GPUs")]

mod account;
mod courier;
mod host;
#[cfg(test)]
mod node_tests;
mod room;

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use forebay_base::lock::Lock;
use forebay_base::process::Home;
use forebay_base::user_copy::{copy_from_user, copy_to_user};
use rustix::io::Errno;

use crate::error::{Error, Operation, Place, Result, SystemError};
use crate::gpu::{Device, DeviceCopy, DeviceError, DeviceId, DeviceResult, Stream, is_quiet};
use crate::plan::Direction;

pub(crate) use account::{Account, Purpose};
pub(crate) use courier::{Courier, Couriers};
#[cfg(test)]
pub(crate) use host::nodes_of;
pub(crate) use host::{HostMemory, Node};
pub(crate) use room::Room;

/// An arena's memory blocks. The arena and every ring share ownership, so that no block is unmapped
/// before the last ring is dropped. Blocks are only added.
#[derive(Debug, Default)]
pub(crate) struct Parts(Lock<Vec<HostMemory>>);

impl Parts {
    pub(crate) fn add(&self, block: HostMemory) {
        self.0.lock().push(block);
    }

    /// The address and length of each block.
    #[cfg(test)]
    pub(crate) fn places(&self) -> Vec<(u64, u64)> {
        let blocks = self.0.lock();
        blocks.iter().map(|block| (block.address(), block.len() as u64)).collect()
    }
}

/// Memory on a GPU, or on the host and pinned for every GPU of its engine.
///
/// Dropping it frees the memory; while a transfer owns it, the memory is freed after the transfer.
/// Borrowed GPU memory ([`Engine::borrow_device_memory`]) is not freed.
///
/// A forked process does not inherit host memory (`MADV_DONTFORK`). The kernel or a GPU may be
/// writing to its pages, and if they were shared between two processes, the owner might see other
/// pages than they do. So in a child its calls fail with [`Error::Forked`], and dropping it does
/// nothing.
///
/// [`Engine::borrow_device_memory`]: crate::Engine::borrow_device_memory
///
/// ```
/// # fn main() -> forebay::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("weights.bin");
/// # std::fs::write(&path, vec![7; 100_000]).unwrap();
/// let engine = forebay::Engine::new(forebay::Options::default())?;
/// let gpu = engine.device(&"sim".parse()?)?.expect("a GPU").id();
/// let mut buffer = engine.allocate(gpu, 8192)?;
/// buffer.fill(1)?;
/// buffer.upload(4096, &[2; 4096])?;
/// let (first, second) = buffer.split_at(4096);
/// let mut bytes = [0; 4096];
/// second.download(0, &mut bytes)?;
/// assert!(bytes == [2; 4096] && second.address() == first.address() + first.len());
/// assert!(!first.is_empty() && first.device() == Some(gpu) && first.as_slice().is_none());
///
/// let mut pinned = engine.allocate_pinned(4096)?;
/// pinned.as_mut_slice().expect("host memory").copy_from_slice(&bytes);
/// # Ok(())
/// # }
/// ```
pub struct Buffer {
    pub(crate) allocation: Arc<Allocation>,
    pub(crate) start: u64,
    pub(crate) len: u64,
}

impl Buffer {
    pub(crate) fn host(memory: HostMemory) -> Self {
        let len = memory.len() as u64;
        Self::of(Memory::Host(memory), len)
    }

    /// Borrowed memory of this process; the owner keeps it as for [`borrowed`](Self::borrowed).
    pub(crate) fn lent(address: u64, len: u64) -> Self {
        Self::of(Memory::Lent { address }, len)
    }

    fn of(memory: Memory, len: u64) -> Self {
        Self { allocation: Arc::new(Allocation::new(memory)), start: 0, len }
    }

    /// Memory of a GPU; `couriers` make copies that the caller waits for.
    pub(crate) fn on_device(
        couriers: &Arc<Couriers>,
        device: Arc<dyn Device>,
        len: u64,
    ) -> Result<Self> {
        let failed = |source| Error::of_device(Operation::Allocate, device.id(), len, source);
        let address = device.allocate(len.max(1)).map_err(failed)?;
        Ok(Self::of(Memory::device(couriers, device, address, Origin::Allocated), len))
    }

    /// Memory of a GPU that another process shares.
    pub(crate) fn mapped(
        couriers: &Arc<Couriers>,
        device: Arc<dyn Device>,
        handle: [u8; 64],
    ) -> Result<Self> {
        let failed = |source| Error::of_device(Operation::Allocate, device.id(), 0, source);
        let (address, len) = device.map_shared(handle).map_err(failed)?;
        Ok(Self::of(Memory::device(couriers, device, address, Origin::Mapped), len))
    }

    /// Borrowed GPU memory; its owner keeps it until this buffer and everything split from it are
    /// dropped.
    pub(crate) fn borrowed(
        couriers: &Arc<Couriers>,
        device: Arc<dyn Device>,
        address: u64,
        len: u64,
    ) -> Self {
        Self::of(Memory::device(couriers, device, address, Origin::Borrowed), len)
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the length is zero.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The GPU that holds the memory; `None` for host memory.
    #[must_use]
    pub fn device(&self) -> Option<DeviceId> {
        self.gpu().map(|device| device.id())
    }

    /// Address of its first byte, on the host or on its GPU.
    #[must_use]
    pub fn address(&self) -> u64 {
        match &self.allocation.memory {
            Memory::Host(memory) => memory.address() + self.start,
            Memory::Lent { address } | Memory::Device { address, .. } => address + self.start,
        }
    }

    /// Splits it at `mid` into two buffers that share one allocation and can be transferred
    /// separately.
    ///
    /// # Panics
    /// If `mid` is greater than the length.
    #[must_use]
    pub fn split_at(self, mid: u64) -> (Self, Self) {
        assert!(mid <= self.len, "split at {mid} of a buffer of {} bytes", self.len);
        let right = Self {
            allocation: Arc::clone(&self.allocation),
            start: self.start + mid,
            len: self.len - mid,
        };
        (Self { len: mid, ..self }, right)
    }

    /// A part that shares its memory.
    ///
    /// # Safety
    /// Of the buffers that cover a byte, only one is accessed as a slice, and only while no
    /// transfer uses the byte.
    ///
    /// # Panics
    /// If the part reaches beyond the buffer.
    #[must_use]
    pub unsafe fn share(&self, start: u64, len: u64) -> Self {
        assert!(start + len <= self.len, "{start}+{len} of a buffer of {} bytes", self.len);
        Self { allocation: Arc::clone(&self.allocation), start: self.start + start, len }
    }

    /// The bytes, if they are in our own host memory. `None` in a forked child, which does not
    /// inherit them, and while an abandoned call still moves bytes to or from the memory
    /// ([`Request::while_`](crate::Request::while_)).
    #[must_use]
    pub fn as_slice(&self) -> Option<&[u8]> {
        let (pointer, len) = self.host_part()?;
        // SAFETY: the range is mapped and initialised (anonymous memory is zero). Only this buffer
        // covers it, and no transfer runs on it, since transfers own theirs.
        Some(unsafe { std::slice::from_raw_parts(pointer, len) })
    }

    /// Like [`as_slice`](Self::as_slice), but mutable.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        let (pointer, len) = self.host_part()?;
        // SAFETY: as in `as_slice`, and `&mut self` makes this borrow the only one.
        Some(unsafe { std::slice::from_raw_parts_mut(pointer, len) })
    }

    /// The first byte, if it is in host memory, owned or borrowed.
    fn host_pointer(&self) -> Option<*mut u8> {
        match &self.allocation.memory {
            Memory::Host(_) | Memory::Lent { .. } => Some(self.address() as *mut u8),
            Memory::Device { .. } => None,
        }
    }

    fn host_part(&self) -> Option<(*mut u8, usize)> {
        match &self.allocation.memory {
            Memory::Host(memory) if memory.home().is_here() && !self.allocation.is_detached() => {
                let start = usize::try_from(self.start).expect("inside one mapping");
                let len = usize::try_from(self.len).expect("inside one mapping");
                Some((memory.pointer().as_ptr().wrapping_add(start), len))
            }
            Memory::Host(_) | Memory::Lent { .. } | Memory::Device { .. } => None,
        }
    }

    /// Fills the buffer with `byte` and waits until that is done.
    ///
    /// # Errors
    /// The GPU's error, or [`Error::HostCopy`] if borrowed host memory is not accessible.
    pub fn fill(&mut self, byte: u8) -> Result<()> {
        let (address, len) = (self.address(), self.len);
        if self.gpu().is_none() {
            let len = usize::try_from(len).expect("inside one mapping");
            let part = vec![byte; len.min(1 << 20)];
            let mut parts = (0..len).step_by(1 << 20);
            return parts
                .try_for_each(|at| self.upload(at as u64, &part[..part.len().min(len - at)]));
        }
        self.with_courier(|courier, _| {
            self.await_gpu(courier, |device, stream| {
                // SAFETY: the range is ours, and the stream is synchronised before this returns.
                unsafe { device.fill(stream, address, byte, len) }
            })
        })
    }

    /// Copies `out.len()` bytes from `offset` into host memory and waits until that is done.
    ///
    /// # Errors
    /// The GPU's error, [`Error::BadOption`] for a range outside the buffer, or [`Error::HostCopy`]
    /// if `out` or borrowed host memory is not accessible.
    pub fn download(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.check_usable(|| None)?;
        let from = self.checked(offset, out.len())?;
        if let Some(start) = self.host_pointer() {
            // SAFETY: as in `fill`; the range is checked, and `out` is borrowed.
            return unsafe { copy_from_user(start.add(from), out.as_mut_ptr(), out.len()) }
                .map_err(not_copied(out.len()));
        }
        self.with_courier(|courier, couriers| {
            let (mut address, mut left) = (self.address() + offset, out);
            while !left.is_empty() {
                let (pinned, len) = courier.pinned(couriers, left.len())?;
                let (out, rest) = left.split_at_mut(len);
                self.await_gpu(courier, |device, stream| {
                    // SAFETY: both ranges are checked and ours until the synchronisation that
                    // follows.
                    unsafe { device.copy_to_host(stream, pinned, address, len) }
                })?;
                // SAFETY: the pinned memory holds `len` bytes, and `out` is borrowed.
                unsafe { copy_to_user(pinned.as_ptr(), out.as_mut_ptr(), len) }
                    .map_err(not_copied(len))?;
                (address, left) = (address + len as u64, rest);
            }
            Ok(())
        })
    }

    /// Copies `bytes` from host memory to `offset` and waits until that is done.
    ///
    /// # Errors
    /// The GPU's error, [`Error::BadOption`] for a range outside the buffer, or [`Error::HostCopy`]
    /// if `bytes` or borrowed host memory is not accessible.
    pub fn upload(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check_usable(|| None)?;
        let to = self.checked(offset, bytes.len())?;
        if let Some(start) = self.host_pointer() {
            // SAFETY: as in `download`, with source and target exchanged.
            return unsafe { copy_to_user(bytes.as_ptr(), start.add(to), bytes.len()) }
                .map_err(not_copied(bytes.len()));
        }
        self.with_courier(|courier, couriers| {
            let (mut address, mut left) = (self.address() + offset, bytes);
            while !left.is_empty() {
                let (pinned, len) = courier.pinned(couriers, left.len())?;
                let (bytes, rest) = left.split_at(len);
                // SAFETY: as in `download`, with source and target exchanged.
                unsafe { copy_from_user(bytes.as_ptr(), pinned.as_ptr(), len) }
                    .map_err(not_copied(len))?;
                self.await_gpu(courier, |device, stream| {
                    // SAFETY: as in `download`, with source and target exchanged.
                    unsafe { device.copy_to_device(stream, address, pinned, len) }
                })?;
                (address, left) = (address + len as u64, rest);
            }
            Ok(())
        })
    }

    /// Queues copies between pieces on one GPU and this memory, which is pinned for it. After an
    /// error some of them may run.
    fn queue(
        &self,
        group: &[(u64, Self)],
        direction: Direction,
    ) -> Result<(Courier, DeviceResult<()>)> {
        let mut copies = Vec::with_capacity(group.len());
        for (at, piece) in group {
            piece.check_usable(|| None)?;
            let len = usize::try_from(piece.len).unwrap_or(usize::MAX);
            let start = self.checked(*at, len)? as u64;
            let host = NonNull::new((self.address() + start) as *mut u8).expect("mapped");
            copies.push(DeviceCopy { host, device: piece.address(), len });
        }
        let first = &group[0].1;
        let Memory::Device { device, couriers, .. } = &first.allocation.memory else {
            unreachable!("only called for memory on a GPU")
        };
        let courier =
            Courier::take(couriers, device).map_err(|source| first.device_error(source))?;
        // SAFETY: all ranges are checked and belong to the exchange, which waits for the stream.
        let queued = unsafe {
            match direction {
                Direction::Read => device.copy_batch_to_device(courier.stream, &copies),
                Direction::Write => device.copy_batch_to_host(courier.stream, &copies),
            }
        };
        Ok((courier, queued))
    }

    fn checked(&self, offset: u64, len: usize) -> Result<usize> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.len => Ok(usize::try_from(offset).expect("inside a buffer")),
            _ => {
                let expected = format!("a range inside the buffer's {} bytes", self.len);
                Err(Error::bad_option("offset", format!("{offset}+{len}"), expected))
            }
        }
    }

    /// Runs `copy` with a stream and pinned memory of this memory's GPU.
    fn with_courier(&self, copy: impl FnOnce(&mut Courier, &Couriers) -> Result<()>) -> Result<()> {
        self.check_usable(|| None)?;
        let Memory::Device { device, couriers, .. } = &self.allocation.memory else {
            unreachable!("only called for memory on a GPU")
        };
        let mut courier =
            Courier::take(couriers, device).map_err(|source| self.device_error(source))?;
        let copied = copy(&mut courier, couriers);
        match &copied {
            Ok(()) => drop(courier.keep(couriers)),
            Err(Error::CopyNotOver { .. }) => mem::forget(courier), // the GPU may still touch it
            Err(_) => drop(courier),
        }
        copied
    }

    /// Runs `queue` on the courier's stream and waits for it.
    fn await_gpu(
        &self,
        courier: &Courier,
        queue: impl FnOnce(&dyn Device, Stream) -> DeviceResult<()>,
    ) -> Result<()> {
        let device = self.gpu().expect("only called for memory on a GPU");
        let queued = queue(&**device, courier.stream);
        let done = queued.and_then(|()| device.synchronize(courier.stream));
        if let Err(error) = &done
            && !is_quiet(&**device, courier.stream)
        {
            // The device may still touch the memory, for an unknown time.
            Keep(Arc::clone(&self.allocation)).lose(error);
        }
        done.map_err(|source| self.device_error(source))
    }

    pub(crate) fn device_error(&self, source: DeviceError) -> Error {
        let device = self.gpu().expect("only called for memory on a GPU").id();
        let failed = || Error::of_device(Operation::Copy, device, self.len, source);
        self.check_usable(|| None).err().unwrap_or_else(failed)
    }

    /// Refuses memory that a copy or an abandoned call may still touch, and any memory in a forked
    /// child. `about` gives the operation and the file range for the error.
    pub(crate) fn check_usable(
        &self,
        about: impl FnOnce() -> Option<(Operation, Place)>,
    ) -> Result<()> {
        let place = |about: Option<(Operation, Place)>| about.map(|(_, place)| place);
        if let Some(home) = self.allocation.home()
            && !home.is_here()
        {
            return Err(Error::forked(home, Operation::Copy, place(about())));
        }
        match &self.allocation.memory {
            Memory::Device { device, lost, .. } if let Some(source) = lost.get() => {
                let (device, len, source) = (device.id(), self.len, source.clone());
                Err(Error::CopyNotOver { device, len, place: place(about()).map(Box::new), source })
            }
            _ if self.allocation.is_detached() => {
                let reason = "an abandoned call still uses the buffer: wait until its drive or \
                              server responds"
                    .to_owned();
                Err(match about() {
                    Some((operation, place)) => Error::BadRequest { operation, place, reason },
                    None => Error::BadState { reason },
                })
            }
            _ => Ok(()),
        }
    }
}

/// Copies between the engine's own host memory and other memory, some of which a GPU may still be
/// making. Dropping it waits for them.
#[derive(Debug)]
pub struct Exchange {
    pub(crate) own: Option<Buffer>,
    pub(crate) pieces: Vec<(u64, Buffer)>,
    /// Streams with copies, with the index of a piece on the same GPU.
    pub(crate) running: Vec<(Courier, usize)>,
    pub(crate) failed: Option<Error>,
}

impl Exchange {
    /// Waits for the copies, and returns the engine's memory.
    ///
    /// # Errors
    /// As for [`Buffer::upload`], and [`Error::BadOption`] if a piece is longer than the memory
    /// from its offset on, or if that is not the engine's own on the host. After
    /// [`Error::CopyNotOver`] of a write a GPU may write to the memory at any time: forget it.
    pub fn wait(mut self) -> (Result<()>, Buffer) {
        let ended = self.end();
        let outcome = ended.and(self.failed.take().map_or(Ok(()), Err));
        (outcome, self.own.take().expect("until it is waited for"))
    }

    pub(crate) fn start(&mut self, direction: Direction) -> Result<()> {
        let mut first = 0;
        while first < self.pieces.len() {
            self.end()?; // the copies of the GPU before
            let own = self.own.as_mut().expect("until it is waited for");
            own.check_usable(|| None)?;
            let group = &mut self.pieces[first..];
            let device = group[0].1.device();
            let count = group.iter().take_while(|(_, piece)| piece.device() == device).count();
            let group = &mut group[..count];
            let is_pinned = |device| match &own.allocation.memory {
                Memory::Host(memory) => memory.is_registered(device),
                _ => false,
            };
            if group[0].1.gpu().is_some_and(|device| is_pinned(&**device)) {
                let (courier, queued) = own.queue(group, direction)?;
                self.running.push((courier, first));
                queued.map_err(|source| group[0].1.device_error(source))?;
            } else {
                for (at, piece) in group {
                    let len = usize::try_from(piece.len).unwrap_or(usize::MAX);
                    let start = own.checked(*at, len)?;
                    if own.host_part().is_none() {
                        let expected = "host memory of an engine";
                        return Err(Error::bad_option("memory", format!("{own:?}"), expected));
                    }
                    let own = own.as_mut_slice().expect("just checked");
                    match direction {
                        Direction::Read => piece.upload(0, &own[start..start + len]),
                        Direction::Write => piece.download(0, &mut own[start..start + len]),
                    }?;
                }
            }
            first += count;
        }
        Ok(())
    }

    /// Waits for the copies on GPUs.
    fn end(&mut self) -> Result<()> {
        let mut outcome = Ok(());
        for (courier, piece) in mem::take(&mut self.running) {
            let piece = &self.pieces[piece].1;
            let ended = piece.await_gpu(&courier, |_, _| Ok(()));
            if let Err(Error::CopyNotOver { source, .. }) = &ended {
                self.pieces.iter().for_each(|(_, piece)| Keep::of(piece).lose(source));
                mem::forget(self.own.as_ref().map(Keep::of)); // never unmapped
                mem::forget(courier);
            } else if let Memory::Device { couriers, .. } = &piece.allocation.memory {
                drop(courier.keep(couriers));
            }
            outcome = outcome.and(ended);
        }
        outcome
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let ended = self.end();
        drop(ended);
    }
}

/// The error for a failed copy of `len` bytes of host memory.
fn not_copied(len: usize) -> impl Fn(Errno) -> Error {
    move |errno| Error::HostCopy { len: len as u64, source: SystemError::of(errno) }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.device() {
            Some(device) => write!(f, "Buffer({} bytes on {device})", self.len),
            None => write!(f, "Buffer({} bytes on the host)", self.len),
        }
    }
}

/// Memory that a blocking request borrows.
#[derive(Debug)]
pub struct Lent<'a> {
    /// `None`: bytes of the host.
    buffer: Option<&'a Buffer>,
    /// In the buffer, or the addresses of the bytes.
    range: Range<u64>,
    borrow: PhantomData<&'a mut [u8]>,
}

impl<'a> Lent<'a> {
    fn bytes(first: *const u8, len: usize) -> Self {
        let address = first as u64;
        Self { buffer: None, range: address..address + len as u64, borrow: PhantomData }
    }

    fn part(buffer: &'a Buffer, range: Range<u64>) -> Self {
        Self { buffer: Some(buffer), range, borrow: PhantomData }
    }

    pub(crate) fn whole(buffer: &'a Buffer) -> Self {
        Self::part(buffer, 0..buffer.len())
    }

    pub(crate) fn len(&self) -> u64 {
        self.range.end.saturating_sub(self.range.start)
    }

    pub(crate) fn buffer(&self) -> Option<&Buffer> {
        self.buffer
    }

    /// Its addresses; an error names the range that is not inside the buffer.
    pub(crate) fn span(&self) -> Result<Span, String> {
        let (Range { start, end }, len) = (self.range.clone(), self.len());
        let Some(buffer) = self.buffer else {
            return Ok(Span::kept_elsewhere(start, len, None));
        };
        if start > end || end > buffer.len() {
            let len = buffer.len();
            return Err(format!("the range {start}..{end} lies outside the buffer of {len} bytes"));
        }
        let keep = Some(Keep(Arc::clone(&buffer.allocation)));
        Ok(Span { address: buffer.address() + start, len, gpu: None, keep })
    }
}

/// Cannot be named by other crates, which therefore neither implement [`ReadInto`] nor turn memory
/// that is lent to a write into a target.
#[derive(Debug)]
pub struct Sealed(pub(crate) ());

/// Memory that a read fills. Bytes of the host (`&mut [u8]`, `&mut Vec<u8>`), `&mut Buffer` and a
/// part of it (`(&mut buffer, 0..4096)`) are borrowed until the read returns, as [`Lent`]; a
/// [`Buffer`] belongs to the transfer that the read starts.
pub trait ReadInto<Memory> {
    #[doc(hidden)]
    fn memory(self, _: Sealed) -> Memory;
}

impl<'a, T: AsMut<[u8]> + ?Sized> ReadInto<Lent<'a>> for &'a mut T {
    fn memory(self, _: Sealed) -> Lent<'a> {
        let bytes = self.as_mut();
        Lent::bytes(bytes.as_mut_ptr(), bytes.len())
    }
}

impl<'a> ReadInto<Lent<'a>> for &'a mut Buffer {
    fn memory(self, _: Sealed) -> Lent<'a> {
        Lent::whole(self)
    }
}

impl<'a> ReadInto<Lent<'a>> for (&'a mut Buffer, Range<u64>) {
    fn memory(self, _: Sealed) -> Lent<'a> {
        Lent::part(self.0, self.1)
    }
}

impl ReadInto<Self> for Buffer {
    fn memory(self, _: Sealed) -> Self {
        self
    }
}

/// Memory whose bytes are written: as for [`ReadInto`], but borrowed for reading (`&[u8]`,
/// `&Buffer`).
pub trait WriteFrom<Memory> {
    #[doc(hidden)]
    fn memory(self, _: Sealed) -> Memory;
}

impl<'a, T: AsRef<[u8]> + ?Sized> WriteFrom<Lent<'a>> for &'a T {
    fn memory(self, _: Sealed) -> Lent<'a> {
        let bytes = self.as_ref();
        Lent::bytes(bytes.as_ptr(), bytes.len())
    }
}

impl<'a> WriteFrom<Lent<'a>> for &'a Buffer {
    fn memory(self, _: Sealed) -> Lent<'a> {
        Lent::whole(self)
    }
}

impl<'a> WriteFrom<Lent<'a>> for (&'a Buffer, Range<u64>) {
    fn memory(self, _: Sealed) -> Lent<'a> {
        Lent::part(self.0, self.1)
    }
}

impl WriteFrom<Self> for Buffer {
    fn memory(self, _: Sealed) -> Self {
        self
    }
}

/// Memory of a request that starts a transfer, which owns it. Only such a request can be ordered on
/// a stream ([`Request::on`](crate::Request::on)):
///
/// ```compile_fail,E0599
/// # unsafe fn run(file: &forebay::File, bytes: &mut [u8], stream: forebay::gpu::CallerStream) {
/// let _ = unsafe { file.read(bytes).on(stream) }.run();
/// # }
/// ```
pub trait ToStart {}

impl ToStart for Buffer {}
impl ToStart for Vec<Buffer> {}

/// Memory of a request that waits for its transfer. Only such a wait can be stopped by a callback
/// ([`Request::while_`](crate::Request::while_)):
///
/// ```compile_fail,E0599
/// # fn start(file: &forebay::File, buffer: forebay::Buffer) {
/// let _ = file.read(buffer).while_(&mut || true).start();
/// # }
/// ```
pub trait ToRun {}

impl ToRun for Lent<'_> {}
impl ToRun for Vec<Lent<'_>> {}
impl ToRun for &mut [Buffer] {}
impl ToRun for Option<DeviceId> {}

/// An address range that a transfer moves bytes to or from, and a share that keeps it alive.
#[derive(Debug)]
pub(crate) struct Span {
    /// First address, on the host or on its GPU.
    pub(crate) address: u64,
    pub(crate) len: u64,
    /// The GPU, if there is no share.
    gpu: Option<Arc<dyn Device>>,
    /// The share in the allocation, if there is one.
    pub(crate) keep: Option<Keep>,
}

impl Span {
    /// A range of memory that something else keeps alive.
    pub(crate) fn kept_elsewhere(address: u64, len: u64, gpu: Option<Arc<dyn Device>>) -> Self {
        Self { address, len, gpu, keep: None }
    }

    /// The GPU that the memory is on. Threads that read at the same time share its count of
    /// references, so it is cloned only where it must outlive the call.
    pub(crate) fn gpu(&self) -> Option<&Arc<dyn Device>> {
        self.gpu.as_ref().or_else(|| self.keep.as_ref()?.0.gpu())
    }
}

/// The memory behind a buffer; freed with the last buffer split from it.
pub(crate) struct Allocation {
    pub(crate) memory: Memory,
    /// Values that keep borrowed memory alive; dropped with the last share.
    pub(crate) owners: Vec<Box<dyn Any + Send + Sync>>,
    /// Number of abandoned calls that still move bytes to or from it.
    adrift: AtomicUsize,
}

pub(crate) enum Memory {
    Host(HostMemory),
    /// Borrowed memory of this process.
    Lent {
        address: u64,
    },
    Device {
        device: Arc<dyn Device>,
        couriers: Arc<Couriers>,
        address: u64,
        origin: Origin,
        /// Error of a failed copy that may still touch the memory at any time.
        lost: OnceLock<DeviceError>,
    },
}

/// Where memory of a GPU is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Allocated,
    Mapped,
    Borrowed,
}

impl Memory {
    fn device(
        couriers: &Arc<Couriers>,
        device: Arc<dyn Device>,
        address: u64,
        origin: Origin,
    ) -> Self {
        Self::Device {
            device,
            couriers: Arc::clone(couriers),
            address,
            origin,
            lost: OnceLock::new(),
        }
    }
}

impl Allocation {
    fn new(memory: Memory) -> Self {
        Self { memory, owners: Vec::new(), adrift: AtomicUsize::new(0) }
    }

    pub(crate) fn gpu(&self) -> Option<&Arc<dyn Device>> {
        match &self.memory {
            Memory::Host(_) | Memory::Lent { .. } => None,
            Memory::Device { device, .. } => Some(device),
        }
    }

    /// The process that may use the memory; `None` for borrowed host memory, which a child
    /// inherits.
    fn home(&self) -> Option<&Home> {
        match &self.memory {
            Memory::Host(memory) => Some(memory.home()),
            Memory::Lent { .. } => None,
            Memory::Device { device, .. } => Some(device.home()),
        }
    }

    /// Whether an abandoned call may still touch it.
    fn is_detached(&self) -> bool {
        self.adrift.load(Ordering::Acquire) > 0
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let Memory::Device { device, address, origin, lost, .. } = &self.memory else { return };
        if !device.home().is_here() {
            return;
        }
        if lost.get().is_some() {
            // A copy may still touch it at any time, so its owner must not free it either.
            return std::mem::forget(std::mem::take(&mut self.owners));
        }
        // SAFETY: the address came from this device and is returned only here. A transfer keeps its
        // buffer, and so this allocation, until all copies are done, and records a copy that may
        // not be.
        let returned = unsafe {
            match origin {
                Origin::Allocated => device.free(*address),
                Origin::Mapped => device.unmap_shared(*address),
                Origin::Borrowed => Ok(()),
            }
        };
        // If the driver refuses, the memory is leaked; nothing else can be done.
        drop(returned);
    }
}

/// A transfer's share in an allocation.
#[derive(Clone)]
pub(crate) struct Keep(Arc<Allocation>);

/// An allocation without other shares. Freeing it may take long.
pub(crate) struct Last(#[expect(dead_code, reason = "held for its drop")] Allocation);

impl Keep {
    /// A share in the memory of a buffer.
    pub(crate) fn of(buffer: &Buffer) -> Self {
        Self(Arc::clone(&buffer.allocation))
    }

    /// Gives the memory up for good: the copy that failed with `source` may touch it at any time.
    pub(crate) fn lose(&self, source: &DeviceError) {
        if let Memory::Device { lost, .. } = &self.0.memory {
            lost.get_or_init(|| source.clone());
        }
    }

    /// Whether we allocated it on a GPU.
    pub(crate) fn is_ours(&self) -> bool {
        matches!(self.0.memory, Memory::Device { origin: Origin::Allocated, .. })
    }

    /// Whether it is GPU memory.
    pub(crate) fn is_on_gpu(&self) -> bool {
        matches!(self.0.memory, Memory::Device { .. })
    }

    /// Marks the memory unusable for other calls, since its user has abandoned a call on it.
    pub(crate) fn set_detached(&self) {
        self.0.adrift.fetch_add(1, Ordering::Relaxed);
    }

    /// Undoes [`set_detached`](Self::set_detached): the call is over.
    pub(crate) fn land(&self) {
        self.0.adrift.fetch_sub(1, Ordering::Release);
    }

    /// Drops the share; returns the allocation if it was the last one.
    pub(crate) fn dispose(self) -> Option<Last> {
        Arc::into_inner(self.0).map(Last)
    }
}

impl fmt::Debug for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keep")
    }
}

impl fmt::Debug for Last {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Last")
    }
}
