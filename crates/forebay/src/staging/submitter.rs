//! Queues the copies of one GPU and sees them done. Nobody else calls the driver for a transfer.
//!
//! At most two groups of copies of each direction are queued: one runs, the next is ready behind
//! it, and whatever is filled meanwhile leaves as one longer copy, or, where it belongs to several
//! small transfers, as one group of them in one call of the driver. So copies grow by themselves
//! when the link is what binds, and bytes leave at once when it would idle. The directions have a
//! stream, a queue and a limit each, since the link carries both at once.

#![expect(unsafe_code, reason = "queues copies between slots and the caller's GPU memory")]

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Arena;
use crate::error::{Error, Operation};
use crate::events;
use crate::gpu::{Device, DeviceCopy, DeviceError, DeviceResult, Event, Stream, is_quiet};
use crate::queue::{Copy, CopyFailure, Core, Crew, Direction, Idlers, Scatter, now_ns};
use crate::trace::{Recorder, Span, Track, What};

/// Time between two looks at a copy that is not done: a full slot takes 300 µs. Sleeping so costs a
/// third less CPU than spinning (measured: 0.123 against 0.165 CPU s per GB).
const NAP: Duration = Duration::from_micros(20);

/// How long last copies are watched without a nap: three full slots' time on a fast link.
const WATCH_MAX: Duration = Duration::from_millis(1);

/// How long after the last copy naps are preferred to a sleep that somebody has to end: waking a
/// thread of an idle core takes longer than a nap.
const LINGER: Duration = Duration::from_micros(200);

/// Copies that were queued together.
#[derive(Debug)]
struct Group {
    /// Of one direction; at least one.
    copies: Vec<Copy>,
    event: Event,
    since_ns: u64,
}

/// A copy that is over.
#[derive(Debug)]
struct Done {
    copy: Copy,
    /// When its group was queued, and was seen to be over.
    queued_ns: u64,
    over_ns: u64,
    /// When it was over itself, if all of the group went at one rate: nobody tells of one.
    end_ns: u64,
    failed: Option<CopyFailure>,
}

/// The groups of one direction, which are done in turn.
#[derive(Debug)]
struct Lane {
    stream: Stream,
    queued: VecDeque<Group>,
    /// When the last group that is done was seen to be over: no other began before.
    over_ns: u64,
}

/// See the module's own text.
#[derive(Debug)]
pub(crate) struct Submitter {
    link: usize,
    device: Arc<dyn Device>,
    /// One for each direction: the link carries both at once.
    inward: Lane,
    outward: Lane,
    spare: Vec<Event>,
    /// Lists of groups that are done, for those to come.
    lists: Vec<Vec<Copy>>,
    done: Vec<Done>,
    track: Track,
    /// The slots that copies touch; never given back once one may not be over.
    arena: Option<Arc<Arena>>,
    /// Whether subscribers know that the GPU is lost.
    lost_told: bool,
    /// Whether the scheduler counts it as asleep.
    asleep: bool,
}

/// What the submitter's thread is to do after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pause {
    /// A copy is under way: look again after a nap.
    Nap,
    /// The last copies of all reads are under way, or a short transfer waits behind a long one:
    /// look again at once. A nap of 20 µs was up to 600 late on virtual machines.
    Watch,
    /// Nothing is queued: wait until something is filled.
    Wait,
    /// The engine ends and nothing is left.
    Stop,
}

impl Submitter {
    pub(crate) fn new(link: usize, device: Arc<dyn Device>) -> DeviceResult<Self> {
        let lane = || {
            let stream = device.create_stream()?;
            Ok(Lane { stream, queued: VecDeque::new(), over_ns: 0 })
        };
        let (inward, outward) = (lane()?, lane()?);
        Ok(Self {
            link,
            device,
            inward,
            outward,
            spare: Vec::new(),
            lists: Vec::new(),
            done: Vec::new(),
            track: Track::default(),
            arena: None,
            lost_told: false,
            asleep: false,
        })
    }

    /// The same, for the link with this number, whose slots lie in `arena`.
    pub(crate) fn serving(mut self, link: usize, arena: Arc<Arena>) -> Self {
        (self.link, self.arena) = (link, Some(arena));
        self
    }

    /// Whether copies are queued.
    pub(crate) fn is_copying(&self) -> bool {
        self.lanes().iter().any(|lane| !lane.queued.is_empty())
    }

    fn lanes(&self) -> [&Lane; 2] {
        [&self.inward, &self.outward]
    }

    /// Sees what is done, hands it back, and queues what is worth a copy now. Who lingers naps
    /// again instead of sleeping.
    pub(crate) fn step(&mut self, core: &Core, lingers: bool) -> Pause {
        self.look();
        self.record(core.recorder());
        loop {
            let now = now_ns();
            let link = self.link;
            let [inward, outward] = self.lanes().map(|lane| lane.queued.len());
            let idle = inward + outward == 0;
            let crew = Crew::Link(link);
            let mut group = self.lists.pop().unwrap_or_default();
            let (soon, ended) = core.with(|scheduler| {
                if std::mem::take(&mut self.asleep) {
                    scheduler.wakes(crew);
                }
                scheduler.tell_time(now);
                for Done { copy, queued_ns, over_ns, failed, .. } in self.done.drain(..) {
                    scheduler.copied(link, &copy, over_ns.saturating_sub(queued_ns), failed);
                }
                scheduler.next_copies(link, (inward, outward), &mut group);
                let ended = scheduler.has_ended();
                let naps = lingers && scheduler.fills_soon(link);
                if group.is_empty() && idle && !ended && !naps {
                    scheduler.sleeps(crew);
                    self.asleep = true;
                }
                (!idle && scheduler.is_waited_for(link), ended)
            });
            if !group.is_empty() {
                self.queue(group);
                continue;
            }
            self.lists.push(group);
            return match () {
                () if ended => Pause::Stop,
                () if self.asleep => Pause::Wait,
                () if soon && self.is_fresh() => Pause::Watch,
                () => Pause::Nap,
            };
        }
    }

    /// Whether the last copy was queued so lately that its end may be near.
    fn is_fresh(&self) -> bool {
        let now = now_ns();
        let is_fresh =
            |last: &Group| u128::from(now.saturating_sub(last.since_ns)) < WATCH_MAX.as_nanos();
        self.lanes().iter().any(|lane| lane.queued.back().is_some_and(is_fresh))
    }

    /// Takes the groups that are done, or failed, off their queues.
    fn look(&mut self) {
        for direction in [Direction::Read, Direction::Write] {
            while let Some(event) = self.lane(direction).queued.front().map(|first| first.event) {
                let failed = match self.device.is_done(event) {
                    Ok(false) => break,
                    Ok(true) => None,
                    Err(source) => Some(source),
                };
                let first = self.lane(direction).queued.pop_front().expect("it is the first");
                self.spare.push(event);
                self.end(first.copies, Some(first.since_ns), failed.as_ref());
            }
        }
    }

    /// Notes what came of a group. Of several, one may have failed for all: they are made once
    /// more, each alone, so that no transfer fails for another's target.
    fn end(&mut self, mut copies: Vec<Copy>, since_ns: Option<u64>, failed: Option<&DeviceError>) {
        if let Some(source) = failed
            && copies.len() > 1
            && !source.is_loss()
            && self.settle()
        {
            copies.drain(..).for_each(|copy| self.queue(vec![copy]));
            self.lists.push(copies);
            return;
        }
        let Some(first) = copies.first() else { return };
        let over_ns = now_ns();
        let queued_ns = since_ns.unwrap_or(over_ns);
        let last_ns = std::mem::replace(&mut self.lane(first.direction).over_ns, over_ns);
        let all = copies.iter().map(|copy| copy.run.range.len()).sum::<u64>().max(1);
        let ran = u128::from(over_ns.saturating_sub(queued_ns.max(last_ns)));
        let mut left = all;
        for copy in copies.drain(..) {
            left = left.saturating_sub(copy.run.range.len());
            let early = ran * u128::from(left) / u128::from(all);
            let end_ns = over_ns - u64::try_from(early).unwrap_or(0);
            let failed = failed.map(|source| self.failure(&copy, source.clone()));
            self.done.push(Done { copy, queued_ns, over_ns, end_ns, failed });
        }
        self.lists.push(copies);
    }

    /// Records the copies that are done.
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

    fn lane(&mut self, direction: Direction) -> &mut Lane {
        match direction {
            Direction::Read => &mut self.inward,
            Direction::Write => &mut self.outward,
        }
    }

    /// Waits until the device touches none of the slots; false: it does not say so.
    fn settle(&self) -> bool {
        self.lanes().iter().all(|lane| is_quiet(&*self.device, lane.stream))
    }

    /// What a failed copy means. The memory of one that may still run is never given back.
    fn failure(&mut self, copy: &Copy, source: DeviceError) -> CopyFailure {
        let (device, len) = (self.device.id(), copy.run.range.len());
        if source.is_loss() && !std::mem::replace(&mut self.lost_told, true) {
            events::gpu_lost(device, &source);
        }
        let place = None; // the scheduler knows it
        if self.settle() {
            let operation = Operation::Copy;
            let error = Error::Device { operation, device, len, place, source };
            return CopyFailure { error, lost: None };
        }
        events::copy_not_over(device, &source);
        std::mem::forget(self.arena.clone());
        let lost = Some((device, source.clone()));
        CopyFailure { error: Error::CopyNotOver { device, len, place, source }, lost }
    }

    fn queue(&mut self, group: Vec<Copy>) {
        let direction = group[0].direction;
        match self.start(&group) {
            Ok(event) => {
                let queued = Group { copies: group, event, since_ns: now_ns() };
                self.lane(direction).queued.push_back(queued);
            }
            // The copies may be queued although their event is not.
            Err(source) => self.end(group, None, Some(&source)),
        }
    }

    fn start(&mut self, group: &[Copy]) -> DeviceResult<Event> {
        let event = match self.spare.pop() {
            Some(event) => event,
            None => self.device.create_event()?,
        };
        let direction = group[0].direction;
        let stream = self.lane(direction).stream;
        // SAFETY: the slots are the windows' until the copies are handed back, and so is the GPU
        // memory, which the transfers keep; all are handed back only after the event.
        let queued = unsafe { self.copy(stream, direction, group) };
        match queued.and_then(|()| self.device.record(event, stream)) {
            Ok(()) => Ok(event),
            Err(error) => {
                self.spare.push(event);
                Err(error)
            }
        }
    }

    /// Queues the copies of a group; those of a batch go to where its bytes are to go, or come from
    /// where they are.
    ///
    /// # Safety
    /// As for a copy to or from the device, for all of them.
    unsafe fn copy(
        &self,
        stream: Stream,
        direction: Direction,
        group: &[Copy],
    ) -> DeviceResult<()> {
        let mut copies = Vec::with_capacity(group.len());
        for copy in group {
            let range = copy.run.range;
            match &copy.batch {
                None => copies.push(device_copy(copy.host, copy.device, range.len())),
                Some(batch) => copies.extend(
                    batch
                        .scattered(range, copy.host)
                        .into_iter()
                        .map(|Scatter { host, address, len }| device_copy(host, address, len)),
                ),
            }
        }
        // SAFETY: the caller's promise.
        unsafe {
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
        }
    }

    /// Repeats the step until the engine ends.
    pub(crate) fn run(mut self, core: &Core, idlers: &Idlers) {
        // Else the kernel stretches each nap by 50 µs.
        rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1)).unwrap_or(());
        let mut active = Instant::now();
        core.guard(|| {
            loop {
                if self.is_copying() {
                    active = Instant::now();
                }
                match self.step(core, active.elapsed() < LINGER) {
                    Pause::Watch => std::thread::yield_now(),
                    Pause::Nap => std::thread::sleep(NAP),
                    Pause::Wait => {
                        idlers.sleep();
                        active = Instant::now();
                    }
                    Pause::Stop => return,
                }
            }
        });
    }
}

fn device_copy(host: u64, device: u64, len: u64) -> DeviceCopy {
    DeviceCopy {
        host: NonNull::new(host as *mut u8).expect("a slot is never at address zero"),
        device,
        len: usize::try_from(len).expect("a slot fits memory"),
    }
}

impl Drop for Submitter {
    fn drop(&mut self) {
        if !self.settle() {
            return; // events and streams of copies that may still run stay
        }
        let queued = self.lanes().into_iter().flat_map(|lane| &lane.queued);
        for event in queued.map(|queued| queued.event).chain(self.spare.iter().copied()) {
            let destroyed = self.device.destroy_event(event);
            drop(destroyed);
        }
        for lane in self.lanes() {
            let destroyed = self.device.destroy_stream(lane.stream);
            drop(destroyed);
        }
    }
}
