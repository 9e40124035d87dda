//! Layer times as trace events: copies per route, and compute with its stalls.

use std::io::{self, Write};
use std::time::Duration;

use forebay_topology::quoted;

use super::LayerTimes;

/// Tracks, in display order.
const TRACKS: [&str; 4] = ["files", "pinned memory", "pinned pages", "compute"];
const COMPUTE: usize = 3;

/// Writes the times as events, with the layers' names.
pub(super) fn write<'a>(
    layers: &[LayerTimes],
    name: impl Fn(&LayerTimes) -> &'a str,
    out: &mut dyn Write,
) -> io::Result<()> {
    writeln!(out, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    write!(out, "{}", named("process", 0, "layers"))?;
    for (track, title) in TRACKS.iter().enumerate() {
        write!(out, ",\n{}", named("thread", track, title))?;
    }
    for times in layers {
        let name = name(times);
        if times.bytes > 0 {
            let way = if times.pinned { 1 } else { 2 * usize::from(times.mapped) };
            let arguments = format!("\"bytes\":{}", times.bytes);
            write!(out, ",\n{}", span(way, name, (times.began, times.transfer), &arguments))?;
        }
        let arguments = format!("\"position\":{}", times.position);
        if !times.stall.is_zero() {
            let since = times.entered.saturating_sub(times.stall);
            let title = format!("wait for {name}");
            write!(out, ",\n{}", span(COMPUTE, &title, (since, times.stall), &arguments))?;
        }
        write!(out, ",\n{}", span(COMPUTE, name, (times.entered, times.compute), &arguments))?;
    }
    writeln!(out, "\n]}}")
}

fn named(what: &str, track: usize, name: &str) -> String {
    format!(
        "{{\"ph\":\"M\",\"pid\":1,\"tid\":{track},\"name\":\"{what}_name\",\
         \"args\":{{\"name\":{}}}}}",
        quoted(name)
    )
}

fn span(track: usize, name: &str, (at, took): (Duration, Duration), arguments: &str) -> String {
    let micros = |time: Duration| format!("{}.{:03}", time.as_micros(), time.as_nanos() % 1000);
    let (ts, dur, name) = (micros(at), micros(took), quoted(name));
    format!(
        "{{\"ph\":\"X\",\"pid\":1,\"tid\":{track},\"ts\":{ts},\"dur\":{dur},\
         \"name\":{name},\"args\":{{{arguments}}}}}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_and_compute_have_tracks_of_their_own() {
        let (bytes, fresh) = (4096, LayerTimes::default());
        let mut copied = LayerTimes { position: 3, layer: 1, bytes, mapped: true, ..fresh };
        (copied.began, copied.transfer) = (Duration::from_micros(5), Duration::from_micros(10));
        (copied.entered, copied.compute) = (Duration::from_micros(15), Duration::from_micros(7));
        copied.stall = Duration::from_micros(2);
        let there = LayerTimes { position: 4, ..LayerTimes::default() };
        let mut json = Vec::new();
        write(&[copied, there], |times| ["a", "say \"b\""][times.layer], &mut json).unwrap();
        let json = String::from_utf8(json).unwrap();
        let spans: Vec<&str> = json.lines().filter(|line| line.contains("\"X\"")).collect();
        let expected = [
            "\"tid\":2,\"ts\":5.000,\"dur\":10.000,\"name\":\"say \\\"b\\\"\"",
            "\"tid\":3,\"ts\":13.000,\"dur\":2.000,\"name\":\"wait for say \\\"b\\\"\"",
            "\"tid\":3,\"ts\":15.000,\"dur\":7.000,\"name\":\"say \\\"b\\\"\"",
            "\"tid\":3,\"ts\":0.000,\"dur\":0.000,\"name\":\"a\"",
        ];
        assert_eq!(spans.len(), expected.len(), "{json}");
        for (span, expected) in spans.iter().zip(expected) {
            assert!(span.contains(expected), "{span}: {expected}");
        }
    }
}
