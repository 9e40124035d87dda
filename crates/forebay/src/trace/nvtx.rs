//! Ranges on the timeline of NVIDIA's tools, such as Nsight Systems: transfers, requests, plans and
//! copies, while a tool is attached.
//!
//! A tool is a library whose path stands in `NVTX_INJECTION64_PATH`. NVTX 3 has no library of its
//! own: what wants to be seen loads the tool's, and hands it tables of functions to fill. That is
//! what this does, once for the process; NVIDIA keeps the numbers and structures of
//! `nvtxDetail/nvtxTypes.h`, so that old tools take new programs and the other way round. Without
//! the variable nothing is loaded, and each place where a range could begin costs a branch.

#![expect(unsafe_code, reason = "loads a library and calls the functions that it gives")]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::mem;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::lock::Lock;
use libloading::Library;

/// Says where the tool is.
const VARIABLE: &str = "NVTX_INJECTION64_PATH";

/// `NVTX_VERSION`: that of the protocol, and of the attributes.
const VERSION: u16 = 3;

/// Functions of each module, the unused first among them: `NVTX_CBID_…_SIZE` of `CORE`, `CUDA`,
/// `OPENCL`, `CUDART`, `CORE2` and `SYNC`. A tool may insist on any of them.
pub(super) const SIZES: [usize; 7] = [0, 16, 9, 15, 7, 16, 7];
const SIZE_MAX: usize = 16;

/// `NVTX_CB_MODULE_CORE2`, whose functions name a domain, and those of its functions that serve.
pub(super) const CORE2: usize = 5;
pub(super) const RANGE_START: usize = 2;
pub(super) const RANGE_END: usize = 3;
pub(super) const NAME_CATEGORY: usize = 8;
pub(super) const CREATE_DOMAIN: usize = 12;

pub(super) type Function = AtomicPtr<c_void>;
/// `nvtxDomainHandle_t`.
pub(super) type Domain = *mut c_void;
pub(super) type GetExportTable = unsafe extern "C" fn(u32) -> *const c_void;
/// `InitializeInjectionNvtx2`; zero: the tool refuses.
pub(super) type Initialize = unsafe extern "C" fn(GetExportTable) -> c_int;

type RangeStart = unsafe extern "C" fn(Domain, *const Attributes) -> u64;
type RangeEnd = unsafe extern "C" fn(Domain, u64);
type NameCategory = unsafe extern "C" fn(Domain, u32, *const c_char);
type CreateDomain = unsafe extern "C" fn(*const c_char) -> Domain;

/// What the tool writes into.
static FUNCTIONS: [[Function; SIZE_MAX]; SIZES.len()] =
    [const { [const { AtomicPtr::new(ptr::null_mut()) }; SIZE_MAX] }; SIZES.len()];

/// A table for each module: the addresses of its functions, with an end that is null.
struct Addresses([[*const Function; SIZE_MAX + 1]; SIZES.len()]);

// SAFETY: they point to atomic numbers that live as long as the process.
unsafe impl Sync for Addresses {}

static ADDRESSES: Addresses = {
    let mut all = [[ptr::null(); SIZE_MAX + 1]; SIZES.len()];
    let mut module = 1;
    while module < SIZES.len() {
        let mut function = 1;
        while function < SIZES[module] {
            all[module][function] = &raw const FUNCTIONS[module][function];
            function += 1;
        }
        module += 1;
    }
    Addresses(all)
};

/// `NvtxExportTableCallbacks`.
#[repr(C)]
pub(super) struct Callbacks {
    pub(super) size: usize,
    pub(super) module:
        unsafe extern "C" fn(c_uint, *mut *const *const Function, *mut c_uint) -> c_int,
}

/// `NvtxExportTableVersionInfo`.
#[repr(C)]
pub(super) struct VersionInfo {
    pub(super) size: usize,
    pub(super) version: u32,
    reserved: u32,
    pub(super) set: unsafe extern "C" fn(u32),
}

static CALLBACKS: Callbacks = Callbacks { size: size_of::<Callbacks>(), module: module_table };
static VERSION_INFO: VersionInfo = VersionInfo {
    size: size_of::<VersionInfo>(),
    version: VERSION as u32,
    reserved: 0,
    set: take_version,
};

/// # Safety
/// The outputs are null, or may be written.
unsafe extern "C" fn module_table(
    module: c_uint,
    table: *mut *const *const Function,
    size: *mut c_uint,
) -> c_int {
    let known = usize::try_from(module).ok().filter(|module| (1..SIZES.len()).contains(module));
    let Some(module) = known else { return 0 };
    let count = c_uint::try_from(SIZES[module]).unwrap_or(0);
    // SAFETY: the caller's promise.
    unsafe {
        if !table.is_null() {
            table.write(ADDRESSES.0[module].as_ptr());
        }
        if !size.is_null() {
            size.write(count);
        }
    }
    1
}

/// The tool's own version, which nobody has needed yet.
unsafe extern "C" fn take_version(_version: u32) {}

pub(super) unsafe extern "C" fn export_table(number: u32) -> *const c_void {
    match number {
        1 => (&raw const CALLBACKS).cast(),
        3 => (&raw const VERSION_INFO).cast(),
        _ => ptr::null(),
    }
}

/// `nvtxEventAttributes_t`, with a number of bytes and a name.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Attributes {
    version: u16,
    size: u16,
    pub(super) category: u32,
    color_kind: c_int,
    color: u32,
    payload_kind: c_int,
    reserved: c_int,
    pub(super) payload: u64,
    message_kind: c_int,
    pub(super) message: *const c_char,
}

impl Attributes {
    fn new(kind: Kind, name: &CStr, len: u64) -> Self {
        Self {
            version: VERSION,
            size: u16::try_from(size_of::<Self>()).unwrap_or(0),
            category: kind as u32,
            color_kind: 0,
            color: 0,
            payload_kind: 1, // NVTX_PAYLOAD_TYPE_UNSIGNED_INT64
            reserved: 0,
            payload: len,
            message_kind: 1, // NVTX_MESSAGE_TYPE_ASCII, which is UTF-8
            message: name.as_ptr(),
        }
    }
}

/// What a range is of; the tool shows each kind as a category.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Transfer = 1,
    Request,
    Plan,
    Copy,
}

const KINDS: [(Kind, &CStr); 4] = [
    (Kind::Transfer, c"transfers"),
    (Kind::Request, c"requests"),
    (Kind::Plan, c"plans"),
    (Kind::Copy, c"copies"),
];

/// A tool that is attached.
#[derive(Debug)]
pub(crate) struct Tool {
    domain: Domain,
    start: RangeStart,
    end: RangeEnd,
}

// SAFETY: the tool's functions may be called by any thread, and the domain is only handed to them.
unsafe impl Send for Tool {}
// SAFETY: as above.
unsafe impl Sync for Tool {}

impl Tool {
    /// # Errors
    /// The tool's answer, as text for a person.
    ///
    /// # Safety
    /// `initialize` is the entry of a tool that stays loaded.
    pub(super) unsafe fn attach(initialize: Initialize) -> Result<Self, &'static str> {
        static TURN: Lock<()> = Lock::new(());
        let _turn = TURN.lock();
        FUNCTIONS.iter().flatten().for_each(|one| one.store(ptr::null_mut(), Ordering::SeqCst));
        // SAFETY: the caller's promise, and the tables are as NVTX has them.
        if unsafe { initialize(export_table) } == 0 {
            return Err("it refuses");
        }
        let given = |function: usize| {
            let address = FUNCTIONS[CORE2][function].load(Ordering::SeqCst);
            (!address.is_null()).then_some(address)
        };
        let (Some(start), Some(end)) = (given(RANGE_START), given(RANGE_END)) else {
            return Err("it takes no ranges");
        };
        // SAFETY: a tool writes functions of these signatures to these places.
        let (start, end) = unsafe {
            (mem::transmute::<Domain, RangeStart>(start), mem::transmute::<Domain, RangeEnd>(end))
        };
        // Without a domain of ours they go to the one of everybody, which is null.
        let domain = given(CREATE_DOMAIN).map_or(ptr::null_mut(), |create| {
            // SAFETY: as above, and the name is a constant.
            unsafe { mem::transmute::<Domain, CreateDomain>(create)(c"forebay".as_ptr()) }
        });
        if let Some(name) = given(NAME_CATEGORY) {
            // SAFETY: as above.
            let name = unsafe { mem::transmute::<Domain, NameCategory>(name) };
            for (kind, text) in KINDS {
                // SAFETY: as above, and the texts are constants.
                unsafe { name(domain, kind as u32, text.as_ptr()) };
            }
        }
        Ok(Self { domain, start, end })
    }

    fn load(path: &str) -> Result<Self, String> {
        // SAFETY: whoever sets the variable wants the tool's initialisers run in this process.
        let library = unsafe { Library::new(path) }.map_err(|error| {
            let source = std::error::Error::source(&error);
            source.map_or_else(|| error.to_string(), ToString::to_string)
        })?;
        // SAFETY: this is the signature of the function of this name.
        let initialize = unsafe { library.get::<Initialize>(c"InitializeInjectionNvtx2") };
        let initialize = *initialize.map_err(|_| format!("`{path}` is no tool of NVTX 3"))?;
        // Its functions are called as long as the process lives.
        mem::forget(library);
        // SAFETY: it stays loaded.
        unsafe { Self::attach(initialize) }.map_err(|reason| format!("`{path}`: {reason}"))
    }
}

/// The tool of this process, asked for at the first call; none where none is wanted.
///
/// # Errors
/// Why there is none although one is wanted.
pub(crate) fn attached() -> Result<Ranges, &'static str> {
    static TOOL: OnceLock<Result<Option<Tool>, String>> = OnceLock::new();
    let tool = TOOL.get_or_init(|| match std::env::var(VARIABLE) {
        // SAFETY: the call has no conditions. With rights that its user has not, no process may
        // load what that user names.
        Ok(path) if unsafe { libc::getauxval(libc::AT_SECURE) } == 0 => Tool::load(&path).map(Some),
        _ => Ok(None),
    });
    tool.as_ref().map(|tool| Ranges(tool.as_ref())).map_err(String::as_str)
}

/// Begins ranges, where a tool is attached.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ranges(Option<&'static Tool>);

impl Ranges {
    /// Those that `tool` is told of.
    #[cfg(test)]
    pub(super) fn of(tool: &'static Tool) -> Self {
        Self(Some(tool))
    }

    #[inline]
    pub(crate) fn are_on(self) -> bool {
        self.0.is_some()
    }

    /// Begins a range of `len` bytes, which any thread may end.
    #[inline]
    pub(crate) fn begin(self, kind: Kind, name: &CStr, len: u64) -> Range {
        let Some(tool) = self.0 else { return Range(None) };
        let attributes = Attributes::new(kind, name, len);
        // SAFETY: the tool stays loaded, and takes what it needs of the attributes in the call.
        Range(Some((tool, unsafe { (tool.start)(tool.domain, &raw const attributes) })))
    }

    /// The same, with a name that is made for it.
    pub(crate) fn begin_with(self, kind: Kind, len: u64, name: impl FnOnce() -> String) -> Range {
        if !self.are_on() {
            return Range(None);
        }
        let name = CString::new(name().replace('\0', "")).unwrap_or_default();
        self.begin(kind, &name, len)
    }
}

/// A range on the tool's timeline, until it is dropped.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Range(Option<(&'static Tool, u64)>);

impl Drop for Range {
    #[inline]
    fn drop(&mut self) {
        if let Some((tool, number)) = self.0 {
            // SAFETY: the tool stays loaded, and the number is its own.
            unsafe { (tool.end)(tool.domain, number) };
        }
    }
}
