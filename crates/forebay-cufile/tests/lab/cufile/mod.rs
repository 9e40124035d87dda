//! A `libcufile.so.0` of our own, compiled by a test: what is loaded is a shared object as the real
//! one is, and does as a variable says. `library.c` lists the values.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Its source, in one piece.
pub(crate) const SOURCE: &str = concat!(include_str!("library.c"), include_str!("settings.c"));

/// Its name, which the loader looks for.
pub(crate) const NAME: &str = "libcufile.so.0";

/// Versions with different functions, and one with other counters.
pub(crate) const VERSIONS: [u32; 5] = [1110, 1140, 1150, 1160, 1190];

/// The variables for its behaviour, its version, and the file in which it notes its calls.
pub(crate) const DOES: &str = "MOCK_CUFILE_DOES";
pub(crate) const VERSION: &str = "MOCK_CUFILE_VERSION";
pub(crate) const CALLS: &str = "MOCK_CUFILE_CALLS";

/// What was compiled in this process, by version.
static COMPILED: Mutex<Vec<(u32, Vec<u8>)>> = Mutex::new(Vec::new());

/// Compiles the library as of a version into a folder.
///
/// # Errors
/// Why there is none, for the message of a skipped test.
pub(crate) fn compile(folder: &Path, as_of: u32) -> Result<PathBuf, String> {
    let library = folder.join(NAME);
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, bytes)) = compiled.iter().find(|(version, _)| *version == as_of) {
        fs::write(&library, bytes).expect("a folder to write to");
        return Ok(library);
    }
    let options = [&format!("-DAS_OF={as_of}"), "-shared", &format!("-Wl,-soname,{NAME}"), "-ldl"];
    build(folder, SOURCE, &options, &library)?;
    compiled.push((as_of, fs::read(&library).expect("it was just made")));
    Ok(library)
}

/// The same, which does so in every process that loads it.
///
/// # Errors
/// As above.
pub(crate) fn compile_to(folder: &Path, as_of: u32, does: &str) -> Result<PathBuf, String> {
    let library = compile(folder, as_of)?;
    fs::write(folder.join(format!("{NAME}.does")), does).expect("a folder to write to");
    Ok(library)
}

/// Compiles a C source in a folder.
///
/// # Errors
/// There is no compiler.
///
/// # Panics
/// What is compiled has mistakes.
pub(crate) fn build<S: AsRef<OsStr>>(
    folder: &Path,
    source: &str,
    options: &[S],
    out: &Path,
) -> Result<(), String> {
    let file = folder.join("source.c");
    fs::write(&file, source).expect("a folder to write to");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-w", "-fPIC", "-pthread"]).args(options);
    let output = compiler.arg(&file).arg("-o").arg(out).output();
    let output = output.map_err(|_| "cuFile's library: no C compiler (`cc`)".to_owned())?;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    Ok(())
}
