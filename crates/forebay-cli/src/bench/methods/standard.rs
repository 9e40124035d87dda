//! The usual method: one thread calls `read` into pageable memory, then copies it to the GPU.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;

use forebay::Route;

use super::{Job, Method, Moved, STEP, end, failed, open, settle};
use crate::bench::memory::{HostMemory, Memory, whole};
use crate::failure::Result;
use crate::report::json::MethodName;
use crate::steps::Step;

/// `read` and `write`, without an engine.
#[derive(Debug, Default)]
pub struct Standard {
    file: Option<File>,
    pageable: Option<HostMemory>,
}

impl Standard {
    fn file(&self) -> &File {
        self.file.as_ref().expect("a method is opened before it moves")
    }
}

impl Method for Standard {
    fn name(&self) -> MethodName {
        MethodName::Standard
    }

    fn open(&mut self, job: &Job, memory: &Memory) -> Result<()> {
        self.file = Some(open(job)?);
        if memory.device().is_some() && self.pageable.is_none() {
            let mut pageable = HostMemory::allocate(STEP)?;
            pageable.bytes_mut().fill(1);
            self.pageable = Some(pageable);
        }
        Ok(())
    }

    fn read(&mut self, job: &Job, target: &mut Memory) -> Result<Moved> {
        let mut pageable = self.pageable.take();
        let mut done = 0;
        while done < job.len {
            let end = job.len.min(done + STEP);
            let got = match target {
                Memory::Host(host) => {
                    fill(self.file(), job, done, &mut host.bytes_mut()[whole(done)..whole(end)])?
                }
                Memory::Gpu(gpu) => {
                    let pageable = pageable.as_mut().expect("made when the method was opened");
                    let bytes = &mut pageable.bytes_mut()[..whole(end - done)];
                    let got = fill(self.file(), job, done, bytes)?;
                    gpu.buffer.upload(done, &bytes[..got])?;
                    got
                }
            };
            done += got as u64;
            if done < end {
                break;
            }
        }
        self.pageable = pageable;
        let way = match target {
            Memory::Host(_) => "page cache → target, 1 thread",
            Memory::Gpu(_) => "page cache → pageable memory → GPU, 1 thread",
        };
        let said = vec![(Route::Cached, done)];
        Ok(Moved { bytes: done, route: None, reason: Some(way.into()), said })
    }

    fn reading(&self, job: &Job) -> Option<Step> {
        Step::of_thread("read", &job.path)
    }

    fn write(&mut self, job: &Job, source: &Memory) -> Result<Moved> {
        let mut pageable = self.pageable.take();
        let mut done = 0;
        while done < job.len {
            let end = job.len.min(done + STEP);
            let bytes = match source {
                Memory::Host(host) => &host.bytes()[whole(done)..whole(end)],
                Memory::Gpu(gpu) => {
                    let pageable = pageable.as_mut().expect("made when the method was opened");
                    let bytes = &mut pageable.bytes_mut()[..whole(end - done)];
                    gpu.buffer.download(done, bytes)?;
                    bytes
                }
            };
            self.file().write_all_at(bytes, done).map_err(|error| failed(job, done, &error))?;
            done = end;
        }
        settle(job, self.file())?;
        self.pageable = pageable;
        let way = match source {
            Memory::Host(_) => "source → page cache, 1 thread",
            Memory::Gpu(_) => "GPU → pageable memory → page cache, 1 thread",
        };
        let said = vec![(Route::Cached, done)];
        Ok(Moved { bytes: done, route: None, reason: Some(way.into()), said })
    }

    fn close(&mut self, job: &Job) -> Result<()> {
        end(job, self.file.take())
    }
}

/// Reads until `bytes` are full or the file ends; returns the number of bytes read.
fn fill(file: &File, job: &Job, offset: u64, bytes: &mut [u8]) -> Result<usize> {
    let mut got = 0;
    while got < bytes.len() {
        match file.read_at(&mut bytes[got..], offset + got as u64) {
            Ok(0) => break,
            Ok(more) => got += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(job, offset + got as u64, &error)),
        }
    }
    Ok(got)
}
