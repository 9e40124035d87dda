//! The blocks of one size on one root: an index, and data files of equal slots.
//!
//! A key's hash selects its set of 64 slots, so there is nothing to load at a start and nothing to
//! keep in memory: a set's records are one page of the index, and the kernel caches it for all
//! processes. Any process may read any record at any time. What it finds is checked: a record has
//! its own checksum, and the checksum of the block's bytes. So an index that is behind, torn or
//! wrong costs a miss, never a wrong block.
//!
//! A writer holds a lock on its slot, in `locks`, until the block is whole; the kernel releases it
//! if the process dies. The choice of a slot is under a lock on the set.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use forebay::error::Operation;
use forebay::{Engine, OpenOptions};
use forebay_base::lock::Lock;
use rustix::fs::{Advice, FallocateFlags};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::process::Resource;

use crate::failure::{failed, of_system};
use crate::key::Key;
use crate::locks::{self, Kind};
use crate::record::{PAGE, RECORD, Record, Records, WAYS, Whole};

/// Number of data files: a file system lets one thread at a time extend a file.
const FILES: u64 = 8;
/// The lock of set N is on this byte plus N; that of slot N on byte N.
const SETS: u64 = 1 << 62;
/// How often a record that is being changed is read. A change takes less than one read; what stays
/// wrong was damaged.
const READS_OF_RECORD: usize = 8;
/// How long to wait for the lock of a set, which others hold for microseconds.
const SET_MAX: Duration = Duration::from_secs(1);
/// Bits of a use that count; those above are milliseconds since 1970.
const COUNT_BITS: u32 = 20;

/// Which block leaves a full set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// The one that was used the longest time ago.
    #[default]
    Lru,
    /// The one that was used the fewest times, and of these the one used the longest time ago.
    Lfu,
}

/// The value of a block by its [`Policy`]: the lowest leaves first.
pub(crate) type Score = (u64, u64);

impl Policy {
    /// A time that is still to come was noted while the clock was wrong. It is as old as it is far
    /// away: else its block would stay until then.
    fn score(self, used: u64, now: u64) -> Score {
        let (time, count) = (used >> COUNT_BITS, used & ((1 << COUNT_BITS) - 1));
        let fresh = u64::MAX - now.abs_diff(time);
        match self {
            Self::Lru => (fresh, count),
            Self::Lfu => (count, fresh),
        }
    }

    /// Whether a block of another length leaves before the least valuable one of a set: it was not
    /// used for more than twice as long. Without that factor, blocks of two lengths in equal use
    /// would go on taking each other's space.
    pub(crate) fn leaves_first(self, other: Score, own: Score) -> bool {
        let is_old = |other, own| (u64::MAX - other) / 2 > u64::MAX - own;
        match self {
            Self::Lru => is_old(other.0, own.0),
            Self::Lfu => other.0 < own.0 || (other.0 == own.0 && is_old(other.1, own.1)),
        }
    }
}

/// When blocks leave.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Leaving {
    pub(crate) policy: Policy,
    pub(crate) ttl: Option<Duration>,
}

impl Leaving {
    fn is_over(&self, whole: &Whole) -> bool {
        let age = || since_1970().abs_diff(whole.written); // as in `Policy::score`
        self.ttl.is_some_and(|ttl| age() >= ttl.max(Duration::from_secs(1)))
    }
}

/// A file with the bytes of blocks. It is opened when the first block needs it: a store with blocks
/// of a hundred lengths would need thousands of descriptors.
#[derive(Debug)]
struct DataFile {
    path: PathBuf,
    file: OnceLock<forebay::File>,
}

/// All slots of one size.
#[derive(Debug)]
pub(crate) struct Class {
    pub(crate) slot: u64,
    sets: u64,
    ways: usize,
    index: File,
    uses: File,
    locks: File,
    data: Vec<DataFile>,
    engine: Engine,
    is_in_memory: bool,
    /// Whether the file system makes holes, as far as known. Without them, an empty slot keeps its
    /// space, and its record stays that of a dead writer: the slot is taken without more space.
    has_holes: AtomicBool,
    /// The slots and sets that this process has locked: its threads share one file's locks.
    held: Lock<Vec<Range<u64>>>,
    leaving: Leaving,
}

/// The answer to a writer.
#[derive(Debug)]
pub(crate) enum Claim {
    /// The block is stored already.
    Present,
    /// Another writer writes this block, or chooses in the same set.
    Busy,
    /// The slot is free for this writer.
    Claimed(Claimed),
    /// No slot is free, and none can be freed.
    NoRoom,
}

/// A slot that is being written. Dropping it without [`publish`](Self::publish) frees the slot.
#[derive(Debug)]
pub(crate) struct Claimed {
    pub(crate) class: Arc<Class>,
    pub(crate) slot: u64,
    /// Another block was there.
    pub(crate) evicted: bool,
    published: bool,
    /// Space that the block takes in addition.
    pub(crate) growth: Option<Growth>,
}

/// Bytes that are counted while a block is being written, which takes them from the drive.
#[derive(Debug)]
pub(crate) struct Growth(Arc<AtomicU64>, u64);

impl Growth {
    pub(crate) fn of(all: &Arc<AtomicU64>, bytes: u64) -> Self {
        all.fetch_add(bytes, Ordering::Relaxed);
        Self(Arc::clone(all), bytes)
    }
}

impl Drop for Growth {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

/// The length of the slots for blocks of `len` bytes: at most a sixteenth longer, so that few
/// classes serve all lengths. The rest of a slot takes no space on the drive.
pub(crate) fn slot_len(len: u64) -> u64 {
    let len = len.max(1);
    let step = (1 << len.ilog2() >> 4).max(PAGE as u64);
    len.next_multiple_of(step)
}

/// Bytes of a block on the drive.
pub(crate) fn padded(len: u64) -> u64 {
    len.max(1).next_multiple_of(PAGE as u64)
}

pub(crate) fn folder(root: &Path, slot: u64) -> PathBuf {
    root.join(format!("blocks-{slot}"))
}

impl Class {
    /// Opens the files for slots of `slot` bytes, or makes them.
    pub(crate) fn open(
        engine: &Engine,
        root: &Path,
        slot: u64,
        capacity: u64,
        leaving: Leaving,
    ) -> forebay::Result<Self> {
        let folder = folder(root, slot);
        let slots = (capacity / slot).max(1);
        let ways = WAYS.min(usize::try_from(slots).unwrap_or(WAYS));
        let sets = (slots / ways as u64).max(1);
        let failed = |path: &Path| failed(Operation::Open, path);
        spare_descriptors().map_err(failed(&folder))?;
        std::fs::create_dir_all(&folder).map_err(failed(&folder))?;
        let open = |name: &str, len: u64| {
            let path = folder.join(name);
            own_file(&path, len).map_err(failed(&path))
        };
        let index = open("index", sets * PAGE as u64)?;
        let uses = open("uses", sets * (WAYS * 8) as u64)?;
        let (locks, held) = (open("locks", 0)?, Lock::default());
        let kind = rustix::fs::fstatfs(&index).map_err(|error| failed(&folder)(error.into()))?;
        let path = |number| folder.join(format!("data-{number}"));
        let data = |number| DataFile { path: path(number), file: OnceLock::new() };
        Ok(Self {
            slot,
            sets,
            ways,
            index,
            uses,
            locks,
            data: (0..FILES.min(sets)).map(data).collect(),
            engine: engine.clone(),
            is_in_memory: kind.f_type == libc::TMPFS_MAGIC,
            has_holes: AtomicBool::new(true),
            held,
            leaving,
        })
    }

    fn opened<'a>(&self, data: &'a DataFile) -> io::Result<&'a forebay::File> {
        if let Some(file) = data.file.get() {
            return Ok(file);
        }
        spare_descriptors()?;
        let len = self.sets.div_ceil(self.data.len() as u64) * self.ways as u64 * self.slot;
        let own = own_file(&data.path, len)?.metadata()?;
        let file = self.engine.open_with(&data.path, &OpenOptions::writing()).map_err(of_system)?;
        if file.identity() != (own.dev(), own.ino()) {
            return Err(io::ErrorKind::StaleNetworkFileHandle.into());
        }
        Ok(data.file.get_or_init(|| file))
    }

    fn set_of(&self, key: &Key) -> u64 {
        key.bits(0) % self.sets
    }

    fn slot_at(&self, set: u64, way: usize) -> u64 {
        set * self.ways as u64 + way as u64
    }

    /// The data file of a slot, and the slot's offset there. May wait for the drive.
    pub(crate) fn place(&self, slot: u64) -> io::Result<(&forebay::File, u64)> {
        let (data, offset) = self.data_of(slot);
        Ok((self.opened(data)?, offset))
    }

    /// The same; `None` if the file is not open yet.
    pub(crate) fn place_if_open(&self, slot: u64) -> Option<(&forebay::File, u64)> {
        let (data, offset) = self.data_of(slot);
        data.file.get().map(|file| (file, offset))
    }

    fn data_of(&self, slot: u64) -> (&DataFile, u64) {
        let (set, way) = self.set_and_way(slot);
        let files = self.data.len() as u64;
        let file = usize::try_from(set % files).expect("eight at most");
        (&self.data[file], (set / files * self.ways as u64 + way) * self.slot)
    }

    /// A set's records.
    fn records(&self, set: u64) -> io::Result<Records> {
        let mut records = Records([0; PAGE]);
        self.read_records(set, false, &mut records)?;
        Ok(records)
    }

    /// Reads a set's records. With `at_once` only if they are in memory.
    fn read_records(&self, set: u64, at_once: bool, records: &mut Records) -> io::Result<()> {
        let offset = set * PAGE as u64;
        if at_once {
            let flags = ReadWriteFlags::NOWAIT;
            let mut parts = [io::IoSliceMut::new(&mut records.0)];
            match rustix::io::preadv2(&self.index, &mut parts, offset, flags) {
                Ok(PAGE) => return Ok(()),
                Ok(_) => return Err(io::ErrorKind::WouldBlock.into()),
                // A file system in memory may not know the flag. Others that do not may wait.
                Err(Errno::OPNOTSUPP) if !self.is_in_memory => {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                Err(Errno::OPNOTSUPP) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.index.read_exact_at(&mut records.0, offset)
    }

    /// Reads a key's set, and again while the key's record is being changed to a whole block: the
    /// kernel does not copy 64 bytes at once.
    fn find_in(
        &self,
        key: &Key,
        at_once: bool,
        records: &mut Records,
    ) -> io::Result<Option<(usize, Record)>> {
        for _ in 0..READS_OF_RECORD {
            self.read_records(self.set_of(key), at_once, records)?;
            match records.find(key) {
                Some((_, Record::Damaged)) => std::hint::spin_loop(),
                found => return Ok(found),
            }
        }
        Ok(None)
    }

    /// When and how often each slot of a set was used.
    fn uses(&self, set: u64) -> io::Result<Vec<u64>> {
        let mut bytes = [0; WAYS * 8];
        self.uses.read_exact_at(&mut bytes, set * (WAYS * 8) as u64)?;
        let (uses, _) = bytes.as_chunks();
        Ok(uses.iter().map(|&used| u64::from_le_bytes(used)).collect())
    }

    /// Starts reading a key's records and their times of use from the drive, without waiting.
    pub(crate) fn read_ahead(&self, key: &Key) {
        let set = self.set_of(key);
        let start = |file: &File, len: usize| {
            let len = NonZeroU64::new(len as u64);
            // Without it they are read later, one after the other.
            let _ =
                rustix::fs::fadvise(file, set * len.map_or(0, u64::from), len, Advice::WillNeed);
        };
        start(&self.index, PAGE);
        start(&self.uses, WAYS * 8);
    }

    /// A whole block's slot and record. With `at_once`, `WouldBlock` if the drive has to be read.
    pub(crate) fn find(&self, key: &Key, at_once: bool) -> io::Result<Option<(u64, Whole)>> {
        let mut records = Records([0; PAGE]);
        Ok(match self.find_in(key, at_once, &mut records)? {
            Some((way, Record::Whole(whole))) if !self.leaving.is_over(&whole) => {
                Some((self.slot_at(self.set_of(key), way), whole))
            }
            _ => None,
        })
    }

    /// The set of a slot, and the slot's number in the set.
    fn set_and_way(&self, slot: u64) -> (u64, u64) {
        (slot / self.ways as u64, slot % self.ways as u64)
    }

    fn offset_of_use(&self, slot: u64) -> u64 {
        let (set, way) = self.set_and_way(slot);
        (set * WAYS as u64 + way) * 8
    }

    /// Notes that a block was used. Two processes may overwrite each other's note.
    pub(crate) fn touch(&self, slot: u64) -> io::Result<()> {
        let offset = self.offset_of_use(slot);
        let mut used = [0; 8];
        self.uses.read_exact_at(&mut used, offset)?;
        self.note_use(slot, u64::from_le_bytes(used) & ((1 << COUNT_BITS) - 1))
    }

    fn note_use(&self, slot: u64, count: u64) -> io::Result<()> {
        let count = (count + 1).min((1 << COUNT_BITS) - 1);
        let used = millis_now() << COUNT_BITS | count;
        self.uses.write_all_at(&used.to_le_bytes(), self.offset_of_use(slot))
    }

    /// Writes the record of a slot.
    fn write(&self, slot: u64, record: &Record) -> io::Result<()> {
        self.index.write_all_at(&record.encode(), self.offset_of_record(slot))
    }

    /// Takes the locks of `count` slots, unless this or another process has one of them.
    fn lock_slots(&self, first: u64, count: u64) -> io::Result<bool> {
        {
            let mut held = self.held.lock();
            if held.iter().any(|one| one.start < first + count && first < one.end) {
                return Ok(false);
            }
            held.push(first..first + count);
        }
        let locked = locks::try_lock(&self.locks, Kind::Exclusive, first, count);
        if !matches!(locked, Ok(true)) {
            self.release(first, count);
        }
        locked
    }

    fn unlock_slots(&self, first: u64, count: u64) {
        // Fails only for a bad argument; the end of the process releases it too.
        let _ = locks::unlock(&self.locks, first, count);
        self.release(first, count);
    }

    fn release(&self, first: u64, count: u64) {
        self.held.lock().retain(|one| *one != (first..first + count));
    }

    /// Runs `work` under the lock of a set; `None` if another has it.
    fn with_set<T>(&self, set: u64, work: impl FnOnce() -> io::Result<T>) -> io::Result<Option<T>> {
        if !self.lock_slots(SETS + set, 1)? {
            return Ok(None);
        }
        let _locked = Locked { class: self, slot: SETS + set };
        work().map(Some)
    }

    /// Looks for a slot for `key`. `may_grow`: whether a slot may be used that takes no space yet.
    /// `may_leave`: whether a block has to leave while there are such slots.
    pub(crate) fn claim(
        self: &Arc<Self>,
        key: &Key,
        may_grow: impl Fn() -> io::Result<bool>,
        may_leave: impl Fn(Score) -> bool,
    ) -> io::Result<Claim> {
        let set = self.set_of(key);
        let claim = self.with_set(set, || {
            let mut records = Records([0; PAGE]);
            match self.find_in(key, false, &mut records)? {
                Some((_, Record::Whole(whole))) if !self.leaving.is_over(&whole) => {
                    return Ok(Claim::Present);
                }
                Some((way, record @ Record::Writing(_))) => {
                    let claimed = self.take(self.slot_at(set, way), &record)?;
                    return Ok(claimed.map_or(Claim::Busy, Claim::Claimed));
                }
                _ => {}
            }
            self.choose(set, key, &records, may_grow, may_leave)
        })?;
        Ok(claim.unwrap_or(Claim::Busy))
    }

    /// Chooses and claims a slot of a set, under the set's lock.
    fn choose(
        self: &Arc<Self>,
        set: u64,
        key: &Key,
        records: &Records,
        may_grow: impl Fn() -> io::Result<bool>,
        may_leave: impl Fn(Score) -> bool,
    ) -> io::Result<Claim> {
        let (uses, now) = (self.uses(set)?, millis_now());
        // In this order: left by a dead writer, free, too old, least valuable.
        let rank = |way: usize| match records.at(way) {
            Record::Writing(_) | Record::Damaged => (0, (0, 0)),
            Record::Whole(whole) if whole.key == *key => (0, (0, 0)), // it is too old
            Record::Free => (1, (0, 0)),
            Record::Whole(whole) if self.leaving.is_over(&whole) => (2, (0, 0)),
            Record::Whole(_) => (3, self.leaving.policy.score(uses[way], now)),
        };
        let mut order: Vec<_> = (0..self.ways).map(|way| (rank(way), way)).collect();
        order.sort_unstable();
        let mut grows = None;
        for ((rank, score), way) in order {
            if rank == 1 {
                let grows = match grows {
                    Some(grows) => grows,
                    None => *grows.insert(may_grow()?),
                };
                if !grows {
                    continue;
                }
            }
            if rank == 3 && grows == Some(false) && !may_leave(score) {
                break;
            }
            let slot = self.slot_at(set, way);
            if let Some(mut claimed) = self.take(slot, &records.at(way))? {
                claimed.evicted = rank > 1;
                self.write(slot, &Record::Writing(*key))?;
                return Ok(Claim::Claimed(claimed));
            }
        }
        Ok(Claim::NoRoom)
    }

    /// Takes a slot under the lock of its set, if no writer has it and its record is still `seen`:
    /// a writer publishes without the lock of the set.
    fn take(self: &Arc<Self>, slot: u64, seen: &Record) -> io::Result<Option<Claimed>> {
        if !self.lock_slots(slot, 1)? {
            return Ok(None);
        }
        let now = self.record(slot);
        if matches!(&now, Ok(now) if now == seen) {
            let (class, evicted, published) = (Arc::clone(self), false, false);
            return Ok(Some(Claimed { class, slot, evicted, published, growth: None }));
        }
        self.unlock_slots(slot, 1);
        now.map(|_| None)
    }

    fn record(&self, slot: u64) -> io::Result<Record> {
        let mut bytes = [0; RECORD];
        self.index.read_exact_at(&mut bytes, self.offset_of_record(slot))?;
        Ok(Record::decode(&bytes))
    }

    fn offset_of_record(&self, slot: u64) -> u64 {
        let (set, way) = self.set_and_way(slot);
        set * PAGE as u64 + way * RECORD as u64
    }

    /// Removes a block, and gives its space back. False if it is not there.
    pub(crate) fn remove(&self, key: &Key) -> io::Result<Option<bool>> {
        let set = self.set_of(key);
        self.with_set(set, || {
            let mut records = Records([0; PAGE]);
            let found = self.find_in(key, false, &mut records)?;
            let Some((way, Record::Whole(whole))) = found else { return Ok(false) };
            self.free(self.slot_at(set, way), &whole)
        })
    }

    /// Empties a slot, under the lock of its set. False if it is being written.
    fn free(&self, slot: u64, whole: &Whole) -> io::Result<bool> {
        if !self.lock_slots(slot, 1)? {
            return Ok(false);
        }
        let freed = self.write(slot, &Record::Writing(whole.key));
        let freed = freed.and_then(|()| self.give_space_back(slot, whole.len.into()));
        self.unlock_slots(slot, 1);
        freed.map(|()| true)
    }

    /// Gives the space of a slot without a block back, under the slot's lock.
    fn give_space_back(&self, slot: u64, len: u64) -> io::Result<()> {
        self.punch(slot, len)?;
        if self.has_holes() { self.write(slot, &Record::Free) } else { Ok(()) }
    }

    fn punch(&self, slot: u64, len: u64) -> io::Result<()> {
        let (data, offset) = self.place(slot)?;
        if self.has_holes() && !punch(data.descriptor(), offset, padded(len))? {
            self.has_holes.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether removed blocks give their space back, as far as known.
    pub(crate) fn has_holes(&self) -> bool {
        self.has_holes.load(Ordering::Relaxed)
    }

    /// The least valuable block of one set, which `random` selects.
    pub(crate) fn candidate(&self, random: u64) -> io::Result<Option<Candidate>> {
        let set = random % self.sets;
        let (records, uses, now) = (self.records(set)?, self.uses(set)?, millis_now());
        let whole = (0..self.ways).filter_map(|way| match records.at(way) {
            Record::Whole(whole) => {
                let score = self.leaving.policy.score(uses[way], now);
                Some(Candidate { score, key: whole.key, len: whole.len.into() })
            }
            _ => None,
        });
        Ok(whole.min_by_key(|candidate| candidate.score))
    }

    /// Removes all blocks. Those that are being written may stay, and those of a set that another
    /// process, such as a stopped one, keeps locked for a second.
    pub(crate) fn clear(&self) -> io::Result<()> {
        let all = SETS + self.sets;
        if self.lock_slots(0, all)? {
            let cleared = self.clear_files();
            self.unlock_slots(0, all);
            return cleared;
        }
        for set in 0..self.sets {
            let until = Instant::now() + SET_MAX;
            while self.clear_set(set)?.is_none() && Instant::now() < until {
                thread::sleep(Duration::from_micros(100));
            }
        }
        Ok(())
    }

    /// Empties all files, under all locks.
    fn clear_files(&self) -> io::Result<()> {
        let whole = |file: &File| punch(file.as_fd(), 0, file.metadata()?.len());
        if !whole(&self.index)? {
            // A reader always finds a whole page.
            let mut sets = 0..self.sets;
            sets.try_for_each(|set| self.index.write_all_at(&[0; PAGE], set * PAGE as u64))?;
        }
        self.each_data(|file| {
            let len = file.metadata()?.len();
            if whole(file)? { Ok(()) } else { file.set_len(0).and_then(|()| file.set_len(len)) }
        })
    }

    /// Empties a set; `None` if another has its lock.
    fn clear_set(&self, set: u64) -> io::Result<Option<()>> {
        let (first, count) = (self.slot_at(set, 0), self.ways as u64);
        self.with_set(set, || {
            let records = self.records(set)?;
            if records.0.iter().all(|&byte| byte == 0) {
                return Ok(());
            }
            if self.has_holes() && self.lock_slots(first, count)? {
                let empty = self.index.write_all_at(&[0; PAGE], set * PAGE as u64);
                let empty = empty.and_then(|()| self.punch(first, count * self.slot));
                self.unlock_slots(first, count);
                return empty;
            }
            (0..self.ways).try_for_each(|way| match records.at(way) {
                Record::Whole(whole) => self.free(self.slot_at(set, way), &whole).map(drop),
                _ => Ok(()),
            })
        })
    }

    /// Bytes that the data takes on the drive.
    pub(crate) fn used(&self) -> io::Result<u64> {
        let used = |data: &DataFile| match std::fs::symlink_metadata(&data.path) {
            Ok(it) => Ok(it.blocks() * 512),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error),
        };
        self.data.iter().map(used).sum()
    }

    /// Opens the data files that there are, one after the other: other processes have more of them
    /// open than this one.
    fn each_data(&self, work: impl Fn(&File) -> io::Result<()>) -> io::Result<()> {
        self.data.iter().try_for_each(|data| match own_options().open(&data.path) {
            Ok(file) => work(&file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        })
    }

    /// Number of whole blocks.
    pub(crate) fn count(&self) -> io::Result<u64> {
        let count = |set| {
            let records = self.records(set)?;
            let whole = (0..self.ways).filter(|&way| matches!(records.at(way), Record::Whole(_)));
            Ok(whole.count() as u64)
        };
        (0..self.sets).map(count).sum()
    }

    /// Makes all blocks durable whose writes have ended.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.each_data(File::sync_data)?;
        self.index.sync_data()
    }
}

/// A lock on a set, until it is dropped.
#[derive(Debug)]
struct Locked<'a> {
    class: &'a Class,
    slot: u64,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.class.unlock_slots(self.slot, 1);
    }
}

/// A block that may leave.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub(crate) score: Score,
    pub(crate) key: Key,
    pub(crate) len: u64,
}

impl Claimed {
    /// Makes the block visible to all processes: its bytes are in its slot.
    pub(crate) fn publish(&mut self, key: Key, checksum: u64, len: u32) -> io::Result<()> {
        let whole = Whole { key, checksum, len, written: since_1970() };
        self.class.note_use(self.slot, 0)?;
        self.class.write(self.slot, &Record::Whole(whole))?;
        self.published = true;
        Ok(())
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        if !self.published {
            // If this fails too, the record says that a writer has the slot, and its lock is free:
            // the next writer takes it.
            let _ = self.class.give_space_back(self.slot, self.class.slot);
        }
        self.class.unlock_slots(self.slot, 1);
    }
}

/// Opens a file of a store, but no link: it would lead writes to a file of someone else's choice.
fn own_options() -> std::fs::OpenOptions {
    let mut options = File::options();
    options.read(true).write(true).custom_flags(libc::O_NOFOLLOW);
    options
}

/// Opens a file of at least `len` bytes, or makes it.
fn own_file(path: &Path, len: u64) -> io::Result<File> {
    let file = own_options().create(true).truncate(false).open(path)?;
    if file.metadata()?.len() < len {
        file.set_len(len)?;
    }
    Ok(file)
}

/// An error unless an eighth of the process's descriptors is left for the rest of the process.
fn spare_descriptors() -> io::Result<()> {
    let most = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    if open as u64 <= most - most / 8 { Ok(()) } else { Err(Errno::MFILE.into()) }
}

/// Gives the space of a range back, which is zeros then. False if the file system cannot.
fn punch(file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<bool> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match rustix::fs::fallocate(file, flags, offset, len) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

fn millis_now() -> u64 {
    u64::try_from(since_1970().as_millis()).unwrap_or(u64::MAX) & (u64::MAX >> COUNT_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn slots_hold_their_blocks_and_waste_little(len in 1_u64..=64 << 20) {
            let slot = slot_len(len);
            prop_assert!(slot >= padded(len) && slot.is_multiple_of(PAGE as u64));
            prop_assert!(slot - padded(len) <= len / 16);
            prop_assert_eq!(slot_len(slot), slot);
        }
    }
}
