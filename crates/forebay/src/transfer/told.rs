//! What subscribers of `tracing` are told of a transfer, from its beginning to its end.

use std::sync::PoisonError;

use super::{Outcome, State};
use crate::error::Result;
use crate::events::{self, Begin};
use crate::file::Handle;

impl State {
    /// Tells that it begins. Of one that is not told of its end is not told either.
    pub(crate) fn tell_begin(&self, file: &Handle, begin: &Begin) {
        let told = events::transfer_begins(file.path(), self.range, self.wanted, begin);
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = Some(told);
    }

    /// Tells that it was asked to stop, if it has not ended.
    pub(crate) fn tell_cancel(&self) {
        let is_told = self.told.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        if is_told
            && events::hears_cancels()
            && let Some((path, range, _)) = self.described()
        {
            events::cancel_asked(&path, range, self.done());
        }
    }

    /// Tells how it ended, before anybody who waits for it can know.
    pub(super) fn tell_end(&self, file: &Handle, result: &Result<Outcome>) {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(told) = told {
            events::transfer_ended(&told, file.path(), self.started.elapsed(), result);
        }
    }
}
