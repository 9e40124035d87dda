//! Standard streams that are closed, or not open for writing.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::program::program;

/// Runs the program by a shell with these redirections.
fn run(folder: &Path, streams: &str, line: &str) -> Output {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("exec \"$0\" \"$@\" {streams}")]).arg(program());
    shell.args(line.split_whitespace()).current_dir(folder).output().unwrap()
}

#[test]
fn results_that_stdout_does_not_take_are_an_error_and_nothing_is_begun() {
    let folder = tempfile::tempdir_in(".").unwrap();
    fs::write(folder.path().join("file"), vec![7; 1 << 20]).unwrap();
    for line in [
        "read file --gpu none",
        "read file --gpu none --output out",
        "bench . --block-size 64K --depth 1 --size 1M --repeats 1 --gpu none -o results",
        "bench . --size 1M --repeats 1 --time 100ms --gpu none",
        "doctor --tree file",
        "man",
        "completions bash",
        "--help",
        "--version",
        "read --help",
    ] {
        for (streams, cause) in
            [(">&-", "was closed"), ("<&- >&-", "was closed"), ("1</dev/null", "reading only")]
        {
            let output = run(folder.path(), streams, line);
            let reported = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(1), "{line} {streams}: {reported}");
            assert!(reported.starts_with("error: cannot write to stdout\n"), "{line}: {reported}");
            assert!(reported.contains(cause), "{line} {streams}: {reported}");
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "{line} {streams}");
        }
    }
}

#[test]
fn a_verb_that_writes_elsewhere_needs_no_stdout() {
    let folder = tempfile::tempdir_in(".").unwrap();
    fs::write(folder.path().join("file"), vec![7; 1 << 20]).unwrap();
    // What Python's `subprocess.DEVNULL` is.
    let output = run(folder.path(), "1<>/dev/null", "read file --gpu none");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let sweep = "bench . --block-size 64K --depth 1 --bytes 1M --size 1M --repeats 1 \
                 --gpu none -o results";
    assert_eq!(run(folder.path(), "", sweep).status.code(), Some(0));
    let report = "report results --format=csv -o page --overwrite";
    assert_eq!(run(folder.path(), "", report).status.code(), Some(0));
    let page = fs::read(folder.path().join("page")).unwrap();
    for streams in ["<&- >&- 2>&-", ">&-"] {
        let output = run(folder.path(), streams, report);
        assert_eq!(output.status.code(), Some(0), "{streams}: {output:?}");
        assert_eq!(fs::read(folder.path().join("page")).unwrap(), page, "{streams}");
    }
}
