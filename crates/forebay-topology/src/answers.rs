//! The recorded answers of a kernel, and their form in `expected/probe.jsonl`.
//!
//! Each line of that file is an object about a path, a device-mapper volume, a loop device, or a
//! device whose access was checked. Malformed lines are skipped, unknown keys ignored.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::mount::device_number;
use super::probe::{Answer, Extent, Refusal, Stat, Trail};
use super::quoted::printable;
use super::resolve::device_text;

/// The recorded answers.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// The paths that the record is about.
    pub(super) paths: Vec<PathBuf>,
    files: BTreeMap<PathBuf, FileAnswers>,
    tables: BTreeMap<u64, Answer<String>>,
    loops: BTreeMap<String, (u64, u64)>,
    devices: BTreeMap<PathBuf, Answer<()>>,
}

/// The answers about a path.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct FileAnswers {
    errno: Option<i64>,
    #[serde(default)]
    silent: bool,
    #[serde(flatten)]
    stat: Option<Stat>,
    realpath: Option<PathBuf>,
    /// Without it the links of the path are unknown.
    there: Option<PathBuf>,
    #[serde(default)]
    links: Vec<(PathBuf, PathBuf)>,
    statfs_type: Option<Hex>,
    fiemap: Option<Fiemap>,
}

/// Extents as offset, address, length and flags.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum Fiemap {
    Extents { extents: Vec<(u64, u64, u64, Hex)> },
    Failed { errno: i64 },
}

/// A line of the file.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
#[expect(clippy::large_enum_variant, reason = "most lines are about a path")]
enum Line {
    Table {
        #[serde(with = "device")]
        dm: u64,
        table: Option<String>,
        errno: Option<i64>,
    },
    Access {
        access: PathBuf,
        errno: Option<i64>,
    },
    Loop {
        r#loop: String,
        #[serde(with = "device")]
        dev: u64,
        ino: u64,
    },
    Path {
        path: PathBuf,
        /// False for paths that only the resolver probed.
        asked: Option<bool>,
        #[serde(flatten)]
        answers: FileAnswers,
    },
}

impl Answers {
    pub(super) fn parse(text: &str) -> Self {
        let mut answers = Self::default();
        for line in text.lines().filter_map(|line| serde_json::from_str(line).ok()) {
            answers.add(line);
        }
        answers
    }

    fn add(&mut self, line: Line) {
        match line {
            Line::Table { dm, table, errno } => {
                let refusal = errno.map_or(Refusal::NotRecorded, refusal);
                self.tables.insert(dm, table.ok_or(refusal));
            }
            Line::Access { access, errno } => {
                self.devices.insert(access, errno.map_or(Ok(()), |errno| Err(refusal(errno))));
            }
            Line::Loop { r#loop: name, dev, ino } => {
                self.loops.insert(name, (dev, ino));
            }
            Line::Path { path, asked, answers } => {
                if asked != Some(false) {
                    self.paths.push(path.clone());
                }
                if let (Ok(stat), Some(real)) = (answers.stat(), &answers.realpath) {
                    let own =
                        FileAnswers { stat: Some(stat), links: Vec::new(), ..answers.clone() };
                    self.files.entry(real.clone()).or_insert(own);
                }
                self.files.insert(path, answers);
            }
        }
    }

    /// The lines of the file, without characters that move a terminal's cursor.
    pub(super) fn lines(&self) -> String {
        let files = self.files.iter().map(|(path, answers)| Line::Path {
            path: lossy(path),
            asked: Some(self.paths.contains(path)),
            answers: answers.clone(),
        });
        let tables = self.tables.iter().map(|(dm, table)| Line::Table {
            dm: *dm,
            table: table.clone().ok(),
            errno: errno(table),
        });
        let loops = self.loops.iter().map(|(name, (dev, ino))| Line::Loop {
            r#loop: name.clone(),
            dev: *dev,
            ino: *ino,
        });
        let devices = self
            .devices
            .iter()
            .map(|(path, answer)| Line::Access { access: lossy(path), errno: errno(answer) });
        let lines = files.chain(tables).chain(loops).chain(devices);
        lines
            .filter_map(|line| Some(printable(&serde_json::to_string(&line).ok()?) + "\n"))
            .collect()
    }

    fn file(&self, path: &Path) -> Answer<&FileAnswers> {
        self.files.get(path).ok_or(Refusal::NotRecorded)
    }

    fn note(&mut self, path: &Path) -> &mut FileAnswers {
        self.files.entry(path.to_owned()).or_default()
    }

    pub(super) fn stat(&self, path: &Path) -> Answer<Stat> {
        self.file(path)?.stat()
    }

    pub(super) fn note_stat(&mut self, path: &Path, answer: &Answer<Stat>) {
        let file = self.note(path);
        file.stat = answer.ok();
        file.errno = errno(answer);
        file.silent = *answer == Err(Refusal::Silent);
    }

    pub(super) fn trail(&self, path: &Path) -> Answer<Trail> {
        let file = self.file(path)?;
        let real = file.realpath.clone().unwrap_or_else(|| path.to_owned());
        let (links, there) = match (&file.there, file.stat()) {
            (Some(there), _) => (file.links.clone(), there.clone()),
            // Records of other tools hold only the end of a path, not its links.
            (None, Ok(_)) => {
                let ends = (real != path).then(|| (path.to_owned(), real.clone()));
                (ends.into_iter().collect(), real.clone())
            }
            (None, Err(Refusal::Errno(Errno::NOENT))) => {
                let mut above = path.ancestors().skip(1);
                let there = above.find(|above| self.stat(above).is_ok());
                (Vec::new(), there.unwrap_or(Path::new("/")).to_owned())
            }
            (None, Err(refusal)) => return Err(refusal),
        };
        Ok(Trail { real, links, there })
    }

    pub(super) fn note_trail(&mut self, path: &Path, answer: &Answer<Trail>) {
        let Ok(Trail { real, links, there }) = answer else { return };
        let file = self.note(path);
        file.realpath = Some(lossy(real));
        file.there = Some(lossy(there));
        file.links = links.iter().map(|(at, to)| (lossy(at), lossy(to))).collect();
    }

    pub(super) fn file_system(&self, path: &Path) -> Answer<u32> {
        self.stat(path)?;
        let kind = self.file(path)?.statfs_type.and_then(|kind| kind.0.try_into().ok());
        kind.ok_or(Refusal::NotRecorded)
    }

    pub(super) fn note_file_system(&mut self, path: &Path, answer: Answer<u32>) {
        self.note(path).statfs_type = answer.ok().map(|kind| Hex(kind.into()));
    }

    pub(super) fn extents(&self, path: &Path, max: usize) -> Answer<Vec<Extent>> {
        self.stat(path)?;
        let extents = match &self.file(path)?.fiemap {
            None => return Err(Refusal::NotRecorded),
            Some(Fiemap::Failed { errno }) => return Err(refusal(*errno)),
            Some(Fiemap::Extents { extents }) => extents.iter().take(max),
        };
        let extents = extents.map(|&(logical, physical, len, Hex(flags))| {
            let flags = flags.try_into().map_err(|_| Refusal::NotRecorded)?;
            Ok(Extent { logical, physical, len, flags })
        });
        extents.collect()
    }

    pub(super) fn note_extents(&mut self, path: &Path, answer: &Answer<Vec<Extent>>) {
        let row = |e: &Extent| (e.logical, e.physical, e.len, Hex(e.flags.into()));
        self.note(path).fiemap = match answer {
            Ok(extents) => Some(Fiemap::Extents { extents: extents.iter().map(row).collect() }),
            answer => errno(answer).map(|errno| Fiemap::Failed { errno }),
        };
    }

    pub(super) fn dm_table(&self, device: u64) -> Answer<String> {
        self.tables.get(&device).cloned().unwrap_or(Err(Refusal::NotRecorded))
    }

    pub(super) fn note_dm_table(&mut self, device: u64, answer: &Answer<String>) {
        self.tables.insert(device, answer.clone());
    }

    pub(super) fn loop_file(&self, name: &str) -> Answer<(u64, u64)> {
        self.loops.get(name).copied().ok_or(Refusal::NotRecorded)
    }

    pub(super) fn note_loop_file(&mut self, name: &str, answer: Answer<(u64, u64)>) {
        self.loops.extend(answer.ok().map(|file| (name.to_owned(), file)));
    }

    pub(super) fn access(&self, device: &Path) -> Answer<()> {
        self.devices.get(device).copied().unwrap_or(Err(Refusal::NotRecorded))
    }

    pub(super) fn note_access(&mut self, device: &Path, answer: Answer<()>) {
        self.devices.insert(device.to_owned(), answer);
    }

    /// The `stat` of any file on this mount.
    pub(super) fn sample(&self, mount: u64) -> Option<Stat> {
        let mut stats = self.files.values().filter_map(|file| file.stat().ok());
        stats.find(|stat| stat.mount == Some(mount))
    }
}

impl FileAnswers {
    fn stat(&self) -> Answer<Stat> {
        match self.errno {
            _ if self.silent => Err(Refusal::Silent),
            Some(errno) => Err(refusal(errno)),
            None => self.stat.ok_or(Refusal::NotRecorded),
        }
    }
}

/// JSON has no other text.
fn lossy(path: &Path) -> PathBuf {
    path.to_string_lossy().into_owned().into()
}

fn refusal(number: i64) -> Refusal {
    let number = i32::try_from(number).ok().filter(|number| (1..4096).contains(number));
    Refusal::Errno(number.map_or(Errno::IO, Errno::from_raw_os_error))
}

fn errno<T>(answer: &Answer<T>) -> Option<i64> {
    match answer {
        Err(Refusal::Errno(errno)) => Some(errno.raw_os_error().into()),
        _ => None,
    }
}

/// A number as `0x1f`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(super) struct Hex(pub(super) u64);

impl From<Hex> for String {
    fn from(Hex(number): Hex) -> Self {
        format!("{number:#x}")
    }
}

impl TryFrom<String> for Hex {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let digits = text.strip_prefix("0x").ok_or("no `0x`")?;
        u64::from_str_radix(digits, 16).map(Self).map_err(|_| "no number")
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
