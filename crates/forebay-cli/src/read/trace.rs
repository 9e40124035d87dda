//! Writes a trace of the engine in Chrome's trace event format, which Perfetto reads. Its processes
//! are used as groups of tracks, its threads as tracks: for threads, slots and links, and for the
//! concurrent requests of a ring. Arrows lead from the request that filled a slot to the
//! copy that emptied it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use forebay::internal::{Recorded, Span, Trace, What};
use forebay_measure::stats::float;
use serde_json::{Value, json};

use super::lanes::lanes;

/// Groups, in display order. The groups of rings follow.
const TRANSFERS: u64 = 1;
const THREADS: u64 = 2;
const SLOTS: u64 = 3;
const LINKS: u64 = 4;
const RINGS: u64 = 5;

/// A track: its group and its number in the group.
type TrackId = (u64, u64);

/// A span assigned to a track.
struct Placed<'a> {
    place: TrackId,
    start_ns: u64,
    end_ns: u64,
    span: &'a Span,
}

/// Writes the whole trace.
pub(super) fn write(trace: &Trace, out: &mut dyn Write) -> io::Result<()> {
    let mut names = Names::default();
    names.groups.insert(TRANSFERS, "transfers".to_owned());
    let mut placed = Vec::new();
    threads(trace, &mut names, &mut placed);
    transfers(trace, &mut names, &mut placed);
    slots(trace, &mut names, &mut placed);
    let left_out = trace.left_out;
    write!(out, "{{\"displayTimeUnit\":\"ns\",\"otherData\":{{\"left_out\":{left_out}}},")?;
    write!(out, "\"traceEvents\":[")?;
    let groups = names.groups.iter().map(|(group, name)| ("process", (*group, 0), *group, name));
    let tracks = names.tracks.iter().map(|(place, name)| ("thread", *place, place.1, name));
    let named = groups.chain(tracks).flat_map(|(kind, (pid, tid), order, name)| {
        let event = |what: &str, value: Value| {
            let arguments = json!({ what: value });
            json!({"ph": "M", "pid": pid, "tid": tid, "name": format!("{kind}_{what}"),
                   "args": arguments})
        };
        [event("name", json!(name)), event("sort_index", json!(order))]
    });
    let slices = placed.iter().map(|one| slice(one, trace.start_ns));
    let arrows = (1_u64..).zip(arrows(&placed)).flat_map(|(id, (op, copy))| {
        let end = |(pid, tid): TrackId, at: u64| {
            json!({"pid": pid, "tid": tid, "ts": micros(at, trace.start_ns), "id": id,
                   "cat": "bytes", "name": "bytes"})
        };
        // The arrow's ends must be inside the slices that it connects.
        let mut start = end(op.place, op.start_ns.midpoint(op.end_ns));
        start["ph"] = json!("s");
        let mut stop = end(copy.place, copy.start_ns);
        (stop["ph"], stop["bp"]) = (json!("f"), json!("e"));
        [start, stop]
    });
    for (index, event) in named.chain(slices).chain(arrows).enumerate() {
        out.write_all(if index == 0 { b"\n" } else { b",\n" })?;
        serde_json::to_writer(&mut *out, &event)?;
    }
    writeln!(out, "\n]}}")
}

/// Names of groups and tracks.
#[derive(Default)]
struct Names {
    groups: BTreeMap<u64, String>,
    tracks: BTreeMap<TrackId, String>,
}

impl Names {
    fn add(&mut self, group: &str, place: TrackId, track: impl FnOnce() -> String) {
        self.groups.entry(place.0).or_insert_with(|| group.to_owned());
        self.tracks.entry(place).or_insert_with(track);
    }
}

/// Places the threads' spans: most threads do a single thing at a time, rings have many requests in
/// flight, and links run queued copies in sequence.
fn threads<'a>(trace: &'a Trace, names: &mut Names, placed: &mut Vec<Placed<'a>>) {
    for (index, thread) in trace.threads.iter().enumerate() {
        let Recorded { number, name, overlaps, spans } = thread;
        let group = if *overlaps { RINGS + index as u64 } else { THREADS };
        let mut sorted: Vec<&Span> = spans.iter().collect();
        sorted.sort_by_key(|span| (span.start_ns, span.end_ns));
        let lanes = match overlaps {
            true => lanes(sorted.iter().map(|span| (span.start_ns, span.end_ns))),
            false => vec![0; sorted.len()],
        };
        let mut copied = BTreeMap::new();
        for (span, lane) in sorted.into_iter().zip(lanes) {
            let (mut start_ns, mut end_ns) = (span.start_ns, span.end_ns);
            let place = match &span.what {
                What::Copy { link, name, .. } => {
                    let place = (LINKS, 2 * *link as u64 + u64::from(*name != "to the GPU"));
                    names.add("links", place, || format!("link {link}, {name}"));
                    // Copies in a direction run in order: this copy was queued behind the last.
                    let free_ns = copied.entry(place).or_insert(0);
                    start_ns = start_ns.max(*free_ns);
                    end_ns = end_ns.max(start_ns);
                    *free_ns = end_ns;
                    place
                }
                _ if *overlaps => {
                    let place = (group, lane as u64 + 1);
                    let title = format!("{name} {number}, requests in flight");
                    names.add(&title, place, || format!("{}", lane + 1));
                    place
                }
                _ => {
                    names.add("threads", (group, *number), || name.clone());
                    (group, *number)
                }
            };
            placed.push(Placed { place, start_ns, end_ns, span });
        }
    }
    for (number, span) in &trace.small {
        let place = (THREADS, *number);
        names.add("threads", place, || "caller".to_owned());
        placed.push(Placed { place, start_ns: span.start_ns, end_ns: span.end_ns, span });
    }
}

fn transfers<'a>(trace: &'a Trace, names: &mut Names, placed: &mut Vec<Placed<'a>>) {
    let is_one = |span: &&Span| matches!(span.what, What::Transfer { .. });
    let mut sorted: Vec<&Span> = trace.others.iter().filter(is_one).collect();
    sorted.sort_by_key(|span| span.start_ns);
    let lanes = lanes(sorted.iter().map(|span| (span.start_ns, span.end_ns)));
    for (span, lane) in sorted.into_iter().zip(lanes) {
        let place = (TRANSFERS, lane as u64 + 1);
        names.add("transfers", place, || format!("{}", lane + 1));
        let (start_ns, end_ns) = (span.start_ns, span.end_ns);
        placed.push(Placed { place, start_ns, end_ns, span });
    }
}

/// Pairs the starts of slot spans with their ends. An end may be recorded late, so it is cut at the
/// next start.
fn slots<'a>(trace: &'a Trace, names: &mut Names, placed: &mut Vec<Placed<'a>>) {
    let mut wholes = BTreeSet::new();
    let mut taken: BTreeMap<u64, (Vec<&Span>, Vec<u64>)> = BTreeMap::new();
    for span in &trace.others {
        match &span.what {
            What::Taken { whole, address, .. } => {
                wholes.insert(*whole);
                taken.entry(*address).or_default().0.push(span);
            }
            What::Given { address } => taken.entry(*address).or_default().1.push(span.start_ns),
            _ => {}
        }
    }
    for (tid, (address, (mut begins, mut ends))) in (1_u64..).zip(taken) {
        begins.sort_by_key(|span| span.start_ns);
        ends.sort_unstable();
        // Skip the end of a span that started before the trace.
        let first = begins.first().map_or(0, |span| span.start_ns);
        let early = ends.partition_point(|&end| end < first);
        let nexts = begins.iter().skip(1).map(|span| span.start_ns).chain([trace.end_ns]);
        let ends = ends.into_iter().skip(early).chain(std::iter::repeat(trace.end_ns));
        for ((span, end), next) in begins.iter().zip(ends).zip(nexts) {
            let What::Taken { whole, .. } = span.what else { continue };
            let slot = wholes.range(..whole).count();
            names.add("slots", (SLOTS, tid), || match address - whole {
                0 => format!("slot {slot}"),
                part => format!("slot {slot} from {} KiB", part >> 10),
            });
            let end_ns = end.min(next).max(span.start_ns);
            placed.push(Placed { place: (SLOTS, tid), start_ns: span.start_ns, end_ns, span });
        }
    }
}

/// The requests, and the copies of their bytes.
fn arrows<'a>(placed: &'a [Placed<'a>]) -> Vec<(&'a Placed<'a>, &'a Placed<'a>)> {
    let mut order: Vec<(u64, &Placed<'_>)> = Vec::new();
    for one in placed {
        match one.span.what {
            What::Op { .. } => order.push((one.end_ns, one)),
            What::Copy { .. } => order.push((one.span.start_ns, one)),
            _ => {}
        }
    }
    order.sort_by_key(|(at, _)| *at);
    let mut filled: BTreeMap<u64, &Placed<'_>> = BTreeMap::new();
    let mut arrows = Vec::new();
    for (_, one) in order {
        match one.span.what {
            What::Op { address, .. } => drop(filled.insert(address, one)),
            What::Copy { address, bytes, .. } => {
                let mut rest = filled.split_off(&address);
                filled.append(&mut rest.split_off(&(address + bytes.1)));
                arrows.extend(rest.into_values().map(|op| (op, one)));
            }
            _ => {}
        }
    }
    arrows
}

fn slice(one: &Placed<'_>, origin: u64) -> Value {
    let Placed { place: (pid, tid), start_ns, end_ns, span } = one;
    let (name, bytes, mut arguments) = match &span.what {
        What::Op { name, bytes, reason, failed, .. } => {
            let arguments = json!({"reason": reason.to_string(), "failed": failed});
            ((*name).to_owned(), *bytes, arguments)
        }
        What::Plan { bytes } => ("plan".to_owned(), *bytes, json!({})),
        What::Small { name, bytes } => (format!("small {name}"), *bytes, json!({})),
        What::Copy { name, bytes, .. } => {
            let queued = json!({"queued_us": micros(one.start_ns, span.start_ns)});
            (format!("copy {name}"), *bytes, queued)
        }
        What::Taken { len, bytes, .. } => {
            (format!("{}+{}", bytes.0, bytes.1), *bytes, json!({"slot_len": len}))
        }
        What::Given { .. } => (String::new(), (0, 0), json!({})),
        What::Transfer { path, bytes, failed } => {
            (path.display().to_string(), *bytes, json!({"failed": failed}))
        }
    };
    (arguments["offset"], arguments["len"]) = (json!(bytes.0), json!(bytes.1));
    // A span that started before the trace is cut.
    let (ts, dur) = (micros(*start_ns, origin), micros(*end_ns, (*start_ns).max(origin)));
    json!({"ph": "X", "pid": pid, "tid": tid, "ts": ts, "dur": dur, "name": name,
           "args": arguments})
}

/// Microseconds since `origin`.
fn micros(at: u64, origin: u64) -> f64 {
    float(at.saturating_sub(origin)) / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay::Reason;

    #[test]
    fn times_are_microseconds() {
        assert_eq!(json!(micros(12_345, 1000)).to_string(), "11.345");
        assert_eq!(json!(micros(1, 2)).to_string(), "0.0");
    }

    fn copy(start_ns: u64, end_ns: u64, address: u64) -> Span {
        let what = What::Copy { link: 0, name: "to the GPU", bytes: (0, 10), address };
        Span { start_ns, end_ns, what }
    }

    #[test]
    fn copies_of_one_way_run_in_turn_and_requests_point_to_theirs() {
        let reason = Reason::Required;
        let op = |start_ns, end_ns, address| {
            let what = What::Op { name: "read", bytes: (0, 5), address, reason, failed: false };
            Span { start_ns, end_ns, what }
        };
        let thread =
            |number, overlaps, spans| Recorded { number, name: "forebay".into(), overlaps, spans };
        let ring = vec![op(1000, 2000, 100), op(1500, 2500, 105), op(1000, 9000, 110)];
        let copies = vec![copy(3000, 5000, 100), copy(3000, 7000, 200)];
        let threads = vec![thread(7, true, ring), thread(8, false, copies)];
        let trace = Trace { start_ns: 1000, end_ns: 9000, threads, ..Trace::default() };
        let mut json = Vec::new();
        write(&trace, &mut json).unwrap();
        let json: Value = serde_json::from_slice(&json).unwrap();
        let events = json["traceEvents"].as_array().unwrap();
        let count = |phase: &str| events.iter().filter(|event| event["ph"] == phase).count();
        assert_eq!((count("s"), count("f")), (2, 2), "{json}");
        let is_second = |event: &&Value| event["ts"] == 4.0 && event["dur"] == 2.0;
        assert_eq!(events.iter().find(is_second).unwrap()["name"], "copy to the GPU", "{json}");
        assert!(json.to_string().contains("forebay 7, requests in flight"), "{json}");
    }

    #[test]
    fn copies_whose_ends_are_guessed_never_overlap() {
        let spans = vec![copy(3000, 7000, 1), copy(3100, 6000, 2), copy(3200, 8000, 3)];
        let thread = Recorded { number: 8, name: "forebay".into(), overlaps: false, spans };
        let trace = Trace { threads: vec![thread], end_ns: 9000, ..Trace::default() };
        let (mut names, mut placed) = (Names::default(), Vec::new());
        threads(&trace, &mut names, &mut placed);
        let spans: Vec<_> = placed.iter().map(|one| (one.start_ns, one.end_ns)).collect();
        assert_eq!(spans, [(3000, 7000), (7000, 7000), (7000, 8000)]);
    }

    #[test]
    fn a_slot_ends_before_it_begins_again() {
        let taken = |start_ns, address| {
            let what = What::Taken { whole: 4096, address, len: 4096, bytes: (start_ns, 1) };
            Span { start_ns, end_ns: start_ns, what }
        };
        let given =
            |start_ns, address| Span { start_ns, end_ns: start_ns, what: What::Given { address } };
        // The end of an earlier span, one recorded late, one never recorded.
        let others = vec![
            given(1, 4096),
            taken(2000, 4096),
            taken(4000, 4096),
            given(4500, 4096),
            given(5000, 4096),
            taken(2000, 8192),
        ];
        let trace = Trace { end_ns: 9000, others, ..Trace::default() };
        let (mut names, mut placed) = (Names::default(), Vec::new());
        slots(&trace, &mut names, &mut placed);
        let spans: Vec<_> = placed.iter().map(|one| (one.start_ns, one.end_ns)).collect();
        assert_eq!(spans, [(2000, 4000), (4000, 5000), (2000, 9000)]);
        let names: Vec<_> = names.tracks.values().collect();
        assert_eq!(names, ["slot 0", "slot 0 from 4 KiB"]);
    }
}
