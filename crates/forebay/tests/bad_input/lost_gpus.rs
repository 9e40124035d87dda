//! GPUs that vanish while bytes are on their way: what is theirs ends with an error that names
//! them, what is others' goes on, and no memory is given back that a copy may touch.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use forebay::gpu::Device;
use forebay::gpu::sim::SimDevice;
use forebay::internal::clock::SystemClock;
use forebay::{Buffer, Engine, Error, OpenOptions};
use tempfile::TempDir;

use crate::lab::{pattern, watchdog::Watchdog};
use crate::small_engine;

const LEN: usize = 12_000_001;

const HINT: &str = "restart the process, which can no longer use the GPU; the kernel's log \
    (`dmesg`) may show the cause";

/// An engine with a GPU that will be lost and one that will not, and files.
struct Rig {
    engine: Engine,
    lost: Arc<SimDevice>,
    other: Arc<SimDevice>,
    bytes: Vec<u8>,
    folder: TempDir,
}

impl Rig {
    fn new(settings: &str) -> Self {
        let engine = small_engine(|options| options.arena_size = Some(8 << 20));
        let gpu = |index, settings: &str| {
            let config = settings.parse().expect("a configuration");
            let gpu = Arc::new(SimDevice::new(index, config, Arc::new(SystemClock::new())));
            let shared: Arc<dyn Device> = Arc::clone(&gpu) as _;
            engine.add_device(&shared).expect("a new GPU");
            gpu
        };
        let (lost, other) = (gpu(0, settings), gpu(1, "sim:bandwidth=1GB/s"));
        let (bytes, folder) = (pattern(6, LEN), tempfile::tempdir().expect("a folder"));
        fs::write(folder.path().join("data"), &bytes).expect("room for a file");
        Self { engine, lost, other, bytes, folder }
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn buffer(&self, gpu: &SimDevice, len: usize) -> Buffer {
        self.engine.allocate(gpu.id(), len as u64).expect("memory")
    }

    /// Reads and writes all of a file by way of the other GPU and to host memory.
    fn use_others(&self, copy: &Path) {
        let file = self.engine.open(self.data()).expect("the file opens");
        let (buffer, _) = file.read_to_end(Some(self.other.id())).run().expect("all bytes");
        let mut got = vec![0; LEN];
        buffer.download(0, &mut got).expect("a download");
        assert!(got == self.bytes, "the other GPU");
        let written = self.engine.open_with(copy, &OpenOptions::writing()).expect("a new file");
        written.write(&buffer).run().expect("a write");
        assert!(fs::read(copy).expect("a read") == self.bytes, "written by the other GPU");
        got.fill(0);
        file.read(&mut got).exact().run().expect("all bytes");
        assert!(got == self.bytes, "host memory");
    }

    /// What names the lost GPU and says what to do.
    #[track_caller]
    fn names_it(&self, error: &Error) {
        let message = error.to_string();
        assert!(message.contains(&self.lost.id().to_string()), "{message}");
        assert!(error.hint().is_some_and(|hint| hint.contains("`dmesg`")), "{error:?}");
    }

    /// No call about the lost GPU succeeds or hangs.
    fn is_refused(&self, target: &mut Buffer) {
        let file = self.engine.open_with(self.data(), &OpenOptions::writing()).expect("opens");
        let errors = [
            file.read_to_end(Some(self.lost.id())).run().map(drop),
            self.engine.allocate(self.lost.id(), 100).map(drop),
            file.read(&mut *target).run().map(drop),
            file.write(&*target).run().map(drop),
            target.fill(1),
            target.upload(0, &[1; 100]),
            target.download(0, &mut [0; 100]),
        ];
        for error in errors {
            self.names_it(&error.expect_err("the GPU is gone"));
        }
        assert!(fs::read(self.data()).expect("a read") == self.bytes, "nothing was written");
    }
}

#[test]
fn a_gpu_that_vanishes_harms_no_other() {
    let _watchdog = Watchdog::start();
    // In the first copy, and somewhere among those of several transfers.
    for after in [0, 1, 4, 9] {
        let rig = Rig::new(&format!("sim:bandwidth=300MB/s,lost-after={after}"));
        let file = rig.engine.open(rig.data()).expect("the file opens");
        let mut small = rig.buffer(&rig.lost, 3000);
        let buffers: Vec<_> = (0..6).map(|_| rig.buffer(&rig.lost, LEN)).collect();
        thread::scope(|scope| {
            let others = scope.spawn(|| rig.use_others(&rig.folder.path().join("copy")));
            let start = |buffer| file.read(buffer).exact().start().expect("it is there yet");
            let transfers: Vec<_> = buffers.into_iter().map(start).collect();
            let mut open = 0;
            for transfer in transfers {
                let (result, buffer) = transfer.wait();
                let error = result.expect_err("the GPU vanished");
                rig.names_it(&error);
                match error {
                    // A copy may be under way: neither the call nor we get that memory back.
                    Error::CopyNotOver { place: Some(place), .. } => {
                        assert!(buffer.is_none() && place.path == rig.data(), "{place}");
                        open += 1;
                    }
                    Error::Device { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
            assert!(open > 0, "a copy was in progress");
            others.join().expect("the others go on");
        });
        rig.is_refused(&mut small);
        rig.use_others(&rig.folder.path().join("copy"));
    }
}

#[test]
fn a_gpu_that_vanishes_while_it_is_written_from() {
    let _watchdog = Watchdog::start();
    let rig = Rig::new("sim:bandwidth=300MB/s");
    let mut small = rig.buffer(&rig.lost, 3000);
    let mut source = rig.buffer(&rig.lost, LEN);
    source.fill(7).expect("a fill");
    let path = rig.folder.path().join("written");
    let file = rig.engine.open_with(&path, &OpenOptions::writing()).expect("a new file");
    let writing = file.write(source).start().expect("it is there yet");
    while fs::metadata(&path).expect("the file").len() == 0 {
        thread::yield_now();
    }
    rig.lost.lose();
    let (result, buffer) = writing.wait();
    let error = result.expect_err("the GPU vanished");
    rig.names_it(&error);
    assert_eq!(buffer.is_none(), matches!(error, Error::CopyNotOver { .. }), "{error:?}");
    assert!(fs::read(&path).expect("a read").iter().all(|byte| [0, 7].contains(byte)));
    rig.is_refused(&mut small);
    rig.use_others(&rig.folder.path().join("copy"));
}

#[test]
fn a_gpu_that_vanishes_in_a_small_request_or_before_any() {
    let _watchdog = Watchdog::start();
    for before in [true, false] {
        let rig = Rig::new("sim");
        let file = rig.engine.open_with(rig.data(), &OpenOptions::writing()).expect("it opens");
        let (mut target, mut held) = (rig.buffer(&rig.lost, 3000), rig.buffer(&rig.lost, LEN));
        if !before {
            file.read(&mut target).run().expect("it is there yet");
            file.read(&mut held).run().expect("it is there yet");
        }
        rig.lost.lose();
        rig.is_refused(&mut target);
        rig.names_it(&file.read(&mut held).run().expect_err("the GPU is gone"));
        rig.use_others(&rig.folder.path().join("copy"));
        let error = rig.engine.allocate(rig.lost.id(), 1 << 20).expect_err("the GPU is gone");
        assert_eq!(error.to_string(), format!("cannot allocate 1 MiB on {}", rig.lost.id()));
        assert_eq!(error.hint().as_deref(), Some(HINT));
        // Pinned memory is for those GPUs of the engine that are left.
        let pinned = rig.engine.allocate_pinned(1 << 20).expect("the other GPU takes it");
        assert_eq!(pinned.len(), 1 << 20);
        let (whole, _) = file.read_to_end(None).run().expect("host memory");
        assert!(whole.as_slice() == Some(&rig.bytes[..]));
    }
}
