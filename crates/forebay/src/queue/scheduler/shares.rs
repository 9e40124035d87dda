//! Transfers whose files are on several drives. Each drive has a share of the transfer. A share has
//! its own queues, windows and slots, like a transfer on one drive, so it waits only for its own
//! drive.
//!
//! The shares of a transfer form a circular list, mostly of one element. The first error and a
//! cancel stop all of them, and the last share to end ends the transfer. A share of a write syncs
//! the files on its drive.

use std::sync::Arc;

use super::Scheduler;
use super::request::Share;
use crate::error::Error;
use crate::plan::Direction;
use crate::transfer::State;

impl Scheduler {
    /// Adds shares to the transfer at `key`.
    pub(super) fn add_shares(&mut self, key: usize, shares: Vec<Share>) {
        for Share { drive, parts } in shares {
            let first = &self.transfers[key];
            let next = first.next;
            let request = first.request.share_on(drive, parts);
            let share = self.add(request);
            self.transfers[share].next = next;
            self.transfers[key].next = share;
        }
    }

    /// Keys of the other shares of a transfer. Allocates nothing if there are none.
    pub(super) fn others(&self, key: usize) -> Vec<usize> {
        let next = |key: usize| self.transfers.get(key).map(|active| active.next);
        std::iter::successors(next(key), |&share| next(share))
            .take_while(|&share| share != key)
            .collect()
    }

    /// Keys of all shares of the transfer of `state`.
    pub(super) fn shares_of(&self, state: &Arc<State>) -> impl Iterator<Item = usize> + use<> {
        let key = state.key();
        let same = self.transfers.get(key).filter(|a| Arc::ptr_eq(&a.request.state, state));
        let first = same.map(|_| key);
        first.into_iter().chain(first.map(|key| self.others(key)).unwrap_or_default())
    }

    /// Stops all shares of a transfer. Other shares end here if nothing of them is in flight; the
    /// caller ends `key`.
    pub(super) fn fail(&mut self, key: usize, error: Error) {
        for other in self.others(key) {
            self.fail_share(other, error.clone());
            self.finish_if_done(other);
        }
        self.fail_share(key, error);
    }

    /// Removes a finished share from its list. True if it was the last one, which stays.
    pub(super) fn leave_others(&mut self, key: usize) -> bool {
        let Some(&before) = self.others(key).last() else { return true };
        let share = self.transfers.remove(key);
        let before = &mut self.transfers[before];
        before.next = share.next;
        // If several shares met an end of file, the lowest offset counts: beyond it bytes are
        // missing.
        let next = &mut self.transfers[share.next];
        next.end = next.end.min(share.end);
        next.request.state.set_key(share.next);
        if share.request.peer.is_some() && share.request.direction == Direction::Write {
            // The other shares have waited for this one.
            let rest = std::iter::once(share.next).chain(self.others(share.next));
            rest.collect::<Vec<_>>().into_iter().for_each(|other| self.list(other));
        }
        false
    }
}
