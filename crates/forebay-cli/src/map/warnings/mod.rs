//! Warnings of settings that cost speed, with the next thing to try.
//!
//! A table of rules, which are pure functions of the report. `drives` checks drives, links and
//! GPUs.
//! A rule is silent about unknown facts.

mod drives;

use forebay_topology::{Layer, LayerKind, Value};

pub use self::drives::between_sockets;
use super::gather::is_concatenated;
use super::json::{MapReport, Warning};
use super::words::{self, Scene};

/// Most names that a warning lists.
const NAMES_MAX: usize = 4;

/// A possible problem.
pub(crate) struct Rule {
    /// Its name in JSON.
    pub(crate) name: &'static str,
    check: Check,
}

enum Check {
    /// Checks all steps of these kinds, or of any kind if there are none. The text has the step's
    /// facts in braces.
    Step(&'static [LayerKind], fn(&Scene<'_>, &Layer) -> bool, &'static str),
    /// Checks the drives and GPUs of all paths.
    Machine(fn(&MapReport) -> Vec<Found>),
}

/// A finding of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    /// The steps or drives that it is about.
    about: Vec<String>,
    text: String,
}

impl Found {
    fn new(about: &str, text: String) -> Self {
        Self { about: vec![about.to_owned()], text }
    }
}

/// Every rule, in the order in which warnings are printed: the most costly and most certain first.
pub(crate) const RULES: [Rule; 22] = [
    step(
        "silent",
        &[],
        |_, step| step.flag("silent"),
        "the path does not answer, so opening a file there blocks: `forebay doctor` reports what \
         to do",
    ),
    machine("drive_link", drives::link),
    machine("bridge", drives::bridge),
    machine("across_sockets", drives::across_sockets),
    machine("path_down", drives::path_down),
    step(
        "degraded",
        &[LayerKind::Md, LayerKind::FileSystem, LayerKind::DeviceMapper],
        |_, step| step.flag("degraded"),
        "`{name}` lacks a member, which slows it down: replace it; `mdadm --detail`, `btrfs device \
         stats` or `lvs -a -o +devices` names it",
    ),
    step(
        "rebuilding",
        &[LayerKind::Md],
        |_, step| {
            let action = step.text("sync_action").unwrap_or("idle");
            !matches!(action, "idle" | "none" | "frozen")
        },
        "the array `{name}` is busy ({sync_action}), which slows reads: wait until `/proc/mdstat` \
         shows that it is done",
    ),
    step(
        "one_member",
        &[],
        |scene, step| {
            let extents = scene.map.extents.as_ref();
            is_concatenated(step) && extents.is_some_and(|extents| extents.drives.len() < 2)
        },
        "the {members} members of `{volume}` are concatenated, so a file is on one of them, and \
         has its speed: stripe the volume (`lvcreate --stripes`, md level 0, btrfs data profile \
         raid0)",
    ),
    machine("shared_hardware", drives::shared_hardware),
    step(
        "encrypted_volume",
        &[LayerKind::DeviceMapper],
        |_, step| {
            let by_target = step.text("target").is_some_and(|target| target.contains("crypt"));
            by_target || step.text("made_by") == Some("dm-crypt")
        },
        "`{volume}` is decrypted by the processor, so its bytes cannot go directly to a GPU: use a \
         self-encrypting drive, or try `cryptsetup refresh --perf-no_read_workqueue \
         --perf-no_write_workqueue {volume}`",
    ),
    step(
        "encrypted_file",
        &[LayerKind::Path],
        |_, step| step.flag("encrypted"),
        "`{name}` is encrypted by its file system, so the processor decrypts every byte: keep it \
         in an unencrypted folder on a self-encrypting drive",
    ),
    step(
        "compressed",
        &[LayerKind::Path],
        |_, step| step.flag("compressed") && is_in_image(step),
        "`{name}` is compressed in a read-only image, so the processor unpacks every byte: unpack \
         the image, or make it without compression",
    ),
    step(
        "compressed",
        &[LayerKind::Path],
        |_, step| step.flag("compressed") && !is_in_image(step),
        "`{name}` is compressed by its file system, so the processor unpacks every byte: run \
         `chattr -c` and write it again, on a mount without `compress`",
    ),
    step(
        "compressed",
        &[LayerKind::FileSystem],
        |scene, step| !scene.map.steps.flag("compressed") && options(step).any(compresses),
        "the {name} below is mounted with compression, so the processor may have to unpack files: \
         run `chattr +m` on the folder before you write large files, or mount without compression",
    ),
    step(
        "loop_without_direct_io",
        &[LayerKind::Loop],
        |_, step| step.fact("direct_io") == Some(&Value::Flag(false)),
        "`{name}` has no direct I/O, so each byte also goes through the page cache of its image: \
         `losetup --direct-io=on /dev/{name}`",
    ),
    step(
        "overlay",
        &[LayerKind::FileSystem],
        |_, step| step.name == "overlay",
        "an overlay hides what is in the page cache, and copies a whole file before its first \
         write: use the file below it, or mount the folder itself as a volume of the container",
    ),
    step(
        "program",
        &[LayerKind::FileSystem],
        |_, step| step.text("called") == Some("FUSE") || step.name == "fuse",
        "a FUSE program serves each request to `{source}`: use the file system below it, or a \
         client in the kernel",
    ),
    step(
        "indirect_volume",
        &[LayerKind::DeviceMapper],
        |_, step| {
            let target = step.text("target").unwrap_or_default();
            ["thin", "snapshot", "cache", "vdo"].iter().any(|kind| target.contains(kind))
        },
        "`{volume}` looks up the place of each piece ({target}), which scatters large files: put \
         them on a plain or striped volume",
    ),
    step(
        "tcp",
        &[LayerKind::Network],
        |scene, step| has_rdma(scene) && is_tcp(step),
        "`{name}` uses TCP although this machine has {rdma_devices} for RDMA: if the server \
         supports RDMA, mount with `proto=rdma,port=20049`",
    ),
    step(
        "tcp",
        &[LayerKind::NvmeController],
        |scene, step| has_rdma(scene) && step.text("transport") == Some("tcp"),
        "`{name}` is NVMe over TCP although this machine has {rdma_devices} for RDMA: if the \
         target supports RDMA, connect with `nvme connect --transport=rdma`",
    ),
    step(
        "one_connection",
        &[LayerKind::Network],
        |_, step| is_tcp(step) && step.number("connections") == Some(1),
        "`{name}` uses one TCP connection, which one processor core serves: mount with \
         `nconnect=8`",
    ),
    machine("spinning", drives::spinning),
];

const fn step(
    name: &'static str,
    kinds: &'static [LayerKind],
    is_so: fn(&Scene<'_>, &Layer) -> bool,
    text: &'static str,
) -> Rule {
    Rule { name, check: Check::Step(kinds, is_so, text) }
}

const fn machine(name: &'static str, check: fn(&MapReport) -> Vec<Found>) -> Rule {
    Rule { name, check: Check::Machine(check) }
}

fn options(step: &Layer) -> impl Iterator<Item = &str> {
    step.text("options").unwrap_or_default().split(',')
}

/// Whether a file is in the image of a file system that is never written to.
fn is_in_image(step: &Layer) -> bool {
    step.walk().any(|(_, below)| {
        below.kind == LayerKind::FileSystem && ["erofs", "squashfs"].contains(&below.name.as_str())
    })
}

/// Whether a mount option compresses files.
fn compresses(option: &str) -> bool {
    let name = option.split('=').next().unwrap_or_default();
    matches!(name, "compress" | "compress-force" | "compress_algorithm") && !option.ends_with("=no")
}

fn is_tcp(step: &Layer) -> bool {
    step.text("protocol").is_some_and(|protocol| protocol.starts_with("tcp"))
}

/// Whether there are cards with RDMA.
fn has_rdma(scene: &Scene<'_>) -> bool {
    scene.report.rdma_devices.as_ref().is_some_and(|cards| !cards.is_empty())
}

/// The text of a rule with the facts of `step`.
fn filled(text: &str, scene: &Scene<'_>, step: &Layer) -> String {
    let cards = || some(scene.report.rdma_devices.as_deref().unwrap_or_default());
    words::filled(&text.replace("{rdma_devices}", &cards()), step)
}

/// The warnings of all rules. A warning of several paths is reported once, as the machine's.
pub(crate) fn all(report: &MapReport) -> Vec<Warning> {
    let mut warnings: Vec<Warning> = Vec::new();
    for rule in &RULES {
        let mut add = |path: Option<&String>, Found { about, text }| {
            let same = |other: &&mut Warning| other.rule == rule.name && other.text == text;
            let path = path.cloned();
            match warnings.iter_mut().find(same) {
                Some(known) => known.path = path.filter(|path| known.path.as_ref() == Some(path)),
                None => warnings.push(Warning { rule: rule.name.into(), path, about, text }),
            }
        };
        match rule.check {
            Check::Machine(check) => check(report).into_iter().for_each(|found| add(None, found)),
            Check::Step(kinds, is_so, text) => {
                for map in &report.maps {
                    let scene = Scene { report, map };
                    let is_of = |step: &Layer| kinds.is_empty() || kinds.contains(&step.kind);
                    let steps = map.steps.walk().map(|(_, step)| step).filter(|step| is_of(step));
                    for step in steps.filter(|step| is_so(&scene, step)) {
                        add(Some(&map.path), Found::new(&step.name, filled(text, &scene, step)));
                    }
                }
            }
        }
    }
    warnings
}

/// The first few of the names in backticks, and how many more there are.
fn some(names: &[String]) -> String {
    let shown = names.iter().take(NAMES_MAX).map(|name| format!("`{name}`")).collect::<Vec<_>>();
    match names.len().saturating_sub(NAMES_MAX) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
pub(super) mod tests;
