//! cuFile's driver, open in this process, and its registered files.
//!
//! The driver exists once per process and is shared with all other code that uses it. It is never
//! closed, because other users may depend on it; it ends with the process.

#![expect(unsafe_code, reason = "calls the library")]

use std::ffi::{c_int, c_long, c_void};
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_base::lock::Lock;
use forebay_base::process::Home;
use forebay_base::timeout::within;
use forebay_gpu::sim::SimulatedCuFile;

use super::failure::{Answer, CuFileFailure};
use super::layout::{Descriptor, RawCounters};
use super::library::{CuFile, places, version_text};
use super::library::{FileHandle, Table};
use super::reach::Compat;
use super::sessions::Sessions;
use super::simulated;
use crate::OPENS_WITHIN;

/// Statistics level with counters for each GPU.
const COUNT_GPUS: c_int = 3;

/// `CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE` and `CUFILE_PARAM_FORCE_COMPAT_MODE`.
pub(super) const ALLOW_COMPAT: c_int = 1;
pub(super) const FORCE_COMPAT: c_int = 2;

/// All sessions of this process.
static SESSIONS: Sessions<Session> = Sessions::within(OPENS_WITHIN);

/// cuFile's driver, open in this process.
#[derive(Debug)]
pub struct Session {
    cufile: CuFile,
    counts: bool,
    /// Whether it was opened here with its compatibility mode switched off.
    forbade: bool,
    /// Whether a call has not returned in time.
    silent: AtomicBool,
    /// A forked child must not call the library.
    home: Home,
}

impl Session {
    /// Loads the library and opens its driver. Both may hang or end the process; probe with
    /// [`probe_cufile`](crate::probe_cufile) first if that is a problem. The driver exists once
    /// per process, and so does the session: opening the same library again returns the same one.
    ///
    /// # Errors
    /// There is no library, or its driver does not open.
    pub fn open(named: Option<&Path>, packages: &[PathBuf]) -> Result<Arc<Self>, CuFileFailure> {
        Self::shared(&places(named, packages), Self::of)
    }

    /// Like `open`, but fails unless the library's compatibility mode is off. Then files without a
    /// direct path are refused instead of being copied silently. If the driver is not open in this
    /// process yet, the mode is switched off for all its users. Otherwise it must be off already,
    /// or forbidden by the configuration if an old library does not report it.
    ///
    /// # Errors
    /// As for [`open`](Self::open), and [`CuFileFailure::CompatAllowed`].
    pub fn open_direct_only(
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

    /// The session of a loaded library, opened with `opens` if there is none.
    fn shared(
        places: &[PathBuf],
        opens: impl FnOnce(CuFile) -> Result<Self, CuFileFailure>,
    ) -> Result<Arc<Self>, CuFileFailure> {
        SESSIONS.check_home()?;
        let cufile = CuFile::load(places).map_err(CuFileFailure::Library)?;
        let loaded_at = cufile.table.driver_open as usize;
        SESSIONS.of(loaded_at, || opens(cufile))
    }

    /// Opens a driver with its compatibility mode off, if it is not open yet. If the mode is on
    /// nevertheless, the setting is restored, because other users may need the mode.
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
            return Err(CuFileFailure::CompatAllowed { is_shared }); // nothing was changed
        }
        if is_shared {
            return Self::of(cufile);
        }
        let set = table.set_parameter_bool;
        let allow = |allowed| {
            // SAFETY: the function has no preconditions. Its effect is checked later.
            set.map(|set| unsafe { set(ALLOW_COMPAT, allowed) })
        };
        // Before the driver is open a library reports `false` whatever is configured (1.14, 1.15
        // and 1.20 do). So the configured value counts as the previous one.
        let before = setting(table, ALLOW_COMPAT) == Some(true) || configured == Compat::Allowed;
        let _ = allow(false);
        let opened = Self::of(cufile).map(|session| Self { forbade: true, ..session });
        match &opened {
            Ok(session) if is_direct_only(session.table(), configured) => {}
            _ => drop(allow(before)),
        }
        opened
    }

    /// The simulated driver.
    ///
    /// # Errors
    /// None is known.
    pub fn simulated() -> Result<Arc<Self>, CuFileFailure> {
        Self::of_simulated().map(Arc::new)
    }

    pub(super) fn of_simulated() -> Result<Self, CuFileFailure> {
        Self::of_simulated_by(simulated::table())
    }

    /// Opens a simulated driver with changed functions.
    pub(super) fn of_simulated_by(table: Table) -> Result<Self, CuFileFailure> {
        Self::of(CuFile { table, version: simulated::VERSION, path: "simulated".into() })
    }

    /// Like [`register`](Self::register), with a simulated driver of this behavior, and a seed.
    ///
    /// # Errors
    /// As for `register`.
    pub fn register_simulated(
        self: &Arc<Self>,
        file: File,
        (play, seed): (SimulatedCuFile, u64),
    ) -> Result<RegisteredFile, CuFileFailure> {
        simulated::with_simulated(play, seed, || self.register(file))
    }

    /// Opens the driver of a library, even if it is open already.
    pub(super) fn of(cufile: CuFile) -> Result<Self, CuFileFailure> {
        let table = &cufile.table;
        // Counting starts when the driver opens. A driver that is open already is left as it is.
        let level = table.set_stats_level.filter(|_| !is_open(table));
        let before = level.and_then(|_| level_of(table));
        // SAFETY: the function has no preconditions.
        let counts = level.is_some_and(|set| unsafe { set(COUNT_GPUS) }.checked("").is_ok());
        // SAFETY: as above.
        let opened = unsafe { (table.driver_open)() }.checked("cuFileDriverOpen");
        if let (Err(_), Some(set), Some(before)) = (&opened, level, before) {
            // SAFETY: as above. A later user of the driver must not count needlessly.
            let _ = unsafe { set(before) };
        }
        opened?;
        if let (true, Some(start)) = (counts, table.stats_start) {
            // SAFETY: as above. If it fails, counting has begun at open, or does not happen.
            let _ = unsafe { start() }.checked("cuFileStatsStart");
            table.stats_stop.into_iter().for_each(stop_at_end);
        }
        let (silent, home) = (AtomicBool::new(false), Home::here());
        Ok(Self { cufile, counts, forbade: false, silent, home })
    }

    pub(super) fn table(&self) -> &Table {
        &self.cufile.table
    }

    /// Whether a call has not returned in time, so that no more calls are made.
    pub(super) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    /// Stops all further calls.
    pub(super) fn fall_silent(&self) {
        self.silent.store(true, Ordering::Relaxed);
    }

    /// Whether this is the process that opened it.
    #[must_use]
    pub fn is_here(&self) -> bool {
        self.home.is_here()
    }

    /// Path of the library.
    #[must_use]
    pub fn library(&self) -> &Path {
        &self.cufile.path
    }

    /// Its version, such as `1.15`.
    #[must_use]
    pub fn version(&self) -> String {
        version_text(self.cufile.version)
    }

    /// Its version number as reported by the library, such as 1150.
    #[must_use]
    pub fn version_number(&self) -> u32 {
        u32::try_from(self.cufile.version).unwrap_or(0)
    }

    /// The library's counters in this process since its driver opened, per GPU
    /// (`CUfileStatsLevel3_t`). `None` if it does not count: it is older than 1.15, or was opened
    /// by other code.
    #[must_use]
    pub fn counters(&self) -> Option<Box<[u8]>> {
        let get = self.cufile.table.get_stats_l3.filter(|_| self.counts)?;
        self.check_home().ok()?;
        let mut counters = Box::new(RawCounters([0; 8192]));
        // SAFETY: the buffer is larger than any version fills.
        let status = unsafe { get((&raw mut *counters).cast::<c_void>()) };
        status.checked("cuFileGetStatsL3").ok()?;
        Some(counters.0.into())
    }

    /// Fails in a forked child: its library has none of its threads.
    fn check_home(&self) -> Result<(), CuFileFailure> {
        self.is_here().then_some(()).ok_or(CuFileFailure::Forked)
    }

    /// Registers a file with the driver.
    ///
    /// # Errors
    /// Errors of the library: the file system, the drive or the open mode is not supported.
    pub fn register(self: &Arc<Self>, file: File) -> Result<RegisteredFile, CuFileFailure> {
        self.check_home()?;
        let mut handle: FileHandle = ptr::null_mut();
        let mut descriptor = Descriptor::of(file.as_raw_fd());
        // SAFETY: the outputs outlive the call, and the descriptor outlives the registration.
        let status =
            unsafe { (self.cufile.table.handle_register)(&raw mut handle, &raw mut descriptor) };
        status.checked("cuFileHandleRegister")?;
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

/// The current value of a setting; `None` if the library does not report it.
pub(super) fn setting(table: &Table, number: c_int) -> Option<bool> {
    let get = table.get_parameter_bool?;
    let mut value = false;
    // SAFETY: the output outlives the call.
    unsafe { get(number, &raw mut value) }.checked("").is_ok().then_some(value)
}

/// Whether an open driver never copies through host memory silently.
fn is_direct_only(table: &Table, configured: Compat) -> bool {
    match (setting(table, ALLOW_COMPAT), setting(table, FORCE_COMPAT)) {
        (Some(allowed), forced) => !allowed && forced != Some(true),
        (None, _) => configured == Compat::Forbidden,
    }
}

/// A file registered with the driver.
#[derive(Debug)]
pub struct RegisteredFile {
    pub(super) session: Arc<Session>,
    handle: FileHandle,
    /// Open as long as it is registered.
    file: File,
}

// SAFETY: according to its reference, all functions of the library may be called from any thread.
unsafe impl Send for RegisteredFile {}
// SAFETY: as above.
unsafe impl Sync for RegisteredFile {}

impl Drop for RegisteredFile {
    fn drop(&mut self) {
        if !self.session.home.is_here() {
            return; // it belongs to the parent
        }
        // SAFETY: registered once and deregistered once, when nothing uses it any more.
        unsafe { (self.session.cufile.table.handle_deregister)(self.handle) }
    }
}

impl RegisteredFile {
    /// The file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Reads up to `len` bytes at `offset` of the file to byte `at` of the memory at `base`;
    /// returns the number read. It may be less at the end of the file, or wherever the library
    /// stops.
    ///
    /// # Safety
    /// The memory has that many bytes there, nothing else uses them, and its context is current.
    ///
    /// # Errors
    /// Errors of the library and the kernel.
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

    /// Writes up to `len` bytes from byte `at` of the memory at `base` to `offset` of the file;
    /// returns the number written.
    ///
    /// # Safety
    /// As for [`read`](Self::read), but concurrent reads of the memory are allowed.
    ///
    /// # Errors
    /// Errors of the library and the kernel.
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

/// Converts an offset; the library's offsets are signed.
fn signed(offset: u64) -> Result<i64, CuFileFailure> {
    i64::try_from(offset).map_err(|_| CuFileFailure::Io(rustix::io::Errno::OVERFLOW))
}

/// The library's statistics level, if it reports one.
pub(super) fn level_of(table: &Table) -> Option<c_int> {
    let mut level = 0;
    // SAFETY: the output outlives the call.
    let status = unsafe { table.get_stats_level?(&raw mut level) };
    status.checked("").is_ok().then_some(level)
}

/// `cuFileStatsStop`.
type StatsStop = unsafe extern "C" fn() -> Answer;

/// Libraries that count, with the process they belong to; a forked child ignores them.
static COUNTING: Lock<Vec<(Home, StatsStop)>> = Lock::new(Vec::new());

/// Maximum time for libraries to stop counting. Another hanging call may hold a lock that they
/// need.
const STOP_WITHIN: Duration = Duration::from_secs(1);

/// Makes a library stop counting when the process ends. Version 1.15 crashes at exit if it still
/// counts per GPU (`docs/internals.md#cufile`).
pub(super) fn stop_at_end(stop: StatsStop) {
    extern "C" fn stop_all() {
        // A thread that holds the lock now will never release it.
        let Some(counting) = COUNTING.try_lock() else { return };
        let here = counting.iter().filter(|(home, _)| home.is_here());
        let here: Vec<StatsStop> = here.map(|(_, stop)| *stop).collect();
        if here.is_empty() {
            return;
        }
        let stops = move || {
            for stop in here {
                // SAFETY: the function has no preconditions, and the library is never unloaded.
                let _ = unsafe { stop() };
            }
        };
        let _ = within(STOP_WITHIN, "forebay-stop", stops);
    }
    let mut counting = COUNTING.lock();
    if counting.is_empty() {
        // SAFETY: the function exists as long as the process. Handlers run in reverse order, so
        // ours runs before the library's, which was registered earlier.
        let _ = unsafe { libc::atexit(stop_all) };
    }
    counting.push((Home::here(), stop));
}
