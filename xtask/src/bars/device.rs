//! The plain methods to bring bytes to a GPU, using only the device trait: one copy of pinned
//! memory (the link's limit), a few readers that fill large slots (the measured recipe), and one
//! small read followed by one copy.

#![expect(unsafe_code, reason = "copies are made by raw addresses; each call says who keeps them")]

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use forebay::gpu::{Device, Event, Stream};
use forebay::units::MIB;
use forebay::{Buffer, Engine};

use crate::bar::Stop;
use crate::lab::Gpu;

/// Threads that fill slots in the measured recipe.
const READERS: usize = 8;
/// Bytes of a slot of the recipe.
const SLOT_LEN: u64 = 16 * MIB;
/// Slots of the recipe.
const SLOTS: u64 = 4;
/// Bytes that a reader reads at a time.
const SEGMENT_LEN: u64 = MIB;
/// How long an idle thread of the recipe sleeps.
const NAP: Duration = Duration::from_micros(15);

/// Pinned memory and its stream.
#[derive(Debug)]
pub(crate) struct Plain {
    device: Arc<dyn Device>,
    stream: Stream,
    pinned: Buffer,
    // The pinned memory belongs to it.
    _engine: Engine,
}

impl Plain {
    /// Allocates `len` bytes of pinned memory.
    pub(crate) fn new(gpu: &Gpu, len: u64) -> Result<Self, Stop> {
        let pinned = gpu.engine.allocate_pinned(len)?;
        let stream = gpu.device.create_stream()?;
        Ok(Self { device: gpu.device.clone(), stream, pinned, _engine: gpu.engine.clone() })
    }

    /// As much as the recipe needs.
    pub(crate) fn for_recipe(gpu: &Gpu) -> Result<Self, Stop> {
        Self::new(gpu, SLOTS * SLOT_LEN)
    }

    /// One copy of `len` bytes of the pinned memory to the start of `target`, to its end.
    pub(crate) fn copy(&mut self, target: &mut Buffer, len: u64) -> Result<(), Stop> {
        assert!(len <= self.pinned.len() && len <= target.len(), "the copy fits both");
        let host = self.host()?;
        // SAFETY: both ranges are in buffers that are borrowed here until the synchronisation below
        // has seen the copy's end.
        unsafe {
            self.device.copy_to_device(self.stream, target.address(), host, size(len))?;
        }
        Ok(self.device.synchronize(self.stream)?)
    }

    /// Reads `len` bytes of `file` at `offset` into pinned memory, then copies them to `target`.
    pub(crate) fn small(
        &mut self,
        file: &File,
        offset: u64,
        target: &mut Buffer,
        len: u64,
    ) -> Result<(), Stop> {
        let bytes = self.pinned.as_mut_slice().ok_or_else(no_host)?;
        file.read_exact_at(&mut bytes[..size(len)], offset)?;
        self.copy(target, len)
    }

    /// Copies the first `len` bytes of `file` to `target` by the measured recipe: readers fill
    /// pieces of a slot, the calling thread copies whole slots.
    pub(crate) fn recipe(
        &mut self,
        file: &File,
        target: &mut Buffer,
        len: u64,
    ) -> Result<(), Stop> {
        assert!(len <= target.len(), "the file fits the target");
        let shared = Shared::new(file, self.host()?, len);
        let events: Vec<Event> =
            (0..SLOTS).map(|_| self.device.create_event()).collect::<Result<_, _>>()?;
        let result = thread::scope(|scope| {
            let readers: Vec<_> = (0..READERS).map(|_| scope.spawn(|| shared.fill())).collect();
            let copied = self.copy_slots(&shared, &events, target.address());
            // Readers that wait for a slot must be released after a failure here.
            shared.stopped.store(true, Ordering::Release);
            let mut read = Ok(());
            for reader in readers {
                let own = reader.join().unwrap_or_else(|_| Err(io::Error::other("it panicked")));
                read = read.and(own);
            }
            copied.and(read.map_err(Stop::from))
        });
        // A copy may still read the slots after a failure.
        let drained = self.device.synchronize(self.stream);
        for event in events {
            self.device.destroy_event(event)?;
        }
        result.and(drained.map_err(Stop::from))
    }

    /// Copies slots in order as they are filled, and gives them back to the readers when their
    /// copy is done.
    fn copy_slots(&self, shared: &Shared<'_>, events: &[Event], target: u64) -> Result<(), Stop> {
        let event = |group: u64| events[size(group % SLOTS)];
        let (mut copied, mut done) = (0, 0);
        while done < shared.groups() {
            let mut idle = true;
            while copied < shared.groups() && shared.is_filled(copied) {
                let offset = copied * SLOT_LEN;
                let len = size(SLOT_LEN.min(shared.len - offset));
                // SAFETY: the slot is full, and no reader touches it before its turn comes again,
                // which is after its event. `recipe` keeps both buffers borrowed and drains the
                // stream before it returns.
                unsafe {
                    let host = shared.slot(copied);
                    self.device.copy_to_device(self.stream, target + offset, host, len)?;
                }
                self.device.record(event(copied), self.stream)?;
                copied += 1;
                idle = false;
            }
            while done < copied && self.device.is_done(event(done))? {
                shared.free(done);
                done += 1;
                idle = false;
            }
            if shared.stopped.load(Ordering::Acquire) {
                return Err(Stop::Fail("a reader stopped".into()));
            }
            if idle {
                thread::sleep(NAP);
            }
        }
        Ok(())
    }

    fn host(&mut self) -> Result<NonNull<u8>, Stop> {
        Ok(NonNull::from(self.pinned.as_mut_slice().ok_or_else(no_host)?).cast())
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        let _ = self.device.synchronize(self.stream);
        let _ = self.device.destroy_stream(self.stream);
    }
}

fn no_host() -> Stop {
    Stop::Fail("pinned memory is no host memory".into())
}

fn size(len: u64) -> usize {
    usize::try_from(len).expect("a length in memory fits an address")
}

/// The state shared by readers and the copying thread. A group is the contents of one slot; slot
/// `group % SLOTS` belongs to the readers while its turn is `group` and bytes are missing.
#[derive(Debug)]
struct Shared<'a> {
    file: &'a File,
    arena: NonNull<u8>,
    len: u64,
    next: AtomicU64,
    slots: [SlotTurn; 4],
    stopped: AtomicBool,
}

/// On a separate cache line, because readers poll it.
#[derive(Debug)]
#[repr(align(64))]
struct SlotTurn {
    turn: AtomicU64,
    missing: AtomicU64,
}

// SAFETY: the arena is only accessed through `fill` and the copies. The turns and counts above give
// each of them exclusive ownership of its part.
unsafe impl Sync for Shared<'_> {}

impl<'a> Shared<'a> {
    fn new(file: &'a File, arena: NonNull<u8>, len: u64) -> Self {
        let shared = Self {
            file,
            arena,
            len,
            next: AtomicU64::new(0),
            slots: [0, 1, 2, 3]
                .map(|turn| SlotTurn { turn: AtomicU64::new(turn), missing: AtomicU64::new(0) }),
            stopped: AtomicBool::new(false),
        };
        for group in 0..SLOTS {
            shared.of(group).missing.store(shared.segments(group), Ordering::Relaxed);
        }
        shared
    }

    fn groups(&self) -> u64 {
        self.len.div_ceil(SLOT_LEN)
    }

    fn of(&self, group: u64) -> &SlotTurn {
        &self.slots[size(group % SLOTS)]
    }

    /// How many segments make up a group; the last one may be short.
    fn segments(&self, group: u64) -> u64 {
        self.len.saturating_sub(group * SLOT_LEN).min(SLOT_LEN).div_ceil(SEGMENT_LEN)
    }

    /// The start of a group's slot. Its memory is the caller's only by the rules above.
    fn slot(&self, group: u64) -> NonNull<u8> {
        // SAFETY: `recipe` was given an arena of SLOTS slots.
        unsafe { self.arena.add(size((group % SLOTS) * SLOT_LEN)) }
    }

    fn is_filled(&self, group: u64) -> bool {
        let slot = self.of(group);
        slot.turn.load(Ordering::Acquire) == group && slot.missing.load(Ordering::Acquire) == 0
    }

    /// Passes a slot whose copy is done to the next group.
    fn free(&self, group: u64) {
        let slot = self.of(group);
        slot.missing.store(self.segments(group + SLOTS), Ordering::Relaxed);
        slot.turn.store(group + SLOTS, Ordering::Release);
    }

    /// A reader: takes segments in order and reads each into its slot when it is that slot's turn.
    fn fill(&self) -> io::Result<()> {
        loop {
            let offset = self.next.fetch_add(1, Ordering::Relaxed) * SEGMENT_LEN;
            if offset >= self.len {
                return Ok(());
            }
            let group = offset / SLOT_LEN;
            let slot = self.of(group);
            while slot.turn.load(Ordering::Acquire) != group {
                if self.stopped.load(Ordering::Acquire) {
                    return Ok(());
                }
                thread::sleep(NAP);
            }
            let count = size(SEGMENT_LEN.min(self.len - offset));
            // SAFETY: the segment is in the slot of its group, whose turn it is. No other reader
            // took this segment, and no copy starts before all are counted off.
            let piece = unsafe {
                let start = self.slot(group).add(size(offset % SLOT_LEN));
                std::slice::from_raw_parts_mut(start.as_ptr(), count)
            };
            if let Err(error) = self.file.read_exact_at(piece, offset) {
                self.stopped.store(true, Ordering::Release);
                return Err(error);
            }
            slot.missing.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay::gpu::GpuSelector;
    use forebay::{Engine, Options};

    use super::*;
    use crate::{data, lab};

    fn simulated() -> Gpu {
        let engine = Engine::new(Options::default()).unwrap();
        let selector: GpuSelector = "sim".parse().unwrap();
        let device = engine.device(&selector).unwrap().unwrap();
        Gpu { engine, device }
    }

    #[test]
    fn the_recipe_brings_every_byte_also_of_a_last_short_slot() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let gpu = simulated();
        // Less than one segment, all slots twice and a bit, and sizes between.
        for len in [1000, SLOT_LEN, SLOT_LEN + 1, 2 * SLOTS * SLOT_LEN + SEGMENT_LEN + 17] {
            let _ = std::fs::remove_file(&path);
            data::write(&path, len).unwrap();
            let mut target = gpu.allocate(len).unwrap();
            target.fill(0x5A).unwrap();
            let mut plain = Plain::for_recipe(&gpu).unwrap();
            plain.recipe(&File::open(&path).unwrap(), &mut target, len).unwrap();
            lab::verify(&target, len).unwrap();
        }
    }

    #[test]
    fn a_file_that_ends_early_stops_the_recipe() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let gpu = simulated();
        data::write(&path, 20 * MIB).unwrap();
        let len = 200 * MIB;
        let mut target = gpu.allocate(len).unwrap();
        let mut plain = Plain::for_recipe(&gpu).unwrap();
        assert!(plain.recipe(&File::open(&path).unwrap(), &mut target, len).is_err());
    }

    #[test]
    fn a_target_that_was_not_written_or_one_byte_short_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let gpu = simulated();
        data::write(&path, MIB).unwrap();
        let file = File::open(&path).unwrap();
        let mut target = gpu.allocate(MIB).unwrap();
        target.fill(0x5A).unwrap();
        assert!(lab::verify(&target, MIB).is_err());
        let mut plain = Plain::new(&gpu, MIB).unwrap();
        plain.small(&file, 0, &mut target, MIB - 1).unwrap();
        assert!(lab::verify(&target, MIB).is_err());
        plain.small(&file, 0, &mut target, MIB).unwrap();
        lab::verify(&target, MIB).unwrap();
    }
}
