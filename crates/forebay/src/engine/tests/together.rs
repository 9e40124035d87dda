//! Small reads in flight at the same time: they leave together, whatever happens to one of them.

use std::time::{Duration, Instant};

use super::*;
use crate::error::Operation;
use crate::queue::sections_of_this_thread;
use crate::transfer::Outcome;

const READS: usize = 64;
const EACH: usize = 16 << 10;
/// Only distinguishes late from never.
const BOUND: Duration = Duration::from_secs(60);

struct Small {
    engine: Engine,
    gpu: DeviceId,
    file: File,
    bytes: Vec<u8>,
    _folder: tempfile::TempDir,
}

impl Small {
    fn new(gpu: &str) -> Self {
        let engine = Engine::new(Options::default()).unwrap();
        let gpu = engine.device(&gpu.parse().unwrap()).unwrap().unwrap().id();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let bytes: Vec<u8> = (0..=250).cycle().take(READS * EACH + 1000).collect();
        std::fs::write(&path, &bytes).unwrap();
        let file = engine.open(&path).unwrap();
        Self { engine, gpu, file, bytes, _folder: folder }
    }

    /// Bytes of a read; each has another length and begins at no block.
    fn part(&self, number: usize) -> std::ops::Range<usize> {
        let start = number * EACH + number;
        start..start + EACH - 37 * number
    }

    fn try_start(&self, number: usize) -> Result<Transfer> {
        let part = self.part(number);
        let buffer = self.engine.allocate(self.gpu, part.len() as u64)?;
        self.file.read(buffer).at(part.start as u64).start()
    }

    fn start(&self, number: usize) -> Transfer {
        self.try_start(number).unwrap()
    }

    fn start_all(&self) -> Vec<Transfer> {
        (0..READS).map(|number| self.start(number)).collect()
    }

    /// Whether the bytes are right; a GPU with faults may not show them.
    fn is_right(&self, number: usize, buffer: &Buffer) -> bool {
        let part = &self.bytes[self.part(number)];
        let mut got = vec![0; part.len()];
        buffer.download(0, &mut got).is_err() || got == part
    }

    fn wait(&self, transfers: Vec<Transfer>) -> Vec<Result<Outcome>> {
        let ended = transfers.into_iter().enumerate().map(|(number, transfer)| {
            let waited = Instant::now();
            let (result, buffer) = transfer.wait();
            assert!(waited.elapsed() < BOUND, "{number}");
            assert!(result.is_err() || self.is_right(number, &buffer.unwrap()), "{number}");
            result
        });
        ended.collect()
    }
}

#[test]
fn they_pay_for_few_copies_and_take_no_section_of_the_scheduler() {
    const LATENCY: Duration = Duration::from_millis(20);
    let small = Small::new("sim:latency=100ms");
    small.wait(vec![small.start(0)]).into_iter().for_each(|first| drop(first.unwrap()));
    for in_flight in [1, READS] {
        let (start, before) = (Instant::now(), sections_of_this_thread());
        let transfers: Vec<Transfer> = (0..in_flight).map(|number| small.start(number)).collect();
        let sections = sections_of_this_thread() - before;
        for transfer in &transfers {
            assert!(transfer.wait_for(BOUND).is_some());
        }
        let took = start.elapsed();
        let outcomes = small.wait(transfers);
        assert_eq!(sections, 0, "{in_flight} in flight");
        let mut buffer = small.engine.allocate(small.gpu, EACH as u64).unwrap();
        let mut blocks = |number: usize| {
            let before = sections_of_this_thread();
            small.file.read(&mut buffer).at((number * EACH) as u64).run().unwrap();
            sections_of_this_thread() - before
        };
        // One looks for other processes now and then.
        assert_eq!((0..10).map(&mut blocks).min(), Some(0), "blocking reads");
        assert!(took < LATENCY * 40, "{in_flight} in flight: {took:?}");
        for (number, outcome) in outcomes.into_iter().enumerate() {
            let outcome = outcome.unwrap();
            let share = outcome.routes[0];
            assert_eq!((outcome.routes.len(), share.route), (1, Route::Cached));
            assert_eq!(outcome.bytes, small.part(number).len() as u64);
            assert_eq!(share.bytes, outcome.bytes);
        }
    }
}

#[test]
fn a_copy_that_fails_ends_its_own_read_alone() {
    let small = Small::new("sim:copy-faults=0.3,seed=5");
    let (mut failed, mut right) = (0, 0);
    for result in (0..10).flat_map(|_| small.wait(small.start_all())) {
        match result {
            Ok(_) => right += 1,
            Err(Error::Device { operation: Operation::Copy, place: Some(place), .. }) => {
                assert_eq!(place.path, small.file.path());
                failed += 1;
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    assert!(failed > 0 && right > 0, "{failed} failed, {right} were right");
}

#[test]
fn a_gpu_that_is_lost_ends_all_of_them() {
    let small = Small::new("sim:lost-after=40");
    let started: Vec<Transfer> =
        (0..10 * READS).map_while(|number| small.try_start(number % READS).ok()).collect();
    let results = started.into_iter().map(|transfer| transfer.wait().0);
    let failed = results.filter(Result::is_err).count();
    assert!(failed > 0 || small.try_start(0).is_err());
}

#[test]
fn an_engine_that_fails_ends_them_at_once() {
    let small = Small::new("sim:latency=10s");
    let transfers = small.start_all();
    let start = Instant::now();
    small.engine.inner.core.fail("a test");
    for transfer in transfers {
        let (result, buffer) = transfer.wait();
        assert!(matches!(result, Err(Error::EngineFailed { .. })), "{result:?}");
        assert!(buffer.is_none(), "a copy may still run");
    }
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    let next = small.try_start(0).and_then(|transfer| transfer.wait().0);
    assert!(matches!(next, Err(Error::EngineFailed { .. })), "{next:?}");
}

#[test]
fn callers_that_go_leave_nothing_behind() {
    let small = Small::new("sim:latency=5ms");
    for number in 0..READS {
        drop(small.start(number));
        small.start(number).detach();
    }
    let begun = Instant::now();
    let device = small.engine.known(small.gpu).unwrap();
    while small.engine.queued_on(&device) > 0 {
        assert!(begun.elapsed() < BOUND, "{} bytes are queued", small.engine.queued_on(&device));
        std::thread::yield_now();
    }
    // All cells are free again.
    small.wait(small.start_all()).into_iter().for_each(|result| drop(result.unwrap()));
}

#[test]
fn many_callers_at_once_get_their_own_bytes() {
    let small = Small::new("sim:bandwidth=2GB/s,latency=50us");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let results = small.wait(small.start_all());
                    results.into_iter().for_each(|result| drop(result.unwrap()));
                }
            });
        }
    });
}

#[test]
fn longer_blocking_reads_are_small_while_several_threads_make_them() {
    const LEN: usize = 1 << 20;
    let small_ones = |threads: usize| {
        let small = Small::new("sim:latency=100ms");
        let together = std::sync::Barrier::new(threads);
        small.engine.start_trace();
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let mut target = small.engine.allocate(small.gpu, LEN as u64).unwrap();
                    together.wait();
                    small.file.read(&mut target).exact().run().unwrap();
                    let mut got = vec![0; LEN];
                    target.download(0, &mut got).unwrap();
                    assert!(got == small.bytes[..LEN]);
                });
            }
        });
        let device = small.engine.known(small.gpu).unwrap();
        assert_eq!(small.engine.callers(&device).unwrap().load(Ordering::Relaxed), 0);
        small.engine.end_trace().small.len()
    };
    assert_eq!(small_ones(1), 0);
    for threads in [2, 4, 8] {
        let found = small_ones(threads);
        assert!((1..threads).contains(&found), "{found} of {threads}: the first is alone");
    }
}

#[test]
fn a_small_read_to_the_host_ends_in_its_call() {
    let small = Small::new("sim");
    let buffer = small.engine.allocate_pinned(EACH as u64).unwrap();
    let before = sections_of_this_thread();
    let transfer = small.file.read(buffer).at(5).start().unwrap();
    assert!(transfer.is_done() && sections_of_this_thread() == before);
    assert_eq!(transfer.progress(), (EACH as u64, EACH as u64));
    let called = std::sync::atomic::AtomicBool::new(false);
    let called = std::sync::Arc::new(called);
    let step = std::sync::Arc::clone(&called);
    transfer.on_end(move || step.store(true, Ordering::Relaxed));
    assert!(called.load(Ordering::Relaxed));
    let (outcome, buffer) = transfer.wait();
    let found = (outcome.unwrap().bytes, buffer.unwrap().len());
    assert_eq!(found, (EACH as u64, EACH as u64));
}
