//! Stores, and blocks with known contents.

#![allow(clippy::unwrap_used, dead_code, reason = "helpers of tests")]

use std::path::Path;

use forebay::{Buffer, Engine, Options as EngineOptions};
use forebay_blocks::{Block, End, Key, Options, RootOptions, Store, Why};

pub(crate) const MIB: u64 = 1 << 20;

pub(crate) fn engine() -> Engine {
    Engine::new(EngineOptions::default()).unwrap()
}

pub(crate) fn root(path: &Path, capacity: u64) -> RootOptions {
    RootOptions { path: path.into(), capacity, keep_free: Some(0) }
}

pub(crate) fn options(path: &Path, capacity: u64) -> Options {
    Options::new(vec![root(path, capacity)])
}

pub(crate) fn memory(engine: &Engine, bytes: &[u8]) -> Buffer {
    let mut buffer = engine.allocate_pinned(bytes.len() as u64).unwrap();
    buffer.upload(0, bytes).unwrap();
    buffer
}

pub(crate) fn content(number: u64, len: usize) -> Vec<u8> {
    // Pages of random bytes, each with its number.
    let mut state = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state ^ (state >> 32)
    };
    let page: Vec<u8> = (0..512).flat_map(|_| next().to_le_bytes()).collect();
    let mut bytes = page.repeat(len.div_ceil(4096));
    for (number, page) in bytes.chunks_exact_mut(4096).enumerate() {
        page[..8].copy_from_slice(&number.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

pub(crate) fn key(store: &Store, number: u64) -> Key {
    store.key(&number.to_le_bytes())
}

/// A block to write.
pub(crate) fn source(engine: &Engine, store: &Store, number: u64, len: usize) -> Block {
    Block { key: key(store, number), memory: vec![memory(engine, &content(number, len))] }
}

/// A block to read.
pub(crate) fn target(engine: &Engine, store: &Store, number: u64, len: usize) -> Block {
    let memory = vec![engine.allocate_pinned(len as u64).unwrap()];
    Block { key: key(store, number), memory }
}

pub(crate) fn set(engine: &Engine, store: &Store, number: u64, len: usize) -> End {
    store.set(vec![source(engine, store, number, len)]).wait()[0]
}

pub(crate) fn get(engine: &Engine, store: &Store, number: u64, len: usize) -> Result<Vec<u8>, Why> {
    let block = vec![target(engine, store, number, len)];
    // Both ways give the same.
    let batch = if number.is_multiple_of(2) { store.get_here(block) } else { store.get(block) };
    match batch.wait()[0] {
        End::Done => Ok(batch.take_memory()[0][0].as_slice().unwrap().to_vec()),
        End::Not(why) => Err(why),
        End::Present => unreachable!("of a read"),
    }
}
