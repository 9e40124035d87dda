//! Memory through which blocks pass: pinned, aligned, and bounded.

#![expect(unsafe_code, reason = "shares a part of a buffer with a transfer")]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay::{Buffer, Engine, Result};
use forebay_base::lock::{Condvar, Lock, woken};

/// The shortest buffer.
const LEAST: u64 = 256 << 10;

/// How often memory is requested again that the process could not have.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// Buffers of one direction of a root, whose lengths are powers of two. An allocation lasts a
/// millisecond, so they are kept. A buffer in a hanging transfer counts until that has ended.
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

/// Kept by a buffer until its memory is freed.
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

/// The length of the buffers for so many bytes.
fn class(len: u64) -> u64 {
    len.next_power_of_two().max(LEAST)
}

/// A part of a buffer for a write or a copy.
pub(crate) fn part(buffer: &Buffer, at: u64, len: u64) -> Buffer {
    // SAFETY: the part is only given to a write or a copy that is waited for, and nothing reads or
    // writes the buffer meanwhile. If a write is abandoned, the engine refuses the buffer until it
    // ends.
    unsafe { buffer.share(at, len) }
}

impl Pool {
    pub(crate) fn new(max: u64) -> Self {
        Self(Arc::new(Shared { max, state: Lock::default(), bell: Condvar::new() }))
    }

    /// A buffer of `len` bytes at least; `None` until buffers are returned, because of
    /// the bound or because the process can have no more memory.
    ///
    /// # Errors
    /// Those of an allocation, while all memory of this pool is free.
    pub(crate) fn try_take(&self, engine: &Engine, len: u64) -> Result<Option<Buffer>> {
        let len = class(len);
        let mut refused = None;
        for is_last in [false, true] {
            let is_counted = {
                let mut state = self.0.state.lock();
                if let Some(buffer) = state.free.get_mut(&len).and_then(Vec::pop) {
                    return Ok(Some(buffer));
                }
                let fits = state.used + len <= self.0.max;
                state.used += if fits { len } else { 0 };
                fits
            };
            if is_counted {
                let counted = Counted { pool: Arc::clone(&self.0), len };
                match engine.allocate_pinned(len) {
                    Err(error) if error.errno() == Some(libc::ENOMEM) => refused = Some(error),
                    made => return Ok(Some(made?.kept_by(counted))),
                }
            }
            if !is_last {
                // Buffers of other lengths are freed.
                let unused = std::mem::take(&mut self.0.state.lock().free);
                drop(unused);
            }
        }
        match refused {
            Some(error) if self.0.state.lock().used == 0 => Err(error),
            _ => Ok(None),
        }
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
            let is_full = state.used - free + class(len) > self.0.max;
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
        // The buffers hold the pool: a cycle.
        let free = std::mem::take(&mut self.0.state.lock().free);
        drop(free);
    }
}
