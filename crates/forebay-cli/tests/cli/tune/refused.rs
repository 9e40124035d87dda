//! Where there is nothing to tune, and commands that make no sense.

use std::fs;

use crate::tune::{bad, command, texts};

#[test]
fn files_in_memory_have_no_depth() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        return println!("skipped: files in memory: there is no tmpfs at /dev/shm");
    };
    fs::write(folder.path().join("file"), vec![0; 32 << 20]).unwrap();
    let map = forebay_topology::Resolver::default().resolve(folder.path());
    if map.drives.iter().any(|drive| drive.kind != forebay_topology::DriveKind::Memory) {
        return println!("skipped: files in memory: /dev/shm is no tmpfs");
    }
    let texts = [bad(folder.path(), &[]), bad(folder.path(), &["file"])];
    insta::assert_snapshot!(texts.join("\n"), @"
    error: nothing to tune: `.` is kept in memory
      caused by: there is no drive below it, only memory
    hint: name a path on a drive; `forebay map` shows the drives under a path

    error: nothing to tune: `file` is kept in memory
      caused by: there is no drive below it, only memory
    hint: name a path on a drive; `forebay map` shows the drives under a path
    ");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "something was left");
}

#[test]
fn what_cannot_be_measured_is_told_with_a_way_out() {
    let folder = tempfile::tempdir_in(".").unwrap();
    fs::write(folder.path().join("small"), vec![0; 3 << 20]).unwrap();
    fs::write(folder.path().join("empty"), "").unwrap();
    let fifo = folder.path().join("fifo");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let texts = ["small", "empty", "missing", "fifo"].map(|name| bad(folder.path(), &[name]));
    insta::assert_snapshot!(texts.join("\n"), @"
    error: cannot tune `small`: it has 3 MiB
      caused by: at least 16 MiB are required to keep the queue full
    hint: name a larger file, or a folder for a scratch file

    error: cannot tune `empty`: it has 0 B
      caused by: at least 16 MiB are required to keep the queue full
    hint: name a larger file, or a folder for a scratch file

    error: cannot open `missing`
      caused by: no such file or directory (os error 2)
    hint: look at the path's spelling; a relative path starts at this folder

    error: cannot open `fifo`: it is a FIFO, not a file
    hint: give a regular file or a block device
    ");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "something was left");
}

#[test]
fn a_folder_that_cannot_be_written_is_told() {
    let folder = tempfile::tempdir_in(".").unwrap();
    insta::assert_snapshot!(bad(folder.path(), &["/proc"]), @"
    error: cannot make a scratch file in `/proc`
      caused by: no such file or directory (os error 2)
    hint: use a folder that you can write to, or name a file to read
    ");
}

#[test]
fn without_direct_io_there_is_no_depth() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let mut command = command(folder.path(), &[]);
    let output = command.env("FOREBAY_DIRECT_IO", "off").output().unwrap();
    insta::assert_snapshot!(texts(&output, Some(1)).1, @"
    error: nothing to tune: O_DIRECT is switched off
      caused by: `FOREBAY_DIRECT_IO` is `off`
    hint: unset it: without O_DIRECT, the kernel's read-ahead sets the queue depth
    ");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "something was left");
}

#[test]
fn nonsense_is_exit_code_2() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let told =
        |arguments: &[&str]| texts(&command(folder.path(), arguments).output().unwrap(), Some(2)).1;
    let texts = [
        told(&["--duration", "0"]),
        told(&["--duration", "soon"]),
        told(&["one", "two"]),
        told(&["--depth", "3"]),
    ];
    insta::assert_snapshot!(texts.join("\n"), @"
    error: `--duration` cannot be `0`: it takes a time from 1s to 1h, such as `10s`
    hint: `forebay tune --help` lists its arguments

    error: `--duration` cannot be `soon`: it takes a time from 1s to 1h, such as `10s`
    hint: `forebay tune --help` lists its arguments

    error: unexpected argument `two`
    hint: `forebay tune --help` lists its arguments

    error: there is no flag `--depth`
    hint: `forebay tune --help` lists its arguments
    ");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "something was left");
}
