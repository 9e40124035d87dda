//! How long a sweep takes. Pure.
//!
//! A sample takes the requested time, or less if its bytes are moved before that, plus overhead:
//! memory, the page cache, the check of the data. The overhead is known for points that were seen,
//! first in shorter, discarded samples. For other points it is taken from the most similar one.

use std::time::Duration;

/// Upper bound of a sum of times, in seconds.
const LONGEST: f64 = 1e12;
/// How many similar samples are needed to estimate the overhead.
const ALIKE_MAX: usize = 5;
/// How many times larger or smaller they may be, as a power of two.
const SIZES_MAX: u32 = 3;

/// The properties of a point that determine its time.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Shape {
    /// The maximum time of a sample, warm-up included.
    pub(super) time: Option<Duration>,
    /// Bytes after which it is over at the latest.
    pub(super) most: Option<u64>,
    /// The number of its path, and whether the page cache has the files.
    pub(super) pages: (usize, bool),
    /// Its further properties, as numbers.
    pub(super) kind: [usize; 3],
    /// Bytes that may be in flight.
    pub(super) in_flight: u64,
}

/// The time that a sample took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Seen {
    /// Its maximum time.
    pub(super) time: Option<Duration>,
    /// Bytes that it moved.
    pub(super) bytes: u64,
    /// The time it spent moving bytes, warm-up included.
    pub(super) moving: Duration,
    /// The total time.
    pub(super) took: Duration,
}

impl Seen {
    /// The expected time of a sample of `shape`, which differs from this one in nothing else.
    fn scaled(&self, shape: &Shape) -> Duration {
        let by_time = shape.time.zip(self.time).map(|(all, seen)| ratio(all, seen));
        let by_bytes = shape.most.filter(|_| self.bytes > 0);
        let by_bytes = by_bytes.map(|most| float(most) / float(self.bytes));
        let factor = by_time.into_iter().chain(by_bytes).reduce(f64::min).unwrap_or(1.0);
        let moving = (self.moving.as_secs_f64() * factor).clamp(0.0, LONGEST);
        self.took.saturating_sub(self.moving) + Duration::from_secs_f64(moving)
    }
}

/// The distance between a point and the one whose sample estimates its time: whether they differ,
/// the number of different properties, the ratio of their sizes, and whether the sample was a
/// shorter one.
type Distance = (bool, usize, u32, bool);

/// The estimate, corrected by the samples so far.
#[derive(Debug)]
pub(super) struct Pace {
    shapes: Vec<Shape>,
    /// The points of the samples that are left, the next one last.
    left: Vec<usize>,
    /// For each point the expected time of a sample, and the distance of the point that it is based
    /// on.
    known: Vec<Option<(Distance, Duration)>>,
    /// Extra time of the first sample after another kind has changed the page cache.
    turns: Vec<((usize, bool), Duration)>,
    /// The page cache state of each path's files.
    pages: Vec<(usize, bool)>,
    /// Shorter samples, by the numbers of their points.
    tried: Vec<(usize, Seen)>,
    /// Actual time of all samples that were estimated from shorter ones, and that estimate.
    corrected: (Duration, Duration),
}

impl Pace {
    /// `todo` are the numbers of the points of all samples, in their order.
    pub(super) fn new(shapes: Vec<Shape>, mut todo: Vec<usize>) -> Self {
        todo.reverse();
        let known = vec![None; shapes.len()];
        let (turns, pages, corrected) = (Vec::new(), Vec::new(), (Duration::ZERO, Duration::ZERO));
        Self { shapes, left: todo, known, turns, pages, tried: Vec::new(), corrected }
    }

    /// The points whose shorter samples are most informative, each once: of each kind the ones with
    /// the least and the most bytes in flight, then the rest. The count says how many of the first
    /// are essential.
    pub(super) fn to_practise(&self) -> (Vec<usize>, usize) {
        let mut kinds: Vec<((usize, bool), [usize; 3])> = Vec::new();
        let (mut ends, mut others): (Vec<(usize, usize)>, Vec<usize>) = (Vec::new(), Vec::new());
        let mut is_known = vec![false; self.shapes.len()];
        for &index in self.left.iter().rev() {
            if std::mem::replace(&mut is_known[index], true) {
                continue;
            }
            others.push(index);
            let Shape { pages, kind, in_flight, .. } = self.shapes[index];
            match kinds.iter().position(|known| *known == (pages, kind)) {
                Some(number) => {
                    let (least, most) = &mut ends[number];
                    if in_flight < self.shapes[*least].in_flight {
                        *least = index;
                    } else if in_flight > self.shapes[*most].in_flight {
                        *most = index;
                    }
                }
                None => {
                    kinds.push((pages, kind));
                    ends.push((index, index));
                }
            }
        }
        let mut firsts: Vec<usize> = ends.iter().map(|(least, _)| *least).collect();
        firsts.extend(ends.iter().filter(|(least, most)| least != most).map(|(_, most)| *most));
        others.retain(|index| !firsts.contains(index));
        let must = firsts.len();
        firsts.extend(others);
        (firsts, must)
    }

    /// Whether the page cache is in the state that the point of this number leaves.
    pub(super) fn stays(&self, index: usize) -> bool {
        self.pages.contains(&self.shapes[index].pages)
    }

    /// Records that a sample of a point has brought the page cache into the required state in
    /// `time`.
    pub(super) fn turned(&mut self, index: usize, time: Option<Duration>) {
        let pages = self.shapes[index].pages;
        self.pages.retain(|(path, _)| *path != pages.0);
        self.pages.push(pages);
        if let Some(time) = time.filter(|_| self.turn(pages).is_none()) {
            self.turns.push((pages, time));
        }
    }

    fn turn(&self, pages: (usize, bool)) -> Option<Duration> {
        self.turns.iter().find(|turn| turn.0 == pages).map(|turn| turn.1)
    }

    /// Records a shorter sample of a point.
    pub(super) fn practised(&mut self, index: usize, seen: &Seen) {
        self.learn(index, seen, true);
        self.tried.push((index, *seen));
    }

    /// Call this after all shorter samples: delays that similar samples did not have are not
    /// expected again.
    pub(super) fn settle(&mut self) {
        let mut settled = self.tried.clone();
        for (index, seen) in &mut settled {
            let index = *index;
            let near = |(other, seen): &(usize, Seen)| {
                let (_, kinds, sizes, _) = self.distance(index, *other, true);
                let beside = seen.took.saturating_sub(seen.moving);
                (kinds == 0 && sizes <= SIZES_MAX).then_some((sizes, beside))
            };
            let mut alike: Vec<(u32, Duration)> = self.tried.iter().filter_map(near).collect();
            alike.sort_by_key(|(sizes, _)| *sizes);
            alike.truncate(ALIKE_MAX);
            alike.sort_by_key(|(_, beside)| *beside);
            // The median; of two the lesser.
            if let Some((_, beside)) = alike.get(alike.len().saturating_sub(1) / 2) {
                seen.took = seen.moving.saturating_add(*beside);
                self.learn(index, seen, true);
            }
        }
        self.interpolate(&settled);
    }

    /// The overhead grows with the bytes in flight: a point between two tried ones gets an
    /// interpolated value.
    fn interpolate(&mut self, settled: &[(usize, Seen)]) {
        for index in 0..self.shapes.len() {
            let Some((distance, _)) = self.known[index] else { continue };
            if !distance.0 || distance.1 > 0 || !distance.3 {
                continue;
            }
            let at = self.shapes[index].in_flight;
            let alike =
                settled.iter().filter(|(other, _)| self.distance(index, *other, true).1 == 0);
            let alike = alike.map(|(other, seen)| (self.shapes[*other].in_flight, *seen));
            let (below, above): (Vec<_>, Vec<_>) = alike.partition(|(other, _)| *other <= at);
            let least = below.into_iter().max_by_key(|(other, _)| *other);
            let most = above.into_iter().min_by_key(|(other, _)| *other);
            let Some(((low, small), (high, large))) = least.zip(most) else { continue };
            let part = float(at - low) / float(high - low);
            let beside = |seen: Seen| seen.took.saturating_sub(seen.moving).as_secs_f64();
            let beside = beside(small) * (1.0 - part) + beside(large) * part;
            let beside = Duration::from_secs_f64(beside.clamp(0.0, LONGEST));
            let near = if high / at.max(1) < at / low.max(1) { large } else { small };
            let seen = Seen { took: near.moving.saturating_add(beside), ..near };
            self.known[index] = Some((distance, seen.scaled(&self.shapes[index])));
        }
    }

    /// Records that a sample of a point failed after `took`.
    pub(super) fn fails(&mut self, index: usize, took: Duration) {
        // Other points need not share the reason for its failure.
        self.known[index] = Some(((false, 0, 0, true), took));
    }

    /// Records the next sample; without `moved` it failed.
    pub(super) fn took(&mut self, moved: Option<Seen>, took: Duration) {
        let Some(index) = self.left.pop() else { return };
        let turn = if self.stays(index) { None } else { self.turn(self.shapes[index].pages) };
        self.turned(index, None);
        let turn = turn.unwrap_or_default();
        let took = took.saturating_sub(turn);
        let told = self.known[index].filter(|(distance, _)| !distance.0 && distance.3);
        if let Some((_, told)) = told.filter(|_| moved.is_some()) {
            self.corrected.0 = self.corrected.0.saturating_add(took);
            self.corrected.1 = self.corrected.1.saturating_add(told);
        }
        match moved {
            Some(seen) => {
                let moving = seen.moving.min(took);
                self.learn(index, &Seen { moving, took, ..seen }, false);
            }
            None => self.fails(index, took),
        }
    }

    fn learn(&mut self, of: usize, seen: &Seen, is_short: bool) {
        for index in 0..self.shapes.len() {
            let distance = self.distance(index, of, is_short);
            let (shape, known) = (&self.shapes[index], &mut self.known[index]);
            if known.is_none_or(|(known, _)| distance <= known) {
                *known = Some((distance, seen.scaled(shape)));
            }
        }
    }

    fn distance(&self, one: usize, other: usize, is_short: bool) -> Distance {
        let (a, b) = (&self.shapes[one], &self.shapes[other]);
        let differ = a.kind.iter().zip(&b.kind).filter(|(a, b)| a != b).count();
        // The page cache state matters more than everything else.
        let cache = if a.pages.1 == b.pages.1 { 0 } else { a.kind.len() + 2 };
        let differ = differ + usize::from(a.pages.0 != b.pages.0) + cache;
        let size = |shape: &Shape| shape.in_flight.max(1).ilog2();
        (one != other, differ, size(a).abs_diff(size(b)), is_short)
    }

    /// The remaining time; `None` if there is no estimate.
    pub(super) fn left(&self) -> Option<Duration> {
        let (seen, told) = self.corrected;
        let factor = if told.is_zero() { 1.0 } else { ratio(seen, told).clamp(0.5, 2.0) };
        let (mut sum, mut pages) = (Duration::ZERO, self.pages.clone());
        for &index in self.left.iter().rev() {
            let shape = &self.shapes[index];
            let time = match self.known[index] {
                Some((distance, time)) if distance.3 => time.mul_f64(factor),
                Some((_, time)) => time,
                None => shape.time?,
            };
            sum = sum.saturating_add(time);
            if !pages.contains(&shape.pages) {
                pages.retain(|(path, _)| *path != shape.pages.0);
                pages.push(shape.pages);
                sum = sum.saturating_add(self.turn(shape.pages).unwrap_or_default());
            }
        }
        Some(sum)
    }

    /// The remaining time, in words.
    pub(super) fn left_words(&self) -> String {
        self.left().map_or_else(|| "some time".into(), words)
    }

    /// The announcement.
    pub(super) fn words(&self) -> String {
        self.left()
            .map_or_else(|| "as long as their bytes take".into(), |t| format!("about {}", words(t)))
    }
}

fn ratio(all: Duration, part: Duration) -> f64 {
    all.as_secs_f64() / part.as_secs_f64().max(1e-9)
}

#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn float(bytes: u64) -> f64 {
    bytes as f64
}

/// A duration in words.
pub(super) fn words(time: Duration) -> String {
    if time < Duration::from_millis(9950) {
        return format!("{:.1} s", time.as_secs_f64());
    }
    let seconds = time.as_secs() + u64::from(time.subsec_millis() >= 500);
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn shape(time: Option<Duration>, most: Option<u64>) -> Shape {
        Shape { time, most, pages: (0, false), kind: [0, 0, 100], in_flight: 1 << 20 }
    }

    /// A shorter sample that took `beside` longer than planned.
    fn short(beside: Duration) -> Seen {
        let time = SECOND / 10;
        Seen { time: Some(time), bytes: 1 << 20, moving: time, took: time + beside }
    }

    fn whole(time: Duration, beside: Duration) -> Seen {
        Seen { time: Some(time), bytes: 1 << 20, moving: time, took: time + beside }
    }

    #[test]
    fn it_is_announced_with_what_samples_take_beside_their_time() {
        let shapes = vec![shape(Some(2 * SECOND), None); 25];
        let todo: Vec<usize> = (0..75).map(|number| number % 25).collect();
        let mut pace = Pace::new(shapes, todo);
        assert_eq!(pace.words(), "about 2 min 30 s", "the requested time, before any sample");
        pace.practised(0, &short(SECOND / 10));
        assert_eq!(pace.left(), Some(Duration::from_millis(157_500)));
        assert_eq!(pace.words(), "about 2 min 38 s");
        pace.took(Some(whole(2 * SECOND, 3 * SECOND / 10)), Duration::from_millis(2300));
        let expected = Duration::from_millis(2300) * 74;
        let left = pace.left().unwrap();
        assert!(left.abs_diff(expected) < SECOND / 100, "samples count: {left:?}");
    }

    #[test]
    fn what_is_over_before_its_time_is_announced_so() {
        // A tenth of a second moves 1 MiB, and there are 4.
        let shapes = vec![shape(Some(2 * SECOND), Some(4 << 20))];
        let mut pace = Pace::new(shapes, vec![0; 3]);
        pace.practised(0, &short(SECOND / 10));
        assert_eq!(pace.left(), Some(3 * SECOND / 2), "0.4 s and 0.1 s of overhead, three times");
        // 100 MiB dominate the time.
        let mut pace = Pace::new(vec![shape(Some(2 * SECOND), Some(100 << 20))], vec![0]);
        pace.practised(0, &short(SECOND / 10));
        assert_eq!(pace.left(), Some(2 * SECOND + SECOND / 10));
    }

    #[test]
    fn what_bytes_decide_is_learned() {
        let shapes = vec![shape(None, Some(1 << 30)), shape(None, Some(2 << 30))];
        let mut pace = Pace::new(shapes, vec![0, 1, 0]);
        assert_eq!((pace.left(), pace.words().as_str()), (None, "as long as their bytes take"));
        assert_eq!(pace.left_words(), "some time");
        let seen = |bytes, seconds| Seen {
            time: None,
            bytes,
            moving: seconds * SECOND,
            took: seconds * SECOND,
        };
        pace.took(Some(seen(1 << 30, 5)), 5 * SECOND);
        assert_eq!(pace.left(), Some(15 * SECOND), "twice the bytes, and the first again");
        pace.took(Some(seen(2 << 30, 6)), 6 * SECOND);
        assert_eq!(pace.left_words(), "5.0 s");
        pace.took(Some(seen(1 << 30, 5)), 5 * SECOND);
        assert_eq!(pace.left(), Some(Duration::ZERO));
    }

    #[test]
    fn the_nearest_that_was_seen_speaks_for_a_point() {
        let of = |kind: [usize; 3], resident: bool, in_flight: u64| Shape {
            pages: (0, resident),
            kind,
            in_flight,
            ..shape(Some(SECOND), None)
        };
        let shapes = vec![
            of([0, 0, 100], false, 1 << 12),
            of([0, 0, 100], false, 1 << 29),
            of([0, 1, 100], true, 1 << 12),
            of([0, 0, 100], false, 1 << 13),
            of([0, 0, 100], false, 1 << 28),
            of([0, 0, 100], true, 1 << 12),
        ];
        let mut pace = Pace::new(shapes, vec![0, 1, 2, 3, 4, 5]);
        let practised = (vec![0, 2, 5, 1, 3, 4], 4);
        assert_eq!(pace.to_practise(), practised, "of each kind least and most first");
        pace.practised(2, &short(3 * SECOND));
        pace.practised(0, &short(SECOND));
        pace.practised(1, &short(2 * SECOND));
        let beside: Vec<u64> =
            pace.known.iter().map(|known| known.unwrap().1.as_secs() - 1).collect();
        assert_eq!(beside, [1, 2, 3, 1, 2, 3]);
    }

    #[test]
    fn what_is_needed_beside_grows_with_the_bytes_in_flight() {
        let of = |in_flight: u64| Shape { in_flight, ..shape(Some(SECOND), None) };
        // The smallest and the largest are tried, in any order.
        let shapes = vec![of(64 << 20), of(1 << 16), of(512 << 20), of(256 << 20)];
        let mut pace = Pace::new(shapes, vec![0, 1, 2, 3]);
        let (order, must) = pace.to_practise();
        assert_eq!((&order[..must], order.len()), (&[1, 2][..], 4));
        pace.practised(1, &short(Duration::ZERO));
        pace.practised(2, &short(8 * SECOND));
        pace.settle();
        let beside = |index: usize| pace.known[index].unwrap().1.as_secs_f64() - 1.0;
        for (index, expected) in [(1, 0.0), (0, 1.0), (3, 4.0), (2, 8.0)] {
            assert!((beside(index) - expected).abs() < 0.01, "{index}: {}", beside(index));
        }
    }

    #[test]
    fn what_one_was_held_up_by_is_not_expected_of_it_again() {
        let of = |in_flight: u64| Shape { in_flight, ..shape(Some(SECOND), None) };
        let mut pace =
            Pace::new(vec![of(1 << 12), of(1 << 12), of(1 << 13), of(1 << 29)], vec![0, 3]);
        for (index, beside) in [(0, 3), (1, 1), (2, 1), (3, 5)] {
            pace.practised(index, &short(beside * SECOND));
        }
        assert_eq!(pace.left(), Some(10 * SECOND));
        pace.settle();
        assert_eq!(pace.left(), Some(8 * SECOND), "the overhead of a large one stays");
    }

    #[test]
    fn what_fails_at_once_takes_no_time_and_speaks_for_itself_alone() {
        let mut pace = Pace::new(vec![shape(Some(2 * SECOND), None); 2], vec![0, 1, 0, 1]);
        pace.practised(1, &short(Duration::ZERO));
        pace.fails(0, Duration::ZERO);
        assert_eq!(pace.left(), Some(4 * SECOND));
        pace.took(None, Duration::ZERO);
        assert_eq!(pace.left(), Some(4 * SECOND));
        pace.took(None, SECOND);
        assert_eq!(pace.left(), Some(SECOND));
    }

    #[test]
    fn to_bring_files_elsewhere_is_paid_by_those_that_come_first() {
        let of = |resident| Shape { pages: (0, resident), ..shape(Some(SECOND), None) };
        let mut pace = Pace::new(vec![of(false), of(true)], vec![0, 0, 1, 1, 1, 0]);
        for index in [0, 1] {
            assert!(!pace.stays(index));
            pace.turned(index, (index == 1).then_some(SECOND / 2));
            pace.practised(index, &short(Duration::ZERO));
            assert!(pace.stays(index));
        }
        assert_eq!(pace.left(), Some(6 * SECOND + SECOND / 2), "once from cold to resident");
        for _ in 0..2 {
            pace.took(Some(whole(SECOND, Duration::ZERO)), SECOND);
        }
        assert_eq!(pace.left(), Some(4 * SECOND + SECOND / 2));
        pace.took(Some(whole(SECOND, SECOND / 2)), SECOND + SECOND / 2);
        assert_eq!(pace.left(), Some(3 * SECOND), "its delay is not expected of the others");
    }

    #[test]
    fn times_are_said_as_people_do() {
        let all = [
            (4.26, "4.3 s"),
            (9.94, "9.9 s"),
            (9.96, "10 s"),
            (59.0, "59 s"),
            (60.0, "1 min 0 s"),
            (7384.0, "2 h 3 min"),
        ];
        for (seconds, text) in all {
            assert_eq!(words(Duration::from_secs_f64(seconds)), text);
        }
    }

    proptest! {
        #[test]
        fn whatever_is_seen_something_is_left(
            times in prop::collection::vec((0..u64::MAX, 0..u64::MAX, 0..u64::MAX), 1..5),
            most in prop::option::of(any::<u64>()),
            bytes: u64,
        ) {
            let ns = Duration::from_nanos;
            let shapes = times.iter().map(|times| shape(Some(ns(times.0)), most)).collect();
            let mut pace = Pace::new(shapes, (0..times.len()).collect());
            for (index, (time, moving, took)) in times.iter().enumerate() {
                let (moving, took) = (ns(*moving), ns(*took));
                let seen = Seen { time: Some(ns(*time)), bytes, moving, took };
                pace.practised(index, &seen);
                prop_assert!(pace.left().is_some());
            }
            for (_, moving, took) in &times {
                let seen = Seen { time: None, bytes, moving: ns(*moving), took: ns(*took) };
                pace.took(Some(seen), ns(*took));
                prop_assert!(!pace.left_words().is_empty());
            }
            prop_assert_eq!(pace.left(), Some(Duration::ZERO));
        }
    }
}
