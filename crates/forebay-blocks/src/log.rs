//! The log of a root: blocks are written in the order of their calls, and the oldest give their
//! place to new ones. The log passes blocks some time before it overwrites them, and rescues those
//! that were used: they are written again, and stay readable where they are meanwhile.
//!
//! Places grow without limit; the offset in the file is the place modulo its length. So the order
//! of places is the order of ages, and a record says by its place alone whether its bytes are still
//! there.
//!
//! Places that are being written are locked, and the log skips them. The kernel releases the locks
//! of a process that dies: its places are a gap, which the log passes as it passes blocks.

use std::io;

use crate::files;
use crate::index::{Entry, Header, PAGE, Record, Wait, padded};
use crate::key::Name;
use crate::locks::Claim;
use crate::volume::{Shape, Volume};

/// Space is allocated in steps of this size, so that few calls wait for it.
const GROWTH: u64 = 64 << 20;
/// Bytes that a call's part rescues at most: a multiple of its own, and all in all.
const RESCUES: (u64, u64) = (8, 32 << 20);
/// How far ahead of its head the log passes blocks: a share of its length, and at most.
const AHEAD: (u64, u64) = (64, 512 << 20);
/// The largest count of uses.
const USES_MAX: u8 = 15;
/// Steps of the clock of uses per lap of the log, and all of them.
const LAP: u64 = 64;
const STEPS: u64 = 250;

/// Which block is evicted from a full root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// The oldest that was not used within the last half of the log's lap.
    #[default]
    Lru,
    /// The oldest without uses. A rescue halves them.
    Lfu,
}

/// Where a block is written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) at: u64,
    pub(crate) number: u64,
}

/// Why a block gets no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    /// The drive is full, or the block is longer than the log.
    Drive,
    /// Other calls are writing to all places.
    Writers,
}

/// Places for a call's blocks.
#[derive(Debug, Default)]
pub(crate) struct Reserved {
    /// In the order of the blocks.
    pub(crate) places: Vec<Result<Place, Full>>,
    /// Blocks that were used and will be overwritten soon, with their new places.
    pub(crate) rescued: Vec<(Record, Place)>,
    pub(crate) evicted: u64,
    /// No other call writes there until they are dropped.
    pub(crate) space: Vec<Claim>,
}

impl Volume {
    /// The offset of a place in the data.
    pub(crate) fn offset(&self, at: u64) -> u64 {
        at % self.shape.data
    }

    /// Reserves adjacent places for blocks, and evicts the oldest blocks from them.
    pub(crate) fn reserve(&self, wanted: &[(Name, u32)], keep_free: u64) -> io::Result<Reserved> {
        let _changing = self.locks.index()?;
        let header = self.header()?;
        let own: u64 = wanted.iter().map(|(_, len)| padded(*len)).sum();
        // The rest of what lies ahead is for other calls.
        let left = (own * RESCUES.0).min(RESCUES.1).min(self.ahead() / 2);
        let (now, reserved, rescued) = (self.tick(header.head), Reserved::default(), Vec::new());
        let mut log = Log { volume: self, header, keep_free, left, now, rescued, reserved };
        for &(key, len) in wanted {
            let place = log.place(key, len)?;
            log.reserved.places.push(place);
        }
        let count = log.header.next - header.next;
        let (mut uses, mut next) = (vec![0; usize::try_from(count).expect("a call's blocks")], 0);
        while let Some(&(record, used)) = log.rescued.get(next) {
            match log.place(record.key, record.len)? {
                Ok(place) => {
                    uses.push(used);
                    log.reserved.rescued.push((record, place));
                }
                Err(_) => log.reserved.evicted += 1,
            }
            next += 1;
        }
        self.set_uses(header.next, &uses);
        self.index.set_header(&log.header)?;
        Ok(log.reserved)
    }

    fn ahead(&self) -> u64 {
        (self.shape.data / AHEAD.0).min(AHEAD.1)
    }

    /// The clock of uses, which the log's growth moves; 0 stands for no use.
    fn tick(&self, head: u64) -> u8 {
        let step = head / (self.shape.data / LAP).max(1) % STEPS;
        u8::try_from(step + 1).expect("at most the steps")
    }

    /// Notes that blocks are in use.
    pub(crate) fn note_uses(&self, header: &Header, mut numbers: Vec<u64>) {
        let now = self.tick(header.head);
        numbers.sort_unstable();
        for row in numbers.chunk_by(|one, next| next - one <= 1) {
            let (first, last) = (row[0], row[row.len() - 1]);
            let mut uses = vec![0; usize::try_from(last - first).expect("a call's") + 1];
            let at = first % self.shape.blocks;
            self.uses.get(at, &mut uses);
            row.iter().for_each(|number| {
                let used = &mut uses[usize::try_from(number - first).expect("in the row")];
                *used = match self.policy {
                    Policy::Lru => now,
                    Policy::Lfu => (*used).min(USES_MAX - 1) + 1,
                };
            });
            self.set_uses(first, &uses);
        }
    }

    fn set_uses(&self, first: u64, uses: &[u8]) {
        let at = first % self.shape.blocks;
        let before = usize::try_from(self.shape.blocks - at).unwrap_or(usize::MAX);
        let (here, wrapped) = uses.split_at(uses.len().min(before));
        self.uses.set(at, here);
        self.uses.set(0, wrapped);
    }

    /// Makes blocks visible to all processes: their bytes are in their places, which follow from
    /// their records; rescued blocks had an earlier number. Returns how each ended, and the
    /// number of evicted blocks.
    pub(crate) fn publish(&self, blocks: &[Written]) -> io::Result<(Vec<Published>, u64)> {
        let _changing = self.locks.index()?;
        let header = self.header()?;
        let mut evicted = 0;
        let publish = |&Written { record, replaces, .. }: &Written| {
            let record = Record { generation: header.generation, ..record };
            if !header.has(&record) {
                return Ok(Published::Passed);
            }
            let inserted = self.index.insert(&header, &record, replaces)?;
            evicted += inserted.unwrap_or(0);
            Ok(inserted.map_or(Published::There, |_| Published::Stored))
        };
        let published = blocks.iter().map(publish).collect::<io::Result<_>>()?;
        Ok((published, evicted))
    }

    /// Removes the records of keys; returns which keys were stored.
    pub(crate) fn remove(
        &self,
        keys: &[Name],
        unwanted: impl Fn(&Record) -> bool,
    ) -> io::Result<Vec<bool>> {
        let _changing = self.locks.index()?;
        let header = self.header()?;
        keys.iter().map(|&key| self.index.remove(&header, key, &unwanted)).collect()
    }

    /// Removes all blocks, and gives their space back.
    pub(crate) fn clear(&self) -> io::Result<()> {
        let _changing = self.locks.index()?;
        let before = self.header()?;
        let tag = u32::from(u16::MAX) << 16;
        let generation = before.generation.wrapping_add(1 << 16) & tag | before.generation & !tag;
        let (head, size) = (before.head.next_multiple_of(PAGE), self.shape.data);
        let header = Header {
            generation,
            first: before.next,
            since: before.next,
            head,
            oldest: head,
            solid: head,
            until: head + size,
            ..before
        };
        self.index.set_header(&header)?;
        files::empty(self.data.descriptor(), size)
    }
}

/// A block whose bytes are in their place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Written {
    pub(crate) record: Record,
    /// The number of the record that it replaces.
    pub(crate) replaces: Option<u64>,
    /// Where it is in the memory from which it was written.
    pub(crate) at: usize,
}

/// How the publishing of a block ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Published {
    Stored,
    /// A second writer stored it, or it was deleted during its rescue.
    There,
    /// The log passed its place, or the root was cleared: it must be written again.
    Passed,
}

/// The log while a call reserves places in it, under the lock.
struct Log<'a> {
    volume: &'a Volume,
    header: Header,
    keep_free: u64,
    /// The clock of uses, and bytes that may be rescued.
    now: u8,
    left: u64,
    /// Blocks to rescue, and what remains of their uses.
    rescued: Vec<(Record, u8)>,
    reserved: Reserved,
}

impl Log<'_> {
    /// Reserves a place, and evicts the blocks in it.
    fn place(&mut self, key: Name, len: u32) -> io::Result<Result<Place, Full>> {
        let (needed, Shape { blocks, data, .. }) = (padded(len), self.volume.shape);
        let at = match self.room(needed)? {
            Ok(at) => at,
            Err(full) => return Ok(Err(full)),
        };
        // A block whose bytes will be overwritten soon, or whose entry is.
        while self.header.first < self.header.next {
            let entry = self.volume.index.entry(self.header.first)?;
            // No place is behind the head: the entry is damaged, or its block lost its place.
            let is_passed = entry.at >= self.header.head
                || entry.at.saturating_add(data) < at + needed + self.volume.ahead();
            if !is_passed && self.header.next - self.header.first < blocks {
                break;
            }
            self.pass(entry)?;
        }
        let header = &mut self.header;
        let number = header.next;
        self.volume.index.set_entry(number, Entry { key, at })?;
        (header.head, header.next) = (at + needed, number + 1);
        header.oldest = header.oldest.max(header.head.saturating_sub(data));
        Ok(Ok(Place { at, number }))
    }

    /// The next place with so many contiguous bytes, space on the drive, and no writer.
    fn room(&mut self, needed: u64) -> io::Result<Result<u64, Full>> {
        let size = self.volume.shape.data;
        if needed > size {
            return Ok(Err(Full::Drive));
        }
        let (mut at, mut is_full) = (self.header.head, false);
        loop {
            let header = &mut self.header;
            if at % size + needed > size {
                at = at.next_multiple_of(size);
            }
            if header.solid == header.until {
                (header.solid, header.until) = (u64::MAX, u64::MAX);
            }
            if at >= header.until {
                // A lap later the rest of the space must be allocated.
                (header.solid, header.until) = (header.solid + size, header.until + size);
            }
            if at + needed <= header.solid {
                let start = self.volume.offset(at);
                let end = match self.volume.locks.claim_data(start, needed)? {
                    Ok(claim) => {
                        self.reserved.space.push(claim);
                        return Ok(Ok(at));
                    }
                    Err(end) => end,
                };
                at += end.saturating_sub(start).min(size);
                if at - header.head >= size {
                    return Ok(Err(Full::Writers));
                }
                continue;
            }
            if self.grow(at + needed)? {
                continue;
            }
            // The drive is full: the log continues at the start of its allocated space.
            let header = &self.header;
            if is_full || header.solid - (header.until - size) < needed {
                return Ok(Err(Full::Drive));
            }
            (at, is_full) = (header.until, true);
        }
    }

    /// Allocates space up to a place at least. False if the drive or `keep_free` forbids it.
    fn grow(&mut self, least: u64) -> io::Result<bool> {
        let Self { volume, header, .. } = self;
        let space = rustix::fs::statvfs(&volume.path)?;
        let free = (space.f_bavail * space.f_frsize).saturating_sub(self.keep_free);
        let least = least.min(header.until);
        for end in [least.max((header.solid + GROWTH).min(header.until)), least] {
            if end - header.solid > free {
                continue;
            }
            let (start, size) = (volume.offset(header.solid), volume.shape.data);
            let len = (end - header.solid).min(size - start);
            let data = volume.data.descriptor();
            if files::allocate(data, start, len)?
                && (start + len < size
                    || end - header.solid == len
                    || files::allocate(data, 0, end - header.solid - len)?)
            {
                header.solid = end;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Passes the oldest block, which is rescued if it was used.
    fn pass(&mut self, entry: Entry) -> io::Result<()> {
        let Self { volume, header, .. } = self;
        let number = header.first;
        let is_it = |record: &Record| record.number == number;
        let found = volume.index.find(header, entry.key, Wait::ForDrive, is_it)?;
        header.first += 1;
        let Some(record) = found else { return Ok(()) };
        let mut used = [0];
        volume.uses.get(number % volume.shape.blocks, &mut used);
        let (len, used) = (padded(record.len), used[0]);
        let age = (u64::from(self.now) + 2 * STEPS - u64::from(used)) % STEPS;
        let is_old = volume.policy == Policy::Lru && age > LAP / 2;
        if used == 0 || is_old || len > self.left {
            self.reserved.evicted += 1;
            return Ok(());
        }
        self.left -= len;
        let uses = if volume.policy == Policy::Lru { 0 } else { used / 2 };
        self.rescued.push((record, uses));
        Ok(())
    }
}
