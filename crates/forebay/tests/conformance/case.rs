//! One combination of ring, memory and place, and how bytes get in and out of its memory.

use std::fmt;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use forebay::gpu::{DeviceId, GpuSelector, absence_reason};
use forebay::units::KIB;
use forebay::{
    Buffer, Engine, File, OpenOptions, Options, Outcome, Reason, RequestOptions, Residency, Result,
    RingChoice, Route,
};

use crate::lab::{self, Offer, pattern};

/// Bytes of a slot here: small, so that a small file has several.
pub(crate) const SLOT: usize = 512 << 10;

/// Bytes of the file that is read: several slots and an odd rest.
pub(crate) const SIZE: usize = 6 * SLOT + 12_345;

/// Bytes before and behind a target that must stay as they are.
const GUARD: usize = 4096;

/// What guards and targets hold before.
pub(crate) const BEFORE: u8 = 0xee;

/// Where bytes go to and come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    Slice,
    Pinned,
    Sim,
    Gpu,
}

impl Memory {
    pub(crate) const ALL: [Self; 4] = [Self::Slice, Self::Pinned, Self::Sim, Self::Gpu];

    pub(crate) fn is_gpu(self) -> bool {
        matches!(self, Self::Sim | Self::Gpu)
    }
}

/// A combination.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) engine: Engine,
    pub(crate) ring: RingChoice,
    pub(crate) memory: Memory,
    pub(crate) device: Option<DeviceId>,
    pub(crate) folder: PathBuf,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, {:?}, {}", self.ring, self.memory, self.folder.display())
    }
}

/// The real GPU, whose absence is a failure where one is required.
fn real_gpu(engine: &Engine) -> Offer<DeviceId> {
    match engine.device(&GpuSelector::Auto).expect("the first GPU, or none") {
        Some(device) => Ok(device.id()),
        None => {
            let reason = absence_reason().unwrap_or_default();
            let required = std::env::var_os("FOREBAY_REQUIRE_GPU").is_some_and(|set| set == "1");
            assert!(!required, "FOREBAY_REQUIRE_GPU is 1, but no GPU: {reason}");
            Err(format!("no GPU: {reason}"))
        }
    }
}

impl Case {
    pub(crate) fn new(ring: RingChoice, memory: Memory, folder: &Path) -> Offer<Self> {
        let mut options = Options::default();
        options.ring = ring;
        options.slot_size = SLOT as u64;
        options.segment_size = 64 * KIB;
        options.arena_size = Some(4 * SLOT as u64);
        options.readers = Some(3);
        options.depth = Some(8);
        Self::with(options, memory, folder)
    }

    pub(crate) fn with(options: Options, memory: Memory, folder: &Path) -> Offer<Self> {
        let ring = options.ring;
        let engine = Engine::new(options).expect("limits that fit");
        let device = match memory {
            Memory::Slice | Memory::Pinned => None,
            Memory::Sim => {
                let sim = engine.device(&"sim".parse().expect("a name")).expect("a simulated GPU");
                Some(sim.expect("a simulated GPU").id())
            }
            Memory::Gpu => Some(real_gpu(&engine)?),
        };
        Ok(Self { engine, ring, memory, device, folder: folder.to_owned() })
    }

    /// A buffer of this kind of memory, filled with what is there before.
    pub(crate) fn buffer(&self, len: usize) -> Buffer {
        let len = len as u64;
        let mut buffer = match self.device {
            Some(device) => self.engine.allocate(device, len).expect("memory on the GPU"),
            None => self.engine.allocate_pinned(len).expect("pinned memory"),
        };
        buffer.fill(BEFORE).expect("a fill");
        buffer
    }

    /// What a buffer holds.
    pub(crate) fn content(&self, buffer: &Buffer) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(buffer.len()).expect("a small buffer")];
        buffer.download(0, &mut bytes).expect("a download");
        bytes
    }

    /// Reads `len` bytes at `offset` into the middle of a larger piece of memory, of which nothing
    /// else may change; returns what arrived.
    pub(crate) fn read_with(
        &self,
        file: &File,
        offset: u64,
        len: usize,
        options: &RequestOptions,
    ) -> Result<(Vec<u8>, Outcome)> {
        // Targets begin at all kinds of addresses.
        let start = GUARD + usize::try_from(offset % 5).expect("below 5");
        let (outcome, all) = if self.memory == Memory::Slice {
            let mut all = vec![BEFORE; start + len + GUARD];
            let outcome =
                file.read(&mut all[start..start + len]).at(offset).options(*options).run()?;
            (outcome, all)
        } else {
            let mut all = self.buffer(start + len + GUARD);
            let range = start as u64..(start + len) as u64;
            let outcome = file.read((&mut all, range)).at(offset).options(*options).run()?;
            (outcome, self.content(&all))
        };
        let got = usize::try_from(outcome.bytes).expect("at most the request");
        assert!(got <= len, "{got} bytes of {len}");
        let untouched = vec![BEFORE; all.len()];
        let kept =
            all[..start] == untouched[..start] && all[start + got..] == untouched[start + got..];
        assert!(kept, "bytes outside the target of {offset}+{len} changed");
        let shares: u64 = outcome.routes.iter().map(|share| share.bytes).sum();
        assert_eq!(shares, outcome.bytes, "bytes by route of {offset}+{len}: {outcome:?}");
        Ok((all[start..start + got].to_vec(), outcome))
    }

    pub(crate) fn read(&self, file: &File, offset: u64, len: usize) -> (Vec<u8>, Outcome) {
        let read = self.read_with(file, offset, len, &RequestOptions::default());
        read.unwrap_or_else(|error| panic!("{offset}+{len}: {}", chain(&error)))
    }

    /// Writes `bytes` at `offset` from this kind of memory.
    pub(crate) fn write_with(
        &self,
        file: &File,
        offset: u64,
        bytes: &[u8],
        options: &RequestOptions,
    ) -> Result<Outcome> {
        let start = 1 + usize::try_from(offset % 3).expect("below 3");
        let outcome = if self.memory == Memory::Slice {
            let mut all = vec![BEFORE; start];
            all.extend_from_slice(bytes);
            file.write(&all[start..]).at(offset).options(*options).run()?
        } else {
            let mut all = self.buffer(start + bytes.len() + 7);
            all.upload(start as u64, bytes).expect("an upload");
            let range = start as u64..(start + bytes.len()) as u64;
            file.write((&all, range)).at(offset).options(*options).run()?
        };
        assert_eq!(outcome.bytes, bytes.len() as u64);
        let shares: u64 = outcome.routes.iter().map(|share| share.bytes).sum();
        assert_eq!(shares, outcome.bytes, "bytes by route of {offset}: {outcome:?}");
        Ok(outcome)
    }

    pub(crate) fn write(&self, file: &File, offset: u64, bytes: &[u8], options: &RequestOptions) {
        let written = self.write_with(file, offset, bytes, options);
        written.unwrap_or_else(|error| panic!("{offset}+{}: {}", bytes.len(), chain(&error)));
    }

    /// Where a file of this name is made. A file system of one file has it from the start, and no
    /// other.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        let only = self.folder.join(lab::fuse::NAME);
        if only.exists() { only } else { self.folder.join(name) }
    }

    /// A new file that holds `bytes`, opened for reading and writing.
    pub(crate) fn file(&self, name: &str, bytes: &[u8]) -> File {
        let path = self.path(name);
        fs::write(&path, bytes).expect("room for a file");
        self.engine.open_with(&path, &OpenOptions::writing()).expect("the file opens")
    }

    /// A new file of random bytes, and these.
    pub(crate) fn random_file(&self, name: &str, len: usize) -> (File, Vec<u8>) {
        let bytes = pattern(len as u64, len);
        (self.file(name, &bytes), bytes)
    }

    /// The options with which bytes of this memory take different ways.
    pub(crate) fn all_options(&self, file: &File) -> Vec<RequestOptions> {
        if !self.memory.is_gpu() {
            return vec![RequestOptions { route: Some(Route::Host), ..RequestOptions::default() }];
        }
        let mut all = vec![RequestOptions::default()];
        if file.no_direct_io().is_none() {
            all.push(RequestOptions { route: Some(Route::Staged), ..RequestOptions::default() });
        }
        all
    }

    /// The route that bytes take for `reason`.
    pub(crate) fn route(&self, reason: Reason) -> Route {
        match reason {
            _ if !self.memory.is_gpu() => Route::Host,
            Reason::NotResident | Reason::TriedNotResident => Route::Staged,
            _ => Route::Cached,
        }
    }
}

/// An error and all that caused it.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Fails where `file` does not hold `expected`, in the page cache and on the drive.
pub(crate) fn assert_holds(file: &File, expected: &[u8]) {
    for when in ["as it is", "from the drive"] {
        let bytes = fs::read(file.path()).expect("the file can be read");
        assert_eq!(bytes.len(), expected.len(), "size of {}, {when}", file.path().display());
        if bytes != expected {
            let at = bytes.iter().zip(expected).position(|(is, should)| is != should);
            let wrong = bytes.iter().zip(expected).filter(|(is, should)| is != should).count();
            panic!("{}, {when}: {wrong} wrong bytes from {at:?} on", file.path().display());
        }
        make_cold(file);
    }
}

/// Drops the file's pages; whether the kernel says that they are gone. [`File::evict`] waits for
/// pages in use, which on some file systems never go.
pub(crate) fn make_cold(file: &File) -> bool {
    file.sync_data().expect("a sync");
    let plain = fs::File::open(file.path()).expect("the file opens");
    for _ in 0..3 {
        let advised = rustix::fs::fadvise(&plain, 0, None, rustix::fs::Advice::DontNeed);
        advised.expect("an advice");
        let left = file.residency(0, u64::MAX).expect("an answer");
        if matches!(left, Residency::Known { resident: 0, .. }) {
            return true;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    false
}

/// Brings a range into the page cache, without read-ahead.
pub(crate) fn bring_in(file: &File, offset: usize, len: usize) {
    let plain = fs::File::open(file.path()).expect("the file opens");
    let advised = rustix::fs::fadvise(&plain, 0, None, rustix::fs::Advice::Random);
    advised.expect("no read-ahead");
    plain.read_exact_at(&mut vec![0; len], offset as u64).expect("a read");
}

/// Says once what a machine lacks.
pub(crate) fn case_or_skip(offer: Offer<Case>, seen: &mut Vec<String>) -> Option<Case> {
    match offer {
        Ok(case) => Some(case),
        Err(reason) => {
            if !seen.contains(&reason) {
                lab::skip(&reason);
                seen.push(reason);
            }
            None
        }
    }
}
