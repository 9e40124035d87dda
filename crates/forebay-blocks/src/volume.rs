//! The open files of a root: `format` says what it is, `lock` keeps processes apart, `index` finds
//! blocks, and `data` holds their bytes.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay::error::Operation;
use forebay::{Engine, Error, OpenOptions, Result};
use forebay_base::random::random;
use forebay_base::units::format_size;
use rustix::io::Errno;

use crate::failure::{errno, failed, refused};
use crate::files;
use crate::index::{Entry, Header, Index, PAGE, Record, Wait, padded};
use crate::locks::Share;
use crate::log::Policy;

/// The first line of the file `format`.
const FORMAT: &str = "forebay blocks 3";
/// How long to wait for a process that makes the root.
const MADE_IN: Duration = Duration::from_secs(5);
/// Bytes of the capacity per block that the index can hold.
const BYTES_PER_BLOCK: u64 = 16 << 10;

/// Which blocks are evicted, and when they expire.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Eviction {
    pub(crate) policy: Policy,
    pub(crate) ttl: Option<Duration>,
}

/// What follows from a root's capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    capacity: u64,
    /// Most blocks.
    pub(crate) blocks: u64,
    /// Most bytes of blocks.
    pub(crate) data: u64,
}

impl Shape {
    fn new(capacity: u64) -> Result<Self> {
        let blocks = (capacity / BYTES_PER_BLOCK).max(PAGE / 32);
        let data = capacity.saturating_sub(Index::len_for(blocks)) / PAGE * PAGE;
        // The index of a larger root would exceed ext4's largest file.
        if data == 0 || capacity > 1 << 50 {
            return Err(Error::BadOption {
                name: "capacity".into(),
                value: format_size(capacity),
                expected: "64 KiB to 1 PiB".into(),
            });
        }
        Ok(Self { capacity, blocks, data })
    }
}

/// A root's open files.
#[derive(Debug)]
pub(crate) struct Volume {
    pub(crate) path: PathBuf,
    /// Distributes keys over roots.
    pub(crate) id: u64,
    pub(crate) shape: Shape,
    pub(crate) data: forebay::File,
    pub(crate) index: Index,
    pub(crate) locks: Share,
    pub(crate) uses: Uses,
    pub(crate) policy: Policy,
}

/// How often blocks were used, by their numbers in the log: a byte per block in `/dev/shm`, which
/// never waits for a drive. Without such a file all blocks count as not used.
#[derive(Debug)]
pub(crate) struct Uses(Option<(File, PathBuf)>);

impl Volume {
    /// Opens the files of a root, or makes them.
    pub(crate) fn open(
        engine: &Engine,
        path: &Path,
        capacity: u64,
        eviction: Eviction,
    ) -> Result<Self> {
        let failed_at = |name: &str| failed(Operation::Open, &path.join(name));
        let shape = Shape::new(capacity)?;
        read_format(path)?;
        let locks = Share::open(&path.join("lock")).map_err(failed_at("lock"))?;
        let setup = locks.set_up(MADE_IN).map_err(|error| without_locks(path, error))?;
        let is_alone = locks.mark_open().map_err(failed_at("lock"))?;
        let id = match read_format(path)? {
            Some(id) => id,
            None => make(path, shape).map_err(failed_at("format"))?,
        };
        let of_index = failed_at("index");
        let mut index = Index::open(&path.join("index"), shape.blocks).map_err(&of_index)?;
        match index.header(Wait::ForDrive).map_err(&of_index)? {
            Some(there) if there.capacity != capacity => {
                if !is_alone {
                    let (there, wanted) = (format_size(there.capacity), format_size(capacity));
                    return Err(refused(
                        path,
                        format_args!(
                            "it is open already with a capacity of {there}, not {wanted}; use the \
                             same capacity"
                        ),
                    ));
                }
                index = resize(path, &there, shape).map_err(&of_index)?;
            }
            _ => index.restore().map_err(&of_index)?,
        }
        let own = files::own(&path.join("data")).and_then(|file| {
            files::set_len(&file, shape.data)?;
            file.metadata()
        });
        let own = own.map_err(failed_at("data"))?;
        let data = engine.open_with(path.join("data"), &OpenOptions::writing())?;
        if data.identity() != (own.dev(), own.ino()) {
            return Err(failed_at("data")(io::ErrorKind::StaleNetworkFileHandle.into()));
        }
        start_header(&index, &locks, shape, is_alone).map_err(&of_index)?;
        drop(setup);
        index.ttl = eviction.ttl;
        let (path, uses, policy) = (path.into(), Uses::open(id), eviction.policy);
        Ok(Self { path, id, shape, data, index, locks, uses, policy })
    }

    /// Device and number of the file that keeps processes apart.
    pub(crate) fn identity(&self) -> (u64, u64) {
        self.locks.identity()
    }

    /// The header, under the lock. A damaged header is replaced, without blocks.
    pub(crate) fn header(&self) -> io::Result<Header> {
        if let Some(header) = self.index.header(Wait::ForDrive)? {
            return Ok(header);
        }
        let root = self.path.display();
        tracing::warn!(target: "forebay::blocks", %root, "the index is damaged: it is emptied");
        self.index.restore()?;
        let header = first_header(self.shape);
        self.index.set_header(&header)?;
        Ok(header)
    }

    /// Number of blocks, and their bytes on the drive.
    pub(crate) fn usage(&self) -> io::Result<(u64, u64)> {
        let header = self.locks.index().and_then(|_changing| self.header())?;
        let mut sum = (0, 0);
        let add = |it: Record| {
            sum = (sum.0 + 1, sum.1 + padded(it.len));
            Ok(())
        };
        self.index.all(&header, add).map(|()| sum)
    }

    /// Makes all that was written durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        rustix::fs::fdatasync(self.data.descriptor())?;
        self.index.sync()?;
        sync_folder(&self.path)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // The last process removes the file in memory.
        if let Some((_, path)) = &self.uses.0
            && let Ok(_setup) = self.locks.set_up(Duration::ZERO)
            && self.locks.mark_open().unwrap_or(false)
        {
            let _ = fs::remove_file(path);
        }
    }
}

/// A root's number; `None` if it is not made yet. Refuses a folder with files that are not a
/// store's.
fn read_format(path: &Path) -> Result<Option<u64>> {
    let text = read_text(&path.join("format")).map_err(failed(Operation::Open, path))?;
    let Some(text) = text.filter(|text| !text.is_empty()) else {
        // This file exists while a root is made, or after its maker was killed.
        let is_begun = path.join("lock").symlink_metadata().is_ok_and(|it| it.len() == 0);
        let is_other = |name: &&&str| {
            path.join(name).symlink_metadata().is_ok_and(|it| it.len() > 0 || !it.is_file())
        };
        return match ["index", "data"].iter().find(is_other).filter(|_| !is_begun) {
            None => Ok(None),
            Some(name) => Err(refused(
                path,
                format_args!(
                    "it has a file `{name}`, but no file `format` of a block store; remove that \
                     file, or choose another folder"
                ),
            )),
        };
    };
    let own = text.strip_prefix(FORMAT).and_then(|text| text.trim().strip_prefix("root "));
    match own.and_then(|id| u64::from_str_radix(id, 16).ok()) {
        Some(id) => Ok(Some(id)),
        None if text.starts_with("forebay blocks ") => Err(refused(
            path,
            "another version of Forebay made it, or its file `format` is damaged; remove the \
             store's files, or choose another folder",
        )),
        None => Err(refused(
            path,
            "its file `format` is not one of a block store; choose another folder",
        )),
    }
}

/// The text of a small file; `None` without a file.
fn read_text(path: &Path) -> io::Result<Option<String>> {
    let file = match files::open(path, File::options().read(true)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut text = Vec::new();
    file.take(1024).read_to_end(&mut text)?;
    Ok(Some(String::from_utf8_lossy(&text).into_owned()))
}

/// Makes a root's files, and removes all blocks.
fn make(path: &Path, shape: Shape) -> io::Result<u64> {
    make_index(path, "index", shape)?.sync()?;
    files::own(&path.join("data"))?.set_len(0)?;
    let id = random();
    let new = path.join("format.new");
    let mut file = files::own(&new)?;
    file.set_len(0)?;
    file.write_all(format!("{FORMAT}\nroot {id:016x}\n").as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path.join("format"))?;
    sync_folder(path)?;
    path.parent().map_or(Ok(()), sync_folder)?;
    Ok(id)
}

fn make_index(path: &Path, name: &str, shape: Shape) -> io::Result<Index> {
    let index = Index::open(&path.join(name), shape.blocks)?;
    let drive = rustix::fs::statvfs(path)?;
    match index.make(shape.capacity <= drive.f_blocks * drive.f_frsize)? {
        true => Ok(index),
        false => Err(Errno::NOSPC.into()),
    }
}

/// Replaces the index when the capacity changes. The log continues at the same offset; blocks
/// beyond a smaller capacity are removed.
fn resize(path: &Path, there: &Header, shape: Shape) -> io::Result<Index> {
    let before = Shape::new(there.capacity).map_err(io::Error::other)?;
    let old = Index::open(&path.join("index"), before.blocks)?;
    let new = make_index(path, "index.new", shape)?;
    let (at, lap) = (there.head % before.data, shape.data);
    let moved = |place: u64, len: u32| {
        let offset = place % before.data;
        let is_last_lap = place >= there.head - at;
        let fits = place < there.head && offset + padded(len) <= lap;
        fits.then_some(if is_last_lap { lap + offset } else { offset })
    };
    let solid = before.data - there.until.saturating_sub(there.solid).min(before.data);
    let header = Header {
        capacity: shape.capacity,
        head: lap + at.min(lap),
        oldest: at.min(lap),
        first: there.first.max(there.next.saturating_sub(shape.blocks - 1)),
        solid: lap + solid.min(lap),
        until: 2 * lap,
        ..*there
    };
    let (mut blocks, mut removed) = (0_u64, 0);
    old.all(there, |record| {
        let insert = |place| {
            let record = Record { place, ..record };
            new.insert(&header, &record, None).map(Option::unwrap_or_default)
        };
        blocks += 1;
        removed += moved(record.place, record.len).map_or(Ok(1), insert)?;
        Ok(())
    })?;
    for number in header.first..header.next {
        let Entry { key, at } = old.entry(number)?;
        new.set_entry(number, Entry { key, at: moved(at, 1).unwrap_or(u64::MAX) })?;
    }
    new.set_header(&header)?;
    new.sync()?;
    fs::rename(path.join("index.new"), path.join("index"))?;
    sync_folder(path)?;
    let (from, to) = (format_size(there.capacity), format_size(shape.capacity));
    tracing::warn!(
        target: "forebay::blocks", root = %path.display(),
        "the capacity changes from {from} to {to}: {removed} of {blocks} blocks are removed"
    );
    Ok(new)
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    File::open(path)?.sync_all()
}

/// Makes the first header, replaces a damaged one, and begins a generation after a restart of the
/// machine.
fn start_header(index: &Index, locks: &Share, shape: Shape, is_alone: bool) -> io::Result<()> {
    let _changing = locks.index()?;
    let boot = boot();
    let header = match index.header(Wait::ForDrive)? {
        Some(header) if header.boot == boot || !is_alone => return Ok(()),
        Some(header) => {
            let generation = (header.generation & !0xFFFF) | (header.generation + 1) & 0xFFFF;
            Header { generation, since: header.next, boot, ..header }
        }
        None => first_header(shape),
    };
    index.set_header(&header)
}

fn first_header(shape: Shape) -> Header {
    let generation = u32::try_from(random() >> 32).expect("32 bits");
    let Shape { capacity, data, .. } = shape;
    Header { generation, capacity, boot: boot(), until: data, ..Header::default() }
}

/// Identifies this start of the machine.
fn boot() -> u64 {
    let id = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    xxhash_rust::xxh3::xxh3_64(&id)
}

/// Whether the error of a lock says that there are none: a sandbox may lack them, Lustre has none
/// unless it is mounted with `flock`, and NFS 3 none without a daemon.
fn without_locks(root: &Path, error: io::Error) -> Error {
    match errno(&error) {
        _ if error.kind() == io::ErrorKind::TimedOut => {
            refused(root, format_args!("{error}; end that process"))
        }
        Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK => refused(
            root,
            format_args!(
                "no part of a file can be locked there ({error}), which keeps processes apart; \
                 mount the file system with locks (Lustre: `flock`), or choose a folder on a \
                 local drive"
            ),
        ),
        _ => failed(Operation::Open, root)(error),
    }
}

impl Uses {
    fn open(id: u64) -> Self {
        let user = rustix::process::geteuid().as_raw();
        let path = PathBuf::from(format!("/dev/shm/forebay-blocks-{user}-{id:016x}"));
        let is_own = |file: &File| file.metadata().is_ok_and(|it| it.uid() == user);
        Self(files::own(&path).ok().filter(is_own).map(|file| (file, path)))
    }

    /// The uses of blocks with consecutive numbers, from a number modulo the most blocks on.
    pub(crate) fn get(&self, at: u64, uses: &mut [u8]) {
        uses.fill(0);
        if let Some((file, _)) = &self.0 {
            let _ = file.read_at(uses, at); // what is missing is zero
        }
    }

    /// Sets them. An error costs a worse choice at the next eviction.
    pub(crate) fn set(&self, at: u64, uses: &[u8]) {
        if let Some((file, _)) = &self.0 {
            let _ = file.write_all_at(uses, at);
        }
    }
}
