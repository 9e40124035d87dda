//! Host copies of layers: in the group's pinned memory, or pinned in the page cache. All streams of
//! a [group](super::group) copy from them.

use std::ptr::NonNull;
use std::sync::Arc;

use forebay::internal::{BATCH_MAX, DeviceCopy};
use forebay::{Buffer, Engine, Result};

use super::layer::{Copy, Shelf};
use super::mapped::Pages;
use super::maps::Maps;

/// The host copies of all units.
#[derive(Debug)]
pub(super) struct Homes {
    /// An entry per unit.
    places: Vec<Place>,
    pub(super) maps: Maps,
    /// Number of streams that copy from them.
    pub(super) streams: usize,
    /// Whether a copy of an ended stream may still read them.
    pub(super) stuck: bool,
    /// Whether all streams have ended.
    gone: bool,
}

/// The host copy of a unit, if any, and whether its bytes are loaded.
#[derive(Debug, Clone, Default)]
struct Place {
    home: Option<Arc<PinnedUnit>>,
    filled: bool,
}

/// A unit's pinned host copy, and the copies to a GPU buffer from there.
#[derive(Debug)]
pub(super) struct PinnedUnit {
    kept: Kept,
    copies: Vec<Copy>,
    /// Where the slots' data begins in the group's own memory.
    starts: Vec<u64>,
}

#[derive(Debug)]
enum Kept {
    /// In the group's own pinned memory.
    Memory(Buffer),
    /// In pinned page cache pages.
    Pages(Pages),
}

impl Homes {
    /// Creates entries for so many units, without host copies.
    pub(super) fn new(units: usize, maps: Maps) -> Self {
        let places = vec![Place::default(); units];
        Self { places, maps, streams: 0, stuck: false, gone: false }
    }

    /// Sets a unit's host copy. Hands it back if the unit has another one by now, or if all streams
    /// have ended.
    pub(super) fn keep(
        &mut self,
        unit: usize,
        home: PinnedUnit,
    ) -> std::result::Result<(), Arc<PinnedUnit>> {
        let (place, home) = (&mut self.places[unit], Arc::new(home));
        if place.home.is_some() || self.gone {
            return Err(home);
        }
        // Pages already hold the data.
        *place = Place { filled: home.pages().is_some(), home: Some(home) };
        Ok(())
    }

    /// The host copy of a unit.
    pub(super) fn home(&self, unit: usize) -> Option<&Arc<PinnedUnit>> {
        self.places[unit].home.as_ref()
    }

    /// The host copy of a unit, if its bytes are loaded.
    pub(super) fn filled(&self, unit: usize) -> Option<&Arc<PinnedUnit>> {
        self.places[unit].home.as_ref().filter(|_| self.places[unit].filled)
    }

    /// Records that the host copy of a unit is loaded.
    pub(super) fn fill(&mut self, unit: usize) {
        self.places[unit].filled = true;
    }

    /// Marks the host copy stale.
    pub(super) fn outdate(&mut self, unit: usize) {
        self.places[unit].filled = false;
    }

    /// Removes and returns a unit's host copy if it is in the page cache.
    pub(super) fn take_pages(&mut self, unit: usize) -> Option<Arc<PinnedUnit>> {
        let place = &mut self.places[unit];
        let pages = place.home.take_if(|home| home.pages().is_some())?;
        place.filled = false;
        Some(pages)
    }

    /// Hands out all host copies for freeing. Leaks them if a copy may still read them.
    pub(super) fn give_back(&mut self) -> Vec<Arc<PinnedUnit>> {
        self.gone = true;
        let all = self.places.iter_mut().filter_map(|place| std::mem::take(place).home).collect();
        if self.stuck {
            Box::leak(Box::new(all)); // so that leak checkers name this place
            return Vec::new();
        }
        all
    }
}

impl PinnedUnit {
    /// Allocates pinned memory for a unit.
    ///
    /// # Errors
    /// Errors of the host or of a GPU.
    pub(super) fn in_memory(engine: &Engine, shelf: Shelf) -> Result<Self> {
        let memory = engine.allocate_pinned(shelf.len)?;
        let (first, starts) = (memory.address(), shelf.starts);
        let copies = shelf.copies.into_iter().map(|(at, to, len)| (first + at, to, len)).collect();
        Ok(Self { kept: Kept::Memory(memory), copies, starts })
    }

    /// A host copy in pages that are pinned.
    pub(super) fn in_pages(pages: Pages, copies: Vec<Copy>) -> Self {
        Self { kept: Kept::Pages(pages), copies, starts: Vec::new() }
    }

    /// The group's own memory, if the copy is in it, and where the slots' data begins.
    pub(super) fn memory(&self) -> Option<(&Buffer, &[u64])> {
        match &self.kept {
            Kept::Memory(memory) => Some((memory, &self.starts)),
            Kept::Pages(_) => None,
        }
    }

    /// The pages, if the copy is in the page cache.
    pub(super) fn pages(&self) -> Option<&Pages> {
        match &self.kept {
            Kept::Pages(pages) => Some(pages),
            Kept::Memory(_) => None,
        }
    }

    /// The copies to a buffer, grouped into driver calls.
    pub(super) fn copies_to(&self, buffer: u64) -> impl Iterator<Item = Vec<DeviceCopy>> {
        let of = move |&(from, to, len): &Copy| DeviceCopy {
            host: host(from),
            device: buffer + to,
            len: usize::try_from(len).expect("it is in memory"),
        };
        self.copies.chunks(BATCH_MAX).map(move |group| group.iter().map(of).collect())
    }
}

/// Converts a host address to a pointer.
pub(super) fn host(address: u64) -> NonNull<u8> {
    NonNull::new(address as *mut u8).expect("mapped memory is not at zero")
}
