//! Opening windows of transfers whose bytes come from a drive.
//!
//! Resident bytes use whole slots, which readers plan ahead. Bytes from a drive should use little
//! memory, which then stays in a CPU cache (`docs/internals/hot-slots.md`). So a window holds one
//! request, and the worker of the drive's ring plans it only when the drive may have one more in
//! flight. Only requests in flight hold memory.

use std::sync::Arc;

use forebay_base::units::align_down;

use super::Scheduler;
use super::active::{Active, Queue};
use super::openable::Listed;
use super::request::Request;
use super::slots::{self, Need};
use super::turns::{Priority, Turn, Turns};
use super::work::Claim;
use crate::plan::{Direction, Io, Reason, Segment};
use crate::queue::op::{Line, WindowKey};
use crate::queue::window::PIECES_MAX;
use crate::transfer::State;

impl Scheduler {
    /// Gives a transfer a turn at its drive's ring, which then opens a window of it.
    pub(super) fn offer_to_ring(&mut self, key: usize, push: fn(&mut Turns, Turn)) {
        let active = &mut self.transfers[key];
        active.listed = Listed::Ring;
        let drive = active.request.drive;
        if let Some(turn) = active.turn(key, Line::Direct) {
            push(&mut self.drives[drive].direct, turn);
        }
        self.wake_ring_for(drive);
    }

    /// Claims the next window of the transfer in turn. `None` if the transfer has ended, opens no
    /// window here, or waits for a slot.
    pub(super) fn claim_in_turn(&mut self, turn: Turn) -> Option<Claim> {
        let same = self.transfers.get(turn.key).filter(|a| a.serial == turn.serial);
        let is_offered = same?.listed == Listed::Ring;
        is_offered.then(|| self.claim_of(turn.key))?
    }

    /// True if the drive's ring serves a request: the file allows io_uring and the route is not
    /// direct.
    pub(super) fn has_ring(&self, request: &Request) -> bool {
        let has_ring = self.drives.get(request.drive).is_some_and(|drive| drive.ring.is_some());
        has_ring && request.peer.is_none() && request.file.allows_io_uring()
    }

    /// Assigns a drive to a ring. If the ring has failed, threads keep serving the drive.
    pub(crate) fn attach(&mut self, drive: usize, ring: usize) {
        if self.rings[ring].is_lost {
            return;
        }
        self.rings[ring].drives.push_back(drive);
        self.drives[drive].ring = Some(ring);
    }

    /// Moves the drives of a failed ring to threads.
    pub(crate) fn lose_ring(&mut self, ring: usize) {
        self.rings[ring].is_lost = true;
        self.rings[ring].to_cancel.clear();
        for drive in std::mem::take(&mut self.rings[ring].drives) {
            self.drives[drive].ring = None;
            self.drives[drive].direct = Turns::default();
            let of_drive = self.transfers.iter().filter(|(_, a)| a.request.drive == drive);
            for key in of_drive.map(|(key, _)| key).collect::<Vec<_>>() {
                self.leave_ring(key);
            }
        }
    }

    /// Moves a transfer's ops for the drive's ring to the pool.
    fn leave_ring(&mut self, key: usize) {
        let active = &mut self.transfers[key];
        let Queue { ops, .. } = std::mem::take(&mut active.direct);
        if active.pace == Line::Direct {
            active.pace = Line::Waits;
        }
        let was_to_open = active.listed == Listed::Ring;
        if was_to_open {
            active.listed = Listed::Nowhere;
        }
        self.drives[active.request.drive].queued -= ops.len();
        ops.into_iter().for_each(|op| self.queue(key, op));
        if was_to_open {
            self.list(key);
        }
    }

    /// Records, from the plan of a window that starts at `start`, which queue fills the windows.
    /// Also records that an attempt found no resident pages.
    pub(super) fn note_pace(&mut self, key: usize, start: u64, segments: &[Segment]) {
        let direction = self.transfers[key].request.direction;
        let has_ring = self.has_ring(&self.transfers[key].request);
        let reads = direction == Direction::Read;
        let waits = |s: &Segment| s.io == Io::Direct || (reads && !s.reason.is_in_memory());
        let slot_size = self.limits.slot_size;
        let active = &mut self.transfers[key];
        active.pace = if has_ring && segments.iter().any(|s| s.io == Io::Direct) {
            Line::Direct
        } else if segments.iter().any(waits) {
            Line::Waits
        } else {
            Line::Cached
        };
        if start >= active.tried && segments.iter().any(|s| s.reason == Reason::TriedNotResident) {
            // An attempt starts read-ahead, so there is at most one per slot's worth of bytes.
            active.tried = align_down(start, slot_size).saturating_add(slot_size);
        }
    }

    /// Bytes that a transfer's drive may have in flight if its ring opens the next window; no slots
    /// beyond these bytes are taken. Urgent transfers have no bound, and neither have windows
    /// shorter than a request, whose parts are mostly empty.
    pub(super) fn may_fly(&self, key: usize) -> u64 {
        let Request { drive, direction, priority, .. } = self.transfers[key].request;
        let is_short = self.left_of_part(key) < self.request_size(key);
        if !self.transfers[key].is_ring_to_open() || is_short || priority == Priority::Urgent {
            return u64::MAX;
        }
        let requests = self.drives[drive].depth.requests(direction) as u64;
        requests.saturating_mul(self.request_size(key))
    }

    /// Bytes of a transfer's current part that are in no window yet, aligned down to its unit.
    fn left_of_part(&self, key: usize) -> u64 {
        let Active { request, cursor, .. } = &self.transfers[key];
        let base = align_down(*cursor, request.alignment.map_or(1, |alignment| alignment.offset));
        request.parts.front().map_or(0, |part| part.0.end.saturating_sub(base))
    }

    /// True if opening a transfer's next window, a whole slot of resident bytes, now would not fill
    /// it sooner. This holds if other windows are being filled for its link, with pieces left for
    /// every reader. If many callers each filled their own slot, they would use more memory than
    /// the CPU cache holds.
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
        *pace == Line::Cached
            && !insists
            && request.priority == Priority::Normal
            && request.direction == Direction::Read
            && self.readers.queued + self.readers.planned * pieces >= self.limits.readers
            && self.next_window_len(key) >= self.limits.slot_size
            && request.link.is_some_and(is_busy)
    }

    /// True if a transfer left to readers by its caller has no window so far.
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
        self.transfers[key].request.range.len() <= self.limits.slot_size / slots::PARTS
    }

    /// The slot requirements of a transfer's next window.
    pub(super) fn need(&self, key: usize) -> Need {
        let (len, in_flight) = (self.next_window_len(key), self.may_fly(key));
        let Active { has_opened, request, .. } = &self.transfers[key];
        let is_first = !has_opened && self.is_short(key);
        let waiting = request.link.map(|link| &self.links[link].waiting);
        let others_wait =
            is_first && waiting.is_some_and(|waiting| waiting.has_others(request.drive));
        Need { len, in_flight, is_first, others_wait }
    }

    /// Maximum bytes of a transfer's next window: parts of slots if a drive fills them, or if they
    /// hold all that is left.
    pub(super) fn next_window_len(&self, key: usize) -> u64 {
        let slot_size = self.limits.slot_size;
        let request_size = self.request_size(key);
        let left = self.left_of_part(key);
        match (self.transfers[key].pace, self.transfers[key].request.link) {
            (Line::Cached, Some(_)) if left <= slot_size / slots::PARTS => left,
            (Line::Cached, _) => slot_size,
            // Each piece of a batch may be a request, so only a few are cut at a time.
            (_, None) if self.transfers[key].request.batch.is_some() => request_size,
            (_, None) => slot_size.min(request_size * PIECES_MAX),
            (Line::Direct, Some(link))
                if self.transfers[key].is_ring_to_open() && !self.links[link].is_behind() =>
            {
                request_size
            }
            // A link that is behind needs copies larger than single requests.
            (_, Some(_)) => (slot_size / slots::PARTS).max(self.limits.segment),
        }
    }

    /// True if a window of a link may be filled before parking would have paid off. False if rings
    /// fill all open windows, one request after the other.
    pub(crate) fn fills_soon(&self, link: usize) -> bool {
        let filling = &self.links[link].filling;
        let by_ring = |key: &usize| self.transfers[self.windows[*key].transfer].is_ring_to_open();
        filling.is_empty() || !filling.iter().all(by_ring)
    }
}
