//! `cargo xtask pages`: the references that are generated, in `target/pages`: Python by pdoc, Rust
//! by rustdoc (`target/doc`), the command from its help, results files from their schema.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::folders::{failed, make, remove, text};
use crate::process::{self, Result, say};
use crate::report::Report;
use crate::{python, test};

/// The documented modules of the Python package; the last two need torch.
const MODULES: [&str; 7] = [
    "forebay",
    "forebay.safetensors",
    "forebay.blocks",
    "forebay.stream",
    "forebay.kvikio",
    "forebay.torch",
    "forebay.torch.dcp",
];

/// The verbs of the command.
const VERBS: [&str; 6] = ["bench", "read", "doctor", "report", "gdsio", "gpu-file-benchmark"];

/// Builds all references.
pub(crate) fn run(report: &mut Report, root: &Path) -> Result<()> {
    let target = test::target(root)?;
    let pages = target.join("pages");
    remove(&pages)?;
    make(&pages)?;
    // Libraries only: the library and the command share the name `forebay`, and so a page.
    let mut rust = process::cargo();
    rust.current_dir(root).args(["doc", "--workspace", "--no-deps", "--lib"]);
    report.step("pages: Rust", process::succeeds(rust.env("RUSTDOCFLAGS", "-D warnings"))?);

    let write = |name: &str, text: String| {
        let path = pages.join(name);
        fs::write(&path, text).map_err(failed(&path))
    };
    write("command.md", command(root)?)?;
    let schema = text(&root.join("docs/results.schema.json"))?;
    let schema = serde_json::from_str(&schema).map_err(|error| format!("schema: {error}"))?;
    write("results.md", results(&schema))?;

    // The environments of the tests, with and without torch.
    let homes = [("servers", &MODULES[..]), ("python", &MODULES[..5])];
    let homes = homes.map(|(name, modules)| (target.join(name).join("bin/python"), modules));
    match homes.into_iter().find(|(python, _)| python.exists()) {
        Some((python, modules)) if python::pip(&python, &["pdoc==16.*"])? => {
            let mut pdoc = Command::new(python);
            pdoc.args(["-W", "ignore", "-m", "pdoc", "-o"]).arg(pages.join("python"));
            report.step("pages: Python", process::succeeds(pdoc.args(modules))?);
        }
        Some(_) => report.skip("pages: Python: `pip` cannot fetch pdoc"),
        None => report.skip("pages: Python: no package; `cargo xtask test` builds it"),
    }
    say!("pages: {} and {}", pages.display(), target.join("doc").display());
    Ok(())
}

/// The flags of every verb, as the command prints them.
fn command(root: &Path) -> Result<String> {
    let mut page = String::from("# The command\n");
    for verb in VERBS {
        let mut help = process::cargo();
        help.current_dir(root).args(["run", "--quiet", "-p", "forebay-cli", "--", "help", verb]);
        let help = process::output(help.env("COLUMNS", "100"))?;
        let _ = write!(page, "\n## `forebay {verb}`\n\n```text\n{}\n```\n", help.trim_end());
    }
    Ok(page)
}

/// A table of the keys of every record of a results file.
fn results(schema: &Value) -> String {
    let mut page = String::from("# Records of a results file\n");
    let types = schema["$defs"].as_object().into_iter().flatten();
    for (name, about) in types.filter(|(_, about)| about["properties"].is_object()) {
        let sentence = about["description"].as_str().unwrap_or_default();
        let _ = write!(page, "\n## {name}\n\n{sentence}\n\n| Key | Meaning |\n|---|---|\n");
        for (key, about) in about["properties"].as_object().into_iter().flatten() {
            let sentence = about["description"].as_str().unwrap_or_default().replace('\n', " ");
            let _ = writeln!(page, "| `{key}` | {} |", sentence.replace('|', "\\|"));
        }
    }
    page
}

#[test]
fn each_key_of_the_schema_has_a_row() {
    let schema = serde_json::from_str(include_str!("../../docs/results.schema.json")).unwrap();
    let page = results(&schema);
    assert!(page.contains("## Sample\n") && page.contains("| `verified` |"), "{page}");
    assert!(!page.contains(" |  |"), "a key without a description");
}
