//! Places layers by what the first pass took: which stay on the GPU, which come to be pinned, and
//! how long a pass is to take then.

#![expect(unsafe_code, reason = "copies between memory of its own, to see how fast that is")]

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::layer::{Shelf, is_resident, slot_len};
use super::placement::{Budget, LayerCost, Placement, Rates, Tier, place};
use super::ring::SLOTS;
use super::shared::{Shared, State, stuck};
use super::statistics::{LayerTimes, REMEMBERED};
use super::store::host;
use crate::error::Result;
use crate::gpu::DeviceResult;
use crate::units::ByteRange;

/// Bytes that are copied to see how fast the link is, so many times: the best counts.
const PROBE_LEN: u64 = 16 << 20;
const PROBES: usize = 3;

/// How far the planning is.
#[derive(Debug)]
pub(super) enum Plan {
    /// It waits for the end of the first pass.
    Waiting,
    /// A thread is at it.
    Making,
    /// It was made.
    Made(Box<Placement>),
    /// Nothing is planned: the order is told, or what was measured cannot be.
    None,
}

/// What the first pass showed.
struct Seen {
    costs: Vec<LayerCost>,
    /// How fast layers came from files, in bytes per second.
    file_rate: f64,
}

impl Shared {
    /// Begins to plan, once the GPU is done with the first pass.
    pub(super) fn plan_if_due(self: &Arc<Self>, state: &mut State) {
        let pass = state.schedule.sequence().pass_len();
        if !matches!(state.plan, Plan::Waiting) || state.schedule.position() <= pass {
            return;
        }
        let is_too_late = state.schedule.position() > 3 * pass;
        if pass == 0 || pass > REMEMBERED as u64 || is_too_late {
            state.plan = Plan::None; // the GPU is not done with what is kept, or forgets
            return;
        }
        let Some(seen) = self.seen(state, pass) else { return };
        let shared = Arc::downgrade(self);
        let begun = thread::Builder::new().name("forebay-planner".into()).spawn(move || {
            if let Some(shared) = shared.upgrade() {
                let plan = shared.plan(seen);
                let mut state = shared.lock();
                if let Plan::Made(placement) = &plan {
                    let stays = placement.tiers.iter().map(|tier| *tier == Tier::Gpu);
                    let stays: Vec<bool> =
                        stays.flat_map(|stays| vec![stays; shared.slices]).collect();
                    state.schedule.arrange(stays, placement.protects * shared.slices as u64);
                }
                state.plan = plan;
            }
        });
        state.plan = if begun.is_ok() { Plan::Making } else { Plan::None };
    }

    /// What the first pass took, if the GPU is done with all of it.
    fn seen(&self, state: &mut State, pass: u64) -> Option<Seen> {
        let told = state.times.told();
        let first: Vec<_> = told.layers.iter().filter(|times| times.position < pass).collect();
        if (first.len() as u64) < pass {
            return None;
        }
        let layers = self.units.len() / self.slices;
        let none = LayerCost { bytes: 0, compute: Duration::ZERO, resident: false };
        let (mut costs, mut takes) = (vec![none; layers], vec![0; layers]);
        self.units.iter().for_each(|unit| costs[unit.layer].bytes += unit.len);
        for times in &first {
            costs[times.layer].compute += times.compute;
            takes[times.layer] += u32::from(times.slice == 0);
        }
        let file_rate = file_rate(&first, SLOTS * slot_len(&self.engine));
        costs.iter_mut().zip(takes).for_each(|(cost, takes)| cost.compute /= takes.max(1));
        Some(Seen { costs, file_rate })
    }

    fn plan(&self, mut seen: Seen) -> Plan {
        let Ok(link) = self.link_rate() else { return Plan::None };
        for (layer, cost) in seen.costs.iter_mut().enumerate() {
            let mut parts = self.units[layer * self.slices].parts.iter();
            cost.resident =
                parts.all(|part| is_resident(&part.file, ByteRange::at(part.offset, part.len)));
        }
        let rate = seen.file_rate.min(link);
        // What is pinned where it lies crosses the link as fast as it can.
        let page_cache = if self.lock().maps.is_on() { link } else { rate };
        let rates = Rates { link, page_cache, drive: rate };
        let (gpu, host) = (self.budget_of_gpu(), self.host_budget);
        match place(&self.order, &seen.costs, &rates, &Budget { gpu, host }) {
            Ok(mut placement) => {
                self.pin(&mut placement, &seen.costs);
                Plan::Made(Box::new(placement))
            }
            Err(_) => Plan::None,
        }
    }

    /// Bytes of whole layers that the buffers hold.
    fn budget_of_gpu(&self) -> u64 {
        let largest = self.units.iter().map(|unit| unit.len).max().unwrap_or(0);
        largest * self.buffers as u64
    }

    /// Takes pinned memory for the layers that are to be there, as far as it can be had; the others
    /// stay in their files, and are told so.
    fn pin(&self, placement: &mut Placement, costs: &[LayerCost]) {
        let mut left = self.host_budget;
        for (number, unit) in self.units.iter().enumerate() {
            // Closed meanwhile it is to end.
            let Some(store) = self.store().ok().filter(|_| !self.is_closing()) else { return };
            let shelf = Shelf::new(&unit.packing);
            if placement.tiers[unit.layer] != Tier::Pinned || shelf.len == 0 {
                continue;
            }
            let len = shelf.len;
            // What has its pages pinned by now stays there.
            if len <= left && matches!(store.pin(&self.engine, number, shelf), Ok(true)) {
                left -= len;
            } else {
                let is_resident = costs[unit.layer].resident;
                placement.tiers[unit.layer] =
                    if is_resident { Tier::PageCache } else { Tier::Drive };
            }
        }
    }

    /// Bytes per second that the link carries.
    fn link_rate(&self) -> Result<f64> {
        let from = self.engine.allocate_pinned(PROBE_LEN)?;
        let to = self.engine.allocate(self.device.id(), PROBE_LEN)?;
        let failed = |source| self.failed(PROBE_LEN, source);
        let stream = self.device.create_stream().map_err(failed)?;
        let len = usize::try_from(PROBE_LEN).expect("small");
        let until = Instant::now() + self.engine.options().watchdog;
        let copy = || {
            let begun = self.marks.put(stream)?;
            // SAFETY: both are this function's own, and kept until the copy is over, or for ever.
            unsafe { self.device.copy_to_device(stream, to.address(), host(from.address()), len) }?;
            let ended = self.marks.put(stream)?;
            match ended.wait_while(&mut || Instant::now() < until)? {
                true => Ok(ended.since(&begun)),
                false => Err(stuck()),
            }
        };
        let times: DeviceResult<Vec<Duration>> = (0..PROBES).map(|_| copy()).collect();
        let _ = self.device.destroy_stream(stream);
        match times {
            Ok(times) => {
                let best = times.into_iter().min().unwrap_or(Duration::MAX);
                Ok(PROBE_LEN as f64 / best.as_secs_f64().max(1e-9))
            }
            Err(source) => {
                std::mem::forget((from, to)); // a copy may be under way
                Err(self.not_over(source))
            }
        }
    }
}

/// How fast layers come from files, by those that came in a pass: from one to the next, where the
/// compute waited for them, or each alone, without the `ahead` bytes that may have lain in slots
/// before its buffer was free. Whichever is more: the other had to wait.
fn file_rate(layers: &[&LayerTimes], ahead: u64) -> f64 {
    let from_file = |times: &&&LayerTimes| times.bytes > 0 && !times.pinned;
    let mut came: Vec<&LayerTimes> = layers.iter().filter(from_file).copied().collect();
    came.sort_by_key(|times| times.began + times.transfer);
    let rate = |bytes: u64, time: Duration| bytes as f64 / time.as_secs_f64().max(1e-9);
    let [first, rest @ ..] = &came[..] else { return 0.0 };
    let Some(last) = rest.last() else { return rate(first.bytes, first.transfer) };
    let ready = |times: &LayerTimes| times.began + times.transfer;
    let bytes = rest.iter().map(|times| times.bytes).sum();
    let in_turn = rate(bytes, ready(last).saturating_sub(ready(first)));
    let alone = |times: &&LayerTimes| rate(times.bytes.saturating_sub(ahead), times.transfer);
    let mut alone: Vec<f64> = came.iter().map(alone).collect();
    alone.sort_by(f64::total_cmp);
    in_turn.max(alone[alone.len() / 2])
}

#[cfg(test)]
mod tests {
    use super::super::shared::From;
    use super::*;

    /// Layers of 100 MB that come in so many ms each, and could begin so many ms apart.
    fn came(milliseconds: u64, apart: u64) -> Vec<LayerTimes> {
        let made = (0..6).map(|number| {
            let mut times = LayerTimes::of((number, 0, 0), 100_000_000, From::Files);
            times.began = Duration::from_millis(number * apart);
            times.transfer = Duration::from_millis(milliseconds);
            times
        });
        made.collect()
    }

    fn rate(times: &[LayerTimes], ahead: u64) -> f64 {
        file_rate(&times.iter().collect::<Vec<_>>(), ahead) / 1e9
    }

    #[test]
    fn a_drive_is_no_faster_than_layers_came() {
        // One behind the other, the last part of each out of slots.
        assert_eq!(rate(&came(40, 50), 40_000_000), 2.0);
        // Each waited for the compute, with nearly half of it in slots before.
        assert_eq!(rate(&came(20, 500), 40_000_000), 3.0);
        // Of little layers all of it was: then it is not known better.
        assert_eq!(rate(&came(20, 50), 100_000_000), 2.0);
        assert_eq!(rate(&came(50, 0)[..1], 0), 2.0);
        let pinned = LayerTimes::of((0, 0, 0), 5, From::Memory);
        assert_eq!(rate(&[pinned], 0), 0.0);
    }
}
