//! Our kernels on a real GPU: every byte of their range, and none outside.

#![expect(unsafe_code, reason = "has kernels work on raw addresses")]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use forebay::gpu::Device;
use forebay::internal::{BATCH_MAX, DeviceCopy, Signal, Stream};

use super::tests::{gpu, random};

const KEY: u64 = 0x0123_4567_89AB_CDEF;
const MIB: usize = 1 << 20;

/// Pinned memory by which the GPU's is looked at.
struct Window<'a> {
    device: &'a dyn Device,
    stream: Stream,
    bytes: Vec<u8>,
}

impl<'a> Window<'a> {
    fn new(device: &'a dyn Device, len: usize) -> Self {
        let mut window =
            Self { device, stream: device.create_stream().unwrap(), bytes: vec![0; len] };
        let start = window.start();
        // SAFETY: the vector is neither moved nor grown before `drop`.
        unsafe { device.register(start, len) }.unwrap();
        window
    }

    fn start(&mut self) -> NonNull<u8> {
        NonNull::new(self.bytes.as_mut_ptr()).unwrap()
    }

    fn upload(&mut self, target: u64, bytes: &[u8]) {
        self.bytes[..bytes.len()].copy_from_slice(bytes);
        let start = self.start();
        // SAFETY: both ranges are there, and the copy is waited for.
        unsafe { self.device.copy_to_device(self.stream, target, start, bytes.len()) }.unwrap();
        self.device.synchronize(self.stream).unwrap();
    }

    fn download(&mut self, source: u64, len: usize) -> &[u8] {
        let start = self.start();
        // SAFETY: as above.
        unsafe { self.device.copy_to_host(self.stream, start, source, len) }.unwrap();
        self.device.synchronize(self.stream).unwrap();
        &self.bytes[..len]
    }
}

impl Drop for Window<'_> {
    fn drop(&mut self) {
        let start = self.start();
        // SAFETY: nothing is queued on it.
        unsafe { self.device.unregister(start) }.unwrap();
        self.device.destroy_stream(self.stream).unwrap();
    }
}

#[test]
fn every_word_is_taken_once_and_no_other() {
    let Some(device) = gpu() else { return };
    let device = &*device;
    println!("the memory moves {:?} bytes per second in theory", device.memory_rate());
    let mut window = Window::new(device, 16 * MIB + 4096);
    let stream = window.stream;
    // Around the threads of one block, of several, and more than one step of each.
    for len in [16, 32, 48, 4080, 4096, 4112, 8176, 8192, 8208, 65_552, 16 * MIB - 16, 16 * MIB] {
        for from in [0, 16, 1040] {
            let before = random(from + len + 32, (len + from) as u64);
            let memory = device.allocate(before.len() as u64).unwrap();
            window.upload(memory, &before);
            // SAFETY: inside the memory, and waited for.
            unsafe { device.xor(stream, memory + from as u64, KEY, len as u64) }.unwrap();
            device.synchronize(stream).unwrap();
            let after = window.download(memory, before.len());
            let key = KEY.to_ne_bytes();
            let wrong = (0..before.len()).find(|&at| {
                let key = if (from..from + len).contains(&at) { key[at % 8] } else { 0 };
                after[at] != before[at] ^ key
            });
            assert_eq!(wrong, None, "{len} bytes from {from}");
            // SAFETY: nothing is queued on it.
            unsafe { device.free(memory) }.unwrap();
        }
    }
}

/// So much that each thread has to go on, which must take nothing twice.
#[test]
fn more_than_all_threads_take_at_once() {
    let Some(device) = gpu() else { return };
    let device = &*device;
    let len = 1300 * MIB + 16;
    let mut window = Window::new(device, 16 * MIB);
    let stream = window.stream;
    let memory = match device.allocate(len as u64) {
        Ok(memory) => memory,
        Err(error) => return println!("skipped: a large kernel: {error}"),
    };
    // SAFETY: inside the memory, and waited for.
    unsafe {
        device.fill(stream, memory, 0xA5, len as u64).unwrap();
        device.xor(stream, memory, KEY, len as u64).unwrap();
    }
    device.synchronize(stream).unwrap();
    let expected = (0xA5A5_A5A5_A5A5_A5A5 ^ KEY).to_ne_bytes();
    let mut from = 0;
    while from < len {
        let part = (len - from).min(16 * MIB);
        let bytes = window.download(memory + from as u64, part);
        let wrong = bytes.chunks_exact(8).position(|word| word != expected);
        assert_eq!(wrong, None, "behind {from}");
        from += part;
    }
    // SAFETY: nothing is queued on it.
    unsafe { device.free(memory) }.unwrap();
}

#[test]
fn memory_that_is_no_pairs_of_words_is_refused() {
    let Some(device) = gpu() else { return };
    let memory = device.allocate(4096).unwrap();
    let stream = device.create_stream().unwrap();
    for (address, len) in [(memory + 8, 16), (memory, 8), (memory, 4095)] {
        // SAFETY: nothing is queued.
        assert!(unsafe { device.xor(stream, address, KEY, len) }.is_err());
    }
    // SAFETY: there is nothing to do, and nothing is queued.
    unsafe {
        device.xor(stream, memory, KEY, 0).unwrap();
        device.free(memory).unwrap();
    }
    device.destroy_stream(stream).unwrap();
}

/// Launches that have begun by then copy everything, later ones nothing.
#[test]
fn a_gather_of_several_launches_is_withdrawn_half_way() {
    const EACH: usize = 256 << 10; // the first launch takes some milliseconds
    const PLACES: usize = 32;
    let Some(device) = gpu() else { return };
    let device = &*device;
    device.load_gather();
    if !device.gathers(&[]) {
        return println!("skipped: the driver has no kernel that gathers");
    }
    let (mut source, mut words) = (Window::new(device, PLACES * EACH), Window::new(device, 4096));
    let bytes = random(PLACES * EACH, 7);
    source.bytes.copy_from_slice(&bytes);
    let from = source.start();
    let len = 2 * BATCH_MAX * EACH;
    let memory = device.allocate(len as u64).unwrap();
    let words: NonNull<AtomicU32> = words.start().cast();
    // SAFETY: the window outlives both numbers, which are used as atomics only.
    let [begun, withdrawn] = [0, 1].map(|at| unsafe { words.add(at).as_ref() });
    let copy = |piece: usize| DeviceCopy {
        // SAFETY: inside the window.
        host: unsafe { from.add(piece % PLACES * EACH) },
        device: memory + (piece * EACH) as u64,
        len: EACH,
    };
    let copies: Vec<DeviceCopy> = (0..2 * BATCH_MAX).map(copy).collect();
    let mut got = Window::new(device, EACH);
    // The second launch may have begun if this thread is late.
    let is_half_way = (1..=20).any(|number| {
        let signal = Signal { words: words.cast(), number };
        // SAFETY: everything outlives the work, which is waited for.
        unsafe {
            device.fill(source.stream, memory, 0xEE, len as u64).unwrap();
            device.gather(source.stream, &copies, signal).unwrap();
        }
        while begun.load(Ordering::SeqCst) != number {
            std::hint::spin_loop();
        }
        withdrawn.store(number, Ordering::SeqCst);
        device.synchronize(source.stream).unwrap();
        let mut is_copied = |piece: usize| {
            let got = got.download(memory + (piece * EACH) as u64, EACH);
            let place = piece % PLACES * EACH;
            got == &bytes[place..place + EACH]
        };
        (0..2 * BATCH_MAX).all(|piece| is_copied(piece) == (piece < BATCH_MAX))
    });
    assert!(is_half_way);
    // SAFETY: nothing is queued on it.
    unsafe { device.free(memory) }.unwrap();
}
