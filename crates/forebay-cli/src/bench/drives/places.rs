//! The paths of a comparison of several: their files, their drives, and the queue of each.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::thread;

use forebay::Engine;
use forebay_topology::{DriveKind, Resolver};

use crate::bench::environment;
use crate::bench::make::Room;
use crate::bench::subject::Subject;
use crate::failure::{Failure, Result};
use crate::report::drives::DriveFacts;
use crate::report::json::Direction;
use crate::report::warnings::Warning;
use crate::steps::Step;

/// One path: a file of the user's, or scratch in a folder.
#[derive(Debug)]
pub struct Place {
    /// The path as given.
    pub given: PathBuf,
    /// The files that are read and written there.
    pub subject: Subject,
    /// The index of its queue: files of one queue share its rate.
    pub queue: usize,
    /// The ids of the drives below it.
    pub drives: Vec<String>,
    /// The name of its file system, if that keeps its files in memory.
    pub in_memory: Option<String>,
    /// Identifies the file system whose free room this path shares.
    room: u64,
}

impl Place {
    /// The file of one direction.
    #[must_use]
    pub fn path(&self, direction: Direction) -> PathBuf {
        match direction {
            Direction::Read => self.subject.read_path(),
            Direction::Write => self.subject.write_path(),
        }
    }
}

/// All paths of a run, and the drives below them.
#[derive(Debug)]
pub struct Places {
    /// The paths, in the given order.
    pub all: Vec<Place>,
    /// Their drives, each once.
    pub drives: Vec<DriveFacts>,
    /// Number of queues.
    pub queues: usize,
    /// Hardware that several queues have in common.
    pub shared: Vec<String>,
}

impl Places {
    /// Inspects all `paths`, and makes scratch if needed.
    ///
    /// # Errors
    /// If a path cannot be measured; scratch is removed then.
    pub fn find(engine: &Engine, paths: &[PathBuf], write: bool) -> Result<Self> {
        check_different(paths)?;
        let resolver = Resolver::default();
        let mut places = Self { all: Vec::new(), drives: Vec::new(), queues: 0, shared: vec![] };
        let (mut queues, mut hardware) = (Vec::new(), HashMap::<String, Vec<usize>>::new());
        for given in paths {
            let subject = Subject::find(engine, Some(given), write)?;
            let looking = Step::begin("inspect", &subject.folder);
            let map = resolver.resolve(&subject.read_path());
            let room = fs::metadata(&subject.folder).map_or(0, |facts| facts.dev());
            let kind = environment::file_system(&subject.folder).map(|facts| facts.kind);
            drop(looking);
            let queue = number(&mut queues, map.queue.id.as_str());
            for drive in &map.drives {
                places.add_drive(DriveFacts::of(drive, &map.queue.id));
                let users = hardware.entry(drive.name.clone()).or_default();
                // Files in memory are not limited by a drive.
                if drive.kind != DriveKind::Memory && !users.contains(&queue) {
                    users.push(queue);
                }
            }
            places.all.push(Place {
                given: given.clone(),
                queue,
                drives: map.drives.iter().map(|drive| drive.id.as_str().to_owned()).collect(),
                in_memory: kind.filter(|kind| matches!(kind.as_str(), "tmpfs" | "ramfs")),
                room,
                subject,
            });
        }
        places.queues = queues.len();
        places.shared = hardware.into_iter().filter(|(_, q)| q.len() > 1).map(|(n, _)| n).collect();
        places.shared.sort();
        Ok(places)
    }

    fn add_drive(&mut self, drive: DriveFacts) {
        match self.drives.iter_mut().find(|known| known.id == drive.id) {
            Some(known) => {
                for queue in drive.queues {
                    if !known.queues.contains(&queue) {
                        known.queues.push(queue);
                    }
                }
            }
            None => self.drives.push(drive),
        }
    }

    /// The queue of each path.
    #[must_use]
    pub fn queue_of_each(&self) -> Vec<usize> {
        self.all.iter().map(|place| place.queue).collect()
    }

    /// The ids of the drives below some of the paths, each once.
    #[must_use]
    pub fn drives_of(&self, indices: &[usize]) -> Vec<String> {
        let mut ids = Vec::new();
        for index in indices {
            for id in &self.all[*index].drives {
                if !ids.contains(id) {
                    ids.push(id.clone());
                }
            }
        }
        ids
    }

    /// Warnings about how the paths share drives.
    #[must_use]
    pub fn warnings(&self) -> Vec<Warning> {
        let mut warnings = Vec::new();
        if self.queues < self.all.len() {
            let (paths, queues) = (self.all.len(), self.queues);
            warnings.push(Warning::SameDrive { paths, queues });
        }
        if !self.shared.is_empty() {
            warnings.push(Warning::SharedDrive(self.shared.clone()));
        }
        warnings
    }

    /// Checks that scratch of these sizes fits. Paths on one file system share its room.
    ///
    /// # Errors
    /// If it does not fit.
    pub fn check_room(&self, lens: &[u64], write: bool) -> Result<()> {
        for place in &self.all {
            let needs = self.all.iter().zip(lens).filter(|(other, _)| other.room == place.room);
            let needs = needs.map(|(other, len)| {
                len.saturating_mul(u64::from(other.subject.scratch_files(write)))
            });
            let sum = needs.fold(0, u64::saturating_add);
            if sum > 0 {
                Room::of(&place.subject.folder)?.check(&place.subject.folder, sum)?;
            }
        }
        Ok(())
    }

    /// Bytes of scratch that each path may have: its share of the room on its file system.
    ///
    /// # Errors
    /// System errors.
    pub fn rooms(&self, write: bool) -> Result<Vec<u64>> {
        let files = |place: &Place| u64::from(place.subject.scratch_files(write));
        let room = |place: &Place| {
            let beside = self.all.iter().filter(|other| other.room == place.room);
            let all: u64 = beside.map(files).sum();
            match files(place) {
                0 => Ok(u64::MAX),
                _ => Ok(Room::of(&place.subject.folder)?.usable() / 2 / all),
            }
        };
        self.all.iter().map(room).collect()
    }

    /// Runs `work` for every path: one by one on each queue, on all queues concurrently.
    ///
    /// # Errors
    /// The error of the first path, in the given order, that failed.
    pub fn each<T: Send>(&self, work: impl Fn(usize) -> Result<T> + Sync) -> Result<Vec<T>> {
        let mut results: Vec<Option<Result<T>>> = self.all.iter().map(|_| None).collect();
        thread::scope(|scope| {
            let threads: Vec<_> = (0..self.queues)
                .map(|queue| {
                    let work = &work;
                    scope.spawn(move || {
                        let mine = self.all.iter().enumerate();
                        let mine = mine.filter(|(_, place)| place.queue == queue);
                        mine.map(|(index, _)| (index, work(index))).collect::<Vec<_>>()
                    })
                })
                .collect();
            for thread in threads {
                match thread.join() {
                    Ok(done) => done.into_iter().for_each(|(at, one)| results[at] = Some(one)),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
        });
        results.into_iter().flatten().collect()
    }
}

/// The index of `name` in `known`; adds it if it is missing.
fn number(known: &mut Vec<String>, name: &str) -> usize {
    known.iter().position(|other| other == name).unwrap_or_else(|| {
        known.push(name.to_owned());
        known.len() - 1
    })
}

/// Checks that all `paths` are different files or folders, even if one has several names.
///
/// # Errors
/// If two are the same.
fn check_different(paths: &[PathBuf]) -> Result<()> {
    let mut seen: Vec<((bool, u64, u64), &Path)> = Vec::new();
    for path in paths {
        let same = |other: &Path| {
            let (path, other) = (path.display(), other.display());
            let message = if path.to_string() == other.to_string() {
                format!("`{path}` is given twice")
            } else {
                format!("`{path}` is the same as `{other}`")
            };
            Failure::usage(message).hint("name each file or folder once")
        };
        // A path that cannot be read here is reported when it is opened.
        let step = Step::begin("inspect", path);
        let Ok(facts) = fs::metadata(path) else { continue };
        drop(step);
        let device = facts.file_type().is_block_device();
        let identity = match device {
            true => (true, facts.rdev(), 0),
            false => (false, facts.dev(), facts.ino()),
        };
        if let Some((_, other)) = seen.iter().find(|(known, _)| *known == identity) {
            return Err(same(other));
        }
        seen.push((identity, path));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use forebay::Options;
    use forebay::units::MIB;

    use super::*;

    fn engine() -> Engine {
        Engine::new(Options::default()).unwrap()
    }

    #[test]
    fn files_on_one_drive_have_one_queue() {
        let folder = tempfile::tempdir_in(".").unwrap();
        let paths = [folder.path().join("a"), folder.path().join("b")];
        paths.iter().for_each(|path| fs::write(path, "bytes").unwrap());
        let places = Places::find(&engine(), &paths, false).unwrap();
        assert_eq!((places.queues, places.queue_of_each()), (1, vec![0, 0]));
        assert!(!places.drives.is_empty());
        assert_eq!(places.drives_of(&[0, 1]), places.all[0].drives);
        let warnings = places.warnings();
        assert!(matches!(warnings[0], Warning::SameDrive { paths: 2, queues: 1 }), "{warnings:?}");
        assert_eq!(places.rooms(false).unwrap(), [u64::MAX; 2]);
    }

    #[test]
    fn a_file_is_itself_by_any_name() {
        let folder = tempfile::tempdir_in(".").unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), "bytes").unwrap();
        std::os::unix::fs::symlink("file", at("link")).unwrap();
        fs::hard_link(at("file"), at("other")).unwrap();
        for name in ["file", "link", "other"] {
            let failure = Places::find(&engine(), &[at("file"), at(name)], false).unwrap_err();
            assert!(failure.usage, "{failure:?}");
            assert!(failure.message.contains(&format!("{name}` is ")), "{failure:?}");
        }
        let folders = [folder.path().to_owned(), folder.path().join(".")];
        let failure = Places::find(&engine(), &folders, false).unwrap_err();
        assert!(failure.message.contains("is the same as"), "{failure:?}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "something was left");
    }

    #[test]
    fn scratch_of_one_file_system_counts_together() {
        let folder = tempfile::tempdir_in(".").unwrap();
        let paths = ["a", "b"].map(|name| folder.path().join(name));
        paths.iter().for_each(|path| fs::create_dir(path).unwrap());
        let places = Places::find(&engine(), &paths, true).unwrap();
        let usable = Room::of(folder.path()).unwrap().usable();
        assert!(places.check_room(&[MIB, MIB], true).is_ok());
        // Each would fit alone.
        assert!(places.check_room(&[usable / 3, usable / 3], true).is_err());
        let rooms = places.rooms(true).unwrap();
        assert!(rooms.iter().all(|room| *room <= usable / 4), "{rooms:?} {usable}");
        drop(places);
        assert!(paths.iter().all(|path| fs::read_dir(path).unwrap().count() == 0));
    }

    #[test]
    fn the_first_path_that_fails_is_told() {
        let folder = tempfile::tempdir_in(".").unwrap();
        let paths = ["a", "b", "c"].map(|name| folder.path().join(name));
        paths.iter().for_each(|path| fs::write(path, "bytes").unwrap());
        let places = Places::find(&engine(), &paths, false).unwrap();
        assert_eq!(places.each(Ok).unwrap(), [0, 1, 2]);
        let fails = |at| if at > 0 { Err(Failure::new(format!("{at}"))) } else { Ok(()) };
        assert_eq!(places.each(fails).unwrap_err().message, "1");
    }
}
