//! Mock NVML libraries for tests, compiled from C if a compiler is installed.

use std::process::Command;

use tempfile::TempDir;

/// Initialises, shuts down, and has error texts.
pub(crate) const INIT: &str = "int nvmlInit_v2(void) { return 0; }\n\
    int nvmlShutdown(void) { return 0; }\n\
    const char *nvmlErrorString(int n) { return n == 3 ? \"Not Supported\" : \"Other\"; }\n";
/// Finds a GPU by any UUID, and by an address that starts with 0.
pub(crate) const FIND: &str = "static int gpu;\n\
    int nvmlDeviceGetHandleByPciBusId_v2(const char *a, void **d)\n\
    { if (a[0] != '0') return 6; *d = &gpu; return 0; }\n\
    int nvmlDeviceGetHandleByUUID(const char *a, void **d) { *d = &gpu; return 0; }\n";

/// Compiles a library of these `parts` and returns its path and temporary folder; `None` without a
/// compiler.
pub(crate) fn library(parts: &[&str]) -> Option<(TempDir, String)> {
    let folder = tempfile::tempdir().unwrap();
    let (source, library) = (folder.path().join("nvml.c"), folder.path().join("libnvml.so"));
    std::fs::write(&source, parts.concat()).unwrap();
    let mut compiler = Command::new("cc");
    match compiler.args(["-w", "-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status() {
        Ok(status) if status.success() => Some((folder, library.to_str().unwrap().to_owned())),
        _ => {
            println!("skipped: NVML's numbers: no C compiler");
            None
        }
    }
}
