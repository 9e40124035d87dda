//! What every method does: starts calls, reports their ends, and gives its memory to a comparison.

use std::time::{Duration, Instant};

use forebay::Buffer;
use forebay_cufile::Counters;
use forebay_evidence::Seen;

use super::call::{Call, Done, Taken};
use super::plain::Opened;
use crate::failure::{Failure, Result};
use crate::workload::expected::Expected;

/// Makes the requests of one thread.
pub trait Backend: Send {
    /// Starts a call in a free place. Returns when it ended, if it did before this function
    /// returned.
    ///
    /// # Errors
    /// If the call cannot be started; the place remains free.
    fn start(&mut self, place: usize, call: Call<'_>) -> Result<Option<Instant>>;

    /// Waits for any call that is in flight to end, until `until` at most.
    ///
    /// # Errors
    /// If a call failed or moved too few bytes; its place is free then.
    fn wait(&mut self, until: Option<Instant>) -> Result<Option<Done>> {
        let _ = until;
        Err(Failure::new("no call is in flight"))
    }

    /// The file of a method that opens it itself.
    fn opened(&self) -> Option<&Opened> {
        None
    }

    /// Syncs the written bytes.
    ///
    /// # Errors
    /// System errors.
    fn sync(&mut self) -> Result<()> {
        self.opened().map_or(Ok(()), Opened::sync)
    }

    /// Makes the file system report errors as when the file is closed.
    ///
    /// # Errors
    /// System errors: written bytes may be lost.
    fn flush(&mut self) -> Result<()> {
        self.opened().map_or(Ok(()), Opened::flush)
    }

    /// The memory of a place, if this process has it and no call is in flight there.
    fn memory(&mut self, place: usize) -> Option<&mut Buffer>;

    /// Whether the memory of a place, from byte `at` on, has the `len` bytes that `expected` has at
    /// `offset`. Nothing is in flight there.
    ///
    /// # Errors
    /// System and GPU errors.
    fn holds(
        &mut self,
        place: usize,
        at: u64,
        len: u64,
        expected: &Expected<'_>,
        offset: u64,
    ) -> Result<bool> {
        let memory = self.memory(place);
        let memory = memory.ok_or_else(|| Failure::new("a failed call still holds its memory"))?;
        expected.is_in(memory, at, len, offset)
    }

    /// The read and written bytes, `moved`, by route and reason as far as the method reports them.
    fn routes(&self, moved: [u64; 2]) -> Vec<Taken> {
        self.opened().map_or_else(Vec::new, |file| file.routes(moved))
    }

    /// Processor time of another process that does the work, so far.
    fn cpu(&self) -> Duration {
        Duration::ZERO
    }

    /// cuFile's counters, if another process has them.
    fn counters(&mut self) -> Option<Seen<Counters>> {
        None
    }
}
