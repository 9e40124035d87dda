//! How long it takes to map a file's storage, in absolute terms: every open waits for it. The
//! kernel's own caches are warm; the time of a new resolver is a note.

use std::fs::File;
use std::hint::black_box;
use std::os::fd::AsFd as _;

use forebay::units::MIB;
use forebay_topology::{Resolver, System};

use crate::bar::{Bound, Check, Measured, Stop};
use crate::lab::{Lab, Place};
use crate::sample::{Series, interleave, timed};

/// The methods to query, and the time limit of each, in microseconds.
const SIDES: [(&str, f64); 3] =
    [("uncached", 200.0), ("cached, by path", 20.0), ("cached, by descriptor", 20.0)];

/// A file in the scratch folder, resolved by every method.
pub(crate) fn resolve(lab: &Lab) -> Result<Measured, Stop> {
    let path = lab.file(Place::Disk, lab.len(4 * MIB))?;
    let file = File::open(&path)?;
    let (forgets, keeps) = (Resolver::default(), Resolver::default());
    let sides = SIDES.map(|(name, _)| name.to_owned());
    let rounds = usize::try_from(lab.count(3200)).unwrap_or(1);
    // No bytes are moved: the time alone counts.
    let series = interleave(rounds, &sides, |side| {
        if side == 0 {
            forgets.forget();
        }
        timed(0, || {
            match side {
                0 => drop(black_box(forgets.resolve(&path))),
                1 => drop(black_box(keeps.resolve(&path))),
                _ => drop(black_box(keeps.resolve_file(file.as_fd(), &path))),
            }
            Ok(())
        })
    })?;
    // The first query of a process includes facts about the whole machine.
    let first = timed(0, || {
        drop(black_box(Resolver::new(System::live()).resolve(&path)));
        Ok(())
    })?;
    let check = |(series, (name, most)): (&Series, &(&str, f64))| {
        Check::new(format!("µs {name}"), series.seconds() * 1e6, Bound::AtMost(*most))
    };
    Ok(Measured {
        checks: series.iter().zip(&SIDES).map(check).collect(),
        notes: vec![format!("a new resolver: {:.1} µs", first.seconds * 1e6)],
        series,
    })
}
