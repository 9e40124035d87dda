//! What is refused.

use std::fs;

use super::{failure, folder, good, names};
use crate::program::run;

#[test]
fn a_direct_path_that_is_missing_is_named() {
    let folder = folder();
    let (code, text) = failure(folder.path(), &["-m", "dma", "--gpu", "sim"]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("by the route `direct`") && text.contains("GPU lacks cuFile"), "{text}");
    assert!(text.contains("hint: `forebay doctor` reports what the route requires; `-m compare`"));
    let (code, text) = failure(folder.path(), &["-m", "dma", "--gpu", "none"]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("by the route `direct` without a GPU"), "{text}");
    assert!(text.contains("`-m compare`") && !text.contains("--route"), "{text}");
    // Beside others it is only not there.
    let text = good(folder.path(), &["-m", "compare", "--gpu", "sim", "-r", "1"]);
    assert!(!text.contains("--route direct"), "{text}");
}

#[test]
fn an_existing_file_is_not_touched_without_overwrite() {
    let folder = folder();
    let path = folder.path().join("file");
    fs::write(&path, "precious").unwrap();
    for mode in ["compare", "dma"] {
        let (code, text) = failure(folder.path(), &["-f", "file", "-m", mode, "--gpu", "sim"]);
        let expected = "error: `file` would be written\n  caused by: this command did not make \
                        it\nhint: `--overwrite` allows it, and destroys its content; or give a \
                        folder for a scratch file\n";
        assert_eq!((code, text.as_str()), (2, expected));
    }
    // What it holds is not lost for a path that is not there.
    let arguments = ["-f", "file", "--overwrite", "-m", "dma", "--gpu", "sim"];
    assert_eq!(failure(folder.path(), &arguments).0, 1);
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    let arguments = ["-f", "file", "--overwrite", "-m", "compare", "-r", "1", "--gpu", "none"];
    good(folder.path(), &arguments);
    assert_eq!(fs::metadata(&path).unwrap().len(), 2 << 20, "it stays, with other bytes");
    assert_eq!(names(folder.path()), ["file"]);
}

#[test]
fn a_file_that_is_new_goes_away_again() {
    let folder = folder();
    fs::create_dir(folder.path().join("there")).unwrap();
    for file in ["new", "there", "there/new"] {
        good(folder.path(), &["-f", file, "-m", "compare", "-r", "1", "--gpu", "none"]);
        assert_eq!(names(folder.path()), ["there"], "{file}");
        assert_eq!(names(&folder.path().join("there")), [""; 0], "{file}");
    }
    for (file, says) in
        [("missing/new", "cannot create `missing/new`"), ("/dev/null", "neither a regular file")]
    {
        let (code, text) = failure(folder.path(), &["-f", file, "--gpu", "none"]);
        assert_eq!(code, if file == "/dev/null" { 2 } else { 1 }, "{text}");
        assert!(text.contains(says), "{text}");
    }
}

#[test]
fn nonsense_words_are_reported() {
    let folder = folder();
    let texts: Vec<String> = [
        &["-m", "turbo"][..],
        &["-r", "0"],
        &["-f"],
        &["--overwrite"],
        &["--overwite", "-f", "x"],
        &["file"],
    ]
    .into_iter()
    .map(|arguments| {
        let (code, text) = failure(folder.path(), arguments);
        assert_eq!(code, 2, "{arguments:?}: {text}");
        text
    })
    .collect();
    insta::assert_snapshot!(texts.concat(), @"
    error: invalid value `turbo` for `--mode <MODE>` [possible values: compare, dma, all]
    hint: for more information, try `--help`
    error: invalid value `0` for `--runs <RUNS>`: it takes a number from 1 to 1000
    hint: for more information, try `--help`
    error: a value is required for `--file <FILE>` but none was supplied
    hint: for more information, try `--help`
    error: the following required arguments were not provided: --file <FILE>
    hint: for more information, try `--help`
    error: unexpected argument `--overwite` found
    hint: perhaps `--overwrite` was meant
    error: unexpected argument `file` found
    hint: for more information, try `--help`
    ");
    for size in ["0", "bananas", "1023K", "1MB", "-1", "99999999999T"] {
        let output = run(folder.path(), ["gpu-file-benchmark", "--size", size]);
        assert_eq!(output.status.code(), Some(2));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains("it takes a number of MiB, or a size such as `512M`"), "{text}");
    }
}

#[test]
fn a_size_without_room_is_refused() {
    let folder = folder();
    let arguments = ["gpu-file-benchmark", "--size", "1000000T", "--gpu", "none"];
    let output = run(folder.path(), arguments);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("stay free"), "{text}");
    assert_eq!(names(folder.path()), [""; 0]);
    // The GPU's memory bounds it as well.
    let (code, text) = failure(folder.path(), &["--gpu", "sim:memory=1M"]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("cannot allocate 2 MiB on sim:0"), "{text}");
}
