//! Results for people ([`table`]) and for programs ([`json`]), and what to do next ([`warnings`]).
//! [`plain`] keeps text from outside harmless.

pub mod json;
pub mod plain;
pub mod table;
pub mod warnings;
