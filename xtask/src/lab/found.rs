//! The output of `forebay map --json` and `forebay read` in the guest, compared with the expected
//! storage.

use std::path::Path;

use serde_json::Value;

use super::expected::Expected;
use super::machine;
use crate::folders::text;
use crate::process::Result;

/// The reads of each path: the suffix of their file's name, and their names.
const READS: [(&str, &str); 3] =
    [("cold", "cold read"), ("gpu", "cold read to a GPU"), ("again", "resident read")];

/// One path, judged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) situation: String,
    pub(crate) path: String,
    pub(crate) found: Vec<String>,
    pub(crate) expected: Vec<String>,
    /// The route of the cold read.
    pub(crate) route: String,
    /// The result of the read: a word for the table.
    pub(crate) bytes: String,
    /// Everything that differs.
    pub(crate) differences: Vec<String>,
}

/// Judges the guest's results in `folder`.
pub(crate) fn judge(folder: &Path) -> Result<Vec<Row>> {
    let expected = Expected::parse(&text(&folder.join("expected.tsv"))?)?;
    let report = text(&folder.join("map.json"))?;
    let report: Value = serde_json::from_str(&report).map_err(|error| {
        let talk = text(&folder.join("map-talk.txt")).unwrap_or_default();
        format!("`forebay map --json` printed no JSON ({error}): {talk}")
    })?;
    let rows = expected.iter().enumerate().map(|(index, expected)| {
        let mut row = Row {
            situation: expected.situation.clone(),
            path: expected.path.clone(),
            expected: expected.drives.clone(),
            ..Row::default()
        };
        map(&report, expected, &mut row);
        for (name, what) in READS {
            let said = text(&folder.join(format!("{}-{name}.txt", index + 1)));
            read(&said.unwrap_or_default(), what, expected, &mut row);
        }
        row.bytes = bytes(expected, &row);
        row
    });
    Ok(rows.collect())
}

/// Compares the map of a path.
fn map(report: &Value, expected: &Expected, row: &mut Row) {
    let path = Value::from(expected.path.as_str());
    let Some(map) = array(&report["maps"]).find(|map| map["path"] == path) else {
        let failure = array(&report["failures"]).find(|failure| failure["path"] == path);
        let reason = failure.map_or("it is missing", |failure| string(&failure["reason"]));
        row.differences.push(format!("not mapped: {reason}"));
        return;
    };
    let drives: Vec<&Value> = array(&map["drives"])
        .filter_map(|id| array(&report["drives"]).find(|drive| drive["id"] == *id))
        .collect();
    row.found = drives.iter().map(|drive| name(drive)).collect();
    row.found.sort();
    if row.found != expected.drives {
        let (found, wanted) = (row.found.join(" "), expected.drives.join(" "));
        row.differences.push(format!("drives {found}, not {wanted}"));
    }
    for drive in &drives {
        paths(drive, expected, row);
    }
    let layout = string(&map["queue"]["layout"]);
    if let Some(wanted) = expected.layout.as_deref().filter(|wanted| *wanted != layout) {
        row.differences.push(format!("layout {layout}, not {wanted}"));
    }
    let places = &map["extents"];
    let all_placed =
        array(&places["drives"]).count() > 0 && array(&places["unplaced"]).count() == 0;
    if expected.placed && !all_placed {
        row.differences.push(format!("not all bytes have a place: {}", places["unplaced"]));
    }
    for wanted in &expected.steps {
        if !has_step(&map["steps"], wanted) {
            row.differences.push(format!("no step `{wanted}`"));
        }
    }
    for rule in &expected.warnings {
        // A warning of several paths is reported once, without a path.
        let found = array(&report["warnings"]).any(|warning| {
            warning["rule"] == rule.as_str()
                && (warning["path"] == path || warning["path"].is_null())
        });
        if !found {
            row.differences.push(format!("no warning `{rule}`"));
        }
    }
}

/// Compares the paths to a drive with how the machine was built.
fn paths(drive: &Value, expected: &Expected, row: &mut Row) {
    let serial = name(drive);
    let paths: Vec<&Value> = array(&drive["paths"]).collect();
    if let Some(wanted) = expected.nodes.clone().or_else(|| machine::nodes(&serial)) {
        let mut nodes: Vec<u64> =
            paths.iter().filter_map(|path| path["numa_node"].as_u64()).collect();
        nodes.sort_unstable();
        if nodes != wanted {
            row.differences.push(format!("{serial} on NUMA nodes {nodes:?}, not {wanted:?}"));
        }
    }
    let live = paths.iter().filter(|path| path["live"] == true).count();
    let wanted = expected.live.unwrap_or(paths.len());
    if live != wanted {
        row.differences.push(format!("{live} paths of {serial} live, not {wanted}"));
    }
}

/// Compares the output of one read.
fn read(said: &str, what: &str, expected: &Expected, row: &mut Row) {
    let line = |name: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(name));
        line.map(str::trim).unwrap_or_default()
    };
    let (status, sum, route) = (line("status "), line("xxh3-64 "), line("route "));
    if let Some(words) = &expected.fails {
        if status != "1" || !said.contains(words.as_str()) {
            row.differences.push(format!("{what}: not failed with `{words}`: {said}"));
        }
        return;
    }
    if status != "0" {
        row.differences.push(format!("{what}: failed: {}", said.trim()));
    } else if sum != expected.sum {
        row.differences.push(format!("{what}: bytes {sum}, not {}", expected.sum));
    }
    if what == READS[0].1 {
        row.route = route.to_owned();
        if let Some(wanted) = expected.route.as_deref().filter(|wanted| !route.contains(wanted)) {
            row.differences.push(format!("{what}: route `{route}`, not `{wanted}`"));
        }
    }
}

fn bytes(expected: &Expected, row: &Row) -> String {
    let wrong = row.differences.iter().any(|text| READS.iter().any(|(_, r)| text.starts_with(r)));
    match (wrong, &expected.fails) {
        (true, _) => "WRONG".into(),
        (false, Some(_)) => "refused".into(),
        (false, None) => "right".into(),
    }
}

/// The name of a drive in this lab.
fn name(drive: &Value) -> String {
    match (drive["serial"].as_str(), string(&drive["kind"])) {
        (Some(serial), _) => serial.to_owned(),
        (None, kind @ ("memory" | "network" | "unknown")) => kind.to_owned(),
        (None, _) => string(&drive["id"]).to_owned(),
    }
}

/// Whether a step, or one below it, is `KIND` or `KIND:FACT=VALUE`.
fn has_step(step: &Value, wanted: &str) -> bool {
    let (kind, fact) = wanted.split_once(':').unwrap_or((wanted, ""));
    let matches = step["kind"] == kind
        && fact.split_once('=').is_none_or(|(name, value)| match &step["facts"][name] {
            Value::String(text) => text == value,
            other => format!("{other}") == value,
        });
    matches || array(&step["children"]).any(|child| has_step(child, wanted))
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn string(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn report() -> Value {
        json!({
            "drives": [
                {"id": "a", "serial": "STRIPEA", "paths": [{"numa_node": 0, "live": true}]},
                {"id": "m", "serial": null, "kind": "memory", "paths": []},
            ],
            "maps": [{
                "path": "/a",
                "queue": {"layout": "single"},
                "drives": ["a"],
                "extents": {"drives": [{}], "unplaced": [{"reason": "inline"}]},
                "steps": {"kind": "path", "facts": {}, "children": [{
                    "kind": "md",
                    "facts": {"level": "raid0", "chunk_bytes": 4096},
                    "children": [],
                }]},
            }],
            "failures": [{"path": "/c", "reason": "gone"}],
            "warnings": [{"rule": "degraded", "path": null}],
        })
    }

    fn differences(line: &str) -> Vec<String> {
        let expected = Expected::parse(line).unwrap().remove(0);
        let mut row = Row::default();
        map(&report(), &expected, &mut row);
        row.differences
    }

    #[test]
    fn a_map_as_it_should_be_differs_in_nothing() {
        let line = "/a\tdrives=STRIPEA\tlayout=single\tstep=md:level=raid0\tstep=path\t\
                    step=md:chunk_bytes=4096\twarn=degraded";
        assert_eq!(differences(line), [""; 0]);
    }

    #[test]
    fn everything_that_differs_is_told() {
        let line = "/a\tdrives=STRIPEB\tlayout=striped\tstep=md:level=raid1\twarn=overlay\t\
                    nodes=1\tlive=0\tplaced=yes";
        let found = differences(line);
        assert_eq!(found.len(), 7, "{found:?}");
        assert_eq!(differences("/c\tdrives=memory"), ["not mapped: gone"]);
    }

    #[test]
    fn a_read_is_right_only_with_the_right_bytes() {
        let expected = Expected::parse("/a\tsum=00ff").unwrap().remove(0);
        let said = |text: &str, expected: &Expected| {
            let mut row = Row::default();
            read(text, READS[0].1, expected, &mut row);
            row.differences.len()
        };
        assert_eq!(said("xxh3-64  00ff\nstatus   0\n", &expected), 0);
        for text in ["", "xxh3-64  00fe\nstatus   0\n", "xxh3-64  00ff\nstatus   124\n"] {
            assert_eq!(said(text, &expected), 1, "{text}");
        }
        let fails = Expected { fails: Some("nvme2n1".into()), ..expected };
        assert_eq!(said("error: cannot read on nvme2n1\nstatus   1\n", &fails), 0);
        assert_eq!(said("xxh3-64  00ff\nstatus   0\n", &fails), 1);
    }
}
