//! The words of a step in a line of the tree, from its facts.

use std::path;

use forebay::units::format_size;
use forebay_topology::LayerKind::{self, *};
use forebay_topology::{Drive, DriveId, DrivePath, Layer, Transport, Value};

use super::json::{MapReport, PathMap};
use super::look::Tone::{Bad, Fact};
use super::look::{Tone, Word};

/// Facts that the tree omits if they are unknown.
const NOT_MISSED: [&str; 3] = ["numa_node", "cipher", "connections"];

/// Usual values, which only a row of their own shows.
const USUAL: [(&str, &str); 9] = [
    ("subvolume", "/"),
    ("members", "0"),
    ("members", "1"),
    ("sync_action", "idle"),
    ("sync_action", "none"),
    ("state", "live"),
    ("made_by", "dm-crypt"),
    ("target", "crypt"),
    ("connections", "1"),
];

/// What is shown of a kind of step, in order: a fact, or a value of it (flags are `yes` or `no`),
/// and its text, in which `{}` stands for the value. Without a fact the text is always shown.
const SHOWN: [(LayerKind, &str, Tone, &str); 48] = [
    (Path, "compressed=yes", Bad, "compressed"),
    (Path, "encrypted=yes", Bad, "encrypted"),
    (Path, "verity=yes", Fact, "verity"),
    (Path, "dax=yes", Fact, "dax"),
    (Symlink, "target", Fact, "link → {}"),
    (Mount, "bind_of", Fact, "bound from {}"),
    (Mount, "hides", Fact, "over {}"),
    (FileSystem, "subvolume", Fact, "subvolume {}"),
    (FileSystem, "data_profile", Fact, "data {}"),
    (FileSystem, "members", Fact, "{} members"),
    (FileSystem, "degraded=yes", Bad, "degraded"),
    (FileSystem, "layer", Fact, "from its {} layer"),
    (Partition, "number", Fact, "partition {}"),
    (Partition, "size_bytes", Fact, "{}"),
    (Partition, "start_bytes", Fact, "from {}"),
    (Md, "level", Fact, "array, {}"),
    (Md, "members", Fact, "{} members"),
    (Md, "chunk_bytes", Fact, "stripes of {}"),
    (Md, "size_bytes", Fact, "{}"),
    (Md, "degraded=yes", Bad, "degraded"),
    (Md, "sync_action", Bad, "{}"),
    (DeviceMapper, "device_name", Fact, "{}"),
    (DeviceMapper, "made_by", Fact, "{} volume"),
    (DeviceMapper, "target=crypt", Bad, "encrypted volume"),
    (DeviceMapper, "target", Fact, "{}"),
    (DeviceMapper, "cipher", Fact, "{}"),
    (DeviceMapper, "role", Fact, "{}"),
    (DeviceMapper, "members", Fact, "{} members"),
    (DeviceMapper, "chunk_bytes", Fact, "stripes of {}"),
    (DeviceMapper, "size_bytes", Fact, "{}"),
    (DeviceMapper, "suspended=yes", Bad, "suspended"),
    (Loop, "", Fact, "loop device"),
    (Loop, "size_bytes", Fact, "{}"),
    (Loop, "direct_io=yes", Fact, "direct I/O"),
    (Loop, "direct_io=no", Bad, "no direct I/O"),
    (BackingFile, "", Fact, "file"),
    (BackingFile, "deleted=yes", Fact, "deleted"),
    (NvmeController, "carried", Fact, "{}"),
    (NvmeController, "live=no", Bad, "down"),
    (NvmeController, "state", Fact, "{}"),
    (PciDevice, "link", Fact, "{}"),
    (PciDevice, "numa_node", Fact, "NUMA node {}"),
    (Network, "version", Fact, "version {}"),
    (Network, "protocol", Fact, "over {}"),
    (Network, "server", Fact, "server {}"),
    (Network, "connections=1", Fact, "1 connection"),
    (Network, "connections", Fact, "{} connections"),
    (Memory, "", Fact, "files in host memory, without a drive"),
];

/// The data from which a tree's words are made.
#[derive(Clone, Copy)]
pub(crate) struct Scene<'a> {
    pub(crate) report: &'a MapReport,
    pub(crate) map: &'a PathMap,
}

impl Scene<'_> {
    /// The words of the line for these steps, the upper one first.
    pub(crate) fn words(&self, steps: &[&Layer]) -> Vec<Word> {
        let mut words: Vec<Word> = steps.iter().flat_map(|step| self.step(step)).collect();
        // What shares the line of the step above is a fact of that step.
        words
            .iter_mut()
            .skip(1)
            .filter(|word| word.tone == Tone::Name)
            .for_each(|word| word.tone = Fact);
        words
    }

    fn step(&self, step: &Layer) -> Vec<Word> {
        let name = |tone| vec![Word::new(tone, name(step))];
        let mut words = match (step.kind, step.text("drive").and_then(|id| self.report.drive(id))) {
            (Path, _) => self.path(step),
            (Mount, _) if step.name.is_empty() => vec![Word::new(Tone::Name, "unknown mount")],
            (Network | Memory, _) => name(Tone::Drive),
            (_, Some(drive)) => self.drive(step, drive),
            _ => name(Tone::Name),
        };
        let shown = SHOWN.iter().filter(|(of, ..)| *of == step.kind);
        words.extend(shown.filter_map(|(_, fact, tone, text)| {
            let value = value(step, fact)?;
            // Fewer members or lanes than there should be.
            let lacks = ["members", "link"].contains(fact) && value.contains(" of ");
            Some(Word::new(if lacks { Bad } else { *tone }, text.replace("{}", &value)))
        }));
        if step.flag("shown_above") {
            words.push(Word::new(Tone::Dim, "as above"));
        }
        words.extend(step.facts.iter().filter_map(|fact| match &fact.value {
            Value::Unknown(reason) if !NOT_MISSED.contains(&fact.name) => {
                let name = fact.name.replace('_', " ");
                Some(Word::new(Tone::Dim, format!("{name} unknown: {reason}")))
            }
            _ => None,
        }));
        words
    }

    fn path(&self, step: &Layer) -> Vec<Word> {
        let PathMap { path, real_path: real, exists, .. } = self.map;
        let linked = step.children.iter().any(|step| step.kind == Symlink);
        let mut words = vec![Word::new(Tone::Title, path)];
        words.extend(value(step, "size_bytes").map(fact));
        if let Some(Value::Unknown(_)) = step.fact("exists") {
            // The reason follows at the end of the line.
        } else if !exists {
            let there = step.text("resolved_as").unwrap_or("the folder above");
            words.push(bad(format!("does not exist; shown for `{there}`")));
        } else if path::Path::new(real) != path::Path::new(path) && !linked {
            words.push(fact(format!("is {real}")));
        }
        words
    }

    fn drive(&self, step: &Layer, drive: &Drive) -> Vec<Word> {
        if let Some(path) = another_path(self.report, step) {
            let state = path.state.as_deref().unwrap_or("not live");
            let mut words = vec![
                Word::new(Tone::Name, &step.name),
                fact(format!("another path to {}", drive.name)),
            ];
            words.extend((!path.live).then(|| bad(format!("down: {state}"))));
            return words;
        }
        let mut words = vec![Word::new(Tone::Drive, &step.name)];
        words.extend(drive.model.clone().map(fact));
        words.extend(drive.size.filter(|size| *size > 0).map(format_size).map(fact));
        words.extend(spins(drive).then(|| bad("spinning disk")));
        if drive.paths.len() > 1 {
            let live = drive.paths.iter().filter(|path| path.live).count();
            let text = format!("{live} of {} paths live", drive.paths.len());
            words.push(if live < drive.paths.len() { bad(text) } else { fact(text) });
            words.extend(step.text("path_policy").map(|policy| fact(format!("policy {policy}"))));
        }
        let transport = drive.transport();
        let is_plain =
            matches!(step.kind, NvmeNamespace | NvmeController) || *transport == Transport::Unknown;
        words.extend((!is_plain).then(|| fact(transport.to_string())));
        words.extend(distances(self.report, &drive.id));
        words
    }
}

fn fact(text: impl Into<String>) -> Word {
    Word::new(Fact, text)
}

fn bad(text: impl Into<String>) -> Word {
    Word::new(Bad, text)
}

/// The name of a step for people.
fn name(step: &Layer) -> &str {
    step.text("called").or(step.text("volume")).unwrap_or(&step.name)
}

/// A fact of [`SHOWN`] as text; `None` if it is unknown, usual or differs.
fn value(step: &Layer, fact: &str) -> Option<String> {
    let (fact, only) = fact.split_once('=').map_or((fact, None), |(fact, only)| (fact, Some(only)));
    let value = text(step, fact)?;
    let is_usual = step.kind != Symlink && USUAL.contains(&(fact, &value));
    let is_shown = only.map_or(!is_usual, |only| only == value);
    is_shown.then_some(value)
}

/// A fact as text, also of the step itself.
pub(crate) fn text(step: &Layer, fact: &str) -> Option<String> {
    Some(match (fact, step.fact(fact)) {
        ("", _) => String::new(),
        ("name", _) => step.name.clone(),
        ("volume", _) => step.text("volume").unwrap_or(&step.name).into(),
        ("device_name", _) => step.text("volume").map(|_| step.name.clone())?,
        ("members", _) => members(step),
        (_, Some(Value::Text(text))) => text.clone(),
        (_, Some(Value::Number(size))) if fact.ends_with("_bytes") => format_size(*size),
        (_, Some(Value::Number(number))) => number.to_string(),
        (_, Some(Value::List(list))) if !list.is_empty() => list.join(", "),
        (_, Some(Value::Flag(flag))) => if *flag { "yes" } else { "no" }.into(),
        _ => return None,
    })
}

/// A text with the facts of `step` in the places of their names in braces.
pub(crate) fn filled(text: &str, step: &Layer) -> String {
    // Every second part is the name of a fact.
    let parts = text.split(['{', '}']).enumerate().map(|(index, part)| match index % 2 {
        0 => part.to_owned(),
        _ => self::text(step, part).unwrap_or_else(|| "unknown".into()),
    });
    parts.collect()
}

/// The number of steps below, and of those that there should be.
fn members(step: &Layer) -> String {
    let there = step.children.len() as u64;
    match step.number("raid_disks").or(step.number("stripes")).filter(|wanted| *wanted > there) {
        Some(wanted) => format!("{there} of {wanted}"),
        None => there.to_string(),
    }
}

/// The path of a step, if the step is a second path to a drive that is already shown: the kernel
/// lists several disks for a drive.
pub(crate) fn another_path<'a>(report: &'a MapReport, step: &Layer) -> Option<&'a DrivePath> {
    let drive = report.drive(step.text("drive")?)?;
    let path = drive.paths.iter().find(|path| path.name == step.name)?;
    (drive.name != step.name).then_some(path)
}

/// Whether it is a spinning disk. The kernel reports disks of virtual machines as spinning unless
/// their host says otherwise, which few do.
pub(crate) fn spins(drive: &Drive) -> bool {
    drive.rotational == Some(true) && !drive.transport().to_string().starts_with("virtio")
}

/// The GPUs by distance from a drive, the nearest first.
fn distances(report: &MapReport, drive: &DriveId) -> impl Iterator<Item = Word> {
    const ORDER: [(&str, Tone, &str); 6] = [
        ("same_switch", Tone::Good, "same switch as {}"),
        ("same_root_port", Tone::Good, "same root port as {}"),
        ("same_socket", Tone::Fact, "same socket as {}"),
        ("across_sockets", Tone::Bad, "across sockets from {}"),
        ("network", Tone::Fact, "over the network"),
        ("unknown", Tone::Dim, "unknown distance from {}"),
    ];
    ORDER.into_iter().filter_map(move |(distance, tone, text)| {
        let pairs = report.distances.iter().filter(|pair| pair.drive == *drive);
        let gpus = pairs.filter(|pair| pair.distance.name() == distance).map(|pair| pair.gpu);
        let gpus: Vec<usize> = gpus.collect();
        (!gpus.is_empty()).then(|| Word::new(tone, text.replace("{}", &named(&gpus))))
    })
}

/// `GPU 0–3, 6`.
pub(crate) fn named(gpus: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &gpu in gpus {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == gpu => *last = gpu,
            _ => runs.push((gpu, gpu)),
        }
    }
    let runs = runs.iter().map(|(first, last)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first}–{last}"),
    });
    format!("GPU {}", runs.collect::<Vec<_>>().join(", "))
}
