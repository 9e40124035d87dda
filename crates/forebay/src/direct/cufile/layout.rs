//! The structures of `cufile.h` that cross the border to the library, on 64-bit machines. Sizes and
//! places were the same from version 1.11 to 1.20.

use std::ffi::c_uint;
use std::mem::{offset_of, size_of};

/// `CUfileDrvProps_t`.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Properties {
    /// Of nvidia-fs; 0 without it.
    pub(super) major: c_uint,
    pub(super) minor: c_uint,
    pub(super) poll_threshold_kib: usize,
    pub(super) max_direct_io_kib: usize,
    /// What the library can serve with nvidia-fs or peer-to-peer DMA, by bits.
    pub(super) served: c_uint,
    pub(super) control: c_uint,
    pub(super) features: c_uint,
    pub(super) device_cache_kib: c_uint,
    pub(super) per_buffer_kib: c_uint,
    pub(super) pinned_kib: c_uint,
    pub(super) max_batch: c_uint,
    pub(super) batch_timeout_ms: c_uint,
}

const _: () = {
    assert!(size_of::<Properties>() == 56 && offset_of!(Properties, served) == 24);
    assert!(offset_of!(Properties, features) == 32 && offset_of!(Properties, max_batch) == 48);
};
