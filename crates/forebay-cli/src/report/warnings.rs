//! Warnings that several verbs have, each with the next thing to try.

/// Most rows that a warning names.
const NAMES_MAX: usize = 3;

/// The GPU is simulated.
pub(crate) fn simulated() -> String {
    "the GPU is simulated: its numbers say nothing about hardware; leave `--gpu` out on a machine \
     with a GPU"
        .into()
}

/// There is no GPU, and why.
pub(crate) fn host_target(reason: &str) -> String {
    format!("the target is host memory: {reason}; `--gpu sim` shows every row with a simulated GPU")
}

/// Scratch of crashed runs was removed, if there was some.
pub(crate) fn leftovers(count: usize) -> Option<String> {
    match count {
        0 => None,
        1 => Some("removed the scratch that a crashed run had left".into()),
        count => Some(format!("removed the scratch that {count} crashed runs had left")),
    }
}

/// The first few of the names, and how many more there are.
pub(crate) fn some(rows: &[String]) -> String {
    let shown = rows.iter().take(NAMES_MAX).map(String::as_str).collect::<Vec<_>>().join("; ");
    match rows.len().checked_sub(NAMES_MAX) {
        None | Some(0) => shown,
        Some(more) => format!("{shown}; and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_is_cut() {
        let names: Vec<_> = ["a", "b", "c", "d", "e"].map(String::from).into();
        assert_eq!(some(&names[..3]), "a; b; c");
        assert_eq!(some(&names), "a; b; c; and 2 more");
    }
}
