//! How many requests a drive gets at a time, from what is seen of real transfers. Pure:
//! completions come in with their time, a depth and a request size come out.

mod depth;

pub(crate) use depth::{DepthLimits, DepthRule, DepthTuner};
