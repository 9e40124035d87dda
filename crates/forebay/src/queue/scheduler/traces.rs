//! Slot use, reported in the effects while the engine is traced. There is no clock here: the code
//! that runs the effects adds the time.

use forebay_base::units::ByteRange;

use super::Scheduler;
use crate::queue::window::Slot;

/// A slot that a window took for `range`, or gave back if there is no range.
#[derive(Debug)]
pub(crate) struct SlotUse {
    pub(crate) slot: Slot,
    pub(crate) range: Option<ByteRange>,
}

impl Scheduler {
    /// Turns slot tracing on or off.
    pub(crate) fn trace_slots(&mut self, traced: bool) {
        self.traced = traced;
    }

    /// Reports that a slot was taken for `range`, or given back.
    pub(super) fn trace_slot(&mut self, slot: Slot, range: Option<ByteRange>) {
        if self.traced {
            self.effects.slots.push(SlotUse { slot, range });
        }
    }
}
