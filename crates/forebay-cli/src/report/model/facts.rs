//! The machine and the settings of a run, as names and values. Pure.

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use forebay::units::format_size;
use forebay_measure::results::Run;
use forebay_measure::results::machine::{Gpu, drives};
use serde_json::Value;

use super::grouped;

/// Most settings of a run, and most GPUs that are named.
const LISTED_MAX: usize = 64;
/// Most letters of a value.
const VALUE_MAX: usize = 200;
/// Keys of a request that the points or the machine show.
const SHOWN: [&str; 8] =
    ["points", "found", "places", "targets", "label", "host", "queues", "variables"];

/// The machine that measured, as far as it is known.
#[must_use]
pub fn machine(run: &Run) -> Vec<(String, String)> {
    if let Some(from) = &run.imported {
        let version = from.version.as_ref().map_or_else(String::new, |text| format!(" {text}"));
        return vec![("measured by".into(), format!("{}{version}", from.tool))];
    }
    let facts = &run.environment;
    let gpus = if run.gpus.is_empty() { facts.gpu.as_slice() } else { &run.gpus };
    let system = facts.file_system.as_ref();
    let queues = run.request.get("queues").and_then(Value::as_array);
    let queues = queues.map(|queues| {
        let texts: Vec<&str> = queues.iter().filter_map(Value::as_str).collect();
        texts.join(" + ")
    });
    let versions = &facts.versions;
    let found = vec![
        ("GPU", Some(gpus_text(gpus))),
        ("drive", Some(drives(facts))),
        ("queues", queues),
        ("file system", system.map(|system| format!("{} at {}", system.kind, system.mount_point))),
        ("processor", Some(format!("{} × {}", facts.cpu.cores, facts.cpu.model))),
        ("memory", Some(format_size(facts.memory.total))),
        ("machine", run.request.get("host").and_then(text)),
        ("kernel", Some(facts.kernel.clone())),
        ("GPU driver", facts.driver.clone()),
        ("measured by", Some(format!("forebay {}", versions.forebay))),
        ("fio", versions.fio.clone()),
    ];
    let known = |(name, value): (&str, Option<String>)| {
        Some((name.to_owned(), value.filter(|value| !value.is_empty())?))
    };
    let found = found.into_iter().filter_map(known);
    let variables = facts.variables.iter().take(LISTED_MAX);
    found.chain(variables.map(|(name, value)| (name.clone(), value.clone()))).collect()
}

/// When a run began, in UTC.
#[must_use]
pub fn began(run: &Run) -> Option<String> {
    let seconds = Some(run.environment.unix_time).filter(|time| *time > 0)?;
    let time = UNIX_EPOCH.checked_add(Duration::from_secs(seconds))?;
    // A year beyond 9999, in a damaged file, cannot be printed.
    let mut text = String::new();
    write!(text, "{}", humantime::format_rfc3339_seconds(time)).ok()?;
    Some(format!("{} UTC", text.get(..16)?.replace('T', " ")))
}

/// The settings that the points do not show.
#[must_use]
pub fn settings(run: &Run) -> Vec<(String, String)> {
    let request = run.request.as_object().into_iter().flatten();
    let shown = request.filter(|(key, _)| run.imported.is_none() && !SHOWN.contains(&key.as_str()));
    shown.take(LISTED_MAX).filter_map(|(key, value)| Some((key.clone(), text(value)?))).collect()
}

fn text(value: &Value) -> Option<String> {
    let text = match value {
        Value::Null => return None,
        Value::String(text) => text.clone(),
        Value::Array(parts) if parts.iter().all(|part| !part.is_array() && !part.is_object()) => {
            let parts: Vec<String> = parts.iter().take(LISTED_MAX).filter_map(text).collect();
            parts.join(", ")
        }
        other => other.to_string(),
    };
    Some(forebay_measure::plain::cut(&text, VALUE_MAX))
}

fn gpus_text(gpus: &[Gpu]) -> String {
    let name = |gpu: &Gpu| match gpu.simulated && !gpu.name.contains("simulated") {
        true => format!("{} (simulated)", gpu.name),
        false => gpu.name.clone(),
    };
    let names = grouped(gpus.iter().take(LISTED_MAX).map(|gpu| (name(gpu), ())));
    let texts = names.into_iter().map(|(name, all)| match all.len() {
        1 => name,
        count => format!("{count} × {name}"),
    });
    let texts: Vec<String> = texts.collect();
    if texts.is_empty() { "none".into() } else { texts.join(" + ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::made::Sweep;
    use crate::report::model::gather::tests::of_sweep;

    #[test]
    fn the_machine_and_the_settings_are_listed() {
        let sweep = Sweep { targets: vec!["cuda:0", "cuda:1"], ..Sweep::default() };
        let model = of_sweep(&sweep);
        let run = &model.runs[0].record;
        let all = machine(run);
        let of =
            |name: &str| all.iter().find(|(other, _)| other == name).map(|(_, text)| text.as_str());
        assert_eq!(of("GPU"), Some("2 × NVIDIA H200"));
        assert_eq!(of("drive"), Some("nvme0n1 (Fast One)"));
        assert_eq!(of("processor"), Some("16 × Some CPU"));
        assert_eq!((of("fio"), began(run).as_deref()), (None, Some("2023-11-14 22:13 UTC")));
        assert!(settings(run).contains(&("seconds".into(), "2".into())));
    }

    #[test]
    fn a_time_beyond_all_calendars_is_unknown() {
        for unix_time in [0, 253_402_300_800, u64::MAX] {
            let mut run = of_sweep(&Sweep::default()).runs.remove(0).record;
            run.environment.unix_time = unix_time;
            assert_eq!(began(&run), None, "{unix_time}");
        }
    }
}
