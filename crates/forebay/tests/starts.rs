//! Calls that start a transfer return at once, whatever the drive or the server of their file does:
//! also the first call of a file, which has to find out what the file stands on.

mod lab;

use std::fs;
use std::path::Path;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use forebay::gpu::{DeviceId, GpuSelector};
use forebay::{DirectIo, Engine, Error, File, OpenOptions, Options, Piece};
use lab::fuse::Fuse;
use lab::hanging::HangingDrive;
use lab::{or_skip, pattern, watchdog::Watchdog};

const LEN: usize = 3 << 20;

/// Far above what the slowest machine needs: only a hang exceeds it.
const BOUND: Duration = Duration::from_secs(60);

fn engine(direct_io: DirectIo) -> (Engine, DeviceId) {
    let mut options = Options::default();
    options.direct_io = direct_io;
    let engine = Engine::new(options).expect("limits that fit");
    let wanted: GpuSelector = "sim".parse().expect("a name");
    let gpu = engine.device(&wanted).expect("a simulated GPU").expect("a GPU").id();
    (engine, gpu)
}

/// What `call` returns, which may not wait for a file system that hangs; `hangs(false)` ends that.
fn at_once<T: Send + 'static>(
    call: impl FnOnce() -> T + Send + 'static,
    hangs: impl Fn(bool),
) -> T {
    let (report, reported) = channel();
    hangs(true);
    thread::spawn(move || report.send(call()));
    let answer = reported.recv_timeout(BOUND);
    hangs(false);
    answer.expect("the call returns while the file system hangs")
}

fn memory(engine: &Engine, gpu: Option<DeviceId>) -> forebay::Buffer {
    let buffer = match gpu {
        Some(gpu) => engine.allocate(gpu, LEN as u64),
        None => engine.allocate_pinned(LEN as u64),
    };
    buffer.expect("memory")
}

/// Reads up to the end of the file and beyond, of one and of many ranges, and writes, with host
/// memory and with a GPU's.
const WAYS: usize = 10;

/// Waits for a transfer.
type Wait = Box<dyn FnOnce() -> Result<(), Error> + Send>;

fn start(engine: &Engine, gpu: DeviceId, file: &File, way: usize) -> Wait {
    let memory = memory(engine, (way % 2 == 1).then_some(gpu));
    let started = match way / 2 {
        0 => file.read(memory).exact().start(),
        1 => file.read(memory).at(100).start(),
        2 => file.write(memory).start(),
        beyond => {
            let len = [9, 2 << 20][beyond - 3];
            let pieces = [Piece::new(file, 0, 1000, 0), Piece::new(file, 2 << 20, len, 1000)];
            let many = engine.read_many(&pieces, [memory]).start().expect("a start");
            return Box::new(move || many.wait().0.map(drop));
        }
    };
    let transfer = started.expect("a start");
    Box::new(move || transfer.wait().0.map(drop))
}

/// Starts each kind of transfer of the file at `path` while its file system hangs.
fn each_starts(path: &Path, direct_io: DirectIo, hangs: &dyn Fn(bool)) {
    for way in 0..WAYS {
        lab::note(format!("{direct_io:?} {way}"));
        let (engine, gpu) = engine(direct_io);
        let file = engine.open_with(path, &OpenOptions::writing()).expect("the file opens");
        let (at_work, of) = (engine.clone(), file.clone());
        let wait = at_once(move || start(&at_work, gpu, &of, way), hangs);
        wait().expect("the file system answers again");
    }
}

#[test]
fn the_first_transfer_of_a_file_on_a_loop_device_whose_image_is_silent_starts_at_once() {
    let _watchdog = Watchdog::start();
    let Some(drive) = or_skip(HangingDrive::new(32 << 20)) else { return };
    let path = drive.path().join("data");
    fs::write(&path, pattern(1, LEN)).expect("room for a file");
    fs::File::open(&path).and_then(|file| file.sync_all()).expect("a sync");
    let hangs = |hangs| {
        if hangs {
            let file = fs::File::open(&path).expect("the file opens");
            let advice = rustix::fs::Advice::DontNeed;
            rustix::fs::fadvise(&file, 0, None, advice).expect("an advice");
        }
        drive.fuse().set(|faults| faults.silent = hangs);
    };
    each_starts(&path, DirectIo::Auto, &hangs);
    each_starts(&path, DirectIo::Off, &hangs);
}

#[test]
fn the_first_transfer_of_a_file_whose_server_is_silent_starts_at_once() {
    let _watchdog = Watchdog::start();
    let Some(fuse) = or_skip(Fuse::new(pattern(1, LEN))) else { return };
    let path = fuse.path();
    let hangs = |hangs| fuse.set(|faults| faults.silent = hangs);
    each_starts(&path, DirectIo::Auto, &hangs);
    each_starts(&path, DirectIo::Off, &hangs);
}
