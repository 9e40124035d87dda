//! How many requests, and of what size, a drive's queue keeps in flight per direction.
//!
//! The rule: depth = rate × (1.25 × least latency + allowance) / block size. A depth above it must
//! raise the best rate by 6 %, a higher depth up to it by 2 %. A lower depth or a different block
//! size must keep 98 %. Rates are measured over rounds in which the queue was full; completions
//! bring the time, no clock is read. `docs/internals.md#depth` gives the reasons for the constants.

use forebay_base::units::KIB;

/// Initial depth of a drive, and of a spinning disk.
const DEPTH_START: usize = 32;
const DEPTH_START_DISK: usize = 1;
/// Divisor of the allowance: beyond the latency the queue holds `rate / ALLOWANCE` ns of work,
/// 1.5 ms at 200 MB/s and 7.5 ms at 1 GB/s, and at most [`DEPTH_START`] requests of the maximum
/// size.
const ALLOWANCE: u64 = 133;
/// Target time of a request: the block size is the largest power of two within that time, within
/// its limits. A size of up to twice that stays unchanged.
const HOLDS_NS: u64 = 1_000_000;
/// Smaller requests cost more processor time than they save waiting.
const SIZE_MIN: u64 = 128 * KIB;

// Rates in thousandths of the best rate.

/// Minimum for a depth above the rule's.
const GROWS: u64 = 1060;
/// Minimum for a higher depth up to the rule's.
const GAINS: u64 = 1020;
/// Minimum for a lower depth, or for a different block size.
const KEEPS: u64 = 980;
/// A higher depth with a rate below this is harmful, so half of the best depth is tried next.
const HURTS: u64 = 940;
/// A rate outside this range in [`CHANGED`] rounds in a row means that the drive's speed changed.
const SAME: (u64, u64) = (800, 1250);
const CHANGED: u32 = 2;

/// Measured time between two searches: initial and maximum.
const LOOK_NS: (u64, u64) = (4_000_000_000, 64_000_000_000);
/// The queue counts as full from this share of its bytes on: hundredths.
const FULL: u64 = 85;
/// Minimum length of a round: bytes in full-size requests, bytes in full queues, and ns.
const ROUND: (u64, u64, u64) = (64, 4, 5_000_000);
/// A shorter round for a slow drive: minimum bytes in full-size requests, minimum ns, and minimum
/// time in least latencies.
const SLOW_ROUND: (u64, u64, u64) = (8, 250_000_000, 8);

/// Bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Rate(u64);

impl Rate {
    fn of(bytes: u64, ns: u64) -> Self {
        let rate = u128::from(bytes) * 1_000_000_000 / u128::from(ns.max(1));
        Self(u64::try_from(rate).unwrap_or(u64::MAX))
    }

    fn is_at_least(self, thousandths: u64, other: Self) -> bool {
        u128::from(self.0) * 1000 >= u128::from(other.0) * u128::from(thousandths)
    }

    fn bytes_in(self, ns: u64) -> u64 {
        let bytes = u128::from(self.0) * u128::from(ns) / 1_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    fn ns_for(self, bytes: u64) -> u64 {
        let ns = u128::from(bytes) * 1_000_000_000 / u128::from(self.0.max(1));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

/// How the depth and the block size of a drive are chosen, and their bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DepthLimits {
    pub(crate) rule: DepthRule,
    /// Requests in flight at most, 1 or more.
    pub(crate) depth_max: usize,
    /// Initial and maximum block size, in bytes.
    pub(crate) size_max: u64,
}

/// What follows from a drive's kind and the options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DepthRule {
    /// Depth and block size stay at their maximum.
    Fixed,
    /// Both are tuned.
    Tuned,
    /// A spinning disk, which several or small requests slow down: the depth is tuned from 1 up,
    /// and the block size stays at its maximum.
    Disk,
}

impl DepthLimits {
    /// Always `depth` requests of `size` bytes.
    pub(crate) const fn fixed(depth: usize, size: u64) -> Self {
        Self { rule: DepthRule::Fixed, depth_max: depth, size_max: size }
    }

    fn size_of(self, rate: Rate) -> u64 {
        let size_min = match self.rule {
            DepthRule::Tuned => SIZE_MIN.min(self.size_max),
            DepthRule::Fixed | DepthRule::Disk => self.size_max,
        };
        (1 << rate.bytes_in(HOLDS_NS).max(1).ilog2()).clamp(size_min, self.size_max)
    }
}

/// A depth and a block size, and the rate measured with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Setting {
    /// Requests in flight.
    depth: usize,
    /// Bytes per request.
    size: u64,
    /// The measured rate.
    rate: Rate,
}

impl Setting {
    fn window(&self) -> u64 {
        self.size.saturating_mul(self.depth as u64)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Keeps the best setting.
    Hold,
    /// Tries a different depth; `before`: the lower depth before it, if any.
    Search { before: Option<Setting> },
}

/// Finds the depth of a drive for a direction.
#[derive(Debug, Clone)]
pub(crate) struct DepthTuner {
    limits: DepthLimits,
    depth: usize,
    size: u64,
    phase: Phase,
    /// The least setting that kept the best rate.
    best: Option<Setting>,
    /// Least latency, and the bytes of the request that had it.
    least: (u64, u64),
    /// Rounds in a row that were faster or slower than usual.
    changed: u32,
    held_ns: u64,
    look_every_ns: u64,
    round: Round,
}

impl DepthTuner {
    pub(crate) fn new(limits: DepthLimits) -> Self {
        let start = match limits.rule {
            DepthRule::Fixed => limits.depth_max,
            DepthRule::Tuned => DEPTH_START,
            DepthRule::Disk => DEPTH_START_DISK,
        };
        Self {
            limits,
            depth: start.min(limits.depth_max),
            size: limits.size_max,
            phase: Phase::Hold,
            best: None,
            least: (u64::MAX, 0),
            changed: 0,
            held_ns: 0,
            look_every_ns: LOOK_NS.0,
            round: Round::default(),
        }
    }

    /// Requests of [`block_size`](Self::block_size) to keep in flight.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// Bytes of a request.
    pub(crate) fn block_size(&self) -> u64 {
        self.size
    }

    /// Bytes of a full queue.
    pub(crate) fn window(&self) -> u64 {
        self.size.saturating_mul(self.depth as u64)
    }

    fn is_fixed(&self) -> bool {
        self.limits.rule == DepthRule::Fixed
    }

    /// Whether a further request may be submitted with `ops` requests of `len` bytes together in
    /// flight. Requests smaller than `block_size` may be more, up to the maximum depth.
    pub(crate) fn admits(&self, ops: usize, len: u64) -> bool {
        ops < self.limits.depth_max && (self.is_fixed() || len < self.window())
    }

    /// Records a completed request of `len` bytes that took `took_ns`. `in_flight_len`: bytes in
    /// flight, including these, when the queue was last filled. Requests that were reaped together
    /// have the same `now_ns`. True if the depth or the block size changed.
    pub(crate) fn completed(
        &mut self,
        now_ns: u64,
        len: u64,
        took_ns: u64,
        in_flight_len: u64,
    ) -> bool {
        if self.is_fixed() {
            return false;
        }
        let before = (self.depth, self.size);
        let ended = self.round.ended(now_ns, self.size, self.window(), self.least.0);
        if let Some((rate, ns)) = ended {
            self.measured(rate, ns);
            self.round.restart(if before == (self.depth, self.size) { 0 } else { in_flight_len });
        }
        if len >= self.size / 2 {
            self.least = self.least.min((took_ns, len));
        }
        let full = in_flight_len >= self.window().saturating_mul(FULL) / 100;
        self.round.add(now_ns, len, took_ns, full, self.window());
        before != (self.depth, self.size)
    }

    fn measured(&mut self, rate: Rate, ns: u64) {
        let here = Setting { depth: self.depth, size: self.size, rate };
        let Some(best) = self.best else { return self.search(here) };
        if let Phase::Search { before } = self.phase {
            return self.searched(here, best, before);
        }
        if !rate.is_at_least(SAME.0, best.rate) || rate.is_at_least(SAME.1, best.rate) {
            self.changed += 1;
            if self.changed >= CHANGED {
                self.look_every_ns = LOOK_NS.0;
                self.search(here);
            }
            return;
        }
        self.changed = 0;
        self.held_ns += ns;
        let best = Setting { rate: Rate(best.rate.0 - best.rate.0 / 8 + rate.0 / 8), ..best };
        self.best = Some(best);
        if self.held_ns >= self.look_every_ns {
            self.look_every_ns = self.look_every_ns.saturating_mul(2).min(LOOK_NS.1);
            self.search(best);
        }
    }

    /// Tries the next setting: if requests hardly queue, at least twice the depth; else the rule's
    /// depth if it is a third above or a quarter below the best; else the rule's block size; else
    /// twice the depth.
    fn search(&mut self, best: Setting) {
        self.hold(best);
        let needs = self.needs(best, best.size);
        let is_higher = needs.saturating_mul(3) >= best.depth * 4;
        if self.is_latency_bound(best) {
            self.attempt(needs.max(best.depth * 2), Some(best));
        } else if is_higher && best.depth < self.limits.depth_max {
            self.attempt(needs, Some(best));
        } else if !self.lower(best) {
            self.attempt(best.depth * 2, Some(best));
        }
    }

    /// Continues downwards after a shorter queue kept the rate. The least latency may include
    /// waits, so half the depth is tried if the rule itself gives nothing lower.
    fn shorten(&mut self, best: Setting) {
        self.hold(best);
        let half = best.depth / 2;
        if !self.lower(best) && half >= requests(self.allowance(best.rate), best.size) {
            self.attempt(half, None);
        }
    }

    /// Tries the depth by the rule where that is clearly lower, or else the size by the rule where
    /// it is another.
    fn lower(&mut self, best: Setting) -> bool {
        let (needs, size) = (self.needs(best, best.size), self.size_for(best));
        if needs.saturating_mul(4) <= best.depth * 3 {
            self.attempt(needs, None);
        } else if size != best.size {
            self.size = size;
            self.attempt(self.needs(best, size).min(requests(best.window(), size)), None);
        } else {
            return false;
        }
        true
    }

    /// The size by the rule, if requests hold the drive for twice as long or half as long.
    fn size_for(&self, best: Setting) -> u64 {
        let size = self.limits.size_of(best.rate);
        if size <= best.size && best.size <= 2 * size { best.size } else { size }
    }

    /// The depth by the rule, with requests of `size` bytes.
    fn needs(&self, best: Setting, size: u64) -> usize {
        let latency_ns = self.latency_ns(best.rate, size);
        let allowance = self.allowance(best.rate);
        requests(best.rate.bytes_in(latency_ns).saturating_add(allowance), size)
    }

    /// Bytes of work beyond the latency.
    fn allowance(&self, rate: Rate) -> u64 {
        let most = self.limits.size_max.saturating_mul(DEPTH_START as u64);
        rate.bytes_in(rate.0 / ALLOWANCE).min(most)
    }

    /// True if the queue holds at most a latency's worth of bytes, so that a higher depth may raise
    /// the rate.
    fn is_latency_bound(&self, best: Setting) -> bool {
        best.window() <= best.rate.bytes_in(self.latency_ns(best.rate, best.size))
    }

    /// Latency of a request of `size` bytes that waits for no other: a quarter above the least.
    fn latency_ns(&self, rate: Rate, size: u64) -> u64 {
        let (least_ns, len) = self.least;
        let least_ns = least_ns.saturating_sub(rate.ns_for(len));
        let least_ns = least_ns.saturating_add(rate.ns_for(size));
        least_ns.saturating_add(least_ns / 4)
    }

    /// Judges the tried setting, and continues from it or returns to the best.
    fn searched(&mut self, here: Setting, best: Setting, before: Option<Setting>) {
        let (known, needs) = (requests(best.window(), here.size), self.needs(best, here.size));
        let beyond = here.depth > known;
        let wants = match (beyond && here.size == best.size, here.depth > needs) {
            (true, true) => GROWS,
            (true, false) => GAINS,
            (false, _) => KEEPS,
        };
        let is_other = (here.depth, here.size) != (best.depth, best.size);
        let grows = before.is_none_or(|before| here.rate.is_at_least(GROWS, before.rate));
        if let Some(before) = before.filter(|before| grows && before.window() < here.window()) {
            // Requests did not wait for each other there: so long is the latency at least.
            self.least = self.least.max((before.rate.ns_for(before.window()), before.size));
        }
        if is_other && here.rate.is_at_least(wants, best.rate) {
            let goes_on = here.rate.is_at_least(GROWS, best.rate)
                || self.is_latency_bound(here)
                || self.size_for(here) != here.size;
            // Later attempts compare with the best rate, else every attempt might lose 2 % more.
            let kept = Setting { rate: here.rate.max(best.rate), ..here };
            if here.window() < best.window() {
                self.shorten(kept);
            } else if goes_on {
                self.search(kept);
            } else {
                self.hold(kept);
            }
        } else if !beyond && here.depth < self.limits.depth_max && grows {
            let depth = if here.depth < known { known.min(here.depth * 2) } else { here.depth * 2 };
            self.attempt(depth, Some(here));
        } else if beyond && best.depth > 1 && !here.rate.is_at_least(HURTS, best.rate) {
            self.hold(best);
            self.attempt(best.depth / 2, Some(best));
        } else {
            self.hold(best);
        }
    }

    fn hold(&mut self, best: Setting) {
        (self.depth, self.size, self.best) = (best.depth, best.size, Some(best));
        (self.phase, self.changed, self.held_ns) = (Phase::Hold, 0, 0);
    }

    fn attempt(&mut self, depth: usize, before: Option<Setting>) {
        self.depth = depth.clamp(1, self.limits.depth_max);
        let is_best =
            self.best.is_some_and(|best| (best.depth, best.size) == (self.depth, self.size));
        self.phase =
            if is_best && before == self.best { Phase::Hold } else { Phase::Search { before } };
    }
}

/// Requests of `size` bytes that hold `bytes`.
fn requests(bytes: u64, size: u64) -> usize {
    usize::try_from(bytes.div_ceil(size)).unwrap_or(usize::MAX)
}

/// Measures the rate while the queue is full. Time in which it was not full, and the turn after
/// that, are omitted. Completions arrive in clumps of a turn, so whole turns are measured.
#[derive(Debug, Clone, Default)]
struct Round {
    /// Bytes of requests from before the round, which do not count.
    settling: u64,
    /// Time of the latest completion.
    latest_ns: Option<u64>,
    bytes: u64,
    ns: u64,
    turns: u64,
}

impl Round {
    fn restart(&mut self, settling: u64) {
        *self = Self { settling, latest_ns: self.latest_ns, ..Self::default() };
    }

    /// The rate, and the time over which it was measured, if completions before `now_ns` are
    /// enough. Completions of the same moment stay together.
    fn ended(&mut self, now_ns: u64, size: u64, window: u64, least_ns: u64) -> Option<(Rate, u64)> {
        if self.latest_ns == Some(now_ns) {
            return None;
        }
        let turns = self.bytes / window;
        let whole = turns > std::mem::replace(&mut self.turns, turns);
        let (requests, turns_min, ns_min) = ROUND;
        let (few, slow_ns, latencies) = SLOW_ROUND;
        let long =
            whole && self.bytes >= (requests * size).max(turns_min * window) && self.ns >= ns_min;
        let slow =
            self.bytes >= few * size && self.ns >= slow_ns.max(least_ns.saturating_mul(latencies));
        (long || slow).then(|| (Rate::of(self.bytes, self.ns), self.ns))
    }

    /// Adds a completion; `full`: the queue was full since the latest one.
    fn add(&mut self, now_ns: u64, len: u64, took_ns: u64, full: bool, window: u64) {
        // The first round begins with the first request.
        let latest_ns = self.latest_ns.unwrap_or(now_ns.saturating_sub(took_ns));
        // Several threads may report theirs in a different order.
        let now_ns = now_ns.max(latest_ns);
        let passed_ns = now_ns - latest_ns;
        // The drive ran no request between the latest completion and the start of this one.
        let idle = passed_ns.saturating_sub(took_ns) > took_ns / 2;
        self.latest_ns = Some(now_ns);
        if !full || idle {
            self.settling = window;
        } else if self.settling > 0 {
            self.settling = self.settling.saturating_sub(len);
        } else if passed_ns > 0 || self.ns > 0 {
            self.bytes += len;
            self.ns += passed_ns;
        }
    }
}

#[cfg(test)]
mod tests;
