//! The files of a job: existing ones, and those made for it.
//!
//! Reads need existing bytes, so missing files are made before and removed afterwards, also by a
//! signal. Writes make missing files and leave them, as gdsio does, with a `mark`. They touch no
//! file without a mark unless the user allows it. A file is opened once, and then used by its
//! descriptor.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use forebay::Engine;
use forebay::units::{align_down, format_size};
use rustix::fs::SeekFrom;

use super::mark;
use super::options::{Asked, GdsioArgs, Job, WRITTEN_TWICE, Where};
use crate::bench::data::Pattern;
use crate::bench::held;
use crate::bench::make::{self, Room};
use crate::bench::memory::close;
use crate::bench::scratch;
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::report::warnings::say;
use crate::steps::{self, Step};
use crate::workload::pattern::Region;

/// The user's permissions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rights {
    pub(super) files: bool,
    pub(super) devices: bool,
}

impl From<&GdsioArgs> for Rights {
    fn from(args: &GdsioArgs) -> Self {
        Self { files: args.overwrite, devices: args.overwrite_device }
    }
}

/// The files of a job, one for each of its parts.
#[derive(Debug)]
pub(super) struct Files {
    /// For each thread, the path to open, its part of the file, and the contents, if known.
    pub(super) parts: Vec<(PathBuf, Region, Option<Pattern>)>,
    /// Descriptors that the paths of the parts go through.
    held: Vec<File>,
    /// Files that are removed with this value.
    made: Vec<PathBuf>,
}

impl Drop for Files {
    fn drop(&mut self) {
        for path in &self.made {
            let _step = Step::begin_long("remove", path);
            interrupt::end_output(path, false);
        }
    }
}

/// The part of one file that a job needs.
struct Need {
    path: PathBuf,
    /// The start and end of its bytes.
    from: u64,
    to: u64,
    /// The file once it was opened or made. The checks and the transfers use this same descriptor.
    file: Option<File>,
    /// The pattern it was filled with here.
    content: Option<Pattern>,
}

impl Need {
    /// The path to open the file with from now on.
    fn at(&self) -> Result<PathBuf> {
        let path = self.file.as_ref().and_then(held::path);
        let path = path.map_or_else(|| fs::canonicalize(&self.path), Ok);
        path.map_err(|error| cannot("inspect", &self.path, &error))
    }
}

impl Files {
    /// Finds the files of `job`, and makes missing ones.
    ///
    /// # Errors
    /// System errors; a file that is too short to be read, or must not be written to.
    pub(super) fn prepare(
        engine: &Engine,
        asked: &Asked,
        job: &Job,
        rights: Rights,
    ) -> Result<Self> {
        let threads = if asked.transfer.is_batch() { 1 } else { u64::from(job.threads) };
        let part = |start| Region { start: start + asked.shift, len: asked.size - asked.shift };
        let mut files = Self { parts: Vec::new(), held: Vec::new(), made: Vec::new() };
        let mut needs = Vec::new();
        match &job.at {
            Where::Folder(folder) => {
                let folder = files.hold(folder)?;
                for number in 0..threads {
                    let path = folder.join(format!("gdsio.{number}"));
                    files.parts.push((path.clone(), part(job.start), None));
                    let (from, to) = (job.start, job.start + asked.size);
                    needs.push(Need { path, from, to, file: None, content: None });
                }
            }
            Where::File(path) => {
                let apart = if shares(asked, job, path, threads) { 0 } else { asked.size };
                let starts = (0..threads).map(|thread| job.start + thread * apart);
                let path = match path.file_name() {
                    Some(name) => files.hold(&folder_of(path))?.join(name),
                    None => path.clone(),
                };
                files.parts = starts.map(|start| (path.clone(), part(start), None)).collect();
                let to = job.start + (threads - 1) * apart + asked.size;
                needs.push(Need { path, from: job.start, to, file: None, content: None });
            }
        }
        // A mix of both reads existing bytes.
        if asked.read_percent > 0 {
            files.for_reads(engine, &mut needs, asked.writes())?;
        }
        if asked.writes() {
            files.for_writes(engine, &mut needs, rights)?;
        }
        for need in needs {
            let at = need.at()?;
            let content = need.content.filter(|_| !asked.writes());
            let own = files.parts.iter_mut().filter(|(part, ..)| *part == need.path);
            own.for_each(|(part, _, holds)| {
                (*part, *holds) = (at.clone(), content);
            });
            files.held.extend(need.file);
        }
        Ok(files)
    }

    /// Keeps the files that were made for writes.
    pub(super) fn keep(&mut self) {
        for path in std::mem::take(&mut self.made) {
            interrupt::end_output(&path, true);
        }
    }

    /// A path to `folder` that remains valid if another folder takes its name.
    fn hold(&mut self, folder: &Path) -> Result<PathBuf> {
        let _step = Step::begin("open", folder);
        let mut how = OpenOptions::new();
        how.read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY);
        let opened = how.open(folder).map_err(|error| cannot("open", folder, &error))?;
        let path = held::path(&opened).unwrap_or_else(|| folder.to_owned());
        self.held.push(opened);
        Ok(path)
    }

    /// Makes missing files, permanently if it `stays`, and completes our own.
    fn for_reads(&mut self, engine: &Engine, needs: &mut [Need], stays: bool) -> Result<()> {
        let mut missing = Vec::new();
        for need in needs {
            if let Some(make) = Missing::look(engine, need)? {
                missing.push((need, make));
            }
        }
        let Some((first, _)) = missing.first() else { return Ok(()) };
        let folder = folder_of(&first.path);
        let bytes = missing.iter().map(|(need, _)| need.to - need.from).sum();
        Room::of(&folder)?.check(&folder, bytes).map_err(smaller)?;
        let gone = missing.iter().filter(|(_, make)| *make == Missing::All).count();
        let gone = if stays { 0 } else { gone };
        super::tell(&laid_out(&held::name(&folder), missing.len(), bytes, gone));
        let key = scratch::random().map_err(|e| Failure::io("cannot get random bytes", &e))?;
        for (number, (need, make)) in missing.into_iter().enumerate() {
            if make == Missing::All {
                // A killed run leaves it, and the next run may use it.
                self.make(need, !stays)?;
            }
            let pattern = Pattern::new(key.wrapping_add(number as u64));
            lay(engine, need, pattern).map_err(smaller)?;
            need.content = Some(pattern);
        }
        Ok(())
    }

    /// Makes the file of `need`; a signal removes it until it may stay.
    fn make(&mut self, need: &mut Need, only_attribute: bool) -> Result<()> {
        let path = &need.path;
        let _step = Step::begin("make", path);
        let file = interrupt::create_output(path).map_err(|error| cannot("make", path, &error))?;
        self.made.push(path.clone());
        let marked = mark::set(&file, path, only_attribute);
        marked.map_err(|error| cannot("mark", path, &error))?;
        need.file = Some(file);
        Ok(())
    }

    /// Makes the missing files of writes, once all existing ones may be written to.
    fn for_writes(&mut self, engine: &Engine, needs: &mut [Need], rights: Rights) -> Result<()> {
        for need in needs.iter_mut() {
            may_be_written(engine, need, rights)?;
        }
        let missing = needs.iter_mut().filter(|need| need.file.is_none()).collect::<Vec<_>>();
        let Some(first) = missing.first() else { return Ok(()) };
        let bytes = missing.iter().map(|need| need.to - need.from).sum();
        let folder = folder_of(&first.path);
        Room::of(&folder)?.check(&folder, bytes).map_err(smaller)?;
        for need in missing {
            self.make(need, false)?;
            let file = need.file.as_ref().expect("just made");
            file.set_len(need.to).map_err(|error| cannot("make", &need.path, &error))?;
        }
        Ok(())
    }
}

fn smaller(failure: Failure) -> Failure {
    failure.room_hint("give a smaller `-s`, or a folder with more free space")
}

/// Writes the bytes of `need`, and no others: an existing file may be longer.
fn lay(engine: &Engine, need: &Need, pattern: Pattern) -> Result<()> {
    let path = need.at()?;
    make::put(&path, pattern, align_down(need.from, 8), need.to)?;
    let synced = File::open(&path).and_then(|file| file.sync_all());
    synced.map_err(|error| cannot("write to", &path, &error))?;
    // Freshly written bytes are in the page cache, and would be read from there.
    let _step = Step::begin("drop the pages of", &path);
    engine.open(&path)?.evict()?;
    Ok(())
}

/// The part of a file that must be made before it can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missing {
    /// All of it: the file does not exist.
    All,
    /// Bytes of our own file.
    Bytes,
}

impl Missing {
    fn look(engine: &Engine, need: &mut Need) -> Result<Option<Self>> {
        let Need { path, from, to, .. } = &*need;
        let step = Step::begin("inspect", path);
        if let Err(error) = fs::metadata(path) {
            return match error.kind() {
                ErrorKind::NotFound => Ok(Some(Self::All)),
                _ => Err(cannot("inspect", path, &error)),
            };
        }
        drop(step);
        let len = steps::open(engine, path)?.len()?;
        let opened = open(path).map_err(|error| cannot("open", path, &error))?;
        let is_file = opened.metadata().is_ok_and(|facts| facts.is_file());
        let is_ours = is_file && mark::is_ours(&opened, path);
        let has_hole = is_file && has_hole(&opened, *from, (*to).min(len));
        if is_ours && (len < *to || has_hole) {
            need.file = Some(opened);
            return Ok(Some(Self::Bytes));
        }
        let name = held::name(path);
        if len < *to {
            let (has, wanted) = (format_size(len), format_size(*to));
            return Err(Failure::new(format!("cannot read {wanted} of `{}`", name.display()))
                .because(format!("it has {has}, and was not made by `forebay gdsio`"))
                .hint("give a smaller `-s` or `-o`, or a new folder, in which files are made"));
        }
        if has_hole {
            say(&format!("`{}` has holes: reads of them do not reach the drive", name.display()));
        }
        need.file = Some(opened);
        Ok(None)
    }
}

/// Whether the threads of a job share the same bytes of its one file. Readers do if the file has no
/// more; writers never.
fn shares(asked: &Asked, job: &Job, path: &Path, threads: u64) -> bool {
    if asked.writes() || threads == 1 {
        return false;
    }
    let _step = Step::begin("inspect", path);
    let len = open(path).and_then(|mut file| {
        // This works for devices too.
        io::Seek::seek(&mut file, io::SeekFrom::End(0))
    });
    let (one, all) = (job.start + asked.size, job.start + asked.size * threads);
    let is_shared = len.is_ok_and(|len| (one..all).contains(&len));
    if is_shared {
        super::tell(&format!(
            "all threads read the same bytes of `{}`: it is too short for a part for each",
            path.display()
        ));
    }
    is_shared
}

/// Opens a file that may be written to; leaves `need` without one if it does not exist.
fn may_be_written(engine: &Engine, need: &mut Need, rights: Rights) -> Result<()> {
    let path = &need.path;
    let looking = Step::begin("inspect", path);
    let facts = match fs::metadata(path) {
        Ok(facts) => facts,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(cannot("inspect", path, &error)),
    };
    drop(looking);
    let is_device = facts.file_type().is_block_device();
    if is_device && !rights.devices {
        return Err(not_without_a_word(&held::name(path)));
    }
    // The engine's error names files that cannot be written to.
    drop(steps::open(engine, path)?);
    let step = Step::begin("open", path);
    // Links are resolved here and never later, by a read-only handle. The file that is checked is
    // the one that is written.
    let file = match need.file.take() {
        Some(file) => file,
        None => open(path).map_err(|error| cannot("open", path, &error))?,
    };
    let facts = file.metadata().map_err(|error| cannot("inspect", path, &error))?;
    if is_device && facts.file_type().is_block_device() {
        check_end(&file, need)?;
    } else if !facts.is_file() || (!rights.files && !mark::is_ours(&file, path)) {
        let path = held::path(&file).map_or_else(|| path.clone(), |path| held::name(&path));
        return Err(Failure::new(format!("cannot write to `{}`", path.display()))
            .because("`forebay gdsio` did not make it, and `--overwrite` was not given")
            .hint("give another folder, or `--overwrite`, which destroys its content"));
    }
    need.file = Some(file);
    drop(step);
    if facts.is_file() && facts.len() < need.to { grow(need, facts.len()) } else { Ok(()) }
}

fn grow(need: &Need, len: u64) -> Result<()> {
    let (path, folder) = (need.at()?, folder_of(&need.path));
    Room::of(&folder)?.check(&folder, need.to - len)?;
    let mut how = OpenOptions::new();
    let file = how.write(true).custom_flags(held::no_link(&path, true)).open(&path);
    let grown = file.and_then(|file| file.set_len(need.to).and_then(|()| close(file)));
    grown.map_err(|error| cannot("write to", &path, &error))
}

/// Refuses to write to a device without the user's permission, before it is opened.
///
/// # Errors
/// It is a device.
pub(super) fn check_device(asked: &Asked, job: &Job, rights: Rights) -> Result<()> {
    let Where::File(path) = &job.at else { return Ok(()) };
    if !asked.writes() || rights.devices {
        return Ok(());
    }
    let _step = Step::begin("inspect", path);
    if fs::metadata(path).is_ok_and(|facts| facts.file_type().is_block_device()) {
        return Err(not_without_a_word(path));
    }
    Ok(())
}

fn not_without_a_word(device: &Path) -> Failure {
    Failure::new(format!("cannot write to the device `{}`", device.display()))
        .because("its content would be lost, and `--overwrite-device` was not given")
        .hint("give a folder on it, or `--overwrite-device`, which destroys its content")
}

/// Refuses jobs of which two write to the same bytes, by any paths.
///
/// # Errors
/// They do, or system errors.
pub(super) fn check_apart(all: &[Files]) -> Result<()> {
    let mut seen: Vec<(usize, (u64, u64), &Path, Region)> = Vec::new();
    for (job, files) in all.iter().enumerate() {
        let mut last: Option<(&Path, (u64, u64))> = None;
        for (path, region, _) in &files.parts {
            let number = match last {
                Some((other, number)) if other == path => number,
                _ => number(path)?,
            };
            last = Some((path, number));
            let meets = |other: &Region| {
                region.start < other.start + other.len && other.start < region.start + region.len
            };
            let found = seen
                .iter()
                .find(|(other, found, _, at)| *other != job && *found == number && meets(at));
            if let Some((_, _, other, _)) = found {
                let (one, two) = (other.display(), path.display());
                return Err(Failure::usage("two jobs write to the same bytes")
                    .because(format!("`{one}` and `{two}` are the same file"))
                    .hint(WRITTEN_TWICE));
            }
            seen.push((job, number, path, *region));
        }
    }
    Ok(())
}

/// The identity of a file, whatever its path: for a device, its device number.
fn number(path: &Path) -> Result<(u64, u64)> {
    let _step = Step::begin("inspect", path);
    let facts = fs::metadata(path).map_err(|error| cannot("inspect", path, &error))?;
    let is_device = facts.file_type().is_block_device();
    Ok(if is_device { (u64::MAX, facts.rdev()) } else { (facts.dev(), facts.ino()) })
}

/// Checks that a device has the needed bytes.
fn check_end(device: &File, need: &Need) -> Result<()> {
    let end = io::Seek::seek(&mut &*device, io::SeekFrom::End(0));
    let len = end.map_err(|error| cannot("inspect", &need.path, &error))?;
    if len >= need.to {
        return Ok(());
    }
    let (has, wanted) = (format_size(len), format_size(need.to));
    Err(Failure::new(format!("cannot write {wanted} to `{}`", need.path.display()))
        .because(format!("it has {has}"))
        .hint("give a smaller `-s` or `-o`, or fewer threads"))
}

/// Opens a file for inspection, without blocking on pipes.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// Whether bytes are missing from `from` to `to`; false if the file system does not report it.
fn has_hole(file: &File, from: u64, to: u64) -> bool {
    from < to && rustix::fs::seek(file, SeekFrom::Hole(from)).is_ok_and(|hole| hole < to)
}

/// The folder that a file is in.
pub(super) fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

fn cannot(verb: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::io(format!("cannot {verb} `{}`", path.display()), error)
}

/// The note on files that are made to be read.
fn laid_out(folder: &Path, files: usize, bytes: u64, gone: usize) -> String {
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
    fn what_is_made_is_said() {
        let text = |files, gone| laid_out(Path::new("/a"), files, 1 << 30, gone);
        assert!(text(1, 1).starts_with("making a file of 1 GiB in `/a`"), "{}", text(1, 1));
        assert!(text(1, 1).ends_with("; removed afterwards"), "{}", text(1, 1));
        assert!(text(3, 0).contains("; kept"), "{}", text(3, 0));
        assert!(text(3, 1).contains("except files"), "{}", text(3, 1));
    }
}
