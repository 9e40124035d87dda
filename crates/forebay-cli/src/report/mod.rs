//! Results for people ([`table`], of several paths [`paths`]) and for programs ([`json`]), and what
//! to do next ([`warnings`]). [`plain`] keeps text from outside harmless, [`drives`] and [`names`]
//! say what things are called in all of them, [`proof`] which way bytes took.

pub mod drives;
pub mod json;
pub mod names;
pub mod paths;
pub mod plain;
pub mod proof;
pub mod table;
pub mod warnings;
