//! The open files of a root: `format` says what it is, `lock` keeps processes apart, `index` finds
//! blocks, `journal` lists them in the order of the log, and `data` holds their bytes.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay::error::Operation;
use forebay::{Engine, Error, OpenOptions, Result};
use forebay_base::random::random;
use forebay_base::units::format_size;
use rustix::io::Errno;

use crate::failure::{errno, failed};
use crate::files;
use crate::index::{Header, Index, PAGE, Record, Wait, padded};
use crate::locks::Share;

/// The first line of the file `format`.
const FORMAT: &str = "forebay blocks 2";
/// That of earlier versions.
const BEFORE: &str = "forebay blocks 1";
/// How long another process may take to make a root.
const MADE_IN: Duration = Duration::from_secs(5);
/// The index has room for a block for so many bytes of the capacity.
const BYTES_PER_BLOCK: u64 = 16 << 10;
/// Bytes of the journal for each block.
pub(crate) const ENTRY: u64 = 32;
const FILES: [&str; 5] = ["format", "lock", "index", "journal", "data"];

/// Lengths of a root's files, which follow from its capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Most blocks.
    pub(crate) blocks: u64,
    /// Most bytes of blocks.
    pub(crate) data: u64,
    index: u64,
}

impl Shape {
    /// `None` if the capacity holds no block.
    fn new(capacity: u64) -> Option<Self> {
        let blocks = (capacity / BYTES_PER_BLOCK).max(PAGE / ENTRY);
        let index = Index::len_for(blocks);
        let data = capacity.checked_sub(index + blocks * ENTRY)? / PAGE * PAGE;
        (data > 0).then_some(Self { blocks, data, index })
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
    pub(crate) journal: File,
    pub(crate) locks: Share,
    pub(crate) uses: Uses,
}

/// How often each block was used, by its number in the log: a byte each in `/dev/shm`, where no
/// drive is waited for. Without such a file all blocks count as not used.
#[derive(Debug)]
pub(crate) struct Uses(Option<(File, PathBuf)>);

impl Volume {
    /// Opens the files of a root, or makes them.
    pub(crate) fn open(engine: &Engine, path: &Path, capacity: u64) -> Result<Self> {
        let failed_at = |name: &str| failed(Operation::Open, &path.join(name));
        let Some(shape) = Shape::new(capacity) else {
            return Err(Error::BadOption {
                name: "capacity".into(),
                value: capacity.to_string(),
                expected: "64 KiB at least".into(),
            });
        };
        refuse_others(path)?;
        let locks = Share::open(&path.join("lock")).map_err(failed_at("lock"))?;
        let setup = locks.set_up(MADE_IN).map_err(|error| without_locks(path, error))?;
        let is_alone = locks.mark_open().map_err(failed_at("lock"))?;
        let id = match read_format(path)? {
            Some((id, there)) if there == capacity => id,
            Some((_, there)) if !is_alone => return Err(in_use(path, capacity, there)),
            there => {
                if let Some((_, there)) = there {
                    let (there, now) = (format_size(there), format_size(capacity));
                    tracing::warn!(
                        target: "forebay::blocks", root = %path.display(),
                        "the capacity changes from {there} to {now}: all blocks are removed"
                    );
                }
                make(path, capacity, shape).map_err(failed_at("format"))?
            }
        };
        let sized = |name: &str, len| files::sized(&path.join(name), len).map_err(failed_at(name));
        let own = sized("data", shape.data)?.metadata().map_err(failed_at("data"))?;
        let data = engine.open_with(path.join("data"), &OpenOptions::writing())?;
        if data.identity() != (own.dev(), own.ino()) {
            return Err(failed_at("data")(io::ErrorKind::StaleNetworkFileHandle.into()));
        }
        let index = Index::open(&path.join("index"), shape.index).map_err(failed_at("index"))?;
        let journal = sized("journal", shape.blocks * ENTRY)?;
        start_header(&index, &locks, shape, is_alone).map_err(failed_at("index"))?;
        drop(setup);
        let uses = Uses::open(id);
        Ok(Self { path: path.into(), id, shape, data, index, journal, locks, uses })
    }

    /// Device and number of the file that keeps processes apart.
    pub(crate) fn identity(&self) -> (u64, u64) {
        self.locks.identity()
    }

    /// The header, under the lock. One that is damaged or cut off is made anew, without blocks.
    pub(crate) fn header(&self) -> io::Result<Header> {
        match self.index.header(Wait::ForDrive) {
            Ok(Some(header)) => return Ok(header),
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error),
            Ok(None) | Err(_) => {}
        }
        let root = self.path.display();
        tracing::warn!(target: "forebay::blocks", %root, "the index is damaged: it is emptied");
        self.index.restore()?;
        let header = first_header(self.shape);
        self.index.set_header(&header)?;
        Ok(header)
    }

    /// Number of blocks, and bytes that they take.
    pub(crate) fn usage(&self) -> io::Result<(u64, u64)> {
        let header = self.locks.index().and_then(|_changing| self.header())?;
        let mut sum = (0, 0);
        let add = |it: Record| sum = (sum.0 + 1, sum.1 + padded(it.len));
        self.index.all(&header, add).map(|()| sum)
    }

    /// Makes all that was written durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        rustix::fs::fdatasync(self.data.descriptor())?;
        self.journal.sync_data()?;
        self.index.sync()?;
        sync_folder(&self.path)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // The last one removes what is not on the drive.
        if let Some((_, path)) = &self.uses.0
            && let Ok(_setup) = self.locks.set_up(Duration::ZERO)
            && self.locks.mark_open().unwrap_or(false)
        {
            let _ = fs::remove_file(path);
        }
    }
}

/// Refuses a folder with something else than the store's files, and what an earlier version made.
fn refuse_others(path: &Path) -> Result<()> {
    let refuse = |what: String| {
        let root = path.display();
        Err(Error::BadState { reason: format!("cannot open the block store `{root}`: {what}") })
    };
    let failed = failed(Operation::Open, path);
    let text = read_text(&path.join("format")).map_err(&failed)?;
    let first = text.as_deref().unwrap_or_default().lines().next().unwrap_or_default();
    if first == BEFORE {
        return refuse(
            "an earlier version of Forebay made it, whose layout is not read any more; remove its \
             folders `blocks-…` and its file `format`, or choose another folder"
                .into(),
        );
    }
    if !first.is_empty() && !first.starts_with("forebay blocks ") {
        let what = "its file `format` is not one of a block store; choose another folder";
        return refuse(what.into());
    }
    // A root that is being made, or whose maker was killed, has this file.
    let is_begun = path.join("lock").symlink_metadata().is_ok_and(|it| it.len() == 0);
    if first.is_empty() && !is_begun {
        let taken = FILES[2..].iter().find(|name| {
            path.join(name).symlink_metadata().is_ok_and(|it| it.len() > 0 || !it.is_file())
        });
        if let Some(name) = taken {
            return refuse(format!(
                "it has a file `{name}`, but no file `format` of a block store; remove that file, \
                 or choose another folder"
            ));
        }
    }
    Ok(())
}

/// A root's number and capacity; `None` if it is not made yet.
fn read_format(path: &Path) -> Result<Option<(u64, u64)>> {
    let file = path.join("format");
    let text = read_text(&file).map_err(failed(Operation::Open, &file))?;
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(None) };
    let parse = || {
        let mut lines = text.lines().filter(|&line| line != FORMAT);
        let id = lines.next()?.strip_prefix("root ")?;
        let capacity = lines.next()?.strip_prefix("capacity ")?;
        Some((u64::from_str_radix(id, 16).ok()?, capacity.parse().ok()?))
    };
    let is_ours = text.lines().next() == Some(FORMAT);
    parse().filter(|_| is_ours).map(Some).ok_or_else(|| Error::BadState {
        reason: format!(
            "cannot open the block store `{}`: its file `format` is damaged, or another version of \
             Forebay made it; remove the store's files, or choose another folder",
            path.display()
        ),
    })
}

/// The text of a small file, unless it is a link or a pipe; `None` if there is none.
fn read_text(path: &Path) -> io::Result<Option<String>> {
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut text = Vec::new();
    file.take(1024).read_to_end(&mut text)?;
    Ok(Some(String::from_utf8_lossy(&text).into_owned()))
}

/// Makes a root's files, and removes all blocks.
fn make(path: &Path, capacity: u64, shape: Shape) -> io::Result<u64> {
    let (journal, data) = (shape.blocks * ENTRY, shape.data);
    let drive = rustix::fs::statvfs(path)?;
    // Otherwise most of the index would stay empty: its pages get space when they are written.
    let can_fill = capacity <= drive.f_blocks * drive.f_frsize;
    for (name, len, space) in
        [("index", shape.index, shape.index), ("journal", journal, journal), ("data", data, 0)]
    {
        let file = files::own(&path.join(name))?;
        file.set_len(0)?;
        file.set_len(len)?;
        if space > 0 && can_fill && !files::allocate(file.as_fd(), 0, space)? {
            return Err(Errno::NOSPC.into());
        }
        file.sync_all()?;
    }
    let id = random();
    let new = path.join("format.new");
    let mut file = files::own(&new)?;
    file.set_len(0)?;
    file.write_all(format!("{FORMAT}\nroot {id:016x}\ncapacity {capacity}\n").as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path.join("format"))?;
    sync_folder(path)?;
    path.parent().map_or(Ok(()), sync_folder)?;
    Ok(id)
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
    Header { generation, boot: boot(), until: shape.data, ..Header::default() }
}

/// Identifies this start of the machine.
fn boot() -> u64 {
    let id = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    xxhash_rust::xxh3::xxh3_64(&id)
}

/// Whether the error of a lock says that there are none: a sandbox may lack them, Lustre has none
/// unless it is mounted with `flock`, and NFS 3 none without a daemon.
fn without_locks(root: &Path, error: io::Error) -> Error {
    let root = root.display();
    let reason = match errno(&error) {
        _ if error.kind() == io::ErrorKind::TimedOut => {
            format!("cannot open the block store `{root}`: {error}; end that process")
        }
        Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK => format!(
            "cannot use `{root}` for blocks: no part of a file can be locked there ({error}), \
             which keeps processes apart; mount the file system with locks (Lustre: `flock`), or \
             choose a folder on a local drive"
        ),
        _ => return failed(Operation::Open, Path::new(&root.to_string()))(error),
    };
    Error::BadState { reason }
}

fn in_use(root: &Path, capacity: u64, there: u64) -> Error {
    let reason = format!(
        "cannot open the block store `{}` with a capacity of {}: it is open already with {}; use \
         the same capacity",
        root.display(),
        format_size(capacity),
        format_size(there)
    );
    Error::BadState { reason }
}

impl Uses {
    fn open(id: u64) -> Self {
        let user = rustix::process::geteuid().as_raw();
        let path = PathBuf::from(format!("/dev/shm/forebay-blocks-{user}-{id:016x}"));
        let is_own = |file: &File| file.metadata().is_ok_and(|it| it.uid() == user);
        Self(files::own(&path).ok().filter(is_own).map(|file| (file, path)))
    }

    /// The uses of blocks whose numbers follow each other, from `number` modulo the most blocks.
    pub(crate) fn get(&self, at: u64, uses: &mut [u8]) {
        uses.fill(0);
        if let Some((file, _)) = &self.0 {
            let _ = file.read_at(uses, at); // what is missing is zero
        }
    }

    /// Sets them. An error costs a worse choice of the block that leaves.
    pub(crate) fn set(&self, at: u64, uses: &[u8]) {
        if let Some((file, _)) = &self.0 {
            let _ = file.write_all_at(uses, at);
        }
    }
}
