//! Queues the copies of one GPU and sees them done. Nobody else calls the driver for a transfer.
//!
//! At most two copies of each direction are queued: one runs, the next is ready behind it, and
//! whatever is filled meanwhile leaves as one longer copy. So copies grow by themselves when the
//! link is what binds, and bytes leave at once when it would idle. The directions have a stream, a
//! queue and a limit each, since the link carries both at once.

#![expect(unsafe_code, reason = "queues copies between slots and the caller's GPU memory")]

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Arena;
use crate::error::{Error, Operation};
use crate::events;
use crate::gpu::{Device, DeviceCopy, DeviceError, DeviceResult, Event, Stream, is_quiet};
use crate::queue::{Batch, Copy, CopyFailure, Core, Crew, Direction, Idlers, Scatter, now_ns};
use crate::trace::{Kind, Range, Ranges, Recorder, Span, Track, What};

/// Time between two looks at a copy that is not done: a full slot takes 300 µs. Sleeping so costs a
/// third less CPU than spinning (measured: 0.123 against 0.165 CPU s per GB).
const NAP: Duration = Duration::from_micros(20);

/// How long last copies are watched without a nap: three full slots' time on a fast link.
const WATCH_MAX: Duration = Duration::from_millis(1);

/// How long after the last copy naps are preferred to a sleep that somebody has to end: waking a
/// thread of an idle core takes longer than a nap.
const LINGER: Duration = Duration::from_micros(200);

#[derive(Debug)]
struct Queued {
    copy: Copy,
    event: Event,
    since: Instant,
    #[expect(dead_code, reason = "held until the copy is done")]
    range: Range,
}

/// The copies of one direction, which are done in turn.
#[derive(Debug)]
struct Lane {
    stream: Stream,
    queued: VecDeque<Queued>,
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
    done: Vec<(Copy, u64, Option<CopyFailure>)>,
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
        let lane = || Ok(Lane { stream: device.create_stream()?, queued: VecDeque::new() });
        let (inward, outward) = (lane()?, lane()?);
        Ok(Self {
            link,
            device,
            inward,
            outward,
            spare: Vec::new(),
            done: Vec::new(),
            track: Track::default(),
            arena: None,
            lost_told: false,
            asleep: false,
        })
    }

    /// The same, for slots that lie in `arena`.
    pub(crate) fn with_arena(mut self, arena: Arc<Arena>) -> Self {
        self.arena = Some(arena);
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
            let (next, soon, ended) = core.with(|scheduler| {
                if std::mem::take(&mut self.asleep) {
                    scheduler.wakes(crew);
                }
                scheduler.tell_time(now);
                for (copy, took_ns, failed) in self.done.drain(..) {
                    scheduler.copied(link, &copy, took_ns, failed);
                }
                let next = scheduler.next_copy(link, inward, outward);
                let ended = scheduler.has_ended();
                let naps = lingers && scheduler.fills_soon(link);
                if next.is_none() && idle && !ended && !naps {
                    scheduler.sleeps(crew);
                    self.asleep = true;
                }
                (next, !idle && scheduler.is_waited_for(link), ended)
            });
            match next {
                Some(copy) => self.queue(copy, core.recorder().ranges()),
                None if ended => return Pause::Stop,
                None if self.asleep => return Pause::Wait,
                None if soon && self.is_fresh() => return Pause::Watch,
                None => return Pause::Nap,
            }
        }
    }

    /// Whether the last copy was queued so lately that its end may be near.
    fn is_fresh(&self) -> bool {
        let is_fresh = |last: &Queued| last.since.elapsed() < WATCH_MAX;
        self.lanes().iter().any(|lane| lane.queued.back().is_some_and(is_fresh))
    }

    /// Takes the copies that are done off their queues.
    fn look(&mut self) {
        for direction in [Direction::Read, Direction::Write] {
            while let Some((first, failed)) = self.take_done(direction) {
                self.spare.push(first.event);
                let took = u64::try_from(first.since.elapsed().as_nanos()).unwrap_or(u64::MAX);
                self.done.push((first.copy, took, failed));
            }
        }
    }

    /// Records the copies that are done.
    fn record(&mut self, to: &Recorder) {
        if !to.is_on() || self.done.is_empty() {
            return;
        }
        let (link, end_ns) = (self.link, now_ns());
        let span = |(copy, took_ns, _): &(Copy, u64, Option<CopyFailure>)| {
            let (start_ns, bytes) = (end_ns.saturating_sub(*took_ns), copy.run.range);
            let name = match copy.direction {
                Direction::Read => "to the GPU",
                Direction::Write => "from the GPU",
            };
            let (bytes, address) = ((bytes.start, bytes.len()), copy.host);
            Span { start_ns, end_ns, what: What::Copy { link, name, bytes, address } }
        };
        self.track.push(to, false, self.done.iter().map(span));
    }

    /// The copy of a direction that was queued first, where it is done or failed.
    fn take_done(&mut self, direction: Direction) -> Option<(Queued, Option<CopyFailure>)> {
        let first = self.lane(direction).queued.front()?;
        let (copy, event) = (first.copy.clone(), first.event);
        let failed = match self.device.is_done(event) {
            Ok(false) => return None,
            Ok(true) => None,
            Err(source) => Some(self.failure(&copy, source)),
        };
        Some((self.lane(direction).queued.pop_front()?, failed))
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

    fn queue(&mut self, copy: Copy, ranges: Ranges) {
        let name = match copy.direction {
            Direction::Read => c"copy to the GPU",
            Direction::Write => c"copy from the GPU",
        };
        let range = ranges.begin(Kind::Copy, name, copy.run.range.len());
        match self.start(&copy) {
            Ok(event) => {
                let direction = copy.direction;
                let queued = Queued { copy, event, since: Instant::now(), range };
                self.lane(direction).queued.push_back(queued);
            }
            Err(source) => {
                // The copy may be queued although its event is not.
                let failure = self.failure(&copy, source);
                self.done.push((copy, 0, Some(failure)));
            }
        }
    }

    fn start(&mut self, copy: &Copy) -> DeviceResult<Event> {
        let host = NonNull::new(copy.host as *mut u8).expect("a slot is never at address zero");
        let len = usize::try_from(copy.run.range.len()).expect("a slot fits memory");
        let event = match self.spare.pop() {
            Some(event) => event,
            None => self.device.create_event()?,
        };
        let stream = self.lane(copy.direction).stream;
        // SAFETY: the slot is the window's until the copy is handed back, and so is the GPU memory,
        // which the transfer keeps; both are handed back only after the event.
        let queued = unsafe {
            match copy.direction {
                _ if let Some(batch) = &copy.batch => self.copy_batch(stream, copy, batch),
                Direction::Read => self.device.copy_to_device(stream, copy.device, host, len),
                Direction::Write => self.device.copy_to_host(stream, host, copy.device, len),
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

    /// Queues the copies of a batch to where its bytes are to go, or from where they come.
    ///
    /// # Safety
    /// As for a copy to or from the device, for all of them.
    unsafe fn copy_batch(&self, stream: Stream, copy: &Copy, batch: &Batch) -> DeviceResult<()> {
        let one = |Scatter { host, address, len }| DeviceCopy {
            host: NonNull::new(host as *mut u8).expect("a slot is never at address zero"),
            device: address,
            len: usize::try_from(len).expect("a slot fits memory"),
        };
        let copies: Vec<_> =
            batch.scattered(copy.run.range, copy.host).into_iter().map(one).collect();
        // SAFETY: the caller's promise.
        unsafe {
            match (copy.direction, copies.as_slice()) {
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
