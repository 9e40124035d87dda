//! A tool of NVTX 3, for tests: writes down each call that it gets, a line for each, in the file
//! that `NVTX_TOOL_OUT` names. What it knows of NVTX it has from NVIDIA's `nvtxTypes.h`, not from
//! the engine.

#![allow(unsafe_code, reason = "a library with a C interface")]
#![allow(missing_docs, reason = "its only reader is NVTX")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// `NvtxExportTableCallbacks`.
#[repr(C)]
struct Callbacks {
    size: usize,
    module: unsafe extern "C" fn(c_uint, *mut *mut *mut *mut c_void, *mut c_uint) -> c_int,
}

/// `nvtxEventAttributes_t`.
#[repr(C)]
struct Attributes {
    version: u16,
    size: u16,
    category: u32,
    color: [u32; 2],
    payload_kind: c_int,
    reserved: c_int,
    payload: u64,
    message_kind: c_int,
    message: *const c_char,
}

static OUT: Mutex<Option<File>> = Mutex::new(None);
static NEXT: AtomicU64 = AtomicU64::new(1);

/// What it answers to who makes a domain.
const DOMAIN: usize = 0xd0;

fn write(line: &str) {
    if let Ok(mut out) = OUT.lock()
        && let Some(file) = &mut *out
    {
        // One call for each line: who reads it waits for the end of the process.
        let _ = file.write_all(format!("{line}\n").as_bytes());
    }
}

/// # Safety
/// A text that ends in a zero.
unsafe fn text(text: *const c_char) -> String {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

unsafe extern "C" fn start(domain: *mut c_void, attributes: *const Attributes) -> u64 {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    // SAFETY: NVTX hands over attributes of the size that they say.
    let attributes = unsafe { &*attributes };
    assert_eq!((attributes.version, usize::from(attributes.size)), (3, size_of::<Attributes>()));
    assert_eq!((attributes.payload_kind, attributes.message_kind), (1, 1));
    assert_eq!((attributes.color, attributes.reserved), ([0, 0], 0));
    let Attributes { category, payload, .. } = *attributes;
    // SAFETY: its kind says that it is a text.
    let name = unsafe { text(attributes.message) };
    write(&format!("start {} {number} {category} {payload} {name}", domain.addr()));
    number
}

unsafe extern "C" fn end(domain: *mut c_void, number: u64) {
    write(&format!("end {} {number}", domain.addr()));
}

unsafe extern "C" fn name_category(domain: *mut c_void, category: u32, name: *const c_char) {
    // SAFETY: NVTX hands over a text.
    write(&format!("category {} {category} {}", domain.addr(), unsafe { text(name) }));
}

unsafe extern "C" fn create_domain(name: *const c_char) -> *mut c_void {
    // SAFETY: NVTX hands over a text.
    write(&format!("domain {}", unsafe { text(name) }));
    ptr::without_provenance_mut(DOMAIN)
}

/// What NVTX calls first: fills the table of the functions that know domains.
///
/// # Safety
/// `tables` gives the export tables of NVTX 3.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "NVTX's name")]
pub unsafe extern "C" fn InitializeInjectionNvtx2(
    tables: unsafe extern "C" fn(u32) -> *const c_void,
) -> c_int {
    let Some(path) = std::env::var_os("NVTX_TOOL_OUT") else { return 0 };
    let Ok(file) = OpenOptions::new().create(true).append(true).open(path) else { return 0 };
    let Ok(mut out) = OUT.lock() else { return 0 };
    *out = Some(file);
    drop(out);
    // SAFETY: table 1 is that of the callbacks.
    let callbacks = unsafe { &*tables(1).cast::<Callbacks>() };
    let (mut table, mut size) = (ptr::null_mut(), 0);
    // SAFETY: the outputs outlive the call; 5 is the module of the functions that know domains.
    let known = unsafe { (callbacks.module)(5, &raw mut table, &raw mut size) };
    if known == 0 || size < 13 || callbacks.size < size_of::<Callbacks>() {
        return 0;
    }
    for (index, function) in [
        (2, start as *mut c_void),
        (3, end as *mut c_void),
        (8, name_category as *mut c_void),
        (12, create_domain as *mut c_void),
    ] {
        // SAFETY: the table has so many entries, each of which leads to a function's place.
        unsafe { table.add(index).read().write(function) };
    }
    1
}
