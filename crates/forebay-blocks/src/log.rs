//! The log of a root: blocks are written in the order of their calls, and the oldest give their
//! place to new ones. The log passes blocks some time before it overwrites them, and rescues those
//! that were used: they are written again, and stay readable where they are meanwhile.
//!
//! Places grow without limit; the file has them modulo its length. So the order of places is the
//! order of ages, and a record says by its place alone whether its bytes are still there.
//!
//! Places that are being written are locked, and the log skips them. The kernel releases the locks
//! of a process that dies: its places are a gap, which the log passes as it passes blocks.

use std::io;
use std::time::{Duration, SystemTime};

use crate::files;
use crate::index::{Header, PAGE, Record, Wait, padded};
use crate::key::Key;
use crate::locks::Claim;
use crate::volume::Volume;

/// Space is taken from the drive in steps of this, so that few calls wait for it.
const GROWTH: u64 = 64 << 20;
/// Bytes that a call's part rescues at most: a multiple of its own, and all in all.
const RESCUES: (u64, u64) = (8, 32 << 20);
/// How far ahead of its head the log passes blocks: a share of its length, and at most.
const AHEAD: (u64, u64) = (64, 512 << 20);
/// The largest count of uses.
const USES_MAX: u8 = 15;
/// Steps of the clock of uses in one lap of the log, and all of them.
const LAP: u64 = 64;
const STEPS: u64 = 250;

/// Which block leaves a full root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// The oldest that was not used within the last half of the log's lap.
    #[default]
    Lru,
    /// The oldest without uses. They are halved each time that it is rescued.
    Lfu,
}

/// When blocks leave.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Leaving {
    pub(crate) policy: Policy,
    pub(crate) ttl: Option<Duration>,
}

impl Leaving {
    /// A time that is still to come was noted while the clock was wrong. It is as old as it is far
    /// away: else its block would stay until then.
    pub(crate) fn is_over(&self, record: &Record) -> bool {
        let ttl = self.ttl.map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
        ttl.is_some_and(|ttl| now().abs_diff(record.written) >= ttl)
    }
}

/// Milliseconds since 1970.
pub(crate) fn now() -> u64 {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
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
    /// The drive has no space, or the block is longer than the log.
    Drive,
    /// Other calls are writing to all places.
    Writers,
}

/// Places for a call's blocks.
#[derive(Debug, Default)]
pub(crate) struct Reserved {
    /// For each block.
    pub(crate) places: Vec<Result<Place, Full>>,
    /// Blocks that were used and will be overwritten soon, with their new places.
    pub(crate) rescued: Vec<(Record, Place)>,
    pub(crate) evicted: u64,
    /// No other call writes there until they are dropped.
    pub(crate) space: Vec<Claim>,
}

/// An entry of the journal.
pub(crate) struct Entry {
    pub(crate) key: [u8; 16],
    pub(crate) at: u64,
    pub(crate) len: u32,
}

impl Entry {
    pub(crate) fn encode(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&self.key);
        bytes[16..24].copy_from_slice(&self.at.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; 32]) -> Self {
        Self {
            key: bytes[..16].try_into().expect("sixteen"),
            at: u64::from_le_bytes(bytes[16..24].try_into().expect("eight")),
            len: u32::from_le_bytes(bytes[24..28].try_into().expect("four")),
        }
    }
}

impl Volume {
    /// The offset of a place in the data.
    pub(crate) fn offset(&self, at: u64) -> u64 {
        at % self.shape.data
    }

    /// The record of a stored block, if its header and buckets are whole.
    pub(crate) fn find(
        &self,
        header: &Header,
        key: &Key,
        len: Option<u32>,
        wait: Wait,
        leaving: Leaving,
    ) -> io::Result<Option<Record>> {
        self.index.find(header, key, len, wait, |record| leaving.is_over(record))
    }

    /// Reserves places for blocks, next to each other, and takes those of the oldest blocks.
    pub(crate) fn reserve(
        &self,
        wanted: &[(Key, u32)],
        keep_free: u64,
        policy: Policy,
    ) -> io::Result<Reserved> {
        let _changing = self.locks.index()?;
        let mut header = self.header()?;
        let first = header.next;
        let mut reserved = Reserved::default();
        let space = &mut reserved.space;
        let own: u64 = wanted.iter().map(|(_, len)| padded(*len)).sum();
        // The rest of what lies ahead is for other calls.
        let left = (own * RESCUES.0).min(RESCUES.1).min(self.ahead() / 2);
        let now = self.tick(header.head);
        let mut rescue = Rescue { left, policy, now, records: Vec::new(), uses: Vec::new() };
        for (key, len) in wanted {
            let place =
                self.place(&mut header, *key.name(), *len, keep_free, &mut rescue, space)?;
            reserved.places.push(place.0);
            reserved.evicted += place.1;
        }
        let mut uses = vec![0; usize::try_from(header.next - first).expect("blocks of a call")];
        let mut next = 0;
        while let Some(&record) = rescue.records.get(next) {
            let (place, evicted) =
                self.place(&mut header, record.key, record.len, keep_free, &mut rescue, space)?;
            reserved.evicted += evicted;
            match place {
                Ok(place) => {
                    uses.push(rescue.uses[next]);
                    reserved.rescued.push((record, place));
                }
                Err(_) => reserved.evicted += 1,
            }
            next += 1;
        }
        self.set_uses(first, &uses);
        self.index.set_header(&header)?;
        Ok(reserved)
    }

    fn ahead(&self) -> u64 {
        (self.shape.data / AHEAD.0).min(AHEAD.1)
    }

    /// Reserves one place, and returns the number of blocks that had to leave for it.
    fn place(
        &self,
        header: &mut Header,
        key: [u8; 16],
        len: u32,
        keep_free: u64,
        rescue: &mut Rescue,
        space: &mut Vec<Claim>,
    ) -> io::Result<(Result<Place, Full>, u64)> {
        let (needed, size) = (padded(len), self.shape.data);
        let at = match self.room(header, needed, keep_free, space)? {
            Ok(at) => at,
            Err(full) => return Ok((Err(full), 0)),
        };
        let mut evicted = 0;
        // A block whose bytes will be overwritten soon, or whose entry is.
        while header.first < header.next {
            let entry = Entry::decode(&self.index.entry(header.first)?);
            // No place is behind the head: the entry is damaged, or its block lost its place.
            let is_passed = entry.at >= header.head
                || entry.at.saturating_add(size) < at + needed + self.ahead();
            if !is_passed && header.next - header.first < self.shape.blocks {
                break;
            }
            evicted += self.pass(header, &entry, rescue)?;
        }
        let number = header.next;
        let entry = Entry { key, at, len }.encode();
        self.index.set_entry(number, &entry)?;
        (header.head, header.next) = (at + needed, number + 1);
        header.oldest = header.oldest.max(header.head.saturating_sub(size));
        Ok((Ok(Place { at, number }), evicted))
    }

    /// The next place with so many contiguous bytes, space on the drive, and no writer.
    fn room(
        &self,
        header: &mut Header,
        needed: u64,
        keep_free: u64,
        space: &mut Vec<Claim>,
    ) -> io::Result<Result<u64, Full>> {
        let size = self.shape.data;
        if needed > size {
            return Ok(Err(Full::Drive));
        }
        let (mut at, mut is_full) = (header.head, false);
        loop {
            if at % size + needed > size {
                at = at.next_multiple_of(size);
            }
            if header.solid == header.until {
                (header.solid, header.until) = (u64::MAX, u64::MAX);
            }
            if at >= header.until {
                // A lap later the rest of the space has to be taken.
                (header.solid, header.until) = (header.solid + size, header.until + size);
            }
            if at + needed <= header.solid {
                let start = self.offset(at);
                let end = match self.locks.claim_data(start, needed)? {
                    Ok(claim) => {
                        space.push(claim);
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
            if self.grow(header, at + needed, keep_free)? {
                continue;
            }
            // The drive is full: the log continues at the start of its allocated space.
            if is_full || header.solid - (header.until - size) < needed {
                return Ok(Err(Full::Drive));
            }
            (at, is_full) = (header.until, true);
        }
    }

    /// Takes space from the drive up to a place at least. False if that is more than there is.
    fn grow(&self, header: &mut Header, least: u64, keep_free: u64) -> io::Result<bool> {
        let space = rustix::fs::statvfs(&self.path)?;
        let free = (space.f_bavail * space.f_frsize).saturating_sub(keep_free);
        let least = least.min(header.until);
        for end in [least.max((header.solid + GROWTH).min(header.until)), least] {
            if end - header.solid > free {
                continue;
            }
            let (start, size) = (self.offset(header.solid), self.shape.data);
            let len = (end - header.solid).min(size - start);
            let data = self.data.descriptor();
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

    /// Passes the oldest block, which is rescued if it was used. Returns how many are lost.
    fn pass(&self, header: &mut Header, entry: &Entry, rescue: &mut Rescue) -> io::Result<u64> {
        let number = header.first;
        let key = Key::of_name(entry.key);
        let is_other = |record: &Record| record.number != number;
        let found = self.index.find(header, &key, Some(entry.len), Wait::ForDrive, is_other)?;
        header.first += 1;
        let Some(record) = found else { return Ok(0) };
        let mut used = [0];
        self.uses.get(number % self.shape.blocks, &mut used);
        Ok(u64::from(!rescue.takes(record, used[0])))
    }

    /// The clock of uses, which the log's growth moves; 0 stands for no use.
    fn tick(&self, head: u64) -> u8 {
        let step = head / (self.shape.data / LAP).max(1) % STEPS;
        u8::try_from(step + 1).expect("at most the steps")
    }

    /// Notes that blocks are in use.
    pub(crate) fn note_uses(&self, header: &Header, policy: Policy, mut numbers: Vec<u64>) {
        let now = self.tick(header.head);
        numbers.sort_unstable();
        for row in numbers.chunk_by(|one, next| next - one <= 1) {
            let (first, last) = (row[0], row[row.len() - 1]);
            let mut uses = vec![0; usize::try_from(last - first).expect("a call's") + 1];
            let at = first % self.shape.blocks;
            self.uses.get(at, &mut uses);
            row.iter().for_each(|number| {
                let used = &mut uses[usize::try_from(number - first).expect("in the row")];
                *used = match policy {
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
    /// their records; rescued ones had another number. For each, whether it is stored now; and the
    /// number of blocks that had to leave.
    pub(crate) fn publish(
        &self,
        blocks: &[(Record, Option<u64>)],
        leaving: Leaving,
    ) -> io::Result<(Vec<Published>, u64)> {
        let _changing = self.locks.index()?;
        let header = self.header()?;
        let (mut published, mut evicted) = (Vec::with_capacity(blocks.len()), 0);
        for &(record, replaces) in blocks {
            let record = Record { generation: header.generation, ..record };
            if !header.has(&record) {
                published.push(Published::Passed);
                continue;
            }
            let is_over = |it: &Record| leaving.is_over(it);
            let inserted = self.index.insert(&header, &record, replaces, is_over)?;
            evicted += inserted.unwrap_or(0);
            published.push(inserted.map_or(Published::There, |_| Published::Stored));
        }
        Ok((published, evicted))
    }

    /// Removes the records of keys; for each, whether there was one.
    pub(crate) fn remove(
        &self,
        keys: &[[u8; 16]],
        unwanted: impl Fn(&Record) -> bool,
        leaving: Leaving,
    ) -> io::Result<Vec<bool>> {
        let _changing = self.locks.index()?;
        let header = self.header()?;
        let is_over = |it: &Record| leaving.is_over(it);
        keys.iter().map(|key| self.index.remove(&header, key, &unwanted, is_over)).collect()
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

/// How the publishing of a block ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Published {
    Stored,
    /// Another writer stored it, or it was deleted while it was rescued.
    There,
    /// The log passed its place, or the root was cleared: it has to be written again.
    Passed,
}

/// Blocks that a call spares.
struct Rescue {
    left: u64,
    policy: Policy,
    now: u8,
    records: Vec<Record>,
    /// What remains of their uses.
    uses: Vec<u8>,
}

impl Rescue {
    fn takes(&mut self, record: Record, used: u8) -> bool {
        let len = padded(record.len);
        let age = (u64::from(self.now) + 2 * STEPS - u64::from(used)) % STEPS;
        let is_old = self.policy == Policy::Lru && age > LAP / 2;
        if used == 0 || is_old || len > self.left {
            return false;
        }
        self.left -= len;
        self.records.push(record);
        self.uses.push(match self.policy {
            Policy::Lru => 0,
            Policy::Lfu => used / 2,
        });
        true
    }
}
