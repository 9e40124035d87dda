//! The model of a file: what it must hold, and what it may hold while writes are pending.

use crate::lab::seeds::index;

/// A write whose order among its neighbours is not known.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) offset: u64,
    pub(crate) bytes: Vec<u8>,
    /// Whether it succeeded. A write that was cancelled or cut off may have left any part.
    pub(crate) sure: bool,
}

impl Change {
    fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
}

/// What a file holds.
#[derive(Debug, Default)]
pub(crate) struct Shadow(pub(crate) Vec<u8>);

impl Shadow {
    pub(crate) fn len(&self) -> u64 {
        self.0.len() as u64
    }

    /// Makes a write that nothing runs concurrently with.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        let (start, end) = (index(offset), index(offset) + bytes.len());
        if bytes.is_empty() {
            return;
        }
        if self.0.len() < end {
            self.0.resize(end, 0);
        }
        self.0[start..end].copy_from_slice(bytes);
    }

    /// Fails where `got`, read at `offset` while `changes` were pending, is no part of the file.
    /// `len` bytes were wanted.
    pub(crate) fn check_read(&self, offset: u64, len: u64, got: &[u8], changes: &[Change]) {
        let ends = changes.iter().map(Change::end).max().unwrap_or(0).max(self.len());
        let within = |end: u64| len.min(end.saturating_sub(offset));
        let count = got.len() as u64;
        let (least, most) = (within(self.len()), within(ends));
        assert!(
            (least..=most).contains(&count),
            "{count} bytes at {offset}+{len}, not {least} to {most}"
        );
        let start = index(offset);
        if self.0.get(start..start + got.len()) == Some(got) {
            return;
        }
        let mut right: Vec<bool> =
            (start..).zip(got).map(|(at, byte)| *byte == *self.0.get(at).unwrap_or(&0)).collect();
        for change in changes {
            mark(&mut right, offset, got, change);
        }
        fail_at(&right, offset, got, "read");
    }

    /// Takes what the file holds after all of `changes` have ended.
    ///
    /// # Panics
    /// Where a byte is neither that of a write nor, where none succeeded, the one before.
    pub(crate) fn settle(&mut self, actual: Vec<u8>, changes: &[Change]) {
        let end = |sure: bool| {
            changes.iter().filter(|c| !sure || c.sure).map(Change::end).max().unwrap_or(0)
        };
        let (least, most) = (self.len().max(end(true)), self.len().max(end(false)));
        let len = actual.len() as u64;
        assert!((least..=most).contains(&len), "a size of {len}, not {least} to {most}");
        for change in changes.iter().filter(|change| change.sure) {
            self.write(change.offset, &change.bytes);
        }
        self.0.resize(actual.len(), 0);
        if self.0 != actual {
            // In this order: a byte before any write, then those of writes in any order.
            let mut right: Vec<bool> =
                self.0.iter().zip(&actual).map(|(is, should)| is == should).collect();
            for change in changes {
                mark(&mut right, 0, &actual, change);
            }
            fail_at(&right, 0, &actual, "held");
        }
        self.0 = actual;
    }
}

/// Marks the bytes of `got`, which begins at `offset`, that are those of a change.
fn mark(right: &mut [bool], offset: u64, got: &[u8], change: &Change) {
    let start = index(change.offset.max(offset) - offset).min(got.len());
    let end = index(change.end().max(offset) - offset).min(got.len());
    let skipped = index((offset + start as u64).saturating_sub(change.offset));
    let new = change.bytes.iter().skip(skipped);
    let there = right[start..end].iter_mut().zip(&got[start..end]);
    for ((right, is), new) in there.zip(new) {
        *right |= is == new;
    }
}

#[track_caller]
fn fail_at(right: &[bool], offset: u64, got: &[u8], what: &str) {
    let Some(first) = right.iter().position(|right| !right) else { return };
    let count = right.iter().filter(|right| !**right).count();
    let at = offset + first as u64;
    panic!("{count} wrong bytes were {what}, the first, {}, at {at}", got[first]);
}

#[test]
fn the_model_knows_wrong_bytes() {
    use std::panic::catch_unwind;
    let change = |offset, byte, sure| Change { offset, bytes: vec![byte; 4], sure };
    let settles = |actual: &[u8], changes: &[Change]| {
        catch_unwind(|| Shadow(vec![1; 4]).settle(actual.to_vec(), changes)).is_ok()
    };
    // Two writes that overlap: bytes of either, and never those before.
    let both = [change(0, 2, true), change(2, 3, true)];
    assert!(settles(&[2, 2, 2, 3, 3, 3], &both) && settles(&[2, 2, 3, 2, 3, 3], &both));
    assert!(!settles(&[2, 2, 1, 3, 3, 3], &both) && !settles(&[2, 2, 2, 3, 3], &both));
    // One that was cut off leaves any part, and zeros behind the old end.
    let part = [change(2, 3, false)];
    assert!(settles(&[1, 1, 1, 3, 0], &part) && settles(&[1; 4], &part));
    assert!(!settles(&[1, 0, 1, 3], &part) && !settles(&[1, 1, 1, 1, 9], &part));
    assert!(!settles(&[1, 1, 1], &part) && !settles(&[1; 7], &part));
    let reads = |got: &[u8], changes: &[Change]| {
        catch_unwind(|| Shadow(vec![1; 4]).check_read(1, 4, got, changes)).is_ok()
    };
    assert!(reads(&[1; 3], &[]) && !reads(&[1; 2], &[]) && !reads(&[1, 1, 1, 0], &[]));
    assert!(reads(&[1, 3, 1, 0], &part) && reads(&[1; 3], &part) && !reads(&[3, 3, 3], &part));
}
