//! Block devices as the file.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;

use super::{benchmark, folder, good, rows};
use crate::lab::{FileSystem, LoopDrive, LoopOptions, or_skip};
use crate::program::{run, stderr};

#[test]
fn a_device_is_written_with_overwrite_if_no_other_process_uses_it() {
    let folder = folder();
    let image_in = folder.path().canonicalize().unwrap();
    let options = LoopOptions { size: 24 << 20, image_in, ..LoopOptions::default() };
    let bare = LoopOptions { file_system: None, ..options.clone() };
    let Some(drive) = or_skip(LoopDrive::new(&bare)) else { return };
    let device = drive.device().to_str().unwrap();
    let precious = vec![7; 4 << 20];
    let held = || {
        let mut bytes = Vec::new();
        File::open(device).unwrap().take(4 << 20).read_to_end(&mut bytes).unwrap();
        bytes
    };
    File::options().write(true).open(device).unwrap().write_all_at(&precious, 0).unwrap();
    let arguments = ["-f", device, "-m", "compare", "-r", "1", "--gpu", "none"];
    let refused = |more: &[&str], code: i32, says: &str| {
        let output = benchmark(folder.path(), &[&arguments[..], more].concat());
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{message}");
        assert!(message.contains(says) && output.stdout.is_empty(), "{message}");
        assert_eq!(held(), precious);
    };
    refused(&[], 2, "`--overwrite-device` allows it, and destroys its content");
    refused(&["--overwrite"], 2, "`--overwrite-device` allows it, and destroys its content");
    let text = good(folder.path(), &[&arguments[..], &["--overwrite-device"]].concat());
    assert_eq!(rows(&text).len(), 6, "{text}");
    assert!(!text.contains("devtmpfs"), "where the device's name is: {text}");
    let held = held();
    assert!(held[..2 << 20] != precious[..2 << 20], "it holds what was written");
    assert!(held[2 << 20..] == precious[2 << 20..], "and behind that what was there");

    let large = ["gpu-file-benchmark", "-s", "25", "--overwrite-device"];
    let output = run(folder.path(), large.iter().chain(&arguments));
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("the device has 24 MiB"), "{message}");

    let mounted = LoopOptions { file_system: Some(FileSystem::Ext4), ..options };
    let Some(drive) = or_skip(LoopDrive::new(&mounted)) else { return };
    let file = drive.path().join("file");
    fs::write(&file, &precious).unwrap();
    let device = drive.device().to_str().unwrap();
    let write = ["--direction=write", "--block-size=4K", "--depth=1", "--size=1M"];
    for arguments in [
        &["gpu-file-benchmark", "-s", "2", "-f", device][..],
        &["gdsio", "-f", device, "-s", "1M", "-x", "4", "-I", "1"],
        &[&["bench", device], &write[..]].concat(),
    ] {
        let allowed = ["--gpu=none", "--overwrite-device"];
        let output = run(folder.path(), arguments.iter().chain(&allowed));
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains("it is in use: mounted, or part of an array"), "{message}");
    }
    assert_eq!(fs::read(&file).unwrap(), precious);
}
