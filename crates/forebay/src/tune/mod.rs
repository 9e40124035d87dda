//! Finds how much to keep in flight.
mod climb;
mod depth;
mod epoch;
mod rate;
#[cfg(test)]
mod sim;
pub(crate) use depth::{DepthLimits, DepthTuner, Learned};
pub(crate) use rate::Rate;
