//! Refuses writes whose source is mapped from the same file at another place.
//!
//! The parts of a write run concurrently, so such a source changes before it is read. Reads into a
//! mapping of their own file are not checked: a check would cost more than a small read.

use std::collections::HashSet;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use pyo3::prelude::*;

/// Pages whose kind is cheaper to look up than all mappings of the process (16 MiB).
const MOST_PAGES: usize = 4096;

/// Bits of an entry in `/proc/self/pagemap` (the kernel's `admin-guide/mm/pagemap.rst`).
const PRESENT_OR_SWAPPED: u64 = 3 << 62;
const OF_FILE_OR_SHARED: u64 = 1 << 61;
const ENTRY: usize = size_of::<u64>();

/// Host memory that is written to a file.
pub(crate) struct Write {
    /// The file's place in the call's list.
    pub(crate) file: usize,
    pub(crate) offset: u64,
    pub(crate) address: u64,
    pub(crate) len: u64,
}

/// Raises if a source is mapped from a file that the call writes, and is overwritten by the call
/// with other bytes than its own.
pub(crate) fn refuse(py: Python<'_>, files: &[forebay::File], writes: &[Write]) -> PyResult<()> {
    let used = || writes.iter().filter(|write| write.len > 0);
    let begin = used().map(|write| write.address).min();
    let end = used().map(|write| write.address.saturating_add(write.len)).max();
    let (Some(begin), Some(end)) = (begin, end) else { return Ok(()) };
    let extent = begin..end;
    if py.detach(|| is_anonymous(&extent)) {
        return Ok(());
    }
    let mappings = py.detach(|| Mapping::within(&extent));
    if mappings.is_empty() {
        return Ok(());
    }
    let targets = Targets::of(writes);
    let mut of_other_files = HashSet::new();
    for write in writes {
        for (number, mapping) in mappings.iter().enumerate() {
            let Some(source) = mapping.source(write) else { continue };
            let of_other = of_other_files.contains(&(write.file, number));
            if of_other || !targets.reach(write.file, &source) {
                continue;
            }
            let refuse = py.import("forebay._mapped")?.getattr("refuse_moved")?;
            let Mapping { device, inode, path, .. } = mapping;
            let mapped = (device.as_str(), inode.as_str(), path.as_slice());
            let at = (write.offset, write.len, source.start);
            refuse.call1((files[write.file].path(), mapped, at))?;
            of_other_files.insert((write.file, number));
        }
    }
    Ok(())
}

/// True if all pages of these addresses are in memory or swapped, and none is a file's.
fn is_anonymous(addresses: &Range<u64>) -> bool {
    let page = rustix::param::page_size() as u64;
    let first = addresses.start / page;
    let count = usize::try_from((addresses.end - 1) / page - first + 1);
    let Some(count) = count.ok().filter(|&count| count <= MOST_PAGES) else { return false };
    let mut entries = vec![0; count * ENTRY];
    let read = File::open("/proc/self/pagemap")
        .and_then(|file| file.read_exact_at(&mut entries, first * ENTRY as u64));
    read.is_ok()
        && entries.as_chunks::<ENTRY>().0.iter().all(|entry| {
            let entry = u64::from_ne_bytes(*entry);
            entry & PRESENT_OR_SWAPPED != 0 && entry & OF_FILE_OR_SHARED == 0
        })
}

/// A mapping of a file in this process.
struct Mapping {
    addresses: Range<u64>,
    /// Where its first byte lies in the file.
    offset: u64,
    device: String,
    inode: String,
    path: Vec<u8>,
}

impl Mapping {
    /// Mappings of files that have some of these addresses; none are known without `/proc`.
    fn within(addresses: &Range<u64>) -> Vec<Self> {
        let text = fs::read("/proc/self/maps").unwrap_or_default();
        let mappings = text.split(|&byte| byte == b'\n').filter_map(Self::of_line);
        mappings.filter(|mapping| overlap(&mapping.addresses, addresses)).collect()
    }

    fn of_line(line: &[u8]) -> Option<Self> {
        let mut words = line.splitn(6, |&byte| byte == b' ');
        let mut word = || words.next().and_then(|word| std::str::from_utf8(word).ok());
        let (start, end) = word()?.split_once('-')?;
        let hexadecimal = |text| u64::from_str_radix(text, 16).ok();
        let addresses = hexadecimal(start)?..hexadecimal(end)?;
        let _permissions = word()?;
        let (offset, device, inode) = (hexadecimal(word()?)?, word()?.into(), word()?.to_owned());
        let path = words.next().unwrap_or_default().trim_ascii_start().to_owned();
        (inode != "0").then_some(Self { addresses, offset, device, inode, path })
    }

    /// The range of the mapped file that is a part of the source, unless it is written where it
    /// lies.
    fn source(&self, write: &Write) -> Option<Range<u64>> {
        let source = write.address..write.address.saturating_add(write.len);
        if write.len == 0 || !overlap(&self.addresses, &source) {
            return None;
        }
        let start = source.start.max(self.addresses.start);
        let len = source.end.min(self.addresses.end) - start;
        let begin = self.offset + (start - self.addresses.start);
        let target = write.offset.saturating_add(start - source.start);
        (begin != target).then_some(begin..begin + len)
    }
}

/// Ranges of files that are written, in order.
struct Targets(Vec<Target>);

struct Target {
    file: usize,
    start: u64,
    /// The last end of this range and those before it in the file.
    end: u64,
}

impl Targets {
    fn of(writes: &[Write]) -> Self {
        let target = |write: &Write| {
            let (file, start) = (write.file, write.offset);
            Target { file, start, end: start.saturating_add(write.len) }
        };
        let mut targets: Vec<_> = writes.iter().filter(|write| write.len > 0).map(target).collect();
        targets.sort_unstable_by_key(|target| (target.file, target.start));
        for number in 1..targets.len() {
            let (file, end) = (targets[number - 1].file, targets[number - 1].end);
            if targets[number].file == file {
                targets[number].end = targets[number].end.max(end);
            }
        }
        Self(targets)
    }

    /// True if some of a file's range is written.
    fn reach(&self, file: usize, range: &Range<u64>) -> bool {
        let before =
            self.0.partition_point(|target| (target.file, target.start) < (file, range.end));
        let last = self.0[..before].last();
        last.is_some_and(|target| target.file == file && target.end > range.start)
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}
