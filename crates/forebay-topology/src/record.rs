//! Records a system for replay elsewhere: the files of `/sys` and `/proc` that were read for some
//! paths, and the kernel's answers about them.
//!
//! Personal data and credentials are left out: user names and passwords in mount options, names of
//! file servers. Serial numbers of drives stay, because they identify drives. No existing file is
//! overwritten.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_base::lock::Lock;

use super::cache::Resolver;
use super::file_systems::{self, Ground, look_up};
use super::gpu;
use super::memory;
use super::nic;
use super::patience::Patience;
use super::pci;
use super::probe::{Answer, Extent, Live, Probe, Refusal, Stat, Trail};
use super::quoted::quoted;
use super::resolve::device_text;
use super::system::{System, Touched};

/// Maximum number of extents recorded per file.
const EXTENTS_MAX: usize = 4096;

/// Resolves `paths` on this machine and writes everything read into the new folder `dir`, which
/// [`System::fixture`] replays. Paths that did not answer `system`, the live one, are skipped.
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
    let notes = Arc::new(Recording { live: Live::patient(), ..Recording::default() });
    if let (Some(own), Some(known)) = (notes.patience(), known.probe().patience()) {
        own.inherit(known);
    }
    let system = System::recorded(Arc::clone(&notes) as Arc<dyn Probe>);
    let resolver = Resolver::new(system.clone());
    for path in &paths {
        let map = resolver.resolve(path);
        for drive in &map.drives {
            let _ = drive.pci().map(|device| pci::payload(&system, device));
            let _ = nic::ports(&system, &map.root, drive);
        }
        // Extents are read only for the record, so that a replay can map files to drives.
        let _ = notes.extents(&map.path, EXTENTS_MAX);
    }
    // These read their files for the record.
    let _ = memory::Channels::read(&system);
    for gpu in gpu::gpus(&system) {
        let _ = pci::payload(&system, &gpu.pci);
    }
    more(&system);
    let root = dir.join("root");
    std::fs::create_dir(&root)?;
    write_touched(&root, &system.touched())?;
    write_new(dir, Path::new("expected/probe.jsonl"), notes.lines(&paths).as_bytes())
}

/// Writes everything read to the same place below `root`.
fn write_touched(root: &Path, touched: &Touched) -> io::Result<()> {
    let mut names = Names::default();
    for folder in &touched.folders {
        // A listed entry may be a file, which is written below.
        if !touched.files.contains_key(folder) && Path::new("/").join(folder).is_dir() {
            std::fs::create_dir_all(root.join(folder))?;
        }
    }
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
        if root.join(name).symlink_metadata().is_err() {
            write_new(root, name, b"")?;
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

/// Probes the live system and records each answer.
#[derive(Debug, Default)]
struct Recording {
    live: Live,
    files: Lock<BTreeMap<PathBuf, Answers>>,
    tables: Lock<BTreeMap<u64, Answer<String>>>,
    loops: Lock<BTreeMap<String, (u64, u64)>>,
    devices: Lock<BTreeMap<PathBuf, Answer<()>>>,
}

#[derive(Debug, Default)]
struct Answers {
    stat: Option<Answer<Stat>>,
    trail: Option<Trail>,
    file_system: Option<u32>,
    extents: Option<Answer<Vec<Extent>>>,
}

impl Recording {
    fn note(&self, path: &Path, action: impl FnOnce(&mut Answers)) {
        let mut files = self.files.lock();
        action(files.entry(path.to_owned()).or_default());
    }

    /// The recorded answers as JSON lines.
    fn lines(&self, paths: &[PathBuf]) -> String {
        let mut text = String::new();
        for (path, answers) in &*self.files.lock() {
            answers.write(&mut text, path, paths.contains(path));
        }
        for (device, table) in &*self.tables.lock() {
            let answer = match table {
                Ok(table) => format!("\"table\":{}", quoted(table)),
                Err(Refusal::Errno(errno)) => format!("\"errno\":{}", errno.raw_os_error()),
                Err(Refusal::NotRecorded | Refusal::Silent) => continue,
            };
            let _ = writeln!(text, "{{\"dm\":\"{}\",{answer}}}", device_text(*device));
        }
        for (name, (device, inode)) in &*self.loops.lock() {
            let (name, device) = (quoted(name), device_text(*device));
            let _ = writeln!(text, "{{\"loop\":{name},\"dev\":\"{device}\",\"ino\":{inode}}}");
        }
        for (path, answer) in &*self.devices.lock() {
            let errno = match answer {
                Err(Refusal::Errno(errno)) => format!(",\"errno\":{}", errno.raw_os_error()),
                _ => String::new(),
            };
            let _ = writeln!(text, "{{\"access\":{}{errno}}}", quoted(&path.to_string_lossy()));
        }
        text
    }
}

impl Probe for Recording {
    fn stat(&self, path: &Path) -> Answer<Stat> {
        let answer = self.live.stat(path);
        self.note(path, |answers| answers.stat = Some(answer));
        answer
    }

    fn trail(&self, path: &Path) -> Answer<Trail> {
        let answer = self.live.trail(path);
        self.note(path, |answers| answers.trail = answer.as_ref().ok().cloned());
        answer
    }

    fn file_system(&self, path: &Path) -> Answer<u32> {
        let answer = self.live.file_system(path);
        self.note(path, |answers| answers.file_system = answer.ok());
        answer
    }

    fn extents(&self, path: &Path, max: usize) -> Answer<Vec<Extent>> {
        let answer = self.live.extents(path, max);
        self.note(path, |answers| answers.extents = Some(answer.clone()));
        answer
    }

    fn dm_table(&self, device: u64) -> Answer<String> {
        let answer = self.live.dm_table(device);
        self.tables.lock().insert(device, answer.clone());
        answer
    }

    fn loop_file(&self, name: &str) -> Answer<(u64, u64)> {
        let answer = self.live.loop_file(name);
        if let Ok(file) = answer {
            self.loops.lock().insert(name.to_owned(), file);
        }
        answer
    }

    fn access(&self, device: &Path) -> Answer<()> {
        let answer = self.live.access(device);
        self.devices.lock().insert(device.to_owned(), answer);
        answer
    }

    fn patience(&self) -> Option<&Patience> {
        self.live.patience()
    }
}

impl Answers {
    fn write(&self, text: &mut String, path: &Path, wanted: bool) {
        let name = |path: &Path| quoted(&path.to_string_lossy());
        let _ = write!(text, "{{\"path\":{}", name(path));
        if !wanted {
            text.push_str(",\"asked\":false");
        }
        if let Some(trail) = &self.trail {
            let (real, there) = (name(&trail.real), name(&trail.there));
            let _ = write!(text, ",\"realpath\":{real},\"there\":{there}");
            let links = trail.links.iter();
            let links: Vec<String> =
                links.map(|(at, to)| format!("[{},{}]", name(at), name(to))).collect();
            let _ = write!(text, ",\"links\":[{}]", links.join(","));
        }
        match &self.stat {
            Some(Ok(stat)) => write_stat(text, stat),
            Some(Err(Refusal::Errno(errno))) => {
                let _ = write!(text, ",\"errno\":{}", errno.raw_os_error());
            }
            Some(Err(Refusal::Silent)) => text.push_str(",\"silent\":true"),
            _ => {}
        }
        if let Some(kind) = self.file_system {
            let _ = write!(text, ",\"statfs_type\":\"{kind:#x}\"");
        }
        match &self.extents {
            Some(Ok(extents)) => {
                let extents = extents.iter().map(|e| {
                    format!("[{},{},{},\"{:#x}\"]", e.logical, e.physical, e.len, e.flags)
                });
                let extents = extents.collect::<Vec<_>>().join(",");
                let _ = write!(text, ",\"fiemap\":{{\"extents\":[{extents}]}}");
            }
            Some(Err(Refusal::Errno(errno))) => {
                let _ = write!(text, ",\"fiemap\":{{\"errno\":{}}}", errno.raw_os_error());
            }
            _ => {}
        }
        text.push_str("}\n");
    }
}

fn write_stat(text: &mut String, stat: &Stat) {
    let (device, rdev) = (device_text(stat.device), device_text(stat.rdev));
    let _ = write!(
        text,
        ",\"dev\":\"{device}\",\"rdev\":\"{rdev}\",\"mode\":\"{:o}\",\"ino\":{},\"size\":{}",
        stat.mode, stat.inode, stat.size
    );
    let _ = write!(text, ",\"blksize\":{}", stat.block_size);
    let _ = write!(text, ",\"attributes\":\"{:#x}\"", stat.attributes);
    if let Some(mount) = stat.mount {
        let _ = write!(text, ",\"mnt_id\":{mount}");
    }
    if let Some((memory, offset)) = stat.direct {
        let _ = write!(text, ",\"dio_mem_align\":{memory},\"dio_offset_align\":{offset}");
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
