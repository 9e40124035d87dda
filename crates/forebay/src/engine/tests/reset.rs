//! A GPU that is reset under an engine, with transfers in each state.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;
use crate::error::Error;
use crate::gpu::Device;
use crate::gpu::cuda::CudaDevice;
use crate::gpu::cuda::mock::{RESET, TABLE, calls, reset};
use crate::options::Options;

const LEN: u64 = 4 << 20;

/// The bound only separates late from never: a copy takes a minute.
const SOON: Duration = Duration::from_secs(30);

#[test]
fn every_transfer_ends_with_an_error_and_nothing_is_touched() {
    let options = Options {
        slot_size: 256 << 10,
        segment_size: 64 << 10,
        arena_size: Some(1 << 20),
        ..Options::default()
    };
    let engine = Engine::new(options).unwrap();
    let open = || -> Arc<dyn Device> {
        Arc::new(CudaDevice::open_with(&TABLE, RESET[0]).unwrap()) //
    };
    let gpu = open();
    engine.add_device(&gpu).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    std::fs::write(&path, vec![7; usize::try_from(LEN).unwrap()]).unwrap();
    let file = engine.open(&path).unwrap();
    let memory = |len| engine.allocate(gpu.id(), len).unwrap();
    let start = |buffer| file.read(buffer).start().unwrap();
    // In cells; as copies; waiting for slots; and a write, whose bytes come from the GPU first.
    let copied = start(memory(64 << 10));
    while engine.queued_on(&gpu) == 0 && !copied.is_done() {
        std::thread::yield_now();
    }
    let mut transfers = vec![copied, start(memory(64 << 10)), start(memory(LEN))];
    transfers.push(start(memory(LEN)));
    let written = engine.open_with(&path, &crate::OpenOptions::writing()).unwrap();
    let write = written.write(memory(LEN)).start();
    transfers.push(write.unwrap());
    let blocking = {
        let (file, mut target) = (file.clone(), memory(100));
        std::thread::spawn(move || file.read(&mut target).run())
    };
    let mut idle = memory(100);
    // Two groups are queued; the second may be the blocking read alone. The rest waits for them.
    while engine.queued_on(&gpu) <= 64 << 10 {
        std::thread::yield_now();
    }
    reset(RESET[0]);
    let mut errors: Vec<Error> = Vec::new();
    for transfer in &transfers {
        let error = transfer.wait_for(SOON).expect("it ends").expect_err("the GPU is gone");
        let may_be_touched = matches!(error, Error::CopyNotOver { .. });
        assert!(!may_be_touched || transfer.reclaim().is_empty(), "{error}");
        errors.push(error);
    }
    // Its context has the same address.
    let other = open();
    let before = calls(RESET[0]);
    let mut refuse = |done: crate::Result<()>| errors.push(done.expect_err("the GPU is gone"));
    refuse(file.read(&mut idle).run().map(drop));
    refuse(engine.allocate(gpu.id(), 100).map(drop));
    refuse(idle.upload(0, &[1; 10]));
    refuse(idle.download(0, &mut [0; 10]));
    refuse(idle.fill(1));
    for error in errors {
        let (Error::Device { source, .. } | Error::CopyNotOver { source, .. }) = &error else {
            panic!("{error:?}");
        };
        assert!(source.is_loss() && source.to_string().contains("was reset"), "{error}");
        assert!(error.hint().is_some(), "{error}");
    }
    drop((transfers, idle, written, file, engine, gpu));
    assert_eq!(calls(RESET[0]), before, "the next context is not touched");
    assert!(other.memory().is_ok());
    drop(blocking); // it is in the simulated driver for a minute
}
