//! Queues one GPU's copies and polls for their completion. Only this thread calls the driver for a
//! transfer's copies.
//!
//! All small reads that are posted form one group. It is queued in addition to two groups of other
//! copies, so that neither kind waits long for the other.
//!
//! At most two groups of copies are queued per direction: one runs, the next is ready behind it.
//! Slots that are filled in the meantime form one longer copy, or one batch if they belong to
//! several small transfers. So copies grow when the link is the limit, and bytes leave at once when
//! it would idle. Each direction has its own stream, queue and limit, since the link is full
//! duplex.

#![expect(unsafe_code, reason = "queues copies between slots and the caller's GPU memory")]

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Arena, Cells, SmallRead};
use crate::error::{Error, Operation};
use crate::events;
use crate::gpu::{Device, DeviceCopy, DeviceError, DeviceResult, Event, Stream, is_quiet};
use crate::plan::Direction;
use crate::queue::{Copy, CopyFailure, Core, Crew, Parking, Scatter, now_ns};
use crate::trace::{Recorder, Span, Track, What};
use crate::transfer::Stage;

/// Interval between two polls of a copy: a full slot takes 300 µs. Sleeping this way costs a third
/// less CPU than spinning (measured: 0.123 against 0.165 CPU s per GB).
const NAP: Duration = Duration::from_micros(20);

/// How long last copies are polled without sleeping: the time of three full slots on a fast link.
const WATCH_MAX: Duration = Duration::from_millis(1);

/// How long to nap after the last copy before parking: waking a parked thread on an idle core takes
/// longer than a nap.
const LINGER: Duration = Duration::from_micros(200);

/// Most small reads of a group.
const SMALL_MAX: usize = 512;

/// Copies queued together.
#[derive(Debug)]
struct Group {
    work: Work,
    event: Event,
    since_ns: u64,
}

/// The copies of a group: at least one, and all in one direction.
#[derive(Debug)]
enum Work {
    /// Of the scheduler's windows.
    Windows(Vec<Copy>),
    /// Of small reads.
    Small(Vec<SmallRead>),
}

impl Work {
    fn direction(&self) -> Direction {
        match self {
            Self::Windows(copies) => copies[0].direction,
            Self::Small(_) => Direction::Read,
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Windows(copies) => copies.len(),
            Self::Small(reads) => reads.len(),
        }
    }

    /// Each of its copies alone.
    fn apart(self) -> Vec<Self> {
        match self {
            Self::Windows(all) => all.into_iter().map(|copy| Self::Windows(vec![copy])).collect(),
            Self::Small(all) => all.into_iter().map(|read| Self::Small(vec![read])).collect(),
        }
    }
}

/// A small read whose copy is over.
#[derive(Debug)]
struct SmallDone {
    read: SmallRead,
    queued_ns: u64,
    over_ns: u64,
    failed: Option<CopyFailure>,
}

/// A copy that is over.
#[derive(Debug)]
struct Done {
    copy: Copy,
    /// When its group was queued, and when it was seen to be over.
    queued_ns: u64,
    over_ns: u64,
    /// When this copy ended, estimated by assuming a constant rate within the group: the driver
    /// reports only the group's end.
    end_ns: u64,
    failed: Option<CopyFailure>,
}

/// The queued groups of one direction, which complete in order.
#[derive(Debug)]
struct CopyLane {
    stream: Stream,
    queued: VecDeque<Group>,
    /// When the last completed group was seen to be over; the next cannot have started earlier.
    over_ns: u64,
}

impl CopyLane {
    /// The numbers of queued groups: of windows, and of small reads.
    fn groups(&self) -> (usize, usize) {
        let is_small = |group: &&Group| matches!(group.work, Work::Small(_));
        let small = self.queued.iter().filter(is_small).count();
        (self.queued.len() - small, small)
    }
}

/// Queues one GPU's copies and polls for their completion.
#[derive(Debug)]
pub(crate) struct Submitter {
    link: usize,
    device: Arc<dyn Device>,
    /// One for each [`Direction`]: the link is full duplex.
    lanes: [CopyLane; 2],
    spare: Vec<Event>,
    /// Empty lists of completed groups, for reuse.
    lists: Vec<Vec<Copy>>,
    done: Vec<Done>,
    small_done: Vec<SmallDone>,
    track: Track,
    /// The slots' memory; never freed once a copy may not be over.
    arena: Option<Arc<Arena>>,
    /// The GPU's small reads.
    cells: Option<Arc<Cells>>,
    /// Whether the loss of the GPU has been emitted as an event.
    has_reported_loss: bool,
    /// Whether the scheduler counts this thread as parked.
    parked: bool,
}

/// How the thread waits after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pause {
    /// A copy is in flight: poll again after a nap.
    Nap,
    /// The last copies of all reads are in flight, or a short transfer waits behind a long one:
    /// poll again at once. A nap of 20 µs ended up to 600 µs late on virtual machines.
    Watch,
    /// Nothing is queued: wait until a slot is filled.
    Wait,
    /// The engine is shutting down and nothing is left.
    Stop,
}

impl Submitter {
    pub(crate) fn new(link: usize, device: Arc<dyn Device>) -> DeviceResult<Self> {
        let lane = || {
            let stream = device.create_stream()?;
            Ok(CopyLane { stream, queued: VecDeque::new(), over_ns: 0 })
        };
        let lanes = [lane()?, lane()?];
        Ok(Self {
            link,
            device,
            lanes,
            spare: Vec::new(),
            lists: Vec::new(),
            done: Vec::new(),
            small_done: Vec::new(),
            track: Track::default(),
            arena: None,
            cells: None,
            has_reported_loss: false,
            parked: false,
        })
    }

    /// Sets the link's number, the arena of its slots, and its small reads.
    pub(crate) fn serving(mut self, link: usize, arena: Arc<Arena>, cells: Arc<Cells>) -> Self {
        (self.link, self.arena, self.cells) = (link, Some(arena), Some(cells));
        self
    }

    /// Whether copies are queued.
    pub(crate) fn is_copying(&self) -> bool {
        self.lanes.iter().any(|lane| !lane.queued.is_empty())
    }

    /// Completes finished copies and queues those that are worth it now. If the thread `lingers`,
    /// it naps instead of parking.
    pub(crate) fn step(&mut self, core: &Core, lingers: bool) -> Pause {
        self.look();
        self.record(core.recorder());
        loop {
            self.queue_small();
            let now = now_ns();
            let link = self.link;
            let [(inward, small), (outward, _)] = self.lanes.each_ref().map(CopyLane::groups);
            let idle = inward + small + outward == 0;
            let cells = self.cells.as_deref();
            let crew = Crew::Link(link);
            let mut group = self.lists.pop().unwrap_or_default();
            let (soon, ended) = core.with(|scheduler| {
                if std::mem::take(&mut self.parked) {
                    scheduler.resumes(crew);
                }
                scheduler.set_time(now);
                for Done { copy, queued_ns, over_ns, failed, .. } in self.done.drain(..) {
                    scheduler.copied(link, &copy, over_ns.saturating_sub(queued_ns), failed);
                }
                scheduler.next_copies(link, (inward, outward), &mut group);
                let ended = scheduler.has_ended();
                let naps = lingers && scheduler.fills_soon(link);
                let waits = group.is_empty() && idle && !ended && !naps;
                if waits && cells.is_none_or(Cells::parks) {
                    scheduler.parks(crew);
                    self.parked = true;
                }
                (!idle && scheduler.is_waited_for(link), ended)
            });
            if !group.is_empty() {
                self.queue(Work::Windows(group));
                continue;
            }
            self.lists.push(group);
            self.end_small(core);
            let is_busy = self.cells.as_deref().is_some_and(|cells| cells.queued_len() > 0);
            let age = |last: &Group| u128::from(now_ns().saturating_sub(last.since_ns));
            let is_fresh = |lane: &CopyLane| {
                lane.queued.back().is_some_and(|last| age(last) < WATCH_MAX.as_nanos())
            };
            return match () {
                () if ended && !is_busy => Pause::Stop,
                () if self.parked => Pause::Wait,
                // The last copy was queued so recently that it may end soon.
                () if (soon || is_busy) && self.lanes.iter().any(is_fresh) => Pause::Watch,
                () => Pause::Nap,
            };
        }
    }

    /// Removes completed and failed groups from their queues.
    fn look(&mut self) {
        for direction in [Direction::Read, Direction::Write] {
            while let Some(event) =
                self.lanes[direction as usize].queued.front().map(|first| first.event)
            {
                let failed = match self.device.is_done(event) {
                    Ok(false) => break,
                    Ok(true) => None,
                    Err(source) => Some(source),
                };
                let first =
                    self.lanes[direction as usize].queued.pop_front().expect("it is the first");
                self.spare.push(event);
                self.end(first.work, Some(first.since_ns), failed.as_ref());
            }
        }
    }

    /// Queues the small reads that are posted: one group while others are queued, else two.
    fn queue_small(&mut self) {
        let Some(cells) = &self.cells else { return };
        let (windows, small) = self.lanes[Direction::Read as usize].groups();
        if small > usize::from(windows == 0) {
            return;
        }
        let reads = cells.ready(SMALL_MAX);
        if !reads.is_empty() {
            self.queue(Work::Small(reads));
        }
    }

    /// Ends the transfers of small reads that are over, whose cells are free by then.
    fn end_small(&mut self, core: &Core) {
        let Some(cells) = self.cells.clone().filter(|_| !self.small_done.is_empty()) else {
            return;
        };
        let is_free =
            |done: &SmallDone| done.failed.as_ref().is_none_or(|failed| failed.lost.is_none());
        cells.over(self.small_done.iter().map(|done| (&done.read, is_free(done))));
        for SmallDone { read, queued_ns, over_ns, failed } in self.small_done.drain(..) {
            let SmallRead { len, way: (route, reason), state, .. } = read;
            let result = match failed {
                None => {
                    let bytes = (state.requested().start, len);
                    let what = What::Small { name: Direction::Read.name(), bytes };
                    core.recorder().note_small(|| Span {
                        start_ns: queued_ns,
                        end_ns: over_ns,
                        what,
                    });
                    state.add_time(Stage::Copy, over_ns.saturating_sub(queued_ns));
                    state.add_bytes(route, reason, len);
                    state.add_done(len);
                    Ok(len)
                }
                Some(CopyFailure { mut error, lost }) => {
                    lost.iter().for_each(|(_, source)| state.lose_memory(source));
                    if let Error::Device { place, .. } | Error::CopyNotOver { place, .. } =
                        &mut error
                    {
                        *place = state.place().map(Box::new);
                    }
                    Err(error)
                }
            };
            core.end(state, result);
        }
    }

    /// Records a group's result. If a group of several fails, each copy is repeated alone, so that
    /// an invalid target fails only its own transfer.
    fn end(&mut self, work: Work, since_ns: Option<u64>, failed: Option<&DeviceError>) {
        if let Some(source) = failed
            && work.len() > 1
            && !source.is_loss()
            && self.settle()
        {
            return work.apart().into_iter().for_each(|work| self.queue(work));
        }
        let over_ns = now_ns();
        let queued_ns = since_ns.unwrap_or(over_ns);
        let lane = &mut self.lanes[work.direction() as usize];
        let last_ns = std::mem::replace(&mut lane.over_ns, over_ns);
        let mut copies = match work {
            Work::Windows(copies) => copies,
            Work::Small(reads) => {
                for read in reads {
                    let failed = failed.map(|source| self.failure(read.len, source.clone()));
                    self.small_done.push(SmallDone { read, queued_ns, over_ns, failed });
                }
                return;
            }
        };
        let all = copies.iter().map(|copy| copy.run.range.len()).sum::<u64>().max(1);
        let ran = u128::from(over_ns.saturating_sub(queued_ns.max(last_ns)));
        let mut left = all;
        for copy in copies.drain(..) {
            left = left.saturating_sub(copy.run.range.len());
            let early = ran * u128::from(left) / u128::from(all);
            let end_ns = over_ns - u64::try_from(early).unwrap_or(0);
            let len = copy.run.range.len();
            let failed = failed.map(|source| self.failure(len, source.clone()));
            self.done.push(Done { copy, queued_ns, over_ns, end_ns, failed });
        }
        self.lists.push(copies);
    }

    /// Records trace spans of completed copies.
    fn record(&mut self, to: &Recorder) {
        if !to.is_on() || self.done.is_empty() {
            return;
        }
        let link = self.link;
        let span = |&Done { ref copy, queued_ns, end_ns, .. }: &Done| {
            let bytes = copy.run.range;
            let name = match copy.direction {
                Direction::Read => "to the GPU",
                Direction::Write => "from the GPU",
            };
            let (bytes, address) = ((bytes.start, bytes.len()), copy.host);
            Span { start_ns: queued_ns, end_ns, what: What::Copy { link, name, bytes, address } }
        };
        self.track.push(to, false, self.done.iter().map(span));
    }

    /// Waits until the device touches no slot any more; false if the device cannot confirm it.
    fn settle(&self) -> bool {
        self.lanes.iter().all(|lane| is_quiet(&*self.device, lane.stream))
    }

    /// The failure to report for a copy. Memory of a copy that may still run is never freed.
    fn failure(&mut self, len: u64, source: DeviceError) -> CopyFailure {
        let device = self.device.id();
        if source.is_loss() && !std::mem::replace(&mut self.has_reported_loss, true) {
            events::gpu_lost(device, &source);
        }
        let place = None; // added when the transfer ends
        if self.settle() {
            let error = Error::of_device(Operation::Copy, device, len, source);
            return CopyFailure { error, lost: None };
        }
        events::copy_not_over(device, &source);
        std::mem::forget((self.arena.clone(), self.cells.clone()));
        let lost = Some((device, source.clone()));
        CopyFailure { error: Error::CopyNotOver { device, len, place, source }, lost }
    }

    fn queue(&mut self, work: Work) {
        match self.start(&work) {
            Ok(event) => {
                let lane = &mut self.lanes[work.direction() as usize];
                lane.queued.push_back(Group { work, event, since_ns: now_ns() });
            }
            // The copies may be queued even though recording their event failed.
            Err(source) => self.end(work, None, Some(&source)),
        }
    }

    /// Queues the copies of a group, and an event behind them. For a batch transfer each range is
    /// copied to or from its own GPU address.
    fn start(&mut self, work: &Work) -> DeviceResult<Event> {
        let event = match self.spare.pop() {
            Some(event) => event,
            None => self.device.create_event()?,
        };
        let device_copy = |host: u64, device, len: u64| DeviceCopy {
            host: NonNull::new(host as *mut u8).expect("a slot is never at address zero"),
            device,
            len: usize::try_from(len).expect("a slot fits memory"),
        };
        let mut copies = Vec::with_capacity(work.len());
        match work {
            Work::Small(reads) => copies.extend(reads.iter().map(|read| DeviceCopy {
                host: read.cell.pointer(),
                device: read.device,
                len: usize::try_from(read.len).expect("a cell fits memory"),
            })),
            Work::Windows(group) => {
                for copy in group {
                    let range = copy.run.range;
                    match &copy.batch {
                        None => copies.push(device_copy(copy.host, copy.device, range.len())),
                        Some(batch) => {
                            copies.extend(batch.scattered(range, copy.host).into_iter().map(
                                |Scatter { host, address, len }| device_copy(host, address, len),
                            ))
                        }
                    }
                }
            }
        }
        let direction = work.direction();
        let stream = self.lanes[direction as usize].stream;
        // SAFETY: the windows own the slots, small reads own cells, and the transfers keep the GPU
        // memory, until the copies are handed back. That happens only after the event.
        let queued = unsafe {
            match (direction, copies.as_slice()) {
                (Direction::Read, &[DeviceCopy { host, device, len }]) => {
                    self.device.copy_to_device(stream, device, host, len)
                }
                (Direction::Write, &[DeviceCopy { host, device, len }]) => {
                    self.device.copy_to_host(stream, host, device, len)
                }
                (Direction::Read, several) => self.device.copy_batch_to_device(stream, several),
                (Direction::Write, several) => self.device.copy_batch_to_host(stream, several),
            }
        };
        match queued.and_then(|()| self.device.record(event, stream)) {
            Ok(()) => Ok(event),
            Err(error) => {
                self.spare.push(event);
                Err(error)
            }
        }
    }

    /// Repeats the step until the engine ends. During copies it calls `look` with the time.
    pub(crate) fn run(mut self, core: &Core, parking: &Parking, look: impl Fn(Instant)) {
        // Otherwise the kernel may delay each nap by 50 µs.
        rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1)).unwrap_or(());
        let mut active = Instant::now();
        core.guard(|| {
            loop {
                if self.is_copying() {
                    active = Instant::now();
                    look(active);
                }
                match self.step(core, active.elapsed() < LINGER) {
                    Pause::Watch => std::thread::yield_now(),
                    Pause::Nap => std::thread::sleep(NAP),
                    Pause::Wait => {
                        parking.park();
                        active = Instant::now();
                    }
                    Pause::Stop => return,
                }
            }
        });
    }
}

impl Drop for Submitter {
    fn drop(&mut self) {
        if !self.settle() {
            return; // events and streams of copies that may still run are leaked
        }
        let queued = self.lanes.iter().flat_map(|lane| &lane.queued);
        for event in queued.map(|queued| queued.event).chain(self.spare.iter().copied()) {
            let destroyed = self.device.destroy_event(event);
            drop(destroyed);
        }
        for lane in &self.lanes {
            let destroyed = self.device.destroy_stream(lane.stream);
            drop(destroyed);
        }
    }
}
