//! A batch: many reads or writes of one call. It maps each part of their strip to a file and to
//! memory, and records the results.
//!
//! To the scheduler, a batch is one transfer of the strip, cut into windows and segments like a
//! file. The error or the end of file of one item is recorded here and does not stop the rest.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_base::lock::Lock;
use forebay_base::units::ByteRange;

use super::gate::Gate;
use crate::error::{Error, Place};
use crate::file::Handle;
use crate::plan::{Alignment, Stretch, Strip};

/// The sources, memory and results of a transfer of many items.
#[derive(Debug)]
pub(crate) struct Batch {
    strip: Strip,
    /// Files of the stretches, by source number.
    files: Vec<Arc<Handle>>,
    /// Index of each file's drive.
    drives: Vec<usize>,
    /// O_DIRECT alignment of each file.
    alignments: Vec<Option<Alignment>>,
    /// Position in the strip at which each stretch's file was found to end.
    ends: Box<[AtomicU64]>,
    /// True if an item ended early or failed.
    is_partial: AtomicBool,
    /// True if it moves the caller's host memory without a slot.
    on_host: bool,
    /// Errors by the start of their range; the ranges do not overlap.
    failures: Lock<Failures>,
    /// Sync errors by source number.
    unsynced: Lock<BTreeMap<usize, Error>>,
    /// Limits how far it may be read, if it is limited.
    gate: Option<Arc<Gate>>,
}

/// Start of a failed range → its end and the error.
type Failures = BTreeMap<u64, (u64, Error)>;

/// The failure that overlaps a range, if any.
fn failure_in(failures: &Failures, range: ByteRange) -> Option<&Error> {
    let (_, (end, error)) = failures.range(..range.end).next_back()?;
    (*end > range.start).then_some(error)
}

/// Bytes in a slot that are copied to or from one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scatter {
    /// Address in host memory.
    pub(crate) host: u64,
    /// Address of the other side.
    pub(crate) address: u64,
    pub(crate) len: u64,
}

impl Batch {
    /// For a strip whose sources are `files`, each with the index of its drive and its O_DIRECT
    /// alignment if it is read with O_DIRECT. `on_host`: the strip's addresses are host addresses.
    pub(crate) fn new(
        strip: Strip,
        files: impl IntoIterator<Item = (Arc<Handle>, usize, Option<Alignment>)>,
        on_host: bool,
    ) -> Self {
        let (mut handles, mut drives, mut alignments) = (Vec::new(), Vec::new(), Vec::new());
        for (file, drive, alignment) in files {
            handles.push(file);
            drives.push(drive);
            alignments.push(alignment);
        }
        let ends = strip.stretches().iter().map(|stretch| AtomicU64::new(stretch.at.end)).collect();
        Self {
            strip,
            files: handles,
            drives,
            alignments,
            ends,
            is_partial: AtomicBool::new(false),
            on_host,
            failures: Lock::default(),
            unsynced: Lock::default(),
            gate: None,
        }
    }

    /// Adds a gate that limits how far the batch may be read.
    pub(crate) fn behind(self, gate: Gate) -> Self {
        Self { gate: Some(Arc::new(gate)), ..self }
    }

    /// The gate that limits how far it may be read, if there is one.
    pub(crate) fn gate(&self) -> Option<&Arc<Gate>> {
        self.gate.as_ref()
    }

    pub(crate) fn strip(&self) -> &Strip {
        &self.strip
    }

    /// The stretch with the byte at `position`, or the next one.
    ///
    /// # Panics
    /// If `position` is beyond the last stretch.
    pub(crate) fn stretch_at(&self, position: u64) -> &Stretch {
        &self.strip.stretches()[self.strip.stretch_at(position)]
    }

    /// The file of a stretch.
    pub(crate) fn file_of(&self, stretch: &Stretch) -> &Arc<Handle> {
        &self.files[stretch.source]
    }

    /// The file of the byte at `position`, and the shift from positions to file offsets.
    pub(crate) fn source_of(&self, position: u64) -> (&Arc<Handle>, i64) {
        let stretch = self.stretch_at(position);
        let shift = stretch.offset.wrapping_sub(stretch.at.start).cast_signed();
        (self.file_of(stretch), shift)
    }

    /// O_DIRECT alignment of the file of the byte at `position`. The strip uses the largest
    /// alignment of all files, but a request may resume wherever its own file allows.
    pub(crate) fn alignment_at(&self, position: u64) -> Option<Alignment> {
        self.alignments[self.stretch_at(position).source]
    }

    /// The address of the byte at `position`.
    pub(crate) fn address_of(&self, position: u64) -> u64 {
        let first = self.strip.items_in(ByteRange::at(position, 1)).next();
        first.map_or(0, |(_, address)| address + self.shift_at(position))
    }

    /// The gate's offset for the address of the byte at `position`.
    fn shift_at(&self, position: u64) -> u64 {
        self.gate.as_ref().map_or(0, |gate| gate.shift_at(position))
    }

    /// True if one request can move the whole range.
    pub(crate) fn is_one(&self, range: ByteRange) -> bool {
        self.parts(range).nth(1).is_none()
    }

    /// Its files on one drive.
    pub(crate) fn files_on(&self, drive: usize) -> Vec<Arc<Handle>> {
        let of = self.files.iter().zip(&self.drives).filter(|(_, other)| **other == drive);
        of.map(|(file, _)| Arc::clone(file)).collect()
    }

    /// The error of syncing a source, if its written data may not be on its drive.
    pub(crate) fn unsynced(&self, source: usize) -> Option<Error> {
        let unsynced = self.unsynced.lock();
        unsynced.get(&source).cloned()
    }

    /// Records that data written to a file may not be on its drive.
    pub(crate) fn fail_sync(&self, file: &Arc<Handle>, error: Error) {
        self.is_partial.store(true, Ordering::Relaxed);
        let mut unsynced = self.unsynced.lock();
        // The file may have been opened several times: the kernel reports the error to only one.
        let same = |other: &Arc<Handle>| other.identity() == file.identity();
        let sources = (0..).zip(&self.files).filter(|(_, other)| same(other));
        unsynced.extend(sources.map(|(source, _)| (source, error.clone())));
    }

    /// The file of a source.
    pub(crate) fn file(&self, source: usize) -> &Arc<Handle> {
        &self.files[source]
    }

    /// True if the kernel reports that its first byte is not in the page cache.
    pub(crate) fn begins_cold(&self) -> bool {
        let Some(stretch) = self.strip.stretches().first() else { return false };
        self.file_of(stretch).is_absent(stretch.offset)
    }

    /// The place of a range of the strip, for an error message: the part in its first stretch.
    pub(crate) fn place(&self, range: ByteRange) -> Place {
        if self.strip.len() == 0 {
            return self.files[0].place(0, 0); // all of it lies beyond the ends of its files
        }
        let stretch = self.stretch_at(range.start.min(self.strip.len().saturating_sub(1)));
        let part = stretch.at.intersect(range);
        self.file_of(stretch).place(stretch.offset_of(part.start), part.len())
    }

    /// Records that a file ends where `position` would be read.
    pub(crate) fn ends_at(&self, position: u64) {
        let stretch = self.strip.stretch_at(position);
        self.is_partial.store(true, Ordering::Relaxed);
        self.ends[stretch].fetch_min(position, Ordering::Relaxed);
    }

    /// Records that the wanted bytes of a range could not be moved.
    pub(crate) fn fail(&self, range: ByteRange, error: Error) {
        self.is_partial.store(true, Ordering::Relaxed);
        self.failures.lock().entry(range.start).or_insert((range.end, error));
    }

    /// Splits a range into parts for sequential requests, with no part across two stretches. With
    /// host memory of the caller, each part has its host address.
    pub(crate) fn parts(&self, range: ByteRange) -> impl Iterator<Item = (ByteRange, Option<u64>)> {
        let to_slot = (!self.on_host).then(|| self.strip.stretches_in(range));
        let to_host = self.on_host.then(|| self.strip.items_in(range));
        let to_slot = to_slot.into_iter().flatten().map(|(_, part)| (part, None));
        let shifted =
            |(part, host): (ByteRange, u64)| (part, Some(host + self.shift_at(part.start)));
        to_slot.chain(to_host.into_iter().flatten().map(shifted))
    }

    /// The copies between host memory, where `range` begins at `host`, and the items' addresses.
    /// Bytes that have not arrived are skipped, and parts that are adjacent on both sides are
    /// merged.
    pub(crate) fn scattered(&self, range: ByteRange, host: u64) -> Vec<Scatter> {
        let failures = self.failures.lock();
        let mut scattered: Vec<Scatter> = Vec::new();
        for (part, address) in self.strip.items_in(range) {
            let end = part.end.min(self.end_at(self.strip.stretch_at(part.start)));
            if end <= part.start || failure_in(&failures, part).is_some() {
                continue;
            }
            let address = address + self.shift_at(part.start);
            let (host, len) = (host + (part.start - range.start), end - part.start);
            match scattered.last_mut() {
                Some(last)
                    if last.host + last.len == host && last.address + last.len == address =>
                {
                    last.len += len;
                }
                _ => scattered.push(Scatter { host, address, len }),
            }
        }
        scattered
    }

    /// Known end of a stretch's file, as a position in the strip.
    fn end_at(&self, stretch: usize) -> u64 {
        self.ends[stretch].load(Ordering::Relaxed)
    }

    /// True if nothing failed or ended early, so that each result is as requested. Only for
    /// transfers that have ended.
    pub(crate) fn is_whole(&self) -> bool {
        !self.is_partial.load(Ordering::Relaxed)
    }

    /// The result of each item with bytes, by index: the number of bytes, which is short only at
    /// the end of its file. Only for transfers that have ended.
    pub(crate) fn results(&self) -> impl Iterator<Item = (usize, Result<u64, Error>)> {
        let failures = self.failures.lock().clone();
        let unsynced = self.unsynced.lock().clone();
        let mut stretch = 0;
        self.strip.items().iter().map(move |item| {
            while self.strip.stretches()[stretch].at.end <= item.at.start {
                stretch += 1;
            }
            let end = item.at.end.min(self.end_at(stretch));
            let source = self.strip.stretches()[stretch].source;
            let failure = failure_in(&failures, item.at).or_else(|| unsynced.get(&source));
            let result = match failure {
                Some(error) => Err(error.clone()),
                None => Ok(end.saturating_sub(item.at.start)),
            };
            (item.index, result)
        })
    }

    /// Total bytes of all items without an error.
    pub(crate) fn got(&self) -> u64 {
        if self.is_whole() {
            return self.strip.wanted_in(ByteRange::at(0, self.strip.len()));
        }
        self.results().filter_map(|(_, result)| result.ok()).sum()
    }
}
