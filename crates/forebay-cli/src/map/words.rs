//! The words of a step in a line of the tree, from its facts.

use std::path::Path;

use forebay::units::format_size;

use super::json::{MapReport, PathMap, Step, Value};
use super::look::{Tone, Word};
use crate::report::drives::{DriveFacts, PathFacts, PciFacts};

/// Facts that the tree omits if they are unknown.
const NOT_MISSED: [&str; 3] = ["numa_node", "cipher", "connections"];

/// The data from which a tree's words are made.
#[derive(Clone, Copy)]
pub(crate) struct Scene<'a> {
    pub(crate) report: &'a MapReport,
    pub(crate) map: &'a PathMap,
}

impl Scene<'_> {
    /// The words of the line for these steps, the upper one first.
    pub(crate) fn words(&self, steps: &[&Step]) -> Vec<Word> {
        let mut words = Vec::new();
        for (index, step) in steps.iter().enumerate() {
            self.step(step, index == 0, &mut words);
        }
        words
    }

    fn step(&self, step: &Step, is_first: bool, words: &mut Vec<Word>) {
        let mut line = Line { step, words };
        match step.kind.as_str() {
            "path" => self.path(&mut line),
            "symlink" => {
                line.name(&step.name);
                line.fact(step.text("target").map(|target| format!("link → {target}")));
            }
            "mount" => mount(&mut line),
            "file_system" => file_system(&mut line, is_first),
            "partition" => {
                line.name(&step.name);
                line.fact(Some(match step.number("number") {
                    Some(number) => format!("partition {number}"),
                    None => "partition".into(),
                }));
                line.size();
                let start =
                    step.number("start_bytes").map(|at| format!("from {}", format_size(at)));
                line.fact(start);
            }
            "md" => md(&mut line),
            "device_mapper" => device_mapper(&mut line),
            "loop" => {
                line.name(&step.name);
                line.fact(Some("loop device".into()));
                line.size();
                match step.flag("direct_io") {
                    Some(true) => line.fact(Some("direct I/O".into())),
                    Some(false) => line.bad(Some("no direct I/O".into())),
                    None => {}
                }
            }
            "backing_file" => {
                line.name(&step.name);
                let deleted = step.flag("deleted") == Some(true);
                line.fact(Some(if deleted { "file, deleted" } else { "file" }.into()));
            }
            "pci_device" => match self.pci(&step.name) {
                Some(pci) => pci_words(&mut line, pci, is_first),
                None => line.name_or_fact(&step.name, is_first),
            },
            "nvme_controller" => controller(&mut line),
            "network" => network(&mut line),
            "memory" => {
                line.drive("memory");
                line.fact(Some("files in host memory, without a drive".into()));
            }
            _ => match step.text("drive").and_then(|id| self.report.drive(id)) {
                Some(drive) => self.drive(&mut line, drive),
                None => line.name(&step.name),
            },
        }
        line.end();
    }

    fn path(&self, line: &mut Line<'_, '_>) {
        line.word(Tone::Title, &self.map.path);
        line.size();
        let real = &self.map.real_path;
        let linked = line.step.children.iter().any(|step| step.kind == "symlink");
        if let Some(Value::Unknown { .. }) = line.step.facts.get("exists") {
            // The reason follows at the end of the line.
        } else if !self.map.exists {
            let there = line.step.text("resolved_as").unwrap_or("the folder above");
            line.bad(Some(format!("does not exist; shown for `{there}`")));
        } else if Path::new(real) != Path::new(&self.map.path) && !linked {
            line.fact(Some(format!("is {real}")));
        }
        for flag in ["compressed", "encrypted", "verity", "dax"] {
            if line.step.flag(flag) == Some(true) {
                let tone =
                    if matches!(flag, "compressed" | "encrypted") { Tone::Bad } else { Tone::Fact };
                line.word(tone, flag);
            }
        }
    }

    /// A PCI device under one of the drives.
    fn pci(&self, address: &str) -> Option<&PciFacts> {
        let paths = self.report.drives.iter().flat_map(|drive| &drive.paths);
        paths.filter_map(|path| path.pci.as_ref()).find(|pci| pci.address == address)
    }

    fn drive(&self, line: &mut Line<'_, '_>, drive: &DriveFacts) {
        if let Some(path) = another_path(self.report, line.step) {
            line.name(&line.step.name);
            line.fact(Some(format!("another path to {}", drive.name)));
            let state = path.state.as_deref().unwrap_or("not live");
            line.bad(Some(format!("down: {state}")).filter(|_| !path.live));
            return;
        }
        line.drive(&line.step.name);
        line.fact(drive.model.clone());
        line.fact(drive.size.filter(|size| *size > 0).map(format_size));
        if spins(drive) {
            line.bad(Some("spinning disk".into()));
        }
        if drive.paths.len() > 1 {
            let live = drive.paths.iter().filter(|path| path.live).count();
            let text = format!("{live} of {} paths live", drive.paths.len());
            line.word(if live < drive.paths.len() { Tone::Bad } else { Tone::Fact }, &text);
            line.fact(line.step.text("path_policy").map(|policy| format!("policy {policy}")));
        }
        if !line.step.kind.starts_with("nvme") {
            line.fact(Some(drive.transport.clone()).filter(|text| text != "unknown"));
        }
        for (distance, gpus) in distances(self.report, &drive.id) {
            let tone = match distance {
                "same_switch" | "same_root_port" => Tone::Good,
                "across_sockets" => Tone::Bad,
                "unknown" => Tone::Dim,
                _ => Tone::Fact,
            };
            line.word(tone, &away(distance, &gpus));
        }
    }
}

/// The path of a step, if the step is another path to a drive that is already shown: the kernel has
/// several disks for one drive.
pub(crate) fn another_path<'a>(report: &'a MapReport, step: &Step) -> Option<&'a PathFacts> {
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
fn distances<'a>(report: &'a MapReport, drive: &str) -> Vec<(&'a str, Vec<usize>)> {
    const ORDER: [&str; 6] =
        ["same_switch", "same_root_port", "same_socket", "across_sockets", "network", "unknown"];
    let pairs = || report.distances.iter().filter(|pair| pair.drive == drive);
    let groups = ORDER.iter().map(|distance| {
        let gpus = pairs().filter(|pair| pair.distance == *distance).map(|pair| pair.gpu);
        (*distance, gpus.collect::<Vec<_>>())
    });
    groups.filter(|(_, gpus)| !gpus.is_empty()).collect()
}

fn away(distance: &str, gpus: &[usize]) -> String {
    let gpus = named(gpus);
    match distance {
        "same_switch" => format!("same switch as {gpus}"),
        "same_root_port" => format!("same root port as {gpus}"),
        "same_socket" => format!("same socket as {gpus}"),
        "across_sockets" => format!("across sockets from {gpus}"),
        "network" => "over the network".into(),
        _ => format!("unknown distance from {gpus}"),
    }
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

/// The word for a distance in a table.
pub(crate) fn distance_text(distance: &str) -> String {
    distance.replace('_', " ")
}

/// One line in the making.
struct Line<'s, 'w> {
    step: &'s Step,
    words: &'w mut Vec<Word>,
}

impl Line<'_, '_> {
    fn word(&mut self, tone: Tone, text: &str) {
        self.words.push(Word::new(tone, text));
    }

    fn name(&mut self, name: &str) {
        self.word(Tone::Name, name);
    }

    fn drive(&mut self, name: &str) {
        self.word(Tone::Drive, name);
    }

    fn fact(&mut self, text: Option<String>) {
        self.words.extend(text.map(|text| Word::new(Tone::Fact, text)));
    }

    fn bad(&mut self, text: Option<String>) {
        self.words.extend(text.map(|text| Word::new(Tone::Bad, text)));
    }

    fn name_or_fact(&mut self, text: &str, is_name: bool) {
        self.word(if is_name { Tone::Name } else { Tone::Fact }, text);
    }

    fn size(&mut self) {
        self.fact(self.step.number("size_bytes").map(format_size));
    }

    fn pieces(&mut self) {
        let len = self.step.number("chunk_bytes");
        self.fact(len.map(|len| format!("stripes of {}", format_size(len))));
    }

    fn members(&mut self, wanted: Option<u64>) {
        let there = self.step.children.len() as u64;
        match wanted.filter(|wanted| *wanted > there) {
            Some(wanted) => self.bad(Some(format!("{there} of {wanted} members"))),
            None if there > 1 => self.fact(Some(format!("{there} members"))),
            None => {}
        }
    }

    fn degraded(&mut self) {
        if self.step.flag("degraded") == Some(true) {
            self.bad(Some("degraded".into()));
        }
    }

    /// Adds the words that any line may end with: steps already shown above, and unknown facts.
    fn end(&mut self) {
        if self.step.flag("shown_above") == Some(true) {
            self.word(Tone::Dim, "as above");
        }
        for (name, value) in &self.step.facts {
            if let Value::Unknown { unknown } = value
                && !NOT_MISSED.contains(&name.as_str())
            {
                let name = name.replace('_', " ");
                self.words.push(Word::new(Tone::Dim, format!("{name} unknown: {unknown}")));
            }
        }
    }
}

fn mount(line: &mut Line<'_, '_>) {
    let step = line.step;
    match step.name.as_str() {
        "" => line.name("unknown mount"),
        point => line.name(point),
    }
    line.fact(step.text("bind_of").map(|folder| format!("bound from {folder}")));
    let hidden = step.list("hides");
    if !hidden.is_empty() {
        line.fact(Some(format!("over {}", hidden.join(", "))));
    }
}

fn file_system(line: &mut Line<'_, '_>, is_first: bool) {
    let step = line.step;
    let name = step.text("called").unwrap_or(&step.name);
    line.name_or_fact(name, is_first);
    line.fact(step.text("subvolume").filter(|s| *s != "/").map(|s| format!("subvolume {s}")));
    let profile = step.text("data_profile").map(|profile| format!("data {profile}"));
    line.fact(profile);
    line.members(None);
    line.degraded();
    line.fact(step.text("layer").map(|layer| format!("from its {layer} layer")));
}

fn md(line: &mut Line<'_, '_>) {
    let step = line.step;
    line.name(&step.name);
    line.fact(Some(match step.text("level") {
        Some(level) => format!("array, {level}"),
        None => "array".into(),
    }));
    line.members(step.number("raid_disks"));
    line.pieces();
    line.size();
    line.degraded();
    line.bad(step.text("sync_action").filter(|a| !matches!(*a, "idle" | "none")).map(Into::into));
}

fn device_mapper(line: &mut Line<'_, '_>) {
    let step = line.step;
    match step.text("volume") {
        Some(volume) => {
            line.name(volume);
            line.fact(Some(step.name.clone()));
        }
        None => line.name(&step.name),
    }
    let maker = step.text("made_by");
    let target = step.text("target");
    let encrypts = target.is_some_and(|target| target.contains("crypt"));
    let text = match (maker, target) {
        (Some("dm-crypt"), _) => Some("encrypted volume".to_owned()),
        (Some(maker), Some(target)) => Some(format!("{maker} volume, {target}")),
        (Some(maker), None) => Some(format!("{maker} volume")),
        (None, Some(target)) => Some(format!("volume, {target}")),
        (None, None) => Some("volume".into()),
    };
    if encrypts {
        line.bad(text)
    } else {
        line.fact(text)
    }
    line.fact(step.text("cipher").map(str::to_owned));
    line.fact(step.text("role").map(str::to_owned));
    line.members(step.number("stripes"));
    line.pieces();
    line.size();
    if step.flag("suspended") == Some(true) {
        line.bad(Some("suspended".into()));
    }
}

fn controller(line: &mut Line<'_, '_>) {
    let step = line.step;
    line.name(&step.name);
    let carried = step.text("carried").or(step.text("transport"));
    line.fact(carried.map(str::to_owned));
    match step.flag("live") {
        Some(false) => line.bad(Some(match step.text("state") {
            Some(state) => format!("down: {state}"),
            None => "down".into(),
        })),
        _ => line.fact(step.text("state").filter(|state| *state != "live").map(str::to_owned)),
    }
}

fn pci_words(line: &mut Line<'_, '_>, pci: &PciFacts, is_first: bool) {
    line.name_or_fact(&pci.address, is_first);
    if let Some(link) = &pci.link {
        let is_below = pci.link_max.is_some_and(|max| link.is_below(&max));
        let text = link.text(pci.link_max.as_ref());
        line.word(if is_below { Tone::Bad } else { Tone::Fact }, &text);
    }
    line.fact(pci.numa_node.map(|node| format!("NUMA node {node}")));
}

fn network(line: &mut Line<'_, '_>) {
    let step = line.step;
    line.drive(&step.name);
    let protocol = step.text("protocol");
    let version = step.text("version").map(|version| match protocol {
        Some(protocol) => format!("version {version} over {protocol}"),
        None => format!("version {version}"),
    });
    line.fact(version);
    line.fact(step.text("server").map(|server| format!("server {server}")));
    line.fact(step.number("connections").map(|count| match count {
        1 => "1 connection".to_owned(),
        count => format!("{count} connections"),
    }));
}
