//! The first transfer of an engine: threads, arena and registration are part of the time.

use forebay::Engine;
use forebay::units::{GIB, format_size};

use crate::bar::{Bound, Check, Measured, Stop};
use crate::device::Plain;
use crate::lab::{Lab, Place, routes, verify};
use crate::sample::{interleave, timed};

/// 8 GiB from a warm file, by a new engine each time; its GPU and target exist before.
pub(crate) fn run(lab: &Lab) -> Result<Measured, Stop> {
    let keeper = lab.gpu()?;
    let len = lab.len(8 * GIB);
    let path = lab.file(Place::Disk, len)?;
    let link_len = len.min(GIB);
    let mut link = Plain::new(&keeper, link_len)?;
    // One target for all: the copy engine also clears freed memory, and the link was measured at
    // half its speed during that.
    let mut target = keeper.allocate(len)?;
    let mut route = String::new();
    let sides = ["link", "forebay, first transfer"].map(str::to_owned);
    let series = interleave(lab.rounds(7), &sides, |side| {
        if side == 0 {
            return timed(link_len, || link.copy(&mut target, link_len));
        }
        target.fill(0x5A)?;
        let file = Engine::new(forebay::Options::from_env()?)?.open(&path)?;
        let sample = timed(len, || {
            route = routes(&file.read_exact(0, &mut target)?);
            Ok(())
        })?;
        // Each time: every engine fills its own slots for the first time.
        verify(&target, len)?;
        Ok(sample)
    })?;
    let share = series[1].rate() / series[0].best_rate();
    Ok(Measured {
        checks: vec![Check::new("share of the link", share, Bound::AtLeast(0.88))],
        notes: vec![format!("{}, {route}", format_size(len))],
        series,
    })
}
