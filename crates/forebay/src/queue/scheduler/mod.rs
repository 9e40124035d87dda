//! State of all transfers of an engine, and every decision about which operation runs next.
//!
//! No I/O, no clock, no thread: workers take work and report results under one lock. That lock is
//! never held across a system call or a call into a GPU driver. So one thread can step the
//! scheduler in tests, and a seed replays exactly.
//!
//! A transfer is cut into windows. A window is opened (planned), its segments become ops in the
//! queues below, and it closes when its last op and last copy are done. A transfer ends with its
//! last window. After an error or a cancel nothing new starts, and ops in flight drain.

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

use forebay_base::units::ByteRange;
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

/// Everything that the scheduler must know to move one transfer.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) state: Arc<State>,
    /// The file; for a batch, its first file.
    pub(crate) file: Arc<Handle>,
    /// Set if the transfer moves bytes of a strip, not of a single file.
    pub(crate) batch: Option<Arc<Batch>>,
    pub(crate) direction: Direction,
    pub(crate) range: ByteRange,
    /// Offset at which a read will meet the end of the file; otherwise the end of the range.
    pub(crate) end: u64,
    /// True if the file was known to extend to `end`.
    pub(crate) is_sized: bool,
    /// Host or GPU address of the byte at `range.start`.
    pub(crate) address: u64,
    /// The GPU's link. `None` if no slot is used: for host memory and for a peer.
    pub(crate) link: Option<usize>,
    /// The direct path between the drive and a GPU, if there is one. Other shares do not use it.
    pub(crate) peer: Option<Peer>,
    pub(crate) drive: usize,
    /// Parts to move, in order. A part of a write starts when all parts before it are done.
    pub(crate) parts: VecDeque<(ByteRange, Io, Reason)>,
    /// Shares of the transfer on other drives.
    pub(crate) beside: Vec<Share>,
    pub(crate) alignment: Option<Alignment>,
    /// True if the first byte is expected to come from the drive, as far as is known before
    /// planning.
    pub(crate) cold: bool,
    pub(crate) exact: bool,
    pub(crate) sync: SyncMode,
    pub(crate) priority: Priority,
}

#[derive(Debug)]
struct Active {
    request: Request,
    /// Unlike its key, never reused.
    serial: u64,
    /// The next share of the transfer in a circular list; its own key if it is the only share.
    next: usize,
    /// Next byte of the first part that is not in a window yet.
    cursor: u64,
    /// Count of open windows and syncs, the open windows, and whether any window was opened so far.
    open: u32,
    windows: Vec<WindowKey>,
    has_opened: bool,
    /// True if the caller opens windows itself although readers could.
    insists: bool,
    /// Offset at which a read found the end of the file, if before the end of the range.
    end: u64,
    error: Option<Error>,
    /// Set by the first error or by a cancel: nothing new starts.
    stopped: bool,
    synced: bool,
    /// The part of a write that bypasses the page cache, until it has been checked for stale pages.
    unchecked: Option<ByteRange>,
    /// The list in which it waits to open its next window.
    listed: Listed,
    /// The queue that the last window used. The threads that serve it limit the transfer's speed.
    pace: Line,
    /// True if the drive's ring opens the next window when the transfer's turn comes.
    opens: bool,
    /// Offset up to which an attempt found no resident pages.
    tried: u64,
    /// Time at which it began to wait for a slot, also after the wait has ended.
    waits_since_ns: u64,
    /// The slot for its next window, if it has waited for one.
    slot: Option<Slot>,
    /// Ops that its next window has promised to its drive.
    promised: usize,
    /// Writes that wait for their turn at a file, by ticket.
    writes_waiting: BTreeMap<u64, (u64, u64)>,
    /// Number of its last copy; zero before the first.
    copied: u64,
    /// Ops for the drive's ring.
    direct: Queue,
    /// Ops for the drive's pool: they use the page cache but may wait for the drive.
    waits: Queue,
    /// Ops for the readers: they never wait for a drive.
    cached: Queue,
}

/// Pending ops of one transfer.
#[derive(Debug, Default)]
struct Queue {
    ops: VecDeque<Op>,
    /// True if the transfer has an entry in the turn order; it never has two.
    in_turn: bool,
}

/// A claimed window, which the claiming thread must plan.
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
    /// The data path of the part, for a write.
    pub(crate) way: (Io, Reason),
    /// True if it does not use host memory at all.
    pub(crate) is_peer: bool,
    /// True if it is the first or the last window of a transfer that is alone on its link.
    pub(crate) edge: bool,
    /// Block size of its drive, in bytes.
    pub(crate) request_size: u64,
    /// Number of threads that may fill it.
    pub(crate) readers: usize,
}

/// The next work item for the worker of a ring or of the pool.
#[derive(Debug)]
pub(crate) enum DriveWork {
    /// Run this op.
    Op(Op),
    /// Plan this window and call [`Scheduler::opened`].
    Open(Claim),
}

/// The next work item for a reader.
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
    /// Address on the GPU; a batch has several addresses.
    pub(crate) device: u64,
    pub(crate) batch: Option<Arc<Batch>>,
}

/// Why a copy failed.
#[derive(Debug)]
pub(crate) struct CopyFailure {
    pub(crate) error: Error,
    /// The GPU and its error, if the GPU may still access the copy's memory.
    pub(crate) lost: Option<(DeviceId, DeviceError)>,
}

/// Readers that one thread wakes; each of them wakes as many more while there is work. A wake-up
/// costs the waking thread 3 µs, and the woken thread runs after 40 to 200 µs.
const CALLED_AT_ONCE: usize = 8;

/// Side effects to run after the lock is released.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// New work items for readers.
    work: usize,
    /// Parked readers that were sent a wake-up.
    pub(crate) readers: usize,
    /// Rings that were sent a wake-up.
    pub(crate) rings: Vec<usize>,
    /// Parked pool workers that were sent a wake-up.
    pub(crate) pool: usize,
    /// Pool workers to be started.
    pub(crate) starts: usize,
    /// Links whose submitter was sent a wake-up.
    pub(crate) links: Vec<usize>,
    /// Slots that were taken or given back, if slots are traced.
    pub(crate) slots: Vec<SlotUse>,
    /// Gates at which a block is complete.
    pub(crate) gates: Vec<Arc<Gate>>,
    /// Files that refused a request with O_DIRECT, and why.
    pub(crate) refused: Vec<(Box<Path>, String)>,
    /// Transfers that ended.
    pub(crate) finished: Vec<(Arc<State>, Result<u64, Error>)>,
}

#[derive(Debug)]
struct Drive {
    depth: Depth,
    /// Maximum number of ops in flight.
    most: usize,
    /// The hardware behind it, which other drives may share.
    hardware: Vec<usize>,
    /// The ring that serves it. Without a ring, the pool runs its direct ops as well.
    ring: Option<usize>,
    /// Transfers with ops for its ring, or with windows that the ring is to open.
    direct: Turns,
    /// Transfers with ops for the pool.
    waits: Turns,
    /// True if the drive is queued for the pool.
    in_line: bool,
    /// Number of ops in `direct` and `waits` together.
    queued: usize,
    /// Expected ops of windows that are still being planned.
    promised: usize,
    /// Ops in flight on its ring.
    direct_flying: usize,
    /// Ops in flight in the pool, and ops that waiting callers run themselves.
    waits_flying: usize,
    helped_flying: usize,
    /// Bytes in flight now, and when the last op was handed out.
    flying_len: u64,
    filled_len: u64,
    /// Direction of the last op.
    direction: Direction,
    /// Transfers that open their next window when the drive needs more ops.
    waiting: Openable,
}

/// A ring: one thread that serves one or several drives.
#[derive(Debug, Default)]
struct RingState {
    drives: VecDeque<usize>,
    /// True if it has failed and serves no drive.
    is_lost: bool,
    /// Windows of stopped transfers; the ring may still hold some of their ops.
    unwanted: Vec<WindowKey>,
    sleepers: Sleepers,
}

/// Threads that run one blocking op at a time.
#[derive(Debug, Default)]
struct PoolState {
    /// Drives with ops for the pool, in turn.
    line: VecDeque<usize>,
    flying: usize,
    sleepers: Sleepers,
    started: usize,
    unstarted: usize,
}

/// Limits that the scheduler enforces.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) slot_size: u64,
    pub(crate) segment: u64,
    /// Maximum ops in flight on all drives together; each drive may always have one.
    pub(crate) in_flight: usize,
    /// Readers that the engine starts.
    pub(crate) readers: usize,
    /// Maximum number of pool threads.
    pub(crate) pool: usize,
    /// Maximum open windows of one transfer between the page cache and host memory.
    pub(crate) host_windows: u32,
}

/// The scheduler's state: transfers, windows, drives, rings, links and the queues between them.
#[derive(Debug)]
pub(crate) struct Scheduler {
    limits: Limits,
    transfers: Slab<Active>,
    windows: Slab<Window>,
    /// Transfers that may open a window, in turn.
    openable: Openable,
    /// Transfers with ops for the readers.
    turns: Turns,
    /// Number of ops for the readers.
    queued: usize,
    /// Windows for readers that are being planned.
    planned: usize,
    /// Transfers and copies begun so far.
    begun: u64,
    copied: u64,
    drives: Vec<Drive>,
    rings: Vec<RingState>,
    pool: PoolState,
    /// Ops in flight on all drives, and the number of drives with ops in flight.
    in_flight: usize,
    busy: usize,
    /// For each piece of hardware, the number of drives with ops in flight.
    sharers: Vec<usize>,
    links: Vec<Link>,
    /// Number of writes that had to wait for their turn so far, and the files being written.
    waited: u64,
    writers: HashMap<(u64, u64), Writers>,
    small_writes: Arc<SmallWrites>,
    readers: Sleepers,
    /// Set when the engine shuts down; it ends once nothing is left.
    stopping: bool,
    /// Why the engine has failed; a failed engine accepts no transfers.
    closed: Option<Arc<str>>,
    effects: Effects,
    /// True if slot use is traced.
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

    /// Adds `threads` pool threads, to be started when first needed.
    pub(crate) fn add_unstarted(&mut self, threads: usize) {
        self.pool.unstarted += threads;
    }

    /// Adds a drive with a queue depth given by `depth`, at most `most` ops, on this hardware.
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

    /// Adds a ring that serves no drive yet.
    pub(crate) fn add_ring(&mut self) -> usize {
        self.rings.push(RingState::default());
        self.rings.len() - 1
    }

    pub(crate) fn add_link(&mut self, slots_max: usize) -> usize {
        self.links.push(Link::new(&self.limits, slots_max));
        self.links.len() - 1
    }

    /// Adds slots to a link; an empty list means that none could be allocated.
    pub(crate) fn add_slots(&mut self, link: usize, slots: &[Slot]) {
        if self.is_closed() {
            return;
        }
        let state = &mut self.links[link];
        state.growing = false;
        if slots.is_empty() {
            state.slots.most = state.slots.made(); // no more memory: do not try again
        }
        state.slots.add(slots);
        self.admit_waiting(link);
    }

    /// Returns and clears the pending side effects, to be run without the lock.
    pub(crate) fn take_effects(&mut self) -> Effects {
        let mut effects = std::mem::take(&mut self.effects);
        if effects.work == 0 && self.readers.called() == 0 && self.link_wants_slots() {
            effects.work = 1; // whatever left a transfer without a slot
        }
        let most = effects.work.min(CALLED_AT_ONCE);
        effects.readers += self.readers.call(most);
        effects
    }

    /// True if a link wants more slots, which a reader allocates.
    fn link_wants_slots(&self) -> bool {
        self.links.iter().any(|link| self.wants_slots(link))
    }

    /// Makes all threads end once nothing is in flight or queued.
    pub(crate) fn stop(&mut self) {
        self.stopping = true;
        self.call_all();
    }

    /// True if the engine is shutting down and nothing is in flight or queued.
    pub(crate) fn has_ended(&self) -> bool {
        self.stopping && self.transfers.is_empty()
    }
}
