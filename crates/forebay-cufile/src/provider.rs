//! cuFile, real and simulated, as a provider of the direct route.

#![expect(unsafe_code, reason = "hands on the addresses that it is given")]

use std::fs::File;
use std::sync::Arc;

use forebay_base::lock::Lock;
use forebay_gpu::{
    Device, DeviceError, DeviceId, DeviceKind, DirectFile, DirectProvider, NoPort, Port, PortError,
};
use rustix::io::Errno;

use super::{BoundedFile, CuFileFailure, Driver, Program, RegisteredFile, Session};

/// cuFile for one engine.
#[derive(Debug)]
pub struct CuFileProvider {
    driver: Driver,
    /// The program that probes the driver; `None`: the one in `PATH`.
    probe: Option<Program>,
    simulated: Lock<Option<Arc<Session>>>,
}

impl CuFileProvider {
    /// cuFile, not started yet. `notes` gets the reason if it turns out to be unavailable.
    #[must_use]
    pub fn new(probe: Option<Program>, notes: fn(&str)) -> Self {
        Self { driver: Driver::of_process(notes), probe, simulated: Lock::default() }
    }

    /// The driver, if it is in use.
    pub fn in_use(&self) -> Option<Arc<Session>> {
        self.driver.in_use().or_else(|| self.simulated.lock().clone())
    }

    fn session(&self, device: &dyn Device, waits: bool) -> Result<Arc<Session>, String> {
        match device.id().kind {
            DeviceKind::Sim => self.simulated(device),
            DeviceKind::Cuda => self.driver.session(self.probe.as_ref(), waits),
        }
    }

    /// The simulated driver of a simulated GPU.
    fn simulated(&self, device: &dyn Device) -> Result<Arc<Session>, String> {
        if device.simulated_cufile().is_none() {
            return Err("the simulated GPU lacks cuFile; use `--gpu sim:cufile`".into());
        }
        let mut simulated = self.simulated.lock();
        if let Some(session) = &*simulated {
            return Ok(Arc::clone(session));
        }
        let session = Session::simulated().map_err(|failure| failure.in_words())?;
        Ok(Arc::clone(simulated.insert(session)))
    }
}

impl DirectProvider for CuFileProvider {
    fn name(&self) -> &'static str {
        "cuFile"
    }

    fn may_serve(&self, device: &dyn Device) -> bool {
        match device.id().kind {
            DeviceKind::Sim => device.simulated_cufile().is_some(),
            DeviceKind::Cuda => self.driver.may_be_there(),
        }
    }

    fn start(&self, device: &dyn Device, waits: bool) -> Result<(), String> {
        self.session(device, waits).map(drop)
    }

    fn open(
        &self,
        file: DirectFile<'_>,
        device: &Arc<dyn Device>,
    ) -> Result<Arc<dyn Port>, NoPort> {
        let session = self.session(&**device, false);
        let session = session.map_err(|why| NoPort { why, lasts: false })?;
        Ok(Arc::new(CuFilePort::open(&session, file, device)?))
    }
}

/// The alignment that cuFile needs to avoid its own bounce buffer, whatever the drive.
const UNIT: u64 = 4096;

/// A file registered with cuFile, for transfers with one GPU.
#[derive(Debug)]
pub struct CuFilePort {
    file: BoundedFile,
    device: Arc<dyn Device>,
    unit: u64,
}

impl CuFilePort {
    /// Registers a file.
    ///
    /// # Errors
    /// Why the file cannot be used.
    pub fn open(
        session: &Arc<Session>,
        file: DirectFile<'_>,
        device: &Arc<dyn Device>,
    ) -> Result<Self, NoPort> {
        let passes = |why: String| NoPort { why, lasts: false };
        let unit = UNIT.max(file.alignment);
        // Duplicates the descriptor, because one descriptor can be registered only once.
        let own = file.fd.try_clone_to_owned().map_err(|error| passes(error.to_string()))?;
        let (gpu, simulated) = (Arc::clone(device), device.simulated_cufile());
        let enters =
            move |work: &mut dyn FnMut()| gpu.within(work).map_err(|error| error.to_string());
        let file = BoundedFile::register(session, File::from(own), simulated, enters)
            .map_err(|no| NoPort { why: no.why, lasts: no.lasts })?;
        Ok(Self { file, device: Arc::clone(device), unit })
    }

    /// Runs a move of `len` bytes at `address` with the GPU's context current. The move gets the
    /// address by which the library reaches the memory.
    fn run(
        &self,
        (address, len): (u64, u64),
        mut moves: impl FnMut(&RegisteredFile, u64, usize) -> Result<u64, CuFileFailure>,
    ) -> Result<u64, PortError> {
        let count = usize::try_from(len).map_err(|_| Errno::INVAL)?;
        let native = self.device.hold(address, len).map_err(|error| lost(&error))?;
        let mut moved = Err(CuFileFailure::Io(Errno::NODEV));
        let within = &mut || moved = moves(&self.file, native, count);
        let entered = self.device.within(within);
        self.device.dispose(address);
        entered.map_err(|error| lost(&error))?;
        Ok(moved?)
    }
}

impl From<CuFileFailure> for PortError {
    fn from(failure: CuFileFailure) -> Self {
        let errno = match &failure {
            CuFileFailure::Io(errno) => *errno,
            _ => Errno::OPNOTSUPP,
        };
        Self { errno, words: failure.in_words(), of_memory: failure.is_of_memory() }
    }
}

/// The error if the GPU has no such memory, or is lost.
fn lost(error: &DeviceError) -> PortError {
    PortError { errno: Errno::NODEV, words: error.to_string(), of_memory: true }
}

impl Port for CuFilePort {
    fn unit(&self) -> u64 {
        self.unit
    }

    unsafe fn read(&self, address: u64, len: u64, offset: u64) -> Result<u64, PortError> {
        // SAFETY: the caller's promise; `run` makes the context current.
        self.run((address, len), |file, base, len| unsafe { file.read(base, 0, len, offset) })
    }

    unsafe fn write(&self, address: u64, len: u64, offset: u64) -> Result<u64, PortError> {
        // SAFETY: as above.
        self.run((address, len), |file, base, len| unsafe { file.write(base, 0, len, offset) })
    }

    fn gpu(&self) -> DeviceId {
        self.device.id()
    }
}
