//! What Forebay's other packages share. Nothing here knows of files or GPUs.
//!
//! - [`units`]: byte ranges, sizes, rates and durations, read and shown
//! - [`clock`]: time that tests can set
//! - [`counts`]: the growth of counters
//! - [`forks`]: descriptors that forked children close
//! - [`lock`]: locks that ignore poisoning
//! - [`per_process`]: statics that a forked child makes anew
//! - [`process`]: detects forked children
//! - [`random`]: random numbers that a forked child does not share
//! - [`timeout`]: calls that may never return
//! - [`user_copy`]: copies to and from a caller's memory, which may be a truncated mapping

pub mod clock;
pub mod counts;
pub mod forks;
pub mod lock;
pub mod per_process;
pub mod process;
pub mod random;
pub mod timeout;
pub mod units;
pub mod user_copy;
