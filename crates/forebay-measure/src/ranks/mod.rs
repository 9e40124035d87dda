//! A command that a launcher runs several times, on one host or many: each copy finds its rank in
//! the environment, and they meet at rank 0.

mod meet;
pub mod place;
pub mod total;

pub use self::meet::{Ranks, interrupted};
pub use self::place::{Place, environment};
