//! The GPUs of an engine. Per GPU: a link to the scheduler, the first slots, and lanes for small
//! transfers.
//!
//! Slow driver calls for a GPU (streams, pinned memory) are made under that GPU's lock only, so
//! they do not delay other GPUs. Lookups need no lock: every small read looks a GPU up.

use std::iter::successors;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use forebay_base::lock::Lock;
use forebay_topology::System;

use super::small::{Idle, Lanes, QUEUED_MAX, SHARED_MAX, lanes};
use super::{Engine, affinity};
use crate::error::{Error, Result};
use crate::events;
use crate::gpu::{Device, DeviceId, DirectProvider};
use crate::options::Options;
use crate::staging::Cells;

/// The links of an engine's GPUs: a list that only grows.
#[derive(Debug, Default)]
pub(super) struct Links {
    first: OnceLock<Box<GpuLink>>,
    /// Held while a link gets its index.
    numbers: Lock<Numbers>,
}

/// Held by the thread that numbers a link.
#[derive(Debug, Default)]
struct Numbers;

/// Held by the thread that prepares a GPU.
#[derive(Debug, Default)]
struct GpuTurn;

/// A GPU of the engine.
#[derive(Debug)]
struct GpuLink {
    device: Arc<dyn Device>,
    lanes: Lanes,
    cells: Arc<Cells>,
    /// Threads in the reads that [`Engine::note_caller`] counts.
    callers: AtomicUsize,
    /// Its index in the scheduler and in the arena, once its copy thread runs.
    index: OnceLock<usize>,
    /// Whether its first slots are allocated.
    has_slots: AtomicBool,
    /// Held by the thread that creates either.
    turn: Lock<GpuTurn>,
    next: OnceLock<Box<GpuLink>>,
}

impl Links {
    fn iter(&self) -> impl Iterator<Item = &GpuLink> {
        successors(self.first.get(), |link| link.next.get()).map(|link| &**link)
    }

    /// The first link whose GPU `is_same`, which that of a `new` link is; added if there is none.
    fn get(
        &self,
        is_same: impl Fn(&dyn Device) -> bool,
        new: impl Fn() -> Box<GpuLink>,
    ) -> &GpuLink {
        let mut link = self.first.get_or_init(&new);
        while !is_same(&*link.device) {
            link = link.next.get_or_init(&new);
        }
        link
    }

    /// Number of GPUs that have slots.
    pub(super) fn ready(&self) -> usize {
        self.iter().filter(|link| link.has_slots.load(Ordering::Relaxed)).count()
    }

    /// The GPUs that are ready.
    pub(super) fn devices(&self) -> Vec<Arc<dyn Device>> {
        let ready = self.iter().filter(|link| link.index.get().is_some());
        ready.map(|link| Arc::clone(&link.device)).collect()
    }

    /// GPUs that have no pinned memory for small transfers, and why.
    pub(super) fn refused_lanes(&self) -> Vec<(DeviceId, Error)> {
        self.iter().filter_map(|link| link.cells.refusal()).collect()
    }
}

impl Engine {
    /// The engine's device for the GPU of `device`, added if there is none.
    pub(super) fn bring_in(&self, device: &Arc<dyn Device>) -> Result<Arc<dyn Device>> {
        let id = device.id();
        let (link, _) = self.begin(device, |other| other.id() == id)?;
        Ok(Arc::clone(&link.device))
    }

    pub(crate) fn known(&self, id: DeviceId) -> Result<Arc<dyn Device>> {
        let known = self.inner.links.devices().into_iter().find(|device| device.id() == id);
        known.ok_or_else(|| Error::NoDevice {
            wanted: id.to_string(),
            reason: "it was not brought into this engine".into(),
        })
    }

    /// The index of a GPU's link, which is in use; the first call starts its submitter.
    pub(crate) fn link(&self, device: &Arc<dyn Device>) -> Result<usize> {
        self.begun(device).map(|(_, index)| index)
    }

    /// The link of a GPU, however often the GPU was opened, and its index. Notes that it is used.
    fn begun(&self, device: &Arc<dyn Device>) -> Result<(&GpuLink, usize)> {
        let known = (device.id(), device.registry());
        self.begin(device, |other| (other.id(), other.registry()) == known)
            .inspect(|(_, index)| self.inner.tools.neighbours.note(*index))
    }

    /// The first link whose GPU `is_same`, or a new link for `device`, and its index, after its
    /// submitter is started.
    fn begin(
        &self,
        device: &Arc<dyn Device>,
        is_same: impl Fn(&dyn Device) -> bool,
    ) -> Result<(&GpuLink, usize)> {
        let link = self.inner.links.get(is_same, || {
            let Options { small_size, arena_size, .. } = *self.options();
            let most = Cells::pinned_max(arena_size);
            let own = Some(Arc::clone(device));
            let cells = Arc::new(Cells::new(own, small_size.max(SHARED_MAX), most));
            self.inner.core.ends_on_failure(&cells);
            Box::new(GpuLink {
                device: Arc::clone(device),
                lanes: lanes(),
                cells,
                callers: AtomicUsize::new(0),
                index: OnceLock::new(),
                has_slots: AtomicBool::new(false),
                turn: Lock::default(),
                next: OnceLock::new(),
            })
        });
        if let Some(&index) = link.index.get() {
            return Ok((link, index));
        }
        // Reads the files of cuFile's settings, which calls that must not wait do not.
        let _ = self.options().cufile && self.inner.direct.may_serve(&*link.device);
        let turn = link.turn.lock();
        if let Some(&index) = link.index.get() {
            drop(turn);
            return Ok((link, index));
        }
        let (inner, device) = (&self.inner, &link.device);
        let node = affinity::node_of(&System::live(), &device.info().pci_address);
        node.iter().for_each(|node| inner.tools.affinity.add(node));
        let arena = &inner.tools.arena;
        let number = |bell| {
            let _numbers = inner.links.numbers.lock(); // the scheduler and the arena use the same
            inner.core.add_link(arena.add_link(device, node), bell)
        };
        let index =
            inner.threads.start_submitter(&inner.tools, device, arena, &link.cells, number)?;
        link.index.get_or_init(|| index);
        drop(turn);
        events::gpu_found(device.info());
        Ok((link, index))
    }

    /// The lanes for small transfers of a GPU; `None` if the GPU is not available, or if much is
    /// queued on the link. A copy on a separate stream waits until the copies queued before it are
    /// done (measured on an H200: 64 KiB behind 8 GiB took as long as the 8 GiB), while the link's
    /// own copies take turns. A short backlog is worth waiting for: otherwise a diverted read keeps
    /// the link busy and diverts all that follow.
    pub(super) fn idle_lanes(&self, device: &Arc<dyn Device>, now: Instant) -> Option<Idle<'_>> {
        let (link, _) = self.begun(device).ok()?;
        self.inner.tools.look_for_neighbours(now);
        (link.cells.queued_len() <= QUEUED_MAX).then_some((&link.lanes, &link.cells))
    }

    /// Bytes that are queued on the link of a GPU.
    #[cfg(test)]
    pub(super) fn queued_on(&self, device: &Arc<dyn Device>) -> u64 {
        self.begun(device).unwrap().0.cells.queued_len()
    }

    /// The threads in the reads that [`note_caller`](Self::note_caller) counts; `None` if the GPU
    /// is not available.
    pub(super) fn callers(&self, device: &Arc<dyn Device>) -> Option<&AtomicUsize> {
        self.begun(device).ok().map(|(link, _)| &link.callers)
    }

    /// The cells for small reads of a GPU; `None` if the GPU is not available.
    pub(super) fn cells(&self, device: &Arc<dyn Device>) -> Option<&Arc<Cells>> {
        self.begun(device).ok().map(|(link, _)| &link.cells)
    }

    /// The cells of a GPU whose copy thread and memory are there already.
    pub(super) fn ready_cells(&self, device: &Arc<dyn Device>) -> Option<&Arc<Cells>> {
        let known = (device.id(), device.registry());
        let is_same = |link: &&GpuLink| (link.device.id(), link.device.registry()) == known;
        let link = self.inner.links.iter().find(is_same)?;
        let index = link.index.get().filter(|_| link.cells.is_ready())?;
        self.inner.tools.neighbours.note(*index);
        Some(&link.cells)
    }

    /// The index of a GPU's link, with slots.
    pub(super) fn ready_link(&self, device: &Arc<dyn Device>) -> Result<usize> {
        let (link, index) = self.begun(device)?;
        if link.has_slots.load(Ordering::Acquire) {
            return Ok(index);
        }
        let turn = link.turn.lock();
        if link.has_slots.load(Ordering::Acquire) {
            return Ok(index);
        }
        let grown = self.inner.tools.arena.grow(index);
        if let Ok(slots) = &grown {
            self.inner.core.with(|scheduler| scheduler.add_slots(index, slots));
            link.has_slots.store(true, Ordering::Release);
        }
        drop(turn);
        self.inner.tools.arena.report_grown(index, &grown);
        grown.map(|_| index)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;
    use crate::gpu::cuda::CudaDevice;
    use crate::gpu::cuda::mock::{PLAIN, TABLE};
    use crate::options::Options;

    #[test]
    fn a_gpu_that_is_opened_twice_has_one_link() {
        let engine = Engine::new(Options::default()).unwrap();
        let open =
            || -> Arc<dyn Device> { Arc::new(CudaDevice::open_with(&TABLE, PLAIN[0]).unwrap()) };
        let [first, second] = [open(), open()];
        engine.add_device(&first).unwrap();
        engine.add_device(&second).unwrap();
        assert_eq!(engine.link(&first).unwrap(), engine.link(&second).unwrap());
        assert_eq!(engine.inner.links.iter().count(), 1);
    }

    #[test]
    fn a_gpu_that_several_threads_open_at_once_is_one() {
        const THREADS: usize = 8;
        for _ in 0..50 {
            let engine = Engine::new(Options::default()).unwrap();
            let (wanted, at_once) = ("sim".parse().unwrap(), Barrier::new(THREADS));
            let open = || {
                at_once.wait();
                engine.device(&wanted).unwrap().unwrap()
            };
            let devices: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(open)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert!(devices.iter().all(|device| Arc::ptr_eq(device, &devices[0])));
            assert_eq!(engine.inner.links.iter().count(), 1);
        }
    }
}
