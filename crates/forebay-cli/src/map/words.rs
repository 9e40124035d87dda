//! The words of a step in a line of the tree, from its facts.

use std::path::Path;

use forebay::units::format_size;
use forebay_measure::results::drives::{DriveFacts, PathFacts};
use forebay_topology::{Layer, LayerKind, Value};

use super::json::{MapReport, PathMap};
use super::look::{Tone, Word};

/// Facts that the tree omits if they are unknown.
const NOT_MISSED: [&str; 3] = ["numa_node", "cipher", "connections"];

/// Values that the tree omits, since they are the usual ones.
const USUAL: [(&str, &str); 4] =
    [("subvolume", "/"), ("sync_action", "idle"), ("sync_action", "none"), ("state", "live")];

/// The facts that are shown of a kind of step, in order. `{}` stands for the value.
const SHOWN: [(&str, Tone, &str, &str); 23] = [
    ("symlink", Tone::Fact, "target", "link → {}"),
    ("mount", Tone::Fact, "bind_of", "bound from {}"),
    ("mount", Tone::Fact, "hides", "over {}"),
    ("file_system", Tone::Fact, "subvolume", "subvolume {}"),
    ("file_system", Tone::Fact, "data_profile", "data {}"),
    ("file_system", Tone::Fact, MEMBERS, ""),
    ("file_system", Tone::Bad, "degraded", "degraded"),
    ("file_system", Tone::Fact, "layer", "from its {} layer"),
    ("partition", Tone::Fact, "number", "partition {}"),
    ("partition", Tone::Fact, "size_bytes", "{}"),
    ("partition", Tone::Fact, "start_bytes", "from {}"),
    ("md", Tone::Fact, "level", "array, {}"),
    ("md", Tone::Fact, MEMBERS, ""),
    ("md", Tone::Fact, "chunk_bytes", "stripes of {}"),
    ("md", Tone::Fact, "size_bytes", "{}"),
    ("md", Tone::Bad, "degraded", "degraded"),
    ("md", Tone::Bad, "sync_action", "{}"),
    ("device_mapper", Tone::Fact, "cipher", "{}"),
    ("device_mapper", Tone::Fact, "role", "{}"),
    ("device_mapper", Tone::Fact, MEMBERS, ""),
    ("device_mapper", Tone::Fact, "chunk_bytes", "stripes of {}"),
    ("device_mapper", Tone::Fact, "size_bytes", "{}"),
    ("device_mapper", Tone::Bad, "suspended", "suspended"),
];

/// The number of steps below, which is no fact of its own.
const MEMBERS: &str = "members";

/// The data from which a tree's words are made.
#[derive(Clone, Copy)]
pub(crate) struct Scene<'a> {
    pub(crate) report: &'a MapReport,
    pub(crate) map: &'a PathMap,
}

impl Scene<'_> {
    /// The words of the line for these steps, the upper one first.
    pub(crate) fn words(&self, steps: &[&Layer]) -> Vec<Word> {
        let each = steps.iter().enumerate();
        each.flat_map(|(index, step)| self.step(step, index == 0)).collect()
    }

    fn step(&self, step: &Layer, is_first: bool) -> Vec<Word> {
        let kind = step.kind.name();
        // What shares the line of the step above is a fact of that one.
        let tone = if is_first { Tone::Name } else { Tone::Fact };
        let mut words = match (kind, step.text("drive").and_then(|id| self.report.drive(id))) {
            ("path", _) => self.path(step),
            ("mount", _) if step.name.is_empty() => vec![Word::new(tone, "unknown mount")],
            ("file_system", _) => vec![Word::new(tone, step.text("called").unwrap_or(&step.name))],
            ("device_mapper", _) => device_mapper(step),
            ("loop", _) => loop_device(step),
            ("backing_file", _) => {
                let deleted = step.flag("deleted");
                vec![name(step), fact(if deleted { "file, deleted" } else { "file" })]
            }
            ("pci_device", _) => self.pci(step, tone),
            ("nvme_controller", _) => controller(step),
            ("network", _) => network(step),
            ("memory", _) => {
                let text = "files in host memory, without a drive";
                vec![Word::new(Tone::Drive, "memory"), fact(text)]
            }
            ("symlink" | "mount" | "partition" | "md", _) => vec![name(step)],
            (_, Some(drive)) => self.drive(step, drive),
            _ => vec![name(step)],
        };
        let shown = SHOWN.iter().filter(|(of, ..)| *of == kind);
        words.extend(shown.filter_map(|(_, tone, fact, text)| match *fact {
            MEMBERS => members(step),
            fact => Some(Word::new(*tone, text.replace("{}", &value(step, fact)?))),
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
        let mut words = vec![Word::new(Tone::Title, &self.map.path)];
        words.extend(value(step, "size_bytes").map(fact));
        let real = &self.map.real_path;
        let linked = step.children.iter().any(|step| step.kind == LayerKind::Symlink);
        if let Some(Value::Unknown(_)) = step.fact("exists") {
            // The reason follows at the end of the line.
        } else if !self.map.exists {
            let there = step.text("resolved_as").unwrap_or("the folder above");
            words.push(bad(format!("does not exist; shown for `{there}`")));
        } else if Path::new(real) != Path::new(&self.map.path) && !linked {
            words.push(fact(format!("is {real}")));
        }
        for (flag, tone) in [
            ("compressed", Tone::Bad),
            ("encrypted", Tone::Bad),
            ("verity", Tone::Fact),
            ("dax", Tone::Fact),
        ] {
            words.extend(step.flag(flag).then(|| Word::new(tone, flag)));
        }
        words
    }

    /// A PCI device under one of the drives.
    fn pci(&self, step: &Layer, tone: Tone) -> Vec<Word> {
        let mut words = vec![Word::new(tone, &step.name)];
        let paths = self.report.drives.iter().flat_map(|drive| &drive.paths);
        let found = paths.filter_map(|path| path.pci.as_ref()).find(|p| p.address == step.name);
        let Some(pci) = found else { return words };
        if let Some(link) = &pci.link {
            let is_below = pci.link_max.is_some_and(|max| link.is_below(&max));
            let text = link.text(pci.link_max.as_ref());
            words.push(if is_below { bad(text) } else { fact(text) });
        }
        words.extend(pci.numa_node.map(|node| fact(format!("NUMA node {node}"))));
        words
    }

    fn drive(&self, step: &Layer, drive: &DriveFacts) -> Vec<Word> {
        if let Some(path) = another_path(self.report, step) {
            let state = path.state.as_deref().unwrap_or("not live");
            let mut words = vec![name(step), fact(format!("another path to {}", drive.name))];
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
        let is_plain = step.kind.name().starts_with("nvme") || drive.transport == "unknown";
        words.extend((!is_plain).then(|| fact(&drive.transport)));
        words.extend(distances(self.report, &drive.id));
        words
    }
}

fn name(step: &Layer) -> Word {
    Word::new(Tone::Name, &step.name)
}

fn fact(text: impl Into<String>) -> Word {
    Word::new(Tone::Fact, text)
}

fn bad(text: impl Into<String>) -> Word {
    Word::new(Tone::Bad, text)
}

/// A fact as text; `None` if it is unknown, usual or not so.
fn value(step: &Layer, fact: &str) -> Option<String> {
    match step.fact(fact)? {
        Value::Text(text) => (!USUAL.contains(&(fact, text))).then(|| text.clone()),
        Value::Number(size) if fact.ends_with("_bytes") => Some(format_size(*size)),
        Value::Number(number) => Some(number.to_string()),
        Value::List(list) => (!list.is_empty()).then(|| list.join(", ")),
        Value::Flag(true) => Some(String::new()),
        _ => None,
    }
}

fn members(step: &Layer) -> Option<Word> {
    let wanted = step.number("raid_disks").or(step.number("stripes"));
    let there = step.children.len() as u64;
    match wanted {
        Some(wanted) if wanted > there => Some(bad(format!("{there} of {wanted} members"))),
        _ => (there > 1).then(|| fact(format!("{there} members"))),
    }
}

fn device_mapper(step: &Layer) -> Vec<Word> {
    let mut words = match step.text("volume") {
        Some(volume) => vec![Word::new(Tone::Name, volume), fact(&step.name)],
        None => vec![name(step)],
    };
    let (maker, target) = (step.text("made_by"), step.text("target"));
    let text = match (maker, target) {
        (Some("dm-crypt"), _) => "encrypted volume".to_owned(),
        (Some(maker), Some(target)) => format!("{maker} volume, {target}"),
        (Some(maker), None) => format!("{maker} volume"),
        (None, Some(target)) => format!("volume, {target}"),
        (None, None) => "volume".into(),
    };
    let encrypts = target.is_some_and(|target| target.contains("crypt"));
    words.push(if encrypts { bad(text) } else { fact(text) });
    words
}

fn loop_device(step: &Layer) -> Vec<Word> {
    let mut words = vec![name(step), fact("loop device")];
    words.extend(value(step, "size_bytes").map(fact));
    words.extend(match step.fact("direct_io") {
        Some(Value::Flag(true)) => Some(fact("direct I/O")),
        Some(Value::Flag(false)) => Some(bad("no direct I/O")),
        _ => None,
    });
    words
}

fn controller(step: &Layer) -> Vec<Word> {
    let mut words = vec![name(step)];
    words.extend(step.text("carried").or(step.text("transport")).map(fact));
    let state = value(step, "state");
    if step.fact("live") == Some(&Value::Flag(false)) {
        words.push(bad(state.map_or("down".into(), |state| format!("down: {state}"))));
    } else {
        words.extend(state.map(fact));
    }
    words
}

fn network(step: &Layer) -> Vec<Word> {
    let mut words = vec![Word::new(Tone::Drive, &step.name)];
    let over = step.text("protocol").map_or_else(String::new, |name| format!(" over {name}"));
    words.extend(step.text("version").map(|version| fact(format!("version {version}{over}"))));
    words.extend(step.text("server").map(|server| fact(format!("server {server}"))));
    words.extend(step.number("connections").map(|count| match count {
        1 => fact("1 connection"),
        count => fact(format!("{count} connections")),
    }));
    words
}

/// The path of a step, if the step is another path to a drive that is already shown: the kernel has
/// several disks for one drive.
pub(crate) fn another_path<'a>(report: &'a MapReport, step: &Layer) -> Option<&'a PathFacts> {
    let drive = report.drive(step.text("drive")?)?;
    let path = drive.paths.iter().find(|path| path.name == step.name)?;
    (drive.name != step.name).then_some(path)
}

/// Whether it is a spinning disk. The kernel reports disks of virtual machines as spinning unless
/// their host says otherwise, which few do.
pub(crate) fn spins(drive: &DriveFacts) -> bool {
    drive.rotational == Some(true) && !drive.transport.starts_with("virtio")
}

/// The GPUs at each distance from a drive, the nearest first.
fn distances(report: &MapReport, drive: &str) -> impl Iterator<Item = Word> {
    const ORDER: [(&str, Tone, &str); 6] = [
        ("same_switch", Tone::Good, "same switch as {}"),
        ("same_root_port", Tone::Good, "same root port as {}"),
        ("same_socket", Tone::Fact, "same socket as {}"),
        ("across_sockets", Tone::Bad, "across sockets from {}"),
        ("network", Tone::Fact, "over the network"),
        ("unknown", Tone::Dim, "unknown distance from {}"),
    ];
    ORDER.into_iter().filter_map(move |(distance, tone, text)| {
        let pairs = report.distances.iter().filter(|pair| pair.drive == drive);
        let gpus = pairs.filter(|pair| pair.distance == distance).map(|pair| pair.gpu);
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
