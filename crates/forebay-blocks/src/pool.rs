//! Memory through which blocks pass: pinned, aligned, and bounded.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay::{Buffer, Engine, Result};
use forebay_base::lock::{Condvar, Lock, woken};

/// Bytes that are allocated at a time: pages are huge, and an allocation takes a millisecond.
const CHUNK: u64 = 4 << 20;

/// How often memory is requested again that the process could not have.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// Buffers of one direction of a root. A buffer in a transfer that hangs counts until the transfer
/// has ended.
#[derive(Debug)]
pub(crate) struct Pool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    max: u64,
    state: Lock<State>,
    bell: Condvar,
}

#[derive(Debug, Default)]
struct State {
    free: HashMap<u64, Vec<Buffer>>,
    used: u64,
}

impl State {
    /// Counts up to `wanted` buffers of `len` bytes, at least one, as used; 0 if there is no room.
    fn count(&mut self, wanted: u64, len: u64, max: u64) -> u64 {
        let count = wanted.max(1).min(max.saturating_sub(self.used) / len);
        self.used += count * len;
        count
    }
}

/// Kept by a chunk until its memory is freed.
struct Counted {
    pool: Arc<Shared>,
    len: u64,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.pool.state.lock().used -= self.len;
        self.pool.bell.notify_all();
    }
}

impl Pool {
    pub(crate) fn new(max: u64) -> Self {
        Self(Arc::new(Shared { max, state: Lock::default(), bell: Condvar::new() }))
    }

    /// A buffer of `len` bytes; `None` if others have to be given back first, because of the bound
    /// or because the process can have no more memory.
    ///
    /// # Errors
    /// Those of an allocation, while this pool has no memory that could be given back.
    pub(crate) fn try_take(&self, engine: &Engine, len: u64) -> Result<Option<Buffer>> {
        let mut refused = None;
        for (wanted, is_last) in [(CHUNK / len, false), (1, true)] {
            let count = {
                let mut state = self.0.state.lock();
                if let Some(buffer) = state.free.get_mut(&len).and_then(Vec::pop) {
                    return Ok(Some(buffer));
                }
                state.count(wanted, len, self.0.max)
            };
            if count > 0 {
                match self.chunk(engine, count, len) {
                    Err(error) if error.errno() == Some(libc::ENOMEM) => refused = Some(error),
                    made => return made.map(Some),
                }
            }
            if !is_last {
                // Chunks of other lengths are freed, if no buffer of them is in use.
                let unused = std::mem::take(&mut self.0.state.lock().free);
                drop(unused);
            }
        }
        match refused {
            Some(error) if self.0.state.lock().used == 0 => Err(error),
            _ => Ok(None),
        }
    }

    /// A new chunk of `count` buffers, which is counted already.
    fn chunk(&self, engine: &Engine, count: u64, len: u64) -> Result<Buffer> {
        let counted = Counted { pool: Arc::clone(&self.0), len: count * len };
        let mut rest = engine.allocate_pinned(count * len)?.kept_by(counted);
        while rest.len() > len {
            let (buffer, others) = rest.split_at(len);
            self.give(buffer);
            rest = others;
        }
        Ok(rest)
    }

    /// Like [`try_take`](Self::try_take), but waits until `deadline`.
    pub(crate) fn take(
        &self,
        engine: &Engine,
        len: u64,
        deadline: Instant,
    ) -> Result<Option<Buffer>> {
        loop {
            if let Some(buffer) = self.try_take(engine, len)? {
                return Ok(Some(buffer));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let state = self.0.state.lock();
            let free: u64 = state.free.iter().map(|(len, all)| len * all.len() as u64).sum();
            let is_full = state.used - free + len > self.0.max;
            // Nothing says that the process can have memory again.
            let bound = if is_full { left } else { left.min(ASK_AGAIN) };
            drop(woken(self.0.bell.wait_timeout(state, bound)));
        }
    }

    pub(crate) fn give(&self, buffer: Buffer) {
        self.0.state.lock().free.entry(buffer.len()).or_default().push(buffer);
        self.0.bell.notify_one();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // The buffers hold the pool, so they would keep each other.
        let free = std::mem::take(&mut self.0.state.lock().free);
        drop(free);
    }
}
