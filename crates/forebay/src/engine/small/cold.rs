//! Starts small reads of bytes that are not in memory on their own ring.

#![expect(unsafe_code, reason = "hands the caller's memory to the ring")]

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

use forebay_base::process::ProcessLocal;
use forebay_base::units::{ByteRange, align_down, align_up};

use super::ring::{ColdCall, ColdEngine, ColdRead, ColdReads, ColdTarget};
use crate::engine::start::Call;
use crate::engine::{Engine, Inner};
use crate::file::Residency;
use crate::memory::{Buffer, Span};
use crate::plan::{Access, Direction, Reason};
use crate::transfer::{State, Touch, goes_at_once};

impl ColdEngine for Inner {
    fn start_thread(&self) -> bool {
        let Some(reads) = self.cold.get().cloned().flatten() else { return false };
        let core = Arc::clone(&self.core);
        self.threads.start_cold(move || core.guard(|| reads.run())).is_ok()
    }

    fn repeat(self: Arc<Self>, call: ColdCall) {
        Engine { inner: ProcessLocal::of(self) }.repeat(call);
    }
}

impl Engine {
    /// Starts a read that [`start_small`](Self::start_small) found to be small and plain, if no
    /// byte of it is in memory and its file allows O_DIRECT. `None` if it needs the general path,
    /// which then gets the buffer.
    pub(super) fn start_cold(
        &self,
        call: &Call<'_>,
        buffer: &mut Option<Buffer>,
    ) -> Option<Arc<State>> {
        let (len, file) = (call.span.len, call.file);
        let range = call.range().ok()?;
        // Resident parts are read from memory.
        if !matches!(call.residency(), Residency::Known { resident: 0, .. }) {
            return None;
        }
        let alignment = self.o_direct_alignment(file).ok()?;
        if !file.allows_io_uring() {
            return None;
        }
        let reads = self.inner.cold.get_or_init(|| {
            let engine = ProcessLocal::downgrade(&self.inner);
            ColdReads::new(self.options(), &self.inner.core, engine)
        });
        let reads = reads.as_ref()?;
        let covered = ByteRange {
            start: align_down(range.start, alignment.offset),
            end: align_up(range.end, alignment.offset),
        };
        // A drive fills the last unit of a file, and so more memory than the file's bytes.
        let is_aligned = covered == range && call.span.address.is_multiple_of(alignment.memory);
        let (target, memory) = match call.span.gpu() {
            None if is_aligned && file.has(range.end) => {
                (ColdTarget::Memory, NonNull::new(call.span.address as *mut u8)?)
            }
            gpu => {
                let cells = match gpu {
                    Some(device) => self.cells(device)?,
                    None => &reads.bounce,
                };
                let cells = Arc::clone(cells);
                let cell = cells.take(covered.len(), Some(self.inner.tools.arena.room()))?;
                (
                    ColdTarget::Cell { cells, cell, skip: range.start - covered.start },
                    cell.pointer(),
                )
            }
        };
        let state = self.state_of(call, range, buffer);
        state.reaps_with(Arc::clone(reads) as _);
        let access = Access::o_direct(alignment, Reason::NotResident);
        state.emit_begin(file, &call.begin(Some(access)));
        let (address, gpu) = (call.span.address, call.span.gpu().cloned());
        let cold = ColdCall {
            state: Arc::clone(&state),
            file: Arc::clone(file),
            span: Span::kept_elsewhere(address, len, gpu),
            options: *call.options,
        };
        let (touch, start) = (Touch::new(&state), Instant::now());
        let read = ColdRead { call: cold, covered, target, touch, start };
        // A blocking call waits next, which submits it.
        let at_once = !call.may_wait && goes_at_once();
        // SAFETY: the transfer keeps the caller's memory, and the read its cell.
        if let Some(read) = unsafe { reads.start(read, memory, at_once) } {
            if let ColdTarget::Cell { cells, cell, .. } = read.target {
                cells.give(cell);
            }
            self.repeat(read.call);
        }
        Some(state)
    }

    /// Continues a transfer that began by the general path.
    fn repeat(&self, ColdCall { state, file, span, options }: ColdCall) {
        let call = Call::new(&file, Direction::Read, state.requested().start, span, &options);
        let call = Call { may_wait: false, ..call };
        if let Err(error) = self.start_as(&call, &state) {
            self.inner.core.end(state, Err(error));
        }
    }

    /// The state of a small transfer, which owns the buffer.
    pub(super) fn state_of(
        &self,
        call: &Call<'_>,
        range: ByteRange,
        buffer: &mut Option<Buffer>,
    ) -> Arc<State> {
        let (buffers, file) = (buffer.take().into_iter().collect(), Arc::clone(call.file));
        let keep = call.span.keep.iter().cloned().collect();
        Arc::new(State::new(call.started, file, range, buffers, keep))
    }
}
