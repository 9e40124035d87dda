//! `cargo xtask lab --bench`: one file striped over capped drives, read by the engine, compared
//! with the sum of these drives, each read alone in the same run.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::folders::{failed, make, text};
use crate::process::{self, Result, say};

/// Bytes that each drive moves in a second.
pub(crate) const RATE: u64 = 40_000_000;

/// The share of the sum of its drives that a striped file must reach.
const SHARE_MIN: f64 = 0.97;

/// How often one path was read.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Series {
    name: String,
    bytes: u64,
    seconds: Vec<f64>,
    route: String,
    sums: Vec<String>,
}

impl Series {
    /// Bytes in a second, the median.
    fn rate(&self) -> f64 {
        let mut seconds = self.seconds.clone();
        seconds.sort_by(f64::total_cmp);
        let middle = seconds.get(seconds.len() / 2).copied().unwrap_or(f64::INFINITY);
        #[expect(clippy::cast_precision_loss, reason = "files are far below 2^53 bytes")]
        let bytes = self.bytes as f64;
        bytes / middle
    }

    fn is_drive(&self) -> bool {
        self.name.starts_with("drive")
    }

    /// The number of its drives: the number that ends its name.
    fn width(&self) -> usize {
        let count = self.name.rsplit_once('-').and_then(|(_, count)| count.parse().ok());
        count.unwrap_or_default()
    }
}

/// One striped file, judged.
#[derive(Debug, Clone, PartialEq)]
struct Verdict {
    name: String,
    rate: f64,
    sum: f64,
    right: bool,
}

impl Verdict {
    fn share(&self) -> f64 {
        self.rate / self.sum
    }

    fn passes(&self) -> bool {
        self.right && self.share() >= SHARE_MIN
    }
}

/// Which machine it was, and which programs.
pub(crate) fn environment(
    root: &Path,
    out: &Path,
    date: &str,
    release: &str,
) -> Result<serde_json::Value> {
    let machine = text(&out.join("machine.txt"))?;
    let mut machine = machine.lines();
    let (kernel, cpu, cores) = (machine.next(), machine.next(), machine.next());
    let host = text(Path::new("/proc/cpuinfo"))?;
    let host = host.lines().find_map(|line| line.strip_prefix("model name"));
    let mut git = Command::new("git");
    git.current_dir(root).args(["rev-parse", "--short", "HEAD"]);
    Ok(json!({
        "date": date,
        "commit": process::output(&mut git)?.trim(),
        "command": "cargo xtask lab --bench",
        "guest": { "kernel": kernel, "cpu": cpu, "cores": cores, "package": release },
        "host": {
            "kernel": text(Path::new("/proc/sys/kernel/osrelease"))?.trim(),
            "cpu": host.map(|name| name.trim_start_matches(['\t', ' ', ':'])),
        },
        "bytes_per_second_of_each_drive": RATE,
    }))
}

/// Judges the guest's results in `out`, writes them to `folder`, and returns whether all targets
/// were reached.
pub(crate) fn judge(out: &Path, folder: &Path, environment: &serde_json::Value) -> Result<bool> {
    let samples = text(&out.join("rates.json"))?;
    let series: Vec<Series> = serde_json::from_str(&samples)
        .map_err(|error| format!("`rates.json` of the guest: {error}"))?;
    let sums = text(&out.join("sums.txt"))?;
    let verdicts = verdicts(&series, &sums);
    let lines = summary(&series, &verdicts);
    for line in &lines {
        say!("{line}");
    }
    make(folder)?;
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        fs::write(&path, text).map_err(failed(&path))
    };
    let pretty = |value: &serde_json::Value| {
        serde_json::to_string_pretty(value).map(|t| t + "\n").map_err(|e| e.to_string())
    };
    write("environment.json", pretty(environment)?)?;
    write("samples.json", pretty(&json!(series))?)?;
    write("summary.md", lines.join("\n") + "\n")?;
    say!("\narchived in {}", folder.display());
    Ok(!verdicts.is_empty() && verdicts.iter().all(Verdict::passes))
}

/// `sums` has a line for each file, in their order, with the sum that another program read.
fn verdicts(series: &[Series], sums: &str) -> Vec<Verdict> {
    let drives: Vec<f64> = series.iter().filter(|s| s.is_drive()).map(Series::rate).collect();
    #[expect(clippy::cast_precision_loss, reason = "there are four")]
    let one = drives.iter().sum::<f64>() / drives.len() as f64;
    let files = series.iter().filter(|one| !one.is_drive());
    let sums = sums.lines().chain(std::iter::repeat(""));
    let verdicts = files.zip(sums).map(|(file, line)| Verdict {
        name: file.name.clone(),
        rate: file.rate(),
        #[expect(clippy::cast_precision_loss, reason = "there are four")]
        sum: one * file.width() as f64,
        right: !file.sums.is_empty() && file.sums.iter().all(|sum| line.contains(sum.as_str())),
    });
    verdicts.collect()
}

fn summary(series: &[Series], verdicts: &[Verdict]) -> Vec<String> {
    let mega = |rate: f64| format!("{:.1}", rate / 1e6);
    let mut lines = vec![
        "# Striped files in the virtual machine".to_owned(),
        String::new(),
        format!("Drives capped at {} MB/s each by the emulator.", RATE / 1_000_000),
        String::new(),
        "| file | MB/s | sum of its drives | share | must be | verdict |".to_owned(),
        "|---|---|---|---|---|---|".to_owned(),
    ];
    lines.extend(verdicts.iter().map(|verdict| {
        format!(
            "| {} | {} | {} | {:.3} | >= {SHARE_MIN} | {} |",
            verdict.name,
            mega(verdict.rate),
            mega(verdict.sum),
            verdict.share(),
            match (verdict.right, verdict.passes()) {
                (false, _) => "wrong bytes",
                (true, true) => "pass",
                (true, false) => "fail",
            }
        )
    }));
    lines.extend([
        String::new(),
        "| read | MB/s, median | samples, s | route |".to_owned(),
        "|---|---|---|---|".to_owned(),
    ]);
    lines.extend(series.iter().map(|one| {
        let seconds: Vec<String> = one.seconds.iter().map(|s| format!("{s:.3}")).collect();
        format!("| {} | {} | {} | {} |", one.name, mega(one.rate()), seconds.join(" "), one.route)
    }));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(name: &str, bytes: u64, seconds: &[f64]) -> Series {
        Series {
            name: name.into(),
            bytes,
            seconds: seconds.into(),
            route: "host".into(),
            sums: vec!["aa".into(); seconds.len()],
        }
    }

    #[test]
    fn a_file_is_judged_by_the_drives_that_it_lies_on() {
        let mut all: Vec<Series> =
            (0..4).map(|n| series(&format!("drive{n}"), 40, &[1.0, 1.1, 0.9])).collect();
        all.push(series("md-raid0-4", 160, &[1.0, 1.0, 5.0]));
        all.push(series("lvm-2", 80, &[1.1, 1.1, 1.1]));
        let sums = "XXH3 (md) = aa\nXXH3 (lvm) = aa\n";
        let judged = verdicts(&all, sums);
        assert!((judged[0].share() - 1.0).abs() < 1e-9 && judged[0].passes());
        assert!((judged[1].sum - 80.0).abs() < 1e-9 && !judged[1].passes());
        all[4].sums[1] = "ab".into();
        assert!(!verdicts(&all, sums)[0].passes() && !verdicts(&all[..5], "")[0].passes());
    }
}
