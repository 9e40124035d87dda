//! Our own kernels: PTX that the driver compiles for the GPU on first use.
//!
//! The PTX targets an old generation, which every driver can compile for every later one. The
//! kernel functions are optional in the table: copies do without them.

#![expect(unsafe_code, reason = "calls the driver")]

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::ptr;

use forebay_base::lock::Lock;

use super::table::{Address, CudaTable, KernelTable, Opaque, Ordinal, SUCCESS, nonsense};
use crate::{BATCH_MAX, DeviceCopy, DeviceError, DeviceResult, Signal};

/// PTX and the name of its kernel. Both end in a zero, as the driver requires.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) text: &'static CStr,
    pub(crate) name: &'static CStr,
}

const fn text(bytes: &'static [u8]) -> &'static CStr {
    match CStr::from_bytes_with_nul(bytes) {
        Ok(text) => text,
        Err(_) => panic!("the text has no other zero"),
    }
}

/// XORs words of the GPU's memory with a key.
pub(crate) const XOR: Program =
    Program { text: text(concat!(include_str!("xor.ptx"), "\0").as_bytes()), name: c"forebay_xor" };

/// Copies pieces of host memory to the GPU. Its 12 KiB of arguments need CUDA 12.1.
pub(crate) const GATHER: Program = Program {
    text: text(concat!(include_str!("gather.ptx"), "\0").as_bytes()),
    name: c"forebay_gather",
};

/// The driver's call that starts a kernel.
pub(super) const LAUNCH: &str = "cuLaunchKernel";

/// Threads per block of the XOR kernel.
const THREADS: c_uint = 256;
/// Bytes that a thread processes per iteration: two pairs of words.
const BYTES_EACH: u64 = 32;
/// Maximum number of blocks; their threads loop until all is done.
const BLOCKS_MAX: u64 = 1 << 16;

/// Threads per block of the gather kernel, and blocks: as many loads as the link needs in flight.
/// Each block adds 1 µs, for its signal to the host. Two and eight blocks moved pieces of 16 KiB at
/// 20 and 29 GB/s to an H200, of 64 KiB at 72 and 88 GB/s to two H200s, and of 4 KiB at 12 and 9
/// GB/s on a host of 32 cores, at 8 GB/s on 16.
const GATHER_THREADS: c_uint = 512;
const GATHER_BLOCKS: [c_uint; 2] = [2, 8];
const LONG: usize = 16 << 10;
/// Bytes that a warp of the gather kernel copies at a time.
const TILE: usize = 4096;

/// `CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE`, in kHz.
const MEMORY_CLOCK: c_int = 36;
/// `CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH`, in bits.
const MEMORY_WIDTH: c_int = 37;

/// The kernels of one GPU.
#[derive(Debug)]
pub(super) struct Kernels {
    xor: Kernel,
    gather: Kernel,
}

/// A kernel, loaded on first use. A failure is kept.
#[derive(Debug)]
struct Kernel(Program, Lock<Option<DeviceResult<Loaded>>>);

#[derive(Debug, Clone, Copy)]
struct Loaded {
    module: Opaque,
    function: Opaque,
}

// SAFETY: the driver's modules and functions may be used by several threads; the pointers are never
// dereferenced.
unsafe impl Send for Loaded {}

/// A piece as the gather kernel reads it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct GatherPiece {
    pub(crate) host: Address,
    pub(crate) device: Address,
    pub(crate) len: u64,
}

impl Default for Kernels {
    fn default() -> Self {
        Self { xor: Kernel(XOR, Lock::default()), gather: Kernel(GATHER, Lock::default()) }
    }
}

impl Kernel {
    /// The function, loaded into the current context if it is not yet.
    fn function(&self, cuda: &CudaTable, table: &KernelTable) -> DeviceResult<Opaque> {
        let mut loaded = self.1.lock();
        let loaded = loaded.get_or_insert_with(|| load(cuda, table, &self.0));
        loaded.as_ref().map(|loaded| loaded.function).map_err(Clone::clone)
    }
}

impl Kernels {
    /// Queues the XOR kernel on `len` bytes at `address`.
    ///
    /// # Safety
    /// The context is current and the stream is alive. The range stays valid until the kernel is
    /// done.
    pub(super) unsafe fn queue_xor(
        &self,
        cuda: &CudaTable,
        table: &KernelTable,
        stream: Opaque,
        (address, len): (Address, u64),
        key: u64,
    ) -> DeviceResult<()> {
        let xor = self.xor.function(cuda, table)?;
        let (mut first, mut pairs, mut key) = (address, len / 16, key);
        let mut arguments = [&raw mut first, &raw mut pairs, &raw mut key].map(<*mut u64>::cast);
        let blocks = len.div_ceil(u64::from(THREADS) * BYTES_EACH).min(BLOCKS_MAX);
        let blocks = c_uint::try_from(blocks).unwrap_or(c_uint::MAX);
        // SAFETY: the function takes three 64-bit numbers. It stays inside the range, which the
        // caller keeps valid; the stream is alive.
        unsafe { launch(cuda, table, xor, (blocks, THREADS), stream, &mut arguments) }
    }

    /// Loads the gather kernel into the current context.
    pub(super) fn load_gather(&self, cuda: &CudaTable, table: &KernelTable) {
        let loaded = self.gather.function(cuda, table);
        drop(loaded);
    }

    /// Whether the gather kernel is loaded.
    pub(super) fn can_gather(&self) -> bool {
        let loaded = self.gather.1.try_lock();
        loaded.is_some_and(|loaded| matches!(*loaded, Some(Ok(_))))
    }

    /// Queues the gather kernel on all `copies`, with a launch for each [`BATCH_MAX`] of them.
    ///
    /// # Safety
    /// As for [`Device::gather`](crate::Device::gather), and the context is current and the
    /// stream alive. Both addresses of a copy have the same remainder modulo 16.
    pub(super) unsafe fn queue_gather(
        &self,
        cuda: &CudaTable,
        table: &KernelTable,
        stream: Opaque,
        copies: &[DeviceCopy],
        signal: Signal,
    ) -> DeviceResult<()> {
        let gather = self.gather.function(cuda, table)?;
        let mut pieces = [GatherPiece { host: 0, device: 0, len: 0 }; BATCH_MAX];
        for copies in copies.chunks(BATCH_MAX) {
            for (piece, copy) in pieces.iter_mut().zip(copies) {
                let host = copy.host.as_ptr().expose_provenance() as u64;
                *piece = GatherPiece { host, device: copy.device, len: copy.len as u64 };
            }
            let longest = copies.iter().map(|copy| copy.len).max().unwrap_or(0);
            let number = |count: usize| c_uint::try_from(count).unwrap_or(c_uint::MAX);
            let mut words = signal.words.as_ptr().expose_provenance() as u64;
            let (mut turn, mut count) = (signal.number, number(copies.len()));
            let mut tiles = number(longest.div_ceil(TILE).max(1));
            let mut arguments = [
                (&raw mut words).cast(),
                (&raw mut turn).cast(),
                (&raw mut count).cast(),
                (&raw mut tiles).cast(),
                (&raw mut pieces).cast(),
            ];
            let shape = (GATHER_BLOCKS[usize::from(longest >= LONG)], GATHER_THREADS);
            // SAFETY: the arguments are the function's. It reads and writes the pieces and the
            // words, which the caller keeps valid; the stream is alive.
            unsafe { launch(cuda, table, gather, shape, stream, &mut arguments)? };
        }
        Ok(())
    }

    /// Unloads the kernels. Their context must be current, and none of them running.
    pub(super) fn unload(&mut self, cuda: &CudaTable) {
        for Kernel(_, loaded) in [&mut self.xor, &mut self.gather] {
            if let (Some(Ok(loaded)), Some(table)) = (loaded.get_mut().take(), &cuda.kernels) {
                // SAFETY: it is ours and was loaded once. A failure means that the driver is
                // shutting down.
                let _ = unsafe { (table.module_unload)(loaded.module) };
            }
        }
    }
}

/// Starts a function on blocks of threads.
///
/// # Safety
/// The stream is alive, and the arguments are the function's; the driver copies them.
unsafe fn launch(
    cuda: &CudaTable,
    table: &KernelTable,
    function: Opaque,
    (blocks, threads): (c_uint, c_uint),
    stream: Opaque,
    arguments: &mut [*mut c_void],
) -> DeviceResult<()> {
    let (arguments, further) = (arguments.as_mut_ptr(), ptr::null_mut());
    // SAFETY: the caller's promise.
    let status = unsafe {
        (table.launch_kernel)(function, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, further)
    };
    cuda.check(LAUNCH, status)
}

fn load(cuda: &CudaTable, table: &KernelTable, program: &Program) -> DeviceResult<Loaded> {
    let mut module = ptr::null_mut();
    // SAFETY: the PTX ends in a zero and is never changed; the output outlives the call.
    let status = unsafe { (table.module_load_data)(&raw mut module, program.text.as_ptr().cast()) };
    cuda.check("cuModuleLoadData", status)?;
    if module.is_null() {
        return Err(nonsense("cuModuleLoadData", "gives no module"));
    }
    let mut function = ptr::null_mut();
    let name = program.name.as_ptr();
    // SAFETY: the module was just loaded, the name ends in a zero, the output outlives the call.
    let status = unsafe { (table.module_get_function)(&raw mut function, module, name) };
    let found = cuda.check("cuModuleGetFunction", status).and_then(|()| {
        let none = || nonsense("cuModuleGetFunction", "gives no function");
        if function.is_null() { Err(none()) } else { Ok(Loaded { module, function }) }
    });
    found.inspect_err(|_| {
        // SAFETY: it was just loaded, and no other code has it.
        let _ = unsafe { (table.module_unload)(module) };
    })
}

/// The error of a driver without the functions for kernels.
#[cold]
pub(super) fn no_kernels() -> DeviceError {
    let name = "CUDA_ERROR_NOT_FOUND".to_owned();
    let detail = "the driver has no functions that load and start kernels".to_owned();
    DeviceError { call: LAUNCH, code: 500, name, detail }
}

/// Theoretical memory bandwidth in bytes per second, from the driver's memory clock and bus width:
/// two transfers per clock cycle.
pub(super) fn memory_rate(cuda: &CudaTable, ordinal: Ordinal) -> Option<u64> {
    let query = |attribute| {
        let mut value = 0;
        // SAFETY: the output outlives the call.
        let status = unsafe { (cuda.device_get_attribute)(&raw mut value, attribute, ordinal) };
        (status == SUCCESS).then_some(value)
    };
    rate_of(query(MEMORY_CLOCK)?, query(MEMORY_WIDTH)?)
}

/// The bandwidth for a clock in kHz and a width in bits; `None` if either is unknown.
fn rate_of(clock: c_int, width: c_int) -> Option<u64> {
    let (clock, width) = (u64::try_from(clock).ok()?, u64::try_from(width).ok()?);
    let rate = clock.checked_mul(2_000)?.checked_mul(width)? / 8;
    (rate > 0).then_some(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_moves_twice_in_each_turn() {
        assert_eq!(rate_of(3_201_000, 6_144), Some(4_916_736_000_000));
        for (clock, width) in [(0, 6_144), (3_201_000, 0), (-1, 6_144), (1, -1)] {
            assert_eq!(rate_of(clock, width), None);
        }
        assert_eq!(rate_of(c_int::MAX, c_int::MAX), None, "more than there are numbers for");
    }

    #[test]
    fn the_texts_hold_the_kernels() {
        for (program, header) in
            [(XOR, ".version 6.0\n.target sm_50\n"), (GATHER, ".version 8.1\n.target sm_70\n")]
        {
            let (text, name) = (program.text.to_str().unwrap(), program.name.to_str().unwrap());
            assert!(text.contains(&format!(".visible .entry {name}(")));
            assert!(text.contains(&format!("{header}.address_size 64\n")));
            assert!(text.is_ascii());
        }
        let bytes = size_of::<GatherPiece>() * BATCH_MAX;
        assert!(GATHER.text.to_str().unwrap().contains(&format!(".b8 pieces[{bytes}]")));
    }
}
