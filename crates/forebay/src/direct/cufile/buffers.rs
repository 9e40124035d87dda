//! Memory of GPUs that the driver knows, so that a drive writes to it without a detour through
//! memory of the library's own.
//!
//! Only memory that is ours is made known: what others may free at any time would leave the driver
//! with addresses of something else. The driver wants the address that was registered, and how far
//! from there on.

#![expect(unsafe_code, reason = "calls the library")]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;

use super::failure::CuFileFailure;
use super::session::Session;
use crate::gpu::{Device, DeviceId};
use crate::lock::Lock;
use crate::memory::KnownMemory;

/// A GPU, and where the memory begins for its owner.
type Key = (DeviceId, u64);

/// What is registered.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    known: Lock<Known>,
    /// Held while the driver is told of memory or made to forget it, so that who frees memory does
    /// so after that. Requests do not wait for it.
    changes: Lock<()>,
}

#[derive(Debug, Default)]
struct Known {
    all: BTreeMap<Key, Buffer>,
    bytes: u64,
    /// Uses so far.
    time: u64,
    /// Buffers so far, by which one is told from a later one at the same place.
    numbers: u64,
}

#[derive(Debug)]
struct Buffer {
    number: u64,
    device: Arc<dyn Device>,
    /// Where the library finds it.
    base: u64,
    len: u64,
    /// Requests in flight.
    in_use: usize,
    last_used: u64,
}

/// Where the library finds the memory of a request.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) base: u64,
    /// From the base on.
    pub(super) at: u64,
    within: Option<Key>,
}

impl Buffers {
    /// The place of memory at `address`, which the library finds at `native`. What is registered
    /// stays so until [`leave`](Self::leave).
    pub(super) fn enter(&self, gpu: DeviceId, (address, native): (u64, u64), len: u64) -> Place {
        let mut known = self.known.lock();
        known.time += 1;
        let time = known.time;
        let below = known.all.range_mut(..=(gpu, address)).next_back();
        let around = below.filter(|((id, start), buffer)| {
            *id == gpu && len <= buffer.len && address - start <= buffer.len - len
        });
        match around {
            Some((key, buffer)) => {
                buffer.in_use += 1;
                buffer.last_used = time;
                Place { base: buffer.base, at: address - key.1, within: Some(*key) }
            }
            None => Place { base: native, at: 0, within: None },
        }
    }

    /// Ends the use of a place.
    pub(super) fn leave(&self, place: &Place) {
        let Some(key) = place.within else { return };
        if let Some(buffer) = self.known.lock().all.get_mut(&key) {
            buffer.in_use -= 1;
        }
    }

    /// Makes the `len` bytes at `address` known, until what is returned is dropped. Others, which
    /// were not used for the longest time, make room for it.
    ///
    /// # Errors
    /// The library's; memory that finds no room within its limit.
    pub(super) fn register(
        session: &Arc<Session>,
        device: &Arc<dyn Device>,
        (address, len): (u64, u64),
    ) -> Result<Registration, CuFileFailure> {
        let _change = session.buffers.changes.lock();
        let evicted = session.buffers.known.lock().make_room(session.pinned_max(), len);
        evicted?.iter().for_each(|(key, buffer)| buffer.end(session, *key));
        let registered = Buffer::register(session, device, (address, len));
        let mut known = session.buffers.known.lock();
        match registered {
            Ok(buffer) => {
                let (key, last_used) = ((device.id(), address), known.time);
                known.numbers += 1;
                let number = known.numbers;
                known.all.insert(key, Buffer { number, last_used, ..buffer });
                Ok(Registration { session: Arc::clone(session), key, number })
            }
            Err(failure) => {
                known.bytes -= len;
                Err(failure)
            }
        }
    }
}

impl Known {
    /// Takes `len` bytes of the room that there is for `most`, and out what leaves for that.
    fn make_room(&mut self, most: u64, len: u64) -> Result<Vec<(Key, Buffer)>, CuFileFailure> {
        let mut out = Vec::new();
        let mut idle: Vec<(u64, Key, u64)> = self
            .all
            .iter()
            .filter(|(_, buffer)| buffer.in_use == 0)
            .map(|(key, buffer)| (buffer.last_used, *key, buffer.len))
            .collect();
        let spare: u64 = idle.iter().map(|(_, _, len)| len).sum();
        if (self.bytes - spare).saturating_add(len) > most {
            return Err(CuFileFailure::NoRoom);
        }
        idle.sort_unstable();
        for (_, key, _) in idle {
            if self.bytes + len <= most {
                break;
            }
            out.extend(self.take(key).map(|buffer| (key, buffer)));
        }
        self.bytes += len;
        Ok(out)
    }

    fn has(&self, key: Key, number: u64) -> bool {
        self.all.get(&key).is_some_and(|buffer| buffer.number == number)
    }

    fn take(&mut self, key: Key) -> Option<Buffer> {
        let buffer = self.all.remove(&key)?;
        self.bytes -= buffer.len;
        Some(buffer)
    }
}

impl Buffer {
    fn register(
        session: &Session,
        device: &Arc<dyn Device>,
        (address, len): (u64, u64),
    ) -> Result<Self, CuFileFailure> {
        let size = usize::try_from(len).map_err(|_| CuFileFailure::NoRoom)?;
        let base = device.hold(address, len).map_err(|_| CuFileFailure::NoRoom)?;
        let mut told = Err(CuFileFailure::NoRoom);
        let entered = device.within(&mut || {
            // SAFETY: the memory is there until it is freed, before which `Registration` ends.
            let answer = unsafe { session.register_memory(base as *const c_void, size) };
            told = answer.map_err(CuFileFailure::Refused);
        });
        match (entered, told) {
            (Ok(()), Ok(())) => {
                let device = Arc::clone(device);
                Ok(Self { number: 0, device, base, len, in_use: 0, last_used: 0 })
            }
            (_, told) => {
                device.let_go(address);
                Err(told.err().unwrap_or(CuFileFailure::NoRoom))
            }
        }
    }

    fn end(&self, session: &Session, (_, address): Key) {
        // Where the GPU is lost there is nothing that could be undone.
        let _ = self.device.within(&mut || {
            // SAFETY: registered once, and nothing is in flight there.
            unsafe { session.deregister_memory(self.base as *const c_void) }
        });
        self.device.let_go(address);
    }
}

/// Keeps memory known to the driver: to be dropped before the memory is freed.
#[derive(Debug)]
pub(super) struct Registration {
    session: Arc<Session>,
    key: Key,
    number: u64,
}

impl KnownMemory for Registration {
    fn is_forgotten(&self) -> bool {
        !self.session.buffers.known.lock().has(self.key, self.number)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if !self.session.is_here() {
            return; // it is the parent's
        }
        let _change = self.session.buffers.changes.lock();
        let mut known = self.session.buffers.known.lock();
        let buffer = known.has(self.key, self.number).then(|| known.take(self.key)).flatten();
        drop(known);
        buffer.iter().for_each(|buffer| buffer.end(&self.session, self.key));
    }
}

#[cfg(test)]
mod tests {
    use super::super::failure::Answer;
    use super::super::layout::Properties;
    use super::super::simulated;
    use super::super::table::Table;
    use super::*;
    use crate::clock::SystemClock;
    use crate::gpu::sim::{SimConfig, SimDevice};
    use crate::units::MIB;

    struct Rig {
        session: Arc<Session>,
        device: Arc<dyn Device>,
    }

    impl Rig {
        fn new() -> Self {
            Self::of(simulated::table())
        }

        fn of(table: Table) -> Self {
            let device = SimDevice::new(0, SimConfig::default(), Arc::new(SystemClock::new()));
            let session = Arc::new(Session::of_played_by(table).unwrap());
            Self { session, device: Arc::new(device) }
        }

        fn register(&self, address: u64, len: u64) -> Result<Registration, CuFileFailure> {
            Buffers::register(&self.session, &self.device, (address, len))
        }

        fn enter(&self, address: u64, len: u64) -> Place {
            let native = self.device.hold(address, len).unwrap();
            self.device.let_go(address);
            self.session.buffers.enter(self.device.id(), (address, native), len)
        }
    }

    #[test]
    fn memory_within_what_is_known_is_named_by_where_that_begins() {
        let rig = Rig::new();
        let [one, other] = [0; 2].map(|_| rig.device.allocate(2 * MIB).unwrap());
        let kept = rig.register(one, 2 * MIB).unwrap();
        let base = rig.enter(one, 1).base;
        let within = rig.enter(one + MIB, MIB);
        assert_eq!((within.base, within.at, within.within.is_some()), (base, MIB, true));
        let beyond = rig.session.buffers.enter(rig.device.id(), (one + MIB, 77), MIB + 1);
        assert_eq!((beyond.base, beyond.at, beyond.within), (77, 0, None));
        assert!(rig.enter(other, 1).within.is_none());
        let of_another_gpu = DeviceId { index: 9, ..rig.device.id() };
        assert!(rig.session.buffers.enter(of_another_gpu, (one, 77), 1).within.is_none());
        drop(kept);
        assert!(rig.enter(one, 1).within.is_none(), "it is forgotten");
        // And may be freed: nobody holds it.
        for address in [one, other] {
            // SAFETY: of this device, and unused.
            unsafe { rig.device.free(address) }.unwrap();
        }
    }

    #[test]
    fn memory_that_somebody_else_has_registered_is_refused_and_stays_usable() {
        let rig = Rig::new();
        let address = rig.device.allocate(MIB).unwrap();
        let native = rig.device.hold(address, MIB).unwrap() as *const c_void;
        rig.device.let_go(address);
        // SAFETY: played; it is forgotten below.
        unsafe { rig.session.register_memory(native, 1 << 20) }.unwrap();
        let refused = rig.register(address, MIB).unwrap_err();
        assert!(refused.to_string().contains("MEMORY_ALREADY_REGISTERED (5023)"), "{refused}");
        assert!(rig.enter(address, MIB).within.is_none());
        // SAFETY: as above.
        unsafe { rig.session.deregister_memory(native) };
        drop(rig.register(address, MIB).unwrap());
        // SAFETY: of this device, and unused.
        unsafe { rig.device.free(address) }.unwrap();
    }

    #[test]
    fn memory_that_made_room_says_so_and_can_be_known_again() {
        unsafe extern "C" fn room_for_two(properties: *mut Properties) -> Answer {
            // SAFETY: the caller's output.
            unsafe { properties.write(Properties { pinned_kib: 2048, ..Properties::default() }) };
            Answer { error: 0, cuda: 0 }
        }
        let rig = Rig::of(Table { get_properties: room_for_two, ..simulated::table() });
        let addresses = [0; 3].map(|_| rig.device.allocate(MIB).unwrap());
        let mut kept = addresses.map(|address| rig.register(address, MIB).unwrap());
        assert_eq!(kept.each_ref().map(KnownMemory::is_forgotten), [true, false, false]);
        assert!(rig.enter(addresses[0], MIB).within.is_none());
        kept[0] = rig.register(addresses[0], MIB).unwrap();
        assert_eq!(kept.each_ref().map(KnownMemory::is_forgotten), [false, true, false]);
        drop(kept);
        for address in addresses {
            // SAFETY: of this device, and unused.
            unsafe { rig.device.free(address) }.unwrap();
        }
    }

    #[test]
    fn what_was_not_used_for_the_longest_time_makes_room() {
        let rig = Rig::new();
        let addresses = [0; 3].map(|_| rig.device.allocate(MIB).unwrap());
        let [first, second, third] = addresses.map(|address| (rig.device.id(), address));
        let add = |key: Key, known: &mut Known| {
            let device = Arc::clone(&rig.device);
            known.time += 1;
            let last_used = known.time;
            let buffer = Buffer { number: 0, device, base: key.1, len: MIB, in_use: 0, last_used };
            known.all.insert(key, buffer);
        };
        let mut known = Known::default();
        let taken = |known: &mut Known, most| -> Option<Vec<Key>> {
            known.make_room(most, MIB).ok().map(|out| out.iter().map(|(key, _)| *key).collect())
        };
        assert_eq!(taken(&mut known, 2 * MIB), Some(vec![]));
        add(first, &mut known);
        assert_eq!(taken(&mut known, 2 * MIB), Some(vec![]));
        add(second, &mut known);
        known.all.get_mut(&first).unwrap().last_used = 99;
        assert_eq!(taken(&mut known, 2 * MIB), Some(vec![second]));
        add(third, &mut known);
        for key in [first, third] {
            known.all.get_mut(&key).unwrap().in_use = 1;
        }
        assert_eq!(taken(&mut known, 2 * MIB), None, "all are in use");
        assert_eq!(taken(&mut known, MIB - 1), None, "it never fits");
        assert_eq!(known.bytes, 2 * MIB);
    }
}
