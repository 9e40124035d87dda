//! Events of `tracing` for the start, the cancellation and the end of a transfer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::{Outcome, State};
use crate::error::{Error, Result};
use crate::events::{self, Begin};
use crate::file::Handle;

impl State {
    /// Tells that it begins, and keeps why it does not go straight. Of one that is not told of
    /// its end is not told either.
    pub(crate) fn tell_begin(&self, file: &Handle, begin: &Begin) {
        begin.not_direct.iter().for_each(|why| self.say_not_direct(Arc::clone(why)));
        let told = events::transfer_begins(file.path(), self.range, self.wanted, begin);
        *self.told.lock() = Some(told);
    }

    /// Tells that it was asked to stop, if it has not ended.
    pub(crate) fn tell_cancel(&self) {
        let is_told = self.told.lock().is_some();
        if is_told
            && events::hears_cancels()
            && let Some((path, range, _)) = self.described()
        {
            events::cancel_asked(&path, range, self.done());
        }
    }

    /// Tells that it could not be started after all.
    pub(crate) fn tell_refused(&self, error: &Error) {
        let file = self.file.lock().clone();
        file.iter().for_each(|file| self.tell_end(file, &Err(error.clone())));
    }

    /// Tells how it ended, before anybody who waits for it can know.
    pub(super) fn tell_end(&self, file: &Handle, result: &Result<Outcome>) {
        let told = self.told.lock().take();
        if let Some(told) = told {
            let tell =
                move || events::transfer_ended(&told, file.path(), self.started.elapsed(), result);
            // The span ends with it, which subscribers learn as well: one that panics would take
            // those with it who wait for the transfer.
            drop(catch_unwind(AssertUnwindSafe(tell)));
        }
    }
}
