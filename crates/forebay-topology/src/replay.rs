//! Replays a record: `root/` stands for `/sys` and `/proc`, `expected/probe.jsonl` for the kernel.
//!
//! Each line of that file is an object about one of these:
//! * a path (`path`, then `errno`, `silent`, or `realpath`, `dev`, `rdev`, `mode`, `ino`, `size`,
//!   `blksize`, `mnt_id`, `statfs_type`, `dio_mem_align`, `dio_offset_align`, `fiemap`);
//! * a device-mapper volume (`dm`, `table`);
//! * a loop device (`loop`, `dev`, `ino`);
//! * a device whose access was checked (`access`, then `errno` if access was denied).
//!
//! Malformed lines are skipped.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use serde_json::Value;

use super::mount::device_number;
use super::probe::{Answer, Extent, Probe, Refusal, Stat, Trail};
use super::system::{Absent, System, read_file};

/// Maximum length of a record.
const RECORD_LEN_MAX: usize = 64 << 20;

/// The recorded answers of a kernel.
#[derive(Debug, Default)]
pub(super) struct Replay {
    paths: Vec<PathBuf>,
    files: HashMap<PathBuf, Answer<Entry>>,
    /// Targets of paths, if they were recorded link by link.
    trails: HashMap<PathBuf, Trail>,
    tables: HashMap<u64, Answer<String>>,
    loops: HashMap<String, (u64, u64)>,
    devices: HashMap<PathBuf, Answer<()>>,
}

#[derive(Debug, Clone)]
struct Entry {
    stat: Stat,
    real: PathBuf,
    file_system: Option<u32>,
    extents: Answer<Vec<Extent>>,
}

impl System {
    /// A system that was recorded into the folder `dir`, which holds `root/` and
    /// `expected/probe.jsonl`.
    ///
    /// # Errors
    /// An I/O error if either of them cannot be read.
    pub fn fixture(dir: &Path) -> io::Result<Self> {
        let root = dir.join("root");
        if !std::fs::metadata(&root)?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let bytes = read_record(&dir.join("expected/probe.jsonl"), RECORD_LEN_MAX)?;
        let replay = Replay::parse(&String::from_utf8_lossy(&bytes));
        Ok(Self::with_probe(root, Arc::new(replay)))
    }

    /// The paths that this system was recorded for; empty for a live one.
    #[must_use]
    pub fn recorded_paths(&self) -> Vec<PathBuf> {
        self.probe().paths()
    }
}

/// Reads at most `max` bytes of a file of a record. A record may come from elsewhere, so the open
/// does not block, and links and special files are rejected.
///
/// # Errors
/// An I/O error of the file, or an error if it is not a regular file.
pub fn read_record(path: &Path, max: usize) -> io::Result<Vec<u8>> {
    read_file(path, false, max).map_err(|absent| match absent {
        Absent::Missing | Absent::Denied | Absent::Failed(_) => absent.into(),
        other => {
            let name = path.file_name().unwrap_or_default().display().to_string();
            io::Error::other(format!("`{name}`: {other}"))
        }
    })
}

impl Replay {
    pub(super) fn parse(text: &str) -> Self {
        let mut replay = Self::default();
        for line in text.lines() {
            if let Ok(value) = serde_json::from_str(line) {
                replay.add(&value);
            }
        }
        replay
    }

    fn add(&mut self, value: &Value) -> Option<()> {
        let text = |name: &str| value.get(name)?.as_str();
        let number = |name: &str| value.get(name)?.as_u64();
        let errno = number("errno").map(refusal);
        if let Some(device) = text("dm") {
            let table = text("table").map(str::to_owned);
            let answer = table.ok_or(errno.unwrap_or(Refusal::NotRecorded));
            self.tables.insert(device_number(device)?, answer);
        } else if let Some(device) = text("access") {
            self.devices.insert(device.into(), errno.map_or(Ok(()), Err));
        } else if let Some(name) = text("loop") {
            self.loops.insert(name.to_owned(), (device_number(text("dev")?)?, number("ino")?));
        } else {
            let path = PathBuf::from(text("path")?);
            // Paths that the recorder probed on its own are not among the requested paths.
            if value.get("asked").is_none_or(|answer| *answer != Value::Bool(false)) {
                self.paths.push(path.clone());
            }
            if let Some(there) = text("there") {
                let real = text("realpath").map_or_else(|| path.clone(), PathBuf::from);
                let trail = Trail { real, links: links(value), there: there.into() };
                self.trails.insert(path.clone(), trail);
            }
            let is_silent = value.get("silent").is_some_and(|silent| *silent == Value::Bool(true));
            let answer = match errno {
                _ if is_silent => Err(Refusal::Silent),
                Some(errno) => Err(errno),
                None => Ok(entry(value, &path)?),
            };
            if let Ok(entry) = &answer {
                self.files.entry(entry.real.clone()).or_insert_with(|| answer.clone());
            }
            self.files.insert(path, answer);
        }
        Some(())
    }

    fn entry(&self, path: &Path) -> Answer<&Entry> {
        match self.files.get(path) {
            Some(Ok(entry)) => Ok(entry),
            Some(Err(refusal)) => Err(*refusal),
            None => Err(Refusal::NotRecorded),
        }
    }
}

impl Probe for Replay {
    fn stat(&self, path: &Path) -> Answer<Stat> {
        Ok(self.entry(path)?.stat)
    }

    fn trail(&self, path: &Path) -> Answer<Trail> {
        if let Some(trail) = self.trails.get(path) {
            return Ok(trail.clone());
        }
        let entry = match self.entry(path) {
            Ok(entry) => entry,
            Err(Refusal::Errno(Errno::NOENT)) => {
                // The deepest ancestor that exists in the record.
                let above = path.ancestors().skip(1);
                let there = above.into_iter().find(|above| self.entry(above).is_ok());
                let there = there.unwrap_or(Path::new("/")).to_owned();
                return Ok(Trail { real: path.to_owned(), links: Vec::new(), there });
            }
            Err(refusal) => return Err(refusal),
        };
        // Records of other tools hold only the end of a path, not its links.
        let ends = (entry.real != path).then(|| (path.to_owned(), entry.real.clone()));
        let links = ends.into_iter().collect();
        Ok(Trail { real: entry.real.clone(), links, there: entry.real.clone() })
    }

    fn file_system(&self, path: &Path) -> Answer<u32> {
        self.entry(path)?.file_system.ok_or(Refusal::NotRecorded)
    }

    fn extents(&self, path: &Path, max: usize) -> Answer<Vec<Extent>> {
        let extents = self.entry(path)?.extents.clone();
        extents.map(|mut extents| {
            extents.truncate(max);
            extents
        })
    }

    fn dm_table(&self, device: u64) -> Answer<String> {
        self.tables.get(&device).cloned().unwrap_or(Err(Refusal::NotRecorded))
    }

    fn loop_file(&self, name: &str) -> Answer<(u64, u64)> {
        self.loops.get(name).copied().ok_or(Refusal::NotRecorded)
    }

    fn access(&self, device: &Path) -> Answer<()> {
        self.devices.get(device).copied().unwrap_or(Err(Refusal::NotRecorded))
    }

    fn sample(&self, mount: u64) -> Option<Stat> {
        let mut stats = self.files.values().flatten().map(|entry| entry.stat);
        stats.find(|stat| stat.mount == Some(mount))
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.paths.clone()
    }
}

fn refusal(number: u64) -> Refusal {
    let number = i32::try_from(number).ok().filter(|number| (1..4096).contains(number));
    Refusal::Errno(number.map_or(Errno::IO, Errno::from_raw_os_error))
}

fn entry(value: &Value, path: &Path) -> Option<Entry> {
    let text = |name: &str| value.get(name)?.as_str();
    let number = |name: &str| value.get(name)?.as_u64();
    let hex = |name: &str| u32::from_str_radix(text(name)?.strip_prefix("0x")?, 16).ok();
    let align = |name: &str| u32::try_from(number(name)?).ok();
    let real = text("realpath").map_or_else(|| path.to_owned(), PathBuf::from);
    Some(Entry {
        stat: Stat {
            device: device_number(text("dev")?)?,
            rdev: text("rdev").and_then(device_number).unwrap_or(0),
            mode: u32::from_str_radix(text("mode")?, 8).ok()?,
            inode: number("ino")?,
            size: number("size").unwrap_or(0),
            block_size: number("blksize").unwrap_or(0),
            mount: number("mnt_id"),
            direct: align("dio_mem_align").zip(align("dio_offset_align")),
            attributes: hex("attributes").map_or(0, u64::from),
        },
        real,
        file_system: hex("statfs_type"),
        extents: extents(value.get("fiemap")),
    })
}

fn links(value: &Value) -> Vec<(PathBuf, PathBuf)> {
    let links = value.get("links").and_then(Value::as_array).into_iter().flatten();
    let links = links.filter_map(|link| {
        let [at, target] = link.as_array()?.as_slice() else { return None };
        Some((PathBuf::from(at.as_str()?), PathBuf::from(target.as_str()?)))
    });
    links.collect()
}

fn extents(value: Option<&Value>) -> Answer<Vec<Extent>> {
    let value = value.ok_or(Refusal::NotRecorded)?;
    if let Some(errno) = value.get("errno").and_then(Value::as_u64) {
        return Err(refusal(errno));
    }
    let list = value.get("extents").and_then(Value::as_array).ok_or(Refusal::NotRecorded)?;
    let extents = list.iter().filter_map(|extent| {
        let [logical, physical, len, flags] = extent.as_array()?.as_slice() else { return None };
        Some(Extent {
            logical: logical.as_u64()?,
            physical: physical.as_u64()?,
            len: len.as_u64()?,
            flags: u32::from_str_radix(flags.as_str()?.strip_prefix("0x")?, 16).ok()?,
        })
    });
    Ok(extents.collect())
}
