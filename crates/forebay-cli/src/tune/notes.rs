//! Warnings about the result, each with the next thing to try.

use std::time::Duration;

use forebay::units::format_size;

use super::curve::Point;
use super::place::Place;
use super::probe::Seen;
use super::search::{Bounds, DEPTH_MAX, Found};
use super::settings::short;
use crate::bench::stats::Spread;
use crate::report::drives::DriveFacts;
use crate::report::json::Environment;
use crate::report::table::rate;
use crate::report::warnings::Warning;

/// Writes come from a simulated GPU.
pub(super) const PLAYED: &str = "no GPU is available: writes came from a simulated one, in host \
                                 memory";

/// Samples further apart than this share of their median are called unsteady.
const SPREAD_MAX: f64 = 0.25;
/// From this gain on, a note recommends larger requests than the engine makes.
const GAIN: f64 = 1.05;

/// Notes on the place and its drives.
pub(super) fn about(environment: &Environment, place: &Place) -> Vec<String> {
    let mut notes = Vec::new();
    if place.leftovers > 0 {
        notes.push(Warning::Leftovers(place.leftovers).to_string());
    }
    notes.extend(of_drives(&environment.drives));
    if std::env::var_os("FOREBAY_DEPTH").is_some() {
        notes
            .push("`FOREBAY_DEPTH` is set: engines use it instead of this result; unset it".into());
    }
    notes
}

/// Notes on the kind of a drive.
pub(super) fn of_drives(drives: &[DriveFacts]) -> Vec<String> {
    let mut notes = Vec::new();
    for drive in drives {
        let name = &drive.name;
        // Virtual disks mostly report that they spin, and do not.
        let turns = drive.rotational == Some(true) && !drive.transport.starts_with("virtio");
        if turns && !drive.network {
            notes.push(format!(
                "`{name}` is a spinning disk: a greater depth may only add seeks, and outer tracks \
                 are faster than inner ones; measure a file of yours as well"
            ));
        }
        if drive.network {
            notes.push(format!(
                "`{name}` is reached over a network ({}): its server's cache and other clients \
                 affect the result; measure again at another time",
                drive.transport
            ));
        }
    }
    notes
}

/// Notes on the samples.
pub(super) fn of_samples(seen: &Seen) -> Vec<String> {
    let mut notes = seen.notes.clone();
    let all = seen.around + seen.through;
    if seen.through > all / 100 {
        let (through, all) = (format_size(seen.through), format_size(all));
        notes.push(format!(
            "{through} of {all} came from the page cache, not from the drive: another process uses \
             the file; try a folder"
        ));
    }
    notes
}

/// Notes on a search.
pub(super) fn of_search(found: &Found, bounds: Bounds, duration: Duration) -> Vec<String> {
    let mut notes = Vec::new();
    let curve = &found.curve;
    if !found.complete {
        let count: usize = curve.0.iter().map(|point| point.samples.len()).sum();
        notes.push(format!(
            "the time ended after {count} samples, before the best points were measured twice; try \
             `--duration {}s`",
            (duration * 5).as_secs_f64()
        ));
    }
    let Some(point) = curve.found(bounds.size_max) else { return notes };
    let Spread { median, .. } = point.bytes_per_second;
    let spread = point.bytes_per_second.relative();
    if spread > SPREAD_MAX {
        notes.push(format!(
            "unsteady: samples of the result differ by {:.0} %; stop other work on this drive, or \
             try `--duration {}s`",
            spread * 100.0,
            (duration * 5).as_secs_f64()
        ));
    }
    let fastest = curve.best(u64::MAX).map_or(0.0, Point::rate);
    let own = curve.best(bounds.size_max).map_or(0.0, Point::rate);
    if let Some(larger) = curve.best(u64::MAX).filter(|_| fastest > own * GAIN) {
        notes.push(format!(
            "a block size of {} reaches {} GB/s, {:.0} % more than the engine's default sizes; try \
             `FOREBAY_SEGMENT_SIZE={}`",
            format_size(larger.cell.request_size),
            rate(fastest),
            (fastest / own - 1.0) * 100.0,
            short(larger.cell.request_size),
        ));
    }
    let grows = curve.best(bounds.size_max).filter(|best| best.cell.depth >= DEPTH_MAX);
    if let Some(best) = grows.filter(|_| point.cell.depth >= DEPTH_MAX && median > 0.0) {
        notes.push(format!(
            "throughput still grows at a queue depth of {}, the highest that is measured",
            best.cell.depth
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use forebay::units::{KIB, MIB};

    use super::*;
    use crate::report::drives::tests::drive;
    use crate::tune::curve::tests::{pipe, point};
    use crate::tune::search::IN_FLIGHT_MAX;

    const BOUNDS: Bounds =
        Bounds { time: Duration::from_secs(6), in_flight: IN_FLIGHT_MAX, size_max: MIB };

    /// Notes with a line break after each part of a sentence.
    fn folded(notes: &[String]) -> String {
        notes.join("\n\n").replace(": ", ":\n  ").replace("; ", ";\n  ").replace(", ", ",\n  ")
    }

    fn notes(curve: crate::tune::curve::Curve, complete: bool) -> Vec<String> {
        of_search(&Found { curve, complete }, BOUNDS, Duration::from_secs(6))
    }

    #[test]
    fn kinds_of_drives_have_their_notes() {
        let fast = drive();
        assert!(of_drives(std::slice::from_ref(&fast)).is_empty());
        let virt = DriveFacts { rotational: Some(true), transport: "virtio".into(), ..drive() };
        assert!(of_drives(&[virt]).is_empty());
        let disk = DriveFacts {
            name: "sda".into(),
            rotational: Some(true),
            transport: "sata".into(),
            ..drive()
        };
        let mount = DriveFacts {
            name: "server:/export".into(),
            transport: "nfs4".into(),
            network: true,
            ..drive()
        };
        insta::assert_snapshot!(folded(&of_drives(&[fast, disk, mount])), @"
        `sda` is a spinning disk:
          a greater depth may only add seeks,
          and outer tracks are faster than inner ones;
          measure a file of yours as well

        `server:/export` is reached over a network (nfs4):
          its server's cache and other clients affect the result;
          measure again at another time
        ");
    }

    #[test]
    fn bytes_from_the_page_cache_are_told() {
        let seen = |around, through| Seen { around, through, notes: vec!["a note".into()] };
        assert_eq!(of_samples(&seen(1000 * MIB, MIB)), ["a note"]);
        insta::assert_snapshot!(folded(&of_samples(&seen(1000 * MIB, 24 * MIB))), @"
        a note

        24 MiB of 1 GiB came from the page cache,
          not from the drive:
          another process uses the file;
          try a folder
        ");
    }

    #[test]
    fn a_search_says_what_it_lacks() {
        let sizes = [128 * KIB, 512 * KIB, MIB, 4 * MIB];
        let calm = pipe(1e9, 0.001, &sizes, &[1, 2, 4, 8]);
        assert!(notes(calm.clone(), true).is_empty());
        let mut all = notes(calm.clone(), false);
        let mut unsteady = calm.clone();
        unsteady.0.iter_mut().for_each(|point| point.bytes_per_second.min /= 2.0);
        all.extend(notes(unsteady, true));
        let mut larger = calm.clone();
        larger.0.push(point(4 * MIB, 16, 1.2e9));
        all.extend(notes(larger, true));
        all.extend(notes(pipe(14e9, 0.02, &[MIB], &[32, 64, 128]), true));
        insta::assert_snapshot!(folded(&all), @"
        the time ended after 48 samples,
          before the best points were measured twice;
          try `--duration 30s`

        unsteady:
          samples of the result differ by 50 %;
          stop other work on this drive,
          or try `--duration 30s`

        a block size of 4 MiB reaches 1.20 GB/s,
          20 % more than the engine's default sizes;
          try `FOREBAY_SEGMENT_SIZE=4M`

        throughput still grows at a queue depth of 128,
          the highest that is measured
        ");
        assert!(notes(Default::default(), true).is_empty());
    }
}
