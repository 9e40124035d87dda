//! The state of everything that an engine moves, and every decision about what happens next.
//!
//! No I/O, no clock, no thread: workers ask for work and hand results back, under one lock that is
//! never held across a system call or a call into a GPU's driver. So one thread can step it all in
//! tests, and a seed replays exactly.
//!
//! A transfer is cut into windows. A window is opened (planned), its segments become ops on the
//! lists below, and it closes when its last op and last copy are done. A transfer ends with its
//! last window; after an error or a cancel nothing new starts and what is in flight drains.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use rustix::io::Errno;
use slab::Slab;

use super::op::{Completion, Direction, Op, Owner, WindowKey, Work};
use super::window::{Run, Slot, Window};
use crate::error::{Error, Operation};
use crate::file::Handle;
use crate::plan::{Alignment, Io, Layout, Reason, Route, Segment};
use crate::transfer::{State, SyncMode};
use crate::units::{ByteRange, align_down};

/// How often the kernel may return nothing for bytes that the file still has.
const EMPTY_READS_MAX: u8 = 3;

/// Everything that the scheduler must know to move one transfer.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) state: Arc<State>,
    pub(crate) file: Arc<Handle>,
    pub(crate) direction: Direction,
    pub(crate) range: ByteRange,
    /// Where a read will meet the end of the file, else the range's end.
    pub(crate) end: u64,
    /// Host or GPU address of the byte at `range.start`.
    pub(crate) address: u64,
    /// The GPU's link; `None` for host memory.
    pub(crate) link: Option<usize>,
    pub(crate) drive: usize,
    /// What must be moved, in order; a part starts when all before it are done.
    pub(crate) parts: VecDeque<(ByteRange, Io, Reason)>,
    pub(crate) alignment: Option<Alignment>,
    pub(crate) exact: bool,
    pub(crate) sync: SyncMode,
}

#[derive(Debug)]
struct Active {
    request: Request,
    /// Next byte of the first part that is in no window yet.
    cursor: u64,
    /// Windows that are not closed.
    open: u32,
    /// Where a read found the end of the file, if before the range's.
    end: u64,
    error: Option<Error>,
    /// Set by the first error and by a cancel: nothing new starts.
    stopped: bool,
    synced: bool,
    /// Whether it stands in `openable` or in its link's `waiting`.
    listed: bool,
}

/// A window that was claimed and has to be planned by whoever claimed it.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) window: WindowKey,
    pub(crate) state: Arc<State>,
    pub(crate) file: Arc<Handle>,
    pub(crate) direction: Direction,
    pub(crate) range: ByteRange,
    pub(crate) base: u64,
    pub(crate) layout: Layout,
    pub(crate) alignment: Option<Alignment>,
    /// The way that the part takes, for a write.
    pub(crate) way: (Io, Reason),
    /// Whether it is the first or the last of its transfer.
    pub(crate) edge: bool,
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
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copy {
    pub(crate) window: WindowKey,
    pub(crate) direction: Direction,
    pub(crate) run: Run,
    /// Address in the slot.
    pub(crate) host: u64,
    /// Address on the GPU.
    pub(crate) device: u64,
}

/// What has to be told to others after the lock is released.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// New work items for readers.
    pub(crate) readers: usize,
    /// Drives whose sleeping worker has work.
    pub(crate) drives: Vec<usize>,
    /// Links whose sleeping submitter has work.
    pub(crate) links: Vec<usize>,
    /// Transfers that ended.
    pub(crate) finished: Vec<(Arc<State>, Result<u64, Error>)>,
}

#[derive(Debug, Default)]
struct Drive {
    ready: VecDeque<Op>,
    /// Workers that wait for work.
    asleep: usize,
}

#[derive(Debug)]
struct Link {
    free: Vec<Slot>,
    slots: usize,
    slots_max: usize,
    growing: bool,
    /// Open windows of reads, oldest first.
    filling: Vec<WindowKey>,
    /// Windows of writes that wait for their copy from the GPU.
    unloading: VecDeque<WindowKey>,
    /// Transfers that wait for a slot.
    waiting: VecDeque<usize>,
    copies: u32,
    asleep: bool,
}

impl Effects {
    /// Whether there is anything to tell.
    pub(crate) fn is_some(&self) -> bool {
        self.readers > 0
            || !(self.drives.is_empty() && self.links.is_empty() && self.finished.is_empty())
    }
}

/// The limits that the scheduler keeps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) slot_size: u64,
    pub(crate) readers: usize,
    /// Open windows of one transfer to or from host memory.
    pub(crate) host_windows: u32,
}

/// See the module's own text.
#[derive(Debug)]
pub(crate) struct Scheduler {
    limits: Limits,
    transfers: Slab<Active>,
    windows: Slab<Window>,
    /// Transfers that may open a window, in turn.
    openable: VecDeque<usize>,
    /// Ops through the page cache.
    cached: VecDeque<Op>,
    drives: Vec<Drive>,
    links: Vec<Link>,
    /// Files that are being written through the page cache, with the ops that wait: more than one
    /// writer would only spin on the file's lock (measured: 4 writers, 4.7 times the CPU, no gain).
    writers: HashMap<(u64, u64), VecDeque<Op>>,
    effects: Effects,
}

impl Scheduler {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            transfers: Slab::new(),
            windows: Slab::new(),
            openable: VecDeque::new(),
            cached: VecDeque::new(),
            drives: Vec::new(),
            links: Vec::new(),
            writers: HashMap::new(),
            effects: Effects::default(),
        }
    }

    pub(crate) fn add_drive(&mut self) -> usize {
        self.drives.push(Drive::default());
        self.drives.len() - 1
    }

    pub(crate) fn add_link(&mut self, slots_max: usize) -> usize {
        self.links.push(Link {
            free: Vec::new(),
            slots: 0,
            slots_max,
            growing: false,
            filling: Vec::new(),
            unloading: VecDeque::new(),
            waiting: VecDeque::new(),
            copies: 0,
            asleep: false,
        });
        self.links.len() - 1
    }

    /// Whether a link has no slot yet and none on the way; the asker must then add some.
    pub(crate) fn needs_slots(&mut self, link: usize) -> bool {
        let link = &mut self.links[link];
        let needs = link.slots == 0 && !link.growing;
        link.growing |= needs;
        needs
    }

    /// Gives a link slots, or none where they could not be had.
    pub(crate) fn add_slots(&mut self, link: usize, slots: &[Slot]) {
        let state = &mut self.links[link];
        state.growing = false;
        state.slots += slots.len();
        if slots.is_empty() {
            state.slots_max = state.slots; // the machine gives no more: do not ask again
        }
        state.free.extend_from_slice(slots);
        for _ in slots {
            self.admit_waiting(link);
        }
    }

    /// What became of the calls since the last time: to be acted on without the lock.
    pub(crate) fn take_effects(&mut self) -> Effects {
        std::mem::take(&mut self.effects)
    }

    /// Whether nothing is in flight or queued.
    pub(crate) fn is_idle(&self) -> bool {
        self.transfers.is_empty()
    }

    // --- transfers ---

    /// Takes a transfer in. The claim, where there is one, is its first window, which the caller
    /// plans on its own thread: that spares a small transfer the way through a reader.
    pub(crate) fn start(&mut self, request: Request) -> (usize, Option<Claim>) {
        let cursor = request.parts.front().map_or(request.range.start, |part| part.0.start);
        let end = request.end;
        let key = self.transfers.insert(Active {
            request,
            cursor,
            open: 0,
            end,
            error: None,
            stopped: false,
            synced: false,
            listed: false,
        });
        self.finish_if_done(key);
        let Some(active) = self.transfers.get(key) else { return (key, None) };
        let slot = match active.request.link {
            None => None,
            Some(link) if self.links[link].waiting.is_empty() => match self.links[link].free.pop() {
                Some(slot) => Some(slot),
                None => {
                    self.list(key);
                    return (key, None);
                }
            },
            Some(_) => {
                self.list(key);
                return (key, None);
            }
        };
        (key, Some(self.open(key, slot)))
    }

    /// Stops a transfer if `key` still is that of `state`.
    pub(crate) fn cancel(&mut self, key: usize, state: &Arc<State>) {
        if self.transfers.get(key).is_some_and(|a| Arc::ptr_eq(&a.request.state, state)) {
            let error = Error::Cancelled { place: state.place(), done: state.done() };
            self.fail(key, error);
            self.finish_if_done(key);
        }
    }

    fn fail(&mut self, key: usize, error: Error) {
        let active = &mut self.transfers[key];
        active.error.get_or_insert(error);
        active.stopped = true;
        if active.listed {
            active.listed = false;
            self.openable.retain(|&k| k != key);
            for link in &mut self.links {
                link.waiting.retain(|&k| k != key);
            }
        }
        // Windows whose copies now never come are closed by whoever completes their last op, except
        // those that wait for nothing else.
        let stuck: Vec<WindowKey> =
            self.windows.iter().filter(|(_, w)| w.transfer == key).map(|(k, _)| k).collect();
        for window in stuck {
            self.close_if_done(window);
        }
    }

    /// Puts a transfer with bytes left on the list of those that may open a window.
    fn list(&mut self, key: usize) {
        let windows_max = self.limits.host_windows;
        let active = &mut self.transfers[key];
        if active.request.direction == Direction::Read && active.cursor >= active.end {
            active.request.parts.clear();
        }
        let room = active.request.link.is_some() || active.open < windows_max;
        let next_part = active.request.parts.front();
        // A part begins only when all windows of the part before it are closed.
        let begins = next_part.is_some_and(|part| active.cursor == part.0.start);
        let barrier = begins && active.open > 0;
        if active.listed || active.stopped || next_part.is_none() || !room || barrier {
            return;
        }
        active.listed = true;
        self.openable.push_back(key);
        self.effects.readers += 1;
    }

    fn finish_if_done(&mut self, key: usize) {
        let Some(active) = self.transfers.get_mut(key) else { return };
        let more = !active.request.parts.is_empty() && !active.stopped;
        if more || active.open > 0 {
            return;
        }
        if active.request.sync != SyncMode::None && !active.synced && active.error.is_none() {
            active.synced = true;
            active.open += 1;
            let at = ByteRange::at(active.request.range.start, 0);
            let op = Op {
                owner: Owner::Transfer(key),
                file: Arc::clone(&active.request.file),
                work: Work::Sync { metadata: active.request.sync == SyncMode::All },
                segment: Segment {
                    wanted: at,
                    covered: at,
                    io: Io::Buffered,
                    reason: Reason::Demanded,
                    bounce: false,
                },
                address: 0,
                moved: 0,
                empty: 0,
            };
            self.push_cached(op);
            return;
        }
        let active = self.transfers.remove(key);
        let start = active.request.range.start;
        let got = active.end.max(start) - start;
        let result = match active.error {
            Some(error) => Err(error),
            None if active.request.exact && got < active.request.range.len() => {
                Err(Error::EndOfFile { place: active.request.state.place(), got })
            }
            None => Ok(got),
        };
        self.effects.finished.push((active.request.state, result));
    }

    // --- windows ---

    /// The next window to be planned, where one may be opened now.
    pub(crate) fn claim(&mut self) -> Option<Claim> {
        while let Some(key) = self.openable.pop_front() {
            let active = &mut self.transfers[key];
            active.listed = false;
            let slot = match active.request.link {
                None => None,
                Some(link) => match self.links[link].free.pop() {
                    Some(slot) => Some(slot),
                    None => {
                        active.listed = true;
                        self.links[link].waiting.push_back(key);
                        continue;
                    }
                },
            };
            return Some(self.open(key, slot));
        }
        None
    }

    fn open(&mut self, key: usize, slot: Option<Slot>) -> Claim {
        let slot_size = self.limits.slot_size;
        let active = &mut self.transfers[key];
        let request = &mut active.request;
        let (part, io, reason) = *request.parts.front().expect("listed only with bytes left");
        let unit = request.alignment.map_or(1, |a| a.offset);
        let first = active.cursor == request.range.start;
        let base = align_down(active.cursor, unit);
        let range =
            ByteRange { start: active.cursor, end: part.end.min(base.saturating_add(slot_size)) };
        active.cursor = range.end;
        active.open += 1;
        if range.end == part.end {
            request.parts.pop_front();
            if let Some(next) = request.parts.front() {
                active.cursor = next.0.start;
            }
        }
        let last = request.parts.is_empty();
        let layout = match slot {
            Some(_) => Layout::Slot,
            None => Layout::Caller(request.address + (range.start - request.range.start)),
        };
        let window = Window::new(key, request.direction, range, base, slot);
        let window = self.windows.insert(window);
        let filled_link = request.link.filter(|_| request.direction == Direction::Read);
        if let Some(link) = filled_link {
            self.links[link].filling.push(window);
        }
        let claim = Claim {
            window,
            state: Arc::clone(&request.state),
            file: Arc::clone(&request.file),
            direction: request.direction,
            range,
            base,
            layout,
            alignment: request.alignment,
            way: (io, reason),
            edge: first || last,
        };
        if let Some(link) = filled_link {
            self.wake_link(link); // so that it is awake when the first piece is filled
        }
        self.list(key);
        claim
    }

    /// Takes in the plan of a claimed window.
    pub(crate) fn opened(&mut self, window: WindowKey, piece: u64, segments: Vec<Segment>) {
        let state = &mut self.windows[window];
        state.piece = piece;
        if state.direction == Direction::Write && state.slot.is_some() {
            state.waiting = segments;
            let link = self.transfers[state.transfer].request.link.expect("a slot has a link");
            self.links[link].unloading.push_back(window);
            self.wake_link(link);
        } else {
            self.push_segments(window, &segments);
        }
        self.windows[window].outstanding -= 1;
        self.close_if_done(window);
    }

    fn push_segments(&mut self, key: WindowKey, segments: &[Segment]) {
        let window = &mut self.windows[key];
        let request = &self.transfers[window.transfer].request;
        let drive = request.drive;
        let mut ops = Vec::with_capacity(segments.len());
        for segment in segments {
            let first = if segment.bounce { segment.wanted.start } else { segment.covered.start };
            let address = match window.slot {
                Some(_) => window.slot_address(first),
                None => request.address + (first - request.range.start),
            };
            let piece = window.piece_of(segment.wanted.start);
            window.expect(piece);
            ops.push(Op {
                owner: Owner::Piece(key, piece),
                file: Arc::clone(&request.file),
                work: Work::Move(request.direction),
                segment: *segment,
                address,
                moved: 0,
                empty: 0,
            });
        }
        for op in ops {
            match (op.segment.io, op.work) {
                (Io::Direct, _) => {
                    self.drives[drive].ready.push_back(op);
                    self.wake_drive(drive);
                }
                (Io::Buffered, Work::Move(Direction::Write)) => self.push_write(op),
                (Io::Buffered, _) => self.push_cached(op),
            }
        }
    }

    fn push_cached(&mut self, op: Op) {
        self.cached.push_back(op);
        self.effects.readers += 1;
    }

    /// Queues a write through the page cache behind those of the same file.
    fn push_write(&mut self, op: Op) {
        match self.writers.entry(op.file.identity()) {
            std::collections::hash_map::Entry::Occupied(mut waiting) => {
                waiting.get_mut().push_back(op);
            }
            std::collections::hash_map::Entry::Vacant(idle) => {
                idle.insert(VecDeque::new());
                self.push_cached(op);
            }
        }
    }

    /// Lets the next write of a file go, first in line: the same thread takes it, with warm caches.
    fn next_write(&mut self, file: (u64, u64)) {
        let Some(waiting) = self.writers.get_mut(&file) else { return };
        match waiting.pop_front() {
            Some(op) => {
                self.cached.push_front(op);
                self.effects.readers += 1;
            }
            None => {
                self.writers.remove(&file);
            }
        }
    }

    fn close_if_done(&mut self, key: WindowKey) {
        let Some(window) = self.windows.get(key) else { return };
        let stopped = self.transfers[window.transfer].stopped;
        let copied = match window.direction {
            Direction::Read => window.slot.is_none() || window.all_sent(),
            Direction::Write => window.waiting.is_empty(),
        };
        if window.outstanding > 0 || window.copies > 0 || !(copied || stopped) {
            return;
        }
        let window = self.windows.remove(key);
        let transfer = window.transfer;
        let link = self.transfers[transfer].request.link;
        if let (Some(link), Some(slot)) = (link, window.slot) {
            let state = &mut self.links[link];
            state.filling.retain(|&k| k != key);
            state.unloading.retain(|&k| k != key);
            state.free.push(slot);
            self.admit_waiting(link);
        }
        self.transfers[transfer].open -= 1;
        self.list(transfer);
        self.finish_if_done(transfer);
    }

    /// A slot came free: the transfer that has waited longest may open a window.
    fn admit_waiting(&mut self, link: usize) {
        if let Some(key) = self.links[link].waiting.pop_front() {
            self.openable.push_front(key);
            self.effects.readers += 1;
        }
    }

    // --- ops ---

    /// What a reader does next; `None`: nothing.
    pub(crate) fn take_reader_work(&mut self) -> Option<ReaderWork> {
        // Windows are opened ahead, while the other readers still have pieces to fill.
        if self.cached.len() < self.limits.readers
            && let Some(claim) = self.claim()
        {
            return Some(ReaderWork::Open(claim));
        }
        while let Some(op) = self.cached.pop_front() {
            if self.is_wanted(&op) {
                return Some(ReaderWork::Op(op));
            }
        }
        self.claim().map(ReaderWork::Open).or_else(|| self.link_to_grow().map(ReaderWork::Grow))
    }

    /// What a thread that waits for one transfer can do for it; `None`: nothing, or other transfers
    /// come first.
    pub(crate) fn take_work_of(&mut self, state: &Arc<State>) -> Option<ReaderWork> {
        let transfers = &self.transfers;
        let is_of = |key: usize| {
            transfers.get(key).is_some_and(|active| Arc::ptr_eq(&active.request.state, state))
        };
        let may_open = self.openable.front().is_some_and(|&key| is_of(key));
        if may_open && self.cached.len() < self.limits.readers
            && let Some(claim) = self.claim()
        {
            return Some(ReaderWork::Open(claim));
        }
        while let Some(op) = self.cached.front() {
            let key = match op.owner {
                Owner::Piece(window, _) => self.windows[window].transfer,
                Owner::Transfer(key) => key,
            };
            let own = self
                .transfers
                .get(key)
                .is_some_and(|active| Arc::ptr_eq(&active.request.state, state));
            if !own {
                return None;
            }
            let op = self.cached.pop_front()?;
            if self.is_wanted(&op) {
                return Some(ReaderWork::Op(op));
            }
        }
        None
    }

    /// The next op for a drive's ring; `None`: nothing.
    pub(crate) fn take_drive_op(&mut self, drive: usize) -> Option<Op> {
        while let Some(op) = self.drives[drive].ready.pop_front() {
            if self.is_wanted(&op) {
                return Some(op);
            }
        }
        None
    }

    /// Whether an op's transfer still wants it; if not, the op is counted out.
    fn is_wanted(&mut self, op: &Op) -> bool {
        let (Owner::Piece(window, _), Work::Move(direction)) = (op.owner, op.work) else {
            return true;
        };
        let active = &self.transfers[self.windows[window].transfer];
        let past_end = direction == Direction::Read && op.segment.wanted.start >= active.end;
        if !active.stopped && !past_end {
            return true;
        }
        self.count_out(op);
        false
    }

    fn count_out(&mut self, op: &Op) {
        if op.work == Work::Move(Direction::Write) && op.segment.io == Io::Buffered {
            self.next_write(op.file.identity());
        }
        let Owner::Piece(key, piece) = op.owner else { return };
        let window = &mut self.windows[key];
        window.complete(piece);
        if let Some(link) = self.transfers[window.transfer].request.link {
            self.wake_link(link);
        }
        self.close_if_done(key);
    }

    /// Takes an op back from a ring.
    pub(crate) fn complete(&mut self, completion: Completion) {
        let Completion { mut op, result, size, took_ns } = completion;
        let key = match op.owner {
            Owner::Piece(window, _) => self.windows[window].transfer,
            Owner::Transfer(key) => key,
        };
        let state = Arc::clone(&self.transfers[key].request.state);
        state.add_file_time(took_ns);
        let Work::Move(direction) = op.work else {
            if let Err(errno) = result {
                self.fail_op(key, &op, errno);
            }
            self.transfers[key].open -= 1;
            self.finish_if_done(key);
            return;
        };
        match result {
            Err(Errno::INTR | Errno::AGAIN) => return self.requeue(op),
            Err(errno) => self.fail_op(key, &op, errno),
            Ok(moved) => {
                op.moved += moved;
                let reached = op.segment.covered.start + op.moved;
                if reached < op.segment.wanted.end {
                    if direction == Direction::Write && moved > 0 {
                        return self.requeue(restart_aligned(op));
                    }
                    match size {
                        Some(size) if direction == Direction::Read && reached >= size => {
                            let active = &mut self.transfers[key];
                            active.end = active.end.min(reached);
                        }
                        _ => {
                            op.empty += u8::from(moved == 0);
                            if op.empty < EMPTY_READS_MAX {
                                return self.requeue(restart_aligned(op));
                            }
                            self.fail_op(key, &op, Errno::IO);
                        }
                    }
                }
                let until = reached.min(op.segment.wanted.end);
                let bytes = until.saturating_sub(op.segment.wanted.start);
                let link = self.transfers[key].request.link;
                state.add_bytes(route(link, op.segment.io), op.segment.reason, bytes);
                if link.is_none() || direction == Direction::Write {
                    state.add_done(bytes);
                }
            }
        }
        self.count_out(&op);
    }

    /// Puts an op that is not done back, first in line.
    fn requeue(&mut self, op: Op) {
        if op.is_direct() {
            let Owner::Piece(window, _) = op.owner else { return };
            let drive = self.transfers[self.windows[window].transfer].request.drive;
            self.drives[drive].ready.push_front(op);
            self.wake_drive(drive);
        } else {
            self.cached.push_front(op);
            self.effects.readers += 1;
        }
    }

    fn fail_op(&mut self, key: usize, op: &Op, errno: Errno) {
        let (operation, range) = match op.work {
            Work::Move(Direction::Read) => (Operation::Read, op.segment.wanted),
            Work::Move(Direction::Write) => (Operation::Write, op.segment.wanted),
            Work::Sync { .. } => (Operation::Sync, self.transfers[key].request.range),
        };
        let place = op.file.place(range.start, range.len());
        self.fail(key, Error::Io { operation, place, source: errno });
    }

    // --- copies ---

    /// The next copy for a link whose `queued` earlier ones are not done; `None`: nothing that is
    /// worth its 2.7 µs of the link now.
    pub(crate) fn next_copy(&mut self, link: usize, queued: usize) -> Option<Copy> {
        if queued >= 2 {
            return None;
        }
        while let Some(key) = self.links[link].unloading.pop_front() {
            let run = self.windows[key].whole();
            if self.transfers[self.windows[key].transfer].stopped {
                self.windows[key].waiting.clear();
                self.close_if_done(key);
                continue;
            }
            return Some(self.begin_copy(link, key, run));
        }
        loop {
            let (key, run) = self.best_run(link, queued)?;
            let window = &mut self.windows[key];
            let active = &self.transfers[window.transfer];
            let end = if active.stopped { 0 } else { active.end };
            let range = ByteRange { start: run.range.start, end: run.range.end.min(end) };
            window.mark_sent(run.pieces);
            if range.is_empty() {
                self.close_if_done(key);
                continue;
            }
            return Some(self.begin_copy(link, key, Run { range, ..run }));
        }
    }

    /// A full window's rest, oldest first; else, where the link would idle, the longest run.
    fn best_run(&self, link: usize, queued: usize) -> Option<(WindowKey, Run)> {
        let mut best: Option<(WindowKey, Run)> = None;
        for &key in &self.links[link].filling {
            let window = &self.windows[key];
            let Some(run) = window.longest_run() else { continue };
            if window.is_full() {
                return Some((key, run));
            }
            if best.is_none_or(|(_, other)| run.range.len() > other.range.len()) {
                best = Some((key, run));
            }
        }
        best.filter(|(_, run)| queued == 0 || run.range.len() * 2 >= self.limits.slot_size)
    }

    fn begin_copy(&mut self, link: usize, key: WindowKey, run: Run) -> Copy {
        let window = &mut self.windows[key];
        window.copies += 1;
        self.links[link].copies += 1;
        let request = &self.transfers[window.transfer].request;
        Copy {
            window: key,
            direction: window.direction,
            run,
            host: window.slot_address(run.range.start),
            device: request.address + (run.range.start - request.range.start),
        }
    }

    /// Takes a copy back from the GPU.
    pub(crate) fn copied(&mut self, link: usize, copy: &Copy, took_ns: u64, failed: Option<Error>) {
        let window = &mut self.windows[copy.window];
        window.copies -= 1;
        self.links[link].copies -= 1;
        let key = window.transfer;
        let segments = std::mem::take(&mut window.waiting);
        let active = &self.transfers[key];
        active.request.state.add_copy_time(took_ns);
        match failed {
            Some(error) => self.fail(key, error),
            None if copy.direction == Direction::Read => {
                active.request.state.add_done(copy.run.range.len());
            }
            None if !active.stopped => self.push_segments(copy.window, &segments),
            None => {}
        }
        self.close_if_done(copy.window);
    }

    /// A link where a transfer waits for a slot while nothing is copied: more slots would help.
    fn link_to_grow(&mut self) -> Option<usize> {
        self.links.iter_mut().position(|link| {
            let starves = !link.waiting.is_empty() && link.copies == 0 && link.unloading.is_empty();
            let grows = starves && !link.growing && link.slots < link.slots_max;
            link.growing |= grows;
            grows
        })
    }

    // --- sleeping and waking ---

    /// Notes that a worker of the drive sleeps until its next op.
    pub(crate) fn drive_sleeps(&mut self, drive: usize) {
        self.drives[drive].asleep += 1;
    }

    /// Notes that it woke by itself.
    pub(crate) fn drive_woke(&mut self, drive: usize) {
        let asleep = &mut self.drives[drive].asleep;
        *asleep = asleep.saturating_sub(1);
    }

    /// Notes that a link's submitter sleeps until something is filled, or that it woke.
    pub(crate) fn link_sleeps(&mut self, link: usize, asleep: bool) {
        self.links[link].asleep = asleep;
    }

    /// Whether nothing has been pushed since the submitter fell asleep.
    pub(crate) fn link_is_asleep(&self, link: usize) -> bool {
        self.links[link].asleep
    }

    fn wake_drive(&mut self, drive: usize) {
        let state = &mut self.drives[drive];
        if state.asleep > 0 {
            state.asleep -= 1;
            self.effects.drives.push(drive);
        }
    }

    fn wake_link(&mut self, link: usize) {
        let state = &mut self.links[link];
        if state.asleep {
            state.asleep = false;
            self.effects.links.push(link);
        }
    }
}

/// The route of bytes that go between a file, by `io`, and a GPU or the host.
fn route(link: Option<usize>, io: Io) -> Route {
    match (link, io) {
        (None, _) => Route::Host,
        (Some(_), Io::Direct) => Route::Staged,
        (Some(_), Io::Buffered) => Route::Cached,
    }
}

/// A direct op goes on only at an aligned place: what came beyond the last one is read again.
fn restart_aligned(mut op: Op) -> Op {
    if op.is_direct()
        && let Ok(direct) = op.file.direct()
    {
        op.moved = align_down(op.moved, direct.alignment().offset.into());
    }
    op
}
