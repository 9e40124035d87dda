//! The drives of one bar: images in memory, loop devices over them, file systems on those.
//!
//! Every device is detached as soon as its file system is mounted, so the kernel frees it with the
//! mount; the mount disappears with the namespace of this process.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use forebay::units::{GIB, MIB};
use rustix::fs::{Advice, Dev, fadvise, stat};

use super::group;
use super::slow::{Pace, Server};
use super::{text, tool};
use crate::bar::Stop;
use crate::data;

/// The part of a second's bytes that is read to use up a burst: three times the bytes that a capped
/// drive lets pass uncapped after a pause.
const BURST_S_INVERSE: u64 = 3;

/// Room on a drive in addition to its data and a quarter of that: files are only made where a tenth
/// of the file system stays free.
const ROOM: u64 = 256 * MIB;

/// Room on each member of a striped file system: if one is full, stripes become narrower.
const MEMBER_ROOM: u64 = GIB;

/// The folder of images and mounts, and the control group of one bar.
#[derive(Debug)]
pub(super) struct Ground {
    folder: PathBuf,
    group: PathBuf,
    tiny: bool,
}

/// One drive.
#[derive(Debug)]
pub(super) struct Drive {
    pub(super) name: String,
    /// The mount point of its file system.
    pub(super) folder: PathBuf,
    /// Its block device.
    pub(super) device: PathBuf,
    /// The server behind a slow drive.
    server: Option<Server>,
    number: Dev,
    rate: u64,
}

impl Ground {
    /// Mounts the memory file system of the images.
    pub(super) fn new(folder: &Path, group: &Path, tiny: bool) -> Result<Self, Stop> {
        tool("mount", &["-t", "tmpfs", "-o", "size=90%", "forebay-bars", text(folder)?])?;
        Ok(Self { folder: folder.into(), group: group.into(), tiny })
    }

    /// The size that a bar moves: the stated one, or little in a tiny run.
    pub(super) fn len(&self, stated: u64) -> u64 {
        if self.tiny { (stated / 64).clamp(MIB, 16 * MIB) / MIB * MIB } else { stated }
    }

    /// Whether this run only shows that the bars run.
    pub(super) fn is_tiny(&self) -> bool {
        self.tiny
    }

    /// How often a bar samples each side.
    pub(super) fn rounds(&self, stated: usize) -> usize {
        if self.tiny { 1 } else { stated }
    }

    /// A drive of ext4 in memory, which no cap binds yet, with room for `len` bytes.
    pub(super) fn drive(&self, name: &str, len: u64) -> Result<Drive, Stop> {
        let image = self.image(name, len + len / 4 + ROOM)?;
        self.on(name, &image, None)
    }

    /// A drive with its own latency and rate, which bind all users.
    pub(super) fn slow_drive(&self, name: &str, len: u64, pace: Pace) -> Result<Drive, Stop> {
        let image = self.image(name, len + len / 4 + ROOM)?;
        let point = self.made(&format!("{name}-slow"))?;
        let server = Server::start(&image, &point, pace)?;
        self.on(name, &point.join("image"), Some(server))
    }

    /// Several drives with one file system that stripes its files over them.
    pub(super) fn stripes(&self, members: usize, len: u64) -> Result<(PathBuf, Vec<Drive>), Stop> {
        let mut drives = Vec::new();
        for member in 0..members {
            let name = format!("member-{member}");
            let image = self.image(&name, (len + len / 4) / members as u64 + MEMBER_ROOM)?;
            let device = attach(&image)?;
            drives.push(Drive {
                number: number(&device)?,
                folder: PathBuf::new(),
                device,
                server: None,
                name,
                rate: 0,
            });
        }
        let mut words = vec!["-q", "-f", "-d", "raid0", "-m", "raid1"];
        for drive in &drives {
            words.push(text(&drive.device)?);
        }
        let point = self.made("striped")?;
        let made = tool("mkfs.btrfs", &words).and_then(|_| {
            let first = text(&drives[0].device)?;
            tool("mount", &["-t", "btrfs", "-o", "noatime", first, text(&point)?])
        });
        for drive in &drives {
            let _ = tool("losetup", &["--detach", text(&drive.device)?]);
        }
        made?;
        Ok((point, drives))
    }

    /// Allows the processes of this bar to read `rate` bytes per second from a drive.
    pub(super) fn cap(&self, drive: &mut Drive, rate: u64) -> Result<(), Stop> {
        drive.rate = rate;
        group::cap(&self.group, drive.number, rate)
    }

    fn image(&self, name: &str, len: u64) -> Result<PathBuf, Stop> {
        let path = self.folder.join(format!("{name}.image"));
        File::create(&path)?.set_len(len)?;
        Ok(path)
    }

    fn made(&self, name: &str) -> Result<PathBuf, Stop> {
        let path = self.folder.join(name);
        fs::create_dir(&path)?;
        Ok(path)
    }

    /// A loop device over `image`, with a file system.
    fn on(&self, name: &str, image: &Path, server: Option<Server>) -> Result<Drive, Stop> {
        let folder = self.made(name)?;
        let device = attach(image)?;
        let mounted = format(&device).and_then(|_| {
            tool("mount", &["-t", "ext4", "-o", "noatime", text(&device)?, text(&folder)?])
        });
        let number = number(&device);
        tool("losetup", &["--detach", text(&device)?])?;
        mounted?;
        let name = name.to_owned();
        Ok(Drive { name, folder, device, server, number: number?, rate: 0 })
    }
}

impl Drive {
    /// A new file of test data on it.
    pub(super) fn file(&self, name: &str, len: u64) -> Result<PathBuf, Stop> {
        let path = self.folder.join(name);
        data::write(&path, len)?;
        Ok(path)
    }

    /// Makes a slow drive hang, or ends that.
    pub(super) fn hang(&self, hangs: bool) -> Result<(), Stop> {
        self.server.as_ref().map_or(Ok(()), |server| server.hang(hangs))
    }

    /// Reads the bytes that a capped drive lets pass uncapped after a pause, so that later reads
    /// are capped.
    pub(super) fn spend_burst(&self) -> Result<(), Stop> {
        if self.rate == 0 { Ok(()) } else { spend_burst(&self.folder, self.rate) }
    }
}

/// Like `spend_burst`, for a file system whose drives let pass `rate` bytes per second in all.
pub(super) fn spend_burst(folder: &Path, rate: u64) -> Result<(), Stop> {
    let path = folder.join("burst");
    if !path.exists() {
        data::write(&path, rate / BURST_S_INVERSE / MIB * MIB)?;
    }
    let mut file = File::open(path)?;
    fadvise(&file, 0, None, Advice::DontNeed)?;
    let mut piece = vec![0; 1 << 20];
    while file.read(&mut piece)? > 0 {}
    Ok(())
}

/// Like `spend_burst`, for several drives at once.
pub(super) fn spend_bursts(drives: &[Drive]) -> Result<(), Stop> {
    std::thread::scope(|scope| {
        let spending: Vec<_> = drives.iter().map(|d| scope.spawn(|| d.spend_burst())).collect();
        spending.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(Stop::Fail("a thread panicked".into())))
        })
    })
}

/// The loop device that now holds `image`.
fn attach(image: &Path) -> Result<PathBuf, Stop> {
    tool("losetup", &["--show", "--find", "--direct-io=on", text(image)?]).map(PathBuf::from)
}

fn format(device: &Path) -> Result<String, Stop> {
    // No initialisation is left for after the mount, which would disturb the measurement.
    let whole = "lazy_itable_init=0,lazy_journal_init=0";
    tool("mkfs.ext4", &["-q", "-F", "-b", "4096", "-E", whole, text(device)?])
}

fn number(device: &Path) -> Result<Dev, Stop> {
    Ok(stat(device)?.st_rdev)
}
