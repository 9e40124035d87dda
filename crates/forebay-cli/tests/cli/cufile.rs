//! cuFile's compat mode and our engine, by a library that is compiled here: it has the functions
//! that are called, moves bytes for real, and does what the real one may do wrong.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use forebay_measure::data::Pattern;
use forebay_measure::failure::Result;
use forebay_measure::program::Program;
use forebay_measure::results::Cache;
use forebay_measure::results::{Record, Sample};
use forebay_measure::workload::backend::cufile::process::{Bounds, Move, Mover};
use forebay_measure::workload::expected::Expected;

use rustix::process::{Pid, Signal, kill_process};

use crate::lab::fuse::{Faults, Fuse};
use crate::lab::or_skip;
use crate::paths::{records, samples};
use crate::program::program;

/// What the library does where nothing is spoiled. As the real one, it writes to stdout and leaves
/// a log in its folder.
const SOUND: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct answer { int error, cuda; };
struct descriptor { int kind; union { int fd; void *pointer; } file; void *operations; };
static struct answer answer(int error) { return (struct answer) { error, 0 }; }
static int is_set(const char *name) { return getenv(name) && !strcmp(getenv(name), "true"); }

#ifndef OPEN
#define OPEN
#endif
#ifndef REGISTER
#define REGISTER
#endif
#ifndef READ
#define READ
#endif
#ifndef WRITE
#define WRITE
#endif

/* Counters of one GPU, as version 1.15 has them: bytes, operations, and those by POSIX. */
static long counters[31];
static ssize_t counted(int place, ssize_t bytes) {
  if (bytes > 0) {
    __sync_fetch_and_add(&counters[place], bytes);
    __sync_fetch_and_add(&counters[place + 4], 1);
    __sync_fetch_and_add(&counters[place + 7], 1);
  }
  return bytes;
}
struct answer cuFileSetStatsLevel(int level) { return answer(level == 3 ? 0 : 5022); }
struct answer cuFileStatsStart(void) { return answer(0); }
struct answer cuFileGetStatsL3(long *all) {
  all[128] = 1; memcpy(&all[129], counters, sizeof counters); return answer(0);
}

struct answer cuFileDriverOpen(void) {
  puts("an unexpected line"); fflush(stdout);
  fclose(fopen("cufile.log", "w"));
  char *settings = getenv("CUFILE_ENV_PATH_JSON");
  if (!settings || access(settings, R_OK) || getenv("CUFILE_OF_THE_USER")) return answer(5034);
  if (!is_set("CUFILE_FORCE_COMPAT_MODE")) return answer(5034);
  if (!is_set("CUFILE_ALLOW_COMPAT_MODE")) return answer(5034);
  OPEN; return answer(0);
}
struct answer cuFileGetVersion(int *version) { *version = 1150; return answer(0); }
struct answer cuFileDriverGetProperties(void *properties) { return answer(0); }
long cuFileUseCount(void) { return 0; }
struct answer cuFileHandleRegister(void **handle, struct descriptor *d) {
  REGISTER; *handle = (void *)(long)(d->file.fd + 1); return answer(0);
}
void cuFileHandleDeregister(void *handle) {}
ssize_t cuFileRead(void *handle, char *base, size_t len, off_t offset, off_t at) {
  int fd = (int)(long)handle - 1;
  READ;
  ssize_t got = pread(fd, base + at, len, offset);
  if (got < 0 && errno == EINVAL) {
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_DIRECT);
    got = pread(fd, base + at, len, offset);
  }
  return counted(2, got);
}
ssize_t cuFileWrite(void *handle, const char *base, size_t len, off_t offset, off_t at) {
  int fd = (int)(long)handle - 1;
  WRITE;
  ssize_t put = pwrite(fd, base + at, len, offset);
  if (put < 0 && errno == EINVAL) {
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_DIRECT);
    put = pwrite(fd, base + at, len, offset);
  }
  return counted(15, put);
}
"#;

/// Bytes of a run: no whole pages.
const LEN: u64 = 1_200_003;

/// A folder on a drive with the library in it, in which `spoiled` stands for a step of it.
fn folder_with(spoiled: &str) -> Option<tempfile::TempDir> {
    let folder = tempfile::tempdir_in(".").unwrap();
    for part in ["library", "work", "temporary"] {
        fs::create_dir(folder.path().join(part)).unwrap();
    }
    let source = folder.path().join("cufile.c");
    fs::write(&source, format!("{spoiled}\n{SOUND}")).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-w", "-shared", "-fPIC", "-o"]).arg(library(folder.path())).arg(&source);
    match compiler.status() {
        Ok(status) if status.success() => Some(folder),
        _ => {
            println!("skipped: cuFile's compat mode: no C compiler");
            None
        }
    }
}

fn library(folder: &Path) -> PathBuf {
    std::path::absolute(folder.join("library/libcufile.so.0")).unwrap()
}

fn bench(folder: &Path, arguments: &[&str]) -> Output {
    bench_in(folder).args(arguments).output().unwrap()
}

fn bench_in(folder: &Path) -> Command {
    let mut command = Command::new(program());
    command.current_dir(folder.join("work")).args(["bench", "--format=json", "--repeats=2"]);
    command.arg("--time=100ms");
    command.env("LD_LIBRARY_PATH", library(folder).parent().unwrap());
    command.env("TMPDIR", std::path::absolute(folder.join("temporary")).unwrap());
    // Settings of the user's are not the library's defaults.
    command.env("CUFILE_OF_THE_USER", "true").env_remove("VIRTUAL_ENV");
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The samples of cuFile.
fn of_cufile(all: &[Record]) -> Vec<&Sample> {
    let all = samples(all).into_iter();
    all.filter(|sample| sample.point.method.starts_with("cufile-compat")).collect()
}

fn warnings(all: &[Record]) -> String {
    let text = |record: &Record| match record {
        Record::Warning { text } => Some(text.clone()),
        _ => None,
    };
    all.iter().filter_map(text).collect::<Vec<_>>().join("\n")
}

/// A run that only reads warm bytes, with the library and `spoiled`.
fn read_with(spoiled: &str) -> Option<(Output, Vec<Record>)> {
    let folder = folder_with(spoiled)?;
    let size = LEN.to_string();
    let arguments = ["--gpu=sim", "--size", &size, "--direction=read", "--cache=warm"];
    let output = bench(folder.path(), &arguments);
    let all = records(&output);
    Some((output, all))
}

#[test]
fn cufile_is_compared_at_its_defaults_and_tuned() {
    let Some(folder) = folder_with("") else { return };
    let size = LEN.to_string();
    let output = bench(folder.path(), &["--gpu", "sim", "--size", &size]);
    assert!(output.status.success(), "{}", stderr(&output));
    let all = records(&output);
    let rows = of_cufile(&all);
    let right = |sample: &&&Sample| {
        sample.measured.as_ref().is_some_and(|measured| measured.verified == Some(true))
    };
    let all_samples = samples(&all);
    let usual = all_samples.iter().filter(|sample| sample.point.method == "standard").filter(right);
    assert_eq!(rows.len(), 2 * usual.count(), "{}", warnings(&all));
    for sample in &rows {
        let measured = sample.measured.as_ref().unwrap();
        assert_eq!((measured.verified, measured.verified_bytes), (Some(true), Some(LEN)));
        assert!(measured.cpu.unwrap().s_per_gb.is_some() && measured.simulated);
        assert_eq!(measured.verdict.as_ref().unwrap().text, "compat", "{:?}", measured.verdict);
    }
    let reason = |way: &str| {
        let is = |sample: &&&Sample| {
            sample.point.method == way && sample.point.cache == Some(Cache::Warm)
        };
        rows.iter().find(is).unwrap().measured.as_ref().unwrap().reason.clone().unwrap()
    };
    let expected = "cuFile 1.15 in compat mode: 1 thread, all bytes a call, page cache";
    assert_eq!(reason("cufile-compat"), expected);
    let expected = "cuFile 1.15 in compat mode: 8 threads, 16 MiB a call, page cache";
    assert_eq!(reason("cufile-compat-tuned"), expected);
    // What it left is gone, and it left nothing elsewhere.
    for part in ["work", "temporary"] {
        assert_eq!(fs::read_dir(folder.path().join(part)).unwrap().count(), 0, "{part}");
    }
}

#[test]
fn with_cufile_off_it_is_not_compared() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let mut command = Command::new(program());
    command.current_dir(folder.path()).env("FOREBAY_CUFILE", "off");
    command.args(["bench", "--gpu=sim", "--size=64K", "--direction=read", "--cache=warm"]);
    command.args(["--format=json", "--repeats=1", "--time=100ms"]);
    let all = records(&command.output().unwrap());
    assert!(of_cufile(&all).is_empty());
    let text = warnings(&all);
    assert!(text.contains("is not compared: `FOREBAY_CUFILE` is `off`"), "{text}");
}

/// Whether the process has these bytes of a pattern.
fn holds(cufile: &mut Mover, pattern: Pattern, len: u64) -> bool {
    cufile.holds(0, len, &Expected::Pattern(pattern), 0).unwrap()
}

#[test]
fn many_requests_in_flight_move_every_byte_both_ways() {
    let Some(folder) = folder_with("") else { return };
    let mut cufile = start(folder.path(), LONG, LONG).unwrap();
    let path = folder.path().join("file");
    // Three requests, of which the last is short.
    let len = (33 << 20) + 5;
    fs::write(&path, vec![0; len]).unwrap();
    let len = len as u64;
    let pattern = Pattern::new(7);
    let write = Move { write: true, offset: 0, at: 0, len, threads: 8, request: 16 << 20 };
    cufile.allocate(len).unwrap();
    cufile.put(0, pattern, len).unwrap();
    cufile.open(&path, true, true).unwrap();
    assert_eq!(cufile.run(&write).unwrap().0, len);
    cufile.sync().unwrap();
    cufile.fill(2).unwrap();
    assert!(!holds(&mut cufile, pattern, len));
    cufile.open(&path, false, false).unwrap();
    let read = Move { write: false, ..write };
    assert_eq!(cufile.run(&read).unwrap().0, len);
    assert!(holds(&mut cufile, pattern, len) && !holds(&mut cufile, Pattern::new(8), len));
    // A part of the file to another part of the memory.
    cufile.fill(2).unwrap();
    let part = Move { offset: 8 << 20, at: 0, len: 4 << 20, ..read };
    assert_eq!(cufile.run(&part).unwrap().0, 4 << 20);
    assert!(cufile.holds(0, 1 << 20, &Expected::Pattern(pattern), 8 << 20).unwrap());
    cufile.close().unwrap();
}

#[test]
fn a_driver_that_does_not_open_has_a_note_with_a_remedy() {
    let Some((output, all)) = read_with("#define OPEN return answer(5027)") else { return };
    assert!(output.status.success(), "{}", stderr(&output));
    let rows = of_cufile(&all);
    assert!(rows.len() == 2 && rows.iter().all(|sample| sample.measured.is_none()), "{rows:?}");
    assert_eq!(rows[0].error, rows[1].error);
    let note = stderr(&output);
    let says = "`cufile-compat` and `cufile-compat-tuned` are not available: cannot use cuFile: ";
    assert_eq!(note.matches(says).count(), 1, "{note}");
    assert!(note.contains("HANDLE_NOT_REGISTERED (5027)") && note.contains("/run/udev"), "{note}");
    for (open, says) in [
        ("*(volatile int *)0 = 0", "`forebay cufile` ended with signal: 11"),
        ("_exit(3)", "`forebay cufile` ended with exit status: 3"),
    ] {
        let folder = folder_with(&format!("#define OPEN {open}")).unwrap();
        let reason = start(folder.path(), LONG, LONG).unwrap_err();
        assert!(reason.contains(says) && reason.contains("`forebay probe`"), "{open}: {reason}");
    }
}

#[test]
fn a_library_that_fails_later_is_left_out_with_its_remedy() {
    let Some((output, all)) = read_with("#define REGISTER return answer(5027)") else { return };
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(of_cufile(&all).iter().all(|sample| sample.error.is_some()));
    let text = stderr(&output);
    let says = "`cufile-compat` and `cufile-compat-tuned` are not available: cuFile cannot open";
    assert_eq!(text.matches(says).count(), 1, "{text}");
    assert_eq!(text.matches("/run/udev:ro").count(), 1, "{text}");
    for never in ["failed, ", "incomplete", "same command"] {
        assert!(!text.contains(never), "{text}");
    }
    // The other methods are not affected.
    let ours = samples(&all).into_iter().filter(|sample| sample.measured.is_some()).count();
    assert_eq!(ours, 2 * 3);
    for (step, says, remedy) in [
        ("READ return -5008", "(5008)", "; "),
        ("READ { errno = EIO; return -1; }", "Input/output error", ""),
        ("READ return len + 1", "cuFile reported ", ""),
        ("READ *(volatile int *)0 = 0", "ended with signal: 11", "`forebay probe`"),
    ] {
        let (moved, _) = read_alone(&format!("#define {step}"));
        let cause = moved.unwrap_err().with_remedy();
        assert!(cause.contains(says) && cause.contains(remedy), "{step}: {cause}");
    }
}

#[test]
fn a_file_that_cufile_refuses_is_said_once() {
    let Some(folder) = folder_with("#define REGISTER return answer(5027)") else { return };
    let run = |more: &[&str]| {
        let results = folder.path().join("work/results.jsonl");
        let _ = fs::remove_file(&results);
        let arguments = ["--gpu=sim", "--size=1M", "-o", "results.jsonl"];
        let output = bench(folder.path(), &[&arguments[..], more].concat());
        let report = Command::new(program()).arg("report").arg(&results).output().unwrap();
        let table = String::from_utf8_lossy(&report.stdout).into_owned();
        (output.status.code(), stderr(&output), table, stderr(&report))
    };
    let (code, text, table, reported) = run(&[]);
    assert_eq!(code, Some(0), "{text}");
    // Warm, cold and written, at its defaults and tuned.
    assert_eq!(table.matches("  not available: cuFile cannot open").count(), 6, "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    for text in [text, reported] {
        assert_eq!(text.matches("/run/udev:ro").count(), 1, "{text}");
        assert!(!text.contains("failed, ") && !text.contains("incomplete"), "{text}");
    }
    // A method that was named has to run.
    let (code, text, table, _) = run(&["--method=cufile-compat"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(table.contains("not measured, see below"), "{table}");
    assert!(text.contains("error: 3 samples failed"), "{text}");
    assert_eq!(text.matches("/run/udev:ro").count(), 1, "{text}");
}

#[test]
fn short_transfers_are_continued_and_false_reports_found() {
    // It moves nothing and says that it did.
    let Some((output, all)) = read_with("#define READ return len") else { return };
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("error: 2 methods moved wrong data"), "{}", stderr(&output));
    let rows = of_cufile(&all);
    let wrong = rows.iter().filter_map(|sample| sample.measured.as_ref());
    assert!(wrong.clone().count() >= 2 && wrong.clone().all(|m| m.verified == Some(false)));
    for (step, bytes, right) in [
        ("if (len > 5000) len /= 2", LEN, true),
        // It moves nothing; it leaves the last byte.
        ("return 0", 0, false),
        ("{ pread(fd, base + at, len - 1, offset); return len; }", LEN, false),
    ] {
        let (moved, holds) = read_alone(&format!("#define READ {step}"));
        assert_eq!((moved.unwrap(), holds), (bytes, right), "{step}");
    }
    let folder = folder_with("#define WRITE return len").unwrap();
    let arguments = ["--gpu=sim", "--size=64K", "--direction=write", "--cache=warm"];
    let output = bench(folder.path(), &arguments);
    assert!(stderr(&output).contains("error: 2 methods moved wrong data"), "{}", stderr(&output));
}

/// The result of one read of a warm file with the library and `spoiled`, and whether the bytes
/// match.
fn read_alone(spoiled: &str) -> (Result<u64>, bool) {
    let folder = folder_with(spoiled).unwrap();
    let mut cufile = start(folder.path(), LONG, LONG).unwrap();
    let path = folder.path().join("file");
    let pattern = Pattern::new(3);
    let mut bytes = vec![0; usize::try_from(LEN).unwrap()];
    pattern.fill(0, &mut bytes);
    fs::write(&path, bytes).unwrap();
    cufile.allocate(LEN).unwrap();
    cufile.fill(2).unwrap();
    cufile.open(&path, false, false).unwrap();
    let read = Move { write: false, offset: 0, at: 0, len: LEN, threads: 1, request: LEN };
    let moved = cufile.run(&read).map(|(bytes, _)| bytes);
    let holds = cufile.is_alive() && holds(&mut cufile, pattern, LEN);
    (moved, holds)
}

#[test]
fn an_error_at_the_close_of_a_written_file_is_reported() {
    let faults = Faults { closes: true, fail_closes: Some(libc::EDQUOT), ..Faults::default() };
    let Some(fuse) = or_skip(Fuse::with(vec![7; 1 << 20], faults)) else { return };
    let Some(folder) = folder_with("") else { return };
    let mut cufile = start(folder.path(), LONG, LONG).unwrap();
    let len = 1 << 20;
    cufile.allocate(len).unwrap();
    let shape = Move { write: false, offset: 0, at: 0, len, threads: 1, request: len };
    cufile.open(&fuse.path(), false, false).unwrap();
    cufile.run(&shape).unwrap();
    cufile.close().unwrap();
    cufile.open(&fuse.path(), true, true).unwrap();
    cufile.run(&Move { write: true, ..shape }).unwrap();
    let text = cufile.close().unwrap_err().with_remedy();
    assert!(text.contains("cannot close") && text.contains("quota"), "{text}");
}

/// Only a bound on a hang.
const LONG: Duration = Duration::from_secs(60);

/// The process over the library of a folder, with so much time to start and for each order.
fn start(folder: &Path, start: Duration, order: Duration) -> Result<Mover, String> {
    let path = library(folder);
    let path = format!("LD_LIBRARY_PATH={}", path.parent().unwrap().display());
    let program = Program::new(vec!["env".into(), path.into(), program().into()]);
    let bounds = Bounds { start, order, ..Bounds::default() };
    Mover::start(&program, None, bounds)
}

#[test]
fn a_library_that_hangs_is_abandoned() {
    let Some(folder) = folder_with("#define OPEN for (;;) __asm__ volatile (\"\")") else { return };
    let reason = start(folder.path(), Duration::from_secs(1), LONG).unwrap_err();
    assert!(reason.starts_with("no answer within 1 s; "), "{reason}");

    let folder = folder_with("#define READ for (;;) pause()").unwrap();
    let path = folder.path().join("cufile.c");
    let len = fs::metadata(&path).unwrap().len();
    let shape = Move { write: false, offset: 0, at: 0, len, threads: 8, request: 16 << 20 };
    // On a busy machine what does not hang may take as long: again then, with more time.
    let (mut cufile, printed) = [2, 10, 40]
        .into_iter()
        .find_map(|seconds| {
            let mut cufile = start(folder.path(), LONG, Duration::from_secs(seconds)).unwrap();
            let ready = cufile.allocate(len).and_then(|()| cufile.fill(1));
            let ready = ready.and_then(|()| cufile.open(&path, false, false));
            ready.ok().map(|_| (cufile, format!("no answer within {seconds} s")))
        })
        .expect("orders that are answered");
    let start = Instant::now();
    let refused = cufile.run(&shape).unwrap_err().with_remedy();
    assert!(refused.starts_with(&format!("{printed}; `forebay probe`")), "{refused}");
    // Nothing more is requested of it.
    assert!(!cufile.is_alive());
    assert!(cufile.open(&path, false, false).unwrap_err().with_remedy().starts_with(&printed));
    assert!(start.elapsed() < LONG + LONG);
}

/// The time limit of a driver that hangs is paid once, after the first rows.
#[test]
fn rows_before_cufile_do_not_wait_for_its_driver() {
    let hangs = "#define OPEN { fclose(fopen(\"begun\", \"a\")); for (;;) pause(); }";
    let Some((output, all)) = read_with(hangs) else { return };
    assert!(output.status.success(), "{}", stderr(&output));
    let methods: Vec<&str> =
        samples(&all).iter().take(5).map(|sample| sample.point.method.as_str()).collect();
    let last = ["cufile-compat", "cufile-compat-tuned", "forebay"];
    assert_eq!(methods, [&["standard", "mmap"][..], &last].concat());
    let times: Vec<f64> = samples(&all).iter().map(|sample| sample.unix_time).collect();
    assert!(times[2] - times[1] >= 4.0, "it was opened before: {times:?}");
    let rows = of_cufile(&all);
    let says = |sample: &&&Sample| sample.error.as_ref().unwrap().contains("no answer within 4 s");
    assert_eq!(rows.iter().filter(says).count(), 2, "{rows:?}");
    assert_eq!(rows[0].error, rows[1].error);
}

#[test]
fn a_signal_ends_it_and_leaves_nothing() {
    let hangs = "#define READ { fclose(fopen(\"begun\", \"w\")); for (;;) pause(); }";
    let Some(folder) = folder_with(hangs) else { return };
    let mut command = bench_in(folder.path());
    command.args(["--gpu", "sim", "--size", "64K", "--cache", "warm"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let left = || {
        let entries = fs::read_dir(folder.path().join("temporary")).unwrap();
        entries.flatten().map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let start = Instant::now();
    while !left().iter().any(|path| path.join("begun").exists()) {
        // Only a bound on a hang: nothing is measured.
        assert!(start.elapsed() < Duration::from_secs(25), "it never came that far");
        std::thread::sleep(Duration::from_millis(5));
    }
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let ended = child.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(15));
    assert_eq!(left(), Vec::<PathBuf>::new());
}

#[test]
fn the_child_does_not_outlive_its_parent() {
    let Some(folder) = folder_with("#define OPEN for (;;) pause()") else { return };
    let mut command = Command::new(program());
    command.current_dir(folder.path().join("temporary")).arg("cufile");
    command.env("CUFILE_ENV_PATH_JSON", "/dev/null").env("CUFILE_FORCE_COMPAT_MODE", "true");
    command.env("CUFILE_ALLOW_COMPAT_MODE", "true").arg("--library").arg(library(folder.path()));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut orders, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    // Nonsense is answered, and nothing is done without what it needs.
    let mut answers = BufReader::new(answers).lines();
    for (order, says) in [
        ("bananas", "invalid order"),
        (r#"{"order":"fill","byte":1,"more":1}"#, "invalid order"),
        (r#"{"order":"fill","byte":1}"#, "no memory of 0 bytes"),
        (
            r#"{"order":"put","at":0,"len":101,"pattern":{"key":1,"inverted":false}}"#,
            "no memory of 101 bytes",
        ),
        (r#"{"order":"compare","at":0,"len":9,"pattern":null,"offset":0}"#, "no memory of 9 bytes"),
        (r#"{"order":"allocate","len":18446744073709551615}"#, "Err"),
        (r#"{"order":"open","path":"zz","write":false,"direct":false}"#, "invalid order"),
        (
            r#"{"order":"open","path":{"Unix":[47,120]},"write":false,"direct":true}"#,
            "cannot open the file",
        ),
        (
            r#"{"order":"open","path":{"Unix":[47]},"write":false,"direct":false}"#,
            "cuFile is not open",
        ),
        (
            r#"{"order":"move","write":false,"offset":0,"at":0,"len":1,"threads":65,"request":1}"#,
            "invalid number of threads",
        ),
        (
            r#"{"order":"move","write":false,"offset":0,"at":0,"len":1,"threads":1,"request":1}"#,
            "no memory of 1 bytes",
        ),
        (r#"{"order":"start","gpu":"bananas"}"#, "bananas"),
        (r#"{"order":"close"}"#, r#"{"Ok":null}"#),
    ] {
        writeln!(orders, "{order}").unwrap();
        let answer = answers.next().unwrap().unwrap();
        assert!(answer.contains(says), "{order}: {answer}");
    }
    writeln!(orders, r#"{{"order":"start","gpu":null}}"#).unwrap();
    drop(orders);
    // It hangs, and has a second.
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap()), Some(9));
}
