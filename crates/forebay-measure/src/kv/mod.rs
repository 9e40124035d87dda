//! A KV cache as servers of language models use it: the bytes of a block, the turns of
//! conversations, and a block store that serves them.

pub mod model;
pub mod served;
pub mod trace;

pub use self::model::Model;
pub use self::served::{Served, Shape};
