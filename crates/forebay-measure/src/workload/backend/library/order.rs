//! The requests to a process that moves bytes, and its answers.

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
    /// Open a file, whose path is given in hexadecimal digits; with O_DIRECT if `direct` is set.
    Open { path: String, write: bool, direct: bool },
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

/// Bytes as hexadecimal digits: a path may not be valid text.
pub(super) fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Decodes hexadecimal digits.
pub(super) fn bytes(digits: &str) -> Option<Vec<u8>> {
    let digits = digits.as_bytes();
    let one = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).ok()?;
        u8::from_str_radix(pair, 16).ok().filter(|_| !pair.starts_with('+'))
    };
    digits.len().is_multiple_of(2).then(|| digits.chunks(2).map(one).collect())?
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_text_is_digits_or_is_refused(text in prop_oneof![".*", "[0-9a-fA-F]*"]) {
            if let Some(found) = bytes(&text) {
                prop_assert_eq!(digits(&found), text.to_lowercase());
            }
        }

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
    fn digits_stand_for_any_bytes() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(bytes(&digits(&all)).as_ref(), Some(&all));
        assert_eq!(bytes(""), Some(Vec::new()));
        for wrong in ["a", "+f", "zz", "é", "0x"] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
    }
}
