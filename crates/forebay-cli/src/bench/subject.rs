//! The files of a run: the user's own, which is only read, or scratch.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use forebay::Engine;
use forebay::units::format_size;
use twox_hash::XxHash3_64;

use super::cache::read_plainly;
use super::data::{Expected, PIECE, Pattern};
use super::make::{self, Room};
use super::memory::whole;
use super::scratch::{Part, Scratch, random};
use crate::failure::{Failure, Result};
use crate::report::json::Direction;
use crate::steps::Step;

/// The files to read and to write.
#[derive(Debug)]
pub struct Subject {
    /// The folder of scratch.
    pub folder: PathBuf,
    /// The user's file and its bytes.
    given: Option<(PathBuf, u64)>,
    scratch: Option<Scratch>,
    pattern: Pattern,
}

impl Subject {
    /// Inspects the user's file, if there is one, and makes scratch, if needed. A folder is a place
    /// for scratch.
    ///
    /// # Errors
    /// If the file cannot be read, or scratch cannot be made.
    pub fn find(engine: &Engine, path: Option<&Path>, write: bool) -> Result<Self> {
        let is_folder = path.is_some_and(is_folder);
        let given = path.filter(|_| !is_folder).map(|path| given(engine, path)).transpose()?;
        let folder = match path {
            None => PathBuf::from("."),
            Some(path) if is_folder => path.to_owned(),
            Some(path) => match path.parent() {
                Some(parent) if parent != Path::new("") => parent.to_owned(),
                _ => PathBuf::from("."),
            },
        };
        if let Some((path, _)) = &given
            && write
            && std::fs::metadata(path).is_ok_and(|facts| facts.file_type().is_block_device())
        {
            let text = format!("cannot measure writes with the device `{}`", path.display());
            return Err(Failure::new(text)
                .because("writes go to a scratch file in the same folder, never to a device")
                .hint("give a folder on that device instead"));
        }
        let scratch = if given.is_none() || write { Some(Scratch::create(&folder)?) } else { None };
        let key = random().map_err(|error| Failure::io("cannot get random bytes", &error))?;
        Ok(Self { folder, given, scratch, pattern: Pattern::new(key) })
    }

    /// Bytes of the user's file.
    #[must_use]
    pub fn given_len(&self) -> Option<u64> {
        self.given.as_ref().map(|(_, len)| *len)
    }

    /// Number of scratch files.
    #[must_use]
    pub fn scratch_files(&self, write: bool) -> u32 {
        u32::from(self.given.is_none()) + u32::from(write)
    }

    /// The file that is read.
    #[must_use]
    pub fn read_path(&self) -> PathBuf {
        match &self.given {
            Some((path, _)) => path.clone(),
            None => self.scratch_path(Part::Read),
        }
    }

    /// The file that is written.
    #[must_use]
    pub fn write_path(&self) -> PathBuf {
        self.scratch_path(Part::Write)
    }

    /// The name of the file of a direction, for messages.
    #[must_use]
    pub fn name(&self, direction: Direction) -> PathBuf {
        let part = match (direction, &self.given) {
            (Direction::Read, Some((path, _))) => return path.clone(),
            (Direction::Read, None) => Part::Read,
            (Direction::Write, _) => Part::Write,
        };
        self.scratch.as_ref().map(|scratch| scratch.name(part)).unwrap_or_default()
    }

    fn scratch_path(&self, part: Part) -> PathBuf {
        // Without scratch nothing is written, and only reports use this path.
        self.scratch.as_ref().map(|scratch| scratch.path(part)).unwrap_or_default()
    }

    /// Checks that scratch still has its name.
    ///
    /// # Errors
    /// If it was moved or removed.
    pub fn check_scratch(&self) -> Result<()> {
        self.scratch.as_ref().map_or(Ok(()), Scratch::check)
    }

    /// Checks that `sizes` are possible.
    ///
    /// # Errors
    /// If the user's file is smaller, or there is no room for scratch.
    pub fn check(&self, sizes: &[u64], write: bool) -> Result<()> {
        let largest = sizes.iter().copied().max().unwrap_or(0);
        if let Some((path, len)) = &self.given
            && largest > *len
        {
            let (wanted, have) = (format_size(largest), format_size(*len));
            let text = format!("cannot read {wanted} of `{}`", path.display());
            return Err(Failure::new(text)
                .because(format!("it has {have}"))
                .hint(format!("`--size {len}` reads all of it")));
        }
        let scratch = largest.saturating_mul(u64::from(self.scratch_files(write)));
        if scratch > 0 { Room::of(&self.folder)?.check(&self.folder, scratch) } else { Ok(()) }
    }

    /// Makes the scratch file for reads, of `len` bytes; does nothing if the user's file is read.
    ///
    /// # Errors
    /// System errors.
    pub fn make_read(&self, len: u64) -> Result<()> {
        self.check_scratch()?;
        match self.given {
            Some(_) => Ok(()),
            None => make::fill(&self.read_path(), self.pattern, len),
        }
    }

    /// Makes the scratch file for writes, of `len` bytes, and returns its contents.
    ///
    /// # Errors
    /// System errors.
    pub fn make_write(&self, len: u64) -> Result<Pattern> {
        self.check_scratch()?;
        let pattern = self.pattern.inverse();
        make::fill(&self.write_path(), pattern, len)?;
        Ok(pattern)
    }

    /// The expected first `len` bytes of the file that is read.
    ///
    /// # Errors
    /// System errors.
    pub fn expected(&self, len: u64) -> Result<Expected> {
        let Some((path, _)) = &self.given else { return Ok(Expected::Pattern(self.pattern)) };
        let hashes = Mutex::new(vec![0; whole(len.div_ceil(PIECE))]);
        read_plainly(path, len, |offset, bytes| {
            let hash = XxHash3_64::oneshot(bytes);
            let mut hashes = hashes.lock().unwrap_or_else(PoisonError::into_inner);
            hashes[whole(offset / PIECE)] = hash;
            Ok(())
        })?;
        Ok(Expected::Pieces(hashes.into_inner().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// Whether there is a folder at `path`.
pub(crate) fn is_folder(path: &Path) -> bool {
    let _step = Step::begin("inspect", path);
    path.is_dir()
}

/// Checks that a file with a reported size of 0 has no bytes: the kernel makes those of some files
/// only when they are read.
///
/// # Errors
/// If it has bytes, so that its size is unknown.
pub(crate) fn check_size(path: &Path, len: u64) -> Result<()> {
    if len > 0 {
        return Ok(());
    }
    let mut byte = [0];
    // A read that fails here fails again later, and is reported then.
    match File::open(path).and_then(|mut file| file.read(&mut byte)) {
        Ok(1) => Err(Failure::new(format!("cannot read `{}`", path.display()))
            .because("its size is reported as 0, but it has bytes: the kernel makes them on demand")
            .hint("copy it to a regular file (`cat FILE >COPY`), and name the copy")),
        _ => Ok(()),
    }
}

/// Opens the user's file with the engine, so that errors are the engine's.
fn given(engine: &Engine, path: &Path) -> Result<(PathBuf, u64)> {
    let _step = Step::begin("open", path);
    let len = engine.open(path)?.len()?;
    check_size(path, len)?;
    if len == 0 {
        return Err(Failure::new(format!("nothing to measure: `{}` is empty", path.display()))
            .hint("name a folder instead, for a scratch file"));
    }
    Ok((path.to_owned(), len))
}
