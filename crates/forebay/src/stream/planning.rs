//! Places layers by what the first pass took: which stay on the GPU, and which come to be pinned.

use std::error::Error as _;
use std::iter::successors;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::group::Group;
use super::homes::Home;
use super::layer::{Shelf, Unit, is_resident};
use super::placement::{
    Budget, CannotPlace, LayerCost, Placement, Prediction, Rates, Tier, place, predict_kept,
};
use super::predicting::{Known, Made};
use super::rates::Came;
use super::refuse;
use super::shared::{Shared, State, closed};
use super::statistics::{LayerTimes, REMEMBERED};
use super::turn::Submit;
use crate::error::{Error, Result};
use crate::gpu::DeviceId;
use crate::units::ByteRange;

/// Has the streams of a group follow a plan; all of them end where it panics.
fn make(plan: impl FnOnce() -> Plan, group: &Weak<Group>) {
    let plan = catch_unwind(AssertUnwindSafe(plan));
    let Some(group) = group.upgrade() else { return };
    match plan {
        Ok(plan) => group.streams().iter().for_each(|stream| stream.follow(plan.clone())),
        Err(_) => {
            let reason = "what plans layers has panicked".into();
            group.lose(&refuse(&group.units[0].first, reason));
        }
    }
}

/// How far the planning is.
#[derive(Debug, Clone)]
pub(super) enum Plan {
    /// It waits for the end of the first pass, which begins at this position.
    Waiting { from: u64 },
    /// A thread is at it, by what a pass took that begins at this position.
    Making { from: u64 },
    /// It was made.
    Made(Box<Made>),
    /// Nothing is planned.
    Not(Unplanned),
}

/// Why there is no [`Placement`].
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Unplanned {
    /// There may be one later.
    #[error("layers are placed once the first pass is over and the next one has begun")]
    NotYet,
    /// A stream of one pass, for example.
    #[error("layers are placed for passes that follow the first one, and none does")]
    NoPass,
    /// Nothing can be predicted of what is not known.
    #[error("the order is told while the stream runs")]
    Told,
    /// What the first pass took is not remembered to its end.
    #[error("a pass takes {layers} layers, and the times of {most} are remembered")]
    TooMany {
        /// How many a pass takes.
        layers: u64,
        /// How many it may take.
        most: u64,
    },
    /// A layer was kept for long, for example.
    #[error("the GPU was not done with the first pass by the end of the third, or of the last")]
    TooLate,
    /// A copy to see how fast it is failed.
    #[error("the speed of the link to {device} could not be measured")]
    Link {
        /// The GPU.
        device: DeviceId,
        /// What went wrong.
        source: Error,
    },
    /// What was measured, or asked for, makes no sense.
    #[error("the layers cannot be placed")]
    CannotPlace(#[from] CannotPlace),
    /// The thread that plans could not be had.
    #[error("no thread can be had that plans")]
    Thread {
        /// Why not.
        source: Error,
    },
    /// The stream ended, or is another process's.
    #[error("the stream had ended before layers were placed")]
    Ended {
        /// What ended it.
        source: Error,
    },
}

/// Passes before the one under way that are looked at to predict the next one: of the last of them
/// a layer may be kept.
const LOOKS_BACK: u64 = 3;

impl State {
    /// What there may still be of a plan that waits for the pass that begins at position `from`.
    fn why_waiting(&self, from: u64) -> Unplanned {
        let sequence = self.schedule.sequence();
        let behind = from + sequence.pass_len();
        let is_left = |position| sequence.at(position).is_some();
        match (is_left(behind), is_left(self.schedule.position().max(behind))) {
            (false, _) => Unplanned::NoPass,
            (_, true) => Unplanned::NotYet,
            (true, false) => Unplanned::TooLate,
        }
    }
}

/// What the first pass showed.
pub(super) struct Seen {
    /// The position behind it.
    end: u64,
    costs: Vec<LayerCost>,
    /// How fast layers came.
    came: Came,
}

/// The planner copies to see how fast the link is, and then, in any case, no more.
struct Probing<'a>(&'a Shared);

impl Drop for Probing<'_> {
    fn drop(&mut self) {
        self.0.lock().is_probing = false;
        self.0.came.notify_all();
    }
}

impl Shared {
    /// Begins to plan, once the GPU is done with the first pass.
    pub(super) fn plan_if_due(self: &Arc<Self>, state: &mut Submit<'_>) {
        let pass = state.schedule.sequence().pass_len();
        let (from, has_waited) = match state.plan {
            Plan::Waiting { from } => (from, true),
            // The stream that was at it could not have a thread.
            Plan::Making { from } if !self.group.is_planned() => (from, false),
            _ => return,
        };
        let taken = state.schedule.position() - from;
        if taken <= pass {
            return;
        }
        let is_too_late = has_waited && taken > 3 * pass;
        let most = REMEMBERED as u64;
        let never = match pass > most {
            true => Some(Unplanned::TooMany { layers: pass, most }),
            false => is_too_late.then_some(Unplanned::TooLate),
        };
        if let Some(reason) = never {
            state.plan = Plan::Not(reason);
            return;
        }
        if self.group.is_planned() {
            state.plan = Plan::Making { from }; // by another stream, which tells
            return;
        }
        let told = state.times.told().layers;
        let Some(seen) = whole(&told, from..from + pass).map(|first| self.seen(&first)) else {
            return;
        };
        if !self.group.is_to_plan() {
            return;
        }
        let shared = Arc::downgrade(self);
        let group = Arc::downgrade(&self.group);
        let begun = thread::Builder::new().name("forebay-planner".into()).spawn(move || {
            let plan = || match shared.upgrade() {
                Some(shared) => shared.plan(seen),
                None => Plan::Not(Unplanned::Ended { source: closed() }),
            };
            make(plan, &group);
        });
        state.plan = match begun {
            Ok(_) => {
                state.is_probing = true;
                Plan::Making { from }
            }
            Err(error) => {
                self.group.is_not_planned();
                let source = crate::engine::resource("planner of layers", &error);
                Plan::Not(Unplanned::Thread { source })
            }
        };
    }

    /// Has layers placed as they were planned.
    fn follow(&self, mut plan: Plan) {
        let mut state = self.lock();
        if let Plan::Made(made) = &mut plan {
            // Of the pass under way some layers came before, and in the next one those that are
            // pinned come from their files once more.
            let pass = state.schedule.sequence().pass_len();
            made.known.from = state.schedule.position().next_multiple_of(pass.max(1)) + pass;
            let Placement { tiers, protects, .. } = &made.placement;
            let stays = tiers.iter().map(|tier| *tier == Tier::Gpu);
            state.schedule.arrange(stays.collect(), *protects);
        }
        state.plan = plan;
    }

    /// Where layers are kept, or why that is not planned.
    pub(super) fn placement(&self) -> Result<Placement, Unplanned> {
        let ended = |source| Unplanned::Ended { source };
        self.check_home().map_err(ended)?;
        let mut state = self.submit().map_err(ended)?;
        state.gather();
        match &state.plan {
            Plan::Made(made) => {
                let (made, pass) = (made.clone(), state.schedule.sequence().pass_len());
                let from = state.schedule.position().saturating_sub(LOOKS_BACK * pass);
                let told = state.times.told_from(from);
                drop(state);
                Ok(self.predict_anew(*made, &told, pass))
            }
            Plan::Not(reason) => Err(reason.clone()),
            Plan::Waiting { from } => {
                Err(state.check_open().map_or_else(ended, |()| state.why_waiting(*from)))
            }
            Plan::Making { .. } => {
                Err(state.check_open().map_or_else(ended, |()| Unplanned::NotYet))
            }
        }
    }

    /// Why there is no placement.
    pub(super) fn unplanned(&self) -> Option<Unplanned> {
        let is_made = self.check_home().is_ok() && matches!(self.lock().plan, Plan::Made(_));
        if is_made { None } else { self.placement().err() }
    }

    /// What a pass took, all of it.
    fn seen(&self, pass: &[&LayerTimes]) -> Seen {
        let cost =
            |unit: &Unit| LayerCost { bytes: unit.len, compute: Duration::ZERO, resident: false };
        let mut costs: Vec<LayerCost> = self.units().iter().map(cost).collect();
        self.see_compute(&mut costs, pass);
        let end = pass.iter().map(|times| times.position + 1).max().unwrap_or(0);
        Seen { end, costs, came: self.came(pass) }
    }

    /// Waits until the planner has seen how fast the link is, after which it copies nothing; until
    /// then at most.
    pub(super) fn await_probe(&self, until: Instant) {
        let mut state = self.lock();
        while state.is_probing {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.wait(&self.came, state, left).0;
        }
    }

    fn plan(&self, seen: Seen) -> Plan {
        match self.place(seen) {
            Ok(made) => Plan::Made(Box::new(made)),
            Err(reason) => Plan::Not(reason),
        }
    }

    pub(super) fn place(&self, mut seen: Seen) -> Result<Made, Unplanned> {
        let device = self.device.id();
        let link = {
            let _probing = Probing(self);
            // To measure it stops what is on its way: where the pass itself has shown it, it need
            // not be.
            let measured = seen.came.alone().map_or_else(|| self.link_rate(), Ok);
            measured.map_err(|source| Unplanned::Link { device, source })?
        };
        // Copies that were queued before are in its way; what it has carried it can carry.
        let Came { drive, page_cache, copied } = seen.came;
        let link = link.max(copied.unwrap_or(0.0));
        for (number, cost) in seen.costs.iter_mut().enumerate() {
            cost.resident = self.is_resident(number);
        }
        // Nobody has seen how fast a place is that nothing came from: as fast as the link, at most.
        let slots = page_cache.unwrap_or(link).min(link);
        let drive = drive.unwrap_or(slots).min(link);
        let page_cache = self.page_cache_rate(&seen.costs, (link, slots));
        let rates = Rates { link, page_cache, drive };
        let mut budget = Budget { gpu: self.budget_of_gpu(), host: self.host_budget };
        let mut placement = place(&self.order, &seen.costs, &rates, &budget)?;
        let planned = placement.tiers.clone();
        self.pin(&mut placement, &mut seen.costs);
        if placement.tiers != planned {
            let kept = placement.tiers.iter().zip(&seen.costs);
            let pinned = kept.filter(|(tier, _)| **tier == Tier::Pinned);
            budget.host = pinned.map(|(_, cost)| cost.bytes).sum();
            placement.prediction =
                predict_kept(&self.order, &seen.costs, &rates, &budget, &placement)?;
        }
        self.count_spare(&mut placement.prediction);
        Ok(Made {
            placement,
            known: Known { from: seen.end, costs: seen.costs, rates, slots, budget },
        })
    }

    /// Whether most of a unit is in the page cache. Pages that are pinned are not asked for: where
    /// they are small, the kernel takes milliseconds to count those of one layer.
    fn is_resident(&self, number: usize) -> bool {
        if self.group.home(number).is_some_and(|home| home.pages().is_some()) {
            return true;
        }
        let mut parts = self.units()[number].parts.iter();
        parts.all(|part| is_resident(&part.file, ByteRange::at(part.offset, part.len)))
    }

    /// Takes from what more of the GPU would help what its budget has beyond whole layers.
    pub(super) fn count_spare(&self, prediction: &mut Prediction) {
        let spare = self.gpu_budget.map_or(0, |all| all.saturating_sub(self.budget_of_gpu()));
        let lift = prediction.lift.as_mut();
        if let Some(raise) = lift.and_then(|lift| lift.gpu.as_mut()) {
            raise.bytes = raise.bytes.saturating_sub(spare);
        }
    }

    /// Bytes of whole layers that the buffers hold.
    fn budget_of_gpu(&self) -> u64 {
        let largest = self.units().iter().map(|unit| unit.len).max().unwrap_or(0);
        largest * self.buffers as u64
    }

    /// Takes pinned memory for the layers that are to be there, as far as it can be had; the others
    /// stay in their files, and are told so.
    fn pin(&self, placement: &mut Placement, costs: &mut [LayerCost]) {
        let (mut left, mut wanted, mut missed, mut first) = (self.host_budget, 0, 0, None);
        for (number, unit) in self.units().iter().enumerate() {
            if placement.tiers[number] != Tier::Pinned || unit.bytes() == 0 {
                continue;
            }
            wanted += 1;
            match self.pin_one(number, &mut left) {
                Ok(true) => continue,
                Ok(false) => costs[number].resident = true,
                Err(reason) => {
                    missed += 1;
                    first.get_or_insert(reason);
                }
            }
            let is_resident = costs[number].resident;
            placement.tiers[number] = if is_resident { Tier::PageCache } else { Tier::Drive };
        }
        placement.short = first.map(|reason| {
            format!("{missed} of {wanted} layers that were to be pinned are not: {reason}")
        });
    }

    /// Takes pinned memory for a layer, unless its pages are pinned by now, and it stays there;
    /// whether it did.
    ///
    /// # Errors
    /// Why it cannot.
    fn pin_one(&self, number: usize, left: &mut u64) -> Result<bool, String> {
        // Closed meanwhile it is to end.
        if self.group.is_over() {
            return Err("the stream was closed".into());
        }
        if self.group.home(number).is_some() {
            return Ok(false);
        }
        let unit = &self.units()[number];
        let shelf = Shelf::new(&unit.packing);
        let len = shelf.len;
        if len > *left {
            let name = &unit.name;
            return Err(format!("`{name}` takes {len} bytes, of `host_budget` {left} are left"));
        }
        let home = Home::in_memory(&self.engine, shelf).map_err(|error| in_full(&error))?;
        let kept = self.group.homes().keep(number, home); // dropped with the homes unlocked
        let is_new = kept.is_ok();
        *left -= if is_new { len } else { 0 };
        Ok(is_new)
    }
}

/// What the layers of a pass took, if all of them are told.
pub(super) fn whole(told: &[LayerTimes], pass: Range<u64>) -> Option<Vec<&LayerTimes>> {
    let of_pass: Vec<_> = told.iter().filter(|times| pass.contains(&times.position)).collect();
    (of_pass.len() as u64 >= pass.end - pass.start).then_some(of_pass)
}

/// An error and what lies behind it.
fn in_full(error: &Error) -> String {
    let sources = successors(error.source(), |&error| error.source());
    sources.fold(error.to_string(), |text, source| format!("{text}: {source}"))
}

#[cfg(test)]
#[expect(unsafe_code, reason = "takes layers for a stream that it names")]
pub(super) mod tests;
