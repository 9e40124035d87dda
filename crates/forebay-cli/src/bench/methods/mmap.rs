//! The other usual way: map the file, then copy from the mapping, by one thread.

#![expect(unsafe_code, reason = "a file is mapped and viewed as bytes")]

use std::fs::File;
use std::io;
use std::ptr;
use std::slice;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::{Job, Method, Moved, STEP, failed, open, settle};
use crate::bench::memory::{Memory, whole};
use crate::failure::{Failure, Result};
use crate::report::json::MethodName;

/// A mapping and copies, without an engine.
#[derive(Debug, Default)]
pub struct Mmap {
    file: Option<File>,
}

impl Mmap {
    fn file(&self) -> &File {
        self.file.as_ref().expect("a method is opened before it moves")
    }

    /// Bytes of the job that the file has: touching a mapping behind the file's end is fatal.
    fn len(&self, job: &Job) -> Result<u64> {
        use std::io::{Seek, SeekFrom};
        // The size of a block device is where its end is, not what `stat` tells.
        let end = self.file().seek(SeekFrom::End(0)).map_err(|error| failed(job, 0, &error))?;
        Ok(job.len.min(end))
    }
}

impl Method for Mmap {
    fn name(&self) -> MethodName {
        MethodName::Mmap
    }

    fn open(&mut self, job: &Job, _memory: &Memory) -> Result<()> {
        self.file = Some(open(job)?);
        Ok(())
    }

    fn read(&mut self, job: &Job, target: &mut Memory) -> Result<Moved> {
        let len = self.len(job)?;
        let mapping = Mapping::of(self.file(), job, len, ProtFlags::READ)?;
        let bytes = mapping.bytes();
        let way = match target {
            Memory::Host(host) => {
                host.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
                "mapping → target, 1 thread"
            }
            Memory::Gpu(gpu) => {
                for (index, step) in bytes.chunks(whole(STEP)).enumerate() {
                    gpu.buffer.upload(index as u64 * STEP, step)?;
                }
                "mapping → GPU, 1 thread"
            }
        };
        Ok(Moved { bytes: len, route: None, reason: Some(way.into()) })
    }

    fn write(&mut self, job: &Job, source: &Memory) -> Result<Moved> {
        let len = self.len(job)?;
        let mut mapping = Mapping::of(self.file(), job, len, ProtFlags::READ | ProtFlags::WRITE)?;
        let bytes = mapping.bytes_mut();
        let way = match source {
            Memory::Host(host) => {
                bytes.copy_from_slice(&host.bytes()[..bytes.len()]);
                "source → mapping, 1 thread"
            }
            Memory::Gpu(gpu) => {
                for (index, step) in bytes.chunks_mut(whole(STEP)).enumerate() {
                    gpu.buffer.download(index as u64 * STEP, step)?;
                }
                "GPU → mapping, 1 thread"
            }
        };
        drop(mapping);
        settle(job, self.file())?;
        Ok(Moved { bytes: len, route: None, reason: Some(way.into()) })
    }

    fn close(&mut self) {
        self.file = None;
    }
}

/// The start of a file, mapped.
struct Mapping {
    start: *mut u8,
    len: usize,
}

impl Mapping {
    fn of(file: &File, job: &Job, len: u64, access: ProtFlags) -> Result<Self> {
        let failed =
            |error: io::Error| Failure::io(format!("cannot map `{}`", job.path.display()), &error);
        let len = usize::try_from(len).map_err(|_| failed(io::ErrorKind::OutOfMemory.into()))?;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing of ours.
        let start = unsafe { mmap(ptr::null_mut(), len, access, MapFlags::SHARED, file, 0) };
        Ok(Self { start: start.map_err(|error| failed(error.into()))?.cast(), len })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is `len` bytes and lives as long as `self`. Another process may
        // change a file that is not ours meanwhile; the bytes are copied and never looked into,
        // and wrong ones are found by the check.
        unsafe { slice::from_raw_parts(self.start, self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; only scratch, which no other process touches, is mapped to write.
        unsafe { slice::from_raw_parts_mut(self.start, self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing borrows it any more.
        let _ = unsafe { munmap(self.start.cast(), self.len) };
    }
}
