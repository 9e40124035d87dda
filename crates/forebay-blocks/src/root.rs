//! One folder of a store, usually on a drive of its own: its classes, its space and its health.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use forebay::error::Operation;
use forebay::{Engine, Error, Result};
use forebay_base::lock::Lock;
use rustix::fs::{AtFlags, CWD, StatxFlags};

use crate::class::{Candidate, Claim, Class, Growth, Leaving, folder, padded, slot_len};
use crate::failure::failed;
use crate::format;
use crate::health::Health;
use crate::key::Key;
use crate::record::Whole;
use crate::statistics::Counters;
use crate::traffic::Traffic;
use crate::work::{Item, Side};

/// How long a measured size of the data is believed, while other processes write: as long as the
/// capacity that is left lasts at the rate of two PCIe 5.0 drives, within these bounds.
const FASTEST: u64 = 20_000_000_000;
const USED_FOR: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));
/// Changes within this time may have the same time of change: 10 ms on most file systems, 2 s on
/// FAT.
const TICK_MAX: Duration = Duration::from_secs(2);
/// Sets that are looked at for a block to remove from another set.
const CANDIDATES: usize = 4;
/// Empty sets that are passed over in search of them.
const EMPTY_MAX: u32 = 64;
/// Blocks found to remove in sets that others use, before a search is given up, and how long each
/// is waited for.
const BUSY_MAX: u32 = 500;
const BUSY_FOR: Duration = Duration::from_micros(100);

/// A folder and its bounds.
#[derive(Debug, Clone)]
pub struct RootOptions {
    /// The folder. It is made if it is missing.
    pub path: PathBuf,
    /// The most bytes that the blocks may take on the drive.
    pub capacity: u64,
    /// Bytes that stay free on the file system; `None`: a twentieth of it, at most 16 GiB.
    pub keep_free: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Root {
    pub(crate) path: PathBuf,
    capacity: u64,
    keep_free: u64,
    leaving: Leaving,
    /// Distributes keys over roots.
    id: u64,
    classes: Lock<BTreeMap<u64, Arc<Class>>>,
    /// When the folder's list of classes was last read: its time of change then.
    listed: Lock<Option<SystemTime>>,
    used: Lock<Used>,
    /// Bytes of blocks that this store is writing to new space.
    growing: Arc<AtomicU64>,
    unwritten: Lock<Unwritten>,
    unwritten_max: u64,
    pub(crate) past_cache: bool,
    pub(crate) loads: Health,
    pub(crate) stores: Health,
    pub(crate) traffic: Traffic,
    pub(crate) counters: Counters,
    /// Shared lock: the capacity does not change while a store is open.
    _format: File,
}

/// Bytes that the blocks take.
#[derive(Debug, Default)]
struct Used {
    bytes: u64,
    /// Until when they are believed.
    until: Option<Instant>,
    /// How many there were in each class when they were measured.
    of: Vec<(Arc<Class>, u64)>,
}

/// Written blocks whose pages the kernel may not have written to the drive yet.
#[derive(Debug, Default)]
struct Unwritten {
    parts: VecDeque<(Arc<Class>, u64, u64)>,
    bytes: u64,
}

impl Root {
    pub(crate) fn open(
        engine: &Engine,
        options: &RootOptions,
        leaving: Leaving,
        past_cache: bool,
        unwritten_max: u64,
    ) -> Result<Self> {
        let path = &options.path;
        std::fs::create_dir_all(path).map_err(failed(Operation::Open, path))?;
        let space = rustix::fs::statvfs(path)
            .map_err(|errno| failed(Operation::Inspect, path)(errno.into()))?;
        if space.f_blocks == 0 {
            return Err(Error::BadState {
                reason: format!(
                    "cannot use `{}` for blocks: its file system does not say how much space it \
                     has; choose a folder on a drive",
                    path.display()
                ),
            });
        }
        let (format, id) = format::open(path, options.capacity)?;
        let twentieth = space.f_blocks * space.f_frsize / 20;
        let root = Self {
            path: path.clone(),
            capacity: options.capacity,
            keep_free: options.keep_free.unwrap_or(twentieth.min(16 << 30)),
            leaving,
            id,
            classes: Lock::default(),
            listed: Lock::default(),
            used: Lock::default(),
            growing: Arc::default(),
            unwritten: Lock::default(),
            unwritten_max,
            past_cache,
            loads: Health::default(),
            stores: Health::default(),
            traffic: Traffic::default(),
            counters: Counters::default(),
            _format: format,
        };
        root.list(engine)?;
        Ok(root)
    }

    /// The key's score here: it belongs to the root with the highest. A root gets keys in
    /// proportion to its capacity, and another root takes only its own share from the others
    /// (weighted rendezvous hashing).
    #[expect(clippy::cast_precision_loss, reason = "a share of capacity")]
    pub(crate) fn score(&self, key: &Key) -> f64 {
        let mixed = (key.bits(1) ^ self.id).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        let share = ((mixed >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        self.capacity as f64 / -share.ln()
    }

    /// Opens the classes that other processes have made since the last call.
    fn list(&self, engine: &Engine) -> Result<()> {
        let failed = failed(Operation::Open, &self.path);
        let modified = |it: std::fs::Metadata| it.modified();
        let changed = std::fs::metadata(&self.path).and_then(modified).map_err(&failed)?;
        if *self.listed.lock() == Some(changed) {
            return Ok(());
        }
        for entry in std::fs::read_dir(&self.path).map_err(&failed)? {
            let name = entry.map_err(&failed)?.file_name();
            if let Some(slot) = name.to_str().and_then(format::slot_of) {
                self.class(engine, slot)?;
            }
        }
        // A later change may get the same time, by which it would not be seen.
        let is_fresh = changed.elapsed().unwrap_or_else(|ahead| ahead.duration()) < TICK_MAX;
        *self.listed.lock() = (!is_fresh).then_some(changed);
        Ok(())
    }

    /// The class for slots of `slot` bytes; makes it if it is missing.
    fn class(&self, engine: &Engine, slot: u64) -> Result<Arc<Class>> {
        if let Some(class) = self.classes.lock().get(&slot) {
            return Ok(Arc::clone(class));
        }
        // Not under the lock: opening files may wait for the drive. Two threads may both do it.
        let class = Arc::new(Class::open(engine, &self.path, slot, self.capacity, self.leaving)?);
        Ok(Arc::clone(self.classes.lock().entry(slot).or_insert(class)))
    }

    /// The classes in which a key may be: that of its length, or all.
    pub(crate) fn classes(&self, len: Option<u64>) -> Vec<Arc<Class>> {
        let classes = self.classes.lock();
        match len {
            Some(len) => classes.get(&slot_len(len)).cloned().into_iter().collect(),
            None => classes.values().cloned().collect(),
        }
    }

    /// Starts reading the records of all `items` at once, if those of the first are not in
    /// memory: after a start the index is on the drive.
    pub(crate) fn read_ahead<'a>(&self, items: impl Iterator<Item = &'a Item> + Clone) {
        let class = |item: &Item| self.classes.lock().get(&slot_len(item.len)).cloned();
        let is_cold =
            |item: &Item| class(item).is_some_and(|class| class.find(&item.key, true).is_err());
        if items.clone().next().is_some_and(is_cold) {
            items.for_each(|item| class(item).iter().for_each(|class| class.read_ahead(&item.key)));
        }
    }

    /// Whether all classes are open, as far as the kernel knows without a drive or a server.
    fn is_current(&self) -> bool {
        let flags = AtFlags::STATX_DONT_SYNC;
        let changed = rustix::fs::statx(CWD, &self.path, flags, StatxFlags::MTIME).map(|it| {
            let seconds = Duration::from_secs(u64::try_from(it.stx_mtime.tv_sec).unwrap_or(0));
            SystemTime::UNIX_EPOCH + seconds + Duration::from_nanos(it.stx_mtime.tv_nsec.into())
        });
        changed.is_ok_and(|changed| *self.listed.lock() == Some(changed))
    }

    /// Looks whether a block is stored, without waiting for the drive; `None` if that is unknown.
    pub(crate) fn look_at_once(&self) -> impl Fn(&Key) -> Option<bool> {
        let (is_current, classes) = (self.is_current(), self.classes(None));
        move |key| {
            for class in &classes {
                if class.find(key, true).ok()?.is_some() {
                    return Some(true);
                }
            }
            is_current.then_some(false)
        }
    }

    /// Finds a block: of `len` bytes, or of any length.
    pub(crate) fn find(
        &self,
        engine: &Engine,
        key: &Key,
        len: Option<u64>,
    ) -> Result<Option<(Arc<Class>, u64, Whole)>> {
        let look = || {
            for class in self.classes(len) {
                if let Some((slot, whole)) = class.find(key, false).map_err(self.of_index())?
                    && len.is_none_or(|len| u64::from(whole.len) == len)
                {
                    return Ok(Some((class, slot, whole)));
                }
            }
            Ok::<_, Error>(None)
        };
        match look()? {
            Some(found) => Ok(Some(found)),
            // The class of this length is open.
            None if len.is_some() && !self.classes(len).is_empty() => Ok(None),
            None => self.list(engine).and_then(|()| look()),
        }
    }

    pub(crate) fn health(&self, side: Side) -> &Health {
        match side {
            Side::Load => &self.loads,
            Side::Store => &self.stores,
        }
    }

    fn of_index(&self) -> impl Fn(io::Error) -> Error {
        failed(Operation::Read, &self.path)
    }

    /// Looks for a slot for a block, and makes room if needed.
    pub(crate) fn claim(&self, engine: &Engine, key: &Key, len: u64) -> Result<Claim> {
        if padded(len) > self.capacity {
            return Ok(Claim::NoRoom);
        }
        let class = self.class(engine, slot_len(len))?;
        let needed = padded(len);
        self.measure(engine)?;
        let random = key.bits(2);
        let has_others = self.used.lock().of.len() > 1;
        let other = match has_others && self.is_full(needed).map_err(self.of_index())? {
            true => self.least(random, 1, Some(&class)).map_err(self.of_index())?,
            false => None,
        };
        let other = other.map(|(_, candidate)| candidate.score);
        let may_leave = |own| other.is_none_or(|it| !self.leaving.policy.leaves_first(it, own));
        // Space that was given back counts at once; some file systems report it only later.
        let grows = Cell::new(false);
        let claim = |freed| {
            let may_grow = || {
                grows.set(freed >= needed || self.has_room(needed)?);
                Ok(grows.get())
            };
            class.claim(key, may_grow, may_leave)
        };
        let (mut claimed, mut freed) = (claim(0).map_err(self.of_index())?, 0);
        if matches!(claimed, Claim::NoRoom) {
            // The set has no block that has to leave, so blocks of other sets leave.
            freed = self.free_up(needed, random).map_err(self.of_index())?;
            claimed = claim(freed).map_err(self.of_index())?;
        }
        if matches!(claimed, Claim::NoRoom) && other.is_some() {
            claimed = class.claim(key, || Ok(false), |_| true).map_err(self.of_index())?;
        }
        if let Claim::Claimed(claimed) = &mut claimed {
            claimed.growth = grows.get().then(|| Growth::of(&self.growing, needed));
        }
        if freed > 0 {
            self.used.lock().until = None;
        }
        Ok(claimed)
    }

    /// Removes the least valuable of some blocks, one after the other, until they had `needed`
    /// bytes; returns how many they had.
    fn free_up(&self, needed: u64, mut random: u64) -> io::Result<u64> {
        let (mut freed, mut busy) = (0, 0);
        while freed < needed && busy < BUSY_MAX {
            let Some((class, candidate)) = self.least(random, CANDIDATES, None)? else { break };
            random = next(random);
            if !class.has_holes() {
                break;
            }
            if class.remove(&candidate.key)? == Some(true) {
                freed += if class.has_holes() { padded(candidate.len) } else { 0 };
                self.counters.evicted();
            } else {
                busy += 1;
                std::thread::sleep(BUSY_FOR);
            }
        }
        Ok(freed)
    }

    /// The least valuable block of some sets, in classes other than `own`. A class is looked at the
    /// more often the more bytes it has.
    fn least(
        &self,
        mut random: u64,
        sets: usize,
        own: Option<&Arc<Class>>,
    ) -> io::Result<Option<(Arc<Class>, Candidate)>> {
        let mut classes = self.used.lock().of.clone();
        classes.retain(|(class, _)| own.is_none_or(|own| !Arc::ptr_eq(own, class)));
        let all: u64 = classes.iter().map(|(_, bytes)| bytes).sum();
        let (mut least, mut found): (Option<(Arc<Class>, Candidate)>, _) = (None, 0);
        for _ in 0..EMPTY_MAX {
            random = next(random);
            let mut at = random.rotate_left(32) % all.max(1);
            let is_at = |(_, bytes): &&(Arc<Class>, u64)| {
                let here = at < *bytes;
                at = at.saturating_sub(*bytes);
                here
            };
            let Some((class, _)) = classes.iter().find(is_at) else { break };
            let Some(candidate) = class.candidate(random)? else { continue };
            if least.as_ref().is_none_or(|(_, least)| candidate.score < least.score) {
                least = Some((Arc::clone(class), candidate));
            }
            found += 1;
            if found == sets {
                break;
            }
        }
        Ok(least)
    }

    /// Whether `len` bytes more do not fit into the capacity, or leave too little of the file
    /// system free.
    fn is_full(&self, len: u64) -> io::Result<bool> {
        let fits = self.used.lock().bytes + len <= self.capacity;
        Ok(!fits || !self.leaves_enough(len)?)
    }

    /// The same in reverse; counts them as used.
    fn has_room(&self, len: u64) -> io::Result<bool> {
        let mut used = self.used.lock();
        if used.bytes + len > self.capacity {
            return Ok(false);
        }
        used.bytes += len;
        drop(used);
        self.leaves_enough(len)
    }

    fn leaves_enough(&self, len: u64) -> io::Result<bool> {
        let space = rustix::fs::statvfs(&self.path)?;
        Ok(space.f_bavail * space.f_frsize >= len + self.keep_free)
    }

    /// Measures the size of the data, unless that is known. Not under a set's lock, for which other
    /// processes wait: it may open files.
    fn measure(&self, engine: &Engine) -> Result<()> {
        if self.used.lock().until.is_some_and(|until| Instant::now() <= until) {
            return Ok(());
        }
        self.list(engine)?;
        let used = |class: Arc<Class>| class.used().map(|bytes| (class, bytes));
        let of = self.classes(None).into_iter().map(used).collect::<io::Result<Vec<_>>>();
        let of = of.map_err(self.of_index())?;
        let written: u64 = of.iter().map(|(_, bytes)| bytes).sum();
        let bytes = written + self.growing.load(Ordering::Relaxed);
        let left = self.capacity.saturating_sub(bytes);
        let time = Duration::from_nanos(left.saturating_mul(1_000_000_000) / FASTEST);
        let until = Some(Instant::now() + time.clamp(USED_FOR.0, USED_FOR.1));
        *self.used.lock() = Used { bytes, until, of };
        Ok(())
    }

    /// Bytes that the blocks take on the drive.
    pub(crate) fn used(&self, engine: &Engine) -> Result<u64> {
        self.sum(engine, Class::used)
    }

    pub(crate) fn count(&self, engine: &Engine) -> Result<u64> {
        self.sum(engine, Class::count)
    }

    fn sum(&self, engine: &Engine, of: impl Fn(&Class) -> io::Result<u64>) -> Result<u64> {
        self.list(engine)?;
        let sum = self.classes(None).iter().map(|class| of(class)).sum::<io::Result<_>>();
        sum.map_err(self.of_index())
    }

    /// Notes that a block was written through the page cache, and waits for older ones while too
    /// many bytes are not on the drive.
    pub(crate) fn written(&self, class: &Arc<Class>, slot: u64, len: u64) -> io::Result<()> {
        if self.past_cache {
            return Ok(());
        }
        let (data, offset) = class.place(slot)?;
        write_out(data.descriptor(), offset, len, Out::Start)?;
        self.unwritten.lock().add(class, slot, len);
        loop {
            let oldest = self.unwritten.lock().take_over(self.unwritten_max);
            let Some((class, slot, len)) = oldest else { return Ok(()) };
            let (data, offset) = class.place(slot)?;
            write_out(data.descriptor(), offset, len, Out::Wait)?;
        }
    }

    /// Removes a block of any length. False if it is not there; `None` if a writer is in its set.
    pub(crate) fn remove(&self, engine: &Engine, key: &Key) -> Result<Option<bool>> {
        self.list(engine)?;
        let mut removed = false;
        for class in self.classes(None) {
            match class.remove(key).map_err(self.of_index())? {
                Some(one) => removed |= one,
                None => return Ok(None),
            }
        }
        self.used.lock().until = None;
        Ok(Some(removed))
    }

    pub(crate) fn clear(&self, engine: &Engine) -> Result<()> {
        self.list(engine)?;
        self.classes(None).iter().try_for_each(|class| class.clear()).map_err(self.of_index())?;
        self.used.lock().until = None;
        Ok(())
    }

    pub(crate) fn sync(&self) -> Result<()> {
        let failed = failed(Operation::Sync, &self.path);
        self.classes(None).iter().try_for_each(|class| class.sync()).map_err(&failed)?;
        // The files' names, which a power cut may otherwise take.
        let sync = |path: &Path| File::open(path)?.sync_all();
        sync(&self.path).map_err(&failed)?;
        let mut folders = self.classes(None).into_iter().map(|it| folder(&self.path, it.slot));
        folders.try_for_each(|folder| sync(&folder)).map_err(&failed)
    }
}

/// The next of a row of random numbers.
const fn next(random: u64) -> u64 {
    random.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1)
}

impl Unwritten {
    fn add(&mut self, class: &Arc<Class>, slot: u64, len: u64) {
        self.parts.push_back((Arc::clone(class), slot, len));
        self.bytes += len;
    }

    /// The oldest part, if there are more than `max` bytes.
    fn take_over(&mut self, max: u64) -> Option<(Arc<Class>, u64, u64)> {
        if self.bytes <= max {
            return None;
        }
        let oldest = self.parts.pop_front()?;
        self.bytes -= oldest.2;
        Some(oldest)
    }
}

/// How pages leave the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Out {
    Start,
    Wait,
}

#[expect(unsafe_code, reason = "`rustix` has no `sync_file_range`")]
fn write_out(file: std::os::fd::BorrowedFd<'_>, offset: u64, len: u64, how: Out) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let wide = |value: u64| libc::off64_t::try_from(value).map_err(io::Error::other);
    let flags = match how {
        Out::Start => libc::SYNC_FILE_RANGE_WRITE,
        Out::Wait => {
            libc::SYNC_FILE_RANGE_WAIT_BEFORE
                | libc::SYNC_FILE_RANGE_WRITE
                | libc::SYNC_FILE_RANGE_WAIT_AFTER
        }
    };
    // SAFETY: the descriptor is open, and no memory is passed.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), wide(offset)?, wide(len)?, flags) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
