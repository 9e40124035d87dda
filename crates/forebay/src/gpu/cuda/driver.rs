//! The CUDA driver of this machine, loaded once per process on first use. If that fails, the reason
//! is kept.

use std::sync::OnceLock;

use forebay_base::process::Home;

use super::table::CudaTable;

/// The driver library's name for the loader.
const LIBRARY: &str = "libcuda.so.1";

/// The driver of this machine, or why it cannot be used.
pub(crate) fn driver() -> Result<&'static CudaTable, String> {
    static DRIVER: OnceLock<(Home, Result<CudaTable, String>)> = OnceLock::new();
    let (home, driver) = DRIVER.get_or_init(|| (Home::here(), CudaTable::load(LIBRARY)));
    if driver.is_ok() && !home.is_here() {
        return Err(format!(
            "process {} started the CUDA driver before this one was forked from it, and the \
             driver does not work in a forked child: fork first, or start a new program (`exec`)",
            home.number()
        ));
    }
    driver.as_ref().map_err(Clone::clone)
}
