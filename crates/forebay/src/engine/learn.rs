//! Externally measured results for a drive, and what is remembered about it.
//!
//! The engine learns a depth while it works. `forebay tune` finds one by a search and saves it here
//! for later engines.

use super::{Engine, File};
use crate::error::Operation;
use crate::queue::Direction;
use crate::tune::{Learned, Rate};

/// The queue depth and block size for a drive in one direction, and the rate they reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Requests in flight, 1 to 1024.
    pub depth: usize,
    /// Bytes of one request, a power of two from 4 KiB to 1 GiB.
    pub request_size: u64,
    /// Bytes per second that these reach. An engine that measures another rate searches again.
    pub bytes_per_second: u64,
}

impl Engine {
    /// Saves `found` for the drive of `file`, so that later engines start with it. This engine is
    /// not affected if it has used the drive already. Returns `false` if it is not kept:
    /// remembering is off or the depth is set ([`Options`](crate::Options)), the numbers are
    /// invalid, the cache folder cannot be written, or this is a forked child.
    #[must_use]
    pub fn learn(&self, file: &File, direction: Direction, found: Found) -> bool {
        if !self.home().is_here() {
            return false;
        }
        let Found { depth, request_size: size, bytes_per_second: rate } = found;
        let learned = Learned { depth, size, rate: Rate(rate) };
        self.inner.drives.learn(file.handle(), direction, learned)
    }

    /// The saved result for the drive of `file`: the values that a new engine will start with,
    /// within its limits.
    #[must_use]
    pub fn remembered(&self, file: &File, direction: Direction) -> Option<Found> {
        self.check_process(Operation::Inspect).ok()?;
        let Learned { depth, size, rate: Rate(rate) } =
            self.inner.drives.known_of(file.handle(), direction)?;
        Some(Found { depth, request_size: size, bytes_per_second: rate })
    }
}
