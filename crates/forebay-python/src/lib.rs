//! The compiled part of the Python package `forebay`: thin, with no logic that could be in the
//! engine.
//!
//! `memory` finds the bytes of Python's objects and keeps the objects alive, `numbers` reads arrays
//! of offsets, `stream` selects the stream that orders a call. `engine`, `file`, `many` and
//! `transfer` are the engine's own types for Python, `layers` those for the layers of a model.
//! `buffer` is the memory that they hand out, and `dlpack` exchanges arrays.
//!
//! `blocks` keeps KV blocks on drives.
//!
//! `header` reads safetensors files and indexes, `archive` the directories of files of
//! `torch.save`, `pickle` interprets pickles without running what they name. `pages` has the pages
//! of a file as memory, and `replace` makes files that replace others.
//!
//! `waiting` waits in a call without the interpreter, `moving` waits in a future, `callbacks` runs
//! callbacks on a thread, `ended` wakes event loops. `failure` converts errors, `logs` forwards the
//! engine's events, `hanging` calls Python from threads that may outlive the interpreter.

mod archive;
mod blocks;
mod buffer;
mod callbacks;
mod descriptor;
mod dlpack;
mod ended;
mod engine;
mod failure;
mod file;
mod hanging;
mod header;
mod layers;
mod logs;
mod many;
mod memory;
mod moving;
mod numbers;
mod pages;
mod pickle;
mod quiesce;
mod replace;
mod stream;
mod transfer;
mod waiting;
mod whole;

use std::ffi::OsString;

use pyo3::exceptions::{PyImportError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

/// The compiled part of `forebay`.
#[pymodule(gil_used = false)]
mod _forebay {
    #[pymodule_export]
    use super::archive::Archive;
    #[pymodule_export]
    use super::blocks::BlockCall;
    #[pymodule_export]
    use super::blocks::Blocks;
    #[pymodule_export]
    use super::buffer::Buffer;
    #[pymodule_export]
    use super::descriptor::Descriptor;
    #[pymodule_export]
    use super::ended::Awaits;
    #[pymodule_export]
    use super::engine::Engine;
    #[pymodule_export]
    use super::failure::system_hint;
    #[pymodule_export]
    use super::file::File;
    #[pymodule_export]
    use super::header::Header;
    #[pymodule_export]
    use super::header::ModelIndex;
    #[pymodule_export]
    use super::layers::LayerStream;
    #[pymodule_export]
    use super::layers::TakenLayer;
    #[pymodule_export]
    use super::many::ManyResult;
    #[pymodule_export]
    use super::many::ManyTransfer;
    #[pymodule_export]
    use super::pages::FileStamp;
    #[pymodule_export]
    use super::pages::Pages;
    #[pymodule_export]
    use super::pages::memory_left;
    #[pymodule_export]
    use super::pickle::Global;
    #[pymodule_export]
    use super::pickle::Record;
    #[pymodule_export]
    use super::pickle::unpickled;
    #[pymodule_export]
    use super::reader_count;
    #[pymodule_export]
    use super::replace::Replacement;
    #[pymodule_export]
    use super::replace::remove_temporary;
    #[pymodule_export]
    use super::run_command;
    #[pymodule_export]
    use super::transfer::Transfer;
    #[pymodule_export]
    use super::version;

    #[pymodule_init]
    fn init(module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        super::check_interpreter()?;
        super::failure::convert_panics(module)?;
        super::attach_once(module.py());
        Ok(())
    }
}

/// Makes PyO3 notice that the interpreter has started. It checks when a thread first attaches, and
/// would panic in one of our threads that starts as the interpreter ends.
fn attach_once(py: Python<'_>) {
    py.detach(|| Python::attach(|_| ()));
}

/// Refuses all but the first interpreter of a process: exceptions, callbacks and the default engine
/// exist once per process. From Python 3.12 on the interpreter itself refuses.
#[expect(unsafe_code, reason = "queries which interpreter loads the module")]
fn check_interpreter() -> PyResult<()> {
    // SAFETY: this thread is attached, since it imports the module.
    let number = unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) };
    if number == 0 {
        return Ok(());
    }
    Err(PyImportError::new_err(
        "forebay cannot be used in subinterpreters: import it in the main one, or in a separate \
         process (`multiprocessing`)",
    ))
}

/// The number of threads with which an engine reads cached bytes, by default. An invalid variable
/// is an error when an engine is made, and not here.
#[pyfunction]
fn reader_count() -> usize {
    forebay::Options::from_env().unwrap_or_default().reader_count()
}

/// The version of the package.
#[pyfunction]
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// Runs the `forebay` command with these arguments, the program's name first; returns its exit
/// code. `program` is the command line that starts another `forebay`.
#[pyfunction]
fn run_command(py: Python<'_>, arguments: Vec<OsString>, program: Vec<OsString>) -> PyResult<u8> {
    if program.is_empty() {
        return Err(PyValueError::new_err("`program` cannot be empty: it takes a command line"));
    }
    let program = forebay_measure::program::Program::new(program);
    Ok(py.detach(|| {
        let code = forebay_cli::run_as(&program, arguments);
        // The standard library does not expose the number of an `ExitCode`.
        (0..=u8::MAX).find(|&number| code == std::process::ExitCode::from(number)).unwrap_or(1)
    }))
}
