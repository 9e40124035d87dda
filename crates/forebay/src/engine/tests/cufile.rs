//! The port of the real cuFile.

#![expect(unsafe_code, reason = "reads to an address")]

use std::sync::Arc;
use std::time::Duration;

use forebay_cufile::{CuFilePort, End, Program, Session, run};
use forebay_gpu::Port;

use crate::file::{Handle, OpenOptions};
use crate::gpu::{self, GpuSelector};
use crate::memory::{Account, Buffer, Couriers, Room};

/// The unit of the test's requests.
const UNIT: u64 = 4096;

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
    let name = "engine::tests::cufile::the_real_library_reads_here";
    let test = [own.as_str(), "--exact", "--nocapture", name];
    let arguments = settings.iter().chain(&test).map(Into::into).collect();
    let program = Program { file: "/usr/bin/env".into(), arguments };
    let (printed, end) = run(&program, Duration::from_secs(60), 1 << 16);
    println!("{printed}");
    assert_eq!(end, End::Exited(0), "{printed}");
}

#[test]
fn the_real_library_reads_here() {
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
    let port = CuFilePort::open(&session, file.direct_file().unwrap(), &device).unwrap();
    let room = Room::new(forebay_topology::System::live(), Account::new(4096, None));
    let mut memory =
        Buffer::on_device(&Couriers::new(&room), Arc::clone(&device), bytes.len() as u64).unwrap();
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
