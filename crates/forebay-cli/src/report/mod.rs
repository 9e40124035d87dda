//! Results for people, with [`numbers`] in units that people read.
//!
//! `forebay report` shows stored results. [`input`] reads them, [`foreign`] those of other tools. A
//! [`model`] summarizes them, [`compare`] compares its points by [`ratio`] ([`student`] has the
//! distribution). [`show`] makes a report's parts from [`grid`]s, [`forms`] and [`page`] write
//! them. [`command`] is the verb, `output` writes a file.

pub mod args;
pub mod bars;
pub mod command;
pub mod compare;
pub mod foreign;
pub mod forms;
pub mod grid;
pub mod input;
pub mod model;
pub mod numbers;
mod output;
pub mod page;
pub mod ratio;
pub mod show;
pub mod student;

#[cfg(test)]
#[path = "../../../forebay-measure/tests/results/made.rs"]
pub(crate) mod made;
