//! Many requests of one size in flight at once, into reused memory: like `fio` with a depth.

use std::collections::VecDeque;

use forebay::{Buffer, Engine, File, RequestOptions, Transfer};

use crate::bar::Stop;
use crate::data;

/// Reads one file in requests of one size.
#[derive(Debug)]
pub(crate) struct Flight<'a> {
    file: &'a File,
    piece: u64,
    /// Requests that are awaited and renewed together.
    group: usize,
    idle: Vec<Landed>,
}

/// A request's memory, and the offset of the bytes in it.
#[derive(Debug)]
struct Landed {
    offset: Option<u64>,
    buffer: Buffer,
}

/// Requests that are waited for together, each with its offset.
type Group = Vec<(u64, Transfer)>;

impl<'a> Flight<'a> {
    /// Keeps `asked` requests of `piece` bytes in flight, in groups of `group`.
    pub(crate) fn new(
        engine: &Engine,
        file: &'a File,
        piece: u64,
        asked: u64,
        group: usize,
    ) -> Result<Self, Stop> {
        let mut idle = Vec::new();
        let mut rest = engine.allocate_pinned(asked * piece)?;
        while rest.len() > piece {
            let (buffer, more) = rest.split_at(piece);
            idle.push(Landed { offset: None, buffer });
            rest = more;
        }
        idle.push(Landed { offset: None, buffer: rest });
        Ok(Self { file, piece, group, idle })
    }

    /// Makes `count` reads, each at the offset that `place` gives for its number. While one group
    /// is awaited and renewed, the others keep the drive busy.
    pub(crate) fn read(&mut self, count: u64, place: impl Fn(u64) -> u64) -> Result<(), Stop> {
        let mut offsets = (0..count).map(place);
        let mut idle = std::mem::take(&mut self.idle);
        let mut groups = VecDeque::new();
        while !idle.is_empty() {
            let rest = idle.split_off(self.group.min(idle.len()));
            groups.push_back(self.start(idle, &mut offsets)?);
            idle = rest;
        }
        while let Some(group) = groups.pop_front() {
            let landed = self.finish(group)?;
            let next = self.start(landed, &mut offsets)?;
            if !next.is_empty() {
                groups.push_back(next);
            }
        }
        Ok(())
    }

    /// Starts a read into each buffer while there are offsets; the other buffers are idle.
    fn start(
        &mut self,
        landed: Vec<Landed>,
        offsets: &mut impl Iterator<Item = u64>,
    ) -> Result<Group, Stop> {
        let mut group = Vec::with_capacity(landed.len());
        for one in landed {
            match offsets.next() {
                Some(offset) => {
                    let options = RequestOptions::default();
                    group.push((offset, self.file.start_read(offset, one.buffer, &options)?));
                }
                None => self.idle.push(one),
            }
        }
        Ok(group)
    }

    /// Waits for the oldest request first: when it has ended most of the rest have too, and this
    /// thread is woken once for all of them.
    fn finish(&self, group: Group) -> Result<Vec<Landed>, Stop> {
        let mut landed = Vec::with_capacity(group.len());
        for (offset, transfer) in group.into_iter().rev() {
            let (outcome, buffer) = transfer.wait();
            let bytes = outcome?.bytes;
            if bytes != self.piece {
                return Err(Stop::Fail(format!("{bytes} bytes at {offset}")));
            }
            let buffer = buffer.ok_or_else(|| Stop::Fail("a transfer kept its buffer".into()))?;
            landed.push(Landed { offset: Some(offset), buffer });
        }
        Ok(landed)
    }

    /// Compares the buffers after the last reads.
    pub(crate) fn check(&self) -> Result<(), Stop> {
        for Landed { offset, buffer } in &self.idle {
            let Some(offset) = *offset else { continue };
            data::check(buffer.as_slice().unwrap_or_default(), offset)
                .map_err(|at| Stop::Fail(format!("wrong bytes in a buffer at {at}")))?;
        }
        Ok(())
    }
}
