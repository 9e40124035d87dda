//! The storage's limit as measured by `fio`, if it is installed: an independent check of our own
//! measurement. Its buffers are in huge pages if the machine has some, as ours are.
//!
//! `fio` gets the file as a descriptor that this process holds open. With a path, a `fio` that
//! outlives this process could create the file again, after the next run has removed it.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::cleanup;
use crate::stats::float;

/// Time of its sample.
const MILLISECONDS: u32 = 500;
const DEPTH: u32 = 32;

/// I/O engines of `fio`, the best first.
const ENGINES: [&str; 3] = ["io_uring", "libaio", "psync"];
/// Its buffers: huge pages, or ordinary ones if there are none.
const MEMORY: [&str; 2] = ["mmaphuge", "malloc"];

/// The version of the installed `fio`.
pub fn version() -> Option<String> {
    let output = Command::new("fio").arg("--version").stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

/// Bytes per second that `fio` reads of the file at `path`, and how.
///
/// # Errors
/// The text says why it cannot.
pub fn read_rate(path: &Path) -> Result<(f64, String), String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    version().ok_or("it is not installed")?;
    let mut refused = String::new();
    for engine in ENGINES {
        for memory in MEMORY {
            match run(&file, engine, memory) {
                Ok(rate) => {
                    return Ok((rate, format!("fio, {engine}, O_DIRECT, 1 MiB, depth {DEPTH}")));
                }
                Err(reason) => refused = format!("{engine}: {reason}"),
            }
        }
    }
    Err(refused)
}

fn run(file: &File, engine: &str, memory: &str) -> Result<f64, String> {
    let filename = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    rate(&job(arguments(&filename, engine, memory))?)
}

/// Runs `fio` for one job that only reads; returns what it reports of the job.
///
/// # Errors
/// The text says why it failed.
pub fn job(arguments: impl IntoIterator<Item = String>) -> Result<Value, String> {
    let mut command = Command::new("fio");
    command.args(["--name=job", "--readonly", "--allow_file_create=0", "--thread"]);
    command.arg("--output-format=json").args(arguments);
    // Run it in a system folder: `fio` may leave files in its working directory.
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(Stdio::piped());
    let (child, _entry) = cleanup::spawn(&mut command).map_err(|error| error.to_string())?;
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let line = text.lines().find(|line| !line.trim().is_empty());
        return Err(line.unwrap_or("it failed without a message").trim().to_owned());
    }
    parse(&String::from_utf8_lossy(&output.stdout))
}

fn arguments(filename: &str, engine: &str, memory: &str) -> Vec<String> {
    // A thread of `psync` has one request at a time, so the number of threads is the depth.
    let (depth, threads) = if engine == "psync" { (1, DEPTH) } else { (DEPTH, 1) };
    let line = format!(
        "--rw=read --bs=1M --direct=1 --time_based --group_reporting --filename={filename} \
         --ioengine={engine} --iomem={memory} --runtime={MILLISECONDS}ms --iodepth={depth} \
         --numjobs={threads}"
    );
    line.split(' ').map(String::from).collect()
}

/// The job in `fio`'s report.
fn parse(text: &str) -> Result<Value, String> {
    // Some versions put notes before the report.
    let start = text.find('{').ok_or("it printed no report")?;
    let report: Value = serde_json::from_str(&text[start..]).map_err(|error| error.to_string())?;
    let job = report["jobs"][0].clone();
    match job["error"].as_i64() {
        None | Some(0) => Ok(job),
        Some(code) => Err(format!("error {code}")),
    }
}

fn rate(job: &Value) -> Result<f64, String> {
    let rate = job["read"]["bw_bytes"].as_u64().filter(|rate| *rate > 0);
    rate.map(float).ok_or_else(|| "its report has no rate".into())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use forebay::units::MIB;

    use super::*;
    use crate::data::Pattern;
    use crate::make;

    #[test]
    fn a_report_is_read_behind_notes() {
        let text = r#"note: something
            {"jobs": [{"error": 0, "read": {"runtime": 250, "bw_bytes": 500}}]}"#;
        let parse = |text| parse(text).and_then(|job| rate(&job));
        assert_eq!(parse(text), Ok(500.0));
        assert!(parse("nothing").is_err());
        assert!(parse(r#"{"jobs": []}"#).is_err());
        let failed = r#"{"jobs": [{"error": 1, "read": {"bw_bytes": 250}}]}"#;
        assert_eq!(parse(failed).unwrap_err(), "error 1");
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
        match read_rate(&path) {
            Ok((rate, _)) => assert!(rate > 0.0),
            Err(reason) => println!("skipped: fio: {reason}"),
        }
        let left = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 1, "fio left files of its own");
        assert!(Pattern::new(1).matches(0, &std::fs::read(&path).unwrap()));
    }

    #[test]
    fn a_missing_file_is_not_created() {
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
        let _ = run(&file, "psync", MEMORY[1]);
        assert!(!scratch.exists());
        // The process that held the descriptor has ended, as after a crash.
        let mut ended = Command::new("true").spawn().unwrap();
        let missing = format!("/proc/{}/fd/3", ended.id());
        ended.wait().unwrap();
        job(arguments(&missing, "psync", MEMORY[1])).unwrap_err();
    }
}
