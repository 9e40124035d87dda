//! A file system of one file that fails on demand: reads that hang, come back short or fail at an
//! offset, a refused O_DIRECT, a size that is a lie.
//!
//! It speaks the kernel's own protocol (`linux/fuse.h`, version 7.31) over `/dev/fuse`, on one
//! thread of this process, and knows no more of it than one flat file needs.
//!
//! A process that is killed while it waits for its own server would never end: the kernel waits for
//! the answer. So a guardian process takes the mount away by force when the server's thread is
//! gone.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use tempfile::TempDir;

use super::{Offer, needs_root};

const ROOT: u64 = 1;
const FILE: u64 = 2;
const NAME: &[u8] = b"file";

/// The request that another one need not be answered any more.
const INTERRUPT: u32 = 36;

/// Bytes of one request at most, without its header.
const REQUEST_MAX: u32 = 1 << 20;

/// How the file misbehaves. Offsets are of the file.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Reads that touch a byte from here on wait until this is taken back.
    pub(crate) hang_from: Option<u64>,
    /// Writes wait until this is taken back.
    pub(crate) hang_writes: bool,
    /// The server wants to know when a file is closed. Counts when the file system is mounted.
    pub(crate) closes: bool,
    /// Closing waits until this is taken back, where the server wants to know.
    pub(crate) hang_closes: bool,
    /// Reads that touch this byte fail with EIO.
    pub(crate) fail_at: Option<u64>,
    /// With this instead of EIO.
    pub(crate) fail_errno: Option<i32>,
    /// Writes that touch this byte fail with this error.
    pub(crate) fail_writes_at: Option<(u64, i32)>,
    /// Reads return at most so many bytes.
    pub(crate) read_most: Option<usize>,
    /// Writes take at most so many bytes.
    pub(crate) write_most: Option<usize>,
    /// No page cache: every read is the server's, and a short one is no end of the file to the
    /// kernel. Counts when the file is opened.
    pub(crate) uncached: bool,
    /// O_DIRECT is refused when the file is opened.
    pub(crate) no_direct: bool,
    /// O_DIRECT is refused when the file is read.
    pub(crate) no_direct_reads: bool,
    /// What the file says its size is.
    pub(crate) size: Option<u64>,
    /// A thread of the kernel waits for each answer, and its wish to wait no longer is granted.
    /// Counts when the file system is mounted.
    pub(crate) interruptible: bool,
}

#[derive(Debug, Default)]
struct State {
    bytes: Vec<u8>,
    faults: Faults,
    /// Requests that wait.
    parked: Vec<Request>,
    /// Requests by their number that nobody wants to wait for any more.
    interrupted: Vec<u64>,
    /// The offsets of the reads that were answered, in that order.
    reads: Vec<u64>,
    stopping: bool,
}

#[derive(Debug, Clone)]
struct Request {
    code: u32,
    unique: u64,
    node: u64,
    body: Vec<u8>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    parked: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A mounted file system of one file; gone when it is dropped.
#[derive(Debug)]
pub(crate) struct Fuse {
    shared: Arc<Shared>,
    server: Option<JoinHandle<()>>,
    mounted: PathBuf,
    _folder: TempDir,
}

impl Fuse {
    /// A file that holds `bytes`.
    pub(crate) fn new(bytes: Vec<u8>) -> Offer<Self> {
        Self::with(bytes, Faults::default())
    }

    /// A file that holds `bytes` and misbehaves from the start.
    pub(crate) fn with(bytes: Vec<u8>, faults: Faults) -> Offer<Self> {
        needs_root("a FUSE mount")?;
        let folder = tempfile::tempdir().map_err(|e| format!("no mount point: {e}"))?;
        let device = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/fuse")
            .map_err(|e| format!("no /dev/fuse: {e}"))?;
        let mounted = folder.path().to_owned();
        mount(&device, &mounted)?;
        let state = Mutex::new(State { bytes, faults, ..State::default() });
        let shared = Arc::new(Shared { state, parked: Condvar::new() });
        let (serving, at) = (Arc::clone(&shared), mounted.clone());
        let server = std::thread::Builder::new()
            .name("fuse".into())
            .spawn(move || {
                let guardian = guard(&at);
                serve(device, &serving);
                if let Ok(mut guardian) = guardian {
                    // The mount is gone by now: it finds nothing to do.
                    let pid = rustix::process::Pid::from_child(&guardian);
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
                    let _ = guardian.wait();
                }
            })
            .map_err(|e| format!("no thread: {e}"))?;
        let fuse = Self { shared, server: Some(server), mounted, _folder: folder };
        // The first closing of a file asks whether the server wants to know of it: from now on no
        // process that ends waits for an answer to that.
        fs::read(fuse.path()).map_err(|e| format!("a FUSE mount without answers: {e}"))?;
        Ok(fuse)
    }

    /// Its file.
    pub(crate) fn path(&self) -> PathBuf {
        self.mounted.join("file")
    }

    /// Changes how it misbehaves; what waits is looked at again.
    pub(crate) fn set(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.shared.lock().faults);
    }

    /// Waits until at least `count` requests hang.
    pub(crate) fn wait_for_parked(&self, count: usize) {
        let state = self.shared.lock();
        let few = |state: &mut State| state.parked.len() < count;
        let bound = Duration::from_secs(60);
        let waited = self.shared.parked.wait_timeout_while(state, bound, few);
        let waited = waited.unwrap_or_else(PoisonError::into_inner).1;
        assert!(!waited.timed_out(), "{count} requests reach a file system that hangs");
    }

    /// What the file holds now.
    pub(crate) fn content(&self) -> Vec<u8> {
        self.shared.lock().bytes.clone()
    }

    /// How many reads came in.
    pub(crate) fn reads(&self) -> u64 {
        self.shared.lock().reads.len() as u64
    }

    /// The offsets of the reads that were answered, in that order.
    pub(crate) fn order(&self) -> Vec<u64> {
        self.shared.lock().reads.clone()
    }

    /// How many requests hang.
    pub(crate) fn parked(&self) -> usize {
        self.shared.lock().parked.len()
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        self.set(|faults| *faults = Faults::default());
        // Requests that hung are answered before the connection goes.
        let bound = Instant::now() + Duration::from_secs(5);
        while !self.shared.lock().parked.is_empty() && Instant::now() < bound {
            std::thread::sleep(Duration::from_millis(5));
        }
        let flags = rustix::mount::UnmountFlags::DETACH;
        let unmounted = rustix::mount::unmount(&self.mounted, flags);
        self.shared.lock().stopping = true;
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
        if let Err(errno) = unmounted {
            let line = format!("left behind: {}: {errno}\n", self.mounted.display());
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
    }
}

fn mount(device: &File, target: &Path) -> Offer<()> {
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,allow_other,max_read={REQUEST_MAX}\0",
        device.as_raw_fd()
    );
    let options = std::ffi::CStr::from_bytes_with_nul(options.as_bytes())
        .map_err(|_| "no such options".to_owned())?;
    let flags = rustix::mount::MountFlags::NOSUID | rustix::mount::MountFlags::NODEV;
    rustix::mount::mount("forebay-test", target, "fuse", flags, options)
        .map_err(|errno| format!("no FUSE mount: {errno}"))
}

/// Starts the guardian of a mount: a shell that is told by the kernel when this thread ends.
fn guard(mounted: &Path) -> std::io::Result<Child> {
    use std::os::unix::process::CommandExt;
    let mut shell = Command::new("sh");
    // Without the path being looked at, which would wait for the server as well.
    let end = r#"kill $!; umount -c -f -l "$0"; exit"#;
    shell.arg("-c").arg(format!("trap '' INT HUP; trap '{end}' TERM; sleep 36000 & wait"));
    shell.arg(mounted).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: between fork and exec one system call that allocates nothing.
    unsafe {
        shell.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
            Ok(())
        });
    }
    shell.spawn()
}

/// Answers until the file system is to go; the connection ends with `device`.
fn serve(mut device: File, shared: &Shared) {
    let mut room = vec![0; (REQUEST_MAX + 4096) as usize];
    loop {
        let moment = rustix::event::Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
        let mut ready = [PollFd::new(&device, PollFlags::IN)];
        let came = poll(&mut ready, Some(&moment)).is_ok_and(|count| count > 0);
        let mut due = std::mem::take(&mut shared.lock().parked);
        if shared.lock().stopping {
            return;
        }
        if came {
            match device.read(&mut room) {
                Ok(len) => due.push(Request::read(&room[..len])),
                // Unmounted by somebody else.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return,
                // A request that was taken back before it was read.
                Err(_) => {}
            }
        }
        for request in due {
            answer(&mut device, shared, request);
        }
    }
}

fn answer(device: &mut File, shared: &Shared, request: Request) {
    let mut state = shared.lock();
    let Some(reply) = state.interrupt(&request).or_else(|| state.reply(&request)) else {
        state.parked.push(request);
        shared.parked.notify_all();
        return;
    };
    drop(state);
    let (error, body) = match reply {
        Reply::None => return,
        Reply::Error(errno) => (-errno, Vec::new()),
        Reply::Body(body) => (0, body),
    };
    let len = u32::try_from(16 + body.len()).expect("a reply of one request's size");
    let mut out = Vec::with_capacity(16 + body.len());
    out.extend_from_slice(&len.to_ne_bytes());
    out.extend_from_slice(&error.to_ne_bytes());
    out.extend_from_slice(&request.unique.to_ne_bytes());
    out.extend_from_slice(&body);
    // Nobody waits any more where this fails.
    let _ = device.write_all(&out);
}

enum Reply {
    None,
    Error(i32),
    Body(Vec<u8>),
}

impl Request {
    fn read(bytes: &[u8]) -> Self {
        let mut request = Self { code: 0, unique: 0, node: 0, body: bytes.to_vec() };
        request.code = request.u32_at(4);
        request.unique = request.u64_at(8);
        request.node = request.u64_at(16);
        request.body.drain(..40);
        request
    }

    fn u32_at(&self, at: usize) -> u32 {
        self.body.get(at..at + 4).map_or(0, |b| u32::from_ne_bytes(b.try_into().expect("four")))
    }

    fn u64_at(&self, at: usize) -> u64 {
        self.body.get(at..at + 8).map_or(0, |b| u64::from_ne_bytes(b.try_into().expect("eight")))
    }

    /// Offset and length of a read or a write.
    fn range(&self) -> (u64, usize) {
        (self.u64_at(8), self.u32_at(16) as usize)
    }
}

impl State {
    /// The answer to a request that was taken back while it waited.
    fn interrupt(&mut self, request: &Request) -> Option<Reply> {
        if request.code == INTERRUPT && self.faults.interruptible {
            self.interrupted.push(request.u64_at(0));
        }
        let before = self.interrupted.len();
        self.interrupted.retain(|unique| *unique != request.unique);
        (self.interrupted.len() < before).then_some(Reply::Error(libc::EINTR))
    }

    /// `None`: the request waits.
    fn reply(&mut self, request: &Request) -> Option<Reply> {
        let opened = || {
            let uncached = u32::from(self.faults.uncached);
            Reply::Body([[0; 8].as_slice(), &uncached.to_ne_bytes(), &[0; 4]].concat())
        };
        Some(match request.code {
            1 if request.body.strip_suffix(b"\0") == Some(NAME) => Reply::Body(self.entry()),
            1 => Reply::Error(libc::ENOENT),
            2 | INTERRUPT | 42 => Reply::None,
            3 => Reply::Body(self.attributes(request.node)),
            4 => self.change(request),
            14 if self.faults.no_direct
                && request.u32_at(0) & libc::O_DIRECT.cast_unsigned() != 0 =>
            {
                Reply::Error(libc::EINVAL)
            }
            14 => opened(),
            27 => Reply::Body(vec![0; 16]),
            15 => return self.read(request),
            16 => return self.write(request),
            17 => Reply::Body(vec![0; 80]),
            18 | 20 | 29 | 30 | 34 | 38 => Reply::Body(Vec::new()),
            26 => Reply::Body(greeting(self.faults.interruptible)),
            28 => Reply::Body(Vec::new()),
            25 if self.faults.hang_closes => return None,
            25 if self.faults.closes => Reply::Body(Vec::new()),
            _ => Reply::Error(libc::ENOSYS),
        })
    }

    fn read(&mut self, request: &Request) -> Option<Reply> {
        let (offset, len) = request.range();
        let end = offset + len as u64;
        if self.faults.hang_from.is_some_and(|from| end > from) {
            return None;
        }
        let flags = request.u32_at(32).cast_signed();
        if self.faults.no_direct_reads && flags & libc::O_DIRECT != 0 {
            return Some(Reply::Error(libc::EINVAL));
        }
        self.reads.push(offset);
        if self.faults.fail_at.is_some_and(|at| (offset..end).contains(&at)) {
            return Some(Reply::Error(self.faults.fail_errno.unwrap_or(libc::EIO)));
        }
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(self.bytes.len());
        let len = len.min(self.bytes.len() - start).min(self.faults.read_most.unwrap_or(len));
        Some(Reply::Body(self.bytes[start..start + len].to_vec()))
    }

    fn write(&mut self, request: &Request) -> Option<Reply> {
        if self.faults.hang_writes {
            return None;
        }
        let (offset, len) = request.range();
        if let Some((at, errno)) = self.faults.fail_writes_at
            && (offset..offset + len as u64).contains(&at)
        {
            return Some(Reply::Error(errno));
        }
        let len = len.min(self.faults.write_most.unwrap_or(len));
        let start = usize::try_from(offset).expect("a small file");
        let end = start + len;
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.bytes[start..end].copy_from_slice(&request.body[40..40 + len]);
        let mut reply = u32::try_from(len).expect("one request").to_ne_bytes().to_vec();
        reply.extend_from_slice(&[0; 4]);
        Some(Reply::Body(reply))
    }

    /// A new size is the only change that is made; the others are forgotten.
    fn change(&mut self, request: &Request) -> Reply {
        const SIZE: u32 = 1 << 3;
        if request.u32_at(0) & SIZE != 0 {
            let size = usize::try_from(request.u64_at(16)).expect("a small file");
            self.bytes.resize(size, 0);
        }
        Reply::Body(self.attributes(request.node))
    }

    fn entry(&self) -> Vec<u8> {
        let mut entry = Vec::with_capacity(128);
        entry.extend_from_slice(&FILE.to_ne_bytes());
        // No generation, and nothing stays valid: the kernel asks again each time.
        entry.resize(40, 0);
        entry.extend_from_slice(&self.node(FILE));
        entry
    }

    fn attributes(&self, node: u64) -> Vec<u8> {
        let mut reply = vec![0; 16];
        reply.extend_from_slice(&self.node(node));
        reply
    }

    /// The kernel's `fuse_attr`.
    fn node(&self, node: u64) -> Vec<u8> {
        let (mode, size) = match node {
            ROOT => (libc::S_IFDIR | 0o755, 0),
            _ => (libc::S_IFREG | 0o644, self.faults.size.unwrap_or(self.bytes.len() as u64)),
        };
        let mut attributes = Vec::with_capacity(88);
        for field in [node, size, size.div_ceil(512), 0, 0, 0] {
            attributes.extend_from_slice(&field.to_ne_bytes());
        }
        for field in [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0] {
            attributes.extend_from_slice(&u32::to_ne_bytes(field));
        }
        attributes
    }
}

/// The answer to the kernel's first request: the version, and large requests in parallel.
fn greeting(waits: bool) -> Vec<u8> {
    const ASYNC_READ: u32 = 1;
    const BIG_WRITES: u32 = 1 << 5;
    const ASYNC_DIRECT: u32 = 1 << 15;
    const MAX_PAGES: u32 = 1 << 22;
    let mut reply = Vec::with_capacity(64);
    let flags = ASYNC_READ | BIG_WRITES | MAX_PAGES | if waits { 0 } else { ASYNC_DIRECT };
    for field in [7, 31, REQUEST_MAX, flags] {
        reply.extend_from_slice(&u32::to_ne_bytes(field));
    }
    // Requests in the background, and from how many on the kernel takes it for congested.
    for field in [256_u16, 192] {
        reply.extend_from_slice(&field.to_ne_bytes());
    }
    for field in [REQUEST_MAX, 1] {
        reply.extend_from_slice(&u32::to_ne_bytes(field));
    }
    let pages = u16::try_from(REQUEST_MAX / 4096).expect("256");
    reply.extend_from_slice(&pages.to_ne_bytes());
    reply.resize(64, 0);
    reply
}

/// Whether the kernel here drops a FUSE file's pages, so that a read reaches the server.
pub(crate) fn drop_pages(path: &Path) {
    let file = fs::File::open(path).expect("the file opens");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("an advice");
}
