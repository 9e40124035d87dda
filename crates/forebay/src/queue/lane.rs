//! The ring of a provider's lane: requests go straight between a drive and a GPU, many at a time.

#![expect(unsafe_code, reason = "hands on the memory that the scheduler owns for the op")]

use std::time::{Duration, Instant};

use rustix::io::Errno;
use slab::Slab;

use super::Ring;
use super::op::{Completion, Direction, Op, Work, now_ns};
use super::pread::{size_if_short, split};
use super::waker::Waker;
use crate::file::{Landed, Lane, LaneRequest, PortError};

/// How long a thread that waits for a lane overhears that it is called.
const HEARS_EVERY: Duration = Duration::from_micros(200);

/// See the module's own text.
#[derive(Debug)]
pub(crate) struct LaneRing {
    lane: Box<dyn Lane>,
    ops: Slab<(Op, Instant)>,
    /// Ops that the lane did not take.
    refused: Vec<Completion>,
    landed: Vec<Landed>,
    waker: Waker,
}

impl LaneRing {
    /// For a thread that is called by `waker`.
    pub(crate) fn new(lane: Box<dyn Lane>, waker: Waker) -> Self {
        Self { lane, ops: Slab::new(), refused: Vec::new(), landed: Vec::new(), waker }
    }

    fn begin(&mut self, op: &Op) -> Result<(), PortError> {
        let (Some(port), Work::Move(direction)) = (&op.port, op.work) else {
            return Err(Errno::INVAL.into());
        };
        let rest = op.rest();
        let request = LaneRequest {
            port,
            writes: direction == Direction::Write,
            address: op.address + op.moved,
            len: rest.len(),
            offset: op.offset_of(rest.start),
            token: self.ops.vacant_key(),
        };
        // SAFETY: the op's memory, here a GPU's, is ours until the op is handed back.
        unsafe { self.lane.begin(request) }
    }

    fn land(&mut self, done: &mut Vec<Completion>) {
        let at_ns = now_ns();
        done.append(&mut self.refused);
        for (token, result) in self.landed.drain(..) {
            let Some((op, start)) = self.ops.try_remove(token) else { continue };
            let took_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            let (result, refused) = split(result);
            let size = size_if_short(&op, result);
            done.push(Completion { op, result, refused, size, took_ns, at_ns });
        }
    }
}

impl Ring for LaneRing {
    fn room(&self) -> usize {
        self.lane.room()
    }

    fn in_flight(&self) -> usize {
        self.ops.len() + self.refused.len()
    }

    fn submit(&mut self, op: Op) {
        match self.begin(&op) {
            Ok(()) => {
                self.ops.insert((op, Instant::now()));
            }
            Err(error) => {
                let refused = Some(error.clone());
                let failed = Completion::failed(op, error.errno);
                self.refused.push(Completion { refused, ..failed });
            }
        }
    }

    fn flush(&mut self) {
        self.lane.flush();
    }

    fn gathers(&self) -> bool {
        true
    }

    fn reap(&mut self, wait: bool, done: &mut Vec<Completion>) -> Result<(), Errno> {
        if self.in_flight() == 0 {
            if wait {
                self.waker.wait(None);
            }
            return Ok(());
        }
        loop {
            let waits = wait && self.refused.is_empty();
            let longest = if waits { HEARS_EVERY } else { Duration::ZERO };
            self.lane.collect(longest, &mut self.landed);
            if !waits || !self.landed.is_empty() {
                break;
            }
            let rest = self.lane.rests();
            if self.waker.wait(Some(rest)) || !rest.is_zero() {
                break;
            }
        }
        self.land(done);
        Ok(())
    }
}
