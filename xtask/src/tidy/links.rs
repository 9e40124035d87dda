//! Links of markdown files to other files of the repository lead somewhere.

use std::path::Path;

use super::{Breach, Source};

/// Links of `source` whose file is not in the repository at `root`.
pub(crate) fn check(root: &Path, source: &Source) -> Vec<Breach> {
    if !source.has_extension("md") {
        return Vec::new();
    }
    let folder = root.join(&source.path);
    let folder = folder.parent().unwrap_or(root);
    targets(&source.text)
        .into_iter()
        .filter(|(_, target)| !folder.join(target).exists())
        .map(|(line, target)| source.breach(line, format!("link to `{target}`, which is missing")))
        .collect()
}

/// The files that `text` links to, with their lines, without addresses and anchors.
fn targets(text: &str) -> Vec<(usize, String)> {
    let mut fenced = false;
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        // Odd parts between backticks are code.
        let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        let inline = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        let defined = prose.starts_with('[').then(|| prose.split_once("]: ")).flatten();
        for target in inline.chain(defined.map(|(_, target)| target)) {
            let file = target.split_whitespace().next().unwrap_or_default();
            let file = file.split('#').next().unwrap_or_default();
            if !file.is_empty() && !file.contains(':') {
                found.push((index + 1, file.to_owned()));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_links_to_files_count() {
        let text = "[a](x.md#part) and [b](https://y) [c](#here) `[d](z.md)`\n\
                    ```\n[e](q.md)\n```\n[f]: docs/f.md\n![chart](g.svg \"title\")\n";
        let found: Vec<String> = targets(text).into_iter().map(|(_, target)| target).collect();
        assert_eq!(found, ["x.md", "docs/f.md", "g.svg"]);
    }

    #[test]
    fn links_are_relative_to_their_file() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("docs")).unwrap();
        std::fs::write(root.path().join("README.md"), "").unwrap();
        let source = crate::tidy::source("docs/guide.md", "[up](../README.md) [no](README.md)\n");
        let breaches = check(root.path(), &source);
        assert_eq!(breaches.len(), 1);
        assert_eq!(breaches[0], "docs/guide.md:1: link to `README.md`, which is missing");
    }
}
