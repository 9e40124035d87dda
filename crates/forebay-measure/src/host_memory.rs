//! The host memory that a run needs. A run that cannot get it is refused at its start, instead of
//! being killed by the kernel midway.
//!
//! A move is only refused for a limit of a control group or of the process: the machine's own
//! memory may grow while it is used, as in some virtual machines.

use forebay::units::{MIB, align_down, format_size};

use crate::control_group::{self, Grant};
use crate::environment;
use crate::failure::{Failure, Result};

/// Checks that the control group and the process's limits leave `bytes` of host memory, which a
/// transfer of `len` bytes needs. `flag` sets its size.
///
/// # Errors
/// If they leave less.
pub fn check_transfer(len: u64, bytes: u64, flag: &str) -> Result<()> {
    control_group::grant().map_or(Ok(()), |grant| fits(grant, len, bytes, flag))
}

fn fits(grant: Grant, len: u64, bytes: u64, flag: &str) -> Result<()> {
    if bytes <= grant.available {
        return Ok(());
    }
    let (len, bytes) = (format_size(len), format_size(bytes));
    let (available, limit) = (format_size(grant.available), format_size(grant.limit));
    Err(Failure::new(format!("cannot move {len}: {bytes} of host memory are required"))
        .because(format!("{} leaves {available} of {limit}", grant.by.name()))
        .hint(format!("give a smaller `{flag}`, or {}", grant.by.remedy())))
}

/// Checks that requests, which need `bytes` of host memory in total, leave half of the free memory.
/// `remedy` is the hint.
///
/// # Errors
/// If they need more.
pub fn check_requests(bytes: u64, remedy: &str) -> Result<()> {
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
pub fn fitting(most: u64, buffers: u64) -> u64 {
    let each = environment::memory().available / 2 / buffers;
    most.min(align_down(each, MIB)).max(MIB)
}

#[cfg(test)]
mod tests {
    use forebay::units::GIB;

    use super::*;
    use crate::control_group::By;

    #[test]
    fn more_than_is_left_is_refused_with_a_way_out() {
        let grant = Grant { limit: 3 * GIB, available: 2 * GIB, by: By::Group };
        assert!(fits(grant, GIB, 2 * GIB, "--size").is_ok());
        let failure = fits(grant, GIB, 2 * GIB + 1, "--size").unwrap_err();
        assert_eq!(failure.message, "cannot move 1 GiB: 2 GiB of host memory are required");
        assert_eq!(failure.causes, ["this control group leaves 2 GiB of 3 GiB"]);
        let hint = "give a smaller `--size`, or raise the group's memory limit";
        assert_eq!(failure.hint.as_deref(), Some(hint));
        let failure = fits(Grant { by: By::AddressSpace, ..grant }, GIB, 3 * GIB, "--size");
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
