//! The files of a path: the user's own, or scratch.

use std::cell::Cell;
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay::Engine;
use forebay::gpu::Device;
use forebay::units::GIB;
use forebay_measure::data::Pattern;
use forebay_measure::failure::{Failure, Result};
use forebay_measure::held;
use forebay_measure::make::{self, Room};
use forebay_measure::output::{New, folder_of};
use forebay_measure::results::Direction;
use forebay_measure::scratch::{self, random};
use forebay_measure::steps::Step;
use forebay_measure::subject::check_size;
use forebay_measure::workload::Lane;
use forebay_measure::workload::pattern::Region;

use super::plan::Planned;
use crate::bench::args::BenchArgs;

/// Default size of a path's files together.
const SIZE: u64 = GIB;
/// Parts of files begin at multiples of this, whatever the drive's block size.
pub(super) const ALIGN: u64 = 4096;

/// One path.
#[derive(Debug, Default)]
pub(crate) struct Place {
    /// The files, and the bytes of each.
    pub(crate) files: Vec<PathBuf>,
    pub(crate) len: u64,
    /// Scratch that loads only write to, so that they leave the files that are read unchanged.
    targets: Vec<PathBuf>,
    /// The folder of scratch, or of a file.
    pub(crate) folder: PathBuf,
    /// The files that this run has made, which are removed with this value.
    _made: Vec<New>,
    /// The key of the first scratch file; each further file adds one. None if there is no scratch.
    key: Option<u64>,
    /// Whether rank 0 makes and removes the scratch files.
    is_of_rank_0: bool,
    /// Whether the files were written to since they were made.
    is_changed: Cell<bool>,
    /// The user's file, which its path goes through if it is written to.
    _held: Option<Arc<File>>,
}

impl Place {
    /// Inspects `path`, and makes scratch files in a folder.
    ///
    /// # Errors
    /// The file is missing or empty, or would be written without the user's permission.
    pub(crate) fn find(
        engine: &Engine,
        path: &Path,
        args: &BenchArgs,
        directions: &[u8],
    ) -> Result<Self> {
        let any = |is: fn(u8) -> bool| directions.iter().any(|percent| is(*percent));
        let writes = any(|percent| percent < 100);
        let most_files = args.files.iter().copied().max().unwrap_or(1) as usize;
        // Inspected once: a name that others swap is not taken for a file and then for a folder.
        let opening = Step::begin("open", path);
        let found = fs::metadata(path);
        if found.as_ref().is_ok_and(Metadata::is_dir) {
            drop(opening);
            let reads = if any(|percent| percent > 0) { most_files } else { 0 };
            let writes = if any(|percent| percent == 0) { most_files } else { 0 };
            scratch::remove_leftovers(path);
            let made = scratch::create(path, reads + writes)?;
            let mut files: Vec<PathBuf> = made.iter().map(New::path).collect();
            let targets = files.split_off(reads);
            let (folder, key) = (path.to_owned(), Some(random()));
            return Ok(Self { files, targets, folder, _made: made, key, ..Self::default() });
        }
        let is_absent = |error: &io::Error| error.kind() == ErrorKind::NotFound;
        if args.fills_file && found.as_ref().is_err_and(is_absent) {
            let made = New::create(path, 0o666);
            let made = made.map_err(|error| Failure::at("create", path, &error))?;
            let (files, folder) = (vec![made.path()], folder_of(path).to_owned());
            return Ok(Self { files, folder, _made: vec![made], ..Self::default() });
        }
        found.map_err(|error| Failure::at("open", path, &error))?;
        let text = path.display();
        if most_files > 1 {
            return Err(Failure::usage(format!("`{text}` is one file, not {most_files}"))
                .hint("give a folder, where scratch files are made, or omit `--files`"));
        }
        let allowed = (args.overwrite, args.overwrite_device);
        let may_write = || may_write(path, allowed, "a folder for a scratch file", |_| false);
        let held = writes.then(may_write).transpose()?;
        let len = engine.open(path)?.len()?;
        check_size(path, len)?;
        drop(opening);
        if len == 0 && !args.fills_file {
            return Err(Failure::new(format!("nothing to measure: `{text}` is empty"))
                .hint("give a folder instead, and scratch files are made there"));
        }
        let real = real(path)?;
        let folder = folder_of(&real).to_owned();
        let (held, file) = match held {
            Some((held, at)) => (Some(held), at),
            None => (None, real),
        };
        Ok(Self { files: vec![file], len, folder, _held: held, ..Self::default() })
    }

    /// What other ranks need to use these scratch files.
    pub(super) fn shared(&self) -> Shared {
        (self.files.clone(), self.targets.clone(), self.key)
    }

    /// Uses the scratch files of rank 0.
    pub(super) fn use_shared(&mut self, (files, targets, key): Shared) {
        if !self.is_scratch() {
            return;
        }
        self._made.clear();
        (self.files, self.targets, self.key, self.is_of_rank_0) = (files, targets, key, true);
    }

    /// Whether the files are scratch.
    pub(crate) const fn is_scratch(&self) -> bool {
        self.key.is_some()
    }

    /// The bytes of the user's file; 0 of scratch.
    pub(super) const fn own_len(&self) -> u64 {
        if self.is_scratch() { 0 } else { self.len }
    }

    /// The bytes of each file: of scratch as many as `args` or its points need, of the user's file
    /// no more than that.
    ///
    /// # Errors
    /// No file system has as much space.
    pub(super) fn fit(&mut self, args: &BenchArgs, of: &[&Planned]) -> Result<()> {
        if !self.is_scratch() {
            self.len = args.size.map_or(self.len, |size| size.min(self.len));
            return Ok(());
        }
        let files = self.files.len().max(self.targets.len()).max(1) as u64;
        let needs = |planned: &&Planned| planned.needs().div_ceil(planned.point.files.into());
        let stripes = args.stripe.map_or(1, |(_, of)| u64::from(of));
        let needed = of.iter().map(needs).max().unwrap_or(0).saturating_mul(stripes);
        let is_whole = of.iter().any(|planned| planned.whole.is_some());
        let size = match args.kv.is_empty() {
            true => args.size.unwrap_or(SIZE),
            // The file is for the limits; the store's blocks are elsewhere.
            false => args.size.unwrap_or(SIZE).min(SIZE),
        };
        let each = if is_whole { 0 } else { size / files };
        let len = each.max(needed).max(1);
        let len = if is_whole { Some(len) } else { len.checked_next_multiple_of(ALIGN) };
        let len = len.filter(|len| len.checked_mul(2 * files).is_some());
        self.len = len.ok_or_else(|| Failure::usage("no file system has so much space"))?;
        Ok(())
    }

    /// Makes the scratch that is read, or that loads only write to, if there is none yet, or if
    /// its contents have changed: reads are compared with them.
    ///
    /// # Errors
    /// System errors, above all for lack of space.
    pub(super) fn make(&self, direction: Direction) -> Result<()> {
        if !self.is_scratch() || self.is_of_rank_0 {
            return Ok(());
        }
        let (files, first) = match direction {
            Direction::Read => (&self.files, 0),
            Direction::Write => (&self.targets, self.files.len()),
        };
        // What was made before, to find out how fast the storage is, has the same contents.
        let has = |file: &PathBuf| {
            let _step = Step::begin("inspect", file);
            fs::metadata(file).map_or(0, |facts| facts.len())
        };
        let is_changed = direction == Direction::Read && self.is_changed.get();
        for (index, file) in files.iter().enumerate() {
            if is_changed || has(file) != self.len {
                make::fill(file, self.content(first + index), self.len)?;
            }
        }
        self.is_changed.set(self.is_changed.get() && !is_changed);
        Ok(())
    }

    /// Checks that there is room for all scratch; returns its bytes.
    ///
    /// # Errors
    /// There is less.
    pub(super) fn check_room(&self) -> Result<u64> {
        if !self.is_scratch() || self.is_of_rank_0 {
            return Ok(0);
        }
        let len = self.len.saturating_mul((self.files.len() + self.targets.len()) as u64);
        Room::of(&self.folder)?.check(&self.folder, len).map(|()| len)
    }

    /// Fills the first file with `len` bytes, before the length of all is known.
    ///
    /// # Errors
    /// System errors.
    pub(crate) fn fill_first(&mut self, len: u64) -> Result<()> {
        let file = self.files.first().or(self.targets.first());
        make::fill(file.expect("there is one"), self.content(0), len)?;
        self.len = len;
        Ok(())
    }

    /// Prepares `files`, of this or other paths, to be written.
    ///
    /// # Errors
    /// System errors, above all for lack of space.
    pub(super) fn prepare_writes(&self, files: &[&Path]) -> Result<()> {
        self.make(Direction::Write)?;
        if self.files.iter().any(|file| files.contains(&file.as_path())) {
            self.is_changed.set(true);
        }
        Ok(())
    }

    /// The file that a limit of this direction is measured with.
    pub(super) fn file_of(&self, direction: Direction) -> Option<&Path> {
        let target = self.targets.first().filter(|_| direction == Direction::Write);
        target.or(self.files.first()).map(PathBuf::as_path)
    }

    /// The intended contents of a scratch file.
    fn content(&self, index: usize) -> Pattern {
        Pattern::new(self.key.unwrap_or(0).wrapping_add(index as u64))
    }

    /// The parts of the files for the threads of a point, grouped by `devices`; of ranks with
    /// stripes, for those of this rank.
    pub(super) fn lanes(
        &self,
        planned: &Planned,
        stripe: Option<(u32, u32)>,
        devices: &[Option<Arc<dyn Device>>],
    ) -> Vec<Lane> {
        let point = &planned.point;
        let only_writes = point.read_percent == 0 && !self.targets.is_empty();
        let all_files = if only_writes { &self.targets } else { &self.files };
        let files = usize::try_from(point.files).expect("a small number").min(all_files.len());
        let threads = usize::try_from(point.threads).expect("a small number");
        let own = threads * devices.len();
        let count = |number: u32| usize::try_from(number).expect("a small number");
        let (rank, of) = stripe.map_or((0, 1), |(rank, of)| (count(rank), count(of)));
        let all = own * of;
        let lane = |own_index: usize| {
            let index = rank * own + own_index;
            let file = index % files;
            // Threads that share a file use neighbouring parts of it.
            let sharers = ((all - file).div_ceil(files)) as u64;
            let unit = ALIGN.min(point.request_size);
            let part = match (planned.whole, sharers) {
                (Some(whole), _) => whole.min(self.len / sharers),
                (None, 1) => self.len,
                (None, _) => self.len / sharers / unit * unit,
            };
            let start = (index / files) as u64 * part;
            let target = own_index % devices.len();
            Lane {
                target,
                device: devices[target].clone(),
                path: all_files[file].clone(),
                region: Region { start, len: part },
                content: (self.is_scratch() && !only_writes).then(|| self.content(file)),
            }
        };
        (0..own).map(lane).collect()
    }
}

/// The scratch files that are read and written, and their key.
pub(super) type Shared = (Vec<PathBuf>, Vec<PathBuf>, Option<u64>);

/// A path without links.
fn real(path: &Path) -> Result<PathBuf> {
    fs::canonicalize(path).map_err(|error| Failure::at("inspect", path, &error))
}

/// Opens the file or device at `path`, which will be written, and claims a device; returns it with
/// a path through its descriptor. Without the user's permission, for a file and a device each, only
/// what `is_ours` may be written.
///
/// # Errors
/// The user did not allow that; it is neither a file nor a device; system errors. The hint says
/// what to give `instead`.
pub(crate) fn may_write(
    path: &Path,
    (overwrite, overwrite_device): (bool, bool),
    instead: &str,
    is_ours: fn(&File) -> bool,
) -> Result<(Arc<File>, PathBuf)> {
    let _step = Step::begin("open", path);
    let failed = |error| Failure::at("open", path, &error);
    let kind = |facts: &Metadata| (facts.is_file(), facts.file_type().is_block_device());
    let found = kind(&fs::metadata(path).map_err(failed)?);
    let name = real(path)?;
    let refused = |why: &str| {
        let shown = if path.is_symlink() { &name } else { path };
        Failure::usage(format!("`{}` would be written", shown.display())).because(why)
    };
    let not_ours = |flag| {
        refused("this command did not make it")
            .hint(format!("`{flag}` allows it, and destroys its content; or give {instead}"))
    };
    let file = match found {
        (true, _) => held::open(&name).map_err(failed)?,
        (_, true) if !overwrite_device => return Err(not_ours("--overwrite-device")),
        // Never write to a device with a mounted file system.
        (_, true) => make::claim(&name)?,
        _ => {
            return Err(refused("it is neither a regular file nor a block device")
                .hint(format!("give {instead}")));
        }
    };
    // Between the two checks another file may have taken the name.
    if kind(&file.metadata().map_err(failed)?) != found {
        return Err(refused("another file has replaced it"));
    }
    if found.0 && !overwrite && !is_ours(&file) {
        return Err(not_ours("--overwrite"));
    }
    let at = held::path(&file).ok_or_else(|| {
        refused("another file might take its name meanwhile: there is no `/proc`")
            .hint("mount `/proc`")
    })?;
    Ok((Arc::new(file), at))
}
