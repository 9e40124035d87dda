//! The limit of pinned memory, which all paths share.

use std::sync::atomic::AtomicU64;

use forebay_base::clock::SystemClock;
use proptest::prelude::*;

use super::*;
use crate::Error;
use crate::gpu::CallerStream;
use crate::gpu::sim::{SimConfig, SimDevice};
use crate::options::RequestOptions;

const SLOT: u64 = 256 << 10;

/// An engine with this limit and so many GPUs, and a file.
struct Limited {
    engine: Engine,
    gpus: Vec<Arc<SimDevice>>,
    file: File,
    bytes: Vec<u8>,
    /// The limit with all GPUs.
    limit: u64,
    _folder: tempfile::TempDir,
}

/// A path that bytes take.
#[derive(Debug, Clone, Copy)]
enum Way {
    Blocking,
    Started,
    Cold,
    Written,
    All,
    Ordered,
    Copied,
}

impl Limited {
    fn new(limit: u64, gpus: u32) -> Self {
        let watchdog = Duration::from_secs(20);
        let options = Options {
            slot_size: SLOT,
            segment_size: 64 << 10,
            arena_size: Some(limit),
            watchdog,
            ..Options::default()
        };
        let engine = Engine::new(options).unwrap();
        let first = SimDevice::new(0, SimConfig::default(), Arc::new(SystemClock::new()));
        let sibling = |index| Arc::new(first.sibling(index, SimConfig::default()));
        let gpus: Vec<_> = (0..gpus).map(sibling).collect();
        for gpu in &gpus {
            engine.add_device(&(Arc::clone(gpu) as _)).unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..=250).cycle().take(LEN).collect();
        std::fs::write(folder.path().join("data"), &bytes).unwrap();
        let file = engine.open(folder.path().join("data")).unwrap();
        let limit = limit + SLOT * (gpus.len() as u64 - 1);
        Self { engine, gpus, file, bytes, limit, _folder: folder }
    }

    /// Moves bytes from `offset` and checks them. Only the limit is an error.
    fn step(&self, path: Way, gpu: usize, offset: usize, len: usize) -> Result<()> {
        let (gpu, range) = (&self.gpus[gpu % self.gpus.len()], offset..offset + len);
        let mut target = self.engine.allocate(gpu.id(), len as u64).unwrap();
        let (at, options) =
            (offset as u64, RequestOptions { exact: true, ..RequestOptions::default() });
        match path {
            Way::Blocking => drop(self.file.read(&mut target).at(at).exact().run()?),
            Way::Started | Way::Cold => {
                if let Way::Cold = path {
                    let _ = self.file.evict();
                }
                let (ended, back) = self.file.read(target).at(at).options(options).start()?.wait();
                ended?;
                target = back.unwrap();
            }
            Way::Written => {
                target.upload(0, &self.bytes[range.clone()])?;
                let folder = tempfile::tempdir().unwrap();
                let path = folder.path().join("new");
                let new = self.engine.open_with(&path, &OpenOptions::new_file()).unwrap();
                new.write(&target).run()?;
                assert!(std::fs::read(path).unwrap() == self.bytes[range.clone()]);
            }
            Way::All => {
                let each = self.gpus.iter().map(|gpu| self.engine.allocate(gpu.id(), len as u64));
                let mut all: Vec<Buffer> = each.collect::<Result<_>>().unwrap();
                self.file
                    .read_to_all(&mut all)
                    .at(at)
                    .options(options)
                    .while_(&mut || true)
                    .run()?;
                target = all.pop().unwrap();
            }
            Way::Ordered => {
                let stream = gpu.create_stream().unwrap();
                // SAFETY: the stream is destroyed after the transfer.
                let started = unsafe {
                    self.file
                        .read(target)
                        .at(at)
                        .options(options)
                        .on(CallerStream(stream.0))
                        .start()
                };
                let (ended, back) = started?.wait();
                ended?;
                target = back.unwrap();
                gpu.destroy_stream(stream).unwrap();
            }
            Way::Copied => target.upload(0, &self.bytes[range.clone()])?,
        }
        let mut got = vec![0; len];
        target.download(0, &mut got)?;
        assert!(got == self.bytes[range], "{path:?} {offset}+{len}");
        Ok(())
    }
}

const PATHS: [Way; 7] =
    [Way::Blocking, Way::Started, Way::Cold, Way::Written, Way::All, Way::Ordered, Way::Copied];

/// A path, a GPU, and a range. Short ones take cells and lanes.
fn any_step() -> impl Strategy<Value = (Way, usize, usize, usize)> {
    let len = prop_oneof![1..64_usize << 10, 1..LEN / 2];
    (prop::sample::select(&PATHS[..]), 0..3_usize, 0..LEN / 2, len)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    /// The least limit is two slots, and it is set for one GPU. Calls that find no memory wait for
    /// other calls, or use less.
    #[test]
    fn no_path_exceeds_the_limit_or_hangs(
        limit in 2 * SLOT..12 * SLOT,
        gpus in 1_u32..4,
        threads in prop::collection::vec(
            prop::collection::vec(any_step(), 1..6),
            1..5,
        ),
    ) {
        let rig = Limited::new(limit, gpus);
        let refused = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let (rig, refused) = (&rig, &refused);
            for steps in &threads {
                scope.spawn(move || {
                    for &(path, gpu, offset, len) in steps {
                        match rig.step(path, gpu, offset, len) {
                            Err(Error::PinnedLimit { limit, .. }) => {
                                assert!(limit <= rig.limit);
                                refused.fetch_add(1, Ordering::Relaxed);
                            }
                            done => done.unwrap(),
                        }
                    }
                });
            }
        });
        // What the calls held is usable again: each path alone gets memory at any limit.
        for path in PATHS {
            for gpu in 0..rig.gpus.len() {
                rig.step(path, gpu, 1000, LEN / 2).unwrap();
            }
        }
        let most = rig.gpus[0].most_registered();
        prop_assert!(most <= rig.limit, "{most} of {}", rig.limit);
        prop_assert!(rig.engine.statistics().pinned <= most);
        println!("{most} of {}, {} refused", rig.limit, refused.into_inner());
        let Limited { engine, gpus, file, .. } = rig;
        drop((engine, file));
        // A worker that has just ended a transfer may drop the last handle.
        let dropped = Instant::now();
        while gpus[0].registrations() > 0 && dropped.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(1));
        }
        prop_assert_eq!((gpus[0].registrations(), gpus[0].misused()), (0, 0));
    }
}
