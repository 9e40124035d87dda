//! Opening windows, turning their segments into ops, and closing them.

use std::sync::Arc;

use forebay_base::units::{ByteRange, align_down};

use super::Scheduler;
use super::link::Link;
use super::openable::Listed;
use super::request::Request;
use super::turns::Turns;
use super::waiting::Class;
use super::work::Claim;
use crate::plan::{Direction, Layout, Reason, Segment};
use crate::queue::op::{Line, Op, OpKind, Owner, WindowKey};
use crate::queue::window::{Slot, Window};

impl Scheduler {
    /// Claims the next window to be planned, if one may be opened now.
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
        let now = self.stages.now_ns();
        let active = &mut self.transfers[key];
        active.waits_since_ns = now;
        let promised = std::mem::take(&mut active.promised);
        let Request { drive, priority, .. } = active.request;
        let line = Class::new(drive, priority, self.need(key));
        let since = self.links[link].waiting.push(line, key);
        self.transfers[key].listed = Listed::Link(since);
        self.drives[drive].promised -= promised;
        self.open_for(drive);
    }

    pub(super) fn open(&mut self, key: usize, slot: Option<Slot>) -> Claim {
        let len = slot.map_or(self.next_window_len(key), |slot| slot.len);
        let (block_size, now) = (self.block_size(key), self.stages.now_ns());
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
        let for_readers = active.pace == Line::Readers && request.direction == Direction::Read;
        self.readers.planned += usize::from(for_readers);
        if range.end == part.end {
            request.parts.pop_front();
            if let Some(next) = request.parts.front() {
                active.cursor = next.0.start;
            }
        }
        let last = request.parts.is_empty();
        // The link has copies of other transfers before and after this window.
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
            is_peer: request.peer.is_some(),
            edge: (first || last) && alone,
            block_size,
            readers: self.limits.readers,
        };
        if let Some(link) = filled_link.filter(|_| self.transfers[key].pace == Line::Readers) {
            self.wake_link(link); // so that it is running when the first piece is filled
        }
        slot.into_iter().for_each(|slot| self.trace_slot(slot, Some(range)));
        self.list(key);
        claim
    }

    /// Accepts the plan of a claimed window and queues its ops.
    pub(crate) fn opened(&mut self, window: WindowKey, piece: u64, segments: Vec<Segment>) {
        if self.is_closed() {
            return;
        }
        let state = &mut self.windows[window];
        state.piece = piece;
        let (key, promised) = (state.transfer, std::mem::take(&mut state.promised));
        self.readers.planned -= usize::from(std::mem::take(&mut state.for_readers));
        let Request { drive, link, .. } = self.transfers[key].request;
        let start = state.range.start;
        // Ops in the queue of a drive that hangs are never taken, so don't queue unwanted ones.
        let segments = if self.transfers[key].is_stopped() { Vec::new() } else { segments };
        self.note_pace(key, start, &segments);
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
        let window = &mut self.windows[key];
        let transfer = window.transfer;
        let request = &self.transfers[transfer].request;
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
            ops.push(Op {
                owner: Owner::Piece(key, piece),
                file: Arc::clone(file),
                shift,
                batch: request.batch.clone().filter(|batch| !batch.is_one(segment.wanted)),
                port: request.peer.as_ref().map(|peer| Arc::clone(&peer.port)),
                kind: OpKind::Move(request.direction),
                segment: *segment,
                address,
                moved: 0,
                empty: 0,
                again: 0,
                counted: None,
                touch: None,
            });
        }
        for op in ops {
            if op.is_write() {
                self.push_write(transfer, op);
            } else {
                self.queue(transfer, op);
            }
        }
    }

    /// Queues an op of a transfer and wakes a thread for it.
    pub(super) fn queue(&mut self, key: usize, op: Op) {
        let line = self.line_of(key, &op);
        self.push_op(key, line, op);
        self.wake_for(key, line);
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
        if !stopped {
            self.count_came(transfer, window.range);
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

    /// Reports a completed window to its transfer's gate.
    fn count_came(&mut self, transfer: usize, range: ByteRange) {
        let Some(batch) = &self.transfers[transfer].request.batch else { return };
        let Some(gate) = batch.gate() else { return };
        if gate.came(batch.strip(), range) {
            self.effects.gates.push(Arc::clone(gate));
        }
    }

    /// Gives free slots to the transfers that have waited longest and whose drives may hold more.
    pub(super) fn admit_waiting(&mut self, link: usize) {
        // If only short transfers are still waiting, they may have more.
        while self.admit_heads(link) && self.links[link].waiting.has_first() {}
    }

    /// Serves each queue head once; returns true if any long transfer got a slot.
    fn admit_heads(&mut self, link: usize) -> bool {
        let mut served_others = false;
        let mut heads = self.links[link].waiting.heads();
        while !self.links[link].slots.is_empty()
            && let Some((key, line)) = heads.next()
        {
            let need = self.need(key);
            let Request { drive, priority, .. } = self.transfers[key].request;
            let Link { slots, waiting, .. } = &mut self.links[link];
            let now = Class::new(drive, priority, need);
            if now != line {
                let since = waiting.change(line, now, &mut heads);
                since.into_iter().for_each(|s| self.transfers[key].listed = Listed::Link(s));
            } else if let Some(slot) = slots.take(drive, need) {
                waiting.serve(line, &mut heads);
                served_others |= !line.is_first;
                self.give_waited_for(key, slot);
            }
        }
        served_others
    }

    /// Gives a waiting transfer its slot.
    fn give_waited_for(&mut self, key: usize, slot: Slot) {
        let active = &mut self.transfers[key];
        self.stages.count_slot_wait(active.waits_since_ns);
        active.slot = Some(slot);
        if active.is_ring_to_open() {
            self.offer_to_ring(key, Turns::push_first);
        } else {
            // Before transfers that need no slot, but after urgent ones.
            let active = &mut self.transfers[key];
            let ticket = self.readers.openable.push_first(key, active.request.priority);
            active.listed = Listed::Openable(ticket);
            self.effects.work += 1;
        }
    }
}
