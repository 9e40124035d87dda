//! The limits that the scheduler enforces.

/// Limits that the scheduler enforces.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) slot_size: u64,
    pub(crate) segment: u64,
    /// Maximum ops in flight on all drives together; each drive may always have one.
    pub(crate) in_flight: usize,
    /// Readers that the engine starts.
    pub(crate) readers: usize,
    /// Maximum number of pool threads.
    pub(crate) pool: usize,
    /// Maximum open windows of one transfer between the page cache and host memory.
    pub(crate) host_windows: u32,
}
