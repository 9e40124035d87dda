//! Results for people ([`table`], of several paths [`paths`]) and for programs ([`json`]), and what
//! to do next ([`warnings`]). [`plain`] keeps text from outside harmless, [`drives`] and [`names`]
//! say what things are called in all of them, [`proof`] which way bytes took.
//!
//! `forebay report` makes one of results that were written down: [`input`] reads them, [`digest`]
//! is what they say ([`compared`] what they say of a comparison, [`layers`] of layers behind
//! compute), [`grid`] has it as tables, [`html`] and [`forms`] write it down, [`command`] is the
//! verb, and `access` says who may use a report that replaces another.

mod access;
pub mod command;
pub mod compared;
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
