//! The direct route: bytes move between a drive and a GPU without a copy in host memory. A provider
//! opens a [`Port`] for a file and a GPU, or reports why it cannot.

#![expect(unsafe_code, reason = "the trait's calls take raw addresses; each states its contract")]

use std::any::Any;
use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::io::Errno;

use crate::{Device, DeviceId};

/// A library or driver that serves the direct route.
pub trait DirectProvider: Debug + Send + Sync {
    /// Its name, for messages.
    fn name(&self) -> &'static str;

    /// True if a GPU may have a direct path, as far as is known without a probe.
    fn may_serve(&self, device: &dyn Device) -> bool;

    /// Starts the driver for a GPU. With `waits` the call waits for the result or a timeout.
    ///
    /// # Errors
    /// Why the driver is not available, or not yet, as text for users.
    fn start(&self, device: &dyn Device, waits: bool) -> Result<(), String>;

    /// Opens a port for a file and a GPU whose driver has started.
    ///
    /// # Errors
    /// Why the file cannot be used.
    fn open(&self, file: DirectFile<'_>, device: &Arc<dyn Device>)
    -> Result<Arc<dyn Port>, NoPort>;
}

/// A file opened with O_DIRECT.
#[derive(Debug, Clone, Copy)]
pub struct DirectFile<'a> {
    /// Its descriptor.
    pub fd: BorrowedFd<'a>,
    /// O_DIRECT needs offsets, lengths and addresses that are multiples of this.
    pub alignment: u64,
}

/// A direct path between a file and the memory of a GPU.
pub trait Port: Any + Debug + Send + Sync {
    /// Offsets, lengths and addresses must be multiples of this.
    fn unit(&self) -> u64;

    /// Reads up to `len` bytes at `offset` of the file to `address`, and waits for completion.
    /// Returns the number of bytes, which is short at the end of the file and wherever the path
    /// stops.
    ///
    /// # Safety
    /// The GPU's memory must have `len` bytes there, with no other access until the call returns.
    ///
    /// # Errors
    /// The errno, and the provider's message.
    unsafe fn read(&self, address: u64, len: u64, offset: u64) -> Result<u64, PortError>;

    /// Writes up to `len` bytes from `address` to `offset` of the file, and waits until the drive
    /// has them. Returns the number of bytes.
    ///
    /// # Safety
    /// The GPU's memory must have `len` bytes there, unchanged until the call returns.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    unsafe fn write(&self, address: u64, len: u64, offset: u64) -> Result<u64, PortError>;

    /// The GPU.
    fn gpu(&self) -> DeviceId;
}

/// Why a port refused a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortError {
    /// The error number.
    pub errno: Errno,
    /// The reason, and what to do about it.
    pub words: String,
    /// True if the error concerns only this memory, so that other memory may work.
    pub of_memory: bool,
}

impl From<Errno> for PortError {
    fn from(errno: Errno) -> Self {
        Self { errno, words: errno.to_string(), of_memory: false }
    }
}

/// Why there is no port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoPort {
    /// The reason, as text for users.
    pub why: String,
    /// True if trying again is pointless.
    pub lasts: bool,
}
