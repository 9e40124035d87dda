//! The usual approach: one thread pool for all files. Each file is cut into slices, the slices of
//! all files are in one queue, and a free thread takes the next.
//!
//! Cold bytes are moved with O_DIRECT if the file system supports it. So only the order in which
//! drives are served differs from the engine's.

#![expect(unsafe_code, reason = "copies to and from a GPU are queued by raw address")]

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread;

use ::forebay::gpu::{Device, DeviceError, Stream};
use ::forebay::units::{KIB, MIB, align_down, format_size};
use ::forebay::{Buffer, Engine, Route};

use super::{Job, Way};
use crate::bench::cpu::{Spent, timed};
use crate::bench::drives::targets::Targets;
use crate::bench::held::no_link;
use crate::bench::memory::{end, whole};
use crate::bench::methods::Moved;
use crate::failure::{Failure, Result};
use crate::report::json::{Cache, Direction, Settings};

/// Threads of the pool.
const THREADS: usize = 16;
/// Bytes of one slice.
const SLICE: u64 = 4 * MIB;
/// O_DIRECT accepts multiples of this as offsets, lengths and addresses on every known drive.
const ALIGN: u64 = 4 * KIB;

/// One pool for all files.
#[derive(Debug)]
pub struct OneQueue {
    engine: Engine,
    files: Vec<Files>,
    /// For a GPU, the resources of each thread.
    lanes: Vec<Lane>,
}

/// One file, opened with and without O_DIRECT.
#[derive(Debug)]
struct Files {
    path: PathBuf,
    direct: Option<File>,
    cached: File,
}

/// Pinned memory and a stream of one thread.
#[derive(Debug)]
struct Lane {
    pinned: Buffer,
    stream: Stream,
    device: Arc<dyn Device>,
}

impl Drop for Lane {
    fn drop(&mut self) {
        // Every copy has ended, so an error of the driver is harmless.
        let _ = self.device.destroy_stream(self.stream);
    }
}

/// A piece of one file and of its target.
struct Slice<'a> {
    file: &'a Files,
    offset: u64,
    memory: Memory<'a>,
}

/// The memory that a slice moves to or from.
enum Memory<'a> {
    Host(Mutex<&'a mut [u8]>),
    Gpu { address: u64, len: usize },
}

impl OneQueue {
    /// Uses `engine` for pinned memory only.
    #[must_use]
    pub fn new(engine: Engine) -> Self {
        Self { engine, files: Vec::new(), lanes: Vec::new() }
    }

    fn slices<'a>(files: &'a [Files], buffers: &'a mut [Buffer]) -> Vec<Slice<'a>> {
        let mut slices = Vec::new();
        for (file, buffer) in files.iter().zip(buffers) {
            let (address, len) = (buffer.address(), buffer.len());
            if let Some(bytes) = buffer.as_mut_slice() {
                let pieces = bytes.chunks_mut(whole(SLICE)).enumerate();
                slices.extend(pieces.map(|(index, bytes)| {
                    let memory = Memory::Host(Mutex::new(bytes));
                    Slice { file, offset: index as u64 * SLICE, memory }
                }));
                continue;
            }
            for offset in (0..len).step_by(whole(SLICE)) {
                let len = whole(SLICE.min(len - offset));
                let memory = Memory::Gpu { address: address + offset, len };
                slices.push(Slice { file, offset, memory });
            }
        }
        slices
    }

    /// Moves all slices; the threads are spawned before the clock starts.
    fn pool(&mut self, slices: &[Slice<'_>], direction: Direction) -> (Result<()>, Spent) {
        let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let first = Mutex::new(Ok(()));
        let gate = RwLock::new(());
        let closed = gate.write().unwrap_or_else(PoisonError::into_inner);
        let work = |mut lane: Option<&mut Lane>| {
            drop(gate.read());
            while let Some(slice) = slices.get(next.fetch_add(1, Ordering::Relaxed)) {
                if failed.load(Ordering::Relaxed) {
                    break;
                }
                if let Err(error) = slice.run(lane.as_deref_mut(), direction) {
                    let error = slice.failed(direction, &error);
                    failed.store(true, Ordering::Relaxed);
                    *first.lock().unwrap_or_else(PoisonError::into_inner) = Err(error);
                }
            }
        };
        let spent = thread::scope(|scope| {
            let mut lanes = self.lanes.iter_mut();
            let spawn = |_| {
                let (lane, work) = (lanes.next(), &work);
                thread::Builder::new().spawn_scoped(scope, move || work(lane))
            };
            let threads: io::Result<Vec<_>> = (0..THREADS.min(slices.len())).map(spawn).collect();
            let threads = threads.unwrap_or_else(|error| {
                let text = "cannot start the threads of `one-queue`";
                let failure = Failure::io(text, &error);
                failed.store(true, Ordering::Relaxed);
                *first.lock().unwrap_or_else(PoisonError::into_inner) = Err(failure);
                Vec::new()
            });
            let ((), spent) = timed(|| {
                drop(closed);
                for thread in threads {
                    if let Err(panic) = thread.join() {
                        std::panic::resume_unwind(panic);
                    }
                }
            });
            spent
        });
        (first.into_inner().unwrap_or_else(PoisonError::into_inner), spent)
    }
}

impl Way for OneQueue {
    fn settings(&self) -> Option<Settings> {
        let values = [("threads", THREADS.to_string()), ("slice", SLICE.to_string())];
        let values = values.map(|(name, value)| (name.to_owned(), value));
        Some(Settings { name: "fixed".into(), values: BTreeMap::from(values) })
    }

    fn open(&mut self, job: &Job, targets: &mut Targets) -> Result<()> {
        self.files.clear();
        for part in &job.parts {
            let failed = |error: &io::Error| {
                Failure::io(format!("cannot open `{}`", part.path.display()), error)
            };
            let write = job.direction == Direction::Write;
            let mut how = OpenOptions::new();
            how.read(true).write(write).custom_flags(no_link(&part.path, write));
            let cached = how.open(&part.path).map_err(|error| failed(&error))?;
            let direct = match job.cache {
                Cache::Resident => None,
                Cache::Cold => {
                    match how
                        .custom_flags(libc::O_DIRECT | no_link(&part.path, write))
                        .open(&part.path)
                    {
                        Ok(file) => Some(file),
                        Err(error) if error.kind() == ErrorKind::InvalidInput => None,
                        Err(error) => return Err(failed(&error)),
                    }
                }
            };
            self.files.push(Files { path: part.path.clone(), direct, cached });
        }
        if let Some(device) = &targets.device
            && self.lanes.is_empty()
        {
            for _ in 0..THREADS {
                let mut pinned = self.engine.allocate_pinned(SLICE)?;
                pinned.fill(1)?;
                let stream = device.create_stream().map_err(|error| {
                    Failure::new("cannot create a stream").because(error.to_string())
                })?;
                self.lanes.push(Lane { pinned, stream, device: Arc::clone(device) });
            }
        }
        Ok(())
    }

    fn run(&mut self, job: &Job, targets: &mut Targets) -> Result<(Moved, Spent)> {
        let buffers: Result<Vec<Buffer>> =
            job.parts.iter().map(|part| targets.take(part.index)).collect();
        let mut buffers = buffers?;
        let files = std::mem::take(&mut self.files);
        let slices = Self::slices(&files, &mut buffers);
        let (result, mut spent) = self.pool(&slices, job.direction);
        drop(slices);
        for (part, buffer) in job.parts.iter().zip(buffers) {
            targets.give_back(part.index, Some(buffer));
        }
        result?;
        if job.direction == Direction::Write && job.cache == Cache::Cold {
            let (synced, more) = timed(|| files.iter().try_for_each(|f| f.cached.sync_data()));
            synced.map_err(|error| Failure::io("cannot sync the files of `one-queue`", &error))?;
            spent.seconds += more.seconds;
            spent.cpu_seconds += more.cpu_seconds;
        }
        let direct = files.iter().all(|files| files.direct.is_some());
        let source = if direct { "O_DIRECT" } else { "page cache" };
        let pinned = if targets.device.is_some() { ", pinned memory" } else { "" };
        let reason = format!(
            "one queue for all files, slices of {}, {THREADS} threads, {source}{pinned}",
            format_size(SLICE)
        );
        // If only some files use O_DIRECT, the bytes of each route are unknown.
        let said = match (direct, files.iter().any(|files| files.direct.is_some())) {
            (true, _) => vec![(Route::Staged, job.len())],
            (false, false) => vec![(Route::Cached, job.len())],
            (false, true) => Vec::new(),
        };
        Ok((Moved { bytes: job.len(), route: None, reason: Some(reason), said }, spent))
    }

    fn close(&mut self, job: &Job) -> Result<()> {
        let written = job.direction == Direction::Write;
        let files = self.files.drain(..);
        let closed = files.flat_map(|Files { path, direct, cached }| {
            let both = [Some(cached), direct].into_iter().flatten();
            both.map(move |file| end(file, &path, written))
        });
        closed.collect::<Vec<_>>().into_iter().collect()
    }
}

impl Slice<'_> {
    fn run(&self, lane: Option<&mut Lane>, direction: Direction) -> io::Result<()> {
        match (&self.memory, lane) {
            (Memory::Host(bytes), _) => {
                let mut bytes = bytes.lock().unwrap_or_else(PoisonError::into_inner);
                match direction {
                    Direction::Read => self.read(&mut bytes),
                    Direction::Write => self.write(&bytes),
                }
            }
            (Memory::Gpu { address, len }, Some(lane)) => {
                let (stream, device) = (lane.stream, Arc::clone(&lane.device));
                let bytes = lane.pinned.as_mut_slice().ok_or(ErrorKind::Unsupported)?;
                let bytes = &mut bytes[..*len];
                let host = NonNull::from(&mut *bytes).cast();
                match direction {
                    Direction::Read => {
                        self.read(bytes)?;
                        // SAFETY: the GPU's memory is this slice's part of a buffer that the job
                        // holds, the host's is this thread's, and `synchronize` awaits the copy.
                        unsafe { device.copy_to_device(stream, *address, host, *len) }
                            .and_then(|()| device.synchronize(stream))
                            .map_err(|error| refused(&error))
                    }
                    Direction::Write => {
                        // SAFETY: as above.
                        unsafe { device.copy_to_host(stream, host, *address, *len) }
                            .and_then(|()| device.synchronize(stream))
                            .map_err(|error| refused(&error))?;
                        self.write(bytes)
                    }
                }
            }
            (Memory::Gpu { .. }, None) => Err(ErrorKind::Unsupported.into()),
        }
    }

    fn failed(&self, direction: Direction, error: &io::Error) -> Failure {
        let (verb, path) = (direction.name(), self.file.path.display());
        Failure::io(format!("cannot {verb} `{path}` at {}", self.offset), error)
    }

    /// The file and length of the part that can use O_DIRECT, and the start of the rest.
    fn parts(&self, len: usize) -> (Option<(&File, usize)>, usize) {
        let direct = whole(align_down(len as u64, ALIGN));
        match &self.file.direct {
            Some(file) if direct > 0 => (Some((file, direct)), direct),
            _ => (None, 0),
        }
    }

    fn read(&self, bytes: &mut [u8]) -> io::Result<()> {
        let (direct, rest) = self.parts(bytes.len());
        if let Some((file, len)) = direct {
            file.read_exact_at(&mut bytes[..len], self.offset)?;
        }
        self.file.cached.read_exact_at(&mut bytes[rest..], self.offset + rest as u64)
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let (direct, rest) = self.parts(bytes.len());
        if let Some((file, len)) = direct {
            file.write_all_at(&bytes[..len], self.offset)?;
        }
        self.file.cached.write_all_at(&bytes[rest..], self.offset + rest as u64)
    }
}

fn refused(error: &DeviceError) -> io::Error {
    io::Error::other(error.to_string())
}
