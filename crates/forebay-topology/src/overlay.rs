//! overlayfs: finds the layer that holds a file's bytes.
//!
//! The mount options name the folders as they were when it was mounted, and a different mount
//! namespace may lack them. So the candidate paths are tried first. If that fails, the extents and
//! attributes of the file are compared, and a layer is named only if no other layer matches.

use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use rustix::io::Errno;

use super::answers::{Extent, Refusal, Stat};
use super::map::{Layer, LayerKind};
use super::mount::{self, Mount};
use super::resolve::Resolve;
use super::text::{path_of, shown};
use super::volume::Span;

/// Maximum number of lower folders examined; the kernel allows 500.
const LOWER_MAX: usize = 512;
/// Number of extents compared.
const EXTENTS: usize = 16;
/// Flags of extents without an address: `FIEMAP_EXTENT_UNKNOWN`, which includes delayed allocation,
/// and `FIEMAP_EXTENT_DATA_INLINE` (`linux/fiemap.h`).
const NO_ADDRESS: u32 = 0x2 | 0x200;

/// A layer of an overlay.
#[derive(Debug)]
struct Part {
    name: &'static str,
    /// The file's path in this layer.
    candidate: PathBuf,
}

impl Resolve<'_> {
    pub(super) fn overlay(
        &mut self,
        layer: &mut Layer,
        real: &Path,
        stat: Option<&Stat>,
        mount: &Mount,
    ) -> Span {
        // A relative folder is relative to the mounting process's current directory, which the
        // kernel does not report. The parts above it are known, but not whether lower ones match.
        let mut parts = parts(mount, real);
        let all = parts.len();
        let known = parts.iter().take_while(|part| part.candidate.is_absolute()).count();
        parts.truncate(known);
        let compared = if known == all { parts.as_slice() } else { &[] };
        let found = match stat {
            // New entries of a folder are created in the upper layer.
            Some(stat) if stat.kind() == FileType::Directory => {
                parts.first().filter(|p| p.name == "upper").map(|_| (0, "new files go there"))
            }
            stat => self
                .exact(stat, mount, &parts)
                .or_else(|| Some((self.by_extents(real, compared)?, "its bytes are there")))
                .or_else(|| Some((self.alike(stat?, compared)?, "only its files answer alike"))),
        };
        let Some((index, how)) = found else {
            let reason = "the folders of the overlay do not show which one holds the file";
            layer.unknown("layer", reason);
            return self.unknown_drive(layer, mount.device, reason);
        };
        let part = &parts[index];
        layer.say("layer", part.name);
        layer.say("layer_found_by", how);
        let mut child = Layer::new(LayerKind::BackingFile, shown(&part.candidate));
        let stat = self.system.stat(&part.candidate).ok();
        let span = self.file(&mut child, &part.candidate, stat.as_ref());
        layer.children.push(child);
        span
    }

    /// Finds the layer that holds the file by probing the candidates from the top down.
    fn exact(
        &self,
        stat: Option<&Stat>,
        mount: &Mount,
        parts: &[Part],
    ) -> Option<(usize, &'static str)> {
        let stat = stat?;
        for (index, part) in parts.iter().enumerate() {
            let found = match self.system.stat(&part.candidate) {
                Ok(found) => found,
                Err(Refusal::Errno(Errno::NOENT)) => continue,
                // A candidate that cannot be probed may exist, so no lower layer is proven.
                Err(_) => return None,
            };
            let same = found.kind() == stat.kind() && found.size == stat.size;
            let proven = match part.name {
                // With metacopy, a file whose metadata alone was copied up keeps its data in a
                // lower layer.
                "upper" => mount.option("metacopy") != Some("on"),
                // A renamed folder keeps its old name in the lower layers. A file in a lower layer
                // shows its own inode number unless `xino` makes the numbers unique.
                _ => found.inode == stat.inode || mount.option("xino").is_some_and(|x| x != "off"),
            };
            return (same && proven).then_some((index, "the file is there"));
        }
        None
    }

    /// Finds the layer whose file shows the same extents: an overlay passes FIEMAP through.
    fn by_extents(&self, real: &Path, parts: &[Part]) -> Option<usize> {
        let probe = self.system;
        let own = probe.extents(real, EXTENTS).ok()?;
        // Bytes without a place on the drive yet are equal in all files of their length.
        let placed = |extent: &Extent| extent.flags & NO_ADDRESS == 0;
        if !own.iter().any(placed) {
            return None;
        }
        let same =
            |part: &Part| probe.extents(&part.candidate, EXTENTS).ok().as_ref() == Some(&own);
        let mut matching = parts.iter().enumerate().filter(|(_, part)| same(part));
        let found = matching.next()?.0;
        matching.next().is_none().then_some(found)
    }

    /// Finds the only layer whose file system reports the same alignment and preferred block size:
    /// an overlay passes both through from the lower file.
    fn alike(&mut self, stat: &Stat, parts: &[Part]) -> Option<usize> {
        let answer = |stat: &Stat| (stat.direct, stat.block_size);
        let mut matching = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            let id = {
                let table = self.mounts().ok()?;
                mount::holding(table, &part.candidate)?.id
            };
            if answer(&self.system.sample(id)?) == answer(stat) {
                matching.push((index, id));
            }
        }
        let &(index, id) = matching.first()?;
        matching.iter().all(|&(_, other)| other == id).then_some(index)
    }
}

/// The layers of an overlay from the top, with the file's paths in them.
fn parts(mount: &Mount, real: &Path) -> Vec<Part> {
    let Some(inside) = mount::inside(mount, real) else { return Vec::new() };
    let below = inside.strip_prefix("/").unwrap_or(&inside);
    let mut parts = Vec::new();
    if let Some(upper) = mount.option_bytes("upperdir") {
        parts.push(Part { name: "upper", candidate: path_of(upper).join(below) });
    }
    // Newer kernels list the lower folders in separate `lowerdir+=` options.
    let options = mount.own_options.split(',');
    let each = options.filter_map(|option| {
        ["lowerdir+=", "datadir+="].iter().find_map(|name| option.strip_prefix(name))
    });
    let mut lower: Vec<Vec<u8>> = each.map(|value| mount::unescaped(value.as_bytes())).collect();
    if let Some(list) = mount.option_bytes("lowerdir") {
        lower.extend(split(&list));
    }
    let lower = lower.into_iter().take(LOWER_MAX);
    parts
        .extend(lower.map(|folder| Part { name: "lower", candidate: path_of(folder).join(below) }));
    parts
}

/// Splits a colon-separated list of folders; a backslash escapes a colon in a name.
fn split(list: &[u8]) -> Vec<Vec<u8>> {
    let mut folders = vec![Vec::new()];
    let mut bytes = list.iter().copied();
    while let Some(byte) = bytes.next() {
        let last = folders.last_mut().expect("there is always one");
        match byte {
            b'\\' => last.extend(bytes.next()),
            b':' => folders.push(Vec::new()),
            byte => last.push(byte),
        }
    }
    // Two colons separate the data-only folders from the rest.
    folders.retain(|folder| !folder.is_empty());
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folders_of_an_overlay_are_distinguished() {
        let options = r"rw,lowerdir=/l\134:1:/l\0542,upperdir=/u,workdir=/w";
        let line = format!("49 25 0:31 /a /mnt/ovl rw - overlay overlay {options}");
        let mount = mount::find(line.as_bytes(), 49).expect("a line");
        let parts = parts(&mount, Path::new("/mnt/ovl/b"));
        let shown: Vec<_> =
            parts.iter().map(|p| (p.name, p.candidate.to_str().expect("text"))).collect();
        assert_eq!(shown, [("upper", "/u/a/b"), ("lower", "/l:1/a/b"), ("lower", "/l,2/a/b")]);
    }

    #[test]
    fn damaged_lists_are_split_all_the_same() {
        assert_eq!(split(b""), Vec::<Vec<u8>>::new());
        assert_eq!(split(b"::"), Vec::<Vec<u8>>::new());
        assert_eq!(split(b"a\\"), [b"a".to_vec()]);
        assert_eq!(split(b"a::b"), [b"a".to_vec(), b"b".to_vec()]);
    }
}
