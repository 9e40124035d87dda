//! Which way each byte goes: pure functions from a request and what is known about its file to
//! segments with a route and a reason. No I/O, no clock, no thread, no `unsafe`.

mod route;

pub use route::{Reason, Route};
