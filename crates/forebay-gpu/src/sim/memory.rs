//! The simulated GPU's memory, and the host memory registered with it.
//!
//! Device memory is anonymous memory under made-up addresses. No pointer of the process looks like
//! them, so code that confuses the two crashes immediately. Addresses are never reused, so a second
//! `free` is always an error. Every range counts the queued copies that touch it and cannot be
//! freed before they are done.

#![expect(unsafe_code, reason = "maps the device's memory and moves bytes by raw address")]

use std::collections::BTreeMap;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use forebay_base::units::{MIB, align_up};
use forebay_base::user_copy::copy_from_user;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::fault::Fault;
use crate::{CopyDirection, DeviceCopy, DeviceError, DeviceResult};

/// Allocations start at multiples of this, with a gap of at least this size between them.
const GRANULE: u64 = 2 * MIB;

/// Next device address, shared by all simulated GPUs of the process; far above any address that the
/// kernel maps.
static NEXT_ADDRESS: AtomicU64 = AtomicU64::new(1 << 56);

/// A host address that may move between threads: its memory belongs to a queued copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HostAddress(pub(super) NonNull<u8>);

// SAFETY: only an address. The code that queues a copy promises that its memory is accessible from
// any thread until the copy is done.
unsafe impl Send for HostAddress {}

impl HostAddress {
    fn number(self) -> u64 {
        self.0.addr().get() as u64
    }
}

/// Anonymous memory, unmapped on drop.
#[derive(Debug)]
struct Mapping {
    start: HostAddress,
    len: usize,
}

impl Mapping {
    fn new(len: usize) -> rustix::io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice affects no existing memory.
        let start = unsafe {
            mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags)?
        };
        if len as u64 >= GRANULE {
            // Huge pages make first writes cheap; without them small pages work too.
            // SAFETY: the range is the mapping just made.
            let _ = unsafe { madvise(start, len, Advice::LinuxHugepage) };
        }
        let start = NonNull::new(start.cast()).expect("the kernel maps nothing at zero");
        Ok(Self { start: HostAddress(start), len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone and no pointer into it remains: copies reach it only
        // through `DeviceMemory`.
        let unmapped = unsafe { munmap(self.start.0.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "our own mapping can be unmapped");
    }
}

#[derive(Debug)]
struct Allocation {
    mapping: Mapping,
    len: u64,
    queued: usize,
}

/// The allocations of one device.
#[derive(Debug)]
pub(super) struct DeviceMemory {
    allocations: BTreeMap<u64, Allocation>,
    capacity: u64,
    used: u64,
    /// Number of attempts to free memory that queued work still used.
    misused: usize,
}

impl DeviceMemory {
    pub(super) const fn new(capacity: u64) -> Self {
        Self { allocations: BTreeMap::new(), capacity, used: 0, misused: 0 }
    }

    pub(super) const fn free_bytes(&self) -> u64 {
        self.capacity - self.used
    }

    pub(super) const fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(super) const fn misused(&self) -> usize {
        self.misused
    }

    pub(super) fn allocate(&mut self, len: u64) -> DeviceResult<u64> {
        let failed = |fault: Fault, detail: String| Err(fault.in_call("allocate", detail));
        if len == 0 {
            return failed(Fault::InvalidValue, "an allocation of no bytes".into());
        }
        if len > self.free_bytes() {
            let free = self.free_bytes();
            return failed(Fault::OutOfMemory, format!("{len} bytes requested, {free} free"));
        }
        let mapping = match usize::try_from(len).map(Mapping::new) {
            Ok(Ok(mapping)) => mapping,
            Ok(Err(errno)) => return failed(Fault::HostRefused, errno.to_string()),
            Err(_) => return failed(Fault::HostRefused, "beyond the address space".into()),
        };
        let address = NEXT_ADDRESS.fetch_add(align_up(len, GRANULE) + GRANULE, Ordering::Relaxed);
        self.allocations.insert(address, Allocation { mapping, len, queued: 0 });
        self.used += len;
        Ok(address)
    }

    pub(super) fn release(&mut self, address: u64) -> DeviceResult<()> {
        let failed = |fault: Fault, detail: String| Err(fault.in_call("free", detail));
        match self.allocations.get(&address) {
            None => failed(Fault::UnknownAddress, format!("no allocation at {address:#x}")),
            Some(allocation) if allocation.queued > 0 => {
                let queued = allocation.queued;
                self.misused += 1;
                failed(Fault::InUse, format!("{queued} copies are queued on {address:#x}"))
            }
            Some(allocation) => {
                self.used -= allocation.len;
                self.allocations.remove(&address);
                Ok(())
            }
        }
    }

    /// First address and length of the allocation that contains `address`.
    pub(super) fn holding(&self, address: u64) -> Option<(u64, u64)> {
        let (&base, allocation) = self.allocations.range(..=address).next_back()?;
        (address - base < allocation.len).then_some((base, allocation.len))
    }

    /// Counts one more queued work item on a range that is inside one allocation.
    pub(super) fn hold(&mut self, call: &'static str, address: u64, len: u64) -> DeviceResult<()> {
        let Some((base, size)) = self.holding(address) else {
            let detail = format!("no allocation holds {address:#x}");
            return Err(Fault::UnknownAddress.in_call(call, detail));
        };
        if len > base + size - address {
            let detail = format!("{address:#x}+{len} ends beyond its allocation {base:#x}+{size}");
            return Err(Fault::OutOfRange.in_call(call, detail));
        }
        self.held(base).queued += 1;
        Ok(())
    }

    /// Undoes [`hold`](Self::hold).
    pub(super) fn dispose(&mut self, address: u64) {
        let (base, _) = self.holding(address).expect("a held allocation is not released");
        self.held(base).queued -= 1;
    }

    fn held(&mut self, base: u64) -> &mut Allocation {
        self.allocations.get_mut(&base).expect("the caller found it")
    }

    /// The host address of a held range's bytes.
    pub(super) fn place(&self, address: u64) -> *mut u8 {
        let (base, _) = self.holding(address).expect("a held allocation is not released");
        let offset = usize::try_from(address - base).expect("it was mapped as a whole");
        self.allocations[&base].mapping.start.0.as_ptr().wrapping_add(offset)
    }

    /// Copies bytes from the host into a held range.
    ///
    /// # Safety
    /// `source` is readable for `len` bytes, and the held range is at least as long.
    pub(super) unsafe fn write(&self, address: u64, source: HostAddress, len: usize) {
        // SAFETY: the caller vouches for the source. The target is inside our own mapping, which no
        // other host pointer reaches.
        unsafe { ptr::copy_nonoverlapping(source.0.as_ptr(), self.place(address), len) }
    }

    /// Copies bytes from a held range to the host.
    ///
    /// # Safety
    /// `target` is writable for `len` bytes, and the held range is at least as long.
    pub(super) unsafe fn read(&self, address: u64, target: HostAddress, len: usize) {
        // SAFETY: as in `write`, with source and target exchanged.
        unsafe { ptr::copy_nonoverlapping(self.place(address), target.0.as_ptr(), len) }
    }

    /// Fills a held range with one byte.
    ///
    /// # Safety
    /// The held range is at least `len` long.
    pub(super) unsafe fn fill(&self, address: u64, byte: u8, len: u64) {
        let len = usize::try_from(len).expect("it was mapped as a whole");
        // SAFETY: the target is inside our own mapping.
        unsafe { ptr::write_bytes(self.place(address), byte, len) }
    }

    /// XORs each 8 bytes of a held range with `key`.
    ///
    /// # Safety
    /// The held range is at least `len` long, and starts at a multiple of 8.
    pub(super) unsafe fn xor(&self, address: u64, key: u64, len: u64) {
        let words = usize::try_from(len / 8).expect("it was mapped as a whole");
        let first = self.place(address).cast::<u64>();
        // SAFETY: inside our own mapping, which starts at a page. No other reference into it
        // exists, since copies reach it only through this value.
        let words = unsafe { slice::from_raw_parts_mut(first, words) };
        words.iter_mut().for_each(|word| *word ^= key);
    }
}

#[derive(Debug)]
struct Registration {
    len: u64,
    queued: usize,
    /// Contents of read-only memory at registration. A real GPU keeps the pages themselves; the
    /// bytes at the address may have changed or vanished since.
    kept: Option<Box<[u8]>>,
}

/// Copies host memory that may be a mapped file. If the file was truncated, the kernel returns an
/// error where a plain access would raise SIGBUS.
///
/// # Safety
/// The range is mapped.
pub(super) unsafe fn copied(host: HostAddress, len: usize) -> DeviceResult<Box<[u8]>> {
    let mut kept = vec![0_u8; len].into_boxed_slice();
    // SAFETY: the caller keeps the range mapped; the copy is new and has the same length.
    unsafe { copy_from_user(host.0.as_ptr(), kept.as_mut_ptr(), len) }
        .map_err(|errno| Fault::HostRefused.in_call("register", errno.to_string()))?;
    Ok(kept)
}

/// The host memory registered with the simulated GPUs that share it.
#[derive(Debug, Default)]
pub(super) struct Registrations {
    ranges: BTreeMap<u64, Registration>,
    /// Number of attempts to unregister memory that queued copies still used.
    misused: usize,
    /// Registered bytes, now and at most so far.
    bytes: u64,
    most: u64,
}

impl Registrations {
    pub(super) fn add(&mut self, host: HostAddress, len: usize) -> DeviceResult<()> {
        let (start, len) = (host.number(), len as u64);
        let failed = |fault: Fault, detail: String| Err(fault.in_call("register", detail));
        if len == 0 {
            return failed(Fault::InvalidValue, "a registration of no bytes".into());
        }
        let before = self.ranges.range(..start.saturating_add(len)).next_back();
        if let Some((other, known)) = before.filter(|(other, known)| *other + known.len > start) {
            let detail = format!("{start:#x}+{len} meets {other:#x}+{}", known.len);
            return failed(Fault::AlreadyRegistered, detail);
        }
        self.ranges.insert(start, Registration { len, queued: 0, kept: None });
        self.bytes += len;
        self.most = self.most.max(self.bytes);
        Ok(())
    }

    /// Registers read-only memory that held these bytes. At most `limit` bytes of such memory are
    /// pinned.
    pub(super) fn add_read_only(
        &mut self,
        host: HostAddress,
        kept: Box<[u8]>,
        limit: Option<u64>,
    ) -> DeviceResult<()> {
        let pinned = self.ranges.values().filter(|range| range.kept.is_some());
        let pinned: u64 = pinned.map(|range| range.len).sum();
        if let Some(limit) = limit.filter(|&limit| pinned + kept.len() as u64 > limit) {
            let detail = format!("{} bytes and {pinned}, of {limit}", kept.len());
            return Err(Fault::OutOfMemory.in_call("register_read_only", detail));
        }
        self.add(host, kept.len())?;
        self.held(host.number()).kept = Some(kept);
        Ok(())
    }

    /// The host address from which the bytes of a held range are read.
    pub(super) fn source(&self, host: HostAddress) -> HostAddress {
        let Some((base, _)) = self.holding(host.number()) else { return host };
        let Some(kept) = &self.ranges[&base].kept else { return host };
        let offset = usize::try_from(host.number() - base).expect("it is in memory");
        HostAddress(NonNull::from(&kept[offset]))
    }

    pub(super) fn remove(&mut self, host: HostAddress) -> DeviceResult<()> {
        let start = host.number();
        let failed = |fault: Fault, detail: String| Err(fault.in_call("unregister", detail));
        match self.ranges.get(&start) {
            None => {
                failed(Fault::UnknownAddress, format!("no registered memory begins at {start:#x}"))
            }
            Some(range) if range.queued > 0 => {
                let queued = range.queued;
                self.misused += 1;
                failed(Fault::InUse, format!("{queued} copies are queued on {start:#x}"))
            }
            Some(range) => {
                self.bytes -= range.len;
                self.ranges.remove(&start);
                Ok(())
            }
        }
    }

    pub(super) fn count(&self) -> usize {
        self.ranges.len()
    }

    pub(super) fn most(&self) -> u64 {
        self.most
    }

    pub(super) fn misused(&self) -> usize {
        self.misused
    }

    pub(super) fn contains(&self, address: u64) -> bool {
        self.holding(address).is_some()
    }

    fn holding(&self, address: u64) -> Option<(u64, u64)> {
        let (&start, range) = self.ranges.range(..=address).next_back()?;
        (address - start < range.len).then_some((start, range.len))
    }

    /// Counts one more queued copy on a range that is inside one registration.
    pub(super) fn hold(
        &mut self,
        call: &'static str,
        host: HostAddress,
        len: usize,
    ) -> DeviceResult<()> {
        let (start, len) = (host.number(), len as u64);
        let outside = || -> DeviceError {
            let detail = format!("no registered memory holds {start:#x}+{len}");
            Fault::NotRegistered.in_call(call, detail)
        };
        let (base, size) = self.holding(start).ok_or_else(outside)?;
        if len > base + size - start {
            return Err(outside());
        }
        self.held(base).queued += 1;
        Ok(())
    }

    /// Undoes [`hold`](Self::hold).
    pub(super) fn dispose(&mut self, host: HostAddress) {
        let (base, _) = self.holding(host.number()).expect("held memory is not unregistered");
        self.held(base).queued -= 1;
    }

    fn held(&mut self, base: u64) -> &mut Registration {
        self.ranges.get_mut(&base).expect("the caller found it")
    }
}

/// Work of a stream that is held back.
#[derive(Debug)]
pub(super) enum Held {
    /// Copies whose memory is already counted as in use, and the link's latency for the first.
    Copies(CopyDirection, Vec<(DeviceCopy, bool)>, Duration),
    Fill(u64, u8, u64),
    Xor(u64, u64, u64),
    Work(Duration),
    /// An event and its record number, which shows whether a later record replaced this one.
    Record(u64, u64),
    /// Waits for the event record with this number.
    Event(u64),
    Number(Number, u32),
    Write(Number, u32),
}

// SAFETY: only addresses; they are dereferenced under the promises of the calls that queued the
// work.
unsafe impl Send for Held {}

/// A number in registered host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Number(pub(super) NonNull<u32>);

// SAFETY: only an address, dereferenced as an atomic while its owner promised to keep it valid.
unsafe impl Send for Number {}

impl Number {
    pub(super) fn host(self) -> HostAddress {
        HostAddress(self.0.cast())
    }

    fn atomic(&self) -> &AtomicU32 {
        // SAFETY: the code that queued it keeps the number in place until it was waited for or
        // written.
        unsafe { AtomicU32::from_ptr(self.0.as_ptr()) }
    }

    pub(super) fn reaches(self, least: u32) -> bool {
        self.atomic().load(Ordering::Acquire).wrapping_sub(least).cast_signed() >= 0
    }

    pub(super) fn write(self, value: u32) {
        self.atomic().store(value, Ordering::Release);
    }
}
