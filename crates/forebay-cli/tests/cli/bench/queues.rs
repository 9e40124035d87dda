//! `--io-queues`, with a drive that the command really takes away and brings back.

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::Stdio;

use forebay_measure::results::Sample;
use forebay_measure::results::file::{read, samples};
use rustix::process::{Pid, Signal, kill_process};

use super::{command, folder, scratch, stderr, wait_for};
use crate::lab::{FileSystem, LoopDrive, LoopOptions, or_skip};

fn drive(folder: &Path) -> Option<LoopDrive> {
    let options = LoopOptions {
        size: 64 << 20,
        file_system: Some(FileSystem::Ext4),
        image_in: folder.canonicalize().unwrap(),
        ..LoopOptions::default()
    };
    or_skip(LoopDrive::new(&options))
}

fn all(results: &Path) -> Vec<Sample> {
    samples(&read(results).unwrap()).map(|(_, sample)| sample.clone()).collect()
}

const SHORT: [&str; 6] =
    ["--gpu=none", "--block-size=64K", "--depth=4", "--size=8M", "--bytes=1M", "--repeats=2"];

#[test]
fn a_path_is_taken_away_and_comes_back_with_each_number() {
    let folder = folder();
    let Some(drive) = drive(folder.path()) else { return };
    let path = drive.path().to_str().unwrap();
    // Where anything of the sweep's were open, it could not be unmounted.
    let set = format!(
        "umount {path} && {{ [ {{}} != 2 ] || exit 1; }}; echo {{}} >>log; mount -t ext4 {} {path}",
        drive.device().display()
    );
    let words = ["--method=forebay,cpu", "--direction=read,write", "-o", "results"];
    let words = [&[path, "--io-queues=1,2,4", "--set-queues", &set], &SHORT[..], &words].concat();
    let output = command(folder.path(), &words).output().unwrap();
    let messages = stderr(&output);
    // The second leaves it unmounted, so that the fourth cannot unmount it.
    assert_eq!(output.status.code(), Some(1), "{messages}");
    assert!(messages.contains("12 points × 2"), "{messages}");
    let results = folder.path().join("results");
    let first = all(&results);
    assert_eq!(first.len(), 24);
    for sample in &first {
        let is_set = sample.point.queues != Some(2);
        assert_eq!(sample.measured.is_some(), is_set, "{sample:?}");
        if let Some(measured) = &sample.measured {
            assert_eq!(measured.verified, Some(true), "{sample:?}");
        }
        assert_eq!(sample.queues_found, None, "a loop device has no controller");
    }
    assert!(scratch(drive.path()).is_empty());
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(shown.lines().any(|line| line.contains("queues")), "{shown}");
}

#[test]
fn ctrl_c_says_which_number_stays_and_the_sweep_goes_on_from_there() {
    let folder = folder();
    let Some(drive) = drive(folder.path()) else { return };
    let path = drive.path().to_str().unwrap();
    let set = format!("umount {path}; mount -t ext4 {} {path}", drive.device().display());
    let set = format!("{set}; echo {{}} >>log");
    let words = ["--io-queues=3,7", "--gpu=sim:latency=5ms", "--block-size=64K"];
    // So many for each number that it is stopped between two of them.
    let words = [&words[..], &["--depth=1,2,3,4,5,6,7,8,9,10,11,12"]].concat();
    let more = ["--size=8M", "--cache=warm", "--bytes=256K", "--repeats=1", "-o", "results"];
    let words = [&[path, "--set-queues", &set], &words[..], &more].concat();
    let mut child = command(folder.path(), &words)
        .process_group(0)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let results = folder.path().join("results");
    wait_for(&mut child, || read(&results).is_ok_and(|all| samples(&all).count() > 2));
    kill_process(Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap(), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.signal(), Some(Signal::INT.as_raw()));
    let messages = stderr(&output);
    let log = fs::read_to_string(folder.path().join("log")).unwrap();
    assert_eq!(log, "3\n");
    let stays = format!("`{path}` keeps the 3 I/O queues that `--set-queues` has set");
    assert!(messages.contains(&stays), "{messages}");
    assert!(scratch(drive.path()).is_empty());
    let kept = all(&results).len();
    let output = command(folder.path(), &words).output().unwrap();
    let messages = stderr(&output);
    assert!(output.status.success(), "{messages}");
    assert!(messages.contains(&format!("{kept} of them kept from an earlier run")), "{messages}");
    assert_eq!(all(&results).len(), 24);
    let log = fs::read_to_string(folder.path().join("log")).unwrap();
    assert_eq!(log, "3\n3\n7\n", "what was set before may have been changed since");
}

#[test]
fn what_is_asked_wrongly_is_refused_with_the_remedy() {
    let folder = folder();
    fs::create_dir(folder.path().join("path")).unwrap();
    let refused = |words: &[&str], part: &str| {
        let output = command(folder.path(), words).output().unwrap();
        let messages = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{messages}");
        assert!(messages.contains(part) && messages.contains("hint: "), "{messages}");
    };
    refused(&["path", "--io-queues=1,2"], "`--io-queues` needs a command");
    refused(&["path", "--set-queues=set {}"], "no number to set");
}

#[test]
fn queues_are_those_that_the_kernel_reports() {
    let mut tree = crate::tree::Tree::new();
    tree.drive(1);
    tree.drive(2);
    let controller = |index: u32| {
        format!("sys/devices/pci0000:00/0000:{index:02x}:00.0/nvme/nvme{index}/queue_count")
    };
    // One of them is for administration.
    tree.write(&controller(1), "9\n");
    tree.write("proc/self/mountstats", "device s:/e mounted on /n with fstype nfs4\n\txprt: tcp\n");
    tree.mount(10, "259:1", "/a", "ext4 /dev/nvme1n1 rw");
    tree.mount(11, "259:2", "/b", "ext4 /dev/nvme2n1 rw");
    tree.mount(12, "0:42", "/n", "nfs4 s:/e rw,vers=4.2,nconnect=8");
    let described = |paths: &[&str]| {
        let maps: Vec<_> = paths.iter().map(|path| tree.map(path)).collect();
        forebay_cli::bench::queues::described(&maps)
    };
    assert_eq!(described(&["/a/f"]), ["8 I/O queues"]);
    // Eight connections were asked for, and there is one.
    assert_eq!(described(&["/n/f", "/a/f", "/a/f"]), ["1 connection", "8 I/O queues"]);
    assert_eq!(described(&["/b/f"]), Vec::<String>::new());
    tree.write(&controller(2), "0\n");
    assert_eq!(described(&["/b/f"]), Vec::<String>::new());
    let found = |path: &str, asked: u32| forebay_cli::bench::queues::found(&tree.map(path), asked);
    assert_eq!((found("/a/f", 8), found("/a/f", 16)), (Some(8), Some(8)));
    assert_eq!((found("/n/f", 8), found("/b/f", 8)), (Some(1), None));
}
