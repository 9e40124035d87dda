//! By which of a provider's interfaces requests are handed over: calls that wait, from the pool, or
//! a lane that takes many at once.
//!
//! Each is a queue of its own, whose tuner finds out what it reaches. The first that has not been
//! measured serves, and when all have been, the fastest does; where slots have reached much more on
//! the same drive, nothing goes straight. What was found is remembered like the depths of drives.

use std::sync::Arc;

use super::Engine;
use crate::file::{Choice, Handle, LaneKind, Port};
use crate::gpu::DeviceInfo;
use crate::queue::Direction;
use crate::topology::{Below, Queue};

/// What a lane must reach to be preferred to calls, which need no thread of their own: thousandths
/// of what these do.
const LANE_GAINS: u64 = 1050;

/// What slots must reach to be preferred to what costs no memory bandwidth and no processor's
/// time: thousandths of the fastest interface's. Their rate ends in the host's memory and may be
/// more than the GPU's link takes.
const SLOTS_GAIN: u64 = 2000;

/// A GPU's name for what is remembered: its number is another one's in another process.
fn named(gpu: &DeviceInfo) -> String {
    if gpu.uuid.is_empty() { gpu.id.to_string() } else { gpu.uuid.clone() }
}

/// Whether the library serves batches and streams by way of the host on a file's system, whatever
/// it was told (its reference, "cuFile Compatibility Mode"). WekaFS is one of those without a name
/// here.
fn copies_lanes(file: &Handle) -> bool {
    matches!(file.file_system(), "gpfs" | "beegfs" | "unknown")
}

/// The same of writes.
pub(super) fn copies_writes(file: &Handle) -> bool {
    matches!(file.file_system(), "gpfs" | "unknown")
}

impl Engine {
    /// The queue for what goes straight between a file's drive and a GPU.
    ///
    /// # Errors
    /// Where it was not `demanded`: slots are faster.
    pub(super) fn straight_queue(
        &self,
        file: &Arc<Handle>,
        (port, gpu): (&Arc<dyn Port>, &DeviceInfo),
        direction: Direction,
        demanded: bool,
    ) -> Result<usize, String> {
        let writes = direction == Direction::Write;
        let choice = file
            .choices()
            .of(port.gpu(), writes, || self.choose_interface(file, (port, gpu), direction));
        if choice.slots_are_faster && !demanded {
            return Err("slots have been seen to reach more on this drive".into());
        }
        Ok(choice.queue)
    }

    fn choose_interface(
        &self,
        file: &Arc<Handle>,
        (port, gpu): (&Arc<dyn Port>, &DeviceInfo),
        direction: Direction,
    ) -> Choice {
        let below = self.below(file);
        let reached = |name: &str| self.reached(&below.queue.id.by(name), direction);
        let gpu = named(gpu);
        let name = |interface: &str| format!("cufile-{interface}-{gpu}");
        let calls = name("calls");
        let mut best = (self.interface(&below, file, &calls), reached(&calls));
        let kinds: &[LaneKind] = if copies_lanes(file) { &[] } else { &LaneKind::ALL };
        for &kind in kinds {
            let Some(rate) = best.1 else { break };
            let name = name(kind.name());
            let queue = self.interface(&below, file, &name);
            if !self.give_lane(queue, || port.lane(kind)) {
                continue;
            }
            match reached(&name) {
                None => best = (queue, None),
                Some(lane) if lane.is_at_least(LANE_GAINS, rate) => best = (queue, Some(lane)),
                Some(_) => {}
            }
        }
        let slots = self.reached(&below.queue.id, direction);
        let slots_are_faster = match (best.1, slots) {
            (Some(rate), Some(slots)) => slots.is_at_least(SLOTS_GAIN, rate),
            _ => false,
        };
        Choice { queue: best.0, slots_are_faster }
    }

    /// A queue beside that of the drive.
    fn interface(&self, below: &Below, file: &Handle, name: &str) -> usize {
        let queue = Queue { id: below.queue.id.by(name), ..below.queue.clone() };
        self.queue(&queue, below, file).index
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{File, OpenOptions, RequestOptions};
    use crate::gpu::{DeviceId, GpuSelector};
    use crate::options::Options;
    use crate::plan::Route;
    use crate::tune::{Learned, Rate};

    const LEN: usize = (6 << 20) + 100;
    const CALLS: &str = "calls";

    struct Rig {
        engine: Engine,
        gpu: DeviceId,
        uuid: String,
        file: File,
        bytes: Vec<u8>,
        _folder: tempfile::TempDir,
    }

    impl Rig {
        fn new(gpu: &str) -> Option<Self> {
            let folder = tempfile::tempdir().unwrap();
            let options =
                Options { segment_size: 256 << 10, remember: false, ..Options::default() };
            let engine = Engine::new(options).unwrap();
            engine.inner.drives.remember_in(folder.path().join("cache"));
            let gpu: GpuSelector = gpu.parse().unwrap();
            let gpu = engine.device(&gpu).unwrap().unwrap();
            let (gpu, uuid) = (gpu.id(), named(gpu.info()));
            let path = folder.path().join("data");
            let bytes: Vec<u8> = (0..=250).cycle().take(LEN).collect();
            std::fs::write(&path, &bytes).unwrap();
            let file = engine.open_with(&path, &OpenOptions::writing()).unwrap();
            if let Some(reason) = file.no_direct_io() {
                println!("skipped: no O_DIRECT in the temporary folder: {reason}");
                return None;
            }
            Some(Self { engine, gpu, uuid, file, bytes, _folder: folder })
        }

        /// Has an interface, or slots, be known for a rate.
        fn reaches(&self, name: Option<&str>, rate: u64) {
            let id = self.engine.below(self.file.shared_handle()).queue.id.clone();
            let uuid = &self.uuid;
            let id = name.map_or(id.clone(), |name| id.by(&format!("cufile-{name}-{uuid}")));
            let learned = Learned { depth: 8, size: 128 << 10, rate: Rate(rate) };
            let ways = [Direction::Read, Direction::Write];
            ways.iter().for_each(|way| self.engine.inner.drives.believe(&id, *way, learned));
        }

        /// The file, for which nothing was chosen yet.
        fn open(&self) -> File {
            self.engine.open_with(self.file.path(), &OpenOptions::writing()).unwrap()
        }

        /// The file to the GPU and back, straight, and how many lanes there are then.
        fn moves(&self) -> usize {
            let file = self.open();
            let straight = RequestOptions::by_route(Route::Direct);
            let whole = LEN / 4096 * 4096;
            let mut buffer = self.engine.allocate(self.gpu, whole as u64 + 4096).unwrap();
            for _ in 0..3 {
                buffer.fill(0xee).unwrap();
                file.read_with(0, &mut buffer, &straight).unwrap();
                let mut got = vec![0; whole + 4096];
                buffer.download(0, &mut got).unwrap();
                assert!(got[..LEN] == self.bytes && got[LEN..].iter().all(|byte| *byte == 0xee));
                let (part, rest) = buffer.split_at(whole as u64);
                file.write_with(4096, &part, &straight).unwrap();
                let there = std::fs::read(self.file.path()).unwrap();
                let at = 4096 + whole;
                assert!(there[..4096] == self.bytes[..4096]);
                assert!(there[4096..at] == self.bytes[..whole]);
                std::fs::write(self.file.path(), &self.bytes).unwrap();
                drop((part, rest));
                buffer = self.engine.allocate(self.gpu, whole as u64 + 4096).unwrap();
            }
            self.engine.inner.drives.lanes()
        }
    }

    #[test]
    fn each_interface_is_measured_and_the_fastest_stays() {
        let Some(rig) = Rig::new("sim:cufile") else { return };
        assert_eq!(rig.moves(), 0, "nothing is known yet: calls");
        rig.reaches(Some(CALLS), 1_000_000_000);
        assert_eq!(rig.moves(), 1, "batches are to be measured");
        rig.reaches(Some(LaneKind::Batch.name()), 2_000_000_000);
        assert_eq!(rig.moves(), 2, "streams are to be measured");
        rig.reaches(Some(LaneKind::Streams.name()), 1_000_000_000);
        assert_eq!(rig.moves(), 2);
    }

    #[test]
    fn a_lane_whose_answers_are_short_loses_nothing() {
        for play in ["sim:cufile=short,seed=3", "sim:cufile=short,seed=4"] {
            let Some(rig) = Rig::new(play) else { return };
            rig.reaches(Some(CALLS), 1_000_000_000);
            assert_eq!(rig.moves(), 1, "{play}");
            rig.reaches(Some(LaneKind::Batch.name()), 2_000_000_000);
            assert_eq!(rig.moves(), 2, "{play}");
        }
    }

    #[test]
    fn a_lane_that_is_refused_gives_over_to_calls() {
        let Some(rig) = Rig::new("sim:cufile=calls-only") else { return };
        rig.reaches(Some(CALLS), 1_000_000_000);
        rig.moves();
        rig.moves();
        for kind in LaneKind::ALL {
            rig.reaches(Some(kind.name()), 9_000_000_000);
        }
        rig.moves();
        let mut known = rig.engine.inner.drives.refused_lanes(&rig.engine);
        known.sort_unstable();
        assert_eq!(known, [false, false, true, true], "the drive, calls, and both lanes");
    }

    #[test]
    fn a_library_that_fails_is_told_of_by_every_lane() {
        for known in [1, 2] {
            let Some(rig) = Rig::new("sim:cufile=fail") else { return };
            rig.reaches(Some(CALLS), 1_000_000_000);
            if known == 2 {
                rig.reaches(Some(LaneKind::Batch.name()), 1_000_000_000);
            }
            let mut buffer = rig.engine.allocate(rig.gpu, LEN as u64).unwrap();
            let straight = RequestOptions::by_route(Route::Direct);
            let error = rig.open().read_with(0, &mut buffer, &straight).unwrap_err().to_string();
            assert!(error.contains("IO_ERROR (5044)"), "{known}: {error}");
        }
    }

    #[test]
    fn slots_that_are_much_faster_are_taken_unless_it_is_demanded() {
        let Some(rig) = Rig::new("sim:cufile") else { return };
        rig.reaches(Some(CALLS), 1_000_000_000);
        for kind in LaneKind::ALL {
            rig.reaches(Some(kind.name()), 1_000_000_000);
        }
        rig.reaches(None, 1_900_000_000);
        let read = || {
            rig.file.evict().unwrap();
            let mut buffer = rig.engine.allocate(rig.gpu, LEN as u64).unwrap();
            rig.open().read_with(0, &mut buffer, &RequestOptions::exactly()).unwrap().routes
        };
        let direct = |routes: &[crate::transfer::RouteShare]| {
            routes.iter().any(|share| share.route == Route::Direct)
        };
        if !direct(&read()) {
            return println!("skipped: nothing leaves the page cache here");
        }
        rig.reaches(None, 2_100_000_000);
        assert!(!direct(&read()), "slots are faster by far");
        assert_eq!(rig.moves(), 2, "demanded");
    }
}
