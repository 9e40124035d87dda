//! The command, its settings and the machine.

use std::collections::HashSet;

use forebay::units::format_size;
use serde_json::Value;

use super::markup::Markup;
use crate::report::digest::RunFacts;
use crate::report::json::{Environment, Gpu};
use crate::results::Imported;

/// Most settings of one run.
const SETTINGS_MAX: usize = 200;
/// Greatest depth of nested settings.
const DEPTH_MAX: usize = 8;
/// Most GPUs and drives that are named.
const DEVICES_MAX: usize = 64;

/// The command and the settings of a run.
pub(crate) fn asked(markup: &mut Markup, run: &RunFacts) {
    command(markup, &run.environment.command);
    let mut settings = Vec::new();
    flatten(&mut settings, String::new(), &run.asked, 0);
    list(markup, &settings);
}

/// A command.
pub(crate) fn command(markup: &mut Markup, text: &str) {
    markup.within("pre", &[], |markup| markup.element("code", &[], text));
}

/// Flattens a value to one entry per leaf, named by its path.
fn flatten(found: &mut Vec<(String, String)>, name: String, value: &Value, depth: usize) {
    if found.len() >= SETTINGS_MAX {
        return;
    }
    let below = |key: &str| if name.is_empty() { key.into() } else { format!("{name}.{key}") };
    let nested = |value: &Value| matches!(value, Value::Object(_) | Value::Array(_));
    match value {
        Value::Null => {}
        Value::Object(parts) if depth < DEPTH_MAX => {
            for (key, part) in parts {
                flatten(found, below(key), part, depth + 1);
            }
        }
        Value::Array(parts) if !parts.iter().any(nested) => {
            let parts: Vec<String> = parts.iter().take(SETTINGS_MAX).map(text).collect();
            found.push((name, parts.join(", ")));
        }
        Value::Array(parts) if parts.iter().all(Value::is_object) => {
            found.push((name.clone(), format!("{} in all", parts.len())));
            found.extend(together(parts).into_iter().map(|(key, text)| (below(key), text)));
        }
        Value::Array(parts) if depth < DEPTH_MAX => {
            for (index, part) in parts.iter().enumerate().take(SETTINGS_MAX) {
                flatten(found, below(&index.to_string()), part, depth + 1);
            }
        }
        other => found.push((name, text(other))),
    }
}

/// Merges objects of one kind, such as the points of a sweep: the values under each key, each once.
fn together(objects: &[Value]) -> Vec<(&str, String)> {
    let mut keys: Vec<(&str, Vec<String>)> = Vec::new();
    let mut known = HashSet::new();
    for (key, value) in objects.iter().filter_map(Value::as_object).flatten() {
        let text = match value {
            Value::Null => continue,
            Value::Array(parts) => parts.iter().map(text).collect::<Vec<_>>().join(" + "),
            other => text(other),
        };
        if known.len() >= SETTINGS_MAX || !known.insert((key.as_str(), text.clone())) {
            continue;
        }
        match keys.iter_mut().find(|(known, _)| known == key) {
            Some((_, texts)) => texts.push(text),
            None => keys.push((key, vec![text])),
        }
    }
    keys.into_iter().map(|(key, texts)| (key, texts.join(", "))).collect()
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Object(_) | Value::Array(_) => "…".into(),
        other => other.to_string(),
    }
}

/// The machine of a run.
pub(crate) fn environment(markup: &mut Markup, run: &RunFacts) {
    if let Some(from) = &run.imported {
        return list(markup, &imported(run, from));
    }
    let facts = &run.environment;
    let mut found = vec![
        ("processor".to_owned(), format!("{} × {}", facts.cpu.cores, facts.cpu.model)),
        ("host memory".into(), format_size(facts.memory.total)),
        ("kernel".into(), facts.kernel.clone()),
    ];
    let gpus = if run.gpus.is_empty() { facts.gpu.as_slice() } else { &run.gpus };
    found.extend(gpus.iter().take(DEVICES_MAX).map(|gpu| ("GPU".into(), gpu_text(gpu))));
    if gpus.is_empty() {
        found.push(("GPU".into(), "none: the target is host memory".into()));
    }
    found.extend(facts.driver.iter().map(|driver| ("GPU driver".into(), driver.clone())));
    found.extend(facts.file_system.iter().map(|system| {
        (
            "file system".into(),
            format!("{} at {} of {}", system.kind, system.mount_point, system.source),
        )
    }));
    found.extend(drives(facts));
    let versions = &facts.versions;
    found.push(("forebay".into(), versions.forebay.clone()));
    let others =
        [("fio", &versions.fio), ("KvikIO", &versions.kvikio), ("cuFile", &versions.cufile)];
    let others = others.into_iter().filter_map(|(name, text)| Some((name, text.as_ref()?)));
    found.extend(others.map(|(name, text)| (name.to_owned(), text.clone())));
    let variables = facts.variables.iter().take(SETTINGS_MAX);
    found.extend(variables.map(|(name, value)| (name.clone(), value.clone())));
    found.extend(run.unmetered.iter().take(DEVICES_MAX).map(|absent| {
        let remedy = absent.remedy.as_ref().map_or_else(String::new, |text| format!("; {text}"));
        ("not metered".into(), format!("{}: {}{remedy}", absent.name, absent.why))
    }));
    found.push(("began".into(), time(facts.unix_time)));
    list(markup, &found);
}

/// The known facts of a result that another tool measured.
fn imported(run: &RunFacts, from: &Imported) -> Vec<(String, String)> {
    let version = from.version.as_deref().unwrap_or("(unknown version)");
    let mut found = vec![
        ("measured by".to_owned(), format!("{} {version}", from.tool)),
        ("imported from".into(), from.file.clone()),
        ("machine".into(), "unknown: the file does not report it".into()),
    ];
    let began = Some(run.environment.unix_time).filter(|began| *began > 0);
    found.extend(began.map(|began| ("began".into(), time(began))));
    found
}

fn gpu_text(gpu: &Gpu) -> String {
    let mut text = format!("{}, {}", gpu.id, gpu.name);
    for part in [&gpu.uuid, &gpu.pci_address].into_iter().flatten() {
        text.push_str(&format!(", {part}"));
    }
    text.push_str(&format!(", {}", format_size(gpu.memory)));
    if gpu.simulated { text + " (simulated)" } else { text }
}

fn drives(facts: &Environment) -> Vec<(String, String)> {
    let named = facts.drives.iter().take(DEVICES_MAX).map(|drive| {
        let link = drive.link.map(|link| link.text(drive.link_max.as_ref()));
        let parts =
            [drive.model.clone(), drive.firmware.clone(), drive.size.map(format_size), link];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        ("drive".to_owned(), format!("{} ({})", drive.name, parts.join(", ")))
    });
    let mut found: Vec<(String, String)> = named.collect();
    if found.is_empty() {
        found.extend(facts.drive.iter().map(|drive| {
            let model = drive.model.as_deref().unwrap_or("model unknown");
            ("drive".to_owned(), format!("{} ({model})", drive.name))
        }));
    }
    found
}

/// Facts with their names.
pub(crate) fn list(markup: &mut Markup, facts: &[(impl AsRef<str>, String)]) {
    if facts.is_empty() {
        return;
    }
    markup.within("dl", &[], |markup| {
        for (name, value) in facts {
            markup.element("dt", &[], name);
            markup.element("dd", &[], value);
        }
    });
}

/// Seconds since 1970 as a date and a time of day, UTC.
pub(crate) fn time(unix: u64) -> String {
    // Days of years that begin in March, so that a leap day is the last (Howard Hinnant's
    // algorithm `civil_from_days`); from the year 9999 on the number itself.
    if unix > 253_402_300_799 {
        return format!("{unix} s after 1970");
    }
    let (days, second) = (unix / 86_400, unix % 86_400);
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{:02} UTC", second % 60)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn times_are_dates() {
        let dates = [0, 951_782_400, 1_700_000_000, 4_102_444_799].map(time);
        let expected = [
            "1970-01-01 00:00:00 UTC",
            "2000-02-29 00:00:00 UTC",
            "2023-11-14 22:13:20 UTC",
            "2099-12-31 23:59:59 UTC",
        ];
        assert_eq!(dates, expected);
        assert_eq!(time(u64::MAX), "18446744073709551615 s after 1970");
    }

    #[test]
    fn settings_are_named_by_their_way_and_bounded() {
        let value = json!({"a": {"b": [1, 2]}, "c": [{"d": "x"}], "e": null, "f": true});
        let mut found = Vec::new();
        flatten(&mut found, String::new(), &value, 0);
        let shown: Vec<String> =
            found.iter().map(|(name, text)| format!("{name}={text}")).collect();
        assert_eq!(shown, ["a.b=1, 2", "c=1 in all", "c.d=x", "f=true"]);
        let deep = (0..99).fold(json!([[1]]), |value, _| json!([value]));
        let mut found = Vec::new();
        flatten(&mut found, String::new(), &deep, 0);
        assert_eq!(found[0].1, "…");
        let wide: Value = (0..999).map(|n| (n.to_string(), json!(n))).collect();
        let mut found = Vec::new();
        flatten(&mut found, String::new(), &wide, 0);
        assert_eq!(found.len(), SETTINGS_MAX);
    }

    #[test]
    fn points_are_told_by_their_axes() {
        let gpus = ["cuda:0", "cuda:1"];
        let point = |depth: u32, route: Option<&str>| {
            let targets = &gpus;
            json!({"depth": depth, "route": route, "targets": targets})
        };
        let points = [point(1, None), point(8, None), point(1, Some("staged"))];
        let mut found = Vec::new();
        flatten(&mut found, String::new(), &json!({"points": points, "repeats": 3}), 0);
        let found: Vec<(&str, &str)> = found.iter().map(|(k, v)| (&**k, &**v)).collect();
        let told = [
            ("points", "3 in all"),
            ("points.depth", "1, 8"),
            ("points.targets", "cuda:0 + cuda:1"),
            ("points.route", "staged"),
            ("repeats", "3"),
        ];
        assert_eq!(found, told);
    }

    #[test]
    fn very_many_points_are_told_in_little_room() {
        let points: Vec<Value> = (0..100_000).map(|n| json!({ "depth": n })).collect();
        let mut found = Vec::new();
        flatten(&mut found, String::new(), &json!({ "points": points }), 0);
        assert_eq!(found.len(), 2);
        assert!(found[1].1.len() < 10 * SETTINGS_MAX);
    }
}
