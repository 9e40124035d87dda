//! The quantities of a sample: their names, their units, and where a record has them. Pure.

use super::super::numbers::{count_text, digits, percent, time_text};
use crate::power::result::Part;
use crate::results::{Measured, Share};

/// A measured quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// Bytes per second.
    Rate,
    /// I/Os per second.
    Iops,
    /// The mean latency in seconds.
    Mean,
    /// The median latency.
    P50,
    /// The 90th percentile.
    P90,
    /// The 99th percentile.
    P99,
    /// The 99.9th percentile.
    P999,
    /// The longest.
    Max,
    /// Processor seconds for 1e9 bytes.
    CpuCost,
    /// Busy cores, in the program.
    CpuUser,
    /// Busy cores, in the kernel.
    CpuSystem,
    /// Bytes per second of the slowest of several GPUs.
    SlowestGpu,
    /// Seconds until the first thread of several GPUs was done.
    FirstDone,
    /// Seconds until the last was done.
    LastDone,
    /// Power of a part of the machine.
    Watts(Part),
    /// Its energy for 1e9 bytes.
    Joules(Part),
}

/// The unit of a quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Rate,
    Count,
    Seconds,
    Share,
    Other,
}

impl Metric {
    /// All, in the order of columns.
    pub const ALL: [Self; 24] = [
        Self::Rate,
        Self::Iops,
        Self::Mean,
        Self::P50,
        Self::P90,
        Self::P99,
        Self::P999,
        Self::Max,
        Self::CpuCost,
        Self::CpuUser,
        Self::CpuSystem,
        Self::SlowestGpu,
        Self::FirstDone,
        Self::LastDone,
        Self::Watts(Part::Gpu),
        Self::Watts(Part::Package),
        Self::Watts(Part::Dram),
        Self::Watts(Part::Platform),
        Self::Watts(Part::Server),
        Self::Joules(Part::Gpu),
        Self::Joules(Part::Package),
        Self::Joules(Part::Dram),
        Self::Joules(Part::Platform),
        Self::Joules(Part::Server),
    ];

    /// The compared quantities, with their names on the command line.
    pub const COMPARED: [(&str, Self); 12] = [
        ("throughput", Self::Rate),
        ("iops", Self::Iops),
        ("mean", Self::Mean),
        ("p50", Self::P50),
        ("p90", Self::P90),
        ("p99", Self::P99),
        ("p99.9", Self::P999),
        ("max", Self::Max),
        ("cpu", Self::CpuCost),
        ("gpu-energy", Self::Joules(Part::Gpu)),
        ("package-energy", Self::Joules(Part::Package)),
        ("server-energy", Self::Joules(Part::Server)),
    ];

    const fn facts(self) -> (&'static str, &'static str, &'static str, Unit) {
        match self {
            Self::Rate => ("throughput", "GB/s", "bytes_per_second", Unit::Rate),
            Self::Iops => ("IOPS", "IOPS", "iops", Unit::Count),
            Self::Mean => ("mean latency", "mean", "latency_mean_s", Unit::Seconds),
            Self::P50 => ("p50 latency", "p50", "latency_p50_s", Unit::Seconds),
            Self::P90 => ("p90 latency", "p90", "latency_p90_s", Unit::Seconds),
            Self::P99 => ("p99 latency", "p99", "latency_p99_s", Unit::Seconds),
            Self::P999 => ("p99.9 latency", "p99.9", "latency_p99_9_s", Unit::Seconds),
            Self::Max => ("max latency", "max", "latency_max_s", Unit::Seconds),
            Self::CpuCost => ("CPU cost", "CPU s/GB", "cpu_s_per_gb", Unit::Other),
            Self::CpuUser => ("CPU user", "CPU user", "cpu_user_share", Unit::Share),
            Self::CpuSystem => ("CPU system", "CPU sys", "cpu_system_share", Unit::Share),
            Self::SlowestGpu => {
                ("slowest GPU", "slowest", "slowest_gpu_bytes_per_second", Unit::Rate)
            }
            Self::FirstDone => ("first GPU done", "first done", "first_done_s", Unit::Seconds),
            Self::LastDone => ("last GPU done", "last done", "last_done_s", Unit::Seconds),
            Self::Watts(Part::Gpu) => ("GPU power", "GPU W", "gpu_watts", Unit::Other),
            Self::Watts(Part::Package) => ("CPU power", "CPU W", "package_watts", Unit::Other),
            Self::Watts(Part::Dram) => ("memory power", "memory W", "dram_watts", Unit::Other),
            Self::Watts(Part::Platform) => {
                ("platform power", "platform W", "platform_watts", Unit::Other)
            }
            Self::Watts(Part::Server) => ("server power", "server W", "server_watts", Unit::Other),
            Self::Watts(_) => ("command's power", "command W", "command_watts", Unit::Other),
            Self::Joules(Part::Gpu) => ("GPU energy", "GPU J/GB", "gpu_joules_per_gb", Unit::Other),
            Self::Joules(Part::Package) => {
                ("CPU energy", "CPU J/GB", "package_joules_per_gb", Unit::Other)
            }
            Self::Joules(Part::Dram) => {
                ("memory energy", "memory J/GB", "dram_joules_per_gb", Unit::Other)
            }
            Self::Joules(Part::Platform) => {
                ("platform energy", "platform J/GB", "platform_joules_per_gb", Unit::Other)
            }
            Self::Joules(Part::Server) => {
                ("server energy", "server J/GB", "server_joules_per_gb", Unit::Other)
            }
            Self::Joules(_) => {
                ("command's energy", "command J/GB", "command_joules_per_gb", Unit::Other)
            }
        }
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.facts().0
    }

    /// Its name in the head of a column, with the unit if the cells lack it.
    #[must_use]
    pub const fn heading(self) -> &'static str {
        self.facts().1
    }

    /// Its name for programs, with the unit of the numbers.
    #[must_use]
    pub const fn key(self) -> &'static str {
        self.facts().2
    }

    /// A value for people.
    #[must_use]
    pub fn text(self, value: f64) -> String {
        match self.facts().3 {
            Unit::Rate => digits(value * 1e-9),
            Unit::Count => count_text(value),
            Unit::Seconds => time_text(value),
            Unit::Share => percent(value),
            Unit::Other => digits(value),
        }
    }

    /// Whether more of it is better.
    #[must_use]
    pub const fn more_is_better(self) -> bool {
        matches!(self, Self::Rate | Self::Iops)
    }

    /// The words for better and worse.
    #[must_use]
    pub const fn words(self) -> (&'static str, &'static str) {
        match self.facts().3 {
            Unit::Rate | Unit::Count | Unit::Seconds => ("faster", "slower"),
            Unit::Share | Unit::Other => ("less", "more"),
        }
    }

    /// Its value in a record.
    #[must_use]
    pub fn of(self, measured: &Measured) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "nanoseconds of an I/O")]
        let seconds = |ns: Option<u64>| ns.map(|ns| ns as f64 * 1e-9);
        let latency = measured.latency.as_ref();
        // A report of another tool may have the cost alone.
        let cpu = measured.cpu.as_ref();
        let busy = cpu.filter(|cpu| cpu.user_s + cpu.system_s > 0.0);
        let shares = || measured.shares.iter();
        let least = |of: fn(&Share) -> f64| shares().map(of).min_by(f64::total_cmp);
        let power = measured.power.as_ref().filter(|power| power.seconds > 0.0);
        let value = match self {
            Self::Rate => Some(measured.bytes_per_second),
            Self::Iops => measured.requests_per_second,
            Self::Mean => latency?.mean_ns.map(|mean| mean * 1e-9),
            Self::P50 => seconds(latency?.p50_ns),
            Self::P90 => seconds(latency?.p90_ns),
            Self::P99 => seconds(latency?.p99_ns),
            Self::P999 => seconds(latency?.p99_9_ns),
            Self::Max => seconds(latency?.max_ns),
            Self::CpuCost => cpu?.s_per_gb,
            Self::CpuUser => Some(busy?.user_s / measured.seconds?),
            Self::CpuSystem => Some(busy?.system_s / measured.seconds?),
            Self::SlowestGpu => least(|share| share.bytes_per_second),
            Self::FirstDone => least(|share| share.first_done_s),
            Self::LastDone => shares().map(|share| share.last_done_s).max_by(f64::total_cmp),
            Self::Watts(part) => Some(power?.joules_of(part)? / power?.seconds),
            Self::Joules(part) => {
                let found = measured.joules_per_gb.iter().find(|found| found.part == part);
                found.map(|found| found.per_gb)
            }
        };
        value.filter(|value| value.is_finite())
    }
}
