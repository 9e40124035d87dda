//! Places layers by what the first pass took: which stay on the GPU, which come to be pinned, and
//! how long a pass is to take then.

use std::error::Error as _;
use std::iter::successors;
use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::homes::Home;
use super::layer::{Shelf, Unit, is_resident, slot_len};
use super::placement::{
    Budget, CannotPlace, LayerCost, Placement, Rates, Tier, place, predict_kept,
};
use super::rates::file_rate;
use super::ring::SLOTS;
use super::shared::{Shared, State, closed};
use super::statistics::REMEMBERED;
use crate::error::{Error, Result};
use crate::gpu::DeviceId;
use crate::units::ByteRange;

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
        let page_cache = self.page_cache_rate(&seen.costs, (link, rate));
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
        self.count_spare(&mut placement);
        Ok(placement)
    }

    /// Takes from what more of the GPU would help what its budget has beyond whole layers.
    fn count_spare(&self, placement: &mut Placement) {
        let spare = self.gpu_budget.map_or(0, |all| all.saturating_sub(self.budget_of_gpu()));
        let lift = placement.prediction.lift.as_mut();
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
        let home = Home::in_memory(&self.engine, shelf).map_err(|error| whole(&error))?;
        let is_new = self.group.homes().keep(number, home).is_ok();
        *left -= if is_new { len } else { 0 };
        Ok(is_new)
    }
}

/// An error and what lies behind it.
fn whole(error: &Error) -> String {
    let sources = successors(error.source(), |&error| error.source());
    sources.fold(error.to_string(), |text, source| format!("{text}: {source}"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use super::super::mapper::Maps;
    use super::super::{Layer, LayerStream, Order, StreamOptions};
    use super::*;
    use crate::clock::SystemClock;
    use crate::gpu::Device;
    use crate::gpu::sim::SimDevice;
    use crate::{Engine, Options};

    const LEN: u64 = 100_001;

    /// A stream of eight layers from odd places of a file, whose planning nothing has begun.
    fn stream(gpu: &str, host_budget: u64) -> LayerStream {
        stream_of(gpu, [2 * LEN, host_budget], (8, LEN))
    }

    /// The same of so many layers of so many bytes.
    fn stream_of(gpu: &str, budgets: [u64; 2], (count, len): (u64, u64)) -> LayerStream {
        let engine = Engine::new(Options::default()).unwrap();
        let clock = Arc::new(SystemClock::new());
        let device: Arc<dyn Device> = Arc::new(SimDevice::new(0, gpu.parse().unwrap(), clock));
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("file"), vec![7; 1 << 20]).unwrap();
        let file = engine.open(folder.path().join("file")).unwrap();
        let layers: Vec<Layer> = (0..count)
            .map(|n| Layer::named(format!("layer {n}")).with(&file, n * len, len))
            .collect();
        let mut options = StreamOptions::ordered(Order::Forward);
        (options.gpu_budget, options.host_budget) = (Some(budgets[0]), budgets[1]);
        options.mapped_budget = Some(0);
        LayerStream::new(&engine, &device, &layers, options).unwrap()
    }

    /// Layers that take next to no compute and come from a drive that is slower than any link.
    fn slow() -> Seen {
        let cost = LayerCost { bytes: LEN, compute: Duration::from_micros(1), resident: false };
        Seen { costs: vec![cost; 8], file_rate: 1e5 }
    }

    #[test]
    fn what_would_help_counts_from_the_budget_that_was_given() {
        let more = |budget: u64| {
            let placement = stream_of("sim", [budget, 0], (8, LEN)).shared.place(slow()).unwrap();
            let raise = placement.prediction.lift.and_then(|lift| lift.gpu).unwrap();
            (raise.bytes, raise.pass)
        };
        let (whole, with_spare) = (more(2 * LEN), more(2 * LEN + 1000));
        assert!(whole.0 > LEN, "{whole:?}");
        assert_eq!(with_spare.0, whole.0 - 1000);
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

    #[test]
    fn a_gpu_that_is_full_is_planned_for_as_well() {
        // Room for the buffers, and for nothing beside them.
        let full = stream("sim:memory=600K", 8 * (LEN + 512));
        assert_eq!(full.shared.place(slow()).unwrap().tiers, [Tier::Pinned; 8]);
    }

    #[test]
    fn only_what_can_be_pinned_where_it_lies_comes_as_fast_as_the_link() {
        let resident = LayerCost { resident: true, ..slow().costs[0] };
        let rate = |stream: &LayerStream, costs: &[LayerCost]| {
            stream.shared.page_cache_rate(costs, (4e9, 1e9))
        };
        let is = |told: f64, expected: f64| (told / expected - 1.0).abs() < 1e-9;
        assert!(is(rate(&stream("sim", 0), &[resident; 8]), 1e9), "none may be pinned");
        // Of four two may be.
        let half = stream_of("sim", [2 << 18, 0], (4, 1 << 18));
        half.shared.group.homes().maps = Maps::new(half.shared.units(), Some(2 << 18), None);
        let told = rate(&half, &[resident; 4]);
        let why = half.shared.units()[0].files[0].no_pages();
        let expected = if why.is_some() { 1e9 } else { 1.6e9 };
        assert!(is(told, expected), "{told}: {why:?}");
        assert!(is(rate(&half, &slow().costs[..4]), 1e9), "none is resident");
    }
}
