//! Drivers that report success and return an impossible value, each in one call.

#![expect(unsafe_code, reason = "mocks a C library")]

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use super::kernels::KERNELS;
use super::{BATCH, BEFORE_12_8, TABLE, put, write};
use crate::cuda::table::KernelTable;
use crate::cuda::table::{
    Address, AllocationHandle, CopyAttributes, CudaTable, Location, Opaque, Ordinal, Status,
};
use crate::sim::Dice;

thread_local! {
    /// The number that this thread's driver returns.
    static NUMBER: Cell<i64> = const { Cell::new(0) };
    static DICE: Cell<u64> = const { Cell::new(0) };
}

/// Sets the number that this thread's corrupt driver returns.
pub fn answer(number: i64) {
    NUMBER.set(number);
}

/// Seeds this thread's sequence of random answers about addresses.
pub fn seed(seed: u64) {
    DICE.set(seed);
}

unsafe extern "C" fn no_context(context: *mut Opaque, _: Ordinal) -> Status {
    write(context, ptr::null_mut())
}

unsafe extern "C" fn nothing_to_release(_: Ordinal) -> Status {
    201
}

/// Returns a null context.
pub static NO_CONTEXT: CudaTable = CudaTable {
    primary_ctx_retain: no_context,
    primary_ctx_release: nothing_to_release,
    ..BEFORE_12_8
};

unsafe extern "C" fn no_handle(handle: *mut Opaque, _: c_uint) -> Status {
    write(handle, ptr::null_mut())
}

unsafe extern "C" fn no_stream(stream: *mut Opaque, _: c_uint, _: c_int) -> Status {
    write(stream, ptr::null_mut())
}

/// Returns a null stream.
pub static NO_STREAM: CudaTable = CudaTable { stream_create: no_stream, ..BEFORE_12_8 };

/// Returns a null event.
pub static NO_EVENT: CudaTable = CudaTable { event_create: no_handle, ..BEFORE_12_8 };

unsafe extern "C" fn no_module(module: *mut Opaque, _: *const c_void) -> Status {
    write(module, ptr::null_mut())
}

unsafe extern "C" fn no_function(function: *mut Opaque, _: Opaque, _: *const c_char) -> Status {
    write(function, ptr::null_mut())
}

/// Returns a null module.
pub static NO_MODULE: CudaTable = CudaTable {
    kernels: Some(KernelTable { module_load_data: no_module, ..KERNELS }),
    ..BEFORE_12_8
};

/// Returns a null function.
pub static NO_FUNCTION: CudaTable = CudaTable {
    kernels: Some(KernelTable { module_get_function: no_function, ..KERNELS }),
    ..BEFORE_12_8
};

unsafe extern "C" fn any_count(count: *mut c_int) -> Status {
    write(count, c_int::try_from(NUMBER.get()).unwrap())
}

unsafe extern "C" fn any_gpu(ordinal: *mut Ordinal, _: c_int) -> Status {
    write(ordinal, 3)
}

unsafe extern "C" fn endless_text(text: *mut c_char, len: c_int, _: Ordinal) -> Status {
    // SAFETY: the caller's buffer has `len` bytes; no zero is written to it.
    unsafe { ptr::write_bytes(text, b'A', usize::try_from(len).unwrap()) };
    0
}

unsafe extern "C" fn hostile_text(text: *mut c_char, len: c_int, _: Ordinal) -> Status {
    let words = b"../\x1b[2J\x07/etc\xff\0";
    assert!(words.len() < usize::try_from(len).unwrap());
    // SAFETY: the words fit into the caller's buffer.
    unsafe { ptr::copy_nonoverlapping(words.as_ptr().cast(), text, words.len()) };
    0
}

unsafe extern "C" fn any_size(len: *mut usize, _: Ordinal) -> Status {
    write(len, usize::try_from(NUMBER.get().cast_unsigned()).unwrap())
}

/// Reports the set number of GPUs, and accepts any ordinal.
pub static COUNTS: CudaTable =
    CudaTable { device_get_count: any_count, device_get: any_gpu, ..BEFORE_12_8 };

/// Returns names and PCI addresses without a terminating zero, and any memory size.
pub static ENDLESS: CudaTable = CudaTable {
    device_get_name: endless_text,
    device_get_pci_bus_id: endless_text,
    device_total_mem: any_size,
    ..BEFORE_12_8
};

/// Returns names and PCI addresses with characters that are unsafe in a terminal or path.
pub static HOSTILE: CudaTable =
    CudaTable { device_get_name: hostile_text, device_get_pci_bus_id: hostile_text, ..BEFORE_12_8 };

unsafe extern "C" fn any_memory(address: *mut Address, _: usize) -> Status {
    write(address, NUMBER.get().cast_unsigned())
}

/// Returns memory at any address.
pub static MEMORY: CudaTable = CudaTable { mem_alloc: any_memory, ..BEFORE_12_8 };

/// One of the numbers most likely to cause errors, or a random one.
fn roll(near: u64) -> u64 {
    let mut dice = Dice::new(DICE.get());
    let (choice, any) = (dice.next(), dice.next());
    DICE.set(any);
    match choice % 8 {
        0 => 0,
        1 => 1,
        2 => 2,
        3 => u64::MAX,
        4 => near,
        5 => near.wrapping_add(any % 5000).wrapping_sub(2500),
        6 => any % (1 << 20),
        _ => any,
    }
}

unsafe extern "C" fn any_attributes(
    count: c_uint,
    wanted: *mut c_uint,
    outputs: *mut *mut c_void,
    address: Address,
) -> Status {
    for place in 0..count as usize {
        let number = roll(address);
        let half = c_uint::try_from(number & 0xFFFF_FFFF).unwrap();
        // SAFETY: the caller passes as many attributes and outputs of the right sizes.
        unsafe {
            let output = *outputs.add(place);
            match *wanted.add(place) {
                11 | 12 => output.cast::<u64>().write(number),
                _ => output.cast::<c_uint>().write(half),
            }
        }
    }
    any_status()
}

fn any_status() -> Status {
    match roll(0) % 4 {
        0 => Status::MAX,
        _ => 0,
    }
}

unsafe extern "C" fn any_range(base: *mut Address, len: *mut usize, address: Address) -> Status {
    put(base, roll(address));
    put(len, usize::try_from(roll(address)).unwrap());
    any_status()
}

unsafe extern "C" fn any_handle(handle: *mut AllocationHandle, _: Opaque) -> Status {
    put(handle, roll(0));
    any_status()
}

unsafe extern "C" fn any_access(flags: *mut u64, _: *const Location, address: Address) -> Status {
    put(flags, roll(address));
    any_status()
}

unsafe extern "C" fn release_any(_: AllocationHandle) -> Status {
    any_status()
}

/// Returns random answers about addresses.
pub static ADDRESSES: CudaTable = CudaTable {
    pointer_get_attributes: any_attributes,
    mem_get_address_range: any_range,
    mem_retain_allocation_handle: any_handle,
    mem_release: release_any,
    mem_get_access: any_access,
    ..BEFORE_12_8
};

unsafe extern "C" fn tiny_range(base: *mut Address, len: *mut usize, address: Address) -> Status {
    put(base, address);
    write(len, 1)
}

unsafe extern "C" fn all_of_a_gpu(
    count: c_uint,
    wanted: *mut c_uint,
    outputs: *mut *mut c_void,
    address: Address,
) -> Status {
    let of = |attribute| match attribute {
        2 => 2,
        8 | 10 => 0,
        9 => 3,
        11 => address,
        _ => 1,
    };
    for place in 0..count as usize {
        // SAFETY: as above.
        unsafe {
            let (output, attribute) = (*outputs.add(place), *wanted.add(place));
            match attribute {
                11 | 12 => output.cast::<u64>().write(of(attribute)),
                _ => output.cast::<c_uint>().write(c_uint::try_from(of(attribute)).unwrap()),
            }
        }
    }
    0
}

unsafe extern "C" fn one_handle(handle: *mut AllocationHandle, _: Opaque) -> Status {
    write(handle, 1)
}

unsafe extern "C" fn full_access(flags: *mut u64, _: *const Location, _: Address) -> Status {
    write(flags, 3)
}

/// Reports adjacent mappings of one byte without end.
pub static TINY: CudaTable = CudaTable {
    pointer_get_attributes: all_of_a_gpu,
    mem_get_address_range: tiny_range,
    mem_retain_allocation_handle: one_handle,
    mem_release: release_any,
    mem_get_access: full_access,
    ..BEFORE_12_8
};

/// The copy index that a failed batch blames.
pub static BLAMED: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn failing_batch(
    _: *mut Address,
    _: *mut Address,
    _: *mut usize,
    _: usize,
    _: *mut CopyAttributes,
    _: *mut usize,
    _: usize,
    failed: *mut usize,
    _: Opaque,
) -> Status {
    put(failed, BLAMED.load(Ordering::SeqCst));
    1
}

/// Fails batches and blames a copy index outside the batch.
pub static BLAMES: CudaTable = CudaTable { memcpy_batch_async: Some(failing_batch), ..BEFORE_12_8 };

/// Statuses that `STATUSES` returns for events and streams; zero: the real status.
pub static EVENTS: AtomicI32 = AtomicI32::new(0);
pub static STREAMS: AtomicI32 = AtomicI32::new(0);

unsafe extern "C" fn event_status(event: Opaque) -> Status {
    match EVENTS.load(Ordering::SeqCst) {
        // SAFETY: the caller's promise.
        0 => unsafe { (TABLE.event_query)(event) },
        status => status,
    }
}

unsafe extern "C" fn stream_status(stream: Opaque) -> Status {
    // SAFETY: the caller's promise.
    let status = unsafe { (TABLE.stream_synchronize)(stream) };
    match STREAMS.load(Ordering::SeqCst) {
        0 => status,
        other => other,
    }
}

unsafe extern "C" fn no_text(_: Status, text: *mut *const c_char) -> Status {
    write(text, ptr::null())
}

/// Returns statuses that do not exist, without names or descriptions.
pub static STATUSES: CudaTable = CudaTable {
    event_query: event_status,
    stream_synchronize: stream_status,
    get_error_name: no_text,
    get_error_string: no_text,
    memcpy_batch_async: Some(BATCH),
    ..BEFORE_12_8
};
