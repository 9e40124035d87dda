//! The host memory that a run needs. A run that cannot get it is refused at its start, instead of
//! being killed by the kernel midway.
//!
//! A move is only refused for a limit of a control group or of the process: the machine's own
//! memory may grow while it is used, as in some virtual machines.

use forebay::units::{GIB, MIB, align_down, format_size};

use super::control_group::{self, Grant};
use super::environment;
use crate::failure::{Failure, Result};

/// Memory of the program itself.
pub(crate) const PROGRAM: u64 = 16 * MIB;
/// Maximum pinned memory of the engine, by default.
const ARENA: u64 = 256 * MIB;
/// Minimum pinned memory of the engine, in slots.
const SLOTS: u64 = 4;
/// Host memory that a run needs, per byte moved and in addition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// Bytes per byte moved: a target in host memory, and scratch on a file system in memory.
    pub copies: u64,
    /// Bytes that do not depend on the size moved.
    pub fixed: u64,
}

impl Demand {
    /// The memory of a transfer by the engine alone.
    #[must_use]
    pub fn of_transfer(options: &forebay::Options, len: u64, host: bool, gpu: bool) -> Self {
        Self { copies: u64::from(host), fixed: PROGRAM + if gpu { arena(options, len) } else { 0 } }
    }

    /// Bytes of host memory for a move of `len` bytes.
    #[must_use]
    pub fn bytes(&self, len: u64) -> u64 {
        len.saturating_mul(self.copies).saturating_add(self.fixed)
    }

    /// Checks that the control group and the process's limits leave that much. `flag` sets the
    /// size.
    ///
    /// # Errors
    /// If they leave less.
    pub fn check(&self, len: u64, flag: &str) -> Result<()> {
        control_group::grant().map_or(Ok(()), |grant| self.fits(grant, len, flag))
    }

    fn fits(&self, grant: Grant, len: u64, flag: &str) -> Result<()> {
        let bytes = self.bytes(len);
        if bytes <= grant.available {
            return Ok(());
        }
        let (len, bytes) = (format_size(len), format_size(bytes));
        let (available, limit) = (format_size(grant.available), format_size(grant.limit));
        Err(Failure::new(format!("cannot move {len}: {bytes} of host memory are required"))
            .because(format!("{} leaves {available} of {limit}", grant.by.name()))
            .hint(format!("give a smaller `{flag}`, or {}", grant.by.remedy())))
    }
}

/// Checks that requests, which need `bytes` of host memory in total, leave half of the free memory.
/// `remedy` is the hint.
///
/// # Errors
/// If they need more.
pub(crate) fn check_requests(bytes: u64, remedy: &str) -> Result<()> {
    let available = environment::memory().available;
    if bytes <= available / 2 {
        return Ok(());
    }
    let (bytes, available) = (format_size(bytes), format_size(available));
    Err(Failure::new(format!("cannot keep {bytes} of requests in memory"))
        .because(format!("{available} are available, and requests may use half of that"))
        .hint(remedy))
}

/// The size of a buffer that measures a limit: `most` bytes, or less so that `buffers` of them
/// leave half of the free memory.
pub(crate) fn fitting(most: u64, buffers: u64) -> u64 {
    let each = environment::memory().available / 2 / buffers;
    most.min(align_down(each, MIB)).max(MIB)
}

/// Pinned memory of the engine for transfers of `len` bytes.
fn arena(options: &forebay::Options, len: u64) -> u64 {
    let least = SLOTS.saturating_mul(options.slot_size);
    options.arena_size.unwrap_or(ARENA.max(least)).min(least.max(len.min(GIB)))
}

#[cfg(test)]
mod tests {
    use forebay::Options;

    use super::*;
    use crate::bench::control_group::By;

    #[test]
    fn every_copy_counts() {
        let options = Options::default();
        let read = Demand::of_transfer(&options, GIB, true, false);
        assert_eq!(read.bytes(GIB), GIB + PROGRAM);
        let gpu = Demand::of_transfer(&options, GIB, false, true);
        assert_eq!(gpu.bytes(GIB), ARENA + PROGRAM);
        assert_eq!(Demand::of_transfer(&options, 1, false, true).bytes(1), 64 * MIB + PROGRAM);
        assert_eq!(read.bytes(u64::MAX), u64::MAX);
    }

    #[test]
    fn more_than_is_left_is_refused_with_a_way_out() {
        let demand = Demand { copies: 2, fixed: 0 };
        let grant = Grant { limit: 3 * GIB, available: 2 * GIB, by: By::Group };
        assert!(demand.fits(grant, GIB, "--size").is_ok());
        let failure = demand.fits(grant, GIB + MIB, "--size").unwrap_err();
        assert_eq!(failure.message, "cannot move 1 GiB: 2 GiB of host memory are required");
        assert_eq!(failure.causes, ["this control group leaves 2 GiB of 3 GiB"]);
        let hint = "give a smaller `--size`, or raise the group's memory limit";
        assert_eq!(failure.hint.as_deref(), Some(hint));
        let failure = demand.fits(Grant { by: By::AddressSpace, ..grant }, 2 * GIB, "--size");
        assert!(failure.unwrap_err().hint.unwrap().ends_with("raise `ulimit -v`"));
    }

    #[test]
    fn requests_and_buffers_fit_into_what_is_free() {
        let available = environment::memory().available;
        assert!(check_requests(MIB, "less").is_ok());
        let failure = check_requests(available.saturating_mul(2), "less").unwrap_err();
        assert!(failure.causes[0].ends_with("requests may use half of that"), "{failure:?}");
        assert_eq!(failure.hint.as_deref(), Some("less"));
        assert_eq!(fitting(2 * MIB, 1), 2 * MIB);
        assert_eq!(fitting(GIB, u64::MAX), MIB);
        assert!(fitting(u64::MAX, 2) <= available);
    }
}
