//! The most that the drives below the paths, the network and the GPUs can carry: alone and
//! together.

use std::collections::BTreeMap;
use std::path::Path;

use forebay_measure::failure::{Failure, Result};
use forebay_measure::results::{Direction, Record};
use forebay_topology::{
    Binds, Ceiling, Channels, DriveId, Layout, Leaf, Part, SHARE, System, Way, carried, payload,
    ports, streams, together,
};

use super::json::{CeilingRow, Gpu, MapReport, MeasuredShare};
use super::look::{Look, Tone, Word};
use crate::report::grid::{Fields, Grid};
use crate::report::numbers::{digits, percent};

/// Most drives with rows of their own.
const DRIVES_MAX: usize = 8;

impl CeilingRow {
    fn new(of: String, find: impl Fn(Way) -> Option<Ceiling>) -> Self {
        Self { of, read: find(Way::Read), write: find(Way::Write) }
    }

    fn of(of: String, leaves: &[Leaf]) -> Self {
        let leaves: Vec<&Leaf> = leaves.iter().collect();
        Self::named(of, leaves.len(), |way| together(&leaves, way))
    }

    /// The ceiling of `count` devices with this name.
    fn named(of: String, count: usize, find: impl Fn(Way) -> Option<Ceiling>) -> Self {
        Self::new(of.clone(), |way| {
            let found = find(way)?;
            let binds = match found.binds {
                Binds::Links(_) if count > 1 => Binds::Links(of.clone()),
                other => other,
            };
            Some(Ceiling { binds, ..found })
        })
    }

    /// What `source` sends to `target`, or back, through the memory if it is known.
    fn between(source: &Self, target: &Self, memory: Option<&Self>) -> Self {
        Self::new(format!("{} to {}", source.of, target.of), |way| {
            let (one, other) = (source.get(way).clone()?, target.get(way).clone()?);
            let known = memory.and_then(|memory| memory.get(way).clone());
            let parts = [Some(one), Some(other), known].into_iter().flatten();
            parts.reduce(|one, other| {
                let theory = one.theory.min(other.theory);
                let low = if one.expected <= other.expected { one } else { other };
                Ceiling { theory, ..low }
            })
        })
    }

    fn get(&self, way: Way) -> &Option<Ceiling> {
        if way == Way::Read { &self.read } else { &self.write }
    }
}

/// The memory's own ceiling, and that of bytes which pass it twice: a drive or a GPU writes them,
/// and the other reads them.
fn memory(channels: &Channels) -> [CeilingRow; 2] {
    let (empty, all) = (channels.empty, channels.empty + channels.used);
    let empty = (empty > 0).then(|| {
        format!("{empty} of {all} memory channels have no module: add one to each of these")
    });
    let direct = "the memory binds: each byte passes it twice, unless transfers are direct";
    [(1.0, empty.clone()), (2.0, empty.or(Some(direct.into())))].map(|(times, remedy)| {
        let leaf = Leaf::memory(channels, times);
        CeilingRow::new(leaf.name.clone(), |way| {
            Some(Ceiling { remedy: remedy.clone(), ..together(&[&leaf], way)? })
        })
    })
}

/// How many more such drives would fill all GPUs, if the drives bind.
fn more_drives(source: &CeilingRow, count: usize, target: &CeilingRow) -> Option<String> {
    let (drives, gpus) = (source.read.as_ref()?.expected, target.read.as_ref()?.expected);
    let each = drives / count as f64;
    let more = ((gpus - drives) / each).ceil();
    (drives < 0.98 * gpus && more <= 1000.0).then(|| {
        format!(
            "{} give {} GB/s, and {} take {}: {more} more such drives would fill them",
            source.of,
            digits(drives * 1e-9),
            target.of,
            digits(gpus * 1e-9)
        )
    })
}

/// The most that this machine reads from the drives of a report, or writes to them: with drives
/// elsewhere, what its network ports carry, and true.
pub(super) fn of_host(report: &MapReport, system: &System, way: Way) -> Option<(Ceiling, bool)> {
    let source = sources(report, system, &[]).pop()?;
    Some((source.total.get(way).clone()?, source.is_network))
}

/// What holds the bytes of the paths: drives of this machine, or what is behind its network.
struct Source {
    alone: Vec<CeilingRow>,
    total: CeilingRow,
    is_network: bool,
}

/// The drives of a report, and last the ports to its drives elsewhere.
fn sources(report: &MapReport, system: &System, shares: &[MeasuredShare]) -> Vec<Source> {
    let local = report.drives.iter().filter_map(|drive| {
        let leaf = refined(Leaf::drive(drive)?, system, shares);
        Some((drive.id.clone(), leaf))
    });
    let local: BTreeMap<DriveId, Leaf> = local.collect();
    let mut found = Vec::new();
    if !local.is_empty() {
        let of_report = report.drives.iter().filter_map(|drive| local.get(&drive.id));
        let leaves: Vec<Leaf> = of_report.cloned().collect();
        let total = CeilingRow::named(arranged(report, &leaves), leaves.len(), |way| {
            carried(&of_paths(report, &local, way), way)
        });
        found.push(Source { alone: alone(&leaves, "drives"), total, is_network: false });
    }
    let remote = report.drives.iter().filter(|drive| drive.transport().is_network());
    let ways = remote.map(|drive| {
        let map = report.maps.iter().find(|map| map.drives.contains(&drive.id))?;
        ports(system, &map.steps, drive)
    });
    let ways: Vec<Option<Vec<_>>> = ways.collect();
    if !ways.is_empty() {
        let mut leaves: Vec<Leaf> = Vec::new();
        let is_known = ways.iter().all(Option::is_some);
        for port in ways.iter().flatten().flatten() {
            if leaves.iter().all(|known| known.name != port.name) {
                leaves.push(refined(Leaf::nic(port), system, shares));
            }
        }
        let total = match leaves.as_slice() {
            leaves if !is_known => CeilingRow::of("network".into(), &leaves[..0]),
            [one] => CeilingRow::of(one.name.clone(), &leaves),
            _ => CeilingRow::of(format!("{} ports", leaves.len()), &leaves),
        };
        found.push(Source { alone: alone(&leaves, "ports"), total, is_network: true });
    }
    found
}

/// A device with the payload of its packets, and with what such devices reached in a measurement.
fn refined(mut leaf: Leaf, system: &System, shares: &[MeasuredShare]) -> Leaf {
    leaf.payload = leaf.pci.as_ref().and_then(|pci| payload(system, pci));
    for MeasuredShare { way, share, .. } in shares.iter().filter(|it| it.part == leaf.part) {
        let alone = together(&[&leaf], *way);
        leaf.measured[*way as usize] = alone.map(|alone| alone.theory * share);
    }
    leaf
}

/// The streams of all paths over drives whose rates are known. Paths with the same queue have the
/// same.
fn of_paths<'a>(
    report: &MapReport,
    local: &'a BTreeMap<DriveId, Leaf>,
    way: Way,
) -> Vec<Vec<(&'a Leaf, f64)>> {
    let mut queues = Vec::new();
    let mut all = Vec::new();
    for map in report.maps.iter().filter(|map| map.drives.iter().any(|id| local.contains_key(id))) {
        if queues.contains(&&map.queue.id) {
            continue;
        }
        queues.push(&map.queue.id);
        let on_drives = |stream: BTreeMap<DriveId, f64>| {
            stream.into_iter().map(|(id, bytes)| Some((local.get(&id)?, bytes))).collect()
        };
        all.extend(streams(&map.steps, &map.drives, way).into_iter().filter_map(on_drives));
    }
    all
}

/// The drives in words, with the arrangement that all paths share.
fn arranged(report: &MapReport, leaves: &[Leaf]) -> String {
    let count = leaves.len();
    let first = report.maps.iter().find(|map| !map.drives.is_empty()).map(|map| &map.queue);
    let all = report.maps.iter().all(|map| Some(&map.queue.id) == first.map(|queue| &queue.id));
    match (leaves, first.map(|queue| queue.layout).filter(|_| all)) {
        ([one], _) => one.name.clone(),
        (_, Some(Layout::Mirrored)) => format!("{count} mirrored drives"),
        (_, Some(Layout::StripedMirrors)) => format!("{count} drives in mirrors"),
        (_, Some(Layout::Parity)) => format!("{count} drives with parity"),
        _ => format!("{count} drives"),
    }
}

/// Rows of several devices, or a common row if they are alike.
fn alone(leaves: &[Leaf], name: &str) -> Vec<CeilingRow> {
    if leaves.len() < 2 {
        return Vec::new();
    }
    let rows = leaves.iter().map(|leaf| {
        CeilingRow::of(leaf.name.clone(), std::slice::from_ref(leaf)) //
    });
    let mut rows: Vec<CeilingRow> = rows.collect();
    let theory = |row: &CeilingRow| row.read.as_ref().map(|ceiling| ceiling.theory);
    if let [first, _, _, ..] = rows.as_slice()
        && rows.iter().all(|row| theory(row) == theory(first))
    {
        let mut each = first.clone();
        each.of = format!("each of {} {name}", leaves.len());
        for ceiling in [&mut each.read, &mut each.write].into_iter().flatten() {
            ceiling.binds = match &ceiling.binds {
                Binds::Line(_) => Binds::Line("each".into()),
                _ => Binds::Link("each".into()),
            };
        }
        rows = vec![each];
    }
    rows.truncate(DRIVES_MAX);
    rows
}

/// The shares that a run of `bench` with a single drive and GPU of a report reached.
///
/// # Errors
/// The file lacks a limit of such a drive or GPU.
pub(super) fn shares(
    report: &MapReport,
    system: &System,
    records: &[Record],
    file: &Path,
) -> Result<Vec<MeasuredShare>> {
    let mut shares: Vec<MeasuredShare> = Vec::new();
    let mut run = None;
    for record in records {
        let Record::Limit(limit) = record else {
            run = if let Record::Run(next) = record { Some(next) } else { run };
            continue;
        };
        let leaf = match (limit.name.as_str(), run) {
            ("link", Some(run)) => {
                let gpu = run.gpus.iter().find(|gpu| gpu.id == limit.of);
                let address = gpu.and_then(|gpu| gpu.pci_address.as_deref());
                let same = |own: &&Gpu| address.is_some_and(|it| own.pci.address == it);
                report.gpus.iter().find(same).map(|gpu| Leaf::gpu(gpu.index, &gpu.pci))
            }
            ("storage", Some(run)) => match run.environment.drives.as_slice() {
                [drive] => Leaf::drive(drive),
                _ => None,
            },
            _ => None,
        };
        let Some(leaf) = leaf.map(|leaf| refined(leaf, system, &[])) else { continue };
        for (way, direction) in [(Way::Read, Direction::Read), (Way::Write, Direction::Write)] {
            if let Some(ceiling) = together(&[&leaf], way).filter(|_| limit.holds(direction)) {
                let share = (limit.bytes_per_second / ceiling.theory).clamp(0.0, 1.0);
                // Later records have higher rates.
                shares.retain(|known| (known.part, known.way) != (leaf.part, way));
                shares.push(MeasuredShare { part: leaf.part, way, share });
            }
        }
    }
    if shares.is_empty() {
        let text = format!("`{}` has no limit of one drive or of a GPU here", file.display());
        let hint = "`forebay bench PATH -o FILE` measures them; the path is on one drive with a \
                    link of its own";
        return Err(Failure::usage(text).hint(hint));
    }
    Ok(shares)
}

/// The ceilings of a report's drives and GPUs, of the memory, and of the network cards if drives
/// are elsewhere.
pub(super) fn rows(
    report: &MapReport,
    system: &System,
    shares: &[MeasuredShare],
) -> Vec<CeilingRow> {
    let memory = Channels::read(system).as_ref().map(memory);
    let gpus =
        report.gpus.iter().map(|gpu| refined(Leaf::gpu(gpu.index, &gpu.pci), system, shares));
    let gpus: Vec<Leaf> = gpus.collect();
    let mut rows = Vec::new();
    let sources = sources(report, system, shares);
    for source in &sources {
        rows.extend(source.alone.iter().chain([&source.total]).cloned());
    }
    let doubles = std::iter::successors(Some(1), |count| Some(count * 2));
    let mut counts: Vec<usize> = doubles.take_while(|count| *count < gpus.len()).collect();
    counts.extend(Some(gpus.len()).filter(|count| *count > 0));
    let name = |count| if count == 1 { "1 GPU".to_owned() } else { format!("{count} GPUs") };
    let targets = counts.iter().map(|count| CeilingRow::of(name(*count), &gpus[..*count]));
    let targets: Vec<CeilingRow> = targets.collect();
    let twice = memory.as_ref().map(|[_, twice]| twice);
    let paths = sources.iter().flat_map(|source| {
        // Local and remote drives are not read together.
        targets.iter().map(move |target| CeilingRow::between(&source.total, target, twice))
    });
    let mut paths: Vec<CeilingRow> = paths.collect();
    let local = sources.first().filter(|source| !source.is_network);
    if let (Some(source), [.., target]) = (local, &*targets)
        && let Some(path) = paths.iter_mut().find(|path| path.of.ends_with(&target.of))
        && let Some(read) = path.read.as_mut().filter(|read| read.remedy.is_none())
    {
        let is_local = |drive: &&_| Leaf::drive(drive).is_some();
        let count = report.drives.iter().filter(is_local).count();
        read.remedy = more_drives(&source.total, count, target);
    }
    rows.extend(targets);
    rows.extend(memory.map(|[own, _]| own));
    rows.extend(paths);
    rows
}

/// Draws them, with what would lift those that bind.
pub(super) fn draw(report: &MapReport, look: Look, out: &mut String) {
    let rows = &report.ceilings;
    out.push('\n');
    if rows.iter().all(|row| row.read.is_none()) {
        let why = "unknown: no link of a drive or GPU is reported; `forebay bench` measures them";
        let words = [Word::new(Tone::Name, "ceilings"), Word::new(Tone::Fact, why)];
        return look.line(out, "", "          ", &words);
    }
    out.push_str(&table(rows).drawn(Some(look.0)));
    let ceilings = || rows.iter().flat_map(|row| [&row.read, &row.write]).flatten();
    let mut seen: Vec<&str> = Vec::new();
    for remedy in ceilings().filter_map(|ceiling| ceiling.remedy.as_deref()) {
        if !seen.contains(&remedy) {
            seen.push(remedy);
            look.text(out, "→ ", "  ", Tone::Bad.style(), remedy);
        }
    }
    look.text(out, "", "", Tone::Dim.style(), &notes(report));
}

fn notes(report: &MapReport) -> String {
    let name = |part| match part {
        Part::Gpu => "GPUs",
        Part::Drive => "drives",
        Part::Network => "networks",
        Part::Memory => "memory",
    };
    let share = |(part, usual)| {
        let own = report.measured.iter().filter(|own| own.part == part);
        let own: Vec<String> = own.map(|own| percent(own.share)).collect();
        match own.as_slice() {
            [] => format!("{} for {}", percent(usual), name(part)),
            own => format!("{} for {} (measured)", own.join(" and "), name(part)),
        }
    };
    let mut reads = report.ceilings.iter().filter_map(|row| row.read.as_ref());
    let knows_memory = reads.any(|read| read.binds == Binds::Memory);
    let shares = SHARE.into_iter().filter(|(part, _)| *part != Part::Memory || knows_memory);
    let shares: Vec<String> = shares.map(share).collect();
    let (source, unknown) = match knows_memory {
        true => (", memory modules in /run/udev/data/+dmi:id (udev),", "Links"),
        false => (",", "Memory, links"),
    };
    let has_parity = report.maps.iter().any(|map| map.queue.layout == Layout::Parity);
    let stripes = if has_parity { " Writes with parity are of whole stripes." } else { "" };
    format!(
        "In theory: width and speed of links in /sys/bus/pci/devices, line rates of SATA, SAS \
         and network ports{source} without the overhead of packets of 256 bytes, or of the size \
         that root reads.{stripes} Reads and writes: the share that practice reaches, {}. \
         {unknown} between sockets and the drives' own chips are not known here and may bind \
         before.",
        shares.join(", ")
    )
}

fn table(rows: &[CeilingRow]) -> Grid {
    let gb_per_s = |rate: f64| digits(rate * 1e-9);
    let mut fields: Fields<'_, CeilingRow> = Fields::new();
    fields.text(("GB/s", 0, ""), |row| row.of.clone());
    for (way, heading) in [(Way::Read, "reads"), (Way::Write, "writes")] {
        fields.number((heading, 0, ""), move |row| Some(row.get(way).as_ref()?.expected), gb_per_s);
        fields.number(
            ("in theory", 1, ""),
            move |row| Some(row.get(way).as_ref()?.theory),
            gb_per_s,
        );
    }
    fields.text(("reads bound by", 0, ""), |row| {
        row.read.as_ref().map_or_else(|| "unknown".into(), |ceiling| ceiling.binds.to_string())
    });
    fields.grid(rows, usize::MAX)
}
