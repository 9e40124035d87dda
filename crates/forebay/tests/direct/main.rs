//! Reads and writes directly between a file and a GPU, by a mock cuFile.

mod ends;
#[path = "../lab/mod.rs"]
mod lab;
mod reasons;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay::gpu::DeviceId;
use forebay::units::{KIB, MIB};
use forebay::{
    Buffer, Engine, Error, File, OpenOptions, Options, Outcome, Reason, RequestOptions, Residency,
    Route,
};
use lab::child;
use lab::pages::held;
use lab::watchdog::Watchdog;
use lab::{pattern, skip};

const LEN: usize = (5 << 20) + 1234;

struct Rig {
    engine: Engine,
    gpu: DeviceId,
    folder: tempfile::TempDir,
    bytes: Vec<u8>,
}

impl Rig {
    fn new(gpu: &str) -> Self {
        Self::within(gpu, Path::new("."))
    }

    /// With its file in a folder of `place`.
    fn within(gpu: &str, place: &Path) -> Self {
        let mut options = Options::default();
        options.segment_size = 256 * KIB;
        let engine = Engine::new(options).expect("limits that fit");
        let wanted = gpu.parse().expect("a name");
        let gpu = engine.device(&wanted).expect("a simulated GPU").expect("a GPU").id();
        let folder = tempfile::tempdir_in(place).expect("a folder");
        let bytes = pattern(3, LEN);
        fs::write(folder.path().join("file"), &bytes).expect("it is written");
        fs::File::open(folder.path().join("file")).expect("it opens").sync_all().expect("a sync");
        Self { engine, gpu, folder, bytes }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("file")
    }

    /// The file, of which nothing is in memory.
    fn cold(&self) -> File {
        let file = self.engine.open(self.path()).expect("it opens");
        file.evict().expect("advice");
        file
    }

    /// What `turn` comes to while the whole file is in memory, from before it until after it.
    fn in_memory<T>(&self, file: &File, mut turn: impl FnMut() -> T) -> T {
        let all = Residency::Known { resident: LEN as u64, len: LEN as u64 };
        let is_there = || file.residency(0, LEN as u64).expect("a length") == all;
        held(|| {
            fs::read(self.path()).expect("it is read");
            let come = is_there().then(&mut turn);
            come.filter(|_| is_there())
        })
    }

    fn buffer(&self, len: usize) -> Buffer {
        self.engine.allocate(self.gpu, len as u64).expect("memory")
    }

    /// Reads, and checks that the bytes are those of the file and no others are touched.
    fn read(
        &self,
        file: &File,
        (offset, len, at): (usize, usize, usize),
        options: &RequestOptions,
    ) -> Result<Outcome, Error> {
        let mut buffer = self.buffer(at + len + 100);
        buffer.fill(0xee).expect("a fill");
        let (before, rest) = buffer.split_at(at as u64);
        let (target, behind) = rest.split_at(len as u64);
        let (end, target) = file.read(target).at(offset as u64).options(*options).start()?.wait();
        let outcome = end?;
        let mut got = vec![0; len];
        let there = len.min(LEN - offset);
        target.expect("the buffer").download(0, &mut got).expect("a copy");
        assert!(got[..there] == self.bytes[offset..offset + there], "{offset}, {len}: {outcome:?}");
        assert!(got[there..].iter().all(|byte| *byte == 0xee));
        for guard in [before, behind] {
            let mut got = vec![0; usize::try_from(guard.len()).expect("small")];
            guard.download(0, &mut got).expect("a copy");
            assert!(got.iter().all(|byte| *byte == 0xee), "bytes outside were touched");
        }
        Ok(outcome)
    }
}

/// Whether bytes of this folder's files may come from a drive with O_DIRECT; else the test
/// is skipped. It does not use a transfer, which is under test.
fn bytes_are_from_a_drive(rig: &Rig) -> bool {
    let file = rig.engine.open(rig.path()).expect("it opens");
    let left = file.evict().expect("advice");
    let reason = match (file.no_direct_io(), left) {
        (Some(reason), _) => reason.to_owned(),
        (None, Residency::Known { resident: 0, .. }) => return true,
        (None, left) => format!("files stay in memory here: {left:?}"),
    };
    skip(format!("bytes that go straight: {reason}"));
    false
}

fn bytes_by(outcome: &Outcome, route: Route) -> u64 {
    let of = outcome.routes.iter().filter(|share| share.route == route);
    of.map(|share| share.bytes).sum()
}

fn direct_only() -> RequestOptions {
    RequestOptions { route: Some(Route::Direct), ..RequestOptions::default() }
}

#[test]
fn cold_bytes_go_directly_and_their_edges_do_not() {
    let _watchdog = Watchdog::start();
    for play in ["sim:cufile", "sim:cufile=nvidia-fs", "sim:cufile=short,seed=5"] {
        let rig = Rig::new(play);
        if !bytes_are_from_a_drive(&rig) {
            return;
        }
        let file = rig.cold();
        let outcome = rig
            .read(&file, (0, LEN, 0), &RequestOptions { exact: true, ..RequestOptions::default() })
            .expect(play);
        let body = LEN as u64 / 4096 * 4096;
        assert!(outcome.routes.iter().any(|share| share.reason == Reason::PeerToPeer), "{play}");
        assert_eq!(bytes_by(&outcome, Route::Direct), body, "{play}: {outcome:?}");
        assert_eq!(bytes_by(&outcome, Route::Cached), LEN as u64 - body, "{play}: {outcome:?}");
        // In the middle, aligned alike.
        let outcome = rig.read(&file, (5000, 2 << 20, 5000 % 4096), &direct_only()).expect(play);
        assert_eq!(bytes_by(&outcome, Route::Direct), (2 << 20) - 4096, "{outcome:?}");
        // Up to the end of the file and beyond.
        let outcome = rig.read(&file, (4 << 20, 2 << 20, 0), &direct_only()).expect(play);
        assert_eq!(outcome.bytes, LEN as u64 - (4 << 20));
    }
}

#[test]
fn resident_bytes_are_read_from_memory() {
    let _watchdog = Watchdog::start();
    let rig = Rig::new("sim:cufile");
    let file = rig.engine.open(rig.path()).expect("it opens");
    let outcome = rig.in_memory(&file, || {
        rig.read(&file, (0, LEN, 0), &RequestOptions { exact: true, ..RequestOptions::default() })
            .expect("a read")
    });
    assert_eq!(bytes_by(&outcome, Route::Direct), 0, "{outcome:?}");
    let outcome = rig.read(&file, (0, LEN, 0), &direct_only()).expect("a read");
    assert!(bytes_by(&outcome, Route::Direct) > 0, "required: {outcome:?}");
}

#[test]
fn a_path_that_breaks_gives_over_to_slots() {
    let _watchdog = Watchdog::start();
    let rig = Rig::new("sim:cufile=fail");
    if !bytes_are_from_a_drive(&rig) {
        return;
    }
    let file = rig.cold();
    let outcome = rig
        .read(&file, (0, LEN, 0), &RequestOptions { exact: true, ..RequestOptions::default() })
        .expect("a read");
    let failed = outcome.routes.iter().filter(|share| share.reason == Reason::PeerFailed);
    assert!(failed.map(|share| share.bytes).sum::<u64>() > 0, "{outcome:?}");
    let straight = bytes_by(&outcome, Route::Direct);
    assert!(straight > 0 && straight < LEN as u64, "{outcome:?}");
    // It is known from then on.
    let again = rig
        .read(
            &rig.cold(),
            (0, LEN, 0),
            &RequestOptions { exact: true, ..RequestOptions::default() },
        )
        .expect("a read");
    assert_eq!(again.bytes, LEN as u64);
    let known = rig.read(&file, (0, LEN, 0), &direct_only()).expect_err("it is closed").to_string();
    assert!(known.contains("direct") && known.contains("5044"), "{known}");
    // Required for a separate file, it is an error, with the bytes that it is about.
    let own = rig.engine.open(rig.path()).expect("it opens");
    let error = rig.read(&own, (0, LEN, 0), &direct_only()).expect_err("it fails").to_string();
    assert!(error.contains("IO_ERROR (5044)"), "{error}");
}

/// So long that much of it has no window yet when the path breaks, with callers that help.
#[test]
fn a_long_one_whose_path_breaks_is_whole() {
    let _watchdog = Watchdog::start();
    let rig = Rig::new("sim:cufile=fail");
    let long = rig.folder.path().join("long");
    let bytes = pattern(4, 40 << 20);
    fs::write(&long, &bytes).expect("it is written");
    for round in 0..5 {
        let file = rig.engine.open(&long).expect("it opens");
        file.evict().expect("advice");
        let mut buffer = rig.buffer(bytes.len());
        let outcome = file.read(&mut buffer).run().expect("a read");
        let mut got = vec![0; bytes.len()];
        buffer.download(0, &mut got).expect("a copy");
        assert!(got == bytes, "round {round}: {outcome:?}");
        assert_eq!(outcome.routes.iter().map(|share| share.bytes).sum::<u64>(), outcome.bytes);
    }
}

#[test]
fn a_refusal_is_an_error_if_the_route_was_required() {
    let _watchdog = Watchdog::start();
    let why = |gpu: &str, at: usize, options: &RequestOptions| {
        let rig = Rig::new(gpu);
        let file = rig.cold();
        let refused = rig.read(&file, (0, LEN, at), options).expect_err(gpu);
        assert!(matches!(refused, Error::RouteUnavailable { route: Route::Direct, .. }));
        // Without a required route, another one is taken.
        let by_slots = rig
            .read(&file, (0, LEN, at), &RequestOptions { exact: true, ..RequestOptions::default() })
            .expect(gpu);
        assert_eq!(bytes_by(&by_slots, Route::Direct), 0, "{by_slots:?}");
        refused.to_string()
    };
    let plain = why("sim", 0, &direct_only());
    assert!(plain.contains("GPU lacks cuFile") && plain.contains("sim:cufile"), "{plain}");
    let refused = why("sim:cufile=refuse", 0, &direct_only());
    assert!(refused.contains("IO_NOT_SUPPORTED (5008)"), "{refused}");
    let crooked = why("sim:cufile", 512, &direct_only());
    assert!(crooked.contains("modulo 4096 bytes"), "{crooked}");
    let rig = Rig::new("sim:cufile");
    let short = rig.read(&rig.cold(), (100, 4000, 100), &direct_only()).expect_err("no unit");
    assert!(short.to_string().contains("no whole unit"), "{short}");
}

#[test]
fn writes_are_direct_if_required() {
    let _watchdog = Watchdog::start();
    for play in ["sim:cufile", "sim:cufile=short,seed=9"] {
        let rig = Rig::new(play);
        let path = rig.folder.path().join("written");
        for offset in [0, 1000_usize] {
            let file = rig.engine.open_with(&path, &OpenOptions::writing()).expect("it opens");
            let mut source = rig.buffer(offset + LEN);
            source.upload(offset as u64, &rig.bytes).expect("a copy");
            let (_, source) = source.split_at(offset as u64);
            let moved = file.write(source).at(offset as u64).options(direct_only()).start();
            let (end, _) = match moved {
                Err(Error::RouteUnavailable { reason, .. }) if reason.contains("O_DIRECT") => {
                    return println!("skipped: {reason}");
                }
                moved => moved.expect(play).wait(),
            };
            let outcome = end.expect(play);
            assert!(bytes_by(&outcome, Route::Direct) >= 5 * MIB - 4096, "{outcome:?}");
            assert_eq!(outcome.bytes, LEN as u64);
            drop(file);
            assert!(
                fs::read(&path).expect("it is read")[offset..] == rig.bytes,
                "{play}, {offset}"
            );
        }
    }
}

#[test]
fn a_cancelled_or_dropped_transfer_leaves_nothing_behind() {
    let _watchdog = Watchdog::start();
    let rig = Rig::new("sim:cufile");
    let file = rig.cold();
    for _ in 0..20 {
        let transfer = file.read(rig.buffer(LEN)).options(direct_only()).start().expect("a start");
        transfer.cancel();
        let (end, _) = transfer.wait();
        assert!(matches!(end, Ok(_) | Err(Error::Cancelled { .. })), "{end:?}");
        drop(file.read(rig.buffer(LEN)).options(direct_only()).start().expect("a start"));
    }
    rig.read(&file, (0, LEN, 0), &direct_only()).expect("as before");
}

#[test]
fn a_library_without_an_answer_blocks_no_caller_for_long() {
    let _watchdog = Watchdog::start();
    let rig = Rig::new("sim:cufile=hang-open");
    let start = Instant::now();
    let outcome = rig
        .read(
            &rig.cold(),
            (0, LEN, 0),
            &RequestOptions { exact: true, ..RequestOptions::default() },
        )
        .expect("a read");
    assert_eq!((outcome.bytes, bytes_by(&outcome, Route::Direct)), (LEN as u64, 0));
    // What is known to be silent is not waited for again.
    let again = Instant::now();
    let error = rig.read(&rig.cold(), (0, LEN, 0), &direct_only()).expect_err("it is silent");
    assert!(error.to_string().contains("does not answer"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(30) && again.elapsed() < Duration::from_secs(2));
}

/// In a process of its own: whose library does not forget one file forgets none any more.
#[test]
fn files_that_are_never_forgotten_hold_few_descriptors() {
    if child::role().is_none() {
        child::run("forgetting");
        return;
    }
    let _watchdog = Watchdog::start();
    let rig = Rig::new("sim:cufile=hang-close");
    if !bytes_are_from_a_drive(&rig) {
        return;
    }
    let descriptors = || fs::read_dir("/proc/self/fd").expect("this process").count();
    let before = descriptors();
    let mut direct = 0;
    for _ in 0..600 {
        let file = rig.cold();
        let read = file.read(&mut rig.buffer(4096)).options(direct_only()).run();
        direct += usize::from(read.is_ok());
    }
    assert!((200..400).contains(&direct), "{direct} files were registered");
    let held = descriptors() - before;
    assert!(held < 300, "{held} descriptors are held");
    // Other routes go on.
    let outcome = rig
        .read(
            &rig.cold(),
            (0, LEN, 0),
            &RequestOptions { exact: true, ..RequestOptions::default() },
        )
        .expect("a read");
    assert_eq!((outcome.bytes, bytes_by(&outcome, Route::Direct)), (LEN as u64, 0));
}

#[test]
fn a_request_that_is_never_answered_keeps_its_memory_and_lets_its_caller_go() {
    let _watchdog = Watchdog::start();
    let rig = Rig::new("sim:cufile=hang");
    let transfer =
        rig.cold().read(rig.buffer(LEN)).options(direct_only()).start().expect("a start");
    let (end, buffer) = transfer.wait_at_most(Duration::from_millis(500));
    assert!(end.is_err() && buffer.is_none(), "{end:?}");
    // Others go on, and the engine's end is bounded.
    let host = fs::read(rig.path()).expect("a read");
    assert_eq!(
        rig.engine
            .open(rig.path())
            .expect("opens")
            .read_to_end(None)
            .run()
            .expect("a read")
            .0
            .len(),
        host.len() as u64
    );
    let start = Instant::now();
    drop(rig);
    assert!(start.elapsed() < Duration::from_secs(20));
}
