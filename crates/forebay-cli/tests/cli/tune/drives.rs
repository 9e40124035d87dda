//! Drives of known behaviour, in a mount namespace of their own: this program runs itself there.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use forebay::units::{KIB, MIB};
use forebay_cli::tune::json::Searched;

use crate::program::program;
use crate::tune::slow::{Kind, Slow};
use crate::tune::{bad, report};

/// Set in the namespace.
const INSIDE: &str = "TUNE_TEST_INSIDE";

/// 50 MB/s behind 10 ms: a request of 128 KiB takes 2.6 ms of the pipe, so five keep it full; of
/// 1 MiB, which take 21 ms, two do.
const KIND: Kind = Kind {
    len: 64 * MIB,
    rate: 50_000_000,
    latency: Duration::from_millis(10),
    no_direct: false,
    hangs_at: u64::MAX,
};

/// Runs the test `name` of this program again, where nobody else sees what it mounts, and there
/// `test`, in a folder.
fn inside(name: &str, test: impl FnOnce(&Path) -> Result<(), String>) {
    if std::env::var_os(INSIDE).is_some() {
        let folder = tempfile::tempdir().unwrap();
        if let Err(reason) = test(folder.path()) {
            println!("skipped: {name}: {reason}");
        }
        return;
    }
    let namespace = |command: &mut Command| {
        command.args(["--mount", "--propagation", "private"]);
    };
    let mut probe = Command::new("unshare");
    namespace(&mut probe);
    if !probe.arg("true").output().is_ok_and(|output| output.status.success()) {
        return println!("skipped: {name}: a mount namespace takes root");
    }
    let mut command = Command::new("unshare");
    namespace(&mut command);
    command.arg(std::env::current_exe().unwrap()).args(["--exact", name, "--nocapture"]);
    let output = command.env(INSIDE, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let ran = output.status.success() && text.contains("1 passed");
    assert!(ran, "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    text.lines().filter(|line| line.starts_with("skipped: ")).for_each(|line| println!("{line}"));
}

/// Mounts a drive; the folder for everything else beside it.
fn mounted(kind: Kind, folder: &Path) -> Result<(std::sync::Arc<Slow>, String), String> {
    let point = folder.join("slow");
    std::fs::create_dir(&point).unwrap();
    let (slow, path) = Slow::mount(kind, &point)?;
    Ok((slow, path.to_str().unwrap().to_owned()))
}

/// Whether a search found the knee of a drive of [`KIND`].
fn is_knee(searched: &Searched) -> bool {
    let (found, points) = (searched.found, &searched.points.0);
    let alone = points.iter().find(|point| point.cell.depth == 1).unwrap();
    // Small requests, so that others get their turn, and as many as keep the pipe full.
    found.cell.request_size == 128 * KIB
        && (4..=16).contains(&found.cell.depth)
        && found.bytes_per_second > 2.0 * alone.rate()
        && found.bytes_per_second < 1.1 * f64::from(KIND.rate)
        && found.bytes_per_second > 0.9 * searched.best.bytes_per_second
        // Depths that only add latency were left alone.
        && points.iter().all(|point| point.cell.depth <= 64)
}

#[test]
fn the_knee_of_a_drive_that_needs_depth_is_found() {
    inside("tune::drives::the_knee_of_a_drive_that_needs_depth_is_found", |folder| {
        let (_slow, path) = mounted(KIND, folder)?;
        // Where this machine is too busy to answer in time the drive is another one for a while.
        let begun = Instant::now();
        let mut tries = (0..20)
            .take_while(|_| begun.elapsed() < Duration::from_secs(90))
            .map(|_| report(folder, &[&path, "--duration", "3"]));
        let mut seen = Vec::new();
        let found = tries.any(|report| {
            let searched = &report.searches[0];
            // A request waits for its own way through the pipe, and 10 ms.
            assert!(searched.found.latency_s > 0.010, "{searched:?}");
            seen.push(format!("{:?}, {:?}", searched.found, searched.best));
            is_knee(searched)
        });
        assert!(found, "{seen:#?}");
        Ok(())
    });
}

#[test]
fn a_file_system_without_direct_io_is_told() {
    inside("tune::drives::a_file_system_without_direct_io_is_told", |folder| {
        let (_slow, path) = mounted(Kind { no_direct: true, ..KIND }, folder)?;
        let told = bad(folder, &[&path]);
        insta::assert_snapshot!(told.replace(&path, "PATH"), @"
        error: nothing to tune: `PATH` has no O_DIRECT
          caused by: the file system refuses O_DIRECT
        hint: without O_DIRECT, the kernel's read-ahead sets the queue depth
        ");
        Ok(())
    });
}

#[test]
fn a_drive_that_does_not_answer_ends_the_search() {
    inside("tune::drives::a_drive_that_does_not_answer_ends_the_search", |folder| {
        let (slow, path) = mounted(Kind { hangs_at: 20, ..KIND }, folder)?;
        let mut command = Command::new(program());
        command.args(["tune", &path]).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut told = String::new();
        for line in lines.map_while(Result::ok) {
            told += &(line + "\n");
            // The kernel lets no process go that waits for a drive.
            if told.contains("hint: ") {
                slow.go_on();
            }
        }
        assert_eq!(child.wait().unwrap().code(), Some(1));
        // How far the search had come when the drive fell silent depends on the machine.
        let (before, rest) = told.split_once("caused by: ").unwrap();
        let (asked, after) = rest.split_once(" made").unwrap();
        assert!(asked.contains(" request") && asked.contains(" of "), "{asked}");
        let told = format!("{before}caused by: N requests of SIZE made{after}");
        insta::assert_snapshot!(told.replace(&path, "PATH"), @"
        error: cannot tune `PATH`: its drive does not answer
          caused by: N requests of SIZE made no progress for 10 s
        hint: check the kernel log (`dmesg`); `forebay map` names the drive
        ");
        Ok(())
    });
}
