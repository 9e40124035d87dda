//! Places layers by what the first pass took: which stay on the GPU, which come to be pinned, and
//! how long a pass is to take then.

#![expect(unsafe_code, reason = "copies between memory of its own, to see how fast that is")]

use std::error::Error as _;
use std::iter::successors;
use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::homes::{Home, host};
use super::layer::{Shelf, Unit, is_resident, slot_len};
use super::placement::{
    Budget, CannotPlace, LayerCost, Placement, Rates, Tier, place, predict_kept,
};
use super::ring::SLOTS;
use super::shared::{Shared, State, closed, stuck};
use super::statistics::{LayerTimes, REMEMBERED};
use crate::error::{Error, Result};
use crate::gpu::{DeviceId, DeviceResult};
use crate::units::ByteRange;

/// Bytes that are copied to see how fast the link is, so many times: the best counts.
const PROBE_LEN: u64 = 16 << 20;
const PROBES: usize = 3;

/// How far the planning is.
#[derive(Debug, Clone)]
pub(super) enum Plan {
    /// It waits for the end of the first pass, which begins at this position.
    Waiting { from: u64 },
    /// A thread is at it.
    Making,
    /// It was made.
    Made(Box<Placement>),
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
    /// Nothing can be predicted of what is not known.
    #[error("the order is told while the stream runs")]
    Told,
    /// Whole layers are placed.
    #[error("each layer comes in {slices} slices: two whole layers are more than `gpu_budget`")]
    Slices {
        /// How many.
        slices: usize,
    },
    /// What the first pass took is not remembered to its end.
    #[error("a pass takes {layers} layers, and the times of {most} are remembered")]
    TooMany {
        /// How many a pass takes.
        layers: u64,
        /// How many it may take.
        most: u64,
    },
    /// A layer was kept for long, for example.
    #[error("the GPU was not done with the first pass by the end of the third")]
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
        let Plan::Waiting { from } = state.plan else { return };
        let taken = state.schedule.position() - from;
        if taken <= pass {
            return;
        }
        let is_too_late = taken > 3 * pass;
        let most = REMEMBERED as u64;
        let never = match self.slices {
            1 if pass > most => Some(Unplanned::TooMany { layers: pass, most }),
            1 => is_too_late.then_some(Unplanned::TooLate),
            slices => Some(Unplanned::Slices { slices }),
        };
        if let Some(reason) = never {
            state.plan = Plan::Not(reason);
            return;
        }
        if self.group.is_planned() {
            state.plan = Plan::Making; // by another stream, which tells
            return;
        }
        let Some(seen) = self.seen(state, from..from + pass) else { return };
        if !self.group.is_to_plan() {
            return;
        }
        let shared = Arc::downgrade(self);
        let group = Arc::downgrade(&self.group);
        let begun = thread::Builder::new().name("forebay-planner".into()).spawn(move || {
            let plan = match shared.upgrade() {
                Some(shared) => shared.plan(seen),
                None => Plan::Not(Unplanned::Ended { source: closed() }),
            };
            let streams = group.upgrade().map(|group| group.streams());
            streams.iter().flatten().for_each(|stream| stream.follow(plan.clone()));
        });
        state.plan = match begun {
            Ok(_) => Plan::Making,
            Err(error) => {
                self.group.is_not_planned();
                let source = crate::engine::resource("planner of layers", &error);
                Plan::Not(Unplanned::Thread { source })
            }
        };
    }

    /// Has layers placed as they were planned.
    fn follow(&self, plan: Plan) {
        let mut state = self.lock();
        if let Plan::Made(placement) = &plan {
            let stays = placement.tiers.iter().map(|tier| *tier == Tier::Gpu);
            state.schedule.arrange(stays.collect(), placement.protects);
        }
        state.plan = plan;
    }

    /// Where layers are kept, or why that is not planned.
    pub(super) fn placement(&self) -> Result<Placement, Unplanned> {
        let ended = |source| Unplanned::Ended { source };
        self.check_home().map_err(ended)?;
        let state = self.lock();
        match &state.plan {
            Plan::Made(placement) => Ok((**placement).clone()),
            Plan::Not(reason) => Err(reason.clone()),
            Plan::Waiting { .. } | Plan::Making => {
                Err(state.check_open().map_or_else(ended, |()| Unplanned::NotYet))
            }
        }
    }

    /// What the first pass took, if the GPU is done with all of it.
    fn seen(&self, state: &mut State, pass: Range<u64>) -> Option<Seen> {
        let told = state.times.told();
        let first: Vec<_> =
            told.layers.iter().filter(|times| pass.contains(&times.position)).collect();
        if (first.len() as u64) < pass.end - pass.start {
            return None;
        }
        let cost =
            |unit: &Unit| LayerCost { bytes: unit.len, compute: Duration::ZERO, resident: false };
        let mut costs: Vec<LayerCost> = self.units().iter().map(cost).collect();
        let mut takes = vec![0; costs.len()];
        for times in &first {
            costs[times.layer].compute += times.compute;
            takes[times.layer] += 1;
        }
        let file_rate = file_rate(&first, SLOTS * slot_len(&self.engine));
        costs.iter_mut().zip(takes).for_each(|(cost, takes)| cost.compute /= takes.max(1));
        Some(Seen { costs, file_rate })
    }

    fn plan(&self, seen: Seen) -> Plan {
        match self.place(seen) {
            Ok(placement) => Plan::Made(Box::new(placement)),
            Err(reason) => Plan::Not(reason),
        }
    }

    fn place(&self, mut seen: Seen) -> Result<Placement, Unplanned> {
        let device = self.device.id();
        let link = self.link_rate().map_err(|source| Unplanned::Link { device, source })?;
        for (unit, cost) in self.units().iter().zip(&mut seen.costs) {
            let mut parts = unit.parts.iter();
            cost.resident =
                parts.all(|part| is_resident(&part.file, ByteRange::at(part.offset, part.len)));
        }
        let rate = seen.file_rate.min(link);
        // What is pinned where it lies crosses the link as fast as it can.
        let page_cache = if self.group.homes().maps.is_on() { link } else { rate };
        let rates = Rates { link, page_cache, drive: rate };
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
        Ok(placement)
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
        let home = Home::in_memory(&self.engine, shelf).map_err(|error| whole(&error))?;
        let is_new = self.group.homes().keep(number, home).is_ok();
        *left -= if is_new { len } else { 0 };
        Ok(is_new)
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

/// An error and what lies behind it.
fn whole(error: &Error) -> String {
    let sources = successors(error.source(), |&error| error.source());
    sources.fold(error.to_string(), |text, source| format!("{text}: {source}"))
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
    use std::sync::Arc;

    use super::super::shared::From;
    use super::super::{Layer, LayerStream, Order, StreamOptions};
    use super::*;
    use crate::clock::SystemClock;
    use crate::gpu::Device;
    use crate::gpu::sim::SimDevice;
    use crate::{Engine, Options};

    const LEN: u64 = 100_001;

    /// A stream of eight layers from odd places of a file, whose planning nothing has begun.
    fn stream(gpu: &str, host_budget: u64) -> LayerStream {
        let engine = Engine::new(Options::default()).unwrap();
        let clock = Arc::new(SystemClock::new());
        let device: Arc<dyn Device> = Arc::new(SimDevice::new(0, gpu.parse().unwrap(), clock));
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("file"), vec![7; 1 << 20]).unwrap();
        let file = engine.open(folder.path().join("file")).unwrap();
        let layers: Vec<Layer> =
            (0..8).map(|n| Layer::named(format!("layer {n}")).with(&file, n * LEN, LEN)).collect();
        let mut options = StreamOptions::ordered(Order::Forward);
        (options.gpu_budget, options.host_budget) = (Some(2 * LEN), host_budget);
        options.mapped_budget = Some(0);
        LayerStream::new(&engine, &device, &layers, options).unwrap()
    }

    /// Layers that take next to no compute and come from a drive that is slower than any link.
    fn slow() -> Seen {
        let cost = LayerCost { bytes: LEN, compute: Duration::from_micros(1), resident: false };
        Seen { costs: vec![cost; 8], file_rate: 1e5 }
    }

    #[test]
    fn what_could_not_be_pinned_is_said_and_predicted() {
        let (whole, short) = (stream("sim", 8 * (LEN + 512)), stream("sim", 8 * LEN));
        let all = whole.shared.place(slow()).unwrap();
        assert_eq!((&all.tiers[..], &all.short), (&[Tier::Pinned; 8][..], &None));
        // Layers from odd places take some bytes more.
        let fewer = short.shared.place(slow()).unwrap();
        let is_pinned = |tier: &&Tier| **tier == Tier::Pinned;
        assert_eq!(fewer.tiers.iter().filter(is_pinned).count(), 7);
        let reason = fewer.short.unwrap();
        let begins = "1 of 8 layers that were to be pinned are not: `layer 7` takes 100";
        assert!(reason.starts_with(begins) && reason.contains("`host_budget`"), "{reason}");
        // One layer comes from the drive in each pass.
        let pass = fewer.prediction.pass.as_secs_f64();
        assert!((pass / (LEN as f64 / 1e5) - 1.0).abs() < 0.02, "{pass}");
        assert!(all.prediction.pass.as_secs_f64() < pass / 2.0, "{:?}", all.prediction);
        assert_eq!(fewer.prediction.bytes.pinned, 7 * LEN);
        let file = fewer.prediction.bytes.drive + fewer.prediction.bytes.page_cache;
        assert_eq!(file, LEN);
        assert!(fewer.prediction.lift.is_some());
    }

    #[test]
    fn what_comes_to_a_layers_place_waits_for_its_copies() {
        let stream = stream("sim", 0);
        let until = Instant::now() + Duration::from_secs(10);
        let came = || stream.shared.lock().loads.iter().all(Option::is_some);
        while !came() && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        // Nobody has taken them, so nothing else would hold up what comes.
        let state = stream.shared.lock();
        for (load, frees) in state.loads.iter().zip(&state.frees) {
            let ready = load.as_ref().expect("it has come").ready.event();
            assert!(frees.iter().any(|mark| mark.event() == ready), "{frees:?}");
        }
    }

    #[test]
    fn a_stream_that_ends_meanwhile_pins_nothing() {
        let stream = stream("sim", 8 * (LEN + 512));
        stream.close().unwrap();
        let placed = stream.shared.place(slow()).unwrap();
        assert!(!placed.tiers.contains(&Tier::Pinned), "{placed:?}");
        let reason = placed.short.unwrap();
        assert!(reason.ends_with("8 layers that were to be pinned are not: the stream was closed"));
        assert!(matches!(stream.placement(), Err(Unplanned::Ended { .. })));
    }

    #[test]
    fn why_nothing_is_planned_is_said() {
        let text = |error: Unplanned| error.to_string();
        let open = stream("sim", 0);
        assert!(text(open.placement().unwrap_err()).starts_with("layers are placed once"));
        let mut none = slow();
        none.costs[3].compute = Duration::MAX;
        let refused = open.shared.place(none).unwrap_err();
        assert!(matches!(refused, Unplanned::CannotPlace(CannotPlace::TooMuch)), "{refused}");
        let broken = stream("sim:lost-after=0", 0);
        let refused = broken.shared.place(slow()).unwrap_err();
        assert!(
            matches!(&refused, Unplanned::Link { device, .. } if device.to_string() == "sim:0")
        );
        assert_eq!(text(refused), "the speed of the link to sim:0 could not be measured");
    }

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
