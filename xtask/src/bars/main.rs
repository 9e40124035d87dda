//! Measures the project's bars.
fn main() {}
