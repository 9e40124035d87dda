//! Layers of a model, read behind the compute.

mod order;
mod schedule;
pub use order::Order;
