//! Warnings that several verbs have, each with the next thing to try.

/// The GPU is simulated.
pub fn simulated() -> String {
    "the GPU is simulated: its numbers say nothing about hardware; leave `--gpu` out on a machine \
     with a GPU"
        .into()
}

/// There is no GPU, and why.
pub(crate) fn host_target(reason: &str) -> String {
    format!("the target is host memory: {reason}; `--gpu sim` shows every row with a simulated GPU")
}
