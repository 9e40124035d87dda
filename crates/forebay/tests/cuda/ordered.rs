//! Transfers in the order of streams that the test makes, as another library would. Each test has
//! a process of its own, and takes its memory before a stream is held up: calls that take or free
//! memory, of other tests too, wait for all streams of the GPU, and for those that wait for it.

#![expect(unsafe_code, reason = "lends streams, and writes numbers that they wait for")]

use std::ffi::c_void;
use std::fs;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use forebay::gpu::{CallerStream, DeviceId};
use forebay::{Buffer, Engine, Error, File, OpenOptions, Options, Piece, RequestOptions, SyncMode};

use crate::driver::{Driver, Opaque, engine, file, is_alone};

/// Three slots and a rest.
const LEN: usize = (48 << 20) + 12_345;

fn named(stream: Opaque) -> CallerStream {
    CallerStream(stream as u64)
}

/// Pinned host memory of the test's own.
struct Pinned<'a>(&'a Driver, Opaque);

impl Pinned<'_> {
    fn bytes(&self, len: usize) -> &[u8] {
        // SAFETY: the test frees what it allocated, after its copies.
        unsafe { std::slice::from_raw_parts(self.1.cast(), len) }
    }

    /// Opens what waits for the number here.
    fn open(&self) {
        // SAFETY: aligned, and only ever used as an atomic.
        unsafe { AtomicU32::from_ptr(self.1.cast()) }.store(1, Ordering::Release);
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        self.0.free_host(self.1);
    }
}

/// A number that is zero.
fn gate(driver: &Driver) -> Pinned<'_> {
    let number = driver.allocate_host(4096);
    // SAFETY: just made.
    unsafe { number.cast::<u32>().write(0) };
    Pinned(driver, number)
}

fn start_read(file: &File, stream: Opaque, buffer: Buffer) -> forebay::Transfer {
    // SAFETY: the stream is the test's and alive.
    unsafe { file.read(buffer).on(named(stream)).start() }.unwrap()
}

/// Lets the engine take its memory for transfers in a stream's order.
fn warm_up(engine: &Engine, gpu: DeviceId, file: &File, stream: Opaque, len: usize) {
    let buffer = engine.allocate(gpu, len as u64).unwrap();
    assert_eq!(start_read(file, stream, buffer).wait().0.unwrap().bytes, len as u64);
}

#[test]
fn streams_of_every_kind_keep_their_order() {
    if !is_alone() {
        return;
    }
    let Some((engine, gpu)) = engine() else { return };
    let driver = Driver::new();
    driver.use_primary(&*gpu);
    let (folder, path, bytes) = file(LEN);
    let opened = engine.open(&path).unwrap();
    let host = Pinned(&driver, driver.allocate_host(LEN));
    let (own, apart) = (driver.create_stream(0), driver.create_stream(1));
    let of_thread: *mut c_void = ptr::without_provenance_mut(2);
    let legacy: *mut c_void = ptr::without_provenance_mut(1);
    warm_up(&engine, gpu.id(), &opened, apart, LEN);
    for stream in [ptr::null_mut(), legacy, of_thread, own, apart] {
        println!("{stream:?}");
        let gate = gate(&driver);
        let buffer = engine.allocate(gpu.id(), LEN as u64).unwrap();
        let address = buffer.address();
        driver.wait_for_one(stream, gate.1);
        driver.fill(stream, address, 0x11, LEN);
        let transfer = start_read(&opened, stream, buffer);
        driver.fetch(stream, host.1, address, LEN);
        assert!(!transfer.is_done(), "{stream:?} is held up");
        gate.open();
        driver.synchronize(stream);
        assert!(host.bytes(LEN) == bytes, "what was queued later on {stream:?} saw other bytes");
        let (end, buffer) = transfer.wait();
        assert_eq!(end.unwrap().bytes, LEN as u64);
        // And back into another file, with the source overwritten behind it.
        let path = folder.path().join("written");
        let out = engine.open_with(&path, &OpenOptions::writing()).unwrap();
        // SAFETY: the stream is the test's and alive.
        let written =
            unsafe { out.write(buffer.unwrap()).sync(SyncMode::Data).on(named(stream)).start() }
                .unwrap();
        driver.fill(stream, address, 0xee, LEN);
        assert_eq!(written.wait().0.unwrap().bytes, LEN as u64);
        assert!(fs::read(&path).unwrap() == bytes, "{stream:?}");
        driver.synchronize(stream);
    }
    driver.destroy_stream(own);
    driver.destroy_stream(apart);
    driver.pop();
}

/// Far more copies than a stream's queue has entries: they go in batches, so the call returns
/// while the stream is held up.
#[test]
fn many_pieces_keep_the_order_of_a_stream() {
    if !is_alone() {
        return;
    }
    const PIECE: usize = 2048;
    const WIDE: u64 = PIECE as u64;
    let Some((engine, gpu)) = engine() else { return };
    let driver = Driver::new();
    driver.use_primary(&*gpu);
    let (folder, path, bytes) = file(LEN);
    let opened = engine.open(&path).unwrap();
    let count = (LEN / PIECE / 2) as u64;
    let (half, last) = (LEN / 2, count - 1);
    // Every second piece, from the last to the first.
    let place = |n: u64| Piece::new(&opened, (last - n) * 2 * WIDE, WIDE, n * WIDE);
    let pieces: Vec<Piece<'_>> = (0..count).map(place).collect();
    let parts = bytes.chunks_exact(PIECE).step_by(2).take(LEN / PIECE / 2);
    let wanted: Vec<u8> = parts.rev().flatten().copied().collect();
    let options = RequestOptions { exact: true, ..RequestOptions::default() };
    let host = Pinned(&driver, driver.allocate_host(LEN));
    let stream = driver.create_stream(1);
    warm_up(&engine, gpu.id(), &opened, stream, LEN);
    for round in 0..3 {
        let gate = gate(&driver);
        let buffer = engine.allocate(gpu.id(), half as u64).unwrap();
        let address = buffer.address();
        driver.wait_for_one(stream, gate.1);
        driver.fill(stream, address, 0x11, half);
        let start = Instant::now();
        // SAFETY: the stream is the test's and alive.
        let many = unsafe {
            engine
                .read_many(&pieces, vec![buffer])
                .options(options)
                .on(named(stream))
                .start()
                .unwrap()
        };
        println!("round {round}: {count} pieces are queued after {:?}", start.elapsed());
        driver.fetch(stream, host.1, address, wanted.len());
        assert!(!many.transfer().is_done(), "the stream is held up");
        gate.open();
        driver.synchronize(stream);
        assert!(host.bytes(wanted.len()) == wanted, "what was queued later saw other bytes");
        let (end, mut buffers) = many.wait();
        assert_eq!(end.unwrap().whole.bytes, count * WIDE);
        // And back into another file, with the source overwritten behind it.
        let out = folder.path().join("written");
        let out = engine.open_with(&out, &OpenOptions::new_file()).unwrap();
        let back = |n: u64| Piece::new(&out, n * WIDE, WIDE, n * WIDE);
        let pieces: Vec<Piece<'_>> = (0..count).map(back).collect();
        let (buffer, options) = (buffers.pop().unwrap(), RequestOptions::default());
        // SAFETY: as above.
        let many = unsafe {
            engine
                .write_many(&pieces, vec![buffer])
                .options(options)
                .on(named(stream))
                .start()
                .unwrap()
        };
        driver.fill(stream, address, 0xee, half);
        assert!(many.wait().0.unwrap().results.iter().all(Result::is_ok));
        assert!(fs::read(out.path()).unwrap() == wanted);
        fs::remove_file(out.path()).unwrap();
        driver.synchronize(stream);
    }
    driver.destroy_stream(stream);
    driver.pop();
}

/// As many pieces as one call may have: what a stream's queue holds is a matter of copies, not
/// only of batches, so one more is refused and so many are queued while the stream is held up.
#[test]
fn the_most_pieces_that_a_call_may_have_are_queued_at_once() {
    if !is_alone() {
        return;
    }
    const PIECE: u64 = 512;
    const MOST: u64 = 22_000;
    let len = usize::try_from((MOST + 1) * PIECE).unwrap();
    let Some((engine, gpu)) = engine() else { return };
    let driver = Driver::new();
    driver.use_primary(&*gpu);
    let (_folder, path, bytes) = file(len);
    let opened = engine.open(&path).unwrap();
    let stream = driver.create_stream(1);
    warm_up(&engine, gpu.id(), &opened, stream, len);
    // Backwards, so that no two are one copy.
    let piece = |n: u64| Piece::new(&opened, n * PIECE, PIECE, (MOST - n) * PIECE);
    let pieces: Vec<Piece<'_>> = (0..=MOST).map(piece).collect();
    let start = |pieces: &[Piece<'_>]| {
        let buffer = engine.allocate(gpu.id(), len as u64).unwrap();
        // SAFETY: the stream is the test's and alive.
        unsafe { engine.read_many(pieces, vec![buffer]).exact().on(named(stream)).start() }
    };
    let refused = start(&pieces).unwrap_err().to_string();
    assert!(refused.contains("several calls, each of 22000"), "{refused}");
    let gate = gate(&driver);
    driver.wait_for_one(stream, gate.1);
    let begin = Instant::now();
    let many = start(&pieces[1..]).unwrap();
    println!("{MOST} pieces are queued after {:?}", begin.elapsed());
    assert!(!many.transfer().is_done(), "the stream is held up");
    gate.open();
    let (end, mut buffers) = many.wait();
    assert!(end.unwrap().results.iter().all(|result| matches!(result, Ok(PIECE))));
    let parts = bytes.chunks_exact(PIECE.try_into().unwrap()).skip(1);
    let wanted: Vec<u8> = parts.rev().flatten().copied().collect();
    let mut got = vec![0; wanted.len()];
    buffers.pop().unwrap().download(0, &mut got).unwrap();
    assert!(got == wanted);
    driver.destroy_stream(stream);
    driver.pop();
}

/// More streams than a GPU has queues for them (8, and 32 at most), while another thread calls
/// whatever takes the driver's locks.
#[test]
fn others_may_synchronise_and_allocate_meanwhile() {
    if !is_alone() {
        return;
    }
    const STREAMS: usize = 40;
    const LEN: usize = 5 << 20;
    let Some((engine, gpu)) = engine() else { return };
    let driver = Driver::new();
    driver.use_primary(&*gpu);
    let (_folder, path, bytes) = file(LEN);
    let opened = engine.open(&path).unwrap();
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let (gpu, ended) = (&gpu, &ended);
        let other = scope.spawn(move || {
            let driver = Driver::new();
            driver.use_primary(&**gpu);
            let mut rounds = 0;
            while !ended.load(Ordering::Relaxed) {
                let address = driver.allocate(1 << 20);
                driver.synchronize_all();
                driver.free(address);
                rounds += 1;
            }
            driver.pop();
            rounds
        });
        for _ in 0..3 {
            let streams: Vec<Opaque> = (0..STREAMS).map(|_| driver.create_stream(1)).collect();
            let start = |&stream: &Opaque| {
                let buffer = engine.allocate(gpu.id(), LEN as u64).unwrap();
                start_read(&opened, stream, buffer)
            };
            let transfers: Vec<_> = streams.iter().map(start).collect();
            for transfer in transfers {
                let (end, buffer) = transfer.wait();
                assert_eq!(end.unwrap().bytes, LEN as u64);
                let mut got = vec![0; LEN];
                buffer.unwrap().download(0, &mut got).unwrap();
                assert!(got == bytes);
            }
            streams.into_iter().for_each(|stream| driver.destroy_stream(stream));
        }
        ended.store(true, Ordering::Relaxed);
        assert!(other.join().unwrap() > 0);
    });
    driver.pop();
}

#[test]
fn a_wait_for_a_stream_polls_until_the_stream_continues() {
    if !is_alone() {
        return;
    }
    let Some((engine, gpu)) = engine() else { return };
    let driver = Driver::new();
    driver.use_primary(&*gpu);
    let wait = |stream: Opaque, go_on: &mut dyn FnMut() -> bool| {
        // SAFETY: the stream is the test's and alive.
        unsafe { engine.wait_for_stream(gpu.id(), named(stream), go_on) }
    };
    let (own, apart) = (driver.create_stream(0), driver.create_stream(1));
    let legacy: *mut c_void = ptr::without_provenance_mut(1);
    for stream in [ptr::null_mut(), legacy, own, apart] {
        wait(stream, &mut || true).unwrap();
        let gate = gate(&driver);
        driver.wait_for_one(stream, gate.1);
        let mut calls = 0;
        let end = wait(stream, &mut || {
            calls += 1;
            calls < 4
        });
        assert!(matches!(end, Err(Error::Device { .. })), "{stream:?}: {end:?}");
        assert_eq!(calls, 4);
        let end = wait(stream, &mut || {
            gate.open();
            true
        });
        assert!(end.is_ok(), "{stream:?}: {end:?}");
        driver.synchronize(stream);
    }
    driver.destroy_stream(own);
    driver.destroy_stream(apart);
    let capturing = driver.begin_capture();
    let end = wait(capturing, &mut || true);
    assert!(matches!(end, Err(Error::BadOption { .. })), "{end:?}");
    driver.end_capture(capturing).unwrap();
    driver.pop();
}

#[test]
fn the_longest_transfer_that_is_taken_does_not_block_the_call() {
    if !is_alone() {
        return;
    }
    const SLOT: u64 = 256 << 10;
    let Some((_, gpu)) = engine() else { return };
    let driver = Driver::new();
    driver.use_primary(&*gpu);
    let mut options = Options::default();
    options.slot_size = SLOT;
    options.segment_size = 64 << 10;
    let engine = Engine::new(options).unwrap();
    engine.add_device(&gpu).unwrap();
    let len = usize::try_from(300 * SLOT).unwrap();
    let (_folder, path, bytes) = file(len);
    let opened = engine.open(&path).unwrap();
    let stream = driver.create_stream(1);
    warm_up(&engine, gpu.id(), &opened, stream, len);
    let gate = gate(&driver);
    let buffer = engine.allocate(gpu.id(), len as u64).unwrap();
    driver.wait_for_one(stream, gate.1);
    let is_back = AtomicBool::new(false);
    let (transfer, took) = thread::scope(|scope| {
        let number = &gate as *const Pinned<'_> as usize;
        let is_back = &is_back;
        scope.spawn(move || {
            // A call that blocks waits for the stream, which waits for this.
            let start = Instant::now();
            while !is_back.load(Ordering::Relaxed) && start.elapsed() < Duration::from_secs(20) {
                thread::sleep(Duration::from_millis(10));
            }
            // SAFETY: the scope ends before the gate.
            unsafe { (*(number as *const Pinned<'_>)).open() };
        });
        let start = Instant::now();
        let transfer = start_read(&opened, stream, buffer);
        let took = start.elapsed();
        is_back.store(true, Ordering::Relaxed);
        (transfer, took)
    });
    println!("300 slots' worth were queued in {took:?}");
    assert!(took < Duration::from_secs(5), "the call waited for the stream: {took:?}");
    let (end, buffer) = transfer.wait();
    assert_eq!(end.unwrap().bytes, len as u64);
    let mut got = vec![0; len];
    buffer.unwrap().download(0, &mut got).unwrap();
    assert!(got == bytes);
    driver.synchronize(stream);
    driver.destroy_stream(stream);
    driver.pop();
}
