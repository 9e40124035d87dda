//! Calls whose files lie on several drives: each drive has a share of the transfer, which has
//! lines, windows and slots of its own, as a transfer with one drive has. So shares wait for
//! nothing but their own drives.
//!
//! The shares of a transfer stand in a ring, of which most are alone. The first error and a cancel
//! stop all of them, and whichever ends last ends the transfer. A share of a write syncs the files
//! of its own drive.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Scheduler;
use crate::error::Error;
use crate::plan::{Io, Reason, Strip};
use crate::queue::op::Direction;
use crate::transfer::State;
use crate::units::ByteRange;

/// What a drive has of a transfer.
#[derive(Debug, Clone)]
pub(crate) struct Share {
    pub(crate) drive: usize,
    /// What must be moved, from the first byte on.
    pub(crate) parts: VecDeque<(ByteRange, Io, Reason)>,
}

impl Share {
    /// What each drive has of a strip, whose sources are read by a drive in a way as `way` says:
    /// those of one drive follow each other.
    pub(crate) fn of_strip(strip: &Strip, way: impl Fn(usize) -> (usize, Io, Reason)) -> Vec<Self> {
        let mut shares: Vec<Self> = Vec::new();
        let mut last = None;
        for stretch in strip.stretches() {
            let this = way(stretch.source);
            let (drive, io, reason) = this;
            let part = (stretch.at, io, reason);
            match shares.last_mut() {
                Some(share) if last == Some(this) => {
                    share.parts.back_mut().expect("none is empty").0.end = stretch.at.end;
                }
                Some(share) if share.drive == drive => share.parts.push_back(part),
                _ => shares.push(Self { drive, parts: [part].into() }),
            }
            last = Some(this);
        }
        shares
    }
}

impl Share {
    /// One without bytes for each of `drives` that has none.
    pub(crate) fn of_nothing(shares: &[Self], drives: impl Iterator<Item = usize>) -> Vec<Self> {
        let mut missing: Vec<usize> =
            drives.filter(|drive| shares.iter().all(|share| share.drive != *drive)).collect();
        missing.sort_unstable();
        missing.dedup();
        missing.into_iter().map(|drive| Self { drive, parts: VecDeque::new() }).collect()
    }
}

impl Scheduler {
    /// Puts shares of the transfer at `key` beside it.
    pub(super) fn add_shares(&mut self, key: usize, shares: Vec<Share>) {
        for Share { drive, parts } in shares {
            let first = &self.transfers[key];
            let next = first.next;
            let request = first.request.beside(drive, parts);
            let share = self.add(request);
            self.transfers[share].next = next;
            self.transfers[key].next = share;
        }
    }

    /// The other shares of a transfer. Nothing is allocated where there are none.
    pub(super) fn others(&self, key: usize) -> Vec<usize> {
        let next = |key: usize| self.transfers.get(key).map(|active| active.next);
        std::iter::successors(next(key), |&share| next(share))
            .take_while(|&share| share != key)
            .collect()
    }

    /// The share of a transfer that `state` names, and the others.
    pub(super) fn shares_of(&self, state: &Arc<State>) -> impl Iterator<Item = usize> + use<> {
        let key = state.key();
        let same = self.transfers.get(key).filter(|a| Arc::ptr_eq(&a.request.state, state));
        let first = same.map(|_| key);
        first.into_iter().chain(first.map(|key| self.others(key)).unwrap_or_default())
    }

    /// Stops all shares of a transfer. The other ones end here if nothing of them is in flight;
    /// `key` is its caller's to end.
    pub(super) fn fail(&mut self, key: usize, error: Error) {
        for other in self.others(key) {
            self.fail_share(other, error.clone());
            self.finish_if_done(other);
        }
        self.fail_share(key, error);
    }

    /// Takes a share that is done out of its ring, unless it is the last: whether it was.
    pub(super) fn leave_others(&mut self, key: usize) -> bool {
        let Some(&before) = self.others(key).last() else { return true };
        let share = self.transfers.remove(key);
        let before = &mut self.transfers[before];
        before.next = share.next;
        // Of several ends the first one counts: behind it bytes are missing.
        let next = &mut self.transfers[share.next];
        next.end = next.end.min(share.end);
        next.request.state.set_key(share.next);
        if share.request.peer.is_some() && share.request.direction == Direction::Write {
            // They have waited for it.
            let rest = std::iter::once(share.next).chain(self.others(share.next));
            rest.collect::<Vec<_>>().into_iter().for_each(|other| self.list(other));
        }
        false
    }
}
