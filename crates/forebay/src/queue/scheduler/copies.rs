//! Selection of the next copies for the submitter of a link.

use forebay_base::units::{ByteRange, MIB};

use super::Scheduler;
use super::active::Active;
use super::link::{COPIES_QUEUED_MAX, Link, PRIVATE_CACHES};
use super::work::{Copy, CopyFailure};
use crate::error::{Error, Operation};
use crate::gpu::{DeviceError, DeviceId};
use crate::plan::Direction;
use crate::queue::op::{Executor, WindowKey};
use crate::queue::window::Run;
use crate::transfer::Stage;

/// Maximum bytes of several windows in a group: 150 µs of a link of 55 GB/s. Two such groups keep
/// the link busy while the submitter naps, and other transfers wait no longer than for a slot. With
/// 2 MiB, 16 threads with 32 reads of 1 MiB moved 33 to 40 GB/s, with 8 MiB 54 (H200, 2026-11-30).
const GROUP_LEN: u64 = 8 * MIB;

/// Maximum number of windows in a group.
const GROUP_MAX: usize = 64;

/// The next copy.
struct Best {
    key: WindowKey,
    run: Run,
    /// True if it is copied before a transfer that waited longer.
    overtakes: bool,
}

impl Scheduler {
    /// Appends the next copies for a link to `group`, all in the same direction. `inward` groups to
    /// the GPU and `outward` groups from it are still in flight. Appends nothing if no copy is
    /// worth its 2.7 µs of link time now. The link is full duplex, so neither direction waits for
    /// the other.
    ///
    /// A group costs the link and the submitter as much as a single copy. So small windows that are
    /// ready at the same time form a group, as the bytes of a window do.
    pub(crate) fn next_copies(
        &mut self,
        link: usize,
        (inward, outward): (usize, usize),
        group: &mut Vec<Copy>,
    ) {
        let mut len = 0;
        if outward < COPIES_QUEUED_MAX && !self.links[link].unloading.is_empty() {
            while group.len() < GROUP_MAX
                && let Some(copy) =
                    self.next_outward(link, GROUP_LEN.saturating_sub(len), group.is_empty())
            {
                len += copy.run.range.len();
                group.push(copy);
            }
        }
        if !group.is_empty() || inward >= COPIES_QUEUED_MAX {
            return;
        }
        let (mut queued, mut room) = (inward, u64::MAX);
        while group.len() < GROUP_MAX
            && let Some(copy) = self.next_inward(link, queued, room)
        {
            len += copy.run.range.len();
            group.push(copy);
            (queued, room) = (inward.max(1), GROUP_LEN.saturating_sub(len));
        }
    }

    fn next_outward(&mut self, link: usize, room: u64, is_first: bool) -> Option<Copy> {
        while let Some(&key) = self.links[link].unloading.front() {
            let run = self.windows[key].whole();
            if !is_first && run.range.len() > room {
                return None;
            }
            self.links[link].unloading.pop_front();
            if self.transfers[self.windows[key].transfer].is_stopped() {
                self.windows[key].waiting.clear();
                self.close_if_done(key);
                continue;
            }
            return Some(self.begin_copy(link, key, run));
        }
        None
    }

    /// The next copy to a GPU, of at most `room` bytes; `u64::MAX` begins a group.
    fn next_inward(&mut self, link: usize, queued: usize, room: u64) -> Option<Copy> {
        loop {
            let Best { key, run, overtakes } = self.best_run(link, queued, room)?;
            let window = &mut self.windows[key];
            let active = &self.transfers[window.transfer];
            let end = if active.is_stopped() { 0 } else { active.end };
            let range = ByteRange { start: run.range.start, end: run.range.end.min(end) };
            window.sent |= run.pieces;
            if range.is_empty() {
                self.close_if_done(key);
                continue;
            }
            if room == u64::MAX {
                self.links[link].overtook = overtakes;
            }
            return Some(self.begin_copy(link, key, Run { range, ..run }));
        }
    }

    /// The run to copy next: the rest of a full window (least recently served transfer first, its
    /// oldest window first, since a large transfer fills slots ahead). Without a full window, the
    /// longest run, if the link would be idle.
    ///
    /// A transfer's first copy precedes transfers that copied before, but not twice in a row.
    /// Otherwise a series of short transfers could block a long one forever.
    fn best_run(&self, link: usize, queued: usize, room: u64) -> Option<Best> {
        let mut best: Option<(WindowKey, Run)> = None;
        let mut full: [Option<(u64, WindowKey, Run)>; 2] = [None; 2];
        for &key in &self.links[link].filling {
            let window = &self.windows[key];
            let Some(run) = window.longest_run().filter(|run| run.range.len() <= room) else {
                continue;
            };
            if window.is_full() {
                let turn = self.transfers[window.transfer].copied;
                let first = &mut full[usize::from(turn > 0)];
                if first.is_none_or(|(other, ..)| turn < other) {
                    *first = Some((turn, key, run));
                }
                continue;
            }
            if best.is_none_or(|(_, other)| run.range.len() > other.range.len()) {
                best = Some((key, run));
            }
        }
        let [newcomer, other] = full;
        let next = match self.links[link].overtook {
            true => other.or(newcomer),
            false => newcomer.or(other),
        };
        if let Some((turn, key, run)) = next {
            return Some(Best { key, run, overtakes: turn == 0 && other.is_some() });
        }
        let is_large = |key: WindowKey, run: Run| {
            let slot = self.windows[key].slot.map_or(0, |slot| slot.len);
            run.range.len() * 2 >= slot
        };
        let best = best.filter(|&(key, run)| queued == 0 || is_large(key, run));
        best.map(|(key, run)| Best { key, run, overtakes: false })
    }

    fn begin_copy(&mut self, link: usize, key: WindowKey, run: Run) -> Copy {
        let window = &mut self.windows[key];
        self.statistics.link_wait.add(self.now_ns.saturating_sub(window.filled_ns));
        window.copies += 1;
        let active = &mut self.transfers[window.transfer];
        let (state, len) = (&mut self.links[link], run.range.len());
        state.begun += 1;
        state.copies += 1;
        state.busy_len += len;
        active.copied = state.begun;
        let request = &active.request;
        Copy {
            window: key,
            direction: window.direction,
            run,
            host: window.slot_address(run.range.start),
            device: request.address + (run.range.start - request.range.start),
            batch: request.batch.clone(),
        }
    }

    /// Handles the completion of a copy.
    pub(crate) fn copied(
        &mut self,
        link: usize,
        copy: &Copy,
        took_ns: u64,
        failed: Option<CopyFailure>,
    ) {
        if self.has_failed() {
            return;
        }
        self.statistics.copy.add(took_ns);
        let window = &mut self.windows[copy.window];
        window.copies -= 1;
        let state = &mut self.links[link];
        state.copies -= 1;
        if state.copies == 0 {
            state.busy_len = 0;
        }
        let key = window.transfer;
        let segments = std::mem::take(&mut window.waiting);
        let active = &mut self.transfers[key];
        if copy.direction == Direction::Read {
            let len = copy.run.range.len().min(active.left);
            active.left -= len;
            state.left -= len;
        }
        active.request.state.add_time(Stage::Copy, took_ns);
        let failed = failed.map(|mut failure| {
            if let Error::Device { place, .. } | Error::CopyNotOver { place, .. } =
                &mut failure.error
            {
                let range = copy.run.range;
                *place = Some(Box::new(active.request.place_of(range)));
            }
            failure
        });
        match failed {
            Some(CopyFailure { error, lost: None }) => self.fail(key, error),
            Some(CopyFailure { error, lost: Some(lost) }) => {
                self.lose_link(link, copy, &error, lost);
            }
            None if copy.direction == Direction::Read => {
                active.request.state.add_done(active.request.wanted_in(copy.run.range));
            }
            None if !active.is_stopped() => self.push_segments(copy.window, &segments),
            None => {}
        }
        self.close_if_done(copy.window);
    }

    /// Handles a failed copy whose end the GPU does not confirm. Its memory is never used again,
    /// and the link copies nothing more. The transfer reports the lost memory, even if it had
    /// another error before.
    fn lose_link(
        &mut self,
        link: usize,
        copy: &Copy,
        error: &Error,
        lost: (DeviceId, DeviceError),
    ) {
        let window = &mut self.windows[copy.window];
        let key = window.transfer;
        let slot = window.slot.take();
        let request = &self.transfers[key].request;
        request.state.lose_memory(&lost.1);
        let drive = request.drive;
        for share in std::iter::once(key).chain(self.others(key)) {
            if self.transfers[share].stop_for_loss(error) {
                self.cancel_in_ring(share);
            }
        }
        if let Some(slot) = slot {
            self.links[link].slots.lose(drive, slot);
            self.links[link].forget(copy.window);
        }
        self.links[link].broken.get_or_insert(lost);
        let users: Vec<usize> = self
            .transfers
            .iter()
            .filter(|(_, active)| active.request.link == Some(link))
            .map(|(key, _)| key)
            .collect();
        for key in users {
            self.fail_if_broken(key, link);
            self.finish_if_done(key);
        }
    }

    /// Fails a transfer whose link is broken.
    pub(super) fn fail_if_broken(&mut self, key: usize, link: usize) {
        let Some((device, source)) = self.links[link].broken.clone() else { return };
        let Some(Active { request, .. }) = self.transfers.get(key) else { return };
        let (len, place) = (request.range.len(), Some(Box::new(request.place())));
        self.fail(key, Error::Device { operation: Operation::Copy, device, len, place, source });
    }

    /// True if the end of a copy is urgent. Either all remaining reads of the link are queued
    /// copies, or a short transfer is between the copies of a long one.
    pub(crate) fn is_waited_for(&self, link: usize) -> bool {
        let filling = &self.links[link].filling;
        let is_sent =
            |&key: &WindowKey| self.windows[key].is_full() && self.windows[key].all_sent();
        let is_short = |&key: &WindowKey| self.is_short(self.windows[key].transfer);
        let is_ready = |key: &WindowKey| {
            let window = &self.windows[*key];
            is_short(key) && (window.is_full() || window.copies > 0)
        };
        let is_between =
            || filling.iter().any(is_ready) && filling.iter().any(|key| !is_short(key));
        !filling.is_empty() && (filling.iter().all(is_sent) || is_between())
    }

    /// True if readers fill the windows of a link, and few bytes remain until it is idle.
    pub(crate) fn is_ending(&self, link: usize) -> bool {
        let Link { left, filling, .. } = &self.links[link];
        let by_readers =
            |&key: &WindowKey| self.transfers[self.windows[key].transfer].pace == Executor::Readers;
        *left <= PRIVATE_CACHES && filling.first().is_some_and(by_readers)
    }

    /// True if more slots would help a link. A transfer waits for a slot while the link is idle,
    /// while its drive waits, or while some slots are split into parts.
    pub(super) fn wants_slots(&self, link: &Link) -> bool {
        let may = !link.growing && link.slots.made() < link.slots.most;
        let idles = link.is_idle();
        let helps = |key: usize| {
            let Active { pace, request, .. } = &self.transfers[key];
            let need = self.need(key);
            // Transfers at their limit would not use more.
            (idles || link.slots.is_split() || *pace != Executor::Readers || need.is_first)
                && link.slots.admits(request.drive, need)
        };
        may && link.waiting.first().any(helps)
    }

    /// Picks a link that wants more slots. `at_once`: only for the first slot of a short transfer,
    /// which should not wait until the reader has nothing else to do.
    pub(super) fn link_to_grow(&mut self, at_once: bool) -> Option<usize> {
        let wants = |link: &Link| (!at_once || link.waiting.has_first()) && self.wants_slots(link);
        let found = self.links.iter().position(wants)?;
        self.links[found].growing = true;
        Some(found)
    }
}
