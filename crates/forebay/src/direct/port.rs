//! Reads and writes between a file and a GPU through cuFile.

#![expect(unsafe_code, reason = "hands on the addresses that it is given")]

use std::fs::File;
use std::sync::Arc;

use forebay_cufile::{BoundedFile, CuFileFailure, RegisteredFile, Session};
use rustix::io::Errno;

use crate::file::{Handle, NoPort, Port, PortError};
use crate::gpu::{Device, DeviceError, DeviceId};

/// The alignment that cuFile needs to avoid its own bounce buffer, whatever the drive.
const UNIT: u64 = 4096;

/// A file registered with cuFile, for transfers with one GPU.
#[derive(Debug)]
pub(crate) struct CuFilePort {
    file: BoundedFile,
    device: Arc<dyn Device>,
    unit: u64,
}

impl CuFilePort {
    /// Registers a file.
    ///
    /// # Errors
    /// Why the file cannot be used.
    pub(crate) fn open(
        session: &Arc<Session>,
        file: &Handle,
        device: &Arc<dyn Device>,
    ) -> Result<Self, NoPort> {
        let passes = |why: String| NoPort { why, lasts: false };
        // Not recorded as lasting: if it lasts, `direct` fails at once the next time.
        let direct = file.o_direct().map_err(|why| passes(why.to_owned()))?;
        let alignment = direct.alignment();
        let unit = UNIT.max(alignment.offset.into()).max(alignment.memory.into());
        // Duplicates the descriptor, because one descriptor can be registered only once.
        let own = direct.fd().try_clone_to_owned().map_err(|error| passes(error.to_string()))?;
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use forebay_cufile::{End, Program, run};

    use super::*;
    use crate::file::OpenOptions;
    use crate::gpu::{self, GpuSelector};
    use crate::memory::Buffer;

    /// Set in the process that opens the real library.
    const INSIDE: &str = "FOREBAY_TEST_CUFILE";

    /// Calls the real library in its compatibility mode, which needs no direct path, to show that
    /// our structures match.
    #[test]
    fn the_real_library_reads_by_calls() {
        if gpu::open(&GpuSelector::Auto).unwrap().is_none() {
            let reason = gpu::absence_reason().unwrap_or_default();
            return println!("skipped: no GPU: {reason}");
        }
        let own = std::env::current_exe().unwrap().display().to_string();
        let inside = format!("{INSIDE}=1");
        let settings = ["CUFILE_ALLOW_COMPAT_MODE=true", "CUFILE_FORCE_COMPAT_MODE=true", &inside];
        let name = "direct::port::tests::the_real_library_reads_here";
        let test = [own.as_str(), "--exact", "--nocapture", name];
        let arguments = settings.iter().chain(&test).map(Into::into).collect();
        let program = Program { file: "/usr/bin/env".into(), arguments };
        let (printed, end) = run(&program, Duration::from_secs(60), 1 << 16);
        println!("{printed}");
        assert_eq!(end, End::Exited(0), "{printed}");
    }

    #[test]
    fn the_real_library_reads_here() {
        use crate::memory::{Account, Couriers, Room};
        if std::env::var_os(INSIDE).is_none() {
            return;
        }
        let device = gpu::open(&GpuSelector::Auto).unwrap().unwrap();
        let session = match Session::open(None, &[]) {
            Ok(session) => session,
            Err(failure) => return println!("skipped: {failure}"),
        };
        println!("cuFile {} at {}", session.version(), session.library().display());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let bytes: Vec<u8> = (0..=250).cycle().take(300 * 4096).collect();
        std::fs::write(&path, &bytes).unwrap();
        let file = Handle::open(&path, &OpenOptions::default()).unwrap();
        if let Err(reason) = file.o_direct() {
            return println!("skipped: no O_DIRECT in the temporary folder: {reason}");
        }
        let port = CuFilePort::open(&session, &file, &device).unwrap();
        let room = Room::new(forebay_topology::System::live(), Account::new(4096, None));
        let mut memory =
            Buffer::on_device(&Couriers::new(&room), Arc::clone(&device), bytes.len() as u64)
                .unwrap();
        memory.fill(0xee).unwrap();
        for offset in (0..bytes.len() as u64).step_by(4096) {
            // SAFETY: the memory stays allocated until the call returns.
            let read = unsafe { port.read(memory.address() + offset, UNIT, offset) };
            assert_eq!(read, Ok(UNIT), "{offset}");
        }
        let mut got = vec![0; bytes.len()];
        memory.download(0, &mut got).unwrap();
        assert!(got == bytes);
    }
}
