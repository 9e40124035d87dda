//! The folder that host and guest share, for scripts, programs, a pattern, and results.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::folders::{copy, entries, failed, make, remove, text};
use crate::process::{self, Result, say};
use crate::test;

/// Bytes of the pattern that the guest's files are cut from.
const PATTERN_LEN: usize = 80 << 20;

/// The packages and names of the programs that the guest runs.
const PROGRAMS: [[&str; 2]; 2] = [["forebay-cli", "forebay"], ["xtask", "forebay-lab"]];

/// The shared folder.
#[derive(Debug)]
pub(crate) struct Share {
    pub(crate) folder: PathBuf,
}

impl Share {
    /// Makes it anew, with release builds of the programs that the guest runs.
    pub(crate) fn fill(root: &Path, folder: &Path) -> Result<Self> {
        say!("lab: building the programs that run in the machine");
        remove(folder)?;
        let share = Self { folder: folder.to_owned() };
        make(&folder.join("guest"))?;
        make(&share.out())?;
        for [package, program] in PROGRAMS {
            let mut build = process::cargo();
            build.current_dir(root).args(["build", "--quiet", "--release"]);
            process::must_succeed(build.args(["-p", package, "--bin", program]))?;
            copy(&test::target(root)?.join("release").join(program), &folder.join(program))?;
        }
        for script in entries(&root.join("xtask/lab/guest"))? {
            let name = script.file_name().unwrap_or_default();
            copy(&script, &folder.join("guest").join(name))?;
        }
        let pattern = folder.join("pattern");
        fs::write(&pattern, bytes(PATTERN_LEN)).map_err(failed(&pattern))?;
        Ok(share)
    }

    /// The guest's folder for results.
    pub(crate) fn out(&self) -> PathBuf {
        self.folder.join("out")
    }

    /// Stores the records of the whole and the broken machine in a separate folder.
    pub(crate) fn keep_record(&self, folder: &Path) -> Result<()> {
        make(folder)?;
        for record in entries(&self.out().join("record"))? {
            process::must_succeed(
                Command::new("tar").arg("-xf").arg(&record).arg("-C").arg(folder),
            )?;
        }
        say!("recorded in {}", folder.display());
        Ok(())
    }

    /// Shows the guest's failures; returns true if there are none.
    pub(crate) fn complaints(&self) -> bool {
        let status = text(&self.out().join("status")).unwrap_or_default();
        let failed = text(&self.out().join("failed.txt")).unwrap_or_default();
        if status.trim() == "0" && failed.is_empty() {
            return true;
        }
        say!("\nthe guest's script ended with `{}`", status.trim());
        failed.lines().for_each(|line| say!("    failed: {line}"));
        say!("    see {}", self.out().join("script.txt").display());
        false
    }
}

/// Pseudorandom bytes, always the same (xorshift, as in any book on random numbers).
fn bytes(len: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let words = std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    });
    words.take(len.div_ceil(8)).flat_map(u64::to_le_bytes).take(len).collect()
}
