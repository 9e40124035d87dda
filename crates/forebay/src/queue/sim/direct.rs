//! Direct transfers between a simulated drive and a simulated GPU: which transfers are direct, the
//! port's results, and the checks of the outcome.
//!
//! The simulated world moves the bytes; the port itself only reports its requirements.

#![expect(unsafe_code, reason = "the trait's calls take raw addresses, and are never made here")]

use std::sync::Arc;

use forebay_base::units::{ByteRange, align_down, align_up};
use rustix::io::Errno;

use super::job::{Job, Piece};
use super::shape::Shape;
use super::start::Wish;
use super::world::{World, below};
use crate::file::Handle;
use crate::gpu::{Device as _, DeviceId, DeviceKind, Port, PortError};
use crate::plan::{Alignment, Direction, Io, Reason, Route};
use crate::queue::op::Op;
use crate::queue::{DirectPath, Request, Share};
use crate::transfer::{Outcome, State};

/// The error text of a port for every refusal.
const REFUSAL: &str = "the seed refuses";

/// Errors by which a port itself refuses; any other error is a failure of the drive.
pub(super) const REFUSALS: [Errno; 2] = [Errno::OPNOTSUPP, Errno::NODEV];

/// A direct path between a file and a simulated GPU.
#[derive(Debug)]
struct SimPort {
    gpu: DeviceId,
    unit: u64,
}

impl Port for SimPort {
    fn unit(&self) -> u64 {
        self.unit
    }

    unsafe fn read(&self, _address: u64, _len: u64, _offset: u64) -> Result<u64, PortError> {
        unreachable!("the world moves the bytes")
    }

    unsafe fn write(&self, _address: u64, _len: u64, _offset: u64) -> Result<u64, PortError> {
        unreachable!("the world moves the bytes")
    }

    fn gpu(&self) -> DeviceId {
        self.gpu
    }
}

/// The port error for an op's failure.
pub(super) fn refused(op: &Op, result: Result<u64, Errno>) -> Option<PortError> {
    let errno = result.err().filter(|_| op.port.is_some())?;
    Some(PortError { errno, words: REFUSAL.into(), of_memory: false })
}

/// The direct part of a transfer.
pub(super) struct DirectPart {
    port: Arc<dyn Port>,
    handle: Arc<Handle>,
    reason: Reason,
    body: ByteRange,
}

/// A range that a port has transferred.
#[derive(Debug)]
pub(super) struct Moved {
    state: Arc<State>,
    range: ByteRange,
}

impl DirectPart {
    /// Chooses the direct part of a transfer, if any, like the engine does.
    pub(super) fn of(
        world: &mut World,
        shape: &Shape,
        wish: &Wish,
        handle: &Arc<Handle>,
    ) -> Option<Self> {
        let index = u32::try_from(wish.link?).expect("few GPUs");
        world.files[wish.file].alignment?;
        if !world.dice.roll(shape.by_port) {
            return None;
        }
        let (gpu, unit) = (DeviceId { kind: DeviceKind::Sim, index }, shape.port_unit);
        let found = handle.ports().to(gpu, || Ok(Arc::new(SimPort { gpu, unit })));
        let port = match found {
            Ok(port) => port,
            Err(why) => {
                assert!(why == REFUSAL || why == NO_FURTHER, "an unknown reason: {why}");
                world.tally.count("port-closed", 1);
                return None;
            }
        };
        let known = ByteRange { start: wish.range.start, end: wish.end };
        let start = align_up(known.start, unit);
        let body = ByteRange { start, end: align_down(known.end, unit).max(start) };
        let required = world.dice.roll(shape.requires);
        let reason = if required { Reason::Required } else { Reason::PeerToPeer };
        (!body.is_empty()).then(|| Self { port, handle: Arc::clone(handle), reason, body })
    }

    /// Offset of its memory from an address that is aligned for every port.
    pub(super) fn skew(&self, range: ByteRange, guard: u64) -> u64 {
        range.start.wrapping_sub(guard) % self.port.unit()
    }

    /// Makes a staged request direct, except for its edges.
    pub(super) fn send(&self, request: &mut Request) {
        let (link, drive) = (request.link.expect("a GPU has a link"), request.drive);
        let (range, body) = (request.range, self.body);
        let edges = [
            ByteRange { start: range.start, end: body.start },
            ByteRange { start: body.end, end: request.end.max(body.end) },
        ];
        let edges = edges.into_iter().filter(|edge| !edge.is_empty());
        let parts: Vec<_> = edges.map(|e| (e, Io::Buffered, Reason::UnalignedEdge)).collect();
        let share = (!parts.is_empty()).then(|| Share { drive, parts: parts.into() });
        let unit = self.port.unit();
        request.shares = share.into_iter().collect();
        request.direct =
            Some(DirectPath { port: Arc::clone(&self.port), link, alignment: request.alignment });
        request.link = None;
        request.parts = [(body, Io::ODirect, self.reason)].into();
        request.alignment = Some(Alignment::of(unit, unit));
        request.cold = false;
    }

    /// Checks a required route, and that the outcome of a successful transfer counts each byte
    /// once, under the route that it really took.
    fn judge(&self, world: &World, state: &Arc<State>, outcome: &Outcome) {
        let by = |what: &dyn Fn(Route, Reason) -> bool| -> u64 {
            let shares = outcome.routes.iter().filter(|share| what(share.route, share.reason));
            shares.map(|share| share.bytes).sum()
        };
        let direct = by(&|route, _| route == Route::Direct);
        let named = by(&|route, reason| route == Route::Direct && reason == self.reason);
        assert_eq!(direct, named, "another reason: {outcome:?}");
        assert_eq!(direct, world.direct_bytes_of(state), "direct: {outcome:?}");
        let failed = by(&|_, reason| reason == Reason::PeerFailed);
        let required = self.reason == Reason::Required;
        assert!(!required || direct == self.body.len(), "required: {outcome:?}");
        assert!(!required || failed == 0, "required, and gone elsewhere: {outcome:?}");
        if direct < self.body.len() {
            let port = self.handle.ports().to(self.port.gpu(), || unreachable!("it is known"));
            assert!(port.is_err(), "open although it refused: {outcome:?}");
        }
    }
}

/// Error text for a port that repeatedly transferred nothing.
const NO_FURTHER: &str = "it brought a request no further";

impl Job {
    /// Checks the routes of a successful transfer.
    pub(super) fn judge_ways(&self, world: &World, outcome: &Outcome) {
        match &self.direct {
            Some(direct) if self.pieces.iter().any(Piece::is_cut) => {
                let known = outcome.routes.iter().filter(|share| share.route == Route::Direct);
                assert!(known.map(|share| share.bytes).sum::<u64>() <= direct.body.len());
            }
            Some(direct) => direct.judge(world, &self.state, outcome),
            None => {
                let direct = |share: &crate::transfer::RouteShare| share.route == Route::Direct;
                assert!(!outcome.routes.iter().any(direct), "no port: {outcome:?}");
            }
        }
    }
}

impl World {
    /// Marks the memory of a port's op as in use, so that it cannot be freed.
    pub(super) fn hold(&mut self, id: u64, op: &Op) {
        let Some(port) = &op.port else { return };
        let device = &self.devices[port.gpu().index as usize];
        // Memory of a lost GPU cannot be held.
        let native = device.hold(op.address + op.moved, op.rest().len()).ok();
        self.held.extend(native.map(|native| (id, native)));
    }

    /// Undoes [`hold`](Self::hold); returns the host address of the memory.
    pub(super) fn dispose(&mut self, id: u64, op: &Op) -> Option<u64> {
        let native = self.held.remove(&id)?;
        let gpu = op.port.as_ref().map(|port| port.gpu())?;
        self.devices[gpu.index as usize].dispose(op.address + op.moved);
        Some(native)
    }

    /// Runs a port's op that is due, like a ring's `end`.
    pub(super) fn end_by_port(
        &mut self,
        op: &Op,
        port: &dyn Port,
        (direction, native): (Direction, Option<u64>),
        state: &Arc<State>,
    ) -> (Result<u64, Errno>, Option<u64>) {
        let Some(native) = native else { return (Err(self.refuse(op, state, Errno::NODEV)), None) };
        let faults = self.faults.clone();
        if self.meets("port-again", faults.again) {
            let errno = if self.dice.roll(0.5) { Errno::INTR } else { Errno::AGAIN };
            return (Err(errno), None);
        }
        if self.meets("port-refused", faults.port) {
            let errno = [Errno::OPNOTSUPP, Errno::IO, Errno::NODEV, Errno::NOSPC];
            let errno = errno[usize::try_from(below(&mut self.dice, 4)).expect("small")];
            return (Err(self.refuse(op, state, errno)), None);
        }
        let (offset, len) = (op.offset_of(op.rest().start), op.rest().len());
        let index = self.index_of(&op.file);
        let size = self.files[index].bytes.len() as u64;
        let most = match direction {
            Direction::Read => size.saturating_sub(offset).min(len),
            Direction::Write => {
                let room = self.files[index].size_max.saturating_sub(offset).min(len);
                align_down(room, port.unit())
            }
        };
        if most == 0 && direction == Direction::Write {
            return (Err(self.refuse(op, state, Errno::NOSPC)), None);
        }
        let moved = self.share_by_port(most, port.unit());
        match direction {
            Direction::Read => self.move_out(index, offset, moved, native),
            Direction::Write => self.move_in(index, offset, moved, native),
        }
        let start = op.rest().start;
        let whole = align_down(start + moved, port.unit());
        self.moved.push(Moved {
            state: Arc::clone(state),
            range: ByteRange { start, end: whole.max(start) },
        });
        let is_short = direction == Direction::Read && start + moved < op.segment.wanted.end;
        (Ok(moved), is_short.then(|| op.position_of(size)))
    }

    /// How many of `most` bytes a port transfers.
    fn share_by_port(&mut self, most: u64, unit: u64) -> u64 {
        let faults = self.faults.clone();
        if self.meets("port-empty", faults.empty) {
            return 0;
        }
        if most == 0 || !self.meets("port-short", faults.short) {
            return most;
        }
        let some = 1 + below(&mut self.dice, most);
        if self.meets("port-odd", faults.odd) {
            return some;
        }
        align_down(some, unit).max(unit).min(most)
    }

    /// Records an error that the transfer must report. If the route was not required, the bytes are
    /// staged instead and nothing is reported.
    fn refuse(&mut self, op: &Op, state: &Arc<State>, errno: Errno) -> Errno {
        let is_required = op.segment.reason == Reason::Required;
        if self.tally.note("port-required", is_required) {
            self.fail(op, state, errno);
        }
        errno
    }

    /// Number of distinct bytes of a transfer that ports have transferred.
    fn direct_bytes_of(&self, state: &Arc<State>) -> u64 {
        let own = self.moved.iter().filter(|moved| Arc::ptr_eq(&moved.state, state));
        let mut ranges: Vec<ByteRange> = own.map(|moved| moved.range).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        let mut end = 0;
        ranges.iter().fold(0, |sum, range| {
            let from = range.start.max(end);
            end = end.max(range.end);
            sum + range.end.saturating_sub(from)
        })
    }

    /// Forgets the direct ranges of a transfer that has ended.
    pub(super) fn forget(&mut self, state: &Arc<State>) {
        self.moved.retain(|moved| !Arc::ptr_eq(&moved.state, state));
    }
}
