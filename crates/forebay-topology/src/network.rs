//! Network and user-space file systems: a drive per mount, described with its mount options.

use super::drive::{Drive, DriveId, DriveKind, DrivePath, Transport};
use super::file_systems::Ground;
use super::map::{Layer, LayerKind};
use super::mount::Mount;
use super::nfs;
use super::resolve::Resolve;
use super::text::{clean, device_text, shown};
use super::volume::Span;

impl Resolve<'_> {
    /// Describes a mount served by a remote machine, by a program, or by drives that it hides.
    pub(super) fn remote(&mut self, layer: &mut Layer, mount: &Mount, ground: Ground) -> Span {
        let kind = clean(&mount.file_system);
        let source = shown(&mount.source);
        // Programs often use "none" as their source, so the mount's device number is part of the
        // id.
        let id = match ground {
            Ground::Network | Ground::Pool if !mount.source.as_os_str().is_empty() => {
                format!("mount:{kind}:{source}")
            }
            _ => format!("mount:{kind}:{source}:{}", device_text(mount.device)),
        };
        let (drive_kind, transport, reason) = match ground {
            Ground::Network => (DriveKind::Network, Transport::Network(kind), None),
            Ground::Host => (
                DriveKind::Network,
                Transport::Other(kind),
                Some("they are drives of this machine's host"),
            ),
            Ground::Pool => (
                DriveKind::Unknown,
                Transport::Other(kind),
                Some("its files are spread over drives that are not visible here"),
            ),
            _ => (DriveKind::Unknown, Transport::Other(kind), Some("a program serves its files")),
        };
        let mut drive = Drive::new(DriveId(id), drive_kind, source.as_str());
        drive.paths.push(DrivePath::plain(&source, transport));
        let mut child = Layer::new(LayerKind::Network, source);
        if drive_kind == DriveKind::Unknown {
            child.kind = LayerKind::Unknown;
        }
        if let Some(reason) = reason {
            child.unknown("drives", reason);
        }
        if mount.file_system.starts_with("nfs") {
            let stats = self.system.own_table("mountstats");
            nfs::describe(&mut child, mount, stats);
        } else {
            child.say_if("server", mount.option("addr").map(clean));
        }
        let span = self.found(&mut child, drive);
        layer.children.push(child);
        span
    }
}
