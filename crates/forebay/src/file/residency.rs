//! Resident bytes of a file, as far as the kernel reports them to this user.
//!
//! `cachestat` counts the pages of a range in a single call without side effects. A range that is
//! fully resident or fully absent costs a single call. A mixed range is halved until no part is
//! mixed. For a user who neither owns a file nor may write it, `cachestat` fails and
//! `mincore` reports every page as resident. Residency is unknown then.

use std::os::fd::AsRawFd;
use std::thread::sleep;
use std::time::Duration;

use forebay_base::units::{ByteRange, align_down, align_up};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;

use super::Handle;
use super::calls::{cached_pages, drop_pages, mapped_pages, page_size, sync_data};
use crate::error::{Error, Operation, Result};

/// The way in which resident pages are determined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResidencySource {
    /// No query needed: the file is in memory.
    InMemory,
    /// `cachestat`.
    Cachestat,
    /// `mincore` on a mapping.
    Mincore,
    /// Not available; with the reason.
    Unknown(&'static str),
}

/// How much of a range is in the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Residency {
    /// The kernel reported it.
    Known {
        /// Bytes of the range that are resident.
        resident: u64,
        /// Bytes of the range.
        len: u64,
    },
    /// The kernel does not report it; with the reason.
    Unknown(&'static str),
}

const NOT_OWNER: &str =
    "the kernel reports residency only to the owner of a file and to users who may write it";
const NO_CALL: &str = "this kernel has no cachestat, or a filter hides it";
const NOT_COUNTED: &str = "the question about the page cache failed";

/// Bytes of a mapping per query: the result is 256 KiB with 4 KiB pages.
const WINDOW: u64 = 1 << 30;

/// Pauses between attempts to drop pages, 0.25 s in total. Read-ahead in progress keeps its pages,
/// and a slow drive needs 0.1 s for 8 MiB of it.
const EVICT_WAITS_MS: [u64; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

impl ResidencySource {
    /// Determines once which call reports the truth about this file.
    pub(super) fn of(handle: &Handle) -> Self {
        if handle.is_memory() {
            return Self::InMemory;
        }
        // An overlay's own inodes have no pages, so `cachestat` counts none there. A mapping uses
        // the pages of the file below.
        let refused = if handle.file_system.is_overlay() {
            NOT_OWNER
        } else {
            match cached_pages(handle.fd(), ByteRange::at(0, 1)) {
                Ok(_) => return Self::Cachestat,
                Err(error) if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) => NOT_OWNER,
                Err(_) => NO_CALL,
            }
        };
        if mincore_is_true(handle) { Self::Mincore } else { Self::Unknown(refused) }
    }
}

/// True if `mincore` is reliable for this user: if they own the file or may write it, which is the
/// kernel's condition (since 5.2).
fn mincore_is_true(handle: &Handle) -> bool {
    let user = rustix::process::geteuid().as_raw();
    if rustix::fs::fstat(handle.fd()).is_ok_and(|stat| stat.st_uid == user) {
        return true;
    }
    let link = format!("/proc/self/fd/{}", handle.fd().as_raw_fd());
    accessat(CWD, &link, Access::WRITE_OK, AtFlags::EACCESS).is_ok()
}

impl Handle {
    /// The source of residency for this file; determined on the first call.
    pub(crate) fn residency_source(&self) -> ResidencySource {
        *self.source.get_or_init(|| ResidencySource::of(self))
    }

    /// The resident runs in `range`, in order and not adjacent; none if the kernel does not report
    /// them.
    ///
    /// Runs begin and end at multiples of `grain` or at the ends of the range. A piece between two
    /// multiples counts only if all of it is resident. `grain` is rounded up to a power of two of
    /// at least a page. The last page of a file counts as a whole; `range` should not extend beyond
    /// it.
    pub(crate) fn resident(&self, range: ByteRange, grain: u64) -> Vec<ByteRange> {
        let range = within_files(range);
        let page = page_size();
        let grain = grain.max(page).checked_next_power_of_two().unwrap_or(1 << 62);
        let mut runs = Runs { page, grain, found: Vec::new() };
        match self.residency_source() {
            _ if range.is_empty() => {}
            ResidencySource::Unknown(_) => {}
            ResidencySource::InMemory => runs.push(range),
            ResidencySource::Cachestat => {
                runs.search(range, &mut |part| cached_pages(self.fd(), part).unwrap_or(0));
            }
            ResidencySource::Mincore => {
                for window in windows(range) {
                    let pages = mapped_pages(self.fd(), window).unwrap_or_default();
                    let first = align_down(window.start, page);
                    runs.search(window, &mut |part| counted(&pages, first, page, part));
                }
            }
        }
        runs.found
    }

    /// True if all of `range` is resident; false if the kernel does not report it. With `cachestat`
    /// this needs a single call and no allocation.
    pub(crate) fn is_resident(&self, range: ByteRange) -> bool {
        let range = within_files(range);
        match self.residency_source() {
            ResidencySource::InMemory => true,
            ResidencySource::Unknown(_) => false,
            ResidencySource::Cachestat => cached_pages(self.fd(), range)
                .is_ok_and(|count| count == pages_of(range, page_size())),
            ResidencySource::Mincore => windows(range).all(|window| {
                mapped_pages(self.fd(), window).is_ok_and(|pages| pages.iter().all(|p| p & 1 == 1))
            }),
        }
    }

    /// True if the kernel reports that the byte at `offset` is not resident.
    pub(crate) fn is_absent(&self, offset: u64) -> bool {
        let is_known = !matches!(self.residency_source(), ResidencySource::Unknown(_));
        is_known && !self.is_resident(ByteRange::at(offset, 1))
    }

    /// How much of `range` is resident, in whole pages but at most the range.
    pub(crate) fn residency(&self, range: ByteRange) -> Residency {
        let range = within_files(range);
        let page = page_size();
        let count = match self.residency_source() {
            ResidencySource::Unknown(reason) => return Residency::Unknown(reason),
            ResidencySource::InMemory => Some(pages_of(range, page)),
            ResidencySource::Cachestat => cached_pages(self.fd(), range).ok(),
            ResidencySource::Mincore => windows(range)
                .map(|window| {
                    let pages = mapped_pages(self.fd(), window).ok()?;
                    Some(counted(&pages, align_down(window.start, page), page, window))
                })
                .sum(),
        };
        match count {
            Some(count) if count == pages_of(range, page) => {
                Residency::Known { resident: range.len(), len: range.len() }
            }
            Some(count) => Residency::Known {
                resident: count.saturating_mul(page).min(range.len()),
                len: range.len(),
            },
            None => Residency::Unknown(NOT_COUNTED),
        }
    }

    /// Drops this file's pages from the page cache, after writing dirty ones, and returns what
    /// stayed. This is only a hint to the kernel: pages in use by other processes stay.
    ///
    /// # Errors
    /// [`Error::Io`] if dirty pages could not be written.
    pub(crate) fn evict(&self) -> Result<Residency> {
        let whole = ByteRange::at(0, self.size()?);
        self.count_small(false);
        if self.residency_source() == ResidencySource::InMemory {
            return Ok(self.residency(whole));
        }
        let failed = |error| Error::io(Operation::Sync, self.place(0, 0), error);
        match sync_data(self.fd()) {
            Err(error) if !is_read_only(&error) => return Err(failed(error)),
            _ => {}
        }
        for wait in EVICT_WAITS_MS {
            // Without support for this call, the pages stay and the result shows it.
            let dropped = drop_pages(self.fd());
            let left = self.residency(whole);
            if dropped.is_err() || matches!(left, Residency::Known { resident: 0, .. }) {
                return Ok(left);
            }
            sleep(Duration::from_millis(wait));
        }
        Ok(self.residency(whole))
    }
}

/// True if a sync failed because the file could not have been written at all.
fn is_read_only(error: &std::io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::ROFS | Errno::BADF | Errno::INVAL | Errno::OPNOTSUPP))
}

/// `range` without offsets that no file can have: the kernel's offsets are signed.
fn within_files(range: ByteRange) -> ByteRange {
    let end = range.end.min(align_down(i64::MAX.unsigned_abs(), page_size()));
    ByteRange { start: range.start.min(end), end }
}

/// `range` in parts that begin at multiples of [`WINDOW`].
fn windows(range: ByteRange) -> impl Iterator<Item = ByteRange> {
    let mut rest = range;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = align_up(rest.start.saturating_add(1), WINDOW).min(rest.end);
        let part = ByteRange { start: rest.start, end };
        rest.start = end;
        Some(part)
    })
}

/// Number of pages that `range` touches.
fn pages_of(range: ByteRange, page: u64) -> u64 {
    if range.is_empty() {
        return 0;
    }
    align_up(range.end, page).saturating_sub(align_down(range.start, page)) / page
}

/// Number of resident pages that `part` touches, from an answer whose first page is at `first`.
fn counted(pages: &[u8], first: u64, page: u64, part: ByteRange) -> u64 {
    let skip = usize::try_from((align_down(part.start, page) - first) / page).unwrap_or(usize::MAX);
    let take = usize::try_from(pages_of(part, page)).unwrap_or(usize::MAX);
    pages.iter().skip(skip).take(take).map(|state| u64::from(state & 1)).sum()
}

/// A search for resident runs.
struct Runs {
    page: u64,
    grain: u64,
    found: Vec<ByteRange>,
}

impl Runs {
    /// Finds the runs in `range`. `count` returns the number of resident pages of a part.
    fn search(&mut self, range: ByteRange, count: &mut impl FnMut(ByteRange) -> u64) {
        let resident = count(range);
        self.divide(range, resident, count);
    }

    /// Halves `range`, of which `resident` pages are resident, until every part is fully resident
    /// or absent. The right part's count is the remainder of the left part's, so a division costs a
    /// single call.
    fn divide(
        &mut self,
        range: ByteRange,
        resident: u64,
        count: &mut impl FnMut(ByteRange) -> u64,
    ) {
        if resident == 0 {
            return;
        }
        if resident >= pages_of(range, self.page) {
            self.push(range);
            return;
        }
        if let Some(middle) = self.middle(range) {
            let left = ByteRange { start: range.start, end: middle };
            let right = ByteRange { start: middle, end: range.end };
            // Pages change between two calls, so more of the left part may be resident by now.
            let resident_left = count(left);
            self.divide(left, resident_left, count);
            self.divide(right, resident.saturating_sub(resident_left), count);
        }
    }

    /// The multiple of the grain nearest to the middle that divides `range` in two, if there is
    /// one.
    fn middle(&self, range: ByteRange) -> Option<u64> {
        let below = align_down(range.start + range.len() / 2, self.grain);
        let middle =
            if below > range.start { below } else { align_up(range.start + 1, self.grain) };
        (range.start < middle && middle < range.end).then_some(middle)
    }

    fn push(&mut self, run: ByteRange) {
        match self.found.last_mut() {
            Some(last) if last.end == run.start => last.end = run.end,
            _ => self.found.push(run),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGES: usize = 512;

    fn runs(
        page: u64,
        grain: u64,
        range: ByteRange,
        pages: &[bool],
        calls: &mut usize,
    ) -> Vec<ByteRange> {
        let mut runs = Runs { page, grain, found: Vec::new() };
        runs.search(range, &mut |part| {
            *calls += 1;
            let first = usize::try_from(part.start / page).unwrap();
            let count = usize::try_from(pages_of(part, page)).unwrap();
            pages.iter().skip(first).take(count).filter(|resident| **resident).count() as u64
        });
        runs.found
    }

    /// The pieces of `range` between multiples of the grain.
    fn pieces(range: ByteRange, grain: u64) -> impl Iterator<Item = ByteRange> {
        let first = align_down(range.start, grain);
        (first..range.end)
            .step_by(usize::try_from(grain).unwrap())
            .map(move |start| ByteRange::at(start, grain).intersect(range))
    }

    #[test]
    fn one_call_where_all_is_in_or_out() {
        for resident in [false, true] {
            let mut calls = 0;
            let range = ByteRange { start: 100, end: 4096 * PAGES as u64 - 7 };
            let pages = vec![resident; PAGES];
            let found = runs(4096, 65536, range, &pages, &mut calls);
            assert_eq!(calls, 1);
            assert_eq!(found, if resident { vec![range] } else { vec![] });
        }
    }

    #[test]
    fn windows_cover_a_range_once() {
        let range = ByteRange { start: WINDOW - 5, end: 3 * WINDOW + 9 };
        let parts: Vec<_> = windows(range).collect();
        assert_eq!(parts.len(), 4);
        assert_eq!((parts[0].start, parts[3].end), (range.start, range.end));
        assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert_eq!(windows(ByteRange::at(5, 0)).count(), 0);
    }

    #[test]
    fn ranges_beyond_every_file_are_cut() {
        let cut = within_files(ByteRange { start: u64::MAX - 1, end: u64::MAX });
        assert!(cut.is_empty());
        assert!(within_files(ByteRange::at(0, u64::MAX)).end <= i64::MAX.unsigned_abs());
    }

    proptest! {
        #[test]
        fn exactly_the_resident_pieces_are_found(
            pages in proptest::collection::vec(any::<bool>(), 1..PAGES),
            page_bits in 12_u32..17,
            grain_bits in 0_u32..4,
            ends in (any::<u64>(), any::<u64>()),
        ) {
            let page = 1_u64 << page_bits;
            let grain = page << grain_bits;
            let size = pages.len() as u64 * page;
            let (a, b) = (ends.0 % size, ends.1 % size);
            let range = ByteRange { start: a.min(b), end: a.max(b) };
            let mut calls = 0;
            let found = runs(page, grain, range, &pages, &mut calls);
            prop_assert!(found.iter().all(|run| !run.is_empty() && run.intersect(range) == *run));
            prop_assert!(found.windows(2).all(|pair| pair[0].end < pair[1].start));
            for piece in pieces(range, grain) {
                let touched = piece.start / page..piece.end.div_ceil(page);
                let resident = touched.clone().all(|n| pages[usize::try_from(n).unwrap()]);
                let inside = found.iter().any(|run| run.intersect(piece) == piece);
                let outside = found.iter().all(|run| run.intersect(piece).is_empty());
                prop_assert!(if resident { inside } else { outside }, "{piece} in {found:?}");
            }
            prop_assert!(calls as u64 <= 1 + 2 * (range.len() / grain + 2));
        }
    }
}
