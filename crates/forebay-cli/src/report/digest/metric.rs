//! The quantities of a point: their names, units and scales. Pure.

/// A measured quantity of a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Metric {
    /// Bytes per second.
    Rate,
    /// Requests per second.
    Requests,
    /// Seconds that a request took on average.
    Mean,
    /// The median of these seconds.
    P50,
    /// The 90th percentile.
    P90,
    /// The 99th percentile.
    P99,
    /// The 99.9th percentile.
    P999,
    /// The maximum.
    Slowest,
    /// How many processors were busy.
    Cores,
    /// Processor seconds for 1e9 bytes.
    CpuPerGb,
    /// Processor seconds in the program.
    CpuUser,
    /// Processor seconds in the kernel.
    CpuSystem,
    /// Processor time in the program over the span: 1 is one busy core.
    CpuUserShare,
    /// Processor time in the kernel over the span.
    CpuSystemShare,
    /// The share of the files that was in the page cache before the span.
    CachedBefore,
    /// The share after the span.
    CachedAfter,
    /// How much the rate rose over the span, as a share of its mean.
    Slope,
    /// Watts of all GPUs.
    GpuWatts,
    /// Watts of all processor packages.
    PackageWatts,
    /// Watts of all memory.
    DramWatts,
    /// Watts of the platform, as its vendor defines it.
    PlatformWatts,
    /// Watts of the whole server, by the user's command.
    ServerWatts,
    /// Joules of all GPUs for 1e9 bytes.
    GpuJoules,
    /// Joules of all processor packages.
    PackageJoules,
    /// Joules of all memory.
    DramJoules,
    /// Joules of the platform.
    PlatformJoules,
    /// Joules of the whole server, by the user's command.
    ServerJoules,
}

impl Metric {
    /// All, in the order of columns.
    pub const ALL: [Self; 27] = [
        Self::Rate,
        Self::Requests,
        Self::Mean,
        Self::P50,
        Self::P90,
        Self::P99,
        Self::P999,
        Self::Slowest,
        Self::Cores,
        Self::CpuPerGb,
        Self::CpuUser,
        Self::CpuSystem,
        Self::CpuUserShare,
        Self::CpuSystemShare,
        Self::CachedBefore,
        Self::CachedAfter,
        Self::Slope,
        Self::GpuWatts,
        Self::PackageWatts,
        Self::DramWatts,
        Self::PlatformWatts,
        Self::ServerWatts,
        Self::GpuJoules,
        Self::PackageJoules,
        Self::DramJoules,
        Self::PlatformJoules,
        Self::ServerJoules,
    ];

    /// Its name in a heading.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rate => "throughput",
            Self::Requests => "requests",
            Self::Mean => "mean latency",
            Self::P50 => "p50 latency",
            Self::P90 => "p90 latency",
            Self::P99 => "p99 latency",
            Self::P999 => "p99.9 latency",
            Self::Slowest => "max latency",
            Self::Cores => "busy cores",
            Self::CpuPerGb => "CPU cost",
            Self::CpuUser => "CPU time in the program",
            Self::CpuSystem => "CPU time in the kernel",
            Self::CpuUserShare => "CPU user",
            Self::CpuSystemShare => "CPU system",
            Self::CachedBefore => "share in the page cache before",
            Self::CachedAfter => "share in the page cache after",
            Self::Slope => "rise of the rate",
            Self::GpuWatts => "GPU power",
            Self::PackageWatts => "package power",
            Self::DramWatts => "memory power",
            Self::PlatformWatts => "platform power",
            Self::ServerWatts => "server power",
            Self::GpuJoules => "GPU energy",
            Self::PackageJoules => "package energy",
            Self::DramJoules => "memory energy",
            Self::PlatformJoules => "platform energy",
            Self::ServerJoules => "server energy",
        }
    }

    /// The unit for display.
    #[must_use]
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Rate => "GB/s",
            Self::Requests => "1/s",
            Self::Mean | Self::P50 | Self::P90 | Self::P99 | Self::P999 | Self::Slowest => "µs",
            Self::Cores | Self::CachedBefore | Self::CachedAfter | Self::Slope => "",
            Self::CpuPerGb => "s/GB",
            Self::CpuUser | Self::CpuSystem => "s",
            Self::CpuUserShare | Self::CpuSystemShare => "% of a core",
            Self::GpuWatts
            | Self::PackageWatts
            | Self::DramWatts
            | Self::PlatformWatts
            | Self::ServerWatts => "W",
            Self::GpuJoules
            | Self::PackageJoules
            | Self::DramJoules
            | Self::PlatformJoules
            | Self::ServerJoules => "J/GB",
        }
    }

    /// The factor to that unit.
    #[must_use]
    pub const fn scale(self) -> f64 {
        match self {
            Self::Rate => 1e-9,
            Self::Mean | Self::P50 | Self::P90 | Self::P99 | Self::P999 | Self::Slowest => 1e6,
            Self::CpuUserShare | Self::CpuSystemShare => 100.0,
            _ => 1.0,
        }
    }

    /// Its name for programs, with the unit of [estimates](crate::results::summary::Estimate).
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::Rate => "bytes_per_second",
            Self::Requests => "requests_per_second",
            Self::Mean => "latency_mean_s",
            Self::P50 => "latency_p50_s",
            Self::P90 => "latency_p90_s",
            Self::P99 => "latency_p99_s",
            Self::P999 => "latency_p99_9_s",
            Self::Slowest => "latency_max_s",
            Self::Cores => "cpu_cores",
            Self::CpuPerGb => "cpu_s_per_gb",
            Self::CpuUser => "cpu_user_s",
            Self::CpuSystem => "cpu_system_s",
            Self::CpuUserShare => "cpu_user_share",
            Self::CpuSystemShare => "cpu_system_share",
            Self::CachedBefore => "page_cache_before",
            Self::CachedAfter => "page_cache_after",
            Self::Slope => "slope",
            Self::GpuWatts => "gpu_watts",
            Self::PackageWatts => "package_watts",
            Self::DramWatts => "dram_watts",
            Self::PlatformWatts => "platform_watts",
            Self::ServerWatts => "server_watts",
            Self::GpuJoules => "gpu_joules_per_gb",
            Self::PackageJoules => "package_joules_per_gb",
            Self::DramJoules => "dram_joules_per_gb",
            Self::PlatformJoules => "platform_joules_per_gb",
            Self::ServerJoules => "server_joules_per_gb",
        }
    }
}
