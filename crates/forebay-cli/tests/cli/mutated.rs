//! Files that the command reads, with some of their bytes changed: records of systems, with a
//! `cufile.json` among them, and job files. Whatever they hold, the
//! command ends soon, by itself, and does what it would do without them or says what is wrong.

mod forms;
mod memory;
mod results;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::lab::note;
use crate::lab::seeds::{self, Dice, index};
use crate::program::program;

/// Some for each kind of file.
const SEEDS: u64 = 10;

/// Records with block devices of all kinds, and of a machine with a GPU and cuFile's settings.
const RECORDS: [&[u8]; 2] = [
    include_bytes!("../../../forebay-topology/tests/topology/linux-6.12-iommu.tar.gz"),
    include_bytes!("../../../forebay-doctor/tests/doctor/h200.tar.gz"),
];

/// A job file with a last line that is always refused, so that nothing runs.
const GDSIO_JOB: &str = "[global]\nname=x\nxfer_type=2\nrw=randwrite\nbs=4k\nsize = 500M\n\
                         runtime=120\ndo_verify=1\n[job1]\nnuma_node=0\ngpu_dev_id=1\n\
                         num_threads=16\ndirectory=a\n; more\n[job2]\nnum_threads=2\n\
                         filename=b\nstart_offset=1M\nio_size=64K\n";
const GDSIO_LAST: &str = "\n[job3]\nnothing=1\n";

/// What is put into a file.
const TOKENS: [&str; 22] = [
    "\0",
    "\u{1b}[2J",
    "\u{feff}",
    "\u{202e}",
    "\n",
    "\"",
    "\"\"\"",
    "{",
    "[",
    "//",
    "/*",
    "=",
    ",",
    "-1",
    "0",
    "1e999",
    "nan",
    "18446744073709551616",
    "null",
    "../../../..",
    "%s%n",
    "é",
];

/// Changes some bytes.
fn mutate(dice: &mut Dice, bytes: &mut Vec<u8>) {
    for _ in 0..=dice.below(4) {
        let len = bytes.len() as u64;
        let (one, other) = (index(dice.below(len + 1)), index(dice.below(len + 1)));
        let (start, end) = (one.min(other), one.max(other).min(one.min(other) + 40));
        match dice.below(6) {
            0 => bytes.truncate(start),
            1 => drop(bytes.drain(start..end)),
            2 => {
                let part = bytes[start..end].to_vec();
                let times = index(dice.one_of(&[1, 2, 2000]));
                bytes.splice(start..start, part.repeat(times));
            }
            3 if start < bytes.len() => bytes[start] ^= 1 << dice.below(8),
            _ => {
                let times = index(dice.one_of(&[1, 1, 1, 3000]));
                let token = dice.one_of(&TOKENS).repeat(times);
                bytes.splice(start..end, token.into_bytes());
            }
        }
    }
}

/// Runs the command to its end, and returns its exit code and what it printed.
fn outcome(folder: &Path, arguments: &[&str]) -> (i32, String) {
    let mut command = Command::new(program());
    command.args(arguments).current_dir(folder);
    let [out, err] = ["out", "err"].map(|name| folder.join(name));
    command.stdout(fs::File::create(&out).unwrap()).stderr(fs::File::create(&err).unwrap());
    let (mut child, start) = (command.spawn().unwrap(), Instant::now());
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > Duration::from_secs(100) {
            child.kill().unwrap();
            panic!("{arguments:?} hangs");
        }
        sleep(Duration::from_millis(2));
    };
    let code = status.code();
    let text = |path| String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned();
    let (out, err) = (text(out), text(err));
    assert!(!err.contains("panicked"), "{err}");
    let code = code.unwrap_or_else(|| panic!("{arguments:?} ended by a signal: {err}"));
    assert!(code <= 2, "{arguments:?} ended with {code}: {err}");
    assert!(code == 0 || err.contains("error: "), "{arguments:?}: {err}");
    (code, out)
}

/// All regular files below a folder.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => files(&entry.path(), found),
            kind if kind.is_file() => found.push(entry.path()),
            _ => {}
        }
    }
}

fn record(dice: &mut Dice, folder: &Path) -> Option<()> {
    let archive = dice.one_of(&RECORDS);
    let mut tar = Command::new("tar");
    let tar =
        tar.args(["-xzf", "-", "--strip-components=1", "-C"]).arg(folder).stdin(Stdio::piped());
    let Ok(mut tar) = tar.spawn() else {
        println!("skipped: records with changed bytes: there is no `tar`");
        return None;
    };
    tar.stdin.take().unwrap().write_all(archive).unwrap();
    assert!(tar.wait().unwrap().success());
    let mut all = Vec::new();
    files(folder, &mut all);
    all.sort();
    let settings = all.iter().filter(|path| path.ends_with("cufile.json")).cloned();
    let mut chosen: Vec<PathBuf> = settings.filter(|_| dice.below(2) == 0).collect();
    for _ in 0..=dice.below(20) {
        chosen.push(all[index(dice.below(all.len() as u64))].clone());
    }
    for path in chosen {
        let mut bytes = fs::read(&path).unwrap();
        mutate(dice, &mut bytes);
        fs::write(&path, bytes).unwrap();
    }
    for words in [&["doctor", "--tree"][..], &["doctor"]] {
        outcome(folder, &[words, &["--fixture", "."]].concat());
    }
    Some(())
}

fn job(dice: &mut Dice, folder: &Path) {
    let mut bytes = GDSIO_JOB.as_bytes().to_vec();
    mutate(dice, &mut bytes);
    bytes.extend(GDSIO_LAST.bytes());
    fs::write(folder.join("job"), bytes).unwrap();
    assert_ne!(outcome(folder, &["gdsio", "job"]).0, 0);
}

fn run(seed: u64) -> Option<()> {
    let mut dice = Dice(seed);
    let folder = tempfile::tempdir_in(".").unwrap();
    note(format!("in {}", folder.path().display()));
    match seed % SEEDS {
        0..=4 => job(&mut dice, folder.path()),
        _ => return record(&mut dice, folder.path()),
    }
    Some(())
}

#[test]
fn files_with_changed_bytes_end_no_command() {
    seeds::each("-p forebay-cli --test cli with_changed_bytes", SEEDS, run);
}

#[test]
#[ignore = "slow: its like runs with the others"]
fn many_files_with_changed_bytes_end_no_command() {
    seeds::each("-p forebay-cli --test cli with_changed_bytes", 20 * SEEDS, run);
}
