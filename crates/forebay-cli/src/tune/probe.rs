//! Measures a cell with the engine itself, at a fixed depth and block size and with a full queue.
//!
//! A few transfers of [`UNIT`] bytes are always in progress, so that the end of one causes no
//! pause. A sample begins when the first requests in flight have completed, and runs from one
//! completion to another.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay::gpu::Device;
use forebay::units::{KIB, MIB, format_size};
use forebay::{
    Buffer, Direction, Engine, Error, File, OpenOptions, Options, Reason, RequestOptions, Route,
    Transfer,
};

use super::curve::{Cell, float, whole as whole_of};
use super::search::{Probe, SIZE_MAX, Sample};
use crate::bench::data::Pattern;
use crate::bench::demand::PROGRAM;
use crate::bench::memory::whole;
use crate::failure::{Failure, Result};
use crate::steps::Step;

/// Bytes of one transfer.
pub(crate) const UNIT: u64 = 8 * MIB;
/// Most bytes requested beyond those in flight.
const AHEAD_MAX: u64 = 64 * MIB;
/// Time in seconds that they should last: the thread that requests more may be late.
const AHEAD_S: f64 = 0.02;
/// The interval of progress checks.
const LOOK: Duration = Duration::from_micros(200);
/// Minimum number of full queues, and of requests, in a sample, if the drive is fast enough.
const TURNS: u64 = 3;
const REQUESTS: u64 = 16;
/// Time limit of a sample that has made progress.
const SAMPLE_MAX: Duration = Duration::from_millis(1500);
/// A drive that is silent for this long counts as unresponsive.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Stacks of 24 reader threads, 2 MiB each, of this engine and of the previous one, whose threads
/// may not have ended yet. `ulimit -v` and `-d` count stacks whole. With this reserve, a search is
/// refused or succeeds at each of 12 limits from 180 to 400 MiB. With half of it, it failed at 180
/// and 200 MiB.
const STACKS: u64 = 2 * 24 * 2 * MIB;

/// The bytes in flight that this much available host memory allows. Each transfer of a sample has a
/// buffer, even if it is still queued. Writes also use staging buffers: at least four, each for
/// eight requests.
pub(crate) fn in_flight_within(available: u64, direction: Direction) -> u64 {
    let fixed = AHEAD_MAX + 2 * UNIT + PROGRAM + STACKS;
    match direction {
        Direction::Read => available.saturating_sub(fixed) / 2,
        Direction::Write => available.saturating_sub(fixed + 4 * 8 * SIZE_MAX) / 4,
    }
}

/// Measures cells on one file, in one direction.
#[derive(Debug)]
pub(crate) struct EngineProbe {
    /// The settings that all cells share.
    pub(crate) options: Options,
    pub(crate) path: PathBuf,
    /// Bytes of the file that are used, a multiple of [`UNIT`].
    pub(crate) len: u64,
    pub(crate) direction: Direction,
    /// The GPU that writes come from: only those use O_DIRECT.
    pub(crate) device: Option<Arc<dyn Device>>,
    pub(crate) seen: Seen,
    spare: Vec<Buffer>,
}

/// Observations of all samples, besides their rates.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Bytes moved with O_DIRECT.
    pub(crate) around: u64,
    /// Bytes that did not.
    pub(crate) through: u64,
    /// Messages of the engines.
    pub(crate) notes: Vec<String>,
}

impl EngineProbe {
    pub(crate) fn new(
        options: Options,
        path: PathBuf,
        len: u64,
        direction: Direction,
        device: Option<Arc<dyn Device>>,
    ) -> Self {
        let seen = Seen::default();
        Self { options, path, len: len / UNIT * UNIT, direction, device, seen, spare: Vec::new() }
    }

    /// An engine for one cell.
    fn engine(&self, cell: Cell) -> Result<Engine> {
        let mut options = self.options.clone();
        let depth = usize::try_from(cell.depth).unwrap_or(usize::MAX);
        options.depth = Some(depth);
        options.in_flight = options.in_flight.max(depth);
        options.segment_size = cell.request_size;
        options.slot_size = (8 * cell.request_size).max(256 * KIB);
        // Slots that are being filled or copied, and twice the bytes in flight.
        options.arena_size = Some(4 * options.slot_size + 2 * cell.in_flight());
        let engine = Engine::new(options)?;
        if let Some(device) = &self.device {
            engine.add_device(device)?;
        }
        Ok(engine)
    }

    fn open(&self, engine: &Engine) -> Result<File> {
        let mut how = OpenOptions::default();
        how.write = self.direction == Direction::Write;
        let _step = Step::begin("open", &self.path);
        Ok(engine.open_with(&self.path, &how)?)
    }

    /// Memory of [`UNIT`] bytes for a transfer.
    fn memory(&self, engine: &Engine) -> Result<Buffer> {
        let Some(device) = &self.device else { return Ok(engine.allocate_pinned(UNIT)?) };
        let mut buffer = engine.allocate(device.id(), UNIT)?;
        // Some drives do not store zeros, which would make writes too fast.
        let mut bytes = vec![0; whole(UNIT)];
        Pattern::new(buffer.address()).fill(0, &mut bytes);
        buffer.upload(0, &bytes)?;
        Ok(buffer)
    }
}

impl Probe for EngineProbe {
    fn measure(&mut self, cell: Cell, time: Duration) -> Result<Sample> {
        let start = Instant::now();
        let engine = self.engine(cell)?;
        let file = self.open(&engine)?;
        let mut flow = Flow::new(self, &engine, &file, cell);
        let sampled = flow.run(time);
        let drained = flow.drain();
        for note in engine.notes() {
            if !self.seen.notes.contains(&note) {
                self.seen.notes.push(note);
            }
        }
        let (rate, latency_s) = sampled?;
        drained?;
        file.close()?;
        drop(engine);
        Ok(Sample { rate, latency_s, took: start.elapsed() })
    }
}

/// The progress of a sample's transfers.
#[derive(Debug, Clone, Copy)]
struct Mark {
    at: Instant,
    bytes: u64,
    /// Time of all requests together.
    file: Duration,
}

/// The transfers of one sample.
struct Flow<'a> {
    probe: &'a mut EngineProbe,
    engine: &'a Engine,
    file: &'a File,
    cell: Cell,
    request: RequestOptions,
    running: Vec<Transfer>,
    /// Bytes requested so far.
    asked: u64,
    /// Bytes and time of transfers that have ended.
    ended: (u64, Duration),
    start: Instant,
}

impl<'a> Flow<'a> {
    fn new(probe: &'a mut EngineProbe, engine: &'a Engine, file: &'a File, cell: Cell) -> Self {
        let request = match probe.direction {
            Direction::Read => RequestOptions::default(),
            Direction::Write => RequestOptions::by_route(Route::Staged),
        };
        let (running, ended, start) = (Vec::new(), (0, Duration::ZERO), Instant::now());
        Self { probe, engine, file, cell, request, running, asked: 0, ended, start }
    }

    /// Keeps the queue full for `time`; returns the rate, and the mean time of a request.
    fn run(&mut self, time: Duration) -> Result<(f64, f64)> {
        self.start = Instant::now();
        let mut last = Mark { at: self.start, bytes: 0, file: Duration::ZERO };
        let mut first: Option<Mark> = None;
        let turn = self.cell.in_flight();
        let enough = (turn * TURNS).max(self.cell.request_size * REQUESTS);
        loop {
            self.ask(last.bytes)?;
            let now = self.look()?;
            if now.bytes > last.bytes {
                last = now;
                if first.is_none() && now.bytes >= turn {
                    first = Some(now);
                }
            }
            if last.at.elapsed() > SILENCE_MAX {
                return Err(self.silent());
            }
            if let Some(first) = first {
                let (bytes, passed) = (last.bytes - first.bytes, last.at - first.at);
                let late = self.start.elapsed() > SAMPLE_MAX;
                if bytes > 0 && (late || (passed >= time && bytes >= enough)) {
                    let requests = float(bytes) / float(self.cell.request_size);
                    let file = last.file.saturating_sub(first.file);
                    let rate = float(bytes) / passed.as_secs_f64();
                    return Ok((rate, file.as_secs_f64() / requests));
                }
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Starts transfers until enough are queued beyond the `done` bytes.
    fn ask(&mut self, done: u64) -> Result<()> {
        let passed = self.start.elapsed().as_secs_f64();
        // Bytes that the drive moves in `AHEAD_S`.
        let lasts = float(done) / passed.max(1e-6) * AHEAD_S;
        let ahead = if done == 0 { UNIT } else { whole_of(lasts).clamp(MIB, AHEAD_MAX) };
        let wanted = done + self.cell.in_flight() + ahead;
        while self.asked < wanted {
            let memory = match self.probe.spare.pop() {
                Some(memory) => memory,
                None => self.probe.memory(self.engine)?,
            };
            let offset = self.asked % self.probe.len;
            let started = match self.probe.direction {
                Direction::Read => self.file.start_read(offset, memory, &self.request),
                Direction::Write => self.file.start_write(offset, memory, &self.request),
            };
            self.running.push(started?);
            self.asked += UNIT;
        }
        Ok(())
    }

    /// Checks the progress of all transfers, and collects those that have ended.
    fn look(&mut self) -> Result<Mark> {
        let mut mark = Mark { at: Instant::now(), bytes: self.ended.0, file: self.ended.1 };
        let mut failed = None;
        for transfer in std::mem::take(&mut self.running) {
            let done = transfer.is_done();
            let (bytes, file) = (transfer.progress().0, transfer.stages().file);
            mark.bytes += bytes;
            mark.file += file;
            if !done {
                self.running.push(transfer);
                continue;
            }
            self.ended.0 += bytes;
            self.ended.1 += file;
            failed = self.take(transfer).err().or(failed);
        }
        failed.map_or(Ok(mark), Err)
    }

    /// Collects a transfer that has ended, or is about to.
    fn take(&mut self, transfer: Transfer) -> Result<()> {
        for share in transfer.routes() {
            let around = matches!(share.reason, Reason::NotResident | Reason::TriedNotResident)
                || share.route == Route::Staged;
            let bytes =
                if around { &mut self.probe.seen.around } else { &mut self.probe.seen.through };
            *bytes += share.bytes;
        }
        let (result, memory) = transfer.wait();
        self.probe.spare.extend(memory);
        match result {
            Ok(_) | Err(Error::Cancelled { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Cancels the transfers in flight and waits for them.
    fn drain(&mut self) -> Result<()> {
        let running = std::mem::take(&mut self.running);
        running.iter().for_each(Transfer::cancel);
        let mut result = Ok(());
        for transfer in running {
            if transfer.wait_for(SILENCE_MAX).is_none() {
                // The engine keeps its memory until no I/O can access it.
                drop(transfer);
                return result.and(Err(self.silent()));
            }
            result = result.and(self.take(transfer));
        }
        result
    }

    fn silent(&self) -> Failure {
        let place = self.probe.path.display();
        let Cell { request_size, depth } = self.cell;
        Failure::new(format!("cannot tune `{place}`: its drive does not answer"))
            .because(format!(
                "{depth} requests of {} made no progress for {} s",
                format_size(request_size),
                SILENCE_MAX.as_secs()
            ))
            .hint("check the kernel log (`dmesg`); `forebay map` names the drive")
    }
}
