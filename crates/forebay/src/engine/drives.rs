//! The queues of an engine's drives: which one serves a file, and what was learned of it before.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Engine, Inner};
use crate::error::Result;
use crate::file::Handle;
use crate::options::Options;
use crate::queue::{Core, Depth, Direction};
use crate::remember::Memory;
use crate::topology::{Below, DriveId, LayerKind, Layout, Queue, QueueId, Resolver};
use crate::tune::{DepthLimits, Learned};

/// See the module's own text.
#[derive(Debug)]
pub(super) struct Drives {
    resolver: Resolver,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    queues: HashMap<QueueId, DriveQueue>,
    /// Numbers of the hardware behind them.
    hardware: HashMap<DriveId, usize>,
    memory: Memory,
}

/// The queue of a drive.
#[derive(Debug, Clone, Copy)]
struct DriveQueue {
    index: usize,
    /// Whether it has a ring, or was refused one.
    ring_tried: bool,
}

impl Drives {
    pub(super) fn new(options: &Options) -> Self {
        // Who sets the depth wants no other.
        let remembers = options.remember && options.depth.is_none();
        let known = Known {
            queues: HashMap::new(),
            hardware: HashMap::new(),
            memory: Memory::open(remembers),
        };
        Self { resolver: Resolver::default(), known: Mutex::new(known) }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether any was used.
    pub(super) fn has_any(&self) -> bool {
        !self.lock().queues.is_empty()
    }

    /// Keeps what was learned for the next engine.
    pub(super) fn remember(&self, core: &Core) {
        let mut known = self.lock();
        let Known { queues, memory, .. } = &mut *known;
        for (id, queue) in &*queues {
            let learned = core.lock().learned(queue.index);
            for (direction, learned) in [Direction::Read, Direction::Write].iter().zip(learned) {
                if let Some(learned) = learned {
                    memory.note(id.as_str(), *direction, learned);
                }
            }
        }
        // What cannot be kept is found anew.
        memory.save();
    }

    /// Keeps what somebody else has found about the drive of a file. False: it is not kept.
    pub(super) fn learn(&self, file: &Handle, way: Direction, learned: Learned) -> bool {
        let below = self.resolver.resolve_file(file.fd(), file.path());
        let mut known = self.lock();
        let id = below.queue.id.as_str();
        known.memory.note(id, way, learned);
        known.memory.save() && known.memory.recall(id, way) == Some(learned)
    }

    /// What is known about the drive of a file.
    pub(super) fn known_of(&self, file: &Handle, way: Direction) -> Option<Learned> {
        let below = self.resolver.resolve_file(file.fd(), file.path());
        self.lock().memory.recall(below.queue.id.as_str(), way)
    }
}

/// Members that deepen a volume's queue at most, so that it never takes more than half of what all
/// drives together may have.
const MEMBERS_MAX: usize = 4;

/// Requests that a queue may have in flight: of a volume those of a drive for each member that it
/// reads from at once.
fn most(options: &Options, queue: &Queue) -> usize {
    let members = match queue.layout {
        Layout::Striped | Layout::Mirrored | Layout::StripedMirrors | Layout::Parity => {
            queue.members.len().clamp(1, MEMBERS_MAX)
        }
        _ => 1,
    };
    options.depth.unwrap_or(Options::DEPTH_MAX * members)
}

/// How the depth of a queue is found, where it is not set.
fn depth(options: &Options, below: &Below, memory: &Memory) -> Depth {
    if let Some(depth) = options.depth {
        return Depth::Fixed(depth);
    }
    // Virtual and loop devices say that they turn as well, when nobody told them otherwise.
    let is_disk = |layer: &crate::topology::Layer| layer.kind == LayerKind::ScsiDisk;
    let turns = below.layer.walk().any(|(_, layer)| is_disk(layer))
        && below.drives.iter().any(|drive| drive.rotational == Some(true));
    let segment = options.segment_size;
    let limits = DepthLimits::of(turns, most(options, &below.queue), segment, segment);
    let id = below.queue.id.as_str();
    Depth::tuned(limits, [Direction::Read, Direction::Write].map(|way| memory.recall(id, way)))
}

impl Engine {
    /// The queue of a file's drive, which gets its ring when one is first `needs_ring`.
    pub(super) fn drive(&self, handle: &Handle, needs_ring: bool) -> Result<usize> {
        if let Some(&index) = handle.queue().get() {
            return Ok(index);
        }
        let Inner { drives, threads, core, options, tools, .. } = &*self.inner;
        let below: Arc<Below> = drives.resolver.resolve_file(handle.fd(), handle.path());
        // Asked while it is there: of a drive that was pulled the kernel tells nothing, and that
        // is when an error has to name it.
        let _ = handle.drive();
        let mut known = drives.lock();
        let Known { queues, hardware, memory } = &mut *known;
        let queue = queues.entry(below.queue.id.clone()).or_insert_with(|| {
            let mut number = |id: &DriveId| {
                let next = hardware.len();
                *hardware.entry(id.clone()).or_insert(next)
            };
            let pieces: Vec<usize> = below.queue.hardware.iter().map(&mut number).collect();
            let (depth, most) = (depth(options, &below, memory), most(options, &below.queue));
            DriveQueue { index: core.add_drive(depth, most, &pieces), ring_tried: false }
        });
        if needs_ring && !queue.ring_tried {
            let note = threads.give_ring(core, queue.index, options, tools.arena.parts())?;
            queue.ring_tried = true;
            if let Some(note) = note {
                let mut notes = self.inner.notes.lock().unwrap_or_else(PoisonError::into_inner);
                if !notes.contains(&note) {
                    notes.push(note);
                }
            }
        }
        let index = queue.index;
        if queue.ring_tried || handle.is_memory() {
            handle.queue().get_or_init(|| index);
        }
        Ok(index)
    }
}
