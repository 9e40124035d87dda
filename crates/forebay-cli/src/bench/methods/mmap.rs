//! Another usual method: map the file, then copy from the mapping on one thread.

use std::fs::File;

use forebay::Route;
use rustix::mm::ProtFlags;

use super::mapping::Mapping;
use super::{Job, Method, Moved, STEP, end, failed, open, settle};
use crate::bench::memory::{Memory, whole};
use crate::failure::Result;
use crate::report::json::MethodName;
use crate::steps::Step;

/// A mapping and copies, without an engine.
#[derive(Debug, Default)]
pub struct Mmap {
    file: Option<File>,
}

impl Mmap {
    fn file(&self) -> &File {
        self.file.as_ref().expect("a method is opened before it moves")
    }

    /// Bytes of the job that exist in the file: a mapping has no more.
    fn len(&self, job: &Job) -> Result<u64> {
        use std::io::{Seek, SeekFrom};
        // The size of a block device is the offset of its end; `stat` does not report it.
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
        mapping.check(job)?;
        let said = vec![(Route::Cached, len)];
        Ok(Moved { bytes: len, route: None, reason: Some(way.into()), said })
    }

    fn reading(&self, job: &Job) -> Option<Step> {
        Step::of_thread("read", &job.path)
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
        mapping.check(job)?;
        drop(mapping);
        settle(job, self.file())?;
        let said = vec![(Route::Cached, len)];
        Ok(Moved { bytes: len, route: None, reason: Some(way.into()), said })
    }

    fn close(&mut self, job: &Job) -> Result<()> {
        end(job, self.file.take())
    }
}
