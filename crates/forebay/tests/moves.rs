//! Bytes move whole and nowhere else: reads and writes of every shape against a model.

use std::fs;
use std::os::unix::fs::FileExt;

use forebay::gpu::GpuSelector;
use forebay::{Engine, OpenOptions, Options, RequestOptions, Route};

mod lab;

fn content(len: usize, seed: u64) -> Vec<u8> {
    lab::pattern(seed, len)
}

#[test]
fn host_reads_match() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let bytes = content(40_000_123, 1);
    fs::write(&path, &bytes).unwrap();
    let engine = Engine::new(Options::default()).unwrap();
    let file = engine.open(&path).unwrap();
    for cold in [false, true] {
        for (offset, len) in
            [(0, 40_000_123), (1, 4096), (4095, 2), (123_456, 33_333_333), (40_000_000, 4096)]
        {
            if cold {
                fs::File::open(&path).unwrap().sync_all().unwrap();
                file.evict().unwrap();
            }
            let mut target = vec![0xEE; len];
            let outcome = file.read(offset as u64, &mut target).unwrap();
            let got = outcome.bytes as usize;
            assert_eq!(got, len.min(bytes.len() - offset));
            assert!(target[..got] == bytes[offset..offset + got], "{offset} {len} {cold}");
            assert!(target[got..].iter().all(|&b| b == 0xEE));
            println!("{cold} {offset}+{len}: {outcome:?}");
        }
    }
}

#[test]
fn sim_reads_and_writes_match() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let bytes = content(70_000_123, 2);
    fs::write(&path, &bytes).unwrap();
    let engine = Engine::new(Options::default()).unwrap();
    let gpu = engine.device(&"sim".parse::<GpuSelector>().unwrap()).unwrap().unwrap();
    let file = engine.open(&path).unwrap();
    for cold in [false, true] {
        if cold {
            fs::File::open(&path).unwrap().sync_all().unwrap();
            file.evict().unwrap();
        }
        let (buffer, outcome) = file.read_whole(Some(gpu.id())).unwrap();
        println!("{outcome:?}");
        let mut back = vec![0; bytes.len()];
        buffer.download(0, &mut back).unwrap();
        assert!(back == bytes);
        let want = if cold { Route::Staged } else { Route::Cached };
        assert_eq!(outcome.routes[0].route, want);

        let out = dir.path().join("out");
        let target = engine.open_with(&out, &OpenOptions::writing()).unwrap();
        for route in [None, Some(Route::Staged)] {
            let mut options = RequestOptions::default();
            options.route = route;
            target.write_with(333, &buffer, &options).unwrap();
            let mut back = vec![0; bytes.len()];
            fs::File::open(&out).unwrap().read_exact_at(&mut back, 333).unwrap();
            assert!(back == bytes);
        }
    }
}
