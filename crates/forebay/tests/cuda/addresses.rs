//! Memory that others own, of every kind that the driver has, lent to an engine; several GPUs.

#![expect(unsafe_code, reason = "lends memory, and copies to it by raw address")]

use std::fs;
use std::ptr::NonNull;

use forebay::gpu::{Device, GpuSelector, visible};
use forebay::internal::{AddressKind, DeviceCopy};
use forebay::{Buffer, Engine, Error, Options, Piece};

use crate::driver::{Driver, IpcHandle, engine, file, fill_and_check, run_again};

const MIB: usize = 1 << 20;

fn borrow(engine: &Engine, address: u64, len: usize) -> Result<Buffer, Error> {
    // SAFETY: each test frees its memory only after the buffer is gone.
    unsafe { engine.borrow_device_memory(address, len as u64) }
}

fn refusal(engine: &Engine, address: u64, len: usize) -> String {
    let error = borrow(engine, address, len).unwrap_err();
    assert!(matches!(error, Error::NotDeviceMemory { .. }), "{error:?}");
    error.to_string()
}

/// Lends the whole, and a part that begins and ends anywhere, and not one byte more.
fn lend(engine: &Engine, gpu: &dyn Device, address: u64, len: usize, what: &str) {
    println!("{what}: {:?}", gpu.address_kind(address));
    let buffer = borrow(engine, address, len).unwrap();
    assert_eq!(buffer.device(), Some(gpu.id()), "{what}");
    fill_and_check(engine, buffer);
    fill_and_check(engine, borrow(engine, address + 77, len - 1000).unwrap());
}

#[test]
fn memory_of_any_allocator_is_used_and_not_freed() {
    let Some((engine, gpu)) = engine() else { return };
    let (driver, len) = (Driver::new(), 40 * MIB);
    driver.use_primary(&*gpu);
    let address = driver.allocate(len);
    lend(&engine, &*gpu, address, len, "of the primary context");
    let beyond = refusal(&engine, address, len + 1);
    assert!(beyond.contains("ends 1 bytes before the range does"), "{beyond}");
    driver.free(address);
    let address = driver.allocate_in_pool(len);
    lend(&engine, &*gpu, address, len, "of a pool");
    driver.free(address);
    driver.pop();
}

#[test]
fn memory_of_another_context_of_the_gpu_is_used() {
    let Some((engine, gpu)) = engine() else { return };
    let (driver, len) = (Driver::new(), 20 * MIB);
    let context = driver.create_context(&*gpu);
    let address = driver.allocate(len);
    // With that context current, with none, and with the primary one.
    lend(&engine, &*gpu, address, len, "of another context, which is current");
    assert_eq!(driver.pop(), context);
    lend(&engine, &*gpu, address, len, "of another context");
    driver.use_primary(&*gpu);
    lend(&engine, &*gpu, address, len, "of another context, the primary one is current");
    driver.pop();
    driver.push(context);
    driver.free(address);
    driver.destroy_context(context);
}

#[test]
fn managed_memory_is_used_also_by_batches() {
    let Some((engine, gpu)) = engine() else { return };
    let (driver, len) = (Driver::new(), 20 * MIB);
    driver.use_primary(&*gpu);
    let address = driver.allocate_managed(len);
    assert!(matches!(gpu.address_kind(address), AddressKind::Managed { .. }));
    lend(&engine, &*gpu, address, len, "managed");
    let (stream, mut bytes) = (gpu.create_stream().unwrap(), vec![5_u8; 3 * 4096]);
    let host = NonNull::new(bytes.as_mut_ptr()).unwrap();
    let copy = |index: usize| DeviceCopy {
        // SAFETY: inside the vector.
        host: unsafe { host.add(index * 4096) },
        device: address + (index * 8192) as u64,
        len: 4096,
    };
    let copies = [copy(0), copy(1), copy(2)];
    // SAFETY: the vector stays where it is, and every copy is waited for.
    unsafe {
        gpu.register(host, bytes.len()).unwrap();
        gpu.copy_batch_to_device(stream, &copies).unwrap();
        gpu.synchronize(stream).unwrap();
        bytes.fill(0);
        gpu.copy_batch_to_host(stream, &copies).unwrap();
        gpu.synchronize(stream).unwrap();
        gpu.unregister(host).unwrap();
    }
    assert!(bytes.iter().all(|&byte| byte == 5));
    driver.free(address);
    driver.pop();
}

#[test]
fn virtual_memory_of_several_mappings_is_used_as_one_range() {
    let Some((engine, gpu)) = engine() else { return };
    let driver = Driver::new();
    driver.use_primary(&*gpu);
    // Multiples of any granularity that GPUs have. The fourth is closed and the fifth a hole.
    let lens = [32 * MIB, 64 * MIB, 32 * MIB, 32 * MIB, 32 * MIB];
    let base = driver.reserve(lens.iter().sum());
    let at = |index: usize| base + lens[..index].iter().sum::<usize>() as u64;
    for (index, len) in lens.into_iter().enumerate().take(4) {
        driver.map(&*gpu, at(index), len, index < 3);
    }
    let kind = gpu.address_kind(at(1) + 1);
    let expected = AddressKind::Mapping {
        device: gpu.id(),
        base: at(1),
        len: lens[1] as u64,
        accessible: true,
    };
    assert_eq!(kind, expected);
    lend(&engine, &*gpu, base, 128 * MIB, "three mappings");
    fill_and_check(&engine, borrow(&engine, at(1) - 9, lens[1] + 18).unwrap());
    let closed = refusal(&engine, base, 128 * MIB + 1);
    assert!(closed.contains("has no read and write access to the mapping"), "{closed}");
    let hole = refusal(&engine, at(4), 4096);
    println!("a hole: {hole}");
    (0..4).for_each(|index| driver.unmap(at(index), lens[index]));
    println!("unmapped: {}", refusal(&engine, base, 4096));
    driver.give_back(base, lens.iter().sum());
    driver.pop();
}

#[test]
fn ranges_of_several_allocations_are_lent_as_one_buffer() {
    let Some((engine, gpu)) = engine() else { return };
    let (driver, len) = (Driver::new(), 8 * MIB);
    driver.use_primary(&*gpu);
    let own = [driver.allocate(len), driver.allocate_in_pool(len), driver.allocate_managed(len)];
    let lend = |ranges: &[(u64, u64)]| {
        // SAFETY: the memory is freed at the end.
        unsafe { engine.borrow_device_ranges(ranges) }
    };
    // Many of each, which are not queried one by one.
    let part = |n: usize| (own[n % 3] + (n / 3 * 4096) as u64, 4000);
    let ranges: Vec<(u64, u64)> = (0..3000).map(part).collect();
    let buffer = lend(&ranges).unwrap();
    assert_eq!(buffer.device(), Some(gpu.id()));
    let (_folder, path, bytes) = file(3000 * 4000);
    let opened = engine.open(&path).unwrap();
    let piece = |(n, (address, len)): (usize, &(u64, u64))| {
        Piece::new(&opened, n as u64 * 4000, *len, address - buffer.address())
    };
    let pieces: Vec<Piece<'_>> = ranges.iter().enumerate().map(piece).collect();
    let mut targets = [buffer];
    let outcome =
        engine.read_many(&pieces, &mut targets).exact().while_(&mut || true).run().unwrap();
    assert!(outcome.results.iter().all(|result| matches!(result, Ok(4000))));
    for (n, bytes) in bytes.chunks(4000).enumerate() {
        let (address, len) = part(n);
        let mut got = vec![0; 4000];
        // SAFETY: as above.
        let whole = unsafe { engine.borrow_device_memory(address, len) }.unwrap();
        whole.download(0, &mut got).unwrap();
        assert!(got == bytes, "range {n}");
    }
    drop(targets);
    let (good, host) = ((own[0], 10), [0_u8; 16]);
    let bad = [(own[0], len as u64 + 1), (own[0], 0), (own[0], u64::MAX), (0, 1)];
    for range in bad.into_iter().chain([(host.as_ptr().addr() as u64, 16)]) {
        for ranges in [[range, good], [good, range]] {
            let error = lend(&ranges).unwrap_err();
            assert!(matches!(error, Error::NotDeviceMemory { .. }), "{error:?}");
        }
    }
    own.into_iter().for_each(|address| driver.free(address));
    driver.pop();
}

#[test]
fn other_memory_is_refused_by_its_kind() {
    let Some((engine, gpu)) = engine() else { return };
    let driver = Driver::new();
    driver.use_primary(&*gpu);
    let host = driver.allocate_host(MIB);
    let pinned = refusal(&engine, host.addr() as u64, MIB);
    assert!(pinned.ends_with("is pinned host memory"), "{pinned}");
    driver.free_host(host);
    let bytes = vec![1_u8; MIB];
    let ordinary = refusal(&engine, bytes.as_ptr().addr() as u64, MIB);
    assert!(ordinary.ends_with("is ordinary host memory"), "{ordinary}");
    // Large enough to be an allocation of its own to the driver.
    let address = driver.allocate(64 * MIB);
    driver.free(address);
    println!("freed: {}", refusal(&engine, address, MIB));
    println!("never allocated: {}", refusal(&engine, 4096, 1));
    driver.pop();
}

/// The handle, for the process that imports it.
const HANDLE: &str = "FOREBAY_TEST_IPC_HANDLE";
/// The file that it reads.
const FILE: &str = "FOREBAY_TEST_IPC_FILE";

#[test]
fn memory_of_another_process_is_used() {
    let Some((engine, gpu)) = engine() else { return };
    let driver = Driver::new();
    driver.use_primary(&*gpu);
    if let Ok(text) = std::env::var(HANDLE) {
        import_and_read(&driver, &engine, &*gpu, &text);
        return;
    }
    let len = 32 * MIB;
    let buffer = engine.allocate(gpu.id(), len as u64).unwrap();
    let handle = match driver.export(buffer.address()) {
        Ok(handle) => handle,
        Err(status) => {
            println!("skipped: memory of another process: the driver exports none ({status})");
            return;
        }
    };
    let (_folder, path, bytes) = file(len);
    let text: String = handle.0.iter().map(|byte| format!("{byte:02x}")).collect();
    run_again(&[(HANDLE, text.as_ref()), (FILE, path.as_ref())]);
    let mut got = vec![0; len];
    buffer.download(0, &mut got).unwrap();
    assert!(got == bytes);
    driver.pop();
}

fn import_and_read(driver: &Driver, engine: &Engine, gpu: &dyn Device, text: &str) {
    let digits = |place: usize| u8::from_str_radix(&text[2 * place..2 * place + 2], 16).unwrap();
    let address = driver.import(IpcHandle(std::array::from_fn(digits)));
    let path = std::env::var_os(FILE).unwrap();
    let len = usize::try_from(fs::metadata(&path).unwrap().len()).unwrap();
    println!("imported: {:?}", gpu.address_kind(address));
    let mut buffer = borrow(engine, address, len).unwrap();
    engine.open(&path).unwrap().read(&mut buffer).exact().run().unwrap();
    drop(buffer);
    driver.close(address);
}

#[test]
fn two_gpus_read_different_files_at_once() {
    let Some((engine, first)) = engine() else { return };
    let gpus = visible().unwrap();
    if gpus.len() < 2 {
        println!("skipped: two GPUs: there is only {}", gpus[0].name);
        return;
    }
    let len = 96 * MIB;
    let other = gpus.iter().find(|gpu| gpu.id != first.id()).unwrap();
    // By its address on PCI; its UUID names the same device, which is opened once.
    let second = engine.device(&other.pci_address.parse().unwrap()).unwrap().unwrap();
    let again = engine.device(&GpuSelector::Cuda(other.uuid.clone())).unwrap().unwrap();
    assert!(std::ptr::addr_eq(&raw const *second, &raw const *again));
    let devices = [first, second];
    let files = [file(len), file(len / 2)];
    let transfers: Vec<_> = (0..6)
        .map(|turn| {
            let (gpu, (_, path, bytes)) = (&devices[turn % 2], &files[turn / 2 % 2]);
            let buffer = engine.allocate(gpu.id(), bytes.len() as u64).unwrap();
            let opened = engine.open(path).unwrap();
            (turn, opened.read(buffer).exact().start().unwrap())
        })
        .collect();
    for (turn, transfer) in transfers {
        let (result, buffer) = transfer.wait();
        let (buffer, bytes) = (buffer.unwrap(), &files[turn / 2 % 2].2);
        assert_eq!(result.unwrap().bytes, bytes.len() as u64);
        assert_eq!(buffer.device(), Some(devices[turn % 2].id()));
        let mut got = vec![0; bytes.len()];
        buffer.download(0, &mut got).unwrap();
        assert!(got == *bytes, "transfer {turn}");
    }
    // The GPU of borrowed memory is found, whether the engine has it or not.
    let memory = devices[1].allocate(8 << 20).unwrap();
    fill_and_check(&engine, borrow(&engine, memory, 8 << 20).unwrap());
    let fresh = Engine::new(Options::default()).unwrap();
    let buffer = borrow(&fresh, memory, 8 << 20).unwrap();
    assert_eq!(buffer.device(), Some(devices[1].id()));
    fill_and_check(&fresh, buffer);
    // SAFETY: no buffer on it is left.
    unsafe { devices[1].free(memory) }.unwrap();
}
