//! A process that does not answer, and a simulated GPU.

use std::time::Instant;

use ::forebay::{Engine, Options};

use super::*;
use crate::bench::data::Pattern;
use crate::bench::drives::ways::Part;
use crate::bench::target::Target;
use crate::report::json::Direction;

#[test]
fn a_process_that_does_not_answer_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("kvikio");
    std::fs::create_dir(&package).unwrap();
    std::fs::write(package.join("__init__.py"), "import time; time.sleep(3600)").unwrap();
    let path = folder.path().display().to_string();
    let Ok(mut process) = Process::start(&[("PYTHONPATH".into(), path)]) else {
        println!("skipped: KvikIO: there is no `python3`");
        return;
    };
    let memory = Shared::allocate(4096).unwrap();
    let order = Order::Start { memory: memory.path(), window: 4096, size: 4096, gpu: false };
    let start = Instant::now();
    let reason = process.ask(&order, Duration::from_secs(1)).unwrap_err();
    assert_eq!(reason, "no answer within 1 s");
    drop(process);
    // Only checks that it ends; no time is measured.
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn an_order_that_no_pipe_takes_is_refused() {
    let Ok(mut process) = Process::start(&[]) else {
        println!("skipped: KvikIO: there is no `python3`");
        return;
    };
    let files = vec![("61".repeat(200), 0, 1); 1000];
    let reason = process.ask(&Order::Open { files }, Duration::from_secs(1)).unwrap_err();
    assert!(reason.contains("too many files"), "{reason}");
}

#[test]
fn settings_are_told_by_their_variables() {
    let values: BTreeMap<String, String> = variables(CANDIDATES[0]).into_iter().collect();
    assert_eq!(
        how("1.2", &values),
        "KvikIO 1.2: a pool for each drive of 16 threads, tasks of 4 MiB, O_DIRECT"
    );
    // Whole numbers: KvikIO ignores units.
    assert_eq!(values["KVIKIO_TASK_SIZE"], "4194304");
    assert_eq!(how("1.2", &BTreeMap::new()), "KvikIO 1.2: ? threads, tasks of ?, page cache");
}

/// A mock of KvikIO and of the driver; its GPU memory is memory of the process.
const PLAYED_GPU: &str = r#"
import ctypes, os

class Driver:
    def cuInit(self, flags):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-played"
        return 0

    def cuDevicePrimaryCtxRetain(self, context, device):
        return 0

    def cuCtxSetCurrent(self, context):
        return 0

    def cuMemAlloc_v2(self, address, size):
        self.memory = ctypes.create_string_buffer(size.value)
        address._obj.value = ctypes.addressof(self.memory)
        return 0

    def cuMemsetD8_v2(self, pointer, byte, count):
        ctypes.memset(pointer.value, byte.value, count.value)
        return 0

    def cuCtxSynchronize(self):
        return 0

    def cuMemcpyDtoH_v2(self, target, source, size):
        ctypes.memmove(target, source.value, size.value)
        return 0

driver = Driver()
ctypes.CDLL = lambda name: driver
__version__ = "0.0.played"

class Future:
    def __init__(self, count):
        self.get = lambda: count

class CuFile:
    def __init__(self, file, flags):
        self.bytes = open(file, "rb").read()

    def close(self):
        pass

    def pread(self, target, size):
        about = target.__cuda_array_interface__
        assert about["shape"] == (size,) and about["typestr"] == "|u1"
        ctypes.memmove(about["data"][0], self.bytes, size)
        return Future(size)
"#;

#[test]
fn targets_on_a_gpu_are_filled_and_compared() {
    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("kvikio");
    std::fs::create_dir(&package).unwrap();
    std::fs::write(package.join("__init__.py"), PLAYED_GPU).unwrap();
    std::fs::write(package.join("defaults.py"), "get = lambda name: 1").unwrap();
    let lens = [WINDOW + 5000, 4099];
    let patterns = [Pattern::new(1), Pattern::new(2)];
    let mut parts = Vec::new();
    for (index, (len, pattern)) in lens.into_iter().zip(patterns).enumerate() {
        let path = folder.path().join(index.to_string());
        let mut bytes = vec![0; whole(len)];
        pattern.fill(0, &mut bytes);
        std::fs::write(&path, bytes).unwrap();
        parts.push(Part { index, path, len });
    }
    let shape = Shape::new(Some("GPU-played".into()), &lens, ORDER_MAX).unwrap();
    let path = folder.path().display().to_string();
    let started = match shape.start(&[("PYTHONPATH".into(), path)]) {
        Ok(started) => started,
        Err(reason) if reason.contains("cannot be started") => {
            println!("skipped: KvikIO: {reason}");
            return;
        }
        Err(reason) => panic!("{reason}"),
    };
    let mut way = Kvikio::new(lines::Kvikio::Defaults, shape);
    way.take(started, "defaults", &[]);

    let engine = Engine::new(Options::default()).unwrap();
    let host = Target { device: None, reason: None };
    let mut targets = Targets::allocate(&engine, &host, &[1, 1]).unwrap();
    let job = Job { parts, direction: Direction::Read, cache: Cache::Resident };
    let expected = patterns.map(Expected::Pattern);
    way.open(&job, &mut targets).unwrap();
    way.set(&job, &mut targets, 0xA4).unwrap();
    assert!(!way.holds(&job, &mut targets, &expected).unwrap(), "nothing was moved");
    let (moved, spent) = way.run(&job, &mut targets).unwrap();
    assert_eq!(moved.bytes, job.len());
    assert!(spent.seconds > 0.0);
    assert!(way.holds(&job, &mut targets, &expected).unwrap());
    let swapped = [expected[1].clone(), expected[0].clone()];
    assert!(!way.holds(&job, &mut targets, &swapped).unwrap());
    way.close(&job).unwrap();
}
