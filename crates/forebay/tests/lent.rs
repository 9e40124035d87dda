//! Memory that others own: ranges of a GPU's, the process's own, and what keeps them.

#![allow(unsafe_code, reason = "lends memory, as a caller would")]

mod lab;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay::gpu::sim::SimDevice;
use forebay::gpu::{Device, DeviceId};
use forebay::internal::clock::SystemClock;
use forebay::units::{KIB, MIB};
use forebay::{Buffer, Engine, Error, File, OpenOptions, Options, Piece, Result, RingChoice};
use lab::{pattern, watchdog::Watchdog};

/// Several slots and a rest.
const LEN: usize = (5 << 20) + 12_345;

struct Rig {
    engine: Engine,
    gpus: [Arc<dyn Device>; 2],
    bytes: Vec<u8>,
    file: File,
    folder: tempfile::TempDir,
}

impl Rig {
    fn new(ring: RingChoice) -> Self {
        let mut options = Options::default();
        (options.slot_size, options.segment_size) = (MIB, 128 * KIB);
        options.ring = ring;
        let engine = Engine::new(options).expect("limits that fit");
        let first = SimDevice::new(0, "sim".parse().expect("a name"), Arc::new(SystemClock::new()));
        let second = first.sibling(1, "sim".parse().expect("a name"));
        let gpus: [Arc<dyn Device>; 2] = [Arc::new(first), Arc::new(second)];
        gpus.iter().for_each(|gpu| engine.add_device(gpu).expect("a new device"));
        let folder = tempfile::tempdir_in(".").expect("a folder");
        let (path, bytes) = (folder.path().join("file"), pattern(1, LEN));
        fs::write(&path, &bytes).expect("room for a file");
        let file = engine.open_with(&path, &OpenOptions::writing()).expect("the file opens");
        Self { engine, gpus, bytes, file, folder }
    }

    fn gpu(&self, index: usize) -> DeviceId {
        self.gpus[index].id()
    }

    fn on_gpu(&self, index: usize, len: u64) -> Buffer {
        self.engine.allocate(self.gpu(index), len).expect("memory")
    }

    fn ranges(&self, ranges: &[(u64, u64)]) -> Result<Buffer> {
        // SAFETY: what is lent outlives the buffer in each test, or is refused.
        unsafe { self.engine.borrow_device_ranges(ranges) }
    }

    /// A file to write.
    fn other(&self) -> File {
        let path = self.folder.path().join("other");
        self.engine.open_with(path, &OpenOptions::writing()).expect("a new file")
    }
}

/// Counts how often one of it is dropped.
struct SetOnDrop(Arc<AtomicUsize>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

/// What of `bytes` begins at `from`; the holder of the buffer must keep them.
fn lend(engine: &Engine, bytes: &mut [u8], from: usize) -> Buffer {
    let (address, len) = (bytes[from..].as_mut_ptr() as u64, (bytes.len() - from) as u64);
    // SAFETY: each test uses the bytes only while nothing is moved.
    unsafe { engine.borrow_host_memory(address, len) }
}

fn bytes_of(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(buffer.len()).expect("memory")];
    buffer.download(0, &mut bytes).expect("a download");
    bytes
}

#[test]
fn ranges_of_several_allocations_are_one_buffer() {
    let _watchdog = Watchdog::start();
    let rig = Rig::new(RingChoice::Auto);
    let own: Vec<Buffer> = (0..3).map(|_| rig.on_gpu(0, MIB)).collect();
    let at = |index: usize| own[index].address();
    // In no order, adjacent and overlapping, and twice the same.
    let ranges =
        [(at(2) + 100, 4096), (at(0), MIB), (at(1) + 7, 1000), (at(1) + 500, 600), (at(0), MIB)];
    let buffer = rig.ranges(&ranges).expect("all of them are its own");
    let least = ranges.iter().map(|range| range.0).min().expect("some");
    let end = ranges.iter().map(|range| range.0 + range.1).max().expect("some");
    assert_eq!((buffer.address(), buffer.len()), (least, end - least));
    assert_eq!(buffer.device(), Some(rig.gpu(0)));
    let pieces = [
        Piece::new(&rig.file, 5, 4096, at(2) + 100 - least),
        Piece::new(&rig.file, 9000, MIB, at(0) - least),
        Piece::new(&rig.file, 77, 1000, at(1) + 7 - least),
    ];
    let mut buffers = [buffer];
    rig.engine.read_many(&pieces, &mut buffers).exact().while_(&mut || true).run().expect("a read");
    let part = |index: usize, from: usize, len: usize| {
        let mut bytes = vec![0; len];
        own[index].download(from as u64, &mut bytes).expect("a download");
        bytes
    };
    assert!(part(2, 100, 4096) == rig.bytes[5..5 + 4096]);
    assert!(part(0, 0, 1 << 20) == rig.bytes[9000..9000 + (1 << 20)]);
    assert!(part(1, 7, 1000) == rig.bytes[77..1077]);
    drop(buffers);
    assert!(part(1, 7, 1000) == rig.bytes[77..1077], "they are not freed");
}

#[test]
fn ranges_that_are_not_all_of_one_gpu_are_refused() {
    let _watchdog = Watchdog::start();
    let rig = Rig::new(RingChoice::Auto);
    let (own, other) = (rig.on_gpu(0, MIB), rig.on_gpu(1, MIB));
    let (good, host) = (own.address(), [0_u8; 64]);
    let on_host = host.as_ptr() as u64;
    let bad = [
        (good, MIB + 1),
        (good + MIB - 1, 2),
        (good + 1, u64::MAX),
        (good, u64::MAX - good),
        (good + 5, 0),
        (good, 0),
        (on_host, 8),
        (on_host, 0),
        (0, 1),
        (0, 0),
        (u64::MAX, 1),
        (u64::MAX, u64::MAX),
        (u64::MAX, 0),
        (1 << 63, 1 << 63),
    ];
    for range in bad {
        for ranges in [&[range][..], &[(good, 10), range], &[range, (good, 10)]] {
            let end = rig.ranges(ranges);
            assert!(matches!(end, Err(Error::NotDeviceMemory { .. })), "{range:x?}: {end:?}");
        }
        // SAFETY: it is refused.
        let end = unsafe { rig.engine.borrow_device_memory(range.0, range.1) };
        assert!(matches!(end, Err(Error::NotDeviceMemory { .. })), "{range:x?}: {end:?}");
    }
    let end = rig.ranges(&[(good, 10), (other.address(), 10)]);
    assert!(matches!(end, Err(Error::NotDeviceMemory { .. })), "another GPU's: {end:?}");
    assert!(matches!(rig.ranges(&[]), Err(Error::BadOption { .. })));
    let freed = { rig.on_gpu(0, 64 * MIB).address() };
    let end = rig.ranges(&[(good, 10), (freed, 10)]);
    assert!(matches!(end, Err(Error::NotDeviceMemory { .. })), "{end:?}");
}

#[test]
fn memory_of_the_process_is_filled_and_copied_to_and_from() {
    let rig = Rig::new(RingChoice::Auto);
    let mut bytes = vec![0_u8; 10_001];
    let mut buffer = lend(&rig.engine, &mut bytes, 1);
    assert_eq!((buffer.len(), buffer.device()), (10_000, None));
    assert!(buffer.as_slice().is_none() && buffer.as_mut_slice().is_none());
    assert_eq!(format!("{buffer:?}"), "Buffer(10000 bytes on the host)");
    buffer.fill(3).expect("a fill");
    buffer.upload(9_990, &[4; 10]).expect("an upload");
    assert!(matches!(buffer.upload(9_991, &[5; 10]), Err(Error::BadOption { .. })));
    assert!(matches!(buffer.download(u64::MAX, &mut [0; 2]), Err(Error::BadOption { .. })));
    let (mut left, right) = buffer.split_at(5000);
    left.fill(6).expect("a fill");
    assert!(bytes_of(&right) == [vec![3; 4990], vec![4; 10]].concat());
    drop((left, right));
    assert!(bytes == [vec![0], vec![6; 5000], vec![3; 4990], vec![4; 10]].concat());
    // None at all, as an empty array of any library has.
    // SAFETY: there is no byte.
    let mut none = unsafe { rig.engine.borrow_host_memory(0, 0) };
    none.fill(1).expect("nothing to do");
    none.upload(0, &[]).expect("nothing to do");
    none.download(0, &mut []).expect("nothing to do");
    assert_eq!(rig.file.read(&mut none).run().expect("nothing to do").bytes, 0);
    assert_eq!(rig.other().write(&none).run().expect("nothing to do").bytes, 0);
    let mut none = [none];
    let pieces = [Piece::new(&rig.file, 3, 0, 0)];
    let end = rig.engine.read_many(&pieces, &mut none).while_(&mut || true).run();
    assert!(matches!(end.expect("nothing to do").results[..], [Ok(0)]));
}

#[test]
fn memory_of_the_process_is_read_to_and_written_from_by_every_call() {
    let _watchdog = Watchdog::start();
    for ring in [RingChoice::Auto, RingChoice::Pread] {
        let rig = Rig::new(ring);
        for (cold, from) in [(true, 0), (true, 1), (false, 0), (false, 4095)] {
            let mut bytes = vec![0_u8; LEN + from];
            let evict = || cold.then(|| rig.file.evict().expect("an own file"));
            let check = |bytes: &mut [u8], way: &str| {
                assert!(bytes[from..] == rig.bytes, "{ring:?}, {way}, cold: {cold}, {from}");
                bytes.fill(0);
            };
            evict();
            rig.file.read(&mut lend(&rig.engine, &mut bytes, from)).run().expect("a read");
            check(&mut bytes, "blocking");
            evict();
            let buffer = lend(&rig.engine, &mut bytes, from);
            let (end, buffer) = rig.file.read(buffer).start().expect("a start").wait();
            assert!(end.is_ok() && buffer.is_some(), "{end:?}");
            check(&mut bytes, "not blocking");
            evict();
            let half = (LEN / 2) as u64;
            let pieces = [
                Piece::new(&rig.file, half, LEN as u64 - half, half),
                Piece::new(&rig.file, 0, half, 0),
            ];
            let mut buffer = lend(&rig.engine, &mut bytes, from);
            let targets = [&mut buffer];
            rig.engine.read_many(&pieces, targets).run().expect("a read");
            check(&mut bytes, "many pieces");
            evict();
            let buffers = vec![lend(&rig.engine, &mut bytes, from)];
            let many = rig.engine.read_many(&pieces, buffers).start().expect("a start");
            many.wait().0.expect("a read");
            check(&mut bytes, "many pieces, not blocking");

            bytes[from..].copy_from_slice(&rig.bytes);
            let other = rig.other();
            other.write(&lend(&rig.engine, &mut bytes, from)).run().expect("a write");
            let buffer = lend(&rig.engine, &mut bytes, from);
            let started = other.write(buffer).at(LEN as u64).start().expect("a start");
            started.wait().0.expect("a write");
            let sources = [lend(&rig.engine, &mut bytes, from)];
            let pieces = [Piece::new(&other, 2 * LEN as u64, LEN as u64, 0)];
            let many = rig.engine.write_many(&pieces, &sources).while_(&mut || true).run();
            many.expect("a write");
            let written = fs::read(other.path()).expect("a read");
            assert!(written == rig.bytes.repeat(3), "{ring:?}, {from}");
            fs::remove_file(other.path()).expect("our file");
        }
    }
}

#[test]
fn owners_are_dropped_with_the_last_share_and_all_of_them() {
    let rig = Rig::new(RingChoice::Auto);
    for on_gpu in [false, true] {
        let (gone, mut bytes) = (Arc::new(AtomicUsize::new(0)), vec![0; 100]);
        let count = || gone.load(Ordering::Acquire);
        let owner = || SetOnDrop(Arc::clone(&gone));
        let buffer = match on_gpu {
            true => rig.on_gpu(0, 100),
            false => lend(&rig.engine, &mut bytes, 0),
        };
        let buffer = buffer.kept_by(owner()).kept_by(owner());
        assert_eq!(count(), 0, "of several owners none is dropped before its time");
        let (left, right) = buffer.split_at(50);
        drop(left);
        assert_eq!(count(), 0);
        let transfer = rig.file.read(right).start().expect("a start");
        let (end, buffer) = transfer.wait();
        assert!(end.is_ok() && count() == 0, "{end:?}");
        drop(buffer);
        assert_eq!(count(), 2);
    }
}

#[test]
#[should_panic(expected = "it has not been split")]
fn half_a_buffer_has_no_owner_of_its_own() {
    let rig = Rig::new(RingChoice::Auto);
    let (left, _right) = rig.on_gpu(0, 100).split_at(50);
    drop(left.kept_by(()));
}
