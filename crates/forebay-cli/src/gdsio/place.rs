//! The files of a job: existing ones, and those made for it.
//!
//! Reads need existing bytes, so missing files are made before and removed afterwards, also by a
//! signal. Writes make missing files and leave them, as gdsio does, with a mark: an extended
//! attribute, which moves with the file and is not copied by accident. They touch no file without a
//! mark unless the user allows it: gdsio itself writes to any `gdsio.N`, yet such a file may be
//! valuable. A file is opened once, and then used by its descriptor.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay::Engine;
use forebay::gpu::Device;
use forebay::units::{align_down, format_size};
use forebay_measure::data::Pattern;
use forebay_measure::failure::{Failure, Result};
use forebay_measure::held;
use forebay_measure::make::{self, Room};
use forebay_measure::memory::close;
use forebay_measure::output::{New, folder_of};
use forebay_measure::scratch;
use forebay_measure::stdio::{message, say};
use forebay_measure::steps::{self, Step};
use forebay_measure::workload::Lane;
use forebay_measure::workload::pattern::Region;
use rustix::fs::{XattrFlags, fgetxattr, fsetxattr, seek};

use crate::bench::files::may_write;
use crate::map::rows;

use super::options::{GdsioArgs, Job, Request, WRITTEN_TWICE, Where};

/// The mark of files that were made here.
const MARK: (&str, &[u8]) = ("user.forebay", b"gdsio");

/// The files of a job.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// The parts of files, by thread.
    pub(super) lanes: Vec<Lane>,
    /// Descriptors to which the paths of the lanes refer.
    held: Vec<Arc<File>>,
    /// Files that are removed with this value.
    made: Vec<New>,
}

/// A file that a job needs.
struct Need {
    path: PathBuf,
    /// The start and end of its bytes.
    from: u64,
    to: u64,
    /// The starts of the threads' parts.
    starts: Vec<u64>,
    /// The file once it was opened or made. The checks and the transfers use this same descriptor.
    file: Option<Arc<File>>,
    /// The pattern it was filled with here.
    content: Option<Pattern>,
}

impl Need {
    fn new(path: PathBuf, starts: Vec<u64>, size: u64) -> Self {
        let (from, last) = (starts[0], starts[starts.len() - 1]);
        Self { path, from, to: last + size, starts, file: None, content: None }
    }

    /// The path to open the file with from now on.
    fn at(&self) -> PathBuf {
        self.file.as_ref().and_then(held::path).unwrap_or_else(|| self.path.clone())
    }
}

impl Files {
    /// Finds the files of `job`, and makes missing ones.
    ///
    /// # Errors
    /// System errors; a file that is too short to be read, or must not be written to.
    pub(super) fn prepare(
        engine: &Engine,
        request: &Request,
        job: &Job,
        args: &GdsioArgs,
        device: Option<&Arc<dyn Device>>,
    ) -> Result<Self> {
        let threads = if request.transfer.is_batch() { 1 } else { u64::from(job.threads) };
        let mut files = Self::default();
        let mut needs = match &job.at {
            Where::Folder(folder) => {
                let path = |number| folder.join(format!("gdsio.{number}"));
                let need = |number| Need::new(path(number), vec![job.start], request.size);
                (0..threads).map(need).collect::<Vec<_>>()
            }
            Where::File(path) => {
                let apart = if shares(request, job, path, threads) { 0 } else { request.size };
                let starts = (0..threads).map(|thread| job.start + thread * apart).collect();
                vec![Need::new(path.clone(), starts, request.size)]
            }
        };
        // A mix of both reads existing bytes.
        if request.read_percent > 0 {
            files.for_reads(engine, &mut needs, request.writes())?;
        }
        if request.writes() {
            files.for_writes(engine, &mut needs, args)?;
        }
        for need in needs {
            let at = need.at();
            let content = need.content.filter(|_| !request.writes());
            let len = request.size - request.shift;
            files.lanes.extend(need.starts.iter().map(|start| Lane {
                target: 0,
                device: device.cloned(),
                path: at.clone(),
                region: Region { start: start + request.shift, len },
                content,
            }));
            files.held.extend(need.file);
        }
        Ok(files)
    }

    /// Keeps the files that were made for writes.
    pub(super) fn keep(&mut self) {
        self.made.drain(..).for_each(New::keep);
    }

    /// Makes missing files, permanently if they stay, and completes our own.
    fn for_reads(&mut self, engine: &Engine, needs: &mut [Need], stay: bool) -> Result<()> {
        let mut missing = Vec::new();
        for need in needs {
            if is_incomplete(engine, need)? {
                missing.push(need);
            }
        }
        let gone = missing.iter().filter(|need| need.file.is_none()).count();
        let Some(folder) = check_room(missing.iter().map(|need| &**need))? else { return Ok(()) };
        let bytes = missing.iter().map(|need| need.to - need.from).sum();
        let gone = if stay { 0 } else { gone };
        message(&making(&folder, missing.len(), bytes, gone));
        let key = scratch::random();
        for (number, need) in missing.into_iter().enumerate() {
            if need.file.is_none() {
                self.make(need)?;
            }
            let pattern = Pattern::new(key.wrapping_add(number as u64));
            fill(engine, need, pattern).map_err(smaller)?;
            need.content = Some(pattern);
        }
        Ok(())
    }

    /// Makes the missing files of writes, once all existing ones may be written to.
    fn for_writes(&mut self, engine: &Engine, needs: &mut [Need], args: &GdsioArgs) -> Result<()> {
        for need in needs.iter_mut() {
            may_be_written(engine, need, args)?;
        }
        check_room(needs.iter().filter(|need| need.file.is_none()))?;
        for need in needs.iter_mut().filter(|need| need.file.is_none()) {
            self.make(need)?;
            let file = need.file.as_ref().expect("just made");
            file.set_len(need.to).map_err(|error| Failure::at("make", &need.path, &error))?;
        }
        Ok(())
    }

    /// Makes the file of `need`; a signal removes it until it may stay.
    fn make(&mut self, need: &mut Need) -> Result<()> {
        let path = &need.path;
        let _step = Step::begin("make", path);
        let made = New::create(path, 0o666).map_err(|error| Failure::at("make", path, &error))?;
        // Without attributes, the next write needs the user's permission.
        let _ = fsetxattr(&made.file, MARK.0, MARK.1, XattrFlags::empty());
        need.file = Some(Arc::clone(&made.file));
        self.made.push(made);
        Ok(())
    }
}

/// Checks the free space for the bytes of `missing`; returns the folder of the first file.
fn check_room<'a>(missing: impl Iterator<Item = &'a Need> + Clone) -> Result<Option<PathBuf>> {
    let Some(first) = missing.clone().next() else { return Ok(None) };
    let folder = folder_of(&first.path).to_owned();
    let bytes = missing.map(|need| need.to - need.from).sum();
    Room::of(&folder)?.check(&folder, bytes).map_err(smaller)?;
    Ok(Some(folder))
}

fn smaller(failure: Failure) -> Failure {
    failure.room_hint("give a smaller `-s`, or a folder with more free space")
}

/// Writes only the bytes of `need`: an existing file may be longer.
fn fill(engine: &Engine, need: &Need, pattern: Pattern) -> Result<()> {
    let path = need.at();
    make::put(&path, pattern, align_down(need.from, 8), need.to)?;
    // Freshly written bytes are in the page cache, and would be read from there.
    let _step = Step::begin("drop the pages of", &path);
    engine.open(&path)?.evict()?;
    Ok(())
}

/// Whether a file must be made before it can be read, or our own file completed; opens the file if
/// it exists.
fn is_incomplete(engine: &Engine, need: &mut Need) -> Result<bool> {
    let Need { path, from, to, .. } = &*need;
    if !exists(path)? {
        return Ok(true);
    }
    let len = steps::open(engine, path)?.len()?;
    let opened = open(path).map_err(|error| Failure::at("open", path, &error))?;
    let is_file = opened.metadata().is_ok_and(|facts| facts.is_file());
    let is_ours = is_file && is_ours(&opened);
    let has_hole = is_ours && has_hole(&opened, *from, (*to).min(len));
    if len < *to && !is_ours {
        let (has, wanted) = (format_size(len), format_size(*to));
        return Err(Failure::new(format!("cannot read {wanted} of `{}`", path.display()))
            .because(format!("it has {has}, and was not made by `forebay gdsio`"))
            .hint("give a smaller `-s` or `-o`, or a new folder, in which files are made"));
    }
    if is_file && !is_ours {
        rows::of_file(path, *from..*to).iter().for_each(|text| say(text));
    }
    let is_incomplete = is_ours && (len < *to || has_hole);
    need.file = Some(opened.into());
    Ok(is_incomplete)
}

/// Whether the threads of a job share the same bytes of its single file. Readers do if the file is
/// too short; writers never.
fn shares(request: &Request, job: &Job, path: &Path, threads: u64) -> bool {
    if request.writes() || threads == 1 {
        return false;
    }
    let _step = Step::begin("inspect", path);
    let len = open(path).and_then(|mut file| {
        // This works for devices too.
        file.seek(SeekFrom::End(0))
    });
    let (one, all) = (job.start + request.size, job.start + request.size * threads);
    let is_shared = len.is_ok_and(|len| (one..all).contains(&len));
    if is_shared {
        message(&format!(
            "all threads read the same bytes of `{}`: it is too short for a part for each",
            path.display()
        ));
    }
    is_shared
}

/// Refuses a job on a device that may not be written to.
///
/// # Errors
/// It may not.
pub(super) fn check_device(job: &Job, args: &GdsioArgs) -> Result<()> {
    match &job.at {
        Where::File(path) if is_device(path) => opened(path, args).map(drop),
        _ => Ok(()),
    }
}

fn is_device(path: &Path) -> bool {
    let _step = Step::begin("inspect", path);
    fs::metadata(path).is_ok_and(|facts| facts.file_type().is_block_device())
}

/// Opens what may be written to; returns it with the path that leads to it.
fn opened(path: &Path, args: &GdsioArgs) -> Result<(Arc<File>, PathBuf)> {
    let allowed = (args.overwrite, args.overwrite_device);
    let opened = may_write(path, allowed, "another folder", is_ours);
    opened.map_err(|failure| Failure { usage: false, ..failure })
}

/// Opens a file that may be written to, if it exists.
fn may_be_written(engine: &Engine, need: &mut Need, args: &GdsioArgs) -> Result<()> {
    let path = &need.path;
    if !exists(path)? {
        return Ok(());
    }
    let is_device = is_device(path);
    if !is_device {
        // The engine's error names files that cannot be written to.
        drop(steps::open(engine, path)?);
    }
    let (mut file, at) = opened(path, args)?;
    let inspect = |error: io::Error| Failure::at("inspect", path, &error);
    let _step = Step::begin("inspect", path);
    let len = (&*file).seek(SeekFrom::End(0)).map_err(inspect)?;
    if is_device {
        if len < need.to {
            let (has, wanted) = (format_size(len), format_size(need.to));
            return Err(Failure::new(format!("cannot write {wanted} to `{}`", path.display()))
                .because(format!("it has {has}"))
                .hint("give a smaller `-s` or `-o`, or fewer threads"));
        }
        // The claim ends: a second job may write to a different part of it.
        file = open(&at).map_err(inspect)?.into();
    }
    need.file = Some(file);
    if len < need.to { grow(need, len) } else { Ok(()) }
}

/// Whether there is something at `path`.
fn exists(path: &Path) -> Result<bool> {
    let _step = Step::begin("inspect", path);
    path.try_exists().map_err(|error| Failure::at("inspect", path, &error))
}

/// Whether a file was made here.
fn is_ours(file: &File) -> bool {
    let mut value = [0; 16];
    fgetxattr(file, MARK.0, &mut value).is_ok_and(|len| value.get(..len) == Some(MARK.1))
}

fn grow(need: &Need, len: u64) -> Result<()> {
    let (path, folder) = (need.at(), folder_of(&need.path));
    Room::of(folder)?.check(folder, need.to - len)?;
    let mut how = OpenOptions::new();
    let file = how.write(true).custom_flags(held::no_link(&path, true)).open(&path);
    let grown = file.and_then(|file| file.set_len(need.to).and_then(|()| close(file)));
    grown.map_err(|error| Failure::at("write to", &path, &error))
}

/// Refuses jobs of which two write to the same bytes, by any paths.
///
/// # Errors
/// They do, or system errors.
pub(super) fn check_apart(all: &[Files]) -> Result<()> {
    let mut parts = Vec::new();
    for (job, files) in all.iter().enumerate() {
        for Lane { path, region, .. } in &files.lanes {
            parts.push((number(path)?, region.start, region.start + region.len, job, path));
        }
    }
    // Parts of the same job never overlap, so two that do are neighbours.
    parts.sort_unstable();
    for pair in parts.windows(2) {
        let ((one, _, end, job, path), (other, start, _, other_job, other_path)) =
            (pair[0], pair[1]);
        if one == other && job != other_job && start < end {
            let (path, other_path) = (path.display(), other_path.display());
            return Err(Failure::usage("two jobs write to the same bytes")
                .because(format!("`{path}` and `{other_path}` are the same file"))
                .hint(WRITTEN_TWICE));
        }
    }
    Ok(())
}

/// The identity of a file, whatever its path: for a device, its device number.
fn number(path: &Path) -> Result<(u64, u64)> {
    let _step = Step::begin("inspect", path);
    let facts = fs::metadata(path).map_err(|error| Failure::at("inspect", path, &error))?;
    let is_device = facts.file_type().is_block_device();
    Ok(if is_device { (u64::MAX, facts.rdev()) } else { (facts.dev(), facts.ino()) })
}

/// Opens a file for inspection, without blocking on pipes.
pub(super) fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// Whether bytes are missing from `from` to `to`; false if the file system does not report it.
fn has_hole(file: &File, from: u64, to: u64) -> bool {
    from < to && seek(file, rustix::fs::SeekFrom::Hole(from)).is_ok_and(|hole| hole < to)
}

/// The note on files that are made to be read.
fn making(folder: &Path, files: usize, bytes: u64, gone: usize) -> String {
    let (bytes, folder) = (format_size(bytes), folder.display());
    let what = if files == 1 { "a file" } else { "files" };
    let after = match gone {
        0 => "kept, like files of a write",
        _ if gone == files => "removed afterwards",
        _ => "removed afterwards, except files that existed before",
    };
    format!(
        "making {what} of {bytes} in `{folder}` for the reads, not counted in the time; {after}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_seen() {
        let folder = tempfile::tempdir_in(".").unwrap();
        let path = folder.path().join("file");
        fs::write(&path, vec![1; 1 << 20]).unwrap();
        let file = open(&path).unwrap();
        assert!(!has_hole(&file, 0, 1 << 20));
        OpenOptions::new().write(true).open(&path).unwrap().set_len(2 << 20).unwrap();
        assert!(!has_hole(&file, 0, 1 << 20), "it begins later");
        assert!(has_hole(&file, 0, 2 << 20));
        assert!(!has_hole(&file, 2 << 20, 2 << 20));
    }

    #[test]
    fn a_marked_file_is_ours_after_a_move() {
        let folder = tempfile::tempdir_in(".").unwrap();
        let (path, moved) = (folder.path().join("gdsio.0"), folder.path().join("moved"));
        let file = File::create(&path).unwrap();
        assert!(!is_ours(&file));
        if let Err(error) = fsetxattr(&file, MARK.0, MARK.1, XattrFlags::empty()) {
            return println!("skipped: a mark: no attributes in this folder: {error}");
        }
        fs::rename(&path, &moved).unwrap();
        assert!(is_ours(&File::open(&moved).unwrap()));
        fs::write(&path, "precious").unwrap();
        assert!(!is_ours(&File::open(&path).unwrap()));
        fsetxattr(File::open(&moved).unwrap(), MARK.0, b"other", XattrFlags::empty()).unwrap();
        assert!(!is_ours(&file));
    }

    #[test]
    fn the_note_names_the_files_that_are_made() {
        let text = |files, gone| making(Path::new("/a"), files, 1 << 30, gone);
        assert!(text(1, 1).starts_with("making a file of 1 GiB in `/a`"), "{}", text(1, 1));
        assert!(text(1, 1).ends_with("; removed afterwards"), "{}", text(1, 1));
        assert!(text(3, 0).contains("; kept"), "{}", text(3, 0));
        assert!(text(3, 1).contains("except files"), "{}", text(3, 1));
    }
}
