//! Reads the same bytes to several GPUs. Each byte is read once into a pinned block, and all links
//! carry it from there, so the memory bus carries it once for the read and once for each link.
//!
//! The blocks are a small ring: some are being read while others are being copied. Concurrent calls
//! share the number of blocks, at least one for each. The copies run on streams of this call.

#![expect(unsafe_code, reason = "queues copies between ranges that the call holds")]

use std::collections::VecDeque;
use std::iter;
use std::mem::{self, ManuallyDrop};
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use forebay_base::timeout::within;

use super::file::File;
use super::interrupt::{CHECKS_EVERY, DRAIN_MAX};
use super::request::RequestOptions;
use super::start::Call;
use super::{Engine, Transfer, bad_request};
use crate::error::{Error, Operation, Result};
use crate::gpu::{Device, DeviceError, Event, Stream, is_quiet};
use crate::memory::{Buffer, Keep, Purpose};
use crate::plan::{Direction, Reason, Route};
use crate::transfer::{Outcome, RouteShare};

/// Blocks of the ring: two are being copied or next to be, and two are being read.
const BLOCKS: usize = 4;

/// Pause between two looks at copies; a block of 16 MiB takes a link 300 µs.
const NAP: Duration = Duration::from_micros(30);

impl File {
    /// Reads the same bytes from `offset` to several targets, which have one length and are on
    /// GPUs. The targets are full afterwards, unless the file ends early. `go_on` is called about
    /// 20 times a second; if it returns false, the call ends within a second, as
    /// [`read_while`](Self::read_while) does. The route is not chosen: bytes are `cached` or
    /// `staged`, and none is `direct`.
    ///
    /// # Errors
    /// [`Error::BadRequest`] for targets of several lengths or on the host, or for a required
    /// route; [`Error::Cancelled`] if it was stopped; else as for [`read_with`](Self::read_with).
    pub fn read_to_all(
        &self,
        offset: u64,
        targets: &mut [Buffer],
        options: &RequestOptions,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Outcome> {
        if let [only] = targets {
            return self.read_while(offset, only, options, go_on);
        }
        let started = Instant::now();
        let len = self.check_all(offset, targets, options)?;
        let devices = targets.iter().map(|target| {
            let gpu = target.gpu().expect("just checked");
            let device = self.engine.bring_in(gpu)?;
            self.engine.link(&device)?; // blocks are pinned for GPUs that the engine knows
            Ok(device)
        });
        let devices = devices.collect::<Result<Vec<_>>>()?;
        let mut copies = Copies::new(&devices, targets)?;
        let mut reading: VecDeque<Part> = VecDeque::new();
        let (mut all, mut at, mut checked) = (Outcome::nothing(), 0, Instant::now());
        let (mut moved, watchdog) = (Instant::now(), self.engine.options().watchdog);
        let _share = Arc::clone(&self.engine.inner.several);
        let mut check = |done| {
            if checked.elapsed() >= CHECKS_EVERY {
                checked = Instant::now();
                if !go_on() {
                    return Err(Error::Cancelled { place: self.place(offset, len), done });
                }
            }
            Ok(())
        };
        loop {
            while at < len {
                let held = reading.len() + copies.queued.len();
                let waits = &mut || check(all.bytes).map(|()| moved.elapsed() < watchdog);
                let block = self.engine.several_block(held, &devices, waits)?;
                let Some(block) = block else { break };
                let part = block.len().min(len - at);
                devices.iter().for_each(|device| drop(self.engine.link(device)));
                reading.push_back(self.begin_part(offset, at, part, block, options)?);
                at += part;
            }
            let Some(Part { transfer, at: start, len: wanted }) = reading.pop_front() else {
                break;
            };
            while transfer.wait_for(CHECKS_EVERY).is_none() {
                check(all.bytes)?;
            }
            let (outcome, block) = transfer.wait();
            let outcome = outcome?;
            let block = block.expect("a read without an error returns it");
            copies.queue(block, start, outcome.bytes)?;
            (all, moved) = (all.plus(&outcome), Instant::now());
            if outcome.bytes < wanted {
                at = len; // the file has ended
            }
            // The links always have a block queued behind the one that they copy.
            while (copies.queued.len() > 1 || reading.is_empty())
                && copies.await_first(&mut || check(all.bytes))?
            {}
        }
        all.elapsed = started.elapsed();
        Ok(all)
    }

    /// The length of the targets.
    fn check_all(&self, offset: u64, targets: &[Buffer], options: &RequestOptions) -> Result<u64> {
        let len = targets.first().map_or(0, Buffer::len);
        self.check_access(Direction::Read, offset, len)?;
        let bad = |reason: &str| {
            Err(bad_request(Operation::Read, self.place(offset, len), reason.to_owned()))
        };
        for target in targets {
            target.check_usable(|| Some((Operation::Read, self.place(offset, len))))?;
        }
        if targets.is_empty() || targets.iter().any(|target| target.gpu().is_none()) {
            return bad("a read to several targets needs memory on GPUs: read to the host once");
        }
        if targets.iter().any(|target| target.len() != len) {
            return bad("the targets of one read differ in length");
        }
        if options.route.is_some() {
            return bad("a read to several targets has no required route: omit it");
        }
        Ok(len)
    }

    fn begin_part(
        &self,
        offset: u64,
        at: u64,
        len: u64,
        block: Buffer,
        options: &RequestOptions,
    ) -> Result<Part> {
        let span = self.part(Operation::Read, offset + at, &block, &(0..len))?;
        let call = Call::new(&self.handle, Direction::Read, offset + at, span, options);
        let state = self.engine.start(&Call { may_wait: false, ..call }, Some(block))?;
        Ok(Part { transfer: Transfer::new(state, self.engine.clone()), at, len })
    }
}

/// A part of the range that is being read.
struct Part {
    transfer: Transfer,
    /// Its place in the targets.
    at: u64,
    len: u64,
}

/// The queued copies of a call. If it is dropped before they are done, they keep blocks and
/// targets, and no other call may use these.
struct Copies {
    links: Vec<Link>,
    /// Blocks in the order of their copies, with an event of each link.
    queued: VecDeque<(Buffer, Vec<Event>)>,
}

struct Link {
    device: Arc<dyn Device>,
    stream: Stream,
    /// The target's first address, and a share in its memory.
    address: u64,
    keep: Keep,
}

impl Copies {
    fn new(devices: &[Arc<dyn Device>], targets: &[Buffer]) -> Result<Self> {
        let mut copies = Self { links: Vec::new(), queued: VecDeque::new() };
        for (device, target) in devices.iter().zip(targets) {
            let stream = device.create_stream().map_err(|source| failed(device, 0, source))?;
            let (device, keep) = (Arc::clone(device), Keep::of(target));
            copies.links.push(Link { device, stream, address: target.address(), keep });
        }
        Ok(copies)
    }

    /// Queues copies of the block's first `len` bytes to place `at` of each target.
    fn queue(&mut self, block: Buffer, at: u64, len: u64) -> Result<()> {
        let host = NonNull::new(block.address() as *mut u8).expect("pinned memory");
        let count = usize::try_from(len).expect("a block is in memory");
        self.queued.push_back((block, Vec::new()));
        let events = &mut self.queued.back_mut().expect("just added").1;
        for Link { device, stream, address, .. } in self.links.iter().filter(|_| count > 0) {
            let mut queue = || {
                // SAFETY: the block has `len` bytes, and the target as many at `at`. Both are kept
                // until the stream has passed the copy.
                unsafe { device.copy_to_device(*stream, address + at, host, count) }?;
                let event = device.create_event()?;
                events.push(event);
                device.record(event, *stream)
            };
            queue().map_err(|source| failed(device, len, source))?;
        }
        Ok(())
    }

    /// Waits until the oldest block has been copied; false if there is none.
    fn await_first(&mut self, check: &mut dyn FnMut() -> Result<()>) -> Result<bool> {
        let Some((block, events)) = self.queued.front() else { return Ok(false) };
        for (Link { device, .. }, &event) in self.links.iter().zip(events) {
            let is_done = || device.is_done(event).map_err(|e| failed(device, block.len(), e));
            while !is_done()? {
                check()?;
                thread::sleep(NAP);
            }
        }
        let (_, events) = self.queued.pop_front().expect("just seen");
        destroy(&self.links, events);
        Ok(true)
    }

    /// Waits until no GPU touches blocks and targets. What may be touched for an unknown time is
    /// never used again.
    fn end(&mut self) {
        let mut is_over = true;
        for Link { device, stream, keep, .. } in &self.links {
            match device.synchronize(*stream) {
                Err(error) if !is_quiet(device.as_ref(), *stream) => {
                    keep.lose(&error);
                    is_over = false;
                }
                _ => drop(device.destroy_stream(*stream)),
            }
        }
        for (block, events) in self.queued.drain(..) {
            destroy(&self.links, events);
            if !is_over {
                let _ = ManuallyDrop::new(block);
            }
        }
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        if self.queued.is_empty() {
            return self.end(); // nothing is in flight
        }
        // A GPU that hangs must not hold up the caller.
        self.links.iter().for_each(|link| link.keep.set_detached());
        let (links, queued) = (mem::take(&mut self.links), mem::take(&mut self.queued));
        // Without a thread everything stays as it is, for good.
        let mut rest = ManuallyDrop::new(Self { links, queued });
        let _ = within(DRAIN_MAX, "forebay-drain", move || {
            rest.end();
            drop(mem::take(&mut rest.queued));
            mem::take(&mut rest.links).into_iter().for_each(|link| link.keep.land());
        });
    }
}

fn destroy(links: &[Link], events: Vec<Event>) {
    for (Link { device, .. }, event) in links.iter().zip(events) {
        let _ = device.destroy_event(event);
    }
}

fn failed(device: &Arc<dyn Device>, len: u64, source: DeviceError) -> Error {
    Error::of_device(Operation::Copy, device.id(), len, source)
}

impl Outcome {
    /// This one with the bytes of another one's read to pinned memory, which went on to GPUs.
    fn plus(mut self, other: &Self) -> Self {
        self.bytes += other.bytes;
        for share in &other.routes {
            let is_staged = matches!(share.reason, Reason::NotResident | Reason::TriedNotResident);
            let route = if is_staged { Route::Staged } else { Route::Cached };
            let same =
                |known: &&mut RouteShare| (known.route, known.reason) == (route, share.reason);
            match self.routes.iter_mut().find(same) {
                Some(known) => known.bytes += share.bytes,
                None => self.routes.push(RouteShare { route, ..*share }),
            }
        }
        self.routes.sort_by_key(|share| std::cmp::Reverse(share.bytes));
        self
    }
}

impl Engine {
    /// A pinned block for a call that holds `held` of them; `None` if it continues with these. For
    /// its first one a call waits while `waits` returns true.
    fn several_block(
        &self,
        held: usize,
        devices: &[Arc<dyn Device>],
        waits: &mut dyn FnMut() -> Result<bool>,
    ) -> Result<Option<Buffer>> {
        let calls = Arc::strong_count(&self.inner.several) - 1;
        if held > 0 && held >= BLOCKS / calls {
            return Ok(None);
        }
        let room = self.inner.tools.arena.room();
        let most = self.options().slot_size;
        let least = if held > 0 { most } else { self.block_len() };
        let sizes = iter::successors(Some(most), |len| (*len > least).then_some(len / 2));
        let waits = &mut || Ok(held == 0 && waits()?);
        match room.lend(sizes, Purpose::Borrowed, devices, waits) {
            Err(Error::PinnedLimit { .. }) if held > 0 => Ok(None),
            lent => lent.map(|memory| Some(Buffer::host(memory))),
        }
    }
}
