//! The default size to move, computed from the machine's resources. Pure.

use forebay::units::{GIB, KIB, MIB};

use crate::report::json::{Cache, Direction};

/// A run should end within 30 s; this is the part that remains after start, scratch and the search
/// for depths.
const SECONDS: f64 = 20.0;
/// Bytes per second of one pass over memory by all cores: a careful guess for small machines.
const MEMORY_RATE: f64 = 4e9;
/// Minimum size, unless there is too little room.
const LEN_MIN: u64 = 4 * MIB;
/// Minimum size even with too little room.
const LEN_LAST: u64 = 64 * KIB;
/// Maximum size.
const LEN_MAX: u64 = 8 * GIB;

/// The resources of the machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Means {
    /// Available host memory. It may grow later, so it limits only the default size.
    pub memory: u64,
    /// Room for scratch; `None` if no scratch is made.
    pub room: Option<u64>,
    /// Memory that is free on the GPU.
    pub gpu_memory: Option<u64>,
    /// Bytes per second of the storage, roughly.
    pub storage_rate: f64,
    /// Whether the host's memory is the target.
    pub host_target: bool,
}

/// Passes over the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Passes {
    /// To or from the storage, for each repeat.
    pub storage: u32,
    /// In memory, for each repeat.
    pub memory: u32,
    /// To the storage, once.
    pub making: u32,
}

impl Passes {
    /// The cost of a run over `directions` and `caches` with `ways` methods and `others` further
    /// routes of the engine.
    #[must_use]
    pub fn of(
        directions: &[Direction],
        caches: &[Cache],
        ways: u32,
        others: u32,
        scratch: u32,
    ) -> Self {
        // Each storage limit tries three depths, and there are three such limits.
        let mut passes = Self { making: scratch + 9, ..Self::default() };
        let ways = ways + others;
        for direction in directions {
            for cache in caches {
                // Each move is prepared, made and checked in memory.
                passes.memory += 3 * ways;
                passes.storage += match (direction, cache) {
                    // Each method, two limits. Two of the methods have queue depth 1, and reach
                    // about half of a slow drive's rate.
                    (Direction::Read, Cache::Cold) => ways + 4,
                    // All methods read a file that is cached once. The other routes read from the
                    // drive each time.
                    (Direction::Read, Cache::Resident) => 1 + others,
                    // Each method writes and is read back; one limit.
                    (Direction::Write, Cache::Cold) => 2 * ways + 1,
                    // Each method is read in, written out before the check, and read back.
                    (Direction::Write, Cache::Resident) => 3 * ways,
                };
            }
        }
        passes
    }
}

/// A size that suits the machine: a power of two.
#[must_use]
pub fn suitable(means: Means, passes: Passes, repeats: u32) -> u64 {
    let each = f64::from(passes.storage) / means.storage_rate.max(1.0)
        + f64::from(passes.memory) / MEMORY_RATE;
    let once = f64::from(passes.making) / means.storage_rate.max(1.0);
    let timely = SECONDS / (f64::from(repeats) * each + once).max(1e-12);
    let mut len = LEN_MAX;
    // Target, source and two files in the page cache; half the memory stays free for other
    // processes.
    let copies = if means.host_target { 8 } else { 6 };
    let room = means.room.map_or(LEN_MAX, |room| room / 4);
    let gpu = means.gpu_memory.map_or(LEN_MAX, |memory| memory / 2);
    let bound = (means.memory / copies).min(room).min(gpu);
    while len > LEN_LAST && (len > bound || (len > LEN_MIN && as_float(len) > timely)) {
        len /= 2;
    }
    len
}

#[expect(clippy::cast_precision_loss, reason = "sizes are compared with estimates")]
fn as_float(len: u64) -> f64 {
    len as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [Direction; 2] = [Direction::Read, Direction::Write];
    const ALL: [Cache; 2] = [Cache::Cold, Cache::Resident];

    fn means() -> Means {
        Means {
            memory: 100 * GIB,
            room: Some(1000 * GIB),
            gpu_memory: None,
            storage_rate: 3e9,
            host_target: true,
        }
    }

    #[test]
    fn a_slow_disk_gets_less() {
        let passes = Passes::of(&BOTH, &ALL, 3, 1, 2);
        let fast = suitable(means(), passes, 3);
        let slow = suitable(Means { storage_rate: 150e6, ..means() }, passes, 3);
        assert!(slow < fast && fast.is_power_of_two(), "{slow} {fast}");
        let seconds = |len: u64, rate: f64| {
            as_float(len) / rate * f64::from(3 * passes.storage + passes.making)
        };
        assert!(seconds(slow, 150e6) <= SECONDS, "{slow}");
        // Even the slowest disk is measured.
        assert_eq!(suitable(Means { storage_rate: 1e3, ..means() }, passes, 3), LEN_MIN);
    }

    #[test]
    fn no_means_are_exceeded() {
        let passes = Passes::of(&[Direction::Read], &[Cache::Resident], 3, 0, 1);
        assert!(suitable(Means { storage_rate: 1e12, ..means() }, passes, 3) >= GIB);
        for (means, bound) in [
            (Means { memory: GIB, ..means() }, GIB / 8),
            (Means { room: Some(GIB), ..means() }, GIB / 4),
            (Means { room: Some(40 * MIB), ..means() }, 10 * MIB),
            (Means { gpu_memory: Some(GIB), ..means() }, GIB / 2),
        ] {
            assert!(suitable(means, passes, 3) <= bound, "{means:?}");
        }
        let nothing = Means { memory: 0, room: Some(0), ..means() };
        assert_eq!(suitable(nothing, passes, 3), LEN_LAST);
    }
}
