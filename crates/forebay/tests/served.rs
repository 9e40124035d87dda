//! Real threads on a file system that fails by the seed: reads that hang, come back short or fail
//! for a while, writes likewise, under reads, writes, cancels and drops at any time.
//!
//! Which seeds, `lab/seeds.rs` says. A seed replays the faults and the requests; the threads run
//! as they like.

mod lab;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use forebay::gpu::{DeviceId, GpuSelector};
use forebay::{Engine, Error, File, ManyOutcome, OpenOptions, Options, Piece, RingChoice};
use lab::fuse::{Faults, Fuse};
use lab::seeds::{self, Dice, index};
use lab::watchdog::Watchdog;
use lab::{or_skip, pattern};

const SEEDS: u64 = 2;
const THREADS: u64 = 4;
const ACTIONS: u64 = 30;

/// Bytes that are read, and behind them bytes of each thread that it writes.
const READ: u64 = 2_000_003;
const PART: u64 = 300_001;

const KIB: u64 = 1 << 10;

/// What a target holds before.
const BEFORE: u8 = 0xee;

fn engine(dice: &mut Dice) -> (Engine, DeviceId) {
    let mut options = Options::default();
    options.slot_size = 256 * KIB;
    options.segment_size = dice.one_of(&[16 * KIB, 64 * KIB, 256 * KIB]);
    options.arena_size = Some(1024 * KIB);
    options.small_size = dice.one_of(&[0, 64 * KIB]);
    options.ring = dice.one_of(&[RingChoice::Auto, RingChoice::Pread]);
    let engine = Engine::new(options).expect("limits that fit");
    let faults = dice.one_of(&["", ",copy-faults=0.02"]);
    let wanted: GpuSelector = format!("sim:latency=5us{faults}").parse().expect("settings");
    let gpu = engine.device(&wanted).expect("a simulated GPU").expect("a GPU").id();
    (engine, gpu)
}

/// Changes how the file system fails, every few milliseconds, until `ends`; then nothing fails.
fn weather(dice: &mut Dice, fuse: &Fuse, uncached: bool, ends: &AtomicBool) {
    let errors = [libc::EIO, libc::EAGAIN, libc::EINTR, libc::ENOMEM, libc::ENOSPC];
    while !ends.load(Ordering::Relaxed) {
        let all = READ + THREADS * PART;
        let (kind, at, errno) = (dice.below(8), dice.below(all), dice.one_of(&errors));
        let most = index(dice.one_of(&[1, 4096, 10_000, 100_000]));
        fuse.set(|faults| {
            *faults = Faults { uncached, ..Faults::default() };
            match kind {
                0 => faults.hang_from = Some(at),
                1 => faults.hang_writes = true,
                2 => (faults.fail_at, faults.fail_errno) = (Some(at), Some(errno)),
                3 => faults.fail_writes_at = Some((at, errno)),
                // Of a cached file a short answer is its end to the kernel.
                4 if uncached => faults.read_most = Some(most.max(4096)),
                5 => faults.write_most = Some(most.max(4096)),
                6 => faults.no_direct_reads = true,
                _ => {}
            }
        });
        thread::sleep(Duration::from_micros(500 + dice.below(10_000)));
    }
    fuse.set(|faults| *faults = Faults { uncached, ..Faults::default() });
}

struct Actor<'a> {
    dice: Dice,
    engine: Engine,
    gpu: DeviceId,
    file: File,
    bytes: &'a [u8],
    start: u64,
    /// What the thread's own part holds; no byte where that is not known.
    part: Vec<Option<u8>>,
}

impl Actor<'_> {
    fn run(mut self) -> Self {
        (0..ACTIONS).for_each(|_| self.act());
        self
    }

    fn act(&mut self) {
        match self.dice.below(5) {
            0 => self.read(),
            1 => self.read_many(),
            2 => self.write(),
            _ => self.read_later(),
        }
    }

    fn range(&mut self, end: u64) -> (u64, u64) {
        let len = self.dice.one_of(&[1, 5_000, 70_000, 600_000]).min(end);
        let len = 1 + self.dice.below(len);
        (self.dice.below(end - len + 1), len)
    }

    fn right(&self, offset: u64, len: u64) -> &[u8] {
        &self.bytes[index(offset)..index(offset + len)]
    }

    fn read(&mut self) {
        let (offset, len) = self.range(READ);
        let mut target = vec![BEFORE; index(len)];
        match self.file.read(&mut target).at(offset).run() {
            Ok(outcome) => {
                assert_eq!(outcome.bytes, len);
                assert!(target == self.right(offset, len), "other bytes at {offset}+{len}");
            }
            Err(error) => may_be(&error),
        }
    }

    fn read_many(&mut self) {
        let ranges: Vec<(u64, u64)> =
            (0..=self.dice.below(20)).map(|_| self.range(READ / 8)).collect();
        let mut at = 0;
        let pieces: Vec<Piece<'_>> = ranges
            .iter()
            .map(|&(offset, len)| {
                let piece = Piece::new(&self.file, offset, len, at);
                at += len + 3;
                piece
            })
            .collect();
        let mut target = vec![BEFORE; index(at)];
        let read = self.engine.read_many(&pieces, [&mut target]).run();
        let ManyOutcome { results, .. } = match read {
            Ok(outcome) => outcome,
            Err(error) => return may_be(&error),
        };
        for (Piece { offset, len, at, .. }, result) in pieces.iter().zip(results) {
            let got = &target[index(*at)..index(at + len)];
            match result {
                Ok(bytes) => {
                    assert_eq!(bytes, *len);
                    assert!(got == self.right(*offset, *len), "other bytes at {offset}+{len}");
                }
                Err(error) => may_be(&error),
            }
            let behind = &target[index(at + len)..index(at + len + 3)];
            assert_eq!(behind, [BEFORE; 3], "bytes between pieces");
        }
    }

    fn read_later(&mut self) {
        let (offset, len) = self.range(READ);
        let on_gpu = self.dice.below(2) == 0;
        let buffer = match on_gpu {
            true => self.engine.allocate(self.gpu, len),
            false => self.engine.allocate_pinned(len),
        };
        let transfer = self.file.read(buffer.expect("memory")).at(offset).start();
        let transfer = transfer.expect("a start");
        let (result, buffer) = match self.dice.below(4) {
            0 => return drop(transfer),
            1 => {
                thread::sleep(Duration::from_micros(self.dice.below(3_000)));
                transfer.cancel();
                transfer.wait()
            }
            _ => transfer.wait(),
        };
        match result {
            Ok(outcome) => {
                assert_eq!(outcome.bytes, len);
                let mut got = vec![0; index(len)];
                // Copies of a simulated GPU may fail here as well.
                if buffer.expect("it comes back").download(0, &mut got).is_ok() {
                    assert!(got == self.right(offset, len), "other bytes at {offset}+{len}");
                }
            }
            Err(error) => may_be(&error),
        }
    }

    fn write(&mut self) {
        let (offset, len) = self.range(PART);
        let bytes = pattern(self.dice.next(), index(len));
        let known: Vec<Option<u8>> = match self.file.write(&bytes).at(self.start + offset).run() {
            Ok(outcome) => {
                assert_eq!(outcome.bytes, len);
                bytes.into_iter().map(Some).collect()
            }
            Err(error) => {
                may_be(&error);
                vec![None; index(len)]
            }
        };
        self.part.splice(index(offset)..index(offset + len), known);
    }
}

/// Whether something here can cause an error.
#[track_caller]
fn may_be(error: &Error) {
    let known = matches!(
        error,
        Error::Io { .. }
            | Error::Cancelled { .. }
            | Error::Device { .. }
            | Error::NoProgress { .. }
    );
    assert!(known, "{error}: {error:?}");
}

fn run(seed: u64) -> Option<()> {
    let mut dice = Dice(seed);
    let bytes = pattern(dice.next(), index(READ + THREADS * PART));
    let uncached = dice.below(2) == 0;
    let faults = Faults { uncached, ..Faults::default() };
    let fuse = or_skip(Fuse::with(bytes.clone(), faults))?;
    let _watchdog = Watchdog::new(Duration::from_secs(270));
    let (engine, gpu) = engine(&mut dice);
    let file = engine.open_with(fuse.path(), &OpenOptions::writing()).expect("the file opens");
    let actor = |number: u64, seed: u64| {
        let start = READ + number * PART;
        let part = bytes[index(start)..index(start + PART)].iter().copied().map(Some).collect();
        let (engine, file) = (engine.clone(), file.clone());
        Actor { dice: Dice(seed), engine, gpu, file, bytes: &bytes, start, part }
    };
    let actors: Vec<Actor<'_>> = (0..THREADS).map(|number| actor(number, dice.next())).collect();
    let ends = AtomicBool::new(false);
    let done: Vec<Actor<'_>> = thread::scope(|scope| {
        let clouds = scope.spawn(|| weather(&mut dice, &fuse, uncached, &ends));
        let threads: Vec<_> =
            actors.into_iter().map(|actor| scope.spawn(move || actor.run())).collect();
        let done = threads.into_iter().map(thread::ScopedJoinHandle::join).collect::<Vec<_>>();
        ends.store(true, Ordering::Relaxed);
        clouds.join().expect("the weather");
        done.into_iter().map(|actor| actor.expect("a thread that failed has printed why")).collect()
    });
    let there = fuse.content();
    assert!(there[..index(READ)] == bytes[..index(READ)], "what was only read has changed");
    for Actor { start, part, .. } in &done {
        for (index, (byte, known)) in there[index(*start)..].iter().zip(part).enumerate() {
            assert!(known.is_none_or(|known| known == *byte), "byte {index} of {start} is {byte}");
        }
    }
    Some(())
}

#[test]
fn every_byte_of_a_failing_file_system_is_accounted_for() {
    seeds::each("-p forebay --test served", SEEDS, run);
}
