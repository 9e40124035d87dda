//! A file's way to and from a GPU by cuFile.

#![expect(unsafe_code, reason = "hands on the addresses that it is given")]

use std::any::Any;
use std::fs::File;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;

use super::batch::BatchLane;
use super::buffers::Buffers;
use super::failure::CuFileFailure;
use super::session::{RegisteredFile, Session};
use super::streams::StreamLane;
use super::table::FileHandle;
use crate::events;
use crate::file::{Handle, Lane, LaneKind, Port};
use crate::gpu::{Device, DeviceError, DeviceId};

/// What cuFile takes without a detour through memory of its own, whatever the drive.
const UNIT: u64 = 4096;

/// How long the driver may take to know a file.
const REGISTERS_WITHIN: Duration = Duration::from_secs(5);

const NO_ANSWER: &str = "cuFile does not answer when it is to know a file: its log may say why \
                         (`cufile.log`)";

/// See the module's own text.
#[derive(Debug)]
pub(crate) struct CuFilePort {
    session: Arc<Session>,
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
        let file = register(session, File::from(own), device)?;
        let (session, device) = (Arc::clone(session), Arc::clone(device));
        Ok(Self { session, file, device, unit, refusal: Mutex::default() })
    }

    pub(super) fn handle(&self) -> FileHandle {
        self.file.handle()
    }

    /// Keeps why it refused, in words.
    pub(super) fn note_refusal(&self, why: String) {
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Keeps why it refused; the number that stands for it.
    pub(super) fn refused(&self, failure: &CuFileFailure) -> Errno {
        self.note_refusal(failure.in_words());
        match failure {
            CuFileFailure::Io(errno) => *errno,
            _ => Errno::OPNOTSUPP,
        }
    }

    /// Has the GPU current for a move, and keeps why it failed.
    fn run(
        &self,
        (address, len): (u64, u64),
        mut moves: impl FnMut(&RegisteredFile, (u64, u64), usize) -> Result<u64, CuFileFailure>,
    ) -> Result<u64, Errno> {
        let count = usize::try_from(len).map_err(|_| Errno::INVAL)?;
        let lost = |error: DeviceError| {
            self.note_refusal(error.to_string());
            Errno::NODEV
        };
        let native = self.device.hold(address, len).map_err(lost)?;
        let place = self.session.buffers.enter(self.device.id(), (address, native), len);
        let mut moved = Err(CuFileFailure::Io(Errno::NODEV));
        let within = &mut || moved = moves(&self.file, (place.base, place.at), count);
        let entered = self.device.within(within);
        self.session.buffers.leave(&place);
        self.device.let_go(address);
        entered.map_err(lost)?;
        moved.map_err(|failure| self.refused(&failure))
    }
}

/// Has the driver know a file, on a thread of its own: should it hang, the caller does not.
fn register(
    session: &Arc<Session>,
    file: File,
    device: &Arc<dyn Device>,
) -> Result<RegisteredFile, String> {
    if session.is_silent() {
        return Err(NO_ANSWER.into());
    }
    let (answer, answered) = sync_channel(1);
    let (own, device) = (Arc::clone(session), Arc::clone(device));
    let mut file = Some(file);
    let registers = move || {
        let mut registered = Err(CuFileFailure::Io(Errno::NODEV));
        let entered = device.within(&mut || {
            let Some(file) = file.take() else { return };
            registered = match device.played_cufile() {
                Some(play) => own.register_played(file, play),
                None => own.register(file),
            };
        });
        let registered = registered.map_err(|failure| failure.in_words());
        // Nobody may wait any more.
        let _ = answer.send(entered.map_err(|error| error.to_string()).and(registered));
    };
    let thread = thread::Builder::new().name("forebay-register".into()).spawn(registers);
    thread.map_err(|error| format!("no thread to ask cuFile: {error}"))?;
    answered.recv_timeout(REGISTERS_WITHIN).unwrap_or_else(|_| {
        session.is_silent_from_now_on();
        Err(NO_ANSWER.into())
    })
}

impl Port for CuFilePort {
    fn unit(&self) -> u64 {
        self.unit
    }

    unsafe fn read(&self, address: u64, len: u64, offset: u64) -> Result<u64, Errno> {
        // SAFETY: the caller's promise; `run` makes the context current.
        self.run((address, len), |file, (base, at), len| unsafe {
            file.read(base, at, len, offset)
        })
    }

    unsafe fn write(&self, address: u64, len: u64, offset: u64) -> Result<u64, Errno> {
        // SAFETY: as above.
        self.run((address, len), |file, (base, at), len| unsafe {
            file.write(base, at, len, offset)
        })
    }

    fn lane(&self, kind: LaneKind) -> Result<Box<dyn Lane>, String> {
        Ok(match kind {
            LaneKind::Batch => Box::new(BatchLane::new(&self.session, &self.device)?),
            LaneKind::Streams => Box::new(StreamLane::new(&self.session, &self.device)?),
        })
    }

    fn keep_known(&self, address: u64, len: u64) -> Option<Box<dyn Any + Send + Sync>> {
        let registered = Buffers::register(&self.session, &self.device, (address, len));
        let gpu = self.device.id();
        let tell = |why: &CuFileFailure| {
            events::note(&format!(
                "cuFile does not register {len} bytes of {gpu}: {}",
                why.in_words()
            ));
        };
        registered.inspect_err(tell).ok().map(|registration| Box::new(registration) as _)
    }

    fn gpu(&self) -> DeviceId {
        self.device.id()
    }

    fn refusal(&self) -> String {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
