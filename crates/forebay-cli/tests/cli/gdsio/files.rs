//! The files of runs: what is made, what stays, and what is never touched.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use super::{TARGETS, bad, folder, good, names, word};
use crate::interrupt::Running;
use crate::lab::fuse::{Faults, Fuse};
use crate::lab::or_skip;
use crate::lab::watchdog::Watchdog;
use crate::program::program;

#[test]
fn writes_leave_files_that_later_writes_may_use() {
    let folder = folder();
    for gpu in TARGETS {
        let line = format!("-D . -w 2 -s 256K -i 64k -x 4 -I 1 -V --gpu {gpu}");
        let (text, _) = good(folder.path(), &line);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("IoType: WRITE "), "{text}");
        assert_eq!(lines[1], "Verifying data ");
        assert!(lines[2].starts_with("IoType: READ ") && lines.len() == 3, "{text}");
        assert_eq!(names(folder.path()), ["gdsio.0", "gdsio.1"]);
        let bytes = fs::read(folder.path().join("gdsio.1")).unwrap();
        assert!(bytes.len() == 256 << 10 && bytes.iter().any(|byte| *byte != 0));
    }
    // A write that ended early leaves holes; a read makes them whole, and leaves the file.
    let path = folder.path().join("gdsio.1");
    for len in [0, 100_000] {
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(0).unwrap();
        file.set_len(len).unwrap();
        let (_, talk) = good(folder.path(), "-D . -w 2 -s 256K -i 64k -x 4 -I 0 --gpu none");
        assert!(talk.contains("kept, like files of a write"), "{talk}");
        let bytes = fs::read(&path).unwrap();
        assert!(bytes.len() == 256 << 10 && bytes.iter().all(|byte| *byte != 0));
    }
    // No more is made than is read, and nothing else is lost.
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(0).unwrap();
    file.set_len(512 << 10).unwrap();
    let line = "-D . -w 2 -s 64K -o 128K -i 64k -x 4 -I 0 --gpu none";
    let (_, talk) = good(folder.path(), line);
    assert!(talk.contains("making a file of 64 KiB"), "{talk}");
    let bytes = fs::read(&path).unwrap();
    assert_eq!(bytes.len(), 512 << 10);
    let made = 128 << 10..192 << 10;
    let is_made = |(at, byte): (usize, &u8)| (*byte != 0) == made.contains(&at);
    assert!(bytes.iter().enumerate().all(is_made));
}

#[test]
fn nothing_else_is_written_to() {
    let folder = folder();
    let path = folder.path().join("gdsio.1");
    fs::write(&path, "precious").unwrap();
    let line = "-D . -w 2 -s 256K -i 64k -x 4 -I 1 --gpu none";
    let (code, talk) = bad(folder.path(), line);
    assert!(code == 1 && talk.contains("gdsio.1`") && talk.contains("--overwrite"), "{talk}");
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    assert_eq!(names(folder.path()), ["gdsio.1"], "nothing is made where not all may be written");
    // Nor is it read for longer than it is.
    let (code, talk) = bad(folder.path(), "-D . -w 2 -s 256K -i 64k -x 4 -I 0 --gpu none");
    assert!(code == 1 && talk.contains("it has 8 B"), "{talk}");
    // A link leads to what it leads to.
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let file = "-f link -s 256K -i 64k -x 4 -I 1 --gpu none";
    let (code, talk) = bad(folder.path(), file);
    assert!(code == 1 && talk.contains("gdsio.1`"), "{talk}");
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    good(folder.path(), &format!("{file} --overwrite"));
    assert_ne!(fs::read(&path).unwrap()[..8], *b"precious");
    // It is still not ours.
    assert_eq!(bad(folder.path(), line).0, 1);
    good(folder.path(), &format!("{line} --overwrite"));
    let fifo = folder.path().join("fifo");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, kind, mode, 0).unwrap();
    for (path, says) in [("fifo", "FIFO"), ("/dev/zero", "/dev/zero"), (".", "folder")] {
        let line = format!("-f {path} -s 64K -i 64k -x 4 -I 1 --gpu none --overwrite");
        let (code, talk) = bad(folder.path(), &line);
        assert!(code == 1 && talk.contains(says), "{path}: {talk}");
    }
    let (code, talk) = bad(folder.path(), "fifo");
    assert!(code == 2 && talk.contains("`fifo` is not a job file"), "{code}: {talk}");
    for end in ["nowhere/x", "/nowhere/x"] {
        let (code, talk) = bad(folder.path(), &format!("-f {end} -s 64K -i 64k -x 4 --gpu none"));
        assert!(code == 1 && talk.contains("nowhere"), "{talk}");
    }
}

#[test]
fn a_device_is_written_to_only_with_overwrite_device() {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let devices = devices.map(|entry| Path::new("/dev").join(entry.file_name()));
    let Some(device) = devices.filter(|path| path.exists()).last() else {
        println!("skipped: writing to a device: there is none");
        return;
    };
    // It is never opened for that: the device is the machine's own.
    let line = format!("-f {} -s 64K -i 64k -x 4 -I 1 --gpu none", device.display());
    for allowed in ["", " --overwrite", " -x 0 --gpu sim"] {
        let line = match allowed {
            " -x 0 --gpu sim" => line.replace(" -x 4", "").replace(" --gpu none", ""),
            _ => line.clone(),
        };
        let (code, talk) = bad(Path::new("."), &format!("{line}{allowed}"));
        // Nor to see whether there is a direct path.
        assert!(!talk.contains("is not available"), "{talk}");
        assert!(code == 1 && talk.contains("--overwrite-device"), "{talk}");
    }
}

#[test]
fn impossible_jobs_are_refused_before_files_are_made() {
    let folder = folder();
    let node = Path::new("/sys/devices/system/node/online").exists();
    for (words, says) in
        [("-w 1 -n 4000000", "NUMA node"), ("-w 1024 -s 1T -i 1G -T 1", "requests in memory")]
    {
        let words = words.replace("1T", "1024G");
        if says == "NUMA node" && !node {
            println!("skipped: a NUMA node that is not there: this kernel knows of none");
            continue;
        }
        let size = if words.contains("-s ") { "" } else { "-s 64K -i 64k" };
        for io in [0, 1] {
            let line = format!("-D . {size} {words} -x 4 -I {io} --gpu none");
            let (code, talk) = bad(folder.path(), &line);
            assert!(code == 1 && talk.contains(says), "{line}: {talk}");
            assert!(!talk.contains("making"), "{talk}");
            assert!(names(folder.path()).is_empty(), "{line}: {:?}", names(folder.path()));
        }
    }
}

#[test]
fn two_jobs_never_write_to_the_same_bytes() {
    let folder = folder();
    fs::create_dir(folder.path().join("a")).unwrap();
    std::os::unix::fs::symlink("a", folder.path().join("b")).unwrap();
    let jobs = |two: &str| {
        let text = "[global]\nname=x\nxfer_type=4\nrw=write\nbs=64K\nsize=128K\n\
                    [job1]\nnum_threads=2\ndirectory=a\n[job2]\nnum_threads=1\n";
        fs::write(folder.path().join("jobs"), format!("{text}{two}\n")).unwrap();
    };
    for two in ["directory=b", "filename=b/gdsio.1", "directory=./a\nstart_offset=64K"] {
        jobs(two);
        let (code, talk) = bad(folder.path(), "jobs --gpu none");
        assert!(code == 2 && talk.contains("two jobs write to the same bytes"), "{two}: {talk}");
        assert_eq!(names(&folder.path().join("a")), [""; 0], "{two}");
    }
    for two in ["directory=b\nstart_offset=128K", "directory=a\nstart_offset=128K"] {
        jobs(two);
        good(folder.path(), "jobs --gpu none");
        // Editors put a byte-order mark first.
        let text = fs::read_to_string(folder.path().join("jobs")).unwrap();
        fs::write(folder.path().join("jobs"), format!("\u{feff}{text}")).unwrap();
        good(folder.path(), "jobs --gpu none");
    }
}

#[test]
fn threads_share_one_file_where_it_is_short() {
    let folder = folder();
    fs::write(folder.path().join("data"), vec![7; 256 << 10]).unwrap();
    let line = "-f data -w 4 -s 256K -i 64k -x 4 -I 0 -V --gpu sim";
    let (text, talk) = good(folder.path(), line);
    assert!(text.starts_with("Verifying data \nIoType: READ ") && text.lines().count() == 2);
    assert!(talk.contains("all threads read the same bytes"), "{talk}");
    assert_eq!(word(&text, "DataSetSize: "), "1024/1024(KiB)");
    let (text, talk) = good(folder.path(), "-f data -w 4 -s 64K -i 64k -x 4 -I 2 -k 7 --gpu sim");
    assert!(text.starts_with("IoType: RANDREAD ") && !talk.contains("all threads"), "{talk}");
    assert_eq!(names(folder.path()), ["data"]);
    good(folder.path(), "-f new -w 4 -s 64K -i 64k -x 4 -I 1 --gpu sim");
    assert_eq!(fs::metadata(folder.path().join("new")).unwrap().len(), 256 << 10);
}

#[test]
fn a_signal_removes_what_was_made_to_be_read() {
    for signal in [Signal::INT, Signal::TERM] {
        let mut command = Command::new(program());
        command.args("gdsio -D . -w 2 -s 256K -i 64k -x 4 -T 600 --gpu none".split(' '));
        let mut running = Running::spawn(folder(), &mut command);
        running.wait_for(|| names(running.folder.path()).len() >= 2);
        running.send(signal);
        assert_eq!(running.end().signal(), Some(signal.as_raw()));
        let left = names(running.folder.path());
        assert!(left.is_empty(), "{signal:?} left {left:?}");
    }
}

#[test]
fn a_signal_while_files_are_made_leaves_none() {
    let _watchdog = Watchdog::start();
    // A process that is killed leaves an open that can be interrupted; kernels differ for others.
    let faults = Faults { interruptible: true, ..Faults::default() };
    let Some(fuse) = or_skip(Fuse::with(vec![0; 8192], faults)) else { return };
    let folder = folder();
    let jobs = format!(
        "[global]\nxfer_type=4\nrw=write\nbs=64K\nsize=64K\n\
         [job1]\nnum_threads=200\ndirectory=.\n[job2]\nnum_threads=1\nfilename={}\n",
        fuse.path().display()
    );
    fs::write(folder.path().join("jobs"), jobs).unwrap();
    // The files of the first job are there; what is made for the second does not answer.
    fuse.set(|faults| faults.hang_opens = true);
    let mut command = Command::new(program());
    let mut running = Running::spawn(folder, command.args(["gdsio", "jobs", "--gpu", "none"]));
    fuse.wait_for_parked(1);
    assert!(names(running.folder.path()).contains(&"gdsio.199".to_owned()));
    running.send(Signal::INT);
    assert_eq!(running.end().signal(), Some(Signal::INT.as_raw()));
    let left = names(running.folder.path());
    assert!(left.iter().all(|name| !name.starts_with("gdsio.")), "{left:?}");
}
