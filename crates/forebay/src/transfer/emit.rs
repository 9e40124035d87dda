//! `tracing` events for the start, the cancellation and the end of a transfer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::{Outcome, State};
use crate::error::{Error, Result};
use crate::events::{self, Begin};
use crate::file::Handle;

impl State {
    /// Emits the start event and keeps why the transfer is not direct. Without a start event there
    /// is no end event either.
    pub(crate) fn emit_begin(&self, file: &Handle, begin: &Begin) {
        begin.not_direct.iter().for_each(|why| self.say_not_direct(Arc::clone(why)));
        let span = events::transfer_begins(file.path(), self.range, self.wanted, begin);
        *self.span.lock() = Some(span);
    }

    /// Emits a cancel event, if the transfer has not ended.
    pub(crate) fn emit_cancel(&self) {
        let is_open = self.span.lock().is_some();
        if is_open
            && events::hears_cancels()
            && let Some((path, range, _)) = self.described()
        {
            events::cancel_asked(&path, range, self.done());
        }
    }

    /// Emits the end event of a transfer that could not be started.
    pub(crate) fn emit_refused(&self, error: &Error) {
        let file = self.file.lock().clone();
        file.iter().for_each(|file| self.emit_end(file, &Err(error.clone())));
    }

    /// Emits the end event, before any waiting thread sees the end.
    pub(super) fn emit_end(&self, file: &Handle, result: &Result<Outcome>) {
        let span = self.span.lock().take();
        if let Some(span) = span {
            let tell =
                move || events::transfer_ended(&span, file.path(), self.started.elapsed(), result);
            // Dropping the span notifies subscribers too. A panicking subscriber must not keep
            // waiting threads from being woken.
            drop(catch_unwind(AssertUnwindSafe(tell)));
        }
    }
}
