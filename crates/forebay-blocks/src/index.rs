//! The index of a root: a header that says which blocks are current, the journal, which lists them
//! in the order of the log, and their records in buckets.
//!
//! A key maps to two buckets of eight records in a page. Any process may read them at any time;
//! they change under a lock. Records and the header have their own checksums, so what is torn or
//! damaged is not found. Nothing is loaded at a start: the kernel's page cache holds what is in
//! use, for all processes.

use std::array;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::Advice;
use rustix::io::{Errno, ReadWriteFlags};
use xxhash_rust::xxh3::xxh3_64;

use crate::files;
use crate::key::Name;

/// Blocks begin at a multiple of it.
pub(crate) const PAGE: u64 = 4096;
const RECORD: usize = 64;
const WAYS: usize = 8;
const BUCKET: usize = WAYS * RECORD;
/// Bytes of an entry of the journal.
const ENTRY: u64 = 32;
/// The header lies twice in the first page.
const HEADERS: [u64; 2] = [0, PAGE / 2];
const HEADER: usize = 11 * 8;
/// How often a record or a header that is being changed is read. A change is shorter than a read;
/// what stays wrong was damaged.
const READS: usize = 8;

/// Milliseconds since 1970.
pub(crate) fn now() -> u64 {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Bytes of a block on the drive.
pub(crate) fn padded(len: u32) -> u64 {
    u64::from(len.max(1)).next_multiple_of(PAGE)
}

/// What is known of a stored block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Record {
    pub(crate) key: Name,
    /// Where it begins in the log.
    pub(crate) place: u64,
    /// Its number in the log.
    pub(crate) number: u64,
    /// The XXH3 of its bytes.
    pub(crate) checksum: u64,
    pub(crate) len: u32,
    pub(crate) generation: u32,
    /// Milliseconds since 1970.
    pub(crate) written: u64,
}

/// Which records are current, and the next place of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Header {
    /// Bytes of the root, from which the lengths of its files follow.
    pub(crate) capacity: u64,
    /// Of new records: 16 random bits that `clear` changes, and a number that rises when the
    /// machine was started again. A power cut may then have lost an older header's successors.
    pub(crate) generation: u32,
    /// Records of older generations count below this number.
    pub(crate) since: u64,
    /// Identifies the start of the machine.
    pub(crate) boot: u64,
    /// The next place of the log, and the first place whose bytes are still there.
    pub(crate) head: u64,
    pub(crate) oldest: u64,
    /// Numbers of the next block, and of the first block that the log did not pass.
    pub(crate) next: u64,
    pub(crate) first: u64,
    /// Places from `solid` to `until` have no space on the drive yet.
    pub(crate) solid: u64,
    pub(crate) until: u64,
}

impl Header {
    fn encode(&self) -> Vec<u8> {
        let Self { generation, capacity, since, boot, head, oldest, next, first, solid, until } =
            *self;
        let generation = generation.into();
        seal(&[generation, capacity, since, boot, head, oldest, next, first, solid, until])
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let [generation, capacity, since, boot, head, oldest, next, first, solid, until] =
            unseal(bytes)?;
        let generation = u32::try_from(generation).ok()?;
        Some(Self { generation, capacity, since, boot, head, oldest, next, first, solid, until })
    }

    /// Whether a record's block is stored.
    pub(crate) fn has(&self, record: &Record) -> bool {
        (self.oldest..self.head).contains(&record.place)
            && record.generation >> 16 == self.generation >> 16
            && (record.generation == self.generation || record.number < self.since)
    }
}

impl Record {
    fn encode(&self) -> Vec<u8> {
        let Self { key: [one, two], place, number, checksum, len, generation, written } = *self;
        let lens = u64::from(len) | u64::from(generation) << 32;
        seal(&[one, two, place, number, checksum, lens, written])
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let [one, two, place, number, checksum, lens, written] = unseal(bytes)?;
        let half = |bits: u64| u32::try_from(bits).expect("half of it");
        let (len, generation) = (half(lens & u64::from(u32::MAX)), half(lens >> 32));
        Some(Self { key: [one, two], place, number, checksum, len, generation, written })
    }
}

/// Numbers and their checksum, as they are on the drive.
fn seal(words: &[u64]) -> Vec<u8> {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend(xxh3_64(&bytes).to_le_bytes());
    bytes
}

/// The numbers; `None` if they are torn or damaged.
fn unseal<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    (word(bytes, N) == xxh3_64(&bytes[..N * 8])).then(|| array::from_fn(|at| word(bytes, at)))
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes.as_chunks().0[at])
}

/// An entry of the journal: the place of a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) key: Name,
    pub(crate) at: u64,
}

/// The index's file.
#[derive(Debug)]
pub(crate) struct Index {
    file: File,
    blocks: u64,
    is_in_memory: bool,
    /// The time after which a block is not found.
    pub(crate) ttl: Option<Duration>,
}

/// How a read of the index may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// `WouldBlock` if the drive must be read.
    Never,
    ForDrive,
}

/// A key's two buckets as they were read.
struct Buckets {
    /// Their offsets in the file, and that of the first byte that was read.
    offsets: [u64; 2],
    start: u64,
    bytes: [u8; 8 * BUCKET],
}

impl Buckets {
    /// The records of a bucket with their offsets.
    fn of(&self, bucket: usize) -> impl Iterator<Item = (u64, &[u8])> {
        let offset = self.offsets[bucket];
        let first = usize::try_from(offset - self.start).expect("in one page");
        let records = self.bytes[first..first + BUCKET].chunks_exact(RECORD);
        (offset..).step_by(RECORD).zip(records)
    }

    fn all(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.of(0).chain(self.of(1))
    }
}

impl Index {
    /// Where the buckets begin. They have half as many records again as there are blocks.
    fn start(blocks: u64) -> u64 {
        PAGE + (blocks * ENTRY).next_multiple_of(PAGE)
    }

    /// Bytes of an index for so many blocks.
    pub(crate) fn len_for(blocks: u64) -> u64 {
        let buckets = (blocks + blocks / 2).div_ceil(WAYS as u64).max(2);
        Self::start(blocks) + (buckets * BUCKET as u64).next_multiple_of(PAGE)
    }

    /// Opens an index of any length, or makes an empty file.
    pub(crate) fn open(path: &Path, blocks: u64) -> io::Result<Self> {
        let file = files::own(path)?;
        let is_in_memory = rustix::fs::fstatfs(&file)?.f_type == libc::TMPFS_MAGIC;
        Ok(Self { file, blocks, is_in_memory, ttl: None })
    }

    /// Whether a record's block is stored and found. A time in the future was noted while the clock
    /// was wrong: it counts as the same time in the past, or its block would not expire.
    pub(crate) fn has(&self, header: &Header, record: &Record) -> bool {
        let age = || Duration::from_millis(now().abs_diff(record.written));
        header.has(record) && self.ttl.is_none_or(|ttl| age() < ttl)
    }

    /// Empties the file and allocates its space, if it `can_fill` that; otherwise pages are
    /// allocated when they are written. False if the drive is full.
    pub(crate) fn make(&self, can_fill: bool) -> io::Result<bool> {
        self.file.set_len(0)?;
        self.restore()?;
        Ok(!can_fill || files::allocate(self.file.as_fd(), 0, Self::len_for(self.blocks))?)
    }

    /// Gives the file its length again.
    pub(crate) fn restore(&self) -> io::Result<()> {
        files::set_len(&self.file, Self::len_for(self.blocks))
    }

    /// The entry of a block; zeros if it was cut off.
    pub(crate) fn entry(&self, number: u64) -> io::Result<Entry> {
        let mut bytes = [0; 24];
        self.read_or_restore(Wait::ForDrive, &mut bytes, PAGE + number % self.blocks * ENTRY)?;
        let [one, two, at] = array::from_fn(|at| word(&bytes, at));
        Ok(Entry { key: [one, two], at })
    }

    pub(crate) fn set_entry(&self, number: u64, entry: Entry) -> io::Result<()> {
        let Entry { key: [one, two], at } = entry;
        let bytes = [one, two, at].map(u64::to_le_bytes);
        self.file.write_all_at(bytes.as_flattened(), PAGE + number % self.blocks * ENTRY)
    }

    fn read(&self, wait: Wait, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        if wait == Wait::Never {
            let len = bytes.len();
            let parts = &mut [IoSliceMut::new(bytes)];
            match rustix::io::preadv2(&self.file, parts, offset, ReadWriteFlags::NOWAIT) {
                Ok(read) if read == len => return Ok(()),
                // tmpfs may not know the flag, and never waits.
                Err(Errno::OPNOTSUPP) if self.is_in_memory => {}
                Ok(_) | Err(Errno::OPNOTSUPP) => return Err(io::ErrorKind::WouldBlock.into()),
                Err(error) => return Err(error.into()),
            }
        }
        self.file.read_exact_at(bytes, offset)
    }

    /// Reads buckets or entries. Those that were cut off are zeros.
    fn read_or_restore(&self, wait: Wait, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        match self.read(wait, bytes, offset) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.restore()?;
                self.read(wait, bytes, offset)
            }
            read => read,
        }
    }

    /// The header; `None` if both copies are damaged or cut off.
    pub(crate) fn header(&self, wait: Wait) -> io::Result<Option<Header>> {
        let mut bytes = [0; HEADER];
        for attempt in 0..READS {
            match self.read(wait, &mut bytes, HEADERS[attempt % 2]) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                read => read?,
            }
            if let Some(header) = Header::decode(&bytes) {
                return Ok(Some(header));
            }
        }
        Ok(None)
    }

    pub(crate) fn set_header(&self, header: &Header) -> io::Result<()> {
        let bytes = header.encode();
        HEADERS.iter().try_for_each(|&at| self.file.write_all_at(&bytes, at))
    }

    /// The places of a key's two buckets, in the same page: a single read of the drive.
    fn offsets(&self, [high, low]: Name) -> [u64; 2] {
        let of_page = PAGE / BUCKET as u64;
        let first = Self::start(self.blocks);
        let pages = (Self::len_for(self.blocks) - first) / PAGE;
        let page = (u128::from(high) * u128::from(pages)) >> 64;
        let start = first + u64::try_from(page).expect("below the factor") * PAGE;
        // Two different buckets: all lengths of a key share them.
        let first = low % of_page;
        let second = first + 1 + (low >> 32) % (of_page - 1);
        [first, second].map(|bucket| start + bucket % of_page * BUCKET as u64)
    }

    /// Reads a key's buckets.
    fn buckets(&self, wait: Wait, key: Name) -> io::Result<Buckets> {
        let offsets @ [one, two] = self.offsets(key);
        let start = one.min(two);
        let len = usize::try_from(one.abs_diff(two)).expect("in one page") + BUCKET;
        let mut bytes = [0; 8 * BUCKET];
        self.read_or_restore(wait, &mut bytes[..len], start)?;
        Ok(Buckets { offsets, start, bytes })
    }

    /// The record of a stored block that `is_wanted`.
    pub(crate) fn find(
        &self,
        header: &Header,
        key: Name,
        wait: Wait,
        is_wanted: impl Fn(&Record) -> bool,
    ) -> io::Result<Option<Record>> {
        let (mut header, mut is_fresh) = (*header, false);
        for _ in 0..READS {
            let buckets = self.buckets(wait, key)?;
            let (mut is_torn, mut is_newer) = (false, false);
            for (_, bytes) in buckets.all().filter(|(_, it)| [0, 1].map(|at| word(it, at)) == key) {
                match Record::decode(bytes) {
                    // It is being changed, or damaged. A second record may be whole.
                    None => is_torn = true,
                    Some(record) if self.has(&header, &record) && is_wanted(&record) => {
                        return Ok(Some(record));
                    }
                    Some(record) => is_newer |= record.place >= header.head,
                }
            }
            // A block that was written or rescued after the header was read, or lost its header.
            if is_newer && !is_fresh {
                (header, is_fresh) = (self.header(wait)?.unwrap_or(header), true);
            } else if !is_torn {
                break;
            }
        }
        Ok(None)
    }

    /// Starts reading a key's buckets from the drive, without waiting.
    pub(crate) fn read_ahead(&self, key: Name) {
        let [first, last] = self.offsets(key);
        let len = std::num::NonZeroU64::new(first.abs_diff(last) + BUCKET as u64);
        // Without it they are read later, in turn.
        let _ = rustix::fs::fadvise(&self.file, first.min(last), len, Advice::WillNeed);
    }

    /// Adds a record, under the lock. Returns the number of blocks that were evicted; `None` if the
    /// block is stored already, or if the record of the number that it `replaces` was removed.
    pub(crate) fn insert(
        &self,
        header: &Header,
        record: &Record,
        replaces: Option<u64>,
    ) -> io::Result<Option<u64>> {
        let mut free: Option<(usize, u64)> = None;
        let mut oldest: Option<(u64, u64)> = None;
        let mut is_replaced = replaces.is_none();
        let buckets = self.buckets(Wait::ForDrive, record.key)?;
        for bucket in 0..2 {
            // Count of free records; place and number of the record that is free for longest.
            let mut slot = (0, 0, u64::MAX);
            for (at, bytes) in buckets.of(bucket) {
                match Record::decode(bytes) {
                    Some(it) if it.key == record.key && it.len == record.len => {
                        let is_it = replaces == Some(it.number);
                        if !is_it && self.has(header, &it) {
                            return Ok(None);
                        }
                        is_replaced |= is_it;
                        slot = slot.max((WAYS + 1 + usize::from(is_it), at, 0));
                    }
                    Some(it) if self.has(header, &it) => {
                        oldest = Some(oldest.unwrap_or((u64::MAX, 0)).min((it.number, at)));
                    }
                    _ if slot.0 > WAYS => {}
                    it => {
                        let number = it.map_or(0, |it| it.number);
                        let (number, at) = (slot.2, slot.1).min((number, at));
                        slot = (slot.0 + 1, at, number);
                    }
                }
            }
            // The bucket with more free records: so nearly all of them can be used.
            if slot.0 > free.map_or(0, |(count, _)| count) {
                free = Some((slot.0, slot.1));
            }
        }
        if !is_replaced {
            return Ok(None);
        }
        let (at, evicted) = match (free, oldest) {
            (Some((_, at)), _) => (at, 0),
            (None, Some((_, at))) => (at, 1),
            (None, None) => unreachable!("a record is free, or in use"),
        };
        self.file.write_all_at(&record.encode(), at)?;
        Ok(Some(evicted))
    }

    /// Removes the records of a key that are `unwanted`, under the lock; true if a block was found.
    pub(crate) fn remove(
        &self,
        header: &Header,
        key: Name,
        unwanted: impl Fn(&Record) -> bool,
    ) -> io::Result<bool> {
        let mut was_stored = false;
        for (at, bytes) in self.buckets(Wait::ForDrive, key)?.all() {
            let record = Record::decode(bytes).filter(|it| it.key == key && unwanted(it));
            if let Some(record) = record {
                self.file.write_all_at(&[0; RECORD], at)?;
                was_stored |= self.has(header, &record);
            }
        }
        Ok(was_stored)
    }

    /// All records of stored blocks. Reads the whole index.
    pub(crate) fn all(
        &self,
        header: &Header,
        mut step: impl FnMut(Record) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut part = vec![0; 1 << 20];
        let end = Self::len_for(self.blocks);
        for at in (Self::start(self.blocks)..end).step_by(part.len()) {
            let len = usize::try_from(end - at).map_or(part.len(), |left| left.min(part.len()));
            self.read_or_restore(Wait::ForDrive, &mut part[..len], at)?;
            let used = part[..len].chunks_exact(RECORD).filter(|it| it[32..] != [0; 32]);
            let records = used.filter_map(Record::decode);
            records.filter(|it| header.has(it)).try_for_each(&mut step)?;
        }
        Ok(())
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_record_is_read_back_and_no_flipped_bit_passes(
            key: Name, numbers: [u64; 4], len: u32, generation: u32, bit in 0_usize..512,
        ) {
            let [place, number, checksum, written] = numbers;
            let record = Record { key, place, number, checksum, len, generation, written };
            let mut bytes = record.encode();
            prop_assert_eq!(Record::decode(&bytes), Some(record));
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Record::decode(&bytes), None);
        }

        #[test]
        fn a_damaged_record_hides_no_other_of_its_key(key: Name, bit in 128_usize..512) {
            let folder = tempfile::tempdir().unwrap();
            let index = Index::open(&folder.path().join("index"), 64).unwrap();
            index.make(true).unwrap();
            prop_assert_ne!(index.offsets(key)[0], index.offsets(key)[1]);
            let header = Header { head: 1, ..Header::default() };
            let record = |number, len| Record {
                key, place: 0, number, checksum: 0, len, generation: 0, written: 0,
            };
            for (number, len) in [(0, 1), (1, 2)] {
                index.insert(&header, &record(number, len), None).unwrap();
            }
            let found = |len| {
                index.find(&header, key, Wait::ForDrive, |it| it.len == len).unwrap()
            };
            prop_assert_eq!((found(1), found(2)), (Some(record(0, 1)), Some(record(1, 2))));
            let buckets = index.buckets(Wait::ForDrive, key).unwrap();
            let is_first = |it: &[u8]| Record::decode(it).is_some_and(|it| it.len == 1);
            let (at, bytes) = buckets.all().find(|(_, it)| is_first(it)).unwrap();
            let damaged = [bytes[bit / 8] ^ 1 << (bit % 8)];
            index.file.write_all_at(&damaged, at + bit as u64 / 8).unwrap();
            prop_assert_eq!((found(1), found(2)), (None, Some(record(1, 2))));
        }

        #[test]
        fn a_block_that_was_rescued_after_the_header_was_read_is_found(key: Name) {
            let folder = tempfile::tempdir().unwrap();
            let index = Index::open(&folder.path().join("index"), 64).unwrap();
            index.make(true).unwrap();
            let before = Header { head: 8, ..Header::default() };
            let after = Header { head: 16, next: 1, ..before };
            let record = Record { key, place: 4, ..Record::default() };
            let rescued = Record { place: 8, number: 1, ..record };
            index.insert(&before, &record, None).unwrap();
            index.set_header(&after).unwrap();
            index.insert(&after, &rescued, Some(0)).unwrap();
            let found = index.find(&before, key, Wait::ForDrive, |_| true).unwrap();
            prop_assert_eq!(found, Some(rescued));
        }

        #[test]
        fn a_header_is_read_back_and_no_flipped_bit_passes(
            numbers: [u64; 9], generation: u32, bit in 0_usize..HEADER * 8,
        ) {
            let [capacity, since, boot, head, oldest, next, first, solid, until] = numbers;
            let header = Header {
                generation, capacity, since, boot, head, oldest, next, first, solid, until,
            };
            let mut encoded = header.encode();
            prop_assert_eq!(Header::decode(&encoded), Some(header));
            encoded[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Header::decode(&encoded), None);
        }
    }
}
