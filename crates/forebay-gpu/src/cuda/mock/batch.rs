//! `cuMemcpyBatchAsync` of the simulated driver, as of CUDA 12.8.

#![expect(unsafe_code, reason = "mocks a C library")]

use std::ptr::NonNull;
use std::slice;

use super::addresses::kind_of;
use super::{handle, on_current, put};
use crate::cuda::table::{Address, CopyAttributes, Opaque, SOURCE_ORDER_STREAM, Status};
use crate::{AddressKind, BATCH_MAX, Device, DeviceCopy, Stream};

/// Refuses what the driver refuses: no copies, zero-length copies, attributes that do not start at
/// the first copy or leave the order open, the default stream. A copy that is not between pinned
/// and device memory is blamed by its index.
pub(super) unsafe extern "C" fn memcpy_batch_async(
    targets: *mut Address,
    sources: *mut Address,
    lens: *mut usize,
    count: usize,
    attributes: *mut CopyAttributes,
    attribute_places: *mut usize,
    attribute_count: usize,
    failed: *mut usize,
    stream: Opaque,
) -> Status {
    put(failed, usize::MAX);
    if count == 0 || attribute_count != 1 || stream.is_null() {
        return 1;
    }
    assert!(count <= BATCH_MAX, "larger batches are slower");
    // SAFETY: the table's callers pass `count` of each, and one attribute with its index.
    let (targets, sources, lens, attributes, first) = unsafe {
        let targets = slice::from_raw_parts(targets, count);
        let sources = slice::from_raw_parts(sources, count);
        (targets, sources, slice::from_raw_parts(lens, count), &*attributes, *attribute_places)
    };
    if first != 0 || attributes.source_order != SOURCE_ORDER_STREAM || attributes.flags != 0 {
        return 1;
    }
    let (mut up, mut down) = (Vec::new(), Vec::new());
    for index in 0..count {
        let (target, source, len) = (targets[index], sources[index], lens[index]);
        match (place(target), place(source)) {
            (CopySide::Device, CopySide::Pinned(host)) if len > 0 => {
                up.push(DeviceCopy { host, device: target, len });
            }
            (CopySide::Pinned(host), CopySide::Device) if len > 0 => {
                down.push(DeviceCopy { host, device: source, len });
            }
            _ => {
                put(failed, index);
                return 1;
            }
        }
    }
    let stream = Stream(handle(stream));
    // SAFETY: the table's callers keep all ranges valid until the copies are done.
    on_current(|device| unsafe {
        device.copy_batch_to_device(stream, &up)?;
        device.copy_batch_to_host(stream, &down)
    })
}

enum CopySide {
    Device,
    Pinned(NonNull<u8>),
    Neither,
}

fn place(address: Address) -> CopySide {
    match kind_of(address) {
        AddressKind::Device { .. } => CopySide::Device,
        AddressKind::PinnedHost => {
            let number = usize::try_from(address).expect("an address of this machine");
            NonNull::new(std::ptr::with_exposed_provenance_mut(number))
                .map_or(CopySide::Neither, CopySide::Pinned)
        }
        _ => CopySide::Neither,
    }
}
