//! Results for people ([`table`], of several paths [`paths`]) and for programs ([`json`]), and what
//! to do next ([`warnings`]). [`plain`] sanitizes external text, [`drives`] and [`names`] hold
//! common names, [`proof`] the proven routes.
//!
//! `forebay report` makes a report of stored results. [`input`] reads them and [`digest`]
//! summarizes them, with [`layers`] for layers behind compute.
//! [`grid`] makes tables of them, [`html`] and [`forms`] write the output. [`command`] is the verb,
//! and `access` sets the access rights of a report that replaces another.

mod access;
pub mod command;
pub mod digest;
pub mod drives;
pub mod forms;
pub mod grid;
pub mod html;
pub mod input;
pub mod json;
pub mod layers;
pub mod names;
pub mod paths;
pub mod plain;
pub mod proof;
pub mod table;
pub mod warnings;

#[cfg(test)]
#[path = "../../tests/results/made.rs"]
pub(crate) mod made;
