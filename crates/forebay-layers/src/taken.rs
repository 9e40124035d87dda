//! A taken layer: memory that is valid until it is released.

#![expect(unsafe_code, reason = "orders work on streams that a caller names")]

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use forebay::gpu::{CallerStream, DeviceError};
use forebay::{Buffer, Error, Operation, Result};

use super::marks::Mark;
use super::shared::Shared;

/// The result of requesting the next layer.
#[derive(Debug)]
pub enum Step {
    /// The layer was taken.
    Taken(Taken),
    /// The pass is over, or there is nothing more to take. If the order is given while it runs:
    /// the end of the order so far.
    End,
    /// The callback ended the wait.
    Interrupted,
}

/// A layer, or a slice of a layer, on the GPU. Taking the next one releases it, unless it is kept.
/// Dropping this handle releases nothing.
pub struct Taken {
    shared: Arc<Shared>,
    position: u64,
    unit: usize,
}

/// Memory of a layer. It stays allocated while this lives, and holds the layer until it is
/// released. On the stream for which the layer was taken its bytes are ready. Any other user waits
/// for them first ([`wait_while`](Self::wait_while), [`order`](Self::order)).
#[derive(Debug)]
pub struct LayerMemory {
    buffer: Buffer,
    /// Signaled when all of it is copied.
    ready: Mark,
    _alive: Arc<()>,
}

impl LayerMemory {
    /// Copies `out.len()` bytes from `offset` into host memory, once they have arrived.
    ///
    /// # Errors
    /// Those of [`Buffer::download`].
    pub fn download(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.wait_while(&mut || true)?;
        self.buffer.download(offset, out)
    }

    /// Makes work queued on `stream` from now on wait for the layer's bytes. The stream for which
    /// the layer was taken waits already.
    ///
    /// # Safety
    /// `stream` is alive and belongs to the GPU.
    ///
    /// # Errors
    /// Errors of the GPU.
    pub unsafe fn order(&self, stream: CallerStream) -> Result<()> {
        // SAFETY: the caller's promise.
        let held = unsafe { self.ready.hold(stream) };
        held.map_err(|source| self.failed(source))
    }

    /// Waits until the layer's bytes have arrived, while `go_on`, called periodically, returns
    /// true. Returns whether they have.
    ///
    /// # Errors
    /// Errors of the GPU.
    pub fn wait_while(&self, go_on: &mut dyn FnMut() -> bool) -> Result<bool> {
        self.ready.wait_while(go_on).map_err(|source| self.failed(source))
    }

    fn failed(&self, source: DeviceError) -> Error {
        let device = self.buffer.gpu().expect("layers lie on a GPU");
        Error::of_device(Operation::Wait, device.id(), self.buffer.len(), source)
    }
}

impl Deref for LayerMemory {
    type Target = Buffer;

    fn deref(&self) -> &Buffer {
        &self.buffer
    }
}

impl fmt::Debug for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Taken(`{}` at {})", self.name(), self.position)
    }
}

impl Taken {
    pub(super) fn new(shared: &Arc<Shared>, position: u64, unit: usize) -> Self {
        Self { shared: Arc::clone(shared), position, unit }
    }

    /// Its position and unit.
    fn place(&self) -> (u64, usize) {
        (self.position, self.unit)
    }

    /// Position in the order, from 0.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Index in the stream's list of layers.
    pub fn layer(&self) -> usize {
        self.shared.units()[self.unit].layer
    }

    /// Index of the slice in the layer, from 0.
    pub fn slice(&self) -> usize {
        self.shared.units()[self.unit].slice
    }

    /// The layer's part number of its first part; not 0 for any slice but the first.
    pub fn first_part(&self) -> usize {
        self.shared.units()[self.unit].first_part
    }

    /// The name used in errors and reports.
    pub fn name(&self) -> &str {
        &self.shared.units()[self.unit].name
    }

    /// The ranges of the parts in its [`memory`](Self::memory), in the layer's order.
    pub fn parts(&self) -> impl Iterator<Item = Range<u64>> {
        let unit = &self.shared.units()[self.unit];
        unit.places.iter().zip(&unit.parts).map(|(&start, part)| start..start + part.len)
    }

    /// Its memory.
    ///
    /// # Errors
    /// [`Error::Layer`] if the layer was released.
    pub fn memory(&self) -> Result<LayerMemory> {
        self.lend(0..self.shared.units()[self.unit].len)
    }

    /// The memory of one of its parts, by index in the layer or in the slice.
    ///
    /// # Errors
    /// The layer was released, or there is no such part.
    pub fn part(&self, part: usize) -> Result<LayerMemory> {
        let range = self.parts().nth(part).ok_or_else(|| {
            let expected = format!("numbers of the {} parts, from 0", self.parts().count());
            Error::bad_option("part", part.to_string(), expected)
        })?;
        self.lend(range)
    }

    fn lend(&self, range: Range<u64>) -> Result<LayerMemory> {
        self.shared.check_home()?;
        let alive = Arc::new(());
        let (buffer, ready) = self.shared.lend(self.place(), range, &alive)?;
        Ok(LayerMemory { buffer, ready, _alive: alive })
    }

    /// The stream for which it was taken.
    ///
    /// # Errors
    /// [`Error::Layer`] if the layer was released.
    pub fn compute(&self) -> Result<CallerStream> {
        self.shared.check_home()?;
        let state = self.shared.lock();
        Ok(self.shared.held(&state, self.place(), Operation::Use)?.compute)
    }

    /// Keeps it beyond the next one, until it is [released](Self::release). While it is kept its
    /// buffer is not used for other layers.
    ///
    /// # Errors
    /// [`Error::Layer`] if the layer was released.
    pub fn keep(&self) -> Result<()> {
        self.shared.check_home()?;
        self.shared.keep(self.place())
    }

    /// Writes its bytes back to its files, as they are after the work queued on `compute` up to
    /// now. The buffer stays in use until they are written, even if the layer is released before.
    /// Taken again, the layer has the written bytes.
    /// [`flush_while`](super::LayerStream::flush_while) waits for the write.
    ///
    /// # Safety
    /// `compute` is alive and belongs to the GPU. Nothing queued on another stream, or later,
    /// changes the layer before it is written.
    ///
    /// # Errors
    /// [`Error::Layer`]: the layer was released, one of its files was opened for reading, or
    /// another layer shares some of its bytes. Errors of the GPU.
    pub unsafe fn write_back(&self, compute: CallerStream) -> Result<()> {
        self.shared.check_home()?;
        // SAFETY: the caller's promise.
        unsafe { self.shared.write_back(self.place(), compute) }
    }

    /// Releases it. The next contents of its buffer wait for the work queued on `compute` up to
    /// now. `compute` is [the stream for which it was taken](Self::compute), unless another one
    /// used it last.
    ///
    /// # Safety
    /// `compute` is alive and belongs to the GPU. All work that uses the layer is queued on it, or
    /// on streams that it waits for.
    ///
    /// # Errors
    /// [`Error::Layer`] if the layer was released before; a stream that does not belong to the GPU;
    /// errors of the GPU. The layer stays held after the last two.
    pub unsafe fn release(&self, compute: CallerStream) -> Result<()> {
        self.shared.check_home()?;
        // SAFETY: the caller's promise.
        unsafe { self.shared.release(self.place(), compute) }
    }
}
