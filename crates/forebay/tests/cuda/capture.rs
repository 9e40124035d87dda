//! Transfers while another thread, or the caller's own, captures a graph in the global mode. Each
//! test has a process of its own: what others do without care would spoil the capture.

#![expect(unsafe_code, reason = "lends memory")]

use std::sync::mpsc;
use std::thread;

use forebay::Engine;

use crate::driver::{Driver, engine, file, fill_and_check, is_alone};

const MIB: u64 = 1 << 20;

/// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`.
const CAPTURE_UNSUPPORTED: i32 = 900;

/// Transfers of every sort: large and small, to memory of ours and of others, by a handle.
fn transfer(engine: &Engine, gpu: forebay::gpu::DeviceId, address: u64) {
    fill_and_check(engine, engine.allocate(gpu, 40 * MIB).unwrap());
    // SAFETY: the caller frees it later.
    fill_and_check(engine, unsafe { engine.borrow_device_memory(address, 8 * MIB) }.unwrap());
    let (_folder, path, bytes) = file(20 << 20);
    let buffer = engine.allocate(gpu, bytes.len() as u64).unwrap();
    let opened = engine.open(&path).unwrap();
    let transfer = opened.read(buffer).exact().start().unwrap();
    assert_eq!(transfer.wait().0.unwrap().bytes, bytes.len() as u64);
}

#[test]
fn a_capture_elsewhere_neither_fails_a_transfer_nor_is_spoiled() {
    if !is_alone() {
        return;
    }
    let Some((engine, gpu)) = engine() else { return };
    let driver = Driver::new();
    driver.use_primary(&*gpu);
    let memory = driver.allocate(8 << 20);
    let ((begun, has_begun), (over, is_over)) = (mpsc::channel(), mpsc::channel::<()>());
    thread::scope(|scope| {
        let gpu_there = &gpu;
        let capturer = scope.spawn(move || {
            let driver = Driver::new();
            driver.use_primary(&**gpu_there);
            let stream = driver.begin_capture();
            driver.capture_fill(stream, memory);
            begun.send(()).unwrap();
            // A sender that is dropped by a failed test ends the wait as well.
            let _ = is_over.recv();
            driver.capture_fill(stream, memory);
            let nodes = driver.end_capture(stream);
            driver.pop();
            nodes
        });
        has_begun.recv().unwrap();
        transfer(&engine, gpu.id(), memory);
        // A new engine as well: its threads, its pinned memory and its streams are made meanwhile.
        let fresh = Engine::new(forebay::Options::default()).unwrap();
        let again = fresh.device(&gpu.info().uuid.parse().unwrap()).unwrap().unwrap();
        transfer(&fresh, again.id(), memory);
        drop((fresh, again));
        over.send(()).unwrap();
        assert_eq!(capturer.join().unwrap(), Ok(2), "the capture holds what its thread put there");
    });
    driver.free(memory);
    driver.pop();
}

#[test]
fn a_thread_that_captures_may_transfer_meanwhile() {
    if !is_alone() {
        return;
    }
    let Some((engine, gpu)) = engine() else { return };
    let driver = Driver::new();
    driver.use_primary(&*gpu);
    let memory = driver.allocate(8 << 20);
    let stream = driver.begin_capture();
    driver.capture_fill(stream, memory);
    transfer(&engine, gpu.id(), memory);
    assert_eq!(driver.end_capture(stream), Ok(1));
    // What the transfers did in the relaxed mode, this thread itself may not: its mode came back.
    let stream = driver.begin_capture();
    transfer(&engine, gpu.id(), memory);
    assert_eq!(driver.try_allocate(64).0, CAPTURE_UNSUPPORTED);
    assert!(driver.end_capture(stream).is_err(), "that call spoils a capture");
    driver.free(memory);
    driver.pop();
}
