//! The direct route: bytes move between a drive and a GPU without a copy in host memory.
//!
//! Each provider has a `Port` for a file and a GPU, or reports why not. The first provider is
//! cuFile (`forebay-cufile`). Until its driver is known to open, transfers are staged.

mod port;
mod providers;

pub(crate) use providers::Providers;
