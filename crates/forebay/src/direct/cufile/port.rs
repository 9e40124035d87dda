//! Reads and writes between a file and a GPU through cuFile.

#![expect(unsafe_code, reason = "hands on the addresses that it is given")]

use std::fs::File;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SendError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use forebay_base::timeout::within;
use rustix::io::Errno;

use super::failure::CuFileFailure;
use super::session::{RegisteredFile, Session};
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
fn ask<T: Send + 'static>(
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
    ask(session, move || {
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
    use std::ffi::c_void;
    use std::sync::Barrier;

    use super::super::rig::{Rig, UNIT};
    use super::super::simulated;
    use super::super::table::{FileHandle, Table};
    use super::*;
    use crate::gpu::sim::SimulatedCuFile;
    use crate::memory::Buffer;

    /// Makes both requests fail before either of them returns.
    static BOTH: Barrier = Barrier::new(2);

    /// Refuses the first unit because of the memory, and the rest because of the file.
    unsafe extern "C" fn refuse(
        _file: FileHandle,
        _base: *mut c_void,
        _len: usize,
        offset: i64,
        _at: i64,
    ) -> isize {
        BOTH.wait();
        if offset == 0 { -5036 } else { -5008 }
    }

    #[test]
    fn of_two_reads_at_once_each_is_refused_for_its_own_reason() {
        let table = Table { read: refuse, ..simulated::table() };
        let Some(rig) = Rig::simulated_by(table, SimulatedCuFile::P2pDma) else { return };
        let memory = Buffer::on_device(Arc::clone(&rig.device), 2 * UNIT).unwrap();
        let read = |offset| {
            // SAFETY: the memory stays allocated, and each thread has a separate unit.
            unsafe { rig.port.read(memory.address() + offset, UNIT, offset) }.unwrap_err()
        };
        let [of_memory, of_file] = thread::scope(|scope| {
            [0, UNIT].map(|offset| scope.spawn(move || read(offset))).map(|t| t.join().unwrap())
        });
        assert!(of_memory.of_memory && of_memory.words.contains("5036"), "{of_memory:?}");
        assert!(!of_file.of_memory && of_file.words.contains("5008"), "{of_file:?}");
    }
}
