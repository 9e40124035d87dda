//! Results for people ([`table`], of several paths [`paths`]) and for programs ([`json`]), and what
//! to do next ([`warnings`]). [`plain`] keeps text from outside harmless, [`drives`] names drives
//! in all of them, [`proof`] says which way bytes took.

pub mod drives;
pub mod json;
pub mod paths;
pub mod plain;
pub mod proof;
pub mod table;
pub mod warnings;
