//! The plain methods: a few threads that `pread` pieces of 1 MiB into host memory, and one copy of
//! pinned memory to a GPU.

#![expect(unsafe_code, reason = "copies are made by raw addresses")]

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::ptr::NonNull;
use std::sync::Arc;

use forebay::gpu::{Device, Stream};
use forebay::{Buffer, Engine};
use forebay_measure::parallel::try_each_piece;

use crate::bar::Stop;
use crate::lab::Gpu;

/// Bytes of one piece.
const PIECE_LEN: usize = 1 << 20;

/// Reads `target.len()` bytes from the start of `file` by `threads` threads.
pub(crate) fn read(file: &File, target: &mut [u8], threads: usize) -> io::Result<()> {
    try_each_piece(target, PIECE_LEN, threads, |offset, piece| file.read_exact_at(piece, offset))
}

/// Pinned memory and its stream: the link to a GPU, by the device trait alone.
#[derive(Debug)]
pub(crate) struct Link {
    device: Arc<dyn Device>,
    stream: Stream,
    pinned: Buffer,
    // The pinned memory belongs to it.
    _engine: Engine,
}

impl Link {
    /// Allocates `len` bytes of pinned memory.
    pub(crate) fn new(gpu: &Gpu, len: u64) -> Result<Self, Stop> {
        let pinned = gpu.engine.allocate_pinned(len)?;
        let stream = gpu.device.create_stream()?;
        Ok(Self { device: gpu.device.clone(), stream, pinned, _engine: gpu.engine.clone() })
    }

    /// The pinned memory.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        self.pinned.as_mut_slice().expect("pinned memory is host memory")
    }

    /// One copy of `len` bytes of the pinned memory to the start of `target`, to its end.
    pub(crate) fn copy(&mut self, target: &mut Buffer, len: u64) -> Result<(), Stop> {
        assert!(len <= self.pinned.len() && len <= target.len(), "the copy fits both");
        let host = NonNull::from(self.bytes()).cast();
        // SAFETY: both ranges are in buffers that are borrowed here until the synchronisation below
        // has seen the copy's end.
        unsafe {
            self.device.copy_to_device(self.stream, target.address(), host, size(len))?;
        }
        Ok(self.device.synchronize(self.stream)?)
    }

    /// Reads `len` bytes of `file` at `offset` into pinned memory, then copies them to `target`.
    pub(crate) fn read(
        &mut self,
        file: &File,
        offset: u64,
        target: &mut Buffer,
        len: u64,
    ) -> Result<(), Stop> {
        file.read_exact_at(&mut self.bytes()[..size(len)], offset)?;
        self.copy(target, len)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let _ = self.device.synchronize(self.stream);
        let _ = self.device.destroy_stream(self.stream);
    }
}

fn size(len: u64) -> usize {
    usize::try_from(len).expect("a length in memory fits an address")
}

#[cfg(test)]
mod tests {
    use forebay::Options;
    use forebay::units::MIB;

    use super::*;
    use crate::{data, lab};

    #[test]
    fn every_byte_arrives_with_any_number_of_threads() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        data::write(&path, 5 * MIB + 17).unwrap();
        let file = File::open(&path).unwrap();
        for threads in 1..4 {
            let mut target = vec![0; (5 << 20) + 17];
            read(&file, &mut target, threads).unwrap();
            data::check(&target, 0).unwrap();
        }
    }

    #[test]
    fn a_target_that_was_not_written_or_one_byte_short_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        data::write(&path, MIB).unwrap();
        let file = File::open(&path).unwrap();
        let engine = Engine::new(Options::default()).unwrap();
        let device = engine.device(&"sim".parse().unwrap()).unwrap().unwrap();
        let gpu = Gpu { engine, device };
        let mut target = gpu.allocate(MIB).unwrap();
        target.fill(0x5A).unwrap();
        assert!(lab::verify(&target, MIB).is_err());
        let mut link = Link::new(&gpu, MIB).unwrap();
        link.read(&file, 0, &mut target, MIB - 1).unwrap();
        assert!(lab::verify(&target, MIB).is_err());
        link.read(&file, 0, &mut target, MIB).unwrap();
        lab::verify(&target, MIB).unwrap();
    }
}
