//! Where btrfs puts its addresses: its chunk tree, asked through any of its files.
//!
//! Numbers and layouts are those of `linux/btrfs.h` and `linux/btrfs_tree.h`. To read the tree
//! takes the right to administrate, and may wait for a drive.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;

use super::calls;

/// Chunks that are read: those of a file system of some 100 TiB.
const CHUNKS_MAX: usize = 64 << 10;
/// Bytes before the data of each item that is found, and where its parts lie.
const ITEM_HEAD: usize = 32;
const ITEM_OFFSET: usize = 16;
const ITEM_LEN: usize = 28;
/// The parts of a chunk: its length, what it is for, and the stripes that it is made of.
const CHUNK_TYPE: usize = 24;
const CHUNK_STRIPES: usize = 44;
const CHUNK_HEAD: usize = 48;
const STRIPE: usize = 32;
const TYPE_DATA: u64 = 1;

/// A run of the file system's addresses on one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) logical: u64,
    pub(super) len: u64,
    /// The number that the file system has for the member.
    member: u64,
}

/// The chunks of data on one member each, in order, with the device number of the member.
pub(super) fn of(fd: BorrowedFd<'_>) -> Result<Vec<(Chunk, u64)>, Errno> {
    let mut chunks = Vec::new();
    let mut from = 0;
    loop {
        let (count, bytes) = calls::btrfs_chunks(fd, from)?;
        let (found, last) = parsed(count, &bytes);
        chunks.extend(found);
        match last.and_then(|last| last.checked_add(1)) {
            Some(next) if next > from && chunks.len() < CHUNKS_MAX => from = next,
            _ => break,
        }
    }
    let mut devices: HashMap<u64, Option<u64>> = HashMap::new();
    let mut device = |member| {
        *devices.entry(member).or_insert_with(|| {
            let path = calls::btrfs_member(fd, member).ok()?;
            Some(rustix::fs::stat(OsStr::from_bytes(&path)).ok()?.st_rdev)
        })
    };
    Ok(chunks.into_iter().filter_map(|chunk| Some((chunk, device(chunk.member)?))).collect())
}

/// The chunks in `count` items of an answer, and the address of the last item of any kind.
fn parsed(count: u32, bytes: &[u8]) -> (Vec<Chunk>, Option<u64>) {
    let (mut chunks, mut last) = (Vec::new(), None);
    let mut rest = bytes;
    for _ in 0..count {
        // What the call says about an item has the machine's order of bytes, the item its own.
        let own = |at: usize| Some(u64::from_ne_bytes(rest.get(at..at + 8)?.try_into().ok()?));
        let len = rest.get(ITEM_LEN..ITEM_HEAD).and_then(|len| len.try_into().ok());
        let (Some(logical), Some(len)) = (own(ITEM_OFFSET), len.map(u32::from_ne_bytes)) else {
            break;
        };
        let Some(item) = rest.get(ITEM_HEAD..ITEM_HEAD + len as usize) else { break };
        last = Some(logical);
        chunks.extend(chunk(logical, item));
        rest = &rest[ITEM_HEAD + item.len()..];
    }
    (chunks, last)
}

/// A chunk of data that is on one member, once or twice.
fn chunk(logical: u64, item: &[u8]) -> Option<Chunk> {
    let long = |at: usize| Some(u64::from_le_bytes(item.get(at..at + 8)?.try_into().ok()?));
    let count = u16::from_le_bytes(item.get(CHUNK_STRIPES..CHUNK_STRIPES + 2)?.try_into().ok()?);
    let mut members = (0..usize::from(count)).map(|index| long(CHUNK_HEAD + index * STRIPE));
    let member = members.next()??;
    let is_one = members.all(|other| other == Some(member));
    let is_data = long(CHUNK_TYPE)? & TYPE_DATA != 0;
    (is_one && is_data).then_some(Chunk { logical, len: long(0)?, member })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(logical: u64, len: u64, kind: u64, members: &[u64]) -> Vec<u8> {
        let mut chunk = vec![0; CHUNK_HEAD + members.len() * STRIPE];
        chunk[..8].copy_from_slice(&len.to_le_bytes());
        chunk[CHUNK_TYPE..CHUNK_TYPE + 8].copy_from_slice(&kind.to_le_bytes());
        let count = u16::try_from(members.len()).unwrap();
        chunk[CHUNK_STRIPES..CHUNK_STRIPES + 2].copy_from_slice(&count.to_le_bytes());
        for (index, member) in members.iter().enumerate() {
            let at = CHUNK_HEAD + index * STRIPE;
            chunk[at..at + 8].copy_from_slice(&member.to_le_bytes());
        }
        let mut bytes = vec![0; ITEM_HEAD];
        bytes[ITEM_OFFSET..ITEM_OFFSET + 8].copy_from_slice(&logical.to_ne_bytes());
        let len = u32::try_from(chunk.len()).unwrap();
        bytes[ITEM_LEN..ITEM_HEAD].copy_from_slice(&len.to_ne_bytes());
        bytes.extend(chunk);
        bytes
    }

    #[test]
    fn chunks_of_data_on_one_member_are_taken() {
        let bytes = [
            item(1 << 20, 100, 2, &[1]),         // of the system
            item(2 << 20, 200, 1, &[2]),         // single
            item(3 << 20, 300, 1 | 8, &[1, 2]),  // striped
            item(4 << 20, 400, 1 | 32, &[3, 3]), // twice on one
        ]
        .concat();
        let (chunks, last) = parsed(4, &bytes);
        let found: Vec<_> = chunks.iter().map(|c| (c.logical, c.len, c.member)).collect();
        assert_eq!(found, [(2 << 20, 200, 2), (4 << 20, 400, 3)]);
        assert_eq!(last, Some(4 << 20));
    }

    #[test]
    fn damaged_answers_end() {
        let bytes = item(1, 100, 1, &[1]);
        for len in 0..bytes.len() {
            assert_eq!(parsed(9, &bytes[..len]), (Vec::new(), None));
        }
        assert_eq!(parsed(u32::MAX, &bytes).0.len(), 1);
        let none = item(1, 100, 1, &[]);
        assert_eq!(parsed(1, &none).0, []);
        assert_eq!(parsed(100, &[0xff; 500]), (Vec::new(), None));
    }
}
