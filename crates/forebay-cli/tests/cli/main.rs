//! The command, as whoever types it sees it. One program for all these tests: each of its own would
//! carry the whole library.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]
#![allow(clippy::print_stdout, reason = "what is skipped is told")]

mod cufile;
mod help;
mod interrupt;
mod limits;
mod log;
mod map;
mod paths;
mod probe;
mod program;
mod proof;
mod tune;
mod usage;
mod verbs;
