//! The tables for people: only the axes that vary, and numbers of three digits.

use super::{Cell, Column, Grid};
use crate::report::digest::{Axis, Digest, Line, Metric, digits, rate_text, ratio};
use crate::results::summary::Estimate;

/// The quantities for human readers; the rest are in the full table.
const METRICS: [Metric; 21] = [
    Metric::Rate,
    Metric::Requests,
    Metric::Mean,
    Metric::P50,
    Metric::P90,
    Metric::P99,
    Metric::P999,
    Metric::Slowest,
    Metric::CpuPerGb,
    Metric::CpuUserShare,
    Metric::CpuSystemShare,
    Metric::GpuWatts,
    Metric::GpuJoules,
    Metric::PackageWatts,
    Metric::PackageJoules,
    Metric::DramWatts,
    Metric::DramJoules,
    Metric::PlatformWatts,
    Metric::PlatformJoules,
    Metric::ServerWatts,
    Metric::ServerJoules,
];

/// Shown instead of a verdict for imported results.
const NOT_PROVED: &str = "not proved (imported)";

/// A row for each line, `most` at most.
#[must_use]
pub fn results(digest: &Digest, most: usize) -> Grid {
    let mut axes = digest.varying();
    // A table needs names for its rows.
    for axis in [Axis::Direction, Axis::Way] {
        if !axes.contains(&axis) {
            axes.insert(0, axis);
        }
    }
    axes.sort();
    let has = |metric: &Metric| {
        let of = |line: &Line, metric: Metric| line.metric(metric).is_some();
        // A mean is less informative than its components.
        let counts = |line: &&Line| *metric != Metric::Mean || !of(line, Metric::P50);
        digest.lines.iter().filter(counts).any(|line| of(line, *metric))
    };
    let metrics: Vec<Metric> = METRICS.into_iter().filter(has).collect();
    let mut columns: Vec<Column> = axes
        .iter()
        .map(|axis| Column {
            key: axis.key(),
            heading: axis.name().into(),
            number: Axis::NUMBERS.contains(axis) && *axis != Axis::Run,
        })
        .collect();
    columns.extend(metrics.iter().map(|metric| Column::number(metric.key(), heading(*metric))));
    columns.extend([
        Column::number("slope", "steady"),
        Column::number("share_of_limit", "of limit, %"),
        Column::text("limit", "bound by"),
        Column::text("verified", "data"),
        Column::text("route", "route"),
        Column::text("verdict", "verdict"),
        Column::text("error", "failure"),
    ]);
    let row = |line: &Line| {
        let mut cells: Vec<Cell> = axes.iter().map(|axis| mark(line, *axis)).collect();
        cells.extend(metrics.iter().map(|metric| quantity(*metric, line.metric(*metric))));
        cells.push(steady(line));
        cells.extend(ending(line));
        cells
    };
    let rows: Vec<Vec<Cell>> = digest.lines.iter().take(most).map(row).collect();
    let left_out = digest.lines.len() - rows.len();
    Grid { caption: "Results".into(), columns, rows, left_out }.without_empty()
}

/// A metric with its unit.
#[must_use]
pub fn heading(metric: Metric) -> String {
    match metric.unit() {
        "" => metric.name().into(),
        unit => format!("{}, {unit}", metric.name()),
    }
}

fn mark(line: &Line, axis: Axis) -> Cell {
    match line.marks.get(&axis) {
        Some(mark) => Cell { text: mark.text.clone(), number: mark.number },
        None => Cell::empty(),
    }
}

/// A median and its interval.
fn quantity(metric: Metric, estimate: Option<Estimate>) -> Cell {
    let is_number = |value: f64| (value * metric.scale()).is_finite();
    let is_shown = |estimate: &Estimate| is_number(estimate.min) && is_number(estimate.max);
    let Some(estimate) = estimate.filter(is_shown) else { return Cell::empty() };
    let shown = |value: f64| digits(value * metric.scale());
    let text = match estimate.interval {
        Some((low, high)) if metric == Metric::Rate => {
            format!("{} ({}–{})", shown(estimate.median), shown(low), shown(high))
        }
        _ => shown(estimate.median),
    };
    Cell::number(estimate.median, text)
}

/// Whether all rates of a point were steady, and how much they rose or fell.
fn steady(line: &Line) -> Cell {
    if line.judged == 0 {
        return Cell::empty();
    }
    let slope = line.metric(Metric::Slope).map(|slope| slope.median);
    // Adding 0.0 turns a negative zero into zero.
    let percent = |slope: f64| (slope * 1000.0).round() / 10.0 + 0.0;
    let slope = slope.filter(|slope| percent(*slope).is_finite());
    let told = slope.map_or_else(String::new, |slope| format!(", {:+.1} %", percent(slope)));
    let word = if line.unsteady == 0 { "yes" } else { "no" };
    Cell { text: format!("{word}{told}"), number: slope }
}

/// The columns after the quantities.
fn ending(line: &Line) -> [Cell; 6] {
    let text = |text: Option<&str>| Cell::text(text.unwrap_or_default());
    let route = match (&line.route, line.simulated) {
        (Some(route), true) => format!("{route} (simulated)"),
        (None, true) => "(simulated)".into(),
        (route, false) => route.clone().unwrap_or_default(),
    };
    let not_proved = (line.imported.is_some() && line.rate().is_some()).then_some(NOT_PROVED);
    [
        line.share().map_or_else(Cell::empty, |share| Cell::number(share, digits(share * 100.0))),
        text(line.bound_by()),
        Cell::text(line.data()),
        Cell::text(route),
        text(line.verdict.as_deref().or(not_proved)),
        text(line.error.as_deref()),
    ]
}

/// The limits, and the share of each that was reached by the lines that it may bind.
#[must_use]
pub fn ceilings(digest: &Digest, most: usize) -> Grid {
    let columns = vec![
        Column::text("run", "run"),
        Column::text("name", "limit"),
        Column::text("of", "of"),
        Column::text("direction", "direction"),
        Column::text("theory", "found by"),
        Column::number("bytes_per_second", "GB/s"),
        Column::number("reached", "reached, %"),
        Column::number("theory_bytes_per_second", "theory, GB/s"),
        Column::number("of_theory", "of theory, %"),
        Column::text("limits", "what limits it"),
        Column::text("shared_by", "shared by"),
        Column::text("how", "how"),
    ];
    let rows: Vec<Vec<Cell>> = digest
        .ceilings
        .iter()
        .take(most)
        .map(|bound| {
            let run = digest.runs.get(bound.run).map_or("", |run| &run.name);
            let several = digest.runs.len() > 1;
            let share = reached_share(digest, bound);
            let theory = bound.in_theory.filter(|_| !bound.theory);
            vec![
                Cell::text(if several { run } else { "" }),
                Cell::text(&bound.name),
                Cell::text(&bound.of),
                Cell::text(bound.direction.map_or("", |direction| direction.name())),
                Cell::text(if bound.theory { "theory" } else { "measured" }),
                Cell::number(bound.rate, digits(bound.rate * 1e-9)),
                percent(share),
                theory.map_or_else(Cell::empty, |rate| Cell::number(rate, digits(rate * 1e-9))),
                percent(bound.of_theory()),
                Cell::text(bound.limits.as_deref().unwrap_or_default()),
                Cell::text(bound.shared_by.join(", ")),
                Cell::text(&bound.how),
            ]
        })
        .collect();
    let left_out = digest.ceilings.len() - rows.len();
    Grid { caption: "Limits".into(), columns, rows, left_out }.without_empty()
}

/// A share in hundredths.
fn percent(share: Option<f64>) -> Cell {
    share.map_or_else(Cell::empty, |share| Cell::number(share, digits(share * 100.0)))
}

/// The rate of [`reached`] as a share of the bound's rate.
#[must_use]
pub fn reached_share(digest: &Digest, bound: &crate::report::digest::Bound) -> Option<f64> {
    reached(digest, bound).and_then(|rate| ratio(rate, bound.rate))
}

/// The best rate of the bound's run in its direction, on its path or its GPU. Lines with wrong data
/// do not count, nor do warm lines if the bound is a drive or a network.
#[must_use]
pub fn reached(digest: &Digest, bound: &crate::report::digest::Bound) -> Option<f64> {
    let of_memory =
        matches!(bound.name.as_str(), "link" | "links" | "uplink" | "shared" | "memory");
    let fits = |line: &&Line| {
        let direction = bound.direction.map(|direction| direction.name());
        line.run == bound.run
            && (direction.is_none() || line.mark(Axis::Direction) == direction)
            && (of_memory || line.mark(Axis::Cache) != Some("resident"))
            && line.verified != Some(false)
            && match bound.name.as_str() {
                "storage" | "fio" => line.mark(Axis::Path).is_none_or(|path| path == bound.of),
                "link" => bound.of == "host" || !line.stays_in_host(),
                _ => true,
            }
    };
    if bound.rate.is_nan() || bound.rate <= 0.0 {
        return None;
    }
    let lines = digest.lines.iter().filter(fits);
    // With several GPUs, each has only its part, and shared parts have the sum.
    let rates = lines.filter_map(|line| {
        if matches!(bound.name.as_str(), "links" | "uplink" | "shared") {
            let is_one = bound.shared_by.iter().any(|of| line.mark(Axis::Target) == Some(of));
            let own = line.targets.iter().filter(|share| bound.shared_by.contains(&share.target));
            return if is_one { line.rate() } else { Some(own.map(|own| own.rate.median).sum()) };
        }
        if bound.name != "link" || line.mark(Axis::Target) == Some(&bound.of) {
            return line.rate();
        }
        let own = line.targets.iter().find(|share| share.target == bound.of);
        own.map(|own| own.rate.median)
    });
    rates.max_by(f64::total_cmp).filter(|rate| *rate > 0.0)
}

/// With several targets: the share of each.
#[must_use]
pub fn targets(digest: &Digest, most: usize) -> Grid {
    let mut columns = vec![Column::text("point", "point"), Column::text("target", "target")];
    columns.extend([
        Column::number("bytes_per_second", "throughput, GB/s"),
        Column::number("first_done_s", "first done, s"),
        Column::number("last_done_s", "last done, s"),
    ]);
    let axes = digest.varying();
    let name = |line: &Line| {
        let marks = axes.iter().filter_map(|axis| line.mark(*axis));
        marks.collect::<Vec<_>>().join(", ")
    };
    let rows =
        digest.lines.iter().flat_map(|line| line.targets.iter().map(move |share| (line, share)));
    let all = rows.clone().count();
    let rows: Vec<Vec<Cell>> = rows
        .take(most)
        .map(|(line, share)| {
            let seconds =
                |estimate: Estimate| Cell::number(estimate.median, digits(estimate.median));
            vec![
                Cell::text(name(line)),
                Cell::text(&share.target),
                quantity(Metric::Rate, Some(share.rate)),
                seconds(share.first_done),
                seconds(share.last_done),
            ]
        })
        .collect();
    let left_out = all - rows.len();
    Grid { caption: "Each target".into(), columns, rows, left_out }.without_empty()
}

/// A line's name for bars: its values on the varying axes.
#[must_use]
pub fn label(digest: &Digest, line: &Line) -> String {
    let mut axes = digest.varying();
    // The path is the longest, so it goes last, where a name is cut.
    axes.sort_by_key(|axis| *axis == Axis::Path);
    let marks: Vec<&str> = axes.iter().filter_map(|axis| line.mark(*axis)).collect();
    match marks.as_slice() {
        [] => line.mark(Axis::Way).unwrap_or("all").to_owned(),
        marks => marks.join(", "),
    }
}

/// The rate of a line and its share of the limit, in words.
#[must_use]
pub fn value(line: &Line) -> String {
    let Some(rate) = line.rate() else { return "failed".into() };
    match line.share() {
        Some(share) => format!("{}, {} %", rate_text(rate), digits(share * 100.0)),
        None => rate_text(rate),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::digest::gather::tests::digest_of;
    use crate::report::made::{self, Sweep};

    fn keys(grid: &Grid) -> Vec<&str> {
        grid.columns.iter().map(|column| column.key.as_str()).collect()
    }

    #[test]
    fn only_what_varies_and_what_is_there_has_a_column() {
        let digest = digest_of(&[("a", &made::file(&Sweep::default()))]);
        let grid = results(&digest, 4);
        let keys = keys(&grid);
        assert_eq!(keys[..4], ["way", "direction", "request_size", "depth"]);
        assert!(!keys.contains(&"error") && keys.contains(&"verdict"), "{keys:?}");
        assert_eq!((grid.rows.len(), grid.left_out), (4, 11));
        assert!(grid.rows.iter().all(|row| row.len() == grid.columns.len()));
        let failed = digest_of(&[("a", &made::file(&Sweep { fails: 2, ..Sweep::default() }))]);
        assert!(self::keys(&results(&failed, 99)).contains(&"error"));
    }

    #[test]
    fn latencies_and_processors_have_columns() {
        let sweep = Sweep { request_sizes: vec![4096], depths: vec![1], ..Sweep::default() };
        let mut records = vec![made::run(&sweep)];
        records.extend(made::samples(&sweep));
        for record in &mut records[1..] {
            let ns = [("p50", 1000), ("p90", 2000), ("p99", 3000), ("p99_9", 4000), ("max", 9000)];
            for (key, ns) in ns {
                record["measured"]["latency"][format!("{key}_ns")] = ns.into();
            }
        }
        let digest = digest_of(&[("a", &made::text(&records))]);
        let grid = results(&digest, 9);
        let told = |heading: &str| {
            let place = grid.columns.iter().position(|column| column.heading == heading);
            grid.rows[0][place.unwrap_or_else(|| panic!("no `{heading}`"))].text.clone()
        };
        let latencies = ["p50", "p90", "p99", "p99.9", "max"];
        let latencies = latencies.map(|name| told(&format!("{name} latency, µs")));
        assert_eq!(latencies, ["1.00", "2.00", "3.00", "4.00", "9.00"]);
        // 0.1 s and 0.2 s of 2 s.
        let shares = ["CPU user, % of a core", "CPU system, % of a core"].map(told);
        assert_eq!(shares, ["5.00", "10.0"]);
    }

    #[test]
    fn power_and_how_steady_rates_were_have_columns_where_they_were_told() {
        let sweep = Sweep { request_sizes: vec![4096], repeats: 1, ..Sweep::default() };
        let mut records = vec![made::run(&sweep)];
        records.extend(made::samples(&sweep));
        let of = |records: &[serde_json::Value]| {
            let grid = results(&digest_of(&[("a", &made::text(records))]), 9);
            let told = ["slope", "watts", "joules"];
            let is_told =
                |(_, column): &(usize, &Column)| told.iter().any(|word| column.key.contains(word));
            let kept: Vec<_> = grid.columns.iter().enumerate().filter(is_told).collect();
            let texts = |row: &Vec<Cell>| -> Vec<String> {
                kept.iter().map(|(at, _)| row[*at].text.clone()).collect()
            };
            let heads: Vec<String> = kept.iter().map(|(_, one)| one.heading.clone()).collect();
            (heads, grid.rows.iter().map(texts).collect::<Vec<_>>())
        };
        let (heads, rows) = of(&records);
        assert_eq!(heads, ["GPU energy, J/GB", "steady"]);
        assert_eq!(rows[0], ["20.5", "yes, +0.0 %"]);
        records[1]["measured"]["power"] = serde_json::json!({"seconds": 2.0,
            "sources": [{"part": "server", "joules": 1300.0}]});
        let steady = |slope: f64| serde_json::json!({"slope": slope, "reached": false});
        for (record, slope) in records[1..].iter_mut().zip([0.12, -0.07]) {
            let told = &mut record["measured"]["steady"];
            let (rates, part_s) = (told["rates"].clone(), told["part_s"].clone());
            *told = steady(slope);
            (told["rates"], told["part_s"], told["deviation"]) = (rates, part_s, 0.into());
        }
        let (heads, rows) = of(&records);
        assert_eq!(heads, ["GPU energy, J/GB", "server power, W", "steady"]);
        assert_eq!(rows[0], ["20.5", "650", "no, +12.0 %"]);
        assert_eq!((rows[1][1].as_str(), rows[1][2].as_str()), ("", "no, -7.0 %"));
        assert_eq!(rows[2][2], "yes, +0.0 %");
        for record in records.iter_mut().filter(|record| record["record"] == "sample") {
            record["measured"]["steady"] = serde_json::Value::Null;
        }
        assert!(!of(&records).0.contains(&"steady".to_owned()), "no sample was judged");
    }

    #[test]
    fn ceilings_tell_how_much_was_reached() {
        let digest = digest_of(&[("a", &made::file(&Sweep::default()))]);
        let grid = ceilings(&digest, 9);
        assert_eq!(keys(&grid)[..3], ["name", "of", "direction"]);
        let best = digest.lines.iter().filter_map(Line::rate).max_by(f64::total_cmp).unwrap();
        assert_eq!(grid.rows[1][5].number, Some(best / 7e9));
        assert_eq!(grid.rows[2][3].text, "theory");
    }

    #[test]
    fn a_ceiling_is_held_against_its_own_path_and_gpu_alone() {
        let near = Sweep::default();
        let far = Sweep {
            path: "/far/file".into(),
            targets: vec!["cuda:1"],
            ways: vec!["cpu-gpu"],
            ..Sweep::default()
        };
        let mut records = vec![made::run(&near)];
        for sweep in [&near, &far] {
            records.push(made::ceiling("link", sweep.targets[0], false, 25e9));
            records.push(made::ceiling("storage", &sweep.path, false, 7e9));
            records.extend(made::samples(sweep));
        }
        records.push(made::ceiling("link", "cuda:2", false, 25e9));
        records.push(made::ceiling("fio", "/nowhere", false, 7e9));
        let mut digest = digest_of(&[("a", &made::text(&records))]);
        let reached = |digest: &Digest| -> Vec<Option<f64>> {
            digest.ceilings.iter().map(|bound| reached(digest, bound)).collect()
        };
        let best = |digest: &Digest, path: &str| {
            let own = digest.lines.iter().filter(|line| line.mark(Axis::Path) == Some(path));
            own.filter_map(Line::rate).max_by(f64::total_cmp)
        };
        let (near, far) = (best(&digest, &near.path), best(&digest, &far.path));
        assert_ne!(near, far);
        assert_eq!(reached(&digest), [near, near, far, far, None, None]);
        // Bytes that stay in host memory do not use the link.
        for line in digest.lines.iter_mut().filter(|l| l.mark(Axis::Way) == Some("cpu-gpu")) {
            line.ways = [("host (drive)".into(), 1.0)].into();
        }
        assert_eq!(reached(&digest), [near, near, None, far, None, None]);
    }

    #[test]
    fn targets_have_rows_of_their_own() {
        let sweep = Sweep { targets: vec!["cuda:0", "cuda:1"], ..Sweep::default() };
        let digest = digest_of(&[("a", &made::file(&sweep))]);
        let grid = targets(&digest, 99);
        assert_eq!(grid.rows.len(), 30);
        assert_eq!((grid.rows[1][1].text.as_str(), grid.rows[1][4].number), ("cuda:1", Some(2.1)));
        let half = digest.lines[0].rate().unwrap() / 2.0;
        assert!((grid.rows[0][2].number.unwrap() / half - 1.0).abs() < 1e-9);
        // The link of one GPU carries its own part only.
        let reached = reached(&digest, &digest.ceilings[0]).unwrap();
        assert!(reached < 3.5e9, "{reached}");
    }
}
