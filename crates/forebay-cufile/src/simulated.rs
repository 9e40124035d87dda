//! A simulated cuFile behind the same function table. Bytes move directly between a file and the
//! memory of a simulated GPU, which is host memory, and are counted like the library counts them.
//!
//! It simulates a loaded library, so its state is global to the process, like a library's.

#![expect(unsafe_code, reason = "has the library's functions, which take raw addresses")]

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{c_int, c_long, c_void};

use forebay_base::lock::{Lock, MutexGuard};
use forebay_base::units::align_down;
use forebay_gpu::sim::SimulatedCuFile;

use super::failure::Answer;
use super::layout::{Descriptor, Properties, RawCounters};
use super::library::{FileHandle, Table};

/// The version that it simulates.
pub(super) const VERSION: c_int = 1190;

/// Offset of the first GPU's counters in that version, and the offsets of the counters within them.
const FIRST_GPU: usize = 1144;
const READS: (usize, usize) = (16, 48);
const WRITES: (usize, usize) = (120, 152);

/// `CU_FILE_IO_NOT_SUPPORTED` and `CU_FILE_IO_ERROR`.
const NOT_SUPPORTED: c_int = 5008;
const IO_ERROR: isize = 5044;

/// Number of requests that succeed before one fails.
const FAILS_AFTER: u64 = 3;
/// Short requests are cut to a multiple of this; one request in three is short.
const SHORT_UNIT: u64 = 4096;
const SHORT_EVERY: u64 = 3;

#[derive(Debug, Clone, Copy)]
enum Direction {
    Read,
    Write,
}

#[derive(Debug, Clone, Copy)]
struct SimulatedFile {
    fd: c_int,
    play: SimulatedCuFile,
    /// State of the random generator.
    random: u64,
    requests: u64,
}

/// Bytes and requests of reads and of writes, by peer-to-peer DMA and by nvidia-fs.
#[derive(Debug, Default, Clone, Copy)]
struct Counted {
    bytes: u64,
    p2p: u64,
    nvidia_fs: u64,
}

#[derive(Debug, Default)]
struct Library {
    files: Option<HashMap<usize, SimulatedFile>>,
    next: usize,
    counted: [Counted; 2],
}

static LIBRARY: Lock<Library> = Lock::new(Library {
    files: None,
    next: 0,
    counted: [Counted { bytes: 0, p2p: 0, nvidia_fs: 0 }; 2],
});

thread_local! {
    /// The behavior of files that this thread registers.
    static PLAY: Cell<(SimulatedCuFile, u64)> = const { Cell::new((SimulatedCuFile::Refuse, 0)) };
}

/// Runs `work`; the files it registers have this behavior.
pub(super) fn with_simulated<T>(play: SimulatedCuFile, seed: u64, work: impl FnOnce() -> T) -> T {
    let before = PLAY.replace((play, seed));
    let result = work();
    PLAY.set(before);
    result
}

/// The functions of the simulated library.
pub(super) fn table() -> Table {
    Table {
        driver_open: ok,
        get_version,
        get_properties,
        use_count,
        handle_register,
        handle_deregister,
        read,
        write,
        set_stats_level: Some(takes_level),
        get_stats_level: None,
        stats_start: Some(ok),
        stats_stop: None,
        get_stats_l3: Some(get_stats_l3),
        set_parameter_bool: None,
        get_parameter_bool: None,
        get_p2p_flags: None,
    }
}

const OK: Answer = Answer { error: 0, cuda: 0 };

fn library() -> MutexGuard<'static, Library> {
    LIBRARY.lock()
}

unsafe extern "C" fn ok() -> Answer {
    OK
}

unsafe extern "C" fn takes_level(_level: c_int) -> Answer {
    OK
}

unsafe extern "C" fn use_count() -> c_long {
    0
}

unsafe extern "C" fn get_version(version: *mut c_int) -> Answer {
    // SAFETY: the caller's output.
    unsafe { version.write(VERSION) };
    OK
}

unsafe extern "C" fn get_properties(properties: *mut Properties) -> Answer {
    // SAFETY: the caller's output.
    unsafe { properties.write(Properties::default()) };
    OK
}

unsafe extern "C" fn handle_register(out: *mut FileHandle, descriptor: *mut Descriptor) -> Answer {
    let (play, seed) = PLAY.get();
    if play == SimulatedCuFile::Refuse {
        return Answer { error: NOT_SUPPORTED, cuda: 0 };
    }
    if play == SimulatedCuFile::HangOpen {
        hang();
    }
    // SAFETY: the caller's descriptor.
    let fd = unsafe { (*descriptor).fd() };
    let mut library = library();
    library.next += 1;
    let key = library.next;
    let file = SimulatedFile { fd, play, random: seed ^ 0x9e37_79b9_7f4a_7c15, requests: 0 };
    library.files.get_or_insert_default().insert(key, file);
    // SAFETY: the caller's output. The handle is a number that is never dereferenced.
    unsafe { out.write(key as FileHandle) };
    OK
}

unsafe extern "C" fn handle_deregister(handle: FileHandle) {
    let file = library().files.get_or_insert_default().remove(&(handle as usize));
    if file.is_some_and(|file| file.play == SimulatedCuFile::HangClose) {
        hang();
    }
}

unsafe extern "C" fn read(
    handle: FileHandle,
    base: *mut c_void,
    len: usize,
    offset: i64,
    at: i64,
) -> isize {
    let memory = place(base.cast(), at);
    // SAFETY: the caller's memory.
    let moves = |fd, len| unsafe { libc::pread(fd, memory.cast(), len, offset) };
    act(handle, len, Direction::Read, moves)
}

unsafe extern "C" fn write(
    handle: FileHandle,
    base: *const c_void,
    len: usize,
    offset: i64,
    at: i64,
) -> isize {
    let memory = place(base.cast::<u8>().cast_mut(), at);
    // SAFETY: the caller's memory.
    let moves = |fd, len| unsafe { libc::pwrite(fd, memory.cast(), len, offset) };
    act(handle, len, Direction::Write, moves)
}

/// Never returns.
fn hang() -> ! {
    loop {
        std::thread::park();
    }
}

/// The address of byte `at`.
fn place(base: *mut u8, at: i64) -> *mut u8 {
    base.wrapping_offset(isize::try_from(at).unwrap_or(0))
}

/// Carries out a request with its file's behavior and counts it as a read or a write.
fn act(
    handle: FileHandle,
    len: usize,
    direction: Direction,
    moves: impl FnOnce(c_int, usize) -> isize,
) -> isize {
    let Some(file) = library().begin(handle) else { return -(NOT_SUPPORTED as isize) };
    let requested = match file.play {
        SimulatedCuFile::Fail if file.requests > FAILS_AFTER => return -IO_ERROR,
        SimulatedCuFile::Hang if file.requests > FAILS_AFTER => hang(),
        SimulatedCuFile::Short if file.random.is_multiple_of(SHORT_EVERY) => {
            let fewer = align_down(file.random % (len as u64).max(1), SHORT_UNIT);
            usize::try_from(fewer.max(SHORT_UNIT)).unwrap_or(len).min(len)
        }
        _ => len,
    };
    if file.play == SimulatedCuFile::Lie {
        library().count(direction, &file, len);
        return isize::try_from(len).unwrap_or(isize::MAX);
    }
    // The caller that registered the file keeps its descriptor open until it is deregistered. A
    // failed call returns -1, and its error is the thread's `errno`.
    let moved = moves(file.fd, requested);
    if let Ok(moved) = usize::try_from(moved) {
        library().count(direction, &file, moved);
    }
    moved
}

impl Library {
    /// Begins a request and returns the behavior of its file for it.
    fn begin(&mut self, handle: FileHandle) -> Option<SimulatedFile> {
        let file = self.files.get_or_insert_default().get_mut(&(handle as usize))?;
        file.requests += 1;
        // A step of a linear congruential generator (Knuth), of which the upper bits are used.
        file.random = file
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        Some(SimulatedFile { random: file.random >> 20, ..*file })
    }

    fn count(&mut self, direction: Direction, file: &SimulatedFile, bytes: usize) {
        let counted = &mut self.counted[direction as usize];
        counted.bytes += bytes as u64;
        match file.play {
            SimulatedCuFile::NvidiaFs => counted.nvidia_fs += 1,
            _ => counted.p2p += 1,
        }
    }
}

unsafe extern "C" fn get_stats_l3(out: *mut c_void) -> Answer {
    let mut counters = RawCounters([0; 8192]);
    let mut put = |at: usize, value: u64| {
        counters.0[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    };
    put(FIRST_GPU - 8, 1);
    for ((bytes, requests), counted) in [READS, WRITES].into_iter().zip(library().counted) {
        put(FIRST_GPU + bytes, counted.bytes);
        put(FIRST_GPU + requests, counted.p2p + counted.nvidia_fs);
        put(FIRST_GPU + requests + 8, counted.p2p);
        put(FIRST_GPU + requests + 16, counted.nvidia_fs);
    }
    // SAFETY: the caller has space for the counters of any version, including this one.
    unsafe { out.cast::<[u8; 5112]>().write(counters.0[..5112].try_into().expect("so many")) };
    OK
}
