//! The records of other tools' results, the detection of tools, and refused input.

use super::*;
use crate::report::model::{Axis, Metric, Model};
use crate::report::{forms, model, show};

const LINE: &str = "IoType: READ XferType: GPUD Threads: 8 DataSetSize: 8388608/8388608(KiB) \
                    IOSize: 1024(KiB) Throughput: 4.000000 GiB/sec, Avg_Latency: 1953.125000 \
                    usecs ops: 8192 total_time 2.000000 secs\n";
const FIO: &str = include_str!("../../../tests/import/fio/random.json");
const ELBENCHO: &str = "operation,block size,threads,MiB/s [last],IO lat us [avg]\n\
                        READ,131072,4,1333,70\nMKDIRS,131072,4,,\n";

fn hints(tool: Option<Tool>, map: &str) -> Hints {
    Hints { tool, map: (!map.is_empty()).then(|| map.parse().unwrap()) }
}

fn read(bytes: impl AsRef<[u8]>, hints: &Hints) -> Result<Vec<Record>> {
    records(Path::new("folder/log"), bytes.as_ref(), hints)
}

fn model_of(text: &str, map: &str) -> Model {
    let records = read(text, &hints(None, map)).unwrap();
    model::gather::model(&[("log".into(), records)])
}

#[test]
fn records_name_their_tool_and_leave_out_unknown_values() {
    let text = format!("{LINE}{LINE}noise\ncuFileRead failed\n");
    let records = read(&text, &hints(None, "gpu:=cuda:3")).unwrap();
    let kinds = records.iter().map(|record| match record {
        Record::Run(_) => "run",
        Record::Warning { .. } => "warning",
        _ => "sample",
    });
    assert_eq!(kinds.collect::<Vec<_>>(), ["run", "warning", "sample", "sample"]);
    let Record::Run(run) = &records[0] else { panic!() };
    assert_eq!((run.verb.as_str(), &run.imported.as_ref().unwrap().version), ("gdsio", &None));
    let Record::Sample(sample) = &records[3] else { panic!() };
    assert_eq!((sample.repeat, sample.point.targets.as_slice()), (1, &["cuda:3".to_owned()][..]));
    let (point, value) = (&sample.point, serde_json::to_value(sample).unwrap());
    assert_eq!((point.path.as_str(), point.files, point.cache), ("", 0, None));
    for key in ["verdict", "evidence", "route", "verified", "cpu", "bound"] {
        assert!(value["measured"][key].is_null(), "{key}: {value}");
    }
}

#[test]
fn texts_for_people_are_recognized() {
    let fio = "a: (g=0): rw=read, bs=(R) 4096B-4096B, ioengine=psync, iodepth=1\nfio-3.33\n";
    let terse = "3;fio-3.33;a;0;0;4096;1000;250;4;0;0\n";
    for text in [fio, terse] {
        assert!(read(text, &hints(None, "")).is_err());
        assert_eq!(unread(text).map(|one| one.0), Some("it is fio's text"));
    }
    assert_eq!(unread(FIO), None);
    assert_eq!(unread(ELBENCHO), None);
}

#[test]
fn a_report_names_the_tool_and_calls_nothing_verified() {
    let model = model_of(&LINE.repeat(2), "");
    let [line] = model.lines.as_slice() else { panic!("{model:?}") };
    assert_eq!(line.method, "gdsio cufile");
    assert_eq!((model.text(Axis::Cache, line), model.text(Axis::Files, line)), (None, None));
    assert_eq!(line.samples(Metric::Mean), [1953.125e-6; 2]);
    assert!(model.warnings[0].contains("from gdsio: data and path are not verified"));
    let blocks = show::report(&model, &[], Metric::Rate, 99);
    for text in [forms::terminal(&blocks, None), forms::markdown(&blocks, &model.warnings)] {
        assert!(text.contains("gdsio cufile") && text.contains("Data not verified"), "{text}");
        assert!(!text.contains("0 × ") && !text.to_lowercase().contains("dma"), "{text}");
    }
    let failed = model_of(include_str!("../../../tests/import/fio/full.txt"), "");
    let text = forms::markdown(&show::report(&failed, &[], Metric::Rate, 99), &failed.warnings);
    assert!(text.contains("no space left on device"), "{text}");
    assert!(text.contains("measured by fio 3.33"), "{text}");
}

#[test]
fn a_tool_is_found_by_its_marks() {
    let table = "Block Size (B)      Batch Size     B/W (GB/Sec)\n";
    for (text, tool) in [
        (FIO, Some(Tool::Fio)),
        (LINE, Some(Tool::Gdsio)),
        (table, Some(Tool::Nixlbench)),
        (ELBENCHO, Some(Tool::Elbencho)),
        ("a;b\n1;2\n", Some(Tool::Csv)),
        ("nothing", None),
        ("{\"a\": 1, \"b\": 2}", None),
    ] {
        assert_eq!(kind(text), tool, "{text}");
    }
    let elbencho = model_of(ELBENCHO, "");
    assert_eq!((elbencho.lines.len(), elbencho.lines[0].method.as_str()), (1, "elbencho"));
    assert_eq!(elbencho.lines[0].rate(), Some(1333.0 * 1_048_576.0));
}

#[test]
fn other_contents_are_refused_with_the_next_step() {
    let refused = |text: &str, tool: Option<Tool>, map: &str, words: &str| {
        let failure = read(text, &hints(tool, map)).unwrap_err();
        let text = format!("{} {}", failure.in_one_line(), failure.hint.unwrap_or_default());
        assert!(text.contains("folder/log") || failure.usage, "{text}");
        assert!(text.contains(words), "{text}");
    };
    refused("nothing", None, "", "name another tool with `--as`");
    refused("nothing", Some(Tool::Gdsio), "", "begin with `IoType:`");
    refused(&FIO[..900], None, "", "after all of its jobs have ended");
    refused("x", Some(Tool::Nixlbench), "", "`Block Size (B)`");
    refused("a,b\n1,2\n", None, "", "none of its columns is known: `a`, `b`");
    refused("a,b\n1,2\n", None, "block-size=colour", "it has no column `colour`; it has `a`, `b`");
    refused(LINE, None, "block-size=a", "`--columns` names columns, but gdsio has its own");
    refused(LINE, None, "threads:=9", "the file has its own threads");
    let rows = "size,op,BW\n4096,MKDIRS,\n4096,READ,1\n4096,READ,20\n";
    let map = "block-size=size,direction=op,throughput=BW";
    refused(rows, None, map, "line 3: left out: `BW` is `1`: it has no unit");
    refused(rows, None, map, "(and 1 more like it); line 2: ");
}

#[test]
fn a_file_may_begin_with_the_mark_of_its_encoding() {
    let wide = |text: &str, bytes: fn(u16) -> [u8; 2]| -> Vec<u8> {
        "\u{feff}".encode_utf16().chain(text.encode_utf16()).flat_map(bytes).collect()
    };
    for text in [FIO, LINE, "size,BW (GB/s),rw\n4096,1,read\n"] {
        let marked = format!("\u{feff}{text}").into_bytes();
        for bytes in [marked, wide(text, u16::to_le_bytes), wide(text, u16::to_be_bytes)] {
            let records = read(bytes, &Hints::default()).unwrap();
            let is_sample = |record: &&Record| matches!(record, Record::Sample(_));
            assert_eq!(records.iter().filter(is_sample).count(), 1);
        }
    }
}

proptest::proptest! {
    #[test]
    fn no_text_ends_the_detection(text: String) {
        let _ = (kind(&text), read(&text, &Hints::default()));
    }
}
