//! Another user of the folder puts links in the place of scratch and of files while each verb runs:
//! what the links lead to is never written.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::program::program;

const PRECIOUS: &[u8] = b"precious";

/// What scratch is swapped for, and what files of `gdsio` and `gpu-file-benchmark` are called.
const NAMES: [&str; 4] = ["file", "gdsio.0", "gdsio.1", "target"];

/// Each verb that writes, in the folder that is swapped or with files in `sub`, which is.
const VERBS: [&str; 7] = [
    "bench . --size 4M --repeats 2 --gpu none --direction write --time 100ms",
    "bench . --size 4M --repeats 2 --gpu sim --time 100ms",
    "gpu-file-benchmark -m compare -s 4 -r 1 --gpu sim",
    "bench . --block-size 64K --direction write --depth 1 --files 2 --time 100ms --repeats 2 \
     --size 4M --gpu none -o ../results",
    "bench . --method cpu,cpu-cached-gpu --block-size 64K --direction write --depth 1 --files 2 \
     --time 100ms --repeats 2 --size 4M --gpu none -o ../results",
    "gdsio -D . -w 2 -s 1M -i 64K -x 0 -I 1 --gpu sim",
    "doctor . --gpu sim",
];

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir_in(".").unwrap());
        fs::create_dir_all(place.open().join("sub")).unwrap();
        fs::create_dir(place.victim()).unwrap();
        NAMES.iter().for_each(|name| fs::write(place.victim().join(name), PRECIOUS).unwrap());
        place
    }

    /// Where others may rename.
    fn open(&self) -> PathBuf {
        self.0.path().join("open")
    }

    fn victim(&self) -> PathBuf {
        fs::canonicalize(self.0.path()).unwrap().join("victim")
    }

    /// Runs a verb while `swap` works on the folder again and again.
    #[track_caller]
    fn run(&self, line: &str, swap: impl Fn(&Path, &Path) + Sync) -> Output {
        let _ = fs::remove_file(self.0.path().join("results"));
        let (open, victim, ended) = (self.open(), self.victim(), AtomicBool::new(false));
        let output = thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    swap(&open, &victim);
                    thread::sleep(Duration::from_micros(100)); // leaves the verb its processor
                }
            });
            let mut command = Command::new(program());
            command.current_dir(&open).args(line.split_whitespace()).stdin(Stdio::null());
            let output = command.output();
            ended.store(true, Ordering::Relaxed);
            output.unwrap()
        });
        // What `sub` leads to at first may be there already.
        let is_refused = output.status.code() == Some(2);
        assert!(!is_refused || line.contains("sub/target"), "{line}: {output:?}");
        for name in NAMES {
            let found = fs::read(self.victim().join(name));
            assert!(found.is_ok_and(|found| found == PRECIOUS), "{line}: {name}: {output:?}");
        }
        output
    }

    /// Takes away what a swap has left.
    fn clean(&self) {
        fs::remove_dir_all(self.open()).unwrap();
        fs::create_dir_all(self.open().join("sub")).unwrap();
    }
}

/// Names in the folder that are those of `kind`, and no links.
fn found(open: &Path, kind: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(open).into_iter().flatten().flatten();
    let is_it = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with(kind) && !name.ends_with(".old") && !path.is_symlink()
    };
    entries.map(|entry| entry.path()).filter(is_it).collect()
}

fn old(path: &Path) -> PathBuf {
    path.with_file_name(format!("{}.old", path.file_name().unwrap().to_str().unwrap()))
}

/// Puts a link in the place of `path` for a moment.
fn flicker(path: &Path, to: &Path) {
    if fs::rename(path, old(path)).is_ok() {
        let is_swapped = symlink(to, path).is_ok();
        thread::sleep(Duration::from_micros(500));
        if is_swapped {
            let _ = fs::remove_file(path);
        }
        let _ = fs::rename(old(path), path);
        thread::sleep(Duration::from_micros(300));
    }
}

#[test]
fn scratch_that_is_swapped_for_a_link_is_used_all_the_same() {
    scratch_is_swapped(&[0]);
}

#[test]
#[ignore = "slow: its like runs with the others"]
fn scratch_that_is_swapped_later_is_used_all_the_same() {
    scratch_is_swapped(&[1, 10, 60]);
}

/// Swaps scratch for a link so many milliseconds after it appears, and again and again.
fn scratch_is_swapped(waits: &[u64]) {
    let place = Place::new();
    let kind = ".forebay-scratch-";
    for line in VERBS {
        for &wait in waits {
            let output = place.run(line, |open, victim| {
                for path in found(open, kind) {
                    thread::sleep(Duration::from_millis(wait));
                    if fs::rename(&path, old(&path)).is_ok() {
                        let _ = symlink(victim.join("file"), &path);
                    }
                }
            });
            assert_eq!(output.status.code(), Some(0), "{line}: {output:?}");
            // It is removed wherever it is.
            let names = fs::read_dir(place.open()).unwrap().flatten();
            let mut names = names.map(|entry| entry.file_name().into_string().unwrap());
            let is_soon = wait == 0 && line.starts_with("bench");
            assert!(!is_soon || !names.any(|name| name.ends_with(".old")), "{line}");
            place.clean();
        }
        place.run(line, |open, victim| {
            found(open, kind).iter().for_each(|path| flicker(path, &victim.join("file")));
        });
        place.clean();
    }
    assert_eq!(fs::read_dir(place.victim()).unwrap().count(), NAMES.len());
}

#[test]
fn files_and_folders_that_are_swapped_for_links_lead_to_no_other_file() {
    let place = Place::new();
    for line in [
        "gdsio -D . -w 2 -s 1M -i 64K -x 0 -I 0 --gpu sim",
        "gdsio -D . -w 2 -s 1M -i 64K -x 4 -I 1 --gpu sim",
        "gpu-file-benchmark -m compare -f target -s 4 -r 1 --gpu sim",
    ] {
        for _ in 0..2 {
            place.run(line, |open, victim| {
                for path in ["gdsio.", "target"].iter().flat_map(|kind| found(open, kind)) {
                    let name = path.file_name().unwrap();
                    flicker(&path, &victim.join(name));
                }
            });
            place.clean();
        }
    }
    assert_eq!(fs::read_dir(place.victim()).unwrap().count(), NAMES.len());
    for line in [
        "gdsio -D sub -w 2 -s 1M -i 64K -x 0 -I 0 --gpu sim",
        "gdsio -D sub -w 2 -s 1M -i 64K -x 4 -I 1 --gpu sim",
        "gdsio -f sub/gdsio.0 -w 2 -s 1M -i 64K -x 4 -I 1 --gpu sim",
        "bench sub --size 4M --repeats 2 --gpu none --direction write --time 100ms",
        "gpu-file-benchmark -m compare -f sub/target -s 4 -r 1 --gpu sim",
    ] {
        for _ in 0..2 {
            place.run(line, |open, victim| flicker(&open.join("sub"), victim));
            place.clean();
        }
    }
}
