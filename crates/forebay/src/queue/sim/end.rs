//! Ends a run and checks the final state.
//!
//! If completions were lost, transfers that do not depend on them have ended by themselves. The
//! rest is cancelled, and all of it ends except what the drive still holds. The drive's memory is
//! never freed during the run; the drive is dropped with the run.

use std::sync::Arc;

use super::job::Job;
use super::ring::SimRing;
use super::run::{Machine, Run, RunState, Summary};
use crate::queue::{Ring, Scheduler, Workers};
use crate::transfer::State;

impl Run {
    /// Called when no machine can step. Returns whether the run can continue.
    pub(super) fn give_up(&mut self) -> bool {
        let before = self.jobs.len();
        self.judge_ended(); // a cancel may have ended one since the last step
        if self.jobs.len() < before {
            return true; // other transfers may start in its place, or all have ended
        }
        let goes = |machine: &&Machine| machine.phase != RunState::Stopped;
        let left: Vec<_> = self.machines.iter().filter(goes).map(|m| m.workers).collect();
        // Pool threads that were never needed were never started.
        let unstarted = self.core.lock().unstarted();
        if left.len() == unstarted && left.iter().all(|workers| *workers == Workers::Pool) {
            return false;
        }
        let lost = self.shape.lost.filter(|_| self.lost().next().is_some());
        let Some(drive) = lost else {
            panic!("no actor can continue: {left:?} {:?}", self.core.lock())
        };
        if std::mem::replace(&mut self.gave_up, true) {
            return false;
        }
        for job in &self.jobs {
            // Transfers with lost ops may hold all slots, if these are few and cannot be split. A
            // write by another path, such as directly from a GPU, may be waiting for its turn on
            // the same file.
            let waits = |scheduler: &Scheduler| {
                scheduler.waits_for_slot(&job.state) || scheduler.waits_for_turn(&job.state)
            };
            let waits = job.drives.contains(&drive) || waits(&self.core.lock());
            let left = || self.core.lock().what_is_left_of(&job.state);
            assert!(waits, "{:?} waits for another's drive: {}", job.state, left());
        }
        self.jobs.iter_mut().for_each(|job| job.cancel(&self.core));
        self.stop();
        true
    }

    fn rings(&self) -> impl Iterator<Item = &SimRing> {
        let callers = self.jobs.iter().filter_map(Job::ring);
        self.machines.iter().filter_map(Machine::ring).chain(callers)
    }

    /// Transfers whose ops' completions never arrive.
    fn lost(&self) -> impl Iterator<Item = &Arc<State>> {
        self.rings().flat_map(|ring| ring.lost().0)
    }

    /// Panics if anything is left that should not be.
    pub(super) fn end(self) -> Summary {
        if self.gave_up {
            self.look_at_what_is_lost();
        } else {
            assert!(self.jobs.is_empty(), "{} transfers have no end", self.jobs.len());
            assert!(self.core.lock().has_ended());
            self.look_at_slots();
        }
        self.look_at_files();
        let mut met = self.tools.world.borrow().tally.clone();
        self.tools.devices.iter().for_each(|device| met.add(&device.tally()));
        Summary { steps: self.steps, bytes: self.bytes, met }
    }

    fn look_at_what_is_lost(&self) {
        for ring in self.rings() {
            assert!(ring.lost().1, "ops are left whose completions would come");
        }
        for job in &self.jobs {
            let is_its = |state: &Arc<State>| Arc::ptr_eq(state, &job.state);
            assert!(self.lost().any(is_its), "nothing keeps it from its end: {:?}", job.state);
            assert!(!job.state.is_done());
        }
        let in_flight = self.rings().map(Ring::in_flight).sum();
        self.core.lock().check_that_all_wait(in_flight);
    }

    fn look_at_slots(&self) {
        let scheduler = self.core.lock();
        for link in 0..self.shape.gpus {
            if let Some((free, all)) = scheduler.slots(link) {
                assert_eq!(free, all, "slots that did not come back");
            }
        }
    }

    fn look_at_files(&self) {
        for (index, file) in self.tools.world.borrow().files.iter().enumerate() {
            if self.jobs.iter().flat_map(|job| &job.pieces).any(|piece| piece.file == index) {
                continue; // an unfinished write may have written some of its bytes
            }
            let mut expected = file.expected.clone();
            expected.resize(file.bytes.len(), 0);
            assert!(file.bytes == expected, "bytes of a file that no write changed");
        }
    }
}
