//! Records a system for replay elsewhere: below `root/` the files of `/sys` and `/proc` that were
//! read for some paths, and in `expected/probe.jsonl` the kernel's answers about them.
//!
//! Personal data and credentials are omitted: user names and passwords in mount options, names of
//! file servers. Serial numbers of drives stay, because they identify drives. No existing file is
//! overwritten.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::answers::Answers;
use super::cache::Resolver;
use super::file_systems::{self, Ground, look_up};
use super::gpu;
use super::memory;
use super::nic;
use super::pci;
use super::system::{Absent, Source, System, Touched, read_file};

/// Maximum number of extents recorded per file.
const EXTENTS_MAX: usize = 4096;
/// Maximum length of the kernel's answers.
const ANSWERS_LEN_MAX: usize = 64 << 20;
/// The file of the kernel's answers.
const ANSWERS: &str = "expected/probe.jsonl";

/// Resolves `paths` on this machine and writes everything read into the new folder `dir`, which
/// [`System::fixture`] replays. Paths that did not answer `system`, the live system, are skipped.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`] if `dir` exists, and any error while writing.
pub fn record(system: &System, paths: &[PathBuf], dir: &Path) -> io::Result<()> {
    record_with(system, paths, dir, |_| ())
}

/// Like [`record`], and also records what `more` reads.
pub fn record_with(
    known: &System,
    paths: &[PathBuf],
    dir: &Path,
    more: impl FnOnce(&System),
) -> io::Result<()> {
    let absolute: io::Result<Vec<PathBuf>> = paths.iter().map(std::path::absolute).collect();
    let paths = absolute?;
    std::fs::create_dir(dir)?;
    let system = System::recording(known);
    let resolver = Resolver::new(system.clone());
    for path in &paths {
        let map = resolver.resolve(path);
        for drive in &map.drives {
            let _ = drive.pci().map(|device| pci::payload(&system, device));
            let _ = nic::ports(&system, &map.root, drive);
        }
        // Extents are read only for the record, so that a replay can map files to drives.
        let _ = system.extents(&map.path, EXTENTS_MAX);
    }
    // These read their files for the record.
    let _ = memory::Channels::read(&system);
    for gpu in gpu::gpus(&system) {
        let _ = pci::payload(&system, &gpu.pci);
    }
    more(&system);
    let root = dir.join("root");
    std::fs::create_dir(&root)?;
    let touched = system.note(std::mem::take).unwrap_or_default();
    write_touched(&root, &touched)?;
    write_new(dir, Path::new(ANSWERS), touched.answers.lines(&paths).as_bytes())
}

impl System {
    /// A system that was recorded into the folder `dir`.
    ///
    /// # Errors
    /// An I/O error if the record cannot be read.
    pub fn fixture(dir: &Path) -> io::Result<Self> {
        let root = dir.join("root");
        if !std::fs::metadata(&root)?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let bytes = read_record(&dir.join(ANSWERS), ANSWERS_LEN_MAX)?;
        let answers = Answers::parse(&String::from_utf8_lossy(&bytes));
        Ok(Self::made(root, Source::Replay(answers), None))
    }

    /// The paths that this system was recorded for; empty for a live system.
    pub fn recorded_paths(&self) -> Vec<PathBuf> {
        match self.source() {
            Source::Replay(answers) => answers.paths(),
            Source::Live | Source::Recording(_) => Vec::new(),
        }
    }
}

/// Reads at most `max` bytes of a file of a record. A record may be from elsewhere, so the open
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

/// Writes everything read to the same place below `root`.
fn write_touched(root: &Path, touched: &Touched) -> io::Result<()> {
    let mut names = Names::default();
    for (path, bytes) in &touched.files {
        let bytes = match path.to_str() {
            Some("proc/self/mountinfo") => names.mounts(bytes),
            Some("proc/self/mountstats") => names.statistics(bytes),
            Some(memory::DATABASE) => memory::without_serials(bytes),
            _ => bytes.clone(),
        };
        write_new(root, path, &bytes)?;
    }
    for (path, target) in &touched.links {
        let at = root.join(path);
        make_parent(&at)?;
        if at.symlink_metadata().is_err() {
            symlink(target, at)?;
        }
    }
    for name in &touched.names {
        if root.join(name).symlink_metadata().is_ok() {
            continue;
        }
        match Path::new("/").join(name).is_dir() {
            true => std::fs::create_dir_all(root.join(name))?,
            false => write_new(root, name, b"")?,
        }
    }
    Ok(())
}

fn make_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), std::fs::create_dir_all)
}

/// Writes a new file; fails if it exists.
fn write_new(root: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let path = root.join(path);
    make_parent(&path)?;
    OpenOptions::new().write(true).create_new(true).open(path)?.write_all(bytes)
}

/// Pseudonyms of file servers; the same server gets the same name.
#[derive(Debug, Default)]
struct Names {
    known: BTreeMap<String, String>,
}

impl Names {
    /// The mount table without secrets.
    fn mounts(&mut self, table: &[u8]) -> Vec<u8> {
        let text = String::from_utf8_lossy(table);
        let lines = text.lines().map(|line| {
            let Some((head, tail)) = line.split_once(" - ") else { return String::new() };
            let mut fields = tail.splitn(3, ' ');
            let kind = fields.next().unwrap_or_default();
            let source = fields.next().unwrap_or_default();
            let options = fields.next().unwrap_or_default();
            let source = self.source(kind, source);
            let options = file_systems::without_secrets(options);
            format!("{head} - {kind} {source} {options}\n")
        });
        lines.collect::<String>().into_bytes()
    }

    /// The mount statistics of NFS mounts, with the same pseudonyms.
    fn statistics(&mut self, table: &[u8]) -> Vec<u8> {
        let text = String::from_utf8_lossy(table);
        let mut keeps = false;
        let mut out = String::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("device ") {
                let (source, rest) = rest.split_once(' ').unwrap_or((rest, ""));
                keeps = rest.contains(" with fstype nfs");
                if keeps {
                    let _ = writeln!(out, "device {} {rest}", self.source("nfs", source));
                }
            } else if keeps {
                let _ = writeln!(out, "{line}");
            }
        }
        out.into_bytes()
    }

    /// The source of a mount. A server's name in it becomes `host1` and so on; addresses stay.
    fn source(&mut self, kind: &str, source: &str) -> String {
        if !matches!(look_up(kind), Some((_, Ground::Network))) {
            return source.to_owned();
        }
        let slashes = source.strip_prefix("//");
        let (before, rest) = slashes.map_or(("", source), |rest| ("//", rest));
        let end = rest.find(|c| if slashes.is_some() { c == '/' } else { c == ':' });
        let Some(end) = end else { return source.to_owned() };
        let (server, path) = rest.split_at(end);
        let is_address = server.starts_with('[') || server.parse::<std::net::IpAddr>().is_ok();
        if is_address || server.is_empty() {
            return source.to_owned();
        }
        let next = format!("host{}", self.known.len() + 1);
        let name = self.known.entry(server.to_owned()).or_insert(next);
        format!("{before}{name}{path}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_holds_no_secrets() {
        let mut names = Names::default();
        let table = "1 0 0:5 / /a rw shared:1 - nfs4 files.example.org:/x rw,addr=10.0.0.1\n\
                     2 0 0:6 / /b rw - cifs //files.example.org/y rw,username=me,addr=10.0.0.1\n\
                     3 0 0:7 / /c rw - nfs 10.0.0.2:/z rw\n\
                     4 0 8:1 / /d rw - ext4 /dev/a:b rw\n\
                     damaged\n";
        let masked = String::from_utf8(names.mounts(table.as_bytes())).expect("text");
        assert_eq!(
            masked,
            "1 0 0:5 / /a rw shared:1 - nfs4 host1:/x rw,addr=10.0.0.1\n\
             2 0 0:6 / /b rw - cifs //host1/y rw,username=***,addr=10.0.0.1\n\
             3 0 0:7 / /c rw - nfs 10.0.0.2:/z rw\n\
             4 0 8:1 / /d rw - ext4 /dev/a:b rw\n"
        );
        let stats = "device proc mounted on /proc with fstype proc\n\
                     device files.example.org:/x mounted on /a with fstype nfs4 statvers=1.1\n\
                     \txprt: tcp 0\n";
        let masked = String::from_utf8(names.statistics(stats.as_bytes())).expect("text");
        assert_eq!(
            masked,
            "device host1:/x mounted on /a with fstype nfs4 statvers=1.1\n\txprt: tcp 0\n"
        );
    }
}
