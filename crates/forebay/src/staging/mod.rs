//! Between the page cache or a drive and a GPU: pinned memory, and the one thread of each GPU that
//! talks to its copy engine.

mod arena;
mod submitter;

pub(crate) use arena::Arena;
#[cfg(test)]
pub(crate) use submitter::Pause;
pub(crate) use submitter::Submitter;
