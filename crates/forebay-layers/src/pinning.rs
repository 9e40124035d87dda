//! The thread that pins and unpins pages for the GPU. Both last as long as the driver likes and
//! must not delay the thread that queues copies. It also checks files again after their pages were
//! copied (`after`).

use std::sync::atomic::{Ordering, fence};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SendError, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use forebay_topology::{MemoryLeft, System};

use super::group::Group;
use super::homes::PinnedUnit;
use super::layer::Unit;
use super::mapped::{Refusal, Windows};
use super::mapper::{Copies, Leaving, NO_THREAD, Pinned, Wish};
use super::marks::Mark;

/// Interval for checking free memory while pages are pinned.
const LOOKS_EVERY: Duration = Duration::from_millis(500);

/// Interval for checking whether pages may be unpinned.
const CHECKS_EVERY: Duration = Duration::from_millis(5);

/// Pages are unpinned if less than this fraction of the memory would remain.
const LEFT: u64 = 16;

impl Group {
    /// Requests pinning of a unit's pages.
    pub(super) fn pin_pages(self: &Arc<Self>, unit: &Unit) -> Receiver<Pinned> {
        let (sender, receiver) = channel();
        match Windows::of(unit) {
            Ok(windows) => self.wish(Wish::Pin(windows, sender)),
            Err(reason) => drop(sender.send(Err(Refusal::Ever(reason)))),
        }
        receiver
    }

    /// Stores the result of pinning as a unit's host copy, if it succeeded.
    pub(super) fn keep_pages(self: &Arc<Self>, number: usize, pinned: Pinned) {
        let mut homes = self.homes();
        let (pages, copies) = match pinned {
            Ok(pinned) => pinned,
            Err(refusal) => return homes.maps.not_pinned(number, &self.units[number], refusal),
        };
        homes.maps.waits = None;
        // By now the memory may be needed elsewhere, or the file may be written to.
        let is_wanted = homes.maps.is_on() && homes.maps.can[number];
        let kept = homes.keep(number, PinnedUnit::in_pages(pages, copies));
        drop(homes);
        match kept {
            Ok(()) if is_wanted => {}
            Ok(()) => self.let_pages_go(number),
            // It is in the group's own memory by now, or all streams have ended.
            Err(home) => self.dispose(number, home, Copies::Before(Vec::new())),
        }
    }

    /// Releases the pinned pages of a unit, if any. From then on it is loaded through slots.
    pub(super) fn let_pages_go(self: &Arc<Self>, number: usize) {
        let mut homes = self.homes();
        let Some(home) = homes.take_pages(number) else { return };
        homes.maps.came[number] = 0;
        drop(homes);
        self.dispose(number, home, Copies::Begin);
    }

    /// Queues pages for the thread to unpin. Without a thread they are unpinned when the last
    /// stream ends.
    fn dispose(self: &Arc<Self>, unit: usize, home: Arc<PinnedUnit>, copies: Copies) {
        self.mapper.leaving.lock().push(Leaving { unit, home: Some(home), copies });
        self.wish(Wish::Look);
    }

    /// Bytes that are pinned or about to be, and why not more.
    pub(super) fn mapped(&self) -> (u64, Option<String>) {
        let (used, reason) = self.homes().maps.pinned();
        let is_stranded =
            !self.mapper.leaving.lock().is_empty() && self.mapper.wishes.lock().is_none();
        (used, reason.or_else(|| is_stranded.then(|| NO_THREAD.to_owned())))
    }

    /// Unpins pages that nothing reads any more; returns true if some remain.
    fn give_pages_back(&self) -> bool {
        let _giving = self.mapper.giving.lock();
        let mut leaving = std::mem::take(&mut *self.mapper.leaving.lock());
        // The driver may be arbitrarily slow.
        leaving.iter_mut().for_each(|pages| self.mark_copies(pages));
        leaving.retain(|pages| !matches!(pages.copies, Copies::Unknown));
        let (over, still): (Vec<_>, Vec<_>) = leaving.into_iter().partition(Leaving::is_over);
        self.give(over);
        let mut leaving = self.mapper.leaving.lock();
        leaving.extend(still);
        !leaving.is_empty()
    }

    /// Records marks behind the copies from these pages, once no thread can queue more.
    fn mark_copies(&self, pages: &mut Leaving) {
        let uses = pages.home.as_ref().map_or(1, Arc::strong_count);
        if !matches!(pages.copies, Copies::Begin) || uses > 1 {
            return;
        }
        fence(Ordering::Acquire); // after the copies by the last other owner
        let streams = self.streams();
        let marks = streams.iter().map(|stream| stream.mark_lanes());
        let marks: Result<Vec<[Mark; 2]>, _> = marks.collect();
        let marks = marks.map(|marks| marks.into_iter().flatten().collect());
        let is_stuck = self.homes().stuck;
        pages.copies = marks.ok().filter(|_| !is_stuck).map_or(Copies::Unknown, Copies::Before);
    }

    /// Unpins all released pages, which nothing may read any more, unless some copy is `stuck`.
    pub(super) fn give_all_pages_back(&self, stuck: bool) {
        let _giving = self.mapper.giving.lock();
        let leaving = std::mem::take(&mut *self.mapper.leaving.lock());
        if !stuck {
            self.give(leaving);
        }
    }

    fn give(&self, over: Vec<Leaving>) {
        for mut pages in over {
            drop(pages.home.take());
            self.homes().maps.unclaim(pages.unit, &self.units[pages.unit]);
        }
    }

    /// Releases all pages if the system is short of memory.
    fn look_at_memory(self: &Arc<Self>, system: &System) {
        let used = self.homes().maps.used;
        let Some(left) = system.memory_left().filter(|_| used > 0) else { return };
        if is_short(left, used) {
            let reason = format!(
                "of {} MiB of memory too little is left for other programs",
                left.all >> 20
            );
            self.let_all_pages_go(&reason);
        }
    }

    /// Releases all pages and stops pinning.
    pub(super) fn let_all_pages_go(self: &Arc<Self>, reason: &str) {
        self.homes().maps.stop(reason.to_owned());
        (0..self.units.len()).for_each(|number| self.let_pages_go(number));
    }

    /// Sends a request to the thread, and starts it if needed.
    pub(super) fn wish(self: &Arc<Self>, wish: Wish) {
        let mut running = self.mapper.wishes.lock();
        let wish = match &*running {
            Some(thread) => match thread.send(wish) {
                Ok(()) => return,
                Err(SendError(wish)) => wish,
            },
            None => wish,
        };
        let (sender, wishes) = channel();
        let group = Arc::downgrade(self);
        let run = move || run(&wishes, &group);
        let begun = thread::Builder::new().name("forebay-mapper".into()).spawn(run);
        *running = begun.is_ok().then_some(sender);
        match (&*running, wish) {
            (Some(thread), wish) => drop(thread.send(wish)),
            // A later start may succeed.
            (None, Wish::Pin(_, answer)) => drop(answer.send(Err(Refusal::Now(NO_THREAD)))),
            (None, Wish::Look) => {}
        }
    }
}

/// Whether pages of `used` bytes must be unpinned because memory is short. The kernel counts pinned
/// pages as available, which they are not, and some drivers pin without accounting for it.
fn is_short(left: MemoryLeft, used: u64) -> bool {
    left.available.saturating_sub(left.pinned.max(used)) < left.all / LEFT
}

/// Runs the thread. It holds no reference to the streams while it pins, because a hanging drive may
/// block that forever. Streams end without it, and pages pinned too late are unpinned immediately.
fn run(wishes: &Receiver<Wish>, streams: &Weak<Group>) {
    let mut look = Instant::now();
    loop {
        let Some(group) = streams.upgrade() else { return };
        let goes_on = group.give_pages_back() | group.look_again();
        if look.elapsed() >= LOOKS_EVERY {
            group.look_at_memory(&System::live());
            look = Instant::now();
        }
        drop(group);
        match wishes.recv_timeout(if goes_on { CHECKS_EVERY } else { LOOKS_EVERY }) {
            Ok(Wish::Pin(windows, answer)) => {
                let group = streams.upgrade().filter(|group| !group.is_over());
                let Some(device) = group.map(|group| Arc::clone(&group.device)) else { return };
                // If the receiver is gone, the pages are dropped with the answer.
                drop(answer.send(windows.pin(&device)));
            }
            Ok(Wish::Look) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

impl Leaving {
    /// Whether nothing reads the pages any more.
    fn is_over(&self) -> bool {
        match &self.copies {
            Copies::Before(marks) => marks.iter().all(|mark| mark.is_passed().unwrap_or(false)),
            Copies::Begin | Copies::Unknown => false,
        }
    }
}

#[cfg(test)]
#[expect(unsafe_code, reason = "takes layers for a stream that it names")]
mod tests;
