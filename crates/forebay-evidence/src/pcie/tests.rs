//! Tests of the link against libraries that are compiled here.

use std::path::Path;
use std::thread::sleep;
use std::time::Instant;

use forebay::gpu::{DeviceId, DeviceKind};

use super::*;
use crate::nvml::fake::{FIND, INIT, library};

/// Each read of the fields adds 1 GiB to the received bytes, and 5 bytes to the sent bytes.
const FIELDS: &str = "struct value { unsigned field, scope; long long time, latency;\n\
      unsigned kind, status; unsigned long long value; };\n\
    static unsigned received = 0xffffff00u, sent;\n\
    int nvmlDeviceGetFieldValues(void *d, int n, struct value *v) {\n\
      received += 1u << 30; sent += 5;\n\
      for (int i = 0; i < n; i++) { v[i].status = 0; v[i].kind = 1;\n\
        v[i].value = v[i].field == 198 ? received : v[i].field == 197 ? sent : 0; }\n\
      return 0; }\n";
const REFUSED: &str = "int nvmlDeviceGetFieldValues(void *d, int n, void *v) { return 3; }\n";

fn info() -> DeviceInfo {
    DeviceInfo {
        id: DeviceId { kind: DeviceKind::Cuda, index: 0 },
        name: "H200".into(),
        uuid: "GPU-1".into(),
        pci_address: "0000:1b:00.0".into(),
        driver: "580.159".into(),
        memory: 1 << 30,
        simulated: false,
    }
}

/// Finds the link in a library of these `parts`; `None` if there is no compiler.
fn found(parts: &[&str], info: &DeviceInfo) -> Option<Seen<Arc<Link>>> {
    let (_folder, path) = library(parts)?;
    Some(Link::find_in(&path, info))
}

fn counters(seen: Seen<PcieBytes>) -> PcieBytes {
    seen.value().cloned().unwrap_or_else(|| panic!("{seen:?}"))
}

#[test]
fn counters_are_read_at_the_edges_and_their_wrap_is_undone() {
    let Some(link) = found(&[INIT, FIND, FIELDS], &info()) else { return };
    let link = link.value().cloned().unwrap_or_else(|| panic!("{link:?}"));
    let watch = link.begin(1 << 30).answered_or_panicked();
    assert!(watch.sampler.is_none());
    let bytes = counters(watch.end());
    assert_eq!((bytes.received, bytes.sent, bytes.samples), (1 << 30, 5, 2));
    assert_eq!(bytes.how, How::Edges);
    assert_eq!(bytes.gpu, "0000:1b:00.0");
}

/// In a long span another process may move 4 GiB although the span itself moves little. The count
/// is then at least the span's bytes, but may miss a wrap.
#[test]
fn in_time_a_narrow_counter_may_have_passed_its_end_by_others() {
    let short = Duration::from_millis(10);
    assert!(!may_have_wrapped(1 << 30, short) && may_have_wrapped(EDGES_MAX + 1, short));
    assert!(may_have_wrapped(1, PAUSE_MAX + short));
    let Some(link) = found(&[INIT, FIND, FIELDS], &info()) else { return };
    let link = link.value().cloned().unwrap_or_else(|| panic!("{link:?}"));
    let watch = link.begin(1 << 30).answered_or_panicked();
    sleep(2 * PAUSE_MAX);
    assert!(counters(watch.end()).may_have_wrapped);
    let wide = FIELDS.replace("kind = 1", "kind = 3");
    let link = found(&[INIT, FIND, &wide], &info()).unwrap();
    let watch = link.value().unwrap().begin(1 << 30).answered_or_panicked();
    sleep(2 * PAUSE_MAX);
    assert!(!counters(watch.end()).may_have_wrapped, "64 bits do not wrap");
}

/// A GPU falls off the bus, or a driver is unloaded, within a span.
#[test]
fn counters_that_vanish_within_a_span_are_missing() {
    // The library answers `left` times.
    let leaves = |left: u32| {
        let first = "int nvmlDeviceGetFieldValues(void *d, int n, struct value *v) {";
        FIELDS.replace(
            first,
            &format!("{first} static int left = {left}; if (left-- <= 0) return 15;"),
        )
    };
    // Once to detect the counters, then at the first edge.
    for (bytes, left) in [(1, 2), (EDGES_MAX + 1, 2), (EDGES_MAX + 1, 3)] {
        let Some(link) = found(&[INIT, FIND, &leaves(left)], &info()) else { return };
        let link = link.value().cloned().unwrap_or_else(|| panic!("{link:?}"));
        let watch = link.begin(bytes).answered_or_panicked();
        // If a thread samples, wait until it has noticed.
        let start = Instant::now();
        while watch.sampler.as_ref().is_some_and(|sampler| !sampler.thread.is_finished()) {
            assert!(start.elapsed() < Duration::from_secs(60), "it does not notice");
            sleep(PERIOD);
        }
        let none = watch.end().absence().unwrap_or_else(|| panic!("{bytes}, {left}"));
        assert!(none.contains("nvmlDeviceGetFieldValues: Other (15)"), "{none}");
        assert!(none.contains("nvidia-smi"), "{none}");
    }
    let Some(link) = found(&[INIT, FIND, &leaves(1)], &info()) else { return };
    let none = link.value().unwrap().begin(1);
    assert!(matches!(none, Seen::Missing(_)), "at the first edge");
}

#[test]
fn a_span_that_may_pass_4_gib_is_read_inside_as_well() {
    let Some(link) = found(&[INIT, FIND, FIELDS], &info()) else { return };
    let link = link.value().cloned().unwrap_or_else(|| panic!("{link:?}"));
    let before = observers::total();
    let watch = link.begin(EDGES_MAX + 1).answered_or_panicked();
    sleep(60 * PERIOD);
    let bytes = counters(watch.end());
    assert!(observers::total() > before, "the time of the thread that reads is known");
    assert!(bytes.samples >= 3 && bytes.how == How::Sampled, "{bytes:?}");
    assert_eq!(bytes.received, (bytes.samples - 1) << 30);
    assert_eq!(bytes.sent, 5 * (bytes.samples - 1));
}

#[test]
fn a_span_that_is_never_ended_leaves_no_thread_behind() {
    let Some(link) = found(&[INIT, FIND, FIELDS], &info()) else { return };
    let link = link.value().cloned().unwrap_or_else(|| panic!("{link:?}"));
    let mut watch = link.begin(u64::MAX).answered_or_panicked();
    let thread = watch.sampler.take().map(|Sampler { thread, .. }| thread).unwrap();
    drop(watch);
    assert!(thread.join().is_ok());
}

#[test]
fn without_fields_nothing_is_counted() {
    let Some(link) = found(&[INIT, FIND, REFUSED], &info()) else { return };
    let none = link.absence().unwrap();
    assert!(none.contains("nvmlDeviceGetFieldValues: Not Supported (3)"), "{none}");
}

#[test]
fn a_missing_function_is_named() {
    let lacks = |parts: &[&str], info: &DeviceInfo| found(parts, info).map(|s| s.absence());
    let Some(none) = lacks(&["int x;\n"], &info()) else { return };
    assert!(none.unwrap().contains("has no `nvmlInit_v2`"));
    let broken = "int nvmlInit_v2(void) { return 9; }\nint nvmlShutdown(void) { return 0; }\n";
    let text = lacks(&[broken], &info()).flatten().unwrap();
    assert!(text.starts_with("nvmlInit_v2: error 9"), "{text}");
    let text = lacks(&[INIT, FIELDS], &info()).flatten().unwrap();
    assert!(text.starts_with("NVML cannot look for a GPU"), "{text}");
    let elsewhere = DeviceInfo { pci_address: "x".into(), uuid: String::new(), ..info() };
    let text = lacks(&[INIT, FIND, FIELDS], &elsewhere).flatten().unwrap();
    assert!(text.contains("Other (6) of `x`"), "{text}");
    let odd = FIELDS.replace("kind = 1", "kind = 0");
    let text = lacks(&[INIT, FIND, &odd], &info()).flatten().unwrap();
    assert!(text.contains("a number of kind 0"), "{text}");
    let wide = FIELDS.replace("kind = 1", "kind = 3");
    let link = found(&[INIT, FIND, &wide], &info()).unwrap();
    let watch = link.value().unwrap().begin(u64::MAX).answered_or_panicked();
    assert!(watch.sampler.is_none(), "64 bits do not wrap");
}

#[test]
fn a_gpu_is_found_by_its_uuid_where_it_has_no_address() {
    let info = DeviceInfo { pci_address: String::new(), ..info() };
    let Some(link) = found(&[INIT, FIND, FIELDS], &info) else { return };
    assert_eq!(link.value().unwrap().nvml.name, "GPU-1");
}

#[test]
fn a_simulated_gpu_has_no_link_and_a_missing_library_is_named() {
    let simulated = Link::find(&DeviceInfo { simulated: true, ..info() });
    assert!(simulated.absence().unwrap().starts_with("simulated"));
    let place = Path::new("/nonexistent/libnvidia-ml.so.1");
    let none = Link::find_in(place.to_str().unwrap(), &info()).absence().unwrap();
    assert!(none.contains("cannot load `/nonexistent/"), "{none}");
}

trait AnsweredOrPanicked {
    fn answered_or_panicked(self) -> Watch;
}

impl AnsweredOrPanicked for Seen<Watch> {
    fn answered_or_panicked(self) -> Watch {
        match self {
            Seen::Value(watch) => watch,
            other => panic!("{:?}", other.absence()),
        }
    }
}
