//! Staging between the page cache or a drive and a GPU: pinned memory, and one thread per GPU that
//! queues the copies.

mod arena;
mod submitter;

pub(crate) use arena::Arena;
#[cfg(test)]
pub(crate) use submitter::Pause;
pub(crate) use submitter::Submitter;
