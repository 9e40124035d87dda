//! What moves a file's bytes to and from a GPU without a copy on the host. Neighbours: `direct`
//! makes ports, the rings of `queue` call them.

#![expect(unsafe_code, reason = "the trait's calls take raw addresses; each states its contract")]

use std::any::Any;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::io::Errno;

use crate::gpu::DeviceId;

/// A file's way to and from the memory of a GPU, without a copy on the host.
pub(crate) trait Port: Any + Debug + Send + Sync {
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

    /// A lane for requests of this port and of others of its provider and GPU.
    ///
    /// # Errors
    /// Why there is none.
    fn lane(&self, kind: LaneKind) -> Result<Box<dyn Lane>, String>;

    /// Makes memory of the GPU known to the provider, so that bytes take no detour on the way to
    /// it: until what is returned is dropped, which has to be before the memory is freed. `None`:
    /// the provider does not take it.
    fn keep_known(&self, address: u64, len: u64) -> Option<Box<dyn Any + Send + Sync>>;

    /// The GPU.
    fn gpu(&self) -> DeviceId;

    /// Why it refused what it refused last, and what to do about that.
    fn refusal(&self) -> String;
}

/// How requests are handed to a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum LaneKind {
    /// Many at once.
    Batch,
    /// Each into a stream of the GPU.
    Streams,
}

impl LaneKind {
    pub(crate) const ALL: [Self; 2] = [Self::Batch, Self::Streams];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Batch => "batch",
            Self::Streams => "streams",
        }
    }
}

/// A request to a lane.
#[derive(Debug)]
pub(crate) struct LaneRequest<'a> {
    pub(crate) port: &'a Arc<dyn Port>,
    pub(crate) writes: bool,
    /// Of the GPU's memory.
    pub(crate) address: u64,
    pub(crate) len: u64,
    /// In the file.
    pub(crate) offset: u64,
    /// By which it is handed back.
    pub(crate) token: usize,
}

/// What came of a request: its token, and the bytes that moved.
pub(crate) type Landed = (usize, Result<u64, Errno>);

/// Takes requests in without waiting for them. Dropped with requests in flight, it leaves what they
/// need where it is, for ever.
pub(crate) trait Lane: Debug + Send {
    /// How many more requests it takes now.
    fn room(&self) -> usize;

    /// Takes one in.
    ///
    /// # Safety
    /// As for [`Port::read`] or [`Port::write`], until the request has been handed back.
    ///
    /// # Errors
    /// It has not been taken in; the port has the words.
    unsafe fn begin(&mut self, request: LaneRequest<'_>) -> Result<(), Errno>;

    /// Sends off what was taken in.
    fn flush(&mut self) {}

    /// Hands back what has landed; waits up to `wait` for the first.
    fn collect(&mut self, wait: Duration, landed: &mut Vec<Landed>);
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
