//! This machine: folders, loop devices, btrfs over several of them, records of it, and nonsense.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::map::{bad, good, map};

fn report(folder: &Path, arguments: &[&str]) -> Value {
    let all = [&["--format", "json"], arguments].concat();
    serde_json::from_str(&good(folder, &all).0).unwrap()
}

#[test]
fn this_folder_is_what_is_mapped_by_default() {
    let folder = tempfile::tempdir().unwrap();
    let report = report(folder.path(), &[]);
    let map = &report["maps"][0];
    assert!(map["path"] == "." && map["exists"] == true && report["schema"] == 1, "{report}");
    let real = map["real_path"].as_str().map(Path::new);
    assert_eq!(real, Some(folder.path().canonicalize().unwrap().as_path()));
    assert!(map["extents"].is_null() && report["replay"].is_null());
    let environment = &report["environment"];
    assert!(
        environment["command"].as_str().unwrap().starts_with("forebay doctor --tree --format json")
    );
    assert_eq!(environment["drives"], report["drives"]);
    let (text, _) = good(folder.path(), &[]);
    assert!(text.starts_with(".  is /") && text.contains("\nI/O queue  "), "{text}");
    assert!(!text.contains('\u{1b}'), "no codes without a terminal");
}

#[test]
fn a_path_to_be_made_is_where_its_folder_is() {
    let folder = tempfile::tempdir().unwrap();
    let (text, _) = good(folder.path(), &["not/yet"]);
    let there = folder.path().canonicalize().unwrap();
    let line = format!("not/yet  does not exist; shown for `{}`\n", there.display());
    assert!(text.starts_with(&line), "{text}");
    let report = report(folder.path(), &["not/yet", "--extents"]);
    assert_eq!(report["maps"][0]["exists"], false);
}

#[test]
fn one_path_that_fails_hides_no_other() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "x").unwrap();
    let (code, text, talk) = bad(folder.path(), &["file/below", "file"]);
    assert_eq!(code, 1);
    assert!(text.starts_with("file  1 B"), "{text}");
    assert!(
        talk.ends_with(
            "error: cannot map `file/below`\n  caused by: not a directory (os error 20)\n"
        )
    );
    let output = map(folder.path(), &["file/below", "file", "--format=json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["maps"][1].is_null() && report["failures"][0]["path"] == "file/below");
}

#[test]
fn a_name_cannot_act_on_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let name = "a\u{1b}[2J\nb\u{202e}c";
    fs::write(folder.path().join(name), "x").unwrap();
    std::os::unix::fs::symlink(name, folder.path().join("link")).unwrap();
    let (text, talk) = good(folder.path(), &[name, "link", "--extents"]);
    for bad in ['\u{1b}', '\u{202e}'] {
        assert!(!text.contains(bad) && !talk.contains(bad), "{text}");
    }
    assert!(text.contains(r"a\u{1b}[2J\nb\u{202e}c"), "{text}");
}

#[test]
fn a_record_shows_the_same_again() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "0123456789").unwrap();
    let (text, _) = good(folder.path(), &["file", "missing", "--record", "new"]);
    assert!(text.starts_with("recorded  2 paths to new\nmasked    names of file servers"));
    let (here, _) = good(folder.path(), &["file", "missing"]);
    let (there, _) = good(folder.path(), &["--fixture", "new"]);
    let (head, there) = there.split_once("\n\n").unwrap();
    assert_eq!(head, "replay of the record in new, not of this machine");
    // A record has absolute paths.
    let tree = |text: &str| {
        let lines = text.lines().filter(|line| line.starts_with([' ', '├', '└']));
        lines.map(|line| line.to_owned() + "\n").collect::<String>()
    };
    assert_eq!(tree(there), tree(&here));
    let (again, _) = good(folder.path(), &["--fixture", "new", "--format=json"]);
    let again: Value = serde_json::from_str(&again).unwrap();
    assert_eq!(again["drives"], report(folder.path(), &["file"])["drives"]);
}

#[test]
fn nothing_is_recorded_over_and_nothing_else_replayed() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "precious").unwrap();
    fs::create_dir(folder.path().join("folder")).unwrap();
    let reported = |arguments: &[&str]| {
        let (code, text, talk) = bad(folder.path(), arguments);
        assert!(text.is_empty());
        format!("{code}: {talk}")
    };
    let texts = [
        reported(&["--record", "file"]),
        reported(&["--record", "folder"]),
        reported(&["--record", "missing/new"]),
        reported(&["--fixture", "folder"]),
        reported(&["--fixture", "file"]),
        reported(&["--record", "a", "--fixture", "b"]),
        reported(&["--bananas"]),
    ];
    insta::assert_snapshot!(texts.join("\n"), @"
    1: error: cannot write a record to `file`
      caused by: file exists (os error 17)
    hint: give the path of a new folder

    1: error: cannot write a record to `folder`
      caused by: file exists (os error 17)
    hint: give the path of a new folder

    1: error: cannot write a record to `missing/new`
      caused by: no such file or directory (os error 2)
    hint: look at the path's spelling; a relative path is relative to the current directory

    1: error: cannot replay `folder`
      caused by: no such file or directory (os error 2)
    hint: give a folder that `forebay doctor --record` made

    1: error: cannot replay `file`
      caused by: not a directory (os error 20)
    hint: give a folder that `forebay doctor --record` made

    2: error: the argument `--record <DIR>` cannot be used with `--fixture <DIR>`
    hint: for more information, try `--help`

    2: error: unexpected argument `--bananas` found
    hint: for more information, try `--help`
    ");
    assert_eq!(fs::read_to_string(folder.path().join("file")).unwrap(), "precious");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}

/// Runs a tool of administrators; the error says why that cannot be done here.
fn tool(name: &str, arguments: &[&str]) -> Result<String, String> {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let output = Command::new(name).args(arguments).env("PATH", path).output();
    let output = output.map_err(|error| format!("no `{name}`: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    Err(format!("`{name}`: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// Loop devices over images of their own with one file system; undone with the test.
struct Loops {
    devices: Vec<String>,
    mounted: Option<PathBuf>,
    folder: TempDir,
}

impl Loops {
    fn new(count: usize, make: &[&str]) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("loop devices take root".into());
        }
        let folder = tempfile::tempdir().unwrap();
        let mut loops = Self { devices: Vec::new(), mounted: None, folder };
        for index in 0..count {
            let image = loops.folder.path().join(index.to_string());
            fs::File::create(&image).unwrap().set_len(256 << 20).unwrap();
            let image = image.to_str().unwrap();
            loops.devices.push(tool("losetup", &["--show", "--find", image])?);
        }
        let devices: Vec<&str> = loops.devices.iter().map(String::as_str).collect();
        tool(make[0], &[&make[1..], &devices].concat())?;
        let target = loops.folder.path().join("mounted");
        fs::create_dir(&target).unwrap();
        tool("mount", &[devices[0], target.to_str().unwrap()])?;
        loops.mounted = Some(target);
        Ok(loops)
    }

    fn path(&self) -> &Path {
        self.mounted.as_deref().expect("it was mounted when it was made")
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.devices.iter().map(|device| device.trim_start_matches("/dev/"))
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        if let Some(target) = &self.mounted {
            let _ = tool("umount", &[target.to_str().unwrap()]);
        }
        for device in &self.devices {
            let _ = tool("losetup", &["--detach", device]);
        }
    }
}

#[test]
fn a_loop_device_without_direct_io_is_reported() {
    let loops = match Loops::new(1, &["mkfs.ext4", "-q"]) {
        Ok(loops) => loops,
        Err(reason) => return println!("skipped: a loop device: {reason}"),
    };
    let name = loops.names().next().unwrap().to_owned();
    fs::write(loops.path().join("file"), vec![1; 3 << 20]).unwrap();
    let (text, talk) = good(loops.path(), &["file"]);
    assert!(text.contains(&format!("─ {name}  loop device · 256 MiB · no direct I/O · (!)")));
    assert!(talk.contains(&format!("`losetup --direct-io=on /dev/{name}`")), "{talk}");
    if tool("losetup", &["--direct-io=on", &loops.devices[0]]).is_ok() {
        let (text, talk) = good(loops.path(), &["file"]);
        assert!(text.contains("256 MiB · direct I/O\n") && !talk.contains(&name), "{text}");
    }
}

#[test]
fn members_of_btrfs_are_all_shown() {
    let loops = match Loops::new(3, &["mkfs.btrfs", "-q", "-d", "raid0"]) {
        Ok(loops) => loops,
        Err(reason) => return println!("skipped: btrfs over loop devices: {reason}"),
    };
    fs::write(loops.path().join("file"), vec![1; 3 << 20]).unwrap();
    // What is on its way to the drives has no place yet.
    fs::File::open(loops.path().join("file")).unwrap().sync_all().unwrap();
    let (text, _) = good(loops.path(), &["file", "--extents"]);
    assert!(text.contains("btrfs · data raid0 · 3 members"), "{text}");
    assert!(loops.names().all(|name| text.contains(&format!("─ {name}  loop device"))), "{text}");
    assert!(text.contains("btrfs reports its own addresses"), "{text}");
}
