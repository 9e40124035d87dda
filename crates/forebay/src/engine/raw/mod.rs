//! Calls that take memory or streams by address.

mod borrow;
pub(super) mod cold;
pub(super) mod ring;
pub(super) mod small;
mod streams;
