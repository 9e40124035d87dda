//! Access to small files of a system for callers outside the topology, such as power readings.

use std::io;
use std::path::Path;

use rustix::io::Errno;

use super::system::{Absent, System};

impl System {
    /// Reads a small file below the root, such as `sys/class/powercap/intel-rapl:0/name`, without
    /// surrounding white space and control characters. At most 64 KiB are read.
    ///
    /// # Errors
    /// An I/O error of the file, or an error if it is empty, not text, or not a regular file.
    pub fn small_file(&self, path: impl AsRef<Path>) -> io::Result<String> {
        self.text(path.as_ref()).map_err(io::Error::from)
    }

    /// The sorted names in a folder below the root; names that are not text are left out.
    ///
    /// # Errors
    /// An I/O error of the folder.
    pub fn names_in(&self, path: impl AsRef<Path>) -> io::Result<Vec<String>> {
        self.list(path.as_ref()).map_err(io::Error::from)
    }

    /// Whether `path` exists below the root.
    #[must_use]
    pub fn has(&self, path: impl AsRef<Path>) -> bool {
        self.exists(path.as_ref())
    }
}

impl From<Absent> for io::Error {
    fn from(absent: Absent) -> Self {
        match absent {
            Absent::Missing => Errno::NOENT.into(),
            Absent::Denied => Errno::ACCESS.into(),
            Absent::Failed(errno) => errno.into(),
            Absent::NotAFile | Absent::NotText | Absent::Silent => Self::other(absent.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_below_a_root_are_read_and_nothing_beyond() {
        let folder = tempfile::tempdir().unwrap();
        let (outside, root) = (folder.path().join("outside"), folder.path().join("root"));
        std::fs::create_dir_all(root.join("sys/class")).unwrap();
        std::fs::write(&outside, "secret").unwrap();
        std::fs::write(root.join("sys/class/name"), " package-0\n").unwrap();
        std::fs::write(root.join("sys/class/empty"), "\n").unwrap();
        std::os::unix::fs::symlink("../../../outside", root.join("sys/class/link")).unwrap();
        let system = System::at(&root);
        assert_eq!(system.small_file("sys/class/name").unwrap(), "package-0");
        assert_eq!(system.small_file("/sys/class/name").unwrap(), "package-0");
        assert_eq!(system.names_in("sys/class").unwrap(), ["empty", "link", "name"]);
        assert!(system.has("sys/class") && !system.has("proc"));
        let kind = |path: &str| system.small_file(path).unwrap_err().kind();
        assert_eq!(kind("sys/class/none"), io::ErrorKind::NotFound);
        assert_eq!(kind("sys/class/link"), io::ErrorKind::NotFound);
        let text = system.small_file("sys/class/empty").unwrap_err().to_string();
        assert_eq!(text, "no readable text");
        assert_eq!(system.small_file("sys/class").unwrap_err().to_string(), "not a file");
        assert!(system.names_in("sys/class/name").is_err());
    }
}
