//! Spans over a real file, and over fake systems. Verdicts on real drives: `tests/verdicts.rs`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use forebay::{Engine, Options};

use super::*;

const LEN: usize = 8 << 20;

#[test]
fn counters_of_this_machine_show_a_span() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let path = folder.path().join("file");
    fs::write(&path, vec![7; LEN]).unwrap();
    let engine = Engine::new(Options::default()).expect("an engine");
    let file = engine.open(&path).unwrap();
    let resolver = Resolver::default();
    let map = resolver.resolve(&path);
    let sources = Sources::new(resolver.system()).file(&file, 0, LEN as u64, &map);
    let mut bytes = vec![0; LEN];
    let mut look = || {
        file.read(&mut bytes[..]).exact().run().unwrap();
        let span = sources.begin();
        file.read(&mut bytes[..]).exact().run().unwrap();
        span.end()
    };
    // The kernel may reclaim pages before the span begins.
    let is_whole =
        |seen: &Evidence| seen.page_cache.value().is_some_and(|cache| cache.before == LEN as u64);
    let mut evidence = look();
    for _ in 0..50 {
        if is_whole(&evidence) {
            break;
        }
        evidence = look();
    }
    // Other tests read and write in this process, so exact counts cannot be checked here.
    assert!(evidence.processor > Duration::ZERO && evidence.elapsed > Duration::ZERO);
    assert!(evidence.read_in > Duration::ZERO);
    assert_eq!(evidence.gpu.absence().as_deref(), Some("no GPU is part of it"));
    let cache = evidence.page_cache.value().expect("our own file");
    assert_eq!((cache.before, cache.len, cache.looked), (LEN as u64, LEN as u64, LEN as u64));
}

/// A system with this many block devices, RDMA ports and memory controllers.
fn crowded(root: &Path, count: usize) -> System {
    let put = |path: String, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    for number in 0..count {
        let folder = format!("sys/class/infiniband/mlx5_{number}/ports/1/counters");
        put(format!("{folder}/port_rcv_data"), "1\n");
        put(format!("{folder}/port_xmit_data"), "2\n");
        put(format!("sys/fs/resctrl/mon_data/mon_L3_{number}/mbm_total_bytes"), "3\n");
    }
    fs::create_dir_all(root.join("proc/self")).unwrap();
    put("proc/driver/nvidia-fs/stats".into(), "Reads : n=1 readMiB=1\nWrites : n=0 writeMiB=0\n");
    System::at(root)
}

#[test]
fn an_edge_reads_a_bounded_number_of_files() {
    let root = tempfile::tempdir().unwrap();
    let sources = Sources::new(&crowded(root.path(), 300));
    let evidence = sources.begin().end();
    assert_eq!(evidence.rdma.value().map(Vec::len), Some(64));
    assert_eq!(evidence.dram, Seen::Value(0));
    assert_eq!(evidence.nvidia_fs.value().map(|counts| counts.reads), Some(0));
}

#[test]
fn a_counter_that_vanishes_within_a_span_is_missing_and_the_others_stay() {
    let root = tempfile::tempdir().unwrap();
    let sources = Sources::new(&crowded(root.path(), 2));
    let span = sources.begin();
    fs::remove_dir_all(root.path().join("sys/class/infiniband/mlx5_1")).unwrap();
    fs::remove_dir_all(root.path().join("proc/driver")).unwrap();
    let evidence = span.end();
    assert!(evidence.rdma.absence().unwrap().contains("there is no"), "{evidence:?}");
    assert_eq!(evidence.nvidia_fs, Seen::Nothing("nvidia-fs is not loaded".into()));
    assert_eq!(evidence.dram, Seen::Value(0));
}

#[test]
fn a_system_full_of_traps_is_read_without_a_hang() {
    let root = tempfile::tempdir().unwrap();
    let system = crowded(root.path(), 1);
    let counters = root.path().join("sys/class/infiniband/mlx5_0/ports/1/counters");
    fs::remove_file(counters.join("port_rcv_data")).unwrap();
    symlink("port_rcv_data", counters.join("port_rcv_data")).unwrap();
    fs::write(root.path().join("proc/self/io"), [0xff; 100]).unwrap();
    let stats = root.path().join("proc/driver/nvidia-fs/stats");
    fs::remove_file(&stats).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &stats, rustix::fs::Mode::RUSR).unwrap();
    let evidence = Sources::new(&system).begin().end();
    assert!(evidence.rdma.absence().unwrap().contains("not a file"), "{evidence:?}");
    assert!(evidence.process.absence().unwrap().contains("no `read_bytes`"));
    assert!(evidence.nvidia_fs.absence().unwrap().contains("not a file"));
}

#[test]
fn cufile_is_queried_once_at_each_edge() {
    use std::sync::atomic::{AtomicU64, Ordering};
    let root = tempfile::tempdir().unwrap();
    let queries = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&queries);
    let sources = Sources::new(&System::at(root.path())).cufile(move || {
        let batches = 10 + count.fetch_add(1, Ordering::Relaxed);
        Seen::Value(Counters { batches, ..Counters::default() })
    });
    let evidence = sources.begin().end();
    assert_eq!(evidence.cufile.value().map(|counters| counters.batches), Some(1));
    assert_eq!(queries.load(Ordering::Relaxed), 2);
}

#[test]
fn each_gpu_has_evidence_of_its_own() {
    let root = tempfile::tempdir().unwrap();
    let sources = || Sources::new(&crowded(root.path(), 1));
    let link = |why: &str| GpuLink(Seen::Nothing(why.into()));
    let both = sources().gpu(&link("one")).gpu(&link("other")).begin().end_each();
    let found: Vec<_> = both.iter().map(|evidence| evidence.gpu.absence().unwrap()).collect();
    assert_eq!(found, ["one", "other"]);
    assert_eq!((&both[0].rdma, both[0].elapsed), (&both[1].rdma, both[1].elapsed));
    let none = sources().begin().end();
    assert_eq!(none.gpu.absence().as_deref(), Some("no GPU is part of it"));
    let first = sources().gpu(&link("one")).gpu(&link("other")).begin().end();
    assert_eq!(first.gpu.absence().as_deref(), Some("one"));
}
