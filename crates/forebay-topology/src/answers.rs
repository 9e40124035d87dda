//! The recorded answers of a kernel, and their form in `expected/probe.jsonl`.
//!
//! A line of that file is an object about a path, a device-mapper volume, a loop device, or a
//! device whose access was checked. An answer is some of its keys. Malformed lines are skipped.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, io};

use rustix::fs::FileType;
use rustix::io::Errno;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::text::{device_number, device_text, printable};

/// Timeout of a probe. A drive in standby answers within a few seconds, and most probes need no
/// read from the drive.
pub(super) const LOOK_MAX: Duration = Duration::from_secs(3);

/// An answer of the kernel, or the reason why it is missing.
pub(super) type Answer<T> = Result<T, Refusal>;

/// Why an answer of the kernel is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The call failed.
    Errno(Errno),
    /// This was not recorded.
    NotRecorded,
    /// The call timed out: a server is down, or a program hangs.
    Silent,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Errno(errno) => errno.fmt(f),
            Self::NotRecorded => f.write_str("not recorded"),
            Self::Silent => write!(f, "no answer within {} s", LOOK_MAX.as_secs()),
        }
    }
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Errno(errno) => errno.into(),
            Refusal::NotRecorded => Self::other(refusal.to_string()),
            Refusal::Silent => Self::new(io::ErrorKind::TimedOut, refusal.to_string()),
        }
    }
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

/// The `statx` result for a file, also in records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stat {
    #[serde(rename = "dev", with = "device")]
    pub(super) device: u64,
    #[serde(default, with = "device")]
    pub(super) rdev: u64,
    #[serde(with = "octal")]
    pub(super) mode: u32,
    #[serde(rename = "ino")]
    pub(super) inode: u64,
    #[serde(default)]
    pub(super) size: u64,
    #[serde(default, rename = "blksize")]
    pub(super) block_size: u64,
    /// The id of the mount it was reached through (Linux 5.8; before that from the descriptor).
    #[serde(rename = "mnt_id")]
    pub(super) mount: Option<u64>,
    #[serde(flatten)]
    pub(super) direct: Option<Direct>,
    /// Compressed, encrypted and the like, as bits (`STATX_ATTR_…`).
    #[serde(default, with = "hex")]
    pub(super) attributes: u32,
}

/// Required alignment for direct I/O (Linux 6.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Direct {
    #[serde(rename = "dio_mem_align")]
    pub(super) memory: u32,
    #[serde(rename = "dio_offset_align")]
    pub(super) offset: u32,
}

impl Stat {
    pub(super) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }
}

/// The target of a path, with its links.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Trail {
    /// The path without links; missing components stay as they were written.
    #[serde(rename = "realpath")]
    pub(super) real: PathBuf,
    /// The links in the path: their paths and texts.
    pub(super) links: Vec<(PathBuf, PathBuf)>,
    /// The deepest component of `real` that exists.
    pub(super) there: PathBuf,
}

/// A contiguous run of a file's bytes, as FIEMAP reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Extent {
    /// Its offset in the file, in bytes.
    pub logical: u64,
    /// Its address on the file system's device; on btrfs a logical address.
    pub physical: u64,
    /// Its length in bytes.
    pub len: u64,
    /// The kernel's flags (`FIEMAP_EXTENT_…` in `linux/fiemap.h`).
    #[serde(with = "hex")]
    pub flags: u32,
}

/// Flags of `linux/fiemap.h`. btrfs sets `ENCODED` for compressed extents; encrypted ones have as
/// many bytes on the drive as in the file.
pub(super) const UNKNOWN: u32 = 0x2;
pub(super) const ENCODED: u32 = 0x8;
pub(super) const ENCRYPTED: u32 = 0x80;
pub(super) const INLINE: u32 = 0x200;
pub(super) const UNWRITTEN: u32 = 0x800;

/// The key of a path.
pub(super) const PATH: &str = "path";
const SUBJECTS: [&str; 4] = [PATH, "dm", "loop", "access"];
/// False for paths that only the resolver probed.
const WANTED: &str = "asked";

/// The recorded answers, by the key and the name of their subject.
#[derive(Debug, Default)]
pub(super) struct Answers {
    objects: BTreeMap<(&'static str, String), Map<String, Value>>,
    /// The paths that the record is about.
    paths: Vec<PathBuf>,
}

impl Answers {
    pub(super) fn parse(text: &str) -> Self {
        let mut answers = Self::default();
        let objects = text.lines().filter_map(|line| serde_json::from_str(line).ok());
        objects.for_each(|object| answers.add(object));
        answers
    }

    fn add(&mut self, object: Map<String, Value>) {
        let text = |key: &str| object.get(key)?.as_str().map(str::to_owned);
        let subject = SUBJECTS.iter().find_map(|key| Some((*key, text(key)?)));
        let Some((key, name)) = subject else { return };
        if key == PATH && object.get(WANTED) != Some(&Value::Bool(false)) {
            self.paths.push(name.clone().into());
        }
        if let Some(real) = text("realpath").filter(|_| object.contains_key("dev")) {
            let mut own = object.clone();
            own.remove("links");
            self.objects.entry((PATH, real)).or_insert(own);
        }
        self.objects.insert((key, name), object);
    }

    /// The lines of the file, without characters that move a terminal's cursor.
    pub(super) fn lines(&self, paths: &[PathBuf]) -> String {
        let lines = self.objects.iter().map(|((key, name), object)| {
            let mut object = object.clone();
            object.insert((*key).into(), name.as_str().into());
            if *key == PATH && !paths.iter().any(|path| path.to_string_lossy() == name.as_str()) {
                object.insert(WANTED.into(), false.into());
            }
            printable(&Value::from(object).to_string()) + "\n"
        });
        lines.collect()
    }

    pub(super) fn paths(&self) -> Vec<PathBuf> {
        self.paths.clone()
    }

    fn object(&self, (key, name): (&'static str, &Path)) -> Answer<&Map<String, Value>> {
        let object = self.objects.get(&(key, name.to_string_lossy().into_owned()));
        object.ok_or(Refusal::NotRecorded)
    }

    /// The answer about a subject whose keys are those of `T`.
    pub(super) fn get<T: DeserializeOwned>(&self, about: (&'static str, &Path)) -> Answer<T> {
        let object = self.object(about)?;
        if object.get("silent") == Some(&Value::Bool(true)) {
            return Err(Refusal::Silent);
        }
        if let Some(errno) = object.get("errno").and_then(Value::as_i64) {
            return Err(refusal(errno));
        }
        part(object)
    }

    pub(super) fn note<T: Serialize>(
        &mut self,
        (key, name): (&'static str, &Path),
        answer: &Answer<T>,
    ) {
        let keys = match answer {
            // Paths that are no text are not recorded.
            Ok(answer) => serde_json::to_value(answer).unwrap_or_default(),
            Err(Refusal::Errno(errno)) => json!({"errno": errno.raw_os_error()}),
            Err(Refusal::Silent) => json!({"silent": true}),
            Err(Refusal::NotRecorded) => return,
        };
        let object = self.objects.entry((key, name.to_string_lossy().into_owned())).or_default();
        // A path may answer `statx` and refuse a later call, which a replay then lacks.
        if answer.is_err() && object.contains_key("dev") {
            return;
        }
        object.extend(keys.as_object().cloned().unwrap_or_default());
    }

    /// The target of a path. Records of other tools hold only the end of a path, not its links.
    pub(super) fn trail(&self, path: &Path) -> Answer<Trail> {
        let about = (PATH, path);
        if let Ok(trail) = part(self.object(about)?) {
            return Ok(trail);
        }
        let real = self.object(about)?.get("realpath").and_then(Value::as_str);
        let real = real.map_or_else(|| path.to_owned(), PathBuf::from);
        let (links, there) = match self.get::<Stat>(about) {
            Ok(_) if real == path => (Vec::new(), real.clone()),
            Ok(_) => (vec![(path.to_owned(), real.clone())], real.clone()),
            Err(Refusal::Errno(Errno::NOENT)) => {
                let mut above = path.ancestors().skip(1);
                let there = above.find(|above| self.get::<Stat>((PATH, above)).is_ok());
                (Vec::new(), there.unwrap_or(Path::new("/")).to_owned())
            }
            Err(refusal) => return Err(refusal),
        };
        Ok(Trail { real, links, there })
    }

    /// The `stat` of any file on this mount.
    pub(super) fn sample(&self, mount: u64) -> Option<Stat> {
        let mut stats = self.objects.values().filter_map(|object| part::<Stat>(object).ok());
        stats.find(|stat| stat.mount == Some(mount))
    }
}

fn part<T: DeserializeOwned>(object: &Map<String, Value>) -> Answer<T> {
    T::deserialize(object).map_err(|_| Refusal::NotRecorded)
}

pub(super) fn refusal(number: i64) -> Refusal {
    let number = i32::try_from(number).ok().filter(|number| (1..4096).contains(number));
    Refusal::Errno(number.map_or(Errno::IO, Errno::from_raw_os_error))
}

#[derive(Serialize, Deserialize)]
pub(super) struct FileSystemType {
    #[serde(with = "hex")]
    pub(super) statfs_type: u32,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Table {
    pub(super) table: String,
}

/// Device and inode of the file behind a loop device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LoopFile {
    #[serde(with = "device")]
    pub(super) dev: u64,
    pub(super) ino: u64,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Granted {}

#[derive(Serialize, Deserialize)]
pub(super) struct Extents {
    pub(super) fiemap: Fiemap,
}

/// The answer of FIEMAP, which may fail where `stat` does not.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Fiemap {
    Extents { extents: Vec<Extent> },
    Failed { errno: i64 },
}

impl From<Refusal> for Fiemap {
    fn from(refusal: Refusal) -> Self {
        let errno = if let Refusal::Errno(errno) = refusal { errno } else { Errno::TIMEDOUT };
        Self::Failed { errno: errno.raw_os_error().into() }
    }
}

/// A number as `0x1f`.
pub(super) mod hex {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(number: &u32, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{number:#x}"))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
        let text = String::deserialize(from)?;
        let digits = text.strip_prefix("0x").unwrap_or_default();
        u32::from_str_radix(digits, 16).map_err(D::Error::custom)
    }
}

/// A device number as `8:1`.
pub(super) mod device {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(number: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&device_text(*number))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        let text = String::deserialize(from)?;
        device_number(&text).ok_or_else(|| D::Error::custom("no device number"))
    }
}

/// A file mode as `100644`.
pub(super) mod octal {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(mode: &u32, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{mode:o}"))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
        let text = String::deserialize(from)?;
        u32::from_str_radix(&text, 8).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_fails_later_takes_no_earlier_answer_back() {
        let (mut answers, about) = (Answers::default(), (PATH, Path::new("/f")));
        let text = r#"{"path":"/f","dev":"8:1","mode":"100644","ino":1,"mnt_id":10}"#;
        let stat: Stat = serde_json::from_str(text).expect("an answer");
        answers.note(about, &Ok(stat));
        answers.note(about, &Answer::<FileSystemType>::Err(Errno::OPNOTSUPP.into()));
        let replayed = Answers::parse(&answers.lines(&["/f".into()]));
        assert_eq!(replayed.get::<Stat>(about), Ok(stat));
        assert!(replayed.get::<FileSystemType>(about).is_err());
    }
}
