//! Whether cuFile can have a direct path on this machine at all, as far as files tell: one that
//! cannot is not worth a process that opens its driver.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::direct::small;

/// Where nvidia-fs shows itself, and where the configuration lies, unless a variable names another.
const NVIDIA_FS: &str = "/proc/driver/nvidia-fs";
const CONFIGURATION: &str = "/etc/cufile.json";
pub(crate) const NAMES_CONFIGURATION: &str = "CUFILE_ENV_PATH_JSON";

/// The key that allows peer-to-peer DMA without nvidia-fs, and that which allows the library to
/// take another way where there is no direct one.
const P2PDMA: &str = "\"use_pci_p2pdma\"";
const COMPAT: &str = "\"allow_compat_mode\"";

/// The most that is read of it.
pub(crate) const CONFIGURATION_MAX: u64 = 1 << 20;

/// What is missing; `None`: the driver has to be asked.
pub(crate) fn unreachable() -> Option<String> {
    let configuration = configuration(std::env::var_os(NAMES_CONFIGURATION));
    missing(Path::new(NVIDIA_FS), &configuration)
}

/// Whether the configuration forbids the library to take another way.
pub(crate) fn forbids_compat() -> bool {
    let configuration = configuration(std::env::var_os(NAMES_CONFIGURATION));
    read(&configuration).is_some_and(|text| says(&text, COMPAT, "false"))
}

/// Where the configuration lies, as the variable says that names it.
pub(crate) fn configuration(named: Option<OsString>) -> PathBuf {
    named.map_or_else(|| CONFIGURATION.into(), PathBuf::from)
}

fn missing(nvidia_fs: &Path, configuration: &Path) -> Option<String> {
    if nvidia_fs.exists() || read(configuration).is_some_and(|text| says(&text, P2PDMA, "true")) {
        return None;
    }
    let shown = configuration.display();
    Some(format!(
        "nvidia-fs is not loaded (`modprobe nvidia-fs`), and `{shown}` does not allow peer-to-peer \
         DMA without it (`properties.use_pci_p2pdma`)"
    ))
}

fn read(path: &Path) -> Option<String> {
    String::from_utf8(small::read(path, CONFIGURATION_MAX).ok()??).ok()
}

/// Whether a line that is no comment sets a key so. The file is JSON with comments of `//`.
fn says(text: &str, key: &str, wanted: &str) -> bool {
    let code = |line: &str| line.split("//").next().unwrap_or_default().to_owned();
    let text: String = text.lines().map(|line| code(line) + " ").collect();
    let value = |(_, rest): (&str, &str)| {
        rest.trim_start()
            .strip_prefix(':')
            .map(str::trim_start)
            .is_some_and(|rest| rest.starts_with(wanted))
    };
    text.split_once(key).is_some_and(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_told_from_what_is_commented_out() {
        let allows = |text: &str| says(text, P2PDMA, "true");
        assert!(allows("{ \"properties\": { \"use_pci_p2pdma\" : true } }"));
        assert!(allows("\"use_pci_p2pdma\":\n true"));
        for none in ["", "{}", "// \"use_pci_p2pdma\": true", "\"use_pci_p2pdma\": false", P2PDMA] {
            assert!(!allows(none), "{none}");
        }
        assert!(says("{\"allow_compat_mode\": false}", COMPAT, "false"));
    }

    #[test]
    fn what_is_missing_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let (nvidia_fs, file) = (folder.path().join("nvidia-fs"), folder.path().join("c.json"));
        let why = missing(&nvidia_fs, &file).unwrap();
        assert!(why.contains("nvidia-fs is not loaded") && why.contains("c.json"), "{why}");
        std::fs::write(&file, "{\"properties\": {\"use_pci_p2pdma\": true}}").unwrap();
        assert_eq!(missing(&nvidia_fs, &file), None);
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap(); // not a file
        assert!(missing(&nvidia_fs, &file).is_some());
        std::fs::create_dir(&nvidia_fs).unwrap();
        assert_eq!(missing(&nvidia_fs, &file), None);
    }
}
