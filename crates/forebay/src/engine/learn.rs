//! What others have found about a drive by measuring it, and what is remembered of it.
//!
//! The engine finds a depth by itself while it works; `forebay tune` finds one by a search, and
//! leaves it here for the engines to come.

use super::{Engine, File};
use crate::error::Operation;
use crate::queue::Direction;
use crate::tune::{Learned, Rate};

/// How much to keep in flight on a drive in one direction, and what it reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Requests in flight, 1 to 1024.
    pub depth: usize,
    /// Bytes of one request, a power of two from 4 KiB to 1 GiB.
    pub request_size: u64,
    /// Bytes per second that these reach: an engine that sees another rate searches anew.
    pub bytes_per_second: u64,
}

impl Engine {
    /// Remembers what was `found` about the drive of `file`, so that engines to come begin with it;
    /// this one, if it has used the drive, goes on as it does. `false`: it is not kept, because
    /// remembering is off or the depth is set ([`Options`](crate::Options)), because the numbers
    /// make no sense, because the cache folder cannot be written, or in a forked child.
    #[must_use]
    pub fn learn(&self, file: &File, direction: Direction, found: Found) -> bool {
        if !self.home().is_here() {
            return false;
        }
        let Found { depth, request_size: size, bytes_per_second: rate } = found;
        let learned = Learned { depth, size, rate: Rate(rate) };
        self.inner.drives.learn(file.handle(), direction, learned)
    }

    /// What is remembered about the drive of `file`: how much an engine that is made now will begin
    /// with there, as far as its limits allow.
    #[must_use]
    pub fn remembered(&self, file: &File, direction: Direction) -> Option<Found> {
        self.check(Operation::Inspect).ok()?;
        let Learned { depth, size, rate: Rate(rate) } =
            self.inner.drives.known_of(file.handle(), direction)?;
        Some(Found { depth, request_size: size, bytes_per_second: rate })
    }
}
