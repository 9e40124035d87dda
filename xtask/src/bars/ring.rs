//! The plain method from a drive to a GPU: one thread with one io_uring keeps 1 MiB requests in
//! flight with O_DIRECT and copies each on completion. Without the copies it is a plain reader, so
//! the two show what the copies cost the drive.

#![expect(unsafe_code, reason = "hands memory to the kernel and to the GPU by raw addresses")]

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use forebay::gpu::{Device, Event, Stream};
use forebay::units::MIB;
use forebay::{Buffer, Engine};
use io_uring::{IoUring, opcode, types};

use crate::bar::Stop;
use crate::lab::Gpu;

/// Bytes of a request.
const PIECE_LEN: u64 = MIB;
/// Pieces beyond the requests in flight, for copies in progress.
const SPARE: usize = 4;

/// A ring with its pinned memory and stream.
pub(crate) struct PlainRing {
    device: Arc<dyn Device>,
    stream: Stream,
    events: Vec<Event>,
    ring: IoUring,
    depth: usize,
    base: NonNull<u8>,
    // The memory of `base`, and its engine.
    _pinned: Buffer,
    _engine: Engine,
}

/// One run: the position of each piece.
struct Run {
    len: u64,
    next: u64,
    done: u64,
    in_flight: usize,
    /// The file offset of each piece.
    offsets: Vec<u64>,
    /// Last in, first out, while it is still in a cache.
    free: Vec<usize>,
    copied: VecDeque<usize>,
}

/// Opens a file for reading with O_DIRECT.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let direct = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(direct).open(path)
}

impl PlainRing {
    /// For `depth` requests in flight.
    pub(crate) fn new(gpu: &Gpu, depth: u32) -> Result<Self, Stop> {
        let pieces = depth as usize + SPARE;
        let mut pinned = gpu.engine.allocate_pinned(pieces as u64 * PIECE_LEN)?;
        let bytes = pinned.as_mut_slice().ok_or_else(|| fail("pinned memory is the host's"))?;
        let base = NonNull::from(bytes).cast();
        let stream = gpu.device.create_stream()?;
        let events = (0..pieces).map(|_| gpu.device.create_event()).collect::<Result<_, _>>()?;
        Ok(Self {
            device: Arc::clone(&gpu.device),
            stream,
            events,
            ring: IoUring::new(depth)?,
            depth: depth as usize,
            base,
            _pinned: pinned,
            _engine: gpu.engine.clone(),
        })
    }

    /// Reads the first `len` bytes of `file`, which was opened with O_DIRECT, and copies them to
    /// the start of `target`, if there is one.
    pub(crate) fn read(
        &mut self,
        file: &File,
        len: u64,
        target: Option<&mut Buffer>,
    ) -> Result<(), Stop> {
        assert!(target.as_ref().is_none_or(|target| len <= target.len()), "the file fits");
        let pieces = self.events.len();
        let mut run = Run {
            len,
            next: 0,
            done: 0,
            in_flight: 0,
            offsets: vec![0; pieces],
            free: (0..pieces).rev().collect(),
            copied: VecDeque::new(),
        };
        let to = target.as_ref().map(|target| target.address());
        let mut result = Ok(());
        while result.is_ok() && run.done < len {
            result = self.step(&mut run, file, to);
        }
        // The kernel and the GPU may still use the memory after a failure.
        while run.in_flight > 0 {
            match self.wait() {
                Ok(()) => run.in_flight -= self.ring.completion().count(),
                // The kernel might then write into memory that is in use elsewhere.
                Err(_) => std::process::abort(),
            }
        }
        result.and(self.device.synchronize(self.stream).map_err(Stop::from))
    }

    fn step(&mut self, run: &mut Run, file: &File, to: Option<u64>) -> Result<(), Stop> {
        while let Some(&piece) = run.copied.front()
            && self.device.is_done(self.events[piece])?
        {
            run.copied.pop_front();
            run.give(piece);
        }
        while run.in_flight < self.depth && run.next < run.len {
            let Some(piece) = run.free.pop() else { break };
            self.submit(run, file, piece)?;
        }
        if run.in_flight == 0 {
            std::thread::yield_now(); // only copies are left
            return Ok(());
        }
        self.wait()?;
        let landed: Vec<_> =
            self.ring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
        run.in_flight -= landed.len();
        for (piece, result) in landed {
            let piece = usize::try_from(piece).expect("an index of this ring");
            let got = u64::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))?;
            if got < run.wanted(piece) {
                return Err(fail("a request came back short"));
            }
            match to {
                Some(address) => self.copy(run, piece, address)?,
                None => run.give(piece),
            }
        }
        Ok(())
    }

    /// Waits until a request has landed.
    fn wait(&self) -> io::Result<()> {
        loop {
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other.map(drop),
            }
        }
    }

    /// Submits one by one: the kernel merges neighbours that are submitted together.
    fn submit(&mut self, run: &mut Run, file: &File, piece: usize) -> Result<(), Stop> {
        let len = u32::try_from(PIECE_LEN).expect("it is 1 MiB");
        let read = opcode::Read::new(types::Fd(file.as_raw_fd()), self.piece(piece).as_ptr(), len);
        let entry = read.offset(run.next).build().user_data(piece as u64);
        // SAFETY: nothing else uses the piece until the request has completed, and `read` ends only
        // after that; the file is open as long.
        unsafe { self.ring.submission().push(&entry) }.map_err(|_| fail("the ring is full"))?;
        run.offsets[piece] = run.next;
        run.next += PIECE_LEN;
        run.in_flight += 1;
        self.ring.submit()?;
        Ok(())
    }

    fn copy(&self, run: &mut Run, piece: usize, target: u64) -> Result<(), Stop> {
        let len = usize::try_from(run.wanted(piece)).expect("at most a piece");
        let to = target + run.offsets[piece];
        // SAFETY: the piece is not used again before its event, the target is borrowed by `read`,
        // which waits for the stream at its end, and both are long enough.
        unsafe { self.device.copy_to_device(self.stream, to, self.piece(piece), len)? };
        self.device.record(self.events[piece], self.stream)?;
        run.copied.push_back(piece);
        Ok(())
    }

    fn piece(&self, index: usize) -> NonNull<u8> {
        let offset = index * usize::try_from(PIECE_LEN).expect("it is 1 MiB");
        // SAFETY: there are as many pieces as events, and indices come from those.
        unsafe { self.base.add(offset) }
    }
}

impl Run {
    /// Bytes that a piece's request must bring; the last may extend past the end.
    fn wanted(&self, piece: usize) -> u64 {
        PIECE_LEN.min(self.len - self.offsets[piece])
    }

    fn give(&mut self, piece: usize) {
        self.done += self.wanted(piece);
        self.free.push(piece);
    }
}

impl Drop for PlainRing {
    fn drop(&mut self) {
        let _ = self.device.synchronize(self.stream);
        for &event in &self.events {
            let _ = self.device.destroy_event(event);
        }
        let _ = self.device.destroy_stream(self.stream);
    }
}

fn fail(cause: &str) -> Stop {
    Stop::Fail(cause.into())
}

#[cfg(test)]
mod tests {
    use forebay::Options;

    use super::*;
    use crate::{data, lab};

    #[test]
    fn every_byte_arrives_also_of_a_last_short_piece() {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::new(Options::default()).unwrap();
        let device = engine.device(&"sim".parse().unwrap()).unwrap().unwrap();
        let gpu = Gpu { engine, device };
        for len in [1000, PIECE_LEN, 9 * PIECE_LEN + 17] {
            let path = folder.path().join(format!("data-{len}"));
            data::write(&path, len).unwrap();
            let file = open(&path).or_else(|_| File::open(&path)).unwrap();
            let mut target = gpu.allocate(len).unwrap();
            target.fill(0x5A).unwrap();
            let mut ring = PlainRing::new(&gpu, 3).unwrap();
            ring.read(&file, len, None).unwrap();
            assert!(lab::verify(&target, len).is_err());
            ring.read(&file, len, Some(&mut target)).unwrap();
            lab::verify(&target, len).unwrap();
            assert!(ring.read(&file, len + PIECE_LEN, None).is_err(), "the file ends");
        }
    }
}
