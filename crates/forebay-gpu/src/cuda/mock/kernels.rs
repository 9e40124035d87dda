//! Kernels of the simulated driver: it recognises our PTX and runs the equivalent.

#![expect(unsafe_code, reason = "mocks a C library")]

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_uint, c_void};
use std::ptr::{self, NonNull};

use super::{handle, on_current, outside_captures, put};
use crate::cuda::kernels::{GATHER, GatherPiece, Program, XOR};
use crate::cuda::table::KernelTable;
use crate::cuda::table::{Opaque, Status};
use crate::{BATCH_MAX, Device, DeviceCopy, Stream};

/// Numbers of the first program's module and function.
const MODULE: usize = 0x7000;
const FUNCTION: usize = 0x7100;

const PROGRAMS: [Program; 2] = [XOR, GATHER];

thread_local! {
    static LOADED: Cell<i32> = const { Cell::new(0) };
}

/// Number of modules that this thread has loaded and not unloaded.
pub fn loaded() -> i32 {
    LOADED.get()
}

pub(super) const KERNELS: KernelTable =
    KernelTable { module_load_data, module_get_function, module_unload, launch_kernel };

/// The function with this name as of `version`.
#[cfg(test)]
pub(super) fn find(name: &CStr, version: std::ffi::c_int) -> Option<Opaque> {
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
    let text = unsafe { CStr::from_ptr(text.cast()) };
    let Some(index) = PROGRAMS.iter().position(|program| program.text == text) else { return 218 };
    outside_captures(|_| {
        LOADED.set(LOADED.get() + 1);
        put(module, ptr::without_provenance_mut(MODULE + index));
        Ok(())
    })
}

unsafe extern "C" fn module_get_function(
    function: *mut Opaque,
    module: Opaque,
    name: *const c_char,
) -> Status {
    // SAFETY: the table's callers pass a name that ends in a zero.
    let name = unsafe { CStr::from_ptr(name) };
    let program = module.addr().checked_sub(MODULE).and_then(|index| PROGRAMS.get(index));
    if program.is_none_or(|program| program.name != name) {
        return 500;
    }
    on_current(|_| {
        put(function, ptr::without_provenance_mut(FUNCTION + module.addr() - MODULE));
        Ok(())
    })
}

unsafe extern "C" fn module_unload(module: Opaque) -> Status {
    if !(MODULE..MODULE + PROGRAMS.len()).contains(&module.addr()) {
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
    let is_xor = function.addr() == FUNCTION;
    let is_known = is_xor || function.addr() == FUNCTION + 1;
    if !is_known || !flat || !fits || !further.is_null() || stream.is_null() {
        return 1;
    }
    let stream = Stream(handle(stream));
    if !is_xor {
        // SAFETY: the table's callers pass the gather kernel's arguments.
        return unsafe { gather(stream, arguments) };
    }
    // SAFETY: the kernel takes three 64-bit numbers, and the table's callers pass as many.
    let [first, pairs, key] =
        [0, 1, 2].map(|at| unsafe { (*arguments.add(at)).cast::<u64>().read() });
    let each = u64::from(blocks) * u64::from(threads);
    // Surplus threads would have nothing to do; the real kernel would accept them.
    assert!(pairs > 0 && each < 2 * pairs + 2 * u64::from(threads), "{blocks} blocks for {pairs}");
    // SAFETY: the table's callers keep the range valid until the kernel is done.
    on_current(|device| unsafe { device.xor(stream, first, key, 16 * pairs) })
}

/// Copies the pieces as the gather kernel does, but begins at once.
///
/// # Safety
/// The arguments are those of the kernel, and all that they refer to is valid until it is done.
unsafe fn gather(stream: Stream, arguments: *mut *mut c_void) -> Status {
    // SAFETY: the caller's promise.
    let (words, number, count, tiles, pieces) = unsafe {
        let at = |place: usize| *arguments.add(place);
        let number = |place| at(place).cast::<u32>().read();
        let words = ptr::with_exposed_provenance_mut::<u32>(at(0).cast::<usize>().read());
        (words, number(1), number(2), number(3), at(4).cast::<[GatherPiece; BATCH_MAX]>().read())
    };
    // SAFETY: as above.
    unsafe { words.write_volatile(number) };
    // SAFETY: as above.
    if unsafe { words.add(1).read_volatile() } == number {
        return 0;
    }
    let copy = |piece: &GatherPiece| {
        assert!((piece.host ^ piece.device).is_multiple_of(16), "the kernel copies words");
        assert!(piece.len <= 4096 * u64::from(tiles), "too few tiles");
        let host = ptr::with_exposed_provenance_mut(usize::try_from(piece.host).unwrap());
        let len = usize::try_from(piece.len).unwrap();
        DeviceCopy { host: NonNull::new(host).unwrap(), device: piece.device, len }
    };
    let copies: Vec<DeviceCopy> = pieces[..count as usize].iter().map(copy).collect();
    // SAFETY: as above.
    on_current(|device| unsafe { device.copy_batch_to_device(stream, &copies) })
}
