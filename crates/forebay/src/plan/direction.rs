//! The direction of a transfer.

use crate::error::Operation;

/// Direction of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// File → memory.
    Read,
    /// Memory → file.
    Write,
}

impl Direction {
    /// The name in traces and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }

    /// The operation in errors.
    pub(crate) fn operation(self) -> Operation {
        match self {
            Self::Read => Operation::Read,
            Self::Write => Operation::Write,
        }
    }
}
