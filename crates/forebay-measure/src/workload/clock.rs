//! The clock of a load: decides when the counted span begins and ends, and reads the counters at
//! its edges and at those of its parts.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::worker::{Counter, Phase};
use super::{End, Load, steady};
use crate::cpu;
use crate::results::Steady;
use crate::stats::{float, rate};

/// Number of parts of a span by which its steadiness is judged, and the shortest one.
const PARTS: u32 = 20;
const PART_MIN: Duration = Duration::from_millis(50);

/// The counts that the clock saw at an edge.
#[derive(Debug, Clone)]
pub(super) struct Edge {
    pub(super) at: Instant,
    pub(super) bytes: Vec<u64>,
    pub(super) requests: u64,
    pub(super) user: Duration,
    pub(super) system: Duration,
}

impl Edge {
    pub(super) fn now(counters: &[Arc<Counter>]) -> Self {
        let (user, system) = cpu::used_apart();
        let at = Instant::now();
        let counts = counters.iter().map(|counter| counter.read());
        let (bytes, requests): (Vec<u64>, Vec<u64>) = counts.unzip();
        Self { at, bytes, requests: requests.iter().sum(), user, system }
    }

    pub(super) fn sum(&self) -> u64 {
        self.bytes.iter().sum()
    }
}

/// The span that counts: its edges, including those of its parts; never empty.
pub(super) struct Span(Vec<Edge>);

impl Span {
    pub(super) fn first(&self) -> &Edge {
        &self.0[0]
    }

    pub(super) fn last(&self) -> &Edge {
        &self.0[self.0.len() - 1]
    }

    /// Whether its rate was steady.
    pub(super) fn steady(&self) -> Option<Steady> {
        let parts = self.0.windows(2).map(|pair| {
            let span = pair[1].at.saturating_duration_since(pair[0].at).as_secs_f64();
            (rate(pair[1].sum() - pair[0].sum(), span), span)
        });
        // The last part may be very short: it ends when the threads' end is noticed.
        let parts: Vec<(f64, f64)> = parts.filter(|(_, span)| *span > 0.0).collect();
        let usual =
            parts.iter().map(|(_, span)| span).sum::<f64>() / float(parts.len().max(1) as u64);
        let whole = parts.iter().filter(|(_, span)| *span > usual / 2.0);
        let rates: Vec<f64> = whole.map(|(rate, _)| *rate).collect();
        steady::judge(&rates, usual)
    }
}

/// Reads the counters at the edges of the span and of its parts, and signals its begin and end. If
/// the `first` edge is given, the span has already begun.
pub(super) fn keep_time(
    load: &Load,
    phase: &Phase,
    counters: &[Arc<Counter>],
    (start, first): (Instant, Option<Edge>),
    done: &dyn Fn() -> bool,
) -> Span {
    let first = first.unwrap_or_else(|| {
        sleep_until(start + load.warm_up, done);
        phase.count();
        Edge::now(counters)
    });
    let span = match load.end {
        End::Time(span) => Some(span),
        End::Bytes(_) | End::AtLeast(_) => None,
    };
    let from = first.at;
    let mut edges = vec![first];
    let mut part = span.map_or(PART_MIN, |span| (span / PARTS).max(PART_MIN));
    let mut next = from + part;
    while !done() && span.is_none_or(|span| edges[edges.len() - 1].at < from + span) {
        sleep_until(span.map_or(next, |span| next.min(from + span)), done);
        next += part;
        edges.push(Edge::now(counters));
        if matches!(load.end, End::AtLeast(least) if from.elapsed() >= least) {
            phase.stop();
        }
        // Limits the number of parts of a run without a time limit.
        if span.is_none() && edges.len() > 1000 {
            let last = edges.pop();
            edges = edges.into_iter().step_by(2).chain(last).collect();
            part *= 2;
        }
    }
    phase.stop();
    if done() {
        // Threads may have ended since the last check.
        edges.push(Edge::now(counters));
    }
    Span(edges)
}

fn sleep_until(until: Instant, done: &dyn Fn() -> bool) {
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        if done() {
            return;
        }
        // Every thread that ends wakes this one.
        thread::park_timeout(left);
    }
}
