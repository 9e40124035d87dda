//! Turn order of transfers with queued ops: one op each in turn, urgent transfers first.

use std::collections::VecDeque;

/// Order of a transfer's requests relative to those of other transfers on the same drive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Priority {
    /// In turn with other normal transfers.
    #[default]
    Normal,
    /// Before all transfers that are not urgent.
    Urgent,
}

/// A transfer's entry in the turn order. Keys are reused and serials are not, so an entry that
/// outlived its transfer is detected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) key: usize,
    pub(super) serial: u64,
    pub(super) priority: Priority,
}

/// The turn order of transfers, by priority.
#[derive(Debug, Default)]
pub(super) struct Turns {
    urgent: VecDeque<Turn>,
    normal: VecDeque<Turn>,
}

impl Turns {
    pub(super) fn push(&mut self, turn: Turn) {
        self.line(turn).push_back(turn);
    }

    /// Puts a transfer first among those of its priority.
    pub(super) fn push_first(&mut self, turn: Turn) {
        self.line(turn).push_front(turn);
    }

    fn line(&mut self, turn: Turn) -> &mut VecDeque<Turn> {
        match turn.priority {
            Priority::Urgent => &mut self.urgent,
            Priority::Normal => &mut self.normal,
        }
    }

    /// True if the queue is empty, stale entries included.
    pub(super) fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.normal.is_empty()
    }

    /// The transfer in turn, which may have ended.
    pub(super) fn first(&self) -> Option<&Turn> {
        self.urgent.front().or_else(|| self.normal.front())
    }

    pub(super) fn pop(&mut self) -> Option<Turn> {
        self.urgent.pop_front().or_else(|| self.normal.pop_front())
    }
}
