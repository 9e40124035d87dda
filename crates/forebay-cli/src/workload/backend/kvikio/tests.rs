//! A process that does not answer, and a mock of `KvikIO` with a mock driver.

use std::time::Instant;

use forebay::{Engine, Options};

use super::*;
use crate::bench::data::Pattern;
use crate::report::json::Direction;

#[test]
fn a_process_that_does_not_answer_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("kvikio");
    std::fs::create_dir(&package).unwrap();
    std::fs::write(package.join("__init__.py"), "import time; time.sleep(3600)").unwrap();
    let path = folder.path().display().to_string();
    let Ok(mut python) = Python::start(&[("PYTHONPATH".into(), path)]) else {
        println!("skipped: KvikIO: there is no `python3`");
        return;
    };
    let memory = Shared::allocate(4096).unwrap();
    let order = Order::Start { memory: memory.path(), window: 4096, size: 4096, gpu: false };
    let start = Instant::now();
    let reason = python.ask(&order, Duration::from_secs(1)).unwrap_err();
    assert_eq!(reason, "no answer within 1 s");
    drop(python);
    // Only checks that it ends; no time is measured.
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_request_that_no_pipe_takes_is_refused() {
    let Ok(mut python) = Python::start(&[]) else {
        println!("skipped: KvikIO: there is no `python3`");
        return;
    };
    let path = "61".repeat(100_000);
    let reason = python.ask(&Order::Open { path }, Duration::from_secs(1)).unwrap_err();
    assert!(reason.contains("too long"), "{reason}");
}

#[test]
fn only_cold_files_are_read_with_o_direct() {
    assert!(variables(Tuning::Defaults, true).is_empty());
    let direct = |cold| variables(Tuning::Tuned, cold).pop().unwrap();
    assert_eq!(direct(true), (DIRECT.to_owned(), "ON".to_owned()));
    assert_eq!(direct(false), (DIRECT.to_owned(), "OFF".to_owned()));
}

/// A mock of `KvikIO` and of the driver; its GPU memory is memory of the process.
const MOCK: &str = r#"
import ctypes, os

class Driver:
    def cuInit(self, flags):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-mock"
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
__version__ = "0.0.mock"

class Future:
    def __init__(self, count):
        self.get = lambda: count

class CuFile:
    def __init__(self, file, flags):
        self.bytes = open(file, "rb").read()

    def close(self):
        pass

    def pread(self, target, size, offset):
        about = target.__cuda_array_interface__
        assert about["shape"] == (size,) and about["typestr"] == "|u1"
        ctypes.memmove(about["data"][0], self.bytes[offset:offset + size], size)
        return Future(size)
"#;

#[test]
fn a_target_on_a_gpu_is_filled_and_compared() {
    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("kvikio");
    std::fs::create_dir(&package).unwrap();
    std::fs::write(package.join("__init__.py"), MOCK).unwrap();
    let (len, offset, pattern) = (WINDOW + 5000, 8, Pattern::new(1));
    let path = folder.path().join("file");
    let mut bytes = vec![0; whole(len + offset)];
    pattern.fill(0, &mut bytes);
    std::fs::write(&path, bytes).unwrap();
    let packages = ("PYTHONPATH".to_owned(), folder.path().display().to_string());
    let process = match Process::start(Some("GPU-mock"), len, &[packages]) {
        Ok(process) => process,
        Err(failure) if format!("{failure:?}").contains("cannot be started") => {
            println!("skipped: KvikIO: {failure:?}");
            return;
        }
        Err(failure) => panic!("{failure:?}"),
    };
    assert_eq!(process.version, "0.0.mock");
    let mut backend = KvikioBackend {
        process: Some(process),
        pool: Arc::default(),
        kind: (Some("GPU-mock".into()), Tuning::Defaults, false),
        path: path.clone(),
        request_size: len,
        moved: 0,
        cpu: Duration::ZERO,
        life: Arc::default(),
    };
    let hex: String =
        path.as_os_str().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let process = backend.process.as_mut().unwrap();
    process.done(&Order::Open { path: hex }).unwrap();
    process.done(&Order::Fill { byte: 0xA4 }).unwrap();
    let expected = Expected::Pattern(pattern);
    assert!(!backend.holds(0, len, &expected, offset).unwrap(), "nothing was moved");
    backend.call(Call { direction: Direction::Read, offsets: &[offset] }).unwrap();
    assert_eq!(backend.routes()[0].bytes, len);
    assert!(backend.holds(0, len, &expected, offset).unwrap());
    assert!(!backend.holds(0, len, &Expected::Pattern(pattern.inverse()), offset).unwrap());
}

#[test]
fn writes_are_refused() {
    let engine = Engine::new(Options::default()).unwrap();
    let path = PathBuf::from("/dev/null");
    let context = Context {
        engine: &engine,
        pool: &Arc::default(),
        device: None,
        path: &path,
        writes: true,
        cache: Cache::Cold,
        request_size: 1,
        depth: 1,
        batch: 1,
        key: 0,
        life: &Arc::default(),
    };
    let refused = KvikioBackend::new(Tuning::Defaults, &context).err().unwrap();
    assert!(refused.message.contains("only measured with reads"));
}
