//! A layer on its way from files to the GPU: block by block through slots, or through the pinned
//! memory that keeps it.

#![expect(unsafe_code, reason = "queues copies to the stream's own memory")]

use super::marks::Mark;
use super::ring::{Ring, SLOTS};
use super::shared::{Job, Shared, Way};
use super::store::{Store, host};
use crate::engine::{BlockRead, Piece};
use crate::error::Result;
use crate::gpu::{DeviceCopy, DeviceResult};
use crate::plan::Packed;

/// See the module's own text.
pub(super) struct Reading {
    pub(super) job: Job,
    blocks: BlockRead,
    /// Where each block comes to.
    place: Place,
    /// Blocks that it has, that may be read, and that have landed.
    count: u64,
    opened: u64,
    landed: u64,
    /// Put before its first copy.
    begun: Option<Mark>,
    /// Whether it reads no more.
    failed: bool,
}

/// Where bytes come to on the host.
enum Place {
    /// Slots, from this number on.
    Slots(u64),
    /// Pinned memory that is kept, at these addresses.
    Home(Vec<u64>),
}

/// What came of opening a reading further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opened {
    /// All of it is open, or no more of it will be.
    Whole,
    /// More of it once some of it has landed.
    Landing,
    /// More of it once a slot is free.
    Slot,
}

impl Reading {
    /// Starts reading what a job asks for; nothing comes before it is [opened](Self::open).
    ///
    /// # Errors
    /// What is known to be wrong with it at once.
    pub(super) fn start(shared: &Shared, store: &Store, ring: &Ring, job: Job) -> Result<Self> {
        let unit = &shared.units[job.load.unit];
        let count = unit.packing.blocks();
        let home = store.home(job.load.unit).filter(|_| job.way == Way::Memory);
        let memory = home.as_ref().and_then(|home| home.memory());
        let (target, place) = match memory {
            Some((memory, starts)) => {
                let first = memory.address();
                (memory.share(0, memory.len()), Place::Home(added(starts, first)))
            }
            None => {
                let slots = ring.memory().expect("what passes through slots has some");
                (slots.share(0, slots.len()), Place::Slots(ring.next()))
            }
        };
        let start = |block: u64| match &place {
            Place::Slots(first) => ring.place(first + block),
            Place::Home(starts) => starts[index(block)] - target.address(),
        };
        let (mut pieces, mut counts) = (Vec::new(), Vec::new());
        for block in 0..count {
            let (parts, start) = (unit.packing.parts_of(block), start(block));
            let of = |part: &Packed| {
                Piece::new(&unit.files[part.file], part.offset, part.len, start + part.at)
            };
            pieces.extend(parts.iter().map(of));
            counts.push(parts.len());
        }
        let blocks = shared.engine.prepare_read_blocks(&pieces, &counts, target)?;
        let (opened, landed, begun, failed) = (0, 0, None, false);
        Ok(Self { job, blocks, place, count, opened, landed, begun, failed })
    }

    /// Lets as much of it be read as there is memory for.
    ///
    /// # Errors
    /// The GPU's.
    pub(super) fn open(&mut self, ring: &mut Ring) -> DeviceResult<Opened> {
        let before = self.opened;
        let mut found = Opened::Whole;
        while self.opened < self.count && !self.failed {
            let is_home = matches!(self.place, Place::Home(_));
            if is_home && self.opened - self.landed >= SLOTS {
                found = Opened::Landing;
            } else if !is_home && !ring.take()? {
                found = Opened::Slot;
            }
            if found != Opened::Whole {
                break;
            }
            self.opened += 1;
        }
        if self.opened > before {
            self.blocks.open(index(self.opened));
        }
        Ok(found)
    }

    /// Whether blocks of it are being read.
    pub(super) fn is_flying(&self) -> bool {
        self.opened > self.landed
    }

    /// Copies what has come; how many blocks that were.
    ///
    /// # Errors
    /// The GPU's.
    pub(super) fn land(
        &mut self,
        shared: &Shared,
        store: &Store,
        ring: &mut Ring,
    ) -> DeviceResult<usize> {
        let arrived = self.blocks.take_arrived();
        if !self.failed && self.blocks.has_failed() {
            self.failed = true;
            self.blocks.cancel();
        }
        for &block in &arrived {
            let block = block as u64;
            let address = match &self.place {
                Place::Slots(first) => {
                    let slots = ring.memory().expect("it passes through them");
                    slots.address() + ring.place(first + block)
                }
                Place::Home(starts) => starts[index(block)],
            };
            let mark = (!self.failed).then(|| self.copy(shared, store, block, address));
            let mark = mark.transpose()?;
            if let Place::Slots(first) = self.place {
                ring.give(first + block, mark);
            }
            self.landed += 1;
        }
        Ok(arrived.len())
    }

    /// Queues the copies of a block, behind what its buffer waits for.
    fn copy(
        &mut self,
        shared: &Shared,
        store: &Store,
        block: u64,
        address: u64,
    ) -> DeviceResult<Mark> {
        self.begin_copies(shared)?;
        let (unit, lane) = (&shared.units[self.job.load.unit], shared.file_lane);
        let to = store.buffers[self.job.load.buffer].address();
        let of = |part: &Packed| DeviceCopy {
            host: host(address + part.at),
            device: to + part.address,
            len: usize::try_from(part.len).expect("a slot fits memory"),
        };
        let copies: Vec<DeviceCopy> = unit.packing.parts_of(block).iter().map(of).collect();
        // SAFETY: the slot, or the pinned memory, is not written to before the mark behind the
        // copies is passed; the buffer is the stream's and as large as the largest unit.
        unsafe { shared.device.copy_batch_to_device(lane, &copies) }?;
        shared.marks.put(lane)
    }

    /// Has the lane wait for what the buffer waits for, once.
    fn begin_copies(&mut self, shared: &Shared) -> DeviceResult<()> {
        if self.begun.is_none() {
            shared.wait_for(shared.file_lane, &self.job.frees)?;
            self.begun = Some(shared.marks.put(shared.file_lane)?);
        }
        Ok(())
    }

    /// Whether all of it has landed, or what went wrong; `None`: it is on its way.
    pub(super) fn end(&self) -> Option<Result<()>> {
        if !self.failed {
            return (self.landed == self.count).then_some(Ok(()));
        }
        self.blocks.is_done().then(|| Err(self.blocks.failure()))
    }

    /// Tells what came of it, which has ended so; slots that nothing came to are free.
    ///
    /// # Errors
    /// The GPU's. What went wrong with the files is told to whoever takes the layer.
    pub(super) fn finish(
        mut self,
        shared: &Shared,
        ring: &mut Ring,
        ended: Result<()>,
    ) -> DeviceResult<()> {
        let lane = shared.file_lane;
        if let Err(error) = ended {
            if let Place::Slots(first) = self.place {
                ring.give_all(first..first + self.opened);
            }
            shared.gave_up(self.job.load, shared.marks.put(lane)?, error);
            return Ok(());
        }
        self.begin_copies(shared)?;
        let ready = shared.marks.put(lane)?;
        let begun = self.begun.take().expect("put just before");
        shared.arrived(&self.job, begun, ready);
        Ok(())
    }
}

fn added(starts: &[u64], first: u64) -> Vec<u64> {
    starts.iter().map(|start| first + start).collect()
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("far fewer than memory has bytes")
}
