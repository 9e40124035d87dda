//! Which seeds a random test runs.
//!
//! `FOREBAY_SEED=N` begins with that seed, `FOREBAY_STRESS=N` runs that many, and with
//! `FOREBAY_SOAK` they go on until the end of standard input, with a line for each that
//! `cargo xtask soak` reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::note;

/// A splitmix64 generator.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[index(self.below(choices.len() as u64))]
    }
}

/// A number of bytes or of a choice.
pub(crate) fn index(number: u64) -> usize {
    usize::try_from(number).expect("a small number")
}

/// Runs `run` with each seed, unless the machine lacks what it needs. `test` is what cargo takes to
/// run the test again, as `-p forebay --test stress`.
pub(crate) fn each(test: &str, most: u64, run: impl Fn(u64) -> Option<()>) {
    let number = |name: &str| {
        std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a variable's number"))
    };
    let first = number("FOREBAY_SEED").unwrap_or(0);
    let soaks = number("FOREBAY_SOAK").is_some();
    let most = if soaks { u64::MAX } else { number("FOREBAY_STRESS").unwrap_or(most) };
    let ended = Arc::new(AtomicBool::new(false));
    if soaks {
        let report = Arc::clone(&ended);
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            report.store(true, Ordering::Relaxed);
        });
    }
    for done in 0..most {
        if ended.load(Ordering::Relaxed) {
            return;
        }
        let seed = first.wrapping_add(done);
        note(format!("FOREBAY_SEED={seed} FOREBAY_STRESS=1 cargo test {test}"));
        if soaks {
            note(format!("soak: at={seed} seeds={done}"));
        }
        if run(seed).is_none() {
            return;
        }
    }
}
