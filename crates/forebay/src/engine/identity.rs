//! File identity, for callers that hold files of several engines.

use std::io;
use std::sync::Arc;

use forebay_base::units::ByteRange;

use super::{Engine, File};
use crate::error::Place;
use crate::file::pages::{FilePages, Stamp};

impl File {
    /// Whether both are handles of one opened file.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(self.shared_handle(), other.shared_handle())
    }

    /// Whether that engine opened it.
    pub(crate) fn is_of(&self, engine: &Engine) -> bool {
        std::ptr::eq(&*self.engine().inner, &*engine.inner)
    }

    /// Identifies the file, however often it was opened.
    pub(crate) fn identity(&self) -> (u64, u64) {
        self.handle().identity()
    }

    /// Whether it was opened for writing.
    pub(crate) fn is_writable(&self) -> bool {
        self.handle().writable()
    }

    /// A range of it, for errors.
    pub(crate) fn place(&self, offset: u64, len: u64) -> Place {
        self.handle().place(offset, len)
    }

    /// Why its pages cannot be mapped and pinned.
    pub(crate) fn no_pages(&self) -> Option<String> {
        self.handle().no_pages()
    }

    /// Maps the pages of a page-aligned range.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub(crate) fn map_pages(&self, range: ByteRange) -> io::Result<FilePages> {
        self.handle().map_pages(range)
    }

    /// A stamp that detects later changes of the file.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub(crate) fn stamp(&self) -> io::Result<Stamp> {
        self.handle().stamp()
    }
}
