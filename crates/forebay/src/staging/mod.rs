//! Staging between the page cache or a drive and a GPU: pinned memory, and one thread per GPU that
//! queues the copies.

mod arena;
mod cells;
mod submitter;

pub(crate) use arena::Arena;
pub(crate) use cells::{Cell, Cells, SmallRead};
pub(crate) use submitter::Submitter;
#[cfg(test)]
pub(crate) use submitter::{Pause, WATCH_MAX};
