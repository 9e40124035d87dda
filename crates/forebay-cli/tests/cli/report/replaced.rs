//! A report that is written over another: its owner and its access rights stay.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};

use super::forebay;
use super::made::{self, Sweep};

const REPLACE: [&str; 5] = ["results", "--csv", "-o", "page", "--overwrite"];

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
