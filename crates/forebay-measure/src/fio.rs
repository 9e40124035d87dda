//! Jobs of the installed `fio`, which only read.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::cleanup;

/// The version of the installed `fio`.
pub fn version() -> Option<String> {
    let output = Command::new("fio").arg("--version").stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A short job on this file.
    fn read(filename: &str) -> Result<Value, String> {
        let words = ["--rw=read", "--bs=1M", "--time_based", "--runtime=100ms", "--ioengine=psync"];
        job(words.map(String::from).into_iter().chain([format!("--filename={filename}")]))
    }

    #[test]
    fn a_report_is_read_behind_notes() {
        let text = r#"note: something
            {"jobs": [{"error": 0, "read": {"runtime": 250, "bw_bytes": 500}}]}"#;
        assert_eq!(parse(text).unwrap()["read"]["bw_bytes"], 500);
        assert!(parse("nothing").is_err());
        let failed = r#"{"jobs": [{"error": 1, "read": {"bw_bytes": 250}}]}"#;
        assert_eq!(parse(failed).unwrap_err(), "error 1");
    }

    #[test]
    fn a_job_leaves_no_files() {
        if version().is_none() {
            println!("skipped: fio: it is not installed");
            return;
        }
        let folder = tempfile::tempdir_in(".").unwrap();
        let path = folder.path().canonicalize().unwrap().join("file");
        fs::write(&path, vec![7; 8 << 20]).unwrap();
        assert!(read(path.to_str().unwrap()).unwrap()["read"]["bw_bytes"].as_u64() > Some(0));
        fs::remove_file(&path).unwrap();
        read(path.to_str().unwrap()).unwrap_err();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "it made a missing file");
    }
}
