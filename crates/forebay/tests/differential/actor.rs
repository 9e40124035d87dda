//! Random requests to one file, each step checked against the model.
//!
//! A step is one change from outside (a write, a cut, a hole, an eviction), or some requests that
//! run concurrently and lie near each other: some share pages, some overlap, some are cancelled.

use std::fs;
use std::os::unix::fs::FileExt;

use forebay::gpu::{DeviceId, GpuSelector};
use forebay::{
    Buffer, DirectIo, Engine, Error, File, ManyTransfer, OpenOptions, Piece, PieceResult, Priority,
    RequestOptions, Route, SyncMode, Transfer,
};
use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};
use rustix::io::Errno;

use crate::lab::seeds::{Dice, index};
use crate::lab::{note, pattern};
use crate::place::Place;
use crate::settings;
use crate::shadow::{Change, Shadow};

const STEPS: u64 = 60;

/// Bytes of the file at most, and at first.
const MAX: u64 = 2 << 20;
const FIRST: usize = 700_001;

/// What is in memory that nothing was read to.
const BEFORE: u8 = 0xee;

const GPUS: [&str; 5] = [
    "sim",
    "sim:latency=10us",
    "sim:cufile=p2pdma",
    "sim:cufile=nvidia-fs",
    "sim:cufile=short,latency=10us",
];

pub(crate) struct Actor<'a> {
    dice: Dice,
    engine: Engine,
    gpu: DeviceId,
    place: &'a Place,
    file: File,
    /// The file as another program has it.
    plain: fs::File,
    shadow: Shadow,
    /// Where the file ends if every write succeeds: what a seed does depends on no outcome.
    end: u64,
}

/// A part of a request: a range of the file, and where it lies in the memory.
#[derive(Debug, Clone, Copy)]
struct Part {
    offset: u64,
    len: u64,
    at: u64,
}

enum Pending {
    One(Transfer),
    Many(ManyTransfer),
}

/// A request that has started.
struct Started {
    pending: Pending,
    parts: Vec<Part>,
    /// Of a write what it writes.
    source: Option<Vec<u8>>,
}

impl<'a> Actor<'a> {
    pub(crate) fn new(seed: u64, place: &'a Place) -> Self {
        let mut dice = Dice(seed);
        let engine = Engine::new(settings::options(&mut dice)).expect("limits that fit");
        let gpu: GpuSelector = dice.one_of(&GPUS).parse().expect("settings");
        let gpu = engine.device(&gpu).expect("a simulated GPU").expect("a GPU").id();
        let mut how = fs::File::options();
        how.read(true).write(true).create(true).truncate(false);
        let plain = how.open(&place.path).expect("the file opens");
        let bytes = pattern(dice.next(), place.fixed.map_or(FIRST, index));
        plain.write_all_at(&bytes, 0).expect("a write");
        let file = engine.open_with(&place.path, &OpenOptions::writing()).expect("the file opens");
        let end = bytes.len() as u64;
        Self { dice, engine, gpu, place, file, plain, shadow: Shadow(bytes), end }
    }

    pub(crate) fn run(mut self) {
        let Self { engine, gpu, file, .. } = &self;
        note(format!("{:?}, {gpu:?}, {:?}", engine.options(), file.no_direct_io()));
        for step in 0..STEPS {
            note(format!("step {step}"));
            self.step();
        }
        self.compare_whole();
    }

    fn step(&mut self) {
        match self.dice.below(16) {
            0 => drop(self.file.evict().expect("an eviction")),
            1 => self.cut(),
            2 => self.punch(),
            3 | 4 => self.foreign_write(),
            5 => self.compare_whole(),
            6 => {
                let how = OpenOptions::writing();
                self.file = self.engine.open_with(&self.place.path, &how).expect("it opens");
            }
            7..=9 => self.now(),
            _ => self.concurrently(),
        }
    }

    /// A range whose start and length are of all kinds: aligned or not, at the end or behind it.
    fn range(&mut self, near: Option<u64>) -> (u64, u64) {
        let most = self.dice.one_of(&[10, 600, 5_000, 70_000, 500_000]);
        let len = 1 + self.dice.below(most);
        let around = near.unwrap_or_else(|| self.dice.below(self.end + 20_000));
        let offset = around + self.dice.below(len.min(20_000) + 600);
        let (offset, len) = match self.dice.below(4) {
            0 => (offset / 4096 * 4096, len.next_multiple_of(4096)),
            1 => (offset / 512 * 512, len.next_multiple_of(512)),
            _ => (offset, len),
        };
        let offset = offset.min(MAX - 1);
        (offset, len.min(MAX - offset))
    }

    /// A range that can be written.
    fn write_range(&mut self, near: Option<u64>) -> (u64, u64) {
        let (offset, len) = self.range(near);
        let most = self.place.fixed.unwrap_or(MAX);
        let offset = offset.min(most - 1);
        (offset, len.min(most - offset))
    }

    fn actual(&self) -> Vec<u8> {
        fs::read(&self.place.path).expect("the file can be read")
    }

    fn settle(&mut self, changes: &[Change]) {
        self.shadow.settle(self.actual(), changes);
    }

    fn cut(&mut self) {
        let len = self.dice.below(self.end + 100_000).min(MAX);
        if self.place.fixed.is_none() {
            note(format!("cut to {len}"));
            self.plain.set_len(len).expect("a cut");
            self.shadow.0.resize(index(len), 0);
            self.end = len;
        }
    }

    fn punch(&mut self) {
        let (offset, len) = self.write_range(None);
        // A drive has no holes within its sectors.
        let (offset, len) = match self.place.fixed {
            Some(_) => (offset / 4096 * 4096, len.next_multiple_of(4096)),
            None => (offset, len),
        };
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fallocate(&self.plain, how, offset, len) {
            Ok(()) => {
                note(format!("hole at {offset}+{len}"));
                let end = (offset + len).min(self.shadow.len());
                self.shadow.0[index(offset.min(end))..index(end)].fill(0);
            }
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(errno) => panic!("a hole at {offset}+{len}: {errno}"),
        }
    }

    fn foreign_write(&mut self) {
        let (offset, len) = self.write_range(None);
        note(format!("foreign write at {offset}+{len}"));
        let bytes = pattern(self.dice.next(), index(len));
        self.plain.write_all_at(&bytes, offset).expect("a write");
        self.shadow.write(offset, &bytes);
        self.end = self.end.max(offset + len);
    }

    /// Compares all of the file as it is and, once its pages are gone, as the drive has it.
    fn compare_whole(&mut self) {
        self.settle(&[]);
        self.file.sync_data().expect("a sync");
        fadvise(&self.plain, 0, None, Advice::DontNeed).expect("an advice");
        self.settle(&[]);
        let (buffer, _) = self.file.read_to_end(None).run().expect("it can be read");
        assert!(buffer.as_slice() == Some(&self.shadow.0[..]), "the whole file differs");
    }

    fn options(&mut self, on_gpu: bool, is_write: bool) -> RequestOptions {
        let has_direct =
            self.engine.options().direct_io == DirectIo::Auto && self.file.no_direct_io().is_none();
        let route = match self.dice.below(5) {
            0 if on_gpu && has_direct => Some(Route::Staged),
            1 if on_gpu => Some(Route::Cached),
            2 if on_gpu => Some(Route::Direct),
            _ => None,
        };
        let mut options = RequestOptions { route, ..RequestOptions::default() };
        options.exact = !is_write && self.dice.below(4) == 0;
        options.sync = self.dice.one_of(&[SyncMode::None; 8]);
        if is_write && self.dice.below(12) == 0 {
            options.sync = self.dice.one_of(&[SyncMode::Data, SyncMode::All]);
        }
        options.preallocate = is_write && self.dice.below(12) == 0;
        if self.dice.below(8) == 0 {
            options.priority = Priority::Urgent;
        }
        options
    }

    fn buffer(&mut self, len: u64) -> Buffer {
        let buffer = match self.dice.below(3) {
            0 => self.engine.allocate_pinned(len),
            _ => self.engine.allocate(self.gpu, len),
        };
        let mut buffer = buffer.expect("memory");
        buffer.fill(BEFORE).expect("a fill");
        buffer
    }

    /// The parts of one request, with gaps between some of them in the memory, and its bytes.
    fn parts(&mut self, near: u64, is_write: bool, count: u64) -> (Vec<Part>, u64) {
        let mut at = self.dice.below(3);
        let mut parts = Vec::new();
        for _ in 0..count {
            let near = Some(near).filter(|_| self.dice.below(4) > 0);
            let (offset, len) = if is_write { self.write_range(near) } else { self.range(near) };
            // Of many each is small.
            let len = if count > 1 { len.min(1 + 200_000 / count) } else { len };
            parts.push(Part { offset, len, at });
            at += len + self.dice.below(3);
        }
        (parts, at)
    }

    /// One request to memory of the caller, which waits.
    fn now(&mut self) {
        let is_write = self.dice.below(2) == 0;
        let count = self.dice.one_of(&[1, 1, 3, 60]);
        let near = self.dice.below(self.end + 1);
        let (parts, len) = self.parts(near, is_write, count);
        let options = self.options(false, is_write);
        note(format!("now: writes: {is_write}, {parts:?}, {options:?}"));
        let file = &self.file;
        let pieces: Vec<Piece<'_>> =
            parts.iter().map(|part| Piece::new(file, part.offset, part.len, part.at)).collect();
        if is_write {
            let bytes = pattern(self.dice.next(), index(len));
            let results = if let [Part { offset, len, at }] = parts[..] {
                let part = &bytes[index(at)..index(at + len)];
                vec![
                    file.write(part)
                        .at(offset)
                        .options(options)
                        .run()
                        .map(|o| o.bytes)
                        .map_err(Box::new),
                ]
            } else {
                let sources = [&bytes[..]];
                self.engine
                    .write_many(&pieces, sources)
                    .options(options)
                    .run()
                    .expect("a write")
                    .results
            };
            let changes = self.changes(&parts, &bytes, &results, false);
            self.settle(&changes);
        } else {
            let mut bytes = vec![BEFORE; index(len)];
            let results = if let [Part { offset, len, at }] = parts[..] {
                let part = &mut bytes[index(at)..index(at + len)];
                vec![
                    file.read(part)
                        .at(offset)
                        .options(options)
                        .run()
                        .map(|o| o.bytes)
                        .map_err(Box::new),
                ]
            } else {
                let targets = [&mut bytes];
                self.engine
                    .read_many(&pieces, targets)
                    .options(options)
                    .run()
                    .expect("a read")
                    .results
            };
            self.check_reads(&parts, &bytes, &results, false, &[]);
        }
    }

    fn concurrently(&mut self) {
        let near = self.dice.below(self.end + 1);
        let count = 1 + self.dice.below(6);
        let mut started: Vec<Started> = (0..count).filter_map(|_| self.start(near)).collect();
        let cancels: Vec<bool> = started.iter().map(|_| self.dice.below(5) == 0).collect();
        for (one, cancels) in started.iter().zip(&cancels) {
            match &one.pending {
                Pending::One(transfer) if *cancels => transfer.cancel(),
                Pending::Many(many) if *cancels => many.transfer().cancel(),
                _ => {}
            }
        }
        if self.dice.below(2) == 0 {
            started.reverse();
        }
        let may_be_cancelled = cancels.contains(&true);
        let mut ended = Vec::new();
        let mut changes = Vec::new();
        for Started { pending, parts, source } in started {
            let (results, mut buffers) = match pending {
                Pending::One(transfer) => {
                    let (result, buffer) = transfer.wait();
                    let result = result.map(|outcome| outcome.bytes).map_err(Box::new);
                    (vec![result], Vec::from_iter(buffer))
                }
                Pending::Many(many) => {
                    let (result, buffers) = many.wait();
                    match result {
                        Ok(outcome) => (outcome.results, buffers),
                        Err(Error::Cancelled { .. }) if may_be_cancelled => (Vec::new(), buffers),
                        Err(error) => panic!("{error}: {error:?}"),
                    }
                }
            };
            match source {
                Some(bytes) => {
                    changes.extend(self.changes(&parts, &bytes, &results, may_be_cancelled));
                }
                None => ended.push((parts, results, buffers.remove(0))),
            }
        }
        for (parts, results, buffer) in ended {
            let mut bytes = vec![0; index(buffer.len())];
            buffer.download(0, &mut bytes).expect("a download");
            self.check_reads(&parts, &bytes, &results, may_be_cancelled, &changes);
        }
        self.settle(&changes);
    }

    /// Starts a request; none where its route is unavailable.
    fn start(&mut self, near: u64) -> Option<Started> {
        let is_write = self.dice.below(2) == 0;
        let count = self.dice.one_of(&[0, 0, 0, 4, 40]);
        let (parts, len) = match count {
            0 => {
                let (offset, len) =
                    if is_write { self.write_range(Some(near)) } else { self.range(Some(near)) };
                (vec![Part { offset, len, at: 0 }], len)
            }
            count => self.parts(near, is_write, count),
        };
        let mut buffer = self.buffer(len);
        let options = self.options(buffer.device().is_some(), is_write);
        let device = buffer.device();
        note(format!("starts: writes: {is_write}, {parts:?}, {device:?}, {options:?}"));
        let source = is_write.then(|| pattern(self.dice.next(), index(len)));
        if let Some(bytes) = &source {
            buffer.upload(0, bytes).expect("an upload");
        }
        let pending = if count == 0 {
            let offset = parts[0].offset;
            match is_write {
                true => self.file.write(buffer).at(offset).options(options).start(),
                false => self.file.read(buffer).at(offset).options(options).start(),
            }
            .map(Pending::One)
        } else {
            let piece = |part: &Part| Piece::new(&self.file, part.offset, part.len, part.at);
            let pieces: Vec<Piece<'_>> = parts.iter().map(piece).collect();
            match is_write {
                true => self.engine.write_many(&pieces, vec![buffer]).options(options).start(),
                false => self.engine.read_many(&pieces, vec![buffer]).options(options).start(),
            }
            .map(Pending::Many)
        };
        match pending {
            Ok(pending) => {
                if is_write {
                    let ends = parts.iter().map(|part| part.offset + part.len);
                    self.end = ends.max().unwrap_or(0).max(self.end);
                }
                Some(Started { pending, parts, source })
            }
            Err(Error::RouteUnavailable { .. }) => None,
            Err(error) => panic!("{error}: {error:?}"),
        }
    }

    /// What the parts of a write have changed. Without results all of it was cancelled.
    fn changes(
        &mut self,
        parts: &[Part],
        bytes: &[u8],
        results: &[PieceResult],
        may_be_cancelled: bool,
    ) -> Vec<Change> {
        let change = |(number, part): (usize, &Part)| {
            let sure = match results.get(number) {
                Some(Ok(written)) => *written == part.len,
                Some(Err(error)) => may_fail(error, may_be_cancelled),
                None => false,
            };
            self.end = self.end.max(part.offset + part.len);
            let bytes = bytes[index(part.at)..index(part.at + part.len)].to_vec();
            Change { offset: part.offset, bytes, sure }
        };
        parts.iter().enumerate().map(change).collect()
    }

    fn check_reads(
        &self,
        parts: &[Part],
        bytes: &[u8],
        results: &[PieceResult],
        may_be_cancelled: bool,
        changes: &[Change],
    ) {
        for (part, result) in parts.iter().zip(results) {
            let got = match result.as_ref().map_err(|error| &**error) {
                Ok(got) => *got,
                Err(Error::EndOfFile { got, .. } | Error::FileChanged { got, .. }) => *got,
                Err(error) => {
                    may_fail(error, may_be_cancelled);
                    continue;
                }
            };
            let place = &bytes[index(part.at)..index(part.at + part.len)];
            let (there, rest) = place.split_at(index(got));
            self.shadow.check_read(part.offset, part.len, there, changes);
            assert!(rest.iter().all(|byte| *byte == BEFORE), "bytes behind the end of {part:?}");
        }
        let mut between = 0;
        for part in parts {
            let gap = &bytes[index(between)..index(part.at)];
            assert!(gap.iter().all(|byte| *byte == BEFORE), "bytes before {part:?}");
            between = part.at + part.len;
        }
    }
}

/// Fails unless a cancel caused the error; no write is sure that failed.
#[track_caller]
fn may_fail(error: &Error, may_be_cancelled: bool) -> bool {
    assert!(matches!(error, Error::Cancelled { .. }) && may_be_cancelled, "{error}: {error:?}");
    false
}
