//! Queries cuFile about this machine, in a process that may be lost.
//!
//! Opening the driver has been seen to spin forever, and a library's initializers may end the
//! process. So a helper process, `forebay probe`, opens it and writes each finding as a line
//! immediately. The parent reads the lines under a time limit. [`look`] is the helper's side;
//! [`Seen::parse`] reads its output.

#![expect(unsafe_code, reason = "calls the library")]

use std::ffi::c_int;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::layout::Properties;
use super::library::{CuFile, places, version_text};

/// Storage kinds that the driver has bits for (`CUfileDriverStatusFlags`).
pub(super) const STORAGE: [(u32, &str); 13] = [
    (0, "lustre"),
    (1, "wekafs"),
    (2, "nfs"),
    (3, "gpfs"),
    (4, "nvme"),
    (5, "nvmeof"),
    (6, "scsi"),
    (7, "scaleflux"),
    (8, "nvmesh"),
    (9, "beegfs"),
    (12, "scatefs"),
    (13, "virtiofs"),
    (14, "panfs"),
];
/// `CUfileFeatureFlags`.
pub(super) const FEATURES: [(u32, &str); 5] =
    [(0, "dynamic-routing"), (1, "batch"), (2, "streams"), (3, "parallel"), (4, "p2p")];
/// `CUfileP2PFlags`.
pub(super) const WAYS: [(u32, &str); 5] =
    [(0, "p2pdma"), (1, "nvidia-fs"), (2, "dmabuf"), (3, "c2c"), (4, "peermem")];
/// `CUFileBoolConfigParameter_t`.
pub(super) const SETTINGS: [(c_int, &str); 5] = [
    (1, "allow_compat_mode"),
    (2, "force_compat_mode"),
    (7, "use_pci_p2pdma"),
    (8, "use_io_uring"),
    (12, "posix_io"),
];

/// Maximum length of an answer that is read, and of a line of it.
pub(crate) const ANSWER_MAX: usize = 16 << 10;
const LINE_MAX: usize = 1 << 10;

/// What the helper found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Seen {
    /// The library that was loaded.
    pub library: Option<PathBuf>,
    /// Its version, such as `1.19`.
    pub version: Option<String>,
    /// Whether its driver opened.
    pub opened: bool,
    /// Why there is no library, or why its driver did not open.
    pub failed: Option<String>,
    /// What to do about that.
    pub hint: Option<String>,
    /// The version of nvidia-fs, if it is loaded.
    pub nvidia_fs: Option<String>,
    /// Storage kinds with a direct path here, as reported by the driver. For version 1.16 and later
    /// also the mechanisms of each.
    pub storage: Vec<(String, Vec<String>)>,
    /// Further features of the library.
    pub features: Vec<String>,
    /// The settings in effect.
    pub settings: Vec<(String, bool)>,
    /// The longest request in KiB, and the maximum number of requests in a batch.
    pub limits: Option<(u64, u64)>,
}

/// Opens the driver and passes each finding to `line` immediately. It may hang, and so may the
/// library's exit handlers.
pub fn look(named: Option<&Path>, packages: &[PathBuf], line: &mut dyn FnMut(&str, &str)) {
    let cufile = match CuFile::load(&places(named, packages)) {
        Ok(cufile) => cufile,
        Err(reason) => return line("failed", &reason),
    };
    line("library", &cufile.path.to_string_lossy());
    line("version", &version_text(cufile.version));
    // SAFETY: the function has no preconditions.
    let opened = unsafe { (cufile.table.driver_open)() }.checked("cuFileDriverOpen");
    if let Err(error) = opened {
        line("failed", &error.to_string());
        if let Some(hint) = error.hint() {
            line("hint", hint);
        }
        return;
    }
    line("opened", "");
    let mut properties = Properties::default();
    // SAFETY: the output outlives the call.
    let status = unsafe { (cufile.table.get_properties)(&raw mut properties) };
    if status.checked("cuFileDriverGetProperties").is_ok() {
        print_facts(&cufile, &properties, line);
    }
    if let Some(get) = cufile.table.get_parameter_bool {
        for (number, name) in SETTINGS {
            let mut value = false;
            // SAFETY: the output outlives the call.
            if unsafe { get(number, &raw mut value) }.checked("").is_ok() {
                line("setting", &format!("{name} {value}"));
            }
        }
    }
}

fn print_facts(cufile: &CuFile, properties: &Properties, line: &mut dyn FnMut(&str, &str)) {
    if (properties.major, properties.minor) != (0, 0) {
        line("nvidia-fs", &format!("{}.{}", properties.major, properties.minor));
    }
    for (bit, name) in STORAGE {
        let mut text = name.to_owned();
        let mut ways: c_int = 0;
        let is_known = cufile.table.get_p2p_flags.is_some_and(|get| {
            let bit = c_int::try_from(bit).unwrap_or(c_int::MAX);
            // SAFETY: the output outlives the call.
            unsafe { get(bit, &raw mut ways) }.checked("").is_ok()
        });
        let ways = if is_known { ways.cast_unsigned() } else { 0 };
        for (_, way) in WAYS.iter().filter(|(bit, _)| ways >> bit & 1 == 1) {
            let _ = write!(text, " {way}");
        }
        if properties.served >> bit & 1 == 1 || ways != 0 {
            line("storage", &text);
        }
    }
    for (_, name) in FEATURES.iter().filter(|(bit, _)| properties.features >> bit & 1 == 1) {
        line("feature", name);
    }
    line("limits", &format!("{} {}", properties.max_direct_io_kib, properties.max_batch));
}

impl Seen {
    /// Parses the output of a helper, as far as it got. Malformed lines are ignored.
    #[must_use]
    pub fn parse(answer: &str) -> Self {
        let mut seen = Self::default();
        for line in answer.lines().filter(|line| line.len() <= LINE_MAX) {
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            seen.take(word, rest);
        }
        seen
    }

    fn take(&mut self, word: &str, rest: &str) {
        let text = || Some(rest.to_owned());
        match word {
            "library" => self.library = Some(rest.into()),
            "version" => self.version = text(),
            "opened" => self.opened = true,
            "failed" => self.failed = text(),
            "hint" => self.hint = text(),
            "nvidia-fs" => self.nvidia_fs = text(),
            "feature" => self.features.push(rest.to_owned()),
            "storage" => {
                let mut words = rest.split(' ').map(str::to_owned);
                let name = words.next().unwrap_or_default();
                self.storage.push((name, words.collect()));
            }
            "setting" => {
                if let Some((name, Ok(value))) =
                    rest.split_once(' ').map(|(name, value)| (name, value.parse()))
                {
                    self.settings.push((name.to_owned(), value));
                }
            }
            "limits" => {
                let numbers = rest.split_once(' ').map(|(io, batch)| (io.parse(), batch.parse()));
                if let Some((Ok(io), Ok(batch))) = numbers {
                    self.limits = Some((io, batch));
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_partial_answer_is_read() {
        let answer = "library /x y/libcufile.so.0\nversion 1.19\nopened\nnvidia-fs 2.28\n\
                      storage nvme p2pdma nvidia-fs\nstorage nfs\nfeature batch\n\
                      setting use_pci_p2pdma true\nsetting broken\nlimits 16384 128\nstor";
        let seen = Seen::parse(answer);
        assert_eq!(seen.library.as_deref(), Some(Path::new("/x y/libcufile.so.0")));
        assert!(seen.opened && seen.failed.is_none());
        let ways = vec!["p2pdma".to_owned(), "nvidia-fs".to_owned()];
        assert_eq!(seen.storage, [("nvme".to_owned(), ways), ("nfs".to_owned(), vec![])]);
        assert_eq!(seen.settings, [("use_pci_p2pdma".to_owned(), true)]);
        assert_eq!(seen.limits, Some((16384, 128)));
    }

    proptest! {
        #[test]
        fn no_answer_is_too_strange(
            answer in "(?s).{0,300}",
            words in "(storage|setting|limits) .{0,40}",
        ) {
            let _ = Seen::parse(&answer);
            let _ = Seen::parse(&words);
        }
    }
}
