//! Calls in progress: each block's state, its end, and the end of all.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebay::Buffer;
use forebay_base::lock::{Condvar, Lock, woken};

use crate::key::Key;
use crate::statistics::Counters;

/// The longest block.
pub const BLOCK_MAX: u64 = 64 << 20;

/// The latest deadline, a year from now.
const TIMEOUT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// How a request for a block ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Read, written, found or removed.
    Done,
    /// Not written, because the block is stored already.
    Present,
    /// None of these.
    Not(Why),
}

impl End {
    /// Whether the block is where the call wanted it.
    #[must_use]
    pub fn is_good(self) -> bool {
        matches!(self, Self::Done | Self::Present)
    }
}

/// Why a request for a block failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Why {
    /// The block is not stored.
    Absent,
    /// The drive returned other bytes than were written, or none. The block was removed.
    Damaged,
    /// The time was over before the block was done.
    Late,
    /// The caller cancelled.
    Cancelled,
    /// The capacity, `keep_free` or the drive is exhausted, and no block could be evicted.
    NoRoom,
    /// The block is longer than 64 MiB.
    TooLong,
    /// The root's drive failed: [`RootStatistics::last_error`](crate::RootStatistics::last_error).
    RootFailed,
    /// The caller's memory could not be accessed.
    Memory,
    /// The store was opened in the parent of this process, before the fork.
    Forked,
}

impl Why {
    /// A word for tables and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Damaged => "damaged",
            Self::Late => "late",
            Self::Cancelled => "cancelled",
            Self::NoRoom => "no room",
            Self::TooLong => "too long",
            Self::RootFailed => "root failed",
            Self::Memory => "memory",
            Self::Forked => "forked",
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A block of a call: its key, and the memory from or to which its bytes go, in order.
#[derive(Debug)]
pub struct Block {
    /// The key.
    pub key: Key,
    /// Host, pinned or GPU memory, in as many pieces as needed.
    pub memory: Vec<Buffer>,
}

/// What a call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Get,
    Set,
    Exists,
    Touch,
    Delete,
}

/// The threads that serve a call: those that read, or those that write.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Side {
    Load = 0,
    Store = 1,
}

/// A call's request for a block.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) key: Key,
    pub(crate) len: u64,
    /// Of its root; counts the end of a read and of a write.
    counters: Option<Arc<Counters>>,
    state: Lock<State>,
}

#[derive(Debug)]
enum State {
    /// Nothing touches the memory.
    Waiting(Vec<Buffer>),
    /// A thread copies from or to the memory. This ends without a drive.
    Copying,
    Ended(End, Vec<Buffer>),
}

/// A call in progress.
pub(crate) struct Work {
    pub(crate) kind: Kind,
    pub(crate) items: Vec<Item>,
    pub(crate) started: Instant,
    pub(crate) deadline: Instant,
    /// How the call ended before its blocks did.
    cut_short: OnceLock<End>,
    left: AtomicUsize,
    over: Lock<Over>,
    bell: Condvar,
}

type Callback = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Over {
    is_over: bool,
    callbacks: Vec<Callback>,
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let left = self.left.load(Ordering::Relaxed);
        write!(f, "{:?} of {} blocks, {left} left", self.kind, self.items.len())
    }
}

impl Kind {
    /// Whether its blocks have memory, and so a length.
    pub(crate) fn has_bytes(self) -> bool {
        matches!(self, Self::Get | Self::Set)
    }

    pub(crate) fn side(self) -> Side {
        match self {
            Self::Get | Self::Exists => Side::Load,
            Self::Set | Self::Touch | Self::Delete => Side::Store,
        }
    }
}

impl Work {
    pub(crate) fn new(
        kind: Kind,
        blocks: Vec<Block>,
        timeout: Duration,
        counters: impl Fn(&Key) -> Arc<Counters>,
    ) -> Arc<Self> {
        let counters = |key: &Key| kind.has_bytes().then(|| counters(key));
        let item = |block: Block| {
            // What is longer than any memory is too long.
            let lens = block.memory.iter().map(Buffer::len);
            let (key, len) = (block.key, lens.fold(0, u64::saturating_add));
            let state = Lock::new(State::Waiting(block.memory));
            Item { key, len, counters: counters(&key), state }
        };
        let items: Vec<_> = blocks.into_iter().map(item).collect();
        let started = Instant::now();
        let over = Over { is_over: items.is_empty(), callbacks: Vec::new() };
        Arc::new(Self {
            kind,
            started,
            deadline: started + timeout.min(TIMEOUT_MAX),
            cut_short: OnceLock::new(),
            left: AtomicUsize::new(items.len()),
            over: Lock::new(over),
            bell: Condvar::new(),
            items,
        })
    }

    pub(crate) fn is_waiting(&self, item: usize) -> bool {
        matches!(*self.items[item].state.lock(), State::Waiting(_))
    }

    /// The memory of an item, to copy from or to it; `None` if the item has ended. The caller
    /// returns it with [`give_back`](Self::give_back) or [`end_with`](Self::end_with).
    pub(crate) fn take_memory(&self, item: usize) -> Option<Vec<Buffer>> {
        let mut state = self.items[item].state.lock();
        match std::mem::replace(&mut *state, State::Copying) {
            State::Waiting(memory) => Some(memory),
            other => {
                *state = other;
                None
            }
        }
    }

    /// Returns memory of an item. It ends if its call ended during the copy: nothing else would end
    /// it, and the memory is the caller's again.
    pub(crate) fn give_back(&self, item: usize, memory: Vec<Buffer>) {
        let mut state = self.items[item].state.lock();
        if let Some(&end) = self.cut_short.get() {
            drop(state);
            return self.end_with(item, end, memory);
        }
        *state = State::Waiting(memory);
    }

    /// Ends an item during its copy.
    pub(crate) fn end_with(&self, item: usize, end: End, memory: Vec<Buffer>) {
        *self.items[item].state.lock() = State::Ended(end, memory);
        self.ended(item, end);
    }

    /// Ends an item unless it has ended, or its memory is in use.
    pub(crate) fn end(&self, item: usize, end: End) {
        self.end_if(item, end, |state| matches!(state, State::Waiting(_)));
    }

    /// Ends an item of a thread that panicked, whose memory may be lost.
    pub(crate) fn abandon(&self, item: usize) {
        let end = End::Not(Why::RootFailed);
        self.end_if(item, end, |state| !matches!(state, State::Ended(..)));
    }

    fn end_if(&self, item: usize, end: End, may_end: fn(&State) -> bool) {
        {
            let mut state = self.items[item].state.lock();
            if !may_end(&state) {
                return;
            }
            let memory = match &mut *state {
                State::Waiting(memory) => std::mem::take(memory),
                State::Copying | State::Ended(..) => Vec::new(),
            };
            *state = State::Ended(end, memory);
        }
        self.ended(item, end);
    }

    /// Ends the call: items that wait now, and those whose memory is in use when it is returned.
    pub(crate) fn end_all(&self, end: End) {
        let _ = self.cut_short.set(end); // the first end counts
        (0..self.items.len()).for_each(|item| self.end(item, end));
    }

    /// Counts the end that the caller sees, before it sees it.
    fn ended(&self, item: usize, end: End) {
        let Item { len, counters, .. } = &self.items[item];
        if let Some(counters) = counters {
            counters.ended(self.kind == Kind::Get, end, *len, self.started.elapsed());
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let callbacks = {
            let mut over = self.over.lock();
            over.is_over = true;
            std::mem::take(&mut over.callbacks)
        };
        self.bell.notify_all();
        callbacks.into_iter().for_each(|callback| callback());
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.lock().is_over
    }
}

/// A call in progress. Dropping it does not end the call.
#[derive(Debug, Clone)]
pub struct Batch(pub(crate) Arc<Work>);

impl Batch {
    /// Waits until all blocks have ended, at most until the store's timeout. Blocks are in the
    /// order of the call.
    #[must_use]
    pub fn wait(&self) -> Vec<End> {
        loop {
            if let Some(ends) = self.wait_for(Duration::from_secs(3600)) {
                return ends;
            }
        }
    }

    /// Waits for at most `bound`; `None` if the call is not over then.
    #[must_use]
    pub fn wait_for(&self, bound: Duration) -> Option<Vec<End>> {
        let over = self.0.over.lock();
        let waits = |over: &mut Over| !over.is_over;
        let (over, _) = woken(self.0.bell.wait_timeout_while(over, bound, waits));
        over.is_over.then(|| {
            drop(over);
            let end = |item: &Item| match &*item.state.lock() {
                State::Ended(end, _) => *end,
                State::Waiting(_) | State::Copying => End::Not(Why::Late),
            };
            self.0.items.iter().map(end).collect()
        })
    }

    /// Whether all blocks have ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.is_over()
    }

    /// Ends all blocks. A block that is being copied ends after its copy.
    pub fn cancel(&self) {
        self.0.end_all(End::Not(Why::Cancelled));
    }

    /// Runs `step` when all blocks have ended: on the thread that ends the last, or immediately. It
    /// must be short.
    pub fn on_end(&self, step: impl FnOnce() + Send + 'static) {
        let mut over = self.0.over.lock();
        if over.is_over {
            drop(over);
            step();
        } else {
            over.callbacks.push(Box::new(step));
        }
    }

    /// The memory of the blocks, once all have ended; empty in further calls.
    #[must_use]
    pub fn take_memory(&self) -> Vec<Vec<Buffer>> {
        let take = |item: &Item| match &mut *item.state.lock() {
            State::Ended(_, memory) => std::mem::take(memory),
            State::Waiting(_) | State::Copying => Vec::new(),
        };
        self.0.items.iter().map(take).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Namespace;

    #[test]
    fn an_item_ends_with_its_call_after_a_copy() {
        for why in [Why::Late, Why::Cancelled] {
            let block = || Block { key: Namespace::new(b"").key(b"a"), memory: Vec::new() };
            let timeout = Duration::from_secs(3600);
            let work = Work::new(Kind::Get, vec![block(), block()], timeout, |_| Arc::default());
            let memory = work.take_memory(0).expect("it waits");
            work.give_back(0, memory);
            assert!(work.is_waiting(0), "its time is not over");
            let memory = work.take_memory(0).expect("it waits");
            work.end_all(End::Not(why)); // by the clock, the caller or `close`
            assert!(!work.is_over());
            work.give_back(0, memory);
            assert!(work.take_memory(0).is_none(), "it is the caller's");
            assert_eq!(Batch(work).wait(), [End::Not(why); 2]);
        }
    }
}
