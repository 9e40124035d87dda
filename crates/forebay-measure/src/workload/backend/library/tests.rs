//! A process that does not answer, and a mock of `KvikIO` with a mock driver.

use forebay::{Engine, Options};

use super::*;
use crate::data::Pattern;
use crate::memory::whole;

/// A folder of packages in which `kvikio` is `program`.
fn package(program: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("kvikio");
    std::fs::create_dir(&package).unwrap();
    std::fs::write(package.join("__init__.py"), program).unwrap();
    folder
}

/// The process with that package; `None` without `python3`.
fn start(folder: &tempfile::TempDir, seconds: u64) -> Option<Result<Mover, String>> {
    let variables = [("PYTHONPATH", folder.path().to_str().unwrap())];
    let bounds = Bounds { start: Duration::from_secs(seconds), ..Bounds::default() };
    match Mover::kvikio(&variables, Some("GPU-mock".into()), bounds) {
        Err(reason) if reason.contains("cannot be started") => {
            println!("skipped: KvikIO: {reason}");
            None
        }
        started => Some(started),
    }
}

#[test]
fn a_process_that_does_not_answer_is_given_up() {
    let folder = package("import time; time.sleep(3600)");
    let Some(started) = start(&folder, 1) else { return };
    let reason = started.unwrap_err();
    assert!(reason.starts_with("no answer within 1 s; install `kvikio`"), "{reason}");
}

#[test]
fn only_cold_files_are_read_with_o_direct() {
    let kind = |tuning, is_cold| Kind::new(Library::Kvikio, tuning, None, is_cold);
    assert_eq!(kind(Tuning::Defaults, true), kind(Tuning::Defaults, false));
    assert!(kind(Tuning::Tuned, true).variables.contains(&(DIRECT, "ON")));
    assert!(kind(Tuning::Tuned, false).variables.contains(&(DIRECT, "OFF")));
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

    def cuMemFree_v2(self, address):
        assert address.value == ctypes.addressof(self.memory)
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
    let folder = package(MOCK);
    let (len, offset, pattern) = (process::WINDOW + 5000, 8, Pattern::new(1));
    let path = folder.path().join("file");
    let mut bytes = vec![0; whole(len + offset)];
    pattern.fill(0, &mut bytes);
    std::fs::write(&path, bytes).unwrap();
    let Some(started) = start(&folder, 60) else { return };
    let mut process = started.unwrap();
    assert_eq!(process.version(), "0.0.mock");
    process.allocate(1).unwrap();
    process.allocate(len).unwrap();
    process.open(&path, false, false).unwrap();
    process.fill(0xA4).unwrap();
    let mut backend = LibraryBackend {
        process: Some(process),
        pool: Arc::default(),
        kind: Kind::new(Library::Kvikio, Tuning::Defaults, Some("GPU-mock".into()), false),
        tuning: Tuning::Defaults,
        path: path.clone(),
        request_size: len,
        direct: false,
        cpu: Duration::ZERO,
        life: Arc::default(),
    };
    let expected = Expected::Pattern(pattern);
    assert!(!backend.holds(0, 0, len, &expected, offset).unwrap(), "nothing was moved");
    backend.start(0, Call { direction: Direction::Read, offsets: &[offset] }).unwrap();
    assert!(backend.holds(0, 0, len, &expected, offset).unwrap());
    assert!(!backend.holds(0, 0, len, &Expected::Pattern(pattern.inverse()), offset).unwrap());
    let long = PathBuf::from("a".repeat(100_000));
    let refused = backend.process().open(&long, false, false).unwrap_err().with_remedy();
    assert!(refused.contains("too long"), "{refused}");
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
    let refused = LibraryBackend::new(Library::Kvikio, Tuning::Defaults, &context).err().unwrap();
    assert!(refused.message.contains("only measured with reads"));
}
