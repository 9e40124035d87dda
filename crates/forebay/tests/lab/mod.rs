//! File systems to test on: loop drives with a file system of choice, overlays, and what a machine
//! offers by itself.
//!
//! A guard undoes all that it did when it is dropped, also while a test panics. What cannot be had
//! on a machine is an `Err` with the reason; [`skip`] prints it as `skipped: REASON`.

#![allow(dead_code, unused_imports, reason = "each test program uses its own part of this")]
#![allow(unsafe_code, reason = "a filter on system calls is set by its address")]

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use tempfile::TempDir;

pub(crate) mod child;
pub(crate) mod fork;
pub(crate) mod fuse;
pub(crate) mod hanging;
pub(crate) mod loop_drive;
pub(crate) mod pages;
pub(crate) mod seeds;
pub(crate) mod watchdog;

pub(crate) use loop_drive::{FileSystem, LoopDrive, LoopOptions};

/// `Err` holds why this machine cannot offer the thing.
pub(crate) type Offer<T> = Result<T, String>;

/// Says that a test, or a part of it, did not run. Written past the capture of the test harness,
/// so that it shows although the test counts as passed.
pub(crate) fn skip(reason: impl fmt::Display) {
    // The harness has begun a line with the name of the test.
    let line = format!("\nskipped: {reason}\n");
    // A closed standard error is no reason to fail a test.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Says where a test stands; shown where it fails.
#[allow(clippy::print_stdout, reason = "what the harness shows with a failure")]
pub(crate) fn note(place: impl fmt::Display) {
    println!("{place}");
}

/// The value, or `None` after the reason for its absence was printed.
pub(crate) fn or_skip<T>(offer: Offer<T>) -> Option<T> {
    offer.map_err(skip).ok()
}

/// An overlay with a folder of choice below and an upper folder of its own.
#[derive(Debug)]
pub(crate) struct Overlay {
    mounted: PathBuf,
    _folder: TempDir,
}

impl Overlay {
    /// Lays a new folder, which is made in `upper_in`, over `lower`.
    pub(crate) fn over(lower: &Path, upper_in: &Path) -> Offer<Self> {
        needs_root("an overlay")?;
        let folder = tempfile::Builder::new()
            .prefix("forebay-lab-")
            .tempdir_in(upper_in)
            .map_err(|e| format!("no folder for an overlay: {e}"))?;
        let part = |name: &str| {
            let path = folder.path().join(name);
            fs::create_dir(&path).map(|()| path).map_err(|e| format!("no folder: {e}"))
        };
        let (upper, work, mounted) = (part("upper")?, part("work")?, part("mounted")?);
        let settings = format!(
            "lowerdir={},upperdir={},workdir={}",
            lower.display(),
            upper.display(),
            work.display()
        );
        let arguments = ["-t", "overlay", "overlay", "-o", &settings].map(OsStr::new).into_iter();
        tool("mount", arguments.chain([mounted.as_os_str()]))?;
        Ok(Self { mounted, _folder: folder })
    }

    /// Where it is mounted.
    pub(crate) fn path(&self) -> &Path {
        &self.mounted
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        unmount(&self.mounted);
    }
}

/// A folder in memory, where `/dev/shm` is one.
pub(crate) fn memory_folder() -> Offer<TempDir> {
    let mounts = fs::read_to_string("/proc/self/mounts").map_err(|e| format!("no mounts: {e}"))?;
    if !mounts.lines().any(|line| line.split(' ').skip(1).take(2).eq(["/dev/shm", "tmpfs"])) {
        return Err("/dev/shm is no tmpfs here".into());
    }
    tempfile::tempdir_in("/dev/shm").map_err(|e| format!("no folder in /dev/shm: {e}"))
}

/// Runs `action` on a thread of an unused user and group, since the
/// kernel counts threads and locked memory by user; no other group, no privilege. Other threads
/// stay who they are.
pub(crate) fn unprivileged<T: Send>(action: impl FnOnce() -> T + Send) -> Offer<T> {
    use rustix::process::{Gid, Uid};
    use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
    needs_root("becoming another user")?;
    std::thread::scope(|scope| {
        // A child runs the test that the name of its starting thread gives.
        let name = std::thread::current().name().unwrap_or("unnamed").to_owned();
        let thread = std::thread::Builder::new().name(name).spawn_scoped(scope, || {
            let id = 60_000 + std::process::id() % 5_000;
            let (user, group) = (Uid::from_raw(id), Gid::from_raw(id));
            set_thread_groups(&[])
                .and_then(|()| set_thread_res_gid(group, group, group))
                .and_then(|()| set_thread_res_uid(user, user, user))
                .map_err(|e| format!("cannot become another user: {e}"))?;
            Ok(action())
        });
        let thread = thread.map_err(|e| format!("no thread: {e}"))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Runs `action` on a thread, and on the threads that it starts, where nothing is in `/proc`.
pub(crate) fn without_proc<T: Send>(action: impl FnOnce() -> T + Send) -> Offer<T> {
    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
    needs_root("hiding /proc")?;
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: the thread gets a list of mounts of its own, and no descriptor changes.
            if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
                let error = std::io::Error::last_os_error();
                return Err(format!("no mounts of a thread's own: {error}"));
            }
            let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
            mount_change("/", private)
                .and_then(|()| mount("none", "/proc", "tmpfs", MountFlags::empty(), None))
                .map_err(|errno| format!("/proc cannot be hidden here: {errno}"))?;
            Ok(action())
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// A number that no open descriptor has.
pub(crate) fn no_descriptor() -> std::os::fd::BorrowedFd<'static> {
    // SAFETY: no table of descriptors is so large, so no open descriptor is borrowed.
    unsafe { std::os::fd::BorrowedFd::borrow_raw(i32::MAX - 7) }
}

/// Runs `action` on a thread, and on the threads that it starts, where the system call `number`
/// fails with `errno`: ENOSYS as on an older kernel, EPERM as in a container.
pub(crate) fn without_call<T: Send>(
    number: i64,
    errno: i32,
    action: impl FnOnce() -> T + Send,
) -> Offer<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            refuse_call(number, errno)?;
            Ok(action())
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Whether the kernel lets this process use io_uring.
pub(crate) fn has_uring() -> bool {
    io_uring::IoUring::new(2).is_ok()
}

/// Puts a filter on this thread that cannot be removed.
fn refuse_call(number: i64, errno: i32) -> Offer<()> {
    let number = u32::try_from(number).map_err(|_| "no such system call here".to_owned())?;
    let errno = u32::try_from(errno).map_err(|_| "no such error".to_owned())?;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    // Load the call's number; is it this one?; refuse; allow.
    let mut steps = [
        step(0x20, 0, 0, 0),
        step(0x15, 0, 1, number),
        step(0x06, 0, 0, libc::SECCOMP_RET_ERRNO | errno),
        step(0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: steps.as_mut_ptr() };
    let mode = libc::SECCOMP_MODE_FILTER;
    // SAFETY: both calls change this thread alone, and the program outlives the second, which
    // copies it.
    let refused = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) != 0
    };
    if refused { Err("no filter on system calls here".into()) } else { Ok(()) }
}

/// `len` bytes that differ from position to position, by a xorshift from `seed`.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = vec![0; len.next_multiple_of(8)];
    for word in bytes.as_chunks_mut::<8>().0 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *word = state.to_le_bytes();
    }
    bytes.truncate(len);
    bytes
}

fn needs_root(what: &str) -> Offer<()> {
    if rustix::process::geteuid().is_root() { Ok(()) } else { Err(format!("{what} takes root")) }
}

/// Runs a tool and returns what it printed; the error holds what it complained about.
pub(crate) fn tool<'a>(
    name: &str,
    arguments: impl IntoIterator<Item = &'a OsStr>,
) -> Offer<String> {
    // Tools for administrators are not on everybody's path.
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let output = Command::new(name)
        .args(arguments)
        .env("PATH", path)
        .env("LC_ALL", "C")
        .output()
        .map_err(|e| format!("no `{name}`: {e}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let complaint = String::from_utf8_lossy(&output.stderr);
        Err(format!("`{name}` failed: {}", complaint.trim()))
    }
}

pub(crate) fn unmount(target: &Path) {
    // A descriptor that another thread just forked away keeps a mount busy for a moment.
    for _ in 0..50 {
        if tool("umount", [target.as_os_str()]).is_ok() {
            return;
        }
        sleep(Duration::from_millis(20));
    }
    undo("umount", ["--lazy".as_ref(), target.as_os_str()]);
}

pub(crate) fn undo<'a>(name: &str, arguments: impl IntoIterator<Item = &'a OsStr>) {
    if let Err(reason) = tool(name, arguments) {
        // A panic here would end the whole test program, so it is only printed.
        let _ = std::io::stderr().write_all(format!("left behind: {reason}\n").as_bytes());
    }
}
