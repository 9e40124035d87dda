//! System calls on device nodes and files that no library wraps: FIEMAP, the table of a
//! device-mapper volume, and the file behind a loop device.
//!
//! Layouts and numbers are those of `linux/fiemap.h`, `linux/dm-ioctl.h` and `linux/loop.h`, which
//! are part of the kernel's stable interface. The calls only read.

#![expect(unsafe_code, reason = "calls whose argument is a structure at an address")]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use super::answers::{Extent, LoopFile};

const FS_IOC_FIEMAP: u64 = 0xc020_660b;
const LOOP_GET_STATUS64: u64 = 0x4c05;
const DM_TABLE_STATUS: u64 = 0xc138_fd0c;
/// Requests the table instead of the status.
const DM_STATUS_TABLE_FLAG: u32 = 1 << 4;
/// Set if the answer did not fit.
const DM_BUFFER_FULL_FLAG: u32 = 1 << 8;
/// Length of `struct dm_ioctl`, and the offsets of its fields.
const DM_HEAD: usize = 312;
const DM_DATA_SIZE: usize = 12;
const DM_DATA_START: usize = 16;
const DM_TARGETS: usize = 20;
const DM_FLAGS: usize = 28;
const DM_DEVICE: usize = 40;
/// Length of `struct dm_target_spec`, which precedes a target's text.
const DM_SPEC: usize = 40;
/// Longest table accepted: about 10,000 linear targets.
const DM_LEN_MAX: usize = 1 << 20;
/// Extents requested per call.
const EXTENTS_AT_ONCE: usize = 256;
/// Upper bound on the extents of a file, whatever the caller requests.
const EXTENTS_MAX: usize = 1 << 20;
const FIEMAP_HEAD: usize = 32;
const FIEMAP_EXTENT: usize = 56;
/// Flag of the file's last extent.
const FIEMAP_EXTENT_LAST: u32 = 1;

/// The first `max` extents of a file.
pub(super) fn extents(fd: BorrowedFd<'_>, max: usize) -> Result<Vec<Extent>, Errno> {
    let max = max.min(EXTENTS_MAX);
    let mut found: Vec<Extent> = Vec::new();
    let mut start = 0_u64;
    while found.len() < max {
        let count = EXTENTS_AT_ONCE.min(max - found.len());
        // Whole words align the structure as the kernel requires.
        let mut memory = vec![0_u64; (FIEMAP_HEAD + EXTENTS_AT_ONCE * FIEMAP_EXTENT) / 8];
        memory[0] = start;
        memory[1] = u64::MAX - start;
        put(&mut memory, 24, u32::try_from(count).map_err(|_| Errno::INVAL)?);
        // SAFETY: the memory holds the head and the number of extents in the head.
        unsafe { call(fd, FS_IOC_FIEMAP, &mut memory)? };
        let mapped = (get(&memory, 20) as usize).min(count);
        for index in 0..mapped {
            let at = FIEMAP_HEAD + index * FIEMAP_EXTENT;
            let (logical, len) = (memory[at / 8], memory[at / 8 + 2]);
            let flags = get(&memory, at + 40);
            found.push(Extent { logical, physical: memory[at / 8 + 1], len, flags });
            // A file system whose extents do not advance would make this loop endless.
            let next = logical.saturating_add(len);
            if flags & FIEMAP_EXTENT_LAST != 0 || next <= start {
                return Ok(found);
            }
            start = next;
        }
        if mapped == 0 {
            break;
        }
    }
    Ok(found)
}

/// Device and inode of the file behind the loop device `/dev/NAME`.
pub(super) fn loop_file(name: &str) -> Result<LoopFile, Errno> {
    if name.contains('/') {
        return Err(Errno::INVAL);
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let fd = rustix::fs::openat(CWD, format!("/dev/{name}"), flags, Mode::empty())?;
    // On other nodes this ioctl number may mean something else.
    let stat = rustix::fs::fstat(&fd)?;
    if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::BlockDevice
        || rustix::fs::major(stat.st_rdev) != 7
    {
        return Err(Errno::NOTTY);
    }
    let mut memory = [0_u64; 29]; // `struct loop_info64` has 232 bytes
    // SAFETY: the memory is as long as the structure that the call fills.
    unsafe { call(fd.as_fd(), LOOP_GET_STATUS64, &mut memory)? };
    Ok(LoopFile { dev: memory[0], ino: memory[1] })
}

/// The table of the device-mapper volume `device`, a target per line, as `dmsetup table` prints
/// it, without keys. Needs `CAP_SYS_ADMIN`.
pub(super) fn dm_table(device: u64) -> Result<String, Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let fd = rustix::fs::openat(CWD, "/dev/mapper/control", flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&fd)?;
    if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::CharacterDevice {
        return Err(Errno::NOTTY);
    }
    let mut len = 16 << 10;
    loop {
        let mut memory = vec![0_u64; len / 8];
        put(&mut memory, 0, 4); // version 4.0.0 of the interface
        put(&mut memory, DM_DATA_SIZE, u32::try_from(len).map_err(|_| Errno::INVAL)?);
        put(&mut memory, DM_DATA_START, u32::try_from(DM_HEAD).map_err(|_| Errno::INVAL)?);
        put(&mut memory, DM_FLAGS, DM_STATUS_TABLE_FLAG);
        memory[DM_DEVICE / 8] = device;
        // SAFETY: the memory is as long as its head says, and the call writes no more than that.
        unsafe { call(fd.as_fd(), DM_TABLE_STATUS, &mut memory)? };
        if get(&memory, DM_FLAGS) & DM_BUFFER_FULL_FLAG == 0 {
            let bytes: Vec<u8> = memory.iter().flat_map(|word| word.to_ne_bytes()).collect();
            return Ok(targets(&bytes));
        }
        len *= 4;
        if len > DM_LEN_MAX {
            return Err(Errno::TOOBIG);
        }
    }
}

/// Formats the targets in a device-mapper answer, a line per target.
fn targets(answer: &[u8]) -> String {
    let word = |at: usize| -> Option<u32> {
        Some(u32::from_ne_bytes(answer.get(at..at + 4)?.try_into().ok()?))
    };
    let long = |at: usize| -> Option<u64> {
        Some(u64::from_ne_bytes(answer.get(at..at + 8)?.try_into().ok()?))
    };
    let text = |from: usize, to: usize| -> Option<String> {
        let bytes = answer.get(from..to.min(answer.len()))?;
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
    };
    let mut lines = String::new();
    let first = word(DM_DATA_START).unwrap_or(0) as usize;
    let mut at = first;
    for _ in 0..word(DM_TARGETS).unwrap_or(0) {
        let line = (|| {
            let (start, len) = (long(at)?, long(at + 8)?);
            let (kind, rest) = (text(at + 24, at + DM_SPEC)?, text(at + DM_SPEC, usize::MAX)?);
            Some(format!("{start} {len} {kind} {}\n", without_keys(&kind, &rest)))
        })();
        let (Some(line), Some(next)) = (line, word(at + 20)) else { break };
        lines.push_str(&line);
        // The offset counts from the first target. If it does not advance, the loop would not end.
        let next = first + next as usize;
        if next <= at {
            break;
        }
        at = next;
    }
    lines
}

/// A target's text without its encryption keys.
pub(super) fn without_keys(kind: &str, text: &str) -> String {
    let words = text.split(' ').enumerate().map(|(index, word)| match (kind, index) {
        ("crypt", 1) => "-".to_owned(),
        ("integrity", _) => word.splitn(3, ':').take(2).collect::<Vec<_>>().join(":"),
        _ => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// # Safety
/// `memory` must have the layout of the ioctl `number` and be as long as the call may write.
unsafe fn call(fd: BorrowedFd<'_>, number: u64, memory: &mut [u64]) -> Result<(), Errno> {
    loop {
        // The type of the number differs between C libraries.
        #[allow(clippy::cast_possible_truncation, reason = "all numbers have 32 bits")]
        let number = number as _;
        // SAFETY: the caller guarantees the memory, and the borrow keeps the descriptor open.
        let result = unsafe { libc::ioctl(fd.as_raw_fd(), number, memory.as_mut_ptr()) };
        if result >= 0 {
            return Ok(());
        }
        let error = std::io::Error::last_os_error();
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        if errno != Errno::INTR {
            return Err(errno);
        }
    }
}

/// Sets the 32-bit word at byte `at`.
fn put(memory: &mut [u64], at: usize, value: u32) {
    let mut bytes = memory[at / 8].to_ne_bytes();
    bytes[at % 8..at % 8 + 4].copy_from_slice(&value.to_ne_bytes());
    memory[at / 8] = u64::from_ne_bytes(bytes);
}

/// The 32-bit word at byte `at`.
fn get(memory: &[u64], at: usize) -> u32 {
    let bytes = memory[at / 8].to_ne_bytes();
    u32::from_ne_bytes(bytes[at % 8..at % 8 + 4].try_into().expect("half of a word"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(start: u64, len: u64, next: u32, kind: &str, text: &str) -> Vec<u8> {
        let mut bytes = [start.to_ne_bytes(), len.to_ne_bytes()].concat();
        bytes.extend_from_slice(&0_u32.to_ne_bytes());
        bytes.extend_from_slice(&next.to_ne_bytes());
        bytes.extend_from_slice(kind.as_bytes());
        bytes.resize(DM_SPEC, 0);
        bytes.extend_from_slice(text.as_bytes());
        bytes.resize(DM_SPEC + 80, 0);
        bytes
    }

    fn answer(count: u32, targets: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = vec![0; DM_HEAD];
        bytes[DM_DATA_START..DM_DATA_START + 4].copy_from_slice(&312_u32.to_ne_bytes());
        bytes[DM_TARGETS..DM_TARGETS + 4].copy_from_slice(&count.to_ne_bytes());
        targets.iter().for_each(|target| bytes.extend_from_slice(target));
        bytes
    }

    #[test]
    fn targets_are_read_and_keys_are_not() {
        let crypt = spec(0, 100, 120, "crypt", "aes-xts-plain64 00ff00ff 0 8:1 4096");
        let linear = spec(100, 28, 240, "linear", "8:2 2048");
        let text = targets(&answer(2, &[crypt, linear]));
        assert_eq!(text, "0 100 crypt aes-xts-plain64 - 0 8:1 4096\n100 28 linear 8:2 2048\n");
        let masked = without_keys("integrity", "8:1 0 32 J 2 internal_hash:hmac(sha256):c0ffee x");
        assert_eq!(masked, "8:1 0 32 J 2 internal_hash:hmac(sha256) x");
    }

    #[test]
    fn damaged_answers_end() {
        let once = spec(0, 100, 0, "linear", "8:2 2048");
        assert_eq!(targets(&answer(u32::MAX, &[once])).lines().count(), 1);
        let far = spec(0, 100, u32::MAX, "linear", "8:2 2048");
        assert_eq!(targets(&answer(5, &[far])).lines().count(), 1);
        for len in 0..DM_HEAD {
            assert_eq!(targets(&vec![0xff; len]), "");
        }
    }
}
