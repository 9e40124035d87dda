//! The state of everything that an engine moves, and every decision about what happens next.
//!
//! No I/O, no clock, no thread: workers ask for work and hand results back, under one lock that is
//! never held across a system call or a call into a GPU's driver. So one thread can step it all in
//! tests, and a seed replays exactly.
//!
//! A transfer is cut into windows. A window is opened (planned), its segments become ops on the
//! lists below, and it closes when its last op and last copy are done. A transfer ends with its
//! last window; after an error or a cancel nothing new starts and what is in flight drains.

mod batches;
#[cfg(test)]
mod cancel_tests;
#[cfg(test)]
mod checks;
mod closed;
mod cold;
mod copies;
mod depth;
mod lines;
mod link;
mod openable;
mod ops;
#[cfg(test)]
mod peer_tests;
mod peers;
mod room;
mod shares;
mod sleepers;
mod slots;
mod stages;
#[cfg(test)]
mod tests;
mod traces;
mod transfers;
mod turns;
mod waiting;
mod windows;
#[cfg(test)]
mod writer_tests;
mod writers;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;

use slab::Slab;

pub(crate) use depth::Depth;
use link::Link;
use openable::{Listed, Openable};
pub(crate) use peers::Peer;
pub(crate) use room::EACH_MAX;
pub(crate) use shares::Share;
pub(crate) use sleepers::Crew;
use sleepers::Sleepers;
use stages::Stages;
pub(crate) use traces::SlotUse;
pub use turns::Priority;
use turns::Turns;
use writers::Writers;

use super::SmallWrites;
use super::batch::Batch;
use super::gate::Gate;
use super::op::{Direction, Line, Op, WindowKey};
use super::window::{Run, Slot, Window};
use crate::error::Error;
use crate::file::Handle;
use crate::gpu::{DeviceError, DeviceId};
use crate::plan::{Alignment, Io, Layout, Reason};
use crate::transfer::{State, SyncMode};
use crate::units::ByteRange;

/// Everything that the scheduler must know to move one transfer.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) state: Arc<State>,
    /// Of a batch the first of several.
    pub(crate) file: Arc<Handle>,
    /// Where it moves bytes of a strip, not of a file.
    pub(crate) batch: Option<Arc<Batch>>,
    pub(crate) direction: Direction,
    pub(crate) range: ByteRange,
    /// Where a read will meet the end of the file, else the range's end.
    pub(crate) end: u64,
    /// Whether the file was known to reach up to there.
    pub(crate) is_sized: bool,
    /// Host or GPU address of the byte at `range.start`.
    pub(crate) address: u64,
    /// The GPU's link; `None` where no slot is on the way: to host memory, and to a peer.
    pub(crate) link: Option<usize>,
    /// Where its bytes go straight between the drive and a GPU. What stands beside it does not.
    pub(crate) peer: Option<Peer>,
    pub(crate) drive: usize,
    /// What must be moved, in order; a part of a write starts when all before it are done.
    pub(crate) parts: VecDeque<(ByteRange, Io, Reason)>,
    /// What other drives have of it.
    pub(crate) beside: Vec<Share>,
    pub(crate) alignment: Option<Alignment>,
    /// Whether the drive has to bring its first byte, as far as is known before it is planned.
    pub(crate) cold: bool,
    pub(crate) exact: bool,
    pub(crate) sync: SyncMode,
    pub(crate) priority: Priority,
}

#[derive(Debug)]
struct Active {
    request: Request,
    /// Never used again, as its key is.
    serial: u64,
    /// The transfer's next share, round; itself where it is the only one.
    next: usize,
    /// Next byte of the first part that is in no window yet.
    cursor: u64,
    /// Windows and syncs that are not over, the windows, and whether there has been one.
    open: u32,
    windows: Vec<WindowKey>,
    has_opened: bool,
    /// Whether its caller opens windows although readers could.
    insists: bool,
    /// Where a read found the end of the file, if before the range's.
    end: u64,
    error: Option<Error>,
    /// Set by the first error and by a cancel: nothing new starts.
    stopped: bool,
    synced: bool,
    /// What of a write goes around the page cache; until that is checked for old bytes.
    unchecked: Option<ByteRange>,
    /// Where it waits to open its next window.
    listed: Listed,
    /// The line that its last window took: who fills its windows is the limit.
    pace: Line,
    /// Whether the ring of its drive opens its next window, when its turn comes.
    opens: bool,
    /// Up to where a try has found that nothing is resident.
    tried: u64,
    /// Since when it waits for a slot, or has waited.
    waits_since_ns: u64,
    /// The slot of its next window, where it has waited for one.
    slot: Option<Slot>,
    /// Ops that its drive was promised of its next window.
    promised: usize,
    /// Writes that wait for their turn at a file, by their tickets.
    writes_waiting: BTreeMap<u64, (u64, u64)>,
    /// The number of its last copy; zero before the first.
    copied: u64,
    /// Ops for its drive's ring.
    direct: Queue,
    /// Ops for its drive's pool: through the page cache, but they may wait for the drive.
    waits: Queue,
    /// Ops for the readers: what they move waits for no drive.
    cached: Queue,
}

/// Ops of one transfer that wait.
#[derive(Debug, Default)]
struct Queue {
    ops: VecDeque<Op>,
    /// Whether it has its turn: it never has two.
    in_turn: bool,
}

/// A window that was claimed and has to be planned by whoever claimed it.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) window: WindowKey,
    pub(crate) state: Arc<State>,
    pub(crate) file: Arc<Handle>,
    pub(crate) batch: Option<Arc<Batch>>,
    pub(crate) direction: Direction,
    pub(crate) range: ByteRange,
    pub(crate) base: u64,
    pub(crate) layout: Layout,
    pub(crate) alignment: Option<Alignment>,
    /// The way that the part takes, for a write.
    pub(crate) way: (Io, Reason),
    /// Whether it takes no way through host memory at all.
    pub(crate) is_peer: bool,
    /// Whether it is the first or the last of a transfer that is alone on its link.
    pub(crate) edge: bool,
    /// Bytes of one request to its drive.
    pub(crate) request_size: u64,
    /// Threads that may fill it.
    pub(crate) readers: usize,
}

/// What the worker of a ring or of the pool is to do next.
#[derive(Debug)]
pub(crate) enum DriveWork {
    /// Run this op.
    Op(Op),
    /// Plan this window and call [`Scheduler::opened`].
    Open(Claim),
}

/// What a reader is to do next.
#[derive(Debug)]
pub(crate) enum ReaderWork {
    /// Run this op.
    Op(Op),
    /// Plan this window and call [`Scheduler::opened`].
    Open(Claim),
    /// Make more slots for this link and call [`Scheduler::add_slots`].
    Grow(usize),
}

/// A copy between a slot and a GPU.
#[derive(Debug, Clone)]
pub(crate) struct Copy {
    pub(crate) window: WindowKey,
    pub(crate) direction: Direction,
    pub(crate) run: Run,
    /// Address in the slot.
    pub(crate) host: u64,
    /// Address on the GPU; a batch has several.
    pub(crate) device: u64,
    pub(crate) batch: Option<Arc<Batch>>,
}

/// How a copy failed.
#[derive(Debug)]
pub(crate) struct CopyFailure {
    pub(crate) error: Error,
    /// The GPU and its answer, where it may still touch the copy's memory.
    pub(crate) lost: Option<(DeviceId, DeviceError)>,
}

/// Readers that one thread calls; each of them calls as many more while there is work. A call
/// takes the caller 3 µs, and the called thread is awake after 40 to 200.
const CALLED_AT_ONCE: usize = 8;

/// What has to be told to others after the lock is released.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// New work items for readers.
    work: usize,
    /// Sleeping readers that were called.
    pub(crate) readers: usize,
    /// Rings that were called.
    pub(crate) rings: Vec<usize>,
    /// Sleeping workers of the pool that were called.
    pub(crate) pool: usize,
    /// Workers of the pool that are to be started.
    pub(crate) starts: usize,
    /// Links whose submitter was called.
    pub(crate) links: Vec<usize>,
    /// Slots that were taken and given back, where that is traced.
    pub(crate) slots: Vec<SlotUse>,
    /// Gates behind which a block has come whole.
    pub(crate) gates: Vec<Arc<Gate>>,
    /// Files that take no O_DIRECT after all, and why.
    pub(crate) refused: Vec<(Box<Path>, String)>,
    /// Transfers that ended.
    pub(crate) finished: Vec<(Arc<State>, Result<u64, Error>)>,
}

#[derive(Debug)]
struct Drive {
    depth: Depth,
    /// Ops that it has in flight at most.
    most: usize,
    /// The hardware behind it, which others may share.
    hardware: Vec<usize>,
    /// The ring that serves it: without one the pool runs its direct ops as well.
    ring: Option<usize>,
    /// Transfers with ops for its ring, or with windows that this is to open.
    direct: Turns,
    /// Transfers with ops for the pool.
    waits: Turns,
    /// Whether it stands in line for the pool.
    in_line: bool,
    /// How many ops these have.
    queued: usize,
    /// Ops of windows that are being planned for it, as far as they can be foreseen.
    promised: usize,
    /// Ops that its ring has.
    direct_flying: usize,
    /// Ops that the pool has, and those that callers run who wait for them.
    waits_flying: usize,
    helped_flying: usize,
    /// Bytes of all, and how many these were when the last of them was taken.
    flying_len: u64,
    filled_len: u64,
    /// Which way the last one goes.
    direction: Direction,
    /// Transfers that open their next window when its pool wants more.
    waiting: Openable,
}

/// What serves one or several drives by one thread.
#[derive(Debug, Default)]
struct RingState {
    drives: VecDeque<usize>,
    /// Whether it has failed and serves none.
    is_lost: bool,
    /// Windows of stopped transfers, some of whose ops it may have.
    unwanted: Vec<WindowKey>,
    sleepers: Sleepers,
}

/// Threads that run one op at a time, and wait for drives.
#[derive(Debug, Default)]
struct PoolState {
    /// Drives with ops for them, in turn.
    line: VecDeque<usize>,
    flying: usize,
    sleepers: Sleepers,
    started: usize,
    unstarted: usize,
}

/// The limits that the scheduler keeps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) slot_size: u64,
    pub(crate) segment: u64,
    /// Ops that all drives together have in flight at most, but one for each is never refused.
    pub(crate) in_flight: usize,
    /// Readers that the engine starts.
    pub(crate) readers: usize,
    /// Threads of the pool at most.
    pub(crate) pool: usize,
    /// Open windows of one transfer between the page cache and host memory.
    pub(crate) host_windows: u32,
}

/// See the module's own text.
#[derive(Debug)]
pub(crate) struct Scheduler {
    limits: Limits,
    transfers: Slab<Active>,
    windows: Slab<Window>,
    /// Transfers that may open a window, in turn.
    openable: Openable,
    /// Transfers with ops for the readers.
    turns: Turns,
    /// How many ops these have.
    queued: usize,
    /// Windows for them that are being planned.
    planned: usize,
    /// Transfers and copies begun so far.
    begun: u64,
    copied: u64,
    drives: Vec<Drive>,
    rings: Vec<RingState>,
    pool: PoolState,
    /// Ops in flight on all drives, and how many drives have some.
    in_flight: usize,
    busy: usize,
    /// Drives with something in flight on each piece of hardware.
    sharers: Vec<usize>,
    links: Vec<Link>,
    /// Files that are being written, and the writes that had to wait for their turn so far.
    waited: u64,
    writers: HashMap<(u64, u64), Writers>,
    small_writes: Arc<SmallWrites>,
    readers: Sleepers,
    /// The engine ends once nothing is left.
    stopping: bool,
    /// Why the engine has failed: it takes nothing in any more.
    closed: Option<Arc<str>>,
    effects: Effects,
    /// Whether somebody wants to know what becomes of slots.
    traced: bool,
    stages: Stages,
}

impl Scheduler {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            transfers: Slab::new(),
            windows: Slab::new(),
            openable: Openable::default(),
            turns: Turns::default(),
            queued: 0,
            planned: 0,
            begun: 0,
            copied: 0,
            in_flight: 0,
            busy: 0,
            sharers: Vec::new(),
            drives: Vec::new(),
            rings: Vec::new(),
            pool: PoolState::default(),
            links: Vec::new(),
            waited: 0,
            writers: HashMap::new(),
            small_writes: Arc::default(),
            readers: Sleepers::default(),
            stopping: false,
            closed: None,
            effects: Effects::default(),
            traced: false,
            stages: Stages::default(),
        }
    }

    /// Has `threads` of the pool started when they are first needed.
    pub(crate) fn add_unstarted(&mut self, threads: usize) {
        self.pool.unstarted += threads;
    }

    /// Adds a drive that has at most `most` ops in flight, by `depth`, and lies on this hardware.
    pub(crate) fn add_drive(&mut self, depth: Depth, most: usize, hardware: &[usize]) -> usize {
        let pieces = hardware.iter().max().map_or(0, |last| last + 1);
        self.sharers.resize(self.sharers.len().max(pieces), 0);
        self.drives.push(Drive {
            depth,
            most,
            hardware: hardware.to_vec(),
            ring: None,
            direct: Turns::default(),
            waits: Turns::default(),
            in_line: false,
            queued: 0,
            promised: 0,
            direct_flying: 0,
            waits_flying: 0,
            helped_flying: 0,
            flying_len: 0,
            filled_len: 0,
            direction: Direction::Read,
            waiting: Openable::default(),
        });
        self.drives.len() - 1
    }

    /// Adds a ring, which serves no drive yet.
    pub(crate) fn add_ring(&mut self) -> usize {
        self.rings.push(RingState::default());
        self.rings.len() - 1
    }

    pub(crate) fn add_link(&mut self, slots_max: usize) -> usize {
        self.links.push(Link::new(&self.limits, slots_max));
        self.links.len() - 1
    }

    /// Gives a link slots, or none where they could not be had.
    pub(crate) fn add_slots(&mut self, link: usize, slots: &[Slot]) {
        if self.is_closed() {
            return;
        }
        let state = &mut self.links[link];
        state.growing = false;
        if slots.is_empty() {
            state.slots.most = state.slots.made(); // the machine gives no more: do not ask again
        }
        state.slots.add(slots);
        self.admit_waiting(link);
    }

    /// What became of the calls since the last time: to be acted on without the lock.
    pub(crate) fn take_effects(&mut self) -> Effects {
        let mut effects = std::mem::take(&mut self.effects);
        if effects.work == 0 && self.readers.called() == 0 && self.link_wants_slots() {
            effects.work = 1; // whatever it was that left a transfer without one
        }
        let most = effects.work.min(CALLED_AT_ONCE);
        effects.readers += self.readers.call(most);
        effects
    }

    /// Whether a link wants more slots, which a reader makes.
    fn link_wants_slots(&self) -> bool {
        self.links.iter().any(|link| self.wants_slots(link))
    }

    /// Asks all threads to end once nothing is in flight or queued.
    pub(crate) fn stop(&mut self) {
        self.stopping = true;
        self.call_all();
    }

    /// Whether the engine ends and nothing is in flight or queued.
    pub(crate) fn has_ended(&self) -> bool {
        self.stopping && self.transfers.is_empty()
    }
}
