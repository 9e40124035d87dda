//! Chooses a route for every byte: pure functions from a request and the known state of its file to
//! segments with a route and a reason. No I/O, no clock, no thread, no `unsafe`.

mod packing;
mod route;
mod segment;
mod strip;

pub use packing::{Packed, Packing, SKEW};
pub use route::{Direction, Reason, Route};
pub(crate) use segment::{
    Access, Alignment, Io, Layout, Part, Segment, Split, cut_direct, cut_parts, cut_read,
    split_write,
};
pub use strip::Wanted;
pub(crate) use strip::{GAP_MAX, Stretch, Strip};
