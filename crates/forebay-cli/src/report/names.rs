//! The names of rows, in JSON as in tables.

use serde::{Deserialize, Serialize};

/// A limit, or a method to move bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum MethodName {
    /// Limit: copies between pinned memory and the GPU, or in host memory by several threads.
    Link,
    /// Limit: O_DIRECT at depth.
    Storage,
    /// Limit: `fio`.
    Fio,
    /// `read` into pageable memory, then copy.
    Standard,
    /// Map the file, then copy.
    Mmap,
    /// This engine.
    Forebay,
    /// One pool of threads for all files, first come, first served.
    #[serde(rename = "one-queue")]
    OneQueue,
    /// KvikIO, by the Python that is found.
    Kvikio,
    /// cuFile in its compat mode.
    #[serde(rename = "cufile-compat")]
    CufileCompat,
}

impl MethodName {
    /// Its name, as in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Link => "link",
            Self::Storage => "storage",
            Self::Fio => "fio",
            Self::Standard => "standard",
            Self::Mmap => "mmap",
            Self::Forebay => "forebay",
            Self::OneQueue => "one-queue",
            Self::Kvikio => "kvikio",
            Self::CufileCompat => "cufile-compat",
        }
    }

    /// Whether it is a limit.
    #[must_use]
    pub const fn is_ceiling(self) -> bool {
        matches!(self, Self::Link | Self::Storage | Self::Fio)
    }
}

/// From or to the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From the file to memory.
    Read,
    /// From memory to the file.
    Write,
}

impl Direction {
    /// Its name, as in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// The page cache state of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// Dropped from the page cache before. A cold write counts once its bytes are on the drive.
    Cold,
    /// In the page cache.
    Resident,
}

impl Cache {
    /// Its name, as in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Resident => "resident",
        }
    }
}
