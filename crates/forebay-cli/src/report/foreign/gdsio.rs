//! The result lines of gdsio in its output or in a log, whatever text surrounds them.
//!
//! gdsio names the requested route, and proves nothing about the actual one: bytes that it calls
//! direct may have gone through cuFile's compat mode. So its types become names of calls, not of
//! routes.

use forebay::units::{GIB, KIB, MIB};

use super::found::{
    self, Beside, Contents, Found, axis, count, mean_latency, nanoseconds, number, short,
};
use crate::gdsio::words::Transfer;
use crate::results::{Measured, Point};

/// The text before a line that reads back written data.
const VERIFYING: &str = "verifying data";
/// The minimum keys of a result line.
const MARKS: [&str; 2] = ["IoType:", "XferType:"];
/// How far a throughput may be from bytes over time, as a share of it.
const APART_MAX: f64 = 0.05;

/// The fields of a line.
#[derive(Debug, Default)]
struct Told<'a> {
    io: &'a str,
    transfer: &'a str,
    threads: Option<f64>,
    depth: Option<f64>,
    /// Bytes that were moved.
    bytes: Option<f64>,
    request_size: Option<f64>,
    /// Bytes per second.
    rate: Option<f64>,
    latency_ns: Option<f64>,
    ops: Option<f64>,
    seconds: Option<f64>,
}

/// Parses gdsio's output.
///
/// # Errors
/// It holds too much.
pub(super) fn parse(text: &str) -> Result<Contents, String> {
    let mut contents = Contents::default();
    let mut verifies = false;
    for (number, line) in (1..).zip(text.lines()) {
        let Some(begin) = begin_of(line) else {
            let lower = line.to_lowercase();
            if lower.contains(VERIFYING) {
                verifies = true;
            } else if lower.contains("error") || lower.contains("fail") {
                contents.warn(number, &format!("gdsio reported: {}", short(line)));
            }
            continue;
        };
        // Both may be in one line.
        let verified = verifies || line[..begin].to_lowercase().contains(VERIFYING);
        verifies = false;
        match measured(&line[begin..], verified) {
            Ok((point, measured, doubt)) => {
                doubt.iter().for_each(|doubt| contents.warn(number, doubt));
                let measured = Ok(measured);
                let beside = Beside::default();
                contents.add(Found { line: number, point, unix_time: 0.0, measured, beside })?;
            }
            Err(why) => contents.warn(number, &format!("left out: {why}")),
        }
    }
    Ok(contents)
}

/// The start of a result in a line, after any log prefix.
pub(super) fn begin_of(line: &str) -> Option<usize> {
    MARKS.iter().all(|mark| line.contains(mark)).then(|| line.find(MARKS[0]))?
}

/// The point and the numbers of a line, and a doubt about them.
fn measured(line: &str, verified: bool) -> Result<(Point, Measured, Option<String>), String> {
    let told = told(line);
    let (read_percent, pattern) = match told.io {
        "READ" => (100, "sequential"),
        "WRITE" => (0, "sequential"),
        "RANDREAD" => (100, "random"),
        "RANDWRITE" => (0, "random"),
        other => return Err(format!("`{}` is not a known `IoType`", short(other))),
    };
    let rate = told.rate.and_then(found::rate).ok_or("it has no throughput")?;
    let (way, host, batch) = way(told.transfer);
    let mut point = found::point(way, read_percent);
    if verified {
        // Comparing costs time, so this is not an ordinary read.
        point.way.push_str("-verify");
    }
    point.pattern = pattern.into();
    point.targets = vec![if host { "host" } else { "gpu" }.into()];
    point.request_size = told.request_size.and_then(count).unwrap_or_default();
    point.threads = axis(told.threads);
    (point.depth, point.batch) = (1, if batch { axis(told.depth) } else { 1 });
    let seconds = told.seconds.filter(|seconds| *seconds > 0.0);
    let (bytes, requests) = (told.bytes.and_then(count), told.ops.and_then(count));
    let measured = Measured {
        bytes,
        requests,
        seconds,
        bytes_per_second: rate,
        requests_per_second: told.ops.zip(seconds).map(|(ops, seconds)| ops / seconds),
        // For a batch it is the total time over the number of requests, which no request took.
        latency: mean_latency(told.latency_ns.filter(|_| !batch).and_then(nanoseconds)),
        reason: Some(format!("gdsio reports `{}`, without proof", short(told.transfer))),
        ..Measured::default()
    };
    let expected = told.bytes.zip(seconds).map(|(bytes, seconds)| bytes / seconds);
    let apart = expected.filter(|expected| (expected - rate).abs() > APART_MAX * rate);
    let doubt = apart.map(|_| "its throughput differs from its bytes over its time".to_owned());
    Ok((point, measured, doubt))
}

/// Our name for a type's request, whether it ends in host memory, and whether it is a batch.
fn way(label: &str) -> (String, bool, bool) {
    let known = Transfer::ALL.into_iter().find(|known| known.label() == label);
    let known = known.or((label == "ASYNC").then_some(Transfer::DirectAsync));
    let name = match known {
        Some(Transfer::Direct) => "cufile",
        Some(Transfer::CpuOnly) => "cpu",
        Some(Transfer::CpuGpu) => "cpu-gpu",
        Some(Transfer::CpuAsyncGpu) => "cpu-async-gpu",
        Some(Transfer::CpuCachedGpu) => "cpu-cached-gpu",
        Some(Transfer::DirectAsync) => "cufile-async",
        Some(Transfer::Batch) => "cufile-batch",
        Some(Transfer::BatchStream) => "cufile-batch-stream",
        None => return (short(label), false, label.contains("BATCH")),
    };
    let batch = known.is_some_and(Transfer::is_batch);
    (name.into(), known == Some(Transfer::CpuOnly), batch)
}

/// The values of a line, by name.
fn told(line: &str) -> Told<'_> {
    let mut told = Told::default();
    let mut words = line.split_whitespace().peekable();
    while let Some(word) = words.next() {
        let Some(value) = words.peek().copied() else { break };
        match word {
            "IoType:" => told.io = value,
            "XferType:" => told.transfer = value,
            "Threads:" => told.threads = number(value),
            "IoDepth:" => told.depth = number(value),
            "DataSetSize:" => told.bytes = sized(value),
            // A range is not the size of any request.
            "IOSize:" => told.request_size = sized(value),
            "ops:" => told.ops = number(value),
            "total_time" | "total_time:" => told.seconds = number(value),
            "Throughput:" | "Avg_Latency:" => {
                let (value, _) = (number(value), words.next());
                let unit = words.peek().map_or("", |unit| unit.trim_end_matches(','));
                match word {
                    "Throughput:" => told.rate = scaled(value, rate_unit(unit)),
                    _ => told.latency_ns = scaled(value, time_unit(unit)),
                }
            }
            _ => {}
        }
    }
    told
}

fn scaled(value: Option<f64>, scale: Option<f64>) -> Option<f64> {
    Some(value? * scale?)
}

#[expect(clippy::cast_precision_loss, reason = "powers of two")]
fn rate_unit(unit: &str) -> Option<f64> {
    match unit {
        "GiB/sec" | "GiB/s" => Some(GIB as f64),
        "MiB/sec" | "MiB/s" => Some(MIB as f64),
        "KiB/sec" | "KiB/s" => Some(KIB as f64),
        _ => None,
    }
}

fn time_unit(unit: &str) -> Option<f64> {
    match unit {
        "usecs" | "usec" | "us" => Some(1e3),
        "msecs" | "msec" | "ms" => Some(1e6),
        _ => None,
    }
}

/// The bytes of a value such as `4156416/4194304(KiB)`, of which the first counts.
#[expect(clippy::cast_precision_loss, reason = "powers of two")]
fn sized(value: &str) -> Option<f64> {
    let (value, unit) = value.split_once('(')?;
    let scale = match unit.strip_suffix(')')? {
        "KiB" => KIB,
        "MiB" => MIB,
        "GiB" => GIB,
        _ => return None,
    };
    Some(number(value.split('/').next()?)? * scale as f64)
}

#[cfg(test)]
mod tests;
