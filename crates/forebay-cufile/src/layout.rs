//! The structures of `cufile.h` that are passed to the library, on 64-bit machines. Sizes and
//! offsets were the same from version 1.11 to 1.20.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::{offset_of, size_of};

#[cfg(test)]
mod header_tests;

/// `CUfileDrvProps_t`.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Properties {
    /// Version of nvidia-fs; 0 without it.
    pub(super) major: c_uint,
    pub(super) minor: c_uint,
    pub(super) poll_threshold_kib: usize,
    pub(super) max_direct_io_kib: usize,
    /// Bit mask of storage that the library can serve with nvidia-fs or peer-to-peer DMA.
    pub(super) served: c_uint,
    pub(super) control: c_uint,
    pub(super) features: c_uint,
    pub(super) device_cache_kib: c_uint,
    pub(super) per_buffer_kib: c_uint,
    pub(super) pinned_kib: c_uint,
    pub(super) max_batch: c_uint,
    pub(super) batch_timeout_ms: c_uint,
}

/// `CUfileDescr_t`, for a file descriptor.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Descriptor {
    kind: c_int,
    gap: c_int,
    /// Shares a union with a pointer.
    fd: c_int,
    rest: c_int,
    /// Functions of a user-space file system; null.
    operations: *const c_void,
}

impl Descriptor {
    /// `CU_FILE_HANDLE_TYPE_OPAQUE_FD`.
    const OF_FD: c_int = 1;

    /// The descriptor.
    pub(super) fn fd(&self) -> c_int {
        self.fd
    }

    pub(super) fn of(fd: c_int) -> Self {
        Self { kind: Self::OF_FD, gap: 0, fd, rest: 0, operations: std::ptr::null() }
    }
}

/// Room for the counters of any level: 5,112 bytes since version 1.19, 5,000 before.
#[repr(C, align(8))]
pub(super) struct RawCounters(pub(super) [u8; 8192]);

const _: () = {
    assert!(size_of::<Descriptor>() == 24 && offset_of!(Descriptor, fd) == 8);
    assert!(offset_of!(Descriptor, operations) == 16 && size_of::<RawCounters>() > 5112);
    assert!(size_of::<Properties>() == 56 && offset_of!(Properties, served) == 24);
    assert!(offset_of!(Properties, features) == 32 && offset_of!(Properties, max_batch) == 48);
};
