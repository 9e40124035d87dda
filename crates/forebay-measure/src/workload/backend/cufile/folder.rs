//! A folder for cuFile's settings and its log, which would otherwise be written to the user's
//! folder.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::process::Command;

use crate::cleanup::{self, Entry, Undo};
use crate::scratch::random;

/// The settings of this program; all others keep the library's defaults.
const SETTINGS: &str = r#"{ "properties": { "allow_compat_mode": true, "force_compat_mode": true } }
"#;

/// The folder; removed with this value, or when a signal ends the command.
#[derive(Debug)]
pub(super) struct Folder(PathBuf, #[expect(dead_code, reason = "it is dropped")] Entry);

impl Folder {
    /// Creates it, for this user only.
    pub(super) fn create() -> io::Result<Self> {
        let name = format!("forebay-cufile-{:016x}", random());
        let path = std::path::absolute(std::env::temp_dir())?.join(name);
        let ((), entry) = cleanup::with(|| {
            fs::DirBuilder::new().mode(0o700).create(&path)?;
            let path = path.clone();
            Ok(((), Box::new(move || drop(fs::remove_dir_all(path))) as Undo))
        })?;
        let folder = Self(path, entry);
        fs::write(folder.settings(), SETTINGS)?;
        Ok(folder)
    }

    fn settings(&self) -> PathBuf {
        self.0.join("cufile.json")
    }

    /// Makes `command` run in this folder, with these settings of cuFile and none of the user's.
    pub(super) fn rule(&self, command: &mut Command) {
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("CUFILE_") {
                command.env_remove(name);
            }
        }
        command.current_dir(&self.0);
        command.env("CUFILE_ENV_PATH_JSON", self.settings());
        command.env("CUFILE_LOGFILE_PATH", self.0.join("cufile.log"));
        // The same as in the file, in case that cuFile cannot read it.
        command.env("CUFILE_ALLOW_COMPAT_MODE", "true").env("CUFILE_FORCE_COMPAT_MODE", "true");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_it_stays() {
        let folder = Folder::create().unwrap();
        let path = folder.0.clone();
        fs::write(path.join("cufile.log"), "something").unwrap();
        let settings = fs::read(folder.settings()).unwrap();
        let settings: serde_json::Value = serde_json::from_slice(&settings).unwrap();
        assert_eq!(settings["properties"]["force_compat_mode"], true);
        drop(folder);
        assert!(!path.exists());
    }
}
