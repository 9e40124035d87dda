//! Starts a simulated batch: many ranges of a few files, which may touch, overlap, start after the
//! end of their file, or be empty. Ranges of writes do not overlap.

use std::sync::Arc;
use std::time::Instant;

use forebay_base::units::{ByteRange, align_down};

use super::gates::{self, Opens};
use super::job::{Job, Piece, UNTOUCHED, note_races};
use super::memory::Memory;
use super::shape::Shape;
use super::start::{PAGE, SimTools, access, begin, drives, sync};
use super::world::{World, below, noise};
use crate::file::Handle;
use crate::gpu::sim::Dice;
use crate::options::Priority;
use crate::plan::{Access, Alignment, Direction, GAP_MAX, Reason, Strip, Wanted};
use crate::queue::{Core, Request, Share};
use crate::transfer::{Batch, Gate, State, SyncMode};

/// A file of a batch, with the engine's handle to it.
struct SimSource {
    file: usize,
    handle: Arc<Handle>,
    drive: usize,
    access: Access,
}

/// Up to three file handles in the engine's order: files on the same drive with the same access
/// mode first. Files that are truncated during the run are not written.
fn sources(world: &mut World, shape: &Shape, direction: Direction) -> Vec<SimSource> {
    let World { dice, files, .. } = world;
    let writes = direction == Direction::Write;
    let mut sources: Vec<SimSource> = (0..=below(dice, 3))
        .map(|_| {
            let index = usize::try_from(below(dice, files.len() as u64)).expect("few files");
            let file = &files[index];
            let handle = Arc::clone(&file.handles[usize::from(dice.roll(0.5))]);
            let access = match writes {
                true => Access::cached(Reason::WriteThroughCache),
                false => access(dice, shape, file, false),
            };
            SimSource { file: index, handle, drive: index % shape.drives.len(), access }
        })
        .filter(|source| !(writes && files[source.file].shrinks))
        .collect();
    sources.sort_by_key(|source| (source.drive, source.access.is_o_direct()));
    sources
}

/// Random ranges, each with the index of its source. No range of a write may overlap another write,
/// which `meets` reports.
fn pieces(
    world: &mut World,
    shape: &Shape,
    sources: &[SimSource],
    direction: Direction,
    meets: impl Fn(&Piece) -> bool,
) -> Vec<(usize, Piece)> {
    let World { dice, files, .. } = world;
    let slot = shape.limits.slot_size;
    let most = [1, 6, 50][usize::try_from(below(dice, 3)).expect("small")];
    let mut pieces: Vec<(usize, Piece)> = Vec::new();
    let (mut at, mut left) = (0, 5 * slot);
    for _ in 0..=below(dice, most) {
        let len_max = [1, 16, PAGE, shape.segment, 2 * slot];
        let len_max = len_max[usize::try_from(below(dice, 5)).expect("small")];
        let len = below(dice, len_max + 1).min(left);
        left -= len;
        at += if dice.roll(0.5) { 0 } else { below(dice, 100) };
        let (number, start) = match pieces.last() {
            Some((number, last)) if dice.roll(0.6) => (*number, near(dice, last.range)),
            _ => {
                let number = usize::try_from(below(dice, sources.len() as u64)).expect("few");
                let size = files[sources[number].file].bytes.len() as u64;
                let start = below(dice, size + PAGE);
                (number, if dice.roll(0.5) { align_down(start, PAGE) } else { start })
            }
        };
        let (index, range) = (sources[number].file, ByteRange::at(start, len));
        let file = &files[index];
        let bytes = match direction {
            Direction::Read => file.part(range).to_vec(),
            Direction::Write => noise(dice, len),
        };
        let piece = Piece::new(index, range, bytes, file.bytes.len() as u64);
        if direction == Direction::Write
            && (meets(&piece) || pieces.iter().any(|(_, other)| other.meets(&piece)))
        {
            continue;
        }
        let place = usize::try_from(at).expect("a small transfer");
        pieces.push((number, Piece { at: place, ..piece }));
        at += len;
    }
    pieces
}

/// Start of a range that touches the last one, nearly does, or overlaps it.
fn near(dice: &mut Dice, last: ByteRange) -> u64 {
    match below(dice, 4) {
        0 | 1 => last.end,
        2 => last.end + below(dice, 2 * PAGE),
        _ => last.start + below(dice, last.len() + 1),
    }
}

/// Starts a random batch; `None` if there is no memory for it.
pub(super) fn start(core: &Core, tools: &SimTools, shape: &Shape, jobs: &mut [Job]) -> Option<Job> {
    let mut world = tools.world.borrow_mut();
    let writes = world.dice.roll(shape.writes);
    let direction = if writes { Direction::Write } else { Direction::Read };
    let sources = sources(&mut world, shape, direction);
    if sources.is_empty() {
        return None;
    }
    let written = jobs.iter().filter(|job| job.direction == Direction::Write);
    let written: Vec<&Piece> = written.flat_map(|job| &job.pieces).collect();
    let meets = |piece: &Piece| written.iter().any(|other| other.meets(piece));
    let (numbers, mut pieces): (Vec<usize>, Vec<Piece>) =
        pieces(&mut world, shape, &sources, direction, meets).into_iter().unzip();
    let last = pieces.last()?;
    let end = last.at + usize::try_from(last.range.len()).expect("a small piece");
    note_races(jobs, direction, &mut pieces);
    let dice = &mut world.dice;
    let link = (shape.gpus > 0 && dice.roll(shape.on_gpu))
        .then(|| usize::try_from(below(dice, shape.gpus as u64)).expect("few GPUs"));
    let skew = if dice.roll(0.5) { 0 } else { below(dice, PAGE) };
    let behind = usize::try_from(below(dice, 100)).expect("small");
    let device = link.map(|link| &tools.devices[link]);
    let skew = usize::try_from(skew).expect("below a page");
    let mut bytes = vec![UNTOUCHED; end + behind];
    for piece in pieces.iter().filter(|_| writes) {
        bytes[piece.at..piece.at + piece.bytes.len()].copy_from_slice(&piece.bytes);
    }
    let memory = Memory::new(&bytes, skew, device)?;
    let is_host_read = link.is_none() && !writes;
    let blocks = (is_host_read && world.dice.roll(0.5))
        .then(|| gates::blocks(&mut world.dice, pieces.len()));
    let opens = blocks.map(|counts| Opens::new(&mut world.dice, &counts, &pieces));
    let how = (link.is_none(), direction, opens.as_ref());
    let batch = batch(&sources, &numbers, &pieces, &memory, how);
    let request = request(&mut world.dice, &sources, &batch, direction);
    let request = Request { address: memory.address(), link, ..request };
    // A caller that opens the gate cannot block on the end.
    let blocking = opens.is_none() && world.dice.roll(shape.blocking);
    world.tally.count("gate", u64::from(opens.is_some()));
    drop(world);
    let drives = drives(&request);
    Some(Job {
        state: Arc::clone(&request.state),
        pieces,
        batch: Some(batch),
        opens,
        direction,
        drives,
        memory,
        on_gpu: link.is_some(),
        direct: None,
        exact: false,
        caller: begin(core, request),
        blocking,
        cancelled: false,
        error: None,
    })
}

/// The request of a batch, without an address.
fn request(
    dice: &mut Dice,
    sources: &[SimSource],
    batch: &Arc<Batch>,
    direction: Direction,
) -> Request {
    let range = ByteRange::at(0, batch.strip().len());
    let first = &sources[0];
    let state =
        State::new(Instant::now(), Arc::clone(&first.handle), range, Vec::new(), Vec::new());
    let mut shares = Share::of_strip(batch.strip(), |number| {
        let SimSource { drive, access, .. } = sources[number];
        (drive, access.io(), access.reason)
    });
    let sync = if direction == Direction::Write { sync(dice) } else { SyncMode::None };
    if sync != SyncMode::None {
        shares.extend(Share::of_nothing(&shares, sources.iter().map(|source| source.drive)));
    }
    let none = Share { drive: first.drive, parts: Vec::new().into() };
    let share = if shares.is_empty() { none } else { shares.remove(0) };
    Request {
        state: Arc::new(state.of_batch(Arc::clone(batch))),
        file: Arc::clone(&first.handle),
        batch: Some(Arc::clone(batch)),
        direction,
        range,
        end: range.end,
        is_sized: false,
        address: 0,
        link: None,
        direct: None,
        drive: share.drive,
        parts: share.parts,
        shares,
        alignment: alignment(sources),
        cold: dice.roll(0.5),
        exact: false,
        sync,
        priority: if dice.roll(0.3) { Priority::Urgent } else { Priority::Normal },
    }
}

/// The O_DIRECT alignment for the strip.
fn alignment(sources: &[SimSource]) -> Option<Alignment> {
    sources.iter().filter_map(|source| source.access.direct).reduce(Alignment::max)
}

/// Lays out the parts of the pieces that are inside the files' known sizes.
fn batch(
    sources: &[SimSource],
    numbers: &[usize],
    pieces: &[Piece],
    memory: &Memory,
    (on_host, direction, opens): (bool, Direction, Option<&Opens>),
) -> Arc<Batch> {
    let shift = |piece| opens.map_or(0, |opens| opens.shift_of(piece));
    let numbered = pieces.iter().zip(numbers).enumerate();
    let wanted = numbered.map(|(number, (piece, &source))| Wanted {
        source,
        offset: piece.range.start,
        len: piece.bytes.len() as u64,
        address: memory.address() + piece.at as u64 - shift(number),
    });
    let wanted: Vec<Wanted> = wanted.collect();
    let unit = alignment(sources).map_or(1, |alignment| alignment.offset);
    let gap = if direction == Direction::Read { GAP_MAX } else { 0 };
    let strip = match opens {
        None => Strip::new(&wanted, unit, gap),
        Some(_) => Strip::in_given_order(&wanted, unit, gap),
    };
    let strip = strip.expect("small files");
    let gate = opens.map(|opens| Gate::new(&strip, &opens.counts()));
    let files = sources
        .iter()
        .map(|source| (Arc::clone(&source.handle), source.drive, source.access.direct));
    let batch = Batch::new(strip, files, on_host);
    Arc::new(match gate {
        Some(gate) => batch.behind(gate),
        None => batch,
    })
}
