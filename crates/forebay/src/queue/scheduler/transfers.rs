//! Start, scheduling, failure and end of transfers.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_base::units::ByteRange;

use super::turns::{Priority, Turns};
use super::{Active, Claim, Listed, Queue, Request, Scheduler};
use crate::error::Error;
use crate::file::Handle;
use crate::plan::{Io, Reason, Segment};
use crate::queue::op::{Direction, Line, Op, OpKind, Owner};
use crate::transfer::{State, SyncMode};

/// Minimum ops queued for a drive while there are bytes left: planning the next window takes as
/// long as a fast drive needs for these.
const AHEAD_MIN: usize = 4;

/// Or the drive's queue depth divided by this, if that is more, since several ops complete at once.
/// Beyond that, queued windows only hold memory that then leaves the CPU cache
/// (`docs/internals/hot-slots.md`).
const AHEAD_SHARE: usize = 4;

impl Active {
    /// True if it is in a list to open its next window.
    pub(super) fn is_listed(&self) -> bool {
        self.listed != Listed::Nowhere
    }

    /// True if its gate allows no more reads.
    pub(super) fn is_shut(&self) -> bool {
        self.cursor >= self.request.limit()
    }
}

impl Scheduler {
    /// Starts a transfer. The returned claim, if any, is its first window, which the caller plans
    /// on its own thread. That spares a small transfer the detour through a reader.
    pub(crate) fn start(&mut self, mut request: Request) -> (usize, Option<Claim>) {
        if let Some(error) = self.refusal() {
            self.effects.finished.push((request.state, Err(error)));
            return (usize::MAX, None);
        }
        let beside = std::mem::take(&mut request.beside);
        let key = self.add(request);
        self.add_shares(key, beside);
        let shares = std::iter::once(key).chain(self.others(key));
        let mut links = shares.filter_map(|share| self.transfers[share].request.link);
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
                // A transfer that must wait for a slot may not take one here.
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
        let cursor = request.parts.front().map_or(request.range.start, |part| part.0.start);
        let end = request.end;
        let writes = request.direction == Direction::Write;
        let around = request.parts.iter().find(|part| writes && part.1 == Io::Direct);
        let unchecked = around.map(|part| part.0);
        self.begun += 1;
        let has_ring = self.has_ring(&request);
        let pace = if request.cold && has_ring { Line::Direct } else { Line::Cached };
        let entry = self.transfers.vacant_entry();
        let next = entry.key();
        entry.insert(Active {
            request,
            serial: self.begun,
            next,
            cursor,
            open: 0,
            windows: Vec::new(),
            has_opened: false,
            insists: false,
            end,
            error: None,
            stopped: false,
            synced: false,
            unchecked,
            listed: Listed::Nowhere,
            waits_since_ns: 0,
            pace,
            opens: false,
            tried: 0,
            slot: None,
            promised: 0,
            writes_waiting: BTreeMap::new(),
            copied: 0,
            direct: Queue::default(),
            waits: Queue::default(),
            cached: Queue::default(),
        });
        next
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
        active.error.get_or_insert(error);
        if !std::mem::replace(&mut active.stopped, true) {
            self.ask_back(key);
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

    /// Counts out a stopped transfer's queued ops. The threads that would take them may be blocked
    /// by another file for long.
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
        active.opens = false;
        match (std::mem::replace(&mut active.listed, Listed::Nowhere), link) {
            (Listed::Openable(ticket), _) => self.openable.remove(ticket),
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

    /// Lists a transfer with bytes left: either it may open a window, or it waits until its drive
    /// needs more ops.
    pub(super) fn list(&mut self, key: usize) {
        let windows_max = self.limits.host_windows;
        let active = &mut self.transfers[key];
        if active.request.direction == Direction::Read && active.cursor >= active.end {
            // A window has met the end of the file.
            active.request.parts.clear();
            self.unlist(key);
        }
        let active = &mut self.transfers[key];
        let cached = active.pace == Line::Cached;
        // True if neither slots nor ops for its drive bound the transfer.
        let is_bounded = cached || !active.writes_waiting.is_empty();
        let room = !is_bounded || active.request.link.is_some() || active.open < windows_max;
        let next_part = active.request.parts.front();
        // A part of a write begins only when all windows of the part before it are closed.
        let begins = next_part.is_some_and(|part| active.cursor == part.0.start);
        let writes = active.request.direction == Direction::Write;
        let barrier = writes && begins && active.open > 0;
        let may = !active.is_listed() && !active.stopped && next_part.is_some() && room && !barrier;
        if !may || active.is_shut() || self.waits_for_peer(key) {
            return;
        }
        let drive = self.transfers[key].request.drive;
        if self.is_ring_to_open(key) {
            self.offer_to_ring(key, Turns::push);
        } else if cached {
            self.add_openable(key);
        } else {
            let ticket = self.drives[drive].waiting.push(key, Priority::Normal);
            self.transfers[key].listed = Listed::Drive(ticket);
            self.open_for(drive);
        }
    }

    /// Queues a transfer so that a reader opens its next window.
    fn add_openable(&mut self, key: usize) {
        let active = &mut self.transfers[key];
        active.listed = Listed::Openable(self.openable.push(key, active.request.priority));
        self.effects.work += 1;
    }

    /// Makes transfers that wait for a drive openable until enough ops are queued for it.
    pub(super) fn open_for(&mut self, drive: usize) {
        loop {
            if !self.wants_more(drive) {
                return;
            }
            let Some(key) = self.drives[drive].waiting.pop() else { return };
            let ops = self.next_window_len(key) / self.request_size(key);
            let ops = usize::try_from(ops).unwrap_or(1);
            self.drives[drive].promised += ops;
            self.transfers[key].promised = ops;
            self.add_openable(key);
        }
    }

    /// True if too few ops are queued for a drive to keep it busy until the next window is planned.
    pub(super) fn wants_more(&self, drive: usize) -> bool {
        let state = &self.drives[drive];
        let enough = (state.depth.requests(state.direction) / AHEAD_SHARE).max(AHEAD_MIN);
        state.queued + state.promised < enough
    }

    /// Block size of a transfer's drive, in bytes.
    pub(super) fn request_size(&self, key: usize) -> u64 {
        let Request { drive, direction, .. } = self.transfers[key].request;
        let found = self.drives[drive].depth.request_size(direction);
        found.map_or(self.limits.segment, |size| size.min(self.limits.segment))
    }

    pub(super) fn finish_if_done(&mut self, key: usize) {
        let Some(active) = self.transfers.get_mut(key) else { return };
        let more = !active.request.parts.is_empty() && !active.stopped;
        if more || active.open > 0 {
            return;
        }
        if let Some(range) = active.unchecked.take().filter(|_| active.error.is_none()) {
            let file = Arc::clone(&active.request.file);
            return self.queue_last(key, vec![file], OpKind::DropStale, range);
        }
        if active.request.sync != SyncMode::None && !active.synced && active.error.is_none() {
            active.synced = true;
            return self.queue_syncs(key);
        }
        if !self.leave_others(key) {
            return;
        }
        let active = self.transfers.remove(key);
        let start = active.request.range.start;
        let got = active.end.max(start) - start;
        let result = match active.error {
            Some(error) => Err(error),
            None if active.request.exact && got < active.request.range.len() => {
                Err(active.request.early_end(got))
            }
            None => Ok(got),
        };
        self.effects.finished.push((active.request.state, result));
        if self.has_ended() {
            self.call_all();
        }
    }

    /// Queues a sync of each file of a share.
    fn queue_syncs(&mut self, key: usize) {
        let request = &self.transfers[key].request;
        let at = ByteRange::at(request.range.start, 0);
        let kind = OpKind::Sync { metadata: request.sync == SyncMode::All };
        self.queue_last(key, request.files(), kind, at);
    }

    /// Queues the final work on files, once all bytes of a share have moved.
    fn queue_last(&mut self, key: usize, files: Vec<Arc<Handle>>, kind: OpKind, at: ByteRange) {
        let (io, reason, bounce) = (Io::Buffered, Reason::Demanded, false);
        self.transfers[key].open += u32::try_from(files.len()).expect("as many files as are open");
        for file in files {
            let op = Op {
                owner: Owner::Transfer(key),
                file,
                shift: 0,
                batch: None,
                port: None,
                kind,
                segment: Segment { wanted: at, covered: at, io, reason, bounce },
                address: 0,
                moved: 0,
                empty: 0,
                again: 0,
                counted: None,
                touch: None,
            };
            self.queue(key, op);
        }
    }
}
