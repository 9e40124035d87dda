//! The requests to a process that moves bytes, and its answers.

use std::ffi::OsString;

use serde::{Deserialize, Serialize};

/// A request to the process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Order {
    /// Load the library, for this GPU; without one, the window is the memory.
    Start { gpu: Option<String> },
    /// Allocate `len` bytes of memory, in place of the previous memory. The file `window` has as
    /// many bytes as given, which both processes map.
    Allocate { window: String, bytes: u64, len: u64 },
    /// Open a file, with O_DIRECT if `direct` is set.
    Open { path: OsString, write: bool, direct: bool },
    /// Set every byte of the GPU's memory.
    Fill { byte: u8 },
    /// Copy the start of the window to byte `at` of the GPU's memory.
    Upload { at: u64, len: u64 },
    /// Copy bytes of the GPU's memory to the start of the window.
    Download { at: u64, len: u64 },
    /// Move bytes.
    Move(Move),
    /// Sync the written bytes.
    Sync {},
    /// Report the library's counters.
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

/// An answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Answer {
    /// To `Start`.
    Started { version: String },
    /// To `Open`: whether O_DIRECT is used.
    Opened { direct: bool },
    /// To `Move`.
    Moved { bytes: u64, cpu_seconds: f64 },
    /// To `Count`: its counters of level 3 as laid out in memory, if it has some.
    Counted { version: u32, words: Option<Vec<u64>> },
    /// To all other requests.
    Done {},
    /// The request failed.
    Failed { reason: String, hint: Option<String> },
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_spoiled_line_is_an_answer_or_is_refused(at in 0_usize..60, letter in any::<char>()) {
            let answer = Answer::Moved { bytes: 1, cpu_seconds: 0.25 };
            let text = serde_json::to_string(&answer).unwrap();
            let mut spoiled: Vec<char> = text.chars().collect();
            let at = at % spoiled.len();
            spoiled[at] = letter;
            let spoiled: String = spoiled.into_iter().collect();
            if let Ok(Answer::Moved { cpu_seconds, .. }) = serde_json::from_str(&spoiled) {
                prop_assert!(cpu_seconds.is_finite());
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
