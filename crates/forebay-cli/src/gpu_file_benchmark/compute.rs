//! GPU work during transfers: a kernel XORs GPU memory, alone and while a file is read to a
//! different range of the same memory.

#![expect(unsafe_code, reason = "kernels and fills are queued by raw address")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use forebay::gpu::{Device, DeviceError};
use forebay::internal::{DeviceResult, Stream};
use forebay::units::MIB;
use forebay::{Buffer, Engine};
use forebay_measure::data::Pattern;
use forebay_measure::failure::{Failure, Result};
use forebay_measure::memory::put_into;
use forebay_measure::stats::rate;
use forebay_measure::target::Target;
use forebay_measure::workload::expected::Expected;

/// XORed into every word: all bits, so that our data become their inverse.
const KEY: u64 = u64::MAX;
/// Minimum time of the kernel alone.
const ALONE: Duration = Duration::from_millis(50);
/// Kernels launched in a row before the time is checked.
const ROW: u32 = 8;
/// Most bytes on a simulated GPU, which is busy as long as it simulates.
const SIMULATED_MAX: u64 = 8 * MIB;

/// A kernel with its own memory.
#[derive(Debug)]
pub(super) struct Compute {
    kernel: Kernel,
    buffer: Buffer,
    pattern: Pattern,
    /// Whether all data so far were verified.
    pub(super) verified: bool,
}

/// The queued work and its stream. A copy of it may run on a second thread, as long as the buffer
/// lives.
#[derive(Debug, Clone)]
struct Kernel {
    device: Arc<dyn Device>,
    stream: Stream,
    address: u64,
    len: u64,
    row: u32,
    /// Whether it pauses for as long as it worked: a simulated GPU would otherwise do nothing else.
    pauses: bool,
}

/// Sets a flag when it is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// When rows of kernels began, and when the last row ended.
#[derive(Debug, Clone)]
pub(super) struct Done {
    edges: Vec<Instant>,
    /// Kernels in a row.
    row: u32,
    /// Bytes that a kernel reads and writes.
    bytes: u64,
}

impl Done {
    fn kernels(&self) -> u64 {
        (self.edges.len() - 1) as u64 * u64::from(self.row)
    }

    /// Bytes per second read and written from `from` on, for `time`. A row that is only partly in
    /// that time counts in part.
    pub(super) fn rate(&self, from: Instant, time: Duration) -> f64 {
        let end = from + time;
        let rows = self.edges.windows(2).map(|row| {
            let inside = row[1].min(end).saturating_duration_since(row[0].max(from));
            let whole = row[1].saturating_duration_since(row[0]).max(Duration::from_nanos(1));
            inside.as_secs_f64() / whole.as_secs_f64()
        });
        rows.sum::<f64>() * rate(self.bytes * u64::from(self.row), time.as_secs_f64())
    }

    fn whole(&self) -> f64 {
        let (first, last) = (self.edges[0], self.edges[self.edges.len() - 1]);
        self.rate(first, last.saturating_duration_since(first))
    }
}

impl Kernel {
    /// Runs a row of kernels to its end.
    ///
    /// # Safety
    /// The buffer lives, and nothing else uses it during the call.
    unsafe fn run(&self) -> DeviceResult<()> {
        let queued = (0..self.row).try_for_each(|_| {
            // SAFETY: the caller's promise; the stream is waited for below.
            unsafe { self.device.xor(self.stream, self.address, KEY, self.len) }
        });
        // Even if the last kernel failed, earlier kernels are running.
        let done = self.device.synchronize(self.stream);
        queued.and(done)
    }

    /// Runs rows until `is_enough`, at least a single row.
    ///
    /// # Safety
    /// As for [`run`](Self::run).
    unsafe fn run_until(&self, is_enough: impl Fn(Duration) -> bool) -> DeviceResult<Done> {
        let mut edges = vec![Instant::now()];
        loop {
            let row = Instant::now();
            // SAFETY: the caller's promise.
            unsafe { self.run() }?;
            if self.pauses {
                thread::sleep(row.elapsed());
            }
            edges.push(Instant::now());
            if is_enough(edges[0].elapsed()) {
                // Every byte is read and written.
                return Ok(Done { edges, row: self.row, bytes: 2 * self.len });
            }
        }
    }
}

impl Compute {
    /// Allocates memory for `len` bytes, a multiple of 16, and builds the kernel.
    ///
    /// # Errors
    /// There is no GPU, not enough memory, or the GPU runs no kernels.
    pub(super) fn new(engine: &Engine, target: &Target, len: u64) -> Result<Self> {
        let Some(device) = &target.device else {
            let reason = target.reason.clone().unwrap_or_default();
            return Err(Failure::new("no GPU is available").because(reason));
        };
        let device = Arc::clone(device);
        let pauses = target.is_simulated();
        let (len, row) = if pauses { (len.min(SIMULATED_MAX), 1) } else { (len, ROW) };
        let mut buffer = engine.allocate(device.id(), len)?;
        let pattern = Pattern::new(buffer.address());
        put_into(&mut buffer, 0, pattern, len)?;
        let stream = device.create_stream().map_err(|error| failed(&error))?;
        let kernel = Kernel { device, stream, address: buffer.address(), len, row, pauses };
        let mut compute = Self { kernel, buffer, pattern, verified: true };
        // In the first run the driver compiles the kernel.
        compute.work(|_| true)?;
        compute.check()?;
        Ok(compute)
    }

    /// Bytes that the kernel processes.
    pub(super) fn len(&self) -> u64 {
        self.kernel.len
    }

    /// The limit of the GPU's memory in bytes per second, reads and writes together: clock times
    /// width; `None` if the driver does not report them.
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no more than 52 bits")]
    pub(super) fn limit(&self) -> Option<f64> {
        self.kernel.device.memory_rate().map(|rate| rate as f64)
    }

    /// Runs the kernel alone for a while; returns the bytes per second that it read and wrote.
    ///
    /// # Errors
    /// GPU errors.
    pub(super) fn alone(&mut self) -> Result<f64> {
        let done = self.work(|passed| passed >= ALONE)?;
        self.check()?;
        Ok(done.whole())
    }

    /// Runs the kernel until `work` has ended, and slightly longer. Returns the result of `work`,
    /// and when kernels ran.
    ///
    /// # Errors
    /// GPU errors.
    pub(super) fn run_meanwhile<T>(&mut self, work: impl FnOnce() -> T) -> Result<(T, Done)> {
        let (is_over, both) = (AtomicBool::new(false), Barrier::new(2));
        let kernel = self.kernel.clone();
        let (value, done) = thread::scope(|scope| {
            let running = scope.spawn(|| {
                both.wait();
                // SAFETY: the buffer lives as long as `self`, which is borrowed exclusively until
                // this thread has ended.
                unsafe { kernel.run_until(|_| is_over.load(Ordering::Acquire)) }
            });
            both.wait();
            // Whatever the result: the scope waits for the kernel's thread.
            let ends = Over(&is_over);
            let value = work();
            drop(ends);
            (value, running.join())
        });
        let done = done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let done = done.map_err(|error| failed(&error))?;
        self.turn(&done);
        Ok((value, done))
    }

    fn work(&mut self, is_enough: impl Fn(Duration) -> bool) -> Result<Done> {
        // SAFETY: the buffer is ours.
        let done = unsafe { self.kernel.run_until(is_enough) }.map_err(|error| failed(&error))?;
        self.turn(&done);
        Ok(done)
    }

    /// Records that this many kernels have inverted the data.
    fn turn(&mut self, done: &Done) {
        if done.kernels() % 2 == 1 {
            self.pattern = self.pattern.inverse();
        }
    }

    /// Compares every byte.
    pub(super) fn check(&mut self) -> Result<()> {
        let expected = Expected::Pattern(self.pattern);
        self.verified &= expected.is_in(&self.buffer, 0, self.kernel.len, 0)?;
        Ok(())
    }
}

impl Drop for Compute {
    fn drop(&mut self) {
        // All kernels have ended, unless the GPU is lost.
        let _ = self.kernel.device.destroy_stream(self.kernel.stream);
    }
}

fn failed(error: &DeviceError) -> Failure {
    Failure::new("the GPU cannot run the kernel").because(error.to_string())
}

#[cfg(test)]
mod tests {
    use forebay::Options;

    use super::*;

    fn target(engine: &Engine, gpu: &str) -> Target {
        Target::find(engine, Some(&gpu.parse().unwrap())).unwrap()
    }

    fn compute(gpu: &str, len: u64) -> Result<Compute> {
        let engine = Engine::new(Options::default()).unwrap();
        Compute::new(&engine, &target(&engine, gpu), len)
    }

    #[test]
    fn every_byte_is_looked_at() {
        let mut compute = compute("sim", MIB + 16).unwrap();
        for _ in 0..2 {
            assert!(compute.alone().unwrap() > 0.0);
            let ((), done) =
                compute.run_meanwhile(|| thread::sleep(Duration::from_millis(2))).unwrap();
            assert!(done.whole() > 0.0);
            compute.check().unwrap();
            assert!(compute.verified);
        }
        assert_eq!(compute.limit(), None);
        let mut byte = [0];
        compute.buffer.download(MIB + 15, &mut byte).unwrap();
        byte[0] ^= 0x10;
        compute.buffer.upload(MIB + 15, &byte).unwrap();
        compute.alone().unwrap();
        assert!(!compute.verified, "the last byte is wrong");
    }

    #[test]
    fn a_row_counts_as_far_as_it_is_in_the_time() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let done = Done { edges: vec![at(0), at(10), at(20), at(40)], row: 2, bytes: 500 };
        assert_eq!(done.kernels(), 6);
        let rate = |from: u64, time: u64| done.rate(at(from), Duration::from_millis(time));
        // 1,000 bytes in each row: two rows and a half, a half, none.
        assert!((rate(0, 30) * 0.030 - 2500.0).abs() < 1e-6, "{}", rate(0, 30));
        assert!((rate(12, 5) * 0.005 - 500.0).abs() < 1e-6);
        assert!(rate(50, 10).abs() < 1e-9);
    }

    #[test]
    fn a_panic_during_the_kernel_ends_it() {
        let (send, ended) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let mut compute = compute("sim", MIB).unwrap();
            let panics = || compute.run_meanwhile(|| panic!("on purpose"));
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics));
            let _ = send.send(caught.is_err());
        });
        // Only a bound on a hang: nothing is measured.
        assert_eq!(ended.recv_timeout(Duration::from_secs(60)), Ok(true));
    }

    #[test]
    fn an_unavailable_feature_is_named() {
        let none = compute("none", MIB).unwrap_err().in_one_line();
        assert!(none.starts_with("no GPU is available: `--gpu none`"), "{none}");
        let small = compute("sim:memory=1M", 2 * MIB).unwrap_err().in_one_line();
        assert!(small.contains("cannot allocate 2 MiB on sim:0"), "{small}");
        let faulty = compute("sim:lost-after=1", MIB).unwrap_err().in_one_line();
        assert!(faulty.contains("sim:0"), "{faulty}");
    }
}
