//! The forms of a report that are text: for terminals, for Markdown, for spreadsheets and for
//! Prometheus.

pub mod csv;
pub mod markdown;
pub mod prometheus;
pub mod terminal;
