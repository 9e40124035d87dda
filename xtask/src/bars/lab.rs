//! The state that the bars of one run share: engines, files of test data, and the loop over all
//! bars.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use forebay::units::{MIB, format_size};
use forebay::{Buffer, Engine, Options, Residency, RouteShare};

use crate::archive::{Archive, Record, Verdict};
use crate::bar::{BARS, Bar, Measured, Stop};
use crate::data;
use crate::machine::Environment;
use crate::scratch::Scratch;
use crate::{Arguments, talk};

/// One run of the bars.
#[derive(Debug)]
pub(crate) struct Lab {
    tiny: bool,
    scratch: Scratch,
    files: RefCell<BTreeMap<u64, PathBuf>>,
}

impl Lab {
    fn new(arguments: &Arguments) -> Result<Self, String> {
        let parent = &arguments.scratch;
        let scratch = parent.canonicalize().and_then(|parent| Scratch::new(&parent));
        let scratch = scratch
            .map_err(|error| format!("cannot make scratch in `{}`: {error}", parent.display()))?;
        Ok(Self { tiny: arguments.tiny, scratch, files: RefCell::default() })
    }

    /// The size that a bar moves: the stated one, or little in a tiny run.
    pub(crate) fn len(&self, stated: u64) -> u64 {
        if self.tiny { (stated / 128).clamp(4 * MIB, 32 * MIB) } else { stated }
    }

    /// Whether this run only shows that the bars run.
    pub(crate) fn is_tiny(&self) -> bool {
        self.tiny
    }

    /// How often a bar samples each side.
    pub(crate) fn rounds(&self, stated: usize) -> usize {
        if self.tiny { 1 } else { stated }
    }

    /// How many small requests make one sample.
    pub(crate) fn count(&self, stated: u64) -> u64 {
        if self.tiny { stated / 64 } else { stated }
    }

    /// A path for a file that a bar writes.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.scratch.path(name)
    }

    /// A file of `len` bytes of test data, made on first use, in the page cache.
    pub(crate) fn file(&self, len: u64) -> Result<PathBuf, Stop> {
        let known = self.files.borrow().get(&len).cloned();
        let path = match known {
            Some(path) => path,
            None => {
                self.need_room(len)?;
                let path = self.path(&format!("data-{len}"));
                data::write(&path, len)?;
                self.files.borrow_mut().insert(len, path.clone());
                path
            }
        };
        make_resident(&path)?;
        Ok(path)
    }

    /// Skips the bar if `len` more bytes would fill the file system.
    pub(crate) fn need_room(&self, len: u64) -> Result<(), Stop> {
        if self.scratch.has_room(len)? {
            return Ok(());
        }
        Err(Stop::Skip(format!("no room for {} in the scratch folder", format_size(len))))
    }
}

/// The limits of this run.
pub(crate) fn options() -> Result<Options, Stop> {
    Ok(Options::from_env()?)
}

/// A new engine with these limits.
pub(crate) fn engine() -> Result<Engine, Stop> {
    Ok(Engine::new(options()?)?)
}

/// Reads the whole target once and compares it; returns which routes the bytes took.
pub(crate) fn read_once(file: &forebay::File, target: &mut [u8]) -> Result<String, Stop> {
    target.fill(0x5A);
    let outcome = file.read_exact(0, &mut *target)?;
    data::check(target, 0)?;
    Ok(format!("{}, {}", format_size(target.len() as u64), routes(&outcome.routes)))
}

/// Drops a file's pages from the page cache, and skips the bar if some stay: they would be read
/// from memory.
pub(crate) fn evict(file: &forebay::File) -> Result<(), Stop> {
    match file.evict()? {
        Residency::Known { resident: 0, .. } => Ok(()),
        Residency::Known { resident, .. } => {
            let size = format_size(resident);
            Err(Stop::Skip(format!("{size} of the file cannot be dropped from the page cache")))
        }
        Residency::Unknown(reason) => {
            Err(Stop::Skip(format!("the page cache cannot be checked: {reason}")))
        }
    }
}

/// Reads a file once, so that its bytes are in the page cache.
pub(crate) fn make_resident(path: &Path) -> Result<(), Stop> {
    let mut file = File::open(path)?;
    let mut piece = vec![0; 4 << 20];
    while file.read(&mut piece)? > 0 {}
    Ok(())
}

/// Which routes bytes took, for the notes of a bar.
pub(crate) fn routes(routes: &[RouteShare]) -> String {
    let share = |share: &RouteShare| {
        format!("{} {} ({})", format_size(share.bytes), share.route, share.reason)
    };
    let shares: Vec<String> = routes.iter().map(share).collect();
    format!("route: {}", shares.join(", "))
}

/// Compares a buffer with the test data of a file, from the file's start.
pub(crate) fn verify(buffer: &Buffer, len: u64) -> Result<(), Stop> {
    let mut piece = vec![0_u8; 16 << 20];
    for offset in (0..len).step_by(16 << 20) {
        let count = usize::try_from(len - offset).unwrap_or(usize::MAX).min(piece.len());
        buffer.download(offset, &mut piece[..count])?;
        data::check(&piece[..count], offset)?;
    }
    Ok(())
}

/// Runs the bars that `arguments` choose; `Ok(false)` if one was missed.
pub(crate) fn measure(arguments: &Arguments) -> Result<bool, String> {
    let lab = Lab::new(arguments)?;
    let environment = Environment::read(&lab.scratch.path(""));
    let mut archive = Archive::new(arguments, environment)?;
    talk(&archive.head());
    let only = arguments.only.as_deref();
    for bar in BARS.iter().filter(|bar| only.is_none_or(|name| bar.name.contains(name))) {
        let record = match run(&lab, bar) {
            Ok(measured) => Record::measured(bar.name, measured, !lab.tiny),
            Err(Stop::Skip(reason)) => Record::stopped(bar.name, Verdict::Skipped(reason)),
            Err(Stop::Fail(reason)) => Record::stopped(bar.name, Verdict::Fail(reason)),
        };
        record.lines().iter().for_each(|line| talk(line));
        archive.add(record)?;
    }
    talk(&archive.tail());
    Ok(!archive.is_missed())
}

/// Runs one bar; a panic is a failure of that bar and no end of the run.
fn run(lab: &Lab, bar: &Bar) -> Result<Measured, Stop> {
    catch_unwind(AssertUnwindSafe(|| (bar.run)(lab)))
        .unwrap_or_else(|_| Err(Stop::Fail("it panicked, see above".into())))
}
