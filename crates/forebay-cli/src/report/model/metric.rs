//! The quantities of a sample: their names, their units, and where a record has them. Pure.

use forebay_measure::power::result::Part;
use forebay_measure::results::{Measured, Share};

use super::super::grid::CSV;
use super::super::numbers::{count_text, digits, percent, time_text};

/// A measured quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// Bytes per second.
    Rate,
    /// I/Os per second.
    Iops,
    /// Bytes per second that a block store loaded.
    Loaded,
    /// The share of the blocks of prompts that were loaded.
    HitRate,
    /// Median seconds until the first blocks of a turn were loaded.
    FirstP50,
    /// The 99th percentile of these.
    FirstP99,
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

use Metric::{CpuCost, CpuSystem, CpuUser, FirstDone, FirstP50, FirstP99, HitRate, Iops, Joules};
use Metric::{LastDone, Loaded, Max, Mean, P50, P90, P99, P999, Rate, SlowestGpu, Watts};
use Part::{Dram, Gpu, Package, Platform, Server};

/// A quantity, the rank of its column, its names in text, in the head of a column (with the unit if
/// the cells lack it) and for programs, and its option of `--metric`, if it can be compared.
type Facts = (Metric, u8, &'static str, &'static str, &'static str, &'static str);

/// All, in the order of columns.
const ALL: [Facts; 28] = [
    (Rate, 0, "throughput", "GB/s", "bytes_per_second", "throughput"),
    (Loaded, 1, "loads", "loads", "loaded_bytes_per_second", "loads"),
    (HitRate, 1, "hit rate", "hits", "hit_rate", "hits"),
    (FirstP50, 1, "p50 time to first byte", "TTFB p50", "first_byte_p50_s", "first-p50"),
    (FirstP99, 1, "p99 time to first byte", "TTFB p99", "first_byte_p99_s", "first-p99"),
    (Iops, 3, "IOPS", "IOPS", "iops", "iops"),
    (Mean, 6, "mean latency", "mean", "latency_mean_s", "mean"),
    (P50, 2, "p50 latency", "p50", "latency_p50_s", "p50"),
    (P90, 6, "p90 latency", "p90", "latency_p90_s", "p90"),
    (P99, 2, "p99 latency", "p99", "latency_p99_s", "p99"),
    (P999, 6, "p99.9 latency", "p99.9", "latency_p99_9_s", "p99.9"),
    (Max, 6, "max latency", "max", "latency_max_s", "max"),
    (CpuCost, 4, "CPU cost", "CPU s/GB", "cpu_s_per_gb", "cpu"),
    (CpuUser, 7, "CPU user", "CPU user", "cpu_user_share", ""),
    (CpuSystem, 7, "CPU system", "CPU sys", "cpu_system_share", ""),
    (SlowestGpu, 5, "slowest GPU", "slowest", "slowest_gpu_bytes_per_second", ""),
    (FirstDone, 3, "first GPU done", "first done", "first_done_s", ""),
    (LastDone, 3, "last GPU done", "last done", "last_done_s", ""),
    (Watts(Gpu), 6, "GPU power", "GPU W", "gpu_watts", ""),
    (Watts(Package), 6, "CPU power", "CPU W", "package_watts", ""),
    (Watts(Dram), CSV, "memory power", "memory W", "dram_watts", ""),
    (Watts(Platform), CSV, "platform power", "platform W", "platform_watts", ""),
    (Watts(Server), 5, "server power", "server W", "server_watts", ""),
    (Joules(Gpu), 5, "GPU energy", "GPU J/GB", "gpu_joules_per_gb", "gpu-energy"),
    (Joules(Package), CSV, "CPU energy", "CPU J/GB", "package_joules_per_gb", "package-energy"),
    (Joules(Dram), CSV, "memory energy", "memory J/GB", "dram_joules_per_gb", ""),
    (Joules(Platform), CSV, "platform energy", "platform J/GB", "platform_joules_per_gb", ""),
    (Joules(Server), CSV, "server energy", "server J/GB", "server_joules_per_gb", "server-energy"),
];

/// Bytes of a sample from which its cost is that of bytes, not of calls.
const COST_MIN: u64 = 1 << 20;

impl Metric {
    /// All quantities, in the order of columns.
    pub fn all() -> impl Iterator<Item = Self> {
        ALL.into_iter().map(|facts| facts.0)
    }

    /// The quantities that can be compared, with their names on the command line.
    pub fn compared() -> impl Iterator<Item = (&'static str, Self)> {
        let named = ALL.into_iter().filter(|facts| !facts.5.is_empty());
        named.map(|facts| (facts.5, facts.0))
    }

    fn facts(self) -> Facts {
        ALL.into_iter().find(|facts| facts.0 == self).unwrap_or(ALL[0])
    }

    /// The rank of its column: see [`Column`](super::super::grid::Column).
    #[must_use]
    pub fn rank(self) -> u8 {
        self.facts().1
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.facts().2
    }

    /// Its name in the head of a column, with the unit if the cells lack it.
    #[must_use]
    pub fn heading(self) -> &'static str {
        self.facts().3
    }

    /// Its name for programs, with the unit of the numbers.
    #[must_use]
    pub fn key(self) -> &'static str {
        self.facts().4
    }

    /// A value for people.
    #[must_use]
    pub fn text(self, value: f64) -> String {
        match self {
            Rate | Loaded | SlowestGpu => digits(value * 1e-9),
            Iops => count_text(value),
            Mean | P50 | P90 | P99 | P999 | Max | FirstDone | LastDone | FirstP50 | FirstP99 => {
                time_text(value)
            }
            HitRate | CpuUser | CpuSystem => percent(value),
            CpuCost | Watts(_) | Joules(_) => digits(value),
        }
    }

    /// Whether more of it is better.
    #[must_use]
    pub const fn more_is_better(self) -> bool {
        matches!(self, Rate | Iops | Loaded | HitRate)
    }

    /// The words for better and worse.
    #[must_use]
    pub const fn words(self) -> (&'static str, &'static str) {
        match self {
            CpuCost | CpuUser | CpuSystem | Watts(_) | Joules(_) => ("less", "more"),
            HitRate => ("more", "less"),
            _ => ("faster", "slower"),
        }
    }

    /// Its value in a record.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of an I/O, and a number of bytes")]
    pub fn of(self, measured: &Measured) -> Option<f64> {
        let seconds = |ns: Option<u64>| ns.map(|ns| ns as f64 * 1e-9);
        let latency = measured.latency.as_ref();
        let kv = measured.kv.as_ref();
        // A foreign report may have the cost alone.
        let cpu = measured.cpu.as_ref();
        let busy = cpu.filter(|cpu| cpu.user_s + cpu.system_s > 0.0);
        let shares = || measured.shares.iter();
        let least = |of: fn(&Share) -> f64| shares().map(of).min_by(f64::total_cmp);
        let power = measured.power.as_ref().filter(|power| power.seconds > 0.0);
        let has_cost = measured.bytes.is_none_or(|bytes| bytes >= COST_MIN);
        let value = match self {
            CpuCost | Joules(_) if !has_cost => None,
            Rate => Some(measured.bytes_per_second),
            Iops => measured.requests_per_second,
            Loaded => Some(kv?.loaded_bytes_per_second),
            HitRate => kv.filter(|kv| kv.wanted > 0).map(|kv| kv.hits as f64 / kv.wanted as f64),
            FirstP50 => seconds(kv?.first?.p50_ns),
            FirstP99 => seconds(kv?.first?.p99_ns),
            Mean => latency?.mean_ns.map(|mean| mean * 1e-9),
            P50 => seconds(latency?.p50_ns),
            P90 => seconds(latency?.p90_ns),
            P99 => seconds(latency?.p99_ns),
            P999 => seconds(latency?.p99_9_ns),
            Max => seconds(latency?.max_ns),
            CpuCost => cpu?.s_per_gb,
            CpuUser => Some(busy?.user_s / measured.seconds?),
            CpuSystem => Some(busy?.system_s / measured.seconds?),
            SlowestGpu => least(|share| share.bytes_per_second),
            FirstDone => least(|share| share.first_done_s),
            LastDone => shares().map(|share| share.last_done_s).max_by(f64::total_cmp),
            Watts(part) => Some(power?.joules_of(part)? / power?.seconds),
            Joules(part) => Some(power?.joules_of(part)? / (measured.bytes? as f64 / 1e9)),
        };
        value.filter(|value| value.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::report::made::Sweep;
    use crate::report::model::gather::tests::{of_records, records_of};

    #[test]
    fn calls_of_a_few_bytes_have_no_cost_of_bytes() {
        let of = |bytes: u64| {
            let mut records = records_of(&Sweep::default());
            records[1..].iter_mut().for_each(|one| one["measured"]["bytes"] = json!(bytes));
            let model = of_records(&records);
            model.lines[0].estimate(CpuCost).is_some()
        };
        assert!(of(COST_MIN) && !of(COST_MIN - 1) && !of(1));
    }
}
