//! cuFile's errors: their numbers, the library's names for them, and what to do about each.

use std::ffi::c_int;
use std::fmt;

use rustix::io::Errno;

/// `CU_FILE_CUDA_DRIVER_ERROR`: the second number is the CUDA driver's error.
const CUDA: c_int = 5011;

/// Errors about GPU memory: its kind, its location, its registration.
const OF_MEMORY: [c_int; 10] = [5012, 5013, 5014, 5015, 5016, 5017, 5023, 5024, 5036, 5045];

/// `CUfileError_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) error: c_int,
    pub(super) cuda: c_int,
}

impl Answer {
    /// Converts the result of a library call; `call` is its name.
    pub(super) fn checked(self, call: &'static str) -> Result<(), CuFileError> {
        match self.error {
            0 => Ok(()),
            code => Err(CuFileError { call, code, cuda: self.cuda }),
        }
    }
}

/// A library call that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CuFileError {
    call: &'static str,
    code: c_int,
    cuda: c_int,
}

impl CuFileError {
    /// Its number from `cufile.h`: 5,000 and up.
    #[must_use]
    pub fn code(&self) -> i32 {
        self.code
    }

    /// What to do about it, if anything can be done.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        known(self.code).map(|known| known.hint)
    }
}

/// Why cuFile could not serve a request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CuFileFailure {
    /// No usable library was found; contains the reason.
    Library(String),
    /// The library refused.
    Refused(CuFileError),
    /// The kernel refused a read or a write.
    Io(Errno),
    /// The process was forked from the one that opened the driver.
    Forked,
    /// The library's compatibility mode is allowed, in which it silently copies through host
    /// memory.
    CompatAllowed {
        /// Whether other code in this process has opened the driver.
        is_shared: bool,
    },
    /// Another thread of this process has been opening the driver for too long.
    Opening,
    /// The library reported more bytes than were requested.
    Nonsense {
        /// Bytes that it reported.
        moved: u64,
        /// Bytes that were requested.
        requested: u64,
    },
}

impl CuFileFailure {
    /// What to do about it, if anything can be done.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Refused(error) => error.hint(),
            Self::Forked => Some("open cuFile in a process that does not inherit it by a fork"),
            Self::Opening => Some("`forebay doctor` looks for what makes it hang"),
            Self::CompatAllowed { .. } => Some(
                "set `properties.allow_compat_mode` to false in cufile.json, and neither \
                 `force_compat_mode` there nor `CUFILE_ALLOW_COMPAT_MODE` or \
                 `CUFILE_FORCE_COMPAT_MODE` to true",
            ),
            _ => None,
        }
    }

    /// Whether it concerns the memory, so that the same file may work with other memory.
    #[must_use]
    pub fn is_of_memory(&self) -> bool {
        match self {
            Self::Refused(error) => OF_MEMORY.contains(&error.code),
            _ => false,
        }
    }

    /// The failure, and what to do about it.
    #[must_use]
    pub fn in_words(&self) -> String {
        match self.hint() {
            Some(hint) => format!("{self}: {hint}"),
            None => self.to_string(),
        }
    }

    /// Converts the result of a read or a write of `len` bytes.
    pub(super) fn of_moved(call: &'static str, moved: isize, len: usize) -> Result<u64, Self> {
        match (usize::try_from(moved), moved) {
            (Ok(moved), _) if moved <= len => Ok(moved as u64),
            (Ok(moved), _) => Err(Self::Nonsense { moved: moved as u64, requested: len as u64 }),
            (_, -1) => Err(Self::Io(
                Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO),
            )),
            (_, moved) => {
                let code = c_int::try_from(moved.unsigned_abs()).unwrap_or(c_int::MAX);
                Err(Self::Refused(CuFileError { call, code, cuda: 0 }))
            }
        }
    }
}

impl From<CuFileError> for CuFileFailure {
    fn from(error: CuFileError) -> Self {
        Self::Refused(error)
    }
}

impl fmt::Display for CuFileFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library(why) => f.write_str(why),
            Self::Refused(error) => error.fmt(f),
            Self::Io(errno) => errno.fmt(f),
            Self::Forked => f.write_str("cuFile was opened before this process was forked"),
            Self::CompatAllowed { is_shared } => {
                const COPIES: &str = "which silently copies through host memory";
                if *is_shared {
                    write!(
                        f,
                        "other code in this process opened cuFile in compatibility mode, {COPIES}"
                    )
                } else {
                    write!(f, "cuFile's compatibility mode, {COPIES}, cannot be switched off")
                }
            }
            Self::Opening => f.write_str(
                "another thread of this process has been opening cuFile's driver for too long",
            ),
            Self::Nonsense { moved, requested } => {
                write!(f, "cuFile reported {moved} bytes for a request of {requested}")
            }
        }
    }
}

impl std::error::Error for CuFileFailure {}

impl fmt::Display for CuFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed: ", self.call)?;
        match known(self.code) {
            Some(known) => write!(f, "{} ({}): {}", known.name, self.code, known.meaning)?,
            None => write!(f, "cuFile's error {}", self.code)?,
        }
        if self.code == CUDA {
            write!(f, " (CUDA error {})", self.cuda)?;
        }
        Ok(())
    }
}

pub(super) struct Known {
    pub(super) code: c_int,
    /// Name in `cufile.h`, without `CU_FILE_`.
    pub(super) name: &'static str,
    meaning: &'static str,
    hint: &'static str,
}

fn known(code: c_int) -> Option<&'static Known> {
    KNOWN.binary_search_by_key(&code, |known| known.code).ok().map(|at| &KNOWN[at])
}

const fn error(
    code: c_int,
    name: &'static str,
    meaning: &'static str,
    hint: &'static str,
) -> Known {
    Known { code, name, meaning, hint }
}

const RETRY: &str = "it may pass: try again";
const OURS: &str = "an error of this program: please report it";
const MEMORY: &str = "give buffers back, or raise `properties.max_device_pinned_mem_size_kb` in \
                      cufile.json; BAR1 has to hold them as well (`nvidia-smi -q -d MEMORY`)";
const FILE: &str = "the file system, its mount options or its drive are not served: \
                    `forebay doctor --tree PATH` shows them";

/// Sorted by number.
pub(super) static KNOWN: [Known; 48] = [
    error(
        5001,
        "DRIVER_NOT_INITIALIZED",
        "the driver is not open",
        "load nvidia-fs \
          (`modprobe nvidia-fs`) or allow peer-to-peer DMA (`use_pci_p2pdma`) in cufile.json",
    ),
    error(5002, "DRIVER_INVALID_PROPS", "there is no such property", OURS),
    error(
        5003,
        "DRIVER_UNSUPPORTED_LIMIT",
        "a property is out of its range",
        "look at the limits in cufile.json",
    ),
    error(
        5004,
        "DRIVER_VERSION_MISMATCH",
        "the library and nvidia-fs do not fit each other",
        "install the nvidia-fs that belongs to the library's CUDA",
    ),
    error(
        5005,
        "DRIVER_VERSION_READ_ERROR",
        "nvidia-fs does not report its version",
        "make `/dev/nvidia-fs*` readable here; in a container pass it in",
    ),
    error(
        5006,
        "DRIVER_CLOSING",
        "the driver is being closed",
        "something else in this process closes cuFile's driver: let it do so at the end",
    ),
    error(
        5007,
        "PLATFORM_NOT_SUPPORTED",
        "this machine is not served",
        "`forebay doctor` says what the kernel, the driver and the GPU lack",
    ),
    error(5008, "IO_NOT_SUPPORTED", "this file is not served", FILE),
    error(
        5009,
        "DEVICE_NOT_SUPPORTED",
        "this GPU is not served",
        "only data-centre and workstation GPUs are",
    ),
    error(5010, "NVFS_DRIVER_ERROR", "a call of nvidia-fs failed", "`dmesg` may say why"),
    error(
        CUDA,
        "CUDA_DRIVER_ERROR",
        "a call of the CUDA driver failed",
        "`nvidia-smi` says whether driver and GPU work; a driver that is older than the library's \
          CUDA has to be updated",
    ),
    error(5012, "CUDA_POINTER_INVALID", "the address is not memory of a GPU", OURS),
    error(
        5013,
        "CUDA_MEMORY_TYPE_INVALID",
        "memory of this kind is not served",
        "use memory of `cudaMalloc`",
    ),
    error(5014, "CUDA_POINTER_RANGE_ERROR", "the range is longer than its allocation", OURS),
    error(5015, "CUDA_CONTEXT_MISMATCH", "the memory belongs to another context", OURS),
    error(5016, "INVALID_MAPPING_SIZE", "the buffer is longer than may be pinned", MEMORY),
    error(5017, "INVALID_MAPPING_RANGE", "the range leaves its registration", OURS),
    error(5018, "INVALID_FILE_TYPE", "it is not a regular file", "give a regular file"),
    error(
        5019,
        "INVALID_FILE_OPEN_FLAG",
        "the file is opened in a way that is not served",
        "open files to be written with O_DIRECT",
    ),
    error(5020, "DIO_NOT_SET", "the descriptor is not open for O_DIRECT", FILE),
    error(5022, "INVALID_VALUE", "an argument makes no sense", OURS),
    error(
        5023,
        "MEMORY_ALREADY_REGISTERED",
        "the memory is registered already",
        "something else in this process has registered it: leave that to one of them",
    ),
    error(5024, "MEMORY_NOT_REGISTERED", "the memory is not registered", OURS),
    error(
        5025,
        "PERMISSION_DENIED",
        "the driver or the file may not be used",
        "make `/dev/nvidia-fs*` and the file accessible to this user",
    ),
    error(
        5026,
        "DRIVER_ALREADY_OPEN",
        "the driver is open already",
        "something else in this process has opened it: let only one of them do so",
    ),
    error(
        5027,
        "HANDLE_NOT_REGISTERED",
        "the file could not be registered",
        "cuFile queries udev about the drive: in a container or a small machine bind \
           `/run/udev` into it (`-v /run/udev:/run/udev:ro`)",
    ),
    error(
        5028,
        "HANDLE_ALREADY_REGISTERED",
        "the file is registered already",
        "something else in this process has registered this descriptor: open the file anew",
    ),
    error(5029, "DEVICE_NOT_FOUND", "there is no such GPU", "see `nvidia-smi -L`"),
    error(
        5030,
        "INTERNAL_ERROR",
        "something failed within the library",
        "its log says what (`cufile.log`); in a container it is often `/run/udev` that is \
           missing",
    ),
    error(5031, "GETNEWFD_FAILED", "no new descriptor is available", "raise `ulimit -n`"),
    error(
        5033,
        "NVFS_SETUP_ERROR",
        "the driver could not be started",
        "the CUDA driver has to be there first (`libcuda.so.1`)",
    ),
    error(
        5034,
        "IO_DISABLED",
        "cufile.json forbids the direct path for this file",
        "look at its deny lists and at `allow_compat_mode`",
    ),
    error(5035, "BATCH_SUBMIT_FAILED", "a batch could not be submitted", RETRY),
    error(5036, "GPU_MEMORY_PINNING_FAILED", "memory of the GPU could not be pinned", MEMORY),
    error(5037, "BATCH_FULL", "no more fits in the batch", OURS),
    error(
        5038,
        "ASYNC_NOT_SUPPORTED",
        "transfers in a stream's order are not served",
        "`parallel_io` and `max_io_threads` in cufile.json must not be off",
    ),
    error(5039, "INTERNAL_BATCH_SETUP_ERROR", "a batch could not be set up", RETRY),
    error(5040, "INTERNAL_BATCH_SUBMIT_ERROR", "a batch could not be submitted", RETRY),
    error(5041, "INTERNAL_BATCH_GETSTATUS_ERROR", "a batch does not report its state", RETRY),
    error(5042, "INTERNAL_BATCH_CANCEL_ERROR", "a batch could not be cancelled", RETRY),
    error(5043, "NOMEM_ERROR", "the library has no memory left", RETRY),
    error(5044, "IO_ERROR", "reading or writing failed", "`dmesg` may say why"),
    error(5045, "INTERNAL_BUF_REGISTER_ERROR", "a buffer could not be registered", MEMORY),
    error(5046, "HASH_OPR_ERROR", "something failed within the library's tables", RETRY),
    error(5047, "INVALID_CONTEXT_ERROR", "no context of CUDA is current, or a wrong one", OURS),
    error(
        5048,
        "NVFS_INTERNAL_DRIVER_ERROR",
        "something failed within nvidia-fs",
        "`dmesg` may say why",
    ),
    error(
        5049,
        "BATCH_NOCOMPAT_ERROR",
        "a batch would need the mode that is forbidden",
        "allow `allow_compat_mode` in cufile.json, or make the direct path whole",
    ),
    error(5050, "IO_MAX_ERROR", "the last of the numbers", OURS),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_a_move_are_distinguished() {
        let of = |moved| CuFileFailure::of_moved("cuFileRead", moved, 100);
        assert_eq!((of(0), of(7), of(100)), (Ok(0), Ok(7), Ok(100)));
        assert_eq!(of(101), Err(CuFileFailure::Nonsense { moved: 101, requested: 100 }));
        let refused = of(-5008).unwrap_err();
        assert!(refused.to_string().contains("IO_NOT_SUPPORTED (5008)"), "{refused}");
        assert!(refused.hint().is_some());
        assert!(matches!(of(isize::MIN), Err(CuFileFailure::Refused(_))));
        assert!(matches!(of(-1), Err(CuFileFailure::Io(_))));
    }

    /// A new error must come with a hint.
    #[test]
    fn each_error_has_its_name_its_meaning_and_its_hint() {
        for known in &KNOWN {
            let error = Answer { error: known.code, cuda: 7 }.checked("cuFileX").unwrap_err();
            let hint = error.hint().expect("it is known");
            assert!(hint.len() > 10 && known.meaning.len() > 10, "{}", known.name);
            let whole = CuFileFailure::from(error).in_words();
            let parts = ["cuFileX failed", known.name, known.meaning, hint];
            assert!(parts.iter().all(|part| whole.contains(part)), "{whole}");
            assert!(whole.contains(&format!("({})", known.code)), "{whole}");
            assert_eq!(whole.contains("CUDA error 7"), known.code == CUDA, "{whole}");
        }
        // An error of a later version is reported by its number.
        for code in [1, 4999, 5021, 5999, c_int::MAX, c_int::MIN] {
            let error = Answer { error: code, cuda: 0 }.checked("cuFileX").unwrap_err();
            assert_eq!(error.hint(), None);
            assert!(error.to_string().contains(&code.to_string()), "{error}");
        }
    }

    #[test]
    fn the_errors_are_sorted_by_their_numbers() {
        assert!(KNOWN.is_sorted_by_key(|known| known.code));
    }
}
