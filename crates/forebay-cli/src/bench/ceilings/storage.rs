//! The storage's limit: O_DIRECT requests of 1 MiB, at the best queue depth.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay::units::{ByteRange, MIB, align_down};

use crate::bench::cpu::{Spent, timed};
use crate::bench::data::Pattern;
use crate::bench::held::no_link;
use crate::bench::memory::{HostMemory, flush, whole};
use crate::bench::parallel::each_range;
use crate::failure::{Failure, Result};
use crate::report::json::Direction;
use crate::steps::Step;

/// Bytes of one request.
const REQUEST: u64 = MIB;
/// Queue depths that are tried, with one thread for each request.
const DEPTHS: [usize; 3] = [8, 16, 32];
/// Bytes of all buffers. Each buffer occupies its own huge page.
pub(crate) const BUFFERS: u64 = DEPTHS[DEPTHS.len() - 1] as u64 * 2 * MIB;
/// Maximum number of bytes of a try.
const TRY: u64 = 128 * MIB;
/// Writes end at a multiple of this; it suits every known drive.
const WRITE_ALIGN: u64 = 4096;

/// Reads or writes one file with O_DIRECT.
#[derive(Debug)]
pub struct Storage {
    path: PathBuf,
    file: File,
    direction: Direction,
    len: u64,
    buffers: Arc<Buffers>,
    try_len: u64,
    depth: Option<usize>,
}

/// Memory for requests, one buffer for each request in flight. Several files may share it, one
/// after the other.
#[derive(Debug)]
pub struct Buffers(Vec<Mutex<HostMemory>>);

impl Buffers {
    /// Allocates buffers for the largest depth that is tried.
    ///
    /// # Errors
    /// System errors, for lack of memory.
    pub fn allocate() -> Result<Arc<Self>> {
        Self::for_depth(DEPTHS[DEPTHS.len() - 1])
    }

    /// Allocates buffers for `depth` requests.
    ///
    /// # Errors
    /// System errors, for lack of memory.
    pub fn for_depth(depth: usize) -> Result<Arc<Self>> {
        let mut buffers = Vec::with_capacity(depth);
        for index in 0..depth {
            let mut memory = HostMemory::allocate(REQUEST)?;
            Pattern::new(index as u64).inverse().fill(0, memory.bytes_mut());
            buffers.push(Mutex::new(memory));
        }
        Ok(Arc::new(Self(buffers)))
    }
}

impl Storage {
    /// Opens the first `len` bytes of `path`; the text says why O_DIRECT is unavailable.
    ///
    /// The bytes that writes put there differ from every byte of a [`Pattern`] that is not
    /// inverted.
    ///
    /// # Errors
    /// System errors.
    pub fn open(path: &Path, direction: Direction, len: u64) -> Result<Result<Self, String>> {
        Self::open_with(path, direction, len, &Buffers::allocate()?)
    }

    /// Like `open`, with buffers that other users may share.
    ///
    /// # Errors
    /// System errors.
    pub fn open_with(
        path: &Path,
        direction: Direction,
        len: u64,
        buffers: &Arc<Buffers>,
    ) -> Result<Result<Self, String>> {
        let write = direction == Direction::Write;
        let len = if write { align_down(len, WRITE_ALIGN) } else { len };
        if len == 0 {
            return Ok(Err(format!(
                "fewer than {WRITE_ALIGN} bytes cannot be written with O_DIRECT"
            )));
        }
        let mut how = OpenOptions::new();
        how.read(true).write(write).custom_flags(libc::O_DIRECT | no_link(path, write));
        let opening = Step::begin("open", path);
        let opened = how.open(path);
        drop(opening);
        let file = match opened {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::InvalidInput => {
                return Ok(Err("the file system does not support O_DIRECT".into()));
            }
            Err(error) => {
                let text = format!("cannot open `{}` with O_DIRECT", path.display());
                return Err(Failure::io(text, &error));
            }
        };
        let buffers = Arc::clone(buffers);
        let path = path.to_owned();
        Ok(Ok(Self { path, file, direction, len, buffers, try_len: TRY, depth: None }))
    }

    /// Makes further samples move only `len` bytes.
    pub fn shorten(&mut self, len: u64) {
        let write = self.direction == Direction::Write;
        self.len = self.len.min(if write { align_down(len, WRITE_ALIGN) } else { len });
    }

    /// Limits a try of one depth to `len` bytes.
    pub fn try_at_most(&mut self, len: u64) {
        self.try_len = len.clamp(REQUEST, TRY);
    }

    /// Bytes of one sample.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.len
    }

    /// Block size and depth, for the report.
    #[must_use]
    pub fn how(&self) -> String {
        format!("O_DIRECT, 1 MiB, depth {}", self.depth.unwrap_or(DEPTHS[0]))
    }

    /// Moves all bytes once, at the best depth.
    ///
    /// # Errors
    /// System errors.
    pub fn sample(&mut self) -> Result<Spent> {
        let depth = self.find_depth()?;
        self.pass(depth, self.len)
    }

    /// The best depth, searched once.
    ///
    /// # Errors
    /// System errors.
    pub fn find_depth(&mut self) -> Result<usize> {
        Ok(match self.depth {
            Some(depth) => depth,
            None => *self.depth.insert(self.best_depth()?),
        })
    }

    /// Bytes per second at a medium depth, measured for at most `bound`.
    ///
    /// # Errors
    /// System errors.
    pub fn estimate(&self, bound: Duration) -> Result<f64> {
        let end = Instant::now() + bound;
        let moved = AtomicU64::new(0);
        let moving = Step::begin(self.direction.name(), &self.path);
        let request = |buffer: &mut [u8], range| {
            if Instant::now() < end {
                moved.fetch_add(self.request(buffer, range)?, Ordering::Relaxed);
                moving.goes_on();
            }
            Ok(())
        };
        let (result, spent) = timed(|| self.each(DEPTHS[1], self.len, request));
        drop(moving); // a sync has no time limit
        let (settled, syncing) = timed(|| self.settle());
        result.and(settled)?;
        let seconds = spent.seconds + syncing.seconds;
        Ok(crate::bench::stats::rate(moved.into_inner(), seconds))
    }

    fn best_depth(&self) -> Result<usize> {
        let mut best = (f64::INFINITY, DEPTHS[0]);
        for depth in DEPTHS {
            let spent = self.pass(depth, self.len.min(self.try_len))?;
            // A greater depth must gain 2 %: it also costs memory and CPU time.
            if spent.seconds < best.0 * 0.98 {
                best = (spent.seconds, depth);
            }
        }
        Ok(best.1)
    }

    fn pass(&self, depth: usize, len: u64) -> Result<Spent> {
        let moving = Step::begin(self.direction.name(), &self.path);
        let request = |buffer: &mut [u8], range| {
            let moved = self.request(buffer, range).map(drop);
            moving.goes_on();
            moved
        };
        let (moved, mut spent) = timed(|| self.each(depth, len, request));
        drop(moving); // a sync has no time limit
        let (settled, syncing) = timed(|| self.settle());
        spent.seconds += syncing.seconds;
        spent.cpu_seconds += syncing.cpu_seconds;
        moved.and(settled).map(|()| spent)
    }

    fn each(
        &self,
        depth: usize,
        len: u64,
        work: impl Fn(&mut [u8], ByteRange) -> Result<()> + Sync,
    ) -> Result<()> {
        let depth = depth.min(self.buffers.0.len());
        let next = AtomicUsize::new(0);
        let buffer = || {
            let index = next.fetch_add(1, Ordering::Relaxed);
            self.buffers.0[index].lock().unwrap_or_else(PoisonError::into_inner)
        };
        each_range(len, REQUEST, depth, buffer, |buffer, range| work(buffer.bytes_mut(), range))
    }

    /// One request; returns its bytes. A read may extend past the end of the file, so that its
    /// length stays aligned for the drive.
    fn request(&self, buffer: &mut [u8], range: ByteRange) -> Result<u64> {
        let result = match self.direction {
            Direction::Read => read_to(&self.file, buffer, range),
            Direction::Write => self.file.write_all_at(&buffer[..whole(range.len())], range.start),
        };
        let verb = self.direction.name();
        result.map(|()| range.len()).map_err(|error| {
            let path = self.path.display();
            Failure::io(format!("cannot {verb} `{path}` at {} with O_DIRECT", range.start), &error)
        })
    }

    /// Waits until written bytes are on the drive.
    fn settle(&self) -> Result<()> {
        match self.direction {
            Direction::Read => Ok(()),
            Direction::Write => {
                let synced = self.file.sync_data();
                let failed = || format!("cannot sync `{}`", self.path.display());
                synced.map_err(|error| Failure::io(failed(), &error))?;
                flush(&self.file, &self.path)
            }
        }
    }
}

fn read_to(file: &File, buffer: &mut [u8], range: ByteRange) -> io::Result<()> {
    loop {
        match file.read_at(buffer, range.start) {
            // A short read ends at the end of the file, or at an offset that is not aligned for
            // O_DIRECT.
            Ok(got) if got as u64 >= range.len() => return Ok(()),
            Ok(_) => return Err(ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::make;

    fn file(len: u64) -> tempfile::NamedTempFile {
        // This folder is on a drive; the system's temporary folder may be in memory.
        let file = tempfile::NamedTempFile::new_in(".").unwrap();
        make::fill(file.path(), Pattern::new(1), len).unwrap();
        file
    }

    #[test]
    fn a_file_of_any_length_is_read() {
        for len in [1, 4097, 3 * MIB, 3 * MIB + 17] {
            let file = file(len);
            match Storage::open(file.path(), Direction::Read, len).unwrap() {
                Ok(mut storage) => {
                    assert!(storage.sample().unwrap().seconds > 0.0);
                    assert!(storage.how().contains("depth"));
                    assert!(storage.estimate(Duration::from_secs(1)).unwrap() > 0.0);
                }
                Err(reason) => println!("skipped: direct I/O: {reason}"),
            }
        }
    }

    #[test]
    fn every_written_byte_differs_from_the_pattern() {
        let len = 2 * MIB + 4096;
        let file = file(len);
        match Storage::open(file.path(), Direction::Write, len).unwrap() {
            Ok(mut storage) => {
                storage.sample().unwrap();
                let bytes = std::fs::read(file.path()).unwrap();
                assert_eq!(bytes.len() as u64, len);
                assert!(bytes.iter().all(|byte| byte & 1 == 0));
            }
            Err(reason) => println!("skipped: direct I/O: {reason}"),
        }
    }
}
