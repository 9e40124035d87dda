//! A file with a port to a GPU, for tests: over the simulated library, a library compiled here, or
//! the real one in a separate process.

#![expect(unsafe_code, reason = "hands memory to a port")]

use std::sync::Arc;
use std::time::Duration;

use forebay_base::clock::SystemClock;

use super::port::CuFilePort;
use super::session::Session;
use super::table::Table;
use crate::direct::child::{End, Program, run};
use crate::file::{Handle, OpenOptions, Port, PortError};
use crate::gpu::sim::{SimConfig, SimDevice, SimulatedCuFile};
use crate::gpu::{self, Device, GpuSelector};
use crate::memory::Buffer;

/// Bytes of a request, and the number of requests in the file.
pub(super) const UNIT: u64 = 4096;
const UNITS: usize = 300;

pub(super) struct Rig {
    pub(super) device: Arc<dyn Device>,
    pub(super) port: Arc<dyn Port>,
    bytes: Vec<u8>,
    _folder: tempfile::TempDir,
}

impl Rig {
    /// Creates it with the functions of `table`; `None` if there is no `O_DIRECT` here.
    pub(super) fn simulated_by(table: Table, play: SimulatedCuFile) -> Option<Self> {
        let config = SimConfig { cufile: Some(play), ..SimConfig::default() };
        let device = Arc::new(SimDevice::new(0, config, Arc::new(SystemClock::new())));
        Self::of(Arc::new(Session::of_simulated_by(table).unwrap()), device)
    }

    /// Creates it with an open library; `None` as above.
    pub(super) fn of(session: Arc<Session>, device: Arc<dyn Device>) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let bytes: Vec<u8> = (0..=250).cycle().take(UNITS * 4096).collect();
        std::fs::write(&path, &bytes).unwrap();
        std::fs::File::open(&path).unwrap().sync_all().unwrap();
        let file = Handle::open(&path, &OpenOptions::default()).unwrap();
        if let Err(reason) = file.o_direct() {
            println!("skipped: no O_DIRECT in the temporary folder: {reason}");
            return None;
        }
        let port = Arc::new(CuFilePort::open(&session, &file, &device).unwrap());
        Some(Self { device, port, bytes, _folder: folder })
    }

    /// Reads each unit of the file to its offset and checks the bytes. Returns the result, which is
    /// the same for all requests.
    pub(super) fn read(&self) -> Result<u64, PortError> {
        let len = self.bytes.len() as u64;
        let mut memory = Buffer::on_device(Arc::clone(&self.device), len).unwrap();
        memory.fill(0xee).unwrap();
        let read = |offset| {
            // SAFETY: the memory stays allocated until the call returns.
            unsafe { self.port.read(memory.address() + offset, UNIT, offset) }
        };
        let answers: Vec<_> = (0..len).step_by(4096).map(read).collect();
        assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
        let mut got = vec![0; self.bytes.len()];
        memory.download(0, &mut got).unwrap();
        let came = answers[0].as_ref().map_or(0, |&moved| usize::try_from(moved).unwrap());
        for at in (0..got.len()).step_by(4096) {
            assert!(got[at..at + came] == self.bytes[at..at + came], "byte {at}");
        }
        answers.into_iter().next().unwrap()
    }
}

/// Set in the process that opens the real library.
const INSIDE: &str = "FOREBAY_TEST_CUFILE";

/// Calls the real library in its compatibility mode, which needs no direct path, to show that our
/// structures match.
#[test]
fn the_real_library_reads_by_calls() {
    if gpu::open(&GpuSelector::Auto).unwrap().is_none() {
        let reason = gpu::absence_reason().unwrap_or_default();
        return println!("skipped: no GPU: {reason}");
    }
    let own = std::env::current_exe().unwrap().display().to_string();
    let inside = format!("{INSIDE}=1");
    let settings = ["CUFILE_ALLOW_COMPAT_MODE=true", "CUFILE_FORCE_COMPAT_MODE=true", &inside];
    let test = [own.as_str(), "--exact", "--nocapture", "direct::cufile::rig::within_a_process"];
    let arguments = settings.iter().chain(&test).map(Into::into).collect();
    let program = Program { file: "/usr/bin/env".into(), arguments };
    let (said, end) = run(&program, Duration::from_secs(60), 1 << 16);
    println!("{said}");
    assert_eq!(end, End::Exited(0), "{said}");
}

#[test]
fn within_a_process() {
    if std::env::var_os(INSIDE).is_none() {
        return;
    }
    let device = gpu::open(&GpuSelector::Auto).unwrap().unwrap();
    let session = match Session::open(None, &[]) {
        Ok(session) => session,
        Err(failure) => return println!("skipped: {failure}"),
    };
    println!("cuFile {} at {}", session.version(), session.library().display());
    assert_eq!(Rig::of(session, device).unwrap().read(), Ok(UNIT));
}
