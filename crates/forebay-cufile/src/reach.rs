//! Checks from configuration files whether cuFile can have a direct path on this machine at all. If
//! not, no process is started to open its driver.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;

use crate::small;

/// Where nvidia-fs appears, and the default configuration file, unless a variable names another
/// one.
const NVIDIA_FS: &str = "/proc/driver/nvidia-fs";
const CONFIGURATION: &str = "/etc/cufile.json";
const NAMES_CONFIGURATION: &str = "CUFILE_ENV_PATH_JSON";

/// A setting: its key in the configuration, and the variable that overrides it.
struct Setting {
    key: &'static str,
    variable: &'static str,
}

/// Allows peer-to-peer DMA without nvidia-fs.
const P2PDMA: Setting = Setting { key: "use_pci_p2pdma", variable: "CUFILE_USE_PCIP2PDMA" };

/// Allow the library to copy through host memory if there is no direct path, or force it to.
const ALLOW: Setting = Setting { key: "allow_compat_mode", variable: "CUFILE_ALLOW_COMPAT_MODE" };
const FORCE: Setting = Setting { key: "force_compat_mode", variable: "CUFILE_FORCE_COMPAT_MODE" };

/// The compatibility mode of the library, as configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compat {
    /// It may copy through host memory.
    Allowed,
    /// It may not.
    Forbidden,
    /// Allowed, and used always.
    Forced,
}

/// Time limit for reading a configuration in another place.
const ANSWERS_WITHIN: Duration = Duration::from_secs(3);

/// Maximum bytes that are read of it.
const CONFIGURATION_MAX: u64 = 1 << 20;

/// The reason why there can be no direct path; `None` if only the driver knows.
pub(super) fn unreachable() -> Option<String> {
    Configuration::live().missing(Path::new(NVIDIA_FS))
}

/// Whether the configuration allows the library's compatibility mode.
pub(super) fn configured_compat() -> Compat {
    Configuration::live().compat()
}

/// Path of the configuration file; the variable that names it takes precedence.
fn configuration(named: Option<OsString>) -> PathBuf {
    named.map_or_else(|| CONFIGURATION.into(), PathBuf::from)
}

/// The sources of the library's settings.
struct Configuration<V> {
    path: PathBuf,
    text: String,
    /// Whether reading the file timed out.
    is_silent: bool,
    variable: V,
}

impl Configuration<fn(&str) -> Option<OsString>> {
    fn live() -> Self {
        let variable = |name: &str| std::env::var_os(name);
        let named = variable(NAMES_CONFIGURATION);
        let is_ours = named.is_none();
        let path = configuration(named);
        // The default file is local; a named one may be on a server that does not respond.
        let read = match is_ours {
            true => small::read(&path, CONFIGURATION_MAX),
            false => small::read_within(ANSWERS_WITHIN, &path, CONFIGURATION_MAX),
        };
        Self::of(path, read, variable)
    }
}

impl<V: Fn(&str) -> Option<OsString>> Configuration<V> {
    fn of(path: PathBuf, read: Result<Option<Vec<u8>>, Errno>, variable: V) -> Self {
        let is_silent = read == Err(Errno::TIMEDOUT);
        let text = read.ok().flatten().and_then(|bytes| String::from_utf8(bytes).ok());
        Self { path, text: text.unwrap_or_default(), is_silent, variable }
    }

    /// The value from the variable, or else from the file.
    fn says(&self, setting: &Setting) -> Option<bool> {
        self.set(setting).or_else(|| flag(&self.text, setting.key))
    }

    /// The value from the variable. Version 1.20 does not accept `1` for true. Another version may,
    /// and that is the careful assumption for all three settings; `0` is ignored.
    fn set(&self, setting: &Setting) -> Option<bool> {
        let value = (self.variable)(setting.variable)?;
        match value.to_str()?.to_ascii_lowercase().as_str() {
            "true" | "1" => Some(true),
            "false" => Some(false),
            _ => None,
        }
    }

    fn compat(&self) -> Compat {
        match (self.says(&FORCE), self.says(&ALLOW)) {
            (Some(true), _) => Compat::Forced,
            (_, Some(false)) => Compat::Forbidden,
            _ => Compat::Allowed,
        }
    }

    fn missing(&self, nvidia_fs: &Path) -> Option<String> {
        // The key appears in several sections, for each kind of storage and for all. If any allows
        // it, only the driver knows the combined effect.
        let allows = || values(&self.text, P2PDMA.key).any(|value| value == Some(true));
        if nvidia_fs.exists() || self.set(&P2PDMA).unwrap_or_else(allows) {
            return None;
        }
        let Setting { key, variable } = P2PDMA;
        let who = match self.set(&P2PDMA) {
            Some(_) => format!("`{variable}` forbids peer-to-peer DMA without it"),
            None if self.is_silent => {
                let shown = self.path.display();
                format!("`{shown}`, which `{NAMES_CONFIGURATION}` names, does not answer")
            }
            None => {
                let shown = self.path.display();
                format!("`{shown}` does not allow peer-to-peer DMA without it (`properties.{key}`)")
            }
        };
        Some(format!("nvidia-fs is not loaded (`modprobe nvidia-fs`), and {who}"))
    }
}

/// The value of a key outside comments. Which of several different values counts is unknown.
fn flag(text: &str, key: &str) -> Option<bool> {
    let mut values = values(text, key);
    let first = values.next()?;
    values.all(|other| other == first).then_some(first)?
}

/// All values of a key outside comments; `None` for one that is not a boolean. The file is JSON
/// with `//` comments.
fn values(text: &str, key: &str) -> impl Iterator<Item = Option<bool>> {
    let code = |line: &str| line.split("//").next().unwrap_or_default().to_owned();
    let text: String = text.lines().map(|line| code(line) + " ").collect();
    let value = |rest: &str| {
        let rest = rest.trim_start().strip_prefix(':')?.trim_start();
        let word = rest.split(|letter: char| !letter.is_ascii_alphanumeric()).next()?;
        word.parse().ok()
    };
    let key = format!("\"{key}\"");
    let values: Vec<_> = text.split(&key).skip(1).map(value).collect();
    values.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Evaluates a setting for file contents and variables.
    fn says<'a>(
        text: &str,
        variables: &'a [(&'a str, &'a str)],
    ) -> Configuration<impl Fn(&str) -> Option<OsString> + use<'a>> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(of, _)| *of == name);
            found.map(|(_, value)| value.into())
        };
        Configuration::of("/x/c.json".into(), Ok(Some(text.into())), variable)
    }

    #[test]
    fn settings_are_distinguished_from_comments() {
        let allows = |text: &str| flag(text, P2PDMA.key);
        assert_eq!(allows("{ \"properties\": { \"use_pci_p2pdma\" : true } }"), Some(true));
        assert_eq!(allows("\"use_pci_p2pdma\":\n true"), Some(true));
        assert_eq!(allows("\"use_pci_p2pdma\": false,"), Some(false));
        let twice = "\"use_pci_p2pdma\": true, \"use_pci_p2pdma\": ";
        assert_eq!(allows(&format!("{twice} true")), Some(true));
        let comment = "// \"use_pci_p2pdma\": true";
        let strange = "\"use_pci_p2pdma\": truer";
        for none in ["", "{}", comment, "\"use_pci_p2pdma\"", strange, &format!("{twice} false")] {
            assert_eq!(allows(none), None, "{none}");
        }
    }

    const FORBIDS: &str = "{\"allow_compat_mode\": false}";

    #[test]
    fn variables_outrank_the_file() {
        let compat = |text: &str, variables: &[(&str, &str)]| says(text, variables).compat();
        assert_eq!(compat("", &[]), Compat::Allowed);
        assert_eq!(compat(FORBIDS, &[]), Compat::Forbidden);
        assert_eq!(
            compat("\"allow_compat_mode\": false, \"force_compat_mode\": true", &[]),
            Compat::Forced
        );
        for (value, allows, forces) in [
            ("true", Compat::Allowed, Compat::Forced),
            ("TRUE", Compat::Allowed, Compat::Forced),
            ("1", Compat::Allowed, Compat::Forced),
            ("false", Compat::Forbidden, Compat::Forbidden),
            ("0", Compat::Forbidden, Compat::Forbidden),
            ("", Compat::Forbidden, Compat::Forbidden),
            ("yes", Compat::Forbidden, Compat::Forbidden),
        ] {
            assert_eq!(compat(FORBIDS, &[(ALLOW.variable, value)]), allows, "{value}");
            assert_eq!(compat(FORBIDS, &[(FORCE.variable, value)]), forces, "{value}");
        }
        let forbids = |value| compat("\"allow_compat_mode\": true", &[(ALLOW.variable, value)]);
        assert_eq!([forbids("False"), forbids("0")], [Compat::Forbidden, Compat::Allowed]);
        let forced = "\"force_compat_mode\": true";
        assert_eq!(compat(forced, &[(FORCE.variable, "false")]), Compat::Allowed);
        assert_eq!(compat(forced, &[(FORCE.variable, "0")]), Compat::Forced);
    }

    #[test]
    fn peer_to_peer_dma_is_allowed_by_either_and_what_forbids_it_is_named() {
        let missing = |text: &str, value: &[_]| {
            let variables: Vec<_> = value.iter().map(|value| (P2PDMA.variable, *value)).collect();
            says(text, &variables).missing(Path::new("/nowhere/nvidia-fs"))
        };
        let allows = "{\"use_pci_p2pdma\": true}";
        for allowed in ["true", "True", "1"] {
            assert_eq!(missing("", &[allowed]), None, "{allowed}");
        }
        assert_eq!([missing(allows, &[]), missing(allows, &["0"])], [None, None]);
        let why = missing(allows, &["false"]).unwrap();
        assert!(why.contains("`CUFILE_USE_PCIP2PDMA` forbids"), "{why}");
        // The vendor's file has the key for each kind of storage, mostly false.
        let one_kind = "{\"properties\": {\"use_pci_p2pdma\": true}, \"block\": {\
            \"nvme\": {\"use_pci_p2pdma\": true}, \"raid\": {\"use_pci_p2pdma\": false}}}";
        assert_eq!(missing(one_kind, &[]), None);
        assert!(missing(one_kind, &["false"]).is_some());
        assert!(missing(&one_kind.replace("true", "false"), &[]).is_some());
        for none in ["0", "yes", ""] {
            let why = missing("", &[none]).unwrap();
            assert!(why.contains("`/x/c.json` does not allow"), "{why}");
        }
    }

    #[test]
    fn a_missing_part_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let (nvidia_fs, file) = (folder.path().join("nvidia-fs"), folder.path().join("c.json"));
        let of = |read| Configuration::of(file.clone(), read, |_: &str| None);
        let missing = || of(small::read(&file, CONFIGURATION_MAX)).missing(&nvidia_fs);
        let why = missing().unwrap();
        assert!(why.contains("nvidia-fs is not loaded") && why.contains("c.json"), "{why}");
        std::fs::write(&file, "{\"properties\": {\"use_pci_p2pdma\": true}}").unwrap();
        assert_eq!(missing(), None);
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap(); // not a file
        assert!(missing().is_some());
        let why = of(Err(Errno::TIMEDOUT)).missing(&nvidia_fs).unwrap();
        assert!(why.contains("which `CUFILE_ENV_PATH_JSON` names, does not answer"), "{why}");
        std::fs::create_dir(&nvidia_fs).unwrap();
        assert_eq!(missing(), None);
    }

    proptest! {
        #[test]
        fn no_file_and_no_variable_is_too_strange(
            text in "(?s).{0,200}",
            near in "(\"|allow_compat_mode|: ?|true|false|//|\n|é|,){0,20}",
            value in proptest::collection::vec(any::<u8>(), 0..20),
        ) {
            use std::os::unix::ffi::OsStringExt as _;
            for text in [text, near] {
                let variable = |_: &str| Some(OsString::from_vec(value.clone()));
                let one = Configuration::of("/x".into(), Ok(Some(text.into_bytes())), variable);
                let _ = (one.compat(), one.missing(Path::new("/nowhere")));
            }
        }
    }
}
