//! Signals at random moments, to every verb that makes scratch: the exit status names the signal,
//! no scratch and no process is left, and what `kill -9` leaves, the next run removes.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process_group};

use crate::interrupt::{ENDS, Running, short_run};
use crate::lab::note;
use crate::lab::seeds::{self, Dice, index};
use crate::program::program;

/// What runs for longer than a test waits, with its scratch in the current folder.
const LINES: [&str; 8] = [
    "bench --size 4M --repeats 1000 --gpu none",
    "gpu-file-benchmark -s 8 -r 1000 --gpu none",
    "bench . --gpu none --block-size 4K,64K --depth 1,4 --size 8M --repeats 100 --time 200ms",
    "gdsio -D . -w 2 -s 256K -i 64k -x 4 -T 600 --gpu none",
    "doctor . --gpu sim:bandwidth=10kB/s",
    "read file --gpu sim:bandwidth=100kB/s --output new",
    "bench . --size 1M --repeats 1000 --gpu sim:cufile",
    "bench . --gpu sim --block-size 64K --direction write --size 8M --repeats 100 --time 200ms",
];

/// One seed for each line.
const SEEDS: u64 = LINES.len() as u64;

/// Holds a name of the run in the environment of all its processes.
const MARK: &str = "SIGNALS_TEST_RUN";

/// Processes with this mark that have not ended.
fn processes(mark: &str) -> Vec<String> {
    let wanted = format!("{MARK}={mark}");
    let has_mark = |folder: &Path| {
        // It is empty for one that has ended and was not waited for.
        let variables = fs::read(folder.join("environ")).unwrap_or_default();
        variables.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
    };
    let folders = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let found = folders.filter(|folder| has_mark(folder));
    found.map(|folder| fs::read_to_string(folder.join("stat")).unwrap_or_default()).collect()
}

fn send_to(running: &Running, whole_group: bool, signal: Signal) {
    match whole_group {
        // It may have ended by itself.
        true => drop(kill_process_group(running.pid(), signal)),
        false => running.send(signal),
    }
}

/// Names in the folder that were not there before the run.
fn left(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().flatten();
    let names = names.map(|entry| entry.file_name().into_string().unwrap());
    names.filter(|name| name != "file").collect()
}

fn run(seed: u64) -> Option<()> {
    let mut dice = Dice(seed);
    let line = LINES[index(seed % SEEDS)];
    let ends = [&ENDS[..], &[Signal::KILL]].concat();
    let (signal, whole_group) = (dice.one_of(&ends), dice.below(2) == 0);
    let (stops, ignores) = (dice.below(4) == 0, dice.below(4) == 0);
    let folder = tempfile::tempdir_in(".").unwrap();
    fs::write(folder.path().join("file"), vec![7; 16 << 20]).unwrap();
    let mark = folder.path().file_name().unwrap().to_str().unwrap().to_owned();
    note(format!("`{line}`: {signal:?}, to all: {whole_group}, {stops}, {ignores}"));

    // The parent of the tests may ignore signals.
    let mut command = Command::new("env");
    command.arg("--default-signal=INT,QUIT,TERM,HUP,XCPU");
    if ignores {
        command.arg("--ignore-signal=HUP");
    }
    if !Command::new("env").args(command.get_args()).arg("true").status().unwrap().success() {
        println!("skipped: signals at random moments: this `env` sets no signals");
        return None;
    }
    command.arg(program()).args(line.split(' '));
    command.env(MARK, &mark);
    let mut running = Running::spawn(folder, &mut command);
    let folder = running.folder.path().to_owned();
    if dice.below(2) == 0 {
        running.wait_for(|| !left(&folder).is_empty() || running.has_ended());
    }
    sleep(Duration::from_micros(dice.below(500_000)));
    if stops {
        send_to(&running, whole_group, Signal::STOP);
        sleep(Duration::from_micros(dice.below(300_000)));
        send_to(&running, whole_group, Signal::CONT);
    }
    send_to(&running, whole_group, signal);
    let is_ignored = ignores && signal == Signal::HUP;
    if is_ignored {
        sleep(Duration::from_millis(50));
        send_to(&running, whole_group, Signal::TERM);
    }
    let expected = if is_ignored { Signal::TERM } else { signal };

    let sent = Instant::now();
    let status = running.end();
    let messages = running.messages();
    assert_eq!(status.signal(), Some(expected.as_raw()), "{status:?}: {messages}");
    assert!(sent.elapsed() < Duration::from_secs(60), "it ended after {:?}", sent.elapsed());
    running.wait_for(|| processes(&mark).is_empty());
    if signal == Signal::KILL {
        short_run(&folder);
        // Killed before it has locked a file, a command leaves it without a byte.
        let left = running.scratch();
        let is_empty = |path: &PathBuf| fs::metadata(path).unwrap().len() == 0;
        assert!(left.iter().all(is_empty), "the next run left {left:?}");
    } else {
        assert!(left(&folder).is_empty(), "{:?}", left(&folder));
    }
    Some(())
}

#[test]
fn signals_at_random_moments_leave_nothing() {
    seeds::each("-p forebay-cli --test cli signals_at_random", SEEDS, run);
}

#[test]
#[ignore = "slow: its like runs with the others"]
fn many_signals_at_random_moments_leave_nothing() {
    seeds::each("-p forebay-cli --test cli signals_at_random", 20 * SEEDS, run);
}
