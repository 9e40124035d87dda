//! Tests of an engine whose GPU driver panics.

use std::fs;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Error, Options, Silent, engine_with};
use crate::engine::Engine;
use crate::gpu::{Device, is_quiet};
use crate::queue::Chore;

/// A panic of the copy thread or a caller's thread must not leave other threads waiting.
#[test]
fn a_panic_in_a_copy_fails_the_engine_and_wakes_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, vec![7; 8 << 20]).unwrap();
    let gpu = Silent::new("sim");
    let (engine, device) = engine_with(&gpu);
    let file = engine.open(&path).unwrap();
    let mut lent = engine.allocate(device.id(), 8 << 20).unwrap();
    let owned = || engine.allocate(device.id(), 8 << 20).unwrap();
    let (first, second) = (owned(), owned());
    gpu.panics.store(true, Ordering::Relaxed);
    let started = file.read(first).exact().start().unwrap();
    // The bound only separates late from never.
    let end = started.wait_for(Duration::from_secs(60));
    let Some(Err(error @ Error::EngineFailed { .. })) = end else { panic!("{end:?}") };
    let text = error.to_string();
    assert!(text.contains("forebay-copy-0") && text.contains("the driver is broken"), "{text}");
    assert!(started.wait().1.is_none(), "memory came back that a copy may still touch");
    gpu.panics.store(false, Ordering::Relaxed);
    let mut bytes = [0; 4096];
    let refused = [
        file.read(&mut lent).run().map(drop),
        file.read(&mut bytes[..]).run().map(drop),
        file.read(second).exact().start().unwrap().wait().0.map(drop),
    ];
    for result in refused {
        assert!(matches!(result, Err(Error::EngineFailed { .. })), "{result:?}");
    }
    assert_eq!(bytes, [0; 4096]);
    assert!(engine.notes().iter().any(|note| note.contains("forebay-copy-0")));
    drop((file, engine));
    assert_eq!(gpu.busy_frees.load(Ordering::Relaxed), 0);
}

#[test]
fn a_panic_as_the_kernel_is_loaded_fails_the_engine() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, vec![7; 1 << 20]).unwrap();
    let gpu = Silent::new("sim");
    let (engine, device) = engine_with(&gpu);
    let target = engine.allocate(device.id(), 1 << 20).unwrap();
    gpu.gathers.store(true, Ordering::Relaxed);
    gpu.panics.store(true, Ordering::Relaxed);
    let read = engine.open(&path).unwrap().read(target).exact().start();
    // The bound only separates late from never.
    let end = read.and_then(|read| read.wait_for(Duration::from_secs(60)).expect("an end"));
    assert!(matches!(end, Err(Error::EngineFailed { .. })), "{end:?}");
}

#[test]
fn a_driver_that_panics_does_not_say_that_copies_are_over() {
    let gpu = Silent::new("sim");
    let stream = gpu.create_stream().unwrap();
    gpu.panics.store(true, Ordering::Relaxed);
    assert!(!is_quiet(&*gpu, stream));
    gpu.panics.store(false, Ordering::Relaxed);
    assert!(is_quiet(&*gpu, stream));
    gpu.destroy_stream(stream).unwrap();
}

#[test]
fn a_panic_as_memory_is_freed_or_a_file_closed_fails_the_engine() {
    for (chore, thread) in [(Chore::Free, "forebay-free"), (Chore::Close, "forebay-close")] {
        let engine = Engine::new(Options::default()).unwrap();
        let core = &engine.inner.core;
        core.aside(chore, || panic!("a destructor is broken"));
        // The bound only separates late from never.
        let until = std::time::Instant::now() + Duration::from_secs(60);
        while core.failure().is_none() && std::time::Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        let text = core.failure().expect("the engine has failed").to_string();
        assert!(text.contains(thread) && text.contains("a destructor is broken"), "{text}");
    }
}
