//! Which limit binds a point. Pure.

use forebay::Route;
use forebay_measure::parallel::cores;
use forebay_measure::results::{Bound, Measured, Point};
use forebay_measure::results::{Cache, Direction, Limit, Record};
use forebay_measure::stats::float;
use forebay_measure::workload::backend::Method;

use super::{highest, rate};
use crate::bench::plan::Planned;

/// From this share of the requested rate on, the requested rate binds.
const NEAR_REQUESTED: f64 = 0.95;

/// The directions of a load.
fn directions(read_percent: u8) -> impl Iterator<Item = Direction> {
    let read = (read_percent > 0).then_some(Direction::Read);
    let write = (read_percent < 100).then_some(Direction::Write);
    read.into_iter().chain(write)
}

/// The limit of a point. It is the requested rate if that was reached, else the lowest limit on its
/// path if the rate comes near it. Else it is the processors if all are busy, else the requests in
/// flight.
#[must_use]
pub(in crate::bench) fn bound(
    planned: &Planned,
    (measured, read_percent): (&Measured, u8),
    records: &[Record],
) -> Option<Bound> {
    let point = &Point { read_percent, ..planned.point.clone() };
    let method = planned.load.method;
    let past = match method {
        Method::Forebay(route) => matches!(route, Some(Route::Staged | Route::Direct)),
        Method::Plain(plain) => plain.is_direct(),
        Method::CuFile(_) | Method::Link => false,
    };
    let drive = point.cache == Some(Cache::Cold) || past;
    let on_way = directions(point.read_percent).flat_map(|direction| {
        let links = links(planned, direction, records);
        let storage = rate(records, "storage", &point.path, direction).filter(|_| drive);
        // A direction's part is limited by its own rate, scaled up to the whole.
        let whole = 1.0 / point.part(direction);
        let all = links.into_iter().chain(storage.map(|rate| ("storage", rate)));
        all.map(move |(name, rate)| (name, rate * whole))
    });
    let on_way: Vec<(&str, f64)> = on_way.collect();
    let lowest = on_way.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1));
    let share = lowest.map(|(_, limit)| measured.bytes_per_second / limit.max(1.0));
    let busy = measured.cpu.is_some_and(|cpu| cpu.cores >= 0.9 * float(cores() as u64));
    let requested = planned.load.rate.zip(measured.requests_per_second);
    // The rate of a drive under mixed reads and writes was not measured.
    let is_mixed = !matches!(point.read_percent, 0 | 100);
    let knows_storage = !is_mixed && on_way.iter().any(|(name, _)| *name == "storage");
    let (name, advice) = match (lowest, share) {
        _ if requested.is_some_and(|(rate, had)| had >= NEAR_REQUESTED * rate) => ("rate", None),
        (_, Some(share)) if share > Bound::ABOVE => ("unknown", None),
        (Some((name, _)), Some(share)) if share >= Bound::NEAR => (name, None),
        _ if busy => ("processors", Some("all cores were busy: larger blocks cost less")),
        // The drive may be at its limit for this mixture.
        _ if drive && is_mixed && lowest.is_some() => ("unknown", None),
        _ if drive && !knows_storage => return None,
        _ => ("in-flight", Some("larger blocks, more depth or more threads may help")),
    };
    Some(Bound {
        name: name.into(),
        bytes_per_second: lowest.map(|(_, limit)| limit),
        share,
        advice: advice.map(Into::into),
    })
}

/// The rate of the links of a point's targets in a direction, and the link that binds.
fn links(
    planned: &Planned,
    direction: Direction,
    records: &[Record],
) -> Option<(&'static str, f64)> {
    let (point, method) = (&planned.point, planned.load.method);
    if matches!(method, Method::Plain(plain) if plain.stays_in_host()) {
        return None;
    }
    // Links of several GPUs add up, unless a shared part binds. Bytes on the direct route from a
    // drive may bypass that part.
    let all = point.targets.join("+");
    let name = |limit: &Limit| match limit.name.as_str() {
        "uplink" => "uplink",
        "shared" => "shared",
        _ => "link",
    };
    let shared = highest(records, "link", &all, direction);
    let shared = shared.filter(|_| method != Method::Forebay(Some(Route::Direct)));
    let of = |target: &String| rate(records, "link", target, direction);
    let sum = || point.targets.iter().map(of).sum::<Option<f64>>();
    shared
        .map(|limit| (name(limit), limit.bytes_per_second))
        .or_else(|| sum().map(|rate| ("link", rate)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::args::BenchArgs;
    use crate::bench::plan::{Axes, Caches, Found, points};

    fn axes(read_percent: u8) -> Axes {
        Axes {
            paths: vec!["/data".into()],
            targets: vec![vec!["sim:0".into()]],
            directions: vec![read_percent],
            found: Found {
                methods: vec![Method::Forebay(None)],
                caches: vec![Caches { cold: true, warm: true, synced: true }],
                ..Found::default()
            },
        }
    }

    fn limit(name: &str, direction: Direction, rate: f64) -> Record {
        let of = if name == "storage" { "/data" } else { "sim:0" };
        let (name, of, direction) = (name.into(), of.into(), Some(direction));
        let limit = Limit { name, of, direction, bytes_per_second: rate, ..Limit::default() };
        Record::Limit(limit)
    }

    /// The bound of warm bytes at this rate, with this share of reads.
    fn bound_of_warm(read_percent: u8, requested: Option<f64>, rate: f64) -> Bound {
        let args = BenchArgs {
            direction: vec![read_percent],
            cache: vec![Cache::Warm],
            block_size: vec![1 << 20],
            depth: vec![1],
            rate: requested,
            ..BenchArgs::default()
        };
        let planned = points(&args, &axes(read_percent)).unwrap();
        let requests_per_second = Some(rate / 1e6);
        let measured =
            Measured { bytes_per_second: rate, requests_per_second, ..Measured::default() };
        let limits = [limit("link", Direction::Read, 10e9), limit("link", Direction::Write, 8e9)];
        bound(&planned[0], (&measured, planned[0].point.read_percent), &limits).unwrap()
    }

    #[test]
    fn the_highest_limit_of_several_gpus_gives_its_name() {
        let limit = |name: &str, rate| match limit("link", Direction::Read, rate) {
            Record::Limit(limit) => Record::Limit(Limit { name: name.into(), ..limit }),
            other => other,
        };
        let records = [limit("uplink", 1.42e9), limit("links", 1.72e9), limit("shared", 1.5e9)];
        let found = highest(&records, "link", "sim:0", Direction::Read).unwrap();
        assert_eq!(
            (found.name.as_str(), rate(&records, "uplink", "sim:0", Direction::Read)),
            ("links", Some(1.72e9))
        );
        assert_eq!(rate(&records, "storage", "sim:0", Direction::Read), None);
        assert_eq!(rate(&records, "link", "sim:0", Direction::Write), None);
    }

    #[test]
    fn each_direction_of_a_mixed_load_has_its_own_limit() {
        for (read_percent, most) in [(100, 10e9), (0, 8e9), (50, 16e9), (80, 12.5e9), (20, 10e9)] {
            let full = bound_of_warm(read_percent, None, 0.97 * most);
            assert_eq!(full.name, "link", "{read_percent}: {full:?}");
            assert!((full.share.unwrap() - 0.97).abs() < 1e-9, "{read_percent}: {full:?}");
            assert!((full.bytes_per_second.unwrap() / most - 1.0).abs() < 1e-9, "{full:?}");
            assert_eq!(bound_of_warm(read_percent, None, 0.5 * most).name, "in-flight");
        }
    }

    /// The bound of such bytes at this rate, if links and storage were measured.
    fn bound_of(cache: Cache, read_percent: u8, rate: f64) -> Option<Bound> {
        let args = BenchArgs {
            direction: vec![read_percent],
            cache: vec![cache],
            block_size: vec![1 << 20],
            depth: vec![1],
            ..BenchArgs::default()
        };
        let planned = points(&args, &axes(read_percent)).unwrap();
        let measured = Measured { bytes_per_second: rate, ..Measured::default() };
        let limits = [Direction::Read, Direction::Write].into_iter().flat_map(|direction| {
            [limit("link", direction, 10e9), limit("storage", direction, 2e9)]
        });
        bound(&planned[0], (&measured, planned[0].point.read_percent), &limits.collect::<Vec<_>>())
    }

    #[test]
    fn storage_binds_only_what_is_not_in_the_page_cache() {
        let name =
            |cache, read_percent, rate| bound_of(cache, read_percent, rate).map(|bound| bound.name);
        assert_eq!(name(Cache::Warm, 100, 9.9e9).as_deref(), Some("link"));
        assert_eq!(name(Cache::Warm, 0, 9.9e9).as_deref(), Some("link"));
        for read_percent in [0, 100] {
            assert_eq!(name(Cache::Cold, read_percent, 1.9e9).as_deref(), Some("storage"));
            assert_eq!(name(Cache::Cold, read_percent, 1e9).as_deref(), Some("in-flight"));
        }
        // The rate of a drive under mixed load was not measured.
        assert_eq!(name(Cache::Cold, 50, 3.9e9).as_deref(), Some("storage"));
        assert_eq!(name(Cache::Cold, 50, 8e9).as_deref(), Some("unknown"));
        assert_eq!(name(Cache::Cold, 50, 1e9).as_deref(), Some("unknown"));
    }

    #[test]
    fn a_point_at_the_requested_rate_is_bound_by_it() {
        let at_rate = bound_of_warm(100, Some(1000.0), 0.96e9);
        assert_eq!((at_rate.name.as_str(), at_rate.advice), ("rate", None));
        let less = bound_of_warm(100, Some(1000.0), 0.9e9);
        assert_eq!(less.name, "in-flight");
        assert!(less.advice.is_some());
        assert_eq!(bound_of_warm(100, Some(20_000.0), 9.9e9).name, "link");
    }
}
