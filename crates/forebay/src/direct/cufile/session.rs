//! cuFile's driver, open in this process, and the files that it knows.
//!
//! The driver is one for the process, shared with whatever else uses it here. It is never closed:
//! others may have come to use it, and it ends with the process.

#![expect(unsafe_code, reason = "calls the library")]

use std::ffi::{c_int, c_long, c_void};
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::counting::{level_of, stop_at_end};
use super::failure::CuFileFailure;
use super::layout::{Counters, Descriptor};
use super::library::{CuFile, places, version_text};
use super::reach::Compat;
use super::sessions::SESSIONS;
use super::simulated;
use super::table::{FileHandle, Table};
use crate::gpu::sim::CuFilePlay;
use crate::process::Home;

/// Counters for each GPU.
const COUNT_GPUS: c_int = 3;

/// `CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE` and `CUFILE_PARAM_FORCE_COMPAT_MODE`.
pub(super) const ALLOW_COMPAT: c_int = 1;
pub(super) const FORCE_COMPAT: c_int = 2;

/// cuFile's driver, open in this process.
#[derive(Debug)]
pub struct Session {
    cufile: CuFile,
    counts: bool,
    /// Whether it was opened here so that its compatibility mode is off.
    forbade: bool,
    /// Whether it was asked something and has not answered.
    silent: AtomicBool,
    /// No child of this process may call the library.
    home: Home,
}

impl Session {
    /// Loads the library and opens its driver. Both may hang or end the process: whoever cannot
    /// bear that asks [`ask_cufile`](crate::direct::ask_cufile) first. Its driver is one for the
    /// process, and so is the session: whoever opens the same library again has the same one.
    ///
    /// # Errors
    /// There is no library, or its driver does not open.
    pub fn open(named: Option<&Path>, packages: &[PathBuf]) -> Result<Arc<Self>, CuFileFailure> {
        Self::shared(&places(named, packages), Self::of)
    }

    /// The same, if the library's compatibility mode is off: files without a direct path are
    /// refused then, and do not take another way unseen. It is switched off where nobody else has
    /// opened the driver of this process, for all who use it there; else whoever did has to have
    /// done so, or the configuration, where an old library does not tell.
    ///
    /// # Errors
    /// As for [`open`](Self::open), and [`CuFileFailure::CompatAllowed`].
    pub(crate) fn open_direct_only(
        library: Option<&Path>,
        configured: Compat,
    ) -> Result<Arc<Self>, CuFileFailure> {
        let opens = |cufile| Self::of_direct_only(cufile, configured);
        let session = Self::shared(&places(library, &[]), opens)?;
        if is_direct_only(session.table(), configured) {
            return Ok(session);
        }
        Err(CuFileFailure::CompatAllowed { is_shared: !session.forbade })
    }

    /// The session of a library that is loaded, which is opened so if there is none.
    fn shared(
        places: &[PathBuf],
        opens: impl FnOnce(CuFile) -> Result<Self, CuFileFailure>,
    ) -> Result<Arc<Self>, CuFileFailure> {
        SESSIONS.check_home()?;
        let cufile = CuFile::load(places).map_err(CuFileFailure::Library)?;
        let loaded_at = cufile.table.driver_open as usize;
        SESSIONS.of(loaded_at, || opens(cufile))
    }

    /// Opens a driver with its compatibility mode off, if it is for us to say. It may be on all the
    /// same; what was tried for nothing is taken back, since others are not to be without it then.
    fn of_direct_only(cufile: CuFile, configured: Compat) -> Result<Self, CuFileFailure> {
        let table = &cufile.table;
        let is_shared = is_open(table);
        let may_be = match (is_shared, configured) {
            (true, _) => is_direct_only(table, configured),
            (false, Compat::Forced) => false,
            (false, Compat::Forbidden) => true,
            (false, Compat::Allowed) => table.get_parameter_bool.is_some(),
        };
        if !may_be {
            return Err(CuFileFailure::CompatAllowed { is_shared }); // and nothing was touched
        }
        if is_shared {
            return Self::of(cufile);
        }
        let set = table.set_parameter_bool;
        let allow = |allowed| {
            // SAFETY: the function needs nothing. Whether it did is asked later.
            set.map(|set| unsafe { set(ALLOW_COMPAT, allowed) })
        };
        // Before it opens a library says `false` whatever is configured (1.14, 1.15 and 1.20 do),
        // so what is not set counts as the configuration has it.
        let before = setting(table, ALLOW_COMPAT) == Some(true) || configured == Compat::Allowed;
        let _ = allow(false);
        let opened = Self::of(cufile).map(|session| Self { forbade: true, ..session });
        match &opened {
            Ok(session) if is_direct_only(session.table(), configured) => {}
            _ => drop(allow(before)),
        }
        opened
    }

    /// A driver that is played.
    pub(crate) fn played() -> Result<Arc<Self>, CuFileFailure> {
        Self::of_played().map(Arc::new)
    }

    pub(super) fn of_played() -> Result<Self, CuFileFailure> {
        Self::of_played_by(simulated::table())
    }

    /// The same, by a library that does something else as well.
    pub(super) fn of_played_by(table: Table) -> Result<Self, CuFileFailure> {
        Self::of(CuFile { table, version: simulated::VERSION, path: "simulated".into() })
    }

    /// As [`register`](Self::register), of a driver that is played so.
    pub(crate) fn register_played(
        self: &Arc<Self>,
        file: File,
        (play, seed): (CuFilePlay, u64),
    ) -> Result<RegisteredFile, CuFileFailure> {
        simulated::playing(play, seed, || self.register(file))
    }

    /// Opens the driver of a library, whoever else has.
    pub(super) fn of(cufile: CuFile) -> Result<Self, CuFileFailure> {
        let table = &cufile.table;
        // A driver that counts begins to as it opens; one of others is left as it is.
        let level = table.set_stats_level.filter(|_| !is_open(table));
        let before = level.and_then(|_| level_of(table));
        // SAFETY: the function needs nothing.
        let counts = level.is_some_and(|set| unsafe { set(COUNT_GPUS) }.checked("").is_ok());
        // SAFETY: as above.
        let opened = unsafe { (table.driver_open)() }.checked("cuFileDriverOpen");
        if let (Err(_), Some(set), Some(before)) = (&opened, level, before) {
            // SAFETY: as above. Who opens it later is not to count for nobody.
            let _ = unsafe { set(before) };
        }
        opened?;
        if let (true, Some(start)) = (counts, table.stats_start) {
            // SAFETY: as above. Where it fails they count from the start, or not at all.
            let _ = unsafe { start() }.checked("cuFileStatsStart");
            table.stats_stop.into_iter().for_each(stop_at_end);
        }
        let (silent, home) = (AtomicBool::new(false), Home::here());
        Ok(Self { cufile, counts, forbade: false, silent, home })
    }

    pub(super) fn table(&self) -> &Table {
        &self.cufile.table
    }

    /// Whether it has left a question without an answer, so that nothing more is asked of it.
    pub(super) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    /// Asks nothing more of it.
    pub(super) fn fall_silent(&self) {
        self.silent.store(true, Ordering::Relaxed);
    }

    /// Whether this is the process that opened it.
    pub(super) fn is_here(&self) -> bool {
        self.home.is_here()
    }

    /// The library.
    #[must_use]
    pub fn library(&self) -> &Path {
        &self.cufile.path
    }

    /// Its version, such as `1.15`.
    #[must_use]
    pub fn version(&self) -> String {
        version_text(self.cufile.version)
    }

    /// Its version as the library tells it, such as 1150.
    #[must_use]
    pub fn version_number(&self) -> u32 {
        u32::try_from(self.cufile.version).unwrap_or(0)
    }

    /// What the library has counted in this process since its driver opened, for each GPU
    /// (`CUfileStatsLevel3_t`); `None`: it does not count, being older than 1.15 or another's.
    #[must_use]
    pub fn counters(&self) -> Option<Box<[u8]>> {
        let get = self.cufile.table.get_stats_l3.filter(|_| self.counts)?;
        self.check_home().ok()?;
        let mut counters = Box::new(Counters([0; 8192]));
        // SAFETY: it has more room than any version fills.
        let told = unsafe { get((&raw mut *counters).cast::<c_void>()) };
        told.checked("cuFileGetStatsL3").ok()?;
        Some(counters.0.into())
    }

    /// Refuses what a forked child asks: its library has none of its threads.
    fn check_home(&self) -> Result<(), CuFileFailure> {
        self.is_here().then_some(()).ok_or(CuFileFailure::Forked)
    }

    /// Makes a file known to the driver.
    ///
    /// # Errors
    /// The library's: its file system, its drive, or the way that it was opened, is not served.
    pub fn register(self: &Arc<Self>, file: File) -> Result<RegisteredFile, CuFileFailure> {
        self.check_home()?;
        let mut handle: FileHandle = ptr::null_mut();
        let mut descriptor = Descriptor::of(file.as_raw_fd());
        // SAFETY: the outputs outlive the call, and the descriptor what is registered.
        let told =
            unsafe { (self.cufile.table.handle_register)(&raw mut handle, &raw mut descriptor) };
        told.checked("cuFileHandleRegister")?;
        Ok(RegisteredFile { session: Arc::clone(self), handle, file })
    }
}

/// How often the driver has been opened in this process.
pub(super) fn uses(table: &Table) -> c_long {
    // SAFETY: the function needs nothing.
    unsafe { (table.use_count)() }
}

fn is_open(table: &Table) -> bool {
    uses(table) > 0
}

/// A setting as it is in force; `None`: the library does not tell.
pub(super) fn setting(table: &Table, number: c_int) -> Option<bool> {
    let get = table.get_parameter_bool?;
    let mut value = false;
    // SAFETY: the output outlives the call.
    unsafe { get(number, &raw mut value) }.checked("").is_ok().then_some(value)
}

/// Whether nothing goes another way unseen by a driver that is open.
fn is_direct_only(table: &Table, configured: Compat) -> bool {
    match (setting(table, ALLOW_COMPAT), setting(table, FORCE_COMPAT)) {
        (Some(allowed), forced) => !allowed && forced != Some(true),
        (None, _) => configured == Compat::Forbidden,
    }
}

/// A file that the driver knows.
#[derive(Debug)]
pub struct RegisteredFile {
    session: Arc<Session>,
    handle: FileHandle,
    /// Open as long as it is registered.
    file: File,
}

// SAFETY: every function of the library may be called from any thread, says its reference.
unsafe impl Send for RegisteredFile {}
// SAFETY: as above.
unsafe impl Sync for RegisteredFile {}

impl Drop for RegisteredFile {
    fn drop(&mut self) {
        if !self.session.home.is_here() {
            return; // it is the parent's
        }
        // SAFETY: registered once, given back once, by when nothing uses it any more.
        unsafe { (self.session.cufile.table.handle_deregister)(self.handle) }
    }
}

impl RegisteredFile {
    /// The file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Reads up to `len` bytes at `offset` of the file to the byte `at` of the memory at `base`:
    /// how many came. Fewer come at the end of the file, and wherever the library stops.
    ///
    /// # Safety
    /// The memory has so many bytes there, nobody else uses them, and its context is current.
    ///
    /// # Errors
    /// The library's, and the kernel's.
    pub unsafe fn read(
        &self,
        base: u64,
        at: u64,
        len: usize,
        offset: u64,
    ) -> Result<u64, CuFileFailure> {
        self.session.check_home()?;
        let (offset, at) = (signed(offset)?, signed(at)?);
        let read = self.session.table().read;
        // SAFETY: the caller's promise.
        let moved = unsafe { read(self.handle, base as *mut c_void, len, offset, at) };
        CuFileFailure::of_moved("cuFileRead", moved, len)
    }

    /// Writes up to `len` bytes from the byte `at` on of the memory at `base` to `offset` of the
    /// file: how many went.
    ///
    /// # Safety
    /// As for [`read`](Self::read), but others may read them.
    ///
    /// # Errors
    /// The library's, and the kernel's.
    pub unsafe fn write(
        &self,
        base: u64,
        at: u64,
        len: usize,
        offset: u64,
    ) -> Result<u64, CuFileFailure> {
        self.session.check_home()?;
        let (offset, at) = (signed(offset)?, signed(at)?);
        let write = self.session.table().write;
        // SAFETY: the caller's promise.
        let moved = unsafe { write(self.handle, base as *const c_void, len, offset, at) };
        CuFileFailure::of_moved("cuFileWrite", moved, len)
    }
}

/// Offsets are signed on the library's side.
fn signed(offset: u64) -> Result<i64, CuFileFailure> {
    i64::try_from(offset).map_err(|_| CuFileFailure::Io(rustix::io::Errno::OVERFLOW))
}
