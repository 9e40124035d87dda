//! Small reads from a drive, on the ring that their callers serve themselves.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use super::*;
use crate::file::Residency;
use crate::options::RequestOptions;
use crate::plan::Reason;
use crate::queue::sections_of_this_thread;
use crate::transfer::{Completions, Outcome, Reaper as _};

const LEN: usize = 8 << 20;
/// Only distinguishes late from never.
const BOUND: Duration = Duration::from_secs(60);

struct Cold {
    engine: Engine,
    gpu: DeviceId,
    file: File,
    bytes: Vec<u8>,
    _folder: tempfile::TempDir,
}

impl Cold {
    /// `None` if the folder's file system has no O_DIRECT, or if there is no io_uring.
    fn new() -> Option<Self> {
        let engine = Engine::new(Options::default()).unwrap();
        let gpu = engine.device(&GpuSelector::Sim(Default::default())).unwrap().unwrap().id();
        let folder = tempfile::tempdir_in(".").unwrap();
        let path = folder.path().join("data");
        let bytes: Vec<u8> = (0..=250).cycle().take(LEN + 1000).collect();
        std::fs::write(&path, &bytes).unwrap();
        let file = engine.open(&path).unwrap();
        if let Some(reason) = file.no_direct_io() {
            println!("skipped: no O_DIRECT in this folder: {reason}");
            return None;
        }
        file.evict().unwrap();
        let cold = Self { engine, gpu, file, bytes, _folder: folder };
        cold.check(cold.start(None, 0, 4096), 0);
        if !matches!(cold.engine.inner.cold.get(), Some(Some(_))) {
            println!("skipped: no ring for cold reads");
            return None;
        }
        Some(cold)
    }

    fn ring(&self) -> &ColdReads {
        self.engine.inner.cold.get().unwrap().as_ref().unwrap()
    }

    fn memory(&self, gpu: Option<DeviceId>, len: u64) -> Buffer {
        match gpu {
            Some(gpu) => self.engine.allocate(gpu, len).unwrap(),
            None => self.engine.allocate_pinned(len).unwrap(),
        }
    }

    fn start(&self, gpu: Option<DeviceId>, offset: u64, len: u64) -> Transfer {
        self.file.read(self.memory(gpu, len)).at(offset).start().unwrap()
    }

    /// Compares the bytes of a transfer with the file's from `offset` on.
    fn check(&self, transfer: Transfer, offset: u64) -> Outcome {
        let waited = Instant::now();
        let (outcome, buffer) = transfer.wait();
        assert!(waited.elapsed() < BOUND);
        let (outcome, buffer) = (outcome.unwrap(), buffer.unwrap());
        let mut got = vec![0; usize::try_from(buffer.len()).unwrap()];
        buffer.download(0, &mut got).unwrap();
        let there = &self.bytes[usize::try_from(offset).unwrap()..];
        let there = &there[..there.len().min(got.len())];
        assert_eq!(outcome.bytes, there.len() as u64);
        assert!(got[..there.len()] == *there && got[there.len()..].iter().all(|byte| *byte == 0));
        outcome
    }
}

#[test]
fn reads_of_any_place_and_length_are_right_in_any_order_of_waits() {
    let Some(cold) = Cold::new() else { return };
    for gpu in [None, Some(cold.gpu)] {
        cold.file.evict().unwrap();
        let reads = (0..200_u64).map(|number| {
            let (unit, odd) = (number % 3 != 0, number * 37 % 4096);
            let (offset, len) = if unit { (0, 8192) } else { (odd, 5000 + odd) };
            let offset = number * 40_000 / 4096 * 4096 + offset;
            (offset, cold.start(gpu, offset, len))
        });
        let mut reads: Vec<(u64, Transfer)> = reads.collect();
        while !reads.is_empty() {
            let (offset, transfer) = reads.swap_remove(reads.len() * 7 % 5 % reads.len());
            let outcome = cold.check(transfer, offset);
            let route = if gpu.is_some() { Route::Staged } else { Route::Host };
            let share = outcome.routes[0];
            assert!(share.route == route && share.reason == Reason::NotResident, "{outcome:?}");
        }
    }
}

#[test]
fn a_read_across_the_end_of_the_file_leaves_the_rest_as_it_was() {
    let Some(cold) = Cold::new() else { return };
    for (gpu, offset) in [None, Some(cold.gpu)].into_iter().zip([LEN as u64; 2]) {
        for (offset, len) in [(offset, 4096), (offset - 4096, 8192), (offset + 7, 500)] {
            cold.file.evict().unwrap();
            cold.check(cold.start(gpu, offset, len), offset);
        }
    }
}

#[test]
fn a_file_that_has_shrunk_is_read_up_to_its_new_end() {
    let Some(mut cold) = Cold::new() else { return };
    for len in [LEN / 2 + 100, 5000] {
        let other = std::fs::File::options().write(true).open(cold.file.path()).unwrap();
        other.set_len(len as u64).unwrap();
        let end = (len as u64).next_multiple_of(4096);
        cold.bytes.truncate(len);
        cold.file.evict().unwrap();
        for offset in [end - 8192, end - 4096, end, end + 4096] {
            let mut memory = vec![0; 8192];
            let outcome = cold.file.read(&mut memory[..]).at(offset).run().unwrap();
            let there = cold.bytes.get(usize::try_from(offset).unwrap()..).unwrap_or_default();
            let there = &there[..there.len().min(8192)];
            assert!(outcome.bytes == there.len() as u64 && memory.starts_with(there));
        }
    }
}

#[test]
fn a_file_that_was_resident_is_read_from_its_drive_again() {
    let Some(cold) = Cold::new() else { return };
    let read = |gpu, offset| {
        let (mut memory, mut got) = (cold.memory(gpu, 8192), vec![0; 8192]);
        let outcome = cold.file.read((&mut memory, 0..8192)).at(offset).run().unwrap();
        memory.download(0, &mut got).unwrap();
        let at = usize::try_from(offset).unwrap();
        assert!(got == cold.bytes[at..at + 8192] && outcome.bytes == 8192);
        outcome.routes[0].reason
    };
    for (gpu, starts) in
        [(None, false), (None, true), (Some(cold.gpu), false), (Some(cold.gpu), true)]
    {
        std::fs::read(cold.file.path()).unwrap();
        let once = |offset| match starts {
            true => cold.check(cold.start(gpu, offset, 8192), offset).routes[0].reason,
            false => read(gpu, offset),
        };
        for number in 0..20 {
            assert_eq!(once(number * 8192 + 100), Reason::Resident);
        }
        assert!(cold.file.handle.is_warm());
        // Evicted by another process, as far as this handle is concerned.
        let other = cold.engine.open(cold.file.path()).unwrap();
        // A busy kernel keeps pages for a while, longer than `evict` waits.
        let is_gone = |_| matches!(other.evict().unwrap(), Residency::Known { resident: 0, .. });
        assert!((0..50).any(is_gone), "{:?}", other.evict().unwrap());
        // The kernel reads ahead of a read that does not wait: a fast drive has the bytes in time.
        let is_missed = |part| {
            once(part * LEN as u64 / 16);
            !cold.file.handle.is_warm()
        };
        assert!((8..16).any(is_missed));
        assert_eq!(once(8192), Reason::NotResident, "{gpu:?} {starts}");
    }
}

#[test]
fn many_threads_wait_for_reads_of_each_other() {
    let Some(cold) = Cold::new() else { return };
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let cold = &cold;
            scope.spawn(move || {
                for round in 0..40 {
                    let offset = (thread * 40 + round) * 7 % 100 * 65536;
                    cold.file.evict().unwrap();
                    let reads: Vec<Transfer> =
                        (0..4).map(|part| cold.start(None, offset + part * 4096, 4096)).collect();
                    for (part, read) in reads.into_iter().enumerate().rev() {
                        cold.check(read, offset + part as u64 * 4096);
                    }
                }
            });
        }
    });
}

#[test]
fn reads_that_are_not_waited_for_end() {
    let Some(cold) = Cold::new() else { return };
    let (sender, ends) = channel();
    let reads: Vec<Transfer> =
        (0..20).map(|number| cold.start(None, number * 8192, 4096)).collect();
    for read in &reads {
        let sender = sender.clone();
        read.on_end(move || sender.send(()).unwrap());
    }
    reads.iter().for_each(|_| ends.recv_timeout(BOUND).unwrap());
    // Dropped without a wait.
    cold.file.evict().unwrap();
    drop(cold.start(Some(cold.gpu), 0, 4096));
    let polled = cold.start(None, 65536, 4096);
    let start = Instant::now();
    while !polled.is_done() {
        assert!(start.elapsed() < BOUND);
    }
    cold.check(polled, 65536);
    let polled = cold.start(None, 131_072, 4096);
    while polled.progress() != (4096, 4096) {
        assert!(start.elapsed() < BOUND);
    }
}

#[test]
fn completions_come_from_the_drive_and_from_memory() {
    let Some(cold) = Cold::new() else { return };
    let completions = Completions::new();
    assert_eq!(completions.wait(Some(Instant::now() + Duration::from_millis(10))), None);
    for round in 0..30_u64 {
        cold.file.evict().unwrap();
        let mut reads: Vec<Option<(u64, Transfer)>> = Vec::new();
        for number in 0..16 {
            let gpu = (number % 4 == 1).then_some(cold.gpu);
            // Some are long, and go through the scheduler.
            let len = if number % 5 == 2 { 1 << 20 } else { 4096 };
            let offset = (round * 16 + number) % 100 * 65536;
            reads.push(Some((offset, cold.start(gpu, offset, len))));
        }
        for (tag, read) in reads.iter().enumerate() {
            read.as_ref().unwrap().1.report_to(&completions, tag as u64);
        }
        for _ in 0..reads.len() {
            let tag = completions.wait(Some(Instant::now() + BOUND)).expect("an end");
            let (offset, read) = reads[usize::try_from(tag).unwrap()].take().expect("once");
            assert!(read.is_done());
            cold.check(read, offset);
        }
    }
    assert_eq!(completions.wait(Some(Instant::now())), None);
}

#[test]
fn a_failed_engine_ends_them() {
    let Some(cold) = Cold::new() else { return };
    let reads: Vec<Transfer> =
        (0..20).map(|number| cold.start(None, number * 8192, 4096)).collect();
    cold.engine.inner.core.fail("a test");
    for read in reads {
        let start = Instant::now();
        // It had ended before, or fails.
        let end = read.wait().0;
        assert!(matches!(end, Ok(_) | Err(Error::EngineFailed { .. })), "{end:?}");
        assert!(start.elapsed() < BOUND);
    }
    let late = cold.file.read(cold.memory(None, 4096)).start();
    assert!(late.is_err() || late.unwrap().wait().0.is_err());
}

#[test]
fn they_take_no_section_of_the_scheduler() {
    let Some(cold) = Cold::new() else { return };
    for in_flight in [1_u64, 64] {
        cold.file.evict().unwrap();
        let before = sections_of_this_thread();
        let read = |number| cold.start(None, number * 8192, 4096);
        let reads: Vec<Transfer> = (0..in_flight).map(read).collect();
        for (number, read) in (0..).zip(reads) {
            cold.check(read, number * 8192);
        }
        assert_eq!(sections_of_this_thread() - before, 0, "{in_flight} in flight");
    }
}

#[test]
fn a_queue_reports_reads_of_several_engines() {
    let (Some(one), Some(other)) = (Cold::new(), Cold::new()) else { return };
    let completions = Completions::new();
    for _ in 0..20 {
        let mut reads = Vec::new();
        for (cold, number) in [&one, &other].into_iter().cycle().zip(0..16_u64) {
            cold.file.evict().unwrap();
            reads.push((cold, cold.start(None, number * 8192, 4096)));
        }
        for ((_, read), number) in reads.iter().zip(0_u64..) {
            read.report_to(&completions, number);
        }
        for _ in &reads {
            completions.wait(Some(Instant::now() + BOUND)).expect("an end");
        }
        for ((cold, read), number) in reads.into_iter().zip(0_u64..) {
            cold.check(read, number * 8192);
        }
    }
}

#[test]
fn a_thread_completes_reads_that_start_while_it_waits() {
    let Some(cold) = Cold::new() else { return };
    let completions = Completions::new();
    for number in 0..4 {
        cold.file.evict().unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| completions.wait(Some(Instant::now() + BOUND)));
            std::thread::sleep(Duration::from_millis(20)); // so that it waits most likely
            let read = cold.start(None, number * 8192, 4096);
            read.report_to(&completions, number);
            assert_eq!(waits.join().unwrap(), Some(number), "no other thread completes it");
            cold.check(read, number * 8192);
        });
    }
}

#[test]
fn a_read_costs_one_request_however_it_is_waited_for() {
    let Some(cold) = Cold::new() else { return };
    let (completions, options) = (Completions::new(), RequestOptions::default());
    cold.file.evict().unwrap();
    let before = cold.ring().added();
    let mut memory = vec![0; 4096];
    (0..20).for_each(|number| _ = cold.file.read(&mut memory[..]).at(number * 4096).run().unwrap());
    let reads: Vec<Transfer> =
        (20..40).map(|number| cold.start(None, number * 4096, 4096)).collect();
    reads.iter().for_each(|read| read.report_to(&completions, 0));
    reads.iter().for_each(|_| _ = completions.wait(None).unwrap());
    assert_eq!(cold.ring().added() - before, 40);
    // A timer bounds the waits of many reads.
    let (before, start, mut buffer) =
        (cold.ring().added(), Instant::now(), cold.memory(None, 4096));
    for number in 40..60 {
        cold.file
            .read(&mut buffer)
            .at(number * 4096)
            .options(options)
            .while_(&mut || true)
            .run()
            .unwrap();
    }
    let timers = start.elapsed().as_millis() / 10 + 1;
    assert!(cold.ring().added() - before <= 20 + usize::try_from(timers).unwrap());
}

#[test]
fn an_interrupt_wakes_a_thread_that_waits_and_else_costs_nothing() {
    let Some(cold) = Cold::new() else { return };
    let before = cold.ring().added();
    cold.ring().interrupt();
    assert_eq!(cold.ring().added(), before, "no thread waits");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| cold.ring().reap(None, &|| is_over.load(SeqCst)));
        while cold.ring().is_free() {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(20)); // so that it waits most likely
        is_over.store(true, SeqCst);
        cold.ring().interrupt();
    });
}

#[test]
fn waits_end_at_their_bound() {
    let Some(cold) = Cold::new() else { return };
    for bound in [Duration::from_millis(3), Duration::from_millis(40)] {
        let start = Instant::now();
        cold.ring().reap(Some(start + bound), &|| false);
        assert!((bound..BOUND).contains(&start.elapsed()));
    }
}
