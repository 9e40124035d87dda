//! Folders that simulate a machine's `/sys` and `/dev`, for tests.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use forebay_topology::System;
use tempfile::TempDir;

/// A machine that is made file by file.
pub(super) struct Tree(TempDir);

impl Tree {
    pub(super) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(super) fn system(&self) -> System {
        System::at(self.0.path())
    }

    pub(super) fn file(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(super) fn link(&self, path: &str, target: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    /// A pipe without a writer: a blocking open would never return.
    pub(super) fn fifo(&self, path: &str) {
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let (kind, path) = (rustix::fs::FileType::Fifo, self.0.path().join(path));
        rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0).unwrap();
    }

    pub(super) fn remove(&self, path: &str) {
        let path = self.0.path().join(path);
        fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path)).unwrap();
    }

    pub(super) fn forbid(&self, path: &str) {
        let nobody = fs::Permissions::from_mode(0o000);
        fs::set_permissions(self.0.path().join(path), nobody).unwrap();
    }

    /// An executable `bin/NAME` that runs these lines of a shell, and its folder.
    pub(super) fn program(&self, name: &str, lines: &str) -> std::path::PathBuf {
        let path = self.0.path().join("bin").join(name);
        self.file(&format!("bin/{name}"), &format!("#!/bin/sh\n{lines}\n"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path.parent().unwrap().to_owned()
    }

    /// A counter of RAPL's.
    pub(super) fn zone(&self, folder: &str, name: &str, energy_uj: u64) {
        let folder = format!("sys/class/powercap/{folder}");
        self.file(&format!("{folder}/name"), &format!("{name}\n"));
        self.file(&format!("{folder}/energy_uj"), &format!("{energy_uj}\n"));
        self.file(&format!("{folder}/max_energy_range_uj"), "262143328850\n");
    }
}
