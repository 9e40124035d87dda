//! Samples that go on until their rate is steady.

use std::time::{Duration, Instant};

use super::{command, folder, measure, measured, scratch, stderr};
use forebay_cli::results::file::{read, samples};

/// Spans of a fifth of a second, which is the shortest that is judged.
const SPANS: [&str; 6] = [
    "--gpu=sim",
    "--block-size=64K",
    "--depth=2",
    "--cache=warm",
    "--time=200ms",
    "--until-steady=1s",
];

#[test]
fn a_sample_goes_on_until_a_span_is_steady_or_time_is_up() {
    let folder = folder();
    let began = Instant::now();
    let output = measure(folder.path(), &[&SPANS[..], &["-o", "results"]].concat());
    let took = began.elapsed();
    let talk = stderr(&output);
    assert!(output.status.success(), "{talk}");
    let records = read(&folder.path().join("results")).unwrap();
    let all: Vec<_> = samples(&records).collect();
    let [(run, sample)] = all.as_slice() else { panic!("{all:?}") };
    assert_eq!(run.asked["until_steady_s"], 1.0);
    let measured = sample.measured.as_ref().unwrap();
    super::check(&sample.point, measured);
    // One span alone counts: no latency is of a call of another, but for those in flight.
    let requests = measured.requests.unwrap();
    let count = measured.latency.unwrap().count.unwrap();
    assert!(count.abs_diff(requests) <= requests / 10 + 64, "{count} of {requests}");
    let seconds = measured.seconds.unwrap();
    assert!(seconds >= 0.2, "{seconds}");
    // A busy machine may have looked too seldom to judge any.
    if let Some(steady) = &measured.steady {
        assert_eq!(steady.reached, steady.slope.abs() <= 0.05, "{steady:?}");
        assert!(steady.before <= 4 && (steady.reached || steady.before == 4), "{steady:?}");
        assert!(took >= Duration::from_millis(200) * (steady.before + 1), "{took:?}: {steady:?}");
        assert_eq!(talk.contains("no steady rate"), !steady.reached, "{talk}");
    }
    assert!(scratch(folder.path()).is_empty());
    // A longer time limit makes it another run.
    let other = [&SPANS[..5], &["--until-steady=2s", "-o", "results"]].concat();
    let again = measure(folder.path(), &other);
    assert!(stderr(&again).contains("results of something else"), "{}", stderr(&again));
}

#[test]
fn a_span_that_nobody_can_judge_or_repeat_is_refused() {
    let folder = folder();
    for (arguments, why) in [
        (&["--time=100ms", "--until-steady=1s"][..], "is too short to be judged"),
        (&["--time=1s", "--until-steady=1900ms"], "no time for a second one"),
        (&["--time=1s", "--until-steady=9s", "--direction=write"], "goes over its files once"),
        (&["--bytes=1M", "--until-steady=9s"], "--until-steady"),
    ] {
        let output = command(folder.path(), arguments).args(["--gpu=none", "--size=8M"]).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(why), "{arguments:?}: {}", stderr(&output));
    }
    // With a part that can go on, the rest has one span.
    let words = ["--time=200ms", "--until-steady=400ms", "--direction=read,write", "-o=results"];
    let more = ["--block-size=64K", "--depth=1", "--gpu=none"];
    let output = measure(folder.path(), &[&words[..], &more].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let records = read(&folder.path().join("results")).unwrap();
    let writes = samples(&records).filter(|(_, sample)| sample.point.read_percent == 0);
    for (_, sample) in writes {
        let steady = sample.measured.as_ref().and_then(|measured| measured.steady.as_ref());
        assert!(steady.is_none_or(|steady| steady.before == 0), "{sample:?}");
    }
    // Without the flag nothing follows.
    for (_, measured) in measured(&["--gpu=none", "--block-size=64K", "--depth=1"]) {
        assert!(measured.steady.is_none_or(|steady| steady.before == 0));
    }
}
