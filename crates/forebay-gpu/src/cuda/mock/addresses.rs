//! Address queries of the simulated driver, and memory that a test presents as another kind.

#![expect(unsafe_code, reason = "mocks a C library")]

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

use forebay_base::lock::Lock;

use super::{GPUS, STACK, context_of, put, write};
use crate::cuda::table::{Address, AllocationHandle, Location, Opaque, Status};
use crate::{AddressKind, Device};

/// The kind that part of a simulated GPU's memory is presented as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimulatedAddress {
    /// Mapped virtual memory that the GPU with this ordinal may or may not access.
    Mapping { ordinal: c_int, accessible: bool },
    /// Reserved virtual memory with nothing mapped.
    Reserved,
    /// Managed memory that belongs to no particular GPU.
    Managed,
}

static SIMULATED: Lock<BTreeMap<u64, (u64, SimulatedAddress)>> = Lock::new(BTreeMap::new());

/// Number of retained mapping handles.
static HANDLES: AtomicI32 = AtomicI32::new(0);

/// Presents part of an allocation as another kind from now on. Addresses are never reused.
pub fn play(base: u64, len: u64, as_what: SimulatedAddress) {
    SIMULATED.lock().insert(base, (len, as_what));
}

/// Number of mapping handles retained and not released.
pub fn handles() -> i32 {
    HANDLES.load(Ordering::SeqCst)
}

fn simulated(address: Address) -> Option<(u64, u64, SimulatedAddress)> {
    let (base, (len, what)) =
        SIMULATED.lock().range(..=address).next_back().map(|(&base, &it)| (base, it))?;
    (address - base < len).then_some((base, len, what))
}

/// The kind of memory at an address, from all simulated GPUs.
pub(super) fn kind_of(address: Address) -> AddressKind {
    let kinds = GPUS.iter().map(|gpu| gpu.device.address_kind(address));
    let known = |first, next| if first == AddressKind::Unknown { next } else { first };
    kinds.reduce(known).unwrap_or(AddressKind::Unknown)
}

pub(super) unsafe extern "C" fn pointer_get_attributes(
    count: c_uint,
    wanted: *mut c_uint,
    outputs: *mut *mut c_void,
    address: Address,
) -> Status {
    const NO_GPU: c_int = -2;
    let (mut memory_type, mut ordinal, base, size) = match kind_of(address) {
        AddressKind::Device { device, base, len } => {
            (2, c_int::try_from(device.index).unwrap(), base, len)
        }
        AddressKind::PinnedHost => (1, 0, 0, 0),
        _ => (0, NO_GPU, 0, 0),
    };
    let (mut managed, mut mapped) = (0, u32::from(memory_type == 2));
    let is_plain = memory_type == 2 && simulated(address).is_none();
    // For virtual memory the driver reports the bounds of the reservation: here the allocation.
    match simulated(address).map(|(_, _, what)| what) {
        Some(SimulatedAddress::Mapping { ordinal: on, .. }) => ordinal = on,
        Some(SimulatedAddress::Reserved) => (memory_type, ordinal, mapped) = (0, NO_GPU, 0),
        Some(SimulatedAddress::Managed) => (managed, ordinal) = (1, NO_GPU),
        None => {}
    }
    let is_virtual = matches!(simulated(address), Some((_, _, SimulatedAddress::Mapping { .. })));
    let has_owner = memory_type == 2 && !is_virtual;
    let owner = usize::try_from(ordinal).ok().filter(|_| has_owner).map(context_of);
    for place in 0..count as usize {
        // SAFETY: the caller passes `count` attributes and as many outputs of the right sizes.
        unsafe {
            let output = *outputs.add(place);
            match *wanted.add(place) {
                1 => output.cast::<Opaque>().write(owner.unwrap_or(ptr::null_mut())),
                2 => output.cast::<c_uint>().write(memory_type),
                8 => output.cast::<c_uint>().write(managed),
                9 => output.cast::<c_int>().write(ordinal),
                10 => output.cast::<c_uint>().write(u32::from(is_plain)),
                11 => output.cast::<u64>().write(base),
                12 => output.cast::<u64>().write(size),
                13 => output.cast::<c_uint>().write(mapped),
                _ => return 1,
            }
        }
    }
    0
}

pub(super) unsafe extern "C" fn mem_get_address_range(
    base: *mut Address,
    len: *mut usize,
    address: Address,
) -> Status {
    if STACK.with_borrow(Vec::is_empty) {
        return 201;
    }
    let (start, size) = match (simulated(address), kind_of(address)) {
        (Some((_, _, SimulatedAddress::Reserved)), _) => return 500,
        (Some((start, size, _)), _) => (start, size),
        (None, AddressKind::Device { base, len, .. }) => (base, len),
        _ => return 500,
    };
    put(base, start);
    write(len, usize::try_from(size).unwrap())
}

pub(super) unsafe extern "C" fn mem_retain_allocation_handle(
    handle: *mut AllocationHandle,
    address: Opaque,
) -> Status {
    let Some((base, _, SimulatedAddress::Mapping { .. })) = simulated(address.addr() as u64) else {
        return 1;
    };
    HANDLES.fetch_add(1, Ordering::SeqCst);
    write(handle, base)
}

pub(super) unsafe extern "C" fn mem_release(handle: AllocationHandle) -> Status {
    let Some((_, _, SimulatedAddress::Mapping { .. })) = simulated(handle) else { return 1 };
    HANDLES.fetch_sub(1, Ordering::SeqCst);
    0
}

pub(super) unsafe extern "C" fn mem_get_access(
    flags: *mut u64,
    location: *const Location,
    address: Address,
) -> Status {
    // SAFETY: the table's callers pass a readable location.
    let accessor = unsafe { *location }.ordinal();
    match simulated(address) {
        Some((_, _, SimulatedAddress::Mapping { ordinal, accessible })) => {
            write(flags, if accessible && accessor == Some(ordinal) { 3 } else { 0 })
        }
        _ => 1,
    }
}
