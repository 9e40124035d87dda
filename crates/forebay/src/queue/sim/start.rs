//! Starts a simulated transfer: the engine's work between a caller's call and the scheduler, driven
//! by the seed.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use forebay_base::units::{ByteRange, align_down};

use super::device::FaultyDevice;
use super::direct::DirectPart;
use super::job::{Caller, Job, Piece, UNTOUCHED, note_races};
use super::many;
use super::memory::{GUARD, Memory};
use super::shape::Shape;
use super::world::{Contents, World, below, noise};
use crate::gpu::Device;
use crate::gpu::sim::Dice;
use crate::memory::HostMemory;
use crate::options::Priority;
use crate::plan::{Access, Direction, Reason, Split, split_write};
use crate::queue::{Claim, Core, Plan, Planner, Request, Slot, Tools};
use crate::transfer::{State, SyncMode};

pub(super) const PAGE: u64 = 4096;

/// Plans with random residency, and makes slots or fails to.
pub(super) struct SimTools {
    pub(super) world: Rc<RefCell<World>>,
    pub(super) planner: Planner,
    pub(super) slot_size: u64,
    pub(super) devices: Vec<Arc<FaultyDevice>>,
    /// The slots' memory.
    pub(super) arena: RefCell<Vec<HostMemory>>,
}

impl SimTools {
    /// Makes `count` slots for a link; none if the GPU refuses to pin their memory.
    pub(super) fn make(&self, link: usize, count: usize) -> Vec<Slot> {
        let slot = usize::try_from(self.slot_size).expect("a small slot");
        let mut memory = HostMemory::map(slot * count).expect("a little memory");
        let device: Arc<dyn Device> = Arc::clone(&self.devices[link]) as _;
        if memory.register(&device).is_err() {
            return Vec::new();
        }
        let first = memory.address();
        self.arena.borrow_mut().push(memory);
        (0..count as u64)
            .map(|index| Slot::whole(first + index * self.slot_size, self.slot_size))
            .collect()
    }
}

impl Tools for SimTools {
    fn plan(&self, claim: &Claim) -> Plan {
        let world = &self.world;
        let split = |claim: &Claim| residency(&mut world.borrow_mut(), claim.range);
        self.planner.cut(claim, split, |_, _| world.borrow_mut().dice.roll(0.5))
    }

    fn grow(&self, link: usize) -> Vec<Slot> {
        self.make(link, 1)
    }
}

/// Random page cache residency of `range`.
fn residency(world: &mut World, range: ByteRange) -> Split {
    let dice = &mut world.dice;
    match below(dice, 4) {
        0 => Split::Buffered(Reason::TriedResident),
        1 => Split::ODirect(Reason::TriedNotResident),
        _ => {
            let mut runs = Vec::new();
            let mut at = align_down(range.start, PAGE) + PAGE * below(dice, 3);
            while at < range.end {
                let run = ByteRange::at(at, PAGE * (1 + below(dice, 6)));
                at = run.end + PAGE * (1 + below(dice, 6));
                let run = run.intersect(range);
                if !run.is_empty() {
                    runs.push(run);
                }
            }
            Split::Resident(runs)
        }
    }
}

/// A randomly chosen transfer.
pub(super) struct Wish {
    pub(super) file: usize,
    direction: Direction,
    pub(super) range: ByteRange,
    /// Where a read reaches the end of the file; otherwise the range's end.
    pub(super) end: u64,
    pub(super) link: Option<usize>,
    access: Access,
    cold: bool,
    exact: bool,
    sync: SyncMode,
    priority: Priority,
    blocking: bool,
    skew: u64,
}

/// Chooses a transfer; `None` if its write would overlap another.
fn wish(world: &mut World, shape: &Shape, jobs: &[Job]) -> Option<Wish> {
    let World { dice, files, .. } = world;
    let slot = shape.limits.slot_size;
    let index = usize::try_from(below(dice, files.len() as u64)).ok()?;
    let file = &files[index];
    let size = file.bytes.len() as u64;
    let writes = !file.shrinks && dice.roll(shape.writes);
    let direction = if writes { Direction::Write } else { Direction::Read };
    let len_max = [16, PAGE, shape.segment, slot, 3 * slot, 5 * slot];
    let len_max = len_max[usize::try_from(below(dice, 6)).ok()?];
    let len = below(dice, len_max + 1);
    let most = if writes { size + slot } else { size + PAGE };
    let mut start = below(dice, most + 1);
    if dice.roll(0.3) {
        start = align_down(start, PAGE);
    }
    let range = ByteRange::at(start, len);
    let this = Piece::new(index, range, Vec::new(), size);
    let meets = |job: &&Job| job.pieces.iter().any(|piece| piece.meets(&this));
    if writes && jobs.iter().filter(meets).any(|job| job.direction == Direction::Write) {
        return None;
    }
    let link = (shape.gpus > 0 && dice.roll(shape.on_gpu))
        .then(|| usize::try_from(below(dice, shape.gpus as u64)).expect("few GPUs"));
    let access = access(dice, shape, file, writes);
    let sync = sync(dice);
    Some(Wish {
        file: index,
        direction,
        range,
        end: if writes { range.end } else { size.clamp(range.start, range.end) },
        link,
        access,
        // The guess may be wrong: the page cache can change between the query and the plan.
        cold: !writes && dice.roll(0.5),
        exact: !writes && dice.roll(0.3),
        sync,
        priority: if dice.roll(0.3) { Priority::Urgent } else { Priority::Normal },
        blocking: dice.roll(shape.blocking),
        skew: if dice.roll(0.5) { 0 } else { below(dice, PAGE) },
    })
}

/// A random sync mode for a write.
pub(super) fn sync(dice: &mut Dice) -> SyncMode {
    match below(dice, 4) {
        0 => SyncMode::Data,
        1 => SyncMode::All,
        _ => SyncMode::None,
    }
}

/// Whether a file is accessed with O_DIRECT, and why.
pub(super) fn access(dice: &mut Dice, shape: &Shape, file: &Contents, writes: bool) -> Access {
    match file.alignment {
        Some(alignment) if dice.roll(shape.direct) => {
            let reason = match writes {
                _ if dice.roll(0.2) => Reason::Required,
                true => Reason::WritePastCache,
                false => Reason::NotResident,
            };
            Access::o_direct(alignment, reason)
        }
        _ => Access::cached(Reason::NoDirectIo),
    }
}

/// Starts a random transfer.
pub(super) fn start(core: &Core, tools: &SimTools, shape: &Shape, jobs: &mut [Job]) -> Option<Job> {
    if tools.world.borrow_mut().dice.roll(shape.many) {
        return many::start(core, tools, shape, jobs);
    }
    let wish = wish(&mut tools.world.borrow_mut(), shape, jobs)?;
    let (mut piece, handle, direct) = {
        let world = &mut *tools.world.borrow_mut();
        let World { dice, files, .. } = world;
        let file = &files[wish.file];
        let bytes = match wish.direction {
            Direction::Write => noise(dice, wish.range.len()),
            Direction::Read => file.part(wish.range).to_vec(),
        };
        let handle = Arc::clone(&file.handles[usize::from(dice.roll(0.5))]);
        let piece = Piece::new(wish.file, wish.range, bytes, file.bytes.len() as u64);
        let direct = DirectPart::of(world, shape, &wish, &handle);
        (piece, handle, direct)
    };
    note_races(jobs, wish.direction, std::slice::from_mut(&mut piece));
    let device = wish.link.map(|link| &tools.devices[link]);
    let skew = direct.as_ref().map_or(wish.skew, |it| it.skew(wish.range, GUARD as u64));
    let skew = usize::try_from(skew).expect("below a unit");
    let memory = match wish.direction {
        Direction::Write => Memory::new(&piece.bytes, skew, device)?,
        Direction::Read => {
            let len = usize::try_from(wish.range.len()).expect("a small transfer");
            Memory::new(&vec![UNTOUCHED; len], skew, device)?
        }
    };
    let state = Arc::new(State::new(
        Instant::now(),
        Arc::clone(&handle),
        wish.range,
        Vec::new(),
        Vec::new(),
    ));
    let mut request = request(&wish, &state, &memory, shape);
    if let Some(direct) = &direct {
        direct.send(&mut request);
    }
    let drives = drives(&request);
    let caller = begin(core, request);
    Some(Job {
        state,
        pieces: vec![piece],
        batch: None,
        opens: None,
        direction: wish.direction,
        drives,
        memory,
        on_gpu: wish.link.is_some(),
        direct,
        exact: wish.exact,
        caller,
        blocking: wish.blocking,
        cancelled: false,
        error: None,
    })
}

/// The drives that a request may wait for.
pub(super) fn drives(request: &Request) -> Vec<usize> {
    let others = request.shares.iter().map(|share| share.drive);
    std::iter::once(request.drive).chain(others).collect()
}

/// Hands a request to the scheduler; returns the caller's next action.
pub(super) fn begin(core: &Core, request: Request) -> Caller {
    let state = Arc::clone(&request.state);
    let claim = core.with(|scheduler| {
        let (key, claim) = scheduler.start(request);
        state.set_key(key);
        claim
    });
    claim.map_or(Caller::Waits, Caller::Plan)
}

fn request(wish: &Wish, state: &Arc<State>, memory: &Memory, shape: &Shape) -> Request {
    let drive = wish.file % shape.drives.len();
    let parts = match wish.direction {
        Direction::Read => {
            let wanted = ByteRange { start: wish.range.start, end: wish.end };
            let part = (wanted, wish.access.io(), wish.access.reason);
            (!wanted.is_empty()).then_some(part).into_iter().collect()
        }
        Direction::Write => {
            split_write(wish.range, wish.access.direct, PAGE, wish.access.reason).into()
        }
    };
    Request {
        state: Arc::clone(state),
        file: state.file(),
        batch: None,
        direction: wish.direction,
        range: wish.range,
        end: wish.end,
        is_sized: true,
        address: memory.address(),
        link: wish.link,
        direct: None,
        drive,
        parts,
        shares: Vec::new(),
        alignment: wish.access.direct,
        cold: wish.cold,
        exact: wish.exact,
        sync: wish.sync,
        priority: wish.priority,
    }
}
