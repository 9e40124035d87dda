//! A file system of one file that fails on demand: reads that hang, come back short or fail at an
//! offset, a refused O_DIRECT, a size that is a lie.
//!
//! It speaks the kernel's own protocol (`linux/fuse.h`, version 7.31) over `/dev/fuse`, on one
//! thread of this process, and knows no more of it than one flat file needs.
//!
//! No process waits for it without a bound. The server's thread has a table of
//! descriptors of its own, so the kernel ends the connection as soon as that thread is gone;
//! nothing that it does waits for a file system; closing a file sends the server nothing, unless a
//! test wants that; and a guardian takes a mount away that stays for too long.

mod protocol;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::mount::{MountFlags, UnmountFlags};
use tempfile::TempDir;

pub(crate) use protocol::{Faults, NAME};
use protocol::{REQUEST_MAX, Reply, Request, State};

use super::{Offer, needs_root};

/// How long a mount stays at most: not as long as a watchdog waits, which would leave it behind.
const STAYS_MAX: Duration = Duration::from_secs(280);

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
    // Its end ends the guardian.
    _guardian: Sender<()>,
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
        // A process that dumps its core waits for all its threads before any of them lets go of its
        // descriptors: also for those that wait for this server.
        rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
            .map_err(|errno| format!("a FUSE mount is not safe here: {errno}"))?;
        let folder = tempfile::tempdir().map_err(|e| format!("no mount point: {e}"))?;
        let mounted = folder.path().to_owned();
        let guardian = guard(mounted.clone()).map_err(|e| format!("no thread: {e}"))?;
        let state = Mutex::new(State { bytes, faults, ..State::default() });
        let shared = Arc::new(Shared { state, parked: Condvar::new() });
        let (serving, at) = (Arc::clone(&shared), mounted.clone());
        let (report, reported) = channel();
        let server = move || match connect(&at) {
            Ok(device) => {
                let _ = report.send(Ok(()));
                serve(device, &serving);
            }
            Err(reason) => drop(report.send(Err(reason))),
        };
        let server = thread::Builder::new().name("fuse".into()).spawn(server);
        let server = Some(server.map_err(|e| format!("no thread: {e}"))?);
        reported.recv().map_err(|_| "the server of a FUSE mount ended".to_owned())??;
        let fuse = Self { shared, server, _guardian: guardian, mounted, _folder: folder };
        // Before Linux 5.16 the first closing of a file queries whether the server wants to know of
        // it: from now on no process that ends waits for an answer to that.
        File::open(fuse.path()).map_err(|e| format!("a FUSE mount without answers: {e}"))?;
        Ok(fuse)
    }

    /// Its file.
    pub(crate) fn path(&self) -> PathBuf {
        self.mounted.join(NAME)
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
            thread::sleep(Duration::from_millis(5));
        }
        let unmounted = take_away(&self.mounted);
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

/// Mounts a file system at `target` that this thread alone can serve: it gives up all its
/// descriptors but the standard ones, and no other thread sees the one that it returns.
fn connect(target: &Path) -> Offer<File> {
    // SAFETY: this thread has opened nothing so far, and the descriptors of all others stay theirs.
    let refused = unsafe {
        libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE) != 0
    };
    if refused {
        let error = std::io::Error::last_os_error();
        return Err(format!("no table of descriptors for a thread of its own: {error}"));
    }
    let device = open_device().map_err(|e| format!("no /dev/fuse: {e}"))?;
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,allow_other,max_read={REQUEST_MAX}",
        device.as_raw_fd()
    );
    let options = std::ffi::CString::new(options).map_err(|e| e.to_string())?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("forebay-test", target, "fuse", flags, options.as_c_str())
        .map_err(|errno| format!("no FUSE mount: {errno}"))?;
    Ok(device)
}

/// Opens the kernel's end of a file system, under a number that no other thread's descriptor has.
///
/// ThreadSanitizer knows of one table of descriptors only: equal numbers of two tables look to it
/// like one file that two threads use at once. So it does not see the lower number either, by
/// calls that it does not follow.
fn open_device() -> std::io::Result<File> {
    static SERVERS: AtomicI32 = AtomicI32::new(0);
    let number = 512 + SERVERS.fetch_add(1, Ordering::Relaxed) % 256;
    // A request may be taken back after it was announced; to read must not wait for the next.
    let flags = libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let path = c"/dev/fuse".as_ptr();
    // SAFETY: a path that ends with a zero.
    let low = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags) };
    let low = i32::try_from(low).ok().filter(|low| *low >= 0);
    let low = low.ok_or_else(std::io::Error::last_os_error)?;
    // SAFETY: numbers of this thread's own table, of which it has opened this one alone.
    let kept = unsafe {
        if libc::syscall(libc::SYS_dup3, low, number, libc::O_CLOEXEC) < 0 {
            low // a limit on descriptors lies below
        } else {
            libc::syscall(libc::SYS_close, low);
            number
        }
    };
    // SAFETY: open, and used by this thread alone.
    Ok(unsafe { File::from_raw_fd(kept) })
}

/// Unmounts a mount that may be in use: all waiting requests fail. This looks at no file in it.
pub(crate) fn take_away(mounted: &Path) -> rustix::io::Result<()> {
    rustix::mount::unmount(mounted, UnmountFlags::FORCE | UnmountFlags::DETACH)
}

/// Starts the guardian of a mount, which is to be there before it.
fn guard(mounted: PathBuf) -> std::io::Result<Sender<()>> {
    let (test, ended) = channel::<()>();
    let watch = move || {
        if ended.recv_timeout(STAYS_MAX) == Err(RecvTimeoutError::Timeout) {
            let line = format!("\n{} is taken away after {STAYS_MAX:?}\n", mounted.display());
            let _ = std::io::stderr().write_all(line.as_bytes());
            let _ = take_away(&mounted);
        }
    };
    thread::Builder::new().name("fuse-guardian".into()).spawn(watch)?;
    Ok(test)
}

/// Answers until the file system is to go; the connection ends with `device`.
fn serve(mut device: File, shared: &Shared) {
    let mut room = vec![0; (REQUEST_MAX + 4096) as usize];
    loop {
        let moment = rustix::event::Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
        let mut ready = [PollFd::new(&device, PollFlags::IN)];
        let came = poll(&mut ready, Some(&moment)).is_ok_and(|count| count > 0);
        if shared.lock().stopping {
            return;
        }
        let mut new = None;
        if came {
            match device.read(&mut room) {
                Ok(len) => {
                    let request = Request::read(&room[..len]);
                    let pause = shared.lock().pause(&request);
                    thread::sleep(pause);
                    new = Some(request);
                }
                // Unmounted by another process.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return,
                // A request that was taken back before it was read.
                Err(_) => {}
            }
        }
        for (unique, reply) in replies(shared, new) {
            send(&mut device, unique, reply);
        }
    }
}

/// What can be answered now of what hangs, and of a `new` request. At no moment is what goes on
/// hanging counted as if it did not.
fn replies(shared: &Shared, new: Option<Request>) -> Vec<(u64, Reply)> {
    let mut state = shared.lock();
    let mut replies = Vec::new();
    for request in std::mem::take(&mut state.parked).into_iter().chain(new) {
        match state.interrupt(&request).or_else(|| state.reply(&request)) {
            Some(reply) => replies.push((request.unique, reply)),
            None => state.parked.push(request),
        }
    }
    shared.parked.notify_all();
    replies
}

fn send(device: &mut File, unique: u64, reply: Reply) {
    let (error, body) = match reply {
        Reply::None => return,
        Reply::Error(errno) => (-errno, Vec::new()),
        Reply::Body(body) => (0, body),
    };
    let len = u32::try_from(16 + body.len()).expect("a reply of one request's size");
    let mut out = Vec::with_capacity(16 + body.len());
    out.extend_from_slice(&len.to_ne_bytes());
    out.extend_from_slice(&error.to_ne_bytes());
    out.extend_from_slice(&unique.to_ne_bytes());
    out.extend_from_slice(&body);
    // If this fails, the request has been given up.
    let _ = device.write_all(&out);
}

/// Whether the kernel here drops a FUSE file's pages, so that a read reaches the server.
pub(crate) fn drop_pages(path: &Path) {
    let file = fs::File::open(path).expect("the file opens");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("an advice");
}
