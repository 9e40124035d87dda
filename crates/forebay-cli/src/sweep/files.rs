//! The files of a path of a sweep: the user's own, or scratch.

use std::collections::BTreeSet;
use std::fs::{self, File, Metadata};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use forebay::Engine;
use forebay::gpu::Device;
use forebay::units::{GIB, align_down, format_size};

use super::plan::Planned;
use crate::args::SweepArgs;
use crate::bench::data::Pattern;
use crate::bench::held;
use crate::bench::make::{self, Room};
use crate::bench::scratch::{Scratch, random, remove_leftovers};
use crate::bench::subject::{check_size, is_folder};
use crate::failure::{Failure, Result};
use crate::steps::Step;
use crate::workload::Lane;
use crate::workload::pattern::Region;

/// Default size of a path's files together.
const SIZE: u64 = GIB;
/// Parts of files begin at multiples of this, whatever the drive's block size.
const ALIGN: u64 = 4096;

/// One path.
#[derive(Debug)]
pub(super) struct Place {
    /// The files, and the bytes of each.
    pub(super) files: Vec<PathBuf>,
    pub(super) len: u64,
    /// The folder of scratch, or of a file.
    pub(super) folder: PathBuf,
    /// Scratch of crashed runs that was removed.
    pub(super) leftovers: usize,
    scratch: Option<Scratch>,
    /// The key of the first scratch file; each further file adds one.
    key: u64,
    /// Parts of scratch that were written to since it was made: the file's index, start and end.
    written: Mutex<BTreeSet<(usize, u64, u64)>>,
    /// The user's file and its name, if it is written to.
    held: Option<(File, PathBuf)>,
}

impl Place {
    /// Inspects `path`. Files that [`make`](Self::make) makes are removed with this value.
    ///
    /// # Errors
    /// The file is missing or empty, or would be written without the user's permission.
    pub(super) fn find(
        engine: &Engine,
        path: &Path,
        args: &SweepArgs,
        of: &[&Planned],
    ) -> Result<Self> {
        let writes = of.iter().any(|planned| planned.load.writes());
        let most_files = of.iter().map(|planned| planned.point.files).max().unwrap_or(1);
        if is_folder(path) {
            let leftovers = remove_leftovers(path);
            let scratch = Scratch::create(path)?;
            let files = (0..most_files).map(|number| scratch.add(number));
            let files = files.collect::<Result<Vec<_>>>()?;
            let needs = |planned: &&Planned| planned.needs().div_ceil(planned.point.files.into());
            let needed = of.iter().map(needs).max().unwrap_or(0);
            let each = args.size.unwrap_or(SIZE) / u64::from(most_files);
            let len = each.max(needed).max(1).checked_next_multiple_of(ALIGN);
            let len = len.filter(|len| len.checked_mul(most_files.into()).is_some());
            let len = len.ok_or_else(|| Failure::usage("no file system has so much space"))?;
            let folder = path.to_owned();
            let key = random().map_err(|error| Failure::io("cannot get random bytes", &error))?;
            let (scratch, written) = (Some(scratch), Mutex::default());
            return Ok(Self { files, len, folder, leftovers, scratch, key, written, held: None });
        }
        let text = path.display();
        if most_files > 1 {
            return Err(Failure::usage(format!("`{text}` is one file, not {most_files}"))
                .hint("give a folder, where scratch files are made, or omit `--files`"));
        }
        let held = if writes { Some(may_write(path, args)?) } else { None };
        let opening = Step::begin("open", path);
        let len = engine.open(path)?.len()?;
        check_size(path, len)?;
        drop(opening);
        let len = args.size.map_or(len, |size| size.min(len));
        if len == 0 {
            return Err(Failure::new(format!("nothing to measure: `{text}` is empty"))
                .hint("give a folder instead, and scratch files are made there"));
        }
        let folder = match path.parent() {
            Some(parent) if parent != Path::new("") => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let file = held.as_ref().and_then(|(file, _)| held::path(file));
        let file = file.map_or_else(|| real(path), Ok)?;
        let (files, written) = (vec![file], Mutex::default());
        Ok(Self { files, len, folder, leftovers: 0, scratch: None, key: 0, written, held })
    }

    /// Bytes of scratch to make.
    pub(super) fn scratch_len(&self) -> u64 {
        self.scratch.as_ref().map_or(0, |_| self.len * self.files.len() as u64)
    }

    /// Makes scratch, if needed; `tell` gets the size of each file that was made.
    ///
    /// # Errors
    /// System errors, above all for lack of space.
    pub(super) fn make(&self, tell: &mut dyn FnMut(u64)) -> Result<()> {
        let Some(scratch) = &self.scratch else { return Ok(()) };
        scratch.check()?;
        Room::of(&self.folder)?.check(&self.folder, self.scratch_len())?;
        for (index, file) in self.files.iter().enumerate() {
            make::fill(file, self.content(index), self.len)?;
            tell(self.len);
        }
        Ok(())
    }

    /// The intended contents of a scratch file.
    fn content(&self, index: usize) -> Pattern {
        Pattern::new(self.key.wrapping_add(index as u64))
    }

    /// Records that the parts of `lanes` will be written.
    pub(super) fn writes<'a>(&self, lanes: impl IntoIterator<Item = (&'a Path, Region)>) {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        for (path, region) in lanes {
            let index = self.files.iter().position(|file| file == path);
            written.extend(index.map(|index| (index, region.start, region.start + region.len)));
        }
    }

    /// Restores the initial contents of scratch, so that reads can be compared with them.
    ///
    /// # Errors
    /// System errors.
    pub(super) fn restore(&self) -> Result<()> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        while self.scratch.is_some()
            && let Some((index, start, end)) = written.first().copied()
        {
            let file = &self.files[index];
            make::put(file, self.content(index), align_down(start, 8), end)?;
            let synced = File::open(file).and_then(|file| file.sync_all());
            synced.map_err(|error| {
                Failure::io(format!("cannot write to `{}`", file.display()), &error)
            })?;
            written.pop_first();
        }
        Ok(())
    }

    /// Checks that written files still have their names.
    ///
    /// # Errors
    /// A name leads to another file.
    pub(super) fn check(&self) -> Result<()> {
        if let Some((file, name)) = &self.held {
            held::check(file, name).map_err(|error| {
                Failure::io(format!("cannot continue with `{}`", name.display()), &error)
                    .hint("give a folder that only you may write to")
            })?;
        }
        self.scratch.as_ref().map_or(Ok(()), Scratch::check)
    }

    /// The parts of the files for the threads of a point, grouped by `devices`.
    ///
    /// # Errors
    /// They are too small.
    pub(super) fn lanes(
        &self,
        planned: &Planned,
        devices: &[Option<Arc<dyn Device>>],
    ) -> Result<Vec<Lane>> {
        let point = &planned.point;
        let files = usize::try_from(point.files).expect("a small number").min(self.files.len());
        let threads = usize::try_from(point.threads).expect("a small number");
        let all = threads * devices.len();
        let lane = |index: usize| {
            let file = index % files;
            // Threads that share a file use neighbouring parts of it.
            let sharers = ((all - file).div_ceil(files)) as u64;
            let unit = ALIGN.min(point.request_size);
            let part = self.len / sharers / unit * unit;
            let part = if sharers == 1 { self.len } else { part };
            let start = (index / files) as u64 * part;
            let target = index % devices.len();
            Lane {
                target,
                device: devices[target].clone(),
                path: self.files[file].clone(),
                region: Region { start, len: part },
                content: self.scratch.as_ref().map(|_| self.content(file)),
            }
        };
        let lanes: Vec<Lane> = (0..all).map(lane).collect();
        match lanes.iter().find(|lane| lane.region.len < point.request_size) {
            None => Ok(lanes),
            Some(lane) => {
                let (wanted, have) =
                    (format_size(point.request_size), format_size(lane.region.len));
                let path = lane.path.display();
                Err(Failure::new(format!("cannot make requests of {wanted} in `{path}`"))
                    .because(format!("each of {all} threads has {have} of it"))
                    .hint("give a larger `--size`, fewer `--threads`, or smaller blocks"))
            }
        }
    }
}

/// A path without links.
fn real(path: &Path) -> Result<PathBuf> {
    fs::canonicalize(path)
        .map_err(|error| Failure::io(format!("cannot inspect `{}`", path.display()), &error))
}

/// Opens the file at `path` for writing, if the user allowed that; returns it with its real name.
fn may_write(path: &Path, args: &SweepArgs) -> Result<(File, PathBuf)> {
    let text = path.display();
    let _step = Step::begin("open", path);
    let is_device = |facts: &Metadata| facts.file_type().is_block_device();
    let found = fs::metadata(path).is_ok_and(|facts| is_device(&facts));
    let (allowed, flag) = if found {
        (args.overwrite_device, "`--overwrite-device` allows it, and destroys its content")
    } else {
        (args.overwrite, "`--overwrite` allows it; or give a folder for a scratch file")
    };
    let refused = || Failure::usage(format!("`{text}` would be written"));
    if !allowed {
        return Err(refused().because("this sweep did not make it").hint(flag));
    }
    let name = real(path)?;
    if found {
        // Never write to a device with a mounted file system.
        drop(make::claim(&name)?);
    }
    let failed = |error| Failure::io(format!("cannot open `{text}`"), &error);
    let file = held::open(&name).map_err(failed)?;
    // Between the two checks another file may have taken the name.
    if is_device(&file.metadata().map_err(failed)?) != found {
        return Err(refused().because("another file has replaced it"));
    }
    Ok((file, name))
}
