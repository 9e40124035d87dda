//! Results for people ([`table`]) and for programs ([`json`]), and what to do next ([`warnings`]).

pub mod json;
pub mod table;
pub mod warnings;
