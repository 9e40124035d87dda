//! The import of gdsio's lines.

use forebay_measure::results::Sample;
use proptest::prelude::*;

use super::super::map::Axes;
use super::*;

/// A line of gdsio 1.1 that is published.
const PUBLISHED: &str = "IoType: WRITE XferType: GPUD Threads: 4 DataSetSize: 4156416/4194304(KiB) \
                         IOSize: 1024(KiB) Throughput: 1.049312 GiB/sec, Avg_Latency: 3721.307952 \
                         usecs ops: 4059 total_time 3.777586 secs";

fn parse(text: &str) -> Result<Contents, String> {
    let mut contents = Contents::new("gdsio", &Axes::default());
    super::parse(text, &mut contents).map(|()| contents)
}

fn one(line: &str) -> Sample {
    let mut contents = parse(line).unwrap();
    assert_eq!((contents.found.len(), contents.warnings().len()), (1, 0), "{contents:?}");
    contents.found.remove(0).0
}

#[test]
fn results_that_a_log_joined_or_wrapped_are_read() {
    let at = PUBLISHED.find("GiB/sec").unwrap();
    let wrapped = format!("{}\n{}", &PUBLISHED[..at], &PUBLISHED[at..]);
    assert_eq!(one(&wrapped).measured, one(PUBLISHED).measured);
    let contents = parse(&format!("{PUBLISHED} {PUBLISHED}\nnext\n{wrapped}")).unwrap();
    assert_eq!((contents.found.len(), contents.warnings().len()), (3, 0), "{contents:?}");
    // Other lines end a result, even if its last keys follow them.
    let cut = PUBLISHED.find("Avg_Latency:").unwrap();
    let contents = parse(&format!("{}\nnext\n{}", &PUBLISHED[..cut], &PUBLISHED[cut..])).unwrap();
    assert_eq!(contents.found.len(), 1);
    assert_eq!(contents.found[0].0.measured.as_ref().unwrap().latency, None);
}

#[test]
fn every_number_of_a_line_is_taken_in_its_unit() {
    let Sample { point, measured, .. } = one(PUBLISHED);
    let measured = measured.unwrap();
    assert_eq!((point.method.as_str(), point.read_percent), ("cufile", 0));
    assert_eq!((point.pattern.as_str(), point.request_size), ("sequential", 1 << 20));
    assert_eq!((point.threads, point.depth, point.batch, point.files), (4, 1, 1, 0));
    assert_eq!((point.targets, point.cache), (vec!["gpu".to_owned()], None));
    assert_eq!((measured.bytes, measured.requests), (Some(4_156_416 << 10), Some(4059)));
    assert!((measured.seconds.unwrap() - 3.777_586).abs() < 1e-9);
    assert!((measured.bytes_per_second / 1.126_690e9 - 1.0).abs() < 1e-6, "{measured:?}");
    assert!((measured.requests_per_second.unwrap() / 1074.496 - 1.0).abs() < 1e-5);
    let latency = measured.latency.unwrap();
    assert!((latency.mean_ns.unwrap() / 3_721_307.952 - 1.0).abs() < 1e-9);
    assert_eq!((latency.p99_ns, latency.count), (None, None));
    // It reports the requested route, not the actual one.
    assert_eq!((measured.verdict, measured.route, measured.verified), (None, None, None));
}

#[test]
fn each_type_has_the_name_of_the_call_that_it_makes() {
    let methods: Vec<String> = Transfer::all()
        .map(|known| one(&PUBLISHED.replace("GPUD", known.label())).point.method)
        .collect();
    insta::assert_snapshot!(
        methods.join("\n"),
        @"
    cufile
    cpu
    cpu-gpu
    cpu-async-gpu
    cpu-cached-gpu
    cufile-async
    cufile-batch
    cufile-batch-stream
    "
    );
    assert!(methods.iter().all(|method| !method.contains("direct") && !method.contains("dma")));
    let of = |label: &str| one(&PUBLISHED.replace("GPUD", label)).point;
    assert_eq!(of("CPUONLY").targets, ["host"]);
    assert_eq!(
        (of("ASYNC").method.as_str(), of("NEW_ONE").method.as_str()),
        ("cufile-async", "NEW_ONE")
    );
}

#[test]
fn a_batch_has_its_depth_and_no_latency_of_its_requests() {
    let line = PUBLISHED.replace("GPUD Threads: 4", "GPU_BATCH Threads: 1 IoDepth: 32");
    let Sample { point, measured, .. } = one(&line.replace("WRITE", "RANDREAD"));
    assert_eq!((point.batch, point.depth, point.threads), (32, 1, 1));
    assert_eq!((point.read_percent, point.pattern.as_str()), (100, "random"));
    assert_eq!(measured.unwrap().latency, None);
}

#[test]
fn a_log_with_errors_verified_reads_and_cut_lines_is_read_as_far_as_it_goes() {
    let read = PUBLISHED.replace("WRITE", "READ");
    let text = format!(
        "Nov 21 10:00:00 node7 bench[12]: {PUBLISHED}\nVerifying data\n{read}\nVerifying data \
         {read}\r\n{read}\ncuFileRead failed: -5\n{}\n{}\n",
        &PUBLISHED[..100],
        PUBLISHED.replace("WRITE", "SCRIBBLE"),
    );
    let contents = parse(&text).unwrap();
    let methods: Vec<&str> =
        contents.found.iter().map(|(sample, _)| sample.point.method.as_str()).collect();
    assert_eq!(methods, ["cufile", "cufile-verify", "cufile-verify", "cufile"]);
    insta::assert_snapshot!(contents.warnings().join("\n"), @"
    line 6: gdsio reported: cuFileRead failed: -5
    line 7: left out: it has no throughput, and no numbers that give one
    line 8: left out: `SCRIBBLE` is not a known `IoType`
    ");
}

#[test]
fn a_range_of_sizes_is_no_size_and_absurd_numbers_are_none() {
    let ranged = one(&PUBLISHED.replace("1024(KiB)", "4-64-4(KiB)")).point;
    assert_eq!(ranged.request_size, 0);
    for absurd in ["99999999999999", "0.000000"] {
        let contents = parse(&PUBLISHED.replace("1.049312", absurd)).unwrap();
        assert_eq!((contents.found.len(), contents.warnings().len()), (0, 1), "{absurd}");
    }
    // Without a throughput it follows from the bytes and the time.
    for absurd in ["nan", "-1.0", "1e400", "inf"] {
        let measured = one(&PUBLISHED.replace("1.049312", absurd)).measured.unwrap();
        assert!((measured.bytes_per_second / 1.126_690e9 - 1.0).abs() < 1e-6, "{absurd}");
    }
    let huge = PUBLISHED
        .replace("3721.307952", "1e300")
        .replace("4059", "99999999999999999999")
        .replace("Threads: 4", "Threads: 99999999999");
    let Sample { point, measured, .. } = one(&huge);
    let measured = measured.unwrap();
    assert_eq!((measured.latency, measured.requests, point.threads), (None, None, 0));
}

/// The output of our own command can be imported.
#[test]
fn other_units_are_known_by_their_names() {
    let other = PUBLISHED.replace("1.049312 GiB/sec", "1074.495 MiB/s");
    let rate = |line: &str| one(line).measured.unwrap().bytes_per_second;
    assert!((rate(&other) / rate(PUBLISHED) - 1.0).abs() < 1e-4);
    let line = PUBLISHED.replace("GiB/sec", "furlongs").replace("total_time", "time");
    assert_eq!(parse(&line).unwrap().found, []);
    let sizes = ["64(KiB)", "2(MiB)", "1(GiB)", "7(x)", "7", "(KiB)"].map(sized);
    assert_eq!(sizes, [Some(65536.0), Some(2_097_152.0), Some(1_073_741_824.0), None, None, None]);
}

proptest! {
    #[test]
    fn no_text_ends_the_command(text: String, cut in 0..220_usize) {
        parse(&text).unwrap();
        parse(&format!("{text}{}{text}", &PUBLISHED[..cut.min(PUBLISHED.len())])).unwrap();
        parse(&format!("IoType: {text} XferType: {text} Throughput: {text}")).unwrap();
    }
}
