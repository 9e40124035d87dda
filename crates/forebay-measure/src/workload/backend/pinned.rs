//! The plain methods with pinned memory: each thread reads into it, then copies to the GPU. Without
//! a file only the copies remain, which show the limit of the link.

#![expect(unsafe_code, reason = "copies to and from a GPU are queued by raw address")]

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

use forebay::Buffer;
use forebay::gpu::{Device, DeviceError};
use forebay::internal::Stream;

use super::call::{Call, Context, Done};
use super::plain::{Opened, Plain};
use super::pool::Places;
use super::submit::Backend;
use crate::failure::{Failure, Result};
use crate::results::Direction;

/// A GPU's memory, and the stream of each place that fills it.
struct OnGpu {
    device: Arc<dyn Device>,
    memory: Places,
    streams: Vec<Stream>,
}

impl Drop for OnGpu {
    fn drop(&mut self) {
        for stream in self.streams.drain(..) {
            // Copies must end before the memory is freed. If the driver fails, they have ended too.
            let _ = self.device.synchronize(stream);
            let _ = self.device.destroy_stream(stream);
        }
    }
}

/// Makes requests without an engine.
pub(super) struct Pinned {
    file: Option<Opened>,
    /// Dropped before `pinned`, which its copies use.
    gpu: Option<OnGpu>,
    pinned: Places,
    /// Places with calls, the oldest first.
    order: VecDeque<usize>,
}

impl Pinned {
    /// Opens the file and allocates memory.
    ///
    /// # Errors
    /// System and GPU errors, and a file system without O_DIRECT.
    pub(super) fn new(plain: Option<Plain>, context: &Context<'_>) -> Result<Self> {
        let file = plain.map(|plain| Opened::new(plain, context)).transpose()?;
        let pinned = context.places(None)?;
        let mut gpu = None;
        if let Some(device) = context.device.filter(|_| !plain.is_some_and(Plain::stays_in_host)) {
            let (memory, streams) = (context.places(Some(device))?, Vec::new());
            let own = gpu.insert(OnGpu { device: Arc::clone(device), memory, streams });
            for _ in 0..context.depth {
                own.streams.push(device.create_stream().map_err(|error| refused(&error))?);
            }
        }
        Ok(Self { file, gpu, pinned, order: VecDeque::new() })
    }

    fn read(&mut self, place: usize, offsets: &[u64]) -> Result<()> {
        let bytes = self.pinned.get(place).as_mut_slice().expect("it is the host's");
        let (len, size) = (bytes.len(), bytes.len() / offsets.len());
        if let Some(file) = &self.file {
            let mut requests = bytes.chunks_mut(size).zip(offsets);
            requests.try_for_each(|(bytes, &offset)| file.read(bytes, offset))?;
        }
        let Some(OnGpu { device, memory, streams }) = &mut self.gpu else { return Ok(()) };
        let host = NonNull::from(bytes).cast();
        // SAFETY: both are this place's, `len` bytes long, and stay until `wait` or the drop of
        // the place has waited for the stream.
        let queued = unsafe {
            device.copy_to_device(streams[place], memory.get(place).address(), host, len)
        };
        queued.map_err(|error| refused(&error))
    }

    fn write(&mut self, place: usize, offsets: &[u64]) -> Result<()> {
        let bytes = self.pinned.get(place).as_mut_slice().expect("it is the host's");
        let (len, size) = (bytes.len(), bytes.len() / offsets.len());
        if let Some(OnGpu { device, memory, streams }) = &mut self.gpu {
            let host = NonNull::from(&mut *bytes).cast();
            let address = memory.get(place).address();
            // SAFETY: as in `read`, and `synchronize` below waits for the copy.
            unsafe { device.copy_to_host(streams[place], host, address, len) }
                .and_then(|()| device.synchronize(streams[place]))
                .map_err(|error| refused(&error))?;
        }
        let Some(file) = &self.file else { return Ok(()) };
        let mut requests = bytes.chunks(size).zip(offsets);
        requests.try_for_each(|(bytes, &offset)| file.write(bytes, offset))
    }
}

fn refused(error: &DeviceError) -> Failure {
    Failure::new("the GPU driver refused a copy").because(error.to_string()).hint(
        "check the kernel log (`dmesg`) and `nvidia-smi` for errors of the GPU; then measure again",
    )
}

impl Backend for Pinned {
    fn start(&mut self, place: usize, call: Call<'_>) -> Result<Option<Instant>> {
        match call.direction {
            Direction::Read => self.read(place, call.offsets)?,
            Direction::Write => self.write(place, call.offsets)?,
        }
        self.order.push_back(place);
        Ok(None)
    }

    /// Only copies are in flight, and the oldest ends soon.
    fn wait(&mut self, _until: Option<Instant>) -> Result<Option<Done>> {
        let place = self.order.pop_front().expect("a call is in flight");
        if let Some(gpu) = &self.gpu {
            gpu.device.synchronize(gpu.streams[place]).map_err(|error| refused(&error))?;
        }
        Ok(Some(Done { place, at: Instant::now() }))
    }

    fn memory(&mut self, place: usize) -> Option<&mut Buffer> {
        let memory = self.gpu.as_mut().map_or(&mut self.pinned, |gpu| &mut gpu.memory);
        memory.buffers[place].as_mut()
    }

    fn opened(&self) -> Option<&Opened> {
        self.file.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_copy_is_an_error_with_a_remedy() {
        let (name, detail) = ("CUDA_ERROR_ILLEGAL_ADDRESS".into(), String::new());
        let failure = refused(&DeviceError { call: "cuMemcpyHtoDAsync", code: 700, name, detail });
        assert!(failure.causes[0].contains("ILLEGAL_ADDRESS"), "{failure:?}");
        assert!(failure.hint.unwrap().contains("`dmesg`"));
    }
}
