//! The work of a root's threads: they read, check and deliver blocks, and reserve, write and
//! publish them. The blocks of a call's part pass together through one piece of the store's
//! memory. So no drive ever touches a caller's memory, and a hanging drive does not hold it.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::mem;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use forebay::{Buffer, Direction, Engine, Error, Exchange, Piece, Priority, RequestOptions};
use rustix::io::{ReadWriteFlags, preadv2};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::index::{Header, Record, Wait, padded};
use crate::key::Key;
use crate::locks::Claim;
use crate::log::{Full, Place, Published, Reserved, now};
use crate::pool::{self, Pool};
use crate::root::Root;
use crate::volume::Volume;
use crate::work::{End, Kind, Side, Why, Work};

/// Bytes of resident blocks that are read before they are checked: they are in a core's own cache.
const PART: u32 = 256 << 10;
/// Bytes of resident blocks that are copied at a time. 16 threads that copied 256 KiB at a time
/// brought 16 GB/s to a GPU, with 512 KiB 19 (blocks of 1 MiB, H200, 2026-11-30).
const COPY: u64 = 4 << 20;
/// The least memory: the kernel copies a huge page faster.
const HUGE: u64 = 2 << 20;

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
}

/// A block that is found.
struct Found {
    item: usize,
    record: Record,
    /// Where it lies in the memory of its part.
    at: usize,
    /// Its caller's, while it is copied there.
    memory: Vec<Buffer>,
    state: Read,
}

#[derive(Debug, PartialEq, Eq)]
enum Read {
    Begun,
    Good,
    /// It is not resident, is damaged, or could not be copied.
    Failed,
}

/// A block that is written.
struct Put {
    item: usize,
    key: Key,
    len: u32,
    at: usize,
    /// Until it is published.
    _claim: Claim,
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

fn len_of(len: u64) -> u32 {
    u32::try_from(len).expect("checked when the call began")
}

impl Runner<'_> {
    /// Returns the items that are to be tried again: others are writing their blocks now.
    pub(crate) fn run(&self, shard: &Shard) -> Vec<usize> {
        let work = &shard.work;
        let items: Vec<_> =
            shard.items.iter().copied().filter(|&item| work.is_waiting(item)).collect();
        let mut busy = Vec::new();
        let volume = match self.root.health(work.kind.side()).is_good() {
            true => self.root.volume().map_err(|error| self.failed(work.kind.side(), &error)),
            false => Err(End::Not(Why::RootFailed)),
        };
        let ran = volume.and_then(|volume| match work.kind {
            Kind::Get => {
                let _loading = self.root.traffic.load();
                self.load(work, &items, &volume)
            }
            Kind::Set => self.store(work, &items, &volume).map(|others| busy = others),
            Kind::Exists | Kind::Touch => self.look(work, &items, &volume),
            Kind::Delete => self.delete(work, &items, &volume),
        });
        if let Err(end) = ran {
            items.iter().for_each(|&item| work.end(item, end));
        }
        self.root.health(work.kind.side()).probed();
        busy
    }

    fn look(&self, work: &Work, items: &[usize], volume: &Volume) -> Result<(), End> {
        let side = work.kind.side();
        let header = self.root.header(volume).map_err(|error| self.failed(side, &error))?;
        let mut all = Vec::with_capacity(items.len());
        for &item in items {
            let key = &work.items[item].key;
            let found = volume.find(&header, key, None, Wait::ForDrive, self.root.leaving);
            all.push(found.map_err(|error| self.failed(side, &self.root.of_index()(error)))?);
        }
        self.root.health(side).answered();
        if work.kind == Kind::Touch {
            let numbers = all.iter().flatten().map(|record| record.number).collect();
            volume.note_uses(&header, self.root.leaving.policy, numbers);
        }
        for (&item, found) in items.iter().zip(all) {
            work.end(item, found.map_or(End::Not(Why::Absent), |_| End::Done));
        }
        Ok(())
    }

    fn delete(&self, work: &Work, items: &[usize], volume: &Volume) -> Result<(), End> {
        let keys: Vec<_> = items.iter().map(|&item| *work.items[item].key.name()).collect();
        let removed = volume.remove(&keys, |_| true, self.root.leaving);
        let removed =
            removed.map_err(|error| self.failed(Side::Store, &self.root.of_index()(error)))?;
        self.root.stores.answered();
        for (&item, removed) in items.iter().zip(removed) {
            work.end(item, if removed { End::Done } else { End::Not(Why::Absent) });
        }
        Ok(())
    }

    fn failed(&self, side: Side, error: &Error) -> End {
        if matches!(side, Side::Store) && is_full(error) {
            return End::Not(Why::NoRoom);
        }
        self.root.health(side).failed(&self.root.path, with_cause(error));
        End::Not(Why::RootFailed)
    }

    /// Whether a transfer for some items is to continue.
    fn goes_on(work: &Work, items: &[usize]) -> bool {
        Instant::now() < work.deadline && items.iter().any(|&item| work.is_waiting(item))
    }

    /// A transfer was stopped: its drive is late, or the caller has no more use for it.
    fn stopped(&self, work: &Work) -> End {
        if Instant::now() >= work.deadline {
            let late = format!("no answer from the drive in {:?}", work.started.elapsed());
            self.root.health(work.kind.side()).failed(&self.root.path, late);
        }
        End::Not(Why::Late)
    }

    fn buffer(&self, work: &Work, len: usize) -> Result<Buffer, End> {
        match self.pool.take(self.engine, len as u64, work.deadline) {
            Ok(Some(buffer)) => Ok(buffer),
            Ok(None) => Err(End::Not(Why::Late)),
            Err(_) => Err(End::Not(Why::Memory)),
        }
    }

    /// Finds the blocks of some items, those next to each other in the log in order.
    fn find(
        &self,
        work: &Work,
        items: &[usize],
        volume: &Volume,
        header: &Header,
        wait: Wait,
    ) -> Result<Vec<Found>, Error> {
        let of_index = self.root.of_index();
        let key = |item: &usize| &work.items[*item].key;
        let mut found = Vec::with_capacity(items.len());
        for (number, &item) in items.iter().enumerate() {
            let len = Some(len_of(work.items[item].len));
            let mut record = volume.find(header, key(&item), len, Wait::Never, self.root.leaving);
            if record.is_err() && wait == Wait::ForDrive {
                // After a start the index is on the drive: all of it is read at once.
                if number == 0 {
                    items.iter().for_each(|item| volume.index.read_ahead(key(item)));
                }
                record = volume.find(header, key(&item), len, wait, self.root.leaving);
            }
            match record.map_err(&of_index)? {
                Some(record) => {
                    let (memory, state) = (Vec::new(), Read::Begun);
                    found.push(Found { item, record, at: 0, memory, state });
                }
                None => work.end(item, End::Not(Why::Absent)),
            }
        }
        found.sort_unstable_by_key(|found| found.record.place);
        Ok(found)
    }

    fn load(&self, work: &Work, items: &[usize], volume: &Volume) -> Result<(), End> {
        let failed = |error| self.failed(Side::Load, &error);
        let header = self.root.header(volume).map_err(failed)?;
        let found = self.find(work, items, volume, &header, Wait::ForDrive);
        let mut found = found.map_err(failed)?;
        self.root.loads.answered();
        if !self.root.past_cache {
            self.copy_resident(work, volume, &header, &mut found);
        }
        if found.is_empty() {
            return Ok(());
        }
        let mut len = 0;
        found.iter_mut().for_each(|found| found.at = advance(&mut len, found.record.len));
        let mut buffer = self.buffer(work, len)?;
        let read = self.read(work, volume, &mut buffer, &found);
        let (failures, bytes) = match (read, buffer.as_slice()) {
            (Ok(failures), Some(bytes)) => (failures, bytes),
            (Ok(_), None) => unreachable!("the read is over"),
            (Err(end), bytes) => {
                // Otherwise the drive may still write to it.
                if bytes.is_some() {
                    self.pool.give(buffer);
                }
                return Err(end);
            }
        };
        found.retain(|found| {
            let Found { item, record, at, .. } = found;
            let is_good = xxh3_64(&bytes[*at..at + record.len as usize]) == record.checksum;
            if !is_good && work.is_waiting(*item) {
                let failure = failures.iter().find(|(failed, _)| failed == item);
                work.end(*item, self.missed(volume, record, failure.map(|(_, it)| it)));
            }
            is_good
        });
        self.deliver(work, volume, &header, buffer, found);
        Ok(())
    }

    /// Reads, checks and copies the blocks that are in the page cache. While some are copied to a
    /// GPU, the next ones are read. What is left in `found` waits again.
    fn copy_resident(&self, work: &Work, volume: &Volume, header: &Header, found: &mut Vec<Found>) {
        let total: u64 = found.iter().map(|it| padded(it.record.len)).sum();
        let len = total.min(COPY);
        let count = if total > len { 2 } else { 1 };
        let whole = self.pool.try_take(self.engine, (count * len).max(HUGE)).ok().flatten();
        let cut = |it| (0..count).map(move |number| pool::part(it, number * len, len));
        let mut free: Vec<Buffer> = whole.iter().flat_map(cut).collect();
        take_memory(work, found);
        let copied = |(exchange, blocks): (Exchange, RangeInclusive<usize>),
                      found: &mut [Found]| {
            let (copied, buffer) = exchange.wait();
            if copied.is_err() {
                found[blocks].iter_mut().for_each(|it| it.state = Read::Failed);
            }
            buffer
        };
        let parts = |(number, it): (usize, &Found)| {
            let (start, len) = (volume.offset(it.record.place), it.record.len);
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
                // Blocks that are next to each other are one request.
                let (begin, most) = (end, bytes.len().min(end + PART as usize));
                let mut of_read = Vec::new();
                while let Some((number, from, _, len)) = parts.next_if(|&(.., offset, len)| {
                    offset == start + (end - begin) as u64 && end + size(len) <= most
                }) {
                    of_read.push((number, from, advance(&mut end, len), len as usize));
                }
                let part = &mut bytes[begin..end];
                let have = begin + read_at_once(volume.data.descriptor(), part, start);
                for (number, from, at, len) in of_read {
                    last = number;
                    let Found { record, memory, state, .. } = &mut found[number];
                    if have < at + len {
                        *state = Read::Failed;
                        continue;
                    }
                    if from == 0 {
                        hasher.reset();
                    }
                    hasher.update(&bytes[at..at + len]);
                    if from as usize + len == record.len as usize && *state == Read::Begun {
                        let is_good = hasher.digest() == record.checksum;
                        *state = if is_good { Read::Good } else { Read::Failed };
                    }
                    pieces.extend(pieces_of(memory, from.into(), at as u64, len as u64));
                }
            }
            running.push_back((buffer.start_exchange(pieces, Direction::Read), first..=last));
        }
        running.into_iter().for_each(|last| drop(copied(last, found)));
        drop(free);
        whole.into_iter().for_each(|buffer| self.pool.give(buffer));
        let good = found.extract_if(.., |found| found.state == Read::Good);
        self.done(work, volume, header, good.collect());
        for found in found {
            work.give_back(found.item, mem::take(&mut found.memory));
        }
    }

    /// Ends blocks that were copied to their callers.
    fn done(&self, work: &Work, volume: &Volume, header: &Header, blocks: Vec<Found>) {
        let numbers = blocks.iter().map(|it| it.record.number).collect();
        volume.note_uses(header, self.root.leaving.policy, numbers);
        for block in blocks {
            work.end_with(block.item, End::Done, block.memory);
        }
    }

    /// Reads blocks from the drive. Those that are next to each other are one request. Returns the
    /// errors of single blocks.
    fn read(
        &self,
        work: &Work,
        volume: &Volume,
        buffer: &mut Buffer,
        blocks: &[Found],
    ) -> Result<Vec<(usize, Error)>, End> {
        let items: Vec<_> = blocks.iter().map(|it| it.item).collect();
        let mut go_on = || Self::goes_on(work, &items);
        let mut read = |blocks: &[Found]| {
            let piece = |it: &Found| {
                let (offset, len) = (volume.offset(it.record.place), it.record.len.into());
                // Whole units of the drive, so that neighbours are one request.
                let len = if blocks.len() > 1 { padded(it.record.len) } else { len };
                Piece::new(&volume.data, offset, len, it.at as u64)
            };
            let pieces: Vec<_> = blocks.iter().map(piece).collect();
            let read = self.engine.read_many(&pieces, [&mut *buffer]).exact();
            let read = read.priority(Priority::Urgent).while_(&mut go_on).run();
            read.map(|read| read.results)
        };
        let mut failures = Vec::new();
        let results = match read(blocks) {
            Ok(results) => results,
            Err(Error::Cancelled { .. } | Error::TimedOut { .. }) => {
                return Err(self.stopped(work));
            }
            Err(error) => return Err(self.failed(Side::Load, &error)),
        };
        let bad = results.iter().zip(blocks.chunks(1)).filter(|(result, _)| result.is_err());
        for (_, block) in bad {
            // Its neighbours may be the reason.
            let alone = match read(block) {
                Ok(mut results) => results.pop().expect("of one piece").map_err(|error| *error),
                Err(Error::Cancelled { .. } | Error::TimedOut { .. }) => {
                    return Err(self.stopped(work));
                }
                Err(error) => Err(error),
            };
            failures.extend(alone.err().map(|error| (block[0].item, error)));
        }
        if failures.len() < blocks.len() {
            self.root.loads.worked();
        }
        Ok(failures)
    }

    /// The end of a block that was not read as it was written.
    fn missed(&self, volume: &Volume, record: &Record, failure: Option<&Error>) -> End {
        let what = match failure {
            None => "its bytes are not those that were written".to_owned(),
            Some(error) if is_lost(error) => with_cause(error),
            Some(error) => return self.failed(Side::Load, error),
        };
        if failure.is_some_and(|error| error.errno().is_some()) {
            self.root.loads.failed(&self.root.path, what.clone());
        }
        // So that the next `set` stores it again.
        let is_it = |now: &Record| now == record;
        match volume.remove(&[record.key], is_it, self.root.leaving).as_deref() {
            Ok([true]) => {
                let (root, len) = (self.root.path.display(), record.len);
                tracing::warn!(target: "forebay::blocks", %root, len, "removed a block: {what}");
                End::Not(Why::Damaged)
            }
            // Evicted, or replaced by another process.
            Ok(_) => End::Not(Why::Absent),
            Err(_) => End::Not(Why::Damaged),
        }
    }

    /// Copies good blocks to their callers, all of them together.
    fn deliver(
        &self,
        work: &Work,
        volume: &Volume,
        header: &Header,
        buffer: Buffer,
        mut found: Vec<Found>,
    ) {
        take_memory(work, &mut found);
        let places: Vec<_> = found.iter().map(|it| (it.at, &*it.memory)).collect();
        let (failed, buffer) = exchange(buffer, &places, Direction::Read);
        self.pool.give(buffer);
        for (number, _) in failed.into_iter().rev() {
            let bad = found.remove(number);
            work.end_with(bad.item, End::Not(Why::Memory), bad.memory);
        }
        self.done(work, volume, header, found);
    }

    /// Reads blocks on the caller's thread, which never waits for a drive: those whose records and
    /// bytes are in memory.
    pub(crate) fn load_here(&self, work: &Work, items: &[usize]) {
        if self.root.past_cache || !self.root.loads.is_good() {
            return;
        }
        let Some((volume, header)) = self.root.volume_at_once() else { return };
        let _loading = self.root.traffic.load();
        if let Ok(mut found) = self.find(work, items, &volume, &header, Wait::Never) {
            self.copy_resident(work, &volume, &header, &mut found);
        }
    }

    /// Writes blocks; returns the items whose blocks other writers have.
    fn store(&self, work: &Work, items: &[usize], volume: &Arc<Volume>) -> Result<Vec<usize>, End> {
        let on_error = |error| self.failed(Side::Store, &self.root.of_index()(error));
        let (mut busy, mut puts, mut end) = (Vec::new(), Vec::new(), 0);
        for &item in items {
            let (key, len) = (work.items[item].key, len_of(work.items[item].len));
            match volume.locks.claim_key(key.bits(2)).map_err(on_error)? {
                Some(claim) => puts.push(Put { item, key, len, at: 0, _claim: claim }),
                None => busy.push(item),
            }
        }
        let header = self.root.header(volume).map_err(|error| self.failed(Side::Store, &error))?;
        let mut error = None;
        puts.retain_mut(|put| {
            let len = Some(put.len);
            match volume.find(&header, &put.key, len, Wait::ForDrive, self.root.leaving) {
                Ok(Some(_)) => work.end(put.item, End::Present),
                Ok(None) => {
                    put.at = advance(&mut end, put.len);
                    return true;
                }
                Err(failed) => error = Some(failed),
            }
            false
        });
        if let Some(error) = error {
            return Err(on_error(error));
        }
        self.root.stores.answered();
        if !puts.is_empty() {
            busy.extend(self.write(work, volume, puts, end)?);
        }
        Ok(busy)
    }

    /// Returns the items that found no place because of other writers, or whose places the log has
    /// passed meanwhile.
    fn write(
        &self,
        work: &Work,
        volume: &Arc<Volume>,
        mut puts: Vec<Put>,
        len: usize,
    ) -> Result<Vec<usize>, End> {
        let on_error = |error| self.failed(Side::Store, &self.root.of_index()(error));
        let items: Vec<_> = puts.iter().map(|put| put.item).collect();
        let _storing = loop {
            if !Self::goes_on(work, &items) {
                return Err(End::Not(Why::Late));
            }
            match self.root.traffic.store() {
                Some(storing) => break storing,
                None => self.root.traffic.wait(),
            }
        };
        let buffer = self.buffer(work, len)?;
        let Some(mut buffer) = self.collect(work, buffer, &mut puts) else {
            return Ok(Vec::new());
        };
        self.root.end_of_hanging();
        let wanted: Vec<_> = puts.iter().map(|put| (put.key, put.len)).collect();
        let Root { keep_free, leaving, .. } = *self.root;
        let mut reserved = volume.reserve(&wanted, keep_free, leaving.policy).map_err(on_error)?;
        let bytes = buffer.as_mut_slice().expect("the store's own memory");
        let (mut blocks, mut extents) = (Vec::new(), Vec::new());
        let (mut own, mut busy) = (Vec::new(), Vec::new());
        for (put, place) in puts.iter().zip(&reserved.places) {
            let Place { at, number } = match *place {
                Ok(place) => place,
                Err(Full::Drive) => {
                    work.end(put.item, End::Not(Why::NoRoom));
                    continue;
                }
                Err(Full::Writers) => {
                    busy.push(put.item);
                    continue;
                }
            };
            let (key, len, end) = (*put.key.name(), put.len, put.at + put.len as usize);
            bytes[end..put.at + size(len)].fill(0);
            let (checksum, written, generation) = (xxh3_64(&bytes[put.at..end]), now(), 0);
            let record = Record { key, place: at, number, checksum, len, generation, written };
            blocks.push((record, None));
            own.push(put.item);
            add_extent(&mut extents, volume, at, put.at, len);
        }
        let mut go_on = || Self::goes_on(work, &items);
        let written = self.write_out(volume, buffer, &extents, &mut reserved, &mut go_on);
        match written {
            Ok(()) => {}
            Err(Error::Cancelled { .. } | Error::TimedOut { .. }) => {
                return Err(self.stopped(work));
            }
            Err(error) => return Err(self.failed(Side::Store, &error)),
        }
        let (published, passed) = volume.publish(&blocks, leaving).map_err(on_error)?;
        self.root.stores.worked();
        self.root.counters.evicted(reserved.evicted + passed);
        for extent in extents {
            self.root.written(volume, extent.offset, extent.len).map_err(on_error)?;
        }
        for (item, published) in own.into_iter().zip(published) {
            match published {
                Published::Stored => work.end(item, End::Done),
                Published::There => work.end(item, End::Present),
                Published::Passed => busy.push(item),
            }
        }
        drop(puts);
        self.rescue(volume, reserved, work.deadline);
        Ok(busy)
    }

    /// Writes extents of a buffer, and returns it to the pool. If the write hangs, its buffer and
    /// its places are kept until it has ended.
    fn write_out(
        &self,
        volume: &Volume,
        buffer: Buffer,
        extents: &[Extent],
        reserved: &mut Reserved,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<(), Error> {
        let past_cache = self.root.past_cache;
        let options = RequestOptions { past_cache, ..RequestOptions::default() };
        let written = extents.iter().try_for_each(|it| {
            let part = pool::part(&buffer, it.at, it.len);
            let write = volume.data.write(&part).at(it.offset).options(options);
            write.while_(&mut *go_on).run().map(drop)
        });
        match buffer.as_slice() {
            Some(_) => self.pool.give(buffer),
            None => self.root.hanging.lock().push((buffer, mem::take(&mut reserved.space))),
        }
        written
    }

    /// Writes blocks again that were used and will be overwritten soon. Until then they are read
    /// where they are: what fails here is overwritten later.
    fn rescue(&self, volume: &Arc<Volume>, mut reserved: Reserved, deadline: Instant) {
        let rescued = mem::take(&mut reserved.rescued);
        let mut end = 0;
        let places: Vec<_> =
            rescued.iter().map(|(record, _)| advance(&mut end, record.len)).collect();
        if rescued.is_empty() {
            return;
        }
        let Ok(Some(mut buffer)) = self.pool.take(self.engine, end as u64, deadline) else {
            return;
        };
        let mut go_on = || Instant::now() < deadline;
        let mut read = |blocks: &[(&(Record, Place), &usize)], buffer: &mut Buffer| {
            let piece = |&((record, _), at): &(&(Record, Place), &usize)| {
                let (offset, len) = (volume.offset(record.place), padded(record.len));
                Piece::new(&volume.data, offset, len, *at as u64)
            };
            let pieces: Vec<_> = blocks.iter().map(piece).collect();
            self.engine.read_many(&pieces, [buffer]).exact().while_(&mut go_on).run()
        };
        let all: Vec<_> = rescued.iter().zip(&places).collect();
        if let Ok(results) = read(&all, &mut buffer) {
            for (result, block) in results.results.iter().zip(&all) {
                if result.is_err() {
                    // Its neighbours may be the reason; its checksum decides.
                    let _ = read(&[*block], &mut buffer);
                }
            }
        }
        let Some(bytes) = buffer.as_slice() else { return }; // the drive may still write to it
        let (mut blocks, mut extents) = (Vec::new(), Vec::new());
        for &((record, place), &at) in &all {
            if xxh3_64(&bytes[at..at + record.len as usize]) == record.checksum {
                let &Place { at: to, number } = place;
                blocks.push((Record { place: to, number, ..*record }, Some(record.number)));
                add_extent(&mut extents, volume, to, at, record.len);
            }
        }
        let written = self.write_out(volume, buffer, &extents, &mut reserved, &mut go_on);
        let published = written.ok().and_then(|()| volume.publish(&blocks, self.root.leaving).ok());
        let (published, passed) = published.unwrap_or_default();
        let stored = published.iter().filter(|&&it| it == Published::Stored).count();
        self.root.counters.evicted((rescued.len() - stored) as u64 + passed);
        for extent in extents {
            let _ = self.root.written(volume, extent.offset, extent.len);
        }
    }

    /// Collects the bytes of blocks from their callers, all of them together. `None` if a GPU may
    /// still write to the buffer.
    fn collect(&self, work: &Work, buffer: Buffer, puts: &mut Vec<Put>) -> Option<Buffer> {
        let mut taken: Vec<Vec<Buffer>> = Vec::new();
        puts.retain(|put| {
            let memory = work.take_memory(put.item);
            memory.map(|memory| taken.push(memory)).is_some()
        });
        let places: Vec<_> = puts.iter().zip(&taken).map(|(put, it)| (put.at, &**it)).collect();
        let (failed, buffer) = exchange(buffer, &places, Direction::Write);
        let is_open = failed.iter().any(|(_, error)| matches!(error, Error::CopyNotOver { .. }));
        let mut taken = taken.into_iter().enumerate();
        puts.retain(|put| {
            let (number, memory) = taken.next().expect("one for each");
            let is_bad = is_open || failed.iter().any(|(bad, _)| *bad == number);
            match is_bad {
                true => work.end_with(put.item, End::Not(Why::Memory), memory),
                false => work.give_back(put.item, memory),
            }
            !is_bad && work.is_waiting(put.item)
        });
        if is_open {
            mem::forget(buffer);
            return None;
        }
        Some(buffer)
    }
}

/// Bytes of a buffer that are written in one piece.
#[derive(Debug, Clone, Copy)]
struct Extent {
    offset: u64,
    at: u64,
    len: u64,
}

/// Adds a block to the extents of a write: to the last one, if it follows it on both sides.
fn add_extent(extents: &mut Vec<Extent>, volume: &Volume, place: u64, at: usize, len: u32) {
    let (offset, len, at) = (volume.offset(place), padded(len), at as u64);
    match extents.last_mut() {
        Some(last) if last.offset + last.len == offset && last.at + last.len == at => {
            last.len += len;
        }
        _ => extents.push(Extent { offset, at, len }),
    }
}

/// Takes the memory of blocks; those that have ended are left out.
fn take_memory(work: &Work, found: &mut Vec<Found>) {
    found.retain_mut(|found| {
        let memory = work.take_memory(found.item);
        memory.map(|memory| found.memory = memory).is_some()
    });
}

/// Parts of a block's memory, which hold `len` bytes from byte `from` of the block on; each with
/// its place in the store's memory, where they lie from `at` on.
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
    blocks: &[(usize, &[Buffer])],
    direction: Direction,
) -> (Vec<(usize, Error)>, Buffer) {
    let copy = |buffer: Buffer, blocks: &[(usize, &[Buffer])]| {
        let pieces = blocks.iter().flat_map(|&(at, it)| pieces_of(it, 0, at as u64, u64::MAX));
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

/// Whether the drive lacks these bytes or cannot read them, as with a bad sector. EIO may also be a
/// path that was lost for a moment: then a good block is removed, and has to be stored again.
fn is_lost(error: &Error) -> bool {
    use rustix::io::Errno;
    let is_short = matches!(error, Error::EndOfFile { .. } | Error::FileChanged { .. });
    is_short || matches!(error, Error::Io { source: Errno::IO | Errno::NODATA | Errno::ILSEQ, .. })
}

fn is_full(error: &Error) -> bool {
    use rustix::io::Errno;
    matches!(error, Error::Io { source: Errno::NOSPC | Errno::DQUOT | Errno::FBIG, .. })
}
