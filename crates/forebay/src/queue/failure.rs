//! Failure of an engine after a panic of a thread: the engine accepts no further transfers.
//!
//! The state that the thread was changing may be wrong and must not be used. So all transfers end
//! with an error, waiting threads are woken, and new requests are refused. Memory that a drive or a
//! GPU may still access is leaked. A call that lent its memory waits until no device accesses it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};

use super::core::{Core, Outside};
use crate::error::Error;
use crate::events;

impl Core {
    /// Registers transfers that the scheduler does not know, to be ended if the engine fails.
    pub(crate) fn ends_on_failure(&self, transfers: &Arc<impl Outside + 'static>) {
        let transfers: Arc<dyn Outside> = Arc::clone(transfers) as _;
        self.failed().outside.lock().push(Arc::downgrade(&transfers));
    }

    /// Runs the loop of an engine thread; its panic fails the engine.
    pub(crate) fn guard(&self, run: impl FnOnce()) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
            let message = panic.downcast_ref::<&str>().copied();
            let message = message.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            let thread = std::thread::current();
            let name = thread.name().unwrap_or("a thread");
            self.fail(&format!("`{name}` panicked: {}", message.unwrap_or("it did not say why")));
        }
    }

    /// Registers `memory` to be leaked if the engine fails.
    pub(crate) fn leaks_on_failure(&self, memory: Arc<dyn Any + Send + Sync>) {
        let _ = self.failed().memory.set(memory);
    }

    /// The error for requests, if the engine failed.
    pub(crate) fn failure(&self) -> Option<Error> {
        let cause = self.failed().cause.get()?;
        Some(Error::EngineFailed { cause: Arc::clone(cause) })
    }

    /// Closes the engine; later calls have no effect.
    pub(crate) fn fail(&self, cause: &str) {
        let cause: Arc<str> = cause.into();
        let mut scheduler = self.lock_anyhow();
        if scheduler.has_failed() {
            return;
        }
        let waiting = scheduler.close(Arc::clone(&cause));
        let _ = self.failed().cause.set(Arc::clone(&cause));
        drop(scheduler);
        std::mem::forget(self.failed().memory.get().cloned());
        let error = Error::EngineFailed { cause: Arc::clone(&cause) };
        let outside = std::mem::take(&mut *self.failed().outside.lock());
        let outside: Vec<Arc<dyn Outside>> = outside.iter().filter_map(Weak::upgrade).collect();
        let unknown = outside.iter().flat_map(|transfers| transfers.close());
        let failed = waiting.transfers.into_iter().chain(unknown).map(|state| {
            state.give_memory_up(&error);
            (state, Err(error.clone()))
        });
        for (state, result) in waiting.finished.into_iter().chain(failed) {
            self.end(state, result);
        }
        std::mem::forget(outside); // their memory may be copied from
        waiting.gates.iter().for_each(|gate| gate.notify());
        self.wake_all();
        events::engine_failed(&cause);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;
    use std::time::Instant;

    use rustix::io::Errno;

    use super::super::op::{Completion, Op};
    use super::super::planner::Plan;
    use super::super::scheduler::{Claim, Limits, Request, Scheduler, Workers};
    use super::super::worker::{Reader, RingWorker, Tools};
    use super::super::{Parking, Planner, Ring, Slot, Wakeup};
    use super::*;
    use crate::file::{Handle, OpenOptions};
    use crate::options::Priority;
    use crate::plan::{Alignment, Direction, Io, Reason};
    use crate::transfer::{State, SyncMode};
    use crate::tune::DepthLimits;
    use forebay_base::units::{ByteRange, KIB, MIB};

    /// Only distinguishes late from never.
    const BOUND: Duration = Duration::from_secs(60);

    /// Keeps an op until it is dropped, like a drive that hangs; panics as soon as it may.
    #[derive(Debug, Default)]
    struct Broken {
        kept: Vec<Op>,
        panics: Arc<AtomicBool>,
    }

    impl Ring for Broken {
        fn room(&self) -> usize {
            1 - self.kept.len()
        }

        fn in_flight(&self) -> usize {
            self.kept.len()
        }

        fn submit(&mut self, op: Op) {
            self.kept.push(op);
        }

        fn reap(&mut self, _wait: bool, _done: &mut Vec<Completion>) -> Result<(), Errno> {
            let may = self.kept.is_empty() || !self.panics.load(Ordering::Relaxed);
            assert!(may, "a ring that is broken");
            std::thread::sleep(Duration::from_millis(1));
            Ok(())
        }
    }

    struct Plans;

    impl Tools for Plans {
        fn plan(&self, claim: &Claim) -> Plan {
            PLANNER.plan(claim)
        }

        fn grow(&self, _link: usize) -> Vec<Slot> {
            Vec::new()
        }
    }

    const PLANNER: Planner = Planner { segment: 64 * KIB };

    struct Rig {
        core: Arc<Core>,
        file: Arc<Handle>,
        parking: Arc<Parking>,
        memory: Vec<u8>,
        ring: usize,
    }

    impl Rig {
        fn new() -> Self {
            let limits = Limits {
                slot_size: 256 * KIB,
                segment: 64 * KIB,
                in_flight: 16,
                readers: 1,
                readers_of_host: usize::MAX,
                cache: u64::MAX,
                pool: 1,
                host_windows: 4,
            };
            let parking = Arc::<Parking>::default();
            let bell = || Wakeup::List(Arc::clone(&parking));
            let core = Core::new(Scheduler::new(limits), bell(), bell(), Arc::default());
            let drive = core.add_drive(DepthLimits::fixed(4, MIB), &[]);
            let ring = core.add_ring(bell());
            core.lock().attach(drive, ring);
            let file = Handle::open(std::env::current_exe().unwrap(), &OpenOptions::default());
            Self {
                core: Arc::new(core),
                file: Arc::new(file.unwrap()),
                parking,
                memory: vec![0; 256 << 10],
                ring,
            }
        }

        fn start(&self, io: Io, reason: Reason) -> Arc<State> {
            let range = ByteRange::at(0, self.memory.len() as u64);
            let state = Arc::new(State::new(
                Instant::now(),
                Arc::clone(&self.file),
                range,
                Vec::new(),
                Vec::new(),
            ));
            let request = Request {
                state: Arc::clone(&state),
                file: Arc::clone(&self.file),
                batch: None,
                direction: Direction::Read,
                range,
                end: range.end,
                is_sized: true,
                address: self.memory.as_ptr() as u64,
                link: None,
                direct: None,
                drive: 0,
                parts: [(range, io, reason)].into(),
                shares: Vec::new(),
                alignment: (io == Io::ODirect).then(|| Alignment::of(512, 512)),
                cold: false,
                exact: true,
                sync: SyncMode::None,
                priority: Priority::Normal,
            };
            let (key, claim) = self.core.with(|scheduler| scheduler.start(request));
            state.set_key(key);
            if let Some(claim) = claim {
                let (piece, segments) = PLANNER.plan(&claim);
                self.core.with(|scheduler| scheduler.opened(claim.window, piece, segments));
            }
            state
        }

        /// Asserts that the transfer has ended with an error, and that a new one fails at once.
        fn assert_failed(&self, state: &State, cause: &str) {
            for state in [state, &*self.start(Io::Buffered, Reason::InMemory)] {
                let end = state.wait_for(BOUND);
                let Some(Err(error @ Error::EngineFailed { .. })) = end else { panic!("{end:?}") };
                assert!(error.to_string().contains(cause), "{error}");
            }
            assert!(self.core.failure().is_some() && self.core.lock().has_failed());
        }
    }

    #[test]
    fn a_link_and_a_ring_are_added_after_a_panic_under_the_lock() {
        for adds_link in [false, true] {
            let rig = Rig::new();
            let core = Arc::clone(&rig.core);
            let panics = move || core.with(|_| panic!("under the lock"));
            assert!(std::thread::spawn(panics).join().is_err());
            let (core, bell) = (Arc::clone(&rig.core), Wakeup::List(Arc::clone(&rig.parking)));
            let (report, reported) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                report.send(if adds_link { core.add_link(1, bell) } else { core.add_ring(bell) })
            });
            let number = reported.recv_timeout(BOUND).expect("it does not wait for itself");
            assert_eq!(number, usize::from(!adds_link));
            assert!(rig.core.failure().is_some());
        }
    }

    #[test]
    fn a_panic_of_a_rings_thread_ends_its_transfers() {
        let rig = Rig::new();
        let broken = Broken::default();
        broken.panics.store(true, Ordering::Relaxed);
        let state = rig.start(Io::ODirect, Reason::Required);
        let (core, workers) = (Arc::clone(&rig.core), Workers::Ring(rig.ring));
        let thread =
            std::thread::spawn(move || RingWorker::new(workers, broken).run(&core, PLANNER, None));
        rig.assert_failed(&state, "a ring that is broken");
        thread.join().expect("the panic ends there");
        state.wait_untouched();
    }

    #[test]
    fn a_panic_of_a_readers_thread_ends_its_transfers() {
        let rig = Rig::new();
        let broken = Broken::default();
        broken.panics.store(true, Ordering::Relaxed);
        let state = rig.start(Io::Buffered, Reason::InMemory);
        let (core, parking) = (Arc::clone(&rig.core), Arc::clone(&rig.parking));
        let thread = std::thread::spawn(move || Reader::new(broken).run(&core, &Plans, &parking));
        rig.assert_failed(&state, "a ring that is broken");
        thread.join().expect("the panic ends there");
        state.wait_untouched();
    }

    #[test]
    fn a_panic_under_the_lock_ends_all_and_memory_in_use_is_waited_for() {
        let rig = Rig::new();
        let (broken, state) = (Broken::default(), rig.start(Io::ODirect, Reason::Required));
        let ends = Arc::clone(&broken.panics);
        let (core, workers) = (Arc::clone(&rig.core), Workers::Ring(rig.ring));
        let mut worker = RingWorker::new(workers, broken);
        while worker.held().0.in_flight() == 0 {
            let _ = worker.step(&core, false, |claim| PLANNER.plan(claim));
        }
        let own = Arc::clone(&core);
        let poisons = move || own.with(|_| panic!("under the lock"));
        assert!(std::thread::spawn(poisons).join().is_err());
        rig.assert_failed(&state, "changed the scheduler's state");
        // The drive still has the memory, so a call that lent it does not return.
        let waiting = Arc::clone(&state);
        let waits = std::thread::spawn(move || waiting.wait_drained());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waits.is_finished());
        drop((worker, ends));
        waits.join().expect("nothing touches it any more");
    }
}
