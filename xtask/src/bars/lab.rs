//! The state that the bars of one run share: engines, GPU, files of test data, and the loop over
//! all bars.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay::gpu::{Device, GpuSelector};
use forebay::units::{MIB, format_size};
use forebay::{Buffer, Engine, Outcome};

use crate::archive::{Archive, Record, Verdict};
use crate::arguments::Arguments;
use crate::bar::{BARS, Bar, Measured, Setting, Stop};
use crate::data;
use crate::machine::Environment;
use crate::scratch::Scratch;
use crate::talk;

/// The location of a test file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// In the scratch folder.
    Disk,
    /// In a tmpfs.
    Tmpfs,
}

/// An engine that has opened the GPU of this run.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) engine: Engine,
    pub(crate) device: Arc<dyn Device>,
}

impl Gpu {
    /// A buffer on the GPU.
    pub(crate) fn allocate(&self, len: u64) -> Result<Buffer, Stop> {
        Ok(self.engine.allocate(self.device.id(), len)?)
    }
}

/// One run of the bars.
#[derive(Debug)]
pub(crate) struct Lab {
    tiny: bool,
    selector: GpuSelector,
    disk: Scratch,
    tmpfs: Option<Scratch>,
    files: RefCell<BTreeMap<(Place, u64), PathBuf>>,
}

impl Lab {
    fn new(arguments: &Arguments) -> Result<Self, String> {
        let parent = arguments.scratch.clone().unwrap_or_else(|| ".".into());
        let parent = parent.canonicalize().map_err(|error| {
            format!("cannot find the scratch folder `{}`: {error}", parent.display())
        })?;
        let disk = Scratch::new(&parent)
            .map_err(|error| format!("cannot make scratch in `{}`: {error}", parent.display()))?;
        let selector = match &arguments.gpu {
            Some(text) => text.parse().map_err(|error: forebay::Error| error.to_string())?,
            None => GpuSelector::Auto,
        };
        let tmpfs = Scratch::new(Path::new("/dev/shm")).ok();
        Ok(Self { tiny: arguments.tiny, selector, disk, tmpfs, files: RefCell::default() })
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

    /// A new engine with the defaults and the GPU of this run.
    pub(crate) fn gpu(&self) -> Result<Gpu, Stop> {
        let engine = Engine::new(forebay::Options::from_env()?)?;
        match engine.device(&self.selector)? {
            Some(device) => Ok(Gpu { engine, device }),
            None => Err(Stop::Skip("no GPU on this machine".into())),
        }
    }

    /// A path for a file that a bar writes.
    pub(crate) fn path(&self, place: Place, name: &str) -> Result<PathBuf, Stop> {
        Ok(self.scratch(place)?.path(name))
    }

    /// A file of `len` bytes of test data, made on first use, in the page cache.
    pub(crate) fn file(&self, place: Place, len: u64) -> Result<PathBuf, Stop> {
        if let Some(path) = self.files.borrow().get(&(place, len)) {
            make_resident(path)?;
            return Ok(path.clone());
        }
        self.need_room(place, len)?;
        let path = self.path(place, &format!("data-{len}"))?;
        data::write(&path, len).map_err(Stop::Fail)?;
        make_resident(&path)?;
        self.files.borrow_mut().insert((place, len), path.clone());
        Ok(path)
    }

    /// Skips the bar if `len` more bytes would fill the file system.
    pub(crate) fn need_room(&self, place: Place, len: u64) -> Result<(), Stop> {
        if self.scratch(place)?.has_room(len)? {
            return Ok(());
        }
        let size = format_size(len);
        Err(Stop::Skip(format!("no room for {size} on {}", place.name())))
    }

    fn scratch(&self, place: Place) -> Result<&Scratch, Stop> {
        match place {
            Place::Disk => Ok(&self.disk),
            Place::Tmpfs => {
                self.tmpfs.as_ref().ok_or_else(|| Stop::Skip("no folder in `/dev/shm`".into()))
            }
        }
    }

    fn is_simulated(&self) -> bool {
        matches!(self.selector, GpuSelector::Sim(_))
    }
}

impl Place {
    fn name(self) -> &'static str {
        match self {
            Self::Disk => "the scratch folder's disk",
            Self::Tmpfs => "tmpfs",
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

/// Which routes the bytes of a transfer took, for the notes of a bar.
pub(crate) fn routes(outcome: &Outcome) -> String {
    let shares: Vec<String> = outcome
        .routes
        .iter()
        .map(|share| format!("{} {} ({})", format_size(share.bytes), share.route, share.reason))
        .collect();
    format!("route: {}", shares.join(", "))
}

/// Compares a buffer with the test data of a file, from the file's start.
pub(crate) fn verify(buffer: &Buffer, len: u64) -> Result<(), Stop> {
    let mut piece = vec![0_u8; 16 << 20];
    let mut offset = 0;
    while offset < len {
        let count = usize::try_from(len - offset).unwrap_or(usize::MAX).min(piece.len());
        buffer.download(offset, &mut piece[..count])?;
        data::check(&piece[..count], offset)
            .map_err(|at| Stop::Fail(format!("wrong bytes in the target at {at}")))?;
        offset += count as u64;
    }
    Ok(())
}

/// Runs the bars that `arguments` choose; `Ok(false)` if one was missed.
pub(crate) fn measure(arguments: Arguments) -> Result<bool, String> {
    let lab = Lab::new(&arguments)?;
    let environment = Environment::read(&lab.disk.path(""), &lab.selector);
    let mut archive = Archive::new(&arguments, environment)?;
    talk(&archive.head());
    let only = arguments.only.as_deref();
    for bar in BARS.iter().filter(|bar| only.is_none_or(|name| bar.name.contains(name))) {
        let record = match run(&lab, bar, only.is_some()) {
            Ok(measured) => {
                let judged = !lab.tiny && (!lab.is_simulated() || bar.setting != Setting::Gpu);
                Record::measured(bar.name, measured, judged)
            }
            Err(Stop::Skip(reason)) => Record::stopped(bar.name, skipped(bar, reason)),
            Err(Stop::Fail(reason)) => Record::stopped(bar.name, Verdict::Fail(reason)),
        };
        for line in record.lines() {
            talk(&line);
        }
        archive.add(record)?;
    }
    talk(&archive.tail());
    Ok(!archive.is_missed())
}

/// Runs one bar; a panic is a failure of that bar and no end of the run.
fn run(lab: &Lab, bar: &Bar, chosen: bool) -> Result<Measured, Stop> {
    if bar.setting == Setting::Host && !chosen && !lab.tiny && lab.gpu().is_ok() {
        return Err(Stop::Skip("stated for a machine without a GPU; `--only` runs it".into()));
    }
    catch_unwind(AssertUnwindSafe(|| (bar.run)(lab)))
        .unwrap_or_else(|_| Err(Stop::Fail("it panicked, see above".into())))
}

/// A GPU bar that cannot run counts as missed if a GPU is required.
fn skipped(bar: &Bar, reason: String) -> Verdict {
    let required = std::env::var("FOREBAY_REQUIRE_GPU").is_ok_and(|value| value == "1");
    if required && bar.setting == Setting::Gpu {
        Verdict::Fail(format!("skipped, but FOREBAY_REQUIRE_GPU=1: {reason}"))
    } else {
        Verdict::Skipped(reason)
    }
}
