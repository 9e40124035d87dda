//! From axes to points: pure.

use std::collections::HashSet;
use std::time::Duration;

use forebay::Route;
use forebay::units::format_size;
use serde_json::{Value, json};

use super::targets::Together;
use crate::args::SweepArgs;
use crate::args::sweep::{WayName, direction_name};
use crate::bench::demand::check_requests;
use crate::failure::{Failure, Result};
use crate::report::json::Cache;
use crate::results::Point;
use crate::variables;
use crate::workload::issuer::Way;
use crate::workload::pattern::Pattern;
use crate::workload::{End, Load};

/// Points of one sweep at most: at 2 s and three times each, a week.
const POINTS_MAX: usize = 100_000;
const TIME: Duration = Duration::from_secs(2);
const REPEATS: u32 = 3;
const REQUEST_SIZES: [u64; 4] = [4 << 10, 64 << 10, 1 << 20, 16 << 20];
const DEPTHS: [u32; 2] = [1, 32];

/// One point of a sweep, with the parameters that its name leaves out.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Planned {
    pub(super) point: Point,
    /// The number of its path.
    pub(super) path: usize,
    /// The number of its targets.
    pub(super) targets: usize,
    pub(super) load: Load,
}

impl Planned {
    /// Minimum size of its files: each thread keeps `depth` calls in flight, in its own part.
    pub(super) fn needs(&self) -> u64 {
        let threads = u64::from(self.point.threads) * self.point.targets.len() as u64;
        let calls = u64::from(self.load.depth).saturating_mul(self.load.call_len());
        threads.saturating_mul(calls)
    }

    /// The maximum time of one sample; `None` if it depends on its bytes.
    pub(super) fn time(&self) -> Option<Duration> {
        match self.load.end {
            End::Time(time) => {
                Some(time.saturating_mul(self.load.spans()).saturating_add(self.load.warm_up))
            }
            End::Bytes(_) => None,
        }
    }
}

/// A request size with the order of requests.
struct Requests {
    size: u64,
    pattern: Pattern,
    name: String,
}

/// All points: each combination of the axes' values, the first axis outermost. `targets` are the
/// names of the targets that work at the same time, for each value of that axis.
///
/// # Errors
/// There are too many.
pub(super) fn points(
    args: &SweepArgs,
    paths: &[String],
    targets: &[Vec<String>],
) -> Result<Vec<Planned>> {
    let or = |given: &[u32], usual: &[u32]| if given.is_empty() { usual } else { given }.to_vec();
    let (depths, batches) = (or(&args.depth, &DEPTHS), or(&args.batch, &[1]));
    let (threads, files) = (or(&args.threads, &[1]), or(&args.files, &[1]));
    let caches = if args.cache.is_empty() { vec![Cache::Cold] } else { args.cache.clone() };
    let directions = if args.direction.is_empty() { vec![100] } else { args.direction.clone() };
    let (requests, ways) = (requests(args), ways(args));
    let queues: Vec<Option<u32>> = match args.io_queues.as_slice() {
        [] => vec![None],
        numbers => numbers.iter().copied().map(Some).collect(),
    };
    let axes =
        [queues.len(), paths.len(), targets.len(), ways.len(), caches.len(), directions.len()];
    let more = [requests.len(), depths.len(), batches.len(), threads.len(), files.len()];
    let count = axes.iter().chain(&more).fold(1, |all: usize, axis| all.saturating_mul(*axis));
    if count > POINTS_MAX {
        return Err(Failure::usage(format!("{count} points are too many for one sweep"))
            .hint(format!("give fewer values: the limit is {POINTS_MAX} points")));
    }
    let mut planned = Vec::with_capacity(count);
    let mut known = HashSet::new();
    for index in 0..count {
        // Each axis is a digit of the point's number, the last the fastest.
        let mut rest = index;
        let mut digit = |of: usize| {
            let value = rest % of;
            rest /= of;
            value
        };
        let files = files[digit(files.len())];
        let threads = threads[digit(threads.len())];
        let batch = batches[digit(batches.len())];
        let depth = depths[digit(depths.len())];
        let request = &requests[digit(requests.len())];
        let read_percent = directions[digit(directions.len())];
        let cache = caches[digit(caches.len())];
        let way = ways[digit(ways.len())];
        let target = digit(targets.len());
        let path = digit(paths.len());
        // Outermost: changing the number takes longest.
        let queues = queues[digit(queues.len())];
        let depth = way.depth().unwrap_or(depth);
        let places = way.places().unwrap_or(depth);
        let load = load(args, way, request, (read_percent, places, batch, cache));
        check(&load)?;
        let point = Point {
            path: paths[path].clone(),
            targets: targets[target].clone(),
            way: way.name().into(),
            route: way.route().map(|route| route.name().into()),
            read_percent,
            pattern: request.name.clone(),
            request_size: request.size,
            depth,
            batch,
            threads,
            files,
            cache: Some(cache),
            queues,
        };
        if known.insert(point.clone()) {
            planned.push(Planned { point, path, targets: target, load });
        }
    }
    Ok(planned)
}

/// The seed of a repeat: repeats read at different offsets, and the same sweep reads at the same
/// ones again.
pub(super) const fn seed_of(seed: u64, repeat: u32) -> u64 {
    seed.wrapping_add((repeat as u64).wrapping_mul(0xD1B5_4A32_D192_ED03))
}

/// Refuses points whose requests do not fit in memory, including the staging memory of GPU
/// transfers.
///
/// # Errors
/// They need too much; the hint says which setting to lower.
pub(super) fn check_memory(planned: &[Planned], targets: &[Together]) -> Result<()> {
    for Planned { point, load, targets: target, .. } in planned {
        let devices = &targets[*target];
        let copies: u64 = devices.iter().map(|device| 1 + u64::from(device.is_some())).sum();
        let calls = u64::from(load.depth).saturating_mul(point.threads.into());
        let bytes = load.call_len().saturating_mul(calls).saturating_mul(copies);
        let parts = [
            ("`--depth`", u64::from(point.depth)),
            ("`--threads`", point.threads.into()),
            ("`--batch`", point.batch.into()),
        ];
        let parts = parts.iter().filter(|(_, count)| *count > 1);
        let parts: String = parts.map(|(flag, count)| format!(", {flag} (here {count})")).collect();
        let size = format_size(point.request_size);
        check_requests(bytes, &format!("lower `--request-size` (here {size}){parts}"))?;
    }
    Ok(())
}

/// Bytes of one call at most.
const CALL_MAX: u64 = 1 << 40;

fn check(load: &Load) -> Result<()> {
    if load.call_len() <= CALL_MAX {
        return Ok(());
    }
    let (size, batch) = (format_size(load.request_size), load.batch);
    Err(Failure::usage(format!("a call of {batch} × {size} is too large"))
        .hint(format!("the limit is {}", format_size(CALL_MAX))))
}

fn load(
    args: &SweepArgs,
    way: Way,
    request: &Requests,
    (read_percent, depth, batch, cache): (u8, u32, u32, Cache),
) -> Load {
    // Pages that a warm-up leaves in the page cache would be written back, or hit, in the measured
    // span.
    let once = cache == Cache::Cold && (read_percent < 100 || is_cached(way));
    Load {
        way,
        read_percent,
        pattern: request.pattern,
        request_size: request.size,
        depth,
        batch,
        cache,
        warm_up: if once { Duration::ZERO } else { warm_up(args) },
        end: end(args),
        until_steady: args.until_steady,
        once,
        rate: args.rate,
        seed: args.seed.unwrap_or(1),
    }
}

fn end(args: &SweepArgs) -> End {
    args.bytes.map_or_else(|| End::Time(args.time.unwrap_or(TIME)), End::Bytes)
}

/// The warm-up of all points that may have one.
fn warm_up(args: &SweepArgs) -> Duration {
    args.warm_up.unwrap_or(match end(args) {
        End::Time(time) => time / 10,
        End::Bytes(_) => Duration::ZERO,
    })
}

/// Whether all bytes of a method go through the page cache.
fn is_cached(way: Way) -> bool {
    match way {
        Way::Forebay(route) => route == Some(Route::Cached),
        Way::Plain(plain) => !plain.is_direct(),
    }
}

fn requests(args: &SweepArgs) -> Vec<Requests> {
    if !args.kv.is_empty() {
        let kv = args.kv.iter().map(|kv| Requests {
            size: kv.request_size(),
            pattern: Pattern::Random,
            name: kv.to_string(),
        });
        return kv.collect();
    }
    let patterns = match args.pattern.as_slice() {
        [] => &[Pattern::Sequential],
        patterns => patterns,
    };
    let sizes = match args.request_size.as_slice() {
        [] => &REQUEST_SIZES[..],
        sizes => sizes,
    };
    let each = patterns.iter().flat_map(|&pattern| {
        sizes.iter().map(move |&size| Requests { size, pattern, name: pattern.to_string() })
    });
    each.collect()
}

/// The methods; the engine once for each required route.
fn ways(args: &SweepArgs) -> Vec<Way> {
    let names = match args.way.as_slice() {
        [] => &[WayName::Forebay],
        names => names,
    };
    let routes: Vec<Option<Route>> = match args.route.as_slice() {
        [] => vec![None],
        routes => routes.iter().map(|demand| demand.0).collect(),
    };
    let of = |name: &WayName| match name {
        WayName::Forebay => routes.iter().map(|route| Way::Forebay(*route)).collect(),
        WayName::Plain(plain) => vec![Way::Plain(*plain)],
    };
    names.iter().flat_map(of).collect()
}

/// How often each point is measured.
pub(super) fn repeats(args: &SweepArgs) -> u32 {
    args.repeats.unwrap_or(REPEATS)
}

/// The arguments, by which parts of the same sweep are recognized. `places` are canonical paths,
/// `targets` identify each GPU.
pub(super) fn asked(
    args: &SweepArgs,
    planned: &[Planned],
    places: &[String],
    targets: &[String],
) -> Value {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let points: Vec<&Point> = planned.iter().map(|planned| &planned.point).collect();
    let seconds = |time: Duration| time.as_secs_f64();
    json!({
        "points": points,
        "host": host,
        "places": places,
        "targets": targets,
        "label": args.label,
        "repeats": repeats(args),
        // Another version, or other limits, would measure something else.
        "version": env!("CARGO_PKG_VERSION"),
        "variables": variables::set(),
        "power_command": args.power_command,
        "time_s": match end(args) {
            End::Time(time) => Some(seconds(time)),
            End::Bytes(_) => None,
        },
        "bytes": args.bytes,
        "warm_up_s": seconds(warm_up(args)),
        "size": args.size,
        "rate": args.rate,
        "seed": args.seed.unwrap_or(1),
    })
}

/// A point in a few words: the values that vary between points.
pub(super) fn name(point: &Point) -> String {
    use crate::workload::pattern::exact_size;
    let route = point.route.as_ref().map_or_else(String::new, |route| format!(" by `{route}`"));
    let mut words = vec![
        format!("{} {}", point.way, direction_name(point.read_percent)) + &route,
        point.cache.map_or("any cache", Cache::name).into(),
        format!("{} {}", point.pattern, exact_size(point.request_size)),
        format!("depth {}", point.depth),
    ];
    let more = [("batch", point.batch), ("threads", point.threads), ("files", point.files)];
    words.extend(more.iter().filter(|(_, n)| *n > 1).map(|(name, n)| format!("{name} {n}")));
    words.push(point.targets.join("+"));
    words.extend(point.queues.map(|queues| format!("queues {queues}")));
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one() -> (Vec<String>, Vec<Vec<String>>) {
        (vec!["/data".into()], vec![vec!["host".into()]])
    }

    #[test]
    fn every_value_meets_every_other_once() {
        let args = SweepArgs {
            request_size: vec![4096, 65536],
            depth: vec![1, 2, 4],
            direction: vec![100, 0],
            ..SweepArgs::default()
        };
        let (paths, targets) = one();
        let planned = points(&args, &paths, &targets).unwrap();
        assert_eq!(planned.len(), 12);
        let depths: Vec<u32> = planned.iter().map(|planned| planned.point.depth).collect();
        assert_eq!(depths[..6], [1, 2, 4, 1, 2, 4], "the last axis is the fastest");
        assert_eq!(planned[0].point.read_percent, 100);
        assert_eq!(planned[11].point.read_percent, 0);
        let mut names: Vec<String> = planned.iter().map(|one| name(&one.point)).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 12);
    }

    #[test]
    fn queues_are_outermost_and_each_number_has_all_points() {
        let args = SweepArgs {
            request_size: vec![4096, 65536],
            depth: vec![1, 2],
            io_queues: vec![7, 1, 7],
            ..SweepArgs::default()
        };
        let (paths, targets) = one();
        let planned = points(&args, &paths, &targets).unwrap();
        let queues: Vec<u32> = planned.iter().map(|one| one.point.queues.unwrap()).collect();
        assert_eq!(queues, [7, 7, 7, 7, 1, 1, 1, 1], "a number that is named twice counts once");
        assert!(name(&planned[0].point).ends_with("host, queues 7"));
        // Without them, files have the same form as before this option existed.
        let plain = points(&SweepArgs::default(), &paths, &targets).unwrap();
        let text = serde_json::to_string(&plain[0].point).unwrap();
        assert!(!text.contains("queues"), "{text}");
    }

    #[test]
    fn most_plain_ways_have_one_depth() {
        use crate::workload::issuer::Plain;
        let args = SweepArgs {
            request_size: vec![4096],
            depth: vec![1, 8],
            way: [Plain::CpuGpu, Plain::Uring].map(WayName::Plain).into(),
            ..SweepArgs::default()
        };
        let (paths, targets) = one();
        let planned = points(&args, &paths, &targets).unwrap();
        let told: Vec<_> = planned.iter().map(|p| (p.point.way.as_str(), p.point.depth)).collect();
        assert_eq!(told, [("cpu-gpu", 1), ("io-uring", 1), ("io-uring", 8)]);
    }

    /// A method that copies during the next request has memory for two requests, and is compared
    /// with the others at their depth.
    #[test]
    fn plain_ways_are_compared_at_one_depth() {
        use crate::report::compare::{By, compare};
        use crate::report::made::{self, Sweep};
        use crate::report::model::Axis;
        use crate::report::model::gather::tests::model_of;
        use crate::workload::issuer::Plain;
        let args = SweepArgs {
            request_size: vec![4096, 65536],
            depth: vec![1],
            way: [Plain::CpuGpu, Plain::CpuAsyncGpu].map(WayName::Plain).into(),
            ..SweepArgs::default()
        };
        let (paths, targets) = one();
        let planned = points(&args, &paths, &targets).unwrap();
        let places: Vec<u32> = planned.iter().map(|one| one.load.depth).collect();
        assert_eq!(places, [1, 1, 2, 2]);
        let sweep = Sweep { request_sizes: vec![4096], depths: vec![1], ..Sweep::default() };
        let mut records = vec![made::run(&sweep)];
        for one in &planned {
            records.extend(made::samples(&sweep).into_iter().map(|mut sample| {
                sample["point"] = json!(one.point);
                sample
            }));
        }
        let model = model_of(&[("a", &made::text(&records))]);
        let found = compare(&model, &[], By::Axis(Axis::Method), Some("cpu-gpu")).unwrap();
        assert_eq!((found[0].other.as_str(), found[0].pairs.len()), ("cpu-async-gpu", 2));
        assert!(found[0].alone.is_empty() && found[0].axes.is_empty(), "{found:?}");
    }

    #[test]
    fn what_goes_through_the_page_cache_goes_there_once() {
        use crate::workload::issuer::Plain;
        let args = SweepArgs {
            request_size: vec![4096],
            depth: vec![1],
            way: vec![WayName::Forebay, WayName::Plain(Plain::CpuCachedGpu)],
            direction: vec![100, 0],
            cache: vec![Cache::Cold, Cache::Resident],
            ..SweepArgs::default()
        };
        let (paths, targets) = one();
        for planned in points(&args, &paths, &targets).unwrap() {
            let (point, load) = (&planned.point, &planned.load);
            let through = point.read_percent == 0 || point.way == "cpu-cached-gpu";
            assert_eq!(load.once, point.cache == Some(Cache::Cold) && through, "{point:?}");
            assert_eq!(load.warm_up.is_zero(), load.once, "{point:?}");
        }
    }

    #[test]
    fn absurd_sweeps_are_refused() {
        let many: Vec<u32> = (1..=400).collect();
        let args = SweepArgs { depth: many.clone(), threads: many, ..SweepArgs::default() };
        let (paths, targets) = one();
        let failure = points(&args, &paths, &targets).unwrap_err();
        assert!(failure.usage && failure.message.starts_with("640000 points"), "{failure:?}");
        let args = SweepArgs { request_size: vec![u64::MAX], ..SweepArgs::default() };
        let failure = points(&args, &paths, &targets).unwrap_err();
        assert!(failure.usage && failure.message.contains("too large"), "{failure:?}");
    }

    #[test]
    fn what_was_asked_tells_sweeps_apart() {
        let (paths, targets) = one();
        let asked_of =
            |args: &SweepArgs| asked(args, &points(args, &paths, &targets).unwrap(), &paths, &[]);
        let usual = asked_of(&SweepArgs::default());
        assert_eq!(usual, asked_of(&SweepArgs { json: true, ..SweepArgs::default() }));
        for other in [
            SweepArgs { repeats: Some(5), ..SweepArgs::default() },
            SweepArgs { time: Some(Duration::from_secs(1)), ..SweepArgs::default() },
            SweepArgs { seed: Some(2), ..SweepArgs::default() },
            SweepArgs { batch: vec![4], ..SweepArgs::default() },
            SweepArgs { label: Some("after".into()), ..SweepArgs::default() },
            SweepArgs { warm_up: Some(Duration::ZERO), ..SweepArgs::default() },
            SweepArgs { power_command: Some("true".into()), ..SweepArgs::default() },
        ] {
            assert_ne!(usual, asked_of(&other), "{other:?}");
        }
        let args = SweepArgs::default();
        let planned = points(&args, &paths, &targets).unwrap();
        assert_ne!(usual, asked(&args, &planned, &["/elsewhere".into()], &[]));
        assert_ne!(usual, asked(&args, &planned, &paths, &["GPU-2".into()]));
    }

    /// A file is only recognized as part of the same sweep if all digits of a time are preserved.
    #[test]
    fn what_was_asked_is_the_same_after_it_was_read_back() {
        let (paths, targets) = one();
        for ms in (1..3000).chain([14_230, 86_399_999]) {
            let time = Some(Duration::from_millis(ms));
            let rate = time.map(|time| 1e3 / time.as_secs_f64());
            let args = SweepArgs { time, rate, request_size: vec![4096], ..SweepArgs::default() };
            let planned = points(&args, &paths, &targets).unwrap();
            let asked = asked(&args, &planned, &paths, &[]);
            let back: Value = serde_json::from_str(&asked.to_string()).unwrap();
            assert_eq!(back, asked, "{ms} ms");
        }
    }
}
