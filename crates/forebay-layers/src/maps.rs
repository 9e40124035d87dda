//! Which layers may be copied from pinned pages of the page cache, and how many bytes are. Pure,
//! apart from the machine's free memory at the start.

use forebay_topology::{MemoryLeft, System};

use super::layer::Unit;
use super::mapped::Refusal;

/// Minimum number of passes for which pinning pays off. The pass that pins takes 2.2 to 2.8 times
/// as long as one through slots (H200, 2026-11-22, `04e6c7bc`), and each later
/// one 0.94 times (H200, 2026-11-22, `dcf504c0`, `large-mapped` against `large-kvikio`). That pays
/// off after 20 to 30 passes.
const WORTH_PASSES: u64 = 32;

/// Which layers' pages are pinned, and which could be.
#[derive(Debug)]
pub(super) struct Maps {
    /// Bytes that may be pinned, and bytes that are.
    pub(super) budget: u64,
    pub(super) used: u64,
    /// Whether the caller requested pinning as soon as pages are in memory.
    pub(super) at_once: bool,
    /// Per unit: a bit for the streams to which it was loaded from files before, and whether its
    /// pages can be used.
    pub(super) came: Vec<u64>,
    pub(super) can: Vec<bool>,
    /// Per unit: the number of claims. It may be claimed again before its old pages are unpinned.
    claims: Vec<u32>,
    /// Why some can never be pinned, and why the last attempt failed.
    refused: Option<String>,
    pub(super) waits: Option<&'static str>,
}

impl Maps {
    /// Creates the state for a limit of `budget` bytes and `passes` passes.
    pub(super) fn new(units: &[Unit], budget: Option<u64>, passes: Option<u64>) -> Self {
        let half = |left: MemoryLeft| left.available.saturating_sub(left.pinned) / 2;
        let of_machine = || System::live().memory_left().map_or(0, half);
        let is_worth = passes.is_none_or(|passes| passes >= WORTH_PASSES);
        let too_few = || format!("{} passes are too few to bring its cost in", passes.unwrap_or(0));
        let at_once = budget.is_some() && passes != Some(1);
        let refused = (budget.is_none() && !is_worth).then(too_few);
        let budget = budget.unwrap_or_else(|| if is_worth { of_machine() } else { 0 });
        let (came, can) = (vec![0; units.len()], vec![true; units.len()]);
        let claims = vec![0; units.len()];
        Self { budget, used: 0, at_once, came, can, claims, refused, waits: None }
    }

    /// Whether anything may be pinned.
    pub(super) fn is_on(&self) -> bool {
        self.budget > 0
    }

    /// Records that a unit is loaded to the streams with these seats. Returns whether its pages are
    /// to be pinned now: when it is loaded again, or immediately if the caller requested that.
    pub(super) fn claim(
        &mut self,
        number: usize,
        unit: &Unit,
        seats: impl Iterator<Item = usize>,
    ) -> bool {
        // Streams beyond the last bit share it, so their pages are pinned sooner.
        let to = seats.fold(0, |all, seat| all | 1 << seat.min(63));
        let again = self.at_once || self.came[number] & to != 0;
        self.came[number] |= to;
        let len = unit.bytes();
        if !again || !self.can[number] || len == 0 || self.budget == 0 {
            return false;
        }
        if self.budget.saturating_sub(self.used) < len {
            self.waits = Some("`mapped_budget` has no room for more layers");
            return false;
        }
        self.used += len;
        self.claims[number] += 1;
        true
    }

    /// Bytes that are pinned or about to be, and why not more.
    pub(super) fn pinned(&self) -> (u64, Option<String>) {
        let waits = || self.waits.map(str::to_owned);
        (self.used, self.refused.clone().or_else(waits))
    }

    /// Records that all pinned pages were unpinned.
    pub(super) fn clear(&mut self) {
        self.used = 0;
    }

    /// Records that a claimed unit was not pinned.
    pub(super) fn not_pinned(&mut self, number: usize, unit: &Unit, refusal: Refusal) {
        self.unclaim(number, unit);
        match refusal {
            Refusal::Now(reason) => {
                self.waits = Some(reason);
                self.came[number] = 0; // it is tried again later
            }
            Refusal::Ever(reason) => self.refuse(number, reason),
        }
    }

    /// Records that a claimed unit is no longer pinned.
    pub(super) fn unclaim(&mut self, number: usize, unit: &Unit) {
        self.used = self.used.saturating_sub(unit.bytes());
        self.claims[number] = self.claims[number].saturating_sub(1);
    }

    /// Whether a unit's pages are pinned, or may be.
    pub(super) fn is_open(&self, number: usize) -> bool {
        self.can[number] || self.claims[number] > 0
    }

    /// Stops a unit from being claimed again, for a reason.
    pub(super) fn refuse(&mut self, number: usize, reason: String) {
        self.can[number] = false;
        self.refused.get_or_insert(reason);
    }

    /// Stops all further pinning.
    pub(super) fn stop(&mut self, reason: String) {
        self.budget = 0;
        self.refused = Some(reason);
    }
}
