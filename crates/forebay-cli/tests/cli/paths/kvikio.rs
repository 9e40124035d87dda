//! KvikIO beside our engine: the real one where this Python has it, and doubles of it for what it
//! may do wrong.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use forebay_cli::report::json::{MethodName, Report, Row};

use super::{command, folder_with, report, stderr};

/// A package that reads as KvikIO does, up to what `spoiled` changes of it.
const DOUBLE: &str = r#"
import os

__version__ = "0.0.double"


class Future:
    def __init__(self, count):
        self.count = count

    def get(self):
        return self.count


class CuFile:
    def __init__(self, file, flags="r"):
        self.file = os.open(file, os.O_RDONLY)

    def close(self):
        os.close(self.file)

    def pread(self, buffer, size=None, file_offset=0, task_size=None):
        view = memoryview(buffer)[:size]
        done = 0
        while done < len(view):
            got = os.preadv(self.file, [view[done:]], file_offset + done)
            if got == 0:
                break
            done += got
        return Future(done)
"#;

const DEFAULTS: &str = r#"
import os

def get(name):
    known = {
        "num_threads": int(os.environ.get("KVIKIO_NTHREADS", "1")),
        "task_size": int(os.environ.get("KVIKIO_TASK_SIZE", "4194304")),
        "auto_direct_io_read": os.environ.get("KVIKIO_AUTO_DIRECT_IO_READ") == "ON",
        "compat_mode": "AUTO",
    }
    return known[name]
"#;

#[expect(clippy::print_stdout, reason = "a test says what it skips")]
fn has_python() -> bool {
    let found = Command::new("python3").arg("--version").output();
    let found = found.is_ok_and(|output| output.status.success());
    if !found {
        println!("skipped: KvikIO: there is no `python3`");
    }
    found
}

/// Runs over two files with a double of KvikIO that ends with the lines `spoiled`.
fn run_with(spoiled: &str) -> Output {
    let folder = folder_with(&[("a", 1_500_000), ("b", 300_001)]);
    let package = folder.path().join("packages/kvikio");
    fs::create_dir_all(&package).unwrap();
    fs::write(package.join("__init__.py"), format!("{DOUBLE}\n{spoiled}\n")).unwrap();
    fs::write(package.join("defaults.py"), DEFAULTS).unwrap();
    // What lies in the folder of the run is not taken.
    fs::write(folder.path().join("json.py"), "raise SystemExit('the wrong package')").unwrap();
    run_in(folder.path(), Some(&folder.path().join("packages")))
}

fn run_in(folder: &Path, packages: Option<&Path>) -> Output {
    let arguments = ["a", "b", "--resident", "--gpu", "none", "--json"];
    let mut command = command(folder, &arguments);
    // Settings of the user's are not KvikIO's defaults.
    command.env("KVIKIO_NTHREADS", "7");
    if let Some(packages) = packages {
        command.env("PYTHONPATH", std::path::absolute(packages).unwrap());
    }
    command.output().unwrap()
}

fn rows(report: &Report) -> Vec<&Row> {
    report.results.iter().filter(|row| row.method == MethodName::Kvikio).collect()
}

#[test]
fn it_stands_beside_at_its_defaults_and_at_its_best() {
    if !has_python() {
        return;
    }
    let output = run_with("");
    assert!(output.status.success(), "{}", stderr(&output));
    let report = report(&output);
    assert_eq!(report.environment.versions.kvikio.as_deref(), Some("0.0.double"));
    let rows = rows(&report);
    let names = rows.iter().map(|row| row.settings.as_ref().unwrap().name.as_str());
    assert_eq!(names.collect::<Vec<_>>(), ["defaults", "best"], "{:?}", report.warnings);
    for row in &rows {
        assert_eq!((row.verified, row.bytes, row.seconds.len()), (Some(true), 1_800_001, 3));
        assert_eq!(row.paths.as_ref().unwrap().len(), 2);
        assert!(row.cpu_s_per_gb.is_some() && row.limit.is_some());
    }
    let values = &rows[0].settings.as_ref().unwrap().values;
    assert_eq!(values["KVIKIO_NTHREADS"], "1");
    let reason = rows[0].reason.as_deref();
    assert_eq!(reason, Some("KvikIO 0.0.double: 1 thread, tasks of 4 MiB, page cache"));
    let values = &rows[1].settings.as_ref().unwrap().values;
    assert_eq!(values["KVIKIO_THREAD_POOL_PER_BLOCK_DEVICE"], "ON");
    assert_ne!(values["KVIKIO_NTHREADS"], "1");
    // A program can read them back.
    let again: Report = serde_json::from_str(&report.to_text().unwrap()).unwrap();
    assert_eq!(again.results.len(), report.results.len());
}

#[test]
fn where_it_cannot_be_had_a_note_says_why() {
    if !has_python() {
        return;
    }
    for (spoiled, says) in [
        ("raise ImportError('libcufile.so.0: no such file')", "ImportError: libcufile.so.0"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import os; os._exit(3)", "`python3` ended with exit status: 3"),
        ("import os; os.kill(os.getpid(), 9)", "`python3` ended with signal: 9"),
        ("import os; [os.write(fd, b'bananas\\n') for fd in (3, 4)]", "unexpected answer: bananas"),
        (
            "import os; [os.write(fd, b'{\"answer\":\"done\"}\\n') for fd in (3, 4)]",
            "unexpected answer",
        ),
        ("import os; [os.write(fd, b'x' * 99999) for fd in (3, 4)]", "an incomplete answer"),
        ("CuFile.pread = lambda *a: 1 / 0", "ZeroDivisionError: division by zero"),
        ("del CuFile", "has no attribute 'CuFile'"),
        ("raise RuntimeError('\\x1b[2J\\nsecond line' * 500)", "RuntimeError: \\u{1b}[2J"),
    ] {
        let output = run_with(spoiled);
        assert!(output.status.success(), "{spoiled}: {}", stderr(&output));
        let report = report(&output);
        assert!(rows(&report).is_empty(), "{spoiled}");
        assert_eq!(report.environment.versions.kvikio, None, "{spoiled}");
        let note = report.warnings.iter().find(|text| text.starts_with("KvikIO is not compared: "));
        let note = note.unwrap_or_else(|| panic!("{spoiled}: {:?}", report.warnings));
        assert!(note.contains(says), "{spoiled}: {note}");
        assert!(note.len() < 500 && !note.contains('\u{1b}'), "{note}");
        // What others do is not touched by it.
        let right = report.results.iter().filter(|row| row.verified == Some(true)).count();
        assert_eq!(right, 4);
    }
}

#[test]
fn what_breaks_later_is_left_out() {
    if !has_python() {
        return;
    }
    // Good for the first look, which reads what has no name.
    let breaks = "
whole = CuFile.pread
def pread(self, buffer, size=None, file_offset=0, task_size=None):
    if 'memfd' in os.readlink(f'/proc/self/fd/{self.file}'):
        return whole(self, buffer, size)
    raise OSError('the drive is gone')
CuFile.pread = pread
";
    let report = report(&run_with(breaks));
    assert!(rows(&report).is_empty());
    let text = report.warnings.join("\n");
    assert!(text.contains("left out: `kvikio`"), "{text}");
    assert!(text.contains("OSError: the drive is gone"), "{text}");
}

#[test]
fn wrong_bytes_and_wrong_counts_are_found() {
    if !has_python() {
        return;
    }
    for spoiled in [
        // It moves nothing, and says that it did.
        "CuFile.pread = lambda self, buffer, size: Future(size)",
        // It moves all, and says less.
        "Future.get = lambda self: self.count - 1",
        // It leaves the last byte.
        "short = CuFile.pread\nCuFile.pread = lambda self, buffer, size: \
         Future(short(self, buffer, size - 1).get() + 1)",
    ] {
        let output = run_with(spoiled);
        assert_eq!(output.status.code(), Some(1), "{spoiled}: {}", stderr(&output));
        let told = stderr(&output);
        assert!(told.contains("error: 2 methods moved wrong data"), "{told}");
        let report = report(&output);
        assert!(rows(&report).iter().all(|row| row.verified == Some(false)), "{spoiled}");
    }
}

#[test]
fn times_that_cannot_be_are_refused() {
    if !has_python() {
        return;
    }
    let report =
        report(&run_with("import time; time.perf_counter = iter(range(0, 10**9, 1000)).__next__"));
    assert!(rows(&report).is_empty());
    let text = report.warnings.join("\n");
    assert!(text.contains("it reported impossible times"), "{text}");
}

#[test]
fn the_real_one() {
    let found = Command::new("python3").args(["-c", "import kvikio"]).output();
    if !found.is_ok_and(|output| output.status.success()) {
        println!("skipped: KvikIO: the Python that is found has no `kvikio`");
        return;
    }
    let folder = folder_with(&[("a", 9_500_000), ("b", 5_300_001)]);
    let mut command = command(folder.path(), &["a", "b", "--gpu", "none", "--json"]);
    if let Some(path) = std::env::var_os("PYTHONPATH") {
        command.env("PYTHONPATH", path);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let report = report(&output);
    let rows = rows(&report);
    if rows.is_empty() {
        println!("skipped: KvikIO: {}", report.warnings.join("; ").replace('\n', " "));
        return;
    }
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().all(|row| row.verified == Some(true)), "{rows:?}");
}
