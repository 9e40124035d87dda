//! The project's own style rules, beyond those of rustfmt, clippy and `typos`: see STYLE.md.
//!
//! [`rules`] apply to single files, [`circles`] finds files that import each other, [`links`]
//! checks the links of markdown files, [`runs`] the archived runs that documents cite.

mod circles;
mod links;
mod rules;
mod runs;

use std::fmt;
use std::path::{Path, PathBuf};

use crate::process::{self, Result, say};

/// One breach of a rule: `PATH:LINE: MESSAGE`.
pub(crate) type Breach = String;

/// A text file of the repository, its path relative to the root.
#[derive(Debug)]
pub(crate) struct Source {
    path: PathBuf,
    text: String,
}

impl Source {
    fn has_extension(&self, extension: &str) -> bool {
        self.path.extension().is_some_and(|own| own == extension)
    }

    fn breach(&self, line: usize, message: impl fmt::Display) -> Breach {
        format!("{}:{line}: {message}", self.path.display())
    }
}

/// Checks every file of the repository; prints every breach and returns whether there is none.
pub(crate) fn run(root: &Path) -> Result<bool> {
    let sources = read(root)?;
    let mut breaches: Vec<Breach> = sources.iter().flat_map(rules::check).collect();
    breaches.extend(circles::check(&sources));
    breaches.extend(sources.iter().flat_map(|source| links::check(root, source)));
    breaches.extend(runs::check(root, &sources));
    breaches.sort();
    breaches.iter().for_each(|breach| say!("{breach}"));
    say!("tidy: {} files, {} breaches", sources.len(), breaches.len());
    Ok(breaches.is_empty())
}

/// The text files that git tracks or would track. Generated files are excluded.
fn read(root: &Path) -> Result<Vec<Source>> {
    let mut git = std::process::Command::new("git");
    git.current_dir(root).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let listed = process::output(&mut git)?;
    let mut paths: Vec<PathBuf> = listed
        .split('\0')
        .filter(|name| !name.is_empty() && !is_generated(name))
        .map(PathBuf::from)
        .collect();
    paths.sort();
    paths.dedup();
    // A listed file may be deleted but not yet staged; files that are not UTF-8 are not text.
    let text = |path: PathBuf| {
        let text = std::fs::read_to_string(root.join(&path)).ok()?;
        Some(Source { path, text })
    };
    Ok(paths.into_iter().filter_map(text).collect())
}

/// Generated or external files: their style is not ours to choose.
fn is_generated(name: &str) -> bool {
    name == "Cargo.lock" || name == "LICENSE" || name.starts_with("benches/runs/")
}

#[cfg(test)]
pub(crate) fn source(path: &str, text: &str) -> Source {
    Source { path: path.into(), text: text.into() }
}
