//! The storage's limit as measured by `fio`, if it is installed: an independent check of the
//! measurement in `storage`.
//!
//! `fio` gets the file as a descriptor that this process holds open. With a path, a `fio` that
//! outlives this process could create the file again, after the next run has removed it.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Stdio};

use forebay::units::{MIB, align_down};
use serde_json::Value;

use crate::bench::cpu::Spent;
use crate::bench::stats;
use crate::cleanup;
use crate::failure::{Failure, Result};

/// Queue depths that are tried.
const DEPTHS: [u32; 3] = [8, 16, 32];
/// Maximum number of bytes of a try.
const TRY: u64 = 256 * MIB;
/// `fio` counts whole milliseconds; a shorter span is too inexact.
const SECONDS_MIN: f64 = 0.02;

/// I/O engines of `fio`, the best first.
const ENGINES: [&str; 3] = ["io_uring", "libaio", "psync"];

/// The version of the installed `fio`.
#[must_use]
pub fn version() -> Option<String> {
    let output = Command::new("fio").arg("--version").stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

/// Reads one file with `fio`.
#[derive(Debug)]
pub struct Fio {
    file: File,
    len: u64,
    engine: &'static str,
    depth: u32,
}

impl Fio {
    /// Finds the engine and the depth for the first `len` bytes of `path`. The text says why `fio`
    /// cannot measure it.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: &Path, len: u64) -> Result<Result<Self, String>> {
        let len = align_down(len, MIB);
        if len == 0 {
            return Ok(Err("the file is smaller than one request".into()));
        }
        let file = File::open(path)
            .map_err(|error| Failure::io(format!("cannot open `{}`", path.display()), &error))?;
        let mut fio = Self { file, len, engine: ENGINES[0], depth: DEPTHS[0] };
        let mut refused = String::new();
        for engine in ENGINES {
            fio.engine = engine;
            match fio.best_depth() {
                Ok(depth) => {
                    fio.depth = depth;
                    return Ok(Ok(fio));
                }
                Err(reason) => refused = format!("{engine}: {reason}"),
            }
        }
        Ok(Err(refused))
    }

    /// Bytes of one sample.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.len
    }

    /// Engine, block size and depth, for the report.
    #[must_use]
    pub fn how(&self) -> String {
        format!("{}, O_DIRECT, 1 MiB, depth {}", self.engine, self.depth)
    }

    /// Reads all bytes once; `None` if that was too fast for `fio`'s clock.
    ///
    /// # Errors
    /// Errors of `fio`.
    pub fn sample(&self) -> Result<Option<Spent>> {
        let spent = self.pass(self.depth, self.len);
        let spent = spent.map_err(|reason| Failure::new("`fio` failed").because(reason))?;
        Ok((spent.seconds >= SECONDS_MIN).then_some(spent))
    }

    fn best_depth(&self) -> Result<u32, String> {
        let mut best = (f64::INFINITY, DEPTHS[0]);
        for depth in DEPTHS {
            let spent = self.pass(depth, self.len.min(TRY))?;
            if spent.seconds < best.0 {
                best = (spent.seconds, depth);
            }
        }
        Ok(best.1)
    }

    fn pass(&self, depth: u32, len: u64) -> Result<Spent, String> {
        let mut command = Command::new("fio");
        let filename = format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd());
        command.args(arguments(&filename, self.engine, depth, len));
        // Run it in a system folder: `fio` may leave files in its working directory.
        command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(Stdio::piped());
        let child = cleanup::spawn(&mut command).map_err(|error| error.to_string())?;
        let id = child.id();
        let output = child.wait_with_output().map_err(|error| error.to_string());
        cleanup::end(id, true);
        let output = output?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            let line = text.lines().find(|line| !line.trim().is_empty());
            return Err(line.unwrap_or("it failed without a message").trim().to_owned());
        }
        parse(&String::from_utf8_lossy(&output.stdout), len)
    }
}

fn arguments(filename: &str, engine: &str, depth: u32, len: u64) -> Vec<String> {
    let mut arguments: Vec<String> = [
        "--name=ceiling",
        "--readonly",
        "--allow_file_create=0",
        "--rw=read",
        "--bs=1M",
        "--direct=1",
        "--thread",
        "--output-format=json",
    ]
    .map(String::from)
    .into();
    arguments.push(format!("--filename={filename}"));
    arguments.push(format!("--ioengine={engine}"));
    let threads = u64::from(depth).min(len / MIB);
    if engine == "psync" {
        // Each thread has one request at a time, so the number of threads is the depth.
        let part = align_down(len / threads, MIB);
        arguments.push(format!("--numjobs={threads}"));
        arguments.push(format!("--size={part}"));
        arguments.push(format!("--offset_increment={part}"));
        arguments.push("--group_reporting".into());
    } else {
        arguments.push(format!("--iodepth={depth}"));
        arguments.push(format!("--size={len}"));
    }
    arguments
}

#[expect(clippy::cast_precision_loss, reason = "a time needs no more than 52 bits")]
/// Time, scaled to the requested length, and processor time from `fio`'s report.
fn parse(text: &str, len: u64) -> Result<Spent, String> {
    // Some versions put notes before the report.
    let start = text.find('{').ok_or("it printed no report")?;
    let report: Value = serde_json::from_str(&text[start..]).map_err(|error| error.to_string())?;
    let job = &report["jobs"][0];
    let number =
        |value: &Value, what: &str| value.as_f64().ok_or(format!("its report has no {what}"));
    if let Some(code) = job["error"].as_i64().filter(|code| *code != 0) {
        return Err(format!("error {code}"));
    }
    let span = number(&job["read"]["runtime"], "runtime")? / 1e3;
    let moved = job["read"]["io_bytes"].as_u64().ok_or("its report has no io_bytes")?;
    // The parts of the threads may not cover all bytes.
    let seconds = len as f64 / stats::rate(moved, span);
    // Percentages of the span, over all threads of the job.
    let share = (number(&job["usr_cpu"], "usr_cpu")? + number(&job["sys_cpu"], "sys_cpu")?) / 100.0;
    Ok(Spent { seconds, cpu_seconds: share * seconds })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;
    use crate::bench::data::Pattern;
    use crate::bench::make;

    #[test]
    fn a_report_is_read_behind_notes() {
        let text = r#"note: something
            {"jobs": [{"error": 0, "usr_cpu": 4.0, "sys_cpu": 16.0,
                       "read": {"runtime": 250, "io_bytes": 500}}]}"#;
        let spent = parse(text, 1000).unwrap();
        assert!((spent.seconds - 0.5).abs() < 1e-9);
        assert!((spent.cpu_seconds - 0.1).abs() < 1e-9);
        assert!(parse("nothing", 1).is_err());
        assert!(parse(r#"{"jobs": []}"#, 1).is_err());
        let failed = r#"{"jobs": [{"error": 1, "read": {"runtime": 250}}]}"#;
        assert_eq!(parse(failed, 1).unwrap_err(), "error 1");
    }

    #[test]
    fn parts_of_threads_stay_inside_the_file() {
        for len in [MIB, 5 * MIB, 100 * MIB] {
            let arguments = arguments("x", "psync", 8, len);
            let value = |name: &str| -> u64 {
                let found = arguments.iter().find_map(|word| word.strip_prefix(name));
                found.unwrap().parse().unwrap()
            };
            assert!(value("--numjobs=") * value("--size=") <= len);
            assert!(value("--size=") >= MIB);
        }
    }

    #[test]
    fn a_real_file_with_any_name() {
        if version().is_none() {
            println!("skipped: fio: it is not installed");
            return;
        }
        let folder = tempfile::tempdir_in(".").unwrap();
        let path = folder.path().join(OsStr::from_bytes(b"a:b \xff"));
        std::fs::write(&path, "").unwrap();
        make::fill(&path, Pattern::new(1), 8 * MIB).unwrap();
        match Fio::open(&path, 8 * MIB).unwrap() {
            Ok(fio) => drop(fio.sample().unwrap()),
            Err(reason) => println!("skipped: fio: {reason}"),
        }
        let left = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 1, "fio left files of its own");
        assert!(Pattern::new(1).matches(0, &std::fs::read(&path).unwrap()));
    }

    #[test]
    fn a_file_that_is_gone_is_not_made_anew() {
        if version().is_none() {
            println!("skipped: fio: it is not installed");
            return;
        }
        let folder = tempfile::tempdir_in(".").unwrap();
        let scratch = folder.path().join("scratch");
        std::fs::create_dir(&scratch).unwrap();
        std::fs::write(scratch.join("read"), vec![0; 4 << 20]).unwrap();
        let file = File::open(scratch.join("read")).unwrap();
        std::fs::remove_dir_all(&scratch).unwrap();
        // The file lives as long as this process, and the folder is not recreated.
        let fio = Fio { file, len: 4 * MIB, engine: "psync", depth: 1 };
        let _ = fio.pass(1, MIB);
        assert!(!scratch.exists());
        // The process that held the descriptor has ended, as after a crash.
        let mut command = Command::new("fio");
        let mut ended = Command::new("true").spawn().unwrap();
        let nobody = format!("/proc/{}/fd/3", ended.id());
        ended.wait().unwrap();
        let arguments = arguments(&nobody, "psync", 1, MIB);
        let output = command.args(arguments).current_dir(folder.path()).output().unwrap();
        assert!(!output.status.success(), "{output:?}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
