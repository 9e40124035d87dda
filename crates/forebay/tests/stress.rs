//! Real threads on real files: reads, writes, cancels and drops at any time, by the seed.
//!
//! Which seeds, `lab/seeds.rs` says.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod lab;
#[path = "lab/settings.rs"]
mod settings;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay::gpu::sim::{SimConfig, SimDevice, SimulatedCuFile};
use forebay::gpu::{Device, DeviceId};
use forebay::internal::clock::SystemClock;
use forebay::{
    Buffer, DirectIo, Engine, Error, File, OpenOptions, RequestOptions, Route, SyncMode, Transfer,
};
use lab::seeds::{self, Dice, index};
use lab::watchdog::Watchdog;
use settings::options;

/// Seeds of every run of the tests, and what each of their threads does.
const SEEDS: u64 = 4;
const THREADS: u64 = 4;
const ACTIONS: u64 = 60;

/// Bytes of each file that is read, and of each thread's part of the file that all write.
const FILE_LEN: u64 = 3_000_000;
const PART_LEN: u64 = 700_001;

/// The mock cuFile of a GPU, if there is one.
const CUFILE: [Option<SimulatedCuFile>; 6] = [
    None,
    None,
    Some(SimulatedCuFile::P2pDma),
    Some(SimulatedCuFile::Refuse),
    Some(SimulatedCuFile::Short),
    Some(SimulatedCuFile::Fail),
];

/// `len` bytes that differ from place to place and from seed to seed.
fn noise(seed: u64, len: u64) -> Vec<u8> {
    let mut dice = Dice(seed);
    let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| dice.next().to_le_bytes()).collect();
    bytes.truncate(index(len));
    bytes
}

fn gpus(dice: &mut Dice, engine: &Engine) -> Vec<DeviceId> {
    let add = |number: u64| {
        let config = SimConfig {
            bandwidth: dice.one_of(&[None, Some(2_000_000_000)]),
            latency: Duration::from_micros(dice.one_of(&[0, 10])),
            copy_faults: dice.one_of(&[0.0, 0.0, 0.05]),
            seed: dice.next(),
            cufile: dice.one_of(&CUFILE),
            ..SimConfig::default()
        };
        let number = u32::try_from(number).unwrap();
        let gpu: Arc<dyn Device> =
            Arc::new(SimDevice::new(number, config, Arc::new(SystemClock::new())));
        engine.add_device(&gpu).unwrap();
        gpu.id()
    };
    (0..2).map(add).collect()
}

/// One thread's view of the engine: the files, and its own part of the one that is written.
struct Actor {
    dice: Dice,
    engine: Engine,
    gpus: Vec<DeviceId>,
    read: File,
    content: Arc<Vec<u8>>,
    written: File,
    part_start: u64,
    /// What the part holds; no byte where that is not known.
    part: Vec<Option<u8>>,
}

/// A transfer, unless a direct route is required and unavailable.
fn taken(started: Result<Transfer, Error>) -> Option<Transfer> {
    match started {
        Err(Error::RouteUnavailable { route: Route::Direct, .. }) => None,
        started => Some(started.unwrap()),
    }
}

/// What became of a transfer's buffer and bytes.
enum End {
    Done(u64, Option<Buffer>),
    Failed,
    /// It goes on in the background.
    Dropped,
}

impl Actor {
    fn act(&mut self) {
        let blocking = self.dice.below(2) == 0;
        match (blocking, self.dice.below(3)) {
            (true, 0) => self.write_now(),
            (true, _) => self.read_now(),
            (false, 0) => self.write_later(),
            (false, _) => self.read_later(),
        }
    }

    fn range(&mut self, end: u64) -> (u64, u64) {
        let most = self.dice.one_of(&[10, 5_000, 300_000, 1_500_000]);
        let len = self.dice.below(most.min(end) + 1);
        let offset = self.dice.below(end - len + 1);
        // Aligned places take other ways.
        if self.dice.below(3) == 0 { (offset / 4096 * 4096, len) } else { (offset, len) }
    }

    fn options(&mut self, on_gpu: bool, exact: bool) -> RequestOptions {
        let staged = on_gpu && self.dice.below(3) == 0 && self.written.no_direct_io().is_none();
        let staged = staged && self.engine.options().direct_io == DirectIo::Auto;
        let straight = on_gpu && self.dice.below(4) == 0;
        let mut options = if straight {
            RequestOptions { route: Some(Route::Direct), ..RequestOptions::default() }
        } else if staged {
            RequestOptions { route: Some(Route::Staged), ..RequestOptions::default() }
        } else {
            RequestOptions::default()
        };
        options.exact = exact && self.dice.below(2) == 0;
        options.sync = if self.dice.below(30) == 0 { SyncMode::Data } else { SyncMode::None };
        options
    }

    fn buffer(&mut self, len: u64) -> Buffer {
        match self.dice.below(3) {
            0 => self.engine.allocate_pinned(len).unwrap(),
            number => self.engine.allocate(self.gpus[index(number - 1)], len).unwrap(),
        }
    }

    fn read_now(&mut self) {
        // Some reads end behind the end of the file.
        let (offset, len) = self.range(FILE_LEN + 10_000);
        let there = len.min(FILE_LEN.saturating_sub(offset));
        let right = &self.content[index(offset.min(FILE_LEN))..index(offset.min(FILE_LEN) + there)];
        let mut target = vec![0xEE; index(len)];
        let outcome = self.read.read(&mut target).at(offset).run().unwrap();
        assert_eq!(outcome.bytes, there);
        let (got, rest) = target.split_at(index(there));
        assert!(got == right, "other bytes were read at {offset}+{len}");
        assert!(rest.iter().all(|&byte| byte == 0xEE));
    }

    fn read_later(&mut self) {
        let (offset, len) = self.range(FILE_LEN);
        let buffer = self.buffer(len);
        let options = self.options(buffer.device().is_some(), true);
        if self.dice.below(20) == 0 {
            self.read.evict().unwrap();
        }
        let Some(transfer) = taken(self.read.read(buffer).at(offset).options(options).start())
        else {
            return;
        };
        if let End::Done(bytes, buffer) = self.end(transfer) {
            assert_eq!(bytes, len);
            let mut got = vec![0; index(len)];
            // Copies of a simulated GPU may fail here as well.
            if buffer.unwrap().download(0, &mut got).is_ok() {
                assert!(got == self.content[index(offset)..index(offset + len)]);
            }
        }
    }

    fn write_now(&mut self) {
        let (start, len) = self.range(PART_LEN);
        let bytes = noise(self.dice.next(), len);
        let done = self.written.write(&bytes).at(self.part_start + start).run().unwrap();
        assert_eq!(done.bytes, len);
        self.note(start, bytes.into_iter().map(Some).collect());
    }

    fn write_later(&mut self) {
        let (start, len) = self.range(PART_LEN);
        let bytes = noise(self.dice.next(), len);
        let mut buffer = self.buffer(len);
        if buffer.upload(0, &bytes).is_err() {
            return;
        }
        let options = self.options(buffer.device().is_some(), false);
        let started =
            self.written.write(buffer).at(self.part_start + start).options(options).start();
        let Some(transfer) = taken(started) else { return };
        match self.end(transfer) {
            End::Done(bytes_done, _) => {
                assert_eq!(bytes_done, len);
                self.note(start, bytes.into_iter().map(Some).collect());
            }
            End::Failed => self.note(start, vec![None; index(len)]),
            End::Dropped => {
                // It may write until the engine has ended, so nothing is known any more.
                self.note(start, vec![None; index(len)]);
                self.part_start += PART_LEN * THREADS;
                self.part = vec![Some(0); index(PART_LEN)];
            }
        }
    }

    fn note(&mut self, start: u64, bytes: Vec<Option<u8>>) {
        self.part.splice(index(start)..index(start) + bytes.len(), bytes);
    }

    /// Ends a transfer in one of the ways that there are.
    fn end(&mut self, transfer: Transfer) -> End {
        let bound = Duration::from_micros(self.dice.below(2_000));
        let mut may_be_cancelled = false;
        let (result, buffer) = match self.dice.below(7) {
            0 => {
                drop(transfer);
                return End::Dropped;
            }
            1 => {
                let (result, buffer) = transfer.wait_at_most(bound);
                if matches!(result, Err(Error::TimedOut { .. })) {
                    assert!(buffer.is_none(), "memory came back while it is in use");
                    return End::Dropped;
                }
                (result, buffer)
            }
            2 => {
                let early = transfer.wait_for(bound);
                transfer.cancel();
                may_be_cancelled = early.is_none();
                transfer.wait()
            }
            3 => {
                let other = std::thread::scope(|scope| {
                    scope.spawn(|| transfer.wait_for(Duration::from_secs(600))).join().unwrap()
                });
                assert!(other.is_some() && transfer.is_done());
                transfer.wait()
            }
            _ => transfer.wait(),
        };
        assert!(buffer.is_some(), "the memory of an ended transfer comes back");
        match result {
            Ok(outcome) => End::Done(outcome.bytes, buffer),
            Err(Error::Device { .. }) => End::Failed,
            Err(Error::Cancelled { .. }) if may_be_cancelled => End::Failed,
            // A required path that breaks.
            Err(Error::RouteUnavailable { route: Route::Direct, .. }) => End::Failed,
            Err(error) => panic!("{error}: {error:?}"),
        }
    }

    /// Acts, then compares the part that no other thread writes with its expected bytes.
    fn run(mut self, path: &Path) {
        for _ in 0..ACTIONS {
            self.act();
        }
        let mut there = vec![0; index(PART_LEN)];
        let file = fs::File::open(path).unwrap();
        let mut got = 0;
        while got < there.len() {
            match file.read_at(&mut there[got..], self.part_start + got as u64).unwrap() {
                0 => break, // the file ends in a part that was never written
                bytes => got += bytes,
            }
        }
        for (index, (&byte, known)) in there.iter().zip(&self.part).enumerate() {
            assert!(known.is_none_or(|known| known == byte), "byte {index} of the part is {byte}");
        }
    }
}

fn run(seed: u64, folder: &Path) {
    let mut dice = Dice(seed);
    let content = Arc::new(noise(seed, FILE_LEN));
    let (read, written) = (folder.join("read"), folder.join("written"));
    fs::write(&read, content.as_slice()).unwrap();
    fs::write(&written, []).unwrap();
    let engine = Engine::new(options(&mut dice)).unwrap();
    let gpus = gpus(&mut dice, &engine);
    let shared = engine.open_with(&written, &OpenOptions::writing()).unwrap();
    let actors: Vec<Actor> = (0..THREADS)
        .map(|number| Actor {
            dice: Dice(dice.next()),
            engine: engine.clone(),
            gpus: gpus.clone(),
            read: engine.open(&read).unwrap(),
            content: Arc::clone(&content),
            written: shared.clone(),
            part_start: PART_LEN * number,
            part: vec![Some(0); index(PART_LEN)],
        })
        .collect();
    // The last of the threads ends the engine.
    drop((engine, shared));
    std::thread::scope(|scope| {
        for actor in actors {
            scope.spawn(|| actor.run(&written));
        }
    });
    assert!(fs::read(&read).unwrap() == *content, "a file that was only read has changed");
}

#[test]
fn random_threads_lose_nothing() {
    seeds::each("-p forebay --test stress", SEEDS, |seed| {
        let _watchdog = Watchdog::new(Duration::from_secs(600));
        let folder = tempfile::tempdir().unwrap();
        run(seed, folder.path());
        Some(())
    });
}

#[test]
fn a_forgotten_transfer_disturbs_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let content = noise(1, FILE_LEN);
    fs::write(&path, &content).unwrap();
    let engine = Engine::new(options(&mut Dice(1))).unwrap();
    let gpus = gpus(&mut Dice(4), &engine);
    let file = engine.open(&path).unwrap();
    for round in 0..20 {
        let buffer = match round % 2 {
            0 => engine.allocate(gpus[0], FILE_LEN).unwrap(),
            _ => engine.allocate_pinned(FILE_LEN).unwrap(),
        };
        std::mem::forget(file.read(buffer).start().unwrap());
        let mut target = vec![0; index(FILE_LEN)];
        file.read(&mut target).run().unwrap();
        assert!(target == content);
    }
    // The forgotten ones hold the engine: this must neither wait for them nor end them.
    drop((file, engine));
}
