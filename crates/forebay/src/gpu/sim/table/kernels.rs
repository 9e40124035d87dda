//! Kernels of the simulated driver: it recognises our PTX and runs the equivalent.

#![expect(unsafe_code, reason = "mocks a C library")]

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

use super::{handle, on_current, outside_captures, put};
use crate::gpu::cuda::kernels::{TEXT, XOR};
use crate::gpu::cuda::table::KernelTable;
use crate::gpu::cuda::table::{Opaque, Status};
use crate::gpu::{Device, Stream};

const MODULE: usize = 0x7000;
const FUNCTION: usize = 0x7100;

thread_local! {
    static LOADED: Cell<i32> = const { Cell::new(0) };
}

/// Number of modules that this thread has loaded and not unloaded.
pub(crate) fn loaded() -> i32 {
    LOADED.get()
}

pub(super) const KERNELS: KernelTable =
    KernelTable { module_load_data, module_get_function, module_unload, launch_kernel };

/// The function with this name as of `version`.
pub(super) fn find(name: &CStr, version: c_int) -> Option<Opaque> {
    let (since, pointer) = match name.to_bytes() {
        b"cuModuleLoadData" => (2_000, KERNELS.module_load_data as Opaque),
        b"cuModuleGetFunction" => (2_000, KERNELS.module_get_function as Opaque),
        b"cuModuleUnload" => (2_000, KERNELS.module_unload as Opaque),
        b"cuLaunchKernel" => (4_000, KERNELS.launch_kernel as Opaque),
        _ => return None,
    };
    (since <= version).then_some(pointer)
}

unsafe extern "C" fn module_load_data(module: *mut Opaque, text: *const c_void) -> Status {
    // SAFETY: the table's callers pass a text that ends in a zero.
    if unsafe { CStr::from_ptr(text.cast()) } != TEXT {
        return 218;
    }
    outside_captures(|_| {
        LOADED.set(LOADED.get() + 1);
        put(module, ptr::without_provenance_mut(MODULE));
        Ok(())
    })
}

unsafe extern "C" fn module_get_function(
    function: *mut Opaque,
    module: Opaque,
    name: *const c_char,
) -> Status {
    // SAFETY: the table's callers pass a name that ends in a zero.
    let is_known = module.addr() == MODULE && unsafe { CStr::from_ptr(name) } == XOR;
    if !is_known {
        return 500;
    }
    on_current(|_| {
        put(function, ptr::without_provenance_mut(FUNCTION));
        Ok(())
    })
}

unsafe extern "C" fn module_unload(module: Opaque) -> Status {
    if module.addr() != MODULE {
        return 400;
    }
    outside_captures(|_| {
        LOADED.set(LOADED.get() - 1);
        Ok(())
    })
}

unsafe extern "C" fn launch_kernel(
    function: Opaque,
    blocks: c_uint,
    blocks_y: c_uint,
    blocks_z: c_uint,
    threads: c_uint,
    threads_y: c_uint,
    threads_z: c_uint,
    shared: c_uint,
    stream: Opaque,
    arguments: *mut *mut c_void,
    further: *mut *mut c_void,
) -> Status {
    let flat = (blocks_y, blocks_z, threads_y, threads_z, shared) == (1, 1, 1, 1, 0);
    let fits = (1..=1 << 31).contains(&u64::from(blocks)) && (1..=1024).contains(&threads);
    if function.addr() != FUNCTION || !flat || !fits || !further.is_null() || stream.is_null() {
        return 1;
    }
    // SAFETY: the kernel takes three 64-bit numbers, and the table's callers pass as many.
    let [first, pairs, key] =
        [0, 1, 2].map(|at| unsafe { (*arguments.add(at)).cast::<u64>().read() });
    let each = u64::from(blocks) * u64::from(threads);
    // Surplus threads would have nothing to do; the real kernel would accept them.
    assert!(pairs > 0 && each < 2 * pairs + 2 * u64::from(threads), "{blocks} blocks for {pairs}");
    let stream = Stream(handle(stream));
    // SAFETY: the table's callers keep the range valid until the kernel is done.
    on_current(|device| unsafe { device.xor(stream, first, key, 16 * pairs) })
}
