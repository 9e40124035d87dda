//! The link's limit: copies of pinned memory to or from the GPU; without a GPU, the best parallel
//! copy in host memory into the same target.

#![expect(unsafe_code, reason = "copies to and from a GPU are queued by raw address")]

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

use forebay::gpu::{Device, Stream};
use forebay::units::MIB;
use forebay::{Buffer, Engine};
use forebay_measure::failure::{Failure, Result};
use forebay_measure::memory::whole;
use forebay_measure::parallel::{cores, each_piece};
use forebay_measure::results::Direction;

/// Copies between pinned memory and the target.
#[derive(Debug)]
pub(super) struct Link {
    pinned: Buffer,
    /// The target: of the GPU, or host memory.
    memory: Buffer,
    len: u64,
    how: How,
}

#[derive(Debug)]
enum How {
    Gpu {
        stream: Stream,
        device: Arc<dyn Device>,
    },
    /// By this many threads, which are determined by the first copy.
    Host {
        threads: Option<usize>,
    },
}

impl Link {
    /// Allocates the memory for copies of at most `len` bytes to and from the GPU, or host memory.
    ///
    /// # Errors
    /// Engine or system errors, for lack of memory.
    pub(super) fn new(engine: &Engine, device: Option<&Arc<dyn Device>>, len: u64) -> Result<Self> {
        let mut pinned = engine.allocate_pinned(len)?;
        pinned.fill(1)?;
        let (memory, how) = match device {
            None => (engine.allocate_pinned(len)?, How::Host { threads: None }),
            Some(device) => {
                let memory = engine.allocate(device.id(), len)?;
                let stream = device.create_stream().map_err(|e| failed(&e))?;
                (memory, How::Gpu { stream, device: Arc::clone(device) })
            }
        };
        Ok(Self { pinned, memory, len, how })
    }

    /// Bytes of one copy.
    pub(super) fn bytes(&self) -> u64 {
        self.len
    }

    /// Makes further copies of at most `len` bytes.
    pub(super) fn shorten(&mut self, len: u64) {
        self.len = len.min(self.pinned.len());
    }

    /// How the copies are made, for the report.
    pub(super) fn how(&self) -> String {
        match self.how {
            How::Gpu { .. } => "copies of pinned memory, one after the other".into(),
            How::Host { threads } => {
                let threads = threads.unwrap_or(1);
                let s = if threads == 1 { "" } else { "s" };
                format!("copies in host memory by {threads} thread{s}")
            }
        }
    }

    /// Makes one copy; returns its seconds.
    ///
    /// # Errors
    /// GPU errors.
    pub(super) fn sample(&mut self, direction: Direction) -> Result<f64> {
        let len = whole(self.len);
        let address = self.memory.address();
        let host = self.pinned.as_mut_slice().expect("it is the host's");
        match &mut self.how {
            How::Gpu { stream, device } => {
                let host = NonNull::from(host).cast();
                let start = Instant::now();
                let queued = match direction {
                    // SAFETY: both buffers hold `len` bytes, are borrowed exclusively by this
                    // function, and the stream is waited for before it returns.
                    Direction::Read => unsafe {
                        device.copy_to_device(*stream, address, host, len)
                    },
                    // SAFETY: as above.
                    Direction::Write => unsafe { device.copy_to_host(*stream, host, address, len) },
                };
                let copied = queued.and_then(|()| device.synchronize(*stream));
                copied.map_err(|error| failed(&error))?;
                Ok(start.elapsed().as_secs_f64())
            }
            How::Host { threads } => {
                let target = self.memory.as_mut_slice().expect("it is the host's");
                let (source, target) = match direction {
                    Direction::Read => (&host[..len], &mut target[..len]),
                    Direction::Write => (&target[..len], &mut host[..len]),
                };
                let threads = *threads.get_or_insert_with(|| best_threads(source, target));
                Ok(copy_host(source, target, threads))
            }
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let How::Gpu { stream, device } = &self.how {
            // Every copy has ended, so an error of the driver is harmless.
            let _ = device.destroy_stream(*stream);
        }
    }
}

/// The fastest number of threads: a power of two, or one for each core.
fn best_threads(source: &[u8], target: &mut [u8]) -> usize {
    let all = cores();
    let powers = (0..).map(|shift| 1_usize << shift).take_while(|count| *count < all);
    let timed = powers.chain([all]).map(|count| (count, copy_host(source, target, count)));
    timed.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(1, |(count, _)| count)
}

/// Copies with this many threads; returns the seconds.
fn copy_host(source: &[u8], target: &mut [u8], threads: usize) -> f64 {
    let start = Instant::now();
    each_piece(target, whole(MIB), threads, |at, piece| {
        piece.copy_from_slice(&source[whole(at)..][..piece.len()]);
    });
    start.elapsed().as_secs_f64()
}

fn failed(error: &forebay::gpu::DeviceError) -> Failure {
    Failure::new("cannot measure the link to the GPU").because(error.to_string())
}

#[cfg(test)]
mod tests {
    use forebay_measure::data::Pattern;
    use forebay_measure::memory::put_into;

    use super::*;

    #[test]
    fn host_copies_reach_the_target() {
        let engine = Engine::new(forebay::Options::default()).unwrap();
        let len = 5 * MIB + 3;
        let mut link = Link::new(&engine, None, 2 * len).unwrap();
        link.shorten(len);
        put_into(&mut link.memory, 0, Pattern::new(2), 2 * len).unwrap();
        link.sample(Direction::Write).unwrap();
        link.memory.fill(0).unwrap();
        assert!(link.sample(Direction::Read).unwrap() > 0.0);
        let bytes = link.memory.as_slice().unwrap();
        assert!(Pattern::new(2).matches(0, &bytes[..whole(len)]));
        assert_eq!(bytes[whole(len)], 0);
        assert!(link.how().starts_with("copies in host memory by "), "{}", link.how());
    }
}
