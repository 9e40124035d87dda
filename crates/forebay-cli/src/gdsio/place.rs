//! The files of a job: those that are there, and those that are made for it.
//!
//! Reads need bytes to read, so what is missing is made before, and removed after: by a signal as
//! well. Writes make what is missing and leave it, as gdsio does, with a `mark`, and touch nothing
//! that has none unless the user said so.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use forebay::Engine;
use forebay::units::{align_down, format_size};
use rustix::fs::SeekFrom;

use super::mark;
use super::options::{Asked, GdsioArgs, Job, WRITTEN_TWICE, Where};
use crate::bench::data::Pattern;
use crate::bench::make::{self, Room};
use crate::bench::scratch;
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::report::warnings::say;
use crate::steps::{self, Step};
use crate::workload::pattern::Region;

/// What the user allows.
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
    /// Each thread's file, and its part of it.
    pub(super) parts: Vec<(PathBuf, Region)>,
    /// Files that go when this does.
    made: Vec<PathBuf>,
    /// Files that a write is to leave, and that go as well where it never begins.
    fresh: Vec<PathBuf>,
}

impl Drop for Files {
    fn drop(&mut self) {
        for path in &self.made {
            let _step = Step::begin_long("remove", path);
            interrupt::end_output(path, false);
        }
        for path in &self.fresh {
            let _step = Step::begin_long("remove", path);
            // Nobody can do anything about it.
            let _ = fs::remove_file(path);
        }
    }
}

/// What a job needs of one file.
struct Need {
    path: PathBuf,
    /// Where its bytes begin and end.
    from: u64,
    to: u64,
}

impl Files {
    /// Finds the files of `job`, and makes those that are missing.
    ///
    /// # Errors
    /// The system's; a file that is too short to be read, or not to be written to.
    pub(super) fn prepare(
        engine: &Engine,
        asked: &Asked,
        job: &Job,
        rights: Rights,
    ) -> Result<Self> {
        let threads = if asked.transfer.is_batch() { 1 } else { u64::from(job.threads) };
        let part = |start| Region { start: start + asked.shift, len: asked.size - asked.shift };
        let (parts, needs): (Vec<(PathBuf, Region)>, Vec<Need>) = match &job.at {
            Where::Folder(folder) => {
                let one = |number| {
                    let path = folder.join(format!("gdsio.{number}"));
                    let need =
                        Need { path: path.clone(), from: job.start, to: job.start + asked.size };
                    ((path, part(job.start)), need)
                };
                (0..threads).map(one).unzip()
            }
            Where::File(path) => {
                let apart = if shares(asked, job, path, threads) { 0 } else { asked.size };
                let starts = (0..threads).map(|thread| job.start + thread * apart);
                let parts = starts.map(|start| (path.clone(), part(start))).collect();
                let to = job.start + (threads - 1) * apart + asked.size;
                (parts, vec![Need { path: path.clone(), from: job.start, to }])
            }
        };
        let mut files = Self { parts, made: Vec::new(), fresh: Vec::new() };
        // A mix of both reads what is there.
        if asked.read_percent > 0 {
            files.for_reads(engine, &needs, asked.writes())?;
        }
        if asked.writes() {
            let paths = for_writes(engine, &needs, rights, &mut files.fresh)?;
            for (need, path) in needs.iter().zip(paths) {
                let own = files.parts.iter_mut().filter(|(part, _)| *part == need.path);
                own.for_each(|(part, _)| part.clone_from(&path));
            }
            // What is written stays.
            for path in std::mem::take(&mut files.made) {
                interrupt::end_output(&path, true);
            }
        }
        Ok(files)
    }

    /// What was made to be written to stays from now on.
    pub(super) fn keep(&mut self) {
        self.fresh.clear();
    }

    /// Makes what is missing, for good where it `stays`, and makes whole what is ours.
    fn for_reads(&mut self, engine: &Engine, needs: &[Need], stays: bool) -> Result<()> {
        let mut missing = Vec::new();
        for need in needs {
            if let Some(make) = Missing::look(engine, need)? {
                missing.push((need, make));
            }
        }
        let Some((first, _)) = missing.first() else { return Ok(()) };
        let folder = folder_of(&first.path);
        let bytes = missing.iter().map(|(need, _)| need.to - need.from).sum();
        let smaller = |failure: Failure| {
            failure.hint("give a smaller `-s`, or a folder where there is more room")
        };
        Room::of(&folder)?.check(&folder, bytes).map_err(smaller)?;
        let gone = missing.iter().filter(|(_, make)| *make == Missing::All).count();
        let gone = if stays { 0 } else { gone };
        super::tell(&laid_out(&folder, missing.len(), bytes, gone));
        let key = scratch::random().map_err(|e| Failure::io("cannot get random bytes", &e))?;
        for (number, (need, make)) in missing.iter().enumerate() {
            if *make == Missing::All {
                self.make(&need.path, stays)?;
            }
            let pattern = Pattern::new(key.wrapping_add(number as u64));
            lay(engine, need, pattern).map_err(smaller)?;
        }
        Ok(())
    }

    fn make(&mut self, path: &Path, stays: bool) -> Result<()> {
        let _step = Step::begin("make", path);
        let file = interrupt::create_output(path).map_err(|error| cannot("make", path, &error))?;
        self.made.push(path.to_owned());
        // A run that is killed leaves it, and the next may go on with it.
        mark::set(&file, path, !stays).map_err(|error| cannot("mark", path, &error))
    }
}

/// Writes bytes where `need` has its own, and nowhere else: a file that is there may be longer.
fn lay(engine: &Engine, need: &Need, pattern: Pattern) -> Result<()> {
    let path = fs::canonicalize(&need.path).map_err(|e| cannot("look at", &need.path, &e))?;
    make::put(&path, pattern, align_down(need.from, 8), need.to)?;
    let synced = File::open(&path).and_then(|file| file.sync_all());
    synced.map_err(|error| cannot("write to", &path, &error))?;
    // What was just written is in memory, and would be read from there.
    let _step = Step::begin("drop the pages of", &path);
    engine.open(&path)?.evict()?;
    Ok(())
}

/// What of a file has to be made before it can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missing {
    /// All of it: there is none.
    All,
    /// Bytes of a file of ours.
    Bytes,
}

impl Missing {
    fn look(engine: &Engine, need: &Need) -> Result<Option<Self>> {
        let Need { path, from, to } = need;
        let step = Step::begin("look at", path);
        let facts = match fs::metadata(path) {
            Ok(facts) => facts,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Some(Self::All)),
            Err(error) => return Err(cannot("look at", path, &error)),
        };
        drop(step);
        let file = steps::open(engine, path)?;
        let len = file.len()?;
        let opened = open(path).map_err(|error| cannot("open", path, &error))?;
        let is_ours = facts.is_file() && mark::is_ours(&opened, path);
        let has_hole = facts.is_file() && has_hole(&opened, *from, (*to).min(len));
        if is_ours && (len < *to || has_hole) {
            return Ok(Some(Self::Bytes));
        }
        if len < *to {
            let (has, wanted) = (format_size(len), format_size(*to));
            return Err(Failure::new(format!("cannot read {wanted} of `{}`", path.display()))
                .because(format!("it has {has}, and was not made by `forebay gdsio`"))
                .hint("give a smaller `-s` or `-o`; a file that is not there is made"));
        }
        if has_hole {
            say(&format!(
                "`{}` has holes: what is read of them comes from no drive",
                path.display()
            ));
        }
        Ok(None)
    }
}

/// Whether the threads of a job have the same bytes of its one file. Those that read do where it
/// has no more; those that write never.
fn shares(asked: &Asked, job: &Job, path: &Path, threads: u64) -> bool {
    if asked.writes() || threads == 1 {
        return false;
    }
    let _step = Step::begin("look at", path);
    let len = open(path).and_then(|mut file| {
        // Of devices too.
        io::Seek::seek(&mut file, io::SeekFrom::End(0))
    });
    let (one, all) = (job.start + asked.size, job.start + asked.size * threads);
    let is_shared = len.is_ok_and(|len| (one..all).contains(&len));
    if is_shared {
        super::tell(&format!(
            "all threads read the same bytes of `{}`: it is too short for parts of their own",
            path.display()
        ));
    }
    is_shared
}

/// Makes the files of writes, as far as they are missing, when all others may be written to; the
/// paths to write by.
fn for_writes(
    engine: &Engine,
    needs: &[Need],
    rights: Rights,
    fresh: &mut Vec<PathBuf>,
) -> Result<Vec<PathBuf>> {
    let found = needs.iter().map(|need| may_be_written(engine, need, rights));
    let found = found.collect::<Result<Vec<_>>>()?;
    let missing = || needs.iter().zip(&found).filter(|(_, found)| found.is_none());
    if let Some((first, _)) = missing().next() {
        let bytes = missing().map(|(need, _)| need.to - need.from).sum();
        let folder = folder_of(&first.path);
        Room::of(&folder)?.check(&folder, bytes).map_err(|failure| {
            failure.hint("give a smaller `-s`, or a folder where there is more room")
        })?;
    }
    let path = |(need, found): (&Need, Option<PathBuf>)| match found {
        Some(path) => Ok(path),
        None => made_for_writes(need, fresh),
    };
    needs.iter().zip(found).map(path).collect()
}

/// Looks whether a file may be written to; the path to write by, or nothing where there is none.
fn may_be_written(engine: &Engine, need: &Need, rights: Rights) -> Result<Option<PathBuf>> {
    let looking = Step::begin("look at", &need.path);
    // Links are followed here and never later: what is judged is what is written.
    let path = match fs::canonicalize(&need.path) {
        Ok(path) => path,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(cannot("look at", &need.path, &error)),
    };
    let facts = fs::metadata(&path).map_err(|error| cannot("look at", &path, &error))?;
    drop(looking);
    if facts.file_type().is_block_device() {
        return device_for_writes(path, need, rights).map(Some);
    }
    // It says what no bytes can be written to.
    drop(steps::open(engine, &path)?);
    // By a handle that cannot write.
    let _step = Step::begin("open", &path);
    let file = open(&path).map_err(|error| cannot("open", &path, &error))?;
    if !facts.is_file() || (!rights.files && !mark::is_ours(&file, &path)) {
        return Err(Failure::new(format!("cannot write to `{}`", path.display()))
            .because("`forebay gdsio` did not make it, and nobody said that it may be lost")
            .hint("give another folder, or `--overwrite` where its bytes are of no use"));
    }
    if facts.len() < need.to {
        grow(&path, &facts, need.to)?;
    }
    Ok(Some(path))
}

fn made_for_writes(need: &Need, fresh: &mut Vec<PathBuf>) -> Result<PathBuf> {
    let path = &need.path;
    let _step = Step::begin("make", path);
    let failed = |error: io::Error| cannot("make", path, &error);
    let file = File::create_new(path).map_err(failed)?;
    fresh.push(path.clone());
    mark::set(&file, path, false).map_err(|error| cannot("mark", path, &error))?;
    file.set_len(need.to).map_err(failed)?;
    fs::canonicalize(path).map_err(failed)
}

fn grow(path: &Path, facts: &Metadata, len: u64) -> Result<()> {
    let folder = folder_of(path);
    Room::of(&folder)?.check(&folder, len - facts.len())?;
    let mut how = OpenOptions::new();
    let file = how.write(true).custom_flags(libc::O_NOFOLLOW).open(path);
    let grown = file.and_then(|file| file.set_len(len));
    grown.map_err(|error| cannot("write to", path, &error))
}

/// Refuses to write to a device where nobody said so, before anybody opens it.
///
/// # Errors
/// It is one.
pub(super) fn check_device(asked: &Asked, job: &Job, rights: Rights) -> Result<()> {
    let Where::File(path) = &job.at else { return Ok(()) };
    if !asked.writes() || rights.devices {
        return Ok(());
    }
    let _step = Step::begin("look at", path);
    if fs::metadata(path).is_ok_and(|facts| facts.file_type().is_block_device()) {
        return Err(not_without_a_word(path));
    }
    Ok(())
}

fn not_without_a_word(device: &Path) -> Failure {
    Failure::new(format!("cannot write to the device `{}`", device.display()))
        .because("what is on it would be lost, and nobody said that it may be")
        .hint("give a folder on it, or `--overwrite-device` where nothing on it is of use")
}

/// Refuses jobs of which two write to the same bytes, by whatever paths.
///
/// # Errors
/// They do, or the system's.
pub(super) fn check_apart(all: &[Files]) -> Result<()> {
    let mut seen: Vec<(usize, (u64, u64), &Path, Region)> = Vec::new();
    for (job, files) in all.iter().enumerate() {
        let mut last: Option<(&Path, (u64, u64))> = None;
        for (path, region) in &files.parts {
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

/// What a file is known by, whatever its path: of a device not the file that stands for it.
fn number(path: &Path) -> Result<(u64, u64)> {
    let _step = Step::begin("look at", path);
    let facts = fs::metadata(path).map_err(|error| cannot("look at", path, &error))?;
    let is_device = facts.file_type().is_block_device();
    Ok(if is_device { (u64::MAX, facts.rdev()) } else { (facts.dev(), facts.ino()) })
}

fn device_for_writes(path: PathBuf, need: &Need, rights: Rights) -> Result<PathBuf> {
    if !rights.devices {
        return Err(not_without_a_word(&path));
    }
    let end = open(&path).and_then(|mut file| io::Seek::seek(&mut file, io::SeekFrom::End(0)));
    let len = end.map_err(|error| cannot("look at", &path, &error))?;
    if len < need.to {
        let (has, wanted) = (format_size(len), format_size(need.to));
        return Err(Failure::new(format!("cannot write {wanted} to `{}`", path.display()))
            .because(format!("it has {has}"))
            .hint("give a smaller `-s` or `-o`, or fewer threads"));
    }
    Ok(path)
}

/// Opens a file to look at, and waits for no pipe.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// Whether bytes are missing from `from` to `to`; not, where the file system does not tell.
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

/// What is said of files that are made to be read.
fn laid_out(folder: &Path, files: usize, bytes: u64, gone: usize) -> String {
    let (bytes, folder) = (format_size(bytes), folder.display());
    let what = if files == 1 { "a file" } else { "files" };
    let after = match gone {
        0 => "stays, as what a write makes",
        _ if gone == files => "is removed afterwards",
        _ => "is removed afterwards, but for files that were there",
    };
    format!(
        "making {what} of {bytes} in `{folder}` to be read; that takes no part in the time, \
             and {after}"
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
        assert!(text(1, 1).ends_with("is removed afterwards"), "{}", text(1, 1));
        assert!(text(3, 0).contains("stays"), "{}", text(3, 0));
        assert!(text(3, 1).contains("but for files"), "{}", text(3, 1));
    }
}
