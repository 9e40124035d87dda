//! One suite over every ring, every kind of memory and every file system that this machine has.

#[path = "../lab/mod.rs"]
mod lab;

mod case;
mod many;
mod reads;
mod writes;

use std::any::Any;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use case::{Case, Memory, case_or_skip, make_cold};
use forebay::{Options, RingChoice};
use lab::fuse::Fuse;
use lab::watchdog::Watchdog;
use lab::{FileSystem, LoopDrive, LoopOptions, Offer, Overlay, child, or_skip};

const RINGS: [RingChoice; 2] = [RingChoice::Uring, RingChoice::Pread];

type Check = fn(&Case);

const CHECKS: &[(&str, Check)] = &[
    ("resident reads", reads::resident),
    ("cold reads", reads::cold),
    ("partly resident reads", reads::partly_resident),
    ("required routes", reads::required_routes),
    ("refused routes", reads::refused_routes),
    ("early ends", reads::early_ends),
    ("whole files", reads::whole_files),
    ("reads without blocking", reads::without_blocking),
    ("reads by many threads", reads::many_threads),
    ("many pieces", many::pieces),
    ("many pieces and early ends", many::pieces_that_end_early),
    ("many pieces without blocking", many::pieces_without_blocking),
    ("targets of two kinds", many::targets_of_two_kinds),
    ("many pieces written", many::pieces_written),
    ("many pieces written without blocking", many::pieces_written_without_blocking),
    ("overwriting", writes::overwriting),
    ("growing", writes::growing),
    ("holes", writes::holes),
    ("read back by the other path", writes::read_back_by_the_other_path),
    ("next to dirty pages", writes::next_to_dirty_pages),
    ("durable and reserved", writes::durable_and_reserved),
    ("writes by many threads", writes::many_threads),
    ("writes without blocking", writes::without_blocking),
    ("by a given descriptor", writes::by_a_given_descriptor),
    ("during another process", writes::during_another_process),
];

/// A folder to test in, and what must live as long.
struct Place {
    folder: PathBuf,
    _guards: Vec<Box<dyn Any>>,
}

impl Place {
    fn new(folder: PathBuf, guards: Vec<Box<dyn Any>>) -> Self {
        Self { folder, _guards: guards }
    }
}

/// Runs every check on every ring and memory, as the user of the tests.
fn run(place: impl FnOnce() -> Offer<Place>) {
    run_by(place, check_all);
}

/// The same as a user who has no privilege and little memory that may be locked.
fn run_unprivileged(place: impl FnOnce() -> Offer<Place>) {
    run_by(place, |folder| {
        let everybody = fs::Permissions::from_mode(0o777);
        fs::set_permissions(folder, everybody).expect("a folder of ours");
        let _ = or_skip(lab::unprivileged(|| check_all(folder)));
    });
}

fn run_by(place: impl FnOnce() -> Offer<Place>, check: impl FnOnce(&Path)) {
    if let Some(role) = child::role() {
        return writes::be_the_other_process(&role);
    }
    if let Some(place) = or_skip(place()) {
        check(&place.folder);
    }
}

fn check_all(folder: &Path) {
    let _watchdog = Watchdog::new(std::time::Duration::from_secs(900));
    let mut skipped = Vec::new();
    for ring in RINGS {
        if ring == RingChoice::Uring && !lab::has_uring() {
            lab::skip("io_uring is refused here");
            continue;
        }
        for memory in Memory::ALL {
            let case = Case::new(ring, memory, folder);
            let Some(case) = case_or_skip(case, &mut skipped) else { continue };
            for (name, check) in CHECKS {
                let start = std::time::Instant::now();
                check(&case);
                lab::note(format!("{name}: {case}: {:?}", start.elapsed()));
            }
        }
    }
}

fn temporary() -> Offer<Place> {
    let folder = tempfile::tempdir().map_err(|e| format!("no temporary folder: {e}"))?;
    Ok(Place::new(folder.path().to_owned(), vec![Box::new(folder)]))
}

fn in_memory() -> Offer<Place> {
    let folder = lab::memory_folder()?;
    Ok(Place::new(folder.path().to_owned(), vec![Box::new(folder)]))
}

fn drive(file_system: FileSystem, sector_size: u32) -> Offer<Place> {
    let options =
        LoopOptions { file_system: Some(file_system), sector_size, ..LoopOptions::default() };
    let drive = LoopDrive::new(&options)?;
    Ok(Place::new(drive.path().to_owned(), vec![Box::new(drive)]))
}

fn fuse() -> Offer<Place> {
    let fuse = Fuse::new(Vec::new())?;
    let folder = fuse.path().parent().expect("a mount").to_owned();
    Ok(Place::new(folder, vec![Box::new(fuse)]))
}

fn overlay(over: Offer<Place>) -> Offer<Place> {
    let below = over?;
    let lower = tempfile::tempdir_in(&below.folder).map_err(|e| format!("no folder: {e}"))?;
    let overlay = Overlay::over(lower.path(), &below.folder)?;
    // The overlay goes first.
    let folder = overlay.path().to_owned();
    Ok(Place::new(folder, vec![Box::new(overlay), Box::new(lower), Box::new(below)]))
}

#[test]
fn the_temporary_folder() {
    run(temporary);
}

#[test]
fn tmpfs() {
    run(in_memory);
}

#[test]
#[ignore = "slow: its like runs with the others"]
fn ext4_with_512() {
    run(|| drive(FileSystem::Ext4, 512));
}

#[test]
fn ext4_with_4096() {
    run(|| drive(FileSystem::Ext4, 4096));
}

#[test]
#[ignore = "slow: its like runs with the others"]
fn xfs_with_512() {
    run(|| drive(FileSystem::Xfs, 512));
}

#[test]
fn xfs_with_4096() {
    run(|| drive(FileSystem::Xfs, 4096));
}

#[test]
#[ignore = "slow: its like runs with the others"]
fn btrfs_with_512() {
    run(|| drive(FileSystem::Btrfs, 512));
}

#[test]
fn btrfs_with_4096() {
    run(|| drive(FileSystem::Btrfs, 4096));
}

#[test]
fn overlay_on_a_drive() {
    run(|| overlay(temporary()));
}

#[test]
#[ignore = "slow: its like runs with the others"]
fn overlay_on_tmpfs() {
    run(|| overlay(in_memory()));
}

#[test]
fn a_file_system_in_user_space() {
    run(fuse);
}

#[test]
#[ignore = "slow: its like runs with the others"]
fn tmpfs_unprivileged() {
    run_unprivileged(in_memory);
}

#[test]
fn ext4_unprivileged() {
    run_unprivileged(|| drive(FileSystem::Ext4, 512));
}

#[test]
#[ignore = "slow: its like runs with the others"]
fn xfs_unprivileged() {
    run_unprivileged(|| drive(FileSystem::Xfs, 512));
}

#[test]
#[ignore = "slow: its like runs with the others"]
fn btrfs_unprivileged() {
    run_unprivileged(|| drive(FileSystem::Btrfs, 4096));
}

#[test]
#[ignore = "slow: its like runs with the others"]
fn overlay_unprivileged() {
    run_unprivileged(|| overlay(temporary()));
}

#[test]
#[ignore = "slow: its like runs with the others"]
fn a_file_system_in_user_space_unprivileged() {
    run_unprivileged(fuse);
}

/// The defaults, whose slots are larger than the files above.
#[test]
fn large_files_by_the_defaults() {
    let Some(place) = or_skip(temporary()) else { return };
    let _watchdog = Watchdog::start();
    let mut skipped = Vec::new();
    for memory in Memory::ALL {
        let case = Case::with(Options::default(), memory, &place.folder);
        let Some(case) = case_or_skip(case, &mut skipped) else { continue };
        let (file, bytes) = case.random_file("large", 40_000_123);
        for cold in [false, true] {
            for (offset, len) in [(0, bytes.len()), (123_456, 33_333_333), (39_999_999, 4096)] {
                if cold {
                    make_cold(&file);
                }
                let (got, _) = case.read(&file, offset as u64, len);
                assert!(got == bytes[offset..bytes.len().min(offset + len)], "{offset}+{len}");
            }
        }
        let copy = case.file("copy", b"");
        for options in case.all_options(&copy) {
            case.write(&copy, 333, &bytes, &options);
            assert!(case.read(&copy, 333, bytes.len()).0 == bytes, "{options:?}");
        }
    }
}
