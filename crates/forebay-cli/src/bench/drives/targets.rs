//! Memory for the bytes of several paths, a buffer for each.

use std::sync::Arc;

use forebay::gpu::Device;
use forebay::{Buffer, Engine};

use crate::bench::data::{Expected, Pattern};
use crate::bench::memory::{buffer_holds, put_into, set_bytes};
use crate::bench::target::Target;
use crate::failure::{Failure, Result};

/// A buffer for each path. A transfer owns it while it runs.
#[derive(Debug)]
pub struct Targets {
    buffers: Vec<Option<Buffer>>,
    /// The GPU; `None` for host memory.
    pub device: Option<Arc<dyn Device>>,
}

impl Targets {
    /// Allocates the target of each path, with the sizes in `lens`.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn allocate(engine: &Engine, target: &Target, lens: &[u64]) -> Result<Self> {
        let buffer = |len: &u64| match &target.device {
            None => engine.allocate_pinned(*len),
            Some(device) => engine.allocate(device.id(), *len),
        };
        let buffers = lens.iter().map(|len| buffer(len).map(Some).map_err(Failure::from));
        let buffers = buffers.collect::<Result<Vec<_>>>().map_err(|failure| {
            failure.hint("give a smaller `--size`: each path has its own target")
        })?;
        Ok(Self { buffers, device: target.device.clone() })
    }

    /// Its name in reports: `host`, `cuda:0`, `sim:0`.
    #[must_use]
    pub fn name(&self) -> String {
        self.device.as_ref().map_or_else(|| "host".into(), |device| device.id().to_string())
    }

    /// The buffer of one path.
    ///
    /// # Errors
    /// If a failed transfer holds it.
    pub fn get(&mut self, index: usize) -> Result<&mut Buffer> {
        self.buffers[index].as_mut().ok_or_else(missing)
    }

    /// Takes a buffer for a transfer; [`Self::give_back`] returns it.
    ///
    /// # Errors
    /// If a failed transfer holds it.
    pub fn take(&mut self, index: usize) -> Result<Buffer> {
        self.buffers[index].take().ok_or_else(missing)
    }

    /// Returns a buffer.
    pub fn give_back(&mut self, index: usize, buffer: Option<Buffer>) {
        self.buffers[index] = buffer;
    }

    /// Allocates targets of other sizes, if they changed, and frees the old ones first.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn resize(&mut self, engine: &Engine, target: &Target, lens: &[u64]) -> Result<()> {
        let have = self.buffers.iter().map(|buffer| buffer.as_ref().map(Buffer::len));
        if have.eq(lens.iter().map(|len| Some(*len))) {
            return Ok(());
        }
        self.buffers.clear();
        *self = Self::allocate(engine, target, lens)?;
        Ok(())
    }

    /// Sets every byte of one path's buffer.
    ///
    /// # Errors
    /// GPU errors.
    pub fn set(&mut self, index: usize, byte: u8) -> Result<()> {
        let buffer = self.get(index)?;
        match buffer.as_mut_slice() {
            Some(bytes) => set_bytes(bytes, byte),
            None => buffer.fill(byte)?,
        }
        Ok(())
    }

    /// Fills one path's buffer with the first bytes of `pattern`.
    ///
    /// # Errors
    /// GPU errors.
    pub fn put(&mut self, index: usize, pattern: Pattern) -> Result<()> {
        let buffer = self.get(index)?;
        let len = buffer.len();
        put_into(buffer, pattern, len)
    }

    /// Whether all of one path's buffer is as expected.
    ///
    /// # Errors
    /// GPU errors.
    pub fn holds(&mut self, index: usize, expected: &Expected) -> Result<bool> {
        let buffer = self.get(index)?;
        let len = buffer.len();
        buffer_holds(buffer, expected, len)
    }
}

fn missing() -> Failure {
    Failure::new("a failed transfer still holds its memory")
}
