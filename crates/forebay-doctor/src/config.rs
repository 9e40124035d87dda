//! Checks of cuFile's settings: the file in use, whether it is readable, and its keys for this
//! path.

use std::path::Path;

use forebay_topology::Absent;
use serde_json::Value;

use super::facts::{
    ALLOWED, Config, FORCED, Facts, GLOBAL, LEN_MAX, NAMED_BY, Setting, Unread, at,
};
use super::report::{BOTH, Check, P2PDMA};
use super::topics::*;

impl Config {
    /// The step that changes a setting to `value`.
    fn step(&self, setting: Setting, value: bool) -> String {
        match self.variable(setting) {
            Some(_) => format!("unset `{}`, or set it to {value}", setting.1),
            None => format!("set `{}` to {value} in {}", setting.0, self.path),
        }
    }

    pub(super) fn checks(&self, facts: &Facts) -> Vec<Check> {
        let mut checks = vec![self.file(), self.keys(facts)];
        checks.extend(self.listed(facts));
        checks.extend(self.compat());
        let others: Vec<String> = self
            .variables
            .iter()
            .filter(|(name, _)| name.as_str() != NAMED_BY)
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        if !others.is_empty() {
            checks.push(
                CUFILE_ENVIRONMENT
                    .warning(others.join(", "))
                    .step("unset them (`env -u NAME`) to use the file's settings"),
            );
        }
        checks
    }

    fn file(&self) -> Check {
        let path = &self.path;
        let by = if self.is_named { format!(" (`{NAMED_BY}`)") } else { String::new() };
        match &self.settings {
            Ok(_) if !self.twice.is_empty() => CUFILE_JSON
                .warning(format!("{path}{by}: `{}` stands twice in it", self.twice.join("`, `")))
                .step("delete the duplicates: which value cuFile uses is unknown"),
            Ok(settings) if at(settings, "fs.block").is_some() => CUFILE_JSON
                .problem(format!("{path}{by}: `block` stands inside `fs`"), &[])
                .step("move `block` out of `fs`, next to `properties`: cuFile ignores it there")
                .broken_if(true),
            Ok(settings) => match self.no_flags(settings) {
                names if names.is_empty() => CUFILE_JSON.ok(format!("{path}{by}")),
                names => CUFILE_JSON
                    .warning(format!("{path}{by}: neither `true` nor `false`: {names}"))
                    .step("write `true` or `false` there, without quotes"),
            },
            Err(Unread::Missing) if self.is_named => CUFILE_JSON
                .problem(format!("{path}{by}: no such file"), BOTH)
                .step(format!("create the file, or unset the variable (`env -u {NAMED_BY}`)"))
                .needs(format!("the file that `{NAMED_BY}` names"))
                .broken_if(true),
            Err(Unread::Missing) => CUFILE_JSON.warning(format!("there is no {path}")).step(
                "install cuFile's settings (`gds-tools`), or copy /usr/local/cuda/gds/cufile.json",
            ),
            Err(Unread::Unreadable(reason)) => CUFILE_JSON
                .problem(format!("{path}{by}: {reason}"), BOTH)
                .step(match reason {
                    Absent::Denied => format!("`chmod a+r {path}`"),
                    Absent::NotAFile => format!("put a file in the place of {path}"),
                    _ => format!("check that `cat {path}` shows it, or name a different file"),
                })
                .needs("settings of cuFile that can be read")
                .broken_if(true),
            Err(Unread::Damaged(damage)) => {
                let seen = format!("{path}{by}, line {}: {}", damage.line, damage.what);
                CUFILE_JSON
                    .problem(seen, BOTH)
                    .step("correct the file; /usr/local/cuda/gds/cufile.json is the vendor's own")
                    .needs("settings of cuFile that are not damaged")
                    .broken_if(true)
            }
            Err(Unread::TooLong) => CUFILE_JSON
                .unknown(format!("{path}{by} is longer than {} KiB", LEN_MAX >> 10))
                .step("delete unused settings: the vendor's own file is about 10 KiB long"),
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
            return CUFILE_P2PDMA.unknown(seen).step("put the file right first (`cufile_json`)");
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
            return CUFILE_P2PDMA
                .problem(format!("{who} {seen}{own}"), P2PDMA)
                .step(self.step(GLOBAL, true))
                .needs("`use_pci_p2pdma` in cuFile's settings")
                .broken_if(is_half);
        }
        // Versions before 1.16 have no such key.
        let is_old = facts.library_version().is_some_and(|version| version < (1, 16));
        match (names, own) {
            (Some(names), Some(true)) => {
                CUFILE_P2PDMA.ok(format!("both keys are true, `{names}` too"))
            }
            (Some(names), own) if own.is_some() || !is_old => {
                let seen = if own.is_some() { "is false" } else { "is not set" };
                CUFILE_P2PDMA
                    .problem(format!("`{names}` {seen}, the global key is true"), P2PDMA)
                    .step(format!("set `{names}` to true in {}", self.path))
                    .needs(format!("`{names}` in cuFile's settings"))
                    .broken_if(true)
            }
            _ => CUFILE_P2PDMA.ok(format!("{who} is true")),
        }
    }

    fn listed(&self, facts: &Facts) -> Option<Check> {
        let settings = self.settings.as_ref().ok()?;
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
            return Some(CUFILE_DENYLIST.ok("nothing of this path is listed"));
        }
        let names = format!("`{}`", found.join("`, `"));
        let check = CUFILE_DENYLIST.problem(format!("{names} is on a list of `denylist`"), BOTH);
        let check = check.step(format!("remove {names} from `denylist` in {}", self.path));
        Some(check.needs(format!("{names} off cuFile's `denylist`")))
    }

    fn compat(&self) -> Option<Check> {
        let ((allowed, allows), (forced, forces)) = (self.ruling(ALLOWED), self.ruling(FORCED));
        if self.settings.is_err() && (allowed, forced) == (None, None) {
            return None; // unreadable settings prove nothing
        }
        Some(match (allowed, forced) {
            (Some(false), Some(true)) => CUFILE_COMPAT
                .problem(format!("{forces} is true and {allows} is false"), BOTH)
                .step(format!("resolve the contradiction: {}", self.step(FORCED, false)))
                .needs("cuFile settings without a contradiction")
                .broken_if(true),
            (_, Some(true)) => CUFILE_COMPAT
                .problem(format!("{forces} is true"), BOTH)
                .step(self.step(FORCED, false))
                .needs("cuFile's `force_compat_mode` off"),
            (Some(false), _) => CUFILE_COMPAT
                .ok(format!("not allowed ({allows}): requests without a direct path fail")),
            _ => CUFILE_COMPAT.ok("allowed, as it is by default"),
        })
    }
}
