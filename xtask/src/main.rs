//! Runs the project's chores.
fn main() {}
