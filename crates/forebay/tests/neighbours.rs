//! Processes of one host publish the links that they use, whatever path their bytes take: real
//! engines in processes of their own, which look at a `/dev/shm` of their own.

#![allow(unsafe_code, reason = "forks, and names a stream of its own")]

mod lab;

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use forebay::gpu::sim::SimDevice;
use forebay::gpu::{CallerStream, Device};
use forebay::internal::clock::SystemClock;
use forebay::{Engine, Options, Piece, RequestOptions};
use lab::fork::{Side, fork};
use lab::{child, pattern};
use rustix::time::{ClockId, clock_gettime};

const MIB: usize = 1 << 20;

/// Far above what the slowest machine needs: only what never comes exceeds it.
const BOUND: Duration = Duration::from_secs(60);

/// Age at which an entry is free.
const OLD_MS: u64 = 700;

/// The paths, and whether each look of theirs finds a link in use, however slow the machine is.
const PATHS: [(&str, u64, bool); 8] = [
    ("lane", 1, true),
    ("lane of writes", 1, true),
    ("cells", 1, true),
    ("cold cells", 1, true),
    ("scheduler", 1, true),
    ("many", 1, true),
    ("ordered", 1, false),
    ("several", 2, false),
];

/// Makes calls of one path until the process is killed.
fn make_calls(path: &str, file: &Path) -> ! {
    let engine = Engine::new(Options::default()).expect("limits that fit");
    let devices: Vec<Arc<dyn Device>> = (0..2)
        .map(|index| {
            let config = "sim".parse().expect("a configuration");
            let device = SimDevice::new(index, config, Arc::new(SystemClock::new()));
            let device: Arc<dyn Device> = Arc::new(device);
            engine.add_device(&device).expect("a new device");
            device
        })
        .collect();
    let how = forebay::OpenOptions::writing();
    let file = engine.open_with(file, &how).expect("the file opens");
    let target = |device: &Arc<dyn Device>, len: usize| {
        engine.allocate(device.id(), len as u64).expect("memory")
    };
    let (gpu, options) = (&devices[0], RequestOptions::default());
    let (mut small, large) = (target(gpu, MIB / 16), target(gpu, 2 * MIB));
    let stream = CallerStream(gpu.create_stream().expect("a stream").0);
    let (mut all, mut go_on) = ([large, target(&devices[1], 2 * MIB)], || true);
    loop {
        match path {
            "lane" => drop(file.read(&mut small).run().expect("all bytes")),
            "lane of writes" => drop(file.write(&small).run().expect("all bytes")),
            "cells" | "cold cells" => {
                if path == "cold cells" {
                    file.evict().expect("an eviction");
                }
                let read =
                    file.read(target(gpu, MIB / 16)).options(options).start().expect("a start");
                read.wait().0.expect("all bytes");
            }
            "scheduler" => drop(file.read(&mut all[0]).run().expect("all bytes")),
            "many" => {
                let pieces = [Piece::new(&file, 0, MIB as u64, 0)];
                engine.read_many(&pieces, [&mut all[0]]).options(options).run().expect("all bytes");
            }
            "ordered" => {
                let target = target(gpu, 2 * MIB);
                // SAFETY: the stream belongs to this device and is alive.
                let read = unsafe { file.read(target).options(options).on(stream).start() };
                read.expect("a start").wait().0.expect("all bytes");
            }
            "several" => {
                file.read_to_all(&mut all)
                    .options(options)
                    .while_(&mut go_on)
                    .run()
                    .expect("all bytes");
            }
            _ => unreachable!("no path: {path}"),
        }
    }
}

/// An entry of the table: its time, number and links.
type Entry = (u64, u64, u64);

/// The entries of engines that have looked a short time ago.
fn entries() -> Vec<Entry> {
    let path = format!("/dev/shm/forebay-{}", rustix::process::geteuid().as_raw());
    let bytes = fs::read(path).unwrap_or_default();
    let now = clock_gettime(ClockId::Monotonic);
    let now_ms = now.tv_sec.cast_unsigned() * 1000 + now.tv_nsec.cast_unsigned() / 1_000_000;
    let words = bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
    let entries = words.map(|word| (word >> 24, word >> 8 & 0xffff, word & 0xff));
    entries.filter(|(at_ms, ..)| at_ms.abs_diff(now_ms) <= OLD_MS).collect()
}

/// Waits for what `find` finds in the table.
#[track_caller]
fn wait_for<T>(what: &str, find: impl Fn(&[Entry]) -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = find(&entries()) {
            return found;
        }
        assert!(start.elapsed() < BOUND, "{what}: {:?}", entries());
        sleep(Duration::from_millis(5));
    }
}

/// A process that is killed when it is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs `test` in a process with a `/dev/shm` of its own.
fn apart(test: impl FnOnce(PathBuf)) {
    match child::role().as_deref() {
        None => drop(child::finish(child::start_apart("host"))),
        Some("host") if fs::read_dir("/dev/shm").is_ok_and(|mut all| all.next().is_none()) => {
            let folder = tempfile::tempdir_in(".").expect("a folder");
            let file = folder.path().join("data");
            fs::write(&file, pattern(1, 4 * MIB)).expect("a file");
            test(file);
        }
        Some("host") => lab::skip("links in use: no empty /dev/shm can be mounted"),
        Some(path) => make_calls(path, &PathBuf::from(std::env::var_os(FILE).expect("a path"))),
    }
}

/// The file that a process reads.
const FILE: &str = "FOREBAY_TEST_FILE";

#[test]
fn links_of_each_path_are_published() {
    apart(|file| {
        for (path, links, always) in PATHS {
            let reads = Killed(child::start_with(path, &[(FILE, file.as_os_str())]));
            let is_one = |entries: &[Entry]| entries.first().copied();
            let (first_ms, ..) = wait_for(path, is_one);
            // The first look also shows the GPUs that were brought in.
            for look in 1..6 {
                let next = |entries: &[Entry]| {
                    let entry = *entries.first()?;
                    (entry.0 >= first_ms + look * 200).then_some(entry)
                };
                let (_, _, published) = wait_for(path, next);
                assert!(published == links || !always, "{path}: {published} links");
            }
            wait_for(path, |entries| entries.first().filter(|entry| entry.2 == links).copied());
            drop(reads);
            wait_for("it is killed", |entries| entries.is_empty().then_some(()));
        }
    });
}

#[test]
fn forked_processes_have_entries_of_their_own() {
    apart(|file| {
        // Random keys of this thread are made before the forks.
        drop(Engine::new(Options::default()).expect("limits that fit"));
        let _ = HashSet::<u8>::new();
        let seen = file.with_extension("seen");
        let children: Vec<_> = (0..4)
            .map(|_| match fork() {
                Side::Parent(parent) => parent,
                Side::Child(child) => child.run(|_| {
                    let file = file.clone();
                    std::thread::spawn(move || make_calls("lane", &file));
                    wait_for("the parent sees all", |_| seen.exists().then_some(()));
                }),
            })
            .collect();
        wait_for("four entries", |entries| {
            let ids: HashSet<u64> = entries.iter().map(|entry| entry.1).collect();
            (ids.len() == 4).then_some(())
        });
        fs::write(&seen, "").expect("a file");
        children.into_iter().for_each(lab::fork::Parent::finish);
    });
}

#[test]
fn processes_of_other_time_namespaces_are_seen() {
    apart(|file| {
        let with_time = |program: &Path| {
            let mut command = Command::new("unshare");
            let clock = ["--time", "--monotonic", "100000", "--fork", "--kill-child"];
            command.args(clock).arg(program);
            command
        };
        let works = with_time("true".as_ref()).output().map_err(|error| error.to_string());
        match works {
            Ok(done) if done.status.success() => {}
            Ok(done) => return lab::skip(String::from_utf8_lossy(&done.stderr)),
            Err(error) => return lab::skip(format!("time namespaces: {error}")),
        }
        let program = std::env::current_exe().expect("this program has a path");
        let name = "processes_of_other_time_namespaces_are_seen";
        let mut command = with_time(&program);
        let command = command.args([name, "--exact", "--nocapture"]).env(FILE, &file);
        let command = command.env("FOREBAY_TEST_ROLE", "lane").stdout(Stdio::null());
        let _reads = Killed(command.spawn().expect("a process"));
        wait_for("its entry", |entries| entries.first().filter(|entry| entry.2 == 1).copied());
    });
}
