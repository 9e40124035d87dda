//! Opening windows, turning their segments into ops, and closing them.
//!
//! Resident bytes use whole slots, which readers plan ahead. A window of bytes from a drive is the
//! smallest part of a slot that holds a request; if the link is behind, a quarter of a slot.

use std::sync::Arc;

use forebay_base::units::{ByteRange, align_down};

use super::Scheduler;
use super::active::{Active, Request};
use super::link::{self, Class, Link, Need};
use super::round_robin::{Listed, QueueEnd};
use super::work::Claim;
use crate::options::Priority;
use crate::plan::{Direction, Io, Layout, Reason, Segment};
use crate::queue::op::{Executor, Op, OpKind, Owner, WindowKey};
use crate::queue::window::{Filler, PIECES_MAX, Slot, Window};
use crate::transfer::State;

impl Scheduler {
    /// Claims the next window to be planned, if a window may be opened now.
    pub(crate) fn claim(&mut self) -> Option<Claim> {
        while let Some(key) = self.readers.openable.pop() {
            if let Some(claim) = self.claim_of(key) {
                return Some(claim);
            }
        }
        None
    }

    /// Opens a window of a transfer that was just removed from its list. `None` if it must wait for
    /// a slot.
    pub(super) fn claim_of(&mut self, key: usize) -> Option<Claim> {
        let need = self.need(key);
        let active = &mut self.transfers[key];
        active.listed = Listed::Nowhere;
        let drive = active.request.drive;
        let slot = match active.request.link {
            None => None,
            Some(link) => match active.slot.take() {
                Some(slot) => Some(slot),
                None => match self.links[link].slots.take(drive, need) {
                    Some(slot) => Some(slot),
                    None => {
                        self.wait_for_slot(key, link);
                        return None;
                    }
                },
            },
        };
        Some(self.open(key, slot))
    }

    /// Queues a transfer for a slot, urgent ones first. Its drive serves other transfers until
    /// then.
    pub(super) fn wait_for_slot(&mut self, key: usize, link: usize) {
        let now = self.now_ns;
        let active = &mut self.transfers[key];
        active.waits_since_ns = now;
        let promised = std::mem::take(&mut active.promised);
        let Request { drive, priority, .. } = active.request;
        let class = Class::new(drive, priority, self.need(key));
        let since = self.links[link].waiting.push(class, key);
        self.transfers[key].listed = Listed::Link(since);
        self.drives[drive].promised -= promised;
        self.open_for(drive);
    }

    pub(super) fn open(&mut self, key: usize, slot: Option<Slot>) -> Claim {
        let len = slot.map_or(self.next_window_len(key), |slot| slot.len);
        let (block_size, now) = (self.block_size(key), self.now_ns);
        let active = &mut self.transfers[key];
        let request = &mut active.request;
        let (part, io, reason) = *request.parts.front().expect("listed only with bytes left");
        let is_tried = reason == Reason::NotResident && active.cursor < active.tried;
        let reason = if is_tried { Reason::TriedNotResident } else { reason };
        let unit = request.alignment.map_or(1, |a| a.offset);
        let first = active.cursor == request.range.start;
        let base = align_down(active.cursor, unit);
        let most = request.end_of_window(active.cursor);
        let end = part.end.min(base.saturating_add(len)).min(most);
        let range = ByteRange { start: active.cursor, end };
        active.cursor = range.end;
        active.open += 1;
        active.has_opened = true;
        let for_readers = active.pace == Executor::Readers && request.direction == Direction::Read;
        self.readers.planned += usize::from(for_readers);
        if range.end == part.end {
            request.parts.pop_front();
            if let Some(next) = request.parts.front() {
                active.cursor = next.0.start;
            }
        }
        let last = request.parts.is_empty();
        // Copies of other transfers precede and follow this window on the link.
        let alone = request.link.is_none_or(|link| {
            self.links[link].filling.iter().all(|&other| self.windows[other].transfer == key)
        });
        let layout = match slot {
            Some(_) => Layout::Slot,
            None => Layout::Caller(request.address + (range.start - request.range.start)),
        };
        let mut window = Window::new(key, request.direction, range, base, slot);
        window.for_readers = for_readers;
        window.promised = std::mem::take(&mut active.promised);
        window.filled_ns = now;
        window.index = active.windows.len();
        let window = self.windows.insert(window);
        active.windows.push(window);
        let filled_link = request.link.filter(|_| request.direction == Direction::Read);
        if let Some(link) = filled_link {
            self.links[link].filling.push(window);
        }
        let claim = Claim {
            window,
            state: Arc::clone(&request.state),
            file: Arc::clone(&request.file),
            batch: request.batch.clone(),
            direction: request.direction,
            range,
            base,
            layout,
            alignment: request.alignment,
            how: (io, reason),
            is_direct: request.direct.is_some(),
            edge: (first || last) && alone,
            block_size,
            readers: self.limits.readers,
        };
        if let Some(link) = filled_link.filter(|_| self.transfers[key].pace == Executor::Readers) {
            self.wake_link(link); // so that it is running when the first piece is filled
        }
        slot.into_iter().for_each(|slot| self.trace_slot(slot, Some(range)));
        self.list(key);
        claim
    }

    /// Accepts the plan of a claimed window and queues its ops.
    pub(crate) fn opened(&mut self, window: WindowKey, piece: u64, segments: Vec<Segment>) {
        if self.has_failed() {
            return;
        }
        let state = &mut self.windows[window];
        state.piece = piece;
        let (key, promised) = (state.transfer, std::mem::take(&mut state.promised));
        self.readers.planned -= usize::from(std::mem::take(&mut state.for_readers));
        let Request { drive, link, .. } = self.transfers[key].request;
        let start = state.range.start;
        // Ops in the queue of a drive that hangs are never popped, so don't queue unwanted ones.
        let segments = if self.transfers[key].is_stopped() { Vec::new() } else { segments };
        let has_ring = self.has_ring(&self.transfers[key].request);
        let active = &mut self.transfers[key];
        let reads = active.request.direction == Direction::Read;
        let waits = |s: &Segment| s.io == Io::ODirect || (reads && !s.reason.is_in_memory());
        // The queue that fills the windows.
        active.pace = if has_ring && segments.iter().any(|s| s.io == Io::ODirect) {
            Executor::Ring
        } else if segments.iter().any(waits) {
            Executor::Pool
        } else {
            Executor::Readers
        };
        if start >= active.tried && segments.iter().any(|s| s.reason == Reason::TriedNotResident) {
            // An attempt starts read-ahead, so at most a single attempt is made per slot's worth of
            // bytes.
            let slot_size = self.limits.slot_size;
            active.tried = align_down(start, slot_size).saturating_add(slot_size);
        }
        let state = &mut self.windows[window];
        if state.direction == Direction::Write && state.slot.is_some() && !segments.is_empty() {
            state.waiting = segments;
            let link = link.expect("a slot has a link");
            self.links[link].unloading.push_back(window);
            self.wake_link(link);
        } else {
            self.push_segments(window, &segments);
        }
        self.windows[window].outstanding -= 1;
        self.drives[drive].promised -= promised;
        self.open_for(drive);
        // The number and size of the windows that it may open may have changed.
        self.list(key);
        link.into_iter().for_each(|link| self.admit_waiting(link));
        self.close_if_done(window);
    }

    pub(super) fn push_segments(&mut self, key: WindowKey, segments: &[Segment]) {
        let transfer = self.windows[key].transfer;
        let request = &self.transfers[transfer].request;
        let reads = request.direction == Direction::Read;
        let demotes = reads && request.link.is_some_and(|link| self.is_ending(link));
        let window = &mut self.windows[key];
        let mut ops = Vec::with_capacity(segments.len());
        for segment in segments {
            let first = if segment.bounce { segment.wanted.start } else { segment.covered.start };
            let address = match (window.slot, &request.batch) {
                (Some(_), _) => window.slot_address(first),
                (None, Some(batch)) => batch.address_of(first),
                (None, None) => request.address + (first - request.range.start),
            };
            let piece = window.piece_of(segment.wanted.start);
            window.expect(piece);
            let (file, shift) = match &request.batch {
                Some(batch) => batch.source_of(segment.wanted.start),
                None => (&request.file, 0),
            };
            let (owner, kind) = (Owner::Piece(key, piece), OpKind::Move(request.direction));
            let batch = request.batch.clone().filter(|batch| !batch.is_one(segment.wanted));
            let port = request.direct.as_ref().map(|direct| Arc::clone(&direct.port));
            let op = Op::new(owner, Arc::clone(file), kind, *segment, address);
            ops.push(Op { shift, batch, port, demotes, ..op });
        }
        for op in ops {
            if op.is_write() {
                self.push_write(transfer, op);
            } else {
                self.queue(transfer, op, QueueEnd::Back);
            }
        }
    }

    pub(super) fn close_if_done(&mut self, key: WindowKey) {
        let Some(window) = self.windows.get(key) else { return };
        let stopped = self.transfers[window.transfer].is_stopped();
        let copied = match window.direction {
            Direction::Read => window.slot.is_none() || window.all_sent(),
            Direction::Write => window.waiting.is_empty(),
        };
        if window.outstanding > 0 || window.copies > 0 || !(copied || stopped) {
            return;
        }
        let window = self.windows.remove(key);
        let transfer = window.transfer;
        let others = &mut self.transfers[transfer].windows;
        others.swap_remove(window.index);
        others.get(window.index).into_iter().for_each(|&moved| {
            self.windows[moved].index = window.index;
        });
        if !stopped
            && let Some(batch) = &self.transfers[transfer].request.batch
            && let Some(gate) = batch.gate()
            && gate.arrive(batch.strip(), window.range)
        {
            self.effects.gates.push(Arc::clone(gate));
        }
        let Request { link, drive, .. } = self.transfers[transfer].request;
        if let (Some(link), Some(slot)) = (link, window.slot) {
            let state = &mut self.links[link];
            state.forget(key);
            state.slots.give(drive, slot);
            self.trace_slot(slot, None);
            self.admit_waiting(link);
        }
        self.transfers[transfer].open -= 1;
        self.list(transfer);
        self.finish_if_done(transfer);
    }

    /// Gives free slots to the transfers that have waited longest and whose drives may hold more.
    pub(super) fn admit_waiting(&mut self, link: usize) {
        let mut served_others = true;
        // If only short transfers are still waiting after the rest were served, they may have more.
        while std::mem::take(&mut served_others) {
            // Every head of a queue is served once.
            let mut heads = self.links[link].waiting.heads();
            while !self.links[link].slots.is_empty()
                && let Some((key, class)) = heads.next()
            {
                let need = self.need(key);
                let Request { drive, priority, .. } = self.transfers[key].request;
                let Link { slots, waiting, .. } = &mut self.links[link];
                let now = Class::new(drive, priority, need);
                if now != class {
                    let since = waiting.change(class, now, &mut heads);
                    since.into_iter().for_each(|s| self.transfers[key].listed = Listed::Link(s));
                } else if let Some(slot) = slots.take(drive, need) {
                    waiting.serve(class, &mut heads);
                    served_others |= !class.is_first;
                    self.give_waited_for(key, slot);
                }
            }
            served_others &= self.links[link].waiting.has_first();
        }
    }

    /// Gives a waiting transfer its slot.
    fn give_waited_for(&mut self, key: usize, slot: Slot) {
        let active = &mut self.transfers[key];
        self.statistics.slot_wait.add(self.now_ns.saturating_sub(active.waits_since_ns));
        active.slot = Some(slot);
        if active.is_ring_to_open() {
            self.offer_to_ring(key, QueueEnd::Front);
        } else {
            self.add_openable(key);
        }
    }

    /// Bytes of a transfer's current part that are in no window yet, aligned down to its unit.
    fn left_of_part(&self, key: usize) -> u64 {
        let Active { request, cursor, .. } = &self.transfers[key];
        let base = align_down(*cursor, request.alignment.map_or(1, |alignment| alignment.offset));
        request.parts.front().map_or(0, |part| part.0.end.saturating_sub(base))
    }

    /// True if opening a transfer's next window, a whole slot of resident bytes, now would not fill
    /// it sooner. This holds if other windows are being filled for its link, with pieces for every
    /// reader. If many callers filled separate slots, they would use more memory than the CPU cache
    /// holds.
    pub(super) fn can_wait(&self, key: usize) -> bool {
        let Active { pace, request, insists, .. } = &self.transfers[key];
        // Readers may block in files without support for RWF_NOWAIT.
        let is_quick = |&other: &WindowKey| {
            let window = &self.windows[other];
            let file = self.transfers[window.transfer].request.file_at(window.range.start);
            file.is_memory() || file.supports_nowait()
        };
        let is_busy = |link: usize| {
            let filling = &self.links[link].filling;
            !filling.is_empty() && filling.iter().all(is_quick)
        };
        // A window that is being planned will have a slot's worth of pieces.
        let pieces = usize::try_from(self.limits.slot_size / self.limits.segment).unwrap_or(1);
        *pace == Executor::Readers
            && !insists
            && request.priority == Priority::Normal
            && request.direction == Direction::Read
            && self.readers.queued + self.readers.planned * pieces >= self.readers_at_once()
            && self.next_window_len(key) >= self.limits.slot_size
            && request.link.is_some_and(is_busy)
    }

    /// True if a transfer that its caller handed to readers lacks a window so far.
    pub(crate) fn is_left_to_readers(&self, state: &Arc<State>) -> bool {
        self.shares_of(state).any(|key| !self.transfers[key].has_opened && self.can_wait(key))
    }

    /// Makes a transfer's caller open its windows itself, since all readers may hang.
    pub(crate) fn insist(&mut self, state: &Arc<State>) {
        for key in self.shares_of(state) {
            self.transfers[key].insists = true;
        }
    }

    /// True if the transfer fits a quarter of a slot.
    pub(super) fn is_short(&self, key: usize) -> bool {
        self.transfers[key].request.range.len() <= self.limits.slot_size / link::PARTS
    }

    /// The slot requirements of a transfer's next window.
    pub(super) fn need(&self, key: usize) -> Need {
        let (len, block_size) = (self.next_window_len(key), self.block_size(key));
        let active @ Active { has_opened, request, .. } = &self.transfers[key];
        // No slots beyond the bytes that the drive may have in flight are leased if its ring opens
        // the window. Urgent transfers have no bound, and neither have windows shorter than a
        // request, whose parts are mostly empty.
        let is_long = self.left_of_part(key) >= block_size;
        let filler = match active.pace {
            _ if request.priority == Priority::Urgent || request.direction == Direction::Write => {
                Filler::Other
            }
            Executor::Readers => Filler::Readers,
            Executor::Ring if is_long => Filler::Ring,
            Executor::Ring | Executor::Pool => Filler::Other,
        };
        let depth = self.drives[request.drive].depth(request.direction).depth() as u64;
        let in_flight = depth.saturating_mul(block_size);
        let is_first = !has_opened && self.is_short(key);
        let waiting = request.link.map(|link| &self.links[link].waiting);
        let others_wait =
            is_first && waiting.is_some_and(|waiting| waiting.has_others(request.drive));
        Need { len, filler, in_flight, is_first, others_wait }
    }

    /// Bytes that the slot of a transfer's next window holds at least: parts of slots if a drive
    /// fills them, or if they hold all remaining bytes. The window fills the whole part that it
    /// gets. Without a slot, the most bytes of the window.
    pub(super) fn next_window_len(&self, key: usize) -> u64 {
        let slot_size = self.limits.slot_size;
        let block_size = self.block_size(key);
        let left = self.left_of_part(key);
        match (self.transfers[key].pace, self.transfers[key].request.link) {
            (Executor::Readers, Some(_)) if left <= slot_size / link::PARTS => left,
            (Executor::Readers, _) => slot_size,
            // A piece of a batch may be a request, so only a few are cut at a time.
            (_, None) if self.transfers[key].request.batch.is_some() => block_size,
            (_, None) => slot_size.min(block_size * PIECES_MAX),
            (Executor::Ring, Some(link))
                if self.transfers[key].is_ring_to_open() && !self.links[link].is_behind() =>
            {
                block_size
            }
            // A link that is behind needs copies larger than single requests.
            (_, Some(_)) => (slot_size / link::PARTS).max(self.limits.segment),
        }
    }

    /// True if a window of a link may be filled before parking would have paid off. False if rings
    /// fill all open windows, a single request at a time.
    pub(crate) fn fills_soon(&self, link: usize) -> bool {
        let filling = &self.links[link].filling;
        let by_ring = |key: &usize| self.transfers[self.windows[*key].transfer].is_ring_to_open();
        filling.is_empty() || !filling.iter().all(by_ring)
    }
}
