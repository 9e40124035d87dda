//! Memory and processes that one measurement leaves for the next: allocating gigabytes, or starting
//! another program, takes longer than many samples.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay::gpu::Device;
use forebay::{Buffer, Engine};

use super::cufile::process::{Bounds, Mover};
use crate::failure::Result;
use crate::program::Program;

/// Host buffers begin at multiples of this, whatever the drive's block size.
const ALIGN: u64 = 4096;

/// The memory of one thread's calls, a buffer for each place; returned to its pool when dropped.
#[derive(Debug)]
pub(super) struct Places {
    pool: Arc<Pool>,
    /// `None` while a call owns the buffer.
    pub(super) buffers: Vec<Option<Buffer>>,
}

impl Places {
    /// The memory of a place that no call owns.
    pub(super) fn get(&mut self, place: usize) -> &mut Buffer {
        self.buffers[place].as_mut().expect("no call owns it")
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        let mut left = self.pool.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        left.extend(self.buffers.drain(..).flatten());
    }
}

/// Idle processes by the UUID of their GPU, or why none starts.
type Movers = HashMap<Option<String>, Result<Vec<Mover>, String>>;

/// What is left for the next measurement.
#[derive(Debug, Default)]
pub struct Pool {
    /// How to start this program again.
    program: Option<Program>,
    buffers: Mutex<Vec<Buffer>>,
    movers: Mutex<Movers>,
}

impl Pool {
    /// A pool that starts `program` for cuFile.
    #[must_use]
    pub fn new(program: &Program) -> Self {
        Self { program: Some(program.clone()), ..Self::default() }
    }

    /// `count` buffers of `len` bytes on `device`, or of pinned host memory, with any contents.
    ///
    /// Host memory is allocated in one piece, which is on huge pages from 2 MiB on. With 8 requests
    /// of 1 MiB in flight, the drive of a virtual machine moved 5.5 to 5.9 GB/s into these, and
    /// 0.65 to 0.87 into small pages (two cores, 2026-11-26, `dbbc5e24`).
    pub(super) fn take(
        self: &Arc<Self>,
        engine: &Engine,
        device: Option<&Arc<dyn Device>>,
        (count, len): (usize, u64),
    ) -> Result<Places> {
        let mut left = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let id = device.map(|device| device.id());
        let is_same = |buffer: &mut Buffer| (buffer.device(), buffer.len()) == (id, len);
        let found = left.extract_if(.., is_same).take(count).map(Some).collect();
        let mut places = Places { pool: Arc::clone(self), buffers: found };
        let missing = count - places.buffers.len();
        if missing > 0 {
            // There may not be enough memory for both kinds.
            left.retain(|buffer| buffer.len() == len);
        }
        drop(left);
        if let Some(device) = device {
            for _ in 0..missing {
                places.buffers.push(Some(engine.allocate(device.id(), len)?));
            }
            return Ok(places);
        }
        if missing > 0 {
            let distance = len.next_multiple_of(ALIGN);
            let mut rest = engine.allocate_pinned(distance * missing as u64)?;
            for _ in 0..missing {
                let (own, more) = rest.split_at(distance);
                places.buffers.push(Some(own.split_at(len).0));
                rest = more;
            }
        }
        Ok(places)
    }

    fn movers(&self) -> MutexGuard<'_, Movers> {
        self.movers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An idle process for the GPU with this UUID, or a new one. After a failure none is started
    /// again: that may take its whole time limit.
    ///
    /// # Errors
    /// None starts.
    pub(super) fn mover(&self, gpu: Option<&str>) -> Result<Mover, String> {
        let gpu = gpu.map(str::to_owned);
        match self.movers().get_mut(&gpu) {
            Some(Err(why)) => return Err(why.clone()),
            Some(Ok(idle)) if !idle.is_empty() => return Ok(idle.swap_remove(0)),
            _ => {}
        }
        let program = self.program.clone().unwrap_or_else(Program::of_this_process);
        let started = Mover::start(&program, gpu.clone(), Bounds::default());
        started.inspect_err(|why| _ = self.movers().insert(gpu, Err(why.clone())))
    }

    /// Returns a process.
    pub(super) fn give_mover(&self, mover: Mover) {
        let mut movers = self.movers();
        let own = movers.entry(mover.gpu().map(str::to_owned)).or_insert_with(|| Ok(Vec::new()));
        if let Ok(idle) = own {
            idle.push(mover);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_buffers_of_the_host_share_one_piece_and_are_used_again() {
        let engine = Engine::new(forebay::Options::default()).unwrap();
        let pool = Arc::new(Pool::default());
        let take = |count| pool.take(&engine, None, (count, 5000)).unwrap();
        let of = |places: &Places| {
            let buffers = places.buffers.iter().flatten();
            buffers.map(|buffer| (buffer.address(), buffer.len())).collect::<Vec<_>>()
        };
        let first = of(&take(3));
        let start = first[0].0;
        assert_eq!(first, [0, 8192, 16384].map(|at| (start + at, 5000)));
        let second = of(&take(4));
        assert!(second.len() == 4 && first.iter().all(|buffer| second.contains(buffer)));
    }
}
