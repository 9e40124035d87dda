//! A call with its arguments, as all paths of the engine take it.

use std::sync::Arc;

use forebay_base::units::ByteRange;

use super::bad_request;
use super::request::RequestOptions;
use crate::error::{Error, Result};
use crate::events::Begin;
use crate::file::{Handle, ResidencySource};
use crate::memory::Span;
use crate::plan::{Access, Direction, Route};

/// A call with its arguments.
pub(super) struct Call<'a> {
    pub(super) file: &'a Arc<Handle>,
    pub(super) direction: Direction,
    pub(super) offset: u64,
    pub(super) span: Span,
    pub(super) options: &'a RequestOptions,
    /// Whether it represents all pieces of a larger call in this file.
    pub(super) is_part: bool,
    /// The file's size, if known.
    pub(super) size: Option<u64>,
    /// Whether it is part of an operation that is logged as a unit.
    pub(super) is_block: bool,
    /// Whether the caller's thread may wait for a drive.
    pub(super) may_wait: bool,
}

impl<'a> Call<'a> {
    pub(super) fn new(
        file: &'a Arc<Handle>,
        direction: Direction,
        offset: u64,
        span: Span,
        options: &'a RequestOptions,
    ) -> Self {
        Self {
            file,
            direction,
            offset,
            span,
            options,
            is_part: false,
            size: None,
            is_block: false,
            may_wait: true,
        }
    }

    pub(super) fn range(&self) -> Result<ByteRange> {
        // The kernel's offsets are signed.
        match self.offset.checked_add(self.span.len) {
            Some(end) if i64::try_from(end).is_ok() => Ok(ByteRange { start: self.offset, end }),
            _ => Err(bad_request(
                self.direction.into(),
                self.file.place(self.offset, self.span.len),
                "no file reaches so far".into(),
            )),
        }
    }

    /// Whether its first byte has to be read from the drive with O_DIRECT.
    pub(super) fn begins_cold(&self, access: Access) -> bool {
        let first = ByteRange { start: self.offset, end: self.offset.saturating_add(1) };
        let is_known = matches!(
            self.file.residency_source(),
            ResidencySource::Cachestat | ResidencySource::Mincore
        );
        access.requires_o_direct()
            || access.is_o_direct() && is_known && !self.file.is_resident(first)
    }

    /// The fields of its start event.
    pub(super) fn begin(&self, access: Option<Access>) -> Begin {
        let gpu = self.span.gpu.as_ref().map(|gpu| gpu.id());
        let route = access.map(|access| (access.io().route(gpu.is_some()), access.reason));
        let direction = self.direction.name();
        Begin { direction, pieces: None, gpu, route, not_direct: None }
    }

    pub(super) fn unavailable(&self, route: Route, reason: String) -> Error {
        let place = self.file.place(self.offset, self.span.len);
        Error::RouteUnavailable { route, place, reason }
    }
}
