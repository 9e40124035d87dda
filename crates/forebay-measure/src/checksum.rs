//! The checksum of a file's bytes, XXH3 with 64 bits.
//!
//! It is here, since this crate is built for speed and the command for size.

use std::hash::Hasher as _;

use twox_hash::XxHash3_64;

/// The checksum of the bytes so far.
#[derive(Default)]
pub struct Checksum(XxHash3_64);

impl Checksum {
    /// Adds the next bytes.
    #[inline(never)]
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// The value.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.finish()
    }
}
