//! How long layers took to transfer and to compute, and how long the compute stalled waiting for
//! them, by the GPU's own clock.

use std::collections::VecDeque;
use std::time::Duration;

use forebay::RouteShare;

use super::marks::Mark;

/// Maximum number of visits and passes that are kept.
const REMEMBERED: usize = 4096;

/// Times of a layer in a visit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LayerTimes {
    /// Position in the order, from 0.
    pub position: u64,
    /// Index in the stream's list of layers.
    pub layer: usize,
    /// Index of the slice in the layer.
    pub slice: usize,
    /// Bytes that were loaded for it; 0 if it was on the GPU already.
    pub bytes: u64,
    /// Bytes of these that came from drives: read from files and not found in the page cache. For
    /// files whose residency this user may not query, a trial read decides.
    pub drive_bytes: u64,
    /// The routes of the bytes that were read from files through slots, with reasons.
    pub routes: Vec<RouteShare>,
    /// Whether it came from the stream's pinned memory instead of from files.
    pub pinned: bool,
    /// Whether it came from pinned page cache pages.
    pub mapped: bool,
    /// When its first copy could begin, if it was loaded; relative to the start of the stream.
    pub began: Duration,
    /// When it could be used; relative to the start of the stream.
    pub entered: Duration,
    /// Time from when its first copy could begin to the end of its last copy.
    pub transfer: Duration,
    /// Time from when it could be used to the end of the work queued before its release.
    pub compute: Duration,
    /// Time that the compute stream waited for it.
    pub stall: Duration,
}

impl LayerTimes {
    /// Time on the GPU: compute and stall.
    pub fn time(&self) -> Duration {
        self.compute + self.stall
    }

    /// The part of that beyond the longer of its compute and its transfer.
    pub fn overhead(&self) -> Duration {
        self.time().saturating_sub(self.compute.max(self.transfer))
    }
}

/// Times of a pass: sums over its layers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PassTimes {
    /// Index of the pass, from 0.
    pub pass: u64,
    /// Layers, or slices, that were taken and finished.
    pub layers: u64,
    /// Layers, or slices, that were loaded for it.
    pub brought: u64,
    /// Bytes that came from the stream's pinned memory.
    pub pinned_bytes: u64,
    /// Bytes that came from pinned page cache pages.
    pub mapped_bytes: u64,
    /// Bytes of files by other routes.
    pub file_bytes: u64,
    /// Bytes of these that came from drives: see [`LayerTimes::drive_bytes`].
    pub drive_bytes: u64,
    /// See [`LayerTimes::routes`].
    pub routes: Vec<RouteShare>,
    /// See [`LayerTimes::transfer`]. Transfers from pinned memory or pages and transfers from files
    /// may overlap.
    pub transfer: Duration,
    /// The part from files through slots.
    pub file_transfer: Duration,
    /// See [`LayerTimes::compute`].
    pub compute: Duration,
    /// See [`LayerTimes::stall`].
    pub stall: Duration,
}

impl PassTimes {
    /// Time of the pass on the GPU.
    pub fn time(&self) -> Duration {
        self.compute + self.stall
    }

    /// The part of that beyond the longest of compute, transfers from pinned memory, and transfers
    /// from files.
    pub fn overhead(&self) -> Duration {
        let pinned = self.transfer.saturating_sub(self.file_transfer);
        self.time().saturating_sub(self.compute.max(self.file_transfer).max(pinned))
    }
}

/// Statistics of a stream's layers that the GPU finished, limited to the last few thousand.
#[derive(Debug, Clone, Default)]
pub struct StreamStatistics {
    /// Per layer, in the order in which they finished.
    pub layers: Vec<LayerTimes>,
    /// Per pass; an order that is given while it runs counts as a single pass.
    pub passes: Vec<PassTimes>,
    /// Bytes of all layers taken so far that were read from files through slots, by route and
    /// reason, most bytes first.
    pub routes: Vec<RouteShare>,
    /// Bytes of layers that were written back.
    pub written_bytes: u64,
}

/// A layer that was taken and that the GPU did not finish yet.
#[derive(Debug)]
struct Visit {
    times: LayerTimes,
    /// Its first and last copy, if it was loaded for this visit.
    load: Option<(Mark, Mark)>,
    requested: Mark,
    entered: Mark,
    freed: Option<Mark>,
    pass: u64,
}

impl Visit {
    /// Its times, if the GPU finished it.
    fn done(&self, origin: &mut Option<Origin>) -> Option<LayerTimes> {
        let freed = self.freed.as_ref().filter(|freed| freed.is_passed().unwrap_or(true))?;
        let transfer = self.load.as_ref().map(|(begun, ready)| ready.since(begun));
        let began = self.load.as_ref().map(|(begun, _)| Origin::when(origin, begun));
        Some(LayerTimes {
            began: began.unwrap_or_default(),
            entered: Origin::when(origin, &self.entered),
            transfer: transfer.unwrap_or_default(),
            compute: freed.since(&self.entered),
            stall: self.entered.since(&self.requested),
            ..self.times.clone()
        })
    }
}

/// A mark, its time since the start of the stream, and the origin before it.
#[derive(Debug)]
struct Origin(Mark, Duration, Option<(Mark, Duration)>);

/// How long a mark serves as the origin: the driver reports the time between two events with about
/// seven digits.
const SERVES: Duration = Duration::from_secs(1);

impl Origin {
    /// The time at which a mark was signaled. The mark becomes the new origin if the last one is
    /// old.
    fn when(origin: &mut Option<Self>, mark: &Mark) -> Duration {
        let Some(Self(from, at, before)) = origin else { return Duration::ZERO };
        let since = mark.since(from);
        if since.is_zero() {
            // It may be earlier than the origin, as for a layer that arrived during another's
            // compute.
            return before.as_ref().map_or(*at, |(from, at)| *at + mark.since(from));
        }
        let when = *at + since;
        if since > SERVES {
            *origin = Some(Self(mark.clone(), when, Some((from.clone(), *at))));
        }
        when
    }
}

/// Collects the times of a stream's layers.
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
    /// Sets the mark at which the stream begins.
    pub(super) fn begin(&mut self, mark: Mark) {
        self.origin = Some(Origin(mark, Duration::ZERO, None));
    }

    /// Adds the routes by which a layer came from files; returns the bytes that were not in memory.
    pub(super) fn add_routes(&mut self, shares: &[RouteShare]) -> u64 {
        add_up(&mut self.routes, shares);
        let from_drive = shares.iter().filter(|share| !share.reason.is_in_memory());
        from_drive.map(|share| share.bytes).sum()
    }

    /// Records that a layer was taken; `pass_len` is the number of layers in a pass.
    pub(super) fn enter(
        &mut self,
        times: LayerTimes,
        load: Option<(Mark, Mark)>,
        (requested, entered): (Mark, Mark),
        pass_len: u64,
    ) {
        let pass = times.position.checked_div(pass_len).unwrap_or(0);
        self.visits.push_back(Visit { times, load, requested, entered, freed: None, pass });
    }

    /// Records that it was released.
    pub(super) fn leave(&mut self, position: u64, freed: Mark) {
        // It is one of the most recent visits.
        let mut visits = self.visits.iter_mut().rev();
        if let Some(visit) = visits.find(|visit| visit.times.position == position) {
            visit.freed = Some(freed);
        }
    }

    /// Moves visits that the GPU finished into the results, in order, and stops at the first
    /// unfinished one. So a caller far ahead of the GPU pays for a single query. Kept layers do not
    /// stop it.
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

    pub(super) fn summary(&self) -> StreamStatistics {
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

/// Adds bytes by route and reason to the known sums.
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
