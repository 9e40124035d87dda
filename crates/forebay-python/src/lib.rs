//! The compiled part of the Python package `forebay`: thin, with nothing in it that the engine
//! could do.
//!
//! [`memory`] finds out where the bytes of Python's objects are and keeps them, [`numbers`] reads
//! arrays of offsets, [`stream`] says what orders a call. [`engine`], [`file`], [`many`] and
//! [`transfer`] are the engine's own types for Python, [`buffer`] is the memory that they hand out,
//! and [`dlpack`] how arrays are exchanged. [`waiting`] is how a call waits without the
//! interpreter, [`failure`] how it fails.
//!
//! # Unsafe modules
//!
//! - `buffer.rs`: fills in what the buffer protocol asks for
//! - `dlpack.rs`: reads and makes what DLPack exchanges
//! - `engine.rs`: looks at streams of others
//! - `file.rs`: queues on streams of others
//! - `many.rs`: borrows memory by the addresses that a caller gives
//! - `memory.rs`: borrows memory of Python's objects
//! - `numbers.rs`: reads what an exporter of numbers says is there

mod buffer;
mod dlpack;
mod engine;
mod failure;
mod file;
mod many;
mod memory;
mod numbers;
mod stream;
mod transfer;
mod waiting;

use std::ffi::OsString;

use pyo3::prelude::*;

/// The compiled part of `forebay`.
#[pymodule(gil_used = false)]
mod _forebay {
    #[pymodule_export]
    use super::buffer::Buffer;
    #[pymodule_export]
    use super::engine::Engine;
    #[pymodule_export]
    use super::file::File;
    #[pymodule_export]
    use super::many::ManyResult;
    #[pymodule_export]
    use super::run_command;
    #[pymodule_export]
    use super::transfer::Transfer;
}

/// Runs the `forebay` command with these arguments, the program's name first; its exit code.
#[pyfunction]
fn run_command(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| {
        let code = forebay_cli::run(arguments);
        // The standard library does not tell the number of an `ExitCode`, but these are all.
        (0..=2).find(|&number| code == std::process::ExitCode::from(number)).unwrap_or(1)
    })
}
