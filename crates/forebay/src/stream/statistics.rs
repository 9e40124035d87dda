//! How long layers took to come, how long they were computed, and how long the compute stood still
//! for want of them, as the GPU's own clock says.

use std::collections::VecDeque;
use std::time::Duration;

use super::marks::Mark;
use super::shared::From;
use crate::transfer::RouteShare;

/// Visits and passes that are remembered at most.
const REMEMBERED: usize = 4096;

/// What one layer took, once.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LayerTimes {
    /// Where it stood in the order, from 0.
    pub position: u64,
    /// The layer, by its place in the stream's list.
    pub layer: usize,
    /// Which slice of it.
    pub slice: usize,
    /// Bytes that were brought for it; none where it was on the GPU already.
    pub bytes: u64,
    /// Of these, those that came from drives: from files, and not found in the page cache. What
    /// this user may not ask about counts as it was found.
    pub drive_bytes: u64,
    /// By which routes they came from files by way of slots, and why.
    pub routes: Vec<RouteShare>,
    /// Whether they came from the stream's pinned memory instead of from files.
    pub pinned: bool,
    /// Whether they came from pages of files, pinned where they lie.
    pub mapped: bool,
    /// When its first copy could begin, where it was brought, since the stream began.
    pub began: Duration,
    /// When it could be used, since the stream began.
    pub entered: Duration,
    /// From when its first copy could begin to the end of its last.
    pub transfer: Duration,
    /// From when it could be used to the end of what was queued before its release.
    pub compute: Duration,
    /// What the compute's stream waited for it.
    pub stall: Duration,
}

impl LayerTimes {
    pub(super) fn of(
        (position, layer, slice): (u64, usize, usize),
        bytes: u64,
        from: From,
    ) -> Self {
        let (pinned, mapped) = (from == From::Memory, from == From::Pages);
        let (began, entered, transfer) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        let (compute, stall) = (Duration::ZERO, Duration::ZERO);
        Self {
            position,
            layer,
            slice,
            bytes,
            drive_bytes: 0,
            routes: Vec::new(),
            pinned,
            mapped,
            began,
            entered,
            transfer,
            compute,
            stall,
        }
    }

    /// What it took on the GPU: what was waited for it, and its compute.
    #[must_use]
    pub fn time(&self) -> Duration {
        self.compute + self.stall
    }

    /// What of that is more than its compute or its transfer alone, whichever took longer.
    #[must_use]
    pub fn overhead(&self) -> Duration {
        self.time().saturating_sub(self.compute.max(self.transfer))
    }
}

/// What one pass took: sums over its layers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PassTimes {
    /// Which pass, from 0.
    pub pass: u64,
    /// Layers, or slices, that were taken and are done.
    pub layers: u64,
    /// Those that were brought for it.
    pub brought: u64,
    /// Bytes that came from the stream's pinned memory.
    pub pinned_bytes: u64,
    /// Bytes that came from pages of files, pinned where they lie.
    pub mapped_bytes: u64,
    /// Bytes that came from files by other ways.
    pub file_bytes: u64,
    /// Of these, those that came from drives: see [`LayerTimes::drive_bytes`].
    pub drive_bytes: u64,
    /// See [`LayerTimes::routes`].
    pub routes: Vec<RouteShare>,
    /// See [`LayerTimes::transfer`]. Transfers from pinned memory, or pinned pages, and from files
    /// may go on at the same time.
    pub transfer: Duration,
    /// Of that, those from files by way of slots.
    pub file_transfer: Duration,
    /// See [`LayerTimes::compute`].
    pub compute: Duration,
    /// See [`LayerTimes::stall`].
    pub stall: Duration,
}

impl PassTimes {
    /// What the pass took on the GPU.
    #[must_use]
    pub fn time(&self) -> Duration {
        self.compute + self.stall
    }

    /// What of that is more than compute, or the transfers of one kind, would take alone, whichever
    /// takes longest: what comes from pinned memory, and what comes from files.
    #[must_use]
    pub fn overhead(&self) -> Duration {
        let pinned = self.transfer.saturating_sub(self.file_transfer);
        self.time().saturating_sub(self.compute.max(self.file_transfer).max(pinned))
    }
}

/// What a stream's layers took so far: what the GPU is done with, and no more than the last few
/// thousand.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct StreamStatistics {
    /// Layer by layer, in the order in which they were done.
    pub layers: Vec<LayerTimes>,
    /// Pass by pass; an order that is told is one pass.
    pub passes: Vec<PassTimes>,
    /// Bytes that came from files by way of slots, by route and reason, most bytes first: of all
    /// layers that were taken so far.
    pub routes: Vec<RouteShare>,
    /// Bytes of layers that were written back.
    pub written_bytes: u64,
}

/// A layer that was taken, until the GPU is done with it.
#[derive(Debug)]
pub(super) struct Visit {
    times: LayerTimes,
    /// Its first and last copy, where it was brought for this.
    load: Option<(Mark, Mark)>,
    asked: Mark,
    entered: Mark,
    freed: Option<Mark>,
    pass: u64,
}

impl Visit {
    pub(super) fn new(
        times: LayerTimes,
        load: Option<(Mark, Mark)>,
        asked: Mark,
        entered: Mark,
    ) -> Self {
        Self { times, load, asked, entered, freed: None, pass: 0 }
    }

    /// Its times, if the GPU is done with it.
    fn done(&self, origin: &mut Option<Origin>) -> Option<LayerTimes> {
        let freed = self.freed.as_ref().filter(|freed| freed.is_passed().unwrap_or(true))?;
        let transfer = self.load.as_ref().map(|(begun, ready)| ready.since(begun));
        let began = self.load.as_ref().map(|(begun, _)| Origin::when(origin, begun));
        Some(LayerTimes {
            began: began.unwrap_or_default(),
            entered: Origin::when(origin, &self.entered),
            transfer: transfer.unwrap_or_default(),
            compute: freed.since(&self.entered),
            stall: self.entered.since(&self.asked),
            ..self.times.clone()
        })
    }
}

/// A mark, when it was passed since the stream began, and the one that served before it.
#[derive(Debug)]
struct Origin(Mark, Duration, Option<(Mark, Duration)>);

/// How long a mark serves as an origin: what the driver tells of the time between two has some
/// seven digits.
const SERVES: Duration = Duration::from_secs(1);

impl Origin {
    /// When a mark was passed, which is the origin from now on where the last one is old.
    fn when(origin: &mut Option<Self>, mark: &Mark) -> Duration {
        let Some(Self(from, at, before)) = origin else { return Duration::ZERO };
        let since = mark.since(from);
        if since.is_zero() {
            // It may have been passed earlier, as when a layer came while another was computed.
            return before.as_ref().map_or(*at, |(from, at)| *at + mark.since(from));
        }
        let when = *at + since;
        if since > SERVES {
            *origin = Some(Self(mark.clone(), when, Some((from.clone(), *at))));
        }
        when
    }
}

/// See the module's own text.
#[derive(Debug, Default)]
pub(super) struct Times {
    origin: Option<Origin>,
    /// In the order in which they began.
    visits: VecDeque<Visit>,
    layers: VecDeque<LayerTimes>,
    passes: VecDeque<PassTimes>,
    routes: Vec<RouteShare>,
}

impl Times {
    /// Says that the stream begins with a mark.
    pub(super) fn begin(&mut self, mark: Mark) {
        self.origin = Some(Origin(mark, Duration::ZERO, None));
    }

    /// Notes by which routes a layer came from files; how many bytes were not in memory.
    pub(super) fn came(&mut self, shares: &[RouteShare]) -> u64 {
        add_up(&mut self.routes, shares);
        let from_drive = shares.iter().filter(|share| !share.reason.is_in_memory());
        from_drive.map(|share| share.bytes).sum()
    }

    /// Notes that a layer was taken; `pass` is how many a pass takes.
    pub(super) fn enter(&mut self, visit: Visit, pass: u64) {
        let number = visit.times.position.checked_div(pass).unwrap_or(0);
        self.visits.push_back(Visit { pass: number, ..visit });
    }

    /// Notes that it was released.
    pub(super) fn leave(&mut self, position: u64, freed: Mark) {
        // It is one of those that began last.
        let mut visits = self.visits.iter_mut().rev();
        if let Some(visit) = visits.find(|visit| visit.times.position == position) {
            visit.freed = Some(freed);
        }
    }

    /// Notes what the GPU is done with, in the order in which it was taken, up to the first that it
    /// is not: whoever runs far ahead of it asks no more for that. What is kept holds up nothing.
    pub(super) fn gather(&mut self) {
        let (layers, passes, origin) = (&mut self.layers, &mut self.passes, &mut self.origin);
        let mut place = 0;
        while let Some(visit) = self.visits.get(place) {
            if visit.freed.is_none() {
                place += 1;
                continue;
            }
            let Some(times) = visit.done(origin) else { break };
            let number = visit.pass;
            let found = passes.iter().rposition(|pass| pass.pass == number);
            let found = found.unwrap_or_else(|| {
                passes.push_back(PassTimes { pass: number, ..PassTimes::default() });
                passes.len() - 1
            });
            passes[found].add(&times);
            layers.push_back(times);
            self.visits.remove(place);
        }
        layers.drain(..layers.len().saturating_sub(REMEMBERED));
        passes.drain(..passes.len().saturating_sub(REMEMBERED));
    }

    pub(super) fn told(&self) -> StreamStatistics {
        let mut routes = self.routes.clone();
        routes.sort_by_key(|share| std::cmp::Reverse(share.bytes));
        StreamStatistics {
            layers: self.layers.iter().cloned().collect(),
            passes: self.passes.iter().cloned().collect(),
            routes,
            written_bytes: 0,
        }
    }
}

impl PassTimes {
    fn add(&mut self, times: &LayerTimes) {
        self.layers += 1;
        self.brought += u64::from(times.bytes > 0);
        *match (times.pinned, times.mapped) {
            (true, _) => &mut self.pinned_bytes,
            (_, true) => &mut self.mapped_bytes,
            _ => &mut self.file_bytes,
        } += times.bytes;
        self.drive_bytes += times.drive_bytes;
        add_up(&mut self.routes, &times.routes);
        self.transfer += times.transfer;
        if !times.pinned && !times.mapped {
            self.file_transfer += times.transfer;
        }
        self.compute += times.compute;
        self.stall += times.stall;
    }
}

/// Adds bytes by route and reason to those that are known.
fn add_up(all: &mut Vec<RouteShare>, shares: &[RouteShare]) {
    for share in shares {
        let same = |known: &&mut RouteShare| {
            (known.route, known.reason) == (share.route, share.reason) //
        };
        match all.iter_mut().find(same) {
            Some(known) => known.bytes += share.bytes,
            None => all.push(*share),
        }
    }
}
