//! What may stand where a file of a system was.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, mknodat};

/// What may stand where a file was.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Damage {
    Missing,
    Empty,
    Huge,
    Binary,
    Negative,
    Text,
    Fifo,
    Folder,
    LinkToItself,
    LinkOut,
    LinkUp,
}

pub(crate) const DAMAGES: [Damage; 11] = [
    Damage::Missing,
    Damage::Empty,
    Damage::Huge,
    Damage::Binary,
    Damage::Negative,
    Damage::Text,
    Damage::Fifo,
    Damage::Folder,
    Damage::LinkToItself,
    Damage::LinkOut,
    Damage::LinkUp,
];

impl Damage {
    /// Damages what stands at `path` in the tree at `root`.
    pub(crate) fn put(self, root: &Path, path: &Path) {
        // What lay below a folder that was damaged before is gone, and a link that stands there
        // now may lead out of the tree: nothing is touched behind one.
        let mut above = path.ancestors().skip(1).take_while(|above| *above != root);
        if !above.all(|folder| folder.symlink_metadata().is_ok_and(|it| it.is_dir())) {
            return;
        }
        if path.symlink_metadata().is_ok_and(|found| found.is_dir()) {
            fs::remove_dir_all(path).expect("a folder of ours");
        } else {
            let _ = fs::remove_file(path);
        }
        match self {
            Self::Missing => {}
            Self::Empty => fs::write(path, "").expect("a file"),
            Self::Huge => fs::write(path, vec![b'7'; 1 << 20]).expect("a file"),
            Self::Binary => fs::write(path, b"\xff\xfe\0\x1b[2J\n\x80").expect("a file"),
            Self::Negative => fs::write(path, "-99999999999999999999\n").expect("a file"),
            Self::Text => fs::write(path, "259:1 / ../../.. : = \\040,\n\n").expect("a file"),
            Self::Fifo => {
                mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a FIFO");
            }
            Self::Folder => fs::create_dir(path).expect("a folder"),
            Self::LinkToItself => {
                symlink(path.file_name().expect("a name"), path).expect("a link");
            }
            Self::LinkOut => symlink("/proc/self/environ", path).expect("a link"),
            Self::LinkUp => symlink("../../../..", path).expect("a link"),
        }
    }
}

#[test]
fn nothing_behind_a_link_is_damaged() {
    let folder = tempfile::tempdir().expect("a folder");
    let (root, outside) = (folder.path().join("root"), folder.path().join("outside"));
    fs::create_dir(&root).expect("a folder");
    fs::create_dir_all(outside.join("kept")).expect("a folder");
    symlink(&outside, root.join("sys")).expect("a link");
    for damage in DAMAGES {
        damage.put(&root, &root.join("sys/kept"));
        damage.put(&root, &root.join("sys/new"));
        assert!(outside.join("kept").is_dir() && !outside.join("new").exists(), "{damage:?}");
    }
}
