//! btrfs: its members and profiles, from `/sys/fs/btrfs`.
//!
//! A mount names only its first member. The file system's folder, named after its UUID, contains a
//! link to that member.

use super::map::Layer;
use super::mount::Mount;
use super::resolve::Resolve;
use super::system::{Folder, System};
use super::text::{clean, device_text, name_of};
use super::volume::{Fan, Layout, Span};

const ROOT: &str = "sys/fs/btrfs";

impl Resolve<'_> {
    pub(super) fn btrfs(&mut self, layer: &mut Layer, mount: &Mount) -> Span {
        layer.say_if("subvolume", mount.option("subvol").map(clean));
        layer.say_if(
            "compression",
            mount.option("compress").or(mount.option("compress-force")).map(clean),
        );
        let Some(folder) = folder_of(self.system, mount) else {
            layer.unknown("members", "no folder in `/sys/fs/btrfs` has the device of the mount");
            let reason = "the members of the file system are not known";
            return self.unknown_drive(layer, mount.device, reason);
        };
        let uuid = folder.name();
        layer.say("uuid", uuid.as_str());
        let profiles = profiles(&folder, "data");
        let (layout, profile) = match profiles.as_slice() {
            [one] => (Layout::of_level(one), one.clone()),
            _ => (Layout::Unknown, String::new()),
        };
        match profiles.len() {
            0 => layer.unknown("data_profile", "`allocation/data` names none"),
            1 => layer.say("data_profile", profiles[0].as_str()),
            _ => layer.say("data_profiles", profiles),
        }
        layer.say("layout", layout.name());
        layer.say_if("metadata_profile", profiles_text(&folder));
        let missing: Vec<String> = folder
            .list("devinfo")
            .unwrap_or_default()
            .into_iter()
            .filter(|id| folder.flag(format!("devinfo/{id}/missing")) == Some(true))
            .collect();
        let missing_count = missing.len();
        layer.say("degraded", missing_count > 0);
        layer.say_all("missing_members", missing);
        let members = folder.folders("devices");
        let count = members.len();
        layer.fan = fan(&profile, count, count + missing_count);
        let spans = self.members(layer, &members);
        Span::joined(spans, || format!("btrfs:{uuid}"), layout)
    }
}

/// The folder of a mounted file system in `/sys/fs/btrfs`.
fn folder_of(system: &System, mount: &Mount) -> Option<Folder> {
    let source = system.stat(&mount.source).ok().map(|stat| stat.rdev);
    let name = match source {
        Some(number) if number != 0 => {
            let link = format!("sys/dev/block/{}", device_text(number));
            system.folder(link).ok().map(|folder| folder.name())
        }
        _ => None,
    };
    // A name in `/dev` may be a link created by the device mapper's tools.
    let name = name.or_else(|| {
        let below = mount.source.strip_prefix("/").ok()?;
        let real = system.real(below).ok();
        name_of(real.as_deref().unwrap_or(below).file_name()?)
    })?;
    let folders = system.list(ROOT).ok()?;
    folders.iter().find_map(|uuid| {
        let folder = system.folder(format!("{ROOT}/{uuid}")).ok()?;
        folder.has(format!("devices/{name}")).then_some(folder)
    })
}

/// The profiles in use for this kind of bytes.
fn profiles(folder: &Folder, kind: &str) -> Vec<String> {
    let known =
        ["single", "dup", "raid0", "raid1", "raid1c3", "raid1c4", "raid10", "raid5", "raid6"];
    let path = format!("allocation/{kind}");
    let names = folder.list(&path).unwrap_or_default();
    let used = |name: &String| {
        known.contains(&name.as_str())
            && folder.number(format!("{path}/{name}/total_bytes")) != Some(0)
    };
    names.into_iter().filter(used).collect()
}

fn profiles_text(folder: &Folder) -> Option<String> {
    let profiles = profiles(folder, "metadata");
    (!profiles.is_empty()).then(|| profiles.join(", "))
}

/// The bytes per member, for `count` members of `slots`. Copies of a chunk are on different
/// members, which all serve reads.
fn fan(profile: &str, count: usize, slots: usize) -> Fan {
    match profile {
        "dup" => Fan::doubled(count),
        "raid1" | "raid10" => Fan::copied(2, slots, count),
        "raid1c3" => Fan::copied(3, slots, count),
        "raid1c4" => Fan::copied(4, slots, count),
        other => Fan::of_level(other, 1, slots, count),
    }
}
