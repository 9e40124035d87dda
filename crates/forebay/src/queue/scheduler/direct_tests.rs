//! Step-by-step tests of direct transfers whose port, drive or link fails.

#![expect(unsafe_code, reason = "the trait's calls take raw addresses, and are never made here")]

use std::fs::File;
use std::sync::Arc;

use rustix::io::Errno;

use super::tests::{LEN, Rig};
use super::*;
use crate::error::{Error, SystemError};
use crate::gpu::{DeviceError, DeviceId, DeviceKind, Port, PortError};
use crate::options::Priority;
use crate::plan::{Alignment, Io, Reason, Route};
use crate::queue::op::{Completion, Op, OpKind};
use crate::transfer::State;

/// A port whose unit is a quarter of a transfer; its GPU is used by no other test.
#[derive(Debug)]
struct Named;

const GPU: DeviceId = DeviceId { kind: DeviceKind::Sim, index: 7 };

impl Port for Named {
    fn unit(&self) -> u64 {
        LEN / 4
    }

    unsafe fn read(&self, _address: u64, _len: u64, _offset: u64) -> Result<u64, PortError> {
        unreachable!("the tests complete the ops")
    }

    unsafe fn write(&self, _address: u64, _len: u64, _offset: u64) -> Result<u64, PortError> {
        unreachable!("the tests complete the ops")
    }

    fn gpu(&self) -> DeviceId {
        GPU
    }
}

impl Rig {
    /// Starts a transfer whose first three quarters are direct, and takes their ops.
    fn start_direct(&mut self, link: usize, how: (Direction, Reason)) -> (Arc<State>, Vec<Op>) {
        let (direction, reason) = how;
        let drive = self.scheduler.add_drive(DepthLimits::fixed(4, u64::MAX), &[]);
        let port: Arc<dyn Port> = Arc::new(Named);
        self.file.ports().to(GPU, || Ok(Arc::clone(&port))).expect("it is made");
        let body = ByteRange { start: 0, end: LEN / 4 * 3 };
        let edge = ByteRange { start: body.end, end: LEN };
        let parts = [(edge, Io::Buffered, Reason::UnalignedEdge)].into();
        let request = Request {
            direction,
            direct: Some(DirectPath { port, link, alignment: None }),
            drive,
            parts: [(body, Io::ODirect, reason)].into(),
            shares: vec![Share { drive, parts }],
            alignment: Some(Alignment::of(LEN / 4, LEN / 4)),
            ..self.request(None, reason, Priority::Normal)
        };
        let state = Arc::clone(&request.state);
        let (key, claim) = self.scheduler.start(request);
        state.set_key(key);
        let Some(claim) = claim else { return (state, Vec::new()) };
        let segments = crate::plan::cut_direct(claim.range, claim.base, LEN / 4, reason);
        self.scheduler.opened(claim.window, LEN / 4, segments);
        let ops = (0..3).map(|_| self.scheduler.take_pool_op().expect("three of the body"));
        (state, ops.collect())
    }

    /// Completes an op as refused by its port.
    fn refuse(&mut self, op: Op, words: &str, of_memory: bool) {
        let error = PortError { errno: Errno::OPNOTSUPP, words: words.into(), of_memory };
        let failed = Completion::failed(op, error.errno);
        self.scheduler.complete(Completion { refused: Some(error), ..failed });
    }

    /// Breaks a link, like a copy whose end is never confirmed.
    fn break_link(&mut self, link: usize) {
        let detail = String::new();
        let error = DeviceError { call: "synchronize", code: 719, name: "GONE".into(), detail };
        self.scheduler.links[link].broken = Some((GPU, error));
    }
}

#[test]
fn after_endless_retries_bytes_go_through_slots() {
    let mut rig = Rig::with(8, 8);
    let link = rig.add_ring_and_link();
    let (state, ops) = rig.start_direct(link, (Direction::Read, Reason::PeerToPeer));
    let mut op = ops.into_iter().next().expect("the first");
    op.again = 10_000;
    rig.complete(op, Err(Errno::AGAIN));
    assert!(rig.ended(&state).is_none(), "nothing has failed");
    let port = rig.file.ports().to(GPU, || unreachable!("it is known"));
    assert_eq!(port.expect_err("it is closed"), Errno::AGAIN.to_string());
    // The staged range comes before the unaligned edge: the file may end in between.
    let others = rig.scheduler.others(state.key());
    let staged = others.iter().flat_map(|&share| &rig.scheduler.transfers[share].request.parts);
    let staged: Vec<_> = staged.map(|part| (part.0.start, part.2)).collect();
    let expected = [(0, Reason::PeerFailed), (LEN / 4 * 3, Reason::UnalignedEdge)];
    assert_eq!(staged, expected);
    assert!(rig.scheduler.claim().is_some_and(|claim| claim.range.start == 0));
}

#[test]
fn two_concurrent_requests_have_a_refusal_each() {
    for (of_file, of_memory) in [(0, 1), (1, 0)] {
        let mut rig = Rig::with(8, 8);
        let link = rig.add_ring_and_link();
        let (_state, mut ops) = rig.start_direct(link, (Direction::Read, Reason::PeerToPeer));
        ops.truncate(2);
        for (at, op) in ops.into_iter().enumerate() {
            let words = if at == of_file { "the file" } else { "the memory" };
            rig.refuse(op, words, at == of_memory);
            let port = rig.file.ports().to(GPU, || unreachable!("it is known"));
            assert_eq!(port.err().as_deref(), (of_file <= at).then_some("the file"));
        }
    }
}

#[test]
fn one_whose_link_is_broken_fails_instead_of_waiting_for_a_slot() {
    for breaks_first in [true, false] {
        let mut rig = Rig::with(8, 8);
        let link = rig.add_ring_and_link();
        if breaks_first {
            rig.break_link(link);
        }
        let (state, ops) = rig.start_direct(link, (Direction::Read, Reason::PeerToPeer));
        rig.break_link(link);
        ops.into_iter().for_each(|op| rig.complete(op, Err(Errno::OPNOTSUPP)));
        let error = rig.ended(&state);
        assert!(matches!(error, Some(Error::Device { .. })), "{breaks_first}: {error:?}");
        assert!(rig.scheduler.transfers.is_empty());
    }
}

#[test]
fn the_edges_of_a_write_wait_until_its_body_is_on_the_drive() {
    let mut rig = Rig::with(8, 8);
    let link = rig.add_ring_and_link();
    let (state, ops) = rig.start_direct(link, (Direction::Write, Reason::Required));
    for op in ops {
        assert!(rig.scheduler.claim().is_none(), "an edge begins during the body");
        rig.complete(op, Ok(LEN / 4));
    }
    let check = rig.scheduler.take_pool_op().expect("a check of the page cache");
    assert_eq!((check.kind, check.segment.wanted.end), (OpKind::DropStale, LEN / 4 * 3));
    rig.complete(check, Ok(0));
    let claim = rig.scheduler.claim().expect("the edge");
    assert!(claim.range.start == LEN / 4 * 3 && Arc::ptr_eq(&claim.state, &state));
    // The edge of a read does not wait, since a read cannot overwrite anything.
    let mut rig = Rig::with(8, 8);
    let link = rig.add_ring_and_link();
    let _started = rig.start_direct(link, (Direction::Read, Reason::Required));
    assert!(rig.scheduler.claim().is_some(), "the edge of a read");
}

#[test]
fn a_write_that_fails_leaves_no_edge_behind() {
    let mut rig = Rig::with(8, 8);
    let link = rig.add_ring_and_link();
    let (state, ops) = rig.start_direct(link, (Direction::Write, Reason::Required));
    let (first, rest) = ops.split_first().expect("three");
    rig.complete(first.clone(), Err(Errno::NOSPC));
    assert!(rig.ended(&state).is_none(), "two are in flight");
    rest.iter().for_each(|op| rig.complete(op.clone(), Ok(LEN / 4)));
    assert!(matches!(rig.ended(&state), Some(Error::Io { source: SystemError(libc::ENOSPC), .. })));
    assert!(rig.scheduler.transfers.is_empty());
}

#[test]
fn the_requester_learns_the_failure() {
    let reported = |result: Result<u64, Errno>| {
        let mut rig = Rig::with(8, 8);
        let link = rig.add_ring_and_link();
        let (state, ops) = rig.start_direct(link, (Direction::Read, Reason::Required));
        let mut ops = ops.into_iter();
        let mut op = ops.next().expect("the first");
        op.empty = 2;
        rig.complete(op, result);
        ops.for_each(|op| rig.complete(op, Ok(LEN / 4)));
        let known = rig.file.ports().to(GPU, || unreachable!("it is known"));
        assert!(known.is_ok(), "others may still request it");
        rig.ended(&state).expect("an error")
    };
    let refused = reported(Err(Errno::OPNOTSUPP));
    assert!(matches!(&refused, Error::RouteUnavailable { route: Route::Direct, reason, .. }
        if *reason == Errno::OPNOTSUPP.to_string()));
    assert!(matches!(reported(Err(Errno::IO)), Error::Io { source: SystemError(libc::EIO), .. }));
    assert!(matches!(reported(Ok(0)), Error::NoProgress { .. }));
}

#[test]
fn a_port_that_moves_nothing_is_closed_for_that() {
    let mut rig = Rig::with(8, 8);
    File::options().write(true).open(rig.file.path()).unwrap().set_len(LEN).unwrap();
    let link = rig.add_ring_and_link();
    let (_state, ops) = rig.start_direct(link, (Direction::Read, Reason::PeerToPeer));
    let mut op = ops.into_iter().next().expect("the first");
    op.empty = 2;
    rig.complete(op, Ok(0));
    let port = rig.file.ports().to(GPU, || unreachable!("it is known"));
    assert!(port.expect_err("it is closed").contains("no further"));
}
