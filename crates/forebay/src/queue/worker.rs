//! The threads that run ops, as steps: a thread repeats its step, a test interleaves them.

use std::sync::Arc;

use super::core::Core;
use super::idlers::{Idlers, Sleeper};
use super::op::{Completion, Op};
use super::scheduler::{ReaderWork, Scheduler};
use super::{Ring, probe};
use crate::transfer::State;

/// What a worker is to do after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Step again.
    Again,
    /// Nothing to do until something is pushed.
    Wait,
    /// The engine ends and nothing is left.
    Stop,
}

/// Feeds one drive's ring.
#[derive(Debug)]
pub(crate) struct RingWorker<R> {
    drive: usize,
    ring: R,
    taken: Vec<Op>,
    done: Vec<Completion>,
    marked_asleep: bool,
}

impl<R: Ring> RingWorker<R> {
    pub(crate) fn new(drive: usize, ring: R) -> Self {
        Self { drive, ring, taken: Vec::new(), done: Vec::new(), marked_asleep: false }
    }

    /// Hands back what is done, takes what there is, submits it and reaps. `waits`: the ring can
    /// be woken while it waits, so the step may block in it.
    pub(crate) fn step(&mut self, core: &Core, waits: bool) -> Next {
        let (drive, done, taken) = (self.drive, &mut self.done, &mut self.taken);
        let was_asleep = std::mem::take(&mut self.marked_asleep);
        let room = self.ring.room();
        let (exhausted, idle) = core.with(|scheduler| {
            if was_asleep {
                scheduler.drive_woke(drive);
            }
            done.drain(..).for_each(|completion| scheduler.complete(completion));
            while taken.len() < room {
                match scheduler.take_drive_op(drive) {
                    Some(op) => taken.push(op),
                    None => break,
                }
            }
            let exhausted = taken.len() < room;
            if exhausted && waits {
                scheduler.drive_sleeps(drive);
            }
            (exhausted, scheduler.is_idle())
        });
        self.marked_asleep = exhausted && waits;
        self.taken.drain(..).for_each(|op| self.ring.submit(op));
        if self.ring.in_flight() == 0 {
            if core.is_stopping() && idle {
                return Next::Stop;
            }
            if !waits {
                return Next::Wait;
            }
        }
        if self.ring.reap(waits, &mut self.done).is_err() {
            // The ring's ops are still the kernel's. Give it time; nothing else is safe.
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        Next::Again
    }

    /// Repeats the step until the engine ends. A ring that cannot be woken sleeps among `idlers`.
    pub(crate) fn run(mut self, core: &Core, idlers: Option<&Idlers>) {
        let sleeper = Arc::default();
        loop {
            match (self.step(core, idlers.is_none()), idlers) {
                (Next::Stop, _) => return,
                (Next::Wait, Some(idlers)) => self.sleep(core, idlers, &sleeper),
                _ => {}
            }
        }
    }

    fn sleep(&mut self, core: &Core, idlers: &Idlers, sleeper: &Arc<Sleeper>) {
        let mut scheduler = core.lock();
        match scheduler.take_drive_op(self.drive) {
            Some(op) => self.taken.push(op),
            None if core.is_stopping() && scheduler.is_idle() => {}
            None => {
                scheduler.drive_sleeps(self.drive);
                idlers.enlist(sleeper);
                drop(scheduler);
                sleeper.sleep();
                scheduler = core.lock();
            }
        }
        let effects = scheduler.take_effects();
        drop(scheduler);
        core.act(effects);
    }
}

/// Opens windows and moves what goes through the page cache.
#[derive(Debug)]
pub(crate) struct Reader<R> {
    ring: R,
    done: Vec<Completion>,
    planned: Option<(usize, u64, Vec<crate::plan::Segment>)>,
    slots: Option<(usize, Vec<super::Slot>)>,
}

impl<R: Ring> Reader<R> {
    pub(crate) fn new(ring: R) -> Self {
        Self { ring, done: Vec::new(), planned: None, slots: None }
    }

    /// Hands back what the last step made.
    fn hand_back(&mut self, scheduler: &mut Scheduler) {
        self.done.drain(..).for_each(|completion| scheduler.complete(completion));
        if let Some((window, piece, segments)) = self.planned.take() {
            scheduler.opened(window, piece, segments);
        }
        if let Some((link, slots)) = self.slots.take() {
            scheduler.add_slots(link, &slots);
        }
    }

    fn work(
        &mut self,
        work: ReaderWork,
        planner: &probe::Planner,
        grow: &dyn Fn(usize) -> Vec<super::Slot>,
    ) {
        match work {
            ReaderWork::Op(op) => {
                self.ring.submit(op);
                // A ring of one thread has run the op by now.
                let reaped = self.ring.reap(true, &mut self.done);
                debug_assert!(reaped.is_ok());
            }
            ReaderWork::Open(claim) => {
                let (piece, segments) = planner.plan(&claim);
                self.planned = Some((claim.window, piece, segments));
            }
            ReaderWork::Grow(link) => self.slots = Some((link, grow(link))),
        }
    }

    /// One step: hands back, takes work and does it.
    #[cfg(test)]
    pub(crate) fn step(
        &mut self,
        core: &Core,
        planner: &probe::Planner,
        grow: &dyn Fn(usize) -> Vec<super::Slot>,
    ) -> Next {
        let work = core.with(|scheduler| {
            self.hand_back(scheduler);
            scheduler.take_reader_work()
        });
        let Some(work) = work else { return Next::Wait };
        self.work(work, planner, grow);
        Next::Again
    }

    /// Works for one transfer until there is nothing to do for it.
    pub(crate) fn help(mut self, core: &Core, planner: &probe::Planner, state: &Arc<State>) {
        loop {
            let mut scheduler = core.lock();
            self.hand_back(&mut scheduler);
            let work = scheduler.take_work_of(state);
            let effects = scheduler.take_effects();
            drop(scheduler);
            core.act(effects.less_one_if(work.is_some()));
            match work {
                Some(work) => self.work(work, planner, &|_| Vec::new()),
                None => return,
            }
        }
    }

    /// Repeats the step until the engine ends.
    pub(crate) fn run(
        mut self,
        core: &Core,
        planner: &probe::Planner,
        grow: &dyn Fn(usize) -> Vec<super::Slot>,
    ) {
        let sleeper = Arc::default();
        loop {
            let mut scheduler = core.lock();
            self.hand_back(&mut scheduler);
            let work = scheduler.take_reader_work();
            let effects = scheduler.take_effects().less_one_if(work.is_some());
            let ends = work.is_none() && core.is_stopping() && scheduler.is_idle();
            let sleeps = work.is_none() && !ends && !effects.is_some();
            if sleeps {
                core.readers.enlist(&sleeper);
            }
            drop(scheduler);
            // What the last step made must be known to the others before this one sleeps.
            core.act(effects);
            match work {
                Some(work) => self.work(work, planner, grow),
                None if ends => return,
                None if sleeps => sleeper.sleep(),
                None => {}
            }
        }
    }
}
