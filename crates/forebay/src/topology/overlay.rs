//! overlayfs: which of its folders a file's bytes really lie in.
//!
//! The mount names its folders as its maker saw them, which another mount namespace may not have.
//! So the candidates are looked at first; where that is not possible, what the file itself
//! answers is compared, and a layer is named only if no other one answers alike.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use rustix::io::Errno;

use super::map::{Layer, LayerKind};
use super::mount::{self, Mount};
use super::probe::{Refusal, Stat};
use super::resolve::{Resolve, Span};
use super::system::shown;

/// Lower folders that are looked at, at most; the kernel itself allows 500.
const LOWER_MAX: usize = 512;
/// Extents that are compared.
const EXTENTS: usize = 16;

/// One of an overlay's folders.
#[derive(Debug)]
struct Part {
    name: &'static str,
    /// Where the file would lie in it.
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
        let parts = parts(mount, real);
        let found = match stat {
            // What is made in a folder is made in the upper one.
            Some(stat) if stat.kind() == FileType::Directory => {
                parts.first().filter(|p| p.name == "upper").map(|_| (0, "new files go there"))
            }
            stat => self
                .exact(stat, mount, &parts)
                .or_else(|| Some((self.by_extents(real, &parts)?, "its bytes are there")))
                .or_else(|| Some((self.alike(stat?, &parts)?, "only its files answer alike"))),
        };
        let Some((index, how)) = found else {
            let reason = "the folders of the overlay do not tell which one holds the file";
            layer.unknown("layer", reason);
            return self.unknown_drive(layer, mount.device, reason);
        };
        let part = &parts[index];
        layer.say("layer", part.name);
        layer.say("layer_found_by", how);
        let mut child = Layer::new(LayerKind::BackingFile, shown(&part.candidate));
        let stat = self.system.probe().stat(&part.candidate).ok();
        let (below, span) = self.file(&part.candidate, stat.as_ref());
        child.children.push(below);
        layer.children.push(child);
        span
    }

    /// The part that has the file, by looking at each in the order in which they hide each other.
    fn exact(
        &self,
        stat: Option<&Stat>,
        mount: &Mount,
        parts: &[Part],
    ) -> Option<(usize, &'static str)> {
        let stat = stat?;
        for (index, part) in parts.iter().enumerate() {
            let found = match self.system.probe().stat(&part.candidate) {
                Ok(found) => found,
                Err(Refusal::Errno(Errno::NOENT)) => continue,
                // What cannot be looked at may be there, so nothing below it is proven.
                Err(_) => return None,
            };
            let same = found.kind() == stat.kind() && found.size == stat.size;
            let proven = match part.name {
                // A file of which only the attributes were copied up has its bytes below.
                "upper" => mount.option("metacopy") != Some("on"),
                // A folder that was renamed has another name in the layers below; a file of one
                // of these shows its own number, unless numbers are made unique.
                _ => found.inode == stat.inode || mount.option("xino").is_some_and(|x| x != "off"),
            };
            return (same && proven).then_some((index, "the file is there"));
        }
        None
    }

    /// The part whose file has its bytes in the same places: an overlay passes FIEMAP on.
    fn by_extents(&self, real: &Path, parts: &[Part]) -> Option<usize> {
        let probe = self.system.probe();
        let own = probe.extents(real, EXTENTS).ok().filter(|extents| !extents.is_empty())?;
        let same =
            |part: &Part| probe.extents(&part.candidate, EXTENTS).ok().as_ref() == Some(&own);
        let mut matching = parts.iter().enumerate().filter(|(_, part)| same(part));
        let found = matching.next()?.0;
        matching.next().is_none().then_some(found)
    }

    /// The only part whose file system gives its files the alignment and the preferred block that
    /// this file has: an overlay passes both on from the file below.
    fn alike(&mut self, stat: &Stat, parts: &[Part]) -> Option<usize> {
        let answer = |stat: &Stat| (stat.direct, stat.block_size);
        let mut matching = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            let id = {
                let table = self.mounts().ok()?;
                mount::holding(table, &part.candidate)?.id
            };
            if answer(&self.system.probe().sample(id)?) == answer(stat) {
                matching.push((index, id));
            }
        }
        let &(index, id) = matching.first()?;
        matching.iter().all(|&(_, other)| other == id).then_some(index)
    }
}

/// The folders of an overlay, from the top, with the place of the file in each.
fn parts(mount: &Mount, real: &Path) -> Vec<Part> {
    let Some(inside) = mount::inside(mount, real) else { return Vec::new() };
    let below = inside.strip_prefix("/").unwrap_or(&inside);
    let path = |bytes: Vec<u8>| PathBuf::from(OsString::from_vec(bytes));
    let mut parts = Vec::new();
    if let Some(upper) = mount.option_bytes("upperdir") {
        parts.push(Part { name: "upper", candidate: path(upper).join(below) });
    }
    // Newer kernels name each lower folder in an option of its own, `lowerdir+=`.
    let options = mount.own_options.split(',');
    let each = options.filter_map(|option| {
        ["lowerdir+=", "datadir+="].iter().find_map(|name| option.strip_prefix(name))
    });
    let mut lower: Vec<Vec<u8>> = each.map(|value| mount::unescaped(value.as_bytes())).collect();
    if let Some(list) = mount.option_bytes("lowerdir") {
        lower.extend(split(&list));
    }
    let lower = lower.into_iter().take(LOWER_MAX);
    parts.extend(lower.map(|folder| Part { name: "lower", candidate: path(folder).join(below) }));
    parts
}

/// The folders of a list with colons between them; a colon in a name has a backslash before it.
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
    // Two colons part the folders that hold data only from those before them.
    folders.retain(|folder| !folder.is_empty());
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folders_of_an_overlay_are_told_apart() {
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
