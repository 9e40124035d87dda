//! A diagnosis as JSON, version 1; docs/json-schema.md describes every key.

use forebay_doctor as doctor;
use serde::{Deserialize, Serialize};

pub use crate::read::json::Share;
use crate::report::proof::VerdictFacts;

/// The version of the schema: it grows when a key changes its meaning or is removed.
pub const SCHEMA: u32 = 1;

/// The diagnosis of the route between a path and a GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DoctorReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The folder of the replayed record; null if this machine was examined.
    pub replay: Option<String>,
    /// The path.
    pub path: String,
    /// The GPU on PCI; null if there is no GPU.
    pub gpu: Option<Gpu>,
    /// The memory of the transfers: `host`, `cuda:0`, `sim:0`; null if there were none.
    pub target: Option<String>,
    /// Whether something that was set up does not work, so that the command ends with 1.
    pub broken: bool,
    /// Whether bytes go to the GPU directly, and what is missing if not.
    pub answer: String,
    /// The route of bytes; of a replay, the best one that the checks leave open.
    pub sentence: String,
    /// The checks, the most serious first.
    pub checks: Vec<Check>,
    /// The routes without a copy in host memory, the closest to available first.
    pub ways: Vec<Way>,
    /// The transfers; empty for a replay.
    pub transfers: Vec<Transfer>,
    /// Why transfers are missing.
    pub not_moved: Option<String>,
}

/// A GPU on PCI.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// Its address.
    pub address: String,
    /// Its name as the driver reports it; null if it does not.
    pub name: Option<String>,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// The subject of the check.
    pub name: String,
    /// `ok`, `warning`, `problem` or `unknown`.
    pub state: String,
    /// The observation.
    pub seen: String,
    /// Why it matters.
    pub why: String,
    /// The next step; null if there is nothing to do or nothing is known.
    pub step: Option<String>,
    /// The routes that it closes.
    pub blocks: Vec<String>,
    /// Whether it was set up, and does not work.
    pub broken: bool,
}

/// A route without a copy in host memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Way {
    /// `p2pdma` or `nvidia-fs`.
    pub way: String,
    /// Whether no observed fact closes it.
    pub open: bool,
    /// Whether no setting of this machine opens it.
    pub never: bool,
    /// What would have to change.
    pub needs: Vec<String>,
}

/// One transfer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Transfer {
    /// `read`, from the file to the GPU, or `write`.
    pub direction: String,
    /// The required route.
    pub demanded: String,
    /// `moved`, `refused` if this machine lacks that route, or `failed`.
    pub end: String,
    /// Bytes that were moved.
    pub bytes: u64,
    /// From the call to the end.
    pub seconds: f64,
    /// The engine's own account: bytes by route and reason.
    pub routes: Vec<Share>,
    /// The proven route, from independent counters; null if nothing was moved.
    pub verdict: Option<VerdictFacts>,
    /// Why it was refused or failed.
    pub reason: Option<String>,
}

impl Transfer {
    /// Whether the bytes were moved and verified.
    #[must_use]
    pub fn is_right(&self) -> bool {
        self.end == "moved"
    }

    /// Gives it another end, for this reason.
    #[must_use]
    pub fn ending(self, end: &str, reason: String) -> Self {
        Self { end: end.into(), reason: Some(reason), ..self }
    }

    /// Fails the transfer if its bytes were reported as direct, but provably were not.
    pub fn judge(&mut self) {
        let Some(verdict) = self.verdict.as_ref().filter(|_| self.is_right()) else { return };
        let is_said = verdict.word.starts_with("direct") || verdict.word == "unproven";
        if self.is_direct() && !is_said {
            self.end = "failed".into();
            self.reason = Some(format!("reported as direct, but counters: {}", verdict.text));
        }
    }

    /// Whether it should take the direct route.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.demanded == "direct"
    }

    /// Whether it failed unexpectedly.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.end == "failed"
    }
}

impl DoctorReport {
    /// The plain data of a diagnosis.
    #[must_use]
    pub fn of(report: &doctor::Report, replay: Option<String>) -> Self {
        let gpu = report.gpu.as_ref();
        let gpu = gpu.map(|gpu| Gpu { address: gpu.address.clone(), name: gpu.name.clone() });
        let ways = report.ways.iter().map(|way| Way {
            way: way.way.name().into(),
            open: way.is_open,
            never: way.is_final,
            needs: way.needs.clone(),
        });
        let mut found = Self {
            schema: SCHEMA,
            replay,
            path: report.path.clone(),
            gpu,
            target: None,
            broken: report.is_broken(),
            answer: String::new(),
            sentence: report.sentence(),
            checks: report.checks.iter().map(check).collect(),
            ways: ways.collect(),
            transfers: Vec::new(),
            not_moved: None,
        };
        found.answer = found.answer();
        found
    }

    /// Whether bytes go to the GPU directly, and what is missing if not.
    pub(super) fn answer(&self) -> String {
        let tried = || self.transfers.iter().filter(|transfer| transfer.is_direct());
        if let Some(moved) = tried().rfind(|transfer| transfer.is_right()) {
            return match moved.verdict.as_ref().filter(|verdict| verdict.word != "unproven") {
                Some(verdict) => format!("yes. Counters verify it: {}", verdict.text),
                None => "yes, as cuFile reports; no counter verifies it".into(),
            };
        }
        let is_simulated = self.target.as_deref().is_some_and(|target| target.starts_with("sim:"));
        let class = self.checks.iter().find(|check| check.name == "gpu_class");
        if let (None, false, Some(class)) = (&self.gpu, is_simulated, class) {
            return format!("no. {}", class.seen);
        }
        let Some(way) = self.ways.first() else { return "unknown".into() };
        if way.open {
            return match tried().find_map(|transfer| transfer.reason.as_deref()) {
                Some(reason) => format!("no. No check rules it out, but {reason}"),
                None => format!("possible by {}. Nothing was moved to verify it", way.way),
            };
        }
        let (count, needs) = (way.needs.len(), way.needs.join(", "));
        match count {
            0 => format!("no. {} is closed", way.way),
            1 => format!("no. 1 thing missing for {}: {needs}", way.way),
            _ => format!("no. {count} things missing for {}: {needs}", way.way),
        }
    }
}

fn check(check: &doctor::Check) -> Check {
    Check {
        name: check.name.into(),
        state: check.state.name().into(),
        seen: check.seen.clone(),
        why: check.why.into(),
        step: check.step.clone(),
        blocks: check.blocks.iter().map(|way| way.name().into()).collect(),
        broken: check.is_broken,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::plain::json_lines;

    const PAGE: &str = include_str!("../../../../docs/json-schema.md");

    fn report() -> DoctorReport {
        let transfer = Transfer {
            direction: "read".into(),
            demanded: "staged".into(),
            end: "moved".into(),
            bytes: 7,
            seconds: 0.25,
            routes: vec![Share { route: "staged".into(), reason: "demanded".into(), bytes: 7 }],
            verdict: None,
            reason: None,
        };
        let check = Check {
            name: "udev".into(),
            state: "problem".into(),
            seen: "there is none".into(),
            why: "it is asked".into(),
            step: Some("start it".into()),
            blocks: vec!["p2pdma".into()],
            broken: true,
        };
        let way = Way { way: "p2pdma".into(), open: false, never: true, needs: vec!["x".into()] };
        DoctorReport {
            schema: SCHEMA,
            replay: None,
            path: "/data".into(),
            gpu: Some(Gpu { address: "0000:41:00.0".into(), name: None }),
            target: Some("cuda:0".into()),
            broken: true,
            answer: "no".into(),
            sentence: "bytes travel".into(),
            checks: vec![check],
            ways: vec![way],
            transfers: vec![transfer],
            not_moved: None,
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let text = json_lines(&report()).unwrap();
        assert!(text.ends_with("}\n"));
        assert_eq!(serde_json::from_str::<DoctorReport>(&text).unwrap(), report());
    }

    #[test]
    fn keys_are_those_of_the_schema() {
        let value = serde_json::to_value(report()).unwrap();
        let keys = |value: &serde_json::Value| {
            value.as_object().unwrap().keys().cloned().collect::<Vec<_>>()
        };
        let all = [
            (
                &value,
                "answer broken checks gpu not_moved path replay schema sentence target transfers \
                 ways",
            ),
            (&value["gpu"], "address name"),
            (&value["checks"][0], "blocks broken name seen state step why"),
            (&value["ways"][0], "needs never open way"),
            (&value["transfers"][0], "bytes demanded direction end reason routes seconds verdict"),
        ];
        let (_, page) = PAGE.split_once("\n# The JSON of `forebay doctor --json`\n").unwrap();
        for (value, names) in all {
            let mut found = keys(value);
            found.sort();
            assert_eq!(found.join(" "), names);
            for name in found {
                assert!(page.contains(&format!("`{name}`")), "the page lacks `{name}`");
            }
        }
    }
}
