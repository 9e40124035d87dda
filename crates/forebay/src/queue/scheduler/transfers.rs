//! Start, scheduling, failure and end of transfers.
//!
//! A transfer whose files are on several drives is split into shares, by drive. A share owns
//! queues, windows and slots, like a transfer on a single drive, so it waits only for that drive.
//! The shares form a circular list, mostly of a single element. The first error and a cancel stop
//! all of them, and the last share to end ends the transfer. A share of a write syncs the files on
//! its drive.

use std::sync::Arc;

use forebay_base::units::ByteRange;

use super::active::{Active, Phase, Request, Share};
use super::round_robin::{Listed, QueueEnd};
use super::work::Claim;
use super::{Life, Scheduler};
use crate::error::Error;
use crate::plan::{Direction, Io, Reason, Segment};
use crate::queue::op::{Executor, Op, OpKind, Owner};
use crate::transfer::{State, SyncMode};

impl Scheduler {
    /// Starts a transfer. The returned claim, if any, is its first window, which the caller plans
    /// on its own thread. That spares a small transfer the detour through a reader.
    pub(crate) fn start(&mut self, mut request: Request) -> (usize, Option<Claim>) {
        if let Life::Failed(cause) = &self.life {
            let error = Error::EngineFailed { cause: Arc::clone(cause) };
            self.effects.finished.push((request.state, Err(error)));
            return (usize::MAX, None);
        }
        let shares = std::mem::take(&mut request.shares);
        let key = self.add(request);
        self.add_shares(key, shares);
        let all = std::iter::once(key).chain(self.others(key));
        let mut links = all.filter_map(|share| self.transfers[share].request.link);
        let broken = links.find(|&link| self.links[link].broken.is_some());
        broken.into_iter().for_each(|link| self.fail_if_broken(key, link));
        self.finish_if_done(key);
        for other in self.others(key) {
            self.list(other);
            self.finish_if_done(other);
        }
        let Some(active) = self.transfers.get(key) else { return (key, None) };
        if active.request.parts.is_empty() {
            return (key, None); // nothing to move; its sync is under way
        }
        let (link, drive) = (active.request.link, active.request.drive);
        if active.is_shut() || self.can_wait(key) {
            self.list(key);
            return (key, None); // a reader opens it later
        }
        let slot = match link {
            None => None,
            Some(link) => {
                // A transfer that must wait for a slot may not lease it here.
                let need = self.need(key);
                let slot = self.links[link].slots.take(drive, need);
                match slot {
                    // The openable list may not be drained for a while.
                    None if need.is_first => self.wait_for_slot(key, link),
                    None => self.list(key),
                    Some(_) => {}
                }
                if slot.is_none() {
                    return (key, None);
                }
                slot
            }
        };
        (key, Some(self.open(key, slot)))
    }

    /// Adds a share without siblings; returns its key.
    pub(super) fn add(&mut self, request: Request) -> usize {
        self.begun += 1;
        let has_ring = self.has_ring(&request);
        let pace = if request.cold && has_ring { Executor::Ring } else { Executor::Readers };
        let entry = self.transfers.vacant_entry();
        let key = entry.key();
        let link = request.link;
        let left = entry.insert(Active::new(request, key, self.begun, pace)).left;
        if let Some(link) = link {
            self.links[link].left += left;
            self.use_link(link, true);
        }
        key
    }

    fn remove(&mut self, key: usize) -> Active {
        let active = self.transfers.remove(key);
        if let Some(link) = active.request.link {
            self.links[link].left -= active.left;
            self.use_link(link, false);
        }
        active
    }

    /// Stops a transfer if `key` still belongs to `state`.
    pub(crate) fn cancel(&mut self, key: usize, state: &Arc<State>) {
        let same = |active: &&Active| Arc::ptr_eq(&active.request.state, state);
        if let Some(active) = self.transfers.get(key).filter(same) {
            let error = Error::Cancelled { place: active.request.place(), done: state.done() };
            self.fail(key, error);
            self.finish_if_done(key);
        }
    }

    /// Stops a share: nothing new of it begins.
    pub(super) fn fail_share(&mut self, key: usize, error: Error) {
        let Some(active) = self.transfers.get_mut(key) else { return };
        if active.stop(error) {
            self.cancel_in_ring(key);
        }
        self.unlist(key);
        self.drop_queued(key);
        // The copies of these windows are cancelled, so the completion of a window's last op closes
        // it. Windows without ops in flight are closed here.
        let left = self.transfers.get(key).map(|active| active.windows.clone());
        for window in left.unwrap_or_default() {
            self.close_if_done(window);
        }
    }

    /// Counts out a stopped transfer's queued ops. The threads that would pop them may be blocked
    /// by a different file for long.
    fn drop_queued(&mut self, key: usize) {
        let dropped = self.drain_ops(key);
        let drive = self.transfers[key].request.drive;
        self.drop_waiting_writes(key);
        dropped.iter().for_each(|op| self.count_out(op));
        self.open_for(drive);
    }

    /// Removes a transfer that will open no more windows from its list.
    pub(super) fn unlist(&mut self, key: usize) {
        let active = &mut self.transfers[key];
        let (link, drive) = (active.request.link, active.request.drive);
        let promised = std::mem::take(&mut active.promised);
        let slot = active.slot.take();
        match (std::mem::replace(&mut active.listed, Listed::Nowhere), link) {
            (Listed::Openable(ticket), _) => self.readers.openable.remove(ticket),
            (Listed::Drive(ticket), _) => self.drives[drive].waiting.remove(ticket),
            (Listed::Link(since), Some(link)) => self.links[link].waiting.remove(drive, since),
            (Listed::Nowhere | Listed::Ring | Listed::Link(_), _) => {}
        }
        self.drives[drive].promised -= promised;
        self.open_for(drive);
        if let Some(link) = link {
            if let Some(slot) = slot {
                self.links[link].slots.give(drive, slot);
            }
            // It may have blocked other transfers.
            self.admit_waiting(link);
        }
    }

    /// Lists a transfer again whose gate was opened further.
    pub(crate) fn go_on(&mut self, state: &Arc<State>) {
        self.shares_of(state).for_each(|key| self.list(key));
    }

    /// Lists a transfer with remaining bytes: either it may open a window, or it waits until its
    /// drive needs more ops.
    pub(super) fn list(&mut self, key: usize) {
        let windows_max = self.limits.host_windows;
        let active = &mut self.transfers[key];
        if active.request.direction == Direction::Read && active.cursor >= active.end {
            // A window met the end of the file.
            active.request.parts.clear();
            self.unlist(key);
        }
        let active = &mut self.transfers[key];
        let cached = active.pace == Executor::Readers;
        // True if neither slots nor ops for its drive bound the transfer.
        let is_bounded = cached || !active.writes_waiting.is_empty();
        let room = !is_bounded || active.request.link.is_some() || active.open < windows_max;
        let next_part = active.request.parts.front();
        // A part of a write begins only when all windows of the part before it are closed.
        let begins = next_part.is_some_and(|part| active.cursor == part.0.start);
        let writes = active.request.direction == Direction::Write;
        let barrier = writes && begins && active.open > 0;
        let may =
            !active.is_listed() && !active.is_stopped() && next_part.is_some() && room && !barrier;
        if !may || active.is_shut() || (writes && self.waits_for_peer(key)) {
            return;
        }
        let drive = self.transfers[key].request.drive;
        if self.transfers[key].is_ring_to_open() {
            self.offer_to_ring(key, QueueEnd::Back);
        } else if cached {
            self.add_openable(key);
        } else {
            let priority = self.transfers[key].request.priority;
            let ticket = self.drives[drive].waiting.push(key, priority, false);
            self.transfers[key].listed = Listed::Drive(ticket);
            self.open_for(drive);
        }
    }

    /// Queues a transfer so that a reader opens its next window.
    pub(super) fn add_openable(&mut self, key: usize) {
        let active = &mut self.transfers[key];
        let (priority, has_slot) = (active.request.priority, active.slot.is_some());
        active.listed = Listed::Openable(self.readers.openable.push(key, priority, has_slot));
        self.effects.work += 1;
    }

    /// Makes transfers that wait for a drive openable until enough ops are queued for it.
    pub(super) fn open_for(&mut self, drive: usize) {
        loop {
            if !self.drives[drive].wants_more() {
                return;
            }
            let Some(key) = self.drives[drive].waiting.pop() else { return };
            let ops = self.next_window_len(key) / self.block_size(key);
            let ops = usize::try_from(ops).unwrap_or(1);
            self.drives[drive].promised += ops;
            self.transfers[key].promised = ops;
            self.add_openable(key);
        }
    }

    /// Block size of a transfer's drive, in bytes.
    pub(super) fn block_size(&self, key: usize) -> u64 {
        let Request { drive, direction, .. } = self.transfers[key].request;
        self.drives[drive].depth(direction).block_size().min(self.limits.segment)
    }

    pub(super) fn finish_if_done(&mut self, key: usize) {
        let Some(active) = self.transfers.get_mut(key) else { return };
        let more = !active.request.parts.is_empty() && !active.is_stopped();
        if more || active.open > 0 {
            return;
        }
        if active.begin_next_phase() {
            return self.queue_last(key);
        }
        if active.next != key && !self.leave_others(key) {
            return;
        }
        let active = self.remove(key);
        let start = active.request.range.start;
        let got = active.end.max(start) - start;
        let result = match active.phase {
            Phase::Stopped(error) => Err(error),
            _ if active.request.exact && got < active.request.range.len() => {
                Err(active.request.early_end(got))
            }
            _ => Ok(got),
        };
        self.effects.finished.push((active.request.state, result));
        if self.has_ended() {
            self.wake_all();
        }
    }

    /// Queues the ops of a phase in which no bytes are moved.
    fn queue_last(&mut self, key: usize) {
        let Active { phase, request, o_direct, .. } = &self.transfers[key];
        let (files, kind, at) = match (phase, o_direct) {
            (Phase::DroppingStale, Some(o_direct)) => {
                (vec![Arc::clone(&request.file)], OpKind::DropStale, *o_direct)
            }
            _ => {
                let metadata = request.sync == SyncMode::All;
                let at = ByteRange::at(request.range.start, 0);
                (request.files(), OpKind::Sync { metadata }, at)
            }
        };
        let segment = Segment::plain(at, Io::Buffered, Reason::Required);
        self.transfers[key].open += u32::try_from(files.len()).expect("as many files as are open");
        for file in files {
            let op = Op::new(Owner::Transfer(key), file, kind, segment, 0);
            self.queue(key, op, QueueEnd::Back);
        }
    }

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

    /// Removes a finished share from its list. True if it was the last share, which stays.
    pub(super) fn leave_others(&mut self, key: usize) -> bool {
        let Some(&before) = self.others(key).last() else { return true };
        let share = self.remove(key);
        let before = &mut self.transfers[before];
        before.next = share.next;
        // If several shares met an end of file, the lowest offset counts: beyond it bytes are
        // missing.
        let next = &mut self.transfers[share.next];
        next.end = next.end.min(share.end);
        next.request.state.set_key(share.next);
        if share.request.direct.is_some() && share.request.direction == Direction::Write {
            // The other shares waited for this share.
            let rest = std::iter::once(share.next).chain(self.others(share.next));
            rest.collect::<Vec<_>>().into_iter().for_each(|other| self.list(other));
        }
        false
    }
}
