//! How a call reaches its file.

use super::route::Reason;
use super::segment::{Alignment, Io};

/// How a call reaches its file, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Access {
    /// The alignment of O_DIRECT, for bytes that are not resident; `None`: the page cache.
    pub(crate) direct: Option<Alignment>,
    pub(crate) reason: Reason,
}

impl Access {
    pub(crate) const fn o_direct(alignment: Alignment, reason: Reason) -> Self {
        Self { direct: Some(alignment), reason }
    }

    pub(crate) const fn cached(reason: Reason) -> Self {
        Self { direct: None, reason }
    }

    pub(crate) const fn is_o_direct(self) -> bool {
        self.direct.is_some()
    }

    /// True if the caller demands O_DIRECT, for resident bytes too.
    pub(crate) fn requires_o_direct(self) -> bool {
        self.is_o_direct() && self.reason == Reason::Demanded
    }

    /// The access of a read whose file does not report its size: O_DIRECT would end at the reported
    /// size.
    pub(crate) fn of_unknown_size(self) -> Self {
        if self.requires_o_direct() { self } else { Self::cached(Reason::NoDirectIo) }
    }

    pub(crate) const fn io(self) -> Io {
        if self.is_o_direct() { Io::ODirect } else { Io::Buffered }
    }
}
