//! What becomes of slots, told with the effects while somebody traces the engine: there is no clock
//! here, so whoever acts on the effects adds the time.

use super::Scheduler;
use crate::queue::window::Slot;
use crate::units::ByteRange;

/// A slot that a window has taken for these bytes; without bytes, that it has given back.
#[derive(Debug)]
pub(crate) struct SlotUse {
    pub(crate) slot: Slot,
    pub(crate) range: Option<ByteRange>,
}

impl Scheduler {
    /// Has the effects tell of slots, or not.
    pub(crate) fn trace_slots(&mut self, traced: bool) {
        self.traced = traced;
    }

    /// Tells that a slot was taken for `range`, or given back.
    pub(super) fn trace_slot(&mut self, slot: Slot, range: Option<ByteRange>) {
        if self.traced {
            self.effects.slots.push(SlotUse { slot, range });
        }
    }
}
