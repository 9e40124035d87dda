//! Turns a caller's call into a request for the scheduler: checks it, and chooses its route, its
//! queue and its link.

use std::sync::Arc;

use forebay_base::units::ByteRange;

use super::call::Call;
use super::lent::OnUnwind;
use super::{Engine, peers};
use crate::error::Result;
use crate::file::Handle;
use crate::memory::Buffer;
use crate::options::DirectIo;
use crate::plan::{Access, Alignment, Direction, Reason, Route, split_write};
use crate::queue::{Request, now_ns};
use crate::transfer::State;

impl Engine {
    /// Starts a call. `buffer` is memory that the transfer owns until it has drained.
    pub(super) fn start(&self, call: &Call<'_>, buffer: Option<Buffer>) -> Result<Arc<State>> {
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
        let link = call.span.gpu.as_ref().map(|device| self.ready_link(device)).transpose()?;
        let drive = self.drive(call.file, access.is_o_direct())?;
        self.start_readers()?;
        let (buffers, keep) =
            (buffer.into_iter().collect(), call.span.keep.iter().cloned().collect());
        let state = Arc::new(State::new(Arc::clone(call.file), range, buffers, keep));
        if !call.is_block {
            let begin = peers::with_direct_part(&direct, call.begin(Some(access)));
            state.emit_begin(call.file, &begin);
        }
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
            peer: None,
            drive,
            parts,
            shares: Vec::new(),
            alignment: access.direct,
            cold: call.begins_cold(access),
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
    pub(super) fn around_cache(&self, file: &Handle) -> Result<Alignment, String> {
        if self.inner.options.direct_io == DirectIo::Off {
            return Err("O_DIRECT is switched off (`FOREBAY_DIRECT_IO=off`)".to_owned());
        }
        if file.opens_slowly() && !file.knows_direct() {
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

    /// How the call reaches its file: as the demanded route requires, or in the best available
    /// way.
    pub(super) fn access(&self, call: &Call<'_>) -> Result<Access> {
        let on_gpu = call.span.gpu.is_some();
        let Some(route) = call.options.route else { return Ok(self.best_access(call)) };
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
            Route::Staged => self
                .around_cache(call.file)
                .map(|alignment| Access::o_direct(alignment, Reason::Demanded))
                .map_err(|reason| call.unavailable(route, reason)),
            Route::Cached => Ok(Access::cached(Reason::Demanded)),
        }
    }

    fn best_access(&self, call: &Call<'_>) -> Access {
        if call.direction == Direction::Write {
            return Access::cached(Reason::WriteThroughCache);
        }
        let file = call.file;
        if file.is_memory() {
            return Access::cached(Reason::InMemory);
        }
        // Open a file's second descriptor only if the bytes need it.
        let is_short = !call.is_part && call.span.len <= self.options().slot_size;
        if is_short
            && !file.knows_direct()
            && call.range().is_ok_and(|range| file.is_resident(range))
        {
            return Access::cached(Reason::Resident);
        }
        match self.around_cache(file) {
            Ok(alignment) => Access::o_direct(alignment, Reason::NotResident),
            Err(_) => Access::cached(Reason::NoDirectIo),
        }
    }
}
