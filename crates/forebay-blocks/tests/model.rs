//! A model of a store: every result and counter agrees with it, with threads and processes at once.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../../forebay/tests/lab/mod.rs"]
mod lab;
mod stores;

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::thread;

use forebay::Engine;
use forebay_blocks::{Block, End, Key, Policy, Store, Why};
use lab::child;
use lab::seeds::{Dice, index};
use stores::{MIB, content, engine, memory, options};

const LENGTHS: [usize; 9] = [1, 100, 4096, 4097, 18_432, 65_536, 65_537, 300_001, 1 << 20];

/// What one root counted for the calls of one store.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    hits: u64,
    absent: u64,
    stored: u64,
    present: u64,
    read: u64,
    written: u64,
}

/// The calls of one thread on keys of its own, and what they have to return.
struct User<'a> {
    engine: &'a Engine,
    store: &'a Store,
    name: String,
    dice: Dice,
    /// Whether blocks may leave.
    is_full: bool,
    /// Contents by key and length.
    there: HashMap<(u64, usize), u64>,
    versions: u64,
    counts: Counts,
}

impl User<'_> {
    fn key(&self, key: u64) -> Key {
        self.store.key(format!("{} {key}", self.name).as_bytes())
    }

    fn keys(&mut self) -> Vec<u64> {
        let count = [1, 1, 2, 5, 17][index(self.dice.below(5))];
        let keys: HashSet<u64> = (0..count).map(|_| self.dice.below(40)).collect();
        keys.into_iter().collect()
    }

    fn has(&self, key: u64) -> bool {
        self.there.keys().any(|(it, _)| *it == key)
    }

    fn block(&self, key: u64, bytes: &[u8]) -> Block {
        // In one piece or in three.
        let parts = match bytes.len() > 3 && key.is_multiple_of(3) {
            true => [&bytes[..1], &bytes[1..bytes.len() / 2], &bytes[bytes.len() / 2..]].to_vec(),
            false => vec![bytes],
        };
        let memory = parts.into_iter().map(|part| memory(self.engine, part)).collect();
        Block { key: self.key(key), memory }
    }

    /// Evictions by the store of this process.
    fn evicted(&self) -> u64 {
        self.store.statistics()[0].evicted
    }

    fn set(&mut self) {
        let keys = self.keys();
        let mut blocks = Vec::new();
        let mut wanted = Vec::new();
        for key in keys {
            let len = LENGTHS[index(self.dice.below(LENGTHS.len() as u64))];
            self.versions += 1;
            blocks.push(self.block(key, &content(self.versions, len)));
            wanted.push((key, len, self.versions));
        }
        for (end, (key, len, version)) in self.store.set(blocks).wait().into_iter().zip(wanted) {
            match end {
                End::Done => {
                    assert!(self.is_full || !self.there.contains_key(&(key, len)));
                    self.there.insert((key, len), version);
                    self.counts.stored += 1;
                    self.counts.written += len as u64;
                }
                End::Present => {
                    assert!(self.there.contains_key(&(key, len)), "{key} of {len} is not there");
                    self.counts.present += 1;
                }
                End::Not(why) => panic!("set of {len} bytes: {why}"),
            }
        }
    }

    fn get(&mut self) {
        let keys = self.keys();
        let wanted: Vec<(u64, usize)> = keys
            .into_iter()
            .map(|key| {
                let own = self.there.keys().find(|(it, _)| *it == key).map(|(_, len)| *len);
                let other = LENGTHS[index(self.dice.below(LENGTHS.len() as u64))];
                (key, own.filter(|_| self.dice.below(5) > 0).unwrap_or(other))
            })
            .collect();
        let blocks = wanted.iter().map(|&(key, len)| self.block(key, &vec![0; len])).collect();
        let batch = match self.dice.below(2) {
            0 => self.store.get(blocks),
            _ => self.store.get_here(blocks),
        };
        let ends = batch.wait();
        for ((end, pieces), at) in ends.into_iter().zip(batch.take_memory()).zip(wanted) {
            match end {
                End::Done => {
                    let version = *self.there.get(&at).expect("not stored");
                    let bytes: Vec<u8> =
                        pieces.iter().flat_map(|it| it.as_slice().unwrap().to_vec()).collect();
                    assert!(bytes == content(version, at.1), "other bytes of {at:?}");
                    self.counts.hits += 1;
                    self.counts.read += at.1 as u64;
                }
                end => {
                    assert_eq!(end, End::Not(Why::Absent));
                    let is_lost = !self.is_full && self.there.contains_key(&at);
                    assert!(!is_lost, "{at:?} is lost, with {} evictions", self.evicted());
                    self.counts.absent += 1;
                }
            }
        }
    }

    fn look(&mut self) {
        let keys = self.keys();
        let names: Vec<Key> = keys.iter().map(|&key| self.key(key)).collect();
        let ends = match self.dice.below(3) {
            0 => self.store.touch(&names).wait(),
            _ => self.store.exists(&names).wait(),
        };
        let at_once = self.store.find_at_once(&names);
        for ((end, at_once), key) in ends.into_iter().zip(at_once).zip(keys) {
            if self.is_full {
                assert!(!end.is_good() || self.has(key));
                continue;
            }
            assert_eq!(end.is_good(), self.has(key), "{end:?}");
            assert!(at_once.is_none_or(|it| it == self.has(key)));
        }
    }

    fn delete(&mut self) {
        let keys = self.keys();
        let names: Vec<Key> = keys.iter().map(|&key| self.key(key)).collect();
        for (end, key) in self.store.delete(&names).wait().into_iter().zip(keys) {
            assert!(!end.is_good() || self.has(key));
            assert!(self.is_full || end.is_good() == self.has(key), "{end:?}");
            self.there.retain(|(it, _), _| *it != key);
        }
    }

    fn run(&mut self, calls: u64) {
        for _ in 0..calls {
            match self.dice.below(10) {
                0..3 => self.set(),
                3..7 => self.get(),
                7..9 => self.look(),
                _ => self.delete(),
            }
        }
    }
}

/// Threads of one process, whose store counts what they saw.
fn use_store(path: &Path, process: u64, seed: u64, is_full: bool, calls: u64) {
    let engine = engine();
    // Three processes write about 2 MiB per call of a thread: the log makes no lap.
    let capacity = if is_full { 12 * MIB } else { (4 * calls * MIB).max(512 * MIB) };
    let mut options = options(path, capacity);
    options.page_cache = seed.is_multiple_of(2);
    options.policy = if seed.is_multiple_of(3) { Policy::Lfu } else { Policy::Lru };
    let store = Store::open(&engine, &options).unwrap();
    let counts: Vec<(Counts, u64, u64)> = thread::scope(|scope| {
        let run = |number: u64| {
            let (engine, store) = (&engine, &store);
            move || {
                let (there, counts) = (HashMap::new(), Counts::default());
                let name = format!("{process} {number} {seed}");
                let dice = Dice(seed * 100 + process * 10 + number + 1);
                let mut user =
                    User { engine, store, name, dice, is_full, there, versions: 0, counts };
                user.run(calls);
                let bytes = user.there.keys().map(|(_, len)| len.next_multiple_of(4096) as u64);
                (user.counts, user.there.len() as u64, bytes.sum())
            }
        };
        let threads: Vec<_> = (0..3).map(|number| scope.spawn(run(number))).collect();
        threads.into_iter().map(|it| it.join().unwrap()).collect()
    });
    let sum = |of: fn(&Counts) -> u64| counts.iter().map(|(it, ..)| of(it)).sum::<u64>();
    let root = &store.statistics()[0];
    assert_eq!(root.hits, sum(|it| it.hits));
    assert_eq!(root.stored, sum(|it| it.stored));
    assert_eq!(root.present, sum(|it| it.present));
    assert_eq!(root.bytes_read, sum(|it| it.read));
    assert_eq!(root.bytes_written, sum(|it| it.written));
    let absent = sum(|it| it.absent);
    let missed = if absent > 0 { vec![(Why::Absent, absent)] } else { Vec::new() };
    assert_eq!((&root.missed, &root.dropped), (&missed, &Vec::new()), "{:?}", root.last_error);
    let (blocks, bytes) = store.usage().unwrap();
    assert!(bytes <= capacity);
    if process == 0 && !is_full {
        let all: (u64, u64) =
            counts.iter().fold((0, 0), |sum, (_, blocks, bytes)| (sum.0 + blocks, sum.1 + bytes));
        assert!(blocks >= all.0 && bytes >= all.1, "{blocks} {bytes} {all:?}");
        assert_eq!(root.evicted, 0);
    }
}

/// Runs `processes` of them at once.
fn compare(processes: u64, seed: u64, is_full: bool, calls: u64) {
    let folder = tempfile::tempdir().unwrap();
    let role = |process| format!("{process} {seed} {is_full} {calls} {}", folder.path().display());
    let others: Vec<_> = (1..processes).map(|process| child::start(&role(process))).collect();
    use_store(folder.path(), 0, seed, is_full, calls);
    for other in others {
        let done = other.wait_with_output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
}

/// The work of a process that `compare` started.
fn as_child() -> bool {
    let Some(role) = child::role() else { return false };
    let parts: Vec<_> = role.splitn(5, ' ').collect();
    let number = |part: usize| parts[part].parse::<u64>().unwrap();
    use_store(Path::new(parts[4]), number(0), number(1), parts[2] == "true", number(3));
    true
}

#[test]
fn calls_agree_with_a_model() {
    if !as_child() {
        (1..4).for_each(|seed| compare(2, seed, false, 150));
    }
}

#[test]
fn calls_on_a_full_root_agree_with_a_model() {
    if !as_child() {
        (4..8).for_each(|seed| compare(2, seed, true, 150));
    }
}

#[test]
#[ignore = "long"]
fn many_calls_agree_with_a_model() {
    if !as_child() {
        (10..40).for_each(|seed| compare(3, seed, seed.is_multiple_of(2), 1000));
    }
}
