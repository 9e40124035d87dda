//! Looks for the way to place layers whose pass is the shortest, among so many ways at most as the
//! work allows.
//!
//! A way is how many layers stay in buffers, how many of those that were taken last give way to
//! nobody, and how many of the others are pinned; which ones follows, for they are [spread] evenly.
//! What no pass can fall below is known before a clock runs, so that most ways need none. The time
//! to look is counted in positions, not measured: the same budgets always yield the same placement.

use super::clock;
use super::facts::Facts;
use super::script::Script;
use super::spread::spread;

/// A pass that takes this of its compute counts as hidden behind it.
pub(super) const HIDDEN: f64 = 1.005;
/// A pass that takes this of the best one counts as no longer. What is found with a larger budget
/// then takes at most half a percent longer.
const CLOSE: f64 = 1.004;
/// Shorter by less than this is not shorter: sums of times are that exact.
const EXACT: f64 = 1.0 - 1e-9;
/// How many buffers take turns, where there are more than [`FEW`]; they are all tried where not.
const TURNS: [usize; 11] = [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64];
const FEW: usize = 12;
/// With so many layers taken in a pass or more, nothing is looked for.
pub(super) const MANY: usize = 2_000;
/// The buffers that take turns then: one is computed, and seven are read ahead.
const TURNS_MANY: usize = 8;
/// So many positions are played in one search, at most, and half as many again to pin fewer.
const EFFORT: usize = 60_000;

/// What was found.
#[derive(Debug, Clone)]
pub(super) struct Choice {
    pub(super) buffers: usize,
    pub(super) protects: usize,
    pub(super) stays: Vec<bool>,
    pub(super) pinned: Vec<bool>,
    /// Bytes of the pinned layers.
    pub(super) host: u64,
    /// Seconds of a pass.
    pub(super) pass: f64,
    /// How often each layer is brought in so many passes.
    pub(super) brought: Vec<u32>,
    pub(super) counted: usize,
}

/// How long a pass takes to compute, and to read at least: seconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Floors {
    pub(super) compute: f64,
    pub(super) link: f64,
    pub(super) page_cache: f64,
    pub(super) drive: f64,
}

impl Floors {
    /// For layers that are brought so often in `counted` passes.
    pub(super) fn new(facts: &Facts, brought: &[u32], counted: usize, pinned: &[bool]) -> Self {
        let mut floors = Self { compute: facts.computes, link: 0.0, page_cache: 0.0, drive: 0.0 };
        for &layer in &facts.taken {
            let times = f64::from(brought[layer]) / counted.max(1) as f64;
            floors.link += times * facts.link_seconds(layer);
            let file = times * facts.file_seconds(layer);
            match (pinned[layer], facts.resident[layer]) {
                (true, _) => {}
                (false, true) => floors.page_cache += file,
                (false, false) => floors.drive += file,
            }
        }
        floors
    }

    /// What no pass falls below.
    pub(super) fn most(&self) -> f64 {
        self.compute.max(self.link).max(self.page_cache + self.drive)
    }
}

/// How many layers stay, and how many of those taken last are protected; and what was found of it.
struct Way {
    buffers: usize,
    protects: usize,
    stays: Vec<bool>,
    /// The layers that do not stay.
    others: Vec<usize>,
    /// How many of those may be pinned.
    most: usize,
    script: Option<Script>,
    /// Seconds of a pass for so many pinned layers.
    tried: Vec<(usize, f64)>,
}

/// One search, for one budget.
pub(super) struct Search<'a> {
    facts: &'a Facts,
    ways: Vec<Way>,
    host: u64,
    effort: usize,
}

impl<'a> Search<'a> {
    /// For so many buffers, not more than layers are taken or two, and so many bytes of pinned
    /// memory.
    pub(super) fn new(facts: &'a Facts, buffers: usize, host: u64) -> Self {
        let mut search = Self { facts, ways: Vec::new(), host, effort: EFFORT };
        if buffers < facts.taken.len() {
            for (turns, protects) in turns(buffers, facts.pass.len() >= MANY) {
                let way = search.way(buffers, turns, protects);
                search.ways.push(way);
            }
        }
        search
    }

    fn way(&self, buffers: usize, turns: usize, protects: usize) -> Way {
        let facts = self.facts;
        let mut stays = vec![false; facts.bytes.len()];
        let slow = |layer| facts.file_seconds(layer);
        let kept = spread(&facts.taken, buffers - turns, slow);
        kept.into_iter().for_each(|layer| stays[layer] = true);
        let others: Vec<usize> =
            facts.taken.iter().copied().filter(|&layer| !stays[layer]).collect();
        let fits = |&count: &usize| self.fits(&others, count);
        let most = match others.len() {
            few if few <= 2 * FEW => (0..=few).rev().find(fits).unwrap_or(0),
            many => first(0, many, |count| !fits(&(count + 1))),
        };
        Way { buffers, protects, stays, others, most, script: None, tried: Vec::new() }
    }

    /// So many of these layers, those that come out of their files the slowest first of all.
    fn pins(&self, others: &[usize], count: usize) -> Vec<usize> {
        spread(others, count, |layer| self.facts.file_seconds(layer))
    }

    fn pinned_bytes(&self, others: &[usize], count: usize) -> u64 {
        self.facts.bytes_of(self.pins(others, count).into_iter())
    }

    /// Whether so many of these layers fit into pinned memory. Where they are unlike, fewer of them
    /// may be more bytes.
    fn fits(&self, others: &[usize], count: usize) -> bool {
        self.pinned_bytes(others, count) <= self.host
    }

    /// Bytes of pinned memory in a way that hides what is read behind the compute, if one is found.
    pub(super) fn hides(&mut self) -> Option<u64> {
        if self.ways.is_empty() {
            return Some(0);
        }
        let limit = self.facts.computes * HIDDEN;
        let best = self.explore(limit, true);
        let ways = self.ways.iter();
        let mut all = ways.flat_map(|way| way.tried.iter().map(move |tried| (way, tried)));
        let (way, &(count, _)) = all.find(|(_, tried)| tried.1 <= best && best <= limit)?;
        Some(self.pinned_bytes(&way.others, count))
    }

    /// The best way; of those that are as good the one that pins the fewest bytes and reads the
    /// fewest.
    pub(super) fn choose(mut self) -> Choice {
        if self.ways.is_empty() {
            return self.all();
        }
        let limit = match self.hides() {
            Some(_) => self.facts.computes * HIDDEN,
            None => self.explore(f64::INFINITY, false) * CLOSE,
        };
        self.effort += EFFORT / 2;
        let mut best: Option<Choice> = None;
        for index in 0..self.ways.len() {
            let Some((count, pass)) = self.fewest(index, limit) else { continue };
            let choice = self.choice(index, count, pass);
            let is_better = |other: &Choice| {
                let reads =
                    |it: &Choice| Floors::new(self.facts, &it.brought, it.counted, &it.stays);
                let (mine, others) = (reads(&choice).link, reads(other).link);
                let by_pass = || choice.pass.total_cmp(&other.pass);
                let order = choice.host.cmp(&other.host);
                order.then_with(|| mine.total_cmp(&others)).then_with(by_pass).is_lt()
            };
            if best.as_ref().is_none_or(is_better) {
                best = Some(choice);
            }
        }
        best.expect("the best way is one of those")
    }

    /// All layers stay, for which there is room.
    fn all(&self) -> Choice {
        let mut stays = vec![false; self.facts.bytes.len()];
        self.facts.taken.iter().for_each(|&layer| stays[layer] = true);
        Choice {
            buffers: self.facts.taken.len().max(2),
            protects: 1,
            pinned: vec![false; stays.len()],
            brought: vec![0; stays.len()],
            stays,
            host: 0,
            pass: self.facts.computes,
            counted: 1,
        }
    }

    /// Seconds of the shortest pass that was found, of those that take `limit` at most; with
    /// `is_enough` one of these is.
    fn explore(&mut self, limit: f64, is_enough: bool) -> f64 {
        let mut best = f64::INFINITY;
        for index in 0..self.ways.len() {
            for count in counts(&self.ways[index], self.facts.pass.len() >= MANY) {
                let bound = limit.min(best * EXACT);
                // One is tried whatever it takes, so that there is one.
                let is_spent = self.effort == 0 && bound.is_finite();
                let is_open = !is_spent || self.is_tried(index, count);
                if !is_open || !self.fits(&self.ways[index].others, count) {
                    continue;
                }
                if self.coarse_floor(index, count) > bound
                    || self.floors(index, count).most() > bound
                {
                    continue;
                }
                best = best.min(self.seconds(index, count));
                if is_enough && best <= limit {
                    return best;
                }
            }
        }
        best
    }

    /// The fewest pinned layers with which a pass takes `limit` at most, and what it takes.
    fn fewest(&mut self, index: usize, limit: f64) -> Option<(usize, f64)> {
        let most = self.ways[index].most;
        let tried = self.ways[index].tried.iter().filter(|&&(_, pass)| pass <= limit);
        let high = tried.map(|&(count, _)| count).min().or_else(|| {
            let will_do = self.effort > 0
                && self.coarse_floor(index, most) <= limit
                && self.floors(index, most).most() <= limit
                && self.seconds(index, most) <= limit;
            will_do.then_some(most)
        })?;
        let count = first(0, high, |count| {
            self.effort > 0
                && self.fits(&self.ways[index].others, count)
                && self.floors(index, count).most() <= limit
                && self.seconds(index, count) <= limit
        });
        Some((count, self.seconds(index, count)))
    }

    fn is_tried(&self, index: usize, count: usize) -> bool {
        self.ways[index].tried.iter().any(|&(it, _)| it == count)
    }

    /// Seconds of a pass.
    fn seconds(&mut self, index: usize, count: usize) -> f64 {
        if let Some(&(_, pass)) = self.ways[index].tried.iter().find(|&&(it, _)| it == count) {
            return pass;
        }
        let floor = self.floors(index, count).most();
        let (facts, pinned) = (self.facts, self.pinned(index, count));
        let script = self.script(index);
        // What is read ahead of the passes that count would be missing.
        let pass = clock::pass_seconds(facts, script, &pinned).max(floor);
        let played = script.passes() * facts.pass.len();
        self.effort = self.effort.saturating_sub(played);
        self.ways[index].tried.push((count, pass));
        pass
    }

    fn script(&mut self, index: usize) -> &Script {
        let (facts, way) = (self.facts, &mut self.ways[index]);
        way.script.get_or_insert_with(|| {
            let script = Script::new(facts, way.buffers, &way.stays, way.protects);
            self.effort = self.effort.saturating_sub(script.passes() * facts.pass.len());
            script
        })
    }

    fn pinned(&self, index: usize, count: usize) -> Vec<bool> {
        let way = &self.ways[index];
        let mut pinned = vec![false; way.stays.len()];
        self.pins(&way.others, count).into_iter().for_each(|layer| pinned[layer] = true);
        pinned
    }

    fn floors(&mut self, index: usize, count: usize) -> Floors {
        let pinned = self.pinned(index, count);
        let facts = self.facts;
        let script = self.script(index);
        Floors::new(facts, &script.brought, script.counted, &pinned)
    }

    /// What no pass falls below, for which no script is needed: when the layers are taken in turn,
    /// all those that do not stay must be brought but those that are in buffers at the turn.
    fn coarse_floor(&self, index: usize, count: usize) -> f64 {
        let (facts, way) = (self.facts, &self.ways[index]);
        let pinned = self.pinned(index, count);
        let room = way.buffers - (facts.taken.len() - way.others.len());
        let (mut link, mut file, mut file_most) = (0.0, 0.0, 0.0_f64);
        for &layer in &way.others {
            link += facts.link_seconds(layer);
            if !pinned[layer] {
                file += facts.file_seconds(layer);
                file_most = file_most.max(facts.file_seconds(layer));
            }
        }
        link -= facts.largest as f64 / facts.rates.link * room as f64;
        file -= file_most * room as f64;
        facts.computes.max(facts.turns * link.max(file))
    }

    fn choice(&mut self, index: usize, count: usize, pass: f64) -> Choice {
        let host = self.pinned_bytes(&self.ways[index].others, count);
        let (pinned, script) = (self.pinned(index, count), self.script(index));
        let (brought, counted) = (script.brought.clone(), script.counted);
        let way = &self.ways[index];
        let (buffers, protects, stays) = (way.buffers, way.protects, way.stays.clone());
        Choice { buffers, protects, stays, pinned, host, pass, brought, counted }
    }
}

/// How many buffers take turns, and how many layers that were taken last are protected.
fn turns(buffers: usize, is_many: bool) -> Vec<(usize, usize)> {
    if is_many {
        let turns = TURNS_MANY.min(buffers);
        return vec![(turns, turns - 1)];
    }
    let mut all = Vec::new();
    if buffers <= FEW {
        for turns in 2..=buffers {
            all.extend((1..turns).rev().map(|protects| (turns, protects)));
        }
        return all;
    }
    for turns in TURNS.into_iter().filter(|&turns| turns <= buffers) {
        let mut protects = vec![turns - 1, turns / 2, 1];
        protects.dedup();
        all.extend(protects.into_iter().map(|protects| (turns, protects)));
    }
    all
}

/// How many layers are tried pinned: the most first.
fn counts(way: &Way, is_many: bool) -> Vec<usize> {
    if is_many {
        return vec![way.most];
    }
    let others = way.others.len();
    // The same ones for each budget, so that a larger one has those of a smaller one.
    let step = if others <= FEW { 1 } else { others.div_ceil(8) };
    let mut counts: Vec<usize> = (0..=way.most).step_by(step).collect();
    if counts.last() != Some(&way.most) {
        counts.push(way.most);
    }
    counts.reverse();
    counts
}

/// The first number from `low` on that will do; `high` will.
pub(super) fn first(
    mut low: usize,
    mut high: usize,
    mut will_do: impl FnMut(usize) -> bool,
) -> usize {
    while low < high {
        let middle = low + (high - low) / 2;
        if will_do(middle) { high = middle } else { low = middle + 1 }
    }
    high
}
