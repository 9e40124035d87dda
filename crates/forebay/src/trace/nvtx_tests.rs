//! Plays a tool that is attached in this process, and looks at what it is told.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use super::nvtx::{
    Attributes, CORE2, CREATE_DOMAIN, Callbacks, Domain, Kind, NAME_CATEGORY, RANGE_END,
    RANGE_START, Ranges, SIZES, Tool, VersionInfo, export_table,
};

/// What it was told of ranges; others tests attach it as well, but begin none.
static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn write(line: String) {
    TOLD.lock().unwrap().push(line);
}

unsafe extern "C" fn start(_domain: Domain, attributes: *const Attributes) -> u64 {
    // SAFETY: those of a range that begins.
    let Attributes { category, payload, message, .. } = unsafe { &*attributes };
    // SAFETY: as above.
    let name = unsafe { CStr::from_ptr(*message) }.to_string_lossy();
    write(format!("start {category} {payload} {name}"));
    payload + 1
}

unsafe extern "C" fn end(_domain: Domain, number: u64) {
    write(format!("end {number}"));
}

unsafe extern "C" fn create(_name: *const c_char) -> Domain {
    ptr::without_provenance_mut(7)
}

unsafe extern "C" fn name_category(domain: Domain, _category: u32, _name: *const c_char) {
    assert_eq!(domain.addr(), 7);
}

type GetExportTable = unsafe extern "C" fn(u32) -> *const c_void;

/// Fills what has a function of these in the table of a module.
fn fill(tables: GetExportTable, functions: &[(usize, *mut c_void)]) {
    let (mut table, mut size) = (ptr::null(), 0);
    // SAFETY: table 1 is that of the callbacks, and the outputs outlive the call.
    let known = unsafe {
        let callbacks = &*tables(1).cast::<Callbacks>();
        (callbacks.module)(5, &raw mut table, &raw mut size)
    };
    assert_eq!((known, size), (1, 16));
    for &(index, function) in functions {
        // SAFETY: the table has as many entries, and each leads to a function.
        unsafe { &**table.add(index) }.store(function, Ordering::SeqCst);
    }
}

unsafe extern "C" fn takes_all(tables: GetExportTable) -> c_int {
    let functions = [
        (RANGE_START, start as *mut c_void),
        (RANGE_END, end as *mut c_void),
        (CREATE_DOMAIN, create as *mut c_void),
        (NAME_CATEGORY, name_category as *mut c_void),
    ];
    fill(tables, &functions);
    1
}

unsafe extern "C" fn takes_half(tables: GetExportTable) -> c_int {
    fill(tables, &[(RANGE_START, start as *mut c_void)]);
    1
}

unsafe extern "C" fn refuses(tables: GetExportTable) -> c_int {
    fill(tables, &[(RANGE_START, start as *mut c_void), (RANGE_END, end as *mut c_void)]);
    0
}

#[test]
fn a_range_begins_and_ends_with_the_tool() {
    // SAFETY: they are functions of this program, here and below.
    let tool = Box::leak(Box::new(unsafe { Tool::attach(takes_all) }.unwrap()));
    let ranges = Ranges::of(tool);
    let one = ranges.begin(Kind::Request, c"read", 4096);
    let two = ranges.begin_with(Kind::Transfer, 9, || "a\0b".into());
    drop(one);
    drop(two);
    drop(Ranges::default().begin(Kind::Copy, c"nobody sees it", 1));
    drop(Ranges::default().begin_with(Kind::Copy, 1, || unreachable!("nobody wants it")));
    let told = std::mem::take(&mut *TOLD.lock().unwrap());
    assert_eq!(told, ["start 2 4096 read", "start 1 9 ab", "end 4097", "end 10"]);
}

#[test]
fn a_tool_that_refuses_or_takes_no_ranges_is_none() {
    // SAFETY: as above.
    unsafe {
        assert_eq!(Tool::attach(refuses).unwrap_err(), "it refuses");
        assert_eq!(Tool::attach(takes_half).unwrap_err(), "it takes no ranges");
    }
}

#[test]
fn every_table_is_as_long_as_it_says() {
    // SAFETY: the tables are those of NVTX, and the outputs outlive the calls.
    unsafe {
        let callbacks = &*export_table(1).cast::<Callbacks>();
        assert_eq!(callbacks.size, size_of::<Callbacks>());
        let version = &*export_table(3).cast::<VersionInfo>();
        assert_eq!((version.size, version.version), (size_of::<VersionInfo>(), 3));
        (version.set)(3);
        assert!([0, 2, 4, u32::MAX].iter().all(|&number| export_table(number).is_null()));
        for module in [0, 7, u32::MAX] {
            let (mut table, mut size) = (ptr::null(), 0);
            assert_eq!((callbacks.module)(module, &raw mut table, &raw mut size), 0);
        }
        for (module, expected) in (0..).zip(SIZES).skip(1) {
            let (mut table, mut size) = (ptr::null(), 0);
            assert_eq!((callbacks.module)(module, &raw mut table, &raw mut size), 1);
            assert_eq!((callbacks.module)(module, ptr::null_mut(), ptr::null_mut()), 1);
            assert_eq!(size as usize, expected);
            let entries = std::slice::from_raw_parts(table, expected + 1);
            assert!(entries[0].is_null() && entries[expected].is_null());
            assert!(entries[1..expected].iter().all(|entry| !entry.is_null()));
        }
    }
    assert_eq!(size_of::<Attributes>(), 48);
    assert!(SIZES[CORE2] > CREATE_DOMAIN);
}
