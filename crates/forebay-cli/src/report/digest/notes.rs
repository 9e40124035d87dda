//! Warnings on the results themselves, each with the next step.

use std::collections::BTreeSet;

use super::gather::KEPT_MAX;
use super::{Axis, Digest, Line, Metric, heat};
use crate::report::plain::plain;
use crate::results::Imported;

/// Above this share of a limit, a rate was not bound by it.
const SHARE_MAX: f64 = 1.05;
/// Samples of a point further apart than this, as a share of the median, are unreliable.
const SPREAD_MAX: f64 = 0.25;
/// Most tools that are named.
const TOOLS_MAX: usize = 8;
/// Most numbers of queues that are named.
const NUMBERS_MAX: usize = 8;

/// A lower bound of the probability that the intervals of a quantity contain their medians, in
/// percent and words; the least of all lines. `None` if there is no interval.
#[must_use]
pub fn confidence(digest: &Digest, metric: Metric) -> Option<String> {
    let known = digest.lines.iter().filter_map(|line| line.metric(metric)?.confidence);
    let least = known.min_by(f64::total_cmp)?;
    // Rounds down, so as not to overstate it.
    Some(format!("{:.0} %", (least * 100.0).floor()))
}

/// The warnings of a digest.
#[must_use]
pub fn of(digest: &Digest) -> Vec<String> {
    let mut found = Vec::new();
    let lines = &digest.lines;
    let count = |fits: &dyn Fn(&Line) -> bool| lines.iter().filter(|line| fits(line)).count();
    let all = lines.len();
    found.extend(simulated(digest));
    let failed: Vec<&Line> = lines.iter().filter(|line| line.failed > 0).collect();
    if let Some(first) = failed.first() {
        let why = first.error.as_deref().unwrap_or("no reason was recorded");
        found.push(format!(
            "{} of {all} points failed, the first with: {}; remove the cause, and measure again",
            failed.len(),
            plain(why)
        ));
    }
    found.extend(unfinished(digest));
    found.extend(ended(digest));
    found.extend(strayed(digest));
    found.extend(imported(digest));
    let wrong = count(&|line| line.verified == Some(false));
    if wrong > 0 {
        found.push(format!(
            "{wrong} of {all} points moved wrong data: their speed means nothing; check whether \
             the file changed during the run, and the kernel's log"
        ));
    }
    found.extend(queues(lines));
    found.extend(paced(lines));
    let unsteady = count(&|line| line.unsteady > 0);
    if unsteady > 0 {
        found.push(format!(
            "{unsteady} of {all} points had no steady rate; measure for longer, or end other work \
             on the machine"
        ));
    }
    found.extend(heat::warnings(digest));
    let apart = count(&is_apart);
    if apart > 0 {
        found.push(format!(
            "the repeats of {apart} of {all} points are more than {:.0} % apart; end other work on \
             the machine, or measure more repeats",
            SPREAD_MAX * 100.0
        ));
    }
    let above = count(&|line| line.share().is_some_and(|share| share > SHARE_MAX));
    if above > 0 {
        found.push(format!(
            "{above} of {all} points were faster than their limit: it varied, or a cache below the \
             file system answered; measure the limits again, or use larger files"
        ));
    }
    let words: BTreeSet<&str> = lines
        .iter()
        .filter_map(|line| line.verdict.as_deref())
        .filter(|verdict| verdict.contains("unproven") || verdict.contains("contradictory"))
        .collect();
    if !words.is_empty() {
        found.push(
            "the data path of some points is not proven; `forebay doctor` says what is missing"
                .to_owned(),
        );
    }
    found
}

/// Warns that a GPU was simulated, unless the run itself has reported it.
fn simulated(digest: &Digest) -> Option<String> {
    let told = digest.warnings.iter().any(|text| text.contains("simulated"));
    (digest.simulated() && !told).then(|| {
        "a simulated GPU took part: its numbers say nothing about hardware; measure again on a \
         machine with a GPU"
            .to_owned()
    })
}

/// The sweeps that are incomplete.
fn unfinished(digest: &Digest) -> impl Iterator<Item = String> {
    let told = digest.runs.iter().filter_map(|run| Some(run.unfinished?.sentence(&run.name)));
    told.take(KEPT_MAX)
}

/// Which measurements of layers ended before they were done.
fn ended(digest: &Digest) -> Vec<String> {
    let told = digest.layers.iter().filter_map(|layers| {
        let why = plain(layers.failed.as_ref()?);
        let name = plain(&layers.name);
        Some(format!("{name} ended early, {why}; remove the cause, and measure again"))
    });
    told.collect()
}

/// The measurements of layers whose bytes came from another source than requested.
fn strayed(digest: &Digest) -> Vec<String> {
    let told = digest.layers.iter().filter_map(|layers| {
        let (name, percent) = (plain(&layers.name), layers.strays()? * 100.0);
        let (place, step) = if layers.is_from_drive() {
            ("the page cache", "stop other readers of the file")
        } else {
            ("the drive", "leave the page cache room for all layers")
        };
        Some(format!(
            "up to {percent:.1} % of the bytes of a pass of {name} came from {place}, which was \
             not requested; {step}, and measure again"
        ))
    });
    told.collect()
}

/// Notes that latencies include the time that a request waited before it was sent.
fn paced(lines: &[Line]) -> Option<String> {
    let count = lines.iter().filter(|line| line.since_due).count();
    (count > 0).then(|| {
        format!(
            "latencies of {count} of {} points, at a fixed rate, are measured from when each \
             request was due; compare them only with others at the same rate",
            lines.len()
        )
    })
}

/// Warns that targets gave other queue counts than requested.
fn queues(lines: &[Line]) -> Option<String> {
    let others = lines.iter().filter(|line| line.other_queues);
    let count = others.clone().count();
    let texts: BTreeSet<&str> = others.filter_map(|line| line.mark(Axis::Queues)).collect();
    let told: Vec<&str> = texts.iter().copied().take(NUMBERS_MAX).collect();
    let more = if texts.len() > told.len() { "; …" } else { "" };
    (count > 0).then(|| {
        format!(
            "{count} of {} points had another number of queues or connections than requested \
             ({}{more}); check the limits of the target and of this host, and for NFS unmount all \
             mounts of the server first",
            lines.len(),
            told.join("; ")
        )
    })
}

/// The runs of external tools, and what is unknown about them.
fn imported(digest: &Digest) -> Option<String> {
    let runs: Vec<_> = digest.runs.iter().filter_map(|run| run.imported.as_ref()).collect();
    let count = digest.lines.iter().filter(|line| line.imported.is_some()).count();
    let name = |from: &&Imported| match &from.version {
        None if from.tool == "csv" => "a table".into(),
        Some(version) => format!("{} {version}", plain(&from.tool)),
        None => plain(&from.tool),
    };
    let mut names: Vec<String> = runs.iter().map(name).collect();
    names.sort();
    names.dedup();
    names.truncate(TOOLS_MAX);
    (count > 0).then(|| {
        format!(
            "{count} of {} points were reported by {}: their data, their path and other load on \
             the machine are not verified; measure the same with `forebay sweep` to verify them",
            digest.lines.len(),
            names.join(", ")
        )
    })
}

fn is_apart(line: &Line) -> bool {
    let Some(rate) = line.metric(super::Metric::Rate) else { return false };
    rate.median > 0.0 && (rate.max - rate.min) / rate.median > SPREAD_MAX
}

#[cfg(test)]
mod tests {
    use crate::report::digest::gather::tests::digest_of;
    use crate::report::made::{self, Sweep};

    fn changed(change: impl Fn(&mut serde_json::Value)) -> Vec<String> {
        let sweep = Sweep::default();
        let mut records =
            vec![made::run(&sweep), made::ceiling("storage", &sweep.path, false, 7e9)];
        records.extend(made::samples(&sweep));
        change(&mut records[2]);
        digest_of(&[("a", &made::text(&records))]).warnings
    }

    #[test]
    fn each_fault_is_told_with_what_to_do() {
        assert_eq!(changed(|_| {}), Vec::<String>::new());
        let one = |warnings: Vec<String>, word: &str| {
            assert_eq!(warnings.len(), 1, "{warnings:?}");
            assert!(warnings[0].contains(word) && warnings[0].contains("; "), "{warnings:?}");
        };
        one(
            changed(|sample| sample["measured"]["verified"] = false.into()),
            "1 of 15 points moved",
        );
        one(changed(|s| s["measured"]["steady"]["reached"] = false.into()), "no steady rate");
        one(changed(|sample| sample["measured"]["bytes_per_second"] = 9.0.into()), "apart");
        one(changed(|sample| sample["measured"]["simulated"] = true.into()), "simulated");
        one(changed(|s| s["measured"]["latency"]["since_due"] = true.into()), "was due");
        let queues = |found: u32| {
            changed(|sample| {
                sample["point"]["queues"] = 8.into();
                sample["queues_found"] = found.into();
            })
        };
        one(queues(4), "another number of queues or connections than requested (4, not 8)");
        assert_eq!(queues(8), Vec::<String>::new());
        one(changed(|s| s["measured"]["verdict"]["text"] = "unproven".into()), "not proven");
        let failed = changed(|sample| {
            sample["measured"] = serde_json::Value::Null;
            sample["error"] = "cannot\nread".into();
        });
        one(failed, r"the first with: cannot\nread;");
        let mut sweep = Sweep { repeats: 1, ..Sweep::default() };
        sweep.depths = vec![1000];
        let mut records =
            vec![made::run(&sweep), made::ceiling("storage", &sweep.path, false, 1e9)];
        records.extend(made::samples(&sweep));
        let above = digest_of(&[("a", &made::text(&records))]).warnings;
        one(above, "5 of 5 points were faster than their limit");
    }
}
