//! Rows that would not be what their titles say: files without bytes on a drive, and file systems
//! that do not make writes durable.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use forebay_measure::results::{Cache, Record};

use crate::lab::{FileSystem, LoopDrive, or_skip};
use crate::paths::{records, samples};
use crate::program::{program, stderr};

static BYTES: [u8; 8 << 20] = [7; 8 << 20];
const LEN: u64 = BYTES.len() as u64;

fn run(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.current_dir(folder).args(arguments).stdin(Stdio::null());
    command.env("XDG_CACHE_HOME", folder).output().unwrap()
}

/// The direction and the cache of each point, the doubts, and whether the storage has a limit.
fn bench(folder: &Path, arguments: &[&str]) -> (Vec<(u8, Cache)>, Vec<String>, bool) {
    let short = ["bench", "--gpu=none", "--format=json", "--repeats=1", "--time=100ms"];
    let output = run(folder, &[&short[..], &["--method=forebay"], arguments].concat());
    assert!(output.status.success(), "{output:?}");
    let records: Vec<Record> = records(&output);
    let rows = samples(&records).into_iter();
    let rows = rows.map(|sample| (sample.point.read_percent, sample.point.cache.unwrap()));
    let doubts = records.iter().filter_map(|record| match record {
        Record::Doubt { text } => Some(text.clone()),
        _ => None,
    });
    let is_storage =
        |record: &Record| matches!(record, Record::Limit(limit) if limit.name == "storage");
    (rows.collect(), doubts.collect(), records.iter().any(is_storage))
}

#[test]
fn a_file_without_bytes_on_a_drive_is_not_cold() {
    let each = [FileSystem::Ext4, FileSystem::Xfs].map(|kind| or_skip(LoopDrive::with(kind)));
    for drive in each.iter().flatten() {
        let folder = drive.path();
        File::create(folder.join("sparse")).unwrap().set_len(LEN).unwrap();
        let allocated = File::create(folder.join("allocated")).unwrap();
        let flags = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(allocated, flags, 0, LEN).unwrap();
        for name in ["sparse", "allocated"] {
            let (rows, doubts, is_limited) = bench(folder, &[name, "--size=8M"]);
            assert_eq!((rows.as_slice(), is_limited), (&[(100, Cache::Warm)][..], false), "{name}");
            assert!(doubts.len() == 1 && doubts[0].contains("holes"), "{doubts:?}");
            let text = stderr(&run(folder, &["bench", "--gpu=none", "--cache=cold", name]));
            assert!(text.contains("while it is cold") && text.contains("never written"), "{text}");
            let text = stderr(&run(folder, &["read", name, "--gpu=none"]));
            assert!(text.contains("100 % of 8 MiB") && text.contains("holes"), "{text}");
            let path = folder.join(name);
            let gdsio = ["gdsio", "-f", path.to_str().unwrap(), "-d", "0", "-w", "1", "-s", "8M"];
            let text = stderr(&run(folder, &[&gdsio[..], &["-x", "1", "-I", "0"]].concat()));
            assert!(text.contains("100 % of 8 MiB") && text.contains("holes"), "{text}");
        }
        fs::write(folder.join("half"), &BYTES[..BYTES.len() / 2]).unwrap();
        File::options().write(true).open(folder.join("half")).unwrap().set_len(LEN).unwrap();
        let (rows, doubts, is_limited) = bench(folder, &["half", "--size=8M", "--cache=cold"]);
        assert_eq!((rows.as_slice(), is_limited), (&[(100, Cache::Cold)][..], false));
        let is_named =
            |text: &String| text.starts_with("no storage limit: 50 % of 8 MiB of `half` are holes");
        assert!(doubts.iter().any(is_named), "{doubts:?}");
        let text = stderr(&run(folder, &["read", "half", "--gpu=none", "--len=4M"]));
        assert!(!text.contains("holes"), "the rest is not read: {text}");
    }
}

#[test]
fn a_compressed_file_has_no_limit_of_the_storage() {
    let Some(drive) = or_skip(LoopDrive::with(FileSystem::Btrfs)) else { return };
    let options = [OsStr::new("-o"), OsStr::new("remount,compress-force=zstd")];
    let mounted = Command::new("mount").args(options).arg(drive.path()).status();
    if !mounted.is_ok_and(|status| status.success()) {
        return println!("skipped: a compressed file: no `mount`");
    }
    let path = drive.path().join("file");
    fs::write(&path, &BYTES[..]).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    let (rows, doubts, is_limited) = bench(drive.path(), &["file", "--cache=cold"]);
    assert_eq!((rows.as_slice(), is_limited), (&[(100, Cache::Cold)][..], false));
    assert!(doubts.iter().any(|text| text.contains("are compressed")), "{doubts:?}");
    assert!(doubts.iter().any(|text| text.contains("no storage limit")), "{doubts:?}");
}

/// An overlay with this option, which ends with the test.
struct Overlay(tempfile::TempDir);

impl Overlay {
    fn with(option: &str) -> Option<Self> {
        let folder = tempfile::tempdir_in(".").unwrap();
        let path = |name: &str| folder.path().canonicalize().unwrap().join(name);
        let each = ["lower", "upper", "work", "mounted"].map(path);
        each.iter().for_each(|path| fs::create_dir(path).unwrap());
        let [lower, upper, work, mounted] = each.each_ref().map(|path| path.display());
        let options = format!("lowerdir={lower},upperdir={upper},workdir={work},{option}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "overlay", "overlay", "-o", &options, &mounted.to_string()]);
        let made = mount.stderr(Stdio::null()).status().is_ok_and(|status| status.success());
        if !made {
            println!("skipped: an overlay with {option}: it cannot be mounted");
        }
        made.then_some(Self(folder))
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path().join("mounted")).status();
    }
}

#[test]
fn an_overlay_without_syncs_has_no_synced_writes() {
    let Some(overlay) = Overlay::with("volatile") else { return };
    let folder = overlay.0.path().join("mounted");
    let (rows, doubts, _) = bench(&folder, &["--size=8M"]);
    let writes: Vec<_> = rows.iter().filter(|(percent, _)| *percent == 0).collect();
    assert_eq!(writes, [&(0, Cache::Warm)], "{doubts:?}");
    assert!(doubts.iter().any(|text| text.contains("syncs nothing")), "{doubts:?}");
    let cold = ["bench", "--gpu=none", "--cache=cold", "--direction=write", "--size=8M"];
    let text = stderr(&run(&folder, &cold));
    assert!(text.contains("with synced writes") && text.contains("volatile"), "{text}");
}
