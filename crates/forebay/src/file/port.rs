//! What moves a file's bytes to and from a GPU without a copy on the host. Neighbours: `direct`
//! makes ports, the rings of `queue` call them.

#![expect(unsafe_code, reason = "the trait's calls take raw addresses; each states its contract")]

use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;

use crate::gpu::DeviceId;

/// A file's way to and from the memory of a GPU, without a copy on the host.
pub(crate) trait Port: Debug + Send + Sync {
    /// What offsets, lengths and addresses have to be multiples of.
    fn unit(&self) -> u64;

    /// Reads up to `len` bytes at `offset` of the file to `address`, and waits for them: how many
    /// came. Fewer come at the end of the file, and wherever the path stops.
    ///
    /// # Safety
    /// The GPU's memory has so many bytes there, and they are the call's until it returns.
    ///
    /// # Errors
    /// A number of the kernel's; [`refusal`](Self::refusal) has the words.
    unsafe fn read(&self, address: u64, len: u64, offset: u64) -> Result<u64, Errno>;

    /// Writes up to `len` bytes from `address` on to `offset` of the file, and waits until the
    /// drive has them: how many went.
    ///
    /// # Safety
    /// The GPU's memory has so many bytes there, and nobody changes them until the call returns.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    unsafe fn write(&self, address: u64, len: u64, offset: u64) -> Result<u64, Errno>;

    /// The GPU.
    fn gpu(&self) -> DeviceId;

    /// Why it refused what it refused last, and what to do about that.
    fn refusal(&self) -> String;
}

/// A port, or why there is none.
pub(crate) type FoundPort = Result<Arc<dyn Port>, String>;

/// A file's ports, one for each GPU that was asked for, or why there is none.
#[derive(Debug, Default)]
pub(crate) struct Ports(Mutex<Vec<(DeviceId, FoundPort)>>);

impl Ports {
    /// The port to a GPU, made when it is first asked for. A refusal lasts.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn to(&self, gpu: DeviceId, make: impl FnOnce() -> FoundPort) -> FoundPort {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, port)) = known.iter().find(|(id, _)| *id == gpu) {
            return port.clone();
        }
        let port = make();
        known.push((gpu, port.clone()));
        port
    }

    /// Has no port to a GPU from now on.
    pub(crate) fn close(&self, gpu: DeviceId, reason: String) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let port = known.iter_mut().find(|(id, _)| *id == gpu);
        port.into_iter().for_each(|(_, port)| *port = Err(reason.clone()));
    }
}
