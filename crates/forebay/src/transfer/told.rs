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
    pub(crate) fn tell_begin(&self, file: &Handle, begin: &Begin) {
        begin.not_direct.iter().for_each(|why| self.say_not_direct(Arc::clone(why)));
        let told = events::transfer_begins(file.path(), self.range, self.wanted, begin);
        *self.told.lock() = Some(told);
    }

    /// Emits a cancel event, if the transfer has not ended.
    pub(crate) fn tell_cancel(&self) {
        let is_told = self.told.lock().is_some();
        if is_told
            && events::hears_cancels()
            && let Some((path, range, _)) = self.described()
        {
            events::cancel_asked(&path, range, self.done());
        }
    }

    /// Emits the end event of a transfer that could not be started.
    pub(crate) fn tell_refused(&self, error: &Error) {
        let file = self.file.lock().clone();
        file.iter().for_each(|file| self.tell_end(file, &Err(error.clone())));
    }

    /// Emits the end event, before any waiting thread sees the end.
    pub(super) fn tell_end(&self, file: &Handle, result: &Result<Outcome>) {
        let told = self.told.lock().take();
        if let Some(told) = told {
            let tell =
                move || events::transfer_ended(&told, file.path(), self.started.elapsed(), result);
            // Dropping the span notifies subscribers too. A panicking subscriber must not keep
            // waiting threads from being woken.
            drop(catch_unwind(AssertUnwindSafe(tell)));
        }
    }
}
