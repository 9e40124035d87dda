//! A report that is written over another: its owner and its access rights stay.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};

use super::forebay;
use super::made::{self, Sweep};
use crate::bench::faults::Small;
use crate::lab::or_skip;

const REPLACE: [&str; 5] = ["results", "--format=csv", "-o", "page", "--overwrite"];

#[test]
fn an_overwritten_report_keeps_its_owner_and_mode() {
    let (folder, _) = super::folder(&made::file(&Sweep::default()));
    let page = folder.path().join("page");
    fs::write(&page, "old").unwrap();
    fs::set_permissions(&page, Permissions::from_mode(0o640)).unwrap();
    if let Err(error) = chown(&page, Some(61_001), Some(62_001)) {
        println!("skipped: files of other users: {error}");
    }
    let of = |path| fs::metadata(path).map(|at| (at.ino(), at.uid(), at.gid(), at.mode())).unwrap();
    let before = of(&page);
    let output = forebay(folder.path(), &REPLACE);
    assert!(output.status.success(), "{output:?}");
    assert!(fs::read_to_string(&page).unwrap().starts_with("label,"));
    assert_eq!(of(&page), before);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn a_link_is_not_followed() {
    let (folder, _) = super::folder(&made::file(&Sweep::default()));
    fs::write(folder.path().join("other"), "old").unwrap();
    symlink("other", folder.path().join("page")).unwrap();
    let output = forebay(folder.path(), &REPLACE);
    let talk = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && talk.contains("only a regular file"), "{talk}");
    assert_eq!(fs::read_to_string(folder.path().join("other")).unwrap(), "old");
}

#[test]
fn a_full_disk_leaves_the_old_report() {
    let (folder, _) = super::folder(&made::file(&Sweep::default()));
    let small = folder.path().join("small");
    let Some(_small) = or_skip(Small::mount(&small, "64k")) else { return };
    let page = small.join("page");
    fs::write(&page, "old").unwrap();
    // One page of memory stays free.
    fs::write(small.join("other"), vec![0; 56 << 10]).unwrap();
    let replace = ["results", "-o", "small/page", "--format=csv", "--overwrite"];
    let output = forebay(folder.path(), &replace);
    let talk = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && talk.contains("no space left"), "{talk}");
    assert!(talk.contains("hint: free room on that file system"), "{talk}");
    assert_eq!(fs::read_to_string(&page).unwrap(), "old");
}
