//! `forebay bench`: measures ceilings and ways to move bytes, interleaved, and checks every byte.

pub mod cache;
pub mod ceilings;
pub mod cpu;
pub mod data;
pub mod make;
pub mod measure;
pub mod memory;
pub mod methods;
pub mod parallel;
pub mod scratch;
pub mod stats;

use crate::args::BenchArgs;
use crate::failure::{Failure, Result};

pub(crate) fn command(_args: &BenchArgs, _command: &str) -> Result<()> {
    Err(Failure::new("not yet"))
}
