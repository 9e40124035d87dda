//! A layer that was taken: memory that is valid until it is released.

#![expect(unsafe_code, reason = "orders work on streams that a caller names")]

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use super::marks::Mark;
use super::shared::{Shared, device_failed};
use crate::error::{Error, Operation, Result};
use crate::gpu::{CallerStream, DeviceError};
use crate::memory::Buffer;

/// What came of asking for the next layer.
#[derive(Debug)]
pub enum Step {
    /// It was taken.
    Taken(Taken),
    /// A pass is over, or nothing more is to be taken; of an order that is told: as far as it was.
    End,
    /// Whoever was asked whether to go on waiting said no.
    Interrupted,
}

/// A layer, or a slice of one, on the GPU: released when the next one is taken, unless it is kept.
/// Dropping it releases nothing.
pub struct Taken {
    shared: Arc<Shared>,
    position: u64,
    unit: usize,
}

/// Memory of a layer: it stays allocated as long as this lives, and holds the layer until that is
/// released. On the stream for which the layer was taken its bytes are there; who uses them in any
/// other way waits for them first ([`wait_while`](Self::wait_while), [`order`](Self::order)).
#[derive(Debug)]
pub struct LayerMemory {
    buffer: Buffer,
    /// Passed when all of it has been copied.
    ready: Mark,
    _alive: Arc<()>,
}

impl LayerMemory {
    /// Copies `out.len()` bytes from `offset` into host memory, once they have come.
    ///
    /// # Errors
    /// As [`Buffer::download`].
    pub fn download(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.wait_while(&mut || true)?;
        self.buffer.download(offset, out)
    }

    /// Makes what is queued on `stream` from now on wait for the layer's bytes, as the stream does
    /// for which the layer was taken.
    ///
    /// # Safety
    /// `stream` is alive and one of the GPU.
    ///
    /// # Errors
    /// The GPU's.
    pub unsafe fn order(&self, stream: CallerStream) -> Result<()> {
        // SAFETY: the caller's promise.
        let held = unsafe { self.ready.hold(stream) };
        held.map_err(|source| self.failed(source))
    }

    /// Waits until the layer's bytes are there, as long as `go_on`, asked now and then, says so;
    /// whether they are.
    ///
    /// # Errors
    /// The GPU's.
    pub fn wait_while(&self, go_on: &mut dyn FnMut() -> bool) -> Result<bool> {
        self.ready.wait_while(go_on).map_err(|source| self.failed(source))
    }

    fn failed(&self, source: DeviceError) -> Error {
        let device = self.buffer.gpu().expect("layers lie on a GPU");
        device_failed(device, Operation::Wait, self.buffer.len(), source)
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

    /// Its position, and which unit it is.
    fn place(&self) -> (u64, usize) {
        (self.position, self.unit)
    }

    /// Where it stands in the order, from 0.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Its number in the stream's list of layers.
    #[must_use]
    pub fn layer(&self) -> usize {
        self.shared.units()[self.unit].layer
    }

    /// Which slice of the layer, from 0.
    #[must_use]
    pub fn slice(&self) -> usize {
        self.shared.units()[self.unit].slice
    }

    /// The layer's part that its first one is: of a slice that is not the first, not 0.
    #[must_use]
    pub fn first_part(&self) -> usize {
        self.shared.units()[self.unit].first_part
    }

    /// What errors and reports call it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.units()[self.unit].name
    }

    /// Where each of its parts lies in its [`memory`](Self::memory), in the layer's order.
    pub fn parts(&self) -> impl Iterator<Item = Range<u64>> {
        let unit = &self.shared.units()[self.unit];
        unit.places.iter().zip(&unit.parts).map(|(&start, part)| start..start + part.len)
    }

    /// Its memory.
    ///
    /// # Errors
    /// For a layer that was released, as [`Error::Layer`].
    pub fn memory(&self) -> Result<LayerMemory> {
        self.lend(0..self.shared.units()[self.unit].len)
    }

    /// The memory of one of its parts, by its place in the layer, or in the slice of one.
    ///
    /// # Errors
    /// For a layer that was released, and a part that there is not.
    pub fn part(&self, part: usize) -> Result<LayerMemory> {
        let range = self.parts().nth(part).ok_or_else(|| Error::BadOption {
            name: "part".into(),
            value: part.to_string(),
            expected: format!("numbers of the {} parts, from 0", self.parts().count()),
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
    /// For a layer that was released, as [`Error::Layer`].
    pub fn compute(&self) -> Result<CallerStream> {
        self.shared.check_home()?;
        let state = self.shared.lock();
        Ok(self.shared.held(&state, self.place(), Operation::Use)?.compute)
    }

    /// Keeps it beyond the next one, until it is [released](Self::release). While it is kept its
    /// buffer serves no other layer.
    ///
    /// # Errors
    /// For a layer that was released, as [`Error::Layer`].
    pub fn keep(&self) -> Result<()> {
        self.shared.check_home()?;
        self.shared.keep(self.place())
    }

    /// Has its bytes, as they are once what is queued on `compute` now is done, written to where
    /// they came from; it stays where it is until they are, also when it is released before. Taken
    /// again it is what was written. [`flush_while`](super::LayerStream::flush_while) waits for it.
    ///
    /// # Safety
    /// `compute` is alive and one of the GPU, and nothing queued on another stream, or later,
    /// changes the layer before it is written.
    ///
    /// # Errors
    /// As [`Error::Layer`]: a layer that was released, one of a file that was opened for
    /// reading, or some of whose bytes another layer has; the GPU's.
    pub unsafe fn write_back(&self, compute: CallerStream) -> Result<()> {
        self.shared.check_home()?;
        // SAFETY: the caller's promise.
        unsafe { self.shared.write_back(self.place(), compute) }
    }

    /// Releases it: what comes to its buffer waits for what is queued on `compute` now, which is
    /// [the stream for which it was taken](Self::compute) unless another one used it last.
    ///
    /// # Safety
    /// `compute` is alive and one of the GPU, and all that uses the layer is queued on it, or on
    /// what it waits for.
    ///
    /// # Errors
    /// For a layer that was released before, as [`Error::Layer`]; a stream that is none of the
    /// GPU's, and the GPU's own, and the layer stays held then.
    pub unsafe fn release(&self, compute: CallerStream) -> Result<()> {
        self.shared.check_home()?;
        // SAFETY: the caller's promise.
        unsafe { self.shared.release(self.place(), compute) }
    }
}
