//! Layers that are copied directly from the page cache. Their pages are mapped and pinned once for
//! all later passes.
//!
//! Pinned pages keep their old contents if the file is overwritten with O_DIRECT or truncated. So a
//! layer is only copied from its pages while the file is unchanged, with the size and the time
//! of change that it had before mapping. `after` checks again after the copy.

#![expect(unsafe_code, reason = "pins what it has mapped")]

use std::collections::VecDeque;
use std::sync::Arc;

use forebay::gpu::Device;
use forebay::{Error, File, Result};
use forebay_base::units::{ByteRange, align_down, align_up};

use super::layer::{Copy, Unit, add_copy, is_resident};
use super::marks::Mark;
use super::pages::{FilePages, Stamp};

/// Minimum average size of a mapping: they cost kernel and driver calls. A guess, which no run has
/// measured.
const WINDOW_MIN: u64 = 256 << 10;

/// The file ranges of a unit, merged into those that are mapped together.
#[derive(Debug)]
pub(super) struct Windows(Vec<Window>);

#[derive(Debug)]
struct Window {
    file: File,
    range: ByteRange,
    /// Copies; the source is an offset in the file.
    copies: Vec<Copy>,
}

/// The pages of a unit, mapped and pinned.
#[derive(Debug)]
pub(super) struct Pages {
    device: Arc<dyn Device>,
    pinned: Vec<FilePages>,
    stamps: Stamps,
}

/// Files with stamps that show whether they were changed since.
#[derive(Debug, Clone)]
pub(super) struct Stamps(Arc<[(File, Stamp)]>);

/// Layers that callers took while copies of their pages may still have been running.
#[derive(Debug, Default)]
pub(super) struct Copied {
    /// In the order of their copies.
    pub(super) all: VecDeque<One>,
    /// Changes that were found and not yet reported.
    pub(super) changed: VecDeque<Error>,
}

/// A layer whose files are checked after its copies.
#[derive(Debug, Clone)]
pub(super) struct One {
    pub(super) unit: usize,
    /// Signaled when its copies are done.
    pub(super) ready: Mark,
    pub(super) stamps: Stamps,
}

/// Why pages are not pinned.
#[derive(Debug, Clone)]
pub(super) enum Refusal {
    /// They may be pinned later.
    Now(&'static str),
    /// They can never be pinned.
    Ever(String),
}

impl Windows {
    /// Computes the windows of a unit that is not empty.
    ///
    /// # Errors
    /// The reason why its pages can never be used.
    pub(super) fn of(unit: &Unit) -> std::result::Result<Self, String> {
        let page = rustix::param::page_size() as u64;
        let mut windows: Vec<Window> = Vec::new();
        let mut last_file = None;
        for part in unit.packing.parts() {
            let file = &unit.files[part.file];
            let end = part.offset + part.len;
            let range =
                ByteRange { start: align_down(part.offset, page), end: align_up(end, page) };
            match windows.last_mut() {
                // Parts are in order.
                Some(last) if last_file == Some(part.file) && range.start <= last.range.end => {
                    last.range.end = last.range.end.max(range.end);
                }
                _ => windows.push(Window { file: file.clone(), range, copies: Vec::new() }),
            }
            last_file = Some(part.file);
            let copies = &mut windows.last_mut().expect("there is one now").copies;
            add_copy(copies, (part.offset, part.address, part.len));
        }
        if let Some(reason) = unit.files.iter().find_map(File::no_pages) {
            return Err(reason);
        }
        let len: u64 = windows.iter().map(|window| window.range.len()).sum();
        if len / WINDOW_MIN < windows.len() as u64 {
            return Err(format!("`{}` lies in too many small parts", unit.name));
        }
        Ok(Self(windows))
    }

    /// Maps and pins all windows. Returns the pages and the copies: host address, offset on the
    /// GPU, bytes.
    ///
    /// # Errors
    /// Why it cannot be pinned.
    pub(super) fn pin(
        self,
        device: &Arc<dyn Device>,
    ) -> std::result::Result<(Pages, Vec<Copy>), Refusal> {
        let never = |what: &str, file: &File, error: &dyn std::fmt::Display| {
            Refusal::Ever(format!("cannot {what} `{}`: {error}", file.path().display()))
        };
        let mut files: Vec<(File, Stamp)> = Vec::new();
        for window in &self.0 {
            if files.iter().any(|(file, _)| file.is_same(&window.file)) {
                continue;
            }
            let stamp = Stamp::of(&window.file);
            let stamp = stamp.map_err(|error| never("inspect", &window.file, &error))?;
            if !stamp.is_settled() {
                return Err(Refusal::Now("a file was changed just now"));
            }
            files.push((window.file.clone(), stamp));
        }
        let is_resident = |window: &Window| is_resident(&window.file, window.range);
        if !self.0.iter().all(is_resident) {
            return Err(Refusal::Now("layers are not in the page cache"));
        }
        let (device, stamps) = (Arc::clone(device), Stamps(files.into()));
        let mut pages = Pages { device, pinned: Vec::new(), stamps };
        let mut all = Vec::new();
        for window in self.0 {
            let mapped = FilePages::map(&window.file, window.range);
            let mapped = mapped.map_err(|error| never("map", &window.file, &error))?;
            mapped
                .bring_in(0..mapped.len())
                .map_err(|_| Refusal::Now("a file has ended, or could not be read"))?;
            // SAFETY: `Pages` unregisters it before it is unmapped.
            let pinned = unsafe { pages.device.register_read_only(mapped.start(), mapped.len()) };
            pinned.map_err(|error| match pages.is_current() {
                true => never("pin pages of", &window.file, &error),
                false => CHANGED,
            })?;
            let first = mapped.start().addr().get() as u64;
            let at = |offset: u64| first + (offset - window.range.start);
            all.extend(window.copies.iter().map(|&(from, to, len)| (at(from), to, len)));
            pages.pinned.push(mapped);
        }
        // If a file was changed during mapping, the pages may hold other bytes.
        if pages.is_current() { Ok((pages, all)) } else { Err(CHANGED) }
    }
}

const CHANGED: Refusal = Refusal::Now("a file was changed during the copy");

impl Pages {
    /// Whether its files are unchanged since before it was mapped.
    pub(super) fn is_current(&self) -> bool {
        self.stamps.hold()
    }

    /// The stamps of its files from before it was mapped.
    pub(super) fn stamps(&self) -> Stamps {
        self.stamps.clone()
    }
}

impl Stamps {
    /// Whether all files are unchanged.
    fn hold(&self) -> bool {
        self.0.iter().all(|(file, stamp)| Stamp::of(file).is_ok_and(|now| now == *stamp))
    }

    /// A file whose bytes may have changed.
    pub(super) fn outdated(&self) -> Option<&File> {
        let is_same = |stamp: &Stamp, now: &Stamp| !stamp.is_outdated(now);
        let same =
            |(file, stamp): &&(File, Stamp)| Stamp::of(file).is_ok_and(|now| is_same(stamp, &now));
        self.0.iter().find(|one| !same(one)).map(|(file, _)| file)
    }
}

impl Copied {
    /// Removes and returns these layers, because the stream itself is about to change their files.
    /// The caller checks them first.
    pub(super) fn take(&mut self, wanted: &[usize]) -> Vec<One> {
        let all = std::mem::take(&mut self.all).into_iter();
        let (taken, left) = all.partition(|one| wanted.contains(&one.unit));
        self.all = left;
        Vec::from(taken)
    }

    /// Puts layers back whose files were not changed after all.
    pub(super) fn put_back(&mut self, layers: Vec<One>) {
        layers.into_iter().rev().for_each(|one| self.all.push_front(one));
    }

    /// Returns the changes that were found and not yet reported, a layer per call.
    ///
    /// # Errors
    /// A file that changed while its pages were copied.
    pub(super) fn next_change(&mut self) -> Result<()> {
        self.changed.pop_front().map_or(Ok(()), Err)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if !self.device.is_of_this_process() {
            std::mem::take(&mut self.pinned).into_iter().for_each(std::mem::forget);
            return; // they are pinned for the parent
        }
        for pages in self.pinned.drain(..) {
            // SAFETY: registered by `pin`; the owner waits for all copies before dropping it.
            let given_back = unsafe { self.device.unregister(pages.start()) };
            if given_back.is_err() {
                std::mem::forget(pages); // the GPU may still read it
            }
        }
    }
}
