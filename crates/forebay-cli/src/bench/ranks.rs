//! One run by several copies of the command, which a launcher starts: each measures as it would
//! alone, all begin each sample together, and rank 0 shows what they did together.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Instant;

use forebay::Engine;
use forebay::gpu::DeviceInfo;
use forebay::units::MIB;
use forebay_measure::failure::{Failure, Result};
use forebay_measure::ranks::{Place, Ranks};
use forebay_measure::results::{Bound, Direction, Measured, Record};
use forebay_measure::stats::{Spread, rate};
use forebay_measure::stdio::{print, say};
use forebay_measure::workload::backend::Method;
use forebay_measure::workload::latency::Latencies;
use forebay_measure::workload::run::Ran;
use forebay_topology::{Distance, Resolver, Way};
use serde::{Deserialize, Serialize};

use super::print;
use crate::bench::args::{BenchArgs, GpuRows, OneFile};
use crate::bench::files::{self, Place as Files};
use crate::map::{self, json::MapReport};
use crate::report::grid::{Fields, WIDTH};
use crate::report::numbers::{counted, digits, time_text};
use crate::report::show;
use crate::values::Format;

/// Bytes of a whole file of each rank: ranks that choose by themselves would choose differently.
const SIZE: u64 = 256 * MIB;
/// How the name of the slowest rank begins.
const SLOWEST: &str = "slowest";
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
    /// The limit that binds.
    bound: Option<String>,
    /// The direction of all of its bytes.
    way: Option<Direction>,
}

/// All of one rank.
#[derive(Debug, Serialize, Deserialize)]
struct Own {
    records: Vec<Record>,
    samples: Vec<Shared>,
    /// The most that its host can read and write at its paths.
    most: [Option<Most>; 2],
}

/// The number of the GPU of a rank: that of the rank on its host, or if the host has more GPUs than
/// ranks, one of those that are nearest to the drives of the paths.
fn own_gpu(place: &Place, paths: &[PathBuf]) -> u32 {
    let visible = forebay::gpu::visible().unwrap_or_default();
    let is_choice = place.local_size.is_some_and(|ranks| (ranks as usize) < visible.len());
    let nearest = || nearest(&visible, &map::gather(&Resolver::default(), paths, None, false));
    let own = is_choice.then(nearest).and_then(|all| all.get(place.local as usize).copied());
    own.unwrap_or(place.local)
}

/// The numbers of GPUs, the nearest to a drive first.
fn nearest(gpus: &[DeviceInfo], map: &MapReport) -> Vec<u32> {
    let distance = |gpu: &&DeviceInfo| {
        let known = map.gpus.iter().find(|known| known.pci.address == gpu.pci_address);
        let own = map.distances.iter().filter(|pair| known.is_some_and(|it| it.index == pair.gpu));
        let own = own.filter(|pair| !matches!(pair.distance, Distance::Unknown(_)));
        let nearest = own.map(|pair| pair.distance.clone()).min();
        nearest.unwrap_or_else(|| Distance::Unknown(String::new()))
    };
    let mut gpus: Vec<_> = gpus.iter().collect();
    gpus.sort_by_cached_key(distance);
    gpus.into_iter().map(|gpu| gpu.id.index).collect()
}

impl Joined {
    /// Meets the other ranks, if there are some, and sets what depends on the rank.
    ///
    /// # Errors
    /// Ranks that do not come or differ, and what several ranks cannot do.
    pub(super) fn meet(args: &mut BenchArgs, engine: &Engine) -> Result<Option<Self>> {
        let Some(place) = Place::here()? else {
            return match args.one_file {
                Some(_) => Err(Failure::usage("`--one-file` is for several ranks")
                    .hint("start several copies with `torchrun --no-python`, `mpirun` or `srun`")),
                None => Ok(None),
            };
        };
        if args.output.as_ref().is_some_and(|path| path.exists()) {
            return Err(Failure::usage("several ranks cannot continue a results file")
                .hint("name a new file with `-o`"));
        }
        if args.one_file.is_some()
            && args.direction.iter().any(|percent| !matches!(percent, 0 | 100))
        {
            return Err(Failure::usage("`--one-file` takes no mixture of reads and writes"));
        }
        let all_of_it = args.one_file == Some(OneFile::All);
        if all_of_it && args.direction.contains(&0) {
            return Err(Failure::usage("`--one-file all` only reads")
                .because("all ranks would write the same bytes")
                .hint("`--one-file stripes` lets each write a part"));
        }
        let arguments = format!("{args:?}");
        let ranks = Ranks::meet(place, &arguments)?;
        let rank = ranks.place.rank;
        args.label = Some(format!("rank {rank} on {}", ranks.hosts()[0]));
        if args.one_file == Some(OneFile::Stripes) {
            args.stripe = Some((rank, ranks.place.size));
        }
        if args.one_file.is_some() && args.method.is_empty() {
            // Methods that use the page cache would find what other ranks of the host have read.
            args.method = vec![Method::Forebay(None)];
        }
        if all_of_it {
            args.direction = vec![100];
            // Otherwise all would read the same place at the same time.
            args.seed = Some(args.seed.unwrap_or(1).wrapping_add(rank.into()));
        }
        if args.moves_whole_files() || !args.kv.is_empty() {
            args.size.get_or_insert(if args.kv.is_empty() { SIZE } else { 4 * SIZE });
        }
        if args.gpu.is_empty() && args.together.is_none() {
            let own = own_gpu(&ranks.place, &args.paths).to_string().parse().ok();
            // With a variable that hides the GPUs of other ranks, the only one is the first.
            let own = own.filter(|own| matches!(engine.device(own), Ok(Some(_))));
            args.gpu.extend(own.map(|own| GpuRows(vec![own])));
        }
        if !ranks.is_first() {
            args.quiet = true;
            args.output = None;
        }
        Ok(Some(Self { ranks, begun: Instant::now(), samples: Vec::new() }))
    }

    /// Whether this is rank 0.
    pub(super) fn is_first(&self) -> bool {
        self.ranks.is_first()
    }

    /// Waits until all ranks have made their files, or rank 0 the one that all use.
    pub(super) fn share_files(&mut self, places: &mut [Files]) -> Result<()> {
        let own: Vec<_> = places.iter().map(Files::shared).collect();
        let shared = self.ranks.share(serde_json::to_value(own)?);
        if !self.ranks.is_first() {
            let all: Vec<files::Shared> = serde_json::from_value(shared)?;
            places.iter_mut().zip(all).for_each(|(place, shared)| place.use_shared(shared));
        }
        Ok(())
    }

    /// Waits for the others before a sample.
    pub(super) fn begin(&mut self) {
        self.ranks.barrier();
        self.begun = Instant::now();
    }

    /// Notes a sample.
    pub(super) fn note(
        &mut self,
        (point, name, repeat, read_percent): (usize, String, u32, u8),
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
            bound: of.bound.as_ref().map(|bound| bound.name.clone()),
            way: match read_percent {
                0 => Some(Direction::Write),
                100 => Some(Direction::Read),
                _ => None,
            },
        });
    }

    /// Sends everything to rank 0, which prints it and adds the other ranks to its results file.
    ///
    /// # Errors
    /// Wrong data, failed samples, and errors of output.
    pub(super) fn finish(self, args: &BenchArgs, records: Vec<Record>) -> Result<()> {
        let (is_first, hosts) = (self.ranks.is_first(), self.ranks.hosts());
        let resolver = Resolver::default();
        let most = [Way::Read, Way::Write].map(|way| Most::at(&resolver, &args.paths, way));
        let notes = clock_notes(&self.ranks.other_clocks(), &hosts);
        let own = serde_json::to_value(Own { records, samples: self.samples, most })?;
        let all = self.ranks.gather(own).into_iter().map(serde_json::from_value::<Own>);
        let all = all.collect::<std::result::Result<Vec<_>, _>>()?;
        if !is_first {
            return Ok(());
        }
        let mut records: Vec<Record> = all.iter().flat_map(|own| own.records.clone()).collect();
        records.extend(notes.iter().cloned());
        if let Some(path) = &args.output {
            let failed = |error| Failure::at("write to", path, &error);
            let mut file = OpenOptions::new().append(true).open(path).map_err(failed)?;
            let others = all[1..].iter().flat_map(|own| &own.records).chain(&notes);
            file.write_all(show::json(others)?.as_bytes()).map_err(failed)?;
            file.sync_data().map_err(failed)?;
        }
        let text = match args.format.unwrap_or_default() {
            Format::Table => together(&all, &hosts),
            _ => print::text(args, &records)?,
        };
        let shown = print(&text);
        print::judge(args, &records).and(shown)
    }
}

/// Warnings of clocks that differ: the times in the results differ as much.
fn clock_notes(clocks: &[(u32, f64)], hosts: &[String]) -> Vec<Record> {
    let note = |(rank, ahead): &(u32, f64)| {
        let host = hosts.get(*rank as usize).map_or("another host", String::as_str);
        let order = if *ahead > 0.0 { "ahead of" } else { "behind" };
        let text = format!(
            "the clock of rank {rank} on {host} is {:.1} s {order} that of rank 0, and so are the \
             times in its results: set the clocks by NTP",
            ahead.abs()
        );
        say(&text);
        Record::Warning { text }
    };
    clocks.iter().map(note).collect()
}

/// The most that a host can read from the drives or the network behind its paths, or write.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Most {
    rate: f64,
    binds: String,
    is_network: bool,
}

impl Most {
    fn at(resolver: &Resolver, paths: &[PathBuf], way: Way) -> Option<Self> {
        let (ceiling, is_network) = map::of_host(resolver, paths, way)?;
        Some(Self { rate: ceiling.expected, binds: ceiling.binds.to_string(), is_network })
    }
}

/// A row: what some ranks did together.
struct Row {
    name: String,
    /// `None` if a sample of one of the ranks is missing.
    rate: Option<f64>,
    /// The most that its hosts can do.
    most: Option<f64>,
    bound: String,
    latency: Option<[f64; 3]>,
    path: String,
}

/// What all ranks did, for each point.
fn together(ranks: &[Own], hosts: &[String]) -> String {
    let mut points: BTreeMap<usize, &str> = BTreeMap::new();
    for sample in ranks.iter().flat_map(|own| &own.samples) {
        points.entry(sample.point).or_insert(&sample.name);
    }
    let mut out = String::new();
    for (point, name) in points {
        let own = |rank: &Own| -> Vec<Shared> {
            rank.samples.iter().filter(|sample| sample.point == point).cloned().collect()
        };
        let samples: Vec<Vec<Shared>> = ranks.iter().map(own).collect();
        let way = samples.iter().flatten().find_map(|sample| sample.way);
        let most = |own: &Own| own.most[usize::from(way? == Direction::Write)].clone();
        let most: Vec<Option<Most>> = ranks.iter().map(most).collect();
        let rows = rows(&samples, &most, hosts);
        let mut fields: Fields<'_, Row> = Fields::new();
        fields.text(("", 0, ""), |row| row.name.clone());
        fields.number(("GB/s", 0, ""), |row| Some(row.rate? * 1e-9), digits);
        for (at, heading) in ["p50", "p99", "p99.9"].into_iter().enumerate() {
            fields.number((heading, 1, ""), move |row| Some(row.latency?[at]), time_text);
        }
        fields.text(("path", 2, ""), |row| row.path.clone());
        let grid = fields.grid(&rows, usize::MAX).drawn(Some(WIDTH));
        out.push_str(&format!("{name}\n{grid}{}\n", bounds(&rows)));
    }
    out.trim_end().to_owned() + "\n"
}

/// What binds all ranks and the slowest, and what is predicted for their hosts.
fn bounds(rows: &[Row]) -> String {
    let bound_by = |row: &Row| match row.bound.as_str() {
        "" => "bound by unknown".to_owned(),
        name => format!("bound by {name}"),
    };
    let all = &rows[0];
    let most = all.most.map(|most| format!(", {} GB/s are predicted", digits(most * 1e-9)));
    let slowest = rows.iter().find(|row| row.name.starts_with(SLOWEST) && row.bound != all.bound);
    let slowest = slowest.map(|row| format!("\n{}: {}", row.name, bound_by(row)));
    format!("{}{}{}\n", bound_by(all), most.unwrap_or_default(), slowest.unwrap_or_default())
}

fn median(samples: impl Iterator<Item = f64>) -> Option<f64> {
    Spread::of(samples).map(|spread| spread.median)
}

/// The only one of some texts, or `several`.
fn only(texts: impl Iterator<Item = String>) -> String {
    let all: BTreeSet<String> = texts.collect();
    if all.len() > 1 { "several".into() } else { all.into_iter().next().unwrap_or_default() }
}

/// What binds some ranks at a rate: the limits that they have found. If that is storage behind a
/// network, it is the line of the hosts if they reach what it carries, and else the server.
fn bound(samples: &[&Shared], rate: Option<f64>, most: Option<(f64, &Most)>) -> String {
    let names = samples.iter().filter_map(|sample| sample.bound.as_deref());
    let found = names.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(" or ");
    match (rate, most) {
        (Some(rate), Some((limit, most))) if found == "storage" && most.is_network => {
            if rate >= Bound::NEAR * limit { most.binds.clone() } else { "server".into() }
        }
        _ => found,
    }
}

/// The rows of one point; `most` is what the host of each rank can do.
fn rows(ranks: &[Vec<Shared>], most: &[Option<Most>], hosts: &[String]) -> Vec<Row> {
    let numbers: Vec<usize> = (0..ranks.len()).collect();
    let own_rate = |rank: usize| -> Option<f64> {
        median(ranks[rank].iter().map(|one| rate(one.bytes, one.seconds)))
    };
    let row = |name: String, of: &[usize], rate: Option<f64>| {
        let mut latencies = Latencies::default();
        let samples: Vec<&Shared> = of.iter().flat_map(|rank| &ranks[*rank]).collect();
        samples.iter().for_each(|sample| latencies.add_counts(&sample.latencies));
        #[expect(clippy::cast_precision_loss, reason = "nanoseconds")]
        let seconds = |ns: Option<u64>| ns.map_or(0.0, |ns| ns as f64 * 1e-9);
        let latency = latencies.summary(false);
        let latency = latency.map(|all| [all.p50_ns, all.p99_ns, all.p99_9_ns].map(seconds));
        // Ranks of one host share its links.
        let by_host: BTreeMap<&str, &Option<Most>> =
            of.iter().map(|rank| (hosts[*rank].as_str(), &most[*rank])).collect();
        let limit = by_host.values().map(|most| Some(most.as_ref()?.rate)).sum::<Option<f64>>();
        let first = by_host.values().find_map(|most| most.as_ref());
        let bound = bound(&samples, rate, limit.zip(first));
        let path = only(samples.iter().map(|sample| sample.path.clone()));
        Row { name, rate, most: limit.filter(|_| of.len() > 1), bound, latency, path }
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
    rows.push(row("until the last is done".into(), &[], to_the_last));
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
    let places = [(SLOWEST, 0), ("median", order.len() / 2), ("fastest", order.len() - 1)];
    for (word, at) in places.into_iter().filter(|(word, _)| *word != "median" || order.len() > 2) {
        let rank = order[at];
        let name = format!("{word}: rank {rank} on {}", hosts[rank]);
        rows.push(row(name, &[rank], own_rate(rank)));
    }
    rows
}

#[cfg(test)]
mod tests {
    use forebay::gpu::{DeviceId, DeviceKind};
    use forebay_topology::{DriveId, PciDevice};

    use super::*;
    use crate::map::json::{Gpu, Pair};

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
            bound: Some("storage".into()),
            way: Some(Direction::Read),
        }
    }

    fn own(samples: &[Shared]) -> Own {
        // 4 GB/s on the wire.
        let most = Most { rate: 4e9, binds: "line of eth0".into(), is_network: true };
        Own { records: Vec::new(), samples: samples.to_vec(), most: [Some(most), None] }
    }

    #[test]
    fn ranks_take_the_gpus_nearest_to_a_drive() {
        let bus = |bus: &str| format!("0000:{bus}:00.0");
        let gpu = |(index, address): (u32, &str)| DeviceInfo {
            id: DeviceId { kind: DeviceKind::Cuda, index },
            name: String::new(),
            uuid: String::new(),
            pci_address: bus(address),
            driver: String::new(),
            memory: 0,
            simulated: false,
        };
        // CUDA numbers them in another order than the kernel, and does not show one.
        let visible = [(0, "41"), (1, "c1"), (2, "d1"), (3, "11"), (4, "21")].map(gpu);
        let mut map = MapReport::default();
        let far = Distance::AcrossSockets;
        for (index, (address, distances)) in [
            ("11", [far.clone(), far.clone()]),
            ("31", [Distance::SameSwitch, Distance::SameSwitch]),
            ("41", [far.clone(), far]),
            ("c1", [Distance::SameSocket, Distance::SameSocket]),
            ("d1", [Distance::SameSocket, Distance::SameSwitch]),
        ]
        .into_iter()
        .enumerate()
        {
            let pci = PciDevice { address: bus(address), ..PciDevice::default() };
            map.gpus.push(Gpu { index, pci, ..Gpu::default() });
            for (drive, distance) in ["nvme0n1", "nvme1n1"].into_iter().zip(distances) {
                map.distances.push(Pair { gpu: index, drive: DriveId(drive.into()), distance });
            }
        }
        assert_eq!(nearest(&visible, &map), [2, 1, 0, 3, 4]);
        assert_eq!(nearest(&visible, &MapReport::default()), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn totals_hosts_and_stragglers_are_shown() {
        let rank = |began, gigabytes, latency| {
            (0..3).map(|repeat| sample(repeat, began, gigabytes, latency)).collect::<Vec<_>>()
        };
        let ranks = [rank(0.0, 2, 1), rank(0.0, 2, 1), rank(0.5, 1, 9), rank(0.0, 3, 1)];
        let hosts = ["a", "a", "b", "b"].map(String::from);
        let lacks = [ranks[0].clone(), Vec::new()];
        let lacks = rows(&lacks, &[None, None], &hosts[..2]);
        assert_eq!(lacks[0].rate, None, "a rank has no sample");
        let ranks: Vec<Own> = ranks.iter().map(|samples| own(samples)).collect();
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
        bound by line of eth0, 8.00 GB/s are predicted
        slowest: rank 2 on b: bound by server
        ");
    }
}
