//! Differences between the machines and the runs of the sides. Pure.

use forebay::units::format_size;
use serde_json::Value;

use super::json::Difference;
use super::sides::Side;
use crate::report::digest::{Digest, RunFacts};
use crate::report::json::{Environment, Gpu};
use crate::results::Imported;

/// Most settings of a sweep that are compared: it has a dozen.
const SETTINGS_MAX: usize = 64;
/// Most letters of a value that are kept.
const VALUE_MAX: usize = 120;
/// Keys of a sweep's request that are not compared as settings: its points, its label and the
/// facts below report them.
const NO_SETTINGS: [&str; 6] = ["points", "places", "targets", "label", "host", "queues"];

type Fact = (&'static str, fn(&RunFacts) -> Option<String>);

/// Facts that imported runs have, too.
const OF_IMPORTED: [&str; 2] = ["measured by", "tool"];

const FACTS: [Fact; 17] = [
    ("machine", |run| text(run.asked.get("host")?)),
    ("forebay", |run| Some(run.environment.versions.forebay.clone())),
    ("measured by", |run| Some(run.verb.clone())),
    ("tool", |run| tool(run.imported.as_ref()?)),
    ("kernel", |run| Some(run.environment.kernel.clone())),
    ("processor", |run| Some(run.environment.cpu.model.clone())),
    ("processors", |run| Some(run.environment.cpu.cores.to_string())),
    ("memory", |run| Some(format_size(run.environment.memory.total))),
    ("GPUs", |run| named(&run.gpus)),
    ("simulated GPU", |run| {
        Some(if run.gpus.iter().any(|gpu| gpu.simulated) { "yes" } else { "no" }.into())
    }),
    ("driver", |run| run.environment.driver.clone()),
    ("file system", |run| Some(run.environment.file_system.as_ref()?.kind.clone())),
    ("drives", |run| drives(&run.environment)),
    ("queues", |run| queues(run.asked.get("queues")?)),
    ("fio", |run| run.environment.versions.fio.clone()),
    ("kvikio", |run| run.environment.versions.kvikio.clone()),
    ("cufile", |run| run.environment.versions.cufile.clone()),
];

fn tool(from: &Imported) -> Option<String> {
    let version = from.version.as_ref().map_or_else(String::new, |text| format!(" {text}"));
    Some(format!("{}{version}", from.tool))
}

fn named(gpus: &[Gpu]) -> Option<String> {
    let names: Vec<&str> = gpus.iter().map(|gpu| gpu.name.as_str()).collect();
    (!names.is_empty()).then(|| names.join(" + "))
}

fn drives(facts: &Environment) -> Option<String> {
    let all = facts.drives.iter().map(|drive| drive.model.as_ref().unwrap_or(&drive.name));
    let names: Vec<&str> = all.map(String::as_str).collect();
    let first = facts.drive.as_ref().map(|drive| drive.model.as_ref().unwrap_or(&drive.name));
    if names.is_empty() { first.cloned() } else { Some(names.join(" + ")) }
}

/// The queues that a sweep found between the host and its drives.
fn queues(value: &Value) -> Option<String> {
    let texts: Vec<&str> = value.as_array()?.iter().filter_map(Value::as_str).collect();
    (!texts.is_empty()).then(|| texts.join(" + "))
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

/// The facts in which the sides differ.
#[must_use]
pub fn differences(digest: &Digest, sides: &[Side<'_>]) -> Vec<Difference> {
    let all = |of: &dyn Fn(&RunFacts) -> Option<String>| -> Vec<Option<String>> {
        sides.iter().map(|side| of_side(digest, side, of)).collect()
    };
    let mut found: Vec<Difference> = FACTS
        .iter()
        .map(|(what, of)| {
            let known = |run: &RunFacts| run.imported.is_none() || OF_IMPORTED.contains(what);
            let values = all(&|run| known(run).then(|| of(run))?);
            Difference { what: (*what).into(), values }
        })
        .collect();
    for key in settings(digest) {
        let values = all(&|run| text(run.asked.get(&key)?));
        found.push(Difference { what: format!("setting: {key}"), values });
    }
    found.retain(|fact| fact.values.iter().any(|value| *value != fact.values[0]));
    found
}

/// The values of a side's runs, each once.
fn of_side(
    digest: &Digest,
    side: &Side<'_>,
    of: &dyn Fn(&RunFacts) -> Option<String>,
) -> Option<String> {
    let mut values: Vec<String> = Vec::new();
    for value in side.runs.iter().filter_map(|run| of(&digest.runs[*run])) {
        if !values.contains(&value) {
            values.push(value);
        }
    }
    let whole = values.join(" and ");
    let cut: String = whole.chars().take(VALUE_MAX).collect();
    let more = if cut.len() < whole.len() { "…" } else { "" };
    (!values.is_empty()).then(|| cut + more)
}

/// The names of the requested settings of the runs.
fn settings(digest: &Digest) -> Vec<String> {
    let mut keys: Vec<String> = Vec::new();
    for run in &digest.runs {
        for key in run.asked.as_object().into_iter().flat_map(|asked| asked.keys()) {
            let counts = !NO_SETTINGS.contains(&key.as_str()) && !keys.contains(key);
            if counts && keys.len() < SETTINGS_MAX {
                keys.push(key.clone());
            }
        }
    }
    keys
}
