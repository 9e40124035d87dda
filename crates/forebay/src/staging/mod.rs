//! Staging between the page cache or a drive and a GPU: pinned memory, and a copy thread per GPU.

mod arena;
mod cells;
mod submitter;

pub(crate) use arena::Arena;
pub(crate) use cells::{Cell, Cells, SmallRead};
pub(crate) use submitter::Submitter;
#[cfg(test)]
pub(crate) use submitter::{Pause, WATCH_MAX};
