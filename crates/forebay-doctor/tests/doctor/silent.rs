//! A path whose FUSE server hangs.

use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_doctor::{GpuWish, State, Wish, examine, record};
use forebay_topology::{LayerKind, Resolver, System};

use crate::lab::fuse::Fuse;
use crate::lab::or_skip;
use crate::lab::watchdog::Watchdog;
use crate::{check, scratch};

fn silent() -> Option<Fuse> {
    let fuse = or_skip(Fuse::new(vec![7; 8192]))?;
    fuse.set(|faults| faults.silent = true);
    Some(fuse)
}

fn wish(path: &Path) -> Wish {
    Wish { path: path.to_owned(), gpu: GpuWish::First }
}

#[test]
fn a_path_without_an_answer_is_a_problem_and_the_rest_is_reported() {
    let _watchdog = Watchdog::start();
    let Some(fuse) = silent() else { return };
    let folder = scratch();
    let link = folder.path().join("link");
    symlink(fuse.path(), &link).unwrap();
    let start = Instant::now();
    let report = examine(&System::live(), &wish(&link), None);
    let took = start.elapsed();
    let found = check(&report, "path_answers");
    assert!(found.is_broken && found.state == State::Problem && found.blocks.len() == 2);
    assert!(found.seen.ends_with(": no answer within 3 s"), "{found:?}");
    let point = fuse.path().parent().unwrap().display().to_string();
    assert!(found.seen.starts_with(&point), "{found:?}");
    let step = found.step.as_ref().unwrap();
    assert!(step.contains(&format!("`umount -f {point}`")), "{step}");
    assert_eq!(report.checks[0], *found, "it comes first");
    // What needs no answer of it is looked at all the same.
    assert_eq!(check(&report, "file_system").seen, "fuse");
    assert!(report.check("kernel_version").is_some() && report.check("container").is_some());
    // Only a bound on a hang: one look is waited for, not each.
    assert!(took < Duration::from_secs(30), "{took:?}");
    assert!(fuse.parked() > 0, "a process still waits");
}

#[test]
fn a_map_names_the_mount_and_a_record_replays_the_silence() {
    let _watchdog = Watchdog::start();
    let Some(fuse) = silent() else { return };
    let folder = scratch();
    let dir = folder.path().join("record");
    record(&System::live(), &[wish(&fuse.path())], None, &dir).unwrap();
    let system = System::live();
    assert_eq!(system.reach(&fuse.path()).unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(system.known_way(&fuse.path()), Some(fuse.path()));
    let replayed = System::fixture(&dir).unwrap();
    for system in [system, replayed] {
        let map = Resolver::new(system.clone()).resolve(&fuse.path());
        assert!(map.root.flag("silent") && !map.exists, "{map:#?}");
        let mut layers = map.root.walk().map(|(_, layer)| layer);
        let mount = layers.find(|layer| layer.kind == LayerKind::Mount).unwrap();
        assert_eq!(Path::new(&mount.name), fuse.path().parent().unwrap());
        let report = examine(&system, &wish(&fuse.path()), None);
        assert_eq!(check(&report, "path_answers").state, State::Problem);
    }
}

#[test]
fn a_path_that_answers_again_is_examined() {
    let _watchdog = Watchdog::start();
    let Some(fuse) = silent() else { return };
    let path = fuse.path();
    let first = System::live();
    assert!(first.reach(&path).is_err());
    fuse.set(|faults| faults.silent = false);
    assert!(first.reach(&path).is_err(), "a path without an answer is not queried again");
    System::live().reach(&path).unwrap();
    let other = System::live();
    other.pass_over(&path, Path::new("/"));
    assert_eq!(other.reach(&path).unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(other.known_way(&path).as_deref(), Some(Path::new("/")));
    let missing = System::live().reach(Path::new("/no/such/file")).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
}
