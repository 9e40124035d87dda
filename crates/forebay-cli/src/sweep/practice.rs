//! Preparation before the first kept sample: scratch, and shorter samples that estimate the total
//! time.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use forebay::units::format_size;
use indicatif::ProgressBar;

use super::pace::{Pace, Seen, Shape, words};
use super::plan::Planned;
use super::{Sweep, TICK, cold, tell};
use crate::failure::Result;
use crate::log;
use crate::report::json::Cache;
use crate::results::Measured;
use crate::workload::End;

/// Length of a discarded sample.
const PRACTICE: Duration = Duration::from_millis(100);
/// The share of the total bytes and time that such samples may use.
const PART: u32 = 20;
/// Times below this are not distinguished.
const SOON: Duration = Duration::from_secs(1);

impl Sweep<'_> {
    /// Makes scratch, if needed.
    pub(super) fn make_scratch(&self, todo: &[(usize, u32)]) -> Result<()> {
        let all: u64 = self.places.iter().map(super::files::Place::scratch_len).sum();
        if all == 0 {
            return Ok(());
        }
        let size = format_size(all);
        let times = todo.iter().map(|(index, _)| self.planned[*index].time());
        let least = times.sum::<Option<Duration>>().filter(|least| *least > SOON);
        let then = least.map_or_else(String::new, |least| {
            format!("; the samples then take {} at most, and their overhead", words(least))
        });
        tell(&format!("making {size} of scratch first{then}"));
        let bar = spinner();
        bar.set_message(format!("making {size} of scratch"));
        let mut done = 0;
        for place in &self.places {
            let (start, before) = (Instant::now(), done);
            place.make(&mut |len| {
                // Each path has its own speed.
                let is_first = done == before;
                done += len;
                let left = per_byte(start.elapsed(), done - before, all - done);
                bar.set_message(format!("making {size} of scratch, {} left", words(left)));
                if is_first && left > SOON {
                    bar.suspend(|| tell(&format!("scratch takes another {}", words(left))));
                }
            })?;
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Takes short samples that are discarded: they start what the engine starts with its first
    /// transfer, and show how long samples take.
    ///
    /// # Errors
    /// The results file cannot be written.
    pub(super) fn practise(&mut self, todo: &[(usize, u32)]) -> Result<Pace> {
        let started = self.start(todo)?;
        let mut ways = Vec::new();
        let shapes = self.planned.iter().map(|planned| self.shape(planned, &mut ways)).collect();
        let mut pace = Pace::new(shapes, todo.iter().map(|(index, _)| *index).collect());
        // If the first number of queues cannot be set, nothing can be tried out.
        if self.places.is_empty() {
            pace.settle();
            return Ok(pace);
        }
        started.into_iter().for_each(|index| pace.turned(index, None));
        let bar = spinner();
        bar.set_message("estimating how long samples take");
        let start = Instant::now();
        let (order, must) = pace.to_practise();
        for (number, index) in order.into_iter().enumerate() {
            let stays = pace.stays(index);
            let mut seen = self.try_out(&self.planned[index]);
            if !stays {
                // The page cache is brought into the required state only occasionally.
                let first = seen;
                seen = self.try_out(&self.planned[index]);
                let turn = first.ok().zip(seen.ok()).map(|(a, b)| a.took.saturating_sub(b.took));
                pace.turned(index, turn);
            }
            match seen {
                Ok(seen) => pace.practised(index, &seen),
                Err(took) if took < PRACTICE => pace.fails(index, took),
                // There was too little time for it.
                Err(_) => {}
            }
            // Large requests have much more overhead than small ones, so both are measured.
            let may_end = number + 1 >= must;
            if may_end && pace.left().is_some_and(|left| start.elapsed() > left / PART) {
                break;
            }
        }
        bar.finish_and_clear();
        pace.settle();
        Ok(pace)
    }

    /// Makes a first call to every target and by every method of cold reads, with as few points as
    /// possible; returns the points' numbers.
    fn start(&mut self, todo: &[(usize, u32)]) -> Result<Vec<usize>> {
        if self.places.is_empty() {
            return Ok(Vec::new());
        }
        let names: Vec<Vec<String>> = todo.iter().map(|(index, _)| self.names(*index)).collect();
        let all = todo.iter().zip(&names).map(|((index, _), names)| (*index, names.as_slice()));
        let first = to_start(all);
        for &index in &first {
            let mut one = self.planned[index].clone();
            (one.load.warm_up, one.load.end) = (Duration::ZERO, End::Bytes(1));
            let bar = spinner();
            bar.set_message("making a first call of each method");
            // The sample itself will report its errors.
            let measured = self.measure(&one);
            bar.finish_and_clear();
            if let Ok(measured) = measured {
                self.goes_once(index, &measured)?;
            }
        }
        Ok(first)
    }

    /// The things that a point's first call uses for the first time: its targets, and for files
    /// that should stay cold, the reads of a path by one method.
    fn names(&self, index: usize) -> Vec<String> {
        let planned = &self.planned[index];
        let mut names = planned.point.targets.clone();
        if cold::is_to_stay_cold(planned) {
            names.push(format!("{}: {:?}", planned.path, planned.load.way));
        }
        names
    }

    /// A short sample; a failed one returns how long that took.
    fn try_out(&self, planned: &Planned) -> Result<Seen, Duration> {
        let mut short = planned.clone();
        (short.load.warm_up, short.load.until_steady) = (Duration::ZERO, None);
        short.load.end = match short.load.end {
            End::Time(time) => End::Time(time.min(PRACTICE)),
            End::Bytes(bytes) => End::Bytes((bytes / u64::from(PART)).max(1)),
        };
        let start = Instant::now();
        // The sample itself will report its errors.
        let measured = self.measure(&short);
        let took = start.elapsed();
        measured.map(|measured| seen(&short, &measured, took)).map_err(|_| took)
    }

    fn shape(&self, planned: &Planned, ways: &mut Vec<(String, Option<String>)>) -> Shape {
        let (point, load) = (&planned.point, &planned.load);
        let place = self.places.get(planned.path);
        let lanes = place.and_then(|p| p.lanes(planned, &self.targets[planned.targets]).ok());
        let most = lanes.and_then(|lanes| {
            let calls = lanes.iter().map(|lane| load.calls(lane.region));
            Some(calls.sum::<Option<u64>>()?.saturating_mul(load.call_len()))
        });
        let way = (point.way.clone(), point.route.clone());
        let number = ways.iter().position(|known| *known == way).unwrap_or_else(|| {
            ways.push(way);
            ways.len() - 1
        });
        Shape {
            time: planned.time(),
            most,
            pages: (planned.path, point.cache == Some(Cache::Resident)),
            kind: [planned.targets, number, usize::from(point.read_percent)],
            in_flight: planned.needs(),
        }
    }
}

/// The numbers of points whose transfers together reach every target (or other name) at least once;
/// points that cover most new names come first. The engine's first transfer to a target includes
/// setup, which no sample should measure.
fn to_start<'a>(all: impl Iterator<Item = (usize, &'a [String])>) -> Vec<usize> {
    let mut groups: Vec<(usize, &[String])> = Vec::new();
    for (index, names) in all {
        if groups.iter().all(|(_, known)| *known != names) {
            groups.push((index, names));
        }
    }
    // The sort is stable: of equal ones the first is taken.
    groups.sort_by_key(|(_, names)| std::cmp::Reverse(names.len()));
    let mut reached: HashSet<&String> = HashSet::new();
    groups.retain(|(_, names)| {
        let before = reached.len();
        reached.extend(names.iter());
        reached.len() > before
    });
    groups.into_iter().map(|(index, _)| index).collect()
}

/// The estimate for other samples from one that took this long.
pub(super) fn seen(planned: &Planned, measured: &Measured, took: Duration) -> Seen {
    let span = measured.seconds.and_then(|s| Duration::try_from_secs_f64(s).ok()).unwrap_or(took);
    let before = measured.steady.as_ref().map_or(0, |steady| steady.before);
    let span = span.saturating_mul(before.saturating_add(1));
    let moving = span.saturating_add(planned.load.warm_up).min(took);
    Seen { time: planned.time(), bytes: measured.bytes.unwrap_or(0), moving, took }
}

/// The time for `left` bytes if `done` took `time`.
fn per_byte(time: Duration, done: u64, left: u64) -> Duration {
    let ns = time.as_nanos() * u128::from(left) / u128::from(done.max(1));
    Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
}

pub(super) fn spinner() -> ProgressBar {
    let bar = if log::is_on() { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
    bar.enable_steady_tick(TICK);
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_reaches_every_target_before_the_first_sample() {
        let start = |groups: &[&[&str]]| {
            let named: Vec<Vec<String>> = groups
                .iter()
                .map(|names| names.iter().map(|name| (*name).to_owned()).collect())
                .collect();
            to_start(named.iter().enumerate().map(|(index, names)| (index, names.as_slice())))
        };
        let added: [&[&str]; 3] = [&["sim:0"], &["sim:0", "sim:1"], &["sim:0", "sim:1", "sim:2"]];
        assert_eq!(start(&added), [2], "the last of those that are added has all");
        assert_eq!(start(&[&["a"], &["b"], &["a"], &["b"]]), [0, 1]);
        assert_eq!(start(&[&["a", "b"], &["b", "c"], &["a", "c"]]), [0, 1]);
        assert_eq!(start(&[]), [0_usize; 0]);
    }
}
