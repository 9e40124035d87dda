//! Stale pages in the page cache after a write with O_DIRECT.
//!
//! The kernel drops the written range from the page cache. It cannot drop a folio that a cached
//! writer dirtied in the meantime. A folio may be 2 MiB long, and it keeps the old bytes for every
//! reader. So the pages of the range are counted after the write. If there are any, dirty
//! neighbours are written and the pages are dropped. Pages that stay are compared with the drive: a
//! reader may have loaded the new bytes.
//!
//! Writes to a mapping of the file are not detected. They dirty whole folios, and the kernel writes
//! their old bytes over the new ones, with or without this check.

use std::thread::sleep;
use std::time::Duration;

use forebay_base::units::{ByteRange, MIB, align_down, align_up};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::calls::{cache_state, drop_pages_of, read_at, write_out};
use super::inode::reopen;
use super::residency::ResidencySource;
use super::{Handle, Residency};
use crate::memory::HostMemory;

/// The largest folio, which the kernel drops as a whole or not at all.
const FOLIO_MAX: u64 = 2 * MIB;

/// Pages at the ends of a range that it may only touch in part.
const ENDS: u64 = 2;

/// Pauses between attempts to drop pages: other processes may use them for a moment.
const WAITS_MS: [u64; 5] = [0, 1, 4, 16, 64];

/// Bytes that are compared at a time.
const PART: u64 = MIB;

/// The range of all folios that `range` may touch.
fn in_folios(range: ByteRange) -> ByteRange {
    let (start, end) = (align_down(range.start, FOLIO_MAX), align_up(range.end, FOLIO_MAX));
    ByteRange { start, end }
}

impl Handle {
    /// Whether the page cache holds nothing of `range` but the pages at its ends, and nothing
    /// unwritten that may share a folio with it.
    pub(crate) fn is_uncached(&self, range: ByteRange) -> bool {
        let around = in_folios(range);
        if self.residency_source() != ResidencySource::Cachestat {
            return matches!(self.residency(around), Residency::Known { resident: 0, .. });
        }
        let state = |range| cache_state(self.fd(), range);
        state(range).is_ok_and(|(cached, _)| cached <= ENDS)
            && state(around).is_ok_and(|(_, unwritten)| unwritten == 0)
    }

    /// Drops stale pages of `range`, which was written with O_DIRECT, from the page cache. The
    /// range consists of whole units of the page cache. If the kernel does not report what is
    /// cached, the pages are dropped once and not counted.
    ///
    /// # Errors
    /// EBUSY if stale pages stay, and the errors of reading the file.
    pub(crate) fn drop_stale(&self, range: ByteRange) -> Result<(), Errno> {
        let wide = in_folios(range);
        for wait in WAITS_MS {
            let residency = self.residency(range);
            if matches!(residency, Residency::Known { resident: 0, .. }) {
                return Ok(());
            }
            // Pages that are mapped stay, and all those of an overlay over tmpfs.
            if wait > WAITS_MS[1] && !self.differs(range)? {
                return Ok(());
            }
            sleep(Duration::from_millis(wait));
            // Use the other descriptor: a failed write of a neighbour is reported once per
            // descriptor, and the next sync must report it.
            let direct = self.refused_o_direct().ok_or(Errno::BUSY)?;
            let _ = write_out(direct.fd(), wide);
            let _ = drop_pages_of(self.fd(), wide);
            if matches!(residency, Residency::Unknown(_)) {
                return Ok(());
            }
        }
        if self.differs(range)? { Err(Errno::BUSY) } else { Ok(()) }
    }

    /// True if the page cache and the drive hold different bytes of `range`.
    fn differs(&self, range: ByteRange) -> Result<bool, Errno> {
        if !self.readable() {
            // Reopen for the comparison, which works only if this user may read the file.
            let name = self.is_named.then_some(self.path());
            let fd = reopen(self.fd(), self.identity(), name, OFlags::RDONLY);
            let reader = fd.ok().and_then(|fd| Self::from_fd(fd).ok());
            return reader.map_or(Ok(true), |reader| reader.differs(range));
        }
        let direct = self.refused_o_direct().ok_or(Errno::BUSY)?;
        let len = usize::try_from(PART.min(range.len())).map_err(|_| Errno::INVAL)?;
        let failed = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let mut cached = vec![0; len];
        let mut drive = HostMemory::map(len).map_err(|_| Errno::NOMEM)?;
        let mut at = range.start;
        while at < range.end {
            let len = usize::try_from(PART.min(range.end - at)).map_err(|_| Errno::INVAL)?;
            let mut differ = || -> Result<bool, Errno> {
                let from_cache = read_at(self.fd(), &mut cached[..len], at).map_err(failed)?;
                let drive = &mut drive.bytes_mut()[..len];
                let from_drive = read_at(direct.fd(), drive, at).map_err(failed)?;
                // Both end at the same byte only at the end of the file.
                Ok(cached[..from_cache] != drive[..from_drive])
            };
            // Compare twice: a second writer may change the bytes between the two reads.
            if differ()? && differ()? {
                return Ok(true);
            }
            at += PART;
        }
        Ok(false)
    }
}
