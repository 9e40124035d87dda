//! The requests to a process that moves bytes, and its answers.

use std::ffi::OsString;

use serde::{Deserialize, Serialize};

use crate::data::Pattern;

/// A request to the process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Order {
    /// Load the library, for this GPU; without one, host memory simulates a GPU. Answer: its
    /// version.
    Start { gpu: Option<String> },
    /// Allocate `len` bytes of memory, in place of the previous memory.
    Allocate { len: u64 },
    /// Open a file, with O_DIRECT if `direct` is set. Answer: whether O_DIRECT is used.
    Open { path: OsString, write: bool, direct: bool },
    /// Set every byte of the memory.
    Fill { byte: u8 },
    /// Write the first `len` bytes of the pattern to byte `at` of the memory.
    Put { at: u64, len: u64, pattern: Pattern },
    /// Compare `len` bytes from byte `at` on with those of the pattern at `offset`; without one,
    /// with those of the file, read again. Answer: whether they are the same.
    Compare { at: u64, len: u64, pattern: Option<Pattern>, offset: u64 },
    /// Move bytes. Answer: their number, and the seconds of processor time.
    Move(Move),
    /// Sync the written bytes.
    Sync {},
    /// Report the counters. Answer: the library's version, and its counters of level 3 as laid out
    /// in memory, if it has some.
    Count {},
    /// Close the file.
    Close {},
}

/// A move between the file and the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Move {
    /// To the file.
    pub write: bool,
    /// Where it begins in the file.
    pub offset: u64,
    /// Where it begins in the memory.
    pub at: u64,
    /// Its bytes.
    pub len: u64,
    /// The number of threads.
    pub threads: u32,
    /// The bytes of each of their requests.
    pub request: u64,
}

/// An answer; else why the request failed, and what to do.
pub(super) type Answer<T> = Result<T, (String, Option<String>)>;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_spoiled_line_is_an_answer_or_is_refused(at in 0_usize..60, letter in any::<char>()) {
            let answer: Answer<(u64, f64)> = Ok((1, 0.25));
            let text = serde_json::to_string(&answer).unwrap();
            let mut spoiled: Vec<char> = text.chars().collect();
            let at = at % spoiled.len();
            spoiled[at] = letter;
            let spoiled: String = spoiled.into_iter().collect();
            if let Ok(Ok((_, seconds))) = serde_json::from_str::<Answer<(u64, f64)>>(&spoiled) {
                prop_assert!(seconds.is_finite());
            }
        }
    }

    #[test]
    fn a_path_may_be_no_text() {
        use std::os::unix::ffi::OsStringExt as _;
        let path = OsString::from_vec((1..=255).collect());
        let order = Order::Open { path, write: true, direct: false };
        let text = serde_json::to_string(&order).unwrap();
        assert_eq!(serde_json::from_str::<Order>(&text).unwrap(), order);
    }
}
