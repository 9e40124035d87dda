//! Identity, pages and changes of files, for schedulers above the engine.

use std::io;
use std::sync::Arc;

use forebay_base::units::ByteRange;

use super::{Engine, File};
use crate::error::Place;
use crate::file::pages::{FilePages, Stamp};

impl File {
    /// Whether both are handles of one opened file.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(self.shared_handle(), other.shared_handle())
    }

    /// Whether that engine opened it.
    #[must_use]
    pub fn is_of(&self, engine: &Engine) -> bool {
        std::ptr::eq(&*self.engine().inner, &*engine.inner)
    }

    /// Identifies the file, however often it was opened.
    #[must_use]
    pub fn identity(&self) -> (u64, u64) {
        self.handle().identity()
    }

    /// Whether it was opened for writing.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.handle().writable()
    }

    /// A range of it, for errors.
    #[must_use]
    pub fn place(&self, offset: u64, len: u64) -> Place {
        self.handle().place(offset, len)
    }

    /// Why its pages cannot be mapped and pinned.
    #[must_use]
    pub fn no_pages(&self) -> Option<String> {
        self.handle().no_pages()
    }

    /// Maps the pages of a page-aligned range.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn map_pages(&self, range: ByteRange) -> io::Result<FilePages> {
        self.handle().map_pages(range)
    }

    /// A stamp that detects later changes of the file.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn stamp(&self) -> io::Result<Stamp> {
        self.handle().stamp()
    }
}
