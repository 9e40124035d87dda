//! The import of fio's output: as fio 3.33 printed it, and possible variants.

use std::path::Path;

use forebay_measure::results::Cache;
use forebay_measure::results::{Measured, Point, Record, Sample};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::map::Axes;
use super::super::row::Settings;
use super::*;

const RANDOM: &str = include_str!("../../../../tests/import/fio/random.json");
const CLONES: &str = include_str!("../../../../tests/import/fio/clones.json");
const CLIENT: &str = include_str!("../../../../tests/import/fio/client.txt");
const FULL: &str = include_str!("../../../../tests/import/fio/full.txt");

fn parse(text: &str) -> Result<Contents, String> {
    let mut contents = Contents::new("fio", &Axes::default());
    super::parse(text, &mut contents).map(|()| contents)
}

fn shown(found: &(Sample, Settings)) -> &Measured {
    found.0.measured.as_ref().unwrap()
}

#[test]
fn a_job_is_a_point_with_what_fio_measured() {
    let contents = parse(RANDOM).unwrap();
    assert_eq!((contents.version.as_deref(), contents.found.len()), (Some("3.33"), 1));
    assert_eq!(contents.warnings(), Vec::<String>::new());
    let found = &contents.found[0];
    let point = &found.0.point;
    assert!(found.0.unix_time > 1.7e9);
    assert_eq!((point.method.as_str(), point.path.as_str()), ("fio-libaio", "data"));
    assert_eq!((point.read_percent, point.pattern.as_str()), (100, "random"));
    assert_eq!((point.request_size, point.depth, point.batch), (4096, 8, 1));
    assert_eq!((point.threads, point.files, point.cache), (1, 1, Some(Cache::Cold)));
    assert_eq!(point.targets, ["host"]);
    let measured = shown(found);
    assert_eq!((measured.bytes, measured.requests), (Some(4 << 20), Some(1024)));
    assert!((measured.seconds.unwrap() - 0.034).abs() < 1e-12);
    assert_eq!(measured.bytes_per_second, 123_361_882.0);
    assert!((measured.requests_per_second.unwrap() - 30_117.647).abs() < 1e-3);
    let latency = measured.latency.unwrap();
    assert_eq!((latency.p50_ns, latency.p90_ns), (Some(138_240), Some(177_152)));
    assert_eq!((latency.p99_ns, latency.p99_9_ns), (Some(3_686_400), Some(5_144_576)));
    assert_eq!((latency.mean_ns, latency.max_ns), (Some(252_059.849_609), Some(5_172_752)));
    // 24.242424 % of 33 ms of one thread.
    let cpu = measured.cpu.unwrap();
    assert!((cpu.user_s - 0.008).abs() < 1e-6 && cpu.system_s == 0.0, "{cpu:?}");
    assert!((cpu.cores - 0.008 / 0.034).abs() < 1e-6, "{cpu:?}");
    assert!((cpu.s_per_gb.unwrap() - 0.008 / 0.004_194_304).abs() < 1e-3);
    assert_eq!((&measured.verdict, measured.verified, &measured.route), (&None, None, &None));
}

#[test]
fn clones_and_both_directions_of_a_job_are_one_measurement() {
    let contents = parse(CLONES).unwrap();
    let [large, clones, mixed] = contents.found.as_slice() else { panic!("{contents:?}") };
    assert_eq!((large.0.point.request_size, large.0.point.threads), (256 << 10, 1));
    // Options of the global section apply to each.
    assert_eq!(
        (large.0.point.method.as_str(), large.0.point.path.as_str()),
        ("fio-io_uring", "data")
    );
    assert_eq!((clones.0.point.threads, clones.0.point.depth), (2, 2));
    let measured = shown(clones);
    // 1 MiB each, in 4 and in 11 ms.
    assert_eq!((measured.bytes, measured.requests), (Some(2 << 20), Some(128)));
    assert!((measured.seconds.unwrap() - 0.011).abs() < 1e-12);
    assert!((measured.bytes_per_second - 2_097_152.0 / 0.011).abs() < 1.0);
    // Percentiles cannot be merged.
    let latency = measured.latency.unwrap();
    assert!(latency.mean_ns.unwrap() > 0.0 && latency.max_ns.is_some(), "{latency:?}");
    assert_eq!((latency.p50_ns, latency.p99_ns), (None, None));
    assert!(contents.warnings().concat().contains("without percentiles"), "{contents:?}");
    assert_eq!((mixed.0.point.read_percent, mixed.0.point.threads), (70, 2));
    let measured = shown(mixed);
    assert_eq!((measured.requests, measured.bytes), (Some(85 + 43), Some(2 << 20)));
    assert_eq!(measured.latency.unwrap().p50_ns, None);
}

#[test]
fn a_servers_job_and_a_failed_one_are_read_after_text_of_fio() {
    let contents = parse(CLIENT).unwrap();
    let [far] = contents.found.as_slice() else { panic!("{contents:?}") };
    // It was over before its processor time was counted.
    assert_eq!(shown(far).cpu, None);
    assert_eq!((far.0.point.path.as_str(), far.0.point.request_size), ("data", 64 << 10));
    assert_eq!(far.0.point.depth, 4);
    let contents = parse(FULL).unwrap();
    let [full] = contents.found.as_slice() else { panic!("{contents:?}") };
    let error = full.0.error.as_ref().unwrap();
    assert!(error.contains("no space left on device"), "{error}");
    assert_eq!(full.0.point.path, "small");
    assert!(contents.warnings()[0].starts_with("line 1: fio reported: fio: io_u error on file"));
}

fn job(options: Value, read: Value) -> Value {
    json!({"jobname": options["name"], "groupid": 0, "error": 0, "job options": options,
        "read": read, "usr_cpu": 1.0, "sys_cpu": 2.0, "job_runtime": 1000})
}

fn moved(count: u64) -> Value {
    json!({"io_bytes": count * 4096, "bw_bytes": 5e6, "iops": 1000.0, "runtime": 1000,
        "total_ios": count, "clat_ns": {"mean": 1e5, "max": 2e5, "N": count}})
}

/// The text of an object whose job options are as fio prints them: in order, with repeats.
fn with_options(global: &[(&str, &str)], own: &[(&str, &str)], size: u64) -> String {
    let options = |options: &[(&str, &str)]| {
        let pairs: Vec<String> =
            options.iter().map(|(key, of)| format!("\"{key}\":\"{of}\"")).collect();
        format!("{{{}}}", pairs.join(","))
    };
    let mut job = job(json!("own"), moved(10));
    job["read"]["io_bytes"] = (10 * size).into();
    let text = json!({"fio version": "fio-3.33", "global options": "global", "jobs": [job]});
    let text = text.to_string().replace(":\"global\"", &format!(":{}", options(global)));
    text.replace(":\"own\"", &format!(":{}", options(own)))
}

fn point_of(global: &[(&str, &str)], own: &[(&str, &str)], size: u64) -> Point {
    parse(&with_options(global, own, size)).unwrap().found.remove(0).0.point
}

#[test]
fn an_option_that_repeats_is_what_fio_makes_of_it() {
    // fio appends files, also those of a job to the global ones.
    let files = [("filename", "a"), ("filename", "b:c"), ("nrfiles", "2")];
    let point = point_of(&[("filename", "all")], &files, 4096);
    assert_eq!((point.path.as_str(), point.files), ("all:a:b:c", 4));
    let point = point_of(&[("filename", "all")], &[], 4096);
    assert_eq!((point.path.as_str(), point.files), ("all", 1));
    // For other options the last one counts, by any of its names.
    let point = point_of(
        &[("bs", "1k"), ("rw", "read")],
        &[("bs", "8k"), ("blocksize", "16k"), ("readwrite", "randread"), ("bs", "64k")],
        65_536,
    );
    assert_eq!((point.request_size, point.pattern.as_str()), (64 << 10, "random"));
    for (options, cache) in [
        ([("direct", "1"), ("buffered", "1")], None),
        ([("buffered", "1"), ("direct", "1")], Some(Cache::Cold)),
        ([("direct", "0"), ("buffered", "0")], Some(Cache::Cold)),
    ] {
        assert_eq!(point_of(&[], &options, 4096).cache, cache, "{options:?}");
    }
}

#[test]
fn a_size_in_units_of_another_meaning_is_unknown() {
    for options in [[("kb_base", "1000"), ("bs", "64k")], [("bsrange", "4k-64k"), ("bs", "64k")]] {
        let contents = parse(&with_options(&[], &options, 64_000)).unwrap();
        assert_eq!(contents.found[0].0.point.request_size, 0, "{options:?}");
        assert!(contents.warnings()[0].contains("no single block size"), "{contents:?}");
    }
}

#[test]
fn a_field_that_is_no_number_is_missing() {
    let text = RANDOM.replacen("\"iops_mean\" : ", "\"iops_mean\" : -nan,\n\"x\" : ", 1);
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let at = |lines: &[String], key: &str| {
        let key = format!("\"{key}\" :");
        lines.iter().position(|line| line.trim_start().starts_with(&key)).unwrap()
    };
    for (key, value) in [("usr_cpu", "inf"), ("bw_dev", "nan"), ("iops", "-nan")] {
        let at = at(&lines, key);
        let end = if lines[at].ends_with(',') { "," } else { "" };
        lines[at] = format!("\"{key}\" : {value}{end}");
    }
    let contents = parse(&lines.join("\n")).unwrap();
    let measured = shown(&contents.found[0]);
    assert_eq!((measured.requests, measured.cpu), (Some(1024), None));
    assert_eq!(contents.warnings(), Vec::<String>::new());
}

#[test]
fn text_next_to_json_is_skipped_and_a_stop_is_reported() {
    let text = with_options(&[("bs", "4k")], &[], 4096);
    let pretty = text.replacen('{', "{\n  ", 1);
    for before in ["", "note: a line without an end ", "a brace { and more "] {
        for text in [&text, &pretty] {
            let contents = parse(&format!("{before}{text}")).unwrap();
            assert_eq!((contents.found.len(), contents.warnings().len()), (1, 0), "{before}");
        }
    }
    let contents = parse(&format!("\nfio: terminating on signal 2\n{text}")).unwrap();
    let text = "line 2: fio was stopped by signal 2: its jobs did not finish";
    assert_eq!((contents.found.len(), contents.warnings()), (1, vec![text.to_owned()]));
}

fn of(jobs: &[Value]) -> Contents {
    parse(&json!({"fio version": "fio-3.40-dirty", "jobs": jobs}).to_string()).unwrap()
}

#[test]
fn options_say_where_a_job_lies() {
    let of = |options: Value| of(&[job(options, moved(10))]).found.remove(0).0.point;
    let gpu = of(json!({"name": "g", "ioengine": "libcufile", "gpu_dev_ids": "0:2",
        "cuda_io": "cufile", "iodepth": "32", "bsrange": "4k-64k", "directory": "/data"}));
    assert_eq!(
        (gpu.method.as_str(), gpu.targets),
        ("fio-libcufile", vec!["cuda:0".to_owned(), "cuda:2".into()])
    );
    // It has one request in flight, whatever depth was set; a range is no size.
    assert_eq!((gpu.depth, gpu.request_size, gpu.path.as_str()), (1, 0, "/data"));
    let posix = of(json!({"name": "g", "ioengine": "libcufile", "cuda_io": "posix"}));
    assert_eq!(
        (posix.method.as_str(), posix.targets),
        ("fio-libcufile-posix", vec!["gpu".to_owned()])
    );
    let bare = of(json!({"name": "b"}));
    assert_eq!((bare.method.as_str(), bare.request_size, bare.depth), ("fio-psync", 4096, 1));
    assert_eq!((bare.cache, bare.path.as_str(), bare.pattern.as_str()), (None, "", "sequential"));
    assert_eq!(of(json!({"name": "b", "buffered": "0"})).cache, Some(Cache::Cold));
    assert_eq!(of(json!({"name": "m", "rw": "randrw", "rwmixwrite": "20"})).read_percent, 80);
    let mut writes = job(json!({"rw": "write:8k"}), moved(0));
    writes["write"] = moved(10);
    assert_eq!(self::of(&[writes]).found[0].0.point.read_percent, 0);
    // Colons separate files.
    assert_eq!(of(json!({"filename": "f:g:h", "nrfiles": "2"})).files, 3);
    assert_eq!(of(json!({"filename": "f\\:g"})).files, 1);
}

#[test]
fn an_input_with_several_measurements_is_reported() {
    let a = json!({"name": "a", "fsync": "1"});
    let (with, without) = (job(a, moved(10)), job(json!({"name": "b"}), moved(9)));
    let contents = of(&[with, without.clone(), job(json!({"name": "c"}), moved(0))]);
    assert_eq!(contents.found.len(), 2);
    let text = contents.warnings().join("\n");
    assert!(
        text.contains("ran at the same time") && text.contains("`c` is left out: it moved nothing"),
        "{text}"
    );
    // Each server has its own entry, and their sum is not a further one.
    let mut hosts: Vec<Value> = ["x", "y"]
        .map(|host| {
            let mut job = without.clone();
            job["hostname"] = host.into();
            job
        })
        .into();
    hosts.push(json!({"jobname": "All clients", "read": moved(18)}));
    let text = json!({"fio version": "fio-3.33", "client_stats": hosts}).to_string();
    let contents = parse(&text).unwrap();
    assert_eq!(methods(contents), ["fio-psync (hostname=x)", "fio-psync (hostname=y)"]);
    // Several outputs in one file.
    let later = RANDOM.replace("1795319119", "1795319219");
    let twice = format!("{RANDOM}noise\nfio: error in the middle\n{later}");
    let contents = parse(&twice).unwrap();
    assert_eq!((contents.found.len(), contents.warnings().len()), (2, 1));
}

/// The methods of all measurements.
fn methods(contents: Contents) -> Vec<String> {
    let records = contents.records(Path::new("fio.json")).into_iter();
    let method = |record| match record {
        Record::Sample(sample) => Some(sample.point.method),
        _ => None,
    };
    records.filter_map(method).collect()
}

#[test]
fn damaged_json_is_refused_with_its_line() {
    let why = |text: &str| parse(text).unwrap_err();
    assert!(why(&RANDOM[..RANDOM.len() / 2]).contains("its JSON is truncated"));
    assert!(
        why(&format!("one\n{}", RANDOM.replace("\"groupid\" :", "groupid :")))
            .starts_with("line 10: key")
    );
    for text in ["IoType: READ", "\"fio version\"", "{}"] {
        assert!(why(text).contains("no JSON object with a"), "{text}");
    }
    let old = RANDOM.replace("fio-3.33", "fio-2.21");
    assert_eq!(why(&old), "line 1: it is of fio 2.21, and only 3 or newer is read");
    assert!(why("{\"fio version\": \"x\"}").contains("neither `jobs` nor"));
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    let holds = |rest: &str| format!("{{\"fio version\": \"x\", \"jobs\": [{{{rest}}}]}}");
    let read = why(&holds(&format!("\"job options\": {{\"x\": {deep}}}")));
    assert!(read.contains("recursion limit"), "{read}");
    // A value that is not read takes no stack.
    assert_eq!(parse(&holds(&format!("\"x\": {deep}"))).unwrap().found, []);
    // Many small objects take only linear time.
    let small = "{\"fio version\":\"x\",\"jobs\":[]}\n".repeat(30_000);
    assert_eq!(parse(&small).unwrap().found, []);
    let many = format!("{{\"fio version\":\"x\",\"jobs\":[{}{{}}]}}", "{},".repeat(JOBS_MAX));
    assert!(why(&many).contains("more than 20000 jobs"));
    // A value that is not a number is absent.
    let mut odd = job(json!({"name": "\u{1b}[2J", "bs": "-4k", "numjobs": "1e9"}), moved(3));
    odd["read"]["runtime"] = (-5).into();
    odd["read"]["clat_ns"]["max"] = 1e300.into();
    odd["usr_cpu"] = (-3.0).into();
    let found = of(&[odd]).found.remove(0);
    let (measured, point) = (shown(&found), &found.0.point);
    assert_eq!((measured.seconds, measured.cpu), (None, None));
    assert_eq!((measured.latency.unwrap().max_ns, point.request_size), (None, 0));
    assert!(!found.1["name"].contains('\u{1b}'), "{:?}", found.1);
}

/// An object as fio writes it after so many seconds, from a beginning at 1,000 s.
fn after(seconds: u64, begin: u64) -> String {
    let mut job = job(json!({"name": "a"}), moved(1000 * seconds));
    job["read"]["runtime"] = (1000 * seconds).into();
    job["job_runtime"] = (1000 * seconds).into();
    let now = begin + seconds;
    let value = json!({"fio version": "fio-3.33", "timestamp_ms": now * 1000, "jobs": [job]});
    value.to_string() + "\n"
}

#[test]
fn interim_results_are_no_repeats() {
    let one: String = [1, 2, 3].map(|s| after(s, 1000)).concat();
    let contents = parse(&one).unwrap();
    assert_eq!(contents.found.len(), 1);
    assert_eq!(shown(&contents.found[0]).requests, Some(3000));
    assert!(contents.warnings()[0].starts_with("2 interim results"), "{contents:?}");
    // Consecutive runs are repeats, each with its own last report.
    let two = one + &[1, 3].map(|s| after(s, 1003)).concat();
    let contents = parse(&two).unwrap();
    assert_eq!(contents.found.len(), 2);
    assert!(contents.warnings()[0].starts_with("3 interim results"), "{contents:?}");
    let other = after(5, 1001).replace("\"a\"", "\"b\"");
    assert_eq!(parse(&(after(3, 1000) + &other)).unwrap().found.len(), 2);
}

#[test]
fn latencies_without_a_number_of_requests_cover_all() {
    // Until fio 3.16.
    let of = |read: Value| {
        let job = job(json!({"name": "a"}), read);
        let text = json!({"fio version": "fio-3.16", "jobs": [job]}).to_string();
        parse(&text).unwrap().found.remove(0)
    };
    let mut read = moved(100);
    read["clat_ns"] = json!({"min": 1, "max": 900, "mean": 100.5, "percentile": {"50.000000": 90}});
    read["lat_ns"] = json!({"min": 2, "max": 950, "mean": 120.5, "stddev": 1.0});
    assert_eq!(shown(&of(read.clone())).latency.unwrap().p50_ns, Some(90));
    // An unmeasured latency is not a latency of 0.
    read["clat_ns"] = json!({"min": 0, "max": 0, "mean": 0.0, "stddev": 0.0});
    read["lat_ns"] = read["clat_ns"].clone();
    assert_eq!(shown(&of(read)).latency, None);
}

#[test]
fn several_jobs_reported_as_one_have_unknown_settings() {
    let alone = |change: &dyn Fn(&mut Value)| {
        let mut job = job(json!({"name": "a", "rw": "read", "bs": "4k"}), moved(1000));
        change(&mut job);
        let contents = of(&[job]);
        (contents.found[0].0.point.clone(), contents.warnings())
    };
    let (point, warnings) = alone(&|_| {});
    assert_eq!((point.method.as_str(), warnings.len()), ("fio-psync", 0));
    let changes: [&dyn Fn(&mut Value); 3] = [
        &|job| job["write"] = moved(500),
        &|job| job["read"]["io_bytes"] = (1000 * 5000).into(),
        &|job| job["job_runtime"] = 9000.into(),
    ];
    for change in changes {
        let (point, warnings) = alone(change);
        assert_eq!(point.method, "fio (several jobs)");
        assert_eq!((point.request_size, point.depth, point.threads), (0, 0, 0));
        assert_eq!((point.pattern.as_str(), warnings.len()), ("", 1));
        assert!(warnings[0].contains("`group_reporting`"), "{warnings:?}");
    }
    // Written bytes may be read back.
    let (point, _) = alone(&|job| {
        job["job options"] = json!({"rw": "write", "verify": "crc32c"});
        job["write"] = moved(1000);
    });
    assert_eq!(point.method, "fio-psync");
}

#[test]
fn both_directions_as_one_are_counted_once() {
    let mut both = job(json!({"rw": "randrw", "unified_rw_reporting": "both"}), moved(70));
    both["write"] = moved(30);
    both["mixed"] = moved(100);
    let found = of(&[both]).found.remove(0);
    assert_eq!((shown(&found).requests, shown(&found).bytes), (Some(100), Some(409_600)));
    let mut writes = job(json!({"rw": "randwrite", "unified_rw_reporting": "1"}), Value::Null);
    writes["mixed"] = moved(100);
    let point = of(&[writes]).found.remove(0).0.point;
    assert_eq!((point.method.as_str(), point.read_percent), ("fio-psync", 0));
}

#[test]
fn options_without_an_axis_separate_jobs() {
    let methods = |first: Value, second: Value| {
        let mut both = of(&[job(first, moved(9))]);
        both.found.extend(of(&[job(second, moved(9))]).found);
        methods(both)
    };
    let apart = methods(json!({"name": "a", "fsync": "1"}), json!({"name": "a"}));
    assert_eq!(apart, ["fio-psync (fsync=1)", "fio-psync (no fsync)"]);
    let apart = methods(json!({"name": "a"}), json!({"name": "b"}));
    assert_eq!(apart, ["fio-psync (name=a)", "fio-psync (name=b)"]);
    let same = methods(json!({"name": "a", "runtime": "1"}), json!({"name": "a", "runtime": "2"}));
    assert_eq!(same, ["fio-psync", "fio-psync"]);
}

#[test]
fn a_job_without_errors_has_no_warning() {
    let people = "a: (groupid=0, jobs=1): err= 0: pid=7\nb: (groupid=0, jobs=1): err= 5: pid=8\n";
    let contents = parse(&format!("{RANDOM}{people}")).unwrap();
    assert_eq!(contents.warnings().len(), 1);
    assert!(contents.warnings()[0].contains("err= 5"), "{:?}", contents.warnings());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_text_ends_the_command(text: String, cut: prop::sample::Index, wrong: String) {
        let _ = parse(&text);
        let _ = parse(&RANDOM[..cut.index(RANDOM.len())]);
        let _ = parse(&RANDOM.replace("4k", &wrong.replace(['"', '\\'], "")));
        for key in ["runtime", "io_bytes", "jobname", "read", "N", "percentile", "error"] {
            let (name, odd) = (format!("\"{key}\" :"), format!("\"{key}\" : 1e308, \"x\" :"));
            let _ = parse(&RANDOM.replacen(&name, &odd, 3));
        }
    }
}

/// The text of a job that wrote, and read back what it had written.
fn verified(options: &[(&str, &str)], writes: u64, reads: u64) -> String {
    let text = with_options(&[], options, 4096);
    let mut output: Value = serde_json::from_str(&text).unwrap();
    output["jobs"][0]["read"] = moved(reads);
    output["jobs"][0]["write"] = moved(writes);
    output.to_string()
}

#[test]
fn reads_that_verify_are_no_part_of_a_write() {
    for order in ["write", "randwrite"] {
        let text = verified(&[("rw", order), ("verify", "crc32c"), ("bs", "4k")], 10, 10);
        let contents = parse(&text).unwrap();
        let [one] = contents.found.as_slice() else { panic!("{contents:?}") };
        assert_eq!((one.0.point.read_percent, shown(one).bytes), (0, Some(40960)));
        assert_eq!((shown(one).requests, shown(one).cpu), (Some(10), None));
        assert_eq!(contents.warnings(), Vec::<String>::new());
    }
    let only = verified(&[("rw", "write"), ("verify", "crc32c"), ("verify_only", "1")], 0, 10);
    assert_eq!(parse(&only).unwrap().found[0].0.point.read_percent, 100);
    let mixed = parse(&verified(&[("rw", "randrw"), ("verify", "md5")], 10, 20)).unwrap();
    assert!(mixed.found.is_empty() && mixed.warnings()[0].contains("are counted together"));
    let none = parse(&verified(&[("rw", "randrw"), ("verify", "0")], 10, 20)).unwrap();
    assert_eq!(shown(&none.found[0]).requests, Some(30));
}

/// Other programs write what they have read without spaces.
#[test]
fn values_that_json_lacks_are_missing_in_any_layout() {
    for value in ["NaN", "-Infinity", "Infinity", "-nan", "inf"] {
        let mut output: Value = serde_json::from_str(&with_options(&[], &[], 4096)).unwrap();
        output["jobs"][0]["usr_cpu"] = "HERE".into();
        output["jobs"][0]["jobname"] = "is: NaN".into();
        for text in [output.to_string(), serde_json::to_string_pretty(&output).unwrap()] {
            let contents = parse(&text.replace("\"HERE\"", value)).unwrap();
            assert_eq!(contents.found.len(), 1, "{value}");
        }
    }
}

#[test]
fn a_trim_is_no_read_and_no_write() {
    for order in ["trim", "trimwrite", "randtrim"] {
        let contents = parse(&with_options(&[], &[("rw", order)], 4096)).unwrap();
        assert!(contents.found.is_empty() && contents.warnings()[0].contains("it trims"));
    }
    let mut output: Value = serde_json::from_str(&with_options(&[], &[], 4096)).unwrap();
    output["jobs"][0]["trim"] = moved(3);
    assert!(parse(&output.to_string()).unwrap().warnings()[0].contains("it trims"));
    output["jobs"][0]["error"] = 5.into();
    output["jobs"][0]["job options"]["rw"] = "trim".into();
    assert!(parse(&output.to_string()).unwrap().found.is_empty());
}

#[test]
fn options_that_cannot_be_read_are_unknown_and_not_one() {
    let number = |name: &str, value: &str| {
        point_of(&[], &[("ioengine", "libaio"), ("bs", "4k"), (name, value)], 4096)
    };
    assert_eq!(number("iodepth", "0x10").depth, 16);
    assert_eq!(number("iodepth", "lots").depth, 0);
    assert_eq!((number("numjobs", "0x2").threads, number("numjobs", "x").threads), (2, 0));
    assert_eq!((number("nrfiles", "0x4").files, number("nrfiles", "x").files), (4, 0));
    for unknown in [json!(null), json!({})] {
        let mut output: Value = serde_json::from_str(&with_options(&[], &[], 4096)).unwrap();
        output["jobs"][0]["job options"] = unknown;
        output.as_object_mut().unwrap().remove("global options");
        if output["jobs"][0]["job options"].is_null() {
            output["jobs"][0].as_object_mut().unwrap().remove("job options");
        }
        let contents = parse(&output.to_string()).unwrap();
        let point = &contents.found[0].0.point;
        assert_eq!((point.method.as_str(), point.pattern.as_str()), ("fio", ""));
        assert_eq!((point.request_size, point.depth, point.threads, point.files), (0, 0, 0, 0));
        assert!(contents.warnings()[0].contains("no `job options`"), "{contents:?}");
    }
}
