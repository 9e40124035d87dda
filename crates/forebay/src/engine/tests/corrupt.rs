//! Impossible answers of the CUDA driver end an engine's transfers with errors.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::engine::Engine;
use crate::error::Error;
use crate::gpu::Device;
use crate::gpu::cuda::mock::PLAIN;
use crate::gpu::cuda::mock::corrupt::{
    ENDLESS, EVENTS, NO_EVENT, NO_STREAM, STATUSES, STREAMS, answer,
};
use crate::gpu::cuda::{CudaDevice, CudaTable};
use crate::options::Options;

/// An engine with one GPU of this driver, and a file a few slots long.
fn engine(table: &'static CudaTable) -> (Engine, Arc<dyn Device>, tempfile::TempDir) {
    let options = Options { slot_size: 1 << 20, segment_size: 64 << 10, ..Options::default() };
    let engine = Engine::new(options).unwrap();
    let device: Arc<dyn Device> = Arc::new(CudaDevice::open_with(table, PLAIN[3]).unwrap());
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), vec![7; 5 << 20]).unwrap();
    (engine, device, folder)
}

#[test]
fn sizes_without_a_bound_do_no_harm() {
    for size in [0, -1, i64::MAX, i64::MIN] {
        answer(size);
        let (engine, device, _folder) = engine(&ENDLESS);
        engine.add_device(&device).unwrap();
    }
}

#[test]
fn an_engine_reports_nonsense_and_continues() {
    // Without streams the device cannot be added.
    let (lacking, device, _folder) = engine(&NO_STREAM);
    let error = lacking.add_device(&device).unwrap_err();
    assert!(error.to_string().contains(&device.id().to_string()), "{error}");
    // Without events no copy is known to be done, and none is assumed to be.
    let (engine, device, folder) = engine(&NO_EVENT);
    engine.add_device(&device).unwrap();
    let file = engine.open(folder.path().join("file")).unwrap();
    let error = file.read_to_end(Some(device.id())).run().unwrap_err();
    assert!(matches!(&error, Error::Device { source, .. } if source.is_nonsense()), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("`nvidia-smi`")));
    assert!(file.read_to_end(None).run().unwrap().0.as_slice() == Some(&[7; 5 << 20][..]));
}

#[test]
fn statuses_that_do_not_exist_are_errors() {
    for status in [-1, 12_345, i32::MIN, i32::MAX] {
        let (engine, device, folder) = engine(&STATUSES);
        engine.add_device(&device).unwrap();
        let file = engine.open(folder.path().join("file")).unwrap();
        let buffer = engine.allocate(device.id(), 5 << 20).unwrap();
        let (result, buffer) = file.read(buffer).exact().start().unwrap().wait();
        assert_eq!(result.unwrap().bytes, 5 << 20);
        // If an event fails, the copy failed, but its stream reports that it is over.
        EVENTS.store(status, Ordering::SeqCst);
        let buffer = buffer.unwrap();
        let (result, buffer) = file.read(buffer).exact().start().unwrap().wait();
        let error = result.unwrap_err();
        let Error::Device { source, .. } = &error else { panic!("{error:?}") };
        assert_eq!((source.code, source.name.clone()), (status, format!("CUDA_ERROR_{status}")));
        // If the stream fails too, it is unknown whether the copy is over.
        STREAMS.store(status, Ordering::SeqCst);
        let buffer = buffer.expect("a copy that is over gives the memory back");
        let (result, buffer) = file.read(buffer).exact().start().unwrap().wait();
        assert!(matches!(result, Err(Error::CopyNotOver { .. })), "{result:?}");
        assert!(buffer.is_none());
        assert!(file.read_to_end(None).run().unwrap().0.as_slice() == Some(&[7; 5 << 20][..]));
        EVENTS.store(0, Ordering::SeqCst);
        STREAMS.store(0, Ordering::SeqCst);
    }
}
