//! The file that says what a root is: its format, its number and its capacity.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay::error::{Operation, Place};
use forebay::{Error, Result};
use forebay_base::units::format_size;
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::class::slot_len;
use crate::failure::{errno, failed};
use crate::locks::{self, Kind};
use crate::work::BLOCK_MAX;

/// The first line of the file.
const FORMAT: &str = "forebay blocks 1";
/// How long another process may take to make the file.
const MADE_IN: Duration = Duration::from_secs(5);

/// Opens a root's file, or makes it. Returns it with a shared lock, and the root's number. Only a
/// process that is alone may change the capacity, which empties the root.
pub(crate) fn open(root: &Path, capacity: u64) -> Result<(File, u64)> {
    let path = root.join("format");
    let place = Place::whole(&path);
    let failed = failed(Operation::Open, &path);
    let mut how = File::options();
    how.read(true).write(true).create(true).truncate(false);
    let mut file = how.open(&path).map_err(&failed)?;
    let alone = locks::try_lock(&file, Kind::Exclusive, 0, 1).map_err(|error| {
        if is_without_locks(&error) { without_locks(root, &error) } else { failed(error) }
    })?;
    if !alone {
        share(&file, &place)?;
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(&failed)?;
    let id = match parse(&text) {
        Some((id, there)) if there == capacity => id,
        known if !alone => return Err(in_use(root, capacity, known.map(|(_, there)| there))),
        None if !text.is_empty() && !text.starts_with("forebay blocks ") => {
            return Err(Error::BadState {
                reason: format!(
                    "cannot use `{}` for blocks: its file `format` is not one of a block store; \
                     choose another folder",
                    root.display()
                ),
            });
        }
        None if text.is_empty() && !classes(root).map_err(&failed)?.is_empty() => {
            return Err(Error::BadState {
                reason: format!(
                    "cannot use `{}` for blocks: it has folders `blocks-…`, but no file `format` \
                     of a block store; remove them, or choose another folder",
                    root.display()
                ),
            });
        }
        _ => make(root, &mut file, capacity).map_err(&failed)?,
    };
    if alone {
        locks::try_lock(&file, Kind::Shared, 0, 1).map_err(&failed)?;
    }
    Ok((file, id))
}

/// Takes the shared lock, when the process that makes the file has done so.
fn share(file: &File, place: &Place) -> Result<()> {
    let started = Instant::now();
    loop {
        match locks::try_lock(file, Kind::Shared, 0, 1) {
            Ok(true) => return Ok(()),
            Ok(false) if started.elapsed() < MADE_IN => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Ok(false) => {
                let reason = format!(
                    "cannot open {place}: another process has kept it locked for {MADE_IN:?}; end \
                     that process"
                );
                return Err(Error::BadState { reason });
            }
            Err(error) => return Err(failed(Operation::Open, &place.path)(error)),
        }
    }
}

/// Whether an error says that there are no locks: a sandbox may lack those of open files, Lustre
/// has none unless it is mounted with `flock`, and NFS 3 none without a daemon.
fn is_without_locks(error: &io::Error) -> bool {
    matches!(errno(error), Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK)
}

fn without_locks(root: &Path, error: &io::Error) -> Error {
    let root = root.display();
    let reason = format!(
        "cannot use `{root}` for blocks: no part of a file can be locked there ({error}), which \
         keeps processes apart; mount the file system with locks (Lustre: `flock`), or choose a \
         folder on a local drive"
    );
    Error::BadState { reason }
}

fn in_use(root: &Path, capacity: u64, there: Option<u64>) -> Error {
    let root = root.display();
    let reason = match there {
        Some(there) => format!(
            "cannot open the block store `{root}` with a capacity of {}: it is open in another \
             process with {}; use the same capacity",
            format_size(capacity),
            format_size(there)
        ),
        None => format!(
            "cannot open the block store `{root}`: another version of Forebay has it open; use one \
             version"
        ),
    };
    Error::BadState { reason }
}

/// Removes the blocks of another version or capacity, and writes the file.
fn make(root: &Path, file: &mut File, capacity: u64) -> io::Result<u64> {
    classes(root)?.iter().try_for_each(std::fs::remove_dir_all)?;
    let mut id = [0; 8];
    getrandom(&mut id, GetRandomFlags::empty())?;
    let id = u64::from_le_bytes(id);
    file.set_len(0)?;
    file.seek(SeekFrom::Start(0))?;
    file.write_all(format!("{FORMAT}\nroot {id:016x}\ncapacity {capacity}\n").as_bytes())?;
    file.sync_all()?;
    File::open(root)?.sync_all()?;
    Ok(id)
}

/// The folders of classes in a root.
fn classes(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root)? {
        let entry = entry?;
        if entry.file_name().to_str().and_then(slot_of).is_some() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// The length of a class's slots, from the name of its folder; `None` for any other name.
pub(crate) fn slot_of(name: &str) -> Option<u64> {
    let slot = name.strip_prefix("blocks-")?.parse().ok()?;
    ((1..=BLOCK_MAX).contains(&slot) && slot == slot_len(slot)).then_some(slot)
}

/// A root's number and capacity.
fn parse(text: &str) -> Option<(u64, u64)> {
    let mut lines = text.lines();
    if lines.next() != Some(FORMAT) {
        return None;
    }
    let id = lines.next()?.strip_prefix("root ")?;
    let capacity = lines.next()?.strip_prefix("capacity ")?;
    Some((u64::from_str_radix(id, 16).ok()?, capacity.parse().ok()?))
}
