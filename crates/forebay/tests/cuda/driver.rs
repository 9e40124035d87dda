//! The driver as another library of the process uses it.

#![expect(unsafe_code, reason = "calls the driver")]

use std::ffi::{OsStr, c_int, c_uint, c_void};
use std::fs;
use std::process::Command;
use std::ptr;
use std::sync::Arc;

use forebay::gpu::{Device, DeviceKind, GpuSelector, absence_reason};
use forebay::{Buffer, Engine, Options};
use libloading::Library;

pub(crate) type Opaque = *mut c_void;

/// `CUmemLocation` of a GPU.
#[repr(C)]
#[derive(Clone, Copy)]
struct Location {
    kind: c_int,
    number: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
struct Properties {
    kind: c_int,
    handle_types: c_int,
    location: Location,
    metadata: Opaque,
    flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
struct Access {
    location: Location,
    flags: c_int,
}

/// `CUipcMemHandle`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IpcHandle(pub(crate) [u8; 64]);

/// Gets a function of the driver and calls it.
macro_rules! call {
    ($driver:expr, $name:literal, $($argument:expr => $of:ty),* $(,)?) => {{
        type Function = unsafe extern "C" fn($($of),*) -> c_int;
        // SAFETY: the function of this name has this signature; outputs outlive the call, and what
        // is freed or destroyed is the test's own.
        unsafe { $driver.0.get::<Function>($name).unwrap()($($argument),*) }
    }};
}

/// The driver's library.
pub(crate) struct Driver(Library);

impl Driver {
    pub(crate) fn new() -> Self {
        // SAFETY: the library under test has loaded the same one already.
        Self(unsafe { Library::new("libcuda.so.1") }.unwrap())
    }

    /// Makes a GPU's primary context current on this thread, for the rest of the test.
    pub(crate) fn use_primary(&self, gpu: &dyn Device) {
        let mut context = ptr::null_mut();
        let ordinal = ordinal(gpu);
        let status = call!(self, b"cuDevicePrimaryCtxRetain\0",
            &raw mut context => *mut Opaque, ordinal => c_int);
        assert_eq!(status, 0);
        self.push(context);
    }

    pub(crate) fn push(&self, context: Opaque) {
        assert_eq!(call!(self, b"cuCtxPushCurrent_v2\0", context => Opaque), 0);
    }

    pub(crate) fn pop(&self) -> Opaque {
        let mut context = ptr::null_mut();
        assert_eq!(call!(self, b"cuCtxPopCurrent_v2\0", &raw mut context => *mut Opaque), 0);
        context
    }

    /// A context of the test's own, current on this thread.
    pub(crate) fn create_context(&self, gpu: &dyn Device) -> Opaque {
        let mut context = ptr::null_mut();
        let ordinal = ordinal(gpu);
        let status = call!(self, b"cuCtxCreate_v2\0",
            &raw mut context => *mut Opaque, 0 => c_uint, ordinal => c_int);
        assert_eq!(status, 0);
        context
    }

    pub(crate) fn destroy_context(&self, context: Opaque) {
        assert_eq!(call!(self, b"cuCtxDestroy_v2\0", context => Opaque), 0);
    }

    /// The status, and the address.
    pub(crate) fn try_allocate(&self, len: usize) -> (c_int, u64) {
        let mut address = 0;
        let status = call!(self, b"cuMemAlloc_v2\0", &raw mut address => *mut u64, len => usize);
        (status, address)
    }

    pub(crate) fn allocate(&self, len: usize) -> u64 {
        let (status, address) = self.try_allocate(len);
        assert_eq!(status, 0);
        address
    }

    /// Frees what was allocated by whichever call.
    pub(crate) fn free(&self, address: u64) {
        assert_eq!(call!(self, b"cuMemFree_v2\0", address => u64), 0);
    }

    /// Memory of the current GPU's pool.
    pub(crate) fn allocate_in_pool(&self, len: usize) -> u64 {
        let (mut address, default) = (0, ptr::null_mut());
        let status = call!(self, b"cuMemAllocAsync\0",
            &raw mut address => *mut u64, len => usize, default => Opaque);
        assert_eq!(status, 0);
        assert_eq!(call!(self, b"cuStreamSynchronize\0", default => Opaque), 0);
        address
    }

    pub(crate) fn allocate_managed(&self, len: usize) -> u64 {
        let mut address = 0;
        let status = call!(self, b"cuMemAllocManaged\0",
            &raw mut address => *mut u64, len => usize, 1 => c_uint);
        assert_eq!(status, 0);
        address
    }

    pub(crate) fn allocate_host(&self, len: usize) -> Opaque {
        let mut pointer = ptr::null_mut();
        let status = call!(self, b"cuMemHostAlloc\0",
            &raw mut pointer => *mut Opaque, len => usize, 0 => c_uint);
        assert_eq!(status, 0);
        pointer
    }

    pub(crate) fn free_host(&self, pointer: Opaque) {
        assert_eq!(call!(self, b"cuMemFreeHost\0", pointer => Opaque), 0);
    }

    pub(crate) fn reserve(&self, len: usize) -> u64 {
        let mut address = 0;
        let status = call!(self, b"cuMemAddressReserve\0", &raw mut address => *mut u64,
            len => usize, 0 => usize, 0 => u64, 0 => u64);
        assert_eq!(status, 0);
        address
    }

    pub(crate) fn give_back(&self, address: u64, len: usize) {
        assert_eq!(call!(self, b"cuMemAddressFree\0", address => u64, len => usize), 0);
    }

    /// Maps new memory of a GPU, which that GPU may access or not.
    pub(crate) fn map(&self, gpu: &dyn Device, address: u64, len: usize, accessible: bool) {
        let location = Location { kind: 1, number: ordinal(gpu) };
        let wanted = Properties {
            kind: 1,
            handle_types: 0,
            location,
            metadata: ptr::null_mut(),
            flags: [0; 8],
        };
        let mut handle = 0;
        let status = call!(self, b"cuMemCreate\0", &raw mut handle => *mut u64, len => usize,
            &raw const wanted => *const Properties, 0 => u64);
        assert_eq!(status, 0);
        let status = call!(self, b"cuMemMap\0",
            address => u64, len => usize, 0 => usize, handle => u64, 0 => u64);
        assert_eq!(status, 0);
        // The mapping keeps the memory.
        assert_eq!(call!(self, b"cuMemRelease\0", handle => u64), 0);
        if accessible {
            let access = Access { location, flags: 3 };
            let status = call!(self, b"cuMemSetAccess\0", address => u64, len => usize,
                &raw const access => *const Access, 1 => usize);
            assert_eq!(status, 0);
        }
    }

    pub(crate) fn unmap(&self, address: u64, len: usize) {
        assert_eq!(call!(self, b"cuMemUnmap\0", address => u64, len => usize), 0);
    }

    /// What another process needs to open the memory, or the driver's refusal.
    pub(crate) fn export(&self, address: u64) -> Result<IpcHandle, c_int> {
        let mut handle = IpcHandle([0; 64]);
        let status = call!(self, b"cuIpcGetMemHandle\0",
            &raw mut handle => *mut IpcHandle, address => u64);
        if status == 0 { Ok(handle) } else { Err(status) }
    }

    pub(crate) fn import(&self, handle: IpcHandle) -> u64 {
        let mut address = 0;
        let status = call!(self, b"cuIpcOpenMemHandle_v2\0",
            &raw mut address => *mut u64, handle => IpcHandle, 1 => c_uint);
        assert_eq!(status, 0);
        address
    }

    /// A stream of the test's own; `flags` is 0, or 1 for one that ignores the default stream.
    pub(crate) fn create_stream(&self, flags: c_uint) -> Opaque {
        let mut stream = ptr::null_mut();
        let status = call!(self, b"cuStreamCreate\0",
            &raw mut stream => *mut Opaque, flags => c_uint);
        assert_eq!(status, 0);
        stream
    }

    pub(crate) fn destroy_stream(&self, stream: Opaque) {
        assert_eq!(call!(self, b"cuStreamDestroy_v2\0", stream => Opaque), 0);
    }

    /// Queues a fill on a stream.
    pub(crate) fn fill(&self, stream: Opaque, address: u64, byte: u8, len: usize) {
        let status = call!(self, b"cuMemsetD8Async\0",
            address => u64, byte => u8, len => usize, stream => Opaque);
        assert_eq!(status, 0);
    }

    /// Queues a copy to pinned host memory.
    pub(crate) fn fetch(&self, stream: Opaque, host: Opaque, address: u64, len: usize) {
        let status = call!(self, b"cuMemcpyDtoHAsync_v2\0",
            host => Opaque, address => u64, len => usize, stream => Opaque);
        assert_eq!(status, 0);
    }

    /// Makes a stream wait until a number in pinned host memory is one.
    pub(crate) fn wait_for_one(&self, stream: Opaque, number: Opaque) {
        let status = call!(self, b"cuStreamWaitValue32_v2\0",
            stream => Opaque, number as u64 => u64, 1 => u32, 0 => c_uint);
        assert_eq!(status, 0);
    }

    pub(crate) fn synchronize(&self, stream: Opaque) {
        assert_eq!(call!(self, b"cuStreamSynchronize\0", stream => Opaque), 0);
    }

    pub(crate) fn synchronize_all(&self) {
        assert_eq!(call!(self, b"cuCtxSynchronize\0",), 0);
    }

    /// A stream whose work is captured in the global mode from now on.
    pub(crate) fn begin_capture(&self) -> Opaque {
        let mut stream = ptr::null_mut();
        let status = call!(self, b"cuStreamCreate\0", &raw mut stream => *mut Opaque, 1 => c_uint);
        assert_eq!(status, 0);
        assert_eq!(call!(self, b"cuStreamBeginCapture_v2\0", stream => Opaque, 0 => c_int), 0);
        stream
    }

    /// Puts a fill of four bytes where the stream's capture is.
    pub(crate) fn capture_fill(&self, stream: Opaque, address: u64) {
        let status = call!(self, b"cuMemsetD8Async\0",
            address => u64, 1 => u8, 4 => usize, stream => Opaque);
        assert_eq!(status, 0);
    }

    /// Destroys the stream; how much was captured, or why the capture is spoiled.
    pub(crate) fn end_capture(&self, stream: Opaque) -> Result<usize, c_int> {
        let (mut graph, mut count) = (ptr::null_mut(), 0);
        let status = call!(self, b"cuStreamEndCapture\0",
            stream => Opaque, &raw mut graph => *mut Opaque);
        if status == 0 {
            let status = call!(self, b"cuGraphGetNodes\0", graph => Opaque,
                ptr::null_mut() => *mut Opaque, &raw mut count => *mut usize);
            assert_eq!(status, 0);
            assert_eq!(call!(self, b"cuGraphDestroy\0", graph => Opaque), 0);
        }
        assert_eq!(call!(self, b"cuStreamDestroy_v2\0", stream => Opaque), 0);
        if status == 0 { Ok(count) } else { Err(status) }
    }

    pub(crate) fn close(&self, address: u64) {
        assert_eq!(call!(self, b"cuIpcCloseMemHandle\0", address => u64), 0);
    }
}

/// Runs the running test again, in a process of its own, with these variables.
pub(crate) fn run_again(variables: &[(&str, &OsStr)]) {
    let test = std::thread::current().name().unwrap().to_owned();
    let child = Command::new(std::env::current_exe().unwrap())
        .args([&*test, "--exact", "--nocapture", "--test-threads=1"])
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&child.stdout);
    let error = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success() && printed.contains("1 passed"), "{printed}{error}");
    // The harness may have begun the line with the test's name.
    for line in printed.lines().filter_map(|line| line.find("skipped: ").map(|at| &line[at..])) {
        println!("{line}");
    }
}

/// Whether this process runs one test only. If not, it starts one that does, and waits for it.
pub(crate) fn is_alone() -> bool {
    const ALONE: &str = "FOREBAY_TEST_ALONE";
    let alone = std::env::var_os(ALONE).is_some();
    if !alone {
        run_again(&[(ALONE, OsStr::new("1"))]);
    }
    alone
}

fn ordinal(gpu: &dyn Device) -> c_int {
    assert_eq!(gpu.id().kind, DeviceKind::Cuda);
    c_int::try_from(gpu.id().index).unwrap()
}

/// An engine with the first GPU, or the test is skipped.
pub(crate) fn engine() -> Option<(Engine, Arc<dyn Device>)> {
    let engine = Engine::new(Options::default()).unwrap();
    let Some(device) = engine.device(&GpuSelector::Auto).unwrap() else {
        let reason = absence_reason().unwrap_or_default();
        let required = std::env::var_os("FOREBAY_REQUIRE_GPU").is_some_and(|set| set == "1");
        assert!(!required, "FOREBAY_REQUIRE_GPU is 1, but no GPU: {reason}");
        println!("skipped: no GPU: {reason}");
        return None;
    };
    Some((engine, device))
}

/// A file in a folder of its own, and its bytes.
pub(crate) fn file(len: usize) -> (tempfile::TempDir, std::path::PathBuf, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bytes");
    let bytes: Vec<u8> = (0..=250).cycle().take(len).collect();
    fs::write(&path, &bytes).unwrap();
    (folder, path, bytes)
}

/// Reads a file into the whole buffer, and again a few bytes, and looks at every byte.
pub(crate) fn fill_and_check(engine: &Engine, mut buffer: Buffer) {
    let len = usize::try_from(buffer.len()).unwrap();
    let (_folder, path, bytes) = file(len);
    buffer.fill(0xEE).unwrap();
    let opened = engine.open(&path).unwrap();
    assert_eq!(opened.read(&mut buffer).run().unwrap().bytes, buffer.len());
    let mut got = vec![0; len];
    buffer.download(0, &mut got).unwrap();
    assert!(got == bytes);
    let (mut left, _right) = buffer.split_at(1000.min(len as u64 - 7));
    opened.read(&mut left).at(7).run().unwrap();
    got.truncate(usize::try_from(left.len()).unwrap());
    left.download(0, &mut got).unwrap();
    assert!(got == bytes[7..7 + got.len()]);
}
