//! The records of imports, the detection of tools, and refused input.

use std::fs;
use std::path::PathBuf;

use super::*;
use crate::report::digest::gather;
use crate::report::digest::{Axis, Metric};
use crate::report::input;
use crate::results::file;

const LINE: &str = "IoType: READ XferType: GPUD Threads: 8 DataSetSize: 8388608/8388608(KiB) \
                    IOSize: 1024(KiB) Throughput: 4.000000 GiB/sec, Avg_Latency: 1953.125000 \
                    usecs ops: 8192 total_time 2.000000 secs\n";

struct Place(tempfile::TempDir);

impl Place {
    fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("log"), text).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn args(&self, tool: ImportTool) -> ImportArgs {
        let (label, map, way, set) = (None, None, None, Vec::new());
        let (files, output) = (vec![self.path("log")], Some(self.path("results")));
        ImportArgs { tool, files, output, label, map, way, set }
    }
}

#[test]
fn records_say_whose_they_are_and_are_added_to_what_is_there() {
    let place = Place::new(&format!("{LINE}{LINE}noise\ncuFileRead failed\n"));
    let mut args = place.args(ImportTool::Gdsio);
    args.set = vec!["target=cuda:3".parse().unwrap()];
    command(&args, "forebay import").unwrap();
    args.label = Some("again".into());
    command(&args, "forebay import").unwrap();
    let records = file::read(&place.path("results")).unwrap();
    let kinds: Vec<&str> = records
        .iter()
        .map(|record| match record {
            Record::Run(_) => "run",
            Record::Warning { .. } => "warning",
            _ => "sample",
        })
        .collect();
    assert_eq!(kinds, ["run", "warning", "sample", "sample"].repeat(2));
    let Record::Run(run) = &records[0] else { panic!() };
    let imported = run.imported.as_ref().unwrap();
    assert_eq!((run.verb.as_str(), run.label.as_deref()), ("gdsio", None));
    assert_eq!((imported.tool.as_str(), &imported.version), ("gdsio", &None));
    assert!(imported.file.ends_with("/log"));
    let samples: Vec<_> = file::samples(&records).collect();
    assert_eq!((samples[1].1.repeat, samples[1].1.line), (1, Some(2)));
    assert_eq!(samples[0].1.point.targets, ["cuda:3"]);
    // This machine is not recorded as the one that measured.
    let text = fs::read_to_string(place.path("results")).unwrap();
    let first: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    let facts = &first["environment"];
    for key in ["kernel", "gpu", "driver", "drive", "unix_time"] {
        assert!(facts[key].is_null(), "{key}: {facts}");
    }
    assert!(facts["cpu"]["cores"].is_null() && facts["memory"]["total"].is_null(), "{facts}");
    let sample: serde_json::Value = serde_json::from_str(text.lines().nth(2).unwrap()).unwrap();
    for key in ["path", "files", "cache"] {
        assert!(sample["point"][key].is_null(), "{key}: {sample}");
    }
    for key in ["verdict", "evidence", "route", "verified", "cpu", "bound"] {
        assert!(sample["measured"][key].is_null(), "{key}: {sample}");
    }
}

#[test]
fn a_report_names_the_tool_and_says_that_nothing_is_proven() {
    let place = Place::new(&LINE.repeat(2));
    command(&place.args(ImportTool::Gdsio), "forebay import gdsio log").unwrap();
    let source = input::read(&place.path("results")).unwrap();
    let digest = gather::digest(&[("results".into(), source)]);
    let [line] = digest.lines.as_slice() else { panic!("{digest:?}") };
    assert_eq!(line.mark(Axis::Way), Some("gdsio cufile"));
    assert_eq!((line.mark(Axis::Cache), line.mark(Axis::Files)), (None, None));
    assert_eq!(line.imported.as_deref(), Some("gdsio"));
    assert_eq!(line.metric(Metric::Mean).unwrap().median, 1953.125e-6);
    assert_eq!(line.metric(Metric::P50), None);
    assert!(digest.warnings[0].contains("reported by gdsio: "));
    let forms = [
        crate::report::forms::terminal::text(&digest),
        crate::report::forms::markdown::text(&digest),
        crate::report::html::page(&digest),
    ];
    for text in forms {
        assert!(text.contains("gdsio cufile") && text.contains("not proved"), "{text}");
        assert!(!text.contains("0 × ") && !text.to_lowercase().contains("dma"), "{text}");
    }
}

#[test]
fn what_failed_has_no_verdict_to_be_missed() {
    let place = Place::new(include_str!("../../tests/import/fio/full.txt"));
    command(&place.args(ImportTool::Fio), "forebay import fio log").unwrap();
    let source = input::read(&place.path("results")).unwrap();
    let digest = gather::digest(&[("results".into(), source)]);
    let text = crate::report::forms::markdown::text(&digest);
    assert!(text.contains("no space left on device") && !text.contains("not proved"), "{text}");
    assert!(text.contains("measured by fio 3.33, on an unknown machine"), "{text}");
}

#[test]
fn the_right_tool_is_named_for_a_wrong_file() {
    let fio = include_str!("../../tests/import/fio/random.json");
    let ours = crate::report::made::file(&crate::report::made::Sweep::default());
    let bench = crate::report::json::tests::report().to_text().unwrap();
    let nixl = "Block Size (B)      Batch Size     B/W (GB/Sec)\n";
    for (tool, text, words) in [
        (ImportTool::Gdsio, fio, "`forebay import fio`"),
        (ImportTool::Fio, LINE, "`forebay import gdsio`"),
        (ImportTool::Fio, nixl, "`forebay import nixlbench`"),
        (ImportTool::Nixlbench, "a,b,c\n1,2,3\n", "`forebay import csv --map …`"),
        (ImportTool::Fio, ours.as_str(), "`forebay report` reads it directly"),
        (ImportTool::Gdsio, bench.as_str(), "`forebay report` reads it directly"),
        (ImportTool::Gdsio, "nothing", "begin with `IoType:`"),
        (ImportTool::Fio, "", "--output-format=json"),
        (ImportTool::Nixlbench, "x", "`Block Size (B)`"),
    ] {
        let place = Place::new(text);
        let failure = command(&place.args(tool), "").unwrap_err();
        assert!(failure.message.contains("log` as results of"), "{failure:?}");
        let hint = failure.hint.unwrap();
        assert!(hint.contains(words), "{tool:?}: {hint}");
        assert!(!place.path("results").exists());
    }
    let cut = Place::new(&fio[..900]);
    let failure = command(&cut.args(ImportTool::Fio), "").unwrap_err();
    assert!(failure.hint.unwrap().contains("after all of its jobs have ended"));
}

#[test]
fn a_file_may_begin_with_the_mark_of_its_encoding() {
    let fio = include_str!("../../tests/import/fio/random.json");
    let table = "size,BW (GB/s)\n4096,1\n";
    let wide = |text: &str, bytes: fn(u16) -> [u8; 2]| -> Vec<u8> {
        "\u{feff}".encode_utf16().chain(text.encode_utf16()).flat_map(bytes).collect()
    };
    for (tool, text) in
        [(ImportTool::Fio, fio), (ImportTool::Gdsio, LINE), (ImportTool::Csv, table)]
    {
        let marked = format!("\u{feff}{text}").into_bytes();
        for bytes in [marked, wide(text, u16::to_le_bytes), wide(text, u16::to_be_bytes)] {
            let place = Place::new("");
            fs::write(place.path("log"), bytes).unwrap();
            let mut args = place.args(tool);
            if tool == ImportTool::Csv {
                args.map = Some("size=size,throughput=BW (GB/s)".parse().unwrap());
                args.way = Some("x".into());
                args.set = vec!["direction=read".parse().unwrap()];
            }
            command(&args, "").unwrap();
            let results = fs::read(place.path("results")).unwrap();
            fs::write(place.path("results"), [b"\xef\xbb\xbf", results.as_slice()].concat())
                .unwrap();
            assert!(matches!(
                input::read(&place.path("results")).unwrap(),
                input::Source::Records(records) if file::samples(&records).count() == 1
            ));
        }
    }
}

#[test]
fn an_error_names_the_reasons_of_most_rows() {
    let rows = "4096,MKDIRS,\n4096,READ,1\n4096,READ,20\n";
    let place = Place::new(&format!("size,op,BW\n{rows}"));
    let mut args = place.args(ImportTool::Csv);
    args.map = Some("size=size,direction=op,throughput=BW".parse().unwrap());
    args.way = Some("x".into());
    let failure = command(&args, "").unwrap_err();
    let why = &failure.causes[0];
    let most = "it holds no result of csv; line 3: left out: `BW` is `1`: it has no unit";
    assert!(why.starts_with(most) && why.contains("(and 1 more lines like it); line 2: "), "{why}");
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_written() {
    let place = Place::new(LINE);
    let refused = |change: &dyn Fn(&mut ImportArgs), words: &str| {
        let mut args = place.args(ImportTool::Gdsio);
        change(&mut args);
        let failure = command(&args, "").unwrap_err();
        let text = format!("{} {}", failure.in_one_line(), failure.hint.unwrap_or_default());
        assert!(text.contains(words), "{text}");
    };
    refused(&|args| args.tool = ImportTool::Csv, "`--map` is missing");
    refused(&|args| args.map = Some("size=a".parse().unwrap()), "`--map` is not for gdsio");
    refused(&|args| args.way = Some("x".into()), "`--way` is not for gdsio");
    refused(&|args| args.files = vec!["x".into(); FILES_MAX + 1], "1001 files are too many");
    refused(
        &|args| args.set = vec!["threads=9".parse().unwrap()],
        "the file already has the threads",
    );
    refused(&|args| args.files = vec![place.path("none")], "none");
    refused(&|args| args.files = vec![place.path("")], "not a regular file");
    fs::write(place.path("mine"), "mine").unwrap();
    refused(&|args| args.output = Some(place.path("mine")), "appends only to a results file");
    assert_eq!(fs::read_to_string(place.path("mine")).unwrap(), "mine");
    let large = fs::File::create(place.path("large")).unwrap();
    large.set_len(1 << 30).unwrap();
    refused(&|args| args.files = vec![place.path("large")], "1 GiB; the limit is 64 MiB");
    assert!(!place.path("results").exists());
}

/// Results of several imports, each of a file with one line of another rate.
fn imported(place: &Place, files: &[(&str, &str)], label: Option<&str>) {
    for (path, rate) in files {
        let path = place.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let text = LINE.replace("Throughput: 4", &format!("Throughput: {rate}"));
        fs::write(&path, text).unwrap();
        let mut args = place.args(ImportTool::Gdsio);
        (args.files, args.label) = (vec![path], label.map(str::to_owned));
        command(&args, "forebay import").unwrap();
    }
}

fn digest_of(place: &Place) -> crate::report::digest::Digest {
    gather::digest(&[("results".into(), input::read(&place.path("results")).unwrap())])
}

#[test]
fn a_file_is_what_it_holds_and_not_how_it_was_called() {
    let place = Place::new(LINE);
    imported(&place, &[("a/log", "3"), ("a/./log", "3"), ("a/../a/log", "3")], Some("x"));
    let digest = digest_of(&place);
    assert_eq!((digest.runs.len(), digest.lines.len(), digest.raw.len()), (1, 1, 1));
    // A new measurement is another run of the label.
    imported(&place, &[("a/log", "2")], Some("x"));
    let digest = digest_of(&place);
    assert_eq!((digest.runs.len(), digest.lines.len()), (2, 2));
}

#[test]
fn without_a_label_files_are_told_apart_by_their_paths() {
    let place = Place::new(LINE);
    imported(&place, &[("a/log", "3"), ("b/log", "2"), ("b/log", "1")], None);
    let digest = digest_of(&place);
    let names: Vec<&str> = digest.runs.iter().map(|run| run.name.as_str()).collect();
    assert_eq!(names, ["a/log", "b/log", "b/log (2)"]);
    let by = crate::diff::sides::by("label").unwrap();
    let files = ["results".to_owned()];
    let diff = crate::diff::diff(&digest, &files, (by, None), Metric::Rate).unwrap();
    assert_eq!(diff.sides.len(), 3);
    // A single one needs no folder.
    let alone = Place::new(LINE);
    imported(&alone, &[("a/log", "3")], None);
    assert_eq!(digest_of(&alone).runs[0].name, "log");
}

#[test]
fn ways_of_one_label_are_compared_whatever_files_they_came_from() {
    let other = LINE.replace("GPUD", "CPU_GPU");
    let compare = |label: Option<&str>| {
        let place = Place::new(LINE);
        imported(&place, &[("one", "4")], label);
        fs::write(place.path("two"), &other).unwrap();
        let mut args = place.args(ImportTool::Gdsio);
        (args.files, args.label) = (vec![place.path("two")], label.map(str::to_owned));
        args.set = vec!["target=gpu".parse().unwrap()];
        command(&args, "forebay import").unwrap();
        let by = crate::diff::sides::by("way").unwrap();
        crate::diff::diff(&digest_of(&place), &["results".into()], (by, None), Metric::Mean)
    };
    let diff = compare(Some("x")).unwrap();
    assert_eq!(diff.comparisons[0].points.len(), 1);
    let what: Vec<&str> = diff.environment.iter().map(|fact| fact.what.as_str()).collect();
    // Nothing is known about the machine.
    assert!(!what.contains(&"processors") && !what.contains(&"memory"), "{what:?}");
}

proptest::proptest! {
    #[test]
    fn no_text_ends_the_look_at_whose_it_is(text: String) {
        let _ = kind::of(&text);
    }
}
