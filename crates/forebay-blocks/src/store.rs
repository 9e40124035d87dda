//! The store: its options, its calls, and its threads.

use std::cell::Cell;
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::ops::RangeInclusive;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use forebay::{Engine, Error, Operation, Result};
use forebay_base::lock::{Condvar, Lock, woken};
use forebay_base::process::Home;

use crate::key::{Key, Namespace};
use crate::log::Policy;
use crate::pool::Pool;
use crate::root::{Root, RootOptions};
use crate::run::{Shard, Tools};
use crate::statistics::RootStatistics;
use crate::volume::{Eviction, Volume};
use crate::work::{BLOCK_MAX, Batch, Block, End, Kind, Side, Why, Work};

/// Blocks and bytes of a call that a thread processes at a time. Idle threads process the rest, and
/// the next call's blocks need not wait for all of a long call.
const SHARD: usize = 256;
const SHARD_BYTES: RangeInclusive<u64> = 256 << 10..=8 << 20;

/// How long `close` waits for copies from and to callers' memory, and then for its threads.
const CLOSED_IN: Duration = Duration::from_secs(10);
const ENDED_IN: Duration = Duration::from_secs(2);
/// How soon a block that a second writer holds is tried again.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// The options of a store.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// The folders, best on separate drives. A block is in a single folder.
    pub roots: Vec<RootOptions>,
    /// Blocks of other namespaces are not found: name the model, its types and its layout.
    pub namespace: Vec<u8>,
    /// The eviction policy.
    pub policy: Policy,
    /// Blocks older than this are not found.
    pub ttl: Option<Duration>,
    /// Whether writes go through the page cache, which keeps new blocks in memory. Without it they
    /// are faster on most drives, and need no memory.
    pub page_cache: bool,
    /// Written bytes in the page cache that may wait for the drive, per root.
    pub unwritten: u64,
    /// Bytes of memory through which blocks pass, per root and direction.
    pub memory: u64,
    /// After this time a call ends, whatever its drive does.
    pub timeout: Duration,
    /// Reader threads, and writer threads, per root.
    pub threads: usize,
}

impl Options {
    /// Options with these roots, and defaults.
    #[must_use]
    pub fn new(roots: Vec<RootOptions>) -> Self {
        Self {
            roots,
            namespace: Vec::new(),
            policy: Policy::default(),
            ttl: None,
            page_cache: false,
            unwritten: 256 << 20,
            memory: 256 << 20,
            timeout: Duration::from_secs(30),
            threads: 8,
        }
    }
}

/// Keeps blocks on drives. Several stores may share a root, also of several processes.
#[derive(Debug)]
pub struct Store {
    lanes: Vec<Arc<Lane>>,
    namespace: Namespace,
    timeout: Duration,
    threads: u64,
    clock: Arc<Clock>,
    running: Arc<Running>,
    home: Home,
}

/// The store's threads.
#[derive(Debug, Default)]
struct Running {
    count: Lock<usize>,
    bell: Condvar,
}

thread_local! {
    /// Whether this is a thread of a store: it cannot wait for its own end.
    static IS_OWN: Cell<bool> = const { Cell::new(false) };
}

/// A root with its queues.
#[derive(Debug)]
struct Lane {
    engine: Engine,
    root: Root,
    queues: [Queue; 2],
}

/// Shards of one direction, and the memory for them.
#[derive(Debug)]
struct Queue {
    pool: Pool,
    state: Lock<Waiting>,
    bell: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    shards: VecDeque<Shard>,
    /// Threads that wait for a shard.
    idle: usize,
    is_closed: bool,
}

/// Ends calls that are late.
#[derive(Debug, Default)]
struct Clock {
    state: Lock<Calls>,
    bell: Condvar,
}

/// Calls in progress, the oldest first.
#[derive(Debug, Default)]
struct Calls {
    works: VecDeque<Weak<Work>>,
    is_closed: bool,
}

/// The root to which a key belongs.
fn lane_of(lanes: &[Arc<Lane>], key: &Key) -> usize {
    if lanes.len() == 1 {
        return 0;
    }
    let scores = lanes.iter().map(|lane| lane.root.score(key)).enumerate();
    let best = scores.max_by(|(_, a), (_, b)| a.total_cmp(b));
    best.expect("checked when the store was opened").0
}

fn without_memory(keys: &[Key]) -> Vec<Block> {
    keys.iter().map(|&key| Block { key, memory: Vec::new() }).collect()
}

impl Store {
    /// Its engine.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.lanes[0].engine
    }

    /// Opens a store, and makes its folders if they are missing.
    ///
    /// # Errors
    /// [`Error::BadOption`] and [`Error::BadState`] for a root that cannot be used like this, and
    /// errors of the file system.
    pub fn open(engine: &Engine, options: &Options) -> Result<Self> {
        check(options)?;
        let eviction = Eviction { policy: options.policy, ttl: options.ttl };
        let open = |root: &RootOptions| {
            let past_cache = !options.page_cache;
            let root = Root::open(engine, root, eviction, past_cache, options.unwritten)?;
            let queue = || Queue {
                pool: Pool::new(options.memory.max(BLOCK_MAX)),
                state: Lock::default(),
                bell: Condvar::new(),
            };
            let (engine, queues) = (engine.clone(), [queue(), queue()]);
            Ok(Arc::new(Lane { engine, root, queues }))
        };
        let lanes = options.roots.iter().map(open).collect::<Result<Vec<_>>>()?;
        let store = Self {
            lanes,
            namespace: Namespace::new(&options.namespace),
            timeout: options.timeout,
            threads: options.threads as u64,
            clock: Arc::default(),
            running: Arc::default(),
            home: Home::here(),
        };
        for lane in &store.lanes {
            for side in [Side::Load, Side::Store] {
                for _ in 0..options.threads {
                    let (lane, clock) = (Arc::clone(lane), Arc::clone(&store.clock));
                    let run = move || {
                        lane.serve(side);
                        clock.look(); // its last call may have ended, and with it the clock
                    };
                    store.running.spawn("forebay-blocks", run)?;
                }
            }
        }
        let (clock, lanes) = (Arc::clone(&store.clock), store.lanes.clone());
        store.running.spawn("forebay-clock", move || clock.serve(&lanes))?;
        Ok(store)
    }

    /// The key of a name in the store's namespace.
    #[must_use]
    pub fn key(&self, name: &[u8]) -> Key {
        self.namespace.key(name)
    }

    /// Reads blocks into their memory. A block is found only if its length was stored. The
    /// memory of a block that ends without [`End::Done`] may have changed.
    #[must_use]
    pub fn get(&self, blocks: Vec<Block>) -> Batch {
        self.start(Kind::Get, blocks)
    }

    /// Like [`get`](Self::get), for a caller that waits: this thread copies some of the blocks that
    /// are in the page cache.
    #[must_use]
    pub fn get_here(&self, blocks: Vec<Block>) -> Batch {
        self.enqueue(self.work(Kind::Get, blocks), Caller::Waits)
    }

    /// Queues writes of blocks from their memory, which the store does not copy meanwhile: callers
    /// bound what waits, and the timeout ends it. A stored block is not written again. Any process
    /// finds a block that has ended with [`End::Done`], also after this process is killed; only
    /// [`sync`](Self::sync) makes it survive a power loss.
    #[must_use]
    pub fn set(&self, blocks: Vec<Block>) -> Batch {
        self.start(Kind::Set, blocks)
    }

    /// Looks which blocks are stored.
    #[must_use]
    pub fn exists(&self, keys: &[Key]) -> Batch {
        let work = self.work(Kind::Exists, without_memory(keys));
        // What is in memory needs no thread.
        for (item, found) in self.find_at_once(keys).into_iter().enumerate() {
            let Some(found) = found else { continue };
            work.end(item, if found { End::Done } else { End::Not(Why::Absent) });
        }
        self.enqueue(work, Caller::Continues)
    }

    /// Which blocks are stored, as far as that is known without waiting for a drive.
    #[must_use]
    pub fn find_at_once(&self, keys: &[Key]) -> Vec<Option<bool>> {
        if !self.home.is_here() {
            return vec![None; keys.len()]; // the locks are the parent's
        }
        let looks: Vec<_> = self.lanes.iter().map(|lane| lane.root.look_at_once()).collect();
        keys.iter().map(|key| looks[lane_of(&self.lanes, key)](key)).collect()
    }

    /// Notes that blocks are in use, as a read of them does: they are evicted later.
    #[must_use]
    pub fn touch(&self, keys: &[Key]) -> Batch {
        self.start(Kind::Touch, without_memory(keys))
    }

    /// Removes blocks.
    #[must_use]
    pub fn delete(&self, keys: &[Key]) -> Batch {
        self.start(Kind::Delete, without_memory(keys))
    }

    /// Removes all blocks of all namespaces. Waits for the drives, at most for the timeout.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn clear(&self) -> Result<()> {
        self.on_roots(Operation::Write, Volume::clear).map(drop)
    }

    /// Makes all blocks durable whose writes have ended, of all processes. Waits for the drives, at
    /// most for the timeout.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn sync(&self) -> Result<()> {
        self.on_roots(Operation::Sync, Volume::sync).map(drop)
    }

    /// Counters per root, since the store was opened.
    #[must_use]
    pub fn statistics(&self) -> Vec<RootStatistics> {
        let of = |lane: &Arc<Lane>| {
            let root = &lane.root;
            let last = root.loads.last().or_else(|| root.stores.last());
            root.counters.now(root.path.clone(), last)
        };
        self.lanes.iter().map(of).collect()
    }

    /// Number of blocks, and their bytes on the drives, of all roots. Reads the whole index: 96 MiB
    /// for a capacity of a million blocks of 16 KiB.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn usage(&self) -> Result<(u64, u64)> {
        let add = |sum: (u64, u64), root: (u64, u64)| (sum.0 + root.0, sum.1 + root.1);
        Ok(self.on_roots(Operation::Read, Volume::usage)?.into_iter().fold((0, 0), add))
    }

    fn on_roots<T: Send + 'static>(
        &self,
        operation: Operation,
        work: fn(&Volume) -> io::Result<T>,
    ) -> Result<Vec<T>> {
        let run = |lane: &Arc<Lane>| lane.root.within(self.timeout, operation, work);
        self.lanes.iter().map(run).collect()
    }

    fn work(&self, kind: Kind, blocks: Vec<Block>) -> Arc<Work> {
        let counters = |key: &Key| Arc::clone(&self.lanes[lane_of(&self.lanes, key)].root.counters);
        Work::new(kind, blocks, self.timeout, counters)
    }

    fn start(&self, kind: Kind, blocks: Vec<Block>) -> Batch {
        self.enqueue(self.work(kind, blocks), Caller::Continues)
    }

    fn enqueue(&self, work: Arc<Work>, caller: Caller) -> Batch {
        let batch = Batch(Arc::clone(&work));
        if !self.home.is_here() {
            work.end_all(End::Not(Why::Forked)); // the threads are in the parent
        }
        if work.is_over() {
            return batch;
        }
        if !self.clock.add(&work) {
            work.end_all(End::Not(Why::Cancelled)); // the store is closed
            return batch;
        }
        let mut lanes: Vec<(Vec<usize>, u64)> = vec![(Vec::new(), 0); self.lanes.len()];
        for (item, block) in work.items.iter().enumerate() {
            if block.len > BLOCK_MAX {
                work.end(item, End::Not(Why::TooLong));
            } else if work.is_waiting(item) {
                let (items, bytes) = &mut lanes[lane_of(&self.lanes, &block.key)];
                items.push(item);
                *bytes += block.len;
            }
        }
        for (lane, (items, bytes)) in self.lanes.iter().zip(lanes) {
            let part = (bytes / self.threads).clamp(*SHARD_BYTES.start(), *SHARD_BYTES.end());
            for items in parts(&work, &items, part.min(lane.root.part_max())) {
                lane.add(work.kind.side(), Shard { work: Arc::clone(&work), items }, caller);
            }
            if caller == Caller::Waits && lane.may_be_resident(work.kind) {
                lane.help(&work);
            }
        }
        batch
    }

    /// Ends all calls, and waits until no thread touches callers' memory. Then it waits some time
    /// for the store's threads, which may hang in calls of the kernel.
    pub fn close(&self) {
        if !self.home.is_here() {
            return;
        }
        let mut shards = Vec::new();
        for queue in self.lanes.iter().flat_map(|lane| &lane.queues) {
            {
                let mut state = queue.state.lock();
                state.is_closed = true;
                shards.extend(state.shards.drain(..));
            }
            queue.bell.notify_all();
        }
        let calls = {
            let mut state = self.clock.state.lock();
            state.is_closed = true;
            std::mem::take(&mut state.works)
        };
        self.clock.look();
        let calls: Vec<_> = calls.iter().filter_map(Weak::upgrade).collect();
        calls.iter().for_each(|work| work.end_all(End::Not(Why::Cancelled)));
        drop(shards);
        if IS_OWN.get() {
            return; // a callback of a call closes it
        }
        let until = Instant::now() + CLOSED_IN;
        for work in calls {
            let left = until.saturating_duration_since(Instant::now());
            let _ = Batch(work).wait_for(left);
        }
        let count = self.running.count.lock();
        let runs = |count: &mut usize| *count > 0;
        drop(woken(self.running.bell.wait_timeout_while(count, ENDED_IN, runs)));
    }
}

/// Whether the caller of a call waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Caller {
    Waits,
    Continues,
}

/// Divides a call's blocks among threads.
fn parts(work: &Work, items: &[usize], most: u64) -> Vec<Vec<usize>> {
    let mut parts: Vec<(Vec<usize>, u64)> = Vec::new();
    for &item in items {
        let len = work.items[item].len;
        match parts.last_mut() {
            Some((items, bytes)) if items.len() < SHARD && *bytes + len <= most => {
                items.push(item);
                *bytes += len;
            }
            _ => parts.push((vec![item], len)),
        }
    }
    parts.into_iter().map(|(items, _)| items).collect()
}

impl Drop for Store {
    fn drop(&mut self) {
        if !self.home.is_here() {
            std::mem::forget(std::mem::take(&mut self.lanes)); // their locks are the parent's
            return;
        }
        self.close();
    }
}

impl Lane {
    /// Whether blocks of such a call may be in the page cache.
    fn may_be_resident(&self, kind: Kind) -> bool {
        kind == Kind::Get && !self.root.past_cache
    }

    fn add(&self, side: Side, shard: Shard, caller: Caller) {
        match self.root.health(side).admits(shard.work.deadline) {
            true => self.push(side, shard, caller),
            false => shard.end(Why::RootFailed),
        }
    }

    /// Queues a shard that the root's health admitted.
    fn push(&self, side: Side, shard: Shard, caller: Caller) {
        let queue = &self.queues[side as usize];
        let mut state = queue.state.lock();
        if state.is_closed {
            drop(state);
            return shard.end(Why::Cancelled);
        }
        let kind = shard.work.kind;
        state.shards.push_back(shard);
        // A caller that waits for resident blocks serves the first part itself.
        let is_callers = caller == Caller::Waits && state.shards.len() == 1;
        let wakes = state.idle > 0 && !(is_callers && self.may_be_resident(kind));
        drop(state);
        if wakes {
            queue.bell.notify_one();
        }
    }

    /// Reads the resident blocks of a call on its caller's thread, as long as all are resident.
    fn help(&self, work: &Arc<Work>) {
        let queue = &self.queues[Side::Load as usize];
        loop {
            let shard = {
                let mut state = queue.state.lock();
                let of_call = |shard: &Shard| Arc::ptr_eq(&shard.work, work);
                let last = state.shards.iter().rposition(of_call);
                let Some(shard) = last.and_then(|at| state.shards.remove(at)) else { return };
                shard
            };
            self.tools(Side::Load).load_here(work, &shard.items);
            let waits = |&item: &usize| work.is_waiting(item);
            let items: Vec<_> = shard.items.into_iter().filter(waits).collect();
            if !items.is_empty() {
                return self.push(Side::Load, Shard { items, ..shard }, Caller::Continues);
            }
            self.root.loads.probed();
        }
    }

    /// Queues a shard again whose blocks other writers have.
    fn add_again(&self, side: Side, shard: Shard) {
        let queue = &self.queues[side as usize];
        let mut state = queue.state.lock();
        if state.shards.is_empty() && !state.is_closed {
            state = woken(queue.bell.wait_timeout(state, LOOK_AGAIN)).0;
        }
        if !state.is_closed {
            state.shards.push_back(shard);
            drop(state);
            queue.bell.notify_one();
        }
    }

    fn tools(&self, side: Side) -> Tools<'_> {
        let Self { engine, root, queues, .. } = self;
        Tools { engine, root, pool: &queues[side as usize].pool }
    }

    fn serve(&self, side: Side) {
        let queue = &self.queues[side as usize];
        loop {
            let (shard, wakes) = {
                let waits = |state: &mut Waiting| state.shards.is_empty() && !state.is_closed;
                let mut state = queue.state.lock();
                state.idle += 1;
                let long = Duration::from_secs(3600);
                let (mut state, _) = woken(queue.bell.wait_timeout_while(state, long, waits));
                state.idle -= 1;
                match state.shards.pop_front() {
                    Some(shard) => (shard, state.idle > 0 && !state.shards.is_empty()),
                    None if state.is_closed => return,
                    None => continue,
                }
            };
            if wakes {
                queue.bell.notify_one();
            }
            self.root.counters.queued(shard.work.started.elapsed());
            let run = AssertUnwindSafe(|| self.tools(side).run(&shard));
            match std::panic::catch_unwind(run) {
                Ok(busy) if busy.is_empty() => {}
                Ok(busy) => self.add_again(side, Shard { items: busy, ..shard }),
                // The panic was reported; other shards do not depend on this one.
                Err(_) => shard.items.iter().for_each(|&item| shard.work.abandon(item)),
            }
        }
    }
}

impl Shard {
    fn end(&self, why: Why) {
        self.items.iter().for_each(|&item| self.work.end(item, End::Not(why)));
    }
}

impl Clock {
    /// False if the store is closed.
    fn add(&self, work: &Arc<Work>) -> bool {
        let mut state = self.state.lock();
        if state.is_closed {
            return false;
        }
        // All calls have the same timeout, so the oldest is late first.
        while state.works.front().is_some_and(|work| work.upgrade().is_none_or(|it| it.is_over())) {
            state.works.pop_front();
        }
        let is_first = state.works.is_empty();
        state.works.push_back(Arc::downgrade(work));
        drop(state);
        if is_first {
            self.bell.notify_one();
        }
        true
    }

    /// Makes its thread look at the calls.
    fn look(&self) {
        drop(self.state.lock()); // it is about to look, or it waits
        self.bell.notify_all();
    }

    fn serve(&self, lanes: &[Arc<Lane>]) {
        loop {
            let late = {
                let mut state = self.state.lock();
                if state.is_closed && state.works.is_empty() {
                    return;
                }
                let first = state.works.front().map(Weak::upgrade);
                let now = Instant::now();
                match first {
                    None => {
                        let long = Duration::from_secs(3600);
                        drop(woken(self.bell.wait_timeout(state, long)));
                        continue;
                    }
                    Some(Some(work)) if !work.is_over() && work.deadline > now => {
                        let left = work.deadline - now;
                        drop(woken(self.bell.wait_timeout(state, left)));
                        continue;
                    }
                    Some(late) => {
                        state.works.pop_front();
                        late
                    }
                }
            };
            let Some(work) = late else { continue };
            let waiting = work.items.iter().enumerate().filter(|&(item, _)| work.is_waiting(item));
            let waiting: BTreeSet<_> = waiting.map(|(_, it)| lane_of(lanes, &it.key)).collect();
            for root in waiting.into_iter().map(|lane| &lanes[lane].root) {
                root.health(work.kind.side()).late(&root.path, work.started);
            }
            work.end_all(End::Not(Why::Late));
        }
    }
}

impl Running {
    fn spawn(self: &Arc<Self>, name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
        let running = Arc::clone(self);
        *running.count.lock() += 1;
        let counted = move || {
            IS_OWN.set(true);
            run();
            running.ended();
        };
        let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(counted);
        spawned.map(drop).map_err(|error| {
            self.ended();
            Error::resource("thread for blocks", &error)
        })
    }

    fn ended(&self) {
        *self.count.lock() -= 1;
        self.bell.notify_all();
    }
}

fn check(options: &Options) -> Result<()> {
    let refuse = |name: &str, value: String, expected: &str| {
        Err(Error::BadOption { name: name.into(), value, expected: expected.into() })
    };
    if options.roots.is_empty() {
        return refuse("roots", "none".into(), "one folder at least");
    }
    if options.threads == 0 || options.threads > 64 {
        return refuse("threads", options.threads.to_string(), "1 to 64");
    }
    Ok(())
}
