//! fio's reports of running jobs (`--status-interval`): each object has all counts since the start,
//! so only the last one of a run is a result. Pure.

use serde_json::Value;

use super::job::Job;

/// One object: its jobs, and when it was written.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) jobs: Vec<Job>,
    /// In seconds since 1970.
    pub(super) time: Option<u64>,
    /// In milliseconds, and by how much that may be rounded down.
    end_ms: Option<(f64, f64)>,
}

impl Object {
    pub(super) fn of(value: &Value, jobs: Vec<Job>) -> Self {
        let number = |key: &str| value.get(key).and_then(Value::as_f64);
        let exact = number("timestamp_ms").map(|ms| (ms, 0.0));
        let end_ms = exact.or_else(|| Some((number("timestamp")? * 1e3, 1e3)));
        Self { jobs, time: value.get("timestamp").and_then(Value::as_u64), end_ms }
    }

    /// Whether this continues an earlier object.
    pub(super) fn goes_on_from(&self, earlier: &Self) -> bool {
        let pairs = || self.jobs.iter().zip(&earlier.jobs);
        if self.jobs.is_empty()
            || self.jobs.len() != earlier.jobs.len()
            || !pairs().all(|(now, before)| now.is_same_as(before))
        {
            return false;
        }
        // A job that has not begun has no start time to compare.
        let begun = || pairs().filter(|(_, before)| before.requests() > 0);
        let starts = || begun().map(|(now, before)| now.start_ms.zip(before.start_ms));
        if begun().next().is_some() && starts().all(|both| both.is_some()) {
            return starts().flatten().all(|(now, before)| now == before);
        }
        let falls = pairs().any(|(now, before)| {
            now.requests() < before.requests() || now.seconds() < before.seconds()
        });
        let Some(((end, off), (earlier_end, _))) = self.end_ms.zip(earlier.end_ms) else {
            return false;
        };
        let longest = self.jobs.iter().map(Job::seconds).fold(0.0, f64::max);
        !falls && longest > 0.0 && earlier_end <= end && end - longest * 1e3 + off <= earlier_end
    }
}
