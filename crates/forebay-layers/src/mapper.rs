//! Decides which layers are copied directly from the page cache, and runs the thread that pins and
//! unpins their pages. Both last as long as the driver likes and must not delay the thread that
//! queues copies. It also checks files again after their pages were copied (`after`).

use std::sync::atomic::{Ordering, fence};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SendError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use forebay_base::lock::Lock;
use forebay_topology::{MemoryLeft, System};

use super::group::Group;
use super::homes::PinnedUnit;
use super::layer::{Copy, Unit};
use super::mapped::{Pages, Refusal, Windows};
use super::marks::Mark;

/// Minimum number of passes for which pinning pays off. The pass that pins takes 2.2 to 2.8 times
/// as long as one through slots (H200, 2026-11-22, `04e6c7bc`), and each
/// later one 0.94 times (H200, 2026-11-22, `dcf504c0`, `large-mapped` against `large-kvikio`). That
/// pays off after 20 to 30 passes.
const WORTH_PASSES: u64 = 32;

/// Interval for checking free memory while pages are pinned.
const LOOKS_EVERY: Duration = Duration::from_millis(500);

/// Interval for checking whether pages may be unpinned.
const CHECKS_EVERY: Duration = Duration::from_millis(5);

/// Pages are unpinned if less than this fraction of the memory would remain.
const LEFT: u64 = 16;

/// Which layers' pages are pinned, and which could be.
#[derive(Debug)]
pub(super) struct Maps {
    /// Bytes that may be pinned, and bytes that are.
    pub(super) budget: u64,
    used: u64,
    /// Whether the caller requested pinning as soon as pages are in memory.
    at_once: bool,
    /// Per unit: a bit for the streams to which it was loaded from files before, and whether its
    /// pages can be used.
    came: Vec<u64>,
    can: Vec<bool>,
    /// Per unit: the number of claims. It may be claimed again before its old pages are unpinned.
    claims: Vec<u32>,
    /// Why some can never be pinned, and why the last attempt failed.
    refused: Option<String>,
    waits: Option<&'static str>,
}

/// The error if the [`Mapper`]'s thread could not be started.
const NO_THREAD: &str = "no thread can be started to pin and unpin pages";

/// Requests to the thread.
pub(super) enum Wish {
    Pin(Windows, Sender<Pinned>),
    /// Check pages that are being released, or were copied.
    Look,
}

/// Pages of a unit to be unpinned. They are unpinned once nothing reads them, and else leaked.
#[derive(Debug)]
struct Leaving {
    unit: usize,
    home: Option<Arc<PinnedUnit>>,
    copies: Copies,
}

/// The state of the copies from pages to be unpinned.
#[derive(Debug)]
enum Copies {
    /// Some may still be about to be queued.
    Begin,
    /// All were queued before these marks.
    Before(Vec<Mark>),
    /// Unknown: a GPU failed, or a stream's copies did not end.
    Unknown,
}

/// The pages and the copies from them, or why there are none.
pub(super) type Pinned = Result<(Pages, Vec<Copy>), Refusal>;

/// The turn of the thread that unpins pages.
#[derive(Debug, Default)]
struct Giving;

/// The thread that pins and unpins pages.
#[derive(Debug, Default)]
pub(super) struct Mapper {
    /// Sender to the thread, if it was started.
    wishes: Lock<Option<Sender<Wish>>>,
    leaving: Lock<Vec<Leaving>>,
    /// Held while pages are unpinned, so that closing the stream waits for that.
    giving: Lock<Giving>,
}

impl Maps {
    /// Creates the state for a limit of `budget` bytes and `passes` passes.
    pub(super) fn new(units: &[Unit], budget: Option<u64>, passes: Option<u64>) -> Self {
        let half = |left: MemoryLeft| left.available.saturating_sub(left.pinned) / 2;
        let of_machine = || System::live().memory_left().map_or(0, half);
        let is_worth = passes.is_none_or(|passes| passes >= WORTH_PASSES);
        let too_few = || format!("{} passes are too few to bring its cost in", passes.unwrap_or(0));
        let at_once = budget.is_some() && passes != Some(1);
        let refused = (budget.is_none() && !is_worth).then(too_few);
        let budget = budget.unwrap_or_else(|| if is_worth { of_machine() } else { 0 });
        let (came, can) = (vec![0; units.len()], vec![true; units.len()]);
        let claims = vec![0; units.len()];
        Self { budget, used: 0, at_once, came, can, claims, refused, waits: None }
    }

    /// Whether anything may be pinned.
    pub(super) fn is_on(&self) -> bool {
        self.budget > 0
    }

    /// Records that a unit is loaded to the streams with these seats. Returns whether its pages are
    /// to be pinned now: when it is loaded again, or immediately if the caller requested that.
    pub(super) fn claim(
        &mut self,
        number: usize,
        unit: &Unit,
        seats: impl Iterator<Item = usize>,
    ) -> bool {
        // Streams beyond the last bit share it, so their pages are pinned sooner.
        let to = seats.fold(0, |all, seat| all | 1 << seat.min(63));
        let again = self.at_once || self.came[number] & to != 0;
        self.came[number] |= to;
        let len = unit.bytes();
        if !again || !self.can[number] || len == 0 || self.budget == 0 {
            return false;
        }
        if self.budget.saturating_sub(self.used) < len {
            self.waits = Some("`mapped_budget` has no room for more layers");
            return false;
        }
        self.used += len;
        self.claims[number] += 1;
        true
    }

    /// Bytes that are pinned or about to be, and why not more.
    fn pinned(&self) -> (u64, Option<String>) {
        let waits = || self.waits.map(str::to_owned);
        (self.used, self.refused.clone().or_else(waits))
    }

    /// Records that all pinned pages were unpinned.
    pub(super) fn clear(&mut self) {
        self.used = 0;
    }

    /// Records that a claimed unit was not pinned.
    pub(super) fn not_pinned(&mut self, number: usize, unit: &Unit, refusal: Refusal) {
        self.unclaim(number, unit);
        match refusal {
            Refusal::Now(reason) => {
                self.waits = Some(reason);
                self.came[number] = 0; // it is tried again later
            }
            Refusal::Ever(reason) => self.refuse(number, reason),
        }
    }

    /// Records that a claimed unit is no longer pinned.
    fn unclaim(&mut self, number: usize, unit: &Unit) {
        self.used = self.used.saturating_sub(unit.bytes());
        self.claims[number] = self.claims[number].saturating_sub(1);
    }

    /// Whether a unit's pages are pinned, or may be.
    pub(super) fn is_open(&self, number: usize) -> bool {
        self.can[number] || self.claims[number] > 0
    }

    /// Stops a unit from being claimed again, for a reason.
    pub(super) fn refuse(&mut self, number: usize, reason: String) {
        self.can[number] = false;
        self.refused.get_or_insert(reason);
    }

    /// Stops all further pinning.
    fn stop(&mut self, reason: String) {
        self.budget = 0;
        self.refused = Some(reason);
    }
}

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
        let lanes = streams.iter().flat_map(|stream| {
            [stream.memory_lane, stream.file_lane].map(|lane| stream.marks.put(lane)) //
        });
        let marks: Result<Vec<Mark>, _> = lanes.collect();
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

impl Drop for Leaving {
    fn drop(&mut self) {
        std::mem::forget(self.home.take()); // a copy may still read them
    }
}

#[cfg(test)]
#[expect(unsafe_code, reason = "takes layers for a stream that it names")]
mod tests;
