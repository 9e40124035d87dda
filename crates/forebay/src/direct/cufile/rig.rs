//! A file with a port to a GPU, for the tests of lanes: with a library that is played, or with the
//! real one where there is one, in a process of its own.

#![expect(unsafe_code, reason = "hands memory to lanes")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::batch::BatchLane;
use super::buffers::Buffers;
use super::port::CuFilePort;
use super::session::Session;
use super::simulated;
use super::streams::StreamLane;
use super::table::Table;
use crate::clock::SystemClock;
use crate::direct::child::{End, Program, run};
use crate::file::{Handle, Lane, LaneRequest, OpenHow, Port, PortError};
use crate::gpu::sim::{CuFilePlay, SimConfig, SimDevice};
use crate::gpu::{self, Device, GpuSelector};
use crate::memory::Buffer;

/// Bytes of a request, and how many the file has.
pub(super) const UNIT: u64 = 4096;
const UNITS: usize = 300;

pub(super) struct Rig {
    pub(super) session: Arc<Session>,
    pub(super) device: Arc<dyn Device>,
    pub(super) port: Arc<dyn Port>,
    bytes: Vec<u8>,
    _folder: tempfile::TempDir,
}

impl Rig {
    /// With a library that is played; `None`: there is no `O_DIRECT` here.
    pub(super) fn played(play: CuFilePlay) -> Option<Self> {
        Self::played_by(simulated::table(), play)
    }

    /// The same, by a library that does something else as well.
    pub(super) fn played_by(table: Table, play: CuFilePlay) -> Option<Self> {
        let config = SimConfig { cufile: Some(play), ..SimConfig::default() };
        let device = Arc::new(SimDevice::new(0, config, Arc::new(SystemClock::new())));
        Self::of(Arc::new(Session::of_played_by(table).unwrap()), device)
    }

    /// With a library that is open; `None` as above.
    pub(super) fn of(session: Arc<Session>, device: Arc<dyn Device>) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let bytes: Vec<u8> = (0..=250).cycle().take(UNITS * 4096).collect();
        std::fs::write(&path, &bytes).unwrap();
        std::fs::File::open(&path).unwrap().sync_all().unwrap();
        let file = Handle::open(&path, &OpenHow::default()).unwrap();
        if let Err(reason) = file.direct() {
            println!("skipped: no O_DIRECT in the temporary folder: {reason}");
            return None;
        }
        let port = Arc::new(CuFilePort::open(&session, &file, &device).unwrap());
        Some(Self { session, device, port, bytes, _folder: folder })
    }

    /// Reads each unit of the file to its place, as many at once as the lane takes, and checks the
    /// bytes; what each request answered.
    pub(super) fn read(&self, lane: &mut dyn Lane) -> Vec<Result<u64, PortError>> {
        let len = self.bytes.len() as u64;
        let mut memory = Buffer::on_device(Arc::clone(&self.device), len).unwrap();
        memory.fill(0xee).unwrap();
        let results = self.read_to(lane, &memory);
        // Nobody uses it any more, else a simulated GPU tells.
        drop(memory);
        results
    }

    /// Has a lane begin the read of one unit, and send it off.
    pub(super) fn begin(&self, lane: &mut dyn Lane, memory: &Buffer) {
        let (address, port) = (memory.address(), &self.port);
        let request = LaneRequest { port, writes: false, address, len: UNIT, offset: 0, token: 0 };
        // SAFETY: the caller keeps the memory until it has landed.
        unsafe { lane.begin(request) }.unwrap();
        lane.flush();
    }

    fn read_to(&self, lane: &mut dyn Lane, memory: &Buffer) -> Vec<Result<u64, PortError>> {
        let mut results = vec![None; UNITS];
        let mut next = 0;
        while results.iter().any(Option::is_none) {
            while next < UNITS && lane.room() > 0 {
                let offset = next as u64 * UNIT;
                let (address, port) = (memory.address() + offset, &self.port);
                let request =
                    LaneRequest { port, writes: false, address, len: UNIT, offset, token: next };
                // SAFETY: the memory stays until all have landed.
                if let Err(error) = unsafe { lane.begin(request) } {
                    results[next] = Some(Err(error));
                }
                next += 1;
            }
            lane.flush();
            let mut landed = Vec::new();
            lane.collect(Duration::from_secs(9), &mut landed);
            let waits = results.iter().take(next).any(Option::is_none);
            assert!(!landed.is_empty() || !waits, "nothing lands");
            for (token, result) in landed {
                assert!(results[token].replace(result).is_none(), "{token} landed twice");
            }
        }
        let mut got = vec![0; self.bytes.len()];
        memory.download(0, &mut got).unwrap();
        for (unit, result) in results.iter().enumerate() {
            let came = result
                .as_ref()
                .unwrap()
                .as_ref()
                .map_or(0, |&moved| usize::try_from(moved).unwrap());
            let at = unit * 4096;
            assert!(got[at..at + came] == self.bytes[at..at + came], "unit {unit}");
        }
        results.into_iter().flatten().collect()
    }
}

/// Set in the process that opens the real library.
const INSIDE: &str = "FOREBAY_TEST_CUFILE";

/// The library's own lanes, in its compat mode, which needs no direct path: that our structures are
/// its own, and that it does with them what we take it to do.
#[test]
fn the_real_library_takes_batches_streams_and_buffers() {
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
    let rig = Rig::of(session, device).unwrap();
    let whole = |results: Vec<Result<u64, PortError>>| {
        assert!(results.iter().all(|result| *result == Ok(UNIT)), "{results:?}");
    };
    let mut batches = BatchLane::new(&rig.session, &rig.device).unwrap();
    let mut streams = StreamLane::new(&rig.session, &rig.device).unwrap();
    for round in 0..3 {
        let lanes: [(&str, &mut dyn Lane); 2] =
            [("batches", &mut batches), ("streams", &mut streams)];
        for (name, lane) in lanes {
            let start = Instant::now();
            whole(rig.read(lane));
            println!("round {round}: {UNITS} requests by {name} in {:?}", start.elapsed());
            // The same to memory that the driver knows, and within it.
            let len = rig.bytes.len() as u64;
            let memory = Buffer::on_device(Arc::clone(&rig.device), 2 * len).unwrap();
            let known =
                Buffers::register(&rig.session, &rig.device, (memory.address(), 2 * len)).unwrap();
            let (low, high) = memory.split_at(len);
            let start = Instant::now();
            whole(rig.read_to(lane, &high));
            whole(rig.read_to(lane, &low));
            println!("round {round}: to known memory by {name} in {:?}", start.elapsed());
            drop(known);
        }
    }
}
