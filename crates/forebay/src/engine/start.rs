//! Turns a caller's call into a request for the scheduler: checks it, and chooses its route, its
//! queue and its link. Direct reads and writes go between a drive and a GPU; what they do not cover
//! is staged.

use std::cell::OnceCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use forebay_base::units::{ByteRange, align_down, align_up};

use super::unwind::OnUnwind;
use super::{Engine, bad_request};
use crate::error::{Error, Result};
use crate::events::Begin;
use crate::file::{Handle, Residency, page_size};
use crate::gpu::{Device, DirectProvider, Port};
use crate::memory::{Buffer, Span};
use crate::options::DirectIo;
use crate::options::RequestOptions;
use crate::plan::{Access, Alignment, Direction, Io, Reason, Route, split_write};
use crate::queue::{DirectPath, Request, Share, now_ns};
use crate::transfer::{State, SyncMode};

/// A call with its arguments.
pub(super) struct Call<'a> {
    /// When it was made.
    pub(super) started: Instant,
    pub(super) file: &'a Arc<Handle>,
    pub(super) direction: Direction,
    pub(super) offset: u64,
    pub(super) span: Span,
    pub(super) options: &'a RequestOptions,
    /// Whether it represents all pieces of a larger call in this file.
    pub(super) is_part: bool,
    /// The file's size, if known.
    pub(super) size: Option<u64>,
    /// Whether it is part of an operation that is logged as a unit.
    pub(super) is_block: bool,
    /// Whether the caller's thread may wait for a drive.
    pub(super) may_wait: bool,
    /// How much of its range is in memory, once known.
    pub(super) residency: OnceCell<Residency>,
    /// Number of threads in such reads, if [`Engine::note_caller`] counts it; else 0.
    pub(super) callers: usize,
}

impl<'a> Call<'a> {
    pub(super) fn new(
        file: &'a Arc<Handle>,
        direction: Direction,
        offset: u64,
        span: Span,
        options: &'a RequestOptions,
    ) -> Self {
        Self {
            started: Instant::now(),
            file,
            direction,
            offset,
            span,
            options,
            is_part: false,
            size: None,
            is_block: false,
            may_wait: true,
            residency: OnceCell::new(),
            callers: 0,
        }
    }

    /// How much of its range is in memory; the kernel is queried once.
    pub(super) fn residency(&self) -> Residency {
        let query =
            || self.range().map_or(Residency::Unknown(""), |range| self.file.residency(range));
        *self.residency.get_or_init(query)
    }

    /// Whether all of its range is in memory.
    pub(super) fn is_resident(&self) -> bool {
        matches!(self.residency(), Residency::Known { resident, len } if resident == len)
    }

    pub(super) fn range(&self) -> Result<ByteRange> {
        // The kernel's offsets are signed.
        match self.offset.checked_add(self.span.len) {
            Some(end) if i64::try_from(end).is_ok() => Ok(ByteRange { start: self.offset, end }),
            _ => Err(bad_request(
                self.direction.into(),
                self.file.place(self.offset, self.span.len),
                "the range ends beyond the largest file offset".into(),
            )),
        }
    }

    /// The fields of its start event.
    pub(super) fn begin(&self, access: Option<Access>) -> Begin {
        let gpu = self.span.gpu().map(|gpu| gpu.id());
        let route = access.map(|access| (access.io().route(gpu.is_some()), access.reason));
        let direction = self.direction.name();
        Begin { direction, pieces: None, gpu, route, not_direct: None }
    }

    pub(super) fn unavailable(&self, route: Route, reason: String) -> Error {
        let place = self.file.place(self.offset, self.span.len);
        Error::RouteUnavailable { route, place, reason }
    }
}

/// The direct part of a transfer, and the rest.
#[derive(Debug)]
struct DirectPart {
    port: Arc<dyn Port>,
    reason: Reason,
    /// Whole units, in one range.
    body: ByteRange,
    /// The parts before and after the body.
    edges: Vec<ByteRange>,
}

/// The direct part; otherwise the reason why there is none, if there may be a path.
type FoundDirectPart = Result<DirectPart, Option<Arc<str>>>;

/// Why a call of many pieces is not direct.
pub(super) const OF_PIECES: &str = "pieces of one call use slots";
/// Why a write is not direct.
pub(super) const WRITE_NOT_REQUIRED: &str = "writes are direct only if the route is required";
/// Why a read of cached bytes is not direct.
pub(super) const RESIDENT: &str = "the bytes are in the page cache, which is faster";
/// Why a stream-ordered transfer is not direct.
pub(super) const IN_ORDER: &str = "stream-ordered transfers use slots";

/// The shortest write that bypasses the page cache by default. On two cores O_DIRECT and the page
/// cache were equally fast at this size, and O_DIRECT was faster at 64 MiB (decision 0016).
pub(super) const PAST_CACHE_MIN: u64 = 16 << 20;

/// Bytes that may be written to the page cache before the kernel makes the writer wait: halfway
/// between the limit from which it writes in the background and the limit of all unwritten pages
/// (`mm/page-writeback.c`, `dirty_freerun_ceiling`). Without these numbers there is no limit.
fn room_for_writes() -> u64 {
    let pages = |text: &str| {
        let number = |name: &str| -> Option<u64> {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line?.parse().ok()
        };
        let most =
            number("nr_dirty_threshold")?.checked_add(number("nr_dirty_background_threshold")?)?;
        Some((most / 2).saturating_sub(number("nr_dirty")? + number("nr_writeback")?))
    };
    let text = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    pages(&text).map_or(u64::MAX, |pages| pages.saturating_mul(page_size()))
}

impl Engine {
    /// Starts a call. `buffer` is memory that the transfer owns until it has drained.
    pub(super) fn start(&self, call: &Call<'_>, buffer: Option<Buffer>) -> Result<Arc<State>> {
        let begins = |access, direct: &FoundDirectPart| {
            let (buffers, file) = (buffer.into_iter().collect(), Arc::clone(call.file));
            let keep = call.span.keep.iter().cloned().collect();
            let state = Arc::new(State::new(call.started, file, call.range()?, buffers, keep));
            if !call.is_block {
                let begin = call.begin(Some(access));
                let begin = match direct {
                    Ok(part) => Begin { route: Some((Route::Direct, part.reason)), ..begin },
                    Err(why) => Begin { not_direct: why.clone(), ..begin },
                };
                state.emit_begin(call.file, &begin);
            }
            Ok(state)
        };
        self.start_with(call, begins)
    }

    /// Starts a call whose transfer has begun.
    pub(super) fn start_as(&self, call: &Call<'_>, state: &Arc<State>) -> Result<()> {
        self.start_with(call, |_, _| Ok(Arc::clone(state))).map(drop)
    }

    fn start_with(
        &self,
        call: &Call<'_>,
        begins: impl FnOnce(Access, &FoundDirectPart) -> Result<Arc<State>>,
    ) -> Result<Arc<State>> {
        let _guard = OnUnwind::new(self, None);
        let (range, mut access) = (call.range()?, self.access(call)?);
        let (mut end, mut is_sized) = (range.end, false);
        let parts = match call.direction {
            Direction::Read => {
                let size = self.size_of(call, range.end)?;
                is_sized = size.is_some();
                if let Some(size) = size {
                    end = size.clamp(range.start, range.end);
                } else {
                    access = access.of_unknown_size();
                }
                let wanted = ByteRange { start: range.start, end };
                let part = (!wanted.is_empty()).then_some((wanted, access.io(), access.reason));
                part.into_iter().collect()
            }
            Direction::Write => {
                if call.options.preallocate && !range.is_empty() {
                    call.file.preallocate(range.start, range.len())?;
                }
                split_write(range, access.direct, call.file.cache_unit(), access.reason).into()
            }
        };
        let direct = self.direct_part(call, ByteRange { start: range.start, end }, is_sized)?;
        let link = call.span.gpu().map(|device| self.ready_link(device)).transpose()?;
        let drive = self.drive(call.file, access.is_o_direct())?;
        self.start_readers()?;
        let state = begins(access, &direct)?;
        let is_cold = access.is_o_direct()
            && (access.requires_o_direct()
                || call.direction == Direction::Write
                || call.file.is_absent(range.start));
        let mut request = Request {
            state: Arc::clone(&state),
            file: Arc::clone(call.file),
            batch: None,
            direction: call.direction,
            range,
            end,
            is_sized,
            address: call.span.address,
            link,
            direct: None,
            drive,
            parts,
            shares: Vec::new(),
            alignment: access.direct,
            cold: is_cold,
            exact: call.options.exact,
            sync: call.options.sync,
            priority: call.options.priority,
        };
        direct.into_iter().for_each(|part| self.use_direct_part(part, &mut request));
        self.launch(request);
        Ok(state)
    }

    /// The size of the file for a read that reaches to `end`, if its file system knows it and
    /// responds in time.
    fn size_of(&self, call: &Call<'_>, end: u64) -> Result<Option<u64>> {
        let size = match call.size {
            Some(size) => Some(size),
            None if call.may_wait => Some(call.file.size()?),
            None => self.size_in_time(call.file, end)?,
        };
        Ok(size.filter(|&size| call.file.is_sized(size)))
    }

    /// Hands a request to the scheduler and plans its first window on this thread, which is awake.
    pub(super) fn launch(&self, request: Request) {
        let state = Arc::clone(&request.state);
        let _guard = OnUnwind::new(self, Some(&state));
        let now = now_ns();
        let claim = self.inner.core.with(|scheduler| {
            scheduler.set_time(now);
            let (key, claim) = scheduler.start(request);
            state.set_key(key);
            claim
        });
        if let Some(claim) = claim {
            let (piece, segments) = self.inner.tools.planner.plan(&claim);
            self.inner.core.with(|scheduler| scheduler.opened(claim.window, piece, segments));
        }
    }

    /// The O_DIRECT alignment of a file, or why O_DIRECT is not used.
    pub(crate) fn o_direct_alignment(&self, file: &Handle) -> Result<Alignment, String> {
        if self.inner.options.direct_io == DirectIo::Off {
            return Err("O_DIRECT is switched off (`FOREBAY_DIRECT_IO=off`)".to_owned());
        }
        if file.opens_slowly() && !file.knows_o_direct() {
            return Err("no second descriptor with O_DIRECT was opened with the file".to_owned());
        }
        let direct = file.o_direct().map_err(str::to_owned)?;
        let (memory, offset) = (direct.alignment().memory, direct.alignment().offset);
        let alignment = Alignment::of(memory.into(), offset.into());
        if alignment.offset > self.inner.options.segment_size {
            let unit = alignment.offset;
            return Err(format!("O_DIRECT on this file takes units of {unit} bytes"));
        }
        Ok(alignment)
    }

    /// How the call reaches its file: as the required route requires, or in the best available
    /// way.
    pub(super) fn access(&self, call: &Call<'_>) -> Result<Access> {
        let on_gpu = call.span.gpu().is_some();
        let o_direct = |route| {
            self.o_direct_alignment(call.file)
                .map(|alignment| Access::o_direct(alignment, Reason::Required))
                .map_err(|reason| call.unavailable(route, reason))
        };
        let Some(route) = call.options.route else {
            return Ok(self.best_access(call));
        };
        let refuse = |reason: &str| Err(call.unavailable(route, reason.into()));
        match route {
            Route::Direct if call.is_part => {
                refuse("pieces of one call use slots: move each by a separate call")
            }
            Route::Host if on_gpu => refuse("the memory is a GPU's"),
            Route::Staged if !on_gpu => {
                refuse("the memory is the host's, so no slot is used; the route is `host`")
            }
            // For `direct`, this is for the part that is not direct.
            Route::Direct | Route::Host => Ok(self.best_access(call)),
            Route::Staged => o_direct(route),
            Route::Cached => Ok(Access::cached(Reason::Required)),
        }
    }

    /// How a write without a route reaches its file.
    fn write_access(&self, call: &Call<'_>) -> Access {
        let bypasses = call.options.past_cache || self.is_faster_past_cache(call);
        if !bypasses || call.file.is_memory() {
            return Access::cached(Reason::WriteThroughCache);
        }
        match self.o_direct_alignment(call.file) {
            Ok(alignment) => Access::o_direct(alignment, Reason::WritePastCache),
            Err(_) => Access::cached(Reason::NoDirectIo),
        }
    }

    /// Whether a large write is faster with O_DIRECT: it is synced, or the kernel would make the
    /// caller wait for the drive anyway. Bytes that are in the page cache stay there.
    fn is_faster_past_cache(&self, call: &Call<'_>) -> bool {
        let len = call.span.len;
        len >= PAST_CACHE_MIN
            && !call.is_part
            && !call.file.opens_slowly()
            && (call.options.sync != SyncMode::None || len > room_for_writes())
            && call.file.is_uncached(ByteRange::at(call.offset, len))
    }

    fn best_access(&self, call: &Call<'_>) -> Access {
        if call.direction == Direction::Write {
            return self.write_access(call);
        }
        let file = call.file;
        if file.is_memory() {
            return Access::cached(Reason::InMemory);
        }
        // Open a file's second descriptor only if the bytes need it.
        let is_short = !call.is_part && call.span.len <= self.options().slot_size;
        if is_short && !file.knows_o_direct() && call.is_resident() {
            return Access::cached(Reason::Resident);
        }
        match self.o_direct_alignment(file) {
            Ok(alignment) => Access::o_direct(alignment, Reason::NotResident),
            Err(_) => Access::cached(Reason::NoDirectIo),
        }
    }
}

impl Engine {
    /// Why a transfer to or from a GPU is not direct; `None` if there is no direct path anyway.
    pub(super) fn why_not_direct(
        &self,
        gpu: Option<&Arc<dyn Device>>,
        why: &str,
    ) -> Option<Arc<str>> {
        let may = |gpu: &&Arc<dyn Device>| self.inner.direct.may_serve(&***gpu);
        gpu.filter(|_| self.options().cufile).filter(may).map(|_| why.into())
    }

    /// The direct part of a call's range, or why there is none. `is_sized`: the file is known to
    /// reach that far, which is not required for a write.
    ///
    /// # Errors
    /// Why there is none, if the route was required.
    fn direct_part(
        &self,
        call: &Call<'_>,
        range: ByteRange,
        is_sized: bool,
    ) -> Result<FoundDirectPart> {
        let required = call.options.route == Some(Route::Direct);
        let is_sized = is_sized || call.direction == Direction::Write;
        let gpu = call.span.gpu().filter(|_| self.options().cufile);
        // If no route is required. Writes go through the page cache, and so do files that exist
        // only there. On most machines no provider serves the GPU.
        let may_be = || {
            call.direction == Direction::Read
                && !call.is_part
                && !call.is_block
                && !call.file.is_memory()
                && gpu.is_some_and(|gpu| self.inner.direct.may_serve(&**gpu))
        };
        if !required && (call.options.route.is_some() || !is_sized || !may_be()) {
            let plain = call.direction == Direction::Write && call.options.route.is_none();
            let gpu = call.span.gpu().filter(|_| plain && !call.is_block && !call.is_part);
            let why = self.why_not_direct(gpu, WRITE_NOT_REQUIRED);
            return Ok(Err(why));
        }
        if !is_sized {
            let why = "its file system does not report its size";
            return Err(call.unavailable(Route::Direct, why.into()));
        }
        let found = self.find_direct_part(call, range, required);
        if let (Err(Some(why)), true) = (&found, required) {
            return Err(call.unavailable(Route::Direct, why.to_string()));
        }
        Ok(found)
    }

    fn find_direct_part(
        &self,
        call: &Call<'_>,
        range: ByteRange,
        required: bool,
    ) -> FoundDirectPart {
        let why = |text: &str| Err(Some(text.into()));
        let Some(device) = call.span.gpu() else { return why("the memory is the host's") };
        let options = self.options();
        if !options.cufile {
            return why("cuFile is switched off (`FOREBAY_CUFILE=off`)");
        }
        if options.direct_io == DirectIo::Off {
            return why("O_DIRECT is switched off (`FOREBAY_DIRECT_IO=off`)");
        }
        if call.direction == Direction::Write && copies_writes(call.file) {
            let system = call.file.file_system();
            return why(&format!("cuFile writes to `{system}` file systems through the host"));
        }
        let port = call.file.port(&self.inner.direct, device, required);
        let port = port.map_err(|no| Some(no.into()))?;
        let unit = port.unit();
        let whole = match call.direction {
            Direction::Read => unit,
            Direction::Write => unit.max(call.file.cache_unit()),
        };
        if unit > options.segment_size {
            let small = "and `FOREBAY_SEGMENT_SIZE` is smaller";
            return why(&format!("it takes units of {unit} bytes, {small}"));
        }
        let (body, edges) = cut(range, whole);
        if range.is_empty() {
            return Err(None);
        }
        if body.is_empty() {
            return why(&format!("the range holds no whole unit of {whole} bytes"));
        }
        let address = call.span.address + (body.start - range.start);
        if !address.is_multiple_of(unit) {
            return why(&format!("memory address and file offset differ modulo {unit} bytes"));
        }
        if !required && call.file.is_resident(body) {
            return why(RESIDENT);
        }
        let reason = if required { Reason::Required } else { Reason::PeerToPeer };
        Ok(DirectPart { port, reason, body, edges })
    }

    /// Converts a staged request to a direct one, as far as `part` covers it.
    fn use_direct_part(&self, part: DirectPart, request: &mut Request) {
        let Request { link: Some(link), drive, alignment, .. } = *request else { return };
        let DirectPart { port, reason, body, edges } = part;
        let unit = port.unit();
        let edges = edges.into_iter().map(|edge| (edge, Io::Buffered, Reason::UnalignedEdge));
        let parts: VecDeque<_> = edges.collect();
        let share = (!parts.is_empty()).then_some(Share { drive, parts });
        request.shares = share.into_iter().collect();
        request.direct = Some(DirectPath { port, link, alignment });
        request.link = None;
        request.parts = [(body, Io::ODirect, reason)].into();
        request.alignment = Some(Alignment::of(unit, unit));
        request.cold = false;
    }
}

/// True if cuFile writes through host memory on the file system of `file`, whatever its settings
/// (cuFile's reference, "cuFile Compatibility Mode"): GPFS, and WekaFS, which has no name here.
fn copies_writes(file: &Handle) -> bool {
    matches!(file.file_system(), "gpfs" | "unknown")
}

/// Cuts a range into its whole units and the edges. A unit that the page cache writes as one must
/// not be split between them.
fn cut(range: ByteRange, unit: u64) -> (ByteRange, Vec<ByteRange>) {
    let start = align_up(range.start, unit).min(range.end);
    let body = ByteRange { start, end: align_down(range.end, unit).max(start) };
    let edges = [
        ByteRange { start: range.start, end: body.start },
        ByteRange { start: body.end, end: range.end },
    ];
    (body, edges.into_iter().filter(|edge| !edge.is_empty()).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_byte_is_in_the_body_or_in_one_edge(start in 0_u64..1 << 20, len in 0_u64..1 << 20,
            unit in (0_u32..21).prop_map(|bits| 1 << bits)) {
            let range = ByteRange::at(start, len);
            let (body, edges) = cut(range, unit);
            let mut parts = edges;
            if !body.is_empty() {
                prop_assert_eq!((body.start % unit, body.end % unit), (0, 0));
                parts.push(body);
            }
            parts.sort_by_key(|part| part.start);
            let mut at = range.start;
            for part in parts {
                prop_assert!(part.start == at && !part.is_empty());
                prop_assert!(part == body || part.len() < 2 * unit);
                at = part.end;
            }
            prop_assert_eq!(at, range.end);
        }
    }
}
