//! A simulated transfer's memory, on the host or on a simulated GPU, with guard bytes around it.

#![expect(unsafe_code, reason = "reads and writes memory on the simulated GPU, as a caller would")]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::device::FaultyDevice;
use crate::gpu::{Device, DeviceResult, Stream};
use crate::memory::HostMemory;

/// Guard bytes before and after the memory; they must not change.
pub(super) const GUARD: usize = 4096;
const GUARD_BYTE: u8 = 0xA5;

/// Whether all of `bytes` are `byte`; compares in blocks, since tests are not optimised.
pub(super) fn all_are(bytes: &[u8], byte: u8) -> bool {
    let pattern = [byte; 4096];
    bytes.chunks(4096).all(|part| *part == pattern[..part.len()])
}

/// The memory of one transfer.
pub(super) struct Memory {
    /// The bytes themselves, or a copy of the GPU's bytes.
    host: HostMemory,
    gpu: Option<(Arc<FaultyDevice>, u64)>,
    at: usize,
    len: usize,
}

impl Memory {
    /// `bytes` between guards, `skew` bytes after an aligned address; `None` if the GPU's
    /// allocation fails.
    pub(super) fn new(bytes: &[u8], skew: usize, gpu: Option<&Arc<FaultyDevice>>) -> Option<Self> {
        let at = GUARD + skew;
        let whole = at + bytes.len() + GUARD;
        let mut host = HostMemory::map(whole).expect("a little memory");
        host.bytes_mut().fill(GUARD_BYTE);
        host.bytes_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        let gpu = match gpu {
            Some(gpu) => {
                let device: Arc<dyn Device> = Arc::clone(gpu) as _;
                host.register(&device).ok()?;
                Some((Arc::clone(gpu), gpu.allocate(whole as u64).ok()?))
            }
            None => None,
        };
        let memory = Self { host, gpu, at, len: bytes.len() };
        memory.on_gpu(|gpu, stream, address| {
            // SAFETY: both ranges are this memory's own, and the stream is waited for.
            unsafe { gpu.copy_to_device(stream, address, memory.host.pointer(), whole) }
        });
        Some(memory)
    }

    /// The address for requests.
    pub(super) fn address(&self) -> u64 {
        self.gpu.as_ref().map_or(self.host.address(), |gpu| gpu.1) + self.at as u64
    }

    /// Checks the guards and returns the current bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        let whole = self.host.len();
        self.on_gpu(|gpu, stream, address| {
            // SAFETY: as above; no slice of these bytes exists before this call.
            unsafe { gpu.copy_to_host(stream, self.host.pointer(), address, whole) }
        });
        let bytes = self.host.bytes();
        let (inside, behind) = (self.at, self.at + self.len);
        assert!(all_are(&bytes[..inside], GUARD_BYTE), "bytes were written before the memory");
        assert!(all_are(&bytes[behind..], GUARD_BYTE), "bytes were written behind the memory");
        &bytes[inside..behind]
    }

    /// Runs a copy until it succeeds: the simulated GPU fails these copies too.
    fn on_gpu(&self, copy: impl Fn(&FaultyDevice, Stream, u64) -> DeviceResult<()>) {
        let Some((gpu, address)) = &self.gpu else { return };
        let armed = gpu.armed.swap(false, Ordering::Relaxed);
        let stream = gpu.create_stream().expect("streams cost nothing");
        let mut done = false;
        while !done {
            copy(gpu, stream, *address).expect("a copy inside one allocation");
            done = gpu.synchronize(stream).is_ok();
        }
        gpu.destroy_stream(stream).expect("our own stream");
        gpu.armed.store(armed, Ordering::Relaxed);
    }

    /// Frees it, which fails while a copy is queued.
    pub(super) fn free(self) {
        if let Some((gpu, address)) = &self.gpu {
            // SAFETY: allocated here, and its transfer has ended.
            unsafe { gpu.free(*address) }
                .expect("no copy is queued on the memory of an ended transfer");
        }
    }
}
