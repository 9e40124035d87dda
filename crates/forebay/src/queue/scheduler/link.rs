//! The state of a GPU's link: its slots, whole or split into parts, the transfers that wait for
//! them, and its copies.
//!
//! Resident bytes use whole slots, since the link is faster with large copies: as many as readers
//! and copies need, so that the bytes stay in the processor's cache until they are copied. A drive
//! is slower than the link, so its bytes use parts: a few, reused while they are still in a cache
//! (measured: `docs/internals.md#hot-slots`).
//!
//! A slot is split into quarters, and these into quarters. The part returned last is reused first.
//! Larger parts are merged or split only if no part of the wanted size is free. If that fails and
//! no more slots can be allocated, a smaller part is used: a drive that hangs may hold a part of
//! each slot.
//!
//! A drive may hold as much as remains for other drives, so that a drive that hangs never holds
//! everything: half of the slots if it is alone, a third next to a second drive. A further slot's
//! worth of parts is reserved for the first window of short transfers, so that they do not wait for
//! a long transfer. While a long transfer waits, short ones get only this reserve. Otherwise they
//! would occupy every part before a whole slot is free again.
//!
//! Transfers wait in separate queues per drive. When a slot is returned, only the heads of the
//! queues are examined. If the head may not have more, those after it may not either. Transfers
//! without a bound, or without a slot so far, have separate queues, since they may use slots that
//! are refused to the rest.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use forebay_base::units::MIB;

use super::workers::Parked;
use crate::gpu::{DeviceError, DeviceId};
use crate::options::Priority;
use crate::queue::op::WindowKey;
use crate::queue::window::{Filler, Slot};

/// Parts into which a slot or a part is split.
pub(super) const PARTS: u64 = 4;

/// Number of sizes: a slot, its quarters and their quarters.
const SIZES: usize = 3;

/// The slots of a link, and how much of them the drives hold.
#[derive(Debug, Clone)]
pub(super) struct Slots {
    /// Bytes of a whole slot.
    size: u64,
    /// Free slots and parts by size, the largest first. Only sizes that hold a segment.
    free: Vec<Vec<Slot>>,
    made: usize,
    /// Maximum number of slots.
    pub(super) most: usize,
    /// Bytes of slots that readers may fill for a drive.
    resident_max: u64,
    /// By drive index.
    held: Vec<Held>,
    used: u64,
}

/// Bytes that the windows of a drive hold.
#[derive(Debug, Clone, Copy, Default)]
struct Held {
    /// All but the reserve for short transfers.
    all: u64,
    firsts: u64,
    /// Of either, those that a ring or readers fill.
    ring: u64,
    readers: u64,
}

/// A window's requirements for its slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Need {
    /// Minimum size in bytes.
    pub(super) len: u64,
    pub(super) filler: Filler,
    /// Bytes that the drive may have in flight, for windows that its ring fills.
    pub(super) in_flight: u64,
    /// True if its transfer is short and holds no slot yet.
    pub(super) is_first: bool,
    /// True if other transfers of the drive wait that are not short, or that have a slot already.
    pub(super) others_wait: bool,
}

/// Parts that a drive may hold beyond those for bytes in flight, to be copied. For many parts, an
/// eighth of them if that is more.
const SPARE: u64 = 4;

impl Slots {
    /// At most `most` slots of `size` bytes, with no part smaller than `least`.
    pub(super) fn new(size: u64, least: u64, most: usize) -> Self {
        let sizes = (0..SIZES).filter(|&index| index == 0 || len_of(size, index) >= least).count();
        Self {
            size,
            free: vec![Vec::new(); sizes],
            made: 0,
            most,
            resident_max: u64::MAX,
            held: Vec::new(),
            used: 0,
        }
    }

    /// Bytes of a whole slot.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Number of slots that were allocated and not lost.
    pub(super) fn made(&self) -> usize {
        self.made
    }

    pub(super) fn add(&mut self, slots: &[Slot]) {
        self.made += slots.len();
        self.free[0].extend_from_slice(slots);
    }

    /// Sets the bytes of slots that readers may fill for a drive; true if they grew. Two slots are
    /// always allowed: with fewer, nothing overlaps.
    pub(super) fn set_resident_max(&mut self, len: u64) -> bool {
        let len = len.max(2 * self.size);
        std::mem::replace(&mut self.resident_max, len) < len
    }

    fn held(&self, drive: usize) -> Held {
        self.held.get(drive).copied().unwrap_or_default()
    }

    /// True if `drive` may hold `len` more bytes. Two slots are always allowed.
    fn is_share(&self, drive: usize, len: u64) -> bool {
        let left = (self.most as u64 * self.size).saturating_sub(self.used + len);
        self.held(drive).all + len <= left.max(2 * self.size)
    }

    /// True if `drive` may use `len` bytes of the reserve for short transfers. There is no reserve
    /// if a drive may have two of three slots anyway.
    fn is_kept(&self, drive: usize, len: u64) -> bool {
        self.most > 3 && len < self.size && self.held(drive).firsts + len <= self.size
    }

    /// True if the limits of `drive` allow what it needs, whether or not a slot is free.
    pub(super) fn admits(&self, drive: usize, need: Need) -> bool {
        let len = self.index_of(need.len).map_or(0, |index| len_of(self.size, index));
        let is_kept = need.is_first && self.is_kept(drive, len);
        let may = !(need.is_first && need.others_wait) && self.is_share(drive, len);
        let Held { ring, readers, .. } = self.held(drive);
        (is_kept || may)
            && match need.filler {
                Filler::Other => true,
                Filler::Readers => is_kept || readers + len <= self.resident_max,
                Filler::Ring if len == self.size => true,
                // A further part, while the drive's limit is this many bytes in flight.
                Filler::Ring => {
                    let parts = need.in_flight.div_ceil(len);
                    ring + len <= (parts + SPARE.max(parts / 8)).saturating_mul(len)
                }
            }
    }

    /// The index of the smallest size that holds `len` bytes.
    fn index_of(&self, len: u64) -> Option<usize> {
        (0..self.free.len()).rev().find(|&index| len_of(self.size, index) >= len)
    }

    /// True if no slot and no part is free.
    pub(super) fn is_empty(&self) -> bool {
        self.free.iter().all(Vec::is_empty)
    }

    /// True if a part of a slot is free, but not the whole slot.
    pub(super) fn is_split(&self) -> bool {
        self.free[1..].iter().any(|parts| !parts.is_empty())
    }

    /// Leases a slot, or the smallest part that is large enough. If none is free and no slot will
    /// be allocated, leases a smaller part.
    pub(super) fn take(&mut self, drive: usize, need: Need) -> Option<Slot> {
        if !self.admits(drive, need) {
            return None;
        }
        let index = self.index_of(need.len)?;
        let mut slot = self.take_of(index).or_else(|| self.take_smaller(index))?;
        if self.held.len() <= drive {
            self.held.resize(drive + 1, Held::default());
        }
        slot.is_first = need.is_first && self.is_kept(drive, slot.len);
        slot.filler = need.filler;
        self.counts(drive, slot).for_each(|count| *count += slot.len);
        Some(slot)
    }

    /// The counts that include a slot of `drive`.
    fn counts(&mut self, drive: usize, slot: Slot) -> impl Iterator<Item = &mut u64> {
        let Held { all, firsts, ring, readers } = &mut self.held[drive];
        let by = match slot.filler {
            Filler::Readers => Some(readers),
            Filler::Ring if slot.len < self.size => Some(ring),
            Filler::Ring | Filler::Other => None,
        };
        let held = if slot.is_first { firsts } else { all };
        [Some(held), by, Some(&mut self.used)].into_iter().flatten()
    }

    fn take_of(&mut self, index: usize) -> Option<Slot> {
        if let Some(slot) = self.free[index].pop().or_else(|| self.made_whole(index)) {
            return Some(slot);
        }
        let Slot { address, whole, .. } = self.take_of(index.checked_sub(1)?)?;
        let len = len_of(self.size, index);
        let part = |number| Slot { whole, ..Slot::whole(address + number * len, len) };
        // The first part is leased first.
        self.free[index].extend((1..PARTS).rev().map(part));
        Some(part(0))
    }

    /// Merges parts that are all free.
    fn made_whole(&mut self, index: usize) -> Option<Slot> {
        let parts = index + 1;
        if parts >= self.free.len() {
            return None;
        }
        let len = len_of(self.size, index);
        let whole_of = |part: &Slot| part.whole + (part.address - part.whole) / len * len;
        while let Some(larger) = self.made_whole(parts) {
            self.free[parts].push(larger);
        }
        let is_free = |address: u64| {
            let of_it = self.free[parts].iter().filter(|part| whole_of(part) == address);
            of_it.count() as u64 == PARTS
        };
        let found = self.free[parts].iter().rev().find(|part| is_free(whole_of(part)))?;
        let slot = Slot { whole: found.whole, ..Slot::whole(whole_of(found), len) };
        self.free[parts].retain(|part| whole_of(part) != slot.address);
        Some(slot)
    }

    fn take_smaller(&mut self, index: usize) -> Option<Slot> {
        let grows = self.made < self.most;
        (index + 1..self.free.len()).filter(|_| !grows).find_map(|index| self.free[index].pop())
    }

    /// Returns the slot of a window of `drive`.
    pub(super) fn give(&mut self, drive: usize, slot: Slot) {
        self.counts(drive, slot).for_each(|count| *count -= slot.len);
        let index = (0..self.free.len()).find(|&index| len_of(self.size, index) == slot.len);
        let slot = Slot { whole: slot.whole, ..Slot::whole(slot.address, slot.len) };
        self.free[index.expect("it was taken here")].push(slot);
    }

    /// Removes a slot for good: a device may still write into it. If the slot was split, its other
    /// parts stay in use.
    pub(super) fn lose(&mut self, drive: usize, slot: Slot) {
        self.counts(drive, slot).for_each(|count| *count -= slot.len);
        if slot.len == self.size {
            self.made -= 1;
        }
    }

    /// Free slots and parts.
    #[cfg(test)]
    pub(super) fn free(&self) -> impl Iterator<Item = &Slot> {
        self.free.iter().flatten()
    }

    /// True if a window of `drive` would get what it needs now.
    #[cfg(test)]
    pub(super) fn has(&self, drive: usize, need: Need) -> bool {
        self.clone().take(drive, need).is_some()
    }
}

/// Bytes of the size at `index`.
fn len_of(slot: u64, index: usize) -> u64 {
    (0..index).fold(slot, |len, _| len / PARTS)
}

/// Queue key: priority, drive, slot limit, whether it waits for its first slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Class {
    /// False for urgent transfers, which are served first regardless of arrival.
    pub(super) is_normal: bool,
    pub(super) drive: usize,
    pub(super) filler: Filler,
    pub(super) is_first: bool,
}

impl Class {
    pub(super) fn new(drive: usize, priority: Priority, need: Need) -> Self {
        let is_normal = priority == Priority::Normal;
        let Need { filler, is_first, .. } = need;
        Self { is_normal, drive, filler, is_first }
    }
}

/// Order of arrival and key of a transfer.
type Waiter = (u64, usize);

/// The queues of transfers that wait for a slot of a link.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// No queue in the map is empty.
    classes: BTreeMap<Class, BTreeMap<u64, usize>>,
    came: u64,
}

/// The heads of the queues, in the order in which to serve them.
#[derive(Debug)]
pub(super) struct Heads(BinaryHeap<Reverse<(bool, Waiter, Class)>>);

impl Waiting {
    /// Appends a transfer to a queue; returns its ticket.
    pub(super) fn push(&mut self, class: Class, key: usize) -> u64 {
        self.came += 1;
        self.classes.entry(class).or_default().insert(self.came, key);
        self.came
    }

    /// Removes the transfer with this ticket from its drive's queues.
    pub(super) fn remove(&mut self, drive: usize, since: u64) {
        self.classes.retain(|class, waiters| {
            let removed = class.drive == drive && waiters.remove(&since).is_some();
            !removed || !waiters.is_empty()
        });
    }

    /// True if a transfer is waiting for its first slot.
    pub(super) fn has_first(&self) -> bool {
        self.classes.keys().any(|class| class.is_first)
    }

    /// True if anything but a short transfer's first window is waiting on `drive`.
    pub(super) fn has_others(&self, drive: usize) -> bool {
        self.classes.keys().any(|class| class.drive == drive && !class.is_first)
    }

    /// The heads of the queues, in no particular order.
    pub(super) fn first(&self) -> impl Iterator<Item = usize> {
        self.classes.values().filter_map(|class| Some(*class.first_key_value()?.1))
    }

    pub(super) fn heads(&self) -> Heads {
        let of = |(&class, waiters): (&Class, &BTreeMap<u64, usize>)| {
            Some(Reverse((class.is_normal, first_of(waiters)?, class)))
        };
        Heads(self.classes.iter().filter_map(of).collect())
    }

    /// Removes the head of a queue and adds the new head to `heads`.
    pub(super) fn serve(&mut self, class: Class, heads: &mut Heads) {
        let Some(waiters) = self.classes.get_mut(&class) else { return };
        waiters.pop_first();
        match first_of(waiters) {
            Some(next) => heads.0.push(Reverse((class.is_normal, next, class))),
            None => drop(self.classes.remove(&class)),
        }
    }

    /// Moves the head of a queue, whose class changed, to the end of the queue of its new class;
    /// returns its new ticket.
    pub(super) fn change(&mut self, from: Class, to: Class, heads: &mut Heads) -> Option<u64> {
        let first = self.classes.get(&from).and_then(first_of);
        self.serve(from, heads);
        let (_, key) = first?;
        let since = self.push(to, key);
        if self.classes[&to].len() == 1 {
            heads.0.push(Reverse((to.is_normal, (since, key), to)));
        }
        Some(since)
    }

    /// All waiting transfers.
    #[cfg(test)]
    pub(super) fn all(&self) -> impl Iterator<Item = usize> {
        self.classes.values().flatten().map(|(_, &key)| key)
    }
}

fn first_of(waiters: &BTreeMap<u64, usize>) -> Option<Waiter> {
    waiters.first_key_value().map(|(&came, &key)| (came, key))
}

impl Iterator for Heads {
    type Item = (usize, Class);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.pop().map(|Reverse((_, (_, key), class))| (key, class))
    }
}

/// Maximum queued groups of copies per direction: one runs while the next is ready.
pub(super) const COPIES_QUEUED_MAX: usize = 2;

/// A link is behind once it copied this many slots' worth without a pause: half a millisecond.
const BEHIND_SLOTS: u64 = 2;

/// Last bytes of a link that are still in private caches of the readers' cores when they are
/// copied: no later read displaces them. A GPU reads those lines slowly, most of all from idle
/// cores, so they are moved to the shared cache. A read of 8 MiB takes 0.32 instead of 0.71 ms, one
/// of 16 MiB 0.54 instead of 1.0 ms. With 32 MiB, four reads of 16 MiB at the same time had 45
/// instead of 51 GB/s, since moving costs the readers time (H200, 2026-11-30).
pub(super) const PRIVATE_CACHES: u64 = 16 * MIB;

/// A link's slots, copies and waiting transfers.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) slots: Slots,
    pub(super) growing: bool,
    /// Number of transfers, by share of a drive.
    pub(super) transfers: usize,
    /// Bytes of their reads that are not copied yet.
    pub(super) left: u64,
    /// Open windows of reads, oldest first.
    pub(super) filling: Vec<WindowKey>,
    /// Windows of writes that wait for their copy from the GPU.
    pub(super) unloading: VecDeque<WindowKey>,
    /// Transfers that wait for a slot.
    pub(super) waiting: Waiting,
    /// Number of copies so far.
    pub(super) begun: u64,
    /// Number of queued copies.
    pub(super) copies: u32,
    /// Bytes queued since the link was last idle.
    pub(super) busy_len: u64,
    /// The last group let a new transfer overtake others that were ready; the next may not.
    pub(super) overtook: bool,
    /// The GPU and its error, if nothing is copied there any more.
    pub(super) broken: Option<(DeviceId, DeviceError)>,
    pub(super) parked: Parked,
}

impl Link {
    /// A link with at most `most` slots of `slot_size` bytes, and no part smaller than `segment`.
    pub(super) fn new(slot_size: u64, segment: u64, most: usize) -> Self {
        Self {
            slots: Slots::new(slot_size, segment, most),
            growing: false,
            transfers: 0,
            left: 0,
            filling: Vec::new(),
            unloading: VecDeque::new(),
            waiting: Waiting::default(),
            begun: 0,
            copies: 0,
            busy_len: 0,
            overtook: false,
            broken: None,
            parked: Parked::default(),
        }
    }

    /// True if the link was busy for long. Drives complete requests in bursts, and one burst keeps
    /// the link busy only for a moment.
    pub(super) fn is_behind(&self) -> bool {
        self.copies as usize >= COPIES_QUEUED_MAX
            && self.busy_len >= BEHIND_SLOTS * self.slots.size()
    }

    /// True if no copy is queued and none is about to be.
    pub(super) fn is_idle(&self) -> bool {
        self.copies == 0 && self.unloading.is_empty()
    }

    /// Forgets a window that closed, or whose slot is lost.
    pub(super) fn forget(&mut self, window: WindowKey) {
        self.filling.retain(|&key| key != window);
        self.unloading.retain(|&key| key != window);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(count: u64, least: u64) -> Slots {
        let mut slots = Slots::new(16, least, usize::try_from(count).unwrap());
        let all: Vec<Slot> = (0..count).map(|n| Slot::whole(16 * n, 16)).collect();
        slots.add(&all);
        slots
    }

    /// For a ring with these bytes in flight, or with `u64::MAX` for another filler.
    fn need(len: u64, in_flight: u64) -> Need {
        let filler = if in_flight == u64::MAX { Filler::Other } else { Filler::Ring };
        Need { len, filler, in_flight, is_first: false, others_wait: false }
    }

    #[test]
    fn parts_come_from_one_slot_and_become_one_again() {
        let mut slots = slots(4, 1);
        let parts: Vec<Slot> = (0..16).map(|_| slots.take(0, need(1, u64::MAX)).unwrap()).collect();
        assert!(parts.iter().all(|part| part.whole == 48 && part.len == 1));
        let places: Vec<u64> = parts.iter().map(|part| part.address).collect();
        assert_eq!(places, (48..64).collect::<Vec<_>>(), "in the order of memory");
        parts.iter().for_each(|&part| slots.give(0, part));
        assert_eq!(
            slots.take(0, need(1, u64::MAX)),
            Some(parts[15]),
            "the last to come is the first to go"
        );
        slots.give(0, parts[15]);
        let quarter = slots.take(0, need(3, u64::MAX)).unwrap();
        assert_eq!((quarter.whole, quarter.len), (48, 4));
        slots.give(0, quarter);
        let whole: Vec<u64> =
            (0..4).map(|drive| slots.take(drive, need(16, u64::MAX)).unwrap().address).collect();
        assert_eq!(whole, [32, 16, 0, 48]);
        assert!(slots.is_empty());
    }

    #[test]
    fn nothing_is_smaller_than_a_segment() {
        assert_eq!(slots(1, 4).take(0, need(1, u64::MAX)).unwrap().len, 4);
        assert_eq!(slots(1, 5).take(0, need(1, u64::MAX)).unwrap().len, 16);
        assert_eq!(slots(1, 16).take(0, need(16, u64::MAX)).unwrap().len, 16);
    }

    #[test]
    fn parts_serve_where_nothing_is_whole() {
        let mut slots = slots(4, 1);
        let held = [0, 0, 1].map(|drive| slots.take(drive, need(16, u64::MAX)).unwrap());
        let part = slots.take(2, need(1, u64::MAX)).unwrap();
        assert_eq!(slots.take(3, need(16, u64::MAX)).unwrap().len, 4, "the largest that is free");
        slots.give(2, part);
        slots.give(1, held[2]);
        assert_eq!(slots.take(3, need(16, u64::MAX)).unwrap().len, 16);
        let mut grows = Slots::new(16, 1, 2);
        grows.add(&[Slot::whole(0, 16)]);
        assert!(grows.take(0, need(1, u64::MAX)).is_some());
        assert_eq!(grows.take(1, need(16, u64::MAX)), None, "another will be made");
    }

    #[test]
    fn each_holds_no_more_than_is_left() {
        let mut slots = slots(16, 1);
        let mut take = |drive| std::iter::from_fn(|| slots.take(drive, need(16, u64::MAX))).count();
        assert_eq!((take(0), take(1), take(2), take(3), take(4)), (8, 4, 2, 2, 0));
    }

    #[test]
    fn no_more_parts_than_are_needed() {
        let mut slots = slots(4, 1);
        // Six bytes in flight, and the four spare parts.
        let held: Vec<Slot> = std::iter::from_fn(|| slots.take(0, need(1, 6))).collect();
        assert_eq!(held.len(), 10);
        assert!(
            !slots.admits(0, need(1, 6))
                && slots.admits(0, need(1, 7))
                && slots.admits(1, need(1, 6))
        );
        assert!(
            slots.take(0, need(1, u64::MAX)).is_some()
                && slots.take(1, need(1, u64::MAX)).is_some()
        );
        slots.give(0, held[9]);
        assert_eq!(slots.take(0, need(1, 6)), Some(held[9]));
        // With parts that hold several requests, only as many as the requests need.
        let quarters = std::iter::from_fn(|| slots.take(1, need(3, 6))).count();
        assert_eq!(quarters, 2 + 4);
    }

    #[test]
    fn readers_fill_a_few_slots_for_each_drive() {
        let mut slots = slots(16, 1);
        slots.set_resident_max(48);
        let resident = Need { filler: Filler::Readers, ..need(16, u64::MAX) };
        let held: Vec<Slot> = std::iter::from_fn(|| slots.take(0, resident)).collect();
        assert_eq!(held.len(), 3);
        assert!(slots.admits(0, need(16, u64::MAX)) && slots.admits(1, resident));
        let short = Need { is_first: true, ..Need { len: 1, ..resident } };
        let parts: Vec<Slot> = std::iter::from_fn(|| slots.take(0, short)).collect();
        assert_eq!(parts.len(), 16, "the reserve");
        parts.iter().for_each(|&part| slots.give(0, part));
        slots.give(0, held[1]);
        assert_eq!(slots.take(0, resident), Some(held[1]), "it may still be in a cache");
        assert!(!slots.set_resident_max(0) && slots.set_resident_max(64));
        assert!(slots.take(0, resident).is_some());
    }

    #[test]
    fn a_transfer_without_a_slot_gets_a_part_beyond_the_share() {
        let mut slots = slots(8, 1);
        let whole: Vec<Slot> = std::iter::from_fn(|| slots.take(0, need(16, u64::MAX))).collect();
        assert_eq!((whole.len(), slots.take(0, need(1, u64::MAX))), (4, None));
        let first = Need { is_first: true, others_wait: true, ..need(1, u64::MAX) };
        let parts: Vec<Slot> = std::iter::from_fn(|| slots.take(0, first)).collect();
        assert_eq!(parts.len(), 16, "one slot's worth");
        // The long transfer gets whatever is given back.
        slots.give(0, whole[0]);
        assert_eq!(slots.take(0, first), None);
        assert!(slots.take(0, need(16, u64::MAX)).is_none(), "as much as is left");
        parts.iter().for_each(|&part| slots.give(0, part));
        assert!(slots.take(0, need(16, u64::MAX)).is_some());
        let alone = Need { others_wait: false, ..first };
        let parts = std::iter::from_fn(|| slots.take(1, alone)).count();
        assert_eq!(parts, 16 + 32, "those and the two slots that are never refused");
    }

    fn class(drive: usize, priority: Priority, in_flight: u64) -> Class {
        Class::new(drive, priority, need(1, in_flight))
    }

    /// The transfers that are served if those in `refused` are not.
    fn served(waiting: &mut Waiting, refused: &[usize]) -> Vec<usize> {
        let mut heads = waiting.heads();
        let mut served = Vec::new();
        while let Some((key, class)) = heads.next() {
            if !refused.contains(&key) {
                waiting.serve(class, &mut heads);
                served.push(key);
            }
        }
        served
    }

    #[test]
    fn the_first_is_served_first_and_urgent_ones_before() {
        let mut waiting = Waiting::default();
        let (a, b) = (class(0, Priority::Normal, 9), class(1, Priority::Normal, 9));
        let urgent = class(0, Priority::Urgent, u64::MAX);
        for (key, class) in [(1, a), (2, b), (3, a), (4, urgent), (5, b)] {
            waiting.push(class, key);
        }
        assert_eq!(served(&mut waiting, &[]), [4, 1, 2, 3, 5]);
        assert!(waiting.classes.is_empty());
    }

    #[test]
    fn a_refused_window_holds_up_its_own_line_alone() {
        let mut waiting = Waiting::default();
        let bounded = class(0, Priority::Normal, 9);
        let unbounded = class(0, Priority::Normal, u64::MAX);
        let classes = [(1, bounded), (2, bounded), (3, unbounded)];
        let since = classes.map(|(key, class)| waiting.push(class, key));
        assert_eq!(served(&mut waiting, &[1]), [3]);
        assert_eq!(waiting.all().collect::<Vec<_>>(), [1, 2]);
        waiting.remove(0, since[0]);
        assert_eq!(served(&mut waiting, &[]), [2]);
    }

    #[test]
    fn a_changed_window_is_last_in_its_new_line() {
        let mut waiting = Waiting::default();
        let (from, to) = (class(0, Priority::Normal, 9), class(0, Priority::Normal, u64::MAX));
        for (key, class) in [(1, from), (2, from), (3, to)] {
            waiting.push(class, key);
        }
        let mut heads = waiting.heads();
        assert_eq!(heads.next(), Some((1, from)));
        waiting.change(from, to, &mut heads);
        let rest: Vec<usize> = heads.map(|(key, _)| key).collect();
        assert_eq!(rest, [2, 3]);
        assert_eq!(served(&mut waiting, &[]), [2, 3, 1]);
    }
}
