//! How long the next pass takes, by what the last one took.

use std::time::Duration;

use super::shared::Shared;
use super::statistics::PassTimes;

/// A pass that takes up to this of its compute is bound by the compute.
const HIDDEN: f64 = 1.005;

/// What the time of a pass is bound by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ceiling {
    /// The compute: all that is read and copied hides behind it.
    Compute,
    /// The link to the GPU.
    Link,
    /// Layers that come from the page cache through slots.
    PageCache,
    /// Layers that come from drives.
    Drive,
}

/// How long a pass takes at least: as long as the compute, the copies or the reads, whichever take
/// longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Prediction {
    /// The time of a pass.
    pub pass: Duration,
    /// How long the GPU computes in it.
    pub compute: Duration,
    /// What binds.
    pub ceiling: Ceiling,
    /// Bytes of GPU memory, beyond those that the stream has, that would hide the reads and copies
    /// behind the compute; `None`: they are hidden.
    pub more_gpu: Option<u64>,
    /// The same in pinned memory; `None` also where the link binds.
    pub more_host: Option<u64>,
}

impl Prediction {
    /// By a whole pass through layers of which the largest has so many bytes.
    fn of(pass: &PassTimes, largest: u64) -> Self {
        let compute = pass.compute;
        let copied = pass.pinned_bytes + pass.mapped_bytes;
        let all = copied + pass.file_bytes;
        // All bytes cross the link, at the rate that those had which were copied from memory. Where
        // none were, it is not known, and what comes from files is as fast as that comes.
        let copies = pass.transfer.saturating_sub(pass.file_transfer);
        let link = match copied {
            0 => Duration::ZERO,
            _ => copies.mul_f64(all as f64 / copied as f64),
        };
        let files = pass.file_transfer;
        let took = compute.max(link).max(files);
        let hidden = compute.mul_f64(HIDDEN);
        let ceiling = if took <= hidden {
            Ceiling::Compute
        } else if link >= files {
            Ceiling::Link
        } else if pass.drive_bytes * 2 > pass.file_bytes {
            Ceiling::Drive
        } else {
            Ceiling::PageCache
        };
        // Of bytes that take so long, those that do not fit behind the compute, in whole layers.
        let beyond = |bytes: u64, time: Duration| {
            let late = time.saturating_sub(compute).as_nanos();
            let bytes = u128::from(bytes) * late / time.as_nanos().max(1);
            let bytes = u64::try_from(bytes).expect("no more than there are");
            bytes.next_multiple_of(largest.max(1))
        };
        let from_files = beyond(pass.file_bytes, files);
        let more_gpu = (ceiling != Ceiling::Compute).then(|| from_files.max(beyond(all, link)));
        let more_host = more_gpu.filter(|_| link <= hidden).map(|_| from_files);
        Self { pass: took, compute, ceiling, more_gpu, more_host }
    }
}

impl Shared {
    /// By the last whole pass that the GPU is done with, behind the first one, in which nothing was
    /// kept yet.
    pub(super) fn prediction(&self) -> Option<Prediction> {
        let len = self.lock().schedule.sequence().pass_len();
        let told = self.statistics();
        let largest = self.units().iter().map(|unit| unit.len).max().unwrap_or(0);
        let mut passes = told.passes.iter().rev();
        let last = passes.find(|pass| pass.pass > 0 && pass.layers == len && len > 0)?;
        Some(Prediction::of(last, largest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    /// A pass that computes for so many ms, copies so many MB from pinned memory in so many ms, and
    /// brings so many MB from drives in so many.
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
        assert_eq!((hidden.ceiling, hidden.pass), (Ceiling::Compute, hidden.compute));
        assert_eq!((hidden.more_gpu, hidden.more_host), (None, None));
        // Half of what the drive brings does not hide.
        let drive = predicted(100, (40, 40), (40, 200));
        assert_eq!((drive.ceiling, drive.pass), (Ceiling::Drive, Duration::from_millis(200)));
        assert_eq!((drive.more_gpu, drive.more_host), (Some(20 * MB), Some(20 * MB)));
        // The link takes 2 ms for each of 80 MB.
        let link = predicted(100, (40, 80), (40, 120));
        assert_eq!((link.ceiling, link.pass), (Ceiling::Link, Duration::from_millis(160)));
        assert_eq!((link.more_gpu, link.more_host), (Some(30 * MB), None));
    }

    #[test]
    fn a_link_that_nothing_was_copied_over_is_not_known() {
        let files = predicted(10, (0, 0), (40, 200));
        assert_eq!((files.ceiling, files.more_host), (Ceiling::Drive, Some(40 * MB)));
        let none = predicted(0, (0, 0), (0, 0));
        assert_eq!((none.ceiling, none.pass), (Ceiling::Compute, Duration::ZERO));
    }
}
