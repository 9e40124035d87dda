//! A record of this machine answers as the machine did.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use forebay_topology::{Resolver, System, gpus, record};

use crate::lab::{FileSystem, LoopDrive, memory_folder, or_skip};

#[test]
fn a_replay_answers_as_the_machine_did() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("a file");
    fs::write(&file, [7; 10_000]).expect("a file");
    let link = folder.path().join("link");
    symlink("a file", &link).expect("a link");
    let mut paths = vec![file, link, folder.path().join("to/be/made")];
    let memory = or_skip(memory_folder());
    paths.extend(memory.iter().map(|memory| memory.path().join("f")));
    let drive = or_skip(LoopDrive::with(FileSystem::Ext4));
    paths.extend(drive.iter().map(|drive| drive.path().join("data")));
    paths.extend(drive.iter().map(|drive| drive.device().to_owned()));

    let dir = folder.path().join("record");
    record(&System::live(), &paths, &dir).expect("a record");
    let replayed = Resolver::new(System::fixture(&dir).expect("the record"));
    let live = Resolver::default();
    for path in &paths {
        assert_eq!(replayed.resolve(path), live.resolve(path), "{}", path.display());
    }
    assert_eq!(gpus(replayed.system()), gpus(live.system()));
    let mut recorded = replayed.system().recorded_paths();
    recorded.sort();
    paths.sort();
    assert_eq!(recorded, paths);
}

#[test]
fn nothing_is_written_over() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("precious");
    fs::write(&file, "data").expect("a file");
    for there in [folder.path().to_owned(), file.clone()] {
        let error =
            record(&System::live(), &[PathBuf::from("/")], &there).expect_err("it is there");
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    }
    assert_eq!(fs::read_to_string(&file).expect("the file"), "data");
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
    let nowhere = folder.path().join("missing/record");
    assert_eq!(
        record(&System::live(), &[], &nowhere).expect_err("no folder").kind(),
        ErrorKind::NotFound
    );
}

#[test]
fn a_folder_that_is_no_record_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let refused = || System::fixture(folder.path()).expect_err("no record").kind();
    assert_eq!(refused(), ErrorKind::NotFound);
    fs::write(folder.path().join("root"), "").expect("a file");
    assert_eq!(refused(), ErrorKind::NotADirectory);
    fs::remove_file(folder.path().join("root")).expect("the file");
    fs::create_dir(folder.path().join("root")).expect("a folder");
    assert_eq!(refused(), ErrorKind::NotFound);
}
