//! Results for people ([`numbers`]) and for programs ([`json`]), and what to do next
//! ([`warnings`]). [`plain`] sanitizes external text, [`drives`] and [`names`] hold common names,
//! and [`proof`] the proven routes.
//!
//! `forebay report` shows stored results. [`input`] reads them, [`foreign`] those of other tools. A
//! [`model`] summarizes them, [`compare`] compares its points by [`ratio`] ([`student`] has the
//! distribution). [`show`] makes a report's parts from [`grid`]s, [`forms`] and [`page`] write
//! them. [`command`] is the verb, `output` writes a file.

pub mod args;
pub mod command;
pub mod compare;
pub mod drives;
pub mod foreign;
pub mod forms;
pub mod grid;
pub mod input;
pub mod json;
pub mod model;
pub mod names;
pub mod numbers;
mod output;
pub mod page;
pub mod plain;
pub mod proof;
pub mod ratio;
pub mod show;
pub mod student;
pub mod warnings;

#[cfg(test)]
#[path = "../../tests/results/made.rs"]
pub(crate) mod made;
