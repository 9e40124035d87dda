//! The rings of drives: their turns, and what happens when one fails.
//!
//! The worker of a drive's ring opens the windows of transfers whose bytes come from the drive. It
//! opens one only when the drive may have one more request in flight, so only requests in flight
//! hold memory, which stays in a CPU cache (`docs/internals/hot-slots.md`).

use super::Scheduler;
use super::active::Queue;
use super::openable::Listed;
use super::request::Request;
use super::turns::{Turn, Turns};
use super::work::Claim;
use crate::queue::op::Line;

impl Scheduler {
    /// Gives a transfer a turn at its drive's ring, which then opens a window of it.
    pub(super) fn offer_to_ring(&mut self, key: usize, push: fn(&mut Turns, Turn)) {
        let active = &mut self.transfers[key];
        active.listed = Listed::Ring;
        let drive = active.request.drive;
        if let Some(turn) = active.turn(key, Line::Ring) {
            push(&mut self.drives[drive].ring_turns, turn);
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
            self.drives[drive].ring_turns = Turns::default();
            let of_drive = self.transfers.iter().filter(|(_, a)| a.request.drive == drive);
            for key in of_drive.map(|(key, _)| key).collect::<Vec<_>>() {
                self.leave_ring(key);
            }
        }
    }

    /// Moves a transfer's ops for the drive's ring to the pool.
    fn leave_ring(&mut self, key: usize) {
        let active = &mut self.transfers[key];
        let Queue { ops, .. } = std::mem::take(&mut active.for_ring);
        if active.pace == Line::Ring {
            active.pace = Line::Pool;
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
}
