//! The location of a file's bytes on its drives: adjacent runs are merged and summed per drive.

use forebay_topology::{Extent, Piece, Resolver, StorageMap};

use super::json::{Extents, OnDrive};

/// The most extents requested from the file system.
const EXTENTS_MAX: usize = 64 << 10;
/// Runs that are listed.
pub(crate) const RUNS_MAX: usize = 16;
/// Bytes that are mapped at a time: a striped volume cuts them into pieces, of which the topology
/// accepts 65,536 at most.
const STEP: usize = 128 << 20;
/// Most such parts of a file: 128 TiB. A record may claim more.
const PARTS_MAX: usize = 1 << 20;

/// Queries the file system, and maps the extents down to the drives.
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
    let (mut open, mut left) = (None, PARTS_MAX);
    for extent in extents {
        sum.bytes = sum.bytes.saturating_add(extent.len);
        for at in (0..extent.len).step_by(STEP) {
            if left == 0 {
                let bytes = sum.unplaced.entry("the file is too long".into()).or_default();
                *bytes = bytes.saturating_add(extent.len - at);
                break;
            }
            left -= 1;
            let mut part = *extent;
            part.logical = extent.logical.saturating_add(at);
            part.physical = extent.physical.saturating_add(at);
            part.len = (extent.len - at).min(STEP as u64);
            match locate(&part) {
                Ok(pieces) => pieces.into_iter().for_each(|piece| add(&mut sum, &mut open, piece)),
                Err(reason) => *sum.unplaced.entry(reason).or_default() += part.len,
            }
        }
    }
    sum
}

/// Adds a piece to the open run, or begins a new run.
fn add(sum: &mut Extents, open: &mut Option<Piece>, piece: Piece) {
    let known = sum.drives.iter().position(|on| on.drive == piece.drive);
    let known = known.unwrap_or_else(|| {
        sum.drives.push(OnDrive { drive: piece.drive.clone(), bytes: 0, runs: 0 });
        sum.drives.len() - 1
    });
    let on = &mut sum.drives[known];
    on.bytes = on.bytes.saturating_add(piece.len);
    if let Some(open) = open
        && open.append(&piece)
    {
        let is_shown = sum.first.len() as u64 == sum.runs;
        sum.first.last_mut().filter(|_| is_shown).into_iter().for_each(|run| run.len = open.len);
        return;
    }
    on.runs += 1;
    sum.runs += 1;
    if sum.first.len() < RUNS_MAX {
        sum.first.push(piece.clone());
    }
    *open = Some(piece);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extent_of_any_length_is_summed_in_bounded_time() {
        let text = r#"{"logical":0,"physical":0,"len":18446744073709551615,"flags":"0x0"}"#;
        let extent: Extent = serde_json::from_str(text).expect("an extent");
        let found = summed(&[extent; 3], true, |_| Err("no drive".into()));
        assert_eq!(found.unplaced["no drive"], (PARTS_MAX * STEP) as u64);
        assert_eq!((found.bytes, found.unplaced["the file is too long"]), (u64::MAX, u64::MAX));
    }
}
