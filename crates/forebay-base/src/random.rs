//! Random numbers for names and identities.

use rustix::rand::{GetRandomFlags, getrandom};

/// A random number of the kernel. A forked child gets others than its parent, unlike from
/// `RandomState`, whose keys it inherits.
///
/// # Panics
/// If the kernel has no random numbers (`getrandom`, Linux 3.17).
#[must_use]
pub fn random() -> u64 {
    let mut bytes = [0; 8];
    let got = rustix::io::retry_on_intr(|| getrandom(&mut bytes[..], GetRandomFlags::empty()));
    assert_eq!(got, Ok(bytes.len()), "the kernel gives up to 256 bytes at once");
    u64::from_ne_bytes(bytes)
}
