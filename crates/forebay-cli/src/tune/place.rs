//! The file to measure: the user's, which is only read, or scratch in the same folder.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay::units::{GIB, MIB, align_down, format_size};
use forebay::{Engine, Residency};
use forebay_topology::{DriveKind, Resolver};

use super::curve;
use super::probe::UNIT;
use super::settings::Ground;
use crate::bench::data::Pattern;
use crate::bench::make::{self, Room};
use crate::bench::scratch::{self, Part, Scratch};
use crate::bench::subject::{check_size, is_folder};
use crate::failure::{Failure, Result};
use crate::report::json::Direction;
use crate::steps::{self, Step};

/// Minimum size of a file: a smaller one ends before the queue is full.
const LEN_MIN: u64 = 16 * MIB;
/// The first part of scratch. The time to write it decides the size of the rest.
const SCRATCH_MIN: u64 = 64 * MIB;
/// The largest scratch.
const SCRATCH_MAX: u64 = GIB;
/// Rough time limit in seconds for writing scratch.
const MAKING_S: f64 = 2.0;
/// Time limit for evicting a file's pages: read-ahead may still add some.
const DROP: Duration = Duration::from_secs(2);

/// The user's file, scratch, or both if a file is given and writes are measured.
#[derive(Debug)]
pub(crate) struct Place {
    /// The path as given.
    pub(crate) asked: PathBuf,
    /// The user's file, and its bytes.
    given: Option<(PathBuf, u64)>,
    folder: PathBuf,
    scratch: Option<Scratch>,
    /// Scratch of crashed runs that was removed.
    pub(crate) leftovers: usize,
}

/// A file to measure.
#[derive(Debug, Clone)]
pub(crate) struct Measured {
    pub(crate) path: PathBuf,
    pub(crate) len: u64,
}

impl Place {
    /// Inspects `path`; makes scratch if needed.
    ///
    /// # Errors
    /// If the file is in memory, lacks O_DIRECT or is too small, or if scratch cannot be created.
    pub(crate) fn find(engine: &Engine, path: Option<&Path>, writes: bool) -> Result<Self> {
        let asked = path.map_or_else(|| PathBuf::from("."), Path::to_owned);
        let is_folder = is_folder(&asked);
        let given = if is_folder { None } else { Some(given(engine, &asked)?) };
        let looking = Step::begin("inspect", &asked);
        check_drives(&asked)?;
        drop(looking);
        let folder = match asked.parent().filter(|_| !is_folder) {
            None => asked.clone(),
            Some(parent) if parent == Path::new("") => PathBuf::from("."),
            Some(parent) => parent.to_owned(),
        };
        if writes && is_device(&asked) {
            let text = format!("cannot tune writes to the device `{}`", asked.display());
            return Err(Failure::new(text)
                .because("writes go to a scratch file, never to a device")
                .hint("name a folder on that device"));
        }
        let mut place = Self { asked, given, folder, scratch: None, leftovers: 0 };
        if let Some((path, _)) = &place.given {
            check_direct(engine, path, &place.asked)?;
        }
        if writes || place.given.is_none() {
            place.leftovers = scratch::remove_leftovers(&place.folder);
            let scratch = Scratch::create(&place.folder)?;
            check_direct(engine, &scratch.path(Part::Read), &place.asked)?;
            place.scratch = Some(scratch);
        }
        Ok(place)
    }

    /// The path whose drives are recorded.
    pub(crate) fn on(&self) -> &Path {
        self.given.as_ref().map_or(&self.folder, |(path, _)| path)
    }

    /// The file or folder on which other programs can repeat the measurement.
    pub(crate) fn ground(&self, direction: Direction) -> Ground<'_> {
        match &self.given {
            Some((path, _)) if direction == Direction::Read => Ground::File(path),
            _ => Ground::Folder(&self.folder),
        }
    }

    /// Whether `direction` is measured with scratch.
    pub(crate) fn is_scratch(&self, direction: Direction) -> bool {
        self.given.is_none() || direction == Direction::Write
    }

    /// The file for one direction, evicted from the page cache as far as possible. The text is a
    /// warning about pages that stayed.
    ///
    /// # Errors
    /// System errors.
    pub(crate) fn ready(
        &mut self,
        engine: &Engine,
        direction: Direction,
    ) -> Result<(Measured, Option<String>)> {
        let (path, len) = match &self.given {
            Some((path, len)) if direction == Direction::Read => (path.clone(), *len),
            _ => self.fill()?,
        };
        let stays = drop_pages(engine, &path)?;
        Ok((Measured { path, len: align_down(len, UNIT) }, stays))
    }

    /// Fills the scratch file with what can be written in about [`MAKING_S`].
    fn fill(&self) -> Result<(PathBuf, u64)> {
        let scratch = self.scratch.as_ref();
        let scratch = scratch.expect("scratch exists for folders and for writes");
        scratch.check()?;
        let path = scratch.path(Part::Read);
        let made = std::fs::metadata(&path).map_or(0, |facts| facts.len());
        if made > 0 {
            return Ok((path, made));
        }
        let hint =
            |failure: Failure| failure.room_hint("use a folder with more free space, or a file");
        Room::of(&self.folder)?.check(&self.folder, SCRATCH_MIN).map_err(hint)?;
        let key = scratch::random().map_err(|e| Failure::io("cannot get random bytes", &e))?;
        let start = Instant::now();
        make::fill(&path, Pattern::new(key), SCRATCH_MIN).map_err(hint)?;
        let more = MAKING_S / start.elapsed().as_secs_f64().max(1e-3) - 1.0;
        let room = Room::of(&self.folder)?.usable() / 2;
        let len = curve::whole(curve::float(SCRATCH_MIN) * more)
            .clamp(SCRATCH_MIN, SCRATCH_MAX)
            .min(room);
        let len = align_down(len, UNIT).max(SCRATCH_MIN);
        if len > SCRATCH_MIN {
            make::fill(&path, Pattern::new(key), len).map_err(hint)?;
        }
        Ok((path, len))
    }
}

/// Opens the user's file with the engine, so that errors are the engine's.
fn given(engine: &Engine, path: &Path) -> Result<(PathBuf, u64)> {
    let _step = Step::begin("open", path);
    let len = engine.open(path)?.len()?;
    check_size(path, len)?;
    if len < LEN_MIN {
        let (len, least) = (format_size(len), format_size(LEN_MIN));
        return Err(Failure::new(format!("cannot tune `{}`: it has {len}", path.display()))
            .because(format!("at least {least} are required to keep the queue full"))
            .hint("name a larger file, or a folder for a scratch file"));
    }
    Ok((path.to_owned(), len))
}

/// Fails if the file is in memory, without a drive.
fn check_drives(path: &Path) -> Result<()> {
    let map = Resolver::default().resolve(path);
    if map.drives.is_empty() || map.drives.iter().any(|drive| drive.kind != DriveKind::Memory) {
        return Ok(());
    }
    Err(Failure::new(format!("nothing to tune: `{}` is kept in memory", path.display()))
        .because(format!("there is no drive below it, only {}", map.drives[0].name))
        .hint("name a path on a drive; `forebay map` shows the drives under a path"))
}

fn check_direct(engine: &Engine, path: &Path, asked: &Path) -> Result<()> {
    let _step = Step::begin("read", path);
    let file = engine.open(path)?;
    let Some(reason) = file.no_direct_io() else { return Ok(()) };
    let text = format!("nothing to tune: `{}` has no O_DIRECT", asked.display());
    Err(Failure::new(text)
        .because(reason)
        .hint("without O_DIRECT, the kernel's read-ahead sets the queue depth"))
}

fn is_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt as _;
    std::fs::metadata(path).is_ok_and(|facts| facts.file_type().is_block_device())
}

/// Evicts a file's pages from the page cache; returns a warning about those that stay.
fn drop_pages(engine: &Engine, path: &Path) -> Result<Option<String>> {
    let start = Instant::now();
    let file = steps::open(engine, path)?;
    loop {
        match file.evict()? {
            Residency::Known { resident, len } if resident > len / 100 => {
                if start.elapsed() > DROP {
                    let (resident, len) = (format_size(resident), format_size(len));
                    return Ok(Some(format!(
                        "{resident} of {len} stay in the page cache and are not read from the drive"
                    )));
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            _ => return Ok(None),
        }
    }
}
