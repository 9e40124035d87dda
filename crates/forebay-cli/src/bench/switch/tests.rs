//! Runs whose command fails, hangs, or leaves the path away, on a folder in memory.

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};

use clap::{Args as _, FromArgMatches as _};
use forebay::Options;
use forebay_measure::program::Program;
use forebay_measure::results::Sample;
use forebay_measure::results::file::{read, samples};
use forebay_topology::{Resolver, System};
use tempfile::TempDir;

use super::*;
use crate::bench::Bench;
use crate::report::model::{Axis, gather};

fn args(words: &[&str]) -> BenchArgs {
    let definition = BenchArgs::augment_args(clap::Command::new("bench").no_binary_name(true));
    BenchArgs::from_arg_matches(&definition.try_get_matches_from(words).unwrap()).unwrap()
}

#[test]
fn numbers_and_their_command_come_together() {
    let refused = |words: &[&str], parts: [&str; 2]| {
        let failure = check(&args(words)).unwrap_err();
        let text = format!("{}; {}", failure.in_one_line(), failure.hint.unwrap_or_default());
        assert!(failure.usage && parts.iter().all(|part| text.contains(part)), "{text}");
    };
    assert_eq!(check(&args(&["a", "b"])), Ok(()));
    assert_eq!(check(&args(&["a", "--io-queues=1,2", "--set-queues=set {}"])), Ok(()));
    refused(&["a", "--io-queues=1,2"], ["needs a command", "--set-queues 'COMMAND'"]);
    refused(&["a", "--set-queues=set {}"], ["no number", "--io-queues 1,2,4,8"]);
    refused(&["--io-queues=1", "--set-queues=set 1"], ["has no `{}`", "--nr-io-queues={}"]);
    refused(&["a", "b", "--io-queues=1", "--set-queues={}"], ["there are 2", "once for each path"]);
}

#[test]
fn a_path_that_is_not_there_is_refused() {
    let words = ["--io-queues=1", "--set-queues={}"];
    let failure = Switch::find(&args(&words), Path::new("/nonexistent")).unwrap_err();
    assert!(failure.in_one_line().contains("no such file"), "{failure:?}");
    assert!(failure.hint.is_some(), "{failure:?}");
    assert!(Switch::find(&args(&[]), Path::new("/nonexistent")).unwrap().is_none());
}

/// A folder in memory, in whose file system this process has nothing else open during the test.
pub(super) fn memory() -> Option<(TempDir, MutexGuard<'static, ()>)> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir_in("/dev/shm").ok();
    if folder.is_none() {
        println!("skipped: a path that is unmounted: there is no /dev/shm");
    }
    Some((folder?, alone))
}

/// Only a bound on a hang.
const LONG: Duration = Duration::from_secs(60);

/// Measures these numbers with two points and two repeats, on a `system` that may be simulated;
/// returns the samples. The command has `command_max` for each number.
fn swept(
    path: &Path,
    results: &Path,
    (numbers, line, command_max): (&str, &str, Duration),
    system: Option<System>,
) -> Vec<Sample> {
    let (path, output) = (path.to_str().unwrap(), results.to_str().unwrap());
    let numbers = format!("--io-queues={numbers}");
    let mut args = args(&[
        path,
        &numbers,
        "--gpu=none",
        "--block-size=4K,8K",
        "--depth=1",
        "--cache=warm",
        "--bytes=64K",
        "--size=1M",
        "--repeats=2",
        "-o",
        output,
    ]);
    args.set_queues = Some(line.into());
    let engine = forebay::Engine::new(Options::default()).unwrap();
    let program = Program::of_this_process();
    let mut bench = Bench::new(&args, engine, None, &program, "forebay bench").unwrap();
    let switch = bench.switch.as_mut().unwrap();
    switch.command_max = command_max;
    switch.away_max = Duration::from_millis(100);
    if let Some(system) = system {
        bench.resolver = Resolver::new(system);
    }
    bench.run().unwrap();
    samples(&read(results).unwrap()).map(|(_, sample)| sample.clone()).collect()
}

#[test]
fn a_number_that_cannot_be_set_is_rows_and_not_the_end() {
    let Some((memory, _alone)) = memory() else { return };
    let (path, log) = (memory.path().join("path"), memory.path().join("log"));
    let line = format!(
        "cd {memory}; echo {{}} >>log; [ -d away ] && mv away path; ls -A path >>log
         case {{}} in 2) echo no target >&2; exit 1;; 3) sleep 100;; 4) mv path away;; esac",
        memory = memory.path().display()
    );
    // On a busy machine commands that end may take as long as the one that never does: then retry
    // with more time for each.
    let (all, limit) = [300, 3000, 20_000]
        .map(Duration::from_millis)
        .into_iter()
        .find_map(|limit| {
            let folder = tempfile::tempdir_in(".").unwrap();
            let _ = (fs::remove_file(&log), fs::create_dir(&path));
            let asked = ("1,2,3,4", line.as_str(), limit);
            let all = swept(&path, &folder.path().join("results"), asked, None);
            let ends = all.iter().filter(|sample| sample.point.queues != Some(3));
            let mut errors = ends.filter_map(|sample| sample.error.as_deref());
            (!errors.any(|error| error.contains("it takes more than"))).then_some((all, limit))
        })
        .expect("commands that end");
    let too_long = format!("it takes more than {} s", limit.as_secs_f64());
    // Once for each number in each repeat, backwards in the second, and the path holds no files of
    // ours at that time.
    assert_eq!(fs::read_to_string(&log).unwrap(), "1\n2\n3\n4\n4\n3\n2\n1\n");
    let numbers: Vec<u32> = all.iter().map(|sample| sample.point.queues.unwrap()).collect();
    assert_eq!(numbers, [1, 1, 2, 2, 3, 3, 4, 4, 4, 4, 3, 3, 2, 2, 1, 1]);
    for sample in &all {
        let error = sample.error.as_deref().unwrap_or_default();
        let parts: &[&str] = match sample.point.queues {
            Some(1) => &[],
            Some(2) => &["cannot set 2 I/O queues", "it failed: no target"],
            Some(3) => &["cannot set 3 I/O queues", &too_long],
            _ => &["cannot set 4 I/O queues", "was not back 0.1 s after", "no such file"],
        };
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        assert_eq!(sample.measured.is_some(), parts.is_empty(), "{sample:?}");
        assert_eq!(sample.queues_found, None, "memory has no queues");
    }
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0, "no scratch is left");
}

#[test]
fn the_last_of_a_repeat_is_the_first_of_the_next_and_is_set_once() {
    let Some((memory, _alone)) = memory() else { return };
    let folder = tempfile::tempdir_in(".").unwrap();
    let (log, results) = (folder.path().join("log"), folder.path().join("results"));
    let line = format!("echo '{{}}{{}}' >>{}", log.display());
    let all = swept(memory.path(), &results, ("1,5", &line, LONG), None);
    assert_eq!(fs::read_to_string(&log).unwrap(), "11\n55\n11\n");
    assert_eq!(all.iter().filter(|sample| sample.measured.is_some()).count(), 8, "{all:?}");
}

#[test]
fn what_the_kernel_tells_stands_beside_what_was_asked_for() {
    let Some((memory, _alone)) = memory() else { return };
    // A simulated mount of a server that gives two connections at most.
    let folder = tempfile::tempdir_in(".").unwrap();
    let (path, at) = (memory.path().display(), |name: &str| folder.path().join(name));
    for name in ["root/sys/dev/block", "root/proc/self", "expected"] {
        fs::create_dir_all(at(name)).unwrap();
    }
    let mount = format!("12 1 0:42 / {path} rw - nfs4 s:/e rw,vers=4.2,nconnect=8\n");
    fs::write(at("root/proc/self/mountinfo"), mount).unwrap();
    let facts = "\"dev\":\"0:42\",\"rdev\":\"0:0\",\"mode\":\"040755\",\"ino\":12,\"size\":9";
    let record = format!(
        "{{\"path\":\"{path}\",\"realpath\":\"{path}\",{facts},\"blksize\":4096,\"mnt_id\":12}}\n"
    );
    fs::write(at("expected/probe.jsonl"), record).unwrap();
    let system = System::fixture(folder.path()).unwrap();
    let line = format!(
        "( echo 'device s:/e mounted on {path} with fstype nfs4'; echo '\txprt: tcp'
           [ {{}} = 1 ] || echo '\txprt: tcp' ) >{}",
        at("root/proc/self/mountstats").display()
    );
    let all = swept(memory.path(), &at("results"), ("1,2,4", &line, LONG), Some(system));
    for sample in &all {
        assert!(sample.measured.is_some(), "{sample:?}");
        assert_eq!(sample.queues_found, sample.point.queues.map(|asked| asked.min(2)));
    }
    let records = read(&at("results")).unwrap();
    let model = gather::model(&[("bench".into(), records)]);
    let mut marks: Vec<_> =
        model.lines.iter().filter_map(|line| Axis::Queues.text(&model, line)).collect();
    marks.dedup();
    assert_eq!(marks, ["1", "2", "2, not 4"]);
    let warned = model
        .warnings
        .iter()
        .any(|text| text.contains("2 of 6 points had another number of queues"));
    assert!(warned, "{:?}", model.warnings);
}
