//! Queues a GPU's copies and polls for their completion. Only this thread calls the driver for a
//! transfer's copies.
//!
//! All posted small reads form a group. It is queued in addition to two groups of other copies, so
//! that neither kind waits long for the other.
//!
//! At most two groups of copies are queued per direction: one runs, the next is ready behind it.
//! Slots that are filled in the meantime form a single longer copy, or a batch if they belong to
//! several small transfers. So copies grow when the link is the limit, and bytes are sent
//! immediately when it would idle. Directions use separate streams, queues and limits, since the
//! link is full duplex.
//!
//! Groups of small pieces use separate streams, where a kernel may copy them. It cannot begin while
//! kernels of the process occupy the whole GPU. Then the group is withdrawn and copied.

#![expect(unsafe_code, reason = "queues copies between slots and the caller's GPU memory")]

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::{Arena, Cells, SmallRead};
use crate::error::{Error, Operation};
use crate::events;
use crate::gpu::{Device, DeviceCopy, DeviceError, DeviceResult, Event, Signal, Stream, is_quiet};
use crate::memory::{HostMemory, Purpose};
use crate::plan::Direction;
use crate::queue::{Copy, CopyFailure, Core, Workers, now_ns};
use crate::trace::{Recorder, Span, Track, What};
use crate::transfer::{Over, Scatter};

/// Interval between two polls of a copy: a full slot takes 300 µs. Sleeping this way costs a third
/// less CPU than spinning (measured: 0.123 against 0.165 CPU s per GB).
const NAP: Duration = Duration::from_micros(20);

/// How long last copies are polled without sleeping: the time of three full slots on a fast link.
pub(crate) const WATCH_MAX: Duration = Duration::from_millis(1);

/// How long to nap after the last copy before parking: waking a parked thread on an idle core is
/// slower than a nap.
const LINGER: Duration = Duration::from_micros(200);

/// Most small reads of a group.
const SMALL_MAX: usize = 512;

/// Copies of less than this mean length are made by a kernel, if there are so many.
const KERNEL_LEN: usize = 64 << 10;
const KERNEL_MIN: usize = 4;
/// The same for small reads of exactly that length.
const KERNEL_MIN_LONG: usize = 8;
/// Numbers of longer small reads that a kernel copies, and their bytes at most. The driver copies
/// more of them faster.
const KERNEL_FEW: std::ops::Range<usize> = 2..32;
const KERNEL_FEW_LEN: usize = 16 << 20;

/// Time after which a kernel that did not begin is withdrawn, and how long copies replace it then.
const LATE_NS: u64 = 1_000_000;
const REST_NS: u64 = 100_000_000;
/// Time after which the numbers of kernels are pinned again if that failed.
const PIN_AGAIN_NS: u64 = 10_000_000_000;

/// The lanes of groups that a kernel may copy; a single group per lane. The first lanes are those
/// of a [`Direction`].
const GATHER: std::ops::Range<usize> = 2..4;

/// Copies queued together.
#[derive(Debug)]
struct Group {
    work: Work,
    /// Its bytes.
    len: u64,
    event: Event,
    since_ns: u64,
    /// The number of a kernel that may not have begun.
    kernel: Option<u32>,
}

/// The copies of a group: at least 1, and all in the same direction.
#[derive(Debug)]
enum Work {
    /// Of the scheduler's windows.
    Windows(Vec<Copy>),
    /// Of small reads.
    Small(Vec<SmallRead>),
    /// Of a kernel that was withdrawn: none.
    Withdrawn,
}

impl Work {
    fn direction(&self) -> Direction {
        match self {
            Self::Windows(copies) => copies[0].direction,
            Self::Small(_) | Self::Withdrawn => Direction::Read,
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Windows(copies) => copies.len(),
            Self::Small(reads) => reads.len(),
            Self::Withdrawn => 0,
        }
    }

    /// Its copies. The ranges of a batch transfer have separate GPU addresses.
    fn copies(&self) -> Vec<DeviceCopy> {
        let copy = |host: u64, device, len: u64| DeviceCopy {
            host: NonNull::new(host as *mut u8).expect("memory is never at address zero"),
            device,
            len: usize::try_from(len).expect("a slot or a cell fits memory"),
        };
        match self {
            Self::Withdrawn => Vec::new(),
            Self::Small(reads) => reads
                .iter()
                .map(|SmallRead { cell, device, len, .. }| copy(cell.address(), *device, *len))
                .collect(),
            Self::Windows(group) => {
                let mut copies = Vec::with_capacity(group.len());
                for Copy { run, batch, host, device, .. } in group {
                    match batch {
                        None => copies.push(copy(*host, *device, run.range.len())),
                        Some(batch) => copies.extend(
                            batch
                                .scattered(run.range, *host)
                                .into_iter()
                                .map(|Scatter { host, address, len }| copy(host, address, len)),
                        ),
                    }
                }
                copies
            }
        }
    }

    /// Its copies, alone.
    fn apart(self) -> Vec<Self> {
        match self {
            Self::Windows(all) => all.into_iter().map(|copy| Self::Windows(vec![copy])).collect(),
            Self::Small(all) => all.into_iter().map(|read| Self::Small(vec![read])).collect(),
            Self::Withdrawn => Vec::new(),
        }
    }
}

/// A copy that is over, of a window or of a small read.
#[derive(Debug)]
struct Done<T> {
    copy: T,
    /// When its group was queued, and when it was seen to be over.
    queued_ns: u64,
    over_ns: u64,
    /// When this copy ended, estimated by assuming a constant rate within the group: the driver
    /// reports only the group's end.
    end_ns: u64,
    failed: Option<CopyFailure>,
}

/// The queued groups of a stream, which complete in order.
#[derive(Debug)]
struct CopyLane {
    stream: Stream,
    queued: VecDeque<Group>,
    /// When the last completed group was seen to be over; the next cannot have started earlier.
    over_ns: u64,
}

impl CopyLane {
    /// Whether its stream waits behind a kernel that copies nothing.
    fn is_stuck(&self) -> bool {
        self.queued.iter().any(|group| matches!(group.work, Work::Withdrawn))
    }
}

/// Queues a GPU's copies and polls for their completion.
#[derive(Debug)]
pub(crate) struct Submitter {
    link: usize,
    device: Arc<dyn Device>,
    /// A lane per [`Direction`], since the link is full duplex, and those of [`GATHER`].
    lanes: [CopyLane; 4],
    /// Two numbers per lane, by which its kernel is withdrawn; `None` if there are no kernels.
    signals: Option<HostMemory>,
    /// The number of the last kernel.
    kernels: u32,
    /// No kernel is queued before this time.
    rests_until_ns: u64,
    spare: Vec<Event>,
    done: Vec<Done<Copy>>,
    small_done: Vec<Done<SmallRead>>,
    track: Track,
    /// The slots' memory; never freed once a copy may not be over.
    arena: Option<Arc<Arena>>,
    /// The GPU's small reads, and which of their lists is the first next.
    cells: Arc<Cells>,
    turn: usize,
    /// Whether the loss of the GPU was emitted as an event.
    has_reported_loss: bool,
    /// Whether the scheduler counts this thread as parked. It does so while only small reads are
    /// queued, and wakes it before there are other copies for it.
    parked: bool,
    /// Whether the thread itself parks, and so was woken at the next step.
    waits: bool,
}

/// How the thread waits after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pause {
    /// A copy is in flight: poll again after a nap.
    Nap,
    /// The last copies are queued, few bytes remain, or a short transfer waits behind a long one:
    /// poll again immediately. A nap of 20 µs ended up to 600 µs late on virtual machines.
    Watch,
    /// Nothing is queued: wait until a slot is filled.
    Wait,
    /// The engine is shutting down and nothing remains.
    Stop,
}

impl Submitter {
    pub(crate) fn new(
        link: usize,
        device: Arc<dyn Device>,
        cells: Arc<Cells>,
    ) -> DeviceResult<Self> {
        let lane = |stream| CopyLane { stream, queued: VecDeque::new(), over_ns: 0 };
        let lanes = [
            lane(device.create_stream()?),
            lane(device.create_stream()?),
            lane(device.create_urgent_stream()?),
            lane(device.create_urgent_stream()?),
        ];
        Ok(Self {
            link,
            device,
            lanes,
            signals: None,
            kernels: 0,
            rests_until_ns: 0,
            spare: Vec::new(),
            done: Vec::new(),
            small_done: Vec::new(),
            track: Track::default(),
            arena: None,
            cells,
            turn: 0,
            has_reported_loss: false,
            parked: false,
            waits: false,
        })
    }

    /// Sets the link's number and the arena of its slots.
    pub(crate) fn serving(mut self, link: usize, arena: Arc<Arena>) -> Self {
        (self.link, self.arena) = (link, Some(arena));
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
        let (mut soon, mut ended, mut naps, mut is_ending) = (false, false, lingers, false);
        let small = loop {
            self.queue_small();
            let (inward, small, outward) = self.groups();
            let is_woken = std::mem::take(&mut self.waits) || self.cells.bell.take_pending();
            if self.parked && !is_woken {
                break small;
            }
            let (now, link, workers) = (now_ns(), self.link, Workers::Link(self.link));
            let mut group = Vec::new();
            core.with(|scheduler| {
                if std::mem::take(&mut self.parked) {
                    scheduler.resumes(workers);
                }
                scheduler.set_time(now);
                for Done { copy, queued_ns, over_ns, failed, .. } in self.done.drain(..) {
                    scheduler.copied(link, &copy, over_ns.saturating_sub(queued_ns), failed);
                }
                scheduler.next_copies(link, (inward, outward), &mut group);
                ended = scheduler.has_ended();
                naps = lingers && scheduler.fills_soon(link);
                let is_idle = group.is_empty() && inward + outward == 0;
                if is_idle && !ended && (small > 0 || !naps) {
                    scheduler.parks(workers);
                    self.parked = true;
                }
                soon = inward + small + outward > 0 && scheduler.is_waited_for(link);
                is_ending = scheduler.is_ending(link);
            });
            if group.is_empty() {
                break small;
            }
            self.queue(Work::Windows(group));
        };
        self.end_small(core);
        let is_busy = small > 0 || !self.cells.is_empty();
        let age = |last: &Group| u128::from(now_ns().saturating_sub(last.since_ns));
        let is_fresh = |lane: &CopyLane| {
            lane.queued.back().is_some_and(|last| age(last) < WATCH_MAX.as_nanos())
        };
        self.waits = self.parked && !is_busy && !naps && self.cells.parks();
        match () {
            () if ended && !is_busy => Pause::Stop,
            () if self.waits => Pause::Wait,
            () if is_ending && !self.is_copying() => Pause::Watch,
            // The last copy was queued so recently that it may end soon.
            () if (soon || is_busy || is_ending) && self.lanes.iter().any(is_fresh) => Pause::Watch,
            () => Pause::Nap,
        }
    }

    /// The numbers of queued groups: of windows to the GPU, of small reads, and of windows from it.
    fn groups(&self) -> (usize, usize, usize) {
        let (mut inward, mut small) = (0, 0);
        let [read, write, gather @ ..] = &self.lanes;
        for group in std::iter::once(read).chain(gather).flat_map(|lane| &lane.queued) {
            match group.work {
                Work::Windows(_) => inward += 1,
                Work::Small(_) => small += 1,
                Work::Withdrawn => {}
            }
        }
        (inward, small, write.queued.len())
    }

    /// Removes completed and failed groups from their queues.
    fn look(&mut self) {
        for lane in 0..self.lanes.len() {
            while let Some(event) = self.lanes[lane].queued.front().map(|first| first.event) {
                let failed = match self.device.is_done(event) {
                    Ok(false) => {
                        self.withdraw(lane, LATE_NS);
                        break;
                    }
                    Ok(true) => None,
                    Err(source) => Some(source),
                };
                let first = self.lanes[lane].queued.pop_front().expect("it is the first");
                self.cells.queued_len.fetch_sub(first.len, Ordering::Relaxed);
                self.spare.push(event);
                if failed.is_none() && self.may_have_skipped(lane, first.kernel) {
                    self.rests_until_ns = now_ns() + REST_NS;
                    self.queue(first.work);
                    continue;
                }
                self.end(lane, first.work, Some(first.since_ns), failed.as_ref());
            }
        }
    }

    /// Whether a kernel began while it was being withdrawn: parts of it may have copied nothing.
    fn may_have_skipped(&self, lane: usize, kernel: Option<u32>) -> bool {
        let withdrawn = self.signals(lane).map(|[_, withdrawn]| withdrawn.load(Ordering::SeqCst));
        kernel.is_some() && withdrawn == kernel
    }

    /// Withdraws the first kernel of a lane if it was queued so long ago and did not begin. Its
    /// group is copied.
    fn withdraw(&mut self, lane: usize, after_ns: u64) {
        let Some([begun, withdrawn]) = self.signals(lane) else { return };
        let now = now_ns();
        let is_late = |group: &Group| {
            now.saturating_sub(group.since_ns) >= after_ns
                && group.kernel.is_some_and(|number| {
                    let has_begun = || begun.load(Ordering::SeqCst) == number;
                    // Blocks that begin from here on copy nothing. The kernel writes a number and
                    // reads the other, and this thread reversed.
                    let withdraw = || withdrawn.store(number, Ordering::SeqCst);
                    !has_begun() && {
                        withdraw();
                        !has_begun()
                    }
                })
        };
        if !self.lanes[lane].queued.front().is_some_and(is_late) {
            return;
        }
        self.rests_until_ns = now + REST_NS;
        let group = self.lanes[lane].queued.front_mut().expect("it is late");
        group.kernel = None;
        self.cells.queued_len.fetch_sub(std::mem::take(&mut group.len), Ordering::Relaxed);
        let work = std::mem::replace(&mut group.work, Work::Withdrawn);
        self.queue(work);
    }

    /// The numbers by which kernels of a lane say that they begin, and are withdrawn.
    fn signals(&self, lane: usize) -> Option<&[AtomicU32; 2]> {
        let signals = self.signals.as_ref()?.pointer().cast::<[AtomicU32; 2]>();
        // SAFETY: the memory holds as many numbers per lane. Only this thread and the GPU use them,
        // both atomically.
        Some(unsafe { signals.add(lane).as_ref() })
    }

    /// Queues the small reads that are posted: a single group while other groups are queued, else
    /// two.
    fn queue_small(&mut self) {
        let (inward, small, _) = self.groups();
        if small > usize::from(inward == 0) || self.cells.is_empty() {
            return;
        }
        let mut reads = Vec::new();
        self.turn = self.turn.wrapping_add(1);
        self.cells.ready(&mut reads, SMALL_MAX, self.turn);
        if !reads.is_empty() {
            self.queue(Work::Small(reads)); // there is none if the engine has failed
        }
    }

    /// Ends the transfers of small reads that are over, whose cells are free by then.
    fn end_small(&mut self, core: &Core) {
        for Done { copy: read, queued_ns, over_ns, failed, .. } in self.small_done.drain(..) {
            let is_free = failed.as_ref().is_none_or(|failed| failed.lost.is_none());
            self.cells.over(&read, is_free);
            let SmallRead { len, way, state, .. } = read;
            let result = match failed {
                None => {
                    core.recorder().note_small(|| {
                        let bytes = (state.requested().start, len);
                        let what = What::Small { name: Direction::Read.name(), bytes };
                        Span { start_ns: queued_ns, end_ns: over_ns, what }
                    });
                    let over = Over { way, took_ns: over_ns.saturating_sub(queued_ns) };
                    let Some(over) = state.leave(over) else { continue };
                    Ok(state.record(&over))
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

    /// Records a group's result. If a group of several fails, its copies are repeated alone, so
    /// that an invalid target fails only its own transfer.
    fn end(
        &mut self,
        lane: usize,
        work: Work,
        since_ns: Option<u64>,
        failed: Option<&DeviceError>,
    ) {
        if let Some(source) = failed
            && work.len() > 1
            && !source.is_loss()
            && self.settle()
        {
            return work.apart().into_iter().for_each(|work| self.queue(work));
        }
        let over_ns = now_ns();
        let queued_ns = since_ns.unwrap_or(over_ns);
        let last_ns = std::mem::replace(&mut self.lanes[lane].over_ns, over_ns);
        let copies = match work {
            Work::Windows(copies) => copies,
            Work::Withdrawn => return,
            Work::Small(reads) => {
                for read in reads {
                    let failed = failed.map(|source| self.failure(read.len, source.clone()));
                    let done = Done { copy: read, queued_ns, over_ns, end_ns: over_ns, failed };
                    self.small_done.push(done);
                }
                return;
            }
        };
        let all = copies.iter().map(|copy| copy.run.range.len()).sum::<u64>().max(1);
        let ran = u128::from(over_ns.saturating_sub(queued_ns.max(last_ns)));
        let mut left = all;
        for copy in copies {
            left = left.saturating_sub(copy.run.range.len());
            let early = ran * u128::from(left) / u128::from(all);
            let end_ns = over_ns - u64::try_from(early).unwrap_or(0);
            let len = copy.run.range.len();
            let failed = failed.map(|source| self.failure(len, source.clone()));
            self.done.push(Done { copy, queued_ns, over_ns, end_ns, failed });
        }
    }

    /// Records trace spans of completed copies.
    fn record(&mut self, to: &Recorder) {
        if !to.is_on() || self.done.is_empty() {
            return;
        }
        let link = self.link;
        let span = |&Done { ref copy, queued_ns, end_ns, .. }: &Done<Copy>| {
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
    /// Kernels that have not begun are withdrawn first, since the GPU may be full for long.
    fn settle(&mut self) -> bool {
        GATHER.for_each(|lane| self.withdraw(lane, 0));
        self.is_quiet()
    }

    fn is_quiet(&self) -> bool {
        let mut lanes = self.lanes.iter().filter(|lane| !lane.is_stuck());
        lanes.all(|lane| is_quiet(&*self.device, lane.stream))
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
        std::mem::forget((self.arena.clone(), Arc::clone(&self.cells)));
        let lost = Some((device, source.clone()));
        CopyFailure { error: Error::CopyNotOver { device, len, place, source }, lost }
    }

    fn queue(&mut self, work: Work) {
        let copies = work.copies();
        let lane = self.gather_lane(&work, &copies).unwrap_or(work.direction() as usize);
        match self.start(lane, &copies) {
            Ok((event, kernel)) => {
                let len = copies.iter().map(|copy| copy.len as u64).sum();
                self.cells.queued_len.fetch_add(len, Ordering::Relaxed);
                let group = Group { work, len, event, since_ns: now_ns(), kernel };
                self.lanes[lane].queued.push_back(group);
            }
            // The copies may be queued even though recording their event failed.
            Err(source) => self.end(lane, work, None, Some(&source)),
        }
    }

    /// A free lane for a kernel that makes these copies, if it is faster than copies by the driver.
    /// Those are faster from 64 KiB on, but cost this thread 0.8 µs per copy: as much as a small
    /// read saves.
    fn gather_lane(&mut self, work: &Work, copies: &[DeviceCopy]) -> Option<usize> {
        let len = copies.iter().map(|copy| copy.len).sum::<usize>() / copies.len().max(1);
        let is_faster = match work {
            _ if len < KERNEL_LEN => copies.len() >= KERNEL_MIN,
            Work::Small(_) if len == KERNEL_LEN => copies.len() >= KERNEL_MIN_LONG,
            Work::Small(_) => {
                KERNEL_FEW.contains(&copies.len()) && len * copies.len() <= KERNEL_FEW_LEN
            }
            Work::Windows(_) | Work::Withdrawn => false,
        };
        let is_even =
            |copy: &DeviceCopy| (copy.host.addr().get() as u64 ^ copy.device).is_multiple_of(16);
        let may = is_faster
            && work.direction() == Direction::Read
            && now_ns() >= self.rests_until_ns
            && copies.iter().all(is_even)
            // All pieces get as many tiles as the longest.
            && copies.iter().all(|copy| copy.len <= 16 * KERNEL_LEN)
            && match work {
                Work::Small(reads) => {
                    let of_others = reads.iter().zip(copies).filter(|(read, _)| !read.is_ours);
                    self.device.gathers(&of_others.map(|(_, copy)| *copy).collect::<Vec<_>>())
                }
                _ => self.device.gathers(copies),
            };
        if may && self.signals.is_none() {
            let len = (self.lanes.len() * size_of::<[AtomicU32; 2]>()) as u64;
            let room = self.arena.as_ref()?.room();
            self.signals = room.pin(len, Purpose::Lasting, &self.device).ok();
            if self.signals.is_none() {
                self.rests_until_ns = now_ns() + PIN_AGAIN_NS;
            }
        }
        let may = may && self.signals.is_some();
        GATHER.filter(|_| may).find(|lane| self.lanes[*lane].queued.is_empty())
    }

    /// Queues copies, and an event behind them. Also returns the kernel's number if a kernel
    /// copies.
    fn start(&mut self, lane: usize, copies: &[DeviceCopy]) -> DeviceResult<(Event, Option<u32>)> {
        let event = match self.spare.pop() {
            Some(event) => event,
            None => self.device.create_event()?,
        };
        self.kernels = self.kernels.wrapping_add(1).max(1);
        let (number, stream) = (self.kernels, self.lanes[lane].stream);
        let words = self.signals(lane).map(|words| NonNull::from(words).cast());
        // SAFETY: the windows own the slots, small reads own cells, and the transfers keep the GPU
        // memory, until the copies are handed back. That happens only after the event, or once the
        // kernel is withdrawn. The numbers live as long as the stream.
        let queued = unsafe {
            match (lane, copies) {
                (0, &[DeviceCopy { host, device, len }]) => {
                    self.device.copy_to_device(stream, device, host, len)
                }
                (1, &[DeviceCopy { host, device, len }]) => {
                    self.device.copy_to_host(stream, host, device, len)
                }
                (0, several) => self.device.copy_batch_to_device(stream, several),
                (1, several) => self.device.copy_batch_to_host(stream, several),
                (_, several) => {
                    let words = words.expect("kernels have signals");
                    self.device.gather(stream, several, Signal { words, number })
                }
            }
        };
        let kernel = GATHER.contains(&lane).then_some(number);
        let recorded = queued.and_then(|()| self.device.record(event, stream));
        match recorded {
            Ok(()) => Ok((event, kernel)),
            Err(error) => {
                self.spare.push(event);
                Err(error)
            }
        }
    }

    /// Repeats the step until the engine ends. During copies it calls `look` with the time.
    pub(crate) fn run(mut self, core: &Core, look: impl Fn(Instant)) {
        // Otherwise the kernel may delay a nap by 50 µs.
        rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1)).unwrap_or(());
        let (mut active, device) = (Instant::now(), Arc::clone(&self.device));
        let mut repeat = || {
            loop {
                if self.is_copying() {
                    active = Instant::now();
                    look(active);
                }
                match self.step(core, active.elapsed() < LINGER) {
                    Pause::Watch => std::thread::yield_now(),
                    Pause::Nap => std::thread::sleep(NAP),
                    Pause::Wait => {
                        self.cells.bell.park();
                        active = Instant::now();
                    }
                    Pause::Stop => return,
                }
            }
        };
        core.guard(|| {
            // Before the first copies: later those of all threads would wait for kernels that run.
            device.load_gather();
            // The context stays current, so that the calls need not exchange it.
            device.within(&mut repeat).unwrap_or_else(|_| repeat());
        });
    }
}

impl Drop for Submitter {
    fn drop(&mut self) {
        if self.lanes.iter().any(CopyLane::is_stuck) || !self.is_quiet() {
            std::mem::forget((self.signals.take(), Arc::clone(&self.device)));
            return; // events and streams of work that may still run are leaked
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
