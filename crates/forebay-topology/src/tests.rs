//! Tests on well-formed and hostile `/sys` trees.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::makedev;
use tempfile::TempDir;

use super::System;

fn write(root: &Path, path: &str, bytes: impl AsRef<[u8]>) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("a folder");
    fs::write(path, bytes).expect("a file");
}

/// A tree with the drive `nvme1n1` (259:0) and its partition `nvme1n1p2` (259:2).
fn tree() -> TempDir {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let root = dir.path();
    let drive = "sys/devices/pci0000:00/nvme/nvme1/nvme1n1";
    write(root, &format!("{drive}/dev"), "259:0\n");
    write(root, &format!("{drive}/queue/logical_block_size"), "4096\n");
    write(root, &format!("{drive}/queue/rotational"), "0\n");
    write(root, &format!("{drive}/device/model"), "Fast Drive 9000   \n");
    write(root, &format!("{drive}/nvme1n1p2/dev"), "259:2\n");
    write(root, &format!("{drive}/nvme1n1p2/partition"), "2\n");
    fs::create_dir_all(root.join("sys/dev/block")).expect("a folder");
    let target = format!("../../../{drive}");
    symlink(&target, root.join("sys/dev/block/259:0")).expect("a link");
    symlink(format!("{target}/nvme1n1p2"), root.join("sys/dev/block/259:2")).expect("a link");
    dir
}

#[test]
fn a_partition_is_served_by_its_whole_drive() {
    let dir = tree();
    let system = System::at(dir.path());
    let whole = system.drive(makedev(259, 0));
    assert_eq!(whole.name(), Some("nvme1n1"));
    assert_eq!(whole.logical_block_size(), Some(4096));
    assert_eq!(whole.rotational(), Some(false));
    assert_eq!(whole.model().as_deref(), Some("Fast Drive 9000"));
    let partition = system.drive(makedev(259, 2));
    assert_eq!(partition.name(), whole.name());
    assert_eq!(partition.logical_block_size(), Some(4096));
    assert_eq!(partition.model(), whole.model());
}

#[test]
fn a_missing_system_is_not_known() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    for root in [dir.path().to_owned(), dir.path().join("missing")] {
        let drive = System::at(root).drive(makedev(0, 44));
        assert_eq!((drive.name(), drive.logical_block_size()), (None, None));
        assert_eq!((drive.rotational(), drive.model()), (None, None));
    }
}

#[test]
fn hostile_files_are_not_known() {
    let huge = vec![b'7'; 1 << 20];
    let hostile: [&[u8]; 8] =
        [b"", b"\n", b"\0\0\0", b"\xff\xfe\x80", b"-1", b"99999999999999999999", b":", &huge];
    for bytes in hostile {
        let dir = tree();
        let drive = "sys/dev/block/259:0";
        for file in ["dev", "queue/logical_block_size", "queue/rotational", "device/model"] {
            write(dir.path(), &format!("{drive}/{file}"), bytes);
        }
        let system = System::at(dir.path());
        let partition = system.drive(makedev(259, 2));
        assert_eq!(partition.logical_block_size(), None);
        assert_eq!(partition.rotational(), None);
        let shown = partition.model().unwrap_or_default();
        assert!(shown.len() <= 128 && !shown.chars().any(char::is_control), "{shown:?}");
    }
}

#[test]
fn things_that_are_no_files_are_not_known() {
    let dir = tree();
    let folder = dir.path().join("sys/dev/block/259:0");
    for file in ["queue/logical_block_size", "queue/rotational", "device/model"] {
        fs::remove_file(folder.join(file)).expect("the file was there");
    }
    fs::create_dir(folder.join("queue/logical_block_size")).expect("a folder");
    let fifo = folder.join("queue/rotational");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .expect("a FIFO");
    symlink("model", folder.join("device/model")).expect("a link to itself");
    let drive = System::at(dir.path()).drive(makedev(259, 0));
    assert_eq!(drive.name(), Some("nvme1n1"));
    assert_eq!((drive.logical_block_size(), drive.rotational()), (None, None));
    assert_eq!(drive.model(), None);
}

#[test]
fn a_link_to_a_strange_name_has_no_name() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let block = dir.path().join("sys/dev/block");
    fs::create_dir_all(&block).expect("a folder");
    for (minor, target) in [(0, "/"), (1, ".."), (2, "x\u{1b}[2J"), (3, "two\nlines")] {
        symlink(target, block.join(format!("7:{minor}"))).expect("a link");
        let drive = System::at(dir.path()).drive(makedev(7, minor));
        assert_eq!(drive.name(), None, "{target:?}");
    }
}

#[test]
fn the_real_system_answers_for_every_block_device() {
    let Ok(entries) = fs::read_dir("/sys/dev/block") else {
        println!("skipped: no /sys/dev/block here");
        return;
    };
    for entry in entries.flatten() {
        let text = entry.file_name().into_string().expect("numbers are text");
        let (major, minor) = text.split_once(':').expect("a device number");
        let number = makedev(major.parse().expect("major"), minor.parse().expect("minor"));
        let named = System::default().drive(number).name().is_some();
        // Other tests remove their devices concurrently.
        assert!(named || !entry.path().exists(), "{text}");
    }
}
