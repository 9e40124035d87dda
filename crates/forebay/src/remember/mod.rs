//! What is kept for the next process, in small files in the user's cache folder.
//!
//! It is a hint, so nothing that happens to a file is an error: what cannot be read is not known,
//! what cannot be written is not remembered. `sheet` is such a file, read and replaced safely;
//! `learned` is what was found about drives.

mod learned;
mod sheet;
mod words;

pub(crate) use learned::Memory;
