//! What is made of the command's own definition: the manual page and completions.

use crate::help::stdout;

#[test]
fn the_man_page_names_every_flag() {
    let page = stdout(&["man"]);
    assert!(page.starts_with(".ie"), "{page}");
    for flag in [
        "size", "repeats", "gpu", "route", "cold", "resident", "json", "checksum", "extents",
        "fixture",
    ] {
        assert!(page.contains(&format!(r"\fB\-\-{flag}\fR")), "{flag}");
    }
    assert!(page.contains(".SH BENCH") && page.contains(".SH READ") && page.contains(".SH MAP"));
    assert!([".SH REPORT", ".SH IMPORT", ".SH DIFF"].iter().all(|head| page.contains(head)));
    assert!(page.contains(".SH DOCTOR"));
}

#[test]
fn every_shell_gets_its_completions() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = stdout(&["completions", shell]);
        assert!(script.contains("resident"), "{shell}");
    }
}
