//! The report for people: a tree per path, then the GPUs and how far the drives are.

use std::collections::HashSet;

use forebay::units::format_size;
use forebay_measure::failure::lower;
use forebay_topology::{Layer, LayerKind};

use super::ceilings;
use super::json::{Extents, Gpu, MapReport, PathMap};
use super::look::{Look, Tone, Word};
use super::words::{Scene, named};

/// Most steps that are drawn of a path.
const STEPS_MAX: usize = 600;
/// Most nested steps that are drawn.
const DEPTH_MAX: usize = 48;

/// The whole report.
pub(crate) fn render(report: &MapReport, look: Look) -> String {
    let mut out = String::new();
    if let Some(dir) = &report.replay {
        let text = format!("replay of the record in {dir}, not of this machine");
        look.line(&mut out, "", "", &[Word::new(Tone::Bad, text)]);
        out.push('\n');
    }
    for map in &report.maps {
        Tree { scene: Scene { report, map }, look, left: STEPS_MAX, warned: warned(report, map) }
            .draw(&mut out);
        if let Some(extents) = &map.extents {
            draw_extents(report, extents, look, &mut out);
        }
        out.push('\n');
    }
    if !report.maps.is_empty() {
        draw_gpus(report, look, &mut out);
        ceilings::draw(report, look, &mut out);
    }
    out
}

/// Steps that a warning is about.
fn warned<'a>(report: &'a MapReport, map: &PathMap) -> HashSet<&'a str> {
    let ours = report.warnings.iter().filter(|warning| match &warning.path {
        Some(path) => *path == map.path,
        // The drives' lines already show their distances from the GPUs.
        None => warning.rule != "across_sockets",
    });
    ours.flat_map(|warning| warning.about.iter().map(String::as_str)).collect()
}

struct Tree<'a> {
    scene: Scene<'a>,
    look: Look,
    left: usize,
    warned: HashSet<&'a str>,
}

impl Tree<'_> {
    fn draw(mut self, out: &mut String) {
        let root = &self.scene.map.steps;
        let words = self.scene.words(&[root]);
        self.look.line(out, "", "│  ", &words);
        self.below(out, &root.children, "", 1);
        if self.left == 0 {
            let more = root.walk().count().saturating_sub(STEPS_MAX);
            let text = format!("… about {more} more steps; `--format json` has all of them");
            self.look.line(out, "", "", &[Word::new(Tone::Dim, text)]);
        }
        self.queue(out);
    }

    fn below(&mut self, out: &mut String, steps: &[Layer], lead: &str, depth: usize) {
        let look = self.look;
        for (index, step) in steps.iter().enumerate() {
            if self.left == 0 {
                return;
            }
            let is_last = index + 1 == steps.len();
            let branch = if is_last { "└─ " } else { "├─ " };
            if depth == DEPTH_MAX {
                let text = "… deeper steps are left out; `--format json` has all of them";
                let lead = format!("{lead}{branch}");
                look.line(out, &lead, &lead, &[Word::new(Tone::Dim, text)]);
                return;
            }
            let line = one_line(step);
            self.left = self.left.saturating_sub(line.len());
            let children = &line.last().expect("a line has a step").children;
            let next = format!("{lead}{}", if is_last { "   " } else { "│  " });
            let mut words = self.scene.words(&line);
            if line.iter().any(|step| self.warned.contains(step.name.as_str())) {
                words.push(Word::new(Tone::Bad, "(!)"));
            }
            let mark = if words[0].tone == Tone::Drive { "● " } else { "" };
            // If the line continues below, it keeps the bar of its children.
            let more = if children.is_empty() { "   " } else { "│  " };
            look.line(out, &format!("{lead}{branch}{mark}"), &format!("{next}{more}"), &words);
            self.below(out, children, &next, depth + 1);
        }
    }

    fn queue(&self, out: &mut String) {
        let map = self.scene.map;
        let names = map.queue.members.iter().map(|id| drive_name(self.scene.report, id.as_str()));
        let names: Vec<String> = names.collect();
        let text = match (names.as_slice(), map.queue.layout.name()) {
            ([], _) => "of unknown drives".to_owned(),
            // A loop device is a queue of its own, whatever its image is stored on.
            ([one], _) if map.queue.id.as_str() != map.queue.members[0].as_str() => {
                format!("its own, above {one}")
            }
            ([one], _) => one.clone(),
            (several, "single") => format!("its own, above {} drives", several.len()),
            (several, "unknown") => format!("one for {} drives", several.len()),
            (several, layout) => {
                format!("one for {} drives, {}", several.len(), layout.replace('_', " "))
            }
        };
        let words = [Word::new(Tone::Name, "I/O queue"), Word::new(Tone::Fact, text)];
        self.look.line(out, "", "           ", &words);
    }
}

/// The steps that share a line with `step`: a mount and its file system, a controller and its PCI
/// device.
fn one_line(step: &Layer) -> Vec<&Layer> {
    const SHARED: [(LayerKind, LayerKind); 2] = [
        (LayerKind::Mount, LayerKind::FileSystem),
        (LayerKind::NvmeController, LayerKind::PciDevice),
    ];
    let line = std::iter::successors(Some(step), |step| match &*step.children {
        [child] if SHARED.contains(&(step.kind, child.kind)) => Some(child),
        _ => None,
    });
    line.collect()
}

/// The user-facing name of the drive with this id.
pub(crate) fn drive_name(report: &MapReport, id: &str) -> String {
    report.drive(id).map_or_else(|| id.to_owned(), |drive| drive.name.clone())
}

fn draw_extents(report: &MapReport, extents: &Extents, look: Look, out: &mut String) {
    let head = |text: String| vec![Word::new(Tone::Name, "bytes"), Word::new(Tone::Fact, text)];
    let lead = "       ";
    if let Some(reason) = &extents.refused {
        look.line(out, "", lead, &head(format!("location unknown: {}", lower(reason))));
        return;
    }
    let s = if extents.count == 1 { "" } else { "s" };
    let first = if extents.complete { "" } else { "the first " };
    let text = format!("{} in {first}{} extent{s}", format_size(extents.bytes), extents.count);
    look.line(out, "", lead, &head(text));
    #[expect(clippy::cast_precision_loss, reason = "a share of four digits")]
    let share = |bytes: u64| bytes as f64 / extents.bytes.max(1) as f64 * 100.0;
    let mut row = |name: &str, bytes: u64, rest: String| {
        let facts = [format_size(bytes), format!("{:.1} %", share(bytes)), rest];
        let mut words = vec![Word::new(Tone::Drive, name)];
        words.extend(facts.map(|text| Word::new(Tone::Fact, text)));
        look.line(out, lead, lead, &words);
    };
    for on in &extents.drives {
        let s = if on.runs == 1 { "" } else { "s" };
        row(&drive_name(report, on.drive.as_str()), on.bytes, format!("{} run{s}", on.runs));
    }
    for (reason, bytes) in &extents.unplaced {
        row("(unknown)", *bytes, reason.clone());
    }
}

fn draw_gpus(report: &MapReport, look: Look, out: &mut String) {
    if report.gpus.is_empty() {
        let none = "none on PCI, so there are no distances";
        let words = [Word::new(Tone::Name, "GPUs"), Word::new(Tone::Fact, none)];
        look.line(out, "", "      ", &words);
        return;
    }
    for gpu in &report.gpus {
        look.line(out, "", "       ", &gpu_words(gpu));
    }
}

fn gpu_words(gpu: &Gpu) -> Vec<Word> {
    let mut words = vec![Word::new(Tone::Drive, named(&[gpu.index]))];
    let mut fact = |text: Option<String>| words.extend(text.map(|t| Word::new(Tone::Fact, t)));
    let id = gpu.pci.vendor.zip(gpu.pci.device);
    let id = id.map(|(vendor, device)| format!("device {vendor:04x}:{device:04x}"));
    fact(gpu.name.clone().or(id));
    fact(Some(gpu.pci.address.clone()));
    if let Some(link) = &gpu.pci.link {
        let rests = gpu.pci.link_max.is_some_and(|max| link.is_below(&max));
        let text = link.text(gpu.pci.link_max.as_ref());
        fact(Some(if rests { format!("{text}, at rest") } else { text }));
    }
    fact(gpu.pci.numa_node.map(|node| format!("NUMA node {node}")));
    fact(gpu.bar1_size.map(|size| format!("BAR1 {}", format_size(size))));
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::warnings::tests::map_of;
    use forebay_topology::{DrivePath, Transport, Value};

    const WIDE: Look = Look(usize::MAX);

    fn of(children: Vec<Layer>) -> MapReport {
        MapReport { maps: vec![map_of("/x", children)], ..MapReport::default() }
    }

    fn drawn(report: &MapReport, look: Look) -> String {
        anstream::adapter::strip_str(&render(report, look)).to_string()
    }

    fn step(kind: LayerKind, name: impl Into<String>, children: Vec<Layer>) -> Layer {
        let mut layer = Layer::new(kind, name);
        layer.children = children;
        layer
    }

    #[test]
    fn a_wide_map_is_cut_with_a_note() {
        let many = (0..10_000).map(|index| Layer::new(LayerKind::Stacked, format!("d{index}")));
        let text = drawn(&of(many.collect()), WIDE);
        assert!(text.lines().count() < STEPS_MAX + 10);
        assert!(
            text.contains("… about 9401 more steps; `--format json` has all of them"),
            "{text}"
        );
    }

    #[test]
    fn a_deep_map_is_cut_with_a_note() {
        let mut deep = Layer::new(LayerKind::Stacked, "bottom");
        for index in 0..10_000 {
            deep = step(LayerKind::Stacked, format!("d{index}"), vec![deep]);
        }
        let mut report = of(vec![deep]);
        let text = drawn(&report, Look(80));
        assert!(text.contains("… deeper steps are left out"), "{text}");
        assert!(text.lines().count() < DEPTH_MAX + 10);
        // Freed iteratively: the compiler's drop recurses once per step.
        let mut rest = std::mem::take(&mut report.maps[0].steps.children);
        while let Some(mut step) = rest.pop() {
            rest.append(&mut step.children);
        }
    }

    #[test]
    fn facts_from_anywhere_are_harmless() {
        let mut hostile = Layer::new(LayerKind::Stacked, "a\nb");
        hostile.say("device", Value::Unknown("\u{1b}[2J".into()));
        let text = drawn(&of(vec![hostile]), WIDE);
        assert!(text.contains(r"└─ a\nb  device unknown: \u{1b}[2J"), "{text}");
    }

    #[test]
    fn two_disks_of_the_kernel_that_are_one_drive_are_marked_once() {
        let mut drive = crate::facts::drive();
        drive.name = "sda".into();
        let path = |name: &str, live, state: &str| DrivePath {
            name: name.into(),
            live,
            transport: Transport::Pcie,
            state: Some(state.into()),
            ..DrivePath::default()
        };
        drive.paths = vec![path("sda", true, "running"), path("sdb", false, "offline")];
        let disk = |name: &str| {
            let mut disk = Layer::new(LayerKind::ScsiDisk, name);
            disk.say("drive", drive.id.as_str());
            disk
        };
        let volume = step(LayerKind::Stacked, "mpatha", vec![disk("sda"), disk("sdb")]);
        let mut report = of(vec![volume]);
        report.drives = vec![drive.clone()];
        let text = drawn(&report, WIDE);
        let (_, tree) = text.split_once('\n').unwrap();
        let (tree, _) = tree.split_once("\nI/O queue").unwrap();
        insta::assert_snapshot!(tree, @"
        └─ mpatha
           ├─ ● sda  Fast One · 1 of 2 paths live · pcie
           └─ sdb  another path to sda · down: offline
        ");
    }
}
