//! Where on the host layers are kept: in pinned memory, or in the page cache where they lie. All
//! streams of a [group](super::group) copy from there.

use std::ptr::NonNull;
use std::sync::Arc;

use super::layer::{Copy, Shelf};
use super::mapped::Pages;
use super::mapper::Maps;
use crate::engine::Engine;
use crate::error::Result;
use crate::gpu::{BATCH_MAX, DeviceCopy};
use crate::memory::Buffer;

/// See the module's own text.
#[derive(Debug)]
pub(super) struct Homes {
    /// For each unit.
    places: Vec<Place>,
    pub(super) maps: Maps,
    /// How many streams copy from there.
    pub(super) streams: usize,
    /// Whether a copy may still read them, although its stream has ended.
    pub(super) stuck: bool,
    /// Whether all streams have ended.
    gone: bool,
}

/// Where a unit is kept, if it is, and whether its bytes are there.
#[derive(Debug, Clone, Default)]
struct Place {
    home: Option<Arc<Home>>,
    filled: bool,
}

/// Where a unit is kept on the host, pinned, and the copies from there.
#[derive(Debug)]
pub(super) struct Home {
    kept: Kept,
    copies: Vec<Copy>,
    /// Where each slot's worth begins in memory of the streams' own.
    starts: Vec<u64>,
}

#[derive(Debug)]
enum Kept {
    /// In memory of the streams' own.
    Memory(Buffer),
    /// In the page cache, where it was.
    Pages(Pages),
}

impl Homes {
    /// For so many units, none of which is kept anywhere.
    pub(super) fn new(units: usize, maps: Maps) -> Self {
        let places = vec![Place::default(); units];
        Self { places, maps, streams: 0, stuck: false, gone: false }
    }

    /// Has a unit kept there, unless it is kept somewhere else by now, or by nobody any more: then
    /// what was to keep it.
    pub(super) fn keep(&mut self, unit: usize, home: Home) -> std::result::Result<(), Arc<Home>> {
        let (place, home) = (&mut self.places[unit], Arc::new(home));
        if place.home.is_some() || self.gone {
            return Err(home);
        }
        // Pages have what is in them.
        *place = Place { filled: home.pages().is_some(), home: Some(home) };
        Ok(())
    }

    /// Where a unit is kept.
    pub(super) fn home(&self, unit: usize) -> Option<&Arc<Home>> {
        self.places[unit].home.as_ref()
    }

    /// The same, where its bytes are there.
    pub(super) fn filled(&self, unit: usize) -> Option<&Arc<Home>> {
        self.places[unit].home.as_ref().filter(|_| self.places[unit].filled)
    }

    /// Says that a unit's bytes are where it is kept.
    pub(super) fn fill(&mut self, unit: usize) {
        self.places[unit].filled = true;
    }

    /// Says that others are there than in its files.
    pub(super) fn outdate(&mut self, unit: usize) {
        self.places[unit].filled = false;
    }

    /// Takes a unit's pages out, if it is kept there.
    pub(super) fn take_pages(&mut self, unit: usize) -> Option<Arc<Home>> {
        let place = &mut self.places[unit];
        let pages = place.home.take_if(|home| home.pages().is_some())?;
        place.filled = false;
        Some(pages)
    }

    /// Hands out what nothing reads any more; keeps for ever what a copy may.
    pub(super) fn give_back(&mut self) -> Vec<Arc<Home>> {
        self.gone = true;
        let all = self.places.iter_mut().filter_map(|place| std::mem::take(place).home).collect();
        if self.stuck {
            Box::leak(Box::new(all)); // so that whoever looks for leaks sees who did it
            return Vec::new();
        }
        all
    }
}

impl Home {
    /// Pinned memory for a unit.
    ///
    /// # Errors
    /// The host's or a GPU's.
    pub(super) fn in_memory(engine: &Engine, shelf: Shelf) -> Result<Self> {
        let memory = engine.allocate_pinned(shelf.len)?;
        let (first, starts) = (memory.address(), shelf.starts);
        let copies = shelf.copies.into_iter().map(|(at, to, len)| (first + at, to, len)).collect();
        Ok(Self { kept: Kept::Memory(memory), copies, starts })
    }

    /// Pages that are pinned.
    pub(super) fn in_pages(pages: Pages, copies: Vec<Copy>) -> Self {
        Self { kept: Kept::Pages(pages), copies, starts: Vec::new() }
    }

    /// The streams' own memory that it is, if it is, and where each slot's worth begins there.
    pub(super) fn memory(&self) -> Option<(&Buffer, &[u64])> {
        match &self.kept {
            Kept::Memory(memory) => Some((memory, &self.starts)),
            Kept::Pages(_) => None,
        }
    }

    /// The pages, where it is in the page cache.
    pub(super) fn pages(&self) -> Option<&Pages> {
        match &self.kept {
            Kept::Pages(pages) => Some(pages),
            Kept::Memory(_) => None,
        }
    }

    /// The copies to a buffer, in groups that go to the driver in one call each.
    pub(super) fn copies_to(&self, buffer: u64) -> impl Iterator<Item = Vec<DeviceCopy>> {
        let of = move |&(from, to, len): &Copy| DeviceCopy {
            host: host(from),
            device: buffer + to,
            len: usize::try_from(len).expect("it is in memory"),
        };
        self.copies.chunks(BATCH_MAX).map(move |group| group.iter().map(of).collect())
    }
}

/// An address of the host.
pub(super) fn host(address: u64) -> NonNull<u8> {
    NonNull::new(address as *mut u8).expect("mapped memory is not at zero")
}
