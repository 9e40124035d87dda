//! An engine's pinned memory, divided into slots, with one limit for all its GPUs.

use std::slice;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use forebay_base::lock::Lock;
use forebay_base::units::format_size;
use forebay_topology::System;
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::events;
use crate::gpu::Device;
use crate::memory::{Account, Couriers, Node, Parts, Purpose, Room};
use crate::queue::Slot;

/// Slots allocated together: four of 16 MiB saturate the link and take 9 ms to allocate. A first
/// transfer of 8 GiB that begins with one slot and gets more meanwhile is 1 to 5 % slower (H100,
/// 2026-11-27, `82972b32`). Small ones were not compared from the call.
const SLOTS_AT_ONCE: u64 = 4;

/// Allocates slots, which have a part of the limit of pinned memory. Memory is freed with its last
/// user.
#[derive(Debug)]
pub(crate) struct Arena {
    slot_size: u64,
    /// Indexed by link.
    links: Lock<Vec<ArenaGpu>>,
    /// Bytes of slots.
    used: AtomicU64,
    parts: Arc<Parts>,
    /// Why slots may be on a different NUMA node than their GPU: the kernel's first error.
    misplaced: OnceLock<Errno>,
    has_reported_misplaced: AtomicBool,
    room: Arc<Room>,
    couriers: Arc<Couriers>,
    /// Why there are fewer slots than the limit allows: the first error.
    refused: OnceLock<Error>,
    /// Whether that error was emitted as an event.
    has_reported_refusal: AtomicBool,
}

#[derive(Debug)]
struct ArenaGpu {
    device: Arc<dyn Device>,
    /// NUMA node for its slots.
    node: Option<Node>,
    has_slots: bool,
}

impl Arena {
    pub(crate) fn new(slot_size: u64, bound: Option<u64>) -> Self {
        Self::of_system(System::live(), slot_size, bound)
    }

    fn of_system(system: System, slot_size: u64, bound: Option<u64>) -> Self {
        let room = Room::new(system, Account::new(slot_size, bound));
        Self {
            slot_size,
            links: Lock::default(),
            used: AtomicU64::new(0),
            parts: Arc::default(),
            misplaced: OnceLock::new(),
            has_reported_misplaced: AtomicBool::new(false),
            couriers: Couriers::new(&room),
            room,
            refused: OnceLock::new(),
            has_reported_refusal: AtomicBool::new(false),
        }
    }

    /// The engine's pinned memory.
    pub(crate) fn room(&self) -> &Arc<Room> {
        &self.room
    }

    /// Streams and pinned memory for copies that callers wait for.
    pub(crate) fn couriers(&self) -> &Arc<Couriers> {
        &self.couriers
    }

    /// Why there are fewer slots than the limit allows, with a hint.
    pub(crate) fn refused(&self) -> Option<String> {
        let error = self.refused.get()?;
        let used = format_size(self.used.load(Ordering::Relaxed));
        let hint = error.hint().unwrap_or_default();
        Some(format!("no more than {used} of pinned memory could be allocated: {error}; {hint}"))
    }

    /// The memory allocated so far; rings keep it as long as they live.
    pub(crate) fn parts(&self) -> &Arc<Parts> {
        &self.parts
    }

    /// Why slots may be on a different NUMA node than their GPU.
    pub(crate) fn misplaced(&self) -> Option<Errno> {
        self.misplaced.get().copied()
    }

    /// Adds the GPU of the next link, with the node for its slots. Returns the most slots it may
    /// have.
    pub(crate) fn add_link(&self, device: &Arc<dyn Device>, node: Option<Node>) -> usize {
        let mut links = self.links.lock();
        if !links.is_empty() {
            self.room.account().add_gpu();
        }
        links.push(ArenaGpu { device: Arc::clone(device), node, has_slots: false });
        usize::try_from(self.room.account().slots_max(true) / self.slot_size)
            .unwrap_or(usize::MAX)
            .max(1)
    }

    /// Allocates slots, as many as the limit and the host's memory allow, and pins them for the GPU
    /// of `link`. A link always gets its first slot: without one no bytes could move.
    ///
    /// # Errors
    /// The host's or the GPU's error; [`Error::PinnedLimit`] if the limit is reached.
    pub(crate) fn grow(&self, link: usize) -> Result<Vec<Slot>> {
        let (device, node, has_slots) = {
            let links = self.links.lock();
            let ArenaGpu { device, node, has_slots } = &links[link];
            (Arc::clone(device), node.clone(), *has_slots)
        };
        let purpose = if has_slots { Purpose::Lasting } else { Purpose::FirstSlots };
        let mut len = self.reserve(purpose)?;
        let memory = loop {
            // Two slots are enough to overlap. A larger request must leave as much for other users.
            let spare = if has_slots || len > 2 * self.slot_size { len } else { 0 };
            let devices = slice::from_ref(&device);
            let error = match self.room.pin_near(len, purpose, devices, (spare, node.as_ref())) {
                Ok((memory, refusal)) => {
                    refusal.map(|errno| self.misplaced.get_or_init(|| errno));
                    break memory;
                }
                Err(error) => error,
            };
            let is_short = error.is_want_of_memory();
            let fewer = if is_short { len / self.slot_size / 2 * self.slot_size } else { 0 };
            self.used.fetch_sub(len - fewer, Ordering::Relaxed);
            // A limit that was set is not reported.
            if is_short && !matches!(error, Error::PinnedLimit { .. }) {
                self.refused.get_or_init(|| error.clone());
            }
            if fewer == 0 {
                return Err(error);
            }
            len = fewer;
        };
        let first = memory.address();
        let slots = (0..len / self.slot_size)
            .map(|index| Slot::whole(first + index * self.slot_size, self.slot_size))
            .collect();
        self.parts.add(memory);
        self.links.lock()[link].has_slots = true;
        Ok(slots)
    }

    /// Emits events for the result of [`grow`](Self::grow), whose callers may hold locks.
    pub(crate) fn report_grown(&self, link: usize, grown: &Result<Vec<Slot>>) {
        if let Ok(slots) = grown
            && !slots.is_empty()
        {
            let gpu = self.links.lock()[link].device.id();
            events::memory_made(slots.iter().map(|slot| slot.len).sum(), Some(gpu));
        }
        if let Some(error) = self.refused.get()
            && !self.has_reported_refusal.swap(true, Ordering::Relaxed)
        {
            events::memory_refused(error);
        }
        if let Some(errno) = self.misplaced()
            && !self.has_reported_misplaced.swap(true, Ordering::Relaxed)
        {
            events::refused("to place pinned memory near its GPU", errno);
        }
    }

    /// Counts the next slots' bytes; a link's first slot may exceed the part for slots.
    fn reserve(&self, purpose: Purpose) -> Result<u64> {
        let (mut len, limit) = (0, self.room.account().slots_max(false));
        let least = u64::from(purpose == Purpose::FirstSlots);
        let reserved = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            let room = limit.saturating_sub(used) / self.slot_size;
            len = room.clamp(least, SLOTS_AT_ONCE) * self.slot_size;
            (len > 0).then_some(used + len)
        });
        match reserved {
            Ok(_) => Ok(len),
            Err(used) => Err(Error::PinnedLimit { len: self.slot_size, used, limit, lent: 0 }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::sim::{SimConfig, SimDevice};
    use forebay_base::clock::SystemClock;
    use forebay_base::units::MIB;

    #[test]
    fn every_link_gets_a_slot_and_no_more_than_the_bound() {
        let slot = 256 << 10;
        let arena = Arena::new(slot, Some(5 * slot));
        let clock = Arc::new(SystemClock::new());
        let devices: [Arc<dyn Device>; 2] =
            [0, 1].map(|n| Arc::new(SimDevice::new(n, SimConfig::default(), clock.clone())) as _);
        for device in &devices {
            assert_eq!(arena.add_link(device, None), 4);
        }
        assert_eq!(arena.grow(0).unwrap().len(), 4);
        assert_eq!(arena.grow(1).unwrap().len(), 1);
        for link in [0, 1] {
            assert!(matches!(arena.grow(link), Err(Error::PinnedLimit { .. })));
        }
        assert_eq!(arena.refused(), None, "a requested bound is not reported");
    }

    /// An arena of 1 MiB slots with one link, in a control group with this many MiB left.
    fn limited(left: u64) -> (Arena, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let group = folder.path().join("sys/fs/cgroup");
        std::fs::create_dir_all(&group).unwrap();
        std::fs::create_dir_all(folder.path().join("proc/self")).unwrap();
        std::fs::write(folder.path().join("proc/self/cgroup"), "0::/\n").unwrap();
        std::fs::write(group.join("cgroup.controllers"), "memory\n").unwrap();
        std::fs::write(group.join("memory.max"), (100 * MIB).to_string()).unwrap();
        std::fs::write(group.join("memory.current"), ((100 - left) * MIB).to_string()).unwrap();
        let arena = Arena::of_system(System::at(folder.path()), MIB, None);
        let clock = Arc::new(SystemClock::new());
        let device: Arc<dyn Device> = Arc::new(SimDevice::new(0, SimConfig::default(), clock));
        arena.add_link(&device, None);
        (arena, folder)
    }

    #[test]
    fn a_control_group_gets_fewer_slots_before_none() {
        // 4 MiB and a little more are reserved for overhead.
        for (left, first, second) in [(50, 4, 4), (10, 2, 2), (7, 2, 1), (6, 1, 0), (5, 0, 0)] {
            let (arena, _folder) = limited(left);
            let made = [0, 1].map(|_| arena.grow(0).map_or(0, |slots| slots.len()));
            assert_eq!(made, [first, second], "{left} MiB are left");
            let used = (first + second) as u64 * MIB;
            assert_eq!(arena.used.load(Ordering::Relaxed), used, "what was refused is not used");
            assert_eq!(arena.refused().is_some(), left < 50);
        }
        let (arena, folder) = limited(5);
        let error = arena.grow(0).unwrap_err();
        let message = "cannot allocate 1 MiB of host memory: its control group has 5 MiB left of \
            100 MiB";
        assert_eq!(error.to_string(), message);
        let hint = "set `FOREBAY_ARENA_SIZE` or `FOREBAY_SLOT_SIZE` to less, or raise the limit in \
            `/sys/fs/cgroup/memory.max`";
        assert_eq!(error.hint().as_deref(), Some(hint));
        assert!(error.is_retryable() && error.errno() == Some(Errno::NOMEM.raw_os_error()));
        // A retry succeeds once there is room.
        std::fs::write(folder.path().join("sys/fs/cgroup/memory.max"), "max").unwrap();
        assert_eq!(arena.grow(0).unwrap().len(), 4);
    }
}
