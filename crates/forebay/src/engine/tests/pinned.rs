//! Many pinned buffers on a GPU of the mock driver.

use std::fs;
use std::sync::Arc;

use crate::engine::Engine;
use crate::gpu::Device;
use crate::gpu::cuda::CudaDevice;
use crate::gpu::cuda::mock::{PLAIN, TABLE};
use crate::memory::Buffer;
use crate::options::Options;

const LEN: usize = 4096;

#[test]
fn twenty_thousand_pinned_buffers_are_usable_and_freed() {
    let engine = Engine::new(Options::default()).unwrap();
    let gpu: Arc<dyn Device> = Arc::new(CudaDevice::open_with(&TABLE, PLAIN[5]).unwrap());
    engine.add_device(&gpu).unwrap();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("data"), [7; LEN]).unwrap();
    let file = engine.open(folder.path().join("data")).unwrap();
    let pinned = || engine.allocate_pinned(LEN as u64).unwrap();
    let mut buffers: Vec<Buffer> = (0..20_000).map(|_| pinned()).collect();
    let mut addresses: Vec<u64> = buffers.iter().map(Buffer::address).collect();
    addresses.sort_unstable();
    assert!(addresses.windows(2).all(|pair| pair[0] + LEN as u64 <= pair[1]), "buffers overlap");
    for index in [0, 9_999, 19_999] {
        file.read(&mut buffers[index]).run().unwrap();
        assert_eq!(buffers[index].as_slice(), Some(&[7; LEN][..]));
    }
    // Every second one is freed, and the space is usable again.
    let mut index = 0;
    buffers.retain(|_| {
        index += 1;
        index % 2 == 0
    });
    buffers.extend((0..10_000).map(|_| pinned()));
    assert_eq!(buffers.len(), 20_000);
    for buffer in buffers.iter_mut().rev().take(3) {
        file.read(&mut *buffer).run().unwrap();
        assert_eq!(buffer.as_slice(), Some(&[7; LEN][..]));
    }
}
