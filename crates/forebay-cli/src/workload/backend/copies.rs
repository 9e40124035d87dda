//! The usual methods: one thread calls `read` into pageable memory, or maps the file, and copies to
//! the target.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay::Buffer;
use forebay::units::MIB;

use super::blocking::Blocking;
use super::mapping::Mapping;
use super::plain::{Plain, failed, open, sync};
use super::{Call, Context, Pool, Taken};
use crate::bench::memory::{HostMemory, flush, whole};
use crate::failure::Result;
use crate::report::json::Direction;
use crate::workload::check::Expected;

/// Bytes that are copied at a time.
const STEP: u64 = 16 * MIB;

/// Copies between a file and the target.
pub(super) struct Copies {
    plain: Plain,
    path: PathBuf,
    file: File,
    request_size: u64,
    /// The target; `None` once it is back in the pool.
    memory: Option<Buffer>,
    /// Pageable memory on the way to a GPU.
    pageable: Option<HostMemory>,
    pool: Arc<Pool>,
    /// Bytes read and written.
    moved: [u64; 2],
    life: Arc<AtomicU64>,
}

impl Copies {
    /// Opens the file and allocates memory.
    ///
    /// # Errors
    /// System and GPU errors.
    pub(super) fn new(plain: Plain, context: &Context<'_>) -> Result<Self> {
        let file = open(plain, context)?;
        let memory = context.memory(0)?;
        let mut pageable = None;
        if context.device.is_some() {
            let mut memory = HostMemory::allocate(STEP.min(context.request_size))?;
            memory.bytes_mut().fill(1);
            pageable = Some(memory);
        }
        Ok(Self {
            plain,
            path: context.path.to_owned(),
            file,
            request_size: context.request_size,
            memory: Some(memory),
            pageable,
            pool: Arc::clone(context.pool),
            moved: [0; 2],
            life: Arc::clone(context.life),
        })
    }

    /// Moves one request between the file, at `offset`, and the target, at `at`.
    fn request(&mut self, direction: Direction, offset: u64, at: u64) -> Result<()> {
        match self.plain {
            Plain::Mmap => self.mapped(direction, offset, at),
            _ => self.plainly(direction, offset, at),
        }
    }

    fn mapped(&mut self, direction: Direction, offset: u64, at: u64) -> Result<()> {
        let memory = self.memory.as_mut().expect("it is given back on drop");
        let part = (offset, self.request_size);
        let mut mapping = Mapping::of(&self.file, &self.path, part, direction)?;
        for (from, len) in steps(self.request_size) {
            let bytes = whole(from)..whole(from + len);
            let to = whole(at + from)..whole(at + from + len);
            match (direction, memory.as_mut_slice()) {
                (Direction::Read, Some(host)) => {
                    host[to].copy_from_slice(&mapping.bytes()[bytes]);
                }
                (Direction::Read, None) => memory.upload(at + from, &mapping.bytes()[bytes])?,
                (Direction::Write, Some(host)) => {
                    mapping.bytes_mut()[bytes].copy_from_slice(&host[to]);
                }
                (Direction::Write, None) => {
                    memory.download(at + from, &mut mapping.bytes_mut()[bytes])?;
                }
            }
            self.life.fetch_add(1, Ordering::Relaxed);
        }
        mapping.check(&self.path, direction)
    }

    fn plainly(&mut self, direction: Direction, offset: u64, at: u64) -> Result<()> {
        let memory = self.memory.as_mut().expect("it is given back on drop");
        for (from, len) in steps(self.request_size) {
            let (offset, to) = (offset + from, at + from);
            let refused = |error: &std::io::Error| {
                failed(self.plain, &self.path, (direction, offset, whole(len)), error)
            };
            let pageable = self.pageable.as_mut().map(|bytes| &mut bytes.bytes_mut()[..whole(len)]);
            match (direction, pageable) {
                (Direction::Read, Some(bytes)) => {
                    self.file.read_exact_at(bytes, offset).map_err(|error| refused(&error))?;
                    memory.upload(to, bytes)?;
                }
                (Direction::Write, Some(bytes)) => {
                    memory.download(to, bytes)?;
                    self.file.write_all_at(bytes, offset).map_err(|error| refused(&error))?;
                }
                (_, None) => {
                    let host = memory.as_mut_slice().expect("it is the host's");
                    let bytes = &mut host[whole(to)..whole(to + len)];
                    let moved = match direction {
                        Direction::Read => self.file.read_exact_at(bytes, offset),
                        Direction::Write => self.file.write_all_at(bytes, offset),
                    };
                    moved.map_err(|error| refused(&error))?;
                }
            }
            self.life.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// The start and the length of each step.
fn steps(len: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..len).step_by(whole(STEP)).map(move |from| (from, STEP.min(len - from)))
}

impl Drop for Copies {
    fn drop(&mut self) {
        self.memory.take().into_iter().for_each(|memory| self.pool.give(memory));
    }
}

impl Blocking for Copies {
    fn call(&mut self, call: Call<'_>) -> Result<()> {
        for (index, offset) in call.offsets.iter().enumerate() {
            self.request(call.direction, *offset, index as u64 * self.request_size)?;
        }
        let bytes = self.request_size * call.offsets.len() as u64;
        self.moved[usize::from(call.direction == Direction::Write)] += bytes;
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        sync(&self.file, &self.path)
    }

    fn flush(&mut self) -> Result<()> {
        flush(&self.file, &self.path)
    }

    fn holds(&mut self, at: u64, len: u64, expected: &Expected<'_>, offset: u64) -> Result<bool> {
        expected.is_in(self.memory.as_ref().expect("it is given back on drop"), at, len, offset)
    }

    fn routes(&self) -> Vec<Taken> {
        self.plain.taken(self.moved)
    }
}
