//! A folder for cuFile's settings and its log, which would otherwise be written to the user's
//! folder.

use std::fs;
use std::process::Command;

use crate::failure::{Failure, Result};
use crate::scratch::{self, Folder};

/// The settings of this program; all others keep the library's defaults.
const SETTINGS: &str = r#"{ "properties": { "allow_compat_mode": true, "force_compat_mode": true } }
"#;

/// Makes the folder for `command`, which will run there with these settings of cuFile and none of
/// the user's.
pub(super) fn rule(command: &mut Command) -> Result<Folder> {
    let place = std::env::temp_dir();
    let failed = |error: &_| Failure::at("make a folder in", &place, error);
    let made = scratch::folder(&std::path::absolute(&place).map_err(|error| failed(&error))?);
    let folder = made.map_err(|failure| failure.hint("set `TMPDIR`"))?;
    let in_folder = |name| folder.path().join(name);
    let settings = in_folder("cufile.json");
    fs::write(&settings, SETTINGS).map_err(|error| failed(&error).hint("set `TMPDIR`"))?;
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CUFILE_") {
            command.env_remove(name);
        }
    }
    command.current_dir(folder.path());
    command.env("CUFILE_ENV_PATH_JSON", settings);
    command.env("CUFILE_LOGFILE_PATH", in_folder("cufile.log"));
    // The same as in the file, in case that cuFile cannot read it.
    command.env("CUFILE_ALLOW_COMPAT_MODE", "true").env("CUFILE_FORCE_COMPAT_MODE", "true");
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn nothing_of_it_stays() {
        let mut command = Command::new("true");
        let folder = rule(&mut command).unwrap();
        let path = folder.path().to_owned();
        fs::write(path.join("cufile.log"), "something").unwrap();
        let settings = path.join("cufile.json");
        let named = (OsStr::new("CUFILE_ENV_PATH_JSON"), Some(settings.as_os_str()));
        assert!(command.get_envs().any(|variable| variable == named), "{command:?}");
        let settings: serde_json::Value =
            serde_json::from_slice(&fs::read(settings).unwrap()).unwrap();
        assert_eq!(settings["properties"]["force_compat_mode"], true);
        drop(folder);
        assert!(!path.exists());
    }
}
