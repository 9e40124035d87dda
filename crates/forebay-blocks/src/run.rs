//! The work of a root's threads: they read, check and deliver blocks, and reserve, write and
//! publish them. The blocks of a call's part pass together through a piece of the store's
//! memory. So no drive ever touches a caller's memory, and a hanging drive does not hold it.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::mem;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use forebay::internal::Exchange;
use forebay::{Buffer, Direction, Engine, Error, Piece, PieceResult, Priority};
use rustix::io::{ReadWriteFlags, preadv2};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::index::{Header, Record, Wait, now, padded};
use crate::locks::Claim;
use crate::log::{Full, Place, Published, Reserved, Written};
use crate::pool::{self, Pool};
use crate::root::Root;
use crate::volume::Volume;
use crate::work::{End, Item, Kind, Side, Why, Work};

/// Bytes of resident blocks that are read before they are checked: they are in a core's own cache.
const PART: u32 = 256 << 10;
/// Bytes of resident blocks that are copied at a time. 16 threads that copied 256 KiB at a time
/// brought 16 GB/s to a GPU, with 512 KiB 19 (blocks of 1 MiB, H200, 2026-11-30).
const COPY: u64 = 4 << 20;
/// The least memory: the kernel copies a huge page faster.
const HUGE: u64 = 2 << 20;

/// Some blocks of a call, all of the same root.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) work: Arc<Work>,
    pub(crate) items: Vec<usize>,
}

/// What a thread works with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tools<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) root: &'a Root,
    pub(crate) pool: &'a Pool,
}

/// The part of a call that a thread works on.
struct Part<'a> {
    tools: Tools<'a>,
    work: &'a Work,
    volume: &'a Arc<Volume>,
    header: Header,
}

/// A block that is read or written.
struct Moved {
    item: usize,
    record: Record,
    /// Where it is in the memory of its part.
    at: usize,
    /// Its caller's, during the copy.
    memory: Vec<Buffer>,
    state: State,
    /// Of a write, until it is published.
    _claim: Option<Claim>,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Begun,
    Good,
    /// It is not resident, is damaged, or could not be copied.
    Failed,
}

impl Moved {
    fn new(item: usize, record: Record, claim: Option<Claim>) -> Self {
        let (memory, state) = (Vec::new(), State::Begun);
        Self { item, record, at: 0, memory, state, _claim: claim }
    }
}

fn size(len: u32) -> usize {
    usize::try_from(padded(len)).expect("64 MiB at most")
}

/// Moves the end of what is used on, and returns where it was.
fn advance(end: &mut usize, len: u32) -> usize {
    let at = *end;
    *end += size(len);
    at
}

impl<'a> Tools<'a> {
    /// Returns the items that are to be tried again: other writers have their blocks now, or have
    /// moved them.
    pub(crate) fn run(self, shard: &'a Shard) -> Vec<usize> {
        let (work, health) = (&*shard.work, self.root.health(shard.work.kind.side()));
        let items: Vec<_> =
            shard.items.iter().copied().filter(|&item| work.is_waiting(item)).collect();
        let open = || -> Result<_, Error> {
            let volume = self.root.volume()?;
            Ok((self.root.header(&volume)?, volume))
        };
        let ran = match health.is_good().then(open) {
            None => Err(End::Not(Why::RootFailed)),
            Some(Ok((header, volume))) => {
                Part { tools: self, work, volume: &volume, header }.run(&items)
            }
            Some(Err(error)) => Err(self.failed(work, &error)),
        };
        health.probed();
        ran.unwrap_or_else(|end| {
            items.iter().for_each(|&item| work.end(item, end));
            Vec::new()
        })
    }

    /// Reads blocks on the caller's thread, which never waits for a drive: those whose records and
    /// bytes are in memory.
    pub(crate) fn load_here(self, work: &Work, items: &[usize]) {
        if self.root.past_cache || !self.root.loads.is_good() {
            return;
        }
        let volume = self.root.current();
        let Some(header) = self.root.header_at_once(&volume) else { return };
        let part = Part { tools: self, work, volume: &volume, header };
        let _loading = self.root.traffic.load();
        if let Ok(mut found) = part.find(items, Wait::Never) {
            part.copy_resident(&mut found);
        }
    }

    fn failed(self, work: &Work, error: &Error) -> End {
        let side = work.kind.side();
        if matches!(side, Side::Store) && is_full(error) {
            return End::Not(Why::NoRoom);
        }
        self.root.health(side).failed(&self.root.path, with_cause(error));
        End::Not(Why::RootFailed)
    }
}

impl Part<'_> {
    fn run(&mut self, items: &[usize]) -> Result<Vec<usize>, End> {
        match self.work.kind {
            Kind::Get => {
                let _loading = self.tools.root.traffic.load();
                return self.load(items);
            }
            Kind::Set => return self.store(items),
            Kind::Exists | Kind::Touch => self.look(items)?,
            Kind::Delete => self.delete(items)?,
        }
        Ok(Vec::new())
    }

    fn look(&self, items: &[usize]) -> Result<(), End> {
        let found = self.records(items, Wait::ForDrive)?;
        if self.work.kind == Kind::Touch {
            let numbers = found.iter().flatten().map(|record| record.number).collect();
            self.volume.note_uses(&self.header, numbers);
        }
        self.end_found(items, found.iter().map(Option::is_some));
        Ok(())
    }

    fn end_found(&self, items: &[usize], found: impl Iterator<Item = bool>) {
        for (&item, found) in items.iter().zip(found) {
            self.work.end(item, if found { End::Done } else { End::Not(Why::Absent) });
        }
    }

    fn delete(&self, items: &[usize]) -> Result<(), End> {
        let keys: Vec<_> = items.iter().map(|&item| self.work.items[item].key.name()).collect();
        let removed = self.volume.remove(&keys, |_| true).map_err(self.of_index())?;
        self.tools.root.stores.answered();
        self.end_found(items, removed.into_iter());
        Ok(())
    }

    /// Makes ends of errors.
    fn failed(&self, error: &Error) -> End {
        self.tools.failed(self.work, error)
    }

    fn of_index(&self) -> impl Fn(io::Error) -> End {
        |error| self.failed(&self.tools.root.of_index()(error))
    }

    /// Whether a transfer for some items is to continue.
    fn goes_on(&self, items: &[usize]) -> impl Fn() -> bool {
        || Instant::now() < self.work.deadline && items.iter().any(|&it| self.work.is_waiting(it))
    }

    /// The end of items whose transfer failed, or was stopped by the deadline or the caller.
    fn stopped(&self, error: &Error) -> End {
        if !is_stop(error) {
            return self.failed(error);
        }
        if Instant::now() >= self.work.deadline {
            let late = format!("no answer from the drive in {:?}", self.work.started.elapsed());
            self.tools.root.health(self.work.kind.side()).failed(&self.tools.root.path, late);
        }
        End::Not(Why::Late)
    }

    fn buffer(&self, len: usize) -> Result<Buffer, End> {
        match self.tools.pool.take(self.tools.engine, len as u64, self.work.deadline) {
            Ok(Some(buffer)) => Ok(buffer),
            Ok(None) => Err(End::Not(Why::Late)),
            Err(_) => Err(End::Not(Why::Memory)),
        }
    }

    /// The records of some items. `Late` if the drive would have to be read, but must not.
    fn records(&self, items: &[usize], wait: Wait) -> Result<Vec<Option<Record>>, End> {
        let (items_of_call, index) = (&self.work.items, &self.volume.index);
        let mut is_read_ahead = false;
        let find = |&item: &usize| {
            let Item { key, len, .. } = items_of_call[item];
            let is_wanted = |it: &Record| !self.work.kind.has_bytes() || u64::from(it.len) == len;
            match index.find(&self.header, key.name(), Wait::Never, is_wanted) {
                Ok(found) => return Ok(found),
                Err(_) if wait == Wait::Never => return Err(End::Not(Why::Late)),
                Err(_) => {}
            }
            // After a start the index is on the drive: its pages are read concurrently.
            if !mem::replace(&mut is_read_ahead, true) {
                items.iter().for_each(|&it| index.read_ahead(items_of_call[it].key.name()));
            }
            index.find(&self.header, key.name(), wait, is_wanted).map_err(self.of_index())
        };
        let found = items.iter().map(find).collect::<Result<_, _>>()?;
        self.tools.root.health(self.work.kind.side()).answered();
        Ok(found)
    }

    /// Finds the blocks of some items, in the order of the log.
    fn find(&self, items: &[usize], wait: Wait) -> Result<Vec<Moved>, End> {
        let records = self.records(items, wait)?;
        let mut found = Vec::with_capacity(items.len());
        for (&item, record) in items.iter().zip(records) {
            match record {
                Some(record) => found.push(Moved::new(item, record, None)),
                None => self.work.end(item, End::Not(Why::Absent)),
            }
        }
        found.sort_unstable_by_key(|found| found.record.place);
        Ok(found)
    }

    /// Returns the items whose blocks were rescued during the read.
    fn load(&self, items: &[usize]) -> Result<Vec<usize>, End> {
        let mut found = self.find(items, Wait::ForDrive)?;
        if !self.tools.root.past_cache {
            self.copy_resident(&mut found);
        }
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let mut len = 0;
        found.iter_mut().for_each(|found| found.at = advance(&mut len, found.record.len));
        let mut buffer = self.buffer(len)?;
        let items: Vec<_> = found.iter().map(|it| it.item).collect();
        let blocks: Vec<_> = found.iter().map(|it| (it.record, it.at)).collect();
        let read = self.read(&mut buffer, &blocks, Priority::Urgent, self.goes_on(&items));
        let (errors, bytes) = match (read, buffer.as_slice()) {
            (Ok(errors), Some(bytes)) => (errors, bytes),
            (Ok(_), None) => unreachable!("the read is over"),
            (Err(error), bytes) => {
                // Otherwise the drive may still write to it.
                if bytes.is_some() {
                    self.tools.pool.give(buffer);
                }
                return Err(self.stopped(&error));
            }
        };
        if errors.iter().any(Option::is_none) {
            self.tools.root.loads.worked();
        }
        let (mut errors, mut again) = (errors.into_iter(), Vec::new());
        found.retain(|Moved { item, record, at, .. }| {
            let is_good = xxh3_64(&bytes[*at..at + record.len as usize]) == record.checksum;
            let error = errors.next().expect("one for each");
            if !is_good && self.work.is_waiting(*item) {
                match self.missed(record, error) {
                    Some(end) => self.work.end(*item, end),
                    None => again.push(*item),
                }
            }
            is_good
        });
        self.deliver(buffer, found);
        Ok(again)
    }

    /// Reads, checks and copies the blocks that are in the page cache. While some are copied to a
    /// GPU, the next are read. Blocks that remain in `found` wait again.
    fn copy_resident(&self, found: &mut Vec<Moved>) {
        let total: u64 = found.iter().map(|it| padded(it.record.len)).sum();
        let len = total.min(COPY);
        let count = if total > len { 2 } else { 1 };
        let whole =
            self.tools.pool.try_take(self.tools.engine, (count * len).max(HUGE)).ok().flatten();
        let cut = |it| (0..count).map(move |number| pool::part(it, number * len, len));
        let mut free: Vec<Buffer> = whole.iter().flat_map(cut).collect();
        self.take_memory(found);
        let copied = |(exchange, blocks): (Exchange, RangeInclusive<usize>),
                      found: &mut [Moved]| {
            let (copied, buffer) = exchange.wait();
            if copied.is_err() {
                found[blocks].iter_mut().for_each(|it| it.state = State::Failed);
            }
            buffer
        };
        let parts = |(number, it): (usize, &Moved)| {
            let (start, len) = (self.volume.offset(it.record.place), it.record.len);
            let part = move |from| (number, from, start + u64::from(from), PART.min(len - from));
            (0..len).step_by(PART as usize).map(part)
        };
        let parts: Vec<_> = found.iter().enumerate().flat_map(parts).collect();
        let mut parts = parts.into_iter().peekable();
        let (mut running, mut hasher) = (VecDeque::new(), Xxh3::new());
        while let Some(&(first, ..)) = parts.peek() {
            let buffer = free.pop().or_else(|| Some(copied(running.pop_front()?, found)));
            let Some(mut buffer) = buffer else { break };
            let bytes = buffer.as_mut_slice().expect("the store's own memory");
            let (mut pieces, mut last, mut end) = (Vec::new(), first, 0);
            while let Some(&(.., start, len)) = parts.peek()
                && end + size(len) <= bytes.len()
            {
                // Adjacent blocks are a single request.
                let (begin, most) = (end, bytes.len().min(end + PART as usize));
                let mut of_read = Vec::new();
                while let Some((number, from, _, len)) = parts.next_if(|&(.., offset, len)| {
                    offset == start + (end - begin) as u64 && end + size(len) <= most
                }) {
                    of_read.push((number, from, advance(&mut end, len), len as usize));
                }
                let part = &mut bytes[begin..end];
                let have = begin + read_at_once(self.volume.data.descriptor(), part, start);
                for (number, from, at, len) in of_read {
                    last = number;
                    let Moved { record, memory, state, .. } = &mut found[number];
                    if have < at + len {
                        *state = State::Failed;
                        continue;
                    }
                    if from == 0 {
                        hasher.reset();
                    }
                    hasher.update(&bytes[at..at + len]);
                    if from as usize + len == record.len as usize && *state == State::Begun {
                        let is_good = hasher.digest() == record.checksum;
                        *state = if is_good { State::Good } else { State::Failed };
                    }
                    pieces.extend(pieces_of(memory, from.into(), at as u64, len as u64));
                }
            }
            running.push_back((buffer.start_exchange(pieces, Direction::Read), first..=last));
        }
        running.into_iter().for_each(|last| drop(copied(last, found)));
        drop(free);
        whole.into_iter().for_each(|buffer| self.tools.pool.give(buffer));
        let good = found.extract_if(.., |found| found.state == State::Good);
        self.done(good.collect());
        for found in found {
            self.work.give_back(found.item, mem::take(&mut found.memory));
        }
    }

    /// Collects the memory of blocks, without those that have ended.
    fn take_memory(&self, found: &mut Vec<Moved>) {
        found.retain_mut(|found| {
            let memory = self.work.take_memory(found.item);
            memory.map(|memory| found.memory = memory).is_some()
        });
    }

    /// Ends blocks that were copied to their callers.
    fn done(&self, blocks: Vec<Moved>) {
        let numbers = blocks.iter().map(|it| it.record.number).collect();
        self.volume.note_uses(&self.header, numbers);
        for block in blocks {
            self.work.end_with(block.item, End::Done, block.memory);
        }
    }

    /// Reads blocks from the drive to their places in the buffer, adjacent blocks by a single
    /// request. Returns their errors.
    fn read(
        &self,
        buffer: &mut Buffer,
        blocks: &[(Record, usize)],
        priority: Priority,
        mut go_on: impl FnMut() -> bool,
    ) -> Result<Vec<Option<Error>>, Error> {
        let mut read = |blocks: &[(Record, usize)]| {
            let piece = |&(record, at): &(Record, usize)| {
                let (offset, len) = (self.volume.offset(record.place), record.len.into());
                // Whole units of the drive, so that neighbours are a single request.
                let len = if blocks.len() > 1 { padded(record.len) } else { len };
                Piece::new(&self.volume.data, offset, len, at as u64)
            };
            let pieces: Vec<_> = blocks.iter().map(piece).collect();
            let read = self.tools.engine.read_many(&pieces, [&mut *buffer]).exact();
            let read = read.priority(priority).while_(&mut go_on).run();
            read.map(|read| read.results)
        };
        let results = read(blocks)?;
        let error = |(result, block): (PieceResult, _)| {
            if result.is_ok() {
                return Ok(None);
            }
            // Its neighbours may be the reason.
            match read(block) {
                Ok(mut results) => Ok(results.pop().expect("of one piece").err().map(|it| *it)),
                Err(error) if is_stop(&error) => Err(error),
                Err(error) => Ok(Some(error)),
            }
        };
        results.into_iter().zip(blocks.chunks(1)).map(error).collect()
    }

    /// The end of a block that was not read as it was written. `None` if it was moved.
    fn missed(&self, record: &Record, failure: Option<Error>) -> Option<End> {
        let what = match &failure {
            None => "its bytes are not those that were written".to_owned(),
            Some(error) if is_lost(error) => with_cause(error),
            Some(error) => return Some(self.failed(error)),
        };
        if failure.is_some_and(|error| error.errno().is_some()) {
            self.tools.root.loads.failed(&self.tools.root.path, what.clone());
        }
        // So that the next `set` stores it again.
        let removed = self.volume.remove(&[record.key], |now| now == record);
        if let Ok([false]) = removed.as_deref() {
            // It was evicted, rescued, or replaced by a different process.
            let is_moved = |now: &Record| now.len == record.len && now != record;
            let index = &self.volume.index;
            let moved = index.find(&self.header, record.key, Wait::ForDrive, is_moved);
            return moved.ok().flatten().is_none().then_some(End::Not(Why::Absent));
        }
        if removed.is_ok() {
            let (root, len) = (self.tools.root.path.display(), record.len);
            tracing::warn!(target: "forebay::blocks", %root, len, "removed a block: {what}");
        }
        Some(End::Not(Why::Damaged))
    }

    /// Copies good blocks to their callers, all of them together.
    fn deliver(&self, buffer: Buffer, mut found: Vec<Moved>) {
        self.take_memory(&mut found);
        let (failed, buffer) = exchange(buffer, &found, Direction::Read);
        self.tools.pool.give(buffer);
        for (number, _) in failed.into_iter().rev() {
            let bad = found.remove(number);
            self.work.end_with(bad.item, End::Not(Why::Memory), bad.memory);
        }
        self.done(found);
    }

    /// Writes blocks; returns the items whose blocks other writers have.
    fn store(&mut self, items: &[usize]) -> Result<Vec<usize>, End> {
        let (mut busy, mut puts, mut end) = (Vec::new(), Vec::new(), 0);
        for &item in items {
            let Item { key, len, .. } = self.work.items[item];
            match self.volume.locks.claim_key(key.0[2]).map_err(self.of_index())? {
                Some(claim) => {
                    let len = u32::try_from(len).expect("checked when the call began");
                    let record = Record { key: key.name(), len, ..Record::default() };
                    puts.push(Moved::new(item, record, Some(claim)));
                }
                None => busy.push(item),
            }
        }
        // A second writer may have stored some of them before they were claimed.
        self.header = self.tools.root.header(self.volume).map_err(|error| self.failed(&error))?;
        let claimed: Vec<_> = puts.iter().map(|put| put.item).collect();
        let mut there = self.records(&claimed, Wait::ForDrive)?.into_iter();
        puts.retain_mut(|put| {
            let is_new = there.next().expect("one for each").is_none();
            match is_new {
                true => put.at = advance(&mut end, put.record.len),
                false => self.work.end(put.item, End::Present),
            }
            is_new
        });
        if !puts.is_empty() {
            busy.extend(self.write(puts, end)?);
        }
        Ok(busy)
    }

    /// Returns the items that found no place because of concurrent writers, or whose places the log
    /// passed.
    fn write(&self, mut puts: Vec<Moved>, len: usize) -> Result<Vec<usize>, End> {
        let root = self.tools.root;
        let items: Vec<_> = puts.iter().map(|put| put.item).collect();
        let go_on = self.goes_on(&items);
        let _storing = loop {
            if !go_on() {
                return Err(End::Not(Why::Late));
            }
            match root.traffic.store() {
                Some(storing) => break storing,
                None => root.traffic.wait(),
            }
        };
        let buffer = self.buffer(len)?;
        let Some(mut buffer) = self.collect(buffer, &mut puts) else { return Ok(Vec::new()) };
        root.end_of_hanging();
        let wanted: Vec<_> = puts.iter().map(|put| (put.record.key, put.record.len)).collect();
        let reserved = self.volume.reserve(&wanted, root.keep_free);
        let mut reserved = reserved.map_err(self.of_index())?;
        root.counters.evicted(reserved.evicted);
        let bytes = buffer.as_mut_slice().expect("the store's own memory");
        let (mut blocks, mut own, mut busy) = (Vec::new(), Vec::new(), Vec::new());
        for (&Moved { item, record, at, .. }, place) in puts.iter().zip(&reserved.places) {
            match *place {
                Ok(Place { at: place, number }) => {
                    let end = at + record.len as usize;
                    bytes[end..at + size(record.len)].fill(0);
                    let (checksum, written) = (xxh3_64(&bytes[at..end]), now());
                    let record = Record { place, number, checksum, written, ..record };
                    blocks.push(Written { record, replaces: None, at });
                    own.push(item);
                }
                Err(Full::Drive) => self.work.end(item, End::Not(Why::NoRoom)),
                Err(Full::Writers) => busy.push(item),
            }
        }
        let published = self.publish(buffer, &blocks, &mut reserved, go_on);
        let published = published.map_err(|error| self.stopped(&error))?;
        root.stores.worked();
        for (item, published) in own.into_iter().zip(published) {
            match published {
                Published::Stored => self.work.end(item, End::Done),
                Published::There => self.work.end(item, End::Present),
                Published::Passed => busy.push(item),
            }
        }
        drop(puts);
        self.rescue(reserved);
        Ok(busy)
    }

    /// Writes blocks from a buffer, which returns to the pool, and makes them visible. If a write
    /// hangs, its buffer and its places are kept until it has ended.
    fn publish(
        &self,
        buffer: Buffer,
        blocks: &[Written],
        reserved: &mut Reserved,
        mut go_on: impl FnMut() -> bool,
    ) -> Result<Vec<Published>, Error> {
        let volume = self.volume;
        let follows = |one: &Written, next: &Written| {
            let len = padded(one.record.len);
            one.at + size(one.record.len) == next.at
                && volume.offset(one.record.place) + len == volume.offset(next.record.place)
        };
        // Offset, place in the buffer and length of each write.
        let extent = |row: &[Written]| {
            let len = row.iter().map(|it| padded(it.record.len)).sum::<u64>();
            (volume.offset(row[0].record.place), row[0].at as u64, len)
        };
        let extents: Vec<_> = blocks.chunk_by(follows).map(extent).collect();
        let written = extents.iter().try_for_each(|&(offset, at, len)| {
            let part = pool::part(&buffer, at, len);
            let write = volume.data.write(&part).at(offset);
            let write = if self.tools.root.past_cache { write.past_cache() } else { write };
            write.while_(&mut go_on).run().map(drop)
        });
        match buffer.as_slice() {
            Some(_) => self.tools.pool.give(buffer),
            None => self.tools.root.hanging.lock().push((buffer, mem::take(&mut reserved.space))),
        }
        written?;
        let published = volume.publish(blocks).and_then(|(published, evicted)| {
            self.tools.root.counters.evicted(evicted);
            let written = |&(at, _, len)| self.tools.root.written(volume, at, len);
            extents.iter().try_for_each(written)?;
            Ok(published)
        });
        published.map_err(self.tools.root.of_index())
    }

    /// Writes blocks again that were used and will be overwritten soon. Until then they are read
    /// where they are: what fails here is overwritten later.
    fn rescue(&self, mut reserved: Reserved) {
        let deadline = self.work.deadline;
        let rescued = mem::take(&mut reserved.rescued);
        let mut end = 0;
        let from = |(record, _): &(Record, _)| (*record, advance(&mut end, record.len));
        let from: Vec<_> = rescued.iter().map(from).collect();
        if rescued.is_empty() {
            return;
        }
        let Ok(Some(mut buffer)) = self.tools.pool.take(self.tools.engine, end as u64, deadline)
        else {
            return;
        };
        let go_on = || Instant::now() < deadline;
        // Their checksums tell which were read.
        let _ = self.read(&mut buffer, &from, Priority::default(), go_on);
        let Some(bytes) = buffer.as_slice() else { return }; // the drive may still write to it
        let good = |(&(record, at), (_, to)): (&(Record, usize), &(Record, Place))| {
            let is_good = xxh3_64(&bytes[at..at + record.len as usize]) == record.checksum;
            let Place { at: place, number } = *to;
            let (replaces, record) = (Some(record.number), Record { place, number, ..record });
            is_good.then_some(Written { record, replaces, at })
        };
        let blocks: Vec<_> = from.iter().zip(&rescued).filter_map(good).collect();
        let published = self.publish(buffer, &blocks, &mut reserved, go_on);
        let is_stored = |it: &&Published| **it == Published::Stored;
        let stored = published.unwrap_or_default().iter().filter(is_stored).count();
        self.tools.root.counters.evicted((rescued.len() - stored) as u64);
    }

    /// Collects the bytes of blocks from their callers, all of them together. `None` if a GPU may
    /// still write to the buffer.
    fn collect(&self, buffer: Buffer, puts: &mut Vec<Moved>) -> Option<Buffer> {
        self.take_memory(puts);
        let (failed, buffer) = exchange(buffer, puts, Direction::Write);
        let is_open = failed.iter().any(|(_, error)| matches!(error, Error::CopyNotOver { .. }));
        let mut number = 0..;
        puts.retain_mut(|Moved { item, memory, .. }| {
            let number = number.next();
            let is_bad = is_open || failed.iter().any(|(bad, _)| Some(*bad) == number);
            match (is_bad, mem::take(memory)) {
                (true, memory) => self.work.end_with(*item, End::Not(Why::Memory), memory),
                (false, memory) => self.work.give_back(*item, memory),
            }
            !is_bad && self.work.is_waiting(*item)
        });
        if is_open {
            mem::forget(buffer);
            return None;
        }
        Some(buffer)
    }
}

/// Parts of a block's memory, which hold `len` bytes from byte `from` of the block on, with their
/// places in the store's memory, from `at` on.
fn pieces_of(
    memory: &[Buffer],
    mut from: u64,
    mut at: u64,
    mut len: u64,
) -> impl Iterator<Item = (u64, Buffer)> {
    memory.iter().filter_map(move |piece| {
        let skipped = from.min(piece.len());
        let taken = len.min(piece.len() - skipped);
        let place = at;
        (from, at, len) = (from - skipped, at + taken, len - taken);
        (taken > 0).then(|| (place, pool::part(piece, skipped, taken)))
    })
}

/// Copies blocks between the store's memory and their callers' pieces. Returns the blocks that
/// failed, by number.
fn exchange(
    buffer: Buffer,
    blocks: &[Moved],
    direction: Direction,
) -> (Vec<(usize, Error)>, Buffer) {
    let copy = |buffer: Buffer, blocks: &[Moved]| {
        let pieces =
            |it: &'_ Moved| pieces_of(&it.memory, 0, it.at as u64, u64::MAX).collect::<Vec<_>>();
        let pieces = blocks.iter().flat_map(pieces);
        buffer.start_exchange(pieces.collect(), direction).wait()
    };
    let (copied, mut buffer) = copy(buffer, blocks);
    let mut failed = Vec::new();
    if copied.is_err() {
        for (number, block) in blocks.chunks(1).enumerate() {
            let (copied, same) = copy(buffer, block);
            failed.extend(copied.err().map(|error| (number, error)));
            buffer = same;
        }
    }
    (failed, buffer)
}

/// Reads bytes that are in the page cache, up to the first that is not; none if the file system
/// does not say so.
fn read_at_once(file: BorrowedFd<'_>, part: &mut [u8], at: u64) -> usize {
    preadv2(file, &mut [IoSliceMut::new(part)], at, ReadWriteFlags::NOWAIT).unwrap_or(0)
}

/// An error with the system's own.
fn with_cause(error: &Error) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
    format!("{error}{}", cause.unwrap_or_default())
}

/// Whether a transfer was stopped.
fn is_stop(error: &Error) -> bool {
    matches!(error, Error::Cancelled { .. } | Error::TimedOut { .. })
}

/// Whether the drive lacks these bytes or cannot read them, as with a bad sector. EIO may also be a
/// path that was lost for a moment: then a good block is removed, and must be stored again.
fn is_lost(error: &Error) -> bool {
    let is_short = matches!(error, Error::EndOfFile { .. } | Error::FileChanged { .. });
    is_short || fails_with(error, &[libc::EIO, libc::ENODATA, libc::EILSEQ])
}

fn is_full(error: &Error) -> bool {
    fails_with(error, &[libc::ENOSPC, libc::EDQUOT, libc::EFBIG])
}

fn fails_with(error: &Error, numbers: &[i32]) -> bool {
    matches!(error, Error::Io { source, .. } if numbers.contains(&source.0))
}
