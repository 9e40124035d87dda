//! The link's limit: copies of pinned memory to or from the GPU; without a GPU, the best parallel
//! copy in host memory into the same target.

#![expect(unsafe_code, reason = "copies to and from a GPU are queued by raw address")]

use std::ptr::NonNull;
use std::sync::Arc;

use forebay::gpu::{Device, Stream};
use forebay::units::{GIB, MIB};
use forebay::{Buffer, Engine};

use crate::bench::cpu::{Spent, timed};
use crate::bench::memory::{GpuMemory, HostMemory, Memory, whole};
use crate::bench::parallel::{cores, each_piece};
use crate::failure::{Failure, Result};
use crate::report::json::Direction;

/// Maximum number of bytes of one copy: the link reaches its full rate at 256 MiB.
pub(crate) const LEN_MAX: u64 = GIB;

/// Copies between prepared memory and the target.
#[derive(Debug)]
pub struct Link {
    len: u64,
    way: Way,
}

#[derive(Debug)]
enum Way {
    Gpu { pinned: Buffer, stream: Stream, device: Arc<dyn Device> },
    Host { memory: HostMemory, threads: [Option<usize>; 2] },
}

impl Link {
    /// Allocates the memory for copies of at most `len` bytes to and from `memory`.
    ///
    /// # Errors
    /// Engine or system errors, for lack of memory.
    pub fn new(engine: &Engine, memory: &Memory, len: u64) -> Result<Self> {
        let len = len.min(LEN_MAX);
        let way = match memory {
            Memory::Host(_) => Self::host_way(len)?,
            Memory::Gpu(gpu) => {
                let mut pinned = engine.allocate_pinned(len)?;
                pinned.fill(1)?;
                let device = Arc::clone(&gpu.device);
                let stream = device.create_stream().map_err(|e| failed(&e))?;
                Way::Gpu { pinned, stream, device }
            }
        };
        Ok(Self { len, way })
    }

    fn host_way(len: u64) -> Result<Way> {
        let mut memory = HostMemory::allocate(len)?;
        // Memory that was never written is mapped to one page of zeros, which copies far too fast.
        memory.bytes_mut().fill(1);
        Ok(Way::Host { memory, threads: [None; 2] })
    }

    /// Bytes of one copy.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.len
    }

    /// How the copies are made, for the report.
    #[must_use]
    pub fn how(&self, direction: Direction) -> String {
        match &self.way {
            Way::Gpu { .. } => "one copy of pinned memory".into(),
            Way::Host { threads, .. } => {
                let threads = threads[direction as usize].unwrap_or(1);
                let s = if threads == 1 { "" } else { "s" };
                format!("copies in host memory by {threads} thread{s}")
            }
        }
    }

    /// Makes one copy.
    ///
    /// # Errors
    /// GPU errors.
    pub fn sample(&mut self, direction: Direction, memory: &mut Memory) -> Result<Spent> {
        let len = whole(self.len);
        match (&mut self.way, memory) {
            (Way::Gpu { pinned, stream, device }, Memory::Gpu(gpu)) => {
                copy_gpu(pinned, *stream, device.as_ref(), gpu, direction, len)
            }
            (Way::Host { memory: ours, threads }, Memory::Host(host)) => {
                let (source, target) = match direction {
                    Direction::Read => (ours.bytes(), &mut host.bytes_mut()[..len]),
                    Direction::Write => (&host.bytes()[..len], ours.bytes_mut()),
                };
                let best = &mut threads[direction as usize];
                let threads = *best.get_or_insert_with(|| best_threads(source, target));
                Ok(timed(|| copy_host(source, target, threads)).1)
            }
            _ => Err(Failure::new("the link was made for another target")),
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Way::Gpu { stream, device, .. } = &self.way {
            // Every copy has ended, so an error of the driver is harmless.
            let _ = device.destroy_stream(*stream);
        }
    }
}

/// The fastest number of threads: a power of two, or one for each core.
fn best_threads(source: &[u8], target: &mut [u8]) -> usize {
    let all = cores();
    let powers = (0..).map(|shift| 1_usize << shift).take_while(|count| *count < all);
    let timed = powers.chain([all]).map(|count| {
        let ((), spent) = timed(|| copy_host(source, target, count));
        (count, spent.seconds)
    });
    timed.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(1, |(count, _)| count)
}

fn copy_host(source: &[u8], target: &mut [u8], threads: usize) {
    let copied = each_piece(target, whole(MIB), threads, |at, piece| {
        piece.copy_from_slice(&source[whole(at)..][..piece.len()]);
        Ok::<(), std::convert::Infallible>(())
    });
    match copied {
        Ok(()) => {}
        Err(never) => match never {},
    }
}

fn copy_gpu(
    pinned: &mut Buffer,
    stream: Stream,
    device: &dyn Device,
    gpu: &mut GpuMemory,
    direction: Direction,
    len: usize,
) -> Result<Spent> {
    let address = gpu.buffer.address();
    let host = pinned.as_mut_slice().and_then(|bytes| NonNull::new(bytes.as_mut_ptr()));
    let host = host.ok_or_else(|| Failure::new("pinned memory is not on the host"))?;
    let (result, spent) = timed(|| {
        let queued = match direction {
            // SAFETY: both buffers hold `len` bytes, are borrowed exclusively by this function,
            // and the stream is waited for before it returns.
            Direction::Read => unsafe { device.copy_to_device(stream, address, host, len) },
            // SAFETY: as above.
            Direction::Write => unsafe { device.copy_to_host(stream, host, address, len) },
        };
        queued.and_then(|()| device.synchronize(stream))
    });
    result.map_err(|error| failed(&error))?;
    Ok(spent)
}

fn failed(error: &forebay::gpu::DeviceError) -> Failure {
    Failure::new("cannot measure the link to the GPU").because(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::data::Pattern;

    #[test]
    fn host_copies_reach_the_target() {
        let len = 5 * MIB + 3;
        let mut memory = Memory::Host(HostMemory::allocate(2 * len).unwrap());
        let mut link = Link { len, way: Link::host_way(len).unwrap() };
        memory.put(Pattern::new(2), 2 * len).unwrap();
        link.sample(Direction::Write, &mut memory).unwrap();
        memory.set(0).unwrap();
        let spent = link.sample(Direction::Read, &mut memory).unwrap();
        assert!(spent.seconds > 0.0);
        let Memory::Host(host) = &memory else { panic!("{memory:?}") };
        assert!(Pattern::new(2).matches(0, &host.bytes()[..whole(len)]));
        let how = link.how(Direction::Read);
        assert!(how.starts_with("copies in host memory by "), "{how}");
    }
}
