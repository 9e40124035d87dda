//! Writers that are killed: what was stored is there, and nothing else is wrong.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../../forebay/tests/lab/mod.rs"]
mod lab;
mod stores;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::time::Duration;

use forebay_blocks::{End, Store, Why};
use lab::child;
use stores::{MIB, content, engine, get, options, set, source};

const LEN: usize = 5_000;

/// Stores blocks of known numbers until it is killed, four at a time, and prints what is stored.
fn write_forever(role: &str) -> ! {
    let (first, root) = role.split_once(' ').unwrap();
    let engine = engine();
    let store = Store::open(&engine, &options(Path::new(root), 256 * MIB)).unwrap();
    for start in (first.parse::<u64>().unwrap()..).step_by(4) {
        let block = |number| source(&engine, &store, number, LEN);
        let ends = store.set((start..start + 4).map(block).collect()).wait();
        assert_eq!(ends, [End::Done; 4]);
        let mut out = std::io::stdout();
        writeln!(out, "stored {start}").unwrap();
        out.flush().unwrap();
    }
    unreachable!("it is killed")
}

fn kill_writers(rounds: u64) {
    if let Some(role) = child::role() {
        write_forever(&role);
    }
    let folder = tempfile::tempdir().unwrap();
    let engine = engine();
    // It stays open: what the writers do is seen while they do it.
    let store = Store::open(&engine, &options(folder.path(), 256 * MIB)).unwrap();
    let mut seen = 0;
    for round in 0..rounds {
        let first = round * 1_000_000;
        let mut writer = child::start(&format!("{first} {}", folder.path().display()));
        let lines = BufReader::new(writer.stdout.take().unwrap()).lines();
        let mut stored = lines.filter_map(|line| {
            line.unwrap().strip_prefix("stored ").map(|number| number.parse::<u64>().unwrap())
        });
        let mut numbers = vec![stored.next().expect("it stores blocks")];
        std::thread::sleep(Duration::from_micros(round * 7919 % 20_000));
        writer.kill().unwrap();
        numbers.extend(stored);
        writer.wait().unwrap();
        let last = numbers.last().unwrap() + 4;
        for number in numbers.iter().flat_map(|&start| start..start + 4) {
            assert_eq!(get(&engine, &store, number, LEN).unwrap(), content(number, LEN));
            seen += 1;
        }
        for number in last..last + 4 {
            match get(&engine, &store, number, LEN) {
                Ok(bytes) => assert_eq!(bytes, content(number, LEN)),
                Err(why) => assert_eq!(why, Why::Absent),
            }
            assert!(set(&engine, &store, number, LEN).is_good(), "its slot is free again");
        }
    }
    let missed = &store.statistics()[0].missed;
    assert!(missed.iter().all(|(why, _)| *why != Why::Damaged), "{missed:?}");
    assert!(seen >= rounds * 4);
}

#[test]
fn a_killed_writer_loses_nothing_that_was_stored() {
    kill_writers(15);
}

#[test]
#[ignore = "long"]
fn a_thousand_killed_writers() {
    kill_writers(1_000);
}
