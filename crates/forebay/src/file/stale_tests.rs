//! Tests of stale pages.

#![expect(unsafe_code, reason = "maps pages")]

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::ptr;

use forebay_base::units::{ByteRange, KIB};
use rustix::mm::{MapFlags, ProtFlags, mmap};

use super::Handle;
use crate::file::OpenOptions;
use crate::file::tests::lab;

#[test]
fn mapped_pages_with_the_new_bytes_pass_where_the_descriptor_cannot_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, lab::pattern(3, 64 << 10)).unwrap();
    let writer = File::options().write(true).open(&path).unwrap();
    writer.sync_all().unwrap();
    let handle = Handle::from_borrowed(writer.as_fd()).unwrap();
    assert!(!handle.readable());
    if let Err(reason) = handle.o_direct() {
        return lab::skip(format!("a write with O_DIRECT: {reason}"));
    }
    let range = ByteRange::at(0, 64 * KIB);
    let reader = Handle::open(&path, &OpenOptions::default()).unwrap();
    // The kernel drops no page that is mapped.
    let flags = MapFlags::SHARED | MapFlags::POPULATE;
    // SAFETY: the kernel picks free addresses, and nothing is accessed through them.
    unsafe { mmap(ptr::null_mut(), 64 << 10, ProtFlags::READ, flags, reader.fd(), 0) }.unwrap();
    assert_eq!(handle.drop_stale(range), Ok(()));
    if !reader.is_resident(range) {
        lab::skip("pages that stay: the kernel dropped them");
    }
}
