//! Files on a btrfs whose members stand in a row: each member is read by a queue of its own, so one
//! that hangs holds up only what lies on it.

mod lab;

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use forebay::gpu::{DeviceId, GpuSelector};
use forebay::topology::{Layout, Resolver};
use forebay::{DirectIo, Engine, Options, RequestOptions, Residency, RingChoice};
use lab::fuse::Fuse;
use lab::{LoopDrive, LoopOptions, Offer, or_skip, pattern, watchdog::Watchdog};

const MIB: usize = 1 << 20;
/// btrfs takes no members below 109 MiB. Its chunks are a tenth of all, so that a file of this
/// length lies on both members in turn.
const MEMBER: usize = 160 * MIB;
const LEN: usize = 96 * MIB;

/// Far above what the slowest machine needs: it only tells late from never.
const BOUND: Duration = Duration::from_secs(100);

/// A btrfs on two members, of which one can hang, with a file on both.
struct Row {
    // Undone in `drop`, before what it stands on goes.
    mounted: Option<PathBuf>,
    hanging: PathBuf,
    fuse: Fuse,
    _other: LoopDrive,
    folder: tempfile::TempDir,
}

impl Row {
    fn new(bytes: &[u8]) -> Offer<Self> {
        let bare = LoopOptions { size: MEMBER as u64, file_system: None, ..LoopOptions::default() };
        let other = LoopDrive::new(&bare)?;
        let fuse = Fuse::new(vec![0; MEMBER])?;
        let words = ["--show", "--find", "--direct-io=on"].map(OsStr::new);
        let device = lab::tool("losetup", words.into_iter().chain([fuse.path().as_os_str()]))?;
        let hanging = PathBuf::from(device.trim());
        let folder = tempfile::tempdir().map_err(|e| format!("no mount point: {e}"))?;
        let mut row = Self { mounted: None, hanging, fuse, _other: other, folder };
        // The metadata of so small a file system stay on the first member.
        let first = row._other.device().to_owned();
        let devices = [first.as_os_str(), row.hanging.as_os_str()];
        let words = ["-q", "-f", "-d", "single", "-m", "single"].map(OsStr::new);
        lab::tool("mkfs.btrfs", words.into_iter().chain(devices))?;
        lab::tool("btrfs", ["device", "scan"].map(OsStr::new).into_iter().chain(devices))?;
        let target = row.folder.path().to_owned();
        let words = ["-t", "btrfs", "-o", "noatime"].map(OsStr::new);
        lab::tool("mount", words.into_iter().chain([devices[0], target.as_os_str()]))?;
        row.mounted = Some(target);
        fs::write(row.file(), bytes).map_err(|e| format!("no file: {e}"))?;
        fs::File::open(row.file())
            .and_then(|file| file.sync_all())
            .map_err(|e| format!("no sync: {e}"))?;
        Ok(row)
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("file")
    }

    fn hang(&self, hangs: bool) {
        self.fuse.set(|faults| faults.hang_from = hangs.then_some(0));
    }

    /// Sectors that were read of the member that can hang.
    fn sectors(&self) -> u64 {
        let name = self.hanging.file_name().expect("a device").to_str().expect("its name is text");
        let text = fs::read_to_string(format!("/sys/class/block/{name}/stat")).expect("its counts");
        text.split_whitespace().nth(2).expect("a count").parse().expect("a number")
    }

    /// For each MiB of the file whether it begins on the member that can hang, as the kernel counts
    /// what is read.
    fn lies_on_hanging(&self) -> Vec<bool> {
        let file = engine(RingChoice::Auto, DirectIo::Off).open(self.file());
        let file = file.expect("the file opens");
        let is_read = |index: usize| {
            // Some kernels read through the page cache, O_DIRECT or not.
            evict(&file);
            let before = self.sectors();
            let from = format!("if={}", self.file().display());
            let skip = format!("skip={}", index * (MIB / 4096));
            let words = ["of=/dev/null", "bs=4096", "count=1", &from, &skip].map(OsStr::new);
            lab::tool("dd", words).expect("a read");
            self.sectors() > before
        };
        // Others may read the member at the same moment, but not each time.
        (0..LEN / MIB).map(|index| (0..2).all(|_| is_read(index))).collect()
    }
}

impl Drop for Row {
    fn drop(&mut self) {
        self.hang(false);
        if let Some(target) = self.mounted.take() {
            lab::unmount(&target);
        }
        lab::undo("losetup", ["--detach".as_ref(), self.hanging.as_os_str()]);
    }
}

fn engine(ring: RingChoice, direct_io: DirectIo) -> Engine {
    let mut options = Options::default();
    (options.ring, options.direct_io) = (ring, direct_io);
    options.slot_size = 4 * MIB as u64;
    options.segment_size = MIB as u64;
    options.remember = false;
    Engine::new(options).expect("limits that fit")
}

fn sim(engine: &Engine) -> DeviceId {
    let wanted: GpuSelector = "sim".parse().expect("a name");
    engine.device(&wanted).expect("a simulated GPU").expect("a GPU").id()
}

fn evict(file: &forebay::File) {
    let until = Instant::now() + BOUND;
    while !matches!(file.evict(), Ok(Residency::Known { resident: 0, .. })) {
        assert!(Instant::now() < until, "pages stay");
    }
}

#[test]
fn a_member_that_hangs_holds_up_only_what_lies_on_it() {
    let _watchdog = Watchdog::start();
    let bytes = pattern(7, LEN);
    let Some(row) = or_skip(Row::new(&bytes)) else { return };
    let map = Resolver::default().resolve(&row.file());
    assert_eq!(map.queue.layout, Layout::Concatenated);
    let hangs = row.lies_on_hanging();
    lab::note(format!("each MiB, and whether it hangs: {hangs:?}"));
    let first = hangs.iter().position(|hangs| *hangs).expect("it lies on both");
    assert!(hangs[first..].contains(&false), "nothing behind what hangs: {hangs:?}");
    for (ring, direct_io) in [
        (RingChoice::Auto, DirectIo::Auto),
        (RingChoice::Pread, DirectIo::Auto),
        (RingChoice::Auto, DirectIo::Off),
    ] {
        for on_gpu in [false, true] {
            lab::note(format!("{ring:?}, {direct_io:?}, on a GPU: {on_gpu}"));
            read_beside(&row, &engine(ring, direct_io), on_gpu, &hangs, &bytes);
        }
    }
}

fn read_beside(row: &Row, engine: &Engine, on_gpu: bool, hangs: &[bool], bytes: &[u8]) {
    let answers = (hangs.iter().filter(|hangs| !**hangs).count() * MIB) as u64;
    let file = engine.open(row.file()).expect("the file opens");
    evict(&file);
    let buffer = match on_gpu {
        true => engine.allocate(sim(engine), LEN as u64),
        false => engine.allocate_pinned(LEN as u64),
    };
    row.hang(true);
    let how = RequestOptions::exactly();
    // Two transfers, of which one hangs and the other does not.
    let part = |hung: bool| {
        let at = hangs.iter().position(|hangs| *hangs == hung).expect("it lies on both") * MIB;
        let buffer = engine.allocate_pinned(8 * MIB as u64).expect("memory");
        file.start_read(at as u64, buffer, &how).expect("a start")
    };
    let stuck = part(true);
    row.fuse.wait_for_parked(1);
    let end = part(false).wait_for(BOUND);
    assert!(matches!(end, Some(Ok(_))), "what lies on a member that answers: {end:?}");
    // And one on both.
    let transfer = file.start_read(0, buffer.expect("memory"), &how).expect("a start");
    let until = Instant::now() + BOUND;
    while transfer.progress().0 < answers {
        let (done, _) = transfer.progress();
        assert!(Instant::now() < until, "{done} of {answers} bytes beside what hangs");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!transfer.is_done() && !stuck.is_done(), "a member hangs");
    row.hang(false);
    let (end, buffer) = transfer.wait();
    assert_eq!(end.expect("the member answers again").bytes, LEN as u64);
    let mut read = vec![0; LEN];
    buffer.expect("it comes back").download(0, &mut read).expect("a download");
    assert!(read == bytes);
    stuck.wait().0.expect("as that one");
}

/// A read that was cancelled ends, though a member hangs.
#[test]
fn cancelled_reads_end_where_nothing_hangs_any_more() {
    let _watchdog = Watchdog::start();
    let bytes = pattern(8, LEN);
    let Some(row) = or_skip(Row::new(&bytes)) else { return };
    let engine = engine(RingChoice::Auto, DirectIo::Auto);
    let file = engine.open(row.file()).expect("the file opens");
    evict(&file);
    row.hang(true);
    let buffer = engine.allocate_pinned(LEN as u64).expect("memory");
    let transfer = file.start_read(0, buffer, &RequestOptions::exactly()).expect("a start");
    row.fuse.wait_for_parked(1);
    transfer.cancel();
    row.hang(false);
    let (end, _) = transfer.wait();
    assert!(matches!(end, Err(forebay::Error::Cancelled { .. })), "{end:?}");
    let (buffer, outcome) = file.read_whole(None).expect("a read");
    assert_eq!(outcome.bytes, LEN as u64);
    let mut read = vec![0; LEN];
    buffer.download(0, &mut read).expect("a download");
    assert!(read == bytes);
}
