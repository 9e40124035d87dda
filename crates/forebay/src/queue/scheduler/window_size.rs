//! The size of a transfer's next window, and what it needs of a slot.
//!
//! Resident bytes use whole slots, which readers plan ahead. A window of bytes from a drive is the
//! smallest part of a slot that holds a request; if the link is behind, a quarter of a slot.

use std::sync::Arc;

use forebay_base::units::align_down;

use super::Scheduler;
use super::active::Active;
use super::request::Request;
use super::slots::{self, Need};
use super::turns::Priority;
use crate::plan::{Direction, Io, Reason, Segment};
use crate::queue::op::{Line, WindowKey};
use crate::queue::window::PIECES_MAX;
use crate::transfer::State;

impl Scheduler {
    /// Records, from the plan of a window that starts at `start`, which queue fills the windows.
    /// Also records that an attempt found no resident pages.
    pub(super) fn note_pace(&mut self, key: usize, start: u64, segments: &[Segment]) {
        let direction = self.transfers[key].request.direction;
        let has_ring = self.has_ring(&self.transfers[key].request);
        let reads = direction == Direction::Read;
        let waits = |s: &Segment| s.io == Io::ODirect || (reads && !s.reason.is_in_memory());
        let slot_size = self.limits.slot_size;
        let active = &mut self.transfers[key];
        active.pace = if has_ring && segments.iter().any(|s| s.io == Io::ODirect) {
            Line::Ring
        } else if segments.iter().any(waits) {
            Line::Pool
        } else {
            Line::Readers
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
        let is_short = self.left_of_part(key) < self.block_size(key);
        if !self.transfers[key].is_ring_to_open() || is_short || priority == Priority::Urgent {
            return u64::MAX;
        }
        let requests = self.drives[drive].depth.requests(direction) as u64;
        requests.saturating_mul(self.block_size(key))
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
        *pace == Line::Readers
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

    /// Bytes that the slot of a transfer's next window holds at least: parts of slots if a drive
    /// fills them, or if they hold all that is left. The window fills the whole part that it gets.
    /// Without a slot, the most bytes of the window.
    pub(super) fn next_window_len(&self, key: usize) -> u64 {
        let slot_size = self.limits.slot_size;
        let block_size = self.block_size(key);
        let left = self.left_of_part(key);
        match (self.transfers[key].pace, self.transfers[key].request.link) {
            (Line::Readers, Some(_)) if left <= slot_size / slots::PARTS => left,
            (Line::Readers, _) => slot_size,
            // Each piece of a batch may be a request, so only a few are cut at a time.
            (_, None) if self.transfers[key].request.batch.is_some() => block_size,
            (_, None) => slot_size.min(block_size * PIECES_MAX),
            (Line::Ring, Some(link))
                if self.transfers[key].is_ring_to_open() && !self.links[link].is_behind() =>
            {
                block_size
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
