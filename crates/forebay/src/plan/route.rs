//! Directions, routes, and the reasons for taking them.

use std::fmt;

/// Direction of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// File → memory.
    Read,
    /// Memory → file.
    Write,
}

/// The data path between a file and memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Route {
    /// Drive → GPU, no copy in host memory.
    Direct,
    /// Drive → pinned slot (O_DIRECT) → GPU.
    Staged,
    /// Page cache → pinned slot → GPU.
    Cached,
    /// Drive or page cache → host memory.
    Host,
}

impl Route {
    /// Every route, in order of preference.
    pub const ALL: [Self; 4] = [Self::Direct, Self::Staged, Self::Cached, Self::Host];

    /// The route's name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Staged => "staged",
            Self::Cached => "cached",
            Self::Host => "host",
        }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why bytes took their route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Reason {
    /// They were in the page cache.
    Resident,
    /// They were not in the page cache, so they were read from the drive with O_DIRECT.
    NotResident,
    /// The file is in memory (tmpfs): no drive is below the page cache.
    InMemory,
    /// The file system or an option refuses O_DIRECT.
    NoDirectIo,
    /// The kernel does not report residency; a non-blocking read found these bytes.
    TriedResident,
    /// The kernel does not report residency; a non-blocking read did not find these bytes.
    TriedNotResident,
    /// They were in the page cache when the route was chosen, and evicted before they were read.
    HadToWait,
    /// The caller required this route.
    Required,
    /// An unaligned edge: O_DIRECT could not write it without touching neighbouring bytes.
    UnalignedEdge,
    /// Writes that no other reason concerns use the page cache.
    WriteThroughCache,
    /// A write that is faster with O_DIRECT, or whose caller prefers it.
    WritePastCache,
    /// A provider has a direct path between the drive and the GPU.
    PeerToPeer,
    /// The direct path between the drive and the GPU was refused, or failed during the transfer.
    PeerFailed,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}
