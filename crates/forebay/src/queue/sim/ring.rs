//! A ring whose ops complete later, in random order and with random results from the seed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_base::clock::Clock;
use rustix::io::Errno;

use super::direct::refused;
use super::world::{NEVER, World};
use crate::queue::op::{Completion, Op, Owner, WindowKey};
use crate::queue::pread::Bounce;
use crate::queue::{Core, Ring};
use crate::transfer::State;

/// An op in the simulated kernel.
struct Flight {
    id: u64,
    op: Op,
    state: Arc<State>,
    base: u64,
    due: Duration,
    /// Whether the kernel has cancelled it.
    cancelled: bool,
}

/// A simulated ring.
pub(super) struct SimRing {
    world: Rc<RefCell<World>>,
    core: Arc<Core>,
    depth: usize,
    bounce: Bounce,
    flights: Vec<Flight>,
    /// Whether its thread would have blocked in the last `reap`.
    blocked: Cell<bool>,
}

impl SimRing {
    pub(super) fn new(
        world: &Rc<RefCell<World>>,
        core: &Arc<Core>,
        depth: usize,
        segment: u64,
    ) -> Self {
        Self {
            world: Rc::clone(world),
            core: Arc::clone(core),
            depth,
            bounce: Bounce::new(depth, segment),
            flights: Vec::new(),
            blocked: Cell::new(false),
        }
    }

    /// When the next op is due, if ever.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.flights.iter().map(|flight| flight.due).min().filter(|due| *due != NEVER)
    }

    /// Transfers of ops whose completions never arrive, and whether no other op is in flight.
    pub(super) fn lost(&self) -> (impl Iterator<Item = &Arc<State>>, bool) {
        let all = self.flights.iter().all(|flight| flight.due == NEVER);
        let lost = self.flights.iter().filter(|flight| flight.due == NEVER);
        (lost.map(|flight| &flight.state), all)
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.blocked.get()
    }

    /// The ops in flight. Panics if the transfer of one has ended.
    pub(super) fn ops(&self) -> impl Iterator<Item = &Op> {
        self.flights.iter().map(|flight| {
            assert!(!flight.state.is_done(), "ended with an op in flight: {:?}", flight.op);
            &flight.op
        })
    }
}

impl Ring for SimRing {
    fn room(&self) -> usize {
        self.depth - self.flights.len()
    }

    fn in_flight(&self) -> usize {
        self.flights.len()
    }

    fn submit(&mut self, op: Op) {
        assert!(self.flights.len() < self.depth, "more than {} ops in a ring", self.depth);
        let state = self.core.lock().state_of(&op);
        let drive = self.core.lock().drive_of(&op);
        let base = if op.segment.bounce {
            self.bounce.enter(&op).expect("memory for a few pieces").expect("one for each op")
        } else {
            op.address
        };
        let mut world = self.world.borrow_mut();
        let id = world.begin(&op, base, &state);
        let due = world.due_on(drive, &op);
        self.flights.push(Flight { id, op, state, base, due, cancelled: false });
    }

    fn cancel(&mut self, window: WindowKey) {
        let mut world = self.world.borrow_mut();
        for flight in &mut self.flights {
            if matches!(flight.op.owner, Owner::Piece(key, _) if key == window) {
                let wanted = !self.core.lock().has_stopped(&flight.op);
                assert!(!wanted, "cancelled while it is wanted: {:?}", flight.op);
                if world.meets("taken-back", 0.5) {
                    flight.cancelled = true;
                    flight.due = flight.due.min(world.due());
                }
            }
        }
    }

    fn reap(&mut self, wait: bool, done: &mut Vec<Completion>) -> Result<(), Errno> {
        let mut world = self.world.borrow_mut();
        let now = world.clock.now();
        self.flights.sort_by_key(|flight| (flight.due, flight.id));
        let ready = self.flights.iter().take_while(|flight| flight.due <= now).count();
        for Flight { id, op, state, base, cancelled, .. } in self.flights.drain(..ready) {
            let (mut result, size) = if cancelled {
                world.drop_op(id, &op, &state);
                (Err(Errno::CANCELED), None)
            } else {
                world.end(id, &op, base, &state)
            };
            if op.segment.bounce {
                result = self.bounce.leave(base, &op, result);
            }
            let at_ns = u64::try_from(now.as_nanos()).expect("a short run");
            let refused = refused(&op, result);
            done.push(Completion { op, result, refused, size, took_ns: 50_000, at_ns });
        }
        self.blocked.set(wait && ready == 0);
        Ok(())
    }
}
