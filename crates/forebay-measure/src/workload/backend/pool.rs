//! Memory and processes that one measurement leaves for the next: allocating gigabytes, or starting
//! another program, takes longer than many samples.

use std::sync::{Arc, Mutex, PoisonError};

use forebay::gpu::Device;
use forebay::{Buffer, Engine};

use super::library::kind::Kind;
use super::library::process::Mover;
use crate::failure::Result;
use crate::program::Program;

/// What is left for the next measurement.
#[derive(Debug, Default)]
pub struct Pool {
    /// How to start this program again.
    program: Option<Program>,
    buffers: Mutex<Vec<Buffer>>,
    movers: Mutex<Vec<(Kind, Mover)>>,
}

impl Pool {
    /// A pool that starts `program` for cuFile.
    #[must_use]
    pub fn new(program: &Program) -> Self {
        Self { program: Some(program.clone()), ..Self::default() }
    }

    pub(super) fn program(&self) -> Program {
        self.program.clone().unwrap_or_else(Program::of_this_process)
    }

    /// Memory of `len` bytes on `device`, or pinned host memory, with any contents.
    pub(super) fn take(
        &self,
        engine: &Engine,
        device: Option<&Arc<dyn Device>>,
        len: u64,
    ) -> Result<Buffer> {
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let id = device.map(|device| device.id());
        let is_same = |buffer: &Buffer| (buffer.device(), buffer.len()) == (id, len);
        if let Some(index) = buffers.iter().position(is_same) {
            return Ok(buffers.swap_remove(index));
        }
        // There may not be enough memory for both kinds.
        buffers.retain(|buffer| buffer.len() == len);
        drop(buffers);
        Ok(match device {
            Some(device) => engine.allocate(device.id(), len)?,
            None => engine.allocate_pinned(len)?,
        })
    }

    /// Returns memory.
    pub(super) fn give(&self, buffer: Buffer) {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
    }

    /// A process of this kind.
    pub(super) fn take_mover(&self, kind: &Kind) -> Option<Mover> {
        let mut all = self.movers.lock().unwrap_or_else(PoisonError::into_inner);
        let index = all.iter().position(|(own, _)| own == kind)?;
        Some(all.swap_remove(index).1)
    }

    /// Returns a process.
    pub(super) fn give_mover(&self, kind: Kind, mover: Mover) {
        self.movers.lock().unwrap_or_else(PoisonError::into_inner).push((kind, mover));
    }
}
