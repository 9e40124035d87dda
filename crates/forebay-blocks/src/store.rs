//! The store: its options, its calls, and its threads.

use std::collections::{BTreeSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use forebay::{Engine, Error, Result};
use forebay_base::lock::{Condvar, Lock, woken};
use forebay_base::process::Home;
use forebay_base::units::format_size;

use crate::class::{Leaving, Policy};
use crate::key::{Key, Namespace};
use crate::pool::Pool;
use crate::root::{Root, RootOptions};
use crate::run::{PARTS_MAX, Runner, Shard};
use crate::statistics::RootStatistics;
use crate::work::{BLOCK_MAX, Batch, Block, End, Item, Kind, Side, Why, Work};

/// Blocks of a call, and bytes, that one thread takes at a time: other threads take the rest, and
/// the next call's blocks need not wait for all of a long one.
const SHARD: usize = 32;
const SHARD_BYTES: u64 = 8 << 20;

/// Most bytes of a call whose resident blocks the caller's thread copies. It takes 20 µs or more to
/// hand a block to another thread.
const HERE_MAX: u64 = 256 << 10;

/// Calls that wait on a root before notes of uses are left out.
const TOUCHES_MAX: usize = 256;

/// The options of a store.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// The folders, each best on a drive of its own. A block is on one of them.
    pub roots: Vec<RootOptions>,
    /// Blocks of other namespaces are not found: name the model, its types and its layout.
    pub namespace: Vec<u8>,
    /// Which block leaves a full set.
    pub policy: Policy,
    /// Blocks older than this are not found.
    pub ttl: Option<Duration>,
    /// Whether writes go through the page cache, which keeps new blocks in memory. Without it they
    /// are faster on most drives, and take no memory.
    pub page_cache: bool,
    /// Written bytes in the page cache that may wait for the drive, for each root.
    pub unwritten: u64,
    /// Bytes of blocks that may wait to be written, for each root. More are dropped.
    pub waiting: u64,
    /// Bytes of memory through which blocks pass, for each root and direction. A root takes up to
    /// 8 MiB more for blocks in the page cache.
    pub memory: u64,
    /// After this time a call ends, whatever its drive does.
    pub timeout: Duration,
    /// Threads that read, and threads that write, for each root.
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
            waiting: 1 << 30,
            memory: 256 << 20,
            timeout: Duration::from_secs(30),
            threads: 4,
        }
    }
}

/// Keeps blocks on drives. Several stores, in one process or several, may share a root.
#[derive(Debug)]
pub struct Store {
    lanes: Vec<Arc<Lane>>,
    namespace: Namespace,
    timeout: Duration,
    clock: Arc<Clock>,
    home: Home,
}

/// One root with its queues.
#[derive(Debug)]
struct Lane {
    engine: Engine,
    root: Root,
    /// Memory for parts of resident blocks.
    parts: Pool,
    queues: [Queue; 2],
    waiting_max: u64,
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
    bytes: u64,
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
        let leaving = Leaving { policy: options.policy, ttl: options.ttl };
        let open = |root: &RootOptions| {
            let past_cache = !options.page_cache;
            let root = Root::open(engine, root, leaving, past_cache, options.unwritten)?;
            let queue = || Queue {
                pool: Pool::new(options.memory.max(BLOCK_MAX)),
                state: Lock::default(),
                bell: Condvar::new(),
            };
            let (engine, queues) = (engine.clone(), [queue(), queue()]);
            let (parts, waiting_max) = (Pool::new(PARTS_MAX), options.waiting);
            Ok(Arc::new(Lane { engine, root, parts, queues, waiting_max }))
        };
        let lanes = options.roots.iter().map(open).collect::<Result<Vec<_>>>()?;
        let store = Self {
            lanes,
            namespace: Namespace::new(&options.namespace),
            timeout: options.timeout,
            clock: Arc::default(),
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
                    spawn("forebay-blocks", run)?;
                }
            }
        }
        let (clock, lanes) = (Arc::clone(&store.clock), store.lanes.clone());
        spawn("forebay-clock", move || clock.serve(&lanes))?;
        Ok(store)
    }

    /// The key of a name in the store's namespace.
    #[must_use]
    pub fn key(&self, name: &[u8]) -> Key {
        self.namespace.key(name)
    }

    /// Reads blocks into their memory. A block is found only if its length is the one stored. The
    /// memory of a block that ends without [`End::Done`] may have changed.
    #[must_use]
    pub fn get(&self, blocks: Vec<Block>) -> Batch {
        self.start(Kind::Get, blocks)
    }

    /// Like [`get`](Self::get), for a caller that waits: this thread copies blocks that are in the
    /// page cache, if the call is short. Handing them to another thread takes longer.
    #[must_use]
    pub fn get_here(&self, blocks: Vec<Block>) -> Batch {
        let work = Work::new(Kind::Get, blocks, self.timeout);
        let len: u64 = work.items.iter().map(|block| block.len).sum();
        if self.home.is_here() && len <= HERE_MAX {
            let is_done = |&(item, block): &(usize, &Item)| {
                self.lanes[lane_of(&self.lanes, &block.key)]
                    .runner(Side::Load)
                    .load_here(&work, item)
            };
            let done = work.items.iter().enumerate().filter(is_done);
            let used: Vec<Key> = done.map(|(_, block)| block.key).collect();
            drop(self.touch(&used));
        }
        self.enqueue(work)
    }

    /// Writes blocks from their memory. A block that is stored is not written again. When a block
    /// has ended with [`End::Done`], any process finds it, also after this one is killed; only
    /// [`sync`](Self::sync) protects it from a power cut.
    #[must_use]
    pub fn set(&self, blocks: Vec<Block>) -> Batch {
        self.start(Kind::Set, blocks)
    }

    /// Looks which blocks are stored.
    #[must_use]
    pub fn exists(&self, keys: &[Key]) -> Batch {
        let work = Work::new(Kind::Exists, without_memory(keys), self.timeout);
        // What is in memory needs no thread.
        let found = if self.home.is_here() { self.find_at_once(keys) } else { Vec::new() };
        for (item, found) in found.into_iter().enumerate() {
            let Some(found) = found else { continue };
            work.end(item, if found { End::Done } else { End::Not(Why::Absent) });
        }
        self.enqueue(work)
    }

    /// Whether each block is stored, as far as that is known without waiting for a drive.
    #[must_use]
    pub fn find_at_once(&self, keys: &[Key]) -> Vec<Option<bool>> {
        let looks: Vec<_> = self.lanes.iter().map(|lane| lane.root.look_at_once()).collect();
        keys.iter().map(|key| looks[lane_of(&self.lanes, key)](key)).collect()
    }

    /// Notes that blocks are in use, as a read of them does: they leave later.
    #[must_use]
    pub fn touch(&self, keys: &[Key]) -> Batch {
        self.start(Kind::Touch, without_memory(keys))
    }

    /// Removes blocks.
    #[must_use]
    pub fn delete(&self, keys: &[Key]) -> Batch {
        self.start(Kind::Delete, without_memory(keys))
    }

    /// Removes all blocks of all namespaces. Waits for the drives.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn clear(&self) -> Result<()> {
        self.lanes.iter().try_for_each(|lane| lane.root.clear(&lane.engine))
    }

    /// Makes all blocks durable whose writes have ended. Waits for the drives.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn sync(&self) -> Result<()> {
        self.lanes.iter().try_for_each(|lane| lane.root.sync())
    }

    /// What each root has done since the store was opened.
    #[must_use]
    pub fn statistics(&self) -> Vec<RootStatistics> {
        let of = |lane: &Arc<Lane>| {
            let root = &lane.root;
            let last = root.loads.last().or_else(|| root.stores.last());
            root.counters.now(root.path.clone(), last)
        };
        self.lanes.iter().map(of).collect()
    }

    /// Number of blocks, and bytes that they take, on all roots. Reads all indexes.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn usage(&self) -> Result<(u64, u64)> {
        let mut sum = (0, 0);
        for lane in &self.lanes {
            sum.0 += lane.root.count(&lane.engine)?;
            sum.1 += lane.root.used(&lane.engine)?;
        }
        Ok(sum)
    }

    fn start(&self, kind: Kind, blocks: Vec<Block>) -> Batch {
        self.enqueue(Work::new(kind, blocks, self.timeout))
    }

    fn enqueue(&self, work: Arc<Work>) -> Batch {
        let batch = Batch(Arc::clone(&work));
        if !self.home.is_here() {
            work.end_all(End::Not(Why::Forked)); // the threads are in the parent
        }
        if work.is_over() {
            return batch;
        }
        self.clock.add(&work);
        let side = work.kind.side();
        let mut shards: Vec<Vec<(Vec<usize>, u64)>> = vec![Vec::new(); self.lanes.len()];
        for (item, block) in work.items.iter().enumerate() {
            if !work.is_waiting(item) {
                continue;
            }
            if block.len > BLOCK_MAX {
                work.end(item, End::Not(Why::TooLong));
                continue;
            }
            let lane = lane_of(&self.lanes, &block.key);
            match shards[lane].last_mut() {
                Some((items, bytes))
                    if items.len() < SHARD && *bytes + block.len <= SHARD_BYTES =>
                {
                    items.push(item);
                    *bytes += block.len;
                }
                _ => shards[lane].push((vec![item], block.len)),
            }
        }
        for (lane, shards) in self.lanes.iter().zip(shards) {
            for (items, _) in shards {
                lane.add(side, Shard { work: Arc::clone(&work), items });
            }
        }
        batch
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if !self.home.is_here() {
            std::mem::forget(std::mem::take(&mut self.lanes)); // their locks are the parent's
            return;
        }
        // Threads end with their current shard; what still waits is not done.
        for queue in self.lanes.iter().flat_map(|lane| &lane.queues) {
            let shards = {
                let mut state = queue.state.lock();
                state.is_closed = true;
                std::mem::take(&mut state.shards)
            };
            queue.bell.notify_all();
            for Shard { work, items } in shards {
                items.into_iter().for_each(|item| work.end(item, End::Not(Why::Cancelled)));
            }
        }
        self.clock.state.lock().is_closed = true;
        self.clock.look();
    }
}

impl Lane {
    fn add(&self, side: Side, shard: Shard) {
        let queue = &self.queues[side as usize];
        let bytes = shard.bytes();
        let mut state = queue.state.lock();
        let is_full = match shard.work.kind {
            // They have no bytes, and reads of resident blocks go on while a drive hangs.
            Kind::Touch => state.shards.len() >= TOUCHES_MAX,
            _ => state.bytes > 0 && state.bytes + bytes > self.waiting_max,
        };
        if matches!(side, Side::Store) && is_full {
            drop(state);
            return self.refuse(&shard, Why::QueueFull);
        }
        if !self.root.health(side).admits(shard.work.deadline) {
            drop(state);
            return self.refuse(&shard, Why::RootFailed);
        }
        state.bytes += bytes;
        state.shards.push_back(shard);
        drop(state);
        queue.bell.notify_one();
    }

    fn refuse(&self, shard: &Shard, why: Why) {
        for &item in &shard.items {
            let (end, len) = (End::Not(why), shard.work.items[item].len);
            match shard.work.kind {
                Kind::Get => self.root.counters.loaded(end, len, Duration::ZERO),
                Kind::Set => self.root.counters.saved(end, len, Duration::ZERO),
                Kind::Exists | Kind::Touch | Kind::Delete => {}
            }
            shard.work.end(item, end);
        }
    }

    fn runner(&self, side: Side) -> Runner<'_> {
        let Self { engine, root, parts, queues, .. } = self;
        Runner { engine, root, pool: &queues[side as usize].pool, parts }
    }

    fn serve(&self, side: Side) {
        let queue = &self.queues[side as usize];
        let runner = self.runner(side);
        loop {
            let shard = {
                let waits = |state: &mut Waiting| state.shards.is_empty() && !state.is_closed;
                let state = queue.state.lock();
                let long = Duration::from_secs(3600);
                let (mut state, _) = woken(queue.bell.wait_timeout_while(state, long, waits));
                match state.shards.pop_front() {
                    Some(shard) => {
                        // Before its blocks end: a caller who sees that may write the next ones.
                        state.bytes -= shard.bytes();
                        shard
                    }
                    None if state.is_closed => return,
                    None => continue,
                }
            };
            let run = AssertUnwindSafe(|| runner.run(&shard));
            if std::panic::catch_unwind(run).is_err() {
                // The panic was reported; other shards do not depend on this one.
                shard.items.iter().for_each(|&item| shard.work.abandon(item));
            }
        }
    }
}

impl Shard {
    fn bytes(&self) -> u64 {
        self.items.iter().map(|&item| self.work.items[item].len).sum()
    }
}

impl Clock {
    fn add(&self, work: &Arc<Work>) {
        let mut state = self.state.lock();
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

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    spawned.map(drop).map_err(|error| Error::Resource {
        what: "thread for blocks",
        source: crate::failure::errno(&error),
    })
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
    for root in &options.roots {
        if root.capacity < 4096 {
            return refuse("capacity", format_size(root.capacity), "4 KiB at least");
        }
    }
    Ok(())
}
