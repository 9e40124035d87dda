//! The work of a root's threads: they read, check and deliver blocks, and take, write and publish
//! them. All bytes pass through memory of the store. So no drive ever touches a caller's memory,
//! and a hanging drive does not hold it.

use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSliceMut};
use std::mem;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay::error::Operation;
use forebay::{Buffer, Completions, Direction, Engine, Error, RequestOptions, Transfer};
use rustix::io::{ReadWriteFlags, preadv2};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::class::{Claim, Claimed, Class, padded};
use crate::failure::failed;
use crate::health::Health;
use crate::pool::Pool;
use crate::record::Whole;
use crate::root::Root;
use crate::traffic::Storing;
use crate::work::{End, Item, Kind, Why, Work};

/// Blocks that one thread writes at a time. While blocks are read, all threads together write one.
const STORES: usize = 8;
/// How often a writer looks whether another writer has finished the same block.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Part of a resident block, which fits into a core's own cache.
const PART_LEN: u64 = 256 << 10;
/// Bytes of memory for such parts: one for each core that copies. It has huge pages, and the
/// kernel pins these for a copy in less time than the caller's: LMCache's benchmark loads 1 MiB
/// blocks at 9.1 instead of 5.9 GB/s (two cores, `kv-lmcache-loads.csv` of
/// `benches/runs/2026-11-28-2-cores-bench`).
pub(crate) const PARTS_MAX: u64 = 8 << 20;

/// Some blocks of a call, all of one root.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) work: Arc<Work>,
    pub(crate) items: Vec<usize>,
}

/// What a thread works with.
#[derive(Debug)]
pub(crate) struct Runner<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) root: &'a Root,
    pub(crate) pool: &'a Pool,
    /// Memory for parts of resident blocks.
    pub(crate) parts: &'a Pool,
}

struct Load {
    transfer: Transfer,
    class: Arc<Class>,
    slot: u64,
    whole: Whole,
}

struct Store<'a> {
    transfer: Transfer,
    claimed: Claimed,
    checksum: u64,
    storing: Storing<'a>,
}

/// Reads bytes that are in the page cache; an error if some have left it, or if the file system
/// does not say so.
fn read_at_once(file: BorrowedFd<'_>, part: &mut [u8], at: u64) -> io::Result<()> {
    let len = part.len();
    let read = preadv2(file, &mut [IoSliceMut::new(part)], at, ReadWriteFlags::NOWAIT)?;
    if read == len { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
}

impl Runner<'_> {
    pub(crate) fn run(&self, shard: &Shard) {
        let work = &shard.work;
        self.root.counters.queued(work.started.elapsed());
        match work.kind {
            Kind::Get => {
                let _loading = self.root.traffic.load();
                self.load(shard);
            }
            Kind::Set => self.store(shard),
            Kind::Exists | Kind::Touch | Kind::Delete => {
                for &item in shard.items.iter().filter(|&&item| work.is_waiting(item)) {
                    let end = match work.kind {
                        Kind::Delete => self.delete(work, item),
                        kind => self.exists(work, item, kind == Kind::Touch),
                    };
                    work.end(item, end);
                }
            }
        }
        self.root.health(work.kind.side()).probed();
    }

    /// Reads a block on the caller's thread, which never waits for a drive; false if its record or
    /// its bytes are not in memory. That it was used is not noted: a note may wait.
    pub(crate) fn load_here(&self, work: &Work, item: usize) -> bool {
        let Item { key, len, .. } = &work.items[item];
        if self.root.past_cache || !self.root.loads.is_good() {
            return false;
        }
        let _loading = self.root.traffic.load();
        let find = |class: Arc<Class>| match class.find(key, true) {
            Ok(Some((slot, whole))) if u64::from(whole.len) == *len => Some((class, slot, whole)),
            _ => None,
        };
        let Some((class, slot, whole)) = self.root.classes(Some(*len)).into_iter().find_map(find)
        else {
            return false;
        };
        let is_done = self.load_resident(work, item, &class, slot, &whole);
        if is_done {
            self.root.counters.queued(Duration::ZERO);
        }
        is_done
    }

    fn exists(&self, work: &Work, item: usize, touches: bool) -> End {
        let health = self.root.health(work.kind.side());
        if !health.is_good() {
            return End::Not(Why::RootFailed);
        }
        let found = match self.root.find(self.engine, &work.items[item].key, None) {
            Ok(found) => found,
            Err(error) => return self.load_failed(&error),
        };
        health.answered();
        match found {
            Some((class, slot, _)) if touches => match class.touch(slot) {
                Ok(()) => End::Done,
                Err(_) => End::Not(Why::RootFailed),
            },
            Some(_) => End::Done,
            None => End::Not(Why::Absent),
        }
    }

    fn delete(&self, work: &Work, item: usize) -> End {
        if !self.root.stores.is_good() {
            return End::Not(Why::RootFailed);
        }
        loop {
            match self.root.remove(self.engine, &work.items[item].key) {
                Ok(Some(removed)) => {
                    self.root.stores.answered();
                    return if removed { End::Done } else { End::Not(Why::Absent) };
                }
                Ok(None) if Instant::now() >= work.deadline => return End::Not(Why::Late),
                Ok(None) => std::thread::sleep(LOOK_AGAIN),
                Err(error) => return self.store_failed(&error),
            }
        }
    }

    fn load_failed(&self, error: &Error) -> End {
        self.failed(&self.root.loads, error)
    }

    fn store_failed(&self, error: &Error) -> End {
        if is_full(error) {
            return End::Not(Why::NoRoom);
        }
        self.failed(&self.root.stores, error)
    }

    fn failed(&self, health: &Health, error: &Error) -> End {
        if matches!(error.errno(), Some(libc::EMFILE | libc::ENFILE)) {
            return End::Not(Why::Descriptors);
        }
        health.failed(&self.root.path, with_cause(error));
        End::Not(Why::RootFailed)
    }

    /// A buffer for a block. Waits only while this thread has none, so that no two threads wait
    /// for each other.
    fn buffer(&self, len: u64, may_wait: bool, work: &Work) -> Result<Option<Buffer>, Error> {
        if may_wait {
            self.pool.take(self.engine, padded(len), work.deadline)
        } else {
            self.pool.try_take(self.engine, padded(len))
        }
    }

    fn load(&self, shard: &Shard) {
        let work = &*shard.work;
        let ends = Completions::new();
        let mut flight: HashMap<usize, Load> = HashMap::new();
        let mut items = shard.items.iter().copied().peekable();
        self.root.read_ahead(shard.items.iter().map(|&item| &work.items[item]));
        while items.peek().is_some() || !flight.is_empty() {
            match items.peek().map(|&item| self.start_load(work, item, &ends, flight.is_empty())) {
                Some(Ok(load)) => {
                    let item = items.next().expect("just seen");
                    flight.extend(load.map(|load| (item, load)));
                }
                Some(Err(WaitForOthers)) | None => self.end_load(work, &ends, &mut flight),
            }
        }
    }

    /// Counts and ends a read: a caller that sees the end finds it counted.
    fn load_ends(&self, work: &Work, item: usize, end: End) {
        self.count_load(work, item, end);
        work.end(item, end);
    }

    fn count_load(&self, work: &Work, item: usize, end: End) {
        let end = work.known(item, end);
        self.root.counters.loaded(end, work.items[item].len, work.started.elapsed());
    }

    /// Starts reading a block; `None` if the item has ended.
    fn start_load(
        &self,
        work: &Work,
        item: usize,
        ends: &Completions,
        is_first: bool,
    ) -> Result<Option<Load>, WaitForOthers> {
        let (key, len) = (work.items[item].key, work.items[item].len);
        if !work.is_waiting(item) {
            self.count_load(work, item, End::Not(Why::Late));
            return Ok(None);
        }
        let not = |end| {
            self.load_ends(work, item, end);
            Ok(None)
        };
        if !self.root.loads.is_good() {
            return not(End::Not(Why::RootFailed));
        }
        let found = match self.root.find(self.engine, &key, Some(len)) {
            Ok(found) => found,
            Err(error) => return not(self.load_failed(&error)),
        };
        self.root.loads.answered();
        let Some((class, slot, whole)) = found else { return not(End::Not(Why::Absent)) };
        if !self.root.past_cache && self.load_resident(work, item, &class, slot, &whole) {
            let _ = class.touch(slot);
            return Ok(None);
        }
        let buffer = match self.buffer(len, is_first, work) {
            Ok(Some(buffer)) => buffer,
            Ok(None) if is_first => return not(End::Not(Why::Late)),
            Ok(None) => return Err(WaitForOthers),
            Err(_) => return not(End::Not(Why::Memory)),
        };
        let place = class.place(slot).map_err(failed(Operation::Open, &self.root.path));
        let options = RequestOptions::exactly().urgent();
        match place.and_then(|(data, offset)| data.start_read(offset, buffer, &options)) {
            Ok(transfer) => {
                transfer.report_to(ends, item as u64);
                Ok(Some(Load { transfer, class, slot, whole }))
            }
            Err(error) => not(self.load_failed(&error)),
        }
    }

    /// Delivers a block that is in the page cache to host memory, in parts that stay in the
    /// processor's cache between the two copies. False if the block needs the general path.
    fn load_resident(
        &self,
        work: &Work,
        item: usize,
        class: &Class,
        slot: u64,
        whole: &Whole,
    ) -> bool {
        let Some((data, offset)) = class.place_if_open(slot) else { return false };
        let Ok(Some(mut buffer)) = self.parts.try_take(self.engine, PART_LEN) else { return false };
        let Some(mut memory) = work.take_memory(item) else {
            self.parts.give(buffer);
            return false;
        };
        let (mut hasher, mut at) = (Xxh3::new(), offset);
        let mut copy = || {
            let whole_part = buffer.as_mut_slice()?;
            for piece in memory.iter_mut().filter(|piece| piece.device().is_none()) {
                for done in (0..piece.len()).step_by(whole_part.len()) {
                    let len = (piece.len() - done).min(PART_LEN);
                    let part = &mut whole_part[..usize::try_from(len).expect("a part")];
                    read_at_once(data.descriptor(), part, at).ok()?;
                    hasher.update(part);
                    piece.upload(done, part).ok()?;
                    at += len;
                }
            }
            Some(())
        };
        let copied = copy();
        self.parts.give(buffer);
        let is_good = copied.is_some()
            && at - offset == u64::from(whole.len)
            && hasher.digest() == whole.checksum;
        if is_good {
            self.count_load(work, item, End::Done);
            work.end_with(item, End::Done, memory);
        } else {
            work.give_back(item, memory);
        }
        is_good
    }

    /// Waits for one of the reads in flight, and delivers its block.
    fn end_load(&self, work: &Work, ends: &Completions, flight: &mut HashMap<usize, Load>) {
        let Some(item) = ends.wait(Some(work.deadline)) else {
            let late = format!("no answer from the drive in {:?}", work.started.elapsed());
            self.root.loads.failed(&self.root.path, late);
            for (item, load) in flight.drain() {
                load.transfer.cancel();
                load.transfer.detach();
                self.load_ends(work, item, End::Not(Why::Late));
            }
            return;
        };
        let item = usize::try_from(item).expect("an index");
        let Some(load) = flight.remove(&item) else { return };
        let (read, mut buffer) = load.transfer.wait();
        if let Err(error) = read {
            let failed = self.load_failed(&error);
            let is_lost = is_unreadable(&error)
                && self.remove_damaged(&load.class, load.slot, &load.whole, &with_cause(&error));
            self.load_ends(work, item, if is_lost { End::Not(Why::Damaged) } else { failed });
        } else if let Some(buffer) = &mut buffer {
            self.root.loads.worked();
            self.deliver(work, item, buffer, &load.class, load.slot, &load.whole);
        }
        buffer.into_iter().for_each(|buffer| self.pool.give(buffer));
    }

    /// Removes a block that the drive does not return as it was written, so that the next `set`
    /// stores it again. False if another has replaced it.
    fn remove_damaged(&self, class: &Class, slot: u64, whole: &Whole, what: &str) -> bool {
        let now = class.find(&whole.key, false);
        let is_damaged = matches!(now, Ok(Some(now)) if now == (slot, *whole));
        if is_damaged {
            let _ = class.remove(&whole.key);
            let (root, len) = (self.root.path.display(), whole.len);
            tracing::warn!(target: "forebay::blocks", %root, slot, len, "removed a block: {what}");
        }
        is_damaged
    }

    /// Checks a block and copies it to the caller.
    fn deliver(
        &self,
        work: &Work,
        item: usize,
        buffer: &mut Buffer,
        class: &Class,
        slot: u64,
        whole: &Whole,
    ) {
        let len = usize::try_from(whole.len).expect("64 MiB at most");
        let bytes = &buffer.as_slice().expect("the store's own memory")[..len];
        if xxh3_64(bytes) != whole.checksum {
            let what = "its bytes are not those that were written";
            let is_damaged = self.remove_damaged(class, slot, whole, what);
            let why = if is_damaged { Why::Damaged } else { Why::Absent };
            return self.load_ends(work, item, End::Not(why));
        }
        let Some(mut memory) = work.take_memory(item) else {
            return self.count_load(work, item, End::Not(Why::Late));
        };
        let copied = buffer.exchange(&mut memory, Direction::Read);
        let end = if copied.is_ok() { End::Done } else { End::Not(Why::Memory) };
        self.count_load(work, item, end);
        work.end_with(item, end, memory);
        let _ = class.touch(slot); // an error costs a worse choice of the block that leaves next
    }

    fn store(&self, shard: &Shard) {
        let work = &*shard.work;
        let ends = Completions::new();
        let mut flight: HashMap<usize, Store<'_>> = HashMap::new();
        let mut items: VecDeque<usize> = shard.items.iter().copied().collect();
        while !items.is_empty() || !flight.is_empty() {
            let Some(&item) = items.front().filter(|_| flight.len() < STORES) else {
                self.end_store(work, &ends, &mut flight);
                continue;
            };
            let Some(storing) = self.root.traffic.store() else {
                if flight.is_empty() {
                    self.root.traffic.wait();
                } else {
                    self.end_store(work, &ends, &mut flight);
                }
                continue;
            };
            match self.start_store(work, item, &ends, flight.is_empty(), storing) {
                Ok(Started::Store(store)) => {
                    flight.insert(items.pop_front().expect("just seen"), store);
                }
                Ok(Started::Ended) => drop(items.pop_front()),
                Ok(Started::Busy) => {
                    items.rotate_left(1);
                    if flight.is_empty() {
                        std::thread::sleep(LOOK_AGAIN);
                    } else {
                        self.end_store(work, &ends, &mut flight);
                    }
                }
                Err(WaitForOthers) => self.end_store(work, &ends, &mut flight),
            }
        }
    }

    fn store_ends(&self, work: &Work, item: usize, end: End) {
        let end = work.known(item, end);
        self.root.counters.saved(end, work.items[item].len, work.started.elapsed());
        work.end(item, end);
    }

    fn start_store<'s>(
        &self,
        work: &Work,
        item: usize,
        ends: &Completions,
        is_first: bool,
        storing: Storing<'s>,
    ) -> Result<Started<'s>, WaitForOthers> {
        let (key, len) = (work.items[item].key, work.items[item].len);
        let not = |end| {
            self.store_ends(work, item, end);
            Ok(Started::Ended)
        };
        if !work.is_waiting(item) {
            return not(End::Not(Why::Late));
        }
        if !self.root.stores.is_good() {
            return not(End::Not(Why::RootFailed));
        }
        let mut buffer = match self.buffer(len, is_first, work) {
            Ok(Some(buffer)) => buffer,
            Ok(None) if is_first => return not(End::Not(Why::Late)),
            Ok(None) => return Err(WaitForOthers),
            Err(_) => return not(End::Not(Why::Memory)),
        };
        let claim = self.root.claim(self.engine, &key, len);
        if claim.is_ok() {
            self.root.stores.answered();
        }
        let claimed = match claim {
            Ok(Claim::Claimed(claimed)) => claimed,
            other => {
                self.pool.give(buffer);
                return match other {
                    Ok(Claim::Busy) => Ok(Started::Busy),
                    Ok(Claim::Present) => not(End::Present),
                    Err(error) => not(self.store_failed(&error)),
                    Ok(Claim::NoRoom | Claim::Claimed(_)) => not(End::Not(Why::NoRoom)),
                };
            }
        };
        if claimed.evicted {
            self.root.counters.evicted();
        }
        let Some(mut memory) = work.take_memory(item) else {
            self.pool.give(buffer);
            return not(End::Not(Why::Late));
        };
        let copied = buffer.exchange(&mut memory, Direction::Write);
        work.give_back(item, memory);
        if let Err(error) = copied {
            match error {
                Error::CopyNotOver { .. } => mem::forget(buffer), // the GPU may still write to it
                _ => self.pool.give(buffer),
            }
            return not(End::Not(Why::Memory));
        }
        let (bytes, rest) = buffer
            .as_mut_slice()
            .expect("the store's own memory")
            .split_at_mut(usize::try_from(len).expect("64 MiB at most"));
        rest.fill(0);
        let checksum = xxh3_64(bytes);
        let place = claimed.class.place(claimed.slot);
        let place = place.map_err(failed(Operation::Open, &self.root.path));
        let mut options = RequestOptions::default();
        options.past_cache = self.root.past_cache;
        match place.and_then(|(data, offset)| data.start_write(offset, buffer, &options)) {
            Ok(transfer) => {
                transfer.report_to(ends, item as u64);
                Ok(Started::Store(Store { transfer, claimed, checksum, storing }))
            }
            Err(error) => not(self.store_failed(&error)),
        }
    }

    fn end_store(&self, work: &Work, ends: &Completions, flight: &mut HashMap<usize, Store<'_>>) {
        let Some(item) = ends.wait(Some(work.deadline)) else {
            let late = format!("no answer from the drive in {:?}", work.started.elapsed());
            self.root.stores.failed(&self.root.path, late);
            for (item, store) in flight.drain() {
                store.transfer.cancel();
                // The slot is free when the drive cannot write to it any more.
                let claimed = store.claimed;
                store.transfer.on_end(move || drop(claimed));
                store.transfer.detach();
                self.store_ends(work, item, End::Not(Why::Late));
            }
            return;
        };
        let item = usize::try_from(item).expect("an index");
        let Some(mut store) = flight.remove(&item) else { return };
        let (written, buffer) = store.transfer.wait();
        drop(store.storing);
        buffer.into_iter().for_each(|buffer| self.pool.give(buffer));
        let (key, len) = (work.items[item].key, work.items[item].len);
        let (class, slot) = (Arc::clone(&store.claimed.class), store.claimed.slot);
        let failed = failed(Operation::Write, &self.root.path);
        let stored = written.and_then(|_| {
            let short = u32::try_from(len).expect("64 MiB at most");
            store.claimed.publish(key, store.checksum, short).map_err(&failed)?;
            self.root.written(&class, slot, padded(len)).map_err(&failed)
        });
        // Before the end: the caller's next block finds the slot and its space counted once.
        drop(store.claimed);
        let end = match stored {
            Ok(()) => {
                self.root.stores.worked();
                End::Done
            }
            Err(error) => self.store_failed(&error),
        };
        self.store_ends(work, item, end);
    }
}

/// Nothing can start before something in flight has ended.
struct WaitForOthers;

enum Started<'a> {
    Store(Store<'a>),
    Ended,
    /// Another writer has the block.
    Busy,
}

/// An error with the system's own.
fn with_cause(error: &Error) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
    format!("{error}{}", cause.unwrap_or_default())
}

/// Whether the drive cannot read these bytes, as with a bad sector. EIO may also be a path that was
/// lost for a moment: then a good block is removed, and has to be stored again.
fn is_unreadable(error: &Error) -> bool {
    use rustix::io::Errno;
    matches!(error, Error::Io { source: Errno::IO | Errno::NODATA | Errno::ILSEQ, .. })
}

fn is_full(error: &Error) -> bool {
    use rustix::io::Errno;
    matches!(error, Error::Io { source: Errno::NOSPC | Errno::DQUOT | Errno::FBIG, .. })
}
