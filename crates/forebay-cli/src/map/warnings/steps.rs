//! Rules about the steps between a path and its drives.

use super::some;
use crate::map::draw::drive_name;
use crate::map::gather::is_concatenated;
use crate::map::json::Step;
use crate::map::words::Scene;

/// The text of a warning about a step; `None` if the step is fine, or unknown.
pub(super) type Text = Option<String>;

/// The user-facing name of a volume.
fn called(step: &Step) -> &str {
    step.text("volume").unwrap_or(&step.name)
}

fn is_set(step: &Step, flag: &str) -> Option<()> {
    (step.flag(flag) == Some(true)).then_some(())
}

fn options(step: &Step) -> impl Iterator<Item = &str> {
    step.text("options").unwrap_or_default().split(',')
}

fn is_tcp(step: &Step) -> bool {
    step.text("protocol").is_some_and(|protocol| protocol.starts_with("tcp"))
}

/// An array or a file system lacks members.
pub(super) fn degraded(_: &Scene<'_>, step: &Step) -> Text {
    is_set(step, "degraded")?;
    let name = &step.name;
    let (what, remedy) = match step.kind.as_str() {
        "md" => ("array", format!("`mdadm --detail /dev/{name}` names it")),
        "file_system" => ("file system", "`btrfs device stats` names it".to_owned()),
        _ => ("volume", "`lvs -a -o +devices` names it".to_owned()),
    };
    Some(format!("the {what} `{name}` lacks a member, which slows it down: replace it; {remedy}"))
}

/// An array copies or checks its members.
pub(super) fn rebuilding(_: &Scene<'_>, step: &Step) -> Text {
    let action = step.text("sync_action")?;
    let name = &step.name;
    (!matches!(action, "idle" | "none" | "frozen")).then(|| {
        format!(
            "the array `{name}` is busy ({action}), which slows reads: wait until `/proc/mdstat` \
             shows that it is done"
        )
    })
}

/// The path does not answer.
pub(super) fn silent(_: &Scene<'_>, step: &Step) -> Text {
    is_set(step, "silent")?;
    let text = "the path does not answer, so opening a file there blocks: `forebay doctor` \
                reports what to do";
    Some(text.into())
}

/// A suspended volume blocks all I/O.
pub(super) fn suspended(_: &Scene<'_>, step: &Step) -> Text {
    is_set(step, "suspended")?;
    let name = called(step);
    Some(format!(
        "the volume `{name}` is suspended, so all I/O on it blocks: `dmsetup resume {name}`"
    ))
}

/// A file on one of several concatenated members.
pub(super) fn one_member(scene: &Scene<'_>, step: &Step) -> Text {
    let extents = scene.map.extents.as_ref().filter(|_| is_concatenated(step))?;
    let (name, count) = (called(step), step.children.len());
    let problem = match extents.drives.as_slice() {
        [one] if extents.unplaced.is_empty() && extents.complete => format!(
            "the file is on `{}` only, one of {count} members of `{name}`, so it has the speed of \
             one",
            drive_name(scene.report, &one.drive)
        ),
        [] => format!(
            "the {count} members of `{name}` are concatenated, so a file may be on one of them only"
        ),
        _ => return None,
    };
    let remedy =
        "stripe the volume over them (`lvcreate --stripes`, md level 0, btrfs data profile raid0)";
    Some(format!("{problem}: {remedy}"))
}

/// A volume that the processor encrypts.
pub(super) fn encrypted_volume(_: &Scene<'_>, step: &Step) -> Text {
    let name = called(step);
    let by_target = step.text("target").is_some_and(|target| target.contains("crypt"));
    (by_target || step.text("made_by") == Some("dm-crypt")).then(|| {
        format!(
            "`{name}` is decrypted by the processor, so its bytes cannot go directly to a GPU: \
             use a self-encrypting drive, or try \
             `cryptsetup refresh --perf-no_read_workqueue --perf-no_write_workqueue {name}`"
        )
    })
}

/// A file that its file system encrypts.
pub(super) fn encrypted_file(_: &Scene<'_>, step: &Step) -> Text {
    is_set(step, "encrypted")?;
    Some(format!(
        "`{}` is encrypted by its file system, so the processor decrypts every byte: keep it in an \
         unencrypted folder on a self-encrypting drive",
        step.name
    ))
}

/// A file that is compressed, or may be.
pub(super) fn compressed(scene: &Scene<'_>, step: &Step) -> Text {
    let name = &step.name;
    if is_set(step, "compressed").is_some() {
        return Some(format!(
            "`{name}` is compressed by its file system, so the processor unpacks every byte: run \
             `chattr -c` and write it again, on a mount without `compress`"
        ));
    }
    let compresses = |option: &str| {
        let name = option.split('=').next().unwrap_or_default();
        matches!(name, "compress" | "compress-force" | "compress_algorithm")
            && !option.ends_with("=no")
    };
    let is_known = is_set(&scene.map.steps, "compressed").is_some();
    (!is_known && options(step).any(compresses)).then(|| {
        format!(
            "the {name} below is mounted with compression, so the processor may have to unpack \
             files: run `chattr +m` on the folder before you write large files, or mount without \
             compression"
        )
    })
}

/// A loop device that uses the page cache.
pub(super) fn loop_device(_: &Scene<'_>, step: &Step) -> Text {
    let name = &step.name;
    (step.flag("direct_io") == Some(false)).then(|| {
        format!(
            "`{name}` has no direct I/O, so each byte also goes through the page cache of its \
             image: `losetup --direct-io=on /dev/{name}`"
        )
    })
}

/// An overlay.
pub(super) fn overlay(_: &Scene<'_>, step: &Step) -> Text {
    let shown = step.children.first().filter(|child| child.kind == "backing_file");
    let remedy = match shown {
        Some(file) => format!("use `{}` itself if it can be reached", file.name),
        None => "mount the folder itself, as a volume of the container".to_owned(),
    };
    (step.name == "overlay").then(|| {
        format!(
            "an overlay hides what is in the page cache, and copies a whole file before its first \
             write: {remedy}"
        )
    })
}

/// A file system served by a program.
pub(super) fn program(_: &Scene<'_>, step: &Step) -> Text {
    let source = step.text("source").unwrap_or("its source");
    (step.text("called") == Some("FUSE") || step.name == "fuse").then(|| {
        format!(
            "a FUSE program serves each request to `{source}`: use the file system below it, or a \
             client in the kernel"
        )
    })
}

/// A volume that looks up the location of each piece.
pub(super) fn indirect_volume(_: &Scene<'_>, step: &Step) -> Text {
    let target = step.text("target")?;
    let kind = ["thin", "snapshot", "cache", "vdo"].into_iter().find(|k| target.contains(k))?;
    Some(format!(
        "`{}` looks up the place of each piece ({kind}), which scatters large files: put them on a \
         plain or striped volume",
        called(step)
    ))
}

/// A partition that begins inside a page.
pub(super) fn misaligned(_: &Scene<'_>, step: &Step) -> Text {
    let start = step.number("start_bytes").filter(|start| start % 4096 != 0)?;
    Some(format!(
        "`{}` begins at byte {start}, inside a page of its drive, so requests are split: recreate \
         it at a multiple of 1 MiB",
        step.name
    ))
}

/// A mount that waits for every write.
pub(super) fn synchronous(_: &Scene<'_>, step: &Step) -> Text {
    let name = &step.name;
    let has = |step: &Step| options(step).any(|option| option == "sync");
    (has(step) || step.children.first().is_some_and(has)).then(|| {
        format!(
            "`{name}` is mounted with `sync`, so every write waits for the drive: \
             `mount -o remount,async {name}`"
        )
    })
}

/// Remote storage over TCP although the machine has cards with RDMA.
pub(super) fn tcp(scene: &Scene<'_>, step: &Step) -> Text {
    let cards = scene.report.rdma_devices.as_deref().filter(|cards| !cards.is_empty())?;
    let (name, cards) = (&step.name, some(cards));
    if is_tcp(step) {
        return Some(format!(
            "`{name}` uses TCP although this machine has {cards} for RDMA: if the server supports \
             RDMA, mount with `proto=rdma,port=20049`"
        ));
    }
    (step.text("transport") == Some("tcp")).then(|| {
        format!(
            "`{name}` is NVMe over TCP although this machine has {cards} for RDMA: if the target \
             supports RDMA, connect with `nvme connect --transport=rdma`"
        )
    })
}

/// A single connection to a file server.
pub(super) fn one_connection(_: &Scene<'_>, step: &Step) -> Text {
    (is_tcp(step) && step.number("connections") == Some(1)).then(|| {
        format!(
            "`{}` uses one TCP connection, which one processor core serves: mount with \
             `nconnect=8`",
            step.name
        )
    })
}
