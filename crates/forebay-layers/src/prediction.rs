//! Predicts the time of the next pass from that of the last pass.

use std::time::Duration;

use super::shared::Shared;
use super::statistics::PassTimes;

/// A pass of up to this multiple of its compute is bound by the compute.
const HIDDEN: f64 = 1.005;

/// What limits the time of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Limit {
    /// The compute: all reads and copies are hidden behind it.
    Compute,
    /// The link to the GPU.
    Link,
    /// Layers from the page cache, through slots.
    PageCache,
    /// Layers from drives.
    Drive,
}

/// The minimum time of a pass: the longest of the compute, the copies and the reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prediction {
    /// The time of a pass.
    pub pass: Duration,
    /// The compute time of a pass.
    pub compute: Duration,
    /// What limits it.
    pub limit: Limit,
    /// Additional GPU memory, in bytes, that would hide the reads and copies behind the compute;
    /// `None` if they are hidden already.
    pub more_gpu: Option<u64>,
    /// Additional pinned memory, in bytes, with the same effect; `None` also if the link is the
    /// limit.
    pub more_host: Option<u64>,
}

impl Prediction {
    /// Predicts from a whole pass through layers of which the largest has this many bytes.
    fn of(pass: &PassTimes, largest: u64) -> Self {
        let compute = pass.compute;
        let copied = pass.pinned_bytes + pass.mapped_bytes;
        let all = copied + pass.file_bytes;
        // All bytes cross the link, at the rate of those that were copied from memory. If none
        // were, the link's rate is unknown and the reads set the rate.
        let copies = pass.transfer.saturating_sub(pass.file_transfer);
        let link = match copied {
            0 => Duration::ZERO,
            _ => copies.mul_f64(all as f64 / copied as f64),
        };
        let files = pass.file_transfer;
        let took = compute.max(link).max(files);
        let hidden = compute.mul_f64(HIDDEN);
        let limit = if took <= hidden {
            Limit::Compute
        } else if link >= files {
            Limit::Link
        } else if pass.drive_bytes * 2 > pass.file_bytes {
            Limit::Drive
        } else {
            Limit::PageCache
        };
        // Of the bytes of this time, those that do not fit behind the compute, in whole
        // layers.
        let beyond = |bytes: u64, time: Duration| {
            let late = time.saturating_sub(compute).as_nanos();
            let bytes = u128::from(bytes) * late / time.as_nanos().max(1);
            let bytes = u64::try_from(bytes).expect("no more than there are");
            bytes.next_multiple_of(largest.max(1))
        };
        let from_files = beyond(pass.file_bytes, files);
        let more_gpu = (limit != Limit::Compute).then(|| from_files.max(beyond(all, link)));
        let more_host = more_gpu.filter(|_| link <= hidden).map(|_| from_files);
        Self { pass: took, compute, limit, more_gpu, more_host }
    }
}

impl Shared {
    /// Predicts from the last whole pass that the GPU finished, except the first, in which no layer
    /// was kept yet.
    pub(super) fn prediction(&self) -> Option<Prediction> {
        let len = self.lock().schedule.sequence().pass_len();
        let reported = self.statistics();
        let largest = self.units().iter().map(|unit| unit.len).max().unwrap_or(0);
        let mut passes = reported.passes.iter().rev();
        let last = passes.find(|pass| pass.pass > 0 && pass.layers == len && len > 0)?;
        Some(Prediction::of(last, largest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    /// The prediction from a pass: the compute time in ms, and pairs of MB and ms for the copies
    /// from pinned memory and for the reads from drives.
    fn predicted(compute: u64, pinned: (u64, u64), drive: (u64, u64)) -> Prediction {
        let (from_memory, from_drive) =
            (Duration::from_millis(pinned.1), Duration::from_millis(drive.1));
        let pass = PassTimes {
            compute: Duration::from_millis(compute),
            pinned_bytes: pinned.0 * MB,
            file_bytes: drive.0 * MB,
            drive_bytes: drive.0 * MB,
            transfer: from_memory + from_drive,
            file_transfer: from_drive,
            ..PassTimes::default()
        };
        Prediction::of(&pass, 10 * MB)
    }

    #[test]
    fn the_slowest_of_compute_link_and_files_binds() {
        let hidden = predicted(100, (40, 40), (40, 90));
        assert_eq!((hidden.limit, hidden.pass), (Limit::Compute, hidden.compute));
        assert_eq!((hidden.more_gpu, hidden.more_host), (None, None));
        // Half of the drive's bytes are not hidden.
        let drive = predicted(100, (40, 40), (40, 200));
        assert_eq!((drive.limit, drive.pass), (Limit::Drive, Duration::from_millis(200)));
        assert_eq!((drive.more_gpu, drive.more_host), (Some(20 * MB), Some(20 * MB)));
        // The link takes 2 ms for each of 80 MB.
        let link = predicted(100, (40, 80), (40, 120));
        assert_eq!((link.limit, link.pass), (Limit::Link, Duration::from_millis(160)));
        assert_eq!((link.more_gpu, link.more_host), (Some(30 * MB), None));
    }

    #[test]
    fn a_link_that_nothing_was_copied_over_is_not_known() {
        let files = predicted(10, (0, 0), (40, 200));
        assert_eq!((files.limit, files.more_host), (Limit::Drive, Some(40 * MB)));
        let none = predicted(0, (0, 0), (0, 0));
        assert_eq!((none.limit, none.pass), (Limit::Compute, Duration::ZERO));
    }
}
