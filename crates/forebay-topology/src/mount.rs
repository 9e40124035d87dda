//! The mount table (`proc_pid_mountinfo(5)`), searched by mount id.
//!
//! Only the requested lines are parsed, because a table may hold thousands. The device number is no
//! key: on btrfs and overlay a file's device number appears in no line.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::text::{device_number, option, path_of};

/// Maximum number of mounts examined in a stack at a mount point.
const STACK_MAX: usize = 64;

/// A line of the mount table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) id: u64,
    pub(super) parent: u64,
    /// The device number of the file system.
    pub(super) device: u64,
    /// The folder of the file system that is mounted.
    pub(super) subtree: PathBuf,
    pub(super) point: PathBuf,
    pub(super) options: String,
    pub(super) file_system: String,
    pub(super) source: PathBuf,
    /// The file system's own options, as the table writes them: a comma inside a value is `\054`.
    pub(super) own_options: String,
}

impl Mount {
    /// The value of the option `name` of the file system, as the table writes it.
    pub(super) fn option(&self, name: &str) -> Option<&str> {
        option(&self.own_options, name)
    }

    /// The value of the option `name` as bytes.
    pub(super) fn option_bytes(&self, name: &str) -> Option<Vec<u8>> {
        self.option(name).map(|value| unescaped(value.as_bytes()))
    }

    /// Parses a line; `None` if it is malformed.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|&byte| byte == b' ');
        let id = number(fields.next()?)?;
        let parent = number(fields.next()?)?;
        let device = device_number(std::str::from_utf8(fields.next()?).ok()?)?;
        let subtree = path(fields.next()?);
        let point = path(fields.next()?);
        let options = text(fields.next()?);
        // A variable number of optional fields precedes the dash.
        let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
        Some(Self {
            id,
            parent,
            device,
            subtree,
            point,
            options,
            file_system: text(fields.next()?),
            source: path(fields.next().unwrap_or_default()),
            own_options: String::from_utf8_lossy(fields.next().unwrap_or_default()).into_owned(),
        })
    }
}

/// The mount with this id.
pub(super) fn find(table: &[u8], id: u64) -> Option<Mount> {
    let head = format!("{id} ");
    lines(table).find(|line| line.starts_with(head.as_bytes())).and_then(Mount::parse)
}

/// All mounts with well-formed lines.
pub(super) fn all(table: &[u8]) -> impl Iterator<Item = Mount> {
    lines(table).filter_map(Mount::parse)
}

/// The mount that holds `path`, which must be absolute and free of links: the deepest mount point,
/// and the latest of several at the same point.
pub(super) fn holding(table: &[u8], path: &Path) -> Option<Mount> {
    let mut best: Option<(usize, &[u8])> = None;
    for line in lines(table) {
        let Some(point) = line.split(|&byte| byte == b' ').nth(4) else { continue };
        let point = self::path(point);
        let depth = point.components().count();
        if path.starts_with(&point) && best.is_none_or(|(most, _)| depth >= most) {
            best = Some((depth, line));
        }
    }
    best.and_then(|(_, line)| Mount::parse(line))
}

/// The mounts hidden below `mount` at the same mount point, from the top.
pub(super) fn hidden_by(table: &[u8], mount: &Mount) -> Vec<Mount> {
    let mut hidden: Vec<Mount> = Vec::new();
    while hidden.len() < STACK_MAX {
        let above = hidden.last().unwrap_or(mount);
        match find(table, above.parent) {
            Some(below) if below.point == mount.point && below.id != above.id => hidden.push(below),
            _ => break,
        }
    }
    hidden
}

fn lines(table: &[u8]) -> impl Iterator<Item = &[u8]> {
    table.split(|&byte| byte == b'\n').filter(|line| !line.is_empty())
}

fn number(field: &[u8]) -> Option<u64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

fn path(field: &[u8]) -> PathBuf {
    path_of(unescaped(field))
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(&unescaped(field)).into_owned()
}

/// Decodes `\ooo` octal escapes, which the table uses for blanks and backslashes.
pub(super) fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, more @ ..] = rest {
        let escape = match more {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] if *first == b'\\' => {
                Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'))
            }
            _ => None,
        };
        bytes.push(escape.unwrap_or(*first));
        rest = if escape.is_some() { &more[3..] } else { more };
    }
    bytes
}

/// Translates `path` below the mount point to the path inside the file system.
pub(super) fn inside(mount: &Mount, path: &Path) -> Option<PathBuf> {
    let below = path.strip_prefix(&mount.point).ok()?;
    let joined = mount.subtree.join(below);
    // A plain join ends with a slash if the path is the mount point itself.
    let bytes = joined.as_os_str().as_bytes();
    let bytes = if bytes.len() > 1 { bytes.strip_suffix(b"/").unwrap_or(bytes) } else { bytes };
    Some(path_of(bytes.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    const TABLE: &str = r"22 25 0:20 / /proc rw,relatime - proc proc rw
25 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/vda rw,discard
40 25 0:28 /sv /mnt/a\040b\134 rw - btrfs /dev/x\011y rw,subvol=/sv
41 40 0:50 / /mnt/a\040b\134 ro - tmpfs none rw
damaged
42 25 9
";

    #[test]
    fn a_mount_is_found_by_its_id() {
        let mount = find(TABLE.as_bytes(), 40).expect("it is there");
        assert_eq!(mount.point, Path::new("/mnt/a b\\"));
        assert_eq!(mount.source, Path::new("/dev/x\ty"));
        assert_eq!((mount.file_system.as_str(), mount.option("subvol")), ("btrfs", Some("/sv")));
        assert_eq!(inside(&mount, Path::new("/mnt/a b\\/f")), Some("/sv/f".into()));
        assert_eq!(inside(&mount, Path::new("/mnt/a b\\")), Some("/sv".into()));
        let root = find(TABLE.as_bytes(), 25).expect("it is there");
        assert_eq!((root.option("discard"), root.option("disc")), (Some(""), None));
        for id in [4, 42, 2, u64::MAX] {
            assert_eq!(find(TABLE.as_bytes(), id), None);
        }
    }

    #[test]
    fn the_mount_on_top_holds_a_path() {
        let mount = holding(TABLE.as_bytes(), Path::new("/mnt/a b\\/f")).expect("it is there");
        assert_eq!(mount.id, 41);
        let below = hidden_by(TABLE.as_bytes(), &mount);
        assert_eq!(below.iter().map(|m| m.id).collect::<Vec<_>>(), [40]);
        assert_eq!(holding(TABLE.as_bytes(), Path::new("/procs")).expect("the root").id, 25);
        assert_eq!(holding(b"", Path::new("/")), None);
    }

    #[test]
    fn ten_thousand_mounts_are_searched() {
        let mut table = String::new();
        for id in 1..=10_000 {
            writeln!(table, "{id} {} 0:{id} / /m rw - tmpfs t rw", id - 1).expect("text");
        }
        let mount = holding(table.as_bytes(), Path::new("/m/f")).expect("it is there");
        assert_eq!(mount.id, 10_000);
        assert_eq!(hidden_by(table.as_bytes(), &mount).len(), STACK_MAX);
        // A mount that is its own parent does not cause an endless loop.
        let own = b"7 7 0:1 / /m rw - tmpfs t rw\n";
        assert_eq!(hidden_by(own, &find(own, 7).expect("it is there")), []);
    }

    #[test]
    fn only_whole_escapes_are_escapes() {
        assert_eq!(unescaped(br"a\040b"), b"a b");
        assert_eq!(unescaped(br"\04"), br"\04");
        assert_eq!(unescaped(br"\400\\x"), br"\400\\x");
        assert_eq!(unescaped(br"\377"), b"\xff");
    }
}
