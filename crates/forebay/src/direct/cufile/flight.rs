//! A request that a lane has taken in, and what it keeps in place until it has landed.

use std::any::Any;
use std::sync::Arc;

use rustix::io::Errno;

use super::buffers::Place;
use super::failure::CuFileFailure;
use super::port::{CuFilePort, lost};
use super::session::Session;
use super::table::FileHandle;
use crate::file::{Landed, LaneRequest, Port, PortError};
use crate::gpu::Device;

/// See the module's own text.
#[derive(Debug)]
pub(super) struct Flight {
    port: Arc<dyn Port>,
    device: Arc<dyn Device>,
    token: usize,
    address: u64,
    /// Where the library finds the memory.
    native: u64,
    len: u64,
    place: Place,
}

impl Flight {
    /// Takes a request's memory in use.
    ///
    /// # Errors
    /// Its port is another provider's, or the GPU has no such memory.
    pub(super) fn begin(
        session: &Session,
        device: &Arc<dyn Device>,
        request: LaneRequest<'_>,
    ) -> Result<Self, PortError> {
        let LaneRequest { port, address, len, token, .. } = request;
        cufile(port.as_ref()).ok_or(Errno::INVAL)?;
        let native = device.hold(address, len).map_err(|error| lost(&error))?;
        let place = session.buffers.enter(device.id(), (address, native), len);
        let (port, device) = (Arc::clone(port), Arc::clone(device));
        Ok(Self { port, device, token, address, native, len, place })
    }

    pub(super) fn handle(&self) -> FileHandle {
        cufile(self.port.as_ref()).map_or(std::ptr::null_mut(), CuFilePort::handle)
    }

    /// What the library takes for the memory: an address, and how far from there on.
    pub(super) fn memory(&self) -> (u64, i64) {
        (self.place.base, self.place.at.cast_signed())
    }

    /// The same as one address. In streams the library has been seen to mix up requests at offsets
    /// within one registered buffer, though each was told to be whole (`docs/internals/cufile.md`).
    pub(super) fn place(&self) -> u64 {
        self.native
    }

    /// What the library's answer means.
    ///
    /// # Errors
    /// What it says.
    pub(super) fn answered(&self, call: &'static str, moved: isize) -> Result<u64, CuFileFailure> {
        match moved {
            // Whatever the number of the error was, it was another thread's.
            -1 => Err(CuFileFailure::Io(Errno::IO)),
            moved => {
                let len = usize::try_from(self.len).unwrap_or(usize::MAX);
                CuFileFailure::of_moved(call, moved, len)
            }
        }
    }

    /// Lets go of its memory.
    pub(super) fn land(self, session: &Session, moved: Result<u64, CuFileFailure>) -> Landed {
        session.buffers.leave(&self.place);
        self.device.let_go(self.address);
        (self.token, moved.map_err(PortError::from))
    }
}

fn cufile(port: &dyn Port) -> Option<&CuFilePort> {
    (port as &dyn Any).downcast_ref()
}
