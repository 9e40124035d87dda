//! All bars, as data.

use forebay::units::{GIB, MIB};

use super::judge::Check;

/// A bar: what it measures, and its bounds.
#[derive(Debug)]
pub(super) struct Bar {
    pub(super) name: &'static str,
    pub(super) on: On,
    /// The compared commands; a round runs every side.
    pub(super) sides: &'static [Side],
    /// The loads of all sides; empty if the sides name theirs.
    pub(super) loads: &'static [Load],
    /// Milliseconds of a sample.
    pub(super) time_ms: u32,
    /// Rounds that count, after a discarded round.
    pub(super) rounds: usize,
    pub(super) checks: &'static [Check],
}

/// Where the files are.
#[derive(Debug, Clone, Copy)]
pub(super) enum On {
    /// A file of this many bytes in the scratch folder.
    Scratch(u64),
    /// A file of this many bytes on every drive; the drives' rates are in bytes per second.
    Drives(u64, &'static [u64]),
    /// A file of this many bytes that btrfs stripes over such drives.
    Striped(u64, &'static [u64]),
}

/// A name, and the words of a command that reads or writes the files.
#[derive(Debug)]
pub(super) enum Side {
    /// Arguments of `forebay bench`, and variables.
    Bench(&'static str, &'static str),
    /// `fio` with `io_uring` and O_DIRECT.
    Fio,
}

/// Requests of equal size.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    pub(super) size: &'static str,
    pub(super) depth: u32,
    /// `sequential` or `random`.
    pub(super) order: &'static str,
}

const fn load(size: &'static str, depth: u32, order: &'static str) -> Load {
    Load { size, depth, order }
}

/// Bytes per second of a capped and of a slow drive.
const RATE: u64 = 200_000_000;
const SLOW: u64 = RATE / 4;

const FOREBAY: Side = Side::Bench("forebay", "--method forebay");
const URING: Side = Side::Bench("io-uring", "--method io-uring");
const DEEP: [Load; 4] = [
    load("1M", 8, "sequential"),
    load("1M", 16, "sequential"),
    load("1M", 32, "sequential"),
    load("1M", 64, "sequential"),
];

/// Every bar, in execution order.
pub(super) const BARS: &[Bar] = &[
    Bar {
        name: "host-resident",
        on: On::Scratch(GIB),
        sides: &[
            Side::Bench("forebay", "--method forebay --cache warm --direction read"),
            Side::Bench(
                "read()",
                "--method standard --cache warm --block-size 64M --threads 1,2,4",
            ),
        ],
        loads: &[],
        time_ms: 1000,
        rounds: 9,
        checks: &[Check::Rate(0.97)],
    },
    Bar {
        name: "host-direct-1M",
        on: On::Scratch(GIB),
        sides: &[FOREBAY, Side::Fio],
        loads: &DEEP,
        time_ms: 1000,
        rounds: 5,
        checks: &[Check::Rate(0.97)],
    },
    Bar {
        name: "host-write",
        on: On::Scratch(2 * GIB),
        sides: &[
            Side::Bench("forebay", "--method forebay --direction write --cache cold --overwrite"),
            Side::Bench("page cache", "--route cached --direction write --cache cold --overwrite"),
            Side::Bench(
                "O_DIRECT",
                "--method io-uring --direction write --block-size 1M --depth 8,32 --overwrite",
            ),
        ],
        loads: &[],
        time_ms: 1000,
        rounds: 5,
        checks: &[Check::Rate(0.95)],
    },
    Bar {
        name: "host-random-small",
        on: On::Scratch(GIB),
        sides: &[FOREBAY, Side::Fio],
        loads: &[
            load("4K", 1, "random"),
            load("4K", 8, "random"),
            load("4K", 32, "random"),
            load("64K", 1, "random"),
            load("64K", 8, "random"),
            load("64K", 32, "random"),
        ],
        time_ms: 1000,
        rounds: 9,
        checks: &[Check::RateOfEach(0.97), Check::P99OfEach(1.2)],
    },
    Bar {
        name: "pread-direct-1M",
        on: On::Scratch(GIB),
        sides: &[
            Side::Bench(
                "pread",
                "FOREBAY_RING=pread --method forebay --cache cold --direction read",
            ),
            Side::Bench(
                "uring",
                "FOREBAY_RING=uring --method forebay --cache cold --direction read",
            ),
        ],
        loads: &[],
        time_ms: 1000,
        rounds: 9,
        checks: &[Check::Rate(0.95)],
    },
    Bar {
        name: "idle",
        on: On::Scratch(16 * MIB),
        sides: &[Side::Bench("forebay", "--block-size 4K --depth 1 --rate 20")],
        loads: &[],
        time_ms: 3000,
        rounds: 3,
        checks: &[Check::Cores(0.02)],
    },
    Bar {
        name: "drives-equal",
        on: On::Drives(384 * MIB, &[RATE; 4]),
        sides: &[Side::Bench("forebay", "--block-size 1M")],
        loads: &[],
        time_ms: 2000,
        rounds: 3,
        checks: &[Check::Sum(0.97)],
    },
    Bar {
        name: "drives-unequal",
        on: On::Drives(384 * MIB, &[RATE, SLOW, RATE, SLOW]),
        sides: &[Side::Bench("forebay", "--block-size 1M")],
        loads: &[],
        time_ms: 2000,
        rounds: 3,
        checks: &[Check::Sum(0.97)],
    },
    Bar {
        name: "drives-striped",
        on: On::Striped(1536 * MIB, &[RATE; 4]),
        sides: &[Side::Bench("forebay", "--block-size 4M --depth 8")],
        loads: &[],
        time_ms: 2000,
        rounds: 3,
        checks: &[Check::AtLeast(0.97 * 8e8)],
    },
    Bar {
        name: "sweep-capped",
        on: On::Drives(256 * MIB, &[RATE]),
        sides: &[URING, Side::Fio],
        loads: &[
            load("1M", 4, "sequential"),
            load("128K", 16, "sequential"),
            load("4K", 8, "random"),
        ],
        time_ms: 2000,
        rounds: 3,
        checks: &[Check::RatesAgree(0.05)],
    },
    Bar {
        name: "sweep-latency",
        on: On::Scratch(GIB),
        sides: &[URING, Side::Fio],
        loads: &[load("4K", 1, "random"), load("4K", 16, "random"), load("128K", 8, "sequential")],
        time_ms: 1000,
        rounds: 9,
        checks: &[Check::RatesAgree(0.05), Check::MediansAgree(0.10)],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<&str> = BARS.iter().map(|bar| bar.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), BARS.len());
    }
}
