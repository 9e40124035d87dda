//! A GPU played by host memory: a link of a set bandwidth and latency, and seeded faults.

/// How the simulated GPU behaves. Its text form is `sim:bandwidth=50GB/s,latency=10us,memory=8G,seed=7,...`.
#[derive(Debug, Clone, PartialEq)]
pub struct SimConfig {
    /// Link speed in bytes per second, each direction; `None` is as fast as memory copies.
    pub bandwidth: Option<u64>,
    /// Time that each copy takes beside its bytes.
    pub latency: std::time::Duration,
    /// Bytes of device memory.
    pub memory: u64,
    /// Seed of the faults.
    pub seed: u64,
    /// Share of copies that fail, 0 to 1.
    pub copy_faults: f64,
}
