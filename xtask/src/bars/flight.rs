//! Many requests of one size in flight at once, into reused memory: like `fio` with a depth.

use std::collections::VecDeque;

use forebay::units::KIB;
use forebay::{Buffer, Engine, File, RequestOptions, Transfer};

use crate::bar::Stop;
use crate::data;
use crate::sample::{Sample, timed};

/// Bytes of a small read.
pub(crate) const SMALL_LEN: u64 = 4 * KIB;
/// Small reads asked for: enough that the drive has its depth while the caller is being woken.
const SMALL_COUNT: u64 = 128;
/// Small reads that are awaited together: waking the caller for each takes as long as the read (8
/// µs on an idle virtual machine), and `fio` wakes no thread.
const SMALL_GROUP: usize = 64;

/// Reads one file in requests of one size.
#[derive(Debug)]
pub(crate) struct Flight<'a> {
    file: &'a File,
    piece: u64,
    /// Requests that are awaited and renewed together.
    group: usize,
    /// Memory without a request, with the offset of the bytes in it.
    idle: Vec<(Option<u64>, Buffer)>,
}

/// Requests that are waited for together, each with its offset.
type Group = Vec<(u64, Transfer)>;

impl<'a> Flight<'a> {
    /// Keeps `count` requests of `piece` bytes in flight, in groups of `group`.
    pub(crate) fn new(
        engine: &Engine,
        file: &'a File,
        piece: u64,
        count: u64,
        group: usize,
    ) -> Result<Self, Stop> {
        let mut idle = Vec::new();
        let mut rest = engine.allocate_pinned(count * piece)?;
        while rest.len() > piece {
            let (buffer, more) = rest.split_at(piece);
            idle.push((None, buffer));
            rest = more;
        }
        idle.push((None, rest));
        Ok(Self { file, piece, group, idle })
    }

    /// For many random reads of 4 KiB.
    pub(crate) fn small(engine: &Engine, file: &'a File) -> Result<Self, Stop> {
        Self::new(engine, file, SMALL_LEN, SMALL_COUNT, SMALL_GROUP)
    }

    /// Times `count` reads, each at the offset that `place` gives for its number, and compares the
    /// last ones.
    pub(crate) fn timed(&mut self, count: u64, place: impl Fn(u64) -> u64) -> Result<Sample, Stop> {
        let sample = timed(count * self.piece, || self.read((0..count).map(place)))?;
        for (offset, buffer) in &self.idle {
            let Some(offset) = *offset else { continue };
            data::check(buffer.as_slice().unwrap_or_default(), offset)?;
        }
        Ok(sample)
    }

    /// While one group is awaited and renewed, the others keep the drive busy.
    fn read(&mut self, mut offsets: impl Iterator<Item = u64>) -> Result<(), Stop> {
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
        landed: Vec<(Option<u64>, Buffer)>,
        offsets: &mut impl Iterator<Item = u64>,
    ) -> Result<Group, Stop> {
        let mut group = Vec::with_capacity(landed.len());
        for (before, buffer) in landed {
            match offsets.next() {
                Some(offset) => {
                    let options = RequestOptions::default();
                    group.push((offset, self.file.start_read(offset, buffer, &options)?));
                }
                None => self.idle.push((before, buffer)),
            }
        }
        Ok(group)
    }

    /// Waits for the oldest request first: when it has ended most of the rest have too, and this
    /// thread is woken once for all of them.
    fn finish(&self, group: Group) -> Result<Vec<(Option<u64>, Buffer)>, Stop> {
        let mut landed = Vec::with_capacity(group.len());
        for (offset, transfer) in group.into_iter().rev() {
            let (outcome, buffer) = transfer.wait();
            let bytes = outcome?.bytes;
            if bytes != self.piece {
                return Err(Stop::Fail(format!("{bytes} bytes at {offset}")));
            }
            let buffer = buffer.ok_or_else(|| Stop::Fail("a transfer kept its buffer".into()))?;
            landed.push((Some(offset), buffer));
        }
        Ok(landed)
    }
}
