//! The libraries, and what distinguishes their processes.

/// A library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Library {
    /// cuFile in its compat mode.
    Cufile,
    /// `KvikIO`.
    Kvikio,
}

/// The settings of a library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tuning {
    /// Its defaults.
    Defaults,
    /// Settings that were faster on the machines measured so far.
    Tuned,
}

/// The settings of `KvikIO` that were fastest: a pool of threads for each drive, and O_DIRECT for
/// cold files.
const TUNED: [(&str, &str); 3] = [
    ("KVIKIO_NTHREADS", "16"),
    // In bytes: KvikIO silently ignores units.
    ("KVIKIO_TASK_SIZE", "4194304"),
    ("KVIKIO_THREAD_POOL_PER_BLOCK_DEVICE", "ON"),
];

/// The variable for O_DIRECT.
pub(super) const DIRECT: &str = "KVIKIO_AUTO_DIRECT_IO_READ";

/// What distinguishes processes: the library, its variables, and the GPU's UUID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(super) library: Library,
    pub(super) variables: Vec<(&'static str, &'static str)>,
    pub(super) gpu: Option<String>,
}

impl Kind {
    pub(super) fn new(
        library: Library,
        tuning: Tuning,
        gpu: Option<String>,
        is_cold: bool,
    ) -> Self {
        let variables = match (library, tuning) {
            (Library::Kvikio, Tuning::Tuned) => {
                let direct = (DIRECT, if is_cold { "ON" } else { "OFF" });
                TUNED.into_iter().chain([direct]).collect()
            }
            // cuFile has its settings in each request.
            _ => Vec::new(),
        };
        Self { library, variables, gpu }
    }
}

impl Library {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Cufile => "cuFile",
            Self::Kvikio => "KvikIO",
        }
    }
}
