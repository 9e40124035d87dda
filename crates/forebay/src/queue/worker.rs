//! Worker loops as single steps: a thread repeats its step, and a test interleaves steps.

use std::sync::Arc;
use std::time::Duration;

use forebay_base::units::KIB;
use rustix::io::Errno;

use super::Ring;
use super::core::Core;
use super::op::{Completion, Op};
use super::parking::{Parking, Pool};
use super::planner::{Plan, Planner};
use super::scheduler::{Claim, DriveWork, ReaderWork, Scheduler, Workers};
use super::spans;
use crate::trace::Track;
use crate::transfer::State;

/// Requests of at least this size are flushed individually: the system call costs a microsecond,
/// the request about ten on the fastest drive.
const ALONE: u64 = 128 * KIB;

/// Time between two attempts to start a thread that the system refused.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// The next action of a worker after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Step again.
    Again,
    /// Nothing to do until woken.
    Wait,
    /// The engine is shutting down and nothing remains.
    Stop,
}

/// Feeds a ring: a ring that serves drives, or that of a pool thread.
#[derive(Debug)]
pub(crate) struct RingWorker<R> {
    workers: Workers,
    ring: R,
    taken: Vec<Op>,
    done: Vec<Completion>,
    planned: Option<(usize, Plan)>,
    /// True if the scheduler counts it as parked.
    parked: bool,
    track: Track,
}

impl<R: Ring> RingWorker<R> {
    /// For [`Crew::Ring`] or [`Crew::Pool`].
    pub(crate) fn new(workers: Workers, ring: R) -> Self {
        Self {
            workers,
            ring,
            taken: Vec::new(),
            done: Vec::new(),
            planned: None,
            parked: false,
            track: Track::default(),
        }
    }

    /// For a thread that was woken before it began, so it counts as parked.
    pub(crate) fn woken(workers: Workers, ring: R) -> Self {
        Self { parked: true, ..Self::new(workers, ring) }
    }

    /// The ring, and its completions since the last step.
    #[cfg(test)]
    pub(super) fn held(&self) -> (&R, &[Completion]) {
        (&self.ring, &self.done)
    }

    /// Returns completions, pops and submits ops, plans the claimed window with `plan`, and reaps.
    /// `waits`: the ring can be woken while it waits, so the step may block in it.
    pub(crate) fn step(
        &mut self,
        core: &Core,
        waits: bool,
        plan: impl FnOnce(&Claim) -> Plan,
    ) -> Next {
        let ((claim, ended, cancelled), effects) = core.hold(|scheduler| {
            let claim = self.exchange(scheduler);
            let ended = scheduler.has_ended();
            let may_sleep = waits || self.taken.len() + self.ring.in_flight() == 0;
            if may_sleep && claim.is_none() && !ended {
                scheduler.parks(self.workers);
                self.parked = true;
            }
            (claim, ended, scheduler.take_to_cancel(self.workers))
        });
        // Before anything new is submitted: a window's key may be reused by then.
        cancelled.into_iter().for_each(|window| self.ring.cancel(window));
        if waits {
            // The drive gets its next requests before the threads that wait for the last ones are
            // woken, since these may take this thread's core.
            self.submit();
            core.act(effects);
        } else {
            core.act(effects);
            self.submit();
        }
        if ended {
            return Next::Stop;
        }
        if self.parked && !waits {
            return Next::Wait;
        }
        // A ring that can be woken runs many ops.
        let (to, overlaps) = (core.recorder(), waits);
        let waits = waits && claim.is_none();
        self.planned = claim.map(|claim| {
            let window = claim.window;
            (window, spans::planned(&mut self.track, to, overlaps, &claim, plan))
        });
        if let Err(errno) = self.ring.reap(waits, &mut self.done) {
            self.lose_ring(core, errno);
            return Next::Stop;
        }
        spans::reaped(&mut self.track, to, overlaps, &self.done);
        Next::Again
    }

    /// Moves the work of a failed ring to threads. Requests that the kernel still runs return
    /// first: a second request for the same bytes would race with them.
    fn lose_ring(&mut self, core: &Core, errno: Errno) {
        if let Workers::Ring(ring) = self.workers {
            core.lose_ring(ring, errno);
        }
        for closes in [false, true] {
            if closes {
                self.ring.close(&mut self.done);
            }
            core.with(|scheduler| self.hand_over(scheduler));
        }
    }

    /// Returns the results of the last step.
    fn hand_over(&mut self, scheduler: &mut Scheduler) {
        if std::mem::take(&mut self.parked) {
            scheduler.resumes(self.workers);
        }
        self.done.drain(..).for_each(|completion| scheduler.complete(completion));
        if let Some((window, (piece, segments))) = self.planned.take() {
            scheduler.opened(window, piece, segments);
        }
    }

    /// Returns the results of the last step, and pops as many ops as the ring accepts. Stops early
    /// at a window that must be planned first.
    fn exchange(&mut self, scheduler: &mut Scheduler) -> Option<Claim> {
        self.hand_over(scheduler);
        let room = self.ring.room();
        while self.taken.len() < room {
            match scheduler.take_drive_work(self.workers)? {
                DriveWork::Op(op) => self.taken.push(op),
                DriveWork::Open(claim) => return Some(claim),
            }
        }
        None
    }

    /// Submits the popped ops. An idle drive gets the first request immediately, and starts on it
    /// while the rest are prepared. The distance between later flushes doubles, since a flush is a
    /// system call. Large requests are flushed individually: the kernel merges adjacent requests
    /// that are submitted together, and then the drive runs fewer than it could.
    fn submit(&mut self) {
        for (index, op) in self.taken.drain(..).enumerate() {
            let alone = op.segment.covered.len() >= ALONE;
            self.ring.submit(op);
            if alone || (index + 1).is_power_of_two() {
                self.ring.flush();
            }
        }
        self.ring.flush();
    }

    /// Repeats the step until the engine ends. A worker whose ring cannot be woken parks in its
    /// pool.
    pub(crate) fn run(mut self, core: &Core, planner: Planner, pool: Option<&Pool>) {
        core.guard(|| {
            loop {
                match self.step(core, pool.is_none(), |claim| planner.plan(claim)) {
                    Next::Again => {}
                    Next::Stop => return,
                    Next::Wait => pool.into_iter().for_each(Pool::park),
                }
            }
        });
    }
}

/// The operations that a reader needs in addition to its ring.
pub(crate) trait Tools {
    /// Plans a claimed window.
    fn plan(&self, claim: &Claim) -> Plan;

    /// Allocates more slots for a link; none if that fails.
    fn grow(&self, link: usize) -> Vec<super::Slot>;
}

/// How the scheduler counts a reader.
#[derive(Debug, Clone, Copy)]
enum Counted {
    Neither,
    Parked,
    Busy,
}

/// Opens windows and moves bytes through the page cache.
#[derive(Debug)]
pub(crate) struct Reader<R> {
    ring: R,
    done: Vec<Completion>,
    planned: Option<(usize, Plan)>,
    slots: Option<(usize, Vec<super::Slot>)>,
    counted: Counted,
    track: Track,
}

impl<R: Ring> Reader<R> {
    pub(crate) fn new(ring: R) -> Self {
        Self {
            ring,
            done: Vec::new(),
            planned: None,
            slots: None,
            counted: Counted::Neither,
            track: Track::default(),
        }
    }

    /// The ring, and its completions since the last step.
    #[cfg(test)]
    pub(super) fn held(&self) -> (&R, &[Completion]) {
        (&self.ring, &self.done)
    }

    /// True if it holds work for readers.
    #[cfg(test)]
    pub(super) fn is_at_work(&self) -> bool {
        let is_moving = self.ring.in_flight() > 0 || !self.done.is_empty();
        is_moving || self.planned.is_some() || self.slots.is_some()
    }

    /// Waits for the op that the last step began.
    fn reap(&mut self, core: &Core) {
        if self.ring.in_flight() > 0 {
            let reaped = self.ring.reap(true, &mut self.done);
            debug_assert!(reaped.is_ok(), "a ring of one thread has nothing that can fail");
            spans::reaped(&mut self.track, core.recorder(), false, &self.done);
        }
    }

    /// Returns the results of the last step.
    fn hand_back(&mut self, scheduler: &mut Scheduler) {
        self.done.drain(..).for_each(|completion| scheduler.complete(completion));
        if let Some((window, (piece, segments))) = self.planned.take() {
            scheduler.opened(window, piece, segments);
        }
        if let Some((link, slots)) = self.slots.take() {
            scheduler.add_slots(link, &slots);
        }
    }

    /// Begins a work item; the next step waits for its end.
    pub(crate) fn begin(&mut self, work: ReaderWork, core: &Core, tools: &impl Tools) {
        match work {
            ReaderWork::Op(op) => {
                self.ring.submit(op);
            }
            ReaderWork::Open(claim) => {
                let (track, to) = (&mut self.track, core.recorder());
                let plan = spans::planned(track, to, false, &claim, |claim| tools.plan(claim));
                self.planned = Some((claim.window, plan));
            }
            ReaderWork::Grow(link) => self.slots = Some((link, tools.grow(link))),
        }
    }

    /// A step: returns results, pops a work item and runs it.
    pub(crate) fn step(&mut self, core: &Core, tools: &impl Tools) -> Next {
        self.reap(core);
        let (work, ended) = core.with(|scheduler| {
            match self.counted {
                Counted::Neither => {}
                Counted::Parked => scheduler.resumes(Workers::Readers),
                Counted::Busy => scheduler.return_reader(),
            }
            self.hand_back(scheduler);
            let work = scheduler.take_reader_work();
            let ended = work.is_none() && scheduler.has_ended();
            self.counted = match &work {
                Some(_) => Counted::Busy,
                None if ended => Counted::Neither,
                None => {
                    scheduler.parks(Workers::Readers);
                    Counted::Parked
                }
            };
            (work, ended)
        });
        match work {
            Some(work) => self.begin(work, core, tools),
            None if ended => return Next::Stop,
            None => return Next::Wait,
        }
        Next::Again
    }

    /// A step for a single transfer. False if it needs no work.
    pub(crate) fn step_for(&mut self, core: &Core, tools: &impl Tools, state: &Arc<State>) -> bool {
        self.reap(core);
        let work = core.with(|scheduler| {
            self.hand_back(scheduler);
            scheduler.take_work_of(state)
        });
        let is_some = work.is_some();
        work.into_iter().for_each(|work| self.begin(work, core, tools));
        is_some
    }

    /// Repeats the step until the engine ends.
    pub(crate) fn run(mut self, core: &Core, tools: &impl Tools, parking: &Parking) {
        core.guard(|| {
            loop {
                match self.step(core, tools) {
                    Next::Again => {}
                    Next::Wait if core.lacks_threads() => {
                        parking.park_for(RETRY_EVERY);
                        core.start_threads(RETRY_EVERY);
                    }
                    Next::Wait => parking.park(),
                    Next::Stop => return,
                }
            }
        });
    }
}
