//! How a run ends, and what must hold then.
//!
//! Where completions were lost, whoever does not wait for them has come to an end by itself; the
//! rest is cancelled, and all ends that the drive does not have. What it has is never given back
//! while the run lasts; with the run the drive is gone as well.

use std::sync::Arc;

use super::job::Job;
use super::ring::SimRing;
use super::run::{Machine, Phase, Run, Summary};
use crate::queue::{Crew, Ring, Scheduler};
use crate::transfer::State;

impl Run {
    /// Whether something goes on although nobody could make a step.
    pub(super) fn give_up(&mut self) -> bool {
        let before = self.jobs.len();
        self.judge_ended(); // a cancel may have ended one since the last step
        if self.jobs.len() < before {
            return true; // and others may start in its place, or all end
        }
        let goes = |machine: &&Machine| machine.phase != Phase::Stopped;
        let left: Vec<_> = self.machines.iter().filter(goes).map(|m| m.crew).collect();
        // Threads of the pool that were never needed were never started.
        let unstarted = self.core.lock().unstarted();
        if left.len() == unstarted && left.iter().all(|crew| *crew == Crew::Pool) {
            return false;
        }
        let lost = self.shape.lost.filter(|_| self.lost().next().is_some());
        let Some(drive) = lost else { panic!("nobody can go on: {left:?} {:?}", self.core.lock()) };
        if std::mem::replace(&mut self.gave_up, true) {
            return false;
        }
        for job in &self.jobs {
            // Of few slots that do not split, those with lost ops may be all; and what another way
            // writes of the same file, straight from a GPU for example, has its turn.
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

    /// The transfers of ops whose completions never come.
    fn lost(&self) -> impl Iterator<Item = &Arc<State>> {
        self.rings().flat_map(|ring| ring.lost().0)
    }

    /// Panics where anything is left that should not be.
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
                continue; // a write that has no end may have made some of its bytes
            }
            let mut expected = file.expected.clone();
            expected.resize(file.bytes.len(), 0);
            assert!(file.bytes == expected, "bytes of a file that no write asked for");
        }
    }
}
