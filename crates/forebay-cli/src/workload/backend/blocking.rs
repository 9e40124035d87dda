//! Methods that finish each call before they return, as one place.

use std::time::{Duration, Instant};

use forebay::direct::Counters;
use forebay_evidence::Seen;

use super::{Backend, Call, Done, Taken};
use crate::failure::Result;
use crate::workload::check::Expected;

/// A method that finishes each call before it returns.
pub(super) trait Blocking: Send {
    /// Moves the bytes of one call.
    fn call(&mut self, call: Call<'_>) -> Result<()>;

    /// Syncs the written bytes.
    fn sync(&mut self) -> Result<()>;

    /// Makes the file system report errors as when the file is closed.
    fn flush(&mut self) -> Result<()>;

    /// Whether the memory, from byte `at` on, has the `len` bytes that `expected` has at `offset`.
    fn holds(&mut self, at: u64, len: u64, expected: &Expected<'_>, offset: u64) -> Result<bool>;

    /// Bytes by route.
    fn routes(&self) -> Vec<Taken>;

    /// Processor time of another process that does the work, so far.
    fn cpu(&self) -> Duration {
        Duration::ZERO
    }

    /// cuFile's counters, if another process has them.
    fn counters(&mut self) -> Option<Seen<Counters>> {
        None
    }
}

/// A blocking method and the end of its last call.
pub(super) struct One<B> {
    method: B,
    ended: Option<Instant>,
}

impl<B: Blocking> One<B> {
    pub(super) fn new(method: B) -> Self {
        Self { method, ended: None }
    }
}

impl<B: Blocking> Backend for One<B> {
    fn start(&mut self, _place: usize, call: Call<'_>) -> Result<()> {
        self.method.call(call)?;
        self.ended = Some(Instant::now());
        Ok(())
    }

    fn wait(&mut self) -> Result<Done> {
        let at = self.ended.take().expect("a call is in flight");
        Ok(Done { place: 0, at })
    }

    fn wait_until(&mut self, _until: Instant) -> Result<Option<Done>> {
        self.wait().map(Some)
    }

    fn sync(&mut self) -> Result<()> {
        self.method.sync()
    }

    fn flush(&mut self) -> Result<()> {
        self.method.flush()
    }

    fn holds(
        &mut self,
        _place: usize,
        at: u64,
        len: u64,
        expected: &Expected<'_>,
        offset: u64,
    ) -> Result<bool> {
        self.method.holds(at, len, expected, offset)
    }

    fn routes(&self) -> Vec<Taken> {
        self.method.routes()
    }

    fn cpu(&self) -> Duration {
        self.method.cpu()
    }

    fn counters(&mut self) -> Option<Seen<Counters>> {
        self.method.counters()
    }
}
