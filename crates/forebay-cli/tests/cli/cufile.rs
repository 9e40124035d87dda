//! cuFile's compat mode beside our engine, by a library that is compiled here: it has the functions
//! that are called, moves bytes for real, and does what the real one may do wrong.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use forebay_cli::bench::memory::{HostMemory, Memory};
use forebay_cli::bench::methods::cufile::{Bounds, Cufile, CufileCompat, Tuning};
use forebay_cli::bench::methods::{Job, Method as _};
use forebay_cli::program::Program;
use forebay_cli::report::json::{Cache, Direction, MethodName, Report, Row};

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

struct answer cuFileDriverOpen(void) {
  puts("a line that nobody asked for"); fflush(stdout);
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
struct answer cuFileBufRegister(const void *base, size_t len, int flags) { return answer(0); }
struct answer cuFileBufDeregister(const void *base) { return answer(0); }
ssize_t cuFileRead(void *handle, char *base, size_t len, off_t offset, off_t at) {
  int fd = (int)(long)handle - 1;
  READ;
  ssize_t got = pread(fd, base + at, len, offset);
  if (got >= 0 || errno != EINVAL) return got;
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_DIRECT);
  return pread(fd, base + at, len, offset);
}
ssize_t cuFileWrite(void *handle, const char *base, size_t len, off_t offset, off_t at) {
  int fd = (int)(long)handle - 1;
  WRITE;
  ssize_t put = pwrite(fd, base + at, len, offset);
  if (put >= 0 || errno != EINVAL) return put;
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_DIRECT);
  return pwrite(fd, base + at, len, offset);
}
"#;

/// Bytes of a run: no whole pages.
const LEN: u64 = 200_003;

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
    let mut command = Command::new(program());
    command.current_dir(folder.join("work")).args(["bench", "--json"]).args(arguments);
    command.env("LD_LIBRARY_PATH", library(folder).parent().unwrap());
    command.env("TMPDIR", std::path::absolute(folder.join("temporary")).unwrap());
    // Settings of the user's are not the library's defaults.
    command.env("CUFILE_OF_THE_USER", "true").env_remove("VIRTUAL_ENV");
    command.output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn report(output: &Output) -> Report {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(output)))
}

fn rows(report: &Report) -> Vec<&Row> {
    report.results.iter().filter(|row| row.method == MethodName::CufileCompat).collect()
}

/// A run that only reads what is resident, over the library with `spoiled`.
fn read_with(spoiled: &str) -> Option<(Output, Report)> {
    let folder = folder_with(spoiled)?;
    let size = LEN.to_string();
    let arguments = ["--gpu", "sim", "--size", &size, "--read", "--resident"];
    let output = bench(folder.path(), &arguments);
    let report = report(&output);
    Some((output, report))
}

#[test]
fn it_stands_beside_at_its_defaults_and_at_its_best() {
    let Some(folder) = folder_with("") else { return };
    let size = LEN.to_string();
    let output = bench(folder.path(), &["--gpu", "sim", "--size", &size]);
    assert!(output.status.success(), "{}", stderr(&output));
    let report = report(&output);
    assert_eq!(report.environment.versions.cufile.as_deref(), Some("1.15"));
    let rows = rows(&report);
    let ours = report
        .results
        .iter()
        .filter(|row| row.method == MethodName::Standard && row.verified == Some(true));
    assert_eq!(rows.len(), 2 * ours.count(), "{:?}", report.warnings);
    for pair in rows.chunks(2) {
        let names = pair.iter().map(|row| row.settings.as_ref().unwrap().name.as_str());
        assert_eq!(names.collect::<Vec<_>>(), ["defaults", "best"]);
        assert_eq!((pair[0].direction, pair[0].cache), (pair[1].direction, pair[1].cache));
    }
    for row in &rows {
        assert_eq!((row.verified, row.bytes, row.seconds.len()), (Some(true), LEN, 3));
        assert!(row.cpu_s_per_gb.is_some() && row.speed_up.is_some() && row.simulated);
    }
    let resident = |row: &&&Row| row.cache == Some(Cache::Resident);
    let row = rows.iter().find(resident).unwrap();
    let told = "cuFile 1.15 in compat mode: 1 thread, all bytes a call, page cache";
    assert_eq!(row.reason.as_deref(), Some(told));
    let values = &rows[1].settings.as_ref().unwrap().values;
    assert_eq!((&*values["threads"], &*values["request_size"]), ("8", "16777216"));
    // What it left is gone, and it left nothing elsewhere.
    for part in ["work", "temporary"] {
        assert_eq!(fs::read_dir(folder.path().join(part)).unwrap().count(), 0, "{part}");
    }
}

#[test]
fn without_a_gpu_a_note_says_why_it_is_not_there() {
    let folder = tempfile::tempdir_in(".").unwrap();
    fs::create_dir(folder.path().join("work")).unwrap();
    let arguments = ["--gpu", "none", "--size", "64K", "--read", "--resident"];
    let report = report(&bench(folder.path(), &arguments));
    assert!(rows(&report).is_empty());
    let text = report.warnings.join("\n");
    assert!(text.contains("cuFile's compat mode is not compared: it moves bytes to and"), "{text}");
}

#[test]
fn where_its_driver_does_not_open_a_note_says_why_and_what_to_do() {
    for (open, says, remedy) in [
        ("return answer(5027)", "HANDLE_NOT_REGISTERED (5027)", "/run/udev"),
        ("*(volatile int *)0 = 0", "`forebay cufile` ended with signal: 11", "`forebay probe`"),
        ("_exit(3)", "`forebay cufile` ended with exit status: 3", "`forebay probe`"),
    ] {
        let Some((output, report)) = read_with(&format!("#define OPEN {open}")) else { return };
        assert!(output.status.success(), "{open}: {}", stderr(&output));
        assert_eq!((rows(&report).len(), report.environment.versions.cufile.as_deref()), (0, None));
        let is_note = |text: &&String| text.starts_with("cuFile's compat mode is not compared: ");
        let note = report.warnings.iter().find(is_note);
        let note = note.unwrap_or_else(|| panic!("{open}: {:?}", report.warnings));
        assert!(note.contains(says) && note.contains(remedy), "{open}: {note}");
    }
}

#[test]
fn what_fails_later_is_left_out_with_its_remedy() {
    for (step, says, remedy) in [
        ("REGISTER return answer(5027)", "HANDLE_NOT_REGISTERED (5027)", "/run/udev"),
        ("READ return -5008", "(5008)", "; "),
        ("READ { errno = EIO; return -1; }", "by cuFile: Input/output error", ""),
        ("READ return len + 1", "cuFile says that it moved", ""),
        ("READ *(volatile int *)0 = 0", "ended with signal: 11", "`forebay probe`"),
    ] {
        let Some((output, report)) = read_with(&format!("#define {step}")) else { return };
        assert!(output.status.success(), "{step}: {}", stderr(&output));
        assert!(rows(&report).is_empty(), "{step}");
        let text = report.warnings.join("\n");
        assert!(text.contains("left out: `cufile-compat` read, resident, defaults"), "{text}");
        assert!(text.contains(says) && text.contains(remedy), "{step}: {text}");
        assert!(text.contains("/read` by cuFile: "), "{text}");
        // What others do is not touched by it.
        let right = report.results.iter().filter(|row| row.verified == Some(true)).count();
        assert!(right >= 3, "{step}");
    }
}

#[test]
fn counts_that_fall_short_are_asked_for_again_and_lies_are_found() {
    let Some((output, report)) = read_with("#define READ if (len > 5000) len /= 2") else { return };
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(rows(&report).len(), 2);
    assert!(rows(&report).iter().all(|row| row.verified == Some(true)));
    for lie in [
        // It moves nothing and says that it did; it moves nothing; it leaves the last byte.
        "READ return len",
        "READ return 0",
        "READ { pread(fd, base + at, len - 1, offset); return len; }",
    ] {
        let (output, report) = read_with(&format!("#define {lie}")).unwrap();
        assert_eq!(output.status.code(), Some(1), "{lie}: {}", stderr(&output));
        assert!(stderr(&output).contains("error: 2 ways moved wrong data"), "{}", stderr(&output));
        assert_eq!(rows(&report).len(), 2, "{lie}");
        assert!(rows(&report).iter().all(|row| row.verified == Some(false)), "{lie}");
    }
    let folder = folder_with("#define WRITE return len").unwrap();
    let arguments = ["--gpu", "sim", "--size", "1M", "--write", "--resident"];
    let output = bench(folder.path(), &arguments);
    assert!(stderr(&output).contains("error: 2 ways moved wrong data"), "{}", stderr(&output));
}

/// The process over the library of a folder, with little time.
fn start(folder: &Path, bound: Duration) -> Result<Cufile, String> {
    let path = library(folder);
    let path = format!("LD_LIBRARY_PATH={}", path.parent().unwrap().display());
    let program = Program::new(vec!["env".into(), path.into(), program().into()]);
    let bounds = Bounds { start: bound, order: bound, ..Bounds::default() };
    Cufile::start(&program, None, bounds)
}

#[test]
fn one_that_hangs_is_given_up() {
    let Some(folder) = folder_with("#define OPEN for (;;) __asm__ volatile (\"\")") else { return };
    let reason = start(folder.path(), Duration::from_secs(1)).unwrap_err();
    assert!(reason.starts_with("no answer within 1 s; "), "{reason}");

    let folder = folder_with("#define READ for (;;) pause()").unwrap();
    let cufile = start(folder.path(), Duration::from_secs(2)).unwrap();
    let mut method = CufileCompat::new(std::rc::Rc::new(cufile.into()), Tuning::Best);
    let path = folder.path().join("cufile.c");
    let len = fs::metadata(&path).unwrap().len();
    let job = Job { path, len, direction: Direction::Read, cache: Cache::Resident };
    let mut memory = Memory::Host(HostMemory::allocate(len).unwrap());
    method.open(&job, &memory).unwrap();
    method.set(&mut memory, 1).unwrap();
    let asked = Instant::now();
    let failure = method.read(&job, &mut memory).unwrap_err();
    assert!(failure.causes[0].starts_with("no answer within 2 s; `forebay probe`"), "{failure:?}");
    assert_eq!(method.spent(), None);
    // It is asked for nothing more.
    assert!(method.open(&job, &memory).unwrap_err().causes[0].starts_with("no answer within 2 s"));
    assert!(asked.elapsed() < Duration::from_secs(60));
}

#[test]
fn it_does_not_outlive_whoever_gives_orders() {
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
        ("bananas", "makes no sense"),
        (r#"{"order":"allocate","len":0,"more":1}"#, "makes no sense"),
        (r#"{"order":"allocate","len":9000000000000000000}"#, "cannot allocate"),
        (r#"{"order":"fill","byte":1}"#, "no 0 bytes of memory"),
        (r#"{"order":"allocate","len":100}"#, "done"),
        (r#"{"order":"put","key":1,"inverted":true,"len":101}"#, "no 101 bytes of memory"),
        (r#"{"order":"sum","at":1,"len":1}"#, "are none"),
        (r#"{"order":"sum","at":0,"len":100}"#, "sums"),
        (r#"{"order":"sum","at":18446744073708503040,"len":1048576}"#, "no memory is that long"),
        (r#"{"order":"open","path":"zz","write":false,"direct":false}"#, "a path that is none"),
        (r#"{"order":"open","path":"2f78","write":false,"direct":true}"#, "cannot open the file"),
        (r#"{"order":"open","path":"2f","write":false,"direct":false}"#, "cuFile is not open"),
        (
            r#"{"order":"move","write":false,"len":1,"threads":65,"request":1,"sync":false}"#,
            "so many threads",
        ),
        (
            r#"{"order":"move","write":false,"len":1,"threads":1,"request":1,"sync":false}"#,
            "no open file",
        ),
        (r#"{"order":"start","gpu":"bananas"}"#, "bananas"),
        (r#"{"order":"close"}"#, "done"),
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
