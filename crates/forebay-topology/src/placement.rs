//! Maps the bytes of a file to addresses on its drives, as far as the kernel reports them.
//!
//! FIEMAP gives addresses on the device of the file system. The steps below map addresses to their
//! children with a [`Spread`]. A step without a known mapping, or that also transforms the
//! data, ends the walk with a reason.

use serde::Serialize;

use super::answers::Extent;
use super::cache::Resolver;
use super::drive::DriveId;
use super::map::{Layer, LayerKind, StorageMap};
use super::volume::{Run, Spread};

/// Maximum number of pieces per extent.
const PIECES_MAX: usize = 64 << 10;
/// Maximum number of extents requested.
const EXTENTS_MAX: usize = 64 << 10;

/// Flags of `linux/fiemap.h` that make the address of an extent meaningless.
const PLACELESS: [(u32, &str); 6] = [
    (0x2, "the file system does not know its address"),
    (0x4, "it is not written to the drive yet"),
    (0x8, "it is compressed or encrypted"),
    (0x100, "it does not begin at a block"),
    (0x200, "it lies inside metadata"),
    (0x400, "it shares a block with others"),
];

/// A run of a file's bytes on a drive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Piece {
    /// Its offset in the file, in bytes.
    pub logical: u64,
    /// The drive.
    pub drive: DriveId,
    /// Its offset on the drive, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
}

impl Piece {
    /// Appends `next` if it follows this piece directly, in the file and on the same drive.
    pub fn append(&mut self, next: &Self) -> bool {
        let follows = self.drive == next.drive
            && self.offset.checked_add(self.len) == Some(next.offset)
            && self.logical.checked_add(self.len) == Some(next.logical);
        let len = self.len.checked_add(next.len).filter(|_| follows);
        self.len = len.unwrap_or(self.len);
        len.is_some()
    }
}

impl Resolver {
    /// The first `max` extents of a file, as addresses on its file system's device. Delayed
    /// allocations have no address.
    ///
    /// # Errors
    /// The reason why the file system does not report them.
    pub fn extents(&self, path: &std::path::Path, max: usize) -> Result<Vec<Extent>, String> {
        let absolute = std::path::absolute(path).map_err(|error| error.to_string())?;
        let extents = self.system().extents(&absolute, max.min(EXTENTS_MAX));
        extents.map_err(|refusal| refusal.to_string())
    }
}

impl StorageMap {
    /// Maps an extent of the file to its drives.
    ///
    /// # Errors
    /// The reason why the mapping is unknown.
    pub fn locate(&self, extent: &Extent) -> Result<Vec<Piece>, String> {
        if let Some((_, reason)) = PLACELESS.iter().find(|(flag, _)| extent.flags & flag != 0) {
            return Err((*reason).to_owned());
        }
        let device = device(&self.root)?;
        let mut pieces = Vec::new();
        let whole = At { logical: extent.logical, at: extent.physical, len: extent.len };
        pass_on(device, whole, &mut pieces)?;
        Ok(pieces)
    }
}

/// The file system that holds the file itself, or the path's block device.
fn ground(root: &Layer) -> Result<&Layer, String> {
    let mut layer = root;
    while matches!(layer.kind, LayerKind::Path | LayerKind::Symlink | LayerKind::Mount) {
        layer = layer.children.first().ok_or("no file system is known")?;
    }
    if layer.kind == LayerKind::FileSystem && layer.name == "overlay" {
        // The extents are those of the underlying file that the overlay shows.
        let shown = layer.children.first().filter(|l| l.kind == LayerKind::BackingFile);
        let mount = shown.and_then(|shown| shown.children.first());
        return mount.and_then(|mount| mount.children.first()).ok_or("the layer is unknown".into());
    }
    Ok(layer)
}

/// The step below `root` whose addresses the file's extents use. For a block device this is the
/// device itself.
pub(super) fn device(root: &Layer) -> Result<&Layer, String> {
    let layer = ground(root)?;
    if layer.kind != LayerKind::FileSystem {
        return Ok(layer);
    }
    if layer.name == "btrfs" {
        return Err("btrfs reports its own addresses, not those of its drives".into());
    }
    if layer.fact("realtime_device").is_some() {
        return Err("it may lie on the device for real-time files".into());
    }
    match layer.children.as_slice() {
        [device] => Ok(device),
        _ => Err(format!("`{}` is not on exactly one device", layer.name)),
    }
}

/// A range of bytes on its way down: its offset in the file and on this step's device.
#[derive(Debug, Clone, Copy)]
struct At {
    logical: u64,
    at: u64,
    len: u64,
}

impl At {
    /// Splits off the first `len` bytes, moved to `at`, and returns them with the rest.
    fn cut(self, len: u64, at: u64) -> (Self, Self) {
        let len = len.min(self.len);
        let rest = Self {
            logical: self.logical.saturating_add(len),
            at: self.at.saturating_add(len),
            len: self.len - len,
        };
        (Self { at, len, ..self }, rest)
    }
}

fn pass_on(layer: &Layer, bytes: At, pieces: &mut Vec<Piece>) -> Result<(), String> {
    if pieces.len() >= PIECES_MAX {
        return Err(format!("it has more than {PIECES_MAX} pieces"));
    }
    if let Some(drive) = layer.text("drive") {
        let At { logical, at: offset, len } = bytes;
        let piece = Piece { logical, drive: DriveId(drive.to_owned()), offset, len };
        if !pieces.last_mut().is_some_and(|last| last.append(&piece)) {
            pieces.push(piece);
        }
        return Ok(());
    }
    let child = |index: usize| {
        layer.children.get(index).ok_or_else(|| format!("`{}` has lost a member", layer.name))
    };
    let beyond = || format!("the address is beyond `{}`", layer.name);
    match &layer.spread {
        Spread::Untold => Err(format!("`{}` does not report where its data is", layer.name)),
        Spread::Shifted(by) => {
            let at = bytes.at.checked_add(*by).ok_or_else(beyond)?;
            pass_on(child(0)?, At { at, ..bytes }, pieces)
        }
        Spread::Runs(runs) => {
            let mut rest = bytes;
            while rest.len > 0 {
                let holds = |run: &&Run| rest.at >= run.start && rest.at - run.start < run.len;
                let run = runs.iter().find(holds).ok_or_else(beyond)?;
                let inside = rest.at - run.start;
                let at = run.offset.checked_add(inside).ok_or_else(beyond)?;
                let (part, more) = rest.cut(run.len - inside, at);
                pass_on(child(run.child)?, part, pieces)?;
                rest = more;
            }
            Ok(())
        }
        Spread::Striped { piece, starts } => {
            let count = starts.len() as u64;
            let mut rest = bytes;
            if *piece == 0 || count == 0 {
                return Err(beyond());
            }
            while rest.len > 0 {
                let (index, inside) = (rest.at / piece, rest.at % piece);
                let member = usize::try_from(index % count).map_err(|_| beyond())?;
                let (member, start) = starts[member];
                let at = (index / count * piece + inside).checked_add(start);
                let (part, more) = rest.cut(piece - inside, at.ok_or_else(beyond)?);
                pass_on(child(member)?, part, pieces)?;
                rest = more;
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn drive(name: &str) -> Layer {
        let mut layer = Layer::new(LayerKind::Disk, name);
        layer.say("drive", name);
        layer
    }

    fn volume(spread: Spread) -> Layer {
        let mut layer = Layer::new(LayerKind::Md, "md0");
        layer.children = ["a", "b", "c"].map(drive).to_vec();
        layer.spread = spread;
        layer
    }

    fn located(layer: &Layer, at: u64, len: u64) -> Vec<(String, u64, u64)> {
        let mut pieces = Vec::new();
        pass_on(layer, At { logical: 0, at, len }, &mut pieces).expect("a place");
        pieces.into_iter().map(|piece| (piece.drive.0, piece.offset, piece.len)).collect()
    }

    #[test]
    fn stripes_go_round() {
        let layer = volume(Spread::Striped { piece: 10, starts: vec![(0, 0), (1, 100), (2, 200)] });
        let found = located(&layer, 5, 32);
        let wanted = [("a", 5, 5), ("b", 100, 10), ("c", 200, 10), ("a", 10, 7)];
        assert_eq!(found, wanted.map(|(name, at, len)| (name.to_owned(), at, len)));
        let one = volume(Spread::Striped { piece: 10, starts: vec![(0, 0)] });
        assert_eq!(located(&one, 5, 32), [("a".to_owned(), 5, 32)]);
    }

    #[test]
    fn a_run_ends_where_the_next_begins() {
        let run = |start, len, child, offset| Run { start, len, child, offset };
        let layer = volume(Spread::Runs(vec![run(0, 10, 2, 50), run(10, 10, 0, 7)]));
        assert_eq!(located(&layer, 8, 4), [("c".to_owned(), 58, 2), ("a".to_owned(), 7, 2)]);
        let mut pieces = Vec::new();
        let beyond = pass_on(&layer, At { logical: 0, at: 15, len: 10 }, &mut pieces);
        assert_eq!(beyond, Err("the address is beyond `md0`".to_owned()));
    }

    proptest! {
        #[test]
        fn no_byte_is_lost_and_no_address_overflows(
            at in any::<u64>(),
            len in 0_u64..100_000,
            piece in 16_u64..u64::MAX,
            start in any::<u64>(),
        ) {
            let layer = volume(Spread::Striped { piece, starts: vec![(2, start), (1, 0), (0, 1)] });
            let mut pieces = Vec::new();
            if pass_on(&layer, At { logical: 3, at, len }, &mut pieces).is_ok() {
                prop_assert_eq!(pieces.iter().map(|piece| piece.len).sum::<u64>(), len);
            }
        }
    }
}
