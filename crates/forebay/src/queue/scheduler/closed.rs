//! What stands in the place of a scheduler that a panic has left half-changed: it has as many
//! drives, rings and links, refuses what is new, and ignores what comes back of what was before.

use std::collections::HashSet;
use std::sync::Arc;

use super::{Depth, Effects, Scheduler};
use crate::error::Error;
use crate::queue::gate::Gate;
use crate::transfer::State;

/// Those who wait for something of a scheduler that is given up.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// Transfers that are not over.
    pub(crate) transfers: Vec<Arc<State>>,
    /// Those that are, but were not ended yet.
    pub(crate) finished: Vec<(Arc<State>, Result<u64, Error>)>,
    pub(crate) gates: Vec<Arc<Gate>>,
}

impl Scheduler {
    /// Whether the engine has failed.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// What a new transfer is refused with.
    pub(super) fn refusal(&self) -> Option<Error> {
        self.closed.as_ref().map(|cause| Error::EngineFailed { cause: Arc::clone(cause) })
    }

    /// Puts a closed scheduler in the place of this one. All that this one holds is leaked: drives
    /// and GPUs may still write to its slots, and its counts may be wrong. Nothing of it is
    /// changed, only read.
    pub(crate) fn close(&mut self, cause: Arc<str>) -> Waiting {
        let mut closed = Self::new(self.limits);
        closed.small_writes = Arc::clone(&self.small_writes);
        closed.stopping = true;
        for _ in &self.drives {
            closed.add_drive(Depth::Fixed(1), 1, &[]);
        }
        for _ in &self.rings {
            let ring = closed.add_ring();
            closed.rings[ring].is_lost = true;
        }
        for _ in &self.links {
            closed.add_link(0);
        }
        closed.closed = Some(cause);
        let mut old = std::mem::replace(self, closed);
        let Effects { finished, gates, .. } = &mut old.effects;
        let (finished, mut gates) = (std::mem::take(finished), std::mem::take(gates));
        let (mut transfers, mut known) = (Vec::new(), HashSet::new());
        for (_, active) in &old.transfers {
            let request = &active.request;
            gates.extend(request.batch.iter().filter_map(|batch| batch.gate().cloned()));
            if known.insert(Arc::as_ptr(&request.state)) {
                transfers.push(Arc::clone(&request.state));
            }
        }
        std::mem::forget(old);
        Waiting { transfers, finished, gates }
    }
}

impl Drop for Effects {
    /// Ends what a panic has kept from being ended.
    fn drop(&mut self) {
        if std::thread::panicking() {
            for (state, result) in self.finished.drain(..) {
                drop(state.finish(result));
            }
        }
    }
}
