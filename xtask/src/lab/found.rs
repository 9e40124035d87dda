//! The output of `forebay doctor --tree --format=json` and `forebay read` in the guest, compared
//! with the expected storage: lines that the guest wrote when it built it.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use crate::folders::text;
use crate::process::Result;

/// The reads of a path: the suffix of their file's name, and their names.
const READS: [(&str, &str); 3] =
    [("cold", "cold read"), ("gpu", "cold read to a GPU"), ("again", "resident read")];

/// The keys of an expectation; `xtask/lab/guest/situations.sh` explains them. `nodes` and `live`
/// are the NUMA nodes and the number of live paths, where these are not as the machine was built;
/// `fails` is the required error of a read.
const KEYS: [&str; 11] =
    ["of", "sum", "drives", "layout", "step", "warn", "nodes", "live", "fails", "placed", "route"];

/// Serial number, MiB, NUMA node and seat of every drive.
const DRIVES: &str = include_str!("../../lab/drives.txt");

/// Columns of the route, whose reason is shown in full elsewhere.
const ROUTE_LEN: usize = 44;

/// The expected storage of a path.
#[derive(Debug, Default)]
struct Expected<'a> {
    path: &'a str,
    values: BTreeMap<&'a str, Vec<&'a str>>,
}

impl<'a> Expected<'a> {
    /// Reads `PATH`, then `KEY=VALUE` words, with tabs between them.
    fn line(line: &'a str) -> Result<Self> {
        let mut words = line.split('\t');
        let mut expected = Self { path: words.next().unwrap_or_default(), ..Self::default() };
        for word in words {
            let pair = word.split_once('=').filter(|(key, _)| KEYS.contains(key));
            let (key, value) = pair.ok_or_else(|| format!("no `KEY=VALUE`: `{word}`"))?;
            expected.values.entry(key).or_default().push(value);
        }
        Ok(expected)
    }

    fn all(&self, key: &str) -> &[&'a str] {
        self.values.get(key).map_or(&[], Vec::as_slice)
    }

    fn one(&self, key: &str) -> Option<&'a str> {
        self.all(key).first().copied()
    }

    /// The serial numbers, sorted; `memory` and `network` if there are no drives.
    fn drives(&self) -> Vec<String> {
        let mut drives: Vec<String> =
            self.one("drives").unwrap_or_default().split(',').map(str::to_owned).collect();
        drives.sort();
        drives
    }
}

/// One path, judged.
#[derive(Debug, Default)]
pub(crate) struct Row {
    situation: String,
    path: String,
    found: Vec<String>,
    expected: Vec<String>,
    /// The route of the cold read.
    route: String,
    /// The result of the reads: a word for the table.
    bytes: &'static str,
    /// Everything that differs.
    pub(crate) differences: Vec<String>,
}

/// Judges the guest's results in `folder`.
pub(crate) fn judge(folder: &Path) -> Result<Vec<Row>> {
    let lines = text(&folder.join("expected.tsv"))?;
    let report = text(&folder.join("map.json"))?;
    let report: Value = serde_json::from_str(&report).map_err(|error| {
        let talk = text(&folder.join("map-talk.txt")).unwrap_or_default();
        format!("`forebay doctor --tree --format=json` printed no JSON ({error}): {talk}")
    })?;
    let row = |(number, line)| {
        let expected = Expected::line(line)?;
        let mut row = Row {
            situation: expected.one("of").unwrap_or_default().to_owned(),
            path: expected.path.to_owned(),
            expected: expected.drives(),
            ..Row::default()
        };
        map(&report, &expected, &mut row);
        let before = row.differences.len();
        for (name, what) in READS {
            let printed = text(&folder.join(format!("{number}-{name}.txt")));
            read(&printed.unwrap_or_default(), what, &expected, &mut row);
        }
        row.bytes = match (row.differences.len() > before, expected.one("fails")) {
            (true, _) => "mismatch",
            (false, Some(_)) => "refused",
            (false, None) => "verified",
        };
        Ok(row)
    };
    (1..).zip(lines.lines()).map(row).collect()
}

/// Compares the map of a path.
fn map(report: &Value, expected: &Expected<'_>, row: &mut Row) {
    let path = Value::from(expected.path);
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
    if row.found != row.expected {
        let (found, wanted) = (row.found.join(" "), row.expected.join(" "));
        row.differences.push(format!("drives {found}, not {wanted}"));
    }
    for drive in &drives {
        paths(drive, expected, row);
    }
    let layout = string(&map["queue"]["layout"]);
    if let Some(wanted) = expected.one("layout").filter(|wanted| *wanted != layout) {
        row.differences.push(format!("layout {layout}, not {wanted}"));
    }
    let places = &map["extents"];
    let all_placed = array(&places["drives"]).count() > 0 && places["unplaced"] == json!({});
    if expected.one("placed") == Some("yes") && !all_placed {
        row.differences.push(format!("not all bytes have a place: {}", places["unplaced"]));
    }
    for wanted in expected.all("step") {
        if !has_step(&map["steps"], wanted) {
            row.differences.push(format!("no step `{wanted}`"));
        }
    }
    for rule in expected.all("warn") {
        // A warning of several paths is reported once, without a path.
        let found = array(&report["warnings"]).any(|warning| {
            warning["rule"] == *rule && (warning["path"] == path || warning["path"].is_null())
        });
        if !found {
            row.differences.push(format!("no warning `{rule}`"));
        }
    }
}

/// Compares the paths to a drive with how the machine was built.
fn paths(drive: &Value, expected: &Expected<'_>, row: &mut Row) {
    let serial = name(drive);
    let paths: Vec<&Value> = array(&drive["paths"]).collect();
    let stated = expected.one("nodes");
    let stated = stated.map(|nodes| nodes.split(',').filter_map(|n| n.parse().ok()).collect());
    if let Some(wanted) = stated.or_else(|| nodes(&serial)) {
        let mut nodes: Vec<u64> =
            paths.iter().filter_map(|path| path["numa_node"].as_u64()).collect();
        nodes.sort_unstable();
        if nodes != wanted {
            row.differences.push(format!("{serial} on NUMA nodes {nodes:?}, not {wanted:?}"));
        }
    }
    let live = paths.iter().filter(|path| path["live"] == true).count();
    let wanted = expected.one("live").and_then(|live| live.parse().ok()).unwrap_or(paths.len());
    if live != wanted {
        row.differences.push(format!("{live} paths of {serial} live, not {wanted}"));
    }
}

/// The NUMA nodes of the paths to a drive, sorted, as the machine was built; `None` if it has no
/// such drive, or the drive is not on its own PCI device.
fn nodes(serial: &str) -> Option<Vec<u64>> {
    match serial {
        "PATHS" => Some(vec![0, 1]),
        "TWO" => Some(vec![1]),
        _ => {
            let line = DRIVES.lines().find(|line| line.split(' ').next() == Some(serial))?;
            Some(vec![line.split(' ').nth(2)?.parse().ok()?])
        }
    }
}

/// Compares the output of a read.
fn read(printed: &str, what: &str, expected: &Expected<'_>, row: &mut Row) {
    let line = |name: &str| {
        let line = printed.lines().find_map(|line| line.strip_prefix(name));
        line.map(str::trim).unwrap_or_default()
    };
    let (status, sum, route) = (line("status "), line("xxh3-64 "), line("route "));
    if let Some(words) = expected.one("fails") {
        if status != "1" || !printed.contains(words) {
            row.differences.push(format!("{what}: not failed with `{words}`: {printed}"));
        }
        return;
    }
    let wanted = expected.one("sum").unwrap_or_default();
    if status != "0" {
        row.differences.push(format!("{what}: failed: {}", printed.trim()));
    } else if sum != wanted {
        row.differences.push(format!("{what}: bytes {sum}, not {wanted}"));
    }
    if what == READS[0].1 {
        row.route = route.to_owned();
        if let Some(wanted) = expected.one("route").filter(|wanted| !route.contains(wanted)) {
            row.differences.push(format!("{what}: route `{route}`, not `{wanted}`"));
        }
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

/// Whether a step, or a step below it, is `KIND` or `KIND:FACT=VALUE`.
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

/// The rows as lines, with differences below their row.
pub(crate) fn lines(rows: &[Row]) -> Vec<String> {
    let mut lines = Vec::new();
    for Row { situation, path, found, bytes, route, differences, .. } in rows {
        let (found, route) = (found.join(" "), route.chars().take(ROUTE_LEN).collect::<String>());
        lines.push(format!("{situation:<22}  {path:<28}  {found:<32}  {bytes:<8}  {route}"));
        lines.extend(differences.iter().map(|text| format!("    differs: {text}")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

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
                "extents": {"drives": [{}], "unplaced": {"inline": 5}},
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
        let expected = Expected::line(line).unwrap();
        let mut row = Row { expected: expected.drives(), ..Row::default() };
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
    fn every_difference_is_found() {
        let line = "/a\tdrives=STRIPEB\tlayout=striped\tstep=md:level=raid1\twarn=overlay\t\
                    nodes=1\tlive=0\tplaced=yes";
        let found = differences(line);
        assert_eq!(found.len(), 7, "{found:?}");
        assert_eq!(differences("/c\tdrives=memory"), ["not mapped: gone"]);
        assert!(Expected::line("/a\tcolour=red").is_err() && Expected::line("/a\tno").is_err());
    }

    #[test]
    fn a_read_is_verified_only_with_the_expected_bytes() {
        let printed = |text: &str, line: &str| {
            let (expected, mut row) = (Expected::line(line).unwrap(), Row::default());
            read(text, READS[0].1, &expected, &mut row);
            row.differences.len()
        };
        let (sum, fails) = ("/a\tsum=00ff", "/a\tsum=00ff\tfails=nvme2n1");
        assert_eq!(printed("xxh3-64  00ff\nstatus   0\n", sum), 0);
        for text in ["", "xxh3-64  00fe\nstatus   0\n", "xxh3-64  00ff\nstatus   124\n"] {
            assert_eq!(printed(text, sum), 1, "{text}");
        }
        assert_eq!(printed("error: cannot read on nvme2n1\nstatus   1\n", fails), 0);
        assert_eq!(printed("xxh3-64  00ff\nstatus   0\n", fails), 1);
    }
}
