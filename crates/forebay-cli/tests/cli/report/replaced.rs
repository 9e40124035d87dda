//! A report that replaces another: no user may use it who could not use the old one.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::fs::{XattrFlags, getxattr, setxattr};

use super::made::{self, Sweep};
use super::{folder, forebay};
use crate::program::program;

const ACL: &str = "system.posix_acl_access";
const ALICE: u32 = 61_001;
const FRIEND: u32 = 61_002;
const SECRET: u32 = 62_001;
const USERS: u32 = 62_002;
const REPLACE: [&str; 5] = ["results", "--csv", "-o", "page", "--overwrite"];

/// An ACL by which a friend may read, and others of no class may what these say (acl(5)).
fn acl(user: u16, group: u16, mask: u16, other: u16) -> Vec<u8> {
    let no_one = u32::MAX;
    let entries = [
        (1_u16, user, no_one),
        (2, 4, FRIEND),
        (4, group, no_one),
        (16, mask, no_one),
        (32, other, no_one),
    ];
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, number) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(number.to_le_bytes());
    }
    bytes
}

fn attribute(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 4096];
    let len = getxattr(path, name, &mut buffer[..]).ok()?;
    Some(buffer[..len].to_vec())
}

/// Sets an attribute, where the file system has it.
fn set(path: &Path, name: &str, value: &[u8]) -> bool {
    let set = setxattr(path, name, value, XattrFlags::empty());
    if let Err(error) = set {
        println!("skipped: `{name}` of a file: {error}");
    }
    set.is_ok()
}

fn whose(path: &Path) -> (u32, u32, u32) {
    let facts = fs::metadata(path).unwrap();
    (facts.uid(), facts.gid(), facts.mode() & 0o7777)
}

/// A report to replace, which belongs to another user where that is allowed.
fn old(folder: &Path, mode: u32) -> Option<PathBuf> {
    let path = folder.join("page");
    let _ = fs::remove_file(&path);
    fs::write(&path, "old").unwrap();
    if let Err(error) = chown(&path, Some(ALICE), Some(SECRET)) {
        println!("skipped: files of other users: {error}");
        return None;
    }
    fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    Some(path)
}

fn replaced(output: &Output, folder: &Path) {
    assert!(output.status.success(), "{output:?}");
    assert!(fs::read_to_string(folder.join("page")).unwrap().starts_with("label,"));
    let mut names: Vec<_> = fs::read_dir(folder).unwrap().map(|at| at.unwrap().path()).collect();
    names.retain(|path| !path.ends_with("forebay"));
    assert_eq!(names.len(), 2, "{names:?}");
}

#[test]
fn a_report_that_only_its_owner_may_read_stays_so() {
    let (folder, _) = folder(&made::file(&Sweep::default()));
    let page = folder.path().join("page");
    for mode in [0o600, 0o640, 0o604, 0o666] {
        fs::write(&page, "old").unwrap();
        fs::set_permissions(&page, Permissions::from_mode(mode)).unwrap();
        let before = whose(&page);
        replaced(&forebay(folder.path(), &REPLACE), folder.path());
        assert_eq!(whose(&page), before);
    }
}

#[test]
fn owner_group_acl_and_attributes_are_kept() {
    let (folder, _) = folder(&made::file(&Sweep::default()));
    for mode in [0o600, 0o640, 0o4755] {
        let Some(page) = old(folder.path(), mode) else { return };
        let has_note = set(&page, "user.note", b"kept");
        replaced(&forebay(folder.path(), &REPLACE), folder.path());
        assert_eq!(whose(&page), (ALICE, SECRET, mode & 0o777));
        assert!(!has_note || attribute(&page, "user.note").unwrap() == b"kept");
    }
    let page = old(folder.path(), 0o600).unwrap();
    if !set(&page, ACL, &acl(6, 0, 4, 0)) {
        return;
    }
    replaced(&forebay(folder.path(), &REPLACE), folder.path());
    assert_eq!(attribute(&page, ACL).unwrap(), acl(6, 0, 4, 0));
    assert_eq!(whose(&page), (ALICE, SECRET, 0o640));
    // An ACL that the folder gives to new files opens none that had no ACL.
    let page = old(folder.path(), 0o640).unwrap();
    assert!(set(folder.path(), "system.posix_acl_default", &acl(7, 7, 7, 7)));
    replaced(&forebay(folder.path(), &REPLACE), folder.path());
    assert_eq!((attribute(&page, ACL), whose(&page)), (None, (ALICE, SECRET, 0o640)));
}

#[test]
fn without_the_group_no_user_gains_a_permission() {
    let (folder, _) = folder(&made::file(&Sweep::default()));
    let at = folder.path();
    fs::copy(program(), at.join("forebay")).unwrap();
    for (name, mode) in [("forebay", 0o755), ("results", 0o644), ("", 0o777)] {
        fs::set_permissions(at.join(name), Permissions::from_mode(mode)).unwrap();
    }
    let run = || {
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={ALICE}"), format!("--regid={USERS}")]);
        command.args(["--clear-groups", "./forebay", "report"]).args(REPLACE);
        command.current_dir(at).output()
    };
    for (mode, after) in
        [(0o640, 0o600), (0o660, 0o600), (0o644, 0o644), (0o664, 0o644), (0o604, 0o600)]
    {
        let Some(page) = old(at, mode) else { return };
        match run() {
            Ok(output) => replaced(&output, at),
            Err(error) => return println!("skipped: a program of another user: {error}"),
        }
        assert_eq!(whose(&page), (ALICE, USERS, after), "{mode:o}");
    }
    let page = old(at, 0o600).unwrap();
    if set(&page, ACL, &acl(6, 4, 4, 4)) {
        replaced(&run().unwrap(), at);
        assert_eq!((attribute(&page, ACL), whose(&page)), (None, (ALICE, USERS, 0o600)));
    }
}
