//! The location of a file's bytes on its drives: adjacent runs are merged and summed for each
//! drive.

use forebay::units::MIB;
use forebay_topology::{Extent, Piece, Resolver, StorageMap};

use super::json::{Extents, OnDrive, Run, Unplaced};

/// The most extents requested from the file system.
const EXTENTS_MAX: usize = 64 << 10;
/// Runs that are shown one by one.
pub(crate) const RUNS_MAX: usize = 16;
/// Bytes that are mapped at a time: a striped volume cuts them into pieces, of which the topology
/// accepts 65,536 at most.
const STEP: u64 = 128 * MIB;

/// Queries the file system, and maps each extent down to the drives.
pub(crate) fn gather(resolver: &Resolver, map: &StorageMap) -> Extents {
    if map.root.number("size_bytes").is_none() {
        return Extents { refused: Some("not a regular file".into()), ..Extents::default() };
    }
    match resolver.extents(&map.path, EXTENTS_MAX) {
        Ok(extents) => {
            let complete = extents.len() < EXTENTS_MAX;
            summed(&extents, complete, |extent| map.locate(extent))
        }
        Err(refused) => Extents { refused: Some(refused), ..Extents::default() },
    }
}

fn summed(
    extents: &[Extent],
    complete: bool,
    mut locate: impl FnMut(&Extent) -> Result<Vec<Piece>, String>,
) -> Extents {
    let mut sum = Extents { count: extents.len(), complete, ..Extents::default() };
    let mut open = None;
    for extent in extents {
        sum.bytes = sum.bytes.saturating_add(extent.len);
        for part in parts(extent) {
            match locate(&part) {
                Ok(pieces) => pieces.into_iter().for_each(|piece| add(&mut sum, &mut open, piece)),
                Err(reason) => match sum.unplaced.iter_mut().find(|known| known.reason == reason) {
                    Some(known) => known.bytes += part.len,
                    None => sum.unplaced.push(Unplaced { reason, bytes: part.len }),
                },
            }
        }
    }
    end_run(&mut sum, &mut open);
    sum.unplaced.sort_by(|one, other| one.reason.cmp(&other.reason));
    sum
}

fn parts(extent: &Extent) -> impl Iterator<Item = Extent> {
    let extent = *extent;
    let count = extent.len.div_ceil(STEP);
    (0..count).map(move |index| {
        let mut part = extent;
        let at = index * STEP;
        part.logical = extent.logical.saturating_add(at);
        part.physical = extent.physical.saturating_add(at);
        part.len = STEP.min(extent.len - at);
        part
    })
}

/// Adds a piece to the open run, or begins another one.
fn add(sum: &mut Extents, open: &mut Option<Run>, piece: Piece) {
    let Piece { logical, offset, len, .. } = piece;
    if let Some(open) = open
        && open.drive == piece.drive.as_str()
        && open.logical.checked_add(open.len) == Some(logical)
        && open.offset.checked_add(open.len) == Some(offset)
    {
        open.len += len;
        return;
    }
    end_run(sum, open);
    *open = Some(Run { logical, drive: piece.drive.as_str().into(), offset, len });
}

fn end_run(sum: &mut Extents, open: &mut Option<Run>) {
    let Some(run) = open.take() else { return };
    sum.runs += 1;
    match sum.drives.iter_mut().find(|drive| drive.drive == run.drive) {
        Some(drive) => {
            drive.bytes = drive.bytes.saturating_add(run.len);
            drive.runs += 1;
        }
        None => sum.drives.push(OnDrive { drive: run.drive.clone(), bytes: run.len, runs: 1 }),
    }
    if sum.first.len() < RUNS_MAX {
        sum.first.push(run);
    }
}
