//! The location of a file's bytes on its drives: adjacent runs are merged and summed for each
//! drive.

use std::collections::BTreeMap;

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
    let mut sum = Sum::default();
    let mut bytes = 0_u64;
    for extent in extents {
        bytes = bytes.saturating_add(extent.len);
        for part in parts(extent) {
            match locate(&part) {
                Ok(pieces) => pieces.into_iter().for_each(|piece| sum.add(piece)),
                Err(reason) => *sum.unplaced.entry(reason).or_default() += part.len,
            }
        }
    }
    sum.end_run();
    let unplaced = sum.unplaced.into_iter().map(|(reason, bytes)| Unplaced { reason, bytes });
    Extents {
        count: extents.len(),
        complete,
        bytes,
        drives: sum.drives,
        unplaced: unplaced.collect(),
        first: sum.first,
        runs: sum.runs,
        refused: None,
    }
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

#[derive(Default)]
struct Sum {
    drives: Vec<OnDrive>,
    unplaced: BTreeMap<String, u64>,
    first: Vec<Run>,
    runs: u64,
    open: Option<Run>,
}

impl Sum {
    fn add(&mut self, piece: Piece) {
        if let Some(open) = &mut self.open
            && open.drive == piece.drive.as_str()
            && open.logical.checked_add(open.len) == Some(piece.logical)
            && open.offset.checked_add(open.len) == Some(piece.offset)
        {
            open.len += piece.len;
            return;
        }
        self.end_run();
        let Piece { logical, offset, len, .. } = piece;
        self.open = Some(Run { logical, drive: piece.drive.as_str().into(), offset, len });
    }

    fn end_run(&mut self) {
        let Some(run) = self.open.take() else { return };
        self.runs += 1;
        match self.drives.iter_mut().find(|drive| drive.drive == run.drive) {
            Some(drive) => {
                drive.bytes = drive.bytes.saturating_add(run.len);
                drive.runs += 1;
            }
            None => {
                self.drives.push(OnDrive { drive: run.drive.clone(), bytes: run.len, runs: 1 });
            }
        }
        if self.first.len() < RUNS_MAX {
            self.first.push(run);
        }
    }
}
