//! Rules about the steps between a path and its drives.

use super::{Found, some};
use crate::map::draw::drive_name;
use crate::map::gather::is_concatenated;
use crate::map::json::Step;
use crate::map::words::Scene;

/// All steps of these kinds.
fn of_kind<'a>(scene: &Scene<'a>, kinds: &'a [&str]) -> impl Iterator<Item = &'a Step> {
    let map = scene.map;
    map.walk().map(|(_, step)| step).filter(move |step| kinds.contains(&step.kind.as_str()))
}

/// The user-facing name of a volume.
fn called(step: &Step) -> &str {
    step.text("volume").unwrap_or(&step.name)
}

/// An array or a file system lacks members.
pub(super) fn degraded(scene: &Scene<'_>) -> Vec<Found> {
    let lacks = of_kind(scene, &["md", "file_system", "device_mapper"]);
    let lacks = lacks.filter(|step| step.flag("degraded") == Some(true)).map(|step| {
        let (what, remedy) = match step.kind.as_str() {
            "md" => ("array", format!("`mdadm --detail /dev/{}` names it", step.name)),
            "file_system" => ("file system", "`btrfs device stats` names it".to_owned()),
            _ => ("volume", "`lvs -a -o +devices` names it".to_owned()),
        };
        let name = &step.name;
        let text = format!(
            "the {what} `{name}` lacks a member, which slows it down: replace it; {remedy}"
        );
        Found::new(name, text)
    });
    lacks.collect()
}

/// An array copies or checks its members.
pub(super) fn rebuilding(scene: &Scene<'_>) -> Vec<Found> {
    let busy = of_kind(scene, &["md"]).filter_map(|step| {
        let action =
            step.text("sync_action").filter(|a| !matches!(*a, "idle" | "none" | "frozen"))?;
        let name = &step.name;
        let text = format!(
            "the array `{name}` is busy ({action}), which slows reads: wait until `/proc/mdstat` \
             shows that it is done"
        );
        Some(Found::new(name, text))
    });
    busy.collect()
}

/// The path does not answer.
pub(super) fn silent(scene: &Scene<'_>) -> Vec<Found> {
    let silent = scene.map.steps.walk().map(|(_, step)| step);
    let silent = silent.filter(|step| step.flag("silent") == Some(true)).map(|step| {
        let text = "the path does not answer, so opening a file there blocks: `forebay doctor` \
                    reports what to do";
        Found::new(&step.name, text.to_owned())
    });
    silent.collect()
}

/// A suspended volume blocks all I/O.
pub(super) fn suspended(scene: &Scene<'_>) -> Vec<Found> {
    let stopped = of_kind(scene, &["device_mapper"]);
    let stopped = stopped.filter(|step| step.flag("suspended") == Some(true)).map(|step| {
        let name = called(step);
        let text = format!(
            "the volume `{name}` is suspended, so all I/O on it blocks: `dmsetup resume {name}`"
        );
        Found::new(&step.name, text)
    });
    stopped.collect()
}

/// A file on one of several concatenated members.
pub(super) fn one_member(scene: &Scene<'_>) -> Vec<Found> {
    let steps = scene.map.walk().map(|(_, step)| step).filter(|step| is_concatenated(step));
    let found = steps.filter_map(|step| {
        let (name, count) = (called(step), step.children.len());
        let remedy = "stripe the volume over them (`lvcreate --stripes`, md level 0, btrfs data \
                      profile raid0)";
        let extents = scene.map.extents.as_ref()?;
        let text = match extents.drives.as_slice() {
            [one] if extents.unplaced.is_empty() && extents.complete => {
                let drive = drive_name(scene.report, &one.drive);
                format!(
                    "the file is on `{drive}` only, one of {count} members of `{name}`, so it has \
                     the speed of one: {remedy}"
                )
            }
            [] => format!(
                "the {count} members of `{name}` are concatenated, so a file may be on one of them \
                 only: {remedy}"
            ),
            _ => return None,
        };
        Some(Found::new(&step.name, text))
    });
    found.collect()
}

/// A volume striped over members on the same hardware.
pub(super) fn shared_hardware(scene: &Scene<'_>) -> Vec<Found> {
    let queue = &scene.map.queue;
    if queue.members.len() < 2 || queue.hardware.len() >= queue.members.len() {
        return Vec::new();
    }
    let about: Vec<String> = queue.members.iter().map(|id| drive_name(scene.report, id)).collect();
    let text = format!(
        "{} are {} physical drive{}, so striping over them gains less: use separate drives",
        some(&about),
        queue.hardware.len(),
        if queue.hardware.len() == 1 { "" } else { "s" }
    );
    vec![Found { about, text }]
}

/// A volume that the processor encrypts.
pub(super) fn encrypted_volume(scene: &Scene<'_>) -> Vec<Found> {
    let encrypts = |step: &&Step| {
        step.text("target").is_some_and(|target| target.contains("crypt"))
            || step.text("made_by") == Some("dm-crypt")
    };
    let found = of_kind(scene, &["device_mapper"]).filter(encrypts).map(|step| {
        let name = called(step);
        let text = format!(
            "`{name}` is decrypted by the processor, so its bytes cannot go directly to a GPU: \
             use a self-encrypting drive, or try \
             `cryptsetup refresh --perf-no_read_workqueue --perf-no_write_workqueue {name}`"
        );
        Found::new(&step.name, text)
    });
    found.collect()
}

/// A file that its file system encrypts.
pub(super) fn encrypted_file(scene: &Scene<'_>) -> Vec<Found> {
    if scene.map.steps.flag("encrypted") != Some(true) {
        return Vec::new();
    }
    let path = &scene.map.path;
    let text = format!(
        "`{path}` is encrypted by its file system, so the processor decrypts every byte: keep it \
         in an unencrypted folder on a self-encrypting drive"
    );
    vec![Found::new(path, text)]
}

/// A file that is compressed, or may be.
pub(super) fn compressed(scene: &Scene<'_>) -> Vec<Found> {
    let path = &scene.map.path;
    if scene.map.steps.flag("compressed") == Some(true) {
        let text = format!(
            "`{path}` is compressed by its file system, so the processor unpacks every byte: \
             run `chattr -c` and write it again, on a mount without `compress`"
        );
        return vec![Found::new(path, text)];
    }
    // One mount has one such step, whatever is below it.
    let step = of_kind(scene, &["file_system"]).find(|step| {
        let options = step.text("options").unwrap_or_default();
        options.split(',').any(|option| {
            let name = option.split('=').next().unwrap_or_default();
            matches!(name, "compress" | "compress-force" | "compress_algorithm")
                && !option.ends_with("=no")
        })
    });
    let found = step.map(|step| {
        let text = format!(
            "the {} below is mounted with compression, so the processor may have to unpack files: \
             run `chattr +m` on the folder before you write large files, or mount without \
             compression",
            step.name
        );
        Found::new(path, text)
    });
    found.into_iter().collect()
}

/// A loop device that uses the page cache.
pub(super) fn loop_device(scene: &Scene<'_>) -> Vec<Found> {
    let found = of_kind(scene, &["loop"]);
    let found = found.filter(|step| step.flag("direct_io") == Some(false)).map(|step| {
        let name = &step.name;
        let text = format!(
            "`{name}` has no direct I/O, so each byte also goes through the page cache of its \
             image: `losetup --direct-io=on /dev/{name}`"
        );
        Found::new(name, text)
    });
    found.collect()
}

/// An overlay.
pub(super) fn overlay(scene: &Scene<'_>) -> Vec<Found> {
    let found = of_kind(scene, &["file_system"]).filter(|step| step.name == "overlay").map(|step| {
        let shown = step.children.first().filter(|child| child.kind == "backing_file");
        let remedy = match shown {
            Some(file) => format!("use `{}` itself if it can be reached", file.name),
            None => "mount the folder itself, as a volume of the container".to_owned(),
        };
        let text = format!(
            "an overlay hides what is in the page cache, and copies a whole file before its first \
             write: {remedy}"
        );
        Found::new("overlay", text)
    });
    found.take(1).collect()
}

/// A file system served by a program.
pub(super) fn program(scene: &Scene<'_>) -> Vec<Found> {
    let is_program = |step: &&Step| step.text("called") == Some("FUSE") || step.name == "fuse";
    let found = of_kind(scene, &["file_system"]).filter(is_program).map(|step| {
        let source = step.text("source").unwrap_or("its source");
        let text = format!(
            "a FUSE program serves each request to `{source}`: use the file system below it, or a \
             client in the kernel"
        );
        Found::new(&step.name, text)
    });
    found.collect()
}

/// A volume that looks up the location of each piece.
pub(super) fn indirect_volume(scene: &Scene<'_>) -> Vec<Found> {
    let found = of_kind(scene, &["device_mapper"]).filter_map(|step| {
        let target = step.text("target")?;
        let kind = ["thin", "snapshot", "cache", "vdo"].into_iter().find(|k| target.contains(k))?;
        let name = called(step);
        let text = format!(
            "`{name}` looks up the place of each piece ({kind}), which scatters large files: put \
             them on a plain or striped volume"
        );
        Some(Found::new(&step.name, text))
    });
    found.collect()
}

/// A partition that begins inside a page.
pub(super) fn misaligned(scene: &Scene<'_>) -> Vec<Found> {
    let found = of_kind(scene, &["partition"]).filter_map(|step| {
        let start = step.number("start_bytes").filter(|start| start % 4096 != 0)?;
        let name = &step.name;
        let text = format!(
            "`{name}` begins at byte {start}, inside a page of its drive, so requests are split: \
             recreate it at a multiple of 1 MiB"
        );
        Some(Found::new(name, text))
    });
    found.collect()
}

/// A mount that waits for every write.
pub(super) fn synchronous(scene: &Scene<'_>) -> Vec<Found> {
    let has = |step: &Step| {
        step.text("options").unwrap_or_default().split(',').any(|option| option == "sync")
    };
    let found = of_kind(scene, &["mount"])
        .filter(|mount| has(mount) || mount.children.first().is_some_and(has))
        .map(|mount| {
            let name = &mount.name;
            let text = format!(
                "`{name}` is mounted with `sync`, so every write waits for the drive: \
                 `mount -o remount,async {name}`"
            );
            Found::new(name, text)
        });
    found.collect()
}

/// Remote storage over TCP although the machine has cards with RDMA.
pub(super) fn tcp(scene: &Scene<'_>) -> Vec<Found> {
    let Some(cards) = scene.report.rdma_devices.as_deref().filter(|cards| !cards.is_empty()) else {
        return Vec::new();
    };
    let there = format!("although this machine has {}", some(cards));
    let nfs = of_kind(scene, &["network"])
        .filter(|step| step.text("protocol").is_some_and(|protocol| protocol.starts_with("tcp")));
    let nfs = nfs.map(|step| {
        let name = &step.name;
        let text = format!(
            "`{name}` uses TCP {there} for RDMA: if the server supports RDMA, mount with \
             `proto=rdma,port=20049`"
        );
        Found::new(name, text)
    });
    let fabric = of_kind(scene, &["nvme_controller"])
        .filter(|step| step.text("transport") == Some("tcp"))
        .map(|step| {
            let name = &step.name;
            let text = format!(
                "`{name}` is NVMe over TCP {there} for RDMA: if the target supports RDMA, connect \
                 with `nvme connect --transport=rdma`"
            );
            Found::new(name, text)
        });
    nfs.chain(fabric).collect()
}

/// A single connection to a file server.
pub(super) fn one_connection(scene: &Scene<'_>) -> Vec<Found> {
    let one = of_kind(scene, &["network"]).filter(|step| {
        let over_tcp = step.text("protocol").is_some_and(|protocol| protocol.starts_with("tcp"));
        over_tcp && step.number("connections") == Some(1)
    });
    let found = one.map(|step| {
        let name = &step.name;
        let text = format!(
            "`{name}` uses one TCP connection, which one processor core serves: mount with \
             `nconnect=8`"
        );
        Found::new(name, text)
    });
    found.collect()
}
