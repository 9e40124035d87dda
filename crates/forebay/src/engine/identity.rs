//! Which file a file is, for those who have several of several engines.

use std::sync::Arc;

use super::{Engine, File};
use crate::error::Place;

impl File {
    /// Whether both are one file that was opened once.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(self.shared_handle(), other.shared_handle())
    }

    /// Whether that engine opened it.
    pub(crate) fn is_of(&self, engine: &Engine) -> bool {
        std::ptr::eq(&*self.engine().inner, &*engine.inner)
    }

    /// Bytes of it, as an error names them.
    pub(crate) fn place(&self, offset: u64, len: u64) -> Place {
        self.handle().place(offset, len)
    }
}
