//! How transfers end and are dropped: steps at their end, handles that are given up, buffers
//! that are taken back.

mod lab;

use std::fs;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use forebay::gpu::Device;
use forebay::gpu::sim::SimDevice;
use forebay::internal::clock::SystemClock;
use forebay::{Buffer, Engine, Error, File, OpenOptions, Operation, Options, Piece, Transfer};
use lab::fuse::{Faults, Fuse, drop_pages};
use lab::{or_skip, pattern, watchdog::Watchdog};

const LEN: usize = (1 << 20) + 345;

/// Far above what the slowest machine needs: only a hang exceeds it.
const BOUND: Duration = Duration::from_secs(60);

fn engine() -> Engine {
    Engine::new(Options::default()).expect("limits that fit")
}

fn hung_file(engine: &Engine) -> Option<(Fuse, File)> {
    let fuse = or_skip(Fuse::new(pattern(1, LEN)))?;
    let file = engine.open_with(fuse.path(), &OpenOptions::writing()).expect("it opens");
    drop_pages(&fuse.path());
    fuse.set(|faults| (faults.hang_from, faults.hang_writes) = (Some(0), true));
    Some((fuse, file))
}

fn goes_on(fuse: &Fuse) {
    fuse.set(|faults| (faults.hang_from, faults.hang_writes) = (None, false));
}

fn start_read(engine: &Engine, file: &File) -> Transfer {
    let buffer = engine.allocate_pinned(LEN as u64).expect("memory");
    file.read(buffer).exact().start().expect("a start")
}

/// Counts how often it is run.
fn step(count: &Arc<AtomicUsize>) -> impl FnOnce() + Send + 'static {
    let count = Arc::clone(count);
    move || {
        count.fetch_add(1, Ordering::AcqRel);
    }
}

#[track_caller]
fn wait_until(what: &str, ready: impl Fn() -> bool) {
    let until = Instant::now() + BOUND;
    while !ready() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn each_step_runs_once_at_any_time() {
    let _watchdog = Watchdog::start();
    let engine = engine();
    let Some((fuse, file)) = hung_file(&engine) else { return };
    let transfer = start_read(&engine, &file);
    let count = Arc::new(AtomicUsize::new(0));
    (0..3).for_each(|_| transfer.on_end(step(&count)));
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(count.load(Ordering::Acquire), 0, "it has not ended");
    goes_on(&fuse);
    transfer.wait_for(BOUND).expect("it ends").expect("all bytes");
    wait_until("the steps are run", || count.load(Ordering::Acquire) == 3);
    transfer.on_end(step(&count));
    assert_eq!(count.load(Ordering::Acquire), 4, "at once");
    drop((transfer, file, engine));
    assert_eq!(count.load(Ordering::Acquire), 4);
}

#[test]
fn each_step_runs_once_during_the_end() {
    let _watchdog = Watchdog::start();
    let (engine, folder) = (engine(), tempfile::tempdir_in(".").expect("a folder"));
    let path = folder.path().join("file");
    fs::write(&path, pattern(3, LEN)).expect("room for a file");
    let file = engine.open(&path).expect("the file opens");
    for round in 0..60 {
        let transfer = start_read(&engine, &file);
        let (count, barrier) = (Arc::new(AtomicUsize::new(0)), Barrier::new(4));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    barrier.wait();
                    (0..50).for_each(|_| transfer.on_end(step(&count)));
                });
            }
            if round % 3 == 0 {
                transfer.cancel();
            }
        });
        let end = transfer.wait_for(BOUND).expect("it ends");
        assert!(matches!(end, Ok(_) | Err(Error::Cancelled { .. })), "{end:?}");
        wait_until("the steps are run", || count.load(Ordering::Acquire) >= 200);
        assert_eq!(count.load(Ordering::Acquire), 200);
    }
}

#[test]
fn steps_are_run_whatever_the_end_and_see_it() {
    let _watchdog = Watchdog::start();
    let engine = engine();
    let Some((fuse, file)) = hung_file(&engine) else { return };
    for cancels in [false, true] {
        fuse.set(|faults| (faults.hang_from, faults.fail_at) = (Some(0), Some(5)));
        let transfer = Arc::new(start_read(&engine, &file));
        let (count, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        transfer.on_end(step(&count));
        let (of, saw) = (Arc::clone(&transfer), Arc::clone(&seen));
        transfer.on_end(move || saw.store(of.is_done(), Ordering::Release));
        if cancels {
            transfer.cancel();
        }
        fuse.set(|faults| faults.hang_from = None);
        match transfer.wait_for(BOUND).expect("it ends") {
            Err(Error::Cancelled { .. }) if cancels => {}
            Err(Error::Io { .. }) if !cancels => {}
            other => panic!("{other:?}"),
        }
        wait_until("the steps are run", || seen.load(Ordering::Acquire));
        assert_eq!(count.load(Ordering::Acquire), 1);
    }
}

#[test]
fn a_step_that_panics_harms_no_other() {
    let _watchdog = Watchdog::start();
    let engine = engine();
    let Some((fuse, file)) = hung_file(&engine) else { return };
    let transfers: Vec<_> = (0..4).map(|_| start_read(&engine, &file)).collect();
    let count = Arc::new(AtomicUsize::new(0));
    for transfer in &transfers {
        transfer.on_end(|| panic!("a step of a test that panics"));
        transfer.on_end(step(&count));
    }
    goes_on(&fuse);
    for transfer in transfers {
        transfer.wait_for(BOUND).expect("it ends").expect("all bytes");
    }
    wait_until("the steps are run", || count.load(Ordering::Acquire) == 4);
    start_read(&engine, &file).wait().0.expect("its threads are there");
}

/// Runs a future as a minimal executor does: polls it again only after a wake-up.
fn block_on<F: Future>(future: F) -> F::Output {
    let (mut future, notify) = (pin!(future), Arc::new(Notify(std::thread::current())));
    let waker = Waker::from(notify);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        std::thread::park_timeout(BOUND);
    }
}

struct Notify(std::thread::Thread);

impl Wake for Notify {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[test]
fn transfers_are_awaited() {
    let _watchdog = Watchdog::start();
    let engine = engine();
    let Some((fuse, file)) = hung_file(&engine) else { return };
    let mut waiting = start_read(&engine, &file).into_future();
    // Polled by a task that then moves to another one.
    let first = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(first.is_pending(), "the file hangs");
    let gone = Arc::new(AtomicBool::new(false));
    let memory = engine.allocate_pinned(LEN as u64).expect("memory");
    let dropped = file.read(memory.kept_by(SetOnDrop(Arc::clone(&gone)))).start();
    drop(dropped.expect("a start").into_future());
    std::thread::scope(|scope| {
        let end = scope.spawn(|| block_on(waiting));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!end.is_finished(), "it has not ended");
        goes_on(&fuse);
        let (outcome, buffer) = end.join().expect("no panic");
        assert_eq!(outcome.expect("all bytes").bytes, LEN as u64);
        assert!(buffer.expect("it comes back").as_slice() == Some(&pattern(1, LEN)[..]));
    });
    wait_until("the memory is given back", || gone.load(Ordering::Acquire));
    // Small and resident, of many pieces, and with an error.
    let memory = || engine.allocate_pinned(100).expect("memory");
    let (pieces, small) = ([Piece::new(&file, 7, 100, 0)], file.read(memory()).at(7));
    let (outcome, buffers) = block_on(async {
        let (outcome, buffer) = small.start().expect("a start").await;
        assert!(outcome.expect("all bytes").bytes == 100 && buffer.is_some());
        let beyond = file.read(memory()).at(LEN as u64).exact().start().expect("a start");
        assert!(matches!(beyond.await, (Err(Error::EndOfFile { .. }), Some(_))));
        engine.read_many(&pieces, [memory()]).start().expect("a start").await
    });
    assert!(outcome.expect("all bytes").results.len() == 1);
    assert!(buffers[0].as_slice() == Some(&pattern(1, LEN)[7..107]));
}

#[test]
fn a_transfer_without_a_handle_continues() {
    let _watchdog = Watchdog::start();
    for keeps_engine in [true, false] {
        let engine = engine();
        let Some((fuse, file)) = hung_file(&engine) else { return };
        let bytes = pattern(7, LEN);
        let mut source = engine.allocate_pinned(LEN as u64).expect("memory");
        source.upload(0, &bytes).expect("an upload");
        let gone = Arc::new(AtomicBool::new(false));
        let source = source.kept_by(SetOnDrop(Arc::clone(&gone)));
        let transfer = file.write(source).start().expect("a start");
        fuse.wait_for_parked(1);
        transfer.detach();
        let kept = keeps_engine.then(|| (engine.clone(), file.clone()));
        drop((engine, file));
        assert!(!gone.load(Ordering::Acquire) && fuse.content() == pattern(1, LEN));
        goes_on(&fuse);
        wait_until("all is written", || fuse.content() == bytes);
        wait_until("the memory is given back", || gone.load(Ordering::Acquire));
        drop(kept);
    }
}

/// Says when it is dropped.
struct SetOnDrop(Arc<AtomicBool>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn a_buffer_is_taken_back_once() {
    let _watchdog = Watchdog::start();
    let engine = engine();
    let Some((fuse, file)) = hung_file(&engine) else { return };
    let transfer = start_read(&engine, &file);
    assert!(transfer.reclaim().is_empty(), "it is on its way");
    goes_on(&fuse);
    transfer.wait_for(BOUND).expect("it ends").expect("all bytes");
    let back: Vec<Buffer> = transfer.reclaim();
    assert_eq!(back.len(), 1);
    assert!(back[0].as_slice() == Some(&pattern(1, LEN)[..]));
    assert!(transfer.reclaim().is_empty());
    let (end, none) = transfer.wait();
    assert!(end.is_ok() && none.is_none());

    // Of several threads one has it.
    let transfer = start_read(&engine, &file);
    transfer.wait_for(BOUND).expect("it ends").expect("all bytes");
    let count = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| count.fetch_add(transfer.reclaim().len(), Ordering::AcqRel));
        }
    });
    assert_eq!(count.load(Ordering::Acquire), 1);

    // Of several buffers all, in their order; after an error as well.
    let memory = |len: u64| engine.allocate_pinned(len).expect("memory");
    let pieces = [Piece::new(&file, 0, 100, 0), Piece::new(&file, 9, 50, 0).to(1)];
    let buffers = vec![memory(100), memory(50)];
    let many = engine.read_many(&pieces, buffers).start();
    let many = many.expect("a start");
    many.transfer().cancel();
    let end = many.transfer().wait_for(BOUND).expect("it ends");
    assert!(matches!(end, Ok(_) | Err(Error::Cancelled { .. })), "{end:?}");
    let lens: Vec<_> = many.transfer().reclaim().iter().map(Buffer::len).collect();
    assert_eq!(lens, [100, 50]);
    assert!(many.wait().1.is_empty());
}

#[test]
fn memory_that_a_copy_may_touch_is_neither_reused_nor_freed() {
    let _watchdog = Watchdog::start();
    let engine = engine();
    let config = "sim:bandwidth=300MB/s,lost-after=0".parse().expect("a configuration");
    let device: Arc<dyn Device> = Arc::new(SimDevice::new(0, config, Arc::new(SystemClock::new())));
    engine.add_device(&device).expect("a new device");
    let folder = tempfile::tempdir_in(".").expect("a folder");
    let path = folder.path().join("file");
    fs::write(&path, pattern(3, LEN)).expect("room for a file");
    let file = engine.open(&path).expect("the file opens");
    let gone = Arc::new(AtomicBool::new(false));
    let buffer = engine.allocate(device.id(), LEN as u64).expect("memory");
    let buffer = buffer.kept_by(SetOnDrop(Arc::clone(&gone)));
    let transfer = file.read(buffer).exact().start().expect("a start");
    let end = transfer.wait_for(BOUND).expect("it ends");
    assert!(matches!(end, Err(Error::CopyNotOver { .. })), "{end:?}");
    assert!(transfer.reclaim().is_empty());
    drop((transfer, file, engine));
    assert!(!gone.load(Ordering::Acquire), "the owner would free it");
}

/// A file system may report only at the close of a file that bytes are lost: NFS a full quota, FUSE
/// what its server answers.
#[test]
fn an_error_of_a_close_is_reported() {
    let _watchdog = Watchdog::start();
    let faults = Faults { closes: true, ..Faults::default() };
    let Some(fuse) = or_skip(Fuse::with(pattern(1, LEN), faults)) else { return };
    let engine = engine();
    let open = || {
        let file = engine.open_with(fuse.path(), &OpenOptions::writing()).expect("it opens");
        file.write(&vec![7; 5000]).run().expect("a write");
        file
    };
    let fails = |errno| fuse.set(|faults| faults.fail_closes = errno);
    for is_shared in [false, true] {
        let (file, other) = (open(), open());
        let clone = is_shared.then(|| file.clone());
        fails(Some(libc::EDQUOT));
        let error = file.close().expect_err("its server has reported it");
        let Error::Io { operation, place, .. } = &error else { panic!("{error:?}") };
        assert_eq!((*operation, &place.path), (Operation::Close, &fuse.path()), "{error:?}");
        assert_eq!(error.errno(), Some(libc::EDQUOT), "{error:?}");
        assert!(error.hint().expect("a hint").contains("free room"), "{error:?}");
        let read_only = engine.open(fuse.path()).expect("it opens");
        read_only.close().expect("nothing was written by it");
        fails(None);
        other.close().expect("nothing is lost");
        if let Some(clone) = clone {
            assert_eq!(clone.read(&mut vec![0; 10]).run().expect("it is open").bytes, 10);
            clone.close().expect("nothing is lost since");
        }
    }
}

/// The descriptor with O_DIRECT is a file of its own to the server.
#[test]
fn an_error_of_the_second_descriptors_close_is_reported() {
    let _watchdog = Watchdog::start();
    let faults = Faults { closes: true, ..Faults::default() };
    let Some(fuse) = or_skip(Fuse::with(pattern(1, LEN), faults)) else { return };
    let engine = engine();
    let file = engine.open_with(fuse.path(), &OpenOptions::writing()).expect("it opens");
    assert_eq!(file.no_direct_io(), None);
    fuse.set(|faults| faults.fail_direct_closes = Some(libc::EIO));
    let error = file.close().expect_err("its server has reported it");
    assert_eq!(error.errno(), Some(libc::EIO), "{error:?}");
}
