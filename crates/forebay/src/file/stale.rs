//! Old bytes in the page cache after a write with O_DIRECT.
//!
//! The kernel drops the written range from the page cache. It cannot drop a folio that another
//! writer has dirtied meanwhile through the page cache, and a folio may be 2 MiB long: it keeps the
//! old bytes, for every reader. So the pages of the range are counted after the write. Where there
//! are any, dirty neighbours are written out and the pages dropped. Pages that stay are compared
//! with the drive: a reader may have brought the new bytes in.
//!
//! A program that writes to a mapping of the file is not noticed: it dirties whole folios, and the
//! kernel writes their old bytes over the new ones, also without this check.

use std::thread::sleep;
use std::time::Duration;

use rustix::io::Errno;

use super::calls::{drop_pages_of, read_at, write_out};
use super::{Handle, Residency};
use crate::memory::HostMemory;
use crate::units::{ByteRange, MIB, align_down, align_up};

/// The longest folio, which the kernel drops as a whole or not at all.
const FOLIO_MAX: u64 = 2 * MIB;

/// Pauses between attempts to drop pages: others may use them for a moment.
const WAITS_MS: [u64; 5] = [0, 1, 4, 16, 64];

/// Bytes that are compared at once.
const PART: u64 = MIB;

impl Handle {
    /// Drops old bytes of `range`, which was written with O_DIRECT, from the page cache. The range
    /// consists of whole units of the page cache. Where the kernel does not report what is cached,
    /// the pages are dropped once and not counted.
    ///
    /// # Errors
    /// EBUSY where old bytes stay, and the errors of reading the file.
    pub(crate) fn drop_stale(&self, range: ByteRange) -> Result<(), Errno> {
        let wide = ByteRange {
            start: align_down(range.start, FOLIO_MAX),
            end: align_up(range.end, FOLIO_MAX),
        };
        for wait in WAITS_MS {
            let residency = self.residency(range);
            if matches!(residency, Residency::Known { resident: 0, .. }) {
                return Ok(());
            }
            sleep(Duration::from_millis(wait));
            // By the other descriptor: a failed write of a neighbour is reported once to each, and
            // has to be left to the next sync.
            let direct = self.direct().map_err(|_| Errno::BUSY)?;
            let _ = write_out(direct.fd(), wide);
            let _ = drop_pages_of(self.fd(), wide);
            if matches!(residency, Residency::Unknown(_)) {
                return Ok(());
            }
        }
        if self.differs(range)? { Err(Errno::BUSY) } else { Ok(()) }
    }

    /// Whether the page cache and the drive hold different bytes of `range`.
    fn differs(&self, range: ByteRange) -> Result<bool, Errno> {
        if !self.readable() {
            return Ok(true); // they cannot be compared
        }
        let direct = self.direct().map_err(|_| Errno::BUSY)?;
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
                let came = from_cache.min(from_drive);
                Ok(cached[..came] != drive[..came])
            };
            // Another writer may change them between the two reads.
            if differ()? && differ()? {
                return Ok(true);
            }
            at += PART;
        }
        Ok(false)
    }
}
