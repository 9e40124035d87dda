//! The replacement for a scheduler that a panic left half-changed. It keeps the number of drives,
//! rings and links, refuses new transfers, and ignores completions of earlier work.

use std::collections::HashSet;
use std::sync::Arc;

use super::work::Effects;
use super::{Life, Scheduler};
use crate::error::Error;
use crate::transfer::{Gate, State};
use crate::tune::DepthLimits;

/// The transfers and gates of a scheduler that is abandoned.
#[derive(Debug)]
pub(crate) struct Abandoned {
    /// Transfers that have not ended.
    pub(crate) transfers: Vec<Arc<State>>,
    /// Transfers that have ended but whose end was not reported yet.
    pub(crate) finished: Vec<(Arc<State>, Result<u64, Error>)>,
    pub(crate) gates: Vec<Arc<Gate>>,
}

impl Scheduler {
    /// True if the engine failed.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.life, Life::Failed(_))
    }

    /// Replaces this scheduler with a failed one. Everything that the old scheduler holds is
    /// leaked: drives and GPUs may still write to its slots, and its counts may be wrong. Its state
    /// is only read, not changed.
    pub(crate) fn close(&mut self, cause: Arc<str>) -> Abandoned {
        let mut failed = Self::new(self.limits);
        for _ in 0..self.drives.len() {
            failed.add_drive(DepthLimits::fixed(1, self.limits.segment), &[]);
        }
        for _ in &self.rings {
            let ring = failed.add_ring();
            failed.rings[ring].is_lost = true;
        }
        for _ in &self.links {
            failed.add_link(0);
        }
        failed.life = Life::Failed(cause);
        let mut old = std::mem::replace(self, failed);
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
        Abandoned { transfers, finished, gates }
    }
}
