//! A drive whose speed grows with what it has in flight: a file system of one file in user space,
//! which answers each read late.
//!
//! Every read passes a pipe of a set rate and then waits a set time beside the others, so it gives
//! `min(rate, depth · size / (latency + size / rate))`. The file holds zeros and cannot be written.
//! It speaks as much of the kernel's protocol (`linux/fuse.h`, 7.31) as that takes, and is to be
//! mounted in a mount namespace of its own, with which it goes.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, mount};

/// Bytes of one request of the kernel at most.
const REQUEST_MAX: u32 = 1 << 20;
/// Requests that wait at once, at most.
const THREADS: usize = 64;
/// How long a read hangs at most: a test that fails lets nothing go on.
const HANGS_MAX: Duration = Duration::from_secs(100);
const ROOT: u64 = 1;

/// How the drive behaves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) len: u64,
    /// Bytes per second.
    pub(crate) rate: u32,
    pub(crate) latency: Duration,
    /// Whether O_DIRECT is refused.
    pub(crate) no_direct: bool,
    /// From which read on it does not answer until [`Slow::go_on`].
    pub(crate) hangs_at: u64,
}

/// A mounted drive.
#[derive(Debug)]
pub(crate) struct Slow {
    device: File,
    kind: Kind,
    free: Mutex<Instant>,
    hangs: AtomicBool,
    reads: AtomicU64,
}

impl Slow {
    /// Mounts it at `folder`; the error says why that cannot be done here.
    pub(crate) fn mount(kind: Kind, folder: &Path) -> Result<(Arc<Self>, PathBuf), String> {
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
        let device = device.map_err(|error| format!("no /dev/fuse: {error}"))?;
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0,max_read={REQUEST_MAX}",
            device.as_raw_fd()
        );
        let options = CString::new(options).unwrap();
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("forebay-slow", folder, "fuse", flags, options.as_c_str())
            .map_err(|errno| format!("no FUSE mount: {errno}"))?;
        let (free, hangs) = (Mutex::new(Instant::now()), AtomicBool::new(true));
        let slow = Arc::new(Self { device, kind, free, hangs, reads: AtomicU64::new(0) });
        for _ in 0..THREADS {
            let serving = Arc::clone(&slow);
            spawn(move || serving.serve());
        }
        Ok((slow, folder.join("file")))
    }

    /// Answers everything from now on.
    pub(crate) fn go_on(&self) {
        self.hangs.store(false, Ordering::Release);
    }

    fn serve(&self) {
        let mut room = vec![0; REQUEST_MAX as usize + 4096];
        loop {
            match (&self.device).read(&mut room) {
                Ok(len) => self.answer(&room[..len]),
                // The mount is gone.
                Err(error)
                    if error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) =>
                {
                    return;
                }
                // A request that was taken back before it was read.
                Err(_) => {}
            }
        }
    }

    fn answer(&self, request: &[u8]) {
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_ne_bytes(request[at..at + 8].try_into().unwrap());
        let (code, unique, node) = (word(4), long(8), long(16));
        let body = 40;
        let answer: Result<Vec<u8>, i32> = match code {
            // Forgotten nodes and interrupts want no answer.
            2 | 36 | 42 => return,
            1 if request[body..].starts_with(b"file\0") => {
                let mut entry = (ROOT + 1).to_ne_bytes().to_vec();
                entry.resize(40, 0);
                Ok([entry, self.attributes(ROOT + 1)].concat())
            }
            1 => Err(libc::ENOENT),
            3 => Ok([vec![0; 16], self.attributes(node)].concat()),
            14 if self.kind.no_direct && word(body) & libc::O_DIRECT.cast_unsigned() != 0 => {
                Err(libc::EINVAL)
            }
            14 | 27 => Ok(vec![0; 16]),
            15 => Ok(self.read(long(body + 8), word(body + 16))),
            17 => Ok(vec![0; 80]),
            18 | 20 | 29 | 30 | 38 => Ok(Vec::new()),
            26 => Ok(greeting()),
            _ => Err(libc::ENOSYS),
        };
        let (error, bytes) = answer.map_or_else(|errno| (-errno, Vec::new()), |bytes| (0, bytes));
        let mut reply = u32::try_from(16 + bytes.len()).unwrap().to_ne_bytes().to_vec();
        reply.extend_from_slice(&error.to_ne_bytes());
        reply.extend_from_slice(&unique.to_ne_bytes());
        reply.extend_from_slice(&bytes);
        // Nobody waits any more where this fails.
        let _: io::Result<()> = (&self.device).write_all(&reply);
    }

    fn read(&self, offset: u64, len: u32) -> Vec<u8> {
        let len = u64::from(len).min(self.kind.len.saturating_sub(offset));
        let passing = Duration::from_secs(1) * u32::try_from(len).unwrap() / self.kind.rate;
        let passed = {
            let mut free = self.free.lock().unwrap();
            *free = (*free).max(Instant::now()) + passing;
            *free
        };
        let due = passed + self.kind.latency;
        sleep(due.saturating_duration_since(Instant::now()));
        let hangs = self.reads.fetch_add(1, Ordering::Relaxed) >= self.kind.hangs_at;
        while hangs && self.hangs.load(Ordering::Acquire) && due.elapsed() < HANGS_MAX {
            sleep(Duration::from_millis(10));
        }
        vec![0; usize::try_from(len).unwrap()]
    }

    /// The kernel's `fuse_attr`.
    fn attributes(&self, node: u64) -> Vec<u8> {
        let (mode, len) = if node == ROOT { (0o040_755, 0) } else { (0o100_444, self.kind.len) };
        let long = [node, len, len.div_ceil(512), 0, 0, 0];
        let short: [u32; 10] = [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0];
        let long = long.iter().flat_map(|field| field.to_ne_bytes());
        long.chain(short.iter().flat_map(|field| field.to_ne_bytes())).collect()
    }
}

/// The answer to the first request: the version, and many large requests at once.
fn greeting() -> Vec<u8> {
    const PARALLEL_READS: u32 = 1;
    const DIRECT_IN_PARALLEL: u32 = 1 << 15;
    const MAX_PAGES: u32 = 1 << 22;
    let flags = PARALLEL_READS | DIRECT_IN_PARALLEL | MAX_PAGES;
    let mut reply: Vec<u8> =
        [7, 31, REQUEST_MAX, flags].iter().flat_map(|field: &u32| field.to_ne_bytes()).collect();
    // Requests in the background, of which the kernel makes 12 by itself.
    for field in [1024_u16, 1024] {
        reply.extend_from_slice(&field.to_ne_bytes());
    }
    for field in [REQUEST_MAX, 1] {
        reply.extend_from_slice(&field.to_ne_bytes());
    }
    reply.extend_from_slice(&256_u16.to_ne_bytes());
    reply.resize(64, 0);
    reply
}
