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
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};
use rustix::process::getppid;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::end_with_parent;
use crate::bar::Stop;
use crate::sample::float;
use crate::talk;

/// Most waiting requests: slightly more than the deepest queue that is measured.
const THREADS: usize = 80;

const MOUNTS: Option<LinkNameSpaceType> = Some(LinkNameSpaceType::Mount);

/// Bytes of one request at most, without its header.
const REQUEST_MAX: u32 = 1 << 20;

/// Longest time that a drive hangs: the process that made it hang may have been killed.
const HANGS_MAX: Duration = Duration::from_secs(60);

const ROOT: u64 = 1;
const IMAGE: u64 = 2;

/// How slow a drive is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Pace {
    pub(crate) latency_us: u64,
    /// Bytes per second.
    pub(crate) rate: u64,
}

/// The process behind a slow drive.
#[derive(Debug)]
pub(super) struct Server {
    _child: Child,
    orders: ChildStdin,
    point: PathBuf,
}

impl Server {
    /// Mounts `image`, slowly, below `point`.
    pub(super) fn start(image: &Path, point: &Path, pace: Pace) -> Result<Self, Stop> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("--serve-drive")
            .args([image, point])
            .args([pace.latency_us, pace.rate].map(|number| number.to_string()))
            .arg(format!("/proc/{}/ns/mnt", outer()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            BufReader::new(output).read_line(&mut line)?;
        }
        if line.trim() != "ready" {
            return Err(Stop::Skip("no file system in user space (`/dev/fuse`)".into()));
        }
        let orders = child.stdin.take();
        let orders = orders.ok_or_else(|| Stop::Fail("a server without input".into()))?;
        Ok(Self { _child: child, orders, point: point.into() })
    }

    /// The image, slowly.
    pub(super) fn path(&self) -> PathBuf {
        self.point.join("image")
    }

    /// Makes the drive hang, or ends that.
    pub(super) fn hang(&self, hangs: bool) -> Result<(), Stop> {
        Ok(writeln!(&self.orders, "{}", if hangs { "hang" } else { "go" })?)
    }
}

/// The number of the parent process in the outer PID namespace.
fn outer() -> i32 {
    getppid().map_or(1, |pid| pid.as_raw_nonzero().get())
}

/// The server's process: answers until the file system is gone.
pub(crate) fn serve(
    image: &Path,
    point: &Path,
    pace: Pace,
    namespace: &Path,
) -> Result<(), String> {
    let broken = |error: std::io::Error| format!("cannot serve `{}`: {error}", image.display());
    end_with_parent().map_err(|_| "cannot be tied to the parent".to_owned())?;
    let file = OpenOptions::new().read(true).write(true).open(image).map_err(broken)?;
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").map_err(broken)?;
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,allow_other,max_read={REQUEST_MAX}",
        device.as_raw_fd()
    );
    let options = std::ffi::CString::new(options).map_err(|error| error.to_string())?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("forebay-bars", point, "fuse", flags, options.as_c_str())
        .map_err(|errno| broken(errno.into()))?;
    File::open(namespace)
        .and_then(|outer| Ok(move_into_link_name_space(outer.as_fd(), MOUNTS)?))
        .map_err(broken)?;
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

/// One request of the kernel's.
struct Request<'a> {
    code: u32,
    unique: u64,
    node: u64,
    body: &'a [u8],
}

impl<'a> Request<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        let head = Request { code: 0, unique: 0, node: 0, body: bytes };
        let (code, unique, node) = (head.u32_at(4), head.u64_at(8), head.u64_at(16));
        Request { code, unique, node, body: bytes.get(40..).unwrap_or_default() }
    }

    fn u32_at(&self, at: usize) -> u32 {
        let bytes = self.body.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        u32::from_ne_bytes(bytes.unwrap_or_default())
    }

    fn u64_at(&self, at: usize) -> u64 {
        let bytes = self.body.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        u64::from_ne_bytes(bytes.unwrap_or_default())
    }
}

impl Slow {
    fn answer_all(&self) {
        let mut room = vec![0; REQUEST_MAX as usize + 4096];
        let mut reply = Vec::with_capacity(REQUEST_MAX as usize + 16);
        loop {
            match (&self.device).read(&mut room) {
                Ok(len) => self.answer(&Request::of(&room[..len]), &mut reply),
                // A request that was cancelled before it was read.
                Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    fn answer(&self, request: &Request<'_>, reply: &mut Vec<u8>) {
        self.wait_while_hung();
        reply.clear();
        reply.resize(16, 0);
        let result = match request.code {
            // Nobody waits for an answer to these: forgotten nodes, interrupts.
            2 | 36 | 42 => return,
            15 => self.read(request, reply),
            16 => self.write(request, reply),
            _ => self.describe(request, reply),
        };
        let error = result.err().map_or(0, |errno| -errno.raw_os_error());
        if error != 0 {
            reply.truncate(16);
        }
        let len = u32::try_from(reply.len()).unwrap_or_default();
        reply[..4].copy_from_slice(&len.to_ne_bytes());
        reply[4..8].copy_from_slice(&error.to_ne_bytes());
        reply[8..16].copy_from_slice(&request.unique.to_ne_bytes());
        self.wait_while_hung();
        // If this fails, the requester no longer waits.
        let _ = (&self.device).write_all(reply);
    }

    fn wait_while_hung(&self) {
        let start = Instant::now();
        while self.hangs.load(Ordering::Acquire) && start.elapsed() < HANGS_MAX {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn read(&self, request: &Request<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
        let (offset, len) = (request.u64_at(8), request.u32_at(16).min(REQUEST_MAX));
        let due = self.due(len.into());
        reply.resize(16 + len as usize, 0);
        let read = self.file.read_at(&mut reply[16..], offset).map_err(|_| Errno::IO)?;
        reply.truncate(16 + read);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        Ok(())
    }

    fn write(&self, request: &Request<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
        let (offset, len) = (request.u64_at(8), request.u32_at(16));
        let bytes = request.body.get(40..40 + len as usize).ok_or(Errno::INVAL)?;
        self.file.write_all_at(bytes, offset).map_err(|_| Errno::IO)?;
        append(reply, &[len, 0]);
        Ok(())
    }

    /// When a read of `len` bytes that begins now has ended.
    fn due(&self, len: u64) -> Instant {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let passing = Duration::from_secs_f64(float(len) / float(self.pace.rate));
        *free = (*free).max(Instant::now()) + passing;
        *free + Duration::from_micros(self.pace.latency_us)
    }

    /// All that moves no bytes.
    fn describe(&self, request: &Request<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
        match request.code {
            // Look up a name.
            1 if request.body.strip_suffix(b"\0") == Some(b"image") => {
                reply.extend_from_slice(&IMAGE.to_ne_bytes());
                reply.resize(reply.len() + 32, 0);
                self.attributes(IMAGE, reply);
            }
            1 => return Err(Errno::NOENT),
            // Attributes; changes of them are forgotten.
            3 | 4 => {
                reply.resize(reply.len() + 16, 0);
                self.attributes(request.node, reply);
            }
            // Open, also a folder.
            14 | 27 => reply.resize(reply.len() + 16, 0),
            17 => reply.resize(reply.len() + 80, 0),
            // Release, sync, destroy, list. They read no data, so they are answered without delay.
            18 | 20 | 28 | 29 | 30 | 38 => {}
            26 => greet(reply),
            _ => return Err(Errno::NOSYS),
        }
        Ok(())
    }

    /// The kernel's `fuse_attr`.
    fn attributes(&self, node: u64, reply: &mut Vec<u8>) {
        let (mode, size) = match node {
            ROOT => (0o040_755, 0),
            _ => (0o100_644, self.file.metadata().map_or(0, |metadata| metadata.len())),
        };
        for field in [node, size, size.div_ceil(512), 0, 0, 0] {
            reply.extend_from_slice(&field.to_ne_bytes());
        }
        append(reply, &[0, 0, 0, mode, 1, 0, 0, 0, 4096, 0]);
    }
}

/// The answer to the kernel's first request: the version, and many large requests at once.
fn greet(reply: &mut Vec<u8>) {
    const ASYNC_READ: u32 = 1;
    const BIG_WRITES: u32 = 1 << 5;
    const ASYNC_DIRECT: u32 = 1 << 15;
    const MAX_PAGES: u32 = 1 << 22;
    append(reply, &[7, 31, REQUEST_MAX, ASYNC_READ | BIG_WRITES | ASYNC_DIRECT | MAX_PAGES]);
    // Background requests, and the count from which the kernel considers it congested: the kernel's
    // default of 12 would limit the depth of every reader.
    for field in [1024_u16, 1024] {
        reply.extend_from_slice(&field.to_ne_bytes());
    }
    append(reply, &[REQUEST_MAX, 1]);
    reply.extend_from_slice(&256_u16.to_ne_bytes());
    reply.resize(16 + 64, 0);
}

fn append(reply: &mut Vec<u8>, fields: &[u32]) {
    for field in fields {
        reply.extend_from_slice(&field.to_ne_bytes());
    }
}
