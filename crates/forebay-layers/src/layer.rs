//! The parts of a layer, and its layout on the GPU and in pinned memory.

use std::ops::Range;

use forebay::internal::{Packed, Packing, Wanted};
use forebay::{Engine, Error, File, Operation, Residency, Result};
use forebay_base::units::{ByteRange, align_up};

use super::slices::PART_ALIGNMENT;
use super::{ring, slices};

/// Maximum size of a copy from pinned memory. The fixed cost of a copy is 0.2 % of that (2.7 µs
/// of 1.2 ms on an H200), and longer copies would delay other users of the link.
const COPY_MAX: u64 = 64 << 20;

/// File ranges that a model needs at the same time, in the order of their layout on the GPU.
#[derive(Debug, Clone)]
pub struct Layer {
    name: String,
    parts: Vec<LayerPart>,
}

/// A range of a file.
#[derive(Debug, Clone)]
pub struct LayerPart {
    /// The file, opened with the engine that streams it.
    pub file: File,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

impl Layer {
    /// Creates a layer without parts. Errors and reports use the name; if it is empty, the layer's
    /// number in the stream's list, as in `layer 3`.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), parts: Vec::new() }
    }

    /// Appends `len` bytes at `offset` of `file`.
    pub fn with(mut self, file: &File, offset: u64, len: u64) -> Self {
        self.parts.push(LayerPart { file: file.clone(), offset, len });
        self
    }

    /// The name used in errors and reports.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The layer's parts.
    pub fn parts(&self) -> &[LayerPart] {
        &self.parts
    }

    /// Bytes on the GPU. Parts begin at multiples of 256.
    pub fn len(&self) -> u64 {
        slices::length(self.lens()).unwrap_or(u64::MAX)
    }

    /// Bytes of the parts.
    fn lens(&self) -> impl Iterator<Item = u64> {
        self.parts.iter().map(|part| part.len)
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.parts.iter().all(|part| part.len == 0)
    }

    /// The name in errors and reports for the layer with this number.
    fn called(&self, number: usize) -> String {
        if self.name.is_empty() { format!("layer {number}") } else { self.name.clone() }
    }

    /// Rejects a layer without bytes or with ranges outside their file.
    fn check(&self, number: usize, engine: &Engine) -> Result<()> {
        let name = self.called(number);
        self.look(engine).map_err(|error| error.of_layer(Operation::Read, &name))
    }

    fn look(&self, engine: &Engine) -> Result<()> {
        let Some(first) = self.parts.iter().find(|part| part.len > 0) else {
            return Err(Error::bad_state("it has no bytes: leave it out"));
        };
        for part in &self.parts {
            if !part.file.is_of(engine) {
                let reason = "the file was opened by another engine: open it with this one";
                return Err(refuse(part, reason.into()));
            }
            let size = part.file.len()?;
            let end = part.offset.checked_add(part.len);
            if end.is_none_or(|end| end > size) {
                let reason = format!(
                    "it ends behind the file's {size} bytes: end it there, or check that all of \
                     the file has been written"
                );
                return Err(refuse(part, reason));
            }
        }
        if slices::length(self.lens()).is_none() {
            return Err(refuse(
                first,
                "it is larger than any memory: make several layers of it".into(),
            ));
        }
        Ok(())
    }
}

/// The unit of loading: a layer, or a slice of a layer.
#[derive(Debug)]
pub(super) struct Unit {
    pub(super) layer: usize,
    pub(super) slice: usize,
    /// The layer's part number of its first part.
    pub(super) first_part: usize,
    pub(super) name: String,
    pub(super) parts: Vec<LayerPart>,
    /// Offsets of the parts in the GPU buffer.
    pub(super) places: Vec<u64>,
    /// Bytes on the GPU.
    pub(super) len: u64,
    /// The files, by their numbers in the packing.
    pub(super) files: Vec<File>,
    /// The part that represents the unit in errors.
    pub(super) first: LayerPart,
    /// Its parts packed into slots; addresses are offsets on the GPU.
    pub(super) packing: Packing,
}

impl Unit {
    /// Builds slice `slice` of a layer from these of its parts.
    fn new(
        of: &Layer,
        layer: usize,
        (slice, slices): (usize, usize),
        range: Range<usize>,
        slot: u64,
    ) -> Self {
        let name = match slices {
            1 => of.called(layer),
            _ => format!("{} ({} of {slices})", of.called(layer), slice + 1),
        };
        let (first_part, parts) = (range.start, of.parts[range].to_vec());
        let (mut places, mut len) = (Vec::with_capacity(parts.len()), 0);
        let (mut files, mut wanted): (Vec<File>, Vec<Wanted>) = (Vec::new(), Vec::new());
        for part in &parts {
            let place = align_up(len, PART_ALIGNMENT);
            places.push(place);
            len = place + part.len;
            let known = files.iter().position(|file| file.is_same(&part.file));
            let source = known.unwrap_or_else(|| {
                files.push(part.file.clone());
                files.len() - 1
            });
            let LayerPart { offset, len, .. } = *part;
            match wanted.last_mut() {
                // Merge ranges that are adjacent in the file and on the GPU.
                Some(last)
                    if last.source == source
                        && last.offset + last.len == offset
                        && last.address + last.len == place =>
                {
                    last.len += len;
                }
                _ => wanted.push(Wanted { source, offset, len, address: place }),
            }
        }
        let packing = Packing::new(&wanted, slot);
        let first = parts.iter().chain(&of.parts).find(|part| part.len > 0);
        let first = first.expect("a layer has bytes").clone();
        Self { layer, slice, first_part, name, parts, places, len, files, first, packing }
    }

    /// Sample parts for checking whether it is in the page cache: the first, the middle and the
    /// last.
    pub(super) fn places_to_look(&self) -> Vec<&Packed> {
        let parts = self.packing.parts();
        [0, parts.len() / 2, parts.len().saturating_sub(1)]
            .iter()
            .filter_map(|&n| parts.get(n))
            .collect()
    }

    /// Bytes to read from files.
    pub(super) fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.len).sum()
    }
}

/// Cuts layers into slices so that two of them fit `budget` bytes and a GPU of `room` bytes.
/// Without a budget a layer is a single slice. Returns the number of slices per layer, and the
/// units in order.
///
/// # Errors
/// A bad layer; a budget or a GPU that is too small for any slices.
pub(super) fn cut(
    engine: &Engine,
    layers: &[Layer],
    (budget, room): (Option<u64>, u64),
) -> Result<(usize, Vec<Unit>)> {
    let slot = ring::slot_len(engine);
    if layers.is_empty() {
        return Err(Error::bad_option("layers", "an empty list", "at least one layer"));
    }
    layers.iter().enumerate().try_for_each(|(number, layer)| layer.check(number, engine))?;
    let most = budget.unwrap_or(u64::MAX).min(room) / 2;
    let lens: Vec<Vec<u64>> = layers.iter().map(|layer| layer.lens().collect()).collect();
    let fits = layers.iter().all(|layer| layer.len() <= most);
    let count = match budget {
        _ if fits => Some(1),
        None => None,
        // All layers get the number of slices that the largest layer needs.
        Some(_) => lens
            .iter()
            .map(|lens| slices::count(lens, most))
            .try_fold(1, |all, count| count.map(|count| all.max(count))),
    };
    let Some(count) = count else { return Err(too_large(layers, (budget, room))) };
    let mut units = Vec::new();
    for (number, (layer, lens)) in layers.iter().zip(&lens).enumerate() {
        for (slice, range) in slices::cut(lens, count).into_iter().enumerate() {
            units.push(Unit::new(layer, number, (slice, count), range, slot));
        }
    }
    Ok((count, units))
}

/// The error for a layer that exceeds the budget, or a GPU of `room` bytes.
fn too_large(layers: &[Layer], (budget, room): (Option<u64>, u64)) -> Error {
    let numbered = layers.iter().enumerate();
    let (number, whole) = numbered.max_by_key(|(_, layer)| layer.len()).expect("one at least");
    let of_part = |part: &&LayerPart| part.len;
    let parts = layers.iter().flat_map(Layer::parts);
    let part = parts.max_by_key(of_part).expect("a layer has bytes");
    let name = whole.called(number);
    match budget {
        _ if part.len > room / 2 => refuse(
            part,
            format!(
                "the GPU has {room} bytes, and two slices have to fit of layers that are cut \
                 between their parts: cut this part in smaller ones"
            ),
        ),
        None => refuse(
            whole.parts.iter().find(|part| part.len > 0).unwrap_or(part),
            format!(
                "the GPU has {room} bytes, and two layers as large as `{name}` have to fit: give \
                 `gpu_budget`, so that they come in slices"
            ),
        ),
        Some(budget) => {
            let expected = enough(whole.len().saturating_mul(2), part.len.saturating_mul(2));
            Error::bad_option("gpu_budget", format!("{budget} bytes"), expected)
        }
    }
}

/// Describes the smallest valid budget: bytes of two layers, or of two slices.
fn enough(of_layers: u64, of_slices: u64) -> String {
    let text = format!("{of_layers} bytes at least, for two layers");
    if of_slices == of_layers {
        return text; // the largest layer is one part, which is not cut
    }
    format!("{text}, or {of_slices} for two slices of a layer, which is cut between its parts")
}

/// A copy: source address, offset in the buffer, bytes.
pub(super) type Copy = (u64, u64, u64);

/// Appends a copy, merged with the last copy if they are adjacent.
pub(super) fn add_copy(copies: &mut Vec<Copy>, (from, to, len): Copy) {
    match copies.last_mut() {
        Some((last, at, so_far))
            if *last + *so_far == from && *at + *so_far == to && *so_far + len <= COPY_MAX =>
        {
            *so_far += len;
        }
        _ => copies.push((from, to, len)),
    }
}

/// Layout of a unit's slot contents in pinned memory, and the copies from there.
#[derive(Debug)]
pub(super) struct Shelf {
    /// Offsets of the slots' data.
    pub(super) starts: Vec<u64>,
    /// Total bytes.
    pub(super) len: u64,
    /// Copies: source offset, offset on the GPU, bytes.
    pub(super) copies: Vec<Copy>,
}

/// In memory, parts keep their file offset modulo this.
const UNIT: u64 = 512;

impl Shelf {
    pub(super) fn new(packing: &Packing) -> Self {
        let (mut starts, mut len) = (Vec::new(), 0);
        let mut copies = Vec::new();
        for block in 0..packing.blocks() {
            let parts = packing.parts_of(block);
            // Keep the first part's offset within a `UNIT`, so it stays aligned as in the file.
            let start = align_up(len, UNIT);
            starts.push(start);
            for &Packed { at, len, address, .. } in parts {
                let from = start + at;
                add_copy(&mut copies, (from, address, len));
            }
            len = parts.last().map_or(len, |last| start + last.at + last.len);
        }
        Self { starts, len, copies }
    }
}

/// The error for a part of a layer that cannot be read.
pub(super) fn refuse(part: &LayerPart, reason: String) -> Error {
    let place = part.file.place(part.offset, part.len);
    Error::BadRequest { operation: Operation::Read, place, reason }
}

/// Whether at least 90 % of a range is in the page cache, as reported by its file system. Does no
/// I/O to a drive or server.
pub(super) fn is_resident(file: &File, range: ByteRange) -> bool {
    let found = file.residency_inside(range);
    matches!(found, Residency::Known { resident, len } if resident >= len / 10 * 9)
}
