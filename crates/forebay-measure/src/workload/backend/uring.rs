//! The plain method with any queue depth: `io_uring` with O_DIRECT and host memory, like `fio`. The
//! thread that makes requests also submits them.
//!
//! It shows a drive's rate at a queue depth without hand-over between threads, and the overhead of
//! the load itself.

#![expect(unsafe_code, reason = "the kernel moves bytes to and from memory by raw address")]

use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use forebay::Buffer;
use io_uring::{IoUring, opcode, squeue, types};
use rustix::io::Errno;

use super::plain::{Opened, Plain};
use super::pool::Places;
use super::{Backend, Call, Context, Done};
use crate::failure::{Failure, Result};
use crate::memory::whole;
use crate::results::Direction;

/// Maximum requests in flight: the size of the kernel's largest ring (`IORING_MAX_ENTRIES`).
const IN_FLIGHT_MAX: usize = 32768;
/// A short request resumes at a multiple of this, which every drive's block divides.
const BLOCK: usize = 4096;
/// Time limit for requests in flight when the backend is dropped. After that a hanging drive may
/// still write to their memory, so it is leaked.
const DRAIN_MAX: Duration = Duration::from_secs(1);
/// The polling interval of the ring if the kernel (before Linux 5.11) cannot wait with a timeout.
const NAP: Duration = Duration::from_micros(100);

/// One call.
#[derive(Debug)]
struct Place {
    /// The address of its memory.
    address: u64,
    direction: Direction,
    offsets: Vec<u64>,
    /// Bytes of each request that have been moved.
    moved: Vec<usize>,
    /// Requests that have not ended.
    left: usize,
    failed: Option<Failure>,
}

/// Makes requests with its own ring.
pub(super) struct UringBackend {
    file: Opened,
    request_size: usize,
    batch: usize,
    ring: ManuallyDrop<IoUring>,
    memory: ManuallyDrop<Places>,
    places: Vec<Place>,
    in_flight: usize,
    ended: VecDeque<Done>,
}

impl UringBackend {
    /// Opens the file, allocates memory and sets the ring up.
    ///
    /// # Errors
    /// System errors; a file system without O_DIRECT; a policy that forbids `io_uring`.
    pub(super) fn new(context: &Context<'_>) -> Result<Self> {
        let file = Opened::new(Plain::Uring, context)?;
        if let Some(reason) = context.engine.open(context.path)?.no_io_uring() {
            let text = format!("cannot use `io_uring` on `{}`", context.path.display());
            let hint = "use `--method cpu`: it needs no ring, and has depth 1 for each thread";
            return Err(Failure::new(text).because(reason).hint(hint));
        }
        let mut memory = context.places(None)?;
        let place = |buffer: &mut Buffer| Place {
            address: buffer.as_mut_slice().expect("it is the host's").as_mut_ptr() as u64,
            direction: Direction::Read,
            offsets: Vec::with_capacity(context.batch),
            moved: Vec::with_capacity(context.batch),
            left: 0,
            failed: None,
        };
        Ok(Self {
            places: memory.buffers.iter_mut().flatten().map(place).collect(),
            ring: ManuallyDrop::new(ring(context.depth * context.batch)?),
            memory: ManuallyDrop::new(memory),
            file,
            request_size: whole(context.request_size),
            batch: context.batch,
            in_flight: 0,
            ended: VecDeque::new(),
        })
    }

    /// Submits the rest of one request of a place.
    fn push(&mut self, place: usize, index: usize) -> io::Result<()> {
        let Place { address, direction, ref offsets, ref moved, .. } = self.places[place];
        let moved = moved[index];
        let memory = (address + (index * self.request_size + moved) as u64) as *mut u8;
        let fd = types::Fd(self.file.file.as_raw_fd());
        let len = u32::try_from(self.request_size - moved).map_err(|_| Errno::INVAL)?;
        let offset = offsets[index] + moved as u64;
        let entry = match direction {
            Direction::Read => opcode::Read::new(fd, memory, len).offset(offset).build(),
            Direction::Write => opcode::Write::new(fd, memory, len).offset(offset).build(),
        };
        let entry: squeue::Entry = entry.user_data((place * self.batch + index) as u64);
        // SAFETY: the memory is this place's, `request_size` bytes for each index. Nothing touches
        // it until the completion is reaped; if dropped before that, `drop` leaks it.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        // The ring has room for all that are in flight, so this cannot fail.
        pushed.map_err(|_| Errno::AGAIN)?;
        self.in_flight += 1;
        Ok(())
    }

    /// Submits the pushed requests, and waits for `want` completions.
    fn submit(&mut self, want: usize) -> io::Result<()> {
        match self.ring.submit_and_wait(want) {
            Err(error) if !is_passing(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Waits for one completion, until `until` at most.
    fn submit_until(&mut self, until: Option<Instant>) -> io::Result<()> {
        let Some(until) = until else { return self.submit(1) };
        let left = until.saturating_duration_since(Instant::now());
        if !self.ring.params().is_feature_ext_arg() {
            self.submit(0)?;
            std::thread::sleep(left.min(NAP));
            return Ok(());
        }
        let left = types::Timespec::from(left);
        let bound = types::SubmitArgs::new().timespec(&left);
        match self.ring.submitter().submit_with_args(1, &bound) {
            Err(error) if !is_passing(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Reaps completions from the ring.
    fn reap(&mut self) {
        let mut again = Vec::new();
        let over: Vec<(u64, i32)> =
            self.ring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
        let at = Instant::now();
        for (number, result) in over {
            self.in_flight -= 1;
            let number = whole(number);
            let (place, index) = (number / self.batch, number % self.batch);
            match self.ended_with(place, index, result) {
                Ok(false) => again.push((place, index)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    again.push((place, index));
                }
                ended => self.count(place, index, ended.map(drop), at),
            }
        }
        for (place, index) in again {
            if let Err(error) = self.push(place, index) {
                self.count(place, index, Err(error), at);
            }
        }
    }

    /// Whether a request has finished. A short one is submitted again from its last whole block,
    /// since O_DIRECT takes no other offset.
    fn ended_with(&mut self, place: usize, index: usize, result: i32) -> io::Result<bool> {
        let done = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))?;
        let Place { direction, ref mut moved, .. } = self.places[place];
        let moved = &mut moved[index];
        if *moved + done >= self.request_size {
            return Ok(true);
        }
        let whole_blocks = done - done % BLOCK;
        if whole_blocks == 0 {
            return Err(match direction {
                Direction::Read => io::ErrorKind::UnexpectedEof.into(),
                Direction::Write => io::ErrorKind::WriteZero.into(),
            });
        }
        *moved += whole_blocks;
        Ok(false)
    }

    fn count(&mut self, place: usize, index: usize, ended: io::Result<()>, at: Instant) {
        self.file.goes_on();
        let own = &mut self.places[place];
        own.left -= 1;
        if let Err(error) = ended {
            let (direction, offset) = (own.direction, own.offsets[index]);
            let failure = self.file.failed(direction, offset, self.request_size, &error);
            own.failed.get_or_insert(failure);
        }
        if own.left == 0 {
            self.ended.push_back(Done { place, at });
        }
    }

    fn refused(&self, error: &io::Error) -> Failure {
        Failure::at("wait for requests to", &self.file.path, error)
    }
}

/// Temporary errors: a signal, or completions that must be reaped first.
fn is_passing(error: &io::Error) -> bool {
    let passing = [Errno::INTR, Errno::AGAIN, Errno::BUSY, Errno::TIME];
    Errno::from_io_error(error).is_some_and(|errno| passing.contains(&errno))
}

fn ring(requests: usize) -> Result<IoUring> {
    let entries = u32::try_from(requests.min(IN_FLIGHT_MAX)).unwrap_or(1);
    if requests > IN_FLIGHT_MAX {
        let text = format!("{requests} requests of one thread are too many for `io_uring`");
        let hint = format!("the maximum of `--depth` times `--batch` is {IN_FLIGHT_MAX}");
        return Err(Failure::usage(text).hint(hint));
    }
    // Completions do not interrupt this thread: it collects them itself (Linux 5.19).
    let ring = IoUring::builder()
        .setup_coop_taskrun()
        .dontfork()
        .build(entries)
        .or_else(|_| IoUring::builder().dontfork().build(entries));
    ring.map_err(|error| {
        let failure = Failure::io("`io_uring` is not available", &error);
        if error.raw_os_error() == Some(libc::ENOMEM) {
            return failure.hint("raise the limit on locked memory (`ulimit -l`)");
        }
        failure.hint("use `--method cpu`: it needs no ring, and has depth 1 for each thread")
    })
}

impl Backend for UringBackend {
    fn start(&mut self, place: usize, call: Call<'_>) -> Result<Option<Instant>> {
        let own = &mut self.places[place];
        own.direction = call.direction;
        own.offsets.clear();
        own.offsets.extend_from_slice(call.offsets);
        own.moved.clear();
        own.moved.resize(call.offsets.len(), 0);
        own.left = call.offsets.len();
        let pushed = (0..call.offsets.len()).try_for_each(|index| self.push(place, index));
        let submitted = pushed.and_then(|()| self.submit(0));
        submitted.map(|()| None).map_err(|error| {
            // Requests that were already pushed may end later: this keeps the call from ending.
            self.places[place].left += 1;
            self.refused(&error)
        })
    }

    fn wait(&mut self, until: Option<Instant>) -> Result<Option<Done>> {
        loop {
            self.reap();
            if let Some(done) = self.ended.pop_front() {
                let failed = self.places[done.place].failed.take();
                return failed.map_or(Ok(Some(done)), Err);
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(None);
            }
            self.submit_until(until).map_err(|error| self.refused(&error))?;
        }
    }

    fn memory(&mut self, place: usize) -> Option<&mut Buffer> {
        self.memory.buffers[place].as_mut()
    }

    fn opened(&self) -> Option<&Opened> {
        Some(&self.file)
    }
}

impl Drop for UringBackend {
    fn drop(&mut self) {
        let until = Instant::now() + DRAIN_MAX;
        while self.in_flight > 0 && Instant::now() < until {
            if self.submit_until(Some(until)).is_err() {
                break;
            }
            self.in_flight -= self.ring.completion().count().min(self.in_flight);
        }
        if self.in_flight > 0 {
            return; // the kernel may still write into the memory
        }
        // SAFETY: dropped once, here, and nothing is in flight.
        unsafe {
            ManuallyDrop::drop(&mut self.ring);
            ManuallyDrop::drop(&mut self.memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forebay::Engine;

    use super::*;
    use crate::results::Cache;

    const SIZE: u64 = 4096;

    fn byte(at: u64) -> u8 {
        u8::try_from(at / 512 % 251).unwrap()
    }

    fn file(len: u64) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new_in(".").unwrap();
        let bytes: Vec<u8> = (0..len).map(byte).collect();
        std::fs::write(file.path(), bytes).unwrap();
        file
    }

    fn backend(engine: &Engine, path: &std::path::Path, writes: bool) -> Option<UringBackend> {
        let request_size = SIZE;
        let (depth, batch, key) = (3, 2, 7);
        let (device, life) = (None, &Arc::default());
        let (pool, cache) = (&Arc::default(), Cache::Warm);
        let context = Context {
            engine,
            pool,
            device,
            path,
            writes,
            cache,
            request_size,
            depth,
            batch,
            key,
            life,
        };
        UringBackend::new(&context).inspect_err(|why| println!("skipped: {why:?}")).ok()
    }

    #[test]
    fn many_requests_are_in_flight_and_each_has_its_own_bytes() {
        let engine = Engine::new(forebay::Options::default()).unwrap();
        let file = file(64 << 10);
        let Some(mut backend) = backend(&engine, file.path(), true) else { return };
        let offsets = [[0, 8192], [4096, 61440], [32768, 20480]];
        for (place, offsets) in offsets.iter().enumerate() {
            backend.start(place, Call { direction: Direction::Read, offsets }).unwrap();
        }
        let mut places: Vec<usize> =
            (0..3).map(|_| backend.wait(None).unwrap().unwrap().place).collect();
        places.sort_unstable();
        assert_eq!(places, [0, 1, 2]);
        for (place, offsets) in offsets.iter().enumerate() {
            for (index, offset) in offsets.iter().enumerate() {
                let bytes = backend.memory(place).unwrap().as_slice().unwrap();
                let bytes = &bytes[index * 4096..][..4096];
                assert!(bytes.iter().zip(*offset..).all(|(own, at)| *own == byte(at)));
            }
        }
        let soon = Instant::now() + Duration::from_millis(5);
        assert!(backend.wait(Some(soon)).unwrap().is_none() && Instant::now() >= soon);
        // The contents of the first place go to the end of the file.
        let offsets = [49152, 57344];
        backend.start(0, Call { direction: Direction::Write, offsets: &offsets }).unwrap();
        let soon = Instant::now() + Duration::from_secs(60);
        assert_eq!(backend.wait(Some(soon)).unwrap().map(|done| done.place), Some(0));
        let bytes = std::fs::read(file.path()).unwrap();
        assert_eq!(bytes[49152..][..4096], bytes[..4096]);
        assert_eq!(bytes[57344..][..4096], bytes[8192..][..4096]);
    }

    #[test]
    fn reads_behind_the_end_fail_and_the_others_continue() {
        let engine = Engine::new(forebay::Options::default()).unwrap();
        let file = file(10_000);
        let Some(mut backend) = backend(&engine, file.path(), false) else { return };
        for (place, offsets) in [[0, 4096], [4096, 8192], [0, 0]].iter().enumerate() {
            backend.start(place, Call { direction: Direction::Read, offsets }).unwrap();
        }
        let ended: Vec<_> = (0..3).map(|_| backend.wait(None)).collect();
        let failures: Vec<_> = ended.iter().filter_map(|ended| ended.as_ref().err()).collect();
        assert_eq!(failures.len(), 1, "{ended:?}");
        assert!(format!("{:?}", failures[0]).contains("at 8192"), "{failures:?}");
        let failure = ring(IN_FLIGHT_MAX + 1).map(|_| ()).unwrap_err();
        assert!(failure.usage && failure.message.starts_with("32769 requests"), "{failure:?}");
        // In flight when it is dropped.
        backend.start(0, Call { direction: Direction::Read, offsets: &[0, 4096] }).unwrap();
    }
}
