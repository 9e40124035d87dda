//! Direct transfers between a drive and a GPU, and the fallback for bytes that cannot use the path.
//!
//! To the scheduler, the memory of such a transfer is like host memory: no slot, no copy. Bytes
//! that the path refuses (unaligned edges, refused ranges) form a second share, which uses slots.

use std::collections::VecDeque;

use forebay_base::units::ByteRange;
use rustix::io::Errno;

use super::Scheduler;
use super::active::{Active, DirectPath, Phase, Share};
use crate::error::Error;
use crate::gpu::PortError;
use crate::plan::{Direction, Io, Reason, Route};
use crate::queue::op::Op;

/// Reason for closing a port that answers but makes no progress.
const NO_FURTHER: &str = "it brought a request no further";

impl Scheduler {
    /// Handles an op that its port refused with `error` or made no progress on. Unless the direct
    /// route was required, its bytes are staged. So are all bytes not started yet, since the port
    /// would refuse again. If the drive itself failed, the staged path reports it.
    pub(super) fn refuse_direct(&mut self, key: usize, op: &Op, error: Option<PortError>) {
        let active = &self.transfers[key];
        let (Some(direct), Some(port)) = (active.request.direct.clone(), &op.port) else {
            unreachable!("only ops of a direct share have ports")
        };
        let stopped = active.is_stopped();
        self.count_bytes(key, op);
        if op.segment.reason == Reason::Required {
            self.fail_refused(key, op, error);
        } else if !stopped {
            let of_memory = error.as_ref().is_some_and(|error| error.of_memory);
            let reason = error.map_or_else(|| NO_FURTHER.into(), |error| error.words);
            self.transfers[key].request.state.say_not_direct(reason.as_str().into());
            // The port may still accept other memory.
            if !of_memory {
                op.file.ports().close(port.gpu(), reason);
            }
            self.stage(key, &direct, op.rest().intersect(op.segment.wanted));
        }
        self.count_out(op);
    }

    /// Fails a transfer whose route was required; with the drive's own error, if the drive failed.
    fn fail_refused(&mut self, key: usize, op: &Op, error: Option<PortError>) {
        let (operation, place) = self.about(key, op);
        let error = match error {
            None => Error::NoProgress { operation, place },
            Some(PortError { errno, words: reason, .. }) => match errno {
                Errno::OPNOTSUPP | Errno::NODEV | Errno::INVAL => {
                    Error::RouteUnavailable { route: Route::Direct, place, reason }
                }
                source => Error::io(operation, place, source),
            },
        };
        self.fail(key, error);
    }

    /// True if a share of a write must wait until the direct share is on the drive. The page cache
    /// may write more than it was given, and would overwrite the direct bytes with old data.
    pub(super) fn waits_for_peer(&self, key: usize) -> bool {
        let Active { next, request, .. } = &self.transfers[key];
        let may = *next != key && request.direction == Direction::Write && request.batch.is_none();
        let is_direct = |other: &usize| self.transfers[*other].request.direct.is_some();
        may && request.direct.is_none() && self.others(key).iter().any(is_direct)
    }

    /// Sends `rest` through slots, and all parts of the transfer at `key` that have not begun.
    fn stage(&mut self, key: usize, direct: &DirectPath, rest: ByteRange) {
        if self.links[direct.link].broken.is_some() {
            return self.fail_if_broken(key, direct.link);
        }
        self.unlist(key); // it opens nothing more
        let active = &mut self.transfers[key];
        let io = match (active.request.direction, direct.alignment) {
            (Direction::Read, Some(_)) => Io::ODirect,
            _ => Io::Buffered,
        };
        let (cursor, drive) = (active.cursor, active.request.drive);
        let unopened = std::mem::take(&mut active.request.parts);
        let mut parts: VecDeque<_> = [(rest, io, Reason::PeerFailed)].into();
        for (index, (mut range, ..)) in unopened.into_iter().enumerate() {
            if index == 0 {
                range.start = cursor;
            }
            parts.push_back((range, io, Reason::PeerFailed));
        }
        let known = self.others(key).into_iter().find(|&other| {
            let request = &self.transfers[other].request;
            request.direct.is_none() && request.drive == drive
        });
        // A share that syncs its files already accepts no more bytes.
        let is_syncing = |other: usize| matches!(self.transfers[other].phase, Phase::Syncing);
        let known = known.filter(|&other| !is_syncing(other));
        let share = match known {
            Some(share) => {
                self.unlist(share);
                let active = &mut self.transfers[share];
                if let Some(part) = active.request.parts.front_mut() {
                    part.0.start = active.cursor;
                }
                // Keep file order: where a share meets the end of the file, all later parts must
                // lie beyond that end.
                active.request.parts.append(&mut parts);
                active.request.parts.make_contiguous().sort_by_key(|part| part.0.start);
                active.cursor = active.request.parts.front().map_or(rest.start, |p| p.0.start);
                share
            }
            None => {
                self.add_shares(key, vec![Share { drive, parts }]);
                self.transfers[key].next
            }
        };
        self.list(share);
    }
}
