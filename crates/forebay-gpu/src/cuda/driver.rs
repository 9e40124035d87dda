//! The CUDA driver of this machine, loaded once per process on first use. If that fails, the reason
//! is kept.

use forebay_base::per_process::PerProcess;

use super::table::CudaTable;

/// The driver library's name for the loader.
const LIBRARY: &str = "libcuda.so.1";

/// The driver of this machine, or why it cannot be used.
pub(crate) fn driver() -> Result<&'static CudaTable, String> {
    /// Made before the driver is loaded, which may take seconds.
    static STARTED: PerProcess<()> = PerProcess::new();
    static DRIVER: PerProcess<Result<CudaTable, String>> = PerProcess::new();
    if let Some((parent, ())) = STARTED.inherited() {
        return Err(match DRIVER.inherited() {
            Some((_, Err(reason))) => reason.clone(),
            _ => format!(
                "process {parent} started the CUDA driver before this one was forked from it, and \
                 the driver does not work in a forked child: fork first, or start a new program \
                 (`exec`)"
            ),
        });
    }
    STARTED.get_or_init(|| ());
    let driver = DRIVER.get_or_init(|| CudaTable::load(LIBRARY));
    driver.as_ref().map_err(Clone::clone)
}
