//! Our own kernels: PTX that the driver compiles for the GPU on first use.
//!
//! The PTX targets an old generation, which every driver can compile for every later one. The
//! kernel functions are optional in the table: only measurements need them.

#![expect(unsafe_code, reason = "calls the driver")]

use std::ffi::{CStr, c_int, c_uint};
use std::ptr;

use forebay_base::lock::Lock;

use super::table::{Address, CudaTable, KernelTable, Opaque, Ordinal, SUCCESS, nonsense};
use crate::gpu::{DeviceError, DeviceResult};

/// The PTX, which ends in a zero as the driver requires.
pub(crate) const TEXT: &CStr =
    match CStr::from_bytes_with_nul(concat!(include_str!("xor.ptx"), "\0").as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("the text has no other zero"),
    };
/// The kernel's name in the PTX.
pub(crate) const XOR: &CStr = c"forebay_xor";

/// The driver's call that starts a kernel.
pub(super) const LAUNCH: &str = "cuLaunchKernel";

/// Threads per block.
const THREADS: c_uint = 256;
/// Bytes that a thread processes per iteration: two pairs of words.
const BYTES_EACH: u64 = 32;
/// Maximum number of blocks; their threads loop until all is done.
const BLOCKS_MAX: u64 = 1 << 16;

/// `CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE`, in kHz.
const MEMORY_CLOCK: c_int = 36;
/// `CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH`, in bits.
const MEMORY_WIDTH: c_int = 37;

/// The kernels of one GPU, loaded on first use.
#[derive(Debug, Default)]
pub(super) struct Kernels(Lock<Option<Loaded>>);

#[derive(Debug, Clone, Copy)]
struct Loaded {
    module: Opaque,
    xor: Opaque,
}

// SAFETY: the driver's modules and functions may be used by several threads; the pointers are never
// dereferenced.
unsafe impl Send for Loaded {}

impl Kernels {
    /// The XOR kernel, loaded into the current context if it is not yet.
    fn xor(&self, cuda: &CudaTable, table: &KernelTable) -> DeviceResult<Opaque> {
        let mut kernels = self.0.lock();
        let loaded = match *kernels {
            Some(loaded) => loaded,
            None => *kernels.insert(load(cuda, table)?),
        };
        Ok(loaded.xor)
    }

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
        let xor = self.xor(cuda, table)?;
        let (mut first, mut pairs, mut key) = (address, len / 16, key);
        let mut arguments = [&raw mut first, &raw mut pairs, &raw mut key].map(<*mut u64>::cast);
        let blocks = len.div_ceil(u64::from(THREADS) * BYTES_EACH).min(BLOCKS_MAX);
        let blocks = c_uint::try_from(blocks).unwrap_or(c_uint::MAX);
        // SAFETY: the function takes three 64-bit numbers, which the driver copies before it
        // returns. It stays inside the range, which the caller keeps valid; the stream is alive.
        let status = unsafe {
            (table.launch_kernel)(
                xor,
                blocks,
                1,
                1,
                THREADS,
                1,
                1,
                0,
                stream,
                arguments.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        cuda.check(LAUNCH, status)
    }

    /// Unloads the kernels. Their context must be current, and none of them running.
    pub(super) fn unload(&mut self, cuda: &CudaTable) {
        let loaded = self.0.get_mut().take();
        if let (Some(loaded), Some(table)) = (loaded, &cuda.kernels) {
            // SAFETY: it is ours and was loaded once. A failure means that the driver is shutting
            // down.
            let _ = unsafe { (table.module_unload)(loaded.module) };
        }
    }
}

fn load(cuda: &CudaTable, table: &KernelTable) -> DeviceResult<Loaded> {
    let mut module = ptr::null_mut();
    // SAFETY: the PTX ends in a zero and is never changed; the output outlives the call.
    let status = unsafe { (table.module_load_data)(&raw mut module, TEXT.as_ptr().cast()) };
    cuda.check("cuModuleLoadData", status)?;
    if module.is_null() {
        return Err(nonsense("cuModuleLoadData", "gives no module"));
    }
    let mut xor = ptr::null_mut();
    // SAFETY: the module was just loaded, the name ends in a zero, the output outlives the call.
    let status = unsafe { (table.module_get_function)(&raw mut xor, module, XOR.as_ptr()) };
    let found = cuda.check("cuModuleGetFunction", status).and_then(|()| {
        let none = || nonsense("cuModuleGetFunction", "gives no function");
        if xor.is_null() { Err(none()) } else { Ok(Loaded { module, xor }) }
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
    fn the_text_holds_the_kernel() {
        let text = TEXT.to_str().unwrap();
        let name = XOR.to_str().unwrap();
        assert!(text.contains(&format!(".visible .entry {name}(")));
        // The oldest generation that drivers of CUDA 12 support.
        assert!(text.contains(".version 6.0\n.target sm_50\n.address_size 64\n"));
        assert!(text.is_ascii());
    }
}
