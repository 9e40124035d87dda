//! A file's way to and from a GPU by cuFile.

#![expect(unsafe_code, reason = "hands on the addresses that it is given")]

use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;

use super::failure::CuFileFailure;
use super::session::{RegisteredFile, Session};
use crate::file::{Handle, Port};
use crate::gpu::{Device, DeviceId};

/// What cuFile takes without a detour through memory of its own, whatever the drive.
const UNIT: u64 = 4096;

/// See the module's own text.
#[derive(Debug)]
pub(crate) struct CuFilePort {
    file: RegisteredFile,
    device: Arc<dyn Device>,
    unit: u64,
    refusal: Mutex<String>,
}

impl CuFilePort {
    /// Registers a file.
    ///
    /// # Errors
    /// Why there is no way.
    pub(crate) fn open(
        session: &Arc<Session>,
        file: &Handle,
        device: &Arc<dyn Device>,
    ) -> Result<Self, String> {
        let direct = file.direct().map_err(str::to_owned)?;
        let alignment = direct.alignment();
        let unit = UNIT.max(alignment.offset.into()).max(alignment.memory.into());
        // A descriptor of its own: another one's may be registered only once.
        let own = direct.fd().try_clone_to_owned().map_err(|error| error.to_string())?;
        let mut own = Some(File::from(own));
        let mut registered = Err(CuFileFailure::Io(Errno::NODEV));
        let register = &mut || {
            let Some(file) = own.take() else { return };
            registered = match device.played_cufile() {
                Some(play) => session.register_played(file, play),
                None => session.register(file),
            };
        };
        device.within(register).map_err(|error| error.to_string())?;
        let file = registered.map_err(|failure| words(&failure))?;
        Ok(Self { file, device: Arc::clone(device), unit, refusal: Mutex::default() })
    }

    /// Has the GPU current for a move, and keeps why it failed.
    fn run(
        &self,
        (address, len): (u64, u64),
        mut moves: impl FnMut(&RegisteredFile, u64, usize) -> Result<u64, CuFileFailure>,
    ) -> Result<u64, Errno> {
        let count = usize::try_from(len).map_err(|_| Errno::INVAL)?;
        let mut moved = Err(CuFileFailure::Io(Errno::NODEV));
        let entered =
            self.device.reach(address, len, &mut |at| moved = moves(&self.file, at, count));
        let (errno, why) = match (entered, moved) {
            (Ok(()), Ok(moved)) => return Ok(moved),
            (Ok(()), Err(CuFileFailure::Io(errno))) => (errno, errno.to_string()),
            (Ok(()), Err(failure)) => (Errno::OPNOTSUPP, words(&failure)),
            (Err(error), _) => (Errno::NODEV, error.to_string()),
        };
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = why;
        Err(errno)
    }
}

/// A failure, and what to do about it.
fn words(failure: &CuFileFailure) -> String {
    match failure.hint() {
        Some(hint) => format!("{failure}: {hint}"),
        None => failure.to_string(),
    }
}

impl Port for CuFilePort {
    fn unit(&self) -> u64 {
        self.unit
    }

    unsafe fn read(&self, address: u64, len: u64, offset: u64) -> Result<u64, Errno> {
        // SAFETY: the caller's promise; `run` makes the context current.
        self.run((address, len), |file, at, len| unsafe { file.read(at, 0, len, offset) })
    }

    unsafe fn write(&self, address: u64, len: u64, offset: u64) -> Result<u64, Errno> {
        // SAFETY: as above.
        self.run((address, len), |file, at, len| unsafe { file.write(at, 0, len, offset) })
    }

    fn gpu(&self) -> DeviceId {
        self.device.id()
    }

    fn refusal(&self) -> String {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
