//! A layer being loaded from files to GPUs: block by block through slots, or through the pinned
//! memory that keeps it.

#![expect(unsafe_code, reason = "queues copies to the streams' own memory")]

use std::sync::Arc;

use forebay::internal::BlockRead;
use forebay::internal::{DeviceCopy, DeviceResult};
use forebay::internal::{Packed, Packing};
use forebay::{Engine, Error, File, Piece, Result, RouteShare};
use forebay_base::units::ByteRange;

use super::group::{Group, Job};
use super::homes::{PinnedUnit, host};
use super::layer::{Unit, is_resident};
use super::marks::Mark;
use super::ring::{Ring, SLOTS, Size, Slot, index, room_for, small_len};
use super::shared::{From, Loaded, Shared};
use super::store::Store;

/// A layer during its read.
pub(super) struct Reading {
    pub(super) unit: usize,
    blocks: BlockRead,
    /// Its blocks, where they are not those of the unit.
    packing: Option<Packing>,
    /// Whether it is read from a drive.
    is_cold: bool,
    /// Where the blocks are read to on the host.
    place: Place,
    /// The buffers that it is copied to.
    targets: Vec<Target>,
    /// Number of its blocks, of those that may be read, and of those that have been read.
    count: u64,
    opened: u64,
    landed: u64,
    /// Blocks that have been read and not copied yet.
    held: Vec<u64>,
    /// How often blocks arrived, and how often the link was behind then.
    looks: u32,
    behind: u32,
    /// Whether reading failed.
    failed: bool,
}

/// A stream's buffer that a layer is copied to.
pub(super) struct Target {
    pub(super) job: Job,
    pub(super) shared: Arc<Shared>,
    pub(super) store: Arc<Store>,
    /// Recorded before its first copy.
    begun: Option<Mark>,
}

/// Where bytes are read to on the host.
enum Place {
    Slots(Slots),
    /// Pinned memory that keeps the layer, at these addresses.
    PinnedUnit(Vec<u64>),
}

/// The slots of a layer.
struct Slots {
    /// Set if it uses small slots.
    small: Option<Small>,
    /// Maximum number in use.
    room: usize,
    /// The slots of its blocks that are open and not copied.
    of: Vec<Option<Slot>>,
}

/// State of a layer that is read through small slots.
#[derive(Debug)]
struct Small {
    /// The drives' queues.
    drives: Vec<usize>,
    /// Average bytes of data in a slot: scattered parts do not fill it.
    each: u64,
}

/// The result of opening a reading further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opened {
    /// All of it is open, or no more of it will be.
    Whole,
    /// More can be opened once blocks of it, or of earlier readings, have arrived.
    Landing,
    /// More can be opened once a slot is free, or a second stream requested it. Only polling
    /// finds out.
    Look,
}

impl Target {
    pub(super) fn new(job: Job, shared: &Arc<Shared>, store: &Arc<Store>) -> Self {
        Self { job, shared: Arc::clone(shared), store: Arc::clone(store), begun: None }
    }

    /// Makes the lane wait for the marks of the buffer, once.
    fn begin(&mut self) -> DeviceResult<()> {
        if self.begun.is_none() {
            let shared = &self.shared;
            shared.wait_for(shared.file_lane, &self.job.frees)?;
            self.begun = Some(shared.marks.put(shared.file_lane)?);
        }
        Ok(())
    }

    /// Queues copies of parts of blocks, with the addresses of their blocks, after the marks of the
    /// buffer.
    fn copy(&mut self, parts: &[(u64, Packed)]) -> DeviceResult<Mark> {
        self.begin()?;
        let (shared, lane) = (&self.shared, self.shared.file_lane);
        let to = self.store.buffers[self.job.load.buffer].address();
        let of = |&(block, part): &(u64, Packed)| DeviceCopy {
            host: host(block + part.at),
            device: to + part.address,
            len: usize::try_from(part.len).expect("a slot fits memory"),
        };
        let copies: Vec<DeviceCopy> = parts.iter().map(of).collect();
        // SAFETY: the slots, or the pinned memory, are not written to before the mark after the
        // copies is signaled. The buffer belongs to the stream and is as large as the largest unit.
        unsafe { shared.device.copy_batch_to_device(lane, &copies) }?;
        shared.marks.put(lane)
    }

    /// Reports that all of it is copied, with the routes by which it came.
    pub(super) fn arrive(mut self, routes: Vec<RouteShare>) -> DeviceResult<()> {
        self.begin()?;
        let ready = self.shared.marks.put(self.shared.file_lane)?;
        let begun = self.begun.take().expect("put just before");
        let (from, pages, counted) = (From::Files, None, false);
        let loaded = Loaded { begun, ready, from, pages, routes, counted };
        self.shared.arrived(&mut self.shared.lock(), self.job.load, loaded);
        Ok(())
    }

    /// Reports that it could not be loaded.
    ///
    /// # Errors
    /// Errors of the GPU.
    pub(super) fn give_up(self, error: Error) -> Result<()> {
        let mark = self.shared.marks.put(self.shared.file_lane);
        let mark = mark.map_err(|source| self.shared.failed(0, source))?;
        self.shared.gave_up(self.job.load, mark, error);
        Ok(())
    }

    /// Turns a GPU error into ours for this layer.
    fn failed(&self, source: forebay::gpu::DeviceError) -> Error {
        self.shared.failed(self.shared.units()[self.job.load.unit].len, source)
    }
}

impl Reading {
    /// Starts to read a unit to slots, or to its host copy. No I/O begins before it is
    /// [opened](Self::open).
    ///
    /// # Errors
    /// Errors that can be detected immediately.
    pub(super) fn start(
        group: &Group,
        ring: &mut Ring,
        (number, home): (usize, Option<&PinnedUnit>),
    ) -> Result<Self> {
        let unit = &group.units[number];
        let is_cold = home.is_none() && is_cold(unit);
        let small = if is_cold { small(&group.engine, ring, unit) } else { None };
        let (again, small) = small.unzip();
        let packing = again.as_ref().unwrap_or(&unit.packing);
        let count = packing.blocks();
        let (target, place) = match home.and_then(PinnedUnit::memory) {
            Some((memory, starts)) => {
                let first = memory.address();
                // SAFETY: the stream accesses no host memory as a slice.
                let target = unsafe { memory.share(0, memory.len()) };
                (target, Place::PinnedUnit(starts.iter().map(|start| first + start).collect()))
            }
            None => {
                let slots = ring.memory().expect("what passes through slots has some");
                let of = (0..count).map(|_| None).collect();
                // SAFETY: as above.
                let target = unsafe { slots.share(0, slots.len()) };
                (target, Place::Slots(Slots { small, room: index(SLOTS), of }))
            }
        };
        let start = |block: u64| match &place {
            Place::Slots(_) => 0, // known when it is opened
            Place::PinnedUnit(starts) => starts[index(block)] - target.address(),
        };
        let (mut pieces, mut counts) = (Vec::new(), Vec::new());
        for block in 0..count {
            let (parts, start) = (packing.parts_of(block), start(block));
            let of = |part: &Packed| {
                Piece::new(&unit.files[part.file], part.offset, part.len, start + part.at)
            };
            pieces.extend(parts.iter().map(of));
            counts.push(parts.len());
        }
        let blocks = BlockRead::prepare(&group.engine, &pieces, &counts, target)?;
        Ok(Self {
            unit: number,
            blocks,
            packing: again,
            is_cold,
            place,
            targets: Vec::new(),
            count,
            opened: 0,
            landed: 0,
            held: Vec::new(),
            looks: 0,
            behind: 0,
            failed: false,
        })
    }

    /// Sets the buffers that it is copied to.
    pub(super) fn to(self, targets: Vec<Target>) -> Self {
        Self { targets, ..self }
    }

    /// Whether it is read into the host copy of its unit.
    pub(super) fn is_kept(&self) -> bool {
        matches!(self.place, Place::PinnedUnit(_))
    }

    /// Allows as much of it to be read as there is memory for.
    ///
    /// # Errors
    /// Errors of a GPU.
    pub(super) fn open(&mut self, group: &Group, ring: &mut Ring) -> Result<Opened> {
        let before = self.opened;
        if self.opened == self.count || self.failed {
            return Ok(Opened::Whole);
        }
        if let Place::Slots(Slots { small: Some(small), room, .. }) = &mut self.place {
            // Its demand for slots changes with the drive's queue depth.
            *room = small.room(&group.engine);
        }
        let mut found = Opened::Whole;
        while self.opened < self.count {
            found = match &mut self.place {
                Place::PinnedUnit(_) if self.opened - self.landed >= SLOTS => Opened::Landing,
                Place::PinnedUnit(_) => Opened::Whole,
                Place::Slots(slots) => match ring.take(slots.size(), slots.room)? {
                    Some(slot) => {
                        self.blocks.shift(index(self.opened), ring.place(&slot));
                        slots.of[index(self.opened)] = Some(slot);
                        Opened::Whole
                    }
                    None if ring.is_copied() => Opened::Look,
                    None => Opened::Landing,
                },
            };
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

    /// Removes a stream that is closing from its targets.
    pub(super) fn leave(&mut self, seat: usize) {
        self.targets.retain(|target| target.job.seat != seat);
        if self.targets.is_empty() {
            self.fail();
        }
    }

    fn fail(&mut self) {
        self.failed = true;
        self.blocks.cancel();
    }

    /// Copies blocks that have arrived; returns how many there were. While two copies are queued on
    /// the link, blocks wait for their successors until a quarter of the slots is full, because
    /// a copy costs a fixed time.
    ///
    /// # Errors
    /// Errors of a GPU.
    pub(super) fn land(&mut self, group: &Group, ring: &mut Ring) -> Result<usize> {
        let arrived = self.blocks.take_arrived();
        if !self.failed && self.blocks.has_failed() {
            self.fail();
        }
        self.landed += arrived.len() as u64;
        self.held.extend(arrived.iter().map(|&block| block as u64));
        if self.held.is_empty() {
            return Ok(0);
        }
        let is_ahead = ring.is_ahead()?;
        self.looks += u32::from(!arrived.is_empty());
        self.behind += u32::from(!arrived.is_empty() && is_ahead);
        let is_few = self.held.len() < self.slots() / 4;
        if is_ahead && is_few && self.is_flying() && !self.failed {
            return Ok(arrived.len());
        }
        let blocks = std::mem::take(&mut self.held);
        let marks = if self.failed { Vec::new() } else { self.copy(group, ring, &blocks)? };
        let begun = self.targets.iter().filter_map(|target| target.begun.clone());
        ring.queued(&marks, begun.collect());
        if let Place::Slots(slots) = &mut self.place {
            let marks = marks.into();
            let mut slot = |&block: &u64| slots.of[index(block)].take().expect("it was open");
            blocks.iter().for_each(|block| ring.give(slot(block), &marks));
        }
        Ok(blocks.len())
    }

    /// How many blocks may be in progress.
    fn slots(&self) -> usize {
        match &self.place {
            Place::Slots(slots) => slots.room,
            Place::PinnedUnit(_) => index(SLOTS),
        }
    }

    /// Whether blocks have arrived that are not copied yet.
    pub(super) fn is_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// Queues the copies of blocks that have arrived, to all targets.
    fn copy(&mut self, group: &Group, ring: &Ring, blocks: &[u64]) -> Result<Vec<Mark>> {
        let packing = self.packing.as_ref().unwrap_or(&group.units[self.unit].packing);
        let address = |block: u64| match &self.place {
            Place::Slots(slots) => {
                let memory = ring.memory().expect("it passes through them");
                let slot = slots.of[index(block)].as_ref().expect("it was open");
                memory.address() + ring.place(slot)
            }
            Place::PinnedUnit(starts) => starts[index(block)],
        };
        let of = |&block: &u64| {
            let at = address(block);
            packing.parts_of(block).iter().map(move |&part| (at, part))
        };
        let parts: Vec<(u64, Packed)> = blocks.iter().flat_map(of).collect();
        let targets = self.targets.iter_mut();
        let marks = targets.map(|target| {
            target.copy(&parts).map_err(|source| target.failed(source)) //
        });
        marks.collect()
    }

    /// The result once all of it arrived or failed; `None` while it is in progress.
    pub(super) fn end(&self) -> Option<Result<()>> {
        if !self.failed {
            return (self.landed == self.count && self.held.is_empty()).then_some(Ok(()));
        }
        self.blocks.is_done().then(|| Err(self.blocks.failure()))
    }

    /// Reports the result of an ended reading and frees unused slots.
    ///
    /// # Errors
    /// Errors of a GPU. Errors of the files are reported to the caller that takes the layer.
    pub(super) fn finish(self, group: &Group, ring: &mut Ring, ended: Result<()>) -> Result<()> {
        if let Err(error) = ended {
            if let Place::Slots(slots) = self.place {
                slots.of.into_iter().flatten().for_each(|slot| ring.give_back(slot));
            }
            return self.targets.into_iter().try_for_each(|target| target.give_up(error.clone()));
        }
        if self.is_kept() {
            group.homes().fill(self.unit);
        } else if self.is_cold {
            ring.set_behind(self.behind * 2 > self.looks);
        }
        let routes = self.blocks.routes();
        for target in self.targets {
            let shared = Arc::clone(&target.shared);
            let arrived = target.arrive(routes.clone());
            arrived.map_err(|source| shared.failed(group.units[self.unit].len, source))?;
        }
        self.blocks.dispose();
        Ok(())
    }
}

impl Slots {
    fn size(&self) -> Size {
        if self.small.is_some() { Size::Small } else { Size::Whole }
    }
}

impl Small {
    /// How many slots the drives need.
    fn room(&self, engine: &Engine) -> usize {
        room_for(engine.in_flight(&self.drives), self.each)
    }
}

/// Whether a unit must be read from a drive.
fn is_cold(unit: &Unit) -> bool {
    unit.places_to_look().iter().all(|part| {
        let range = ByteRange::at(part.offset, part.len);
        !is_resident(&unit.files[part.file], range)
    })
}

/// The blocks of a unit read from drives, if small slots are useful. If the drives need all
/// of the memory, whole slots are as good.
fn small(engine: &Engine, ring: &Ring, unit: &Unit) -> Option<(Packing, Small)> {
    if !ring.has_small() {
        return None;
    }
    let drives: Option<Vec<usize>> = unit.files.iter().map(File::o_direct_queue).collect();
    let mut drives = drives?;
    drives.sort_unstable();
    drives.dedup();
    let packing = unit.packing.again(small_len(engine));
    let each = packing.bytes().checked_div(packing.blocks())?;
    let small = Small { drives, each };
    ring.exceeds(small.room(engine)).then_some((packing, small))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Layer;
    use crate::layer::cut;
    use forebay::{Engine, Options};

    #[test]
    fn bytes_from_a_drive_take_small_slots() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("layer");
        std::fs::write(&path, vec![7; 9 << 20]).unwrap();
        let mut options = Options::default();
        options.depth = Some(8);
        let engine = Engine::new(options).unwrap();
        let file = engine.open(&path).unwrap();
        let layer = Layer::named("layer").with(&file, 0, 9 << 20);
        let (_, units) = cut(&engine, &[layer], (None, u64::MAX)).unwrap();
        let mut ring = Ring::new(&engine, true).unwrap();
        let takes_small = |ring: &Ring| {
            is_cold(&units[0]).then(|| small(&engine, ring, &units[0])).flatten() //
        };
        let mut buffer = vec![0; 9 << 20];
        let mut is_cold = false;
        for _ in 0..100 {
            let left = file.evict().unwrap();
            is_cold = matches!(left, forebay::Residency::Known { resident: 0, .. });
            if is_cold {
                break;
            }
        }
        if !is_cold {
            return println!("skipped: small slots: the file stays in memory");
        }
        // Also if nothing was read from it before.
        let Some((packing, small)) = takes_small(&ring) else {
            return assert!(file.no_direct_io().is_some(), "a drive is read directly");
        };
        assert_eq!((packing.blocks(), small.each, small.room(&engine)), (9, 1 << 20, 8 + 4));
        ring.set_behind(true);
        assert!(takes_small(&ring).is_none(), "the link wants large copies");
        ring.set_behind(false);
        file.read(&mut buffer[..]).exact().run().unwrap();
        assert!(takes_small(&ring).is_some());
        assert!(std::fs::read(&path).unwrap() == buffer);
        assert!(takes_small(&ring).is_none(), "it is in the page cache");
    }
}
