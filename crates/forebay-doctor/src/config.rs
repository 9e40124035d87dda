//! Checks of cuFile's settings: the file in use, whether it is readable, and its keys for this
//! path.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use forebay_topology::{Absent, System};
use serde_json::Value;

use super::facts::Facts;
use super::jsonc;
use super::report::{BOTH, Check, P2PDMA, Topic};

const FILE: Topic = Topic {
    name: "cufile_json",
    why: "cuFile takes its settings from this file, and its defaults without one",
};
const KEYS: Topic = Topic {
    name: "cufile_p2pdma",
    why: "cuFile uses P2PDMA only where both its global key and that of the kind of storage say so",
};
const LISTS: Topic = Topic {
    name: "cufile_denylist",
    why: "files on these lists are copied through host memory, whatever else is right",
};
const COMPAT: Topic = Topic {
    name: "cufile_compat",
    why: "in its compat mode cuFile copies through host memory without a message",
};
const VARIABLES: Topic = Topic {
    name: "cufile_environment",
    why: "variables go before the file, in this process and those that it starts",
};

const SYSTEM_FILE: &str = "/etc/cufile.json";
const NAMED_BY: &str = "CUFILE_ENV_PATH_JSON";
/// Maximum length; NVIDIA's own file is about 10 KiB long.
const LEN_MAX: usize = 64 << 10;
/// Names of the text settings that checks use; a record masks all other texts.
const KEPT: [&str; 4] = ["drivers", "devices", "mounts", "filesystems"];
/// A setting of the whole library: its name, and the environment variable that overrides it.
type Setting = (&'static str, &'static str);

const GLOBAL: Setting = ("properties.use_pci_p2pdma", "CUFILE_USE_PCIP2PDMA");
const ALLOWED: Setting = ("properties.allow_compat_mode", "CUFILE_ALLOW_COMPAT_MODE");
const FORCED: Setting = ("properties.force_compat_mode", "CUFILE_FORCE_COMPAT_MODE");

/// cuFile's settings, and the environment variables that override them.
#[derive(Debug)]
pub(super) struct Config {
    path: String,
    is_named: bool,
    settings: Result<Value, Unread>,
    twice: Vec<String>,
    variables: BTreeMap<String, String>,
}

#[derive(Debug)]
enum Unread {
    Missing,
    Unreadable(Absent),
    Damaged(jsonc::Damage),
    TooLong,
}

impl Config {
    pub(super) fn read(system: &System) -> Self {
        let variables = system.environment(|name| name.starts_with("CUFILE_"));
        let named = variables.get(NAMED_BY).filter(|path| !path.is_empty()).map(PathBuf::from);
        let path = named.clone().unwrap_or_else(|| SYSTEM_FILE.into());
        let mut twice = Vec::new();
        let settings = read(system, &path).map(|(value, names)| {
            twice = names;
            value
        });
        let path = path.display().to_string();
        Self { path, is_named: named.is_some(), settings, twice, variables }
    }

    fn flag(&self, name: &str) -> Option<bool> {
        at(self.settings.as_ref().ok()?, name)?.as_bool()
    }

    /// The value of a variable; `None` if it is neither `true` nor `false`.
    fn variable(&self, (_, variable): Setting) -> Option<bool> {
        self.variables.get(variable)?.to_ascii_lowercase().parse().ok()
    }

    /// The effective value, and its source.
    fn ruling(&self, setting: Setting) -> (Option<bool>, String) {
        match self.variable(setting) {
            Some(value) => (Some(value), format!("`{}`", setting.1)),
            None => (self.flag(setting.0), format!("`{}`", setting.0)),
        }
    }

    /// The step that changes a setting to `value`.
    fn step(&self, setting: Setting, value: bool) -> String {
        match self.variable(setting) {
            Some(_) => format!("leave `{}` out, or set it to {value}", setting.1),
            None => format!("set `{}` to {value} in {}", setting.0, self.path),
        }
    }

    /// Whether P2PDMA is enabled.
    pub(super) fn wants_p2pdma(&self) -> bool {
        self.ruling(GLOBAL).0 == Some(true)
    }

    pub(super) fn checks(&self, facts: &Facts) -> Vec<Check> {
        let mut checks = vec![self.file()];
        checks.push(self.keys(facts));
        if self.settings.is_ok() {
            checks.extend(self.listed(facts));
        }
        checks.extend(self.compat());
        let others: Vec<String> = self
            .variables
            .iter()
            .filter(|(name, _)| name.as_str() != NAMED_BY)
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        if !others.is_empty() {
            checks.push(
                VARIABLES
                    .warning(others.join(", "))
                    .step("leave them out (`env -u NAME`) where the file is to rule"),
            );
        }
        checks
    }

    fn file(&self) -> Check {
        let path = &self.path;
        let by = if self.is_named { format!(" (`{NAMED_BY}`)") } else { String::new() };
        match &self.settings {
            Ok(_) if !self.twice.is_empty() => FILE
                .warning(format!("{path}{by}: `{}` stands twice in it", self.twice.join("`, `")))
                .step("leave one of them: it is unknown which one counts"),
            Ok(settings) if at(settings, "fs.block").is_some() => FILE
                .problem(format!("{path}{by}: `block` stands inside `fs`"), &[])
                .step("move `block` out of `fs`, next to `properties`: cuFile ignores it there")
                .broken_if(true),
            Ok(settings) => match self.no_flags(settings) {
                names if names.is_empty() => FILE.ok(format!("{path}{by}")),
                names => FILE
                    .warning(format!("{path}{by}: neither `true` nor `false`: {names}"))
                    .step("write `true` or `false` there, without quotes"),
            },
            Err(Unread::Missing) if self.is_named => FILE
                .problem(format!("{path}{by}: no such file"), BOTH)
                .step(format!("make the file, or leave out the variable (`env -u {NAMED_BY}`)"))
                .needs(format!("the file that `{NAMED_BY}` names"))
                .broken_if(true),
            Err(Unread::Missing) => FILE.warning(format!("there is no {path}")).step(
                "install cuFile's settings (`gds-tools`), or copy /usr/local/cuda/gds/cufile.json",
            ),
            Err(Unread::Unreadable(reason)) => FILE
                .problem(format!("{path}{by}: {reason}"), BOTH)
                .step(match reason {
                    Absent::Denied => format!("`chmod a+r {path}`"),
                    Absent::NotAFile => format!("put a file in the place of {path}"),
                    _ => format!("see whether `cat {path}` shows it, or name another file"),
                })
                .needs("settings of cuFile that can be read")
                .broken_if(true),
            Err(Unread::Damaged(damage)) => {
                let seen = format!("{path}{by}, line {}: {}", damage.line, damage.what);
                FILE.problem(seen, BOTH)
                    .step("correct the file; /usr/local/cuda/gds/cufile.json is the vendor's own")
                    .needs("settings of cuFile that are not damaged")
                    .broken_if(true)
            }
            Err(Unread::TooLong) => FILE
                .unknown(format!("{path}{by} is longer than {} KiB", LEN_MAX >> 10))
                .step("take out what is not set: the vendor's own file has some 10 KiB"),
        }
    }

    /// The settings that should be flags but hold a different type.
    fn no_flags(&self, settings: &Value) -> String {
        let is_none = |name: &str| at(settings, name).is_some_and(|value| !value.is_boolean());
        let found = [GLOBAL, ALLOWED, FORCED].into_iter().filter(|(name, _)| is_none(name));
        found.map(|(name, _)| format!("`{name}`")).collect::<Vec<_>>().join(", ")
    }

    /// Source: NVIDIA's "Setting cufile.json Configuration", and the keys of `block` since 1.16.
    fn keys(&self, facts: &Facts) -> Check {
        let (global, who) = self.ruling(GLOBAL);
        if let Err(Unread::Unreadable(_) | Unread::Damaged(_) | Unread::TooLong) = &self.settings {
            let seen = format!("{} cannot be read", self.path);
            return KEYS.unknown(seen).step("put the file right first (`cufile_json`)");
        }
        let key = facts.storage.key().map(|(section, key)| format!("{section}.{key}"));
        let names = key.as_ref().map(|key| format!("{key}.use_pci_p2pdma"));
        let own = names.as_deref().and_then(|names| self.flag(names));
        if global != Some(true) {
            let seen = if global.is_some() { "is false" } else { "is not set" };
            // If the storage's key is set, the user wants P2PDMA.
            let own = names.filter(|_| own == Some(true));
            let is_half = own.is_some();
            let own = own.map_or_else(String::new, |names| format!(", though `{names}` is true"));
            return KEYS
                .problem(format!("{who} {seen}{own}"), P2PDMA)
                .step(self.step(GLOBAL, true))
                .needs("`use_pci_p2pdma` in cuFile's settings")
                .broken_if(is_half);
        }
        // Versions before 1.16 have no such key.
        let is_old = facts.library_version().is_some_and(|version| version < (1, 16));
        match (names, own) {
            (Some(names), Some(true)) => KEYS.ok(format!("both keys are true, `{names}` too")),
            (Some(names), own) if own.is_some() || !is_old => {
                let seen = if own.is_some() { "is false" } else { "is not set" };
                KEYS.problem(format!("`{names}` {seen}, the global key is true"), P2PDMA)
                    .step(format!("set `{names}` to true in {}", self.path))
                    .needs(format!("`{names}` in cuFile's settings"))
                    .broken_if(true)
            }
            _ => KEYS.ok(format!("{who} is true")),
        }
    }

    fn listed(&self, facts: &Facts) -> Vec<Check> {
        let Ok(settings) = &self.settings else { return Vec::new() };
        let list = |name: &str| {
            // The second is its older name.
            let lists = ["denylist", "blacklist"].map(|list| settings.get(list)?.get(name));
            let values = lists.into_iter().flatten().filter_map(Value::as_array).flatten();
            values.filter_map(Value::as_str).collect::<Vec<_>>()
        };
        let storage = &facts.storage;
        let mut found = Vec::new();
        let kind = storage.file_system().map(|layer| layer.name.as_str());
        found.extend(list("filesystems").into_iter().filter(|name| Some(*name) == kind));
        found.extend(list("mounts").into_iter().filter(|mount| {
            storage.mount_point().is_some_and(|point| Path::new(point).starts_with(mount))
        }));
        found.extend(list("devices").into_iter().filter(|device| {
            let name = device.strip_prefix("/dev/").unwrap_or(device);
            storage.devices().any(|drive| drive == name)
        }));
        found.extend(list("drivers").into_iter().filter(|name| Some(*name) == storage.module()));
        if found.is_empty() {
            return vec![LISTS.ok("nothing of this path is on one")];
        }
        let names = format!("`{}`", found.join("`, `"));
        let check = LISTS.problem(format!("{names} is on a list of `denylist`"), BOTH);
        vec![
            check
                .step(format!("take {names} from `denylist` in {}", self.path))
                .needs(format!("{names} off cuFile's `denylist`")),
        ]
    }

    fn compat(&self) -> Option<Check> {
        let ((allowed, allows), (forced, forces)) = (self.ruling(ALLOWED), self.ruling(FORCED));
        if self.settings.is_err() && (allowed, forced) == (None, None) {
            return None; // unreadable settings prove nothing
        }
        Some(match (allowed, forced) {
            (Some(false), Some(true)) => COMPAT
                .problem(format!("{forces} is true and {allows} is false"), BOTH)
                .step(format!("leave one of them: {}", self.step(FORCED, false)))
                .needs("settings of cuFile that do not contradict each other")
                .broken_if(true),
            (_, Some(true)) => COMPAT
                .problem(format!("{forces} is true"), BOTH)
                .step(self.step(FORCED, false))
                .needs("cuFile's `force_compat_mode` off"),
            (Some(false), _) => {
                COMPAT.ok(format!("not allowed ({allows}): what cannot go directly fails"))
            }
            _ => COMPAT.ok("allowed, as it is by default"),
        })
    }
}

/// The value of this name; dots divide it into names of objects.
fn at<'a>(settings: &'a Value, name: &str) -> Option<&'a Value> {
    name.split('.').try_fold(settings, |value, name| value.get(name))
}

fn read(system: &System, path: &Path) -> Result<(Value, Vec<String>), Unread> {
    // A relative name refers to the process's working folder.
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mask = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        let kept = jsonc::masked(&text, |name| KEPT.contains(&name));
        // Keeps an oversized file oversized, so that a record gives the same result.
        if bytes.len() > LEN_MAX { vec![b' '; LEN_MAX + 1] } else { kept.into_bytes() }
    };
    let bytes = system.masked(&absolute, LEN_MAX + 1, mask).map_err(|absent| match absent {
        forebay_topology::Absent::Missing => Unread::Missing,
        other => Unread::Unreadable(other),
    })?;
    if bytes.len() > LEN_MAX {
        return Err(Unread::TooLong);
    }
    jsonc::parse(&String::from_utf8_lossy(&bytes)).map_err(Unread::Damaged)
}
