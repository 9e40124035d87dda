//! Many reads or writes in one call, given as tuples or as arrays.
//!
//! Tuples name their memory each; arrays are of offsets, lengths, and either places in one object
//! or addresses on one device. What they come to is one call of the engine, without the
//! interpreter. `calls` has Python's calls, `tuples` and `arrays` read what is given, `addresses`
//! finds memory that is named by its address, and `result` says what came of each.

mod addresses;
mod arrays;
mod calls;
mod result;
mod tuples;

use forebay::{Buffer, Direction, Piece, RequestOptions};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::engine::Engine;
use crate::failure::{exception, raised};
use crate::file::File;
use crate::memory::Lent;
use crate::stream::Ordering;
use crate::waiting::interruptible;
pub(crate) use result::ManyResult;

/// A piece, before the files and the memory that it names are at hand.
struct Wanted {
    file: usize,
    offset: u64,
    len: u64,
    /// The memory, by its place in the call's list.
    memory: usize,
    /// Where it begins there.
    at: u64,
}

/// What a call is about.
#[derive(Default)]
struct Asked {
    files: Vec<forebay::File>,
    lent: Vec<Lent>,
    wanted: Vec<Wanted>,
}

impl Asked {
    fn add_file(&mut self, file: &Bound<'_, File>) -> PyResult<()> {
        self.files.push(file.get().file()?);
        Ok(())
    }
}

fn run(
    engine: &Bound<'_, Engine>,
    direction: Direction,
    asked: Asked,
    options: &RequestOptions,
    ordering: Ordering,
    check: bool,
) -> PyResult<ManyResult> {
    let (py, this) = (engine.py(), engine.get());
    if let Ordering::Stream(_) = ordering {
        let text = "many requests cannot be ordered on a stream: wait for it first, or give `None`";
        return Err(PyTypeError::new_err(text));
    }
    this.make_all_ready(py, asked.lent.iter(), ordering)?;
    let Asked { files, lent, wanted } = asked;
    let mut buffers: Vec<Buffer> = lent.into_iter().map(|lent| lent.buffer).collect();
    let done = interruptible(py, |go_on| {
        let piece = |wanted: &Wanted| Piece {
            file: &files[wanted.file],
            offset: wanted.offset,
            len: wanted.len,
            target: wanted.memory,
            at: wanted.at,
        };
        let pieces: Vec<Piece<'_>> = wanted.iter().map(piece).collect();
        match direction {
            Direction::Read => this.engine.read_many_while(&pieces, &mut buffers, options, go_on),
            Direction::Write => this.engine.write_many_while(&pieces, &buffers, options, go_on),
        }
    })?;
    let outcome = raised(py, done)?;
    if check && let Some(Err(error)) = outcome.results.iter().find(|result| result.is_err()) {
        return Err(exception(py, error));
    }
    Ok(ManyResult { outcome })
}
