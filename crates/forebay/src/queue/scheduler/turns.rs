//! Whose turn it is: transfers with something queued, one op each in turn, urgent ones first.

use std::collections::VecDeque;

/// How soon a transfer's requests are made, beside those of others on the same drive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Priority {
    /// In turn with the others.
    #[default]
    Normal,
    /// Before all that are not urgent.
    Urgent,
}

/// A transfer in line. Keys are used again, serials never, so an entry that outlived its transfer
/// is known for what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) key: usize,
    pub(super) serial: u64,
    pub(super) priority: Priority,
}

/// See the module's own text.
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

    /// Whether nobody stands in line, not even in vain.
    pub(super) fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.normal.is_empty()
    }

    pub(super) fn pop(&mut self) -> Option<Turn> {
        self.urgent.pop_front().or_else(|| self.normal.pop_front())
    }
}
