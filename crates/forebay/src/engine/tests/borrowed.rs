//! An engine that shares its GPUs with other code: borrowed memory of every kind that the simulated
//! driver supports, and stream captures by the caller.

use std::fs;
use std::ptr::NonNull;
use std::sync::Arc;

use forebay_base::clock::SystemClock;

use crate::engine::{Engine, OpenOptions};
use crate::error::Error;
use crate::gpu::Device;
use crate::gpu::cuda::CudaDevice;
use crate::gpu::cuda::mock::{Capture, PLAIN, SimulatedAddress, TABLE, handles, play, swap_mode};
use crate::gpu::sim::SimDevice;
use crate::memory::Buffer;
use crate::options::Options;

const MIB: u64 = 1 << 20;

/// An engine with these GPUs of the simulated driver.
fn driven(indexes: &[u32]) -> (Engine, Vec<Arc<dyn Device>>) {
    let engine = Engine::new(Options::default()).unwrap();
    let open = |&index: &u32| -> Arc<dyn Device> {
        Arc::new(CudaDevice::open_with(&TABLE, index).unwrap())
    };
    let devices: Vec<_> = indexes.iter().map(open).collect();
    devices.iter().for_each(|device| engine.add_device(device).unwrap());
    (engine, devices)
}

fn borrow(engine: &Engine, address: u64, len: u64) -> Result<Buffer, Error> {
    // SAFETY: every test frees its memory after the buffer is dropped, or never.
    unsafe { engine.borrow_device_memory(address, len) }
}

fn refusal(engine: &Engine, address: u64, len: u64) -> String {
    let error = borrow(engine, address, len).unwrap_err();
    assert!(matches!(error, Error::NotDeviceMemory { .. }), "{error:?}");
    assert!(error.hint().is_some());
    let text = error.to_string();
    let start = format!("cannot borrow {address:#x}+{len} as GPU memory: ");
    text.strip_prefix(&start).unwrap_or_else(|| panic!("{text}")).to_owned()
}

/// Reads a file of random length into a part of the buffer and writes it to another file.
fn there_and_back(engine: &Engine, mut buffer: Buffer) {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    let len = buffer.len();
    let bytes: Vec<u8> = (0..=250).cycle().take(usize::try_from(len).unwrap()).collect();
    fs::write(&from, &bytes).unwrap();
    engine.open(&from).unwrap().read(&mut buffer).run().unwrap();
    let mut got = vec![0; bytes.len()];
    buffer.download(0, &mut got).unwrap();
    assert!(got == bytes);
    let file = engine.open_with(&to, &OpenOptions::new_file()).unwrap();
    let (result, buffer) = file.write(buffer).start().unwrap().wait();
    result.unwrap();
    assert!(fs::read(&to).unwrap() == bytes);
    // Small requests take another code path.
    let (mut left, _right) = buffer.unwrap().split_at(1000);
    engine.open(&from).unwrap().read(&mut left).at(7).run().unwrap();
    let mut got = vec![0; 1000];
    left.download(0, &mut got).unwrap();
    assert!(got == bytes[7..1007]);
}

#[test]
fn memory_of_others_is_used_and_not_freed() {
    let engine = Engine::new(Options::default()).unwrap();
    let clock = Arc::new(SystemClock::new());
    let sim: Arc<dyn Device> = Arc::new(SimDevice::new(3, "sim".parse().unwrap(), clock));
    engine.add_device(&sim).unwrap();
    let (driven, gpus) = driven(&[PLAIN[7], PLAIN[8]]);
    for (engine, gpu) in [(&engine, &sim), (&driven, &gpus[1])] {
        let address = gpu.allocate(5 * MIB).unwrap();
        let buffer = borrow(engine, address + 10, 5 * MIB - 20).unwrap();
        assert_eq!((buffer.device(), buffer.address()), (Some(gpu.id()), address + 10));
        there_and_back(engine, buffer);
        // SAFETY: allocated here, and the buffer is dropped; a double free would fail.
        unsafe { gpu.free(address) }.unwrap();
        let gone = format!("{address:#x} is unknown memory: it was freed, or never allocated");
        assert_eq!(refusal(engine, address, 1), gone);
    }
}

#[test]
fn a_range_of_virtual_memory_may_span_mappings_of_one_gpu() {
    let ordinals = [7, 8].map(|place: usize| i32::try_from(PLAIN[place]).unwrap());
    let mapped = |ordinal, accessible| SimulatedAddress::Mapping { ordinal, accessible };
    let (engine, gpus) = driven(&[PLAIN[7], PLAIN[8]]);
    let base = gpus[0].allocate(16 * MIB).unwrap();
    let at = |mib: u64| base + mib * MIB;
    play(at(0), 2 * MIB, mapped(ordinals[0], true));
    play(at(2), 4 * MIB, mapped(ordinals[0], true));
    play(at(6), 2 * MIB, mapped(ordinals[0], true));
    play(at(8), 2 * MIB, mapped(ordinals[1], true));
    play(at(10), 2 * MIB, mapped(ordinals[0], true));
    play(at(12), 2 * MIB, mapped(ordinals[0], false));
    play(at(14), 2 * MIB, SimulatedAddress::Reserved);
    let buffer = borrow(&engine, at(1), 7 * MIB).unwrap();
    assert_eq!(buffer.device(), Some(gpus[0].id()));
    there_and_back(&engine, buffer);
    let elsewhere = format!("the memory from {:#x} on belongs to {}", at(8), gpus[1].id());
    assert_eq!(refusal(&engine, at(1), 7 * MIB + 1), elsewhere);
    let (closed, id) = (at(12), gpus[0].id());
    let sealed =
        format!("{id} has no read and write access to the mapping {closed:#x}+{}", 2 * MIB);
    assert_eq!(refusal(&engine, at(10), 2 * MIB + 1), sealed);
    assert_eq!(refusal(&engine, at(12), 1), sealed);
    let reserved = format!("{:#x} is reserved virtual memory with nothing mapped to it", at(14));
    assert_eq!(refusal(&engine, at(14), 1), reserved);
    assert_eq!(borrow(&engine, at(8), 2 * MIB).unwrap().device(), Some(gpus[1].id()));
    // The memory after the last mapping is a separate allocation.
    let behind = gpus[0].allocate(4 * MIB).unwrap();
    play(behind, 2 * MIB, mapped(ordinals[0], true));
    let (end, over) = (behind + 2 * MIB, 2 * MIB + 1);
    let other = format!("the mapping ends at {end:#x}, and the memory there is another allocation");
    assert_eq!(refusal(&engine, behind, over), other);
    assert_eq!(handles(), 0, "every handle of a mapping is released");
}

#[test]
fn managed_memory_is_used_like_any_other() {
    let (engine, gpus) = driven(&[PLAIN[9]]);
    let base = gpus[0].allocate(4 * MIB).unwrap();
    play(base, 3 * MIB, SimulatedAddress::Managed);
    there_and_back(&engine, borrow(&engine, base, 3 * MIB).unwrap());
    let beyond = format!("the allocation {base:#x}+{} ends 1 bytes before the range does", 3 * MIB);
    assert_eq!(refusal(&engine, base, 3 * MIB + 1), beyond);
}

#[test]
fn other_memory_is_refused_by_its_kind() {
    let (engine, gpus) = driven(&[PLAIN[9]]);
    let memory = gpus[0].allocate(1000).unwrap();
    let beyond =
        |over| format!("the allocation {memory:#x}+1000 ends {over} bytes before the range does");
    assert_eq!(refusal(&engine, memory, 1001), beyond(1));
    assert_eq!(refusal(&engine, memory + 999, 4096), beyond(4095));
    assert_eq!(
        refusal(&engine, memory, 0),
        "the length is zero, or the range exceeds the address space"
    );
    assert_eq!(
        refusal(&engine, memory, u64::MAX),
        "the length is zero, or the range exceeds the address space"
    );
    let mut bytes = vec![0_u8; 4096];
    let host = NonNull::new(bytes.as_mut_ptr()).unwrap();
    let number = host.addr().get() as u64;
    assert_eq!(refusal(&engine, number, 16), format!("{number:#x} is ordinary host memory"));
    // SAFETY: the vector outlives the registration.
    unsafe { gpus[0].register(host, 4096) }.unwrap();
    assert_eq!(refusal(&engine, number, 16), format!("{number:#x} is pinned host memory"));
    // SAFETY: nothing is queued on it.
    unsafe { gpus[0].unregister(host) }.unwrap();
    let unknown = "0x8 is unknown memory: it was freed, or never allocated";
    assert_eq!(refusal(&engine, 8, 16), unknown);
    let without_gpu = Engine::new(Options::default()).unwrap();
    assert_eq!(refusal(&without_gpu, number, 16), format!("{number:#x} is ordinary host memory"));
}

#[test]
fn a_capture_elsewhere_neither_fails_a_transfer_nor_is_spoiled() {
    let (engine, gpus) = driven(&[PLAIN[8]]);
    let capture = Capture::begin();
    // The caller's thread is in the default capture mode, then in another one.
    for mode in [0, 1] {
        swap_mode(mode);
        let buffer = engine.allocate(gpus[0].id(), 5 * MIB).unwrap();
        there_and_back(&engine, buffer);
        let another = CudaDevice::open_with(&TABLE, PLAIN[8]).unwrap();
        another.create_stream().unwrap();
        drop(another);
        assert_eq!(swap_mode(0), mode, "the caller gets back the mode it had");
    }
    drop((engine, gpus));
    assert!(capture.is_whole(), "a call was made that might have disturbed it");
}

#[test]
fn one_bad_target_fails_no_transfer_of_others() {
    const COUNT: usize = 32;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    fs::write(&path, vec![7; 1 << 20]).unwrap();
    // No small transfers, and slots filled while a copy is running are copied together.
    let engine = Engine::new(Options { small_size: 0, ..Options::default() }).unwrap();
    let slow = "sim:latency=20ms".parse().unwrap();
    let device = engine.device(&crate::gpu::GpuSelector::Sim(slow)).unwrap().unwrap();
    let file = engine.open(&path).unwrap();
    let len = 32 << 10;
    let gone = device.allocate(len).unwrap();
    // SAFETY: nothing but this engine copies there, and the simulated GPU detects it.
    let bad = unsafe { engine.borrow_device_memory(gone, len) }.unwrap();
    // SAFETY: as above.
    unsafe { device.free(gone) }.unwrap();
    let mut bad = Some(bad);
    let transfers: Vec<_> = (0..COUNT)
        .map(|number| {
            let own = || engine.allocate(device.id(), len).unwrap();
            let buffer = if number == 10 { bad.take().unwrap() } else { own() };
            file.read(buffer).start().unwrap()
        })
        .collect();
    let ends: Vec<_> = transfers.into_iter().map(crate::Transfer::wait).collect();
    let failed: Vec<_> = (0..COUNT).filter(|number| ends[*number].0.is_err()).collect();
    assert_eq!(failed, [10], "{:?}", ends[failed[0]].0);
    let mut got = vec![0; 32 << 10];
    ends[11].1.as_ref().unwrap().download(0, &mut got).unwrap();
    assert!(got.iter().all(|byte| *byte == 7));
}
