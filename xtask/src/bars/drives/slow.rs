//! A drive with a latency: a file system of one file in user space, which forwards reads and writes
//! to an image and delays each read.
//!
//! Every read passes a pipe of a set rate and then waits a set time, so the drive's rate grows with
//! the requests in flight: `min(rate, depth · size / (latency + size / rate))`. The server is a
//! separate process with many waiting threads. On request it answers nothing, like a drive that
//! hangs. It speaks the kernel's protocol (`linux/fuse.h`, version 7.31), only as far as one flat
//! file needs.
//!
//! It leaves the mount namespace that it serves: as the last process there it would have to
//! unmount, while it ends, a file system for which only it can answer.

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child as Process, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};
use rustix::process::getppid;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::{Deserialize, Serialize};

use super::end_with_parent;
use crate::bar::Stop;
use crate::child::Child;
use crate::sample::float;
use crate::talk;

/// Most waiting requests: slightly more than the deepest queue that is measured.
const THREADS: usize = 80;

/// Bytes of one request at most, without its header.
const REQUEST_MAX: u32 = 1 << 20;

/// Longest time that a drive hangs: the process that made it hang may have been killed.
const HANGS_MAX: Duration = Duration::from_secs(60);

const ROOT: u64 = 1;
const IMAGE: u64 = 2;

/// How slow a drive is.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Pace {
    pub(crate) latency_us: u64,
    /// Bytes per second.
    pub(crate) rate: u64,
}

/// The process behind a slow drive.
#[derive(Debug)]
pub(super) struct Server(Process);

impl Server {
    /// Mounts `image` slowly, as the file `image` in the folder `point`.
    pub(super) fn start(image: &Path, point: &Path, pace: Pace) -> Result<Self, Stop> {
        let outer = getppid().map_or(1, |pid| pid.as_raw_nonzero().get());
        let namespace: PathBuf = format!("/proc/{outer}/ns/mnt").into();
        let child = Child::Slow { image: image.into(), point: point.into(), pace, namespace };
        let [own, words @ ..] = child.words()?;
        let mut command = Command::new(own);
        let mut child = command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            BufReader::new(output).read_line(&mut line)?;
        }
        match line.trim() {
            "ready" => Ok(Self(child)),
            _ => Err(Stop::Skip("no file system in user space (`/dev/fuse`)".into())),
        }
    }

    /// Makes the drive hang, or ends that.
    pub(super) fn hang(&self, hangs: bool) -> Result<(), Stop> {
        let orders = self.0.stdin.as_ref();
        let mut orders = orders.ok_or_else(|| Stop::Fail("a server without input".into()))?;
        Ok(writeln!(orders, "{}", if hangs { "hang" } else { "go" })?)
    }
}

/// The server's process: answers until the file system is gone.
pub(crate) fn serve(image: &Path, point: &Path, pace: Pace, outer: &Path) -> Result<(), Stop> {
    end_with_parent()?;
    let open = |path: &Path| OpenOptions::new().read(true).write(true).open(path);
    let (file, device) = (open(image)?, open(Path::new("/dev/fuse"))?);
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,allow_other,max_read={REQUEST_MAX}",
        device.as_raw_fd()
    );
    let options = std::ffi::CString::new(options)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("forebay-bars", point, "fuse", flags, options.as_c_str())?;
    move_into_link_name_space(File::open(outer)?.as_fd(), Some(LinkNameSpaceType::Mount))?;
    let (free, hangs) = (Mutex::new(Instant::now()), AtomicBool::new(false));
    let drive = Arc::new(Slow { device, file, pace, free, hangs });
    let ordered = Arc::clone(&drive);
    std::thread::spawn(move || {
        for order in std::io::stdin().lines().map_while(Result::ok) {
            ordered.hangs.store(order == "hang", Ordering::Release);
        }
        ordered.hangs.store(false, Ordering::Release);
    });
    talk("ready");
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| drive.answer_all());
        }
    });
    Ok(())
}

/// The state that the server's threads share.
#[derive(Debug)]
struct Slow {
    device: File,
    file: File,
    pace: Pace,
    /// When the pipe will have passed all bytes requested so far.
    free: Mutex<Instant>,
    /// Set if nothing is answered.
    hangs: AtomicBool,
}

impl Slow {
    fn answer_all(&self) {
        let mut room = vec![0; REQUEST_MAX as usize + 4096];
        let mut reply = Vec::with_capacity(REQUEST_MAX as usize + 16);
        loop {
            match (&self.device).read(&mut room) {
                Ok(len) => self.answer(&room[..len], &mut reply),
                // A request that was cancelled before it was read.
                Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    /// Answers a request: a header of 40 bytes with code, number and node, then its arguments.
    fn answer(&self, request: &[u8], reply: &mut Vec<u8>) {
        self.wait_while_hung();
        reply.clear();
        reply.resize(16, 0);
        let (code, node) = (u32_at(request, 4), u64_at(request, 16));
        let (offset, len) = (u64_at(request, 48), u32_at(request, 56) as usize);
        let result = match code {
            // These need no answer: forgotten nodes, interrupts.
            2 | 36 | 42 => return,
            15 => self.read(offset, len, reply),
            16 => {
                let bytes = request.get(80..80 + len).unwrap_or_default();
                append(reply, &[bytes.len() as u64]);
                self.file.write_all_at(bytes, offset).map_err(|_| Errno::IO)
            }
            // Look up a name.
            1 if request.get(40..) == Some(b"image\0") => {
                append(reply, &[IMAGE, 0, 0, 0, 0]);
                self.attributes(IMAGE, reply)
            }
            1 => Err(Errno::NOENT),
            // Attributes; changes of them are forgotten.
            3 | 4 => {
                append(reply, &[0, 0]);
                self.attributes(node, reply)
            }
            // Open, also a folder; statistics.
            14 | 27 | 17 => {
                reply.resize(if code == 17 { 96 } else { 32 }, 0);
                Ok(())
            }
            // Release, sync, destroy, list. They read no data, so they are answered without delay.
            18 | 20 | 28 | 29 | 30 | 38 => Ok(()),
            26 => greet(reply),
            _ => Err(Errno::NOSYS),
        };
        let error = result.err().map_or(0, |errno| -errno.raw_os_error());
        if error != 0 {
            reply.truncate(16);
        }
        let len = u32::try_from(reply.len()).unwrap_or_default();
        reply[..4].copy_from_slice(&len.to_ne_bytes());
        reply[4..8].copy_from_slice(&error.to_ne_bytes());
        reply[8..16].copy_from_slice(&request[8..16]);
        self.wait_while_hung();
        // If this fails, the requester no longer waits.
        let _ = (&self.device).write_all(reply);
    }

    fn wait_while_hung(&self) {
        let start = Instant::now();
        while self.hangs.load(Ordering::Acquire) && start.elapsed() < HANGS_MAX {
            sleep(Duration::from_millis(2));
        }
    }

    fn read(&self, offset: u64, len: usize, reply: &mut Vec<u8>) -> Result<(), Errno> {
        let due = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            let passing = Duration::from_secs_f64(float(len as u64) / float(self.pace.rate));
            *free = (*free).max(Instant::now()) + passing;
            *free + Duration::from_micros(self.pace.latency_us)
        };
        reply.resize(16 + len, 0);
        let read = self.file.read_at(&mut reply[16..], offset).map_err(|_| Errno::IO)?;
        reply.truncate(16 + read);
        sleep(due.saturating_duration_since(Instant::now()));
        Ok(())
    }

    /// The kernel's `fuse_attr`.
    fn attributes(&self, node: u64, reply: &mut Vec<u8>) -> Result<(), Errno> {
        let (mode, size) = match node {
            ROOT => (0o040_755, 0),
            _ => (0o100_644, self.file.metadata().map_or(0, |metadata| metadata.len())),
        };
        append(reply, &[node, size, size.div_ceil(512), 0, 0, 0]);
        for field in [0_u32, 0, 0, mode, 1, 0, 0, 0, 4096, 0] {
            reply.extend_from_slice(&field.to_ne_bytes());
        }
        Ok(())
    }
}

/// The answer to the kernel's first request: the version, and many large requests at once.
fn greet(reply: &mut Vec<u8>) -> Result<(), Errno> {
    const ASYNC_READ: u32 = 1;
    const BIG_WRITES: u32 = 1 << 5;
    const ASYNC_DIRECT: u32 = 1 << 15;
    const MAX_PAGES: u32 = 1 << 22;
    // Background requests, and the count from which the kernel considers it congested: the kernel's
    // default of 12 would limit the depth of every reader.
    const BACKGROUND: u32 = 1024 << 16 | 1024;
    let flags = ASYNC_READ | BIG_WRITES | ASYNC_DIRECT | MAX_PAGES;
    for field in [7, 31, REQUEST_MAX, flags, BACKGROUND, REQUEST_MAX, 1, REQUEST_MAX / 4096] {
        reply.extend_from_slice(&field.to_ne_bytes());
    }
    reply.resize(16 + 64, 0);
    Ok(())
}

fn u32_at(request: &[u8], at: usize) -> u32 {
    let bytes = request.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    u32::from_ne_bytes(bytes.unwrap_or_default())
}

fn u64_at(request: &[u8], at: usize) -> u64 {
    let bytes = request.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
    u64::from_ne_bytes(bytes.unwrap_or_default())
}

fn append(reply: &mut Vec<u8>, fields: &[u64]) {
    for field in fields {
        reply.extend_from_slice(&field.to_ne_bytes());
    }
}
