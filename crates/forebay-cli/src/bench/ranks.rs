//! One run by several copies of the command, which a launcher starts: each measures as it would
//! alone, all begin each sample together, and rank 0 shows what they did together.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::time::Instant;

use forebay::Engine;
use forebay::units::MIB;
use forebay_measure::failure::{Failure, Result};
use forebay_measure::ranks::{Place, Ranks};
use forebay_measure::results::{Measured, Record};
use forebay_measure::stats::{Spread, rate};
use forebay_measure::stdio::print;
use forebay_measure::workload::latency::Latencies;
use forebay_measure::workload::run::Ran;
use serde::{Deserialize, Serialize};

use super::print;
use crate::bench::args::{BenchArgs, GpuRows};
use crate::report::grid::{Fields, WIDTH};
use crate::report::numbers::{counted, digits, time_text};
use crate::report::show;
use crate::values::Format;

/// Bytes of a whole file of each rank: ranks that choose by themselves would choose differently.
const SIZE: u64 = 256 * MIB;
/// Most hosts with a row each.
const HOSTS_MAX: usize = 32;

/// The other ranks, and what this one did of what they do together.
#[derive(Debug)]
pub(crate) struct Joined {
    ranks: Ranks,
    /// When the last sample began for all.
    begun: Instant,
    samples: Vec<Shared>,
}

/// One sample of one rank.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Shared {
    /// The number of its point, and its name.
    point: usize,
    name: String,
    repeat: u32,
    /// When its span began, in seconds after the ranks began together.
    began_s: f64,
    seconds: f64,
    bytes: u64,
    latencies: Vec<(u64, u64)>,
    /// The path of its bytes, as proven.
    path: String,
}

/// All of one rank.
#[derive(Debug, Serialize, Deserialize)]
struct Own {
    records: Vec<Record>,
    samples: Vec<Shared>,
}

impl Joined {
    /// Meets the other ranks, if there are some, and sets what depends on the rank.
    ///
    /// # Errors
    /// Ranks that do not come or differ, and what several ranks cannot do.
    pub(super) fn meet(args: &mut BenchArgs, engine: &Engine) -> Result<Option<Self>> {
        let Some(place) = Place::here()? else { return Ok(None) };
        if args.output.as_ref().is_some_and(|path| path.exists()) {
            return Err(Failure::usage("several ranks cannot continue a results file")
                .hint("name a new file with `-o`"));
        }
        let asked = format!("{args:?}");
        let ranks = Ranks::meet(place, &asked)?;
        let (rank, local) = (ranks.place.rank, ranks.place.local);
        args.label = Some(format!("rank {rank} on {}", ranks.hosts()[0]));
        if args.moves_whole_files() || !args.kv.is_empty() {
            args.size.get_or_insert(if args.kv.is_empty() { SIZE } else { 4 * SIZE });
        }
        // With a variable that hides the GPUs of other ranks, the only one is the first.
        let own = local.to_string().parse().ok();
        let own = own.filter(|own| matches!(engine.device(own), Ok(Some(_))));
        if let (true, None, Some(own)) = (args.gpu.is_empty(), &args.together, own) {
            args.gpu = vec![GpuRows(vec![own])];
        }
        if !ranks.is_first() {
            args.quiet = true;
            args.output = None;
        }
        Ok(Some(Self { ranks, begun: Instant::now(), samples: Vec::new() }))
    }

    /// Waits for the others before a sample.
    pub(super) fn begin(&mut self) {
        self.ranks.barrier();
        self.begun = Instant::now();
    }

    /// Notes a sample.
    pub(super) fn note(
        &mut self,
        (point, name, repeat): (usize, String, u32),
        ran: &Ran,
        of: &Measured,
    ) {
        let verdict = of.verdict.as_ref();
        self.samples.push(Shared {
            point,
            name,
            repeat,
            began_s: ran.from.saturating_duration_since(self.begun).as_secs_f64(),
            seconds: ran.span.as_secs_f64(),
            bytes: ran.bytes,
            latencies: ran.latencies.counts(),
            path: verdict.map_or_else(|| "unproven".into(), |verdict| verdict.text.clone()),
        });
    }

    /// Sends everything to rank 0, which prints it and adds the other ranks to its results file.
    ///
    /// # Errors
    /// Wrong data, failed samples, and errors of output.
    pub(super) fn finish(self, args: &BenchArgs, records: Vec<Record>) -> Result<()> {
        let (is_first, hosts) = (self.ranks.is_first(), self.ranks.hosts());
        let own = serde_json::to_value(Own { records, samples: self.samples })?;
        let all = self.ranks.gather(own).into_iter().map(serde_json::from_value::<Own>);
        let all = all.collect::<std::result::Result<Vec<_>, _>>()?;
        if !is_first {
            return Ok(());
        }
        let records: Vec<Record> = all.iter().flat_map(|own| own.records.clone()).collect();
        if let Some(path) = &args.output {
            let failed = |error| Failure::at("write to", path, &error);
            let mut file = OpenOptions::new().append(true).open(path).map_err(failed)?;
            let others = all[1..].iter().flat_map(|own| &own.records);
            file.write_all(show::json(others)?.as_bytes()).map_err(failed)?;
            file.sync_data().map_err(failed)?;
        }
        let samples: Vec<Vec<Shared>> = all.into_iter().map(|own| own.samples).collect();
        let text = match args.format.unwrap_or_default() {
            Format::Table => together(&samples, &hosts),
            _ => print::text(args, &records)?,
        };
        let shown = print(&text);
        print::judge(args, &records).and(shown)
    }
}

/// A row: what some ranks did together.
struct Row {
    name: String,
    /// `None` if a sample of one of the ranks is missing.
    rate: Option<f64>,
    latency: Option<[f64; 3]>,
    path: String,
}

/// What all ranks did, for each point.
fn together(ranks: &[Vec<Shared>], hosts: &[String]) -> String {
    let mut points: BTreeMap<usize, &str> = BTreeMap::new();
    for sample in ranks.iter().flatten() {
        points.entry(sample.point).or_insert(&sample.name);
    }
    let mut out = String::new();
    for (point, name) in points {
        let own = |rank: &Vec<Shared>| -> Vec<Shared> {
            rank.iter().filter(|sample| sample.point == point).cloned().collect()
        };
        let ranks: Vec<Vec<Shared>> = ranks.iter().map(own).collect();
        let rows = rows(&ranks, hosts);
        let mut fields: Fields<'_, Row> = Fields::new();
        fields.text(("", 0, ""), |row| row.name.clone());
        fields.number(("GB/s", 0, ""), |row| Some(row.rate? * 1e-9), digits);
        for (at, heading) in ["p50", "p99", "p99.9"].into_iter().enumerate() {
            fields.number((heading, 1, ""), move |row| Some(row.latency?[at]), time_text);
        }
        fields.text(("path", 2, ""), |row| row.path.clone());
        out.push_str(&format!("{name}\n{}\n", fields.grid(&rows, usize::MAX).drawn(Some(WIDTH))));
    }
    out.trim_end().to_owned() + "\n"
}

fn median(samples: impl Iterator<Item = f64>) -> Option<f64> {
    Spread::of(samples).map(|spread| spread.median)
}

/// The rows of one point.
fn rows(ranks: &[Vec<Shared>], hosts: &[String]) -> Vec<Row> {
    let numbers: Vec<usize> = (0..ranks.len()).collect();
    let own_rate = |rank: usize| -> Option<f64> {
        median(ranks[rank].iter().map(|one| rate(one.bytes, one.seconds)))
    };
    let row = |name: String, of: &[usize], rate: Option<f64>| {
        let mut latencies = Latencies::default();
        let samples = || of.iter().flat_map(|rank| &ranks[*rank]);
        samples().for_each(|sample| latencies.add_counts(&sample.latencies));
        #[expect(clippy::cast_precision_loss, reason = "nanoseconds")]
        let seconds = |ns: Option<u64>| ns.map_or(0.0, |ns| ns as f64 * 1e-9);
        let latency = latencies.summary(false);
        let latency = latency.map(|all| [all.p50_ns, all.p99_ns, all.p99_9_ns].map(seconds));
        let mut paths: Vec<&str> = samples().map(|sample| sample.path.as_str()).collect();
        paths.sort_unstable();
        paths.dedup();
        let path = if let [one] = paths.as_slice() { (*one).into() } else { "several".into() };
        Row { name, rate, latency, path }
    };
    let of_all = |total: fn(&[&Shared]) -> f64| {
        let mut repeats: BTreeMap<u32, Vec<&Shared>> = BTreeMap::new();
        for sample in ranks.iter().flatten() {
            repeats.entry(sample.repeat).or_default().push(sample);
        }
        // Without the sample of a rank the total would be too low.
        let whole = repeats.values().filter(|samples| samples.len() == ranks.len());
        median(whole.map(|samples| total(samples)))
    };
    let at_once = of_all(|all| all.iter().map(|one| rate(one.bytes, one.seconds)).sum());
    let to_the_last = of_all(|all| {
        let first = all.iter().map(|one| one.began_s).fold(f64::INFINITY, f64::min);
        let last = all.iter().map(|one| one.began_s + one.seconds).fold(0.0, f64::max);
        rate(all.iter().map(|one| one.bytes).sum(), last - first)
    });
    let mut rows =
        vec![row(format!("{} at once", counted(ranks.len(), "rank")), &numbers, at_once)];
    rows.push(Row {
        latency: None,
        path: String::new(),
        ..row("until the last is done".into(), &[], to_the_last)
    });
    let mut by_host: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (rank, host) in hosts.iter().enumerate() {
        by_host.entry(host).or_default().push(rank);
    }
    if by_host.len() > 1 {
        for (host, own) in by_host.iter().take(HOSTS_MAX) {
            let sum = own.iter().map(|rank| own_rate(*rank)).sum();
            rows.push(row(format!("{host}, {}", counted(own.len(), "rank")), own, sum));
        }
    }
    let mut order = numbers;
    order.sort_by(|a, b| own_rate(*a).unwrap_or(0.0).total_cmp(&own_rate(*b).unwrap_or(0.0)));
    let places = [("slowest", 0), ("median", order.len() / 2), ("fastest", order.len() - 1)];
    for (word, at) in places.into_iter().filter(|(word, _)| *word != "median" || order.len() > 2) {
        let rank = order[at];
        let name = format!("{word}: rank {rank} on {}", hosts[rank]);
        rows.push(row(name, &[rank], own_rate(rank)));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(repeat: u32, began_s: f64, gigabytes: u64, latency: u64) -> Shared {
        Shared {
            point: 0,
            name: "forebay read".into(),
            repeat,
            began_s,
            seconds: 1.0,
            bytes: gigabytes * 1_000_000_000,
            latencies: vec![(latency * 1_000_000, 1000)],
            path: "host (drive)".into(),
        }
    }

    #[test]
    fn totals_hosts_and_stragglers_are_shown() {
        let rank = |began, gigabytes, latency| {
            (0..3).map(|repeat| sample(repeat, began, gigabytes, latency)).collect::<Vec<_>>()
        };
        let ranks = [rank(0.0, 2, 1), rank(0.0, 2, 1), rank(0.5, 1, 9), rank(0.0, 3, 1)];
        let hosts = ["a", "a", "b", "b"].map(String::from);
        let lacks = [ranks[0].clone(), Vec::new()];
        assert_eq!(rows(&lacks, &hosts[..2])[0].rate, None, "a rank has no sample");
        let text = together(&ranks, &hosts);
        insta::assert_snapshot!(anstream::adapter::strip_str(&text), @"
        forebay read
                                GB/s      p50      p99    p99.9  path
        4 ranks at once         8.00  1.00 ms  9.00 ms  9.00 ms  host (drive)
        until the last is done  5.33
        a, 2 ranks              4.00  1.00 ms  1.00 ms  1.00 ms  host (drive)
        b, 2 ranks              4.00  1.00 ms  9.00 ms  9.00 ms  host (drive)
        slowest: rank 2 on b    1.00  9.00 ms  9.00 ms  9.00 ms  host (drive)
        median: rank 1 on a     2.00  1.00 ms  1.00 ms  1.00 ms  host (drive)
        fastest: rank 3 on b    3.00  1.00 ms  1.00 ms  1.00 ms  host (drive)
        ");
    }
}
