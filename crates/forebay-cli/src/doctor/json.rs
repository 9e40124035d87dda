//! A diagnosis as JSON, version 1; docs/json-schema.md describes every key.

use forebay::Route;
use forebay_doctor::Report;
use forebay_measure::failure::Failure;
use forebay_measure::results::Direction;
use forebay_measure::results::verdict::VerdictFacts;
use forebay_measure::workload::backend::{Taken, by_name};
use serde::Serialize;

/// The version of the schema: it grows when a key changes its meaning or is removed.
pub const SCHEMA: u32 = 1;

/// The diagnosis of the route between a path and a GPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DoctorReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The folder of the replayed record; null if this machine was examined.
    pub replay: Option<String>,
    /// The path, the GPU, the checks, and the routes without a copy in host memory.
    #[serde(flatten)]
    pub found: Report,
    /// The memory of the transfers: `host`, `cuda:0`, `sim:0`; null if there were none.
    pub target: Option<String>,
    /// Whether something that was set up does not work, so that the command ends with 1.
    pub broken: bool,
    /// Whether bytes reach the GPU directly, and what is missing if not.
    pub answer: String,
    /// The route of bytes; of a replay, the best that the checks allow.
    pub sentence: String,
    /// The transfers; empty for a replay.
    pub transfers: Vec<Transfer>,
    /// Why transfers are missing.
    pub not_moved: Option<String>,
}

/// A transfer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Transfer {
    /// Reads go from the file to the GPU.
    pub direction: Direction,
    /// The required route.
    #[serde(serialize_with = "by_name")]
    pub required: Route,
    /// How it ended.
    pub end: End,
    /// Bytes that were moved.
    pub bytes: u64,
    /// From the call to the end.
    pub seconds: f64,
    /// The engine's own account: bytes by route and reason.
    pub routes: Vec<Taken>,
    /// The proven route, from independent counters; null if nothing was moved.
    pub verdict: Option<VerdictFacts>,
    /// Why it was refused or failed.
    pub reason: Option<String>,
}

/// The end of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// All bytes were moved and verified.
    Moved,
    /// This machine lacks that route.
    Refused,
    /// It failed, or its bytes are wrong.
    Failed,
}

impl Transfer {
    /// A transfer before its first byte.
    #[must_use]
    pub fn new(direction: Direction, required: Route) -> Self {
        let (routes, verdict, reason) = (Vec::new(), None, None);
        let (end, bytes, seconds) = (End::Moved, 0, 0.0);
        Self { direction, required, end, bytes, seconds, routes, verdict, reason }
    }

    /// A failed transfer.
    #[must_use]
    pub fn failed(direction: Direction, required: Route, failure: &Failure) -> Self {
        Self::new(direction, required).ending(End::Failed, failure.in_one_line())
    }

    /// Sets its end, for this reason.
    #[must_use]
    pub fn ending(self, end: End, reason: impl Into<String>) -> Self {
        Self { end, reason: Some(reason.into()), ..self }
    }

    /// Fails the transfer if its bytes were reported as direct, but provably were not.
    #[must_use]
    pub fn judged(self) -> Self {
        let is_named = |word: &str| word.starts_with("direct") || word == "unproven";
        match &self.verdict {
            Some(verdict) if self.required == Route::Direct && !is_named(&verdict.word) => {
                let reason = format!("reported as direct, but counters: {}", verdict.text);
                self.ending(End::Failed, reason)
            }
            _ => self,
        }
    }

    /// Whether it failed unexpectedly.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.end == End::Failed
    }
}

impl DoctorReport {
    /// The report of a diagnosis, without transfers.
    #[must_use]
    pub fn of(found: Report, replay: Option<String>) -> Self {
        let mut report = Self {
            schema: SCHEMA,
            replay,
            target: None,
            broken: found.is_broken(),
            answer: String::new(),
            sentence: found.sentence(),
            found,
            transfers: Vec::new(),
            not_moved: None,
        };
        report.answer = report.answer();
        report
    }

    /// Whether bytes reach the GPU directly, and what is missing if not.
    pub(super) fn answer(&self) -> String {
        let tried = || self.transfers.iter().filter(|transfer| transfer.required == Route::Direct);
        if let Some(moved) = tried().rfind(|transfer| transfer.end == End::Moved) {
            return match moved.verdict.as_ref().filter(|verdict| verdict.word != "unproven") {
                Some(verdict) => format!("yes. Counters verify it: {}", verdict.text),
                None => "yes, as cuFile reports; no counter verifies it".into(),
            };
        }
        let is_simulated = self.target.as_deref().is_some_and(|target| target.starts_with("sim:"));
        let class = self.found.check("gpu_class");
        if let (None, false, Some(class)) = (&self.found.gpu, is_simulated, class) {
            return format!("no. {}", class.seen);
        }
        let Some(way) = self.found.ways.first() else { return "unknown".into() };
        let name = way.way.name();
        if way.is_open {
            return match tried().find_map(|transfer| transfer.reason.as_deref()) {
                Some(reason) => format!("no. No check rules it out, but {reason}"),
                None => format!("possible by {name}. Nothing was moved to verify it"),
            };
        }
        let (count, needs) = (way.needs.len(), way.needs.join(", "));
        match count {
            0 => format!("no. {name} is closed"),
            1 => format!("no. 1 thing missing for {name}: {needs}"),
            _ => format!("no. {count} things missing for {name}: {needs}"),
        }
    }
}
