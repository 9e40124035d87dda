//! The usual methods: one thread calls `read` into pageable memory, or maps the file, and copies to
//! the target.

use std::time::Instant;

use forebay::Buffer;
use forebay::units::MIB;

use super::mapping::Mapping;
use super::plain::{Opened, Plain};
use super::pool::Places;
use super::{Backend, Call, Context};
use crate::failure::Result;
use crate::memory::whole;
use crate::results::Direction;

/// Bytes that are copied at a time.
const STEP: u64 = 16 * MIB;

/// Copies between a file and the target.
pub(super) struct Copies {
    file: Opened,
    /// The target.
    memory: Places,
    /// Pageable memory on the way to a GPU.
    pageable: Option<Vec<u8>>,
}

impl Copies {
    /// Opens the file and allocates memory.
    ///
    /// # Errors
    /// System and GPU errors.
    pub(super) fn new(plain: Plain, context: &Context<'_>) -> Result<Self> {
        let file = Opened::new(plain, context)?;
        let memory = context.places(context.device)?;
        let pageable = context.device.map(|_| vec![1; whole(STEP.min(context.request_size))]);
        Ok(Self { file, memory, pageable })
    }

    /// Moves a request between the file, at `offset`, and the target, at `at`, by a mapping.
    fn mapped(&mut self, direction: Direction, offset: u64, at: u64) -> Result<()> {
        let Opened { file, path, request_size, .. } = &self.file;
        let memory = self.memory.get(0);
        let mut mapping = Mapping::of(file, path, (offset, *request_size), direction)?;
        for (from, len) in steps(*request_size) {
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
            self.file.goes_on();
        }
        mapping.check(path, direction)
    }

    /// Like `mapped`, by plain calls.
    fn plainly(&mut self, direction: Direction, offset: u64, at: u64) -> Result<()> {
        let file = &self.file;
        let memory = self.memory.get(0);
        for (from, len) in steps(file.request_size) {
            let (offset, to) = (offset + from, at + from);
            let pageable = self.pageable.as_mut().map(|bytes| &mut bytes[..whole(len)]);
            match (direction, pageable) {
                (Direction::Read, Some(bytes)) => {
                    file.read(bytes, offset)?;
                    memory.upload(to, bytes)?;
                }
                (Direction::Write, Some(bytes)) => {
                    memory.download(to, bytes)?;
                    file.write(bytes, offset)?;
                }
                (_, None) => {
                    let host = memory.as_mut_slice().expect("it is the host's");
                    let bytes = &mut host[whole(to)..whole(to + len)];
                    match direction {
                        Direction::Read => file.read(bytes, offset)?,
                        Direction::Write => file.write(bytes, offset)?,
                    }
                }
            }
        }
        Ok(())
    }
}

/// The start and the length of each step.
fn steps(len: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..len).step_by(whole(STEP)).map(move |from| (from, STEP.min(len - from)))
}

impl Backend for Copies {
    fn start(&mut self, _place: usize, call: Call<'_>) -> Result<Option<Instant>> {
        for (index, &offset) in call.offsets.iter().enumerate() {
            let at = index as u64 * self.file.request_size;
            match self.file.plain {
                Plain::Mmap => self.mapped(call.direction, offset, at)?,
                _ => self.plainly(call.direction, offset, at)?,
            }
        }
        Ok(Some(Instant::now()))
    }

    fn memory(&mut self, place: usize) -> Option<&mut Buffer> {
        self.memory.buffers[place].as_mut()
    }

    fn opened(&self) -> Option<&Opened> {
        Some(&self.file)
    }
}
