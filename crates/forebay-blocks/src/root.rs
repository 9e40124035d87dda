//! A folder of a store, usually on its own drive: its files, its bounds and its health.

use std::collections::VecDeque;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay::error::Operation;
use forebay::{Buffer, Engine, Error, Result};
use forebay_base::lock::Lock;
use forebay_base::timeout;
use rustix::fs::{AtFlags, CWD, StatxFlags, makedev};

use crate::failure::{failed, refused};
use crate::files;
use crate::health::Health;
use crate::index::{Header, Wait};
use crate::key::Key;
use crate::locks::Claim;
use crate::statistics::Counters;
use crate::traffic::Traffic;
use crate::volume::{Eviction, Volume};
use crate::work::Side;

/// A folder and its bounds.
#[derive(Debug, Clone)]
pub struct RootOptions {
    /// The folder. It is made if it is missing, but not its parent: a drive may not be mounted.
    pub path: PathBuf,
    /// Maximum bytes of the blocks and their index on the drive.
    pub capacity: u64,
    /// Bytes that stay free on the file system; `None`: a twentieth of it, at most 16 GiB.
    pub keep_free: Option<u64>,
}

/// Offsets and lengths in the data.
type Extents = VecDeque<(Arc<Volume>, u64, u64)>;

#[derive(Debug)]
pub(crate) struct Root {
    pub(crate) path: PathBuf,
    engine: Engine,
    capacity: u64,
    pub(crate) keep_free: u64,
    eviction: Eviction,
    /// The file system that it is on.
    device: u64,
    volume: Lock<Arc<Volume>>,
    /// Written blocks whose pages the kernel may not have written to the drive, and their bytes.
    unwritten: Lock<(Extents, u64)>,
    unwritten_max: u64,
    /// Buffers of writes that were given up and have not ended, with the data that they write.
    pub(crate) hanging: Lock<Vec<(Buffer, Vec<Claim>)>>,
    pub(crate) past_cache: bool,
    pub(crate) loads: Health,
    pub(crate) stores: Health,
    pub(crate) traffic: Traffic,
    pub(crate) counters: Arc<Counters>,
}

impl Root {
    pub(crate) fn open(
        engine: &Engine,
        options: &RootOptions,
        eviction: Eviction,
        past_cache: bool,
        unwritten_max: u64,
    ) -> Result<Self> {
        let RootOptions { path, capacity, keep_free } = options;
        let failed = failed(Operation::Open, path);
        if let Err(error) = files::make_folder(path) {
            if error.kind() != io::ErrorKind::NotFound {
                return Err(failed(error));
            }
            let why = "its parent folder is missing; mount the drive, or make that folder";
            return Err(refused(path, why));
        }
        let device = std::fs::metadata(path).map_err(&failed)?.dev();
        let space = rustix::fs::statvfs(path).map_err(|errno| failed(errno.into()))?;
        if space.f_blocks == 0 {
            let why =
                "its file system does not say how much space it has; choose a folder on a drive";
            return Err(refused(path, why));
        }
        let size = space.f_blocks * space.f_frsize;
        if *capacity > size {
            tracing::warn!(
                target: "forebay::blocks", root = %path.display(), capacity, size,
                "the capacity is larger than the file system"
            );
        }
        let volume = Volume::open(engine, path, *capacity, eviction)?;
        Ok(Self {
            path: path.clone(),
            engine: engine.clone(),
            capacity: *capacity,
            keep_free: keep_free.unwrap_or((size / 20).min(16 << 30)),
            eviction,
            device,
            volume: Lock::new(Arc::new(volume)),
            unwritten: Lock::default(),
            unwritten_max,
            hanging: Lock::default(),
            past_cache,
            loads: Health::default(),
            stores: Health::default(),
            traffic: Traffic::default(),
            counters: Arc::default(),
        })
    }

    /// The key's score here: it belongs to the root with the highest. A root gets keys in
    /// proportion to its capacity, and another root takes only its own share from the others
    /// (weighted rendezvous hashing).
    #[expect(clippy::cast_precision_loss, reason = "a share of capacity")]
    pub(crate) fn score(&self, key: &Key) -> f64 {
        let mixed = (key.0[1] ^ self.current().id).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        let share = ((mixed >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        self.capacity as f64 / -share.ln()
    }

    pub(crate) fn current(&self) -> Arc<Volume> {
        Arc::clone(&self.volume.lock())
    }

    /// Maximum bytes of a call's part: the log has passed the blocks there before.
    pub(crate) fn part_max(&self) -> u64 {
        self.current().shape.data / 256
    }

    /// Whether the path still leads to the open files, as far as the kernel knows without a drive
    /// or a server.
    fn is_there(&self, volume: &Volume) -> bool {
        let (path, flags) = (self.path.join("lock"), AtFlags::STATX_DONT_SYNC);
        let there = rustix::fs::statx(CWD, path, flags, StatxFlags::INO);
        there.is_ok_and(|it| {
            (makedev(it.stx_dev_major, it.stx_dev_minor), it.stx_ino) == volume.identity()
        })
    }

    /// The open files. A folder that was emptied or replaced is made a root again.
    pub(crate) fn volume(&self) -> Result<Arc<Volume>> {
        let volume = self.current();
        if self.is_there(&volume) {
            return Ok(volume);
        }
        let failed = failed(Operation::Open, &self.path);
        if std::fs::metadata(&self.path).map_err(&failed)?.dev() != self.device {
            let text = "it is on another file system than before; mount the drive";
            return Err(failed(io::Error::new(io::ErrorKind::NotFound, text)));
        }
        tracing::warn!(
            target: "forebay::blocks", root = %self.path.display(),
            "the folder was emptied or replaced: it is made again"
        );
        // Not under the lock: two threads may do it.
        let opened = Volume::open(&self.engine, &self.path, self.capacity, self.eviction)?;
        let opened = Arc::new(opened);
        *self.volume.lock() = Arc::clone(&opened);
        Ok(opened)
    }

    /// The header of the index, which is made anew if it is damaged.
    pub(crate) fn header(&self, volume: &Volume) -> Result<Header> {
        let header = match volume.index.header(Wait::ForDrive) {
            Ok(Some(header)) => Ok(header),
            Err(error) => Err(error),
            Ok(None) => volume.locks.index().and_then(|_changing| volume.header()),
        };
        header.map_err(self.of_index())
    }

    /// Looks whether a block is stored, without waiting for the drive; `None` if that is unknown.
    pub(crate) fn look_at_once(&self) -> impl Fn(&Key) -> Option<bool> {
        let (volume, is_good) = (self.current(), self.loads.is_good());
        let header = self.header_at_once(&volume);
        let find = move |key: &Key| {
            volume.index.find(header.as_ref()?, key.name(), Wait::Never, |_| true).ok()
        };
        move |key| if is_good { find(key).map(|it| it.is_some()) } else { Some(false) }
    }

    /// The header of open files, if it is known without waiting for the drive.
    pub(crate) fn header_at_once(&self, volume: &Volume) -> Option<Header> {
        let header = volume.index.header(Wait::Never).ok()??;
        self.is_there(volume).then_some(header)
    }

    pub(crate) fn health(&self, side: Side) -> &Health {
        match side {
            Side::Load => &self.loads,
            Side::Store => &self.stores,
        }
    }

    pub(crate) fn of_index(&self) -> impl Fn(io::Error) -> Error + use<> {
        failed(Operation::Read, &self.path)
    }

    /// Notes that blocks were written through the page cache, and waits for older ones while too
    /// many bytes are not on the drive.
    pub(crate) fn written(&self, volume: &Arc<Volume>, offset: u64, len: u64) -> io::Result<()> {
        if self.past_cache {
            return Ok(());
        }
        files::write_out(volume.data.descriptor(), offset, len, false)?;
        {
            let (parts, bytes) = &mut *self.unwritten.lock();
            parts.push_back((Arc::clone(volume), offset, len));
            *bytes += len;
        }
        let oldest = || {
            let (parts, bytes) = &mut *self.unwritten.lock();
            let is_over = *bytes > self.unwritten_max;
            is_over.then(|| parts.pop_front()).flatten().inspect(|it| *bytes -= it.2)
        };
        while let Some((volume, offset, len)) = oldest() {
            files::write_out(volume.data.descriptor(), offset, len, true)?;
        }
        Ok(())
    }

    /// Frees the data of hanging writes that have ended.
    pub(crate) fn end_of_hanging(&self) {
        let is_over = |(buffer, _): &mut (Buffer, Vec<Claim>)| buffer.as_slice().is_some();
        let over: Vec<_> = self.hanging.lock().extract_if(.., is_over).collect();
        drop(over); // not under the lock
    }

    /// Runs work on the open files that may wait for the drive, for at most `bound`.
    pub(crate) fn within<T: Send + 'static>(
        &self,
        bound: Duration,
        operation: Operation,
        work: impl FnOnce(&Volume) -> io::Result<T> + Send + 'static,
    ) -> Result<T> {
        let volume = self.volume()?;
        let done = timeout::within(bound, "forebay-blocks", move || work(&volume));
        let late = || io::Error::new(io::ErrorKind::TimedOut, format!("no answer in {bound:?}"));
        done.and_then(|done| done.unwrap_or_else(|| Err(late())))
            .map_err(failed(operation, &self.path))
    }
}
