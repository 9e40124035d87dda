//! Reads and writes between a file and a GPU through cuFile.

#![expect(unsafe_code, reason = "hands on the addresses that it is given")]

use std::fs::File;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SendError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use forebay_base::timeout::within;
use forebay_cufile::{CuFileFailure, RegisteredFile, Session};
use rustix::io::Errno;

use crate::file::{Handle, NoPort, Port, PortError};
use crate::gpu::{Device, DeviceError, DeviceId};

/// The alignment that cuFile needs to avoid its own bounce buffer, whatever the drive.
const UNIT: u64 = 4096;

/// Maximum time for the driver to register a file.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// Interval for checking whether it has deregistered files.
const LOOKS_EVERY: Duration = Duration::from_millis(1);

const NO_ANSWER: &str = "cuFile does not answer when it registers a file: its log may say why \
                         (`cufile.log`)";

/// A file registered with cuFile, for transfers with one GPU.
#[derive(Debug)]
pub(crate) struct CuFilePort {
    session: Arc<Session>,
    /// Present until it is dropped.
    file: Option<RegisteredFile>,
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
        let lasts = |why: String| NoPort { why, lasts: true };
        let passes = |why: String| NoPort { why, lasts: false };
        // Not recorded as lasting: if it lasts, `direct` fails at once the next time.
        let direct = file.o_direct().map_err(|why| passes(why.to_owned()))?;
        let alignment = direct.alignment();
        let unit = UNIT.max(alignment.offset.into()).max(alignment.memory.into());
        // Duplicates the descriptor, because one descriptor can be registered only once.
        let own = direct.fd().try_clone_to_owned().map_err(|error| passes(error.to_string()))?;
        start_forgetter().map_err(|error| {
            passes(format!("no thread can be started to deregister files: {error}"))
        })?;
        let registered = register(session, File::from(own), device).map_err(passes)?;
        let file = Some(registered.map_err(lasts)?);
        let (session, device) = (Arc::clone(session), Arc::clone(device));
        Ok(Self { session, file, device, unit })
    }

    fn file(&self) -> &RegisteredFile {
        self.file.as_ref().expect("it is there until the port is dropped")
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
        let within = &mut || moved = moves(self.file(), native, count);
        let entered = self.device.within(within);
        self.device.dispose(address);
        entered.map_err(|error| lost(&error))?;
        Ok(moved?)
    }
}

/// Sender to the thread that deregisters files of dropped ports. The library may take long to
/// deregister a file, or hang, and a port may be dropped under any lock.
static FORGETTER: OnceLock<Sender<RegisteredFile>> = OnceLock::new();

/// Number of files not deregistered yet. Each holds a descriptor.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Maximum number of them before another file is registered.
const WAITING_MAX: usize = 256;

/// Starts the thread that deregisters files, once.
fn start_forgetter() -> std::io::Result<()> {
    if FORGETTER.get().is_none() {
        let (sender, files) = channel::<RegisteredFile>();
        let forgets = move || {
            for file in files {
                drop(file);
                WAITING.fetch_sub(1, Ordering::Release);
            }
        };
        thread::Builder::new().name("forebay-forget".into()).spawn(forgets)?;
        let _ = FORGETTER.set(sender); // if another thread was faster, this one's ends
    }
    Ok(())
}

impl Drop for CuFilePort {
    fn drop(&mut self) {
        // A forked child has no such thread and must not call the library.
        let Some(file) = self.file.take().filter(|_| self.session.is_here()) else { return };
        let forgetter = FORGETTER.get().expect("started before a file was registered");
        WAITING.fetch_add(1, Ordering::Release);
        // If the thread has ended, the file stays registered: the library must not be called here.
        if let Err(SendError(file)) = forgetter.send(file) {
            std::mem::forget(file);
        }
    }
}

/// Waits until enough files are deregistered to register another one, for at most the answer time.
fn wait_for_forgotten() -> Result<(), String> {
    let until = Instant::now() + ANSWERS_WITHIN;
    while WAITING.load(Ordering::Acquire) >= WAITING_MAX {
        if Instant::now() > until {
            return Err(NO_ANSWER.into());
        }
        thread::sleep(LOOKS_EVERY);
    }
    Ok(())
}

/// Runs `question` on a separate thread and returns its result, so that a hanging library does not
/// block the caller.
///
/// # Errors
/// It does not return in time, or no thread can be started.
fn query<T: Send + 'static>(
    session: &Arc<Session>,
    question: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    if session.is_silent() {
        return Err(NO_ANSWER.into());
    }
    let answer = within(ANSWERS_WITHIN, "forebay-cufile", question);
    answer
        .map_err(|error| format!("no thread can be started to query cuFile: {error}"))?
        .ok_or_else(|| {
            session.fall_silent();
            NO_ANSWER.into()
        })
}

/// Registers a file with the driver.
fn register(
    session: &Arc<Session>,
    file: File,
    device: &Arc<dyn Device>,
) -> Result<Result<RegisteredFile, String>, String> {
    let (own, device) = (Arc::clone(session), Arc::clone(device));
    query(session, move || {
        wait_for_forgotten().inspect_err(|_| own.fall_silent())?;
        let mut file = Some(file);
        let mut registered = Err(CuFileFailure::Io(Errno::NODEV));
        let entered = device.within(&mut || {
            let Some(file) = file.take() else { return };
            registered = match device.simulated_cufile() {
                Some(play) => own.register_simulated(file, play),
                None => own.register(file),
            };
        });
        let registered = registered.map_err(|failure| failure.in_words());
        entered.map_err(|error| error.to_string()).and(registered)
    })
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
