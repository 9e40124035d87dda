//! Ways for bytes to go between a drive and a GPU without a copy in host memory.
//!
//! Each way will be a provider: it answers for a file and a GPU whether it can, or why not, and
//! takes segments as a ring takes ops. There is none yet, so the route `direct` is refused.

/// Why the route `direct` cannot be taken.
pub(crate) fn missing() -> String {
    "this version has no provider for it yet (cuFile will be the first)".into()
}
