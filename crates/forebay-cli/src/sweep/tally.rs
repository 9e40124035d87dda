//! How far a sweep came: printed when the command is stopped by any signal.

use crate::cleanup;

/// While one exists, a stopped command reports how much is kept.
#[derive(Debug)]
pub(super) struct Tally {
    /// The results file.
    path: String,
    /// Samples that need not be repeated.
    kept: usize,
    all: usize,
    /// The command begins a new file on every run.
    is_anew: bool,
}

impl Tally {
    pub(super) fn begin(path: &str, (kept, all): (usize, usize), is_anew: bool) -> Self {
        let tally = Self { path: path.to_owned(), kept, all, is_anew };
        tally.tell();
        tally
    }

    /// Samples that need not be repeated.
    pub(super) const fn kept(&self) -> usize {
        self.kept
    }

    /// One more is in the file.
    pub(super) fn add(&mut self) {
        self.kept += 1;
        self.tell();
    }

    fn tell(&self) {
        cleanup::set_progress_note(Some(self.words()));
    }

    fn words(&self) -> String {
        let Self { path, kept, all, is_anew } = self;
        let without = if *is_anew { " without `--anew`" } else { "" };
        format!(
            "stopped: `{path}` has {kept} of {all} samples; the same command{without} continues \
             from there"
        )
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        cleanup::set_progress_note(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_counted_with_that_of_before() {
        let mut tally = Tally::begin("results", (4, 45), false);
        tally.add();
        let expected =
            "stopped: `results` has 5 of 45 samples; the same command continues from there";
        assert_eq!((tally.kept(), tally.words().as_str()), (5, expected));
        drop(tally);
        let words = Tally::begin("results", (0, 45), true).words();
        assert!(words.ends_with("; the same command without `--anew` continues from there"));
    }
}
