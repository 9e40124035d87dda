//! Reads the same bytes to several GPUs. Each byte is read once.
//!
//! If the GPUs copy to each other, each gets a part of the bytes over its own link and passes it
//! on. Otherwise the bytes are read into a small ring of pinned blocks, and all links carry them
//! from there. Concurrent calls share the number of blocks, at least one for each. The copies run
//! on streams of this call.

#![expect(unsafe_code, reason = "queues copies between ranges that the call holds")]

use std::collections::VecDeque;
use std::iter;
use std::mem::{self, ManuallyDrop};
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use forebay_base::lock::Lock;
use forebay_base::random::random;
use forebay_base::timeout::within;

use super::interrupt::{CHECKS_EVERY, DRAIN_MAX};
use super::many::{Many, ManyOutcome, ManyTransfer, Piece, PieceResult};
use super::unwind::GoOn;
use super::{Engine, bad_request};
use crate::error::{Error, Operation, Result};
use crate::gpu::{Device, DeviceError, DeviceId, Event, Stream, is_quiet};
use crate::memory::{Buffer, Keep, Purpose};
use crate::options::RequestOptions;
use crate::plan::{Direction, Reason, Route};
use crate::transfer::{Outcome, RouteShare, State};

/// Blocks of the ring: two are being copied or next to be, and two are being read.
const BLOCKS: usize = 4;

/// Most slots' worth of bytes that a GPU gets over its link and passes on as a whole, and how many
/// of these parts it reads at a time.
const PART_SLOTS: u64 = 2;
const PARTS_AT_ONCE: usize = 3;

/// Pause between two looks at copies; a block of 16 MiB takes a link 300 µs.
const NAP: Duration = Duration::from_micros(30);

/// Bytes that are copied between two GPUs and compared, before others are.
const TRIED: usize = 1 << 20;

/// What calls that read to several GPUs share.
#[derive(Debug, Default)]
pub(super) struct Several {
    calls: Arc<()>,
    /// Whether bytes that the first GPU copies to the second one arrive there.
    peers: Lock<Vec<(DeviceId, DeviceId, bool)>>,
}

impl Engine {
    /// Reads pieces of files to the same places of several targets.
    pub(super) fn run_to_all(
        &self,
        pieces: &[Piece<'_>],
        targets: &[Buffer],
        options: &RequestOptions,
        mut go_on: Option<GoOn<'_>>,
    ) -> Result<ManyOutcome> {
        let started = Instant::now();
        let Some(first) = pieces.first() else {
            return Ok(ManyOutcome { results: Vec::new(), whole: Outcome::nothing() });
        };
        check_all(pieces, targets, options)?;
        let mut to_all = ToAll::new(self, pieces, targets, options)?;
        let (mut all, mut checked) = (Outcome::nothing(), Instant::now());
        let (mut moved, watchdog) = (Instant::now(), self.options().watchdog);
        let mut check = |done| {
            if checked.elapsed() >= CHECKS_EVERY {
                checked = Instant::now();
                if go_on.as_mut().is_some_and(|go_on| !go_on()) {
                    let place = first.file.place(first.offset, first.len);
                    return Err(Error::Cancelled { place, done });
                }
            }
            Ok(())
        };
        loop {
            let waits = &mut || check(all.bytes).map(|()| moved.elapsed() < watchdog);
            while to_all.begin(waits)? {}
            let Some(part) = to_all.reading.parts.front() else { break };
            while part.transfer.wait_for(CHECKS_EVERY).is_none() {
                check(all.bytes)?;
            }
            (all, moved) = (all.plus(&to_all.pass_on()?), Instant::now());
            while to_all.is_full() && to_all.copies.await_first(&mut || check(all.bytes))? {}
        }
        all.elapsed = started.elapsed();
        let results: Vec<PieceResult> = match pieces {
            [_] => vec![Ok(all.bytes)],
            _ => pieces.iter().map(|piece| Ok(piece.len)).collect(),
        };
        Ok(ManyOutcome { results, whole: all })
    }

    /// Whether all GPUs copy to each other and the bytes arrive. On some machines they do not,
    /// although the driver says so.
    fn are_peers(&self, links: &[Link]) -> Result<bool> {
        for (number, from) in links.iter().enumerate() {
            for to in links.iter().skip(number + 1) {
                for (from, to) in [(from, to), (to, from)] {
                    if !from.device.reaches(&*to.device, to.address)
                        || !self.delivers(&from.device, &to.device)?
                    {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(true)
    }

    /// Whether random bytes that one GPU copies to another arrive.
    fn delivers(&self, from: &Arc<dyn Device>, to: &Arc<dyn Device>) -> Result<bool> {
        let key = (from.id(), to.id());
        let known = |all: &Vec<(DeviceId, DeviceId, bool)>| {
            all.iter().find(|known| (known.0, known.1) == key).map(|known| known.2)
        };
        if let Some(known) = known(&self.inner.several.peers.lock()) {
            return Ok(known);
        }
        let sent: Vec<u8> =
            iter::repeat_with(|| random().to_ne_bytes()).take(TRIED / 8).flatten().collect();
        let len = TRIED as u64;
        // Without room for these bytes there may be enough for a ring.
        let (Ok(mut source), Ok(target)) =
            (self.allocate(from.id(), len), self.allocate(to.id(), len))
        else {
            return Ok(false);
        };
        let received = || -> Result<Vec<u8>> {
            source.upload(0, &sent)?;
            let both = [source, target];
            let mut copies = Copies::new(&[Arc::clone(from), Arc::clone(to)], &both)?;
            copies.queue(Through::Gpu(0), 0, len)?;
            while copies.await_first(&mut || Ok(()))? {}
            drop(copies);
            let mut got = vec![0; TRIED];
            both[1].download(0, &mut got)?;
            Ok(got)
        };
        // If a GPU is lost, the read itself reports it.
        let arrived = received().is_ok_and(|got| got == sent);
        self.inner.several.peers.lock().push((key.0, key.1, arrived));
        Ok(arrived)
    }

    /// A pinned block for a call that holds `held` of them; `None` if it continues with these. For
    /// its first one a call waits while `waits` returns true.
    fn several_block(
        &self,
        held: usize,
        devices: &[Arc<dyn Device>],
        waits: &mut dyn FnMut() -> Result<bool>,
    ) -> Result<Option<Buffer>> {
        let calls = Arc::strong_count(&self.inner.several.calls) - 1;
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

/// Checks the arguments of a call.
fn check_all(pieces: &[Piece<'_>], targets: &[Buffer], options: &RequestOptions) -> Result<()> {
    let len = targets.first().map_or(0, Buffer::len);
    let mut end = 0;
    for Piece { file, offset, len: own, at, .. } in pieces {
        file.check_access(Direction::Read, *offset, *own)?;
        let place = || file.place(*offset, *own);
        let bad = |reason: &str| Err(bad_request(Operation::Read, place(), reason.to_owned()));
        if targets.is_empty() || targets.iter().any(|target| target.gpu().is_none()) {
            return bad("a read to several targets needs memory on GPUs: read to the host once");
        }
        if targets.iter().any(|target| target.len() != len) {
            return bad("the targets of one read differ in length");
        }
        if options.route.is_some() {
            return bad("a read to several targets has no required route: omit it");
        }
        if *at < end {
            return bad(
                "the pieces of a read to several targets are not in the order of their places",
            );
        }
        end = at.saturating_add(*own);
        if end > len {
            return bad("a piece lies outside the targets");
        }
    }
    let place = pieces.first().map(|first| first.file.place(first.offset, first.len));
    targets.iter().try_for_each(|target| {
        target.check_usable(|| place.clone().map(|place| (Operation::Read, place)))
    })
}

/// The pieces that no part has yet.
struct Left<'a> {
    pieces: &'a [Piece<'a>],
    /// Whether the call has one piece.
    is_one: bool,
    /// Everything before this place in the targets is in a part.
    at: u64,
}

impl<'a> Left<'a> {
    /// The place of the next byte.
    fn next(&mut self) -> Option<u64> {
        let is_over = |piece: &&Piece<'_>| piece.at + piece.len <= self.at;
        let over = self.pieces.iter().take_while(is_over).count();
        self.pieces = &self.pieces[over..];
        self.pieces.first().map(|first| first.at.max(self.at))
    }

    /// The range of up to `len` bytes from a place, and its pieces: in the targets, or in a block
    /// that holds the range.
    fn cut(&mut self, at: u64, len: u64, is_block: bool) -> (Range<u64>, Vec<Piece<'a>>) {
        let (limit, base) = (at.saturating_add(len), if is_block { at } else { 0 });
        let cut = |piece: &Piece<'a>| {
            let begin = piece.at.max(at);
            let len = (piece.at + piece.len).min(limit) - begin;
            let offset = piece.offset + (begin - piece.at);
            Piece { offset, len, target: 0, at: begin - base, ..*piece }
        };
        let own: Vec<_> =
            self.pieces.iter().take_while(|piece| piece.at < limit).map(cut).collect();
        self.at = own.last().map_or(at, |last| base + last.at + last.len);
        (at..self.at, own)
    }
}

/// A call. The parts that are being read are dropped before the copies.
struct ToAll<'a> {
    reading: Reading<'a>,
    copies: Copies,
    left: Left<'a>,
    targets: &'a [Buffer],
    options: &'a RequestOptions,
    devices: Vec<Arc<dyn Device>>,
    /// The length of parts, if the GPUs copy to each other.
    part_len: Option<u64>,
    begun: usize,
    _call: Arc<()>,
}

impl<'a> ToAll<'a> {
    fn new(
        engine: &'a Engine,
        pieces: &'a [Piece<'a>],
        targets: &'a [Buffer],
        options: &'a RequestOptions,
    ) -> Result<Self> {
        let devices = targets.iter().map(|target| {
            let device = engine.bring_in(target.gpu().expect("just checked"))?;
            engine.link(&device)?; // blocks are pinned for GPUs that the engine knows
            Ok(device)
        });
        let devices = devices.collect::<Result<Vec<_>>>()?;
        let copies = Copies::new(&devices, targets)?;
        let slot = engine.options().slot_size;
        let share = targets[0].len() / targets.len() as u64;
        let len = share.clamp(1, PART_SLOTS * slot).next_multiple_of(slot);
        let part_len = engine.are_peers(&copies.links)?.then_some(len);
        let reading = Reading { engine, parts: VecDeque::new() };
        let (left, _call) = (
            Left { pieces, is_one: pieces.len() == 1, at: 0 },
            Arc::clone(&engine.inner.several.calls),
        );
        Ok(Self { reading, copies, left, targets, options, devices, part_len, begun: 0, _call })
    }

    /// Begins to read the next part; false if there is none, or too many are begun.
    fn begin(&mut self, waits: &mut dyn FnMut() -> Result<bool>) -> Result<bool> {
        let Some(at) = self.left.next() else { return Ok(false) };
        let (engine, begun) = (self.reading.engine, self.reading.parts.len());
        let (gpu, blocks, len) = match self.part_len {
            Some(_) if begun >= PARTS_AT_ONCE * self.targets.len() => return Ok(false),
            Some(len) => (Some(self.begun % self.targets.len()), Vec::new(), len),
            None => {
                let held = begun + self.copies.queued.len();
                let block = engine.several_block(held, &self.devices, waits)?;
                let Some(block) = block else { return Ok(false) };
                let len = block.len();
                (None, vec![block], len)
            }
        };
        self.begun += 1;
        self.devices.iter().for_each(|device| drop(engine.link(device)));
        let (range, own) = self.left.cut(at, len, gpu.is_none());
        let memory = gpu.map_or(blocks.as_slice(), |gpu| slice::from_ref(&self.targets[gpu]));
        let spans = Many::spans(Direction::Read, &own, memory)?;
        let many = Many::new(Direction::Read, &own, &spans, self.options);
        let (state, results) = engine.start_many(&many, blocks)?;
        let transfer = ManyTransfer::new(Arc::clone(&state), results, engine);
        self.reading.parts.push_back(Part { transfer, state, range, gpu });
        Ok(true)
    }

    /// Queues the copies of the oldest part, which has been read.
    fn pass_on(&mut self) -> Result<Outcome> {
        let Part { transfer, range, gpu, .. } =
            self.reading.parts.pop_front().expect("the caller waited for it");
        let (outcome, blocks) = transfer.wait();
        let outcome = outcome?;
        if let Some(Err(error)) = outcome.results.into_iter().find(|result| result.is_err()) {
            return Err(*error);
        }
        let mut len = range.end - range.start;
        if self.left.is_one && outcome.whole.bytes < len {
            len = outcome.whole.bytes;
            self.left.pieces = &[]; // the file has ended
        }
        let from_gpu = gpu.map(Through::Gpu);
        let source = from_gpu.or_else(|| blocks.into_iter().next().map(Through::Block));
        self.copies.queue(source.expect("a read returns its block"), range.start, len)?;
        Ok(outcome.whole)
    }

    /// True if copies must end before more is read: links always have a block queued behind the one
    /// that they copy.
    fn is_full(&self) -> bool {
        self.reading.parts.is_empty() || (self.part_len.is_none() && self.copies.queued.len() > 1)
    }
}

/// The source of a part's copies.
enum Through {
    /// A target, by its index.
    Gpu(usize),
    /// A pinned block.
    Block(Buffer),
}

/// A part of the targets that is being read.
struct Part {
    transfer: ManyTransfer,
    state: Arc<State>,
    /// Its place in the targets.
    range: Range<u64>,
    /// The target that it is read to; `None`: a block.
    gpu: Option<usize>,
}

/// The parts that are being read. If it is dropped before, they are cancelled. Targets that are
/// still in use after a second cannot be used by other calls until then.
struct Reading<'a> {
    engine: &'a Engine,
    parts: VecDeque<Part>,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let until = Instant::now() + DRAIN_MAX;
        self.parts.iter().for_each(|part| self.engine.cancel(&part.state));
        for part in self.parts.iter().filter(|part| part.gpu.is_some()) {
            let left = until.saturating_duration_since(Instant::now());
            let _ = Engine::drain(&part.state, left);
        }
    }
}

/// The queued copies of a call. If it is dropped before they are done, they keep blocks and
/// targets, and no other call may use these.
struct Copies {
    links: Vec<Link>,
    /// The sources in the order of their copies, with events of links by their index.
    queued: VecDeque<(Through, Vec<(usize, Event)>)>,
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

    /// Queues copies of a part from a target to the other targets, or from a block to all targets.
    /// Ring order keeps every GPU at one incoming copy.
    fn queue(&mut self, source: Through, at: u64, len: u64) -> Result<()> {
        let count = usize::try_from(len).expect("a part is in memory");
        self.queued.push_back((source, Vec::new()));
        let (source, events) = self.queued.back_mut().expect("just added");
        let mut mark = |number: usize, device: &Arc<dyn Device>, stream: Stream| {
            let event = device.create_event()?;
            events.push((number, event));
            device.record(event, stream)
        };
        let links = &self.links;
        match source {
            _ if count == 0 => Ok(()),
            Through::Gpu(own) => {
                let Link { device, stream, address, .. } = &links[*own];
                let all = links[*own + 1..].iter().chain(&links[..*own]);
                // SAFETY: the targets have `len` bytes at `at`, which are kept until the stream has
                // passed the copy.
                let copied = all.map(|to| unsafe {
                    let target = to.address + at;
                    device.copy_to_peer(*stream, address + at, &*to.device, target, count)
                });
                let queued =
                    copied.collect::<Result<(), _>>().and_then(|()| mark(*own, device, *stream));
                queued.map_err(|source| failed(device, len, source))
            }
            Through::Block(block) => {
                let host = NonNull::new(block.address() as *mut u8).expect("pinned memory");
                links.iter().enumerate().try_for_each(|(number, link)| {
                    let Link { device, stream, address, .. } = link;
                    // SAFETY: the block has `len` bytes, and the target as many at `at`. Both are
                    // kept until the stream has passed the copy.
                    let copied =
                        unsafe { device.copy_to_device(*stream, address + at, host, count) };
                    let queued = copied.and_then(|()| mark(number, device, *stream));
                    queued.map_err(|source| failed(device, len, source))
                })
            }
        }
    }

    /// Waits until the oldest part has been copied; false if there is none.
    fn await_first(&mut self, check: &mut dyn FnMut() -> Result<()>) -> Result<bool> {
        let Some((_, events)) = self.queued.front() else { return Ok(false) };
        for &(number, event) in events {
            let device = &self.links[number].device;
            let is_done = || device.is_done(event).map_err(|e| failed(device, 0, e));
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
        let are_peers = self.queued.iter().any(|(source, _)| matches!(source, Through::Gpu(_)));
        for Link { device, stream, keep, .. } in &self.links {
            match device.synchronize(*stream) {
                Err(error) if !is_quiet(device.as_ref(), *stream) => {
                    match are_peers {
                        true => self.links.iter().for_each(|link| link.keep.lose(&error)),
                        false => keep.lose(&error),
                    }
                    is_over = false;
                }
                _ => drop(device.destroy_stream(*stream)),
            }
        }
        for (source, events) in self.queued.drain(..) {
            destroy(&self.links, events);
            if !is_over {
                let _ = ManuallyDrop::new(source);
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
        // If no thread starts, blocks and targets are leaked.
        let mut rest = ManuallyDrop::new(Self { links, queued });
        let _ = within(DRAIN_MAX, "forebay-drain", move || {
            rest.end();
            drop(mem::take(&mut rest.queued));
            mem::take(&mut rest.links).into_iter().for_each(|link| link.keep.land());
        });
    }
}

fn destroy(links: &[Link], events: Vec<(usize, Event)>) {
    for (number, event) in events {
        let _ = links[number].device.destroy_event(event);
    }
}

fn failed(device: &Arc<dyn Device>, len: u64, source: DeviceError) -> Error {
    Error::of_device(Operation::Copy, device.id(), len, source)
}

impl Outcome {
    /// The sum of two reads. Bytes of the second that came through pinned memory count as staged or
    /// cached: their target is a GPU.
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
