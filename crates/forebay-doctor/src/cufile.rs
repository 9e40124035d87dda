//! Checks of cuFile itself, from the report of the probe child.

use super::facts::Facts;
use super::report::{BOTH, Check, DirectPath, NVIDIA_FS, P2PDMA, Topic};
use forebay_cufile::{Answer, End, Seen};

const LIBRARY: Topic =
    Topic { name: "cufile_library", why: "cuFile is the library that moves bytes directly" };
const SERVED: Topic = Topic {
    name: "cufile_storage",
    why: "what cuFile's driver says that it serves is the nearest to proof before bytes move",
};

const PROBE: &str = "`forebay probe` shows what it says";

/// Parses `1.19` into `(1, 19)`.
pub(super) fn version(seen: &Seen) -> Option<(u32, u32)> {
    let (major, minor) = seen.version.as_deref()?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

pub(super) fn checks(answer: Option<&Answer>, facts: &Facts) -> Vec<Check> {
    let Some((seen, end)) = answer else {
        if facts.gpu.is_err() {
            let check = LIBRARY.unknown("not queried, since it needs a GPU");
            return vec![check.step("look for the GPU first (`gpu_class`)")];
        }
        return vec![LIBRARY.unknown("not queried").step(PROBE)];
    };
    let mut checks = vec![library(seen, end, facts)];
    checks.extend(served(seen, facts));
    checks
}

fn library(seen: &Seen, end: &End, facts: &Facts) -> Check {
    // If no direct path was set up, a missing library is no error.
    let is_wanted = facts.config.wants_p2pdma() || facts.driver.nvidia_fs.is_some();
    let named = match (&seen.library, &seen.version) {
        (Some(path), Some(version)) => format!("{version}, {}", path.display()),
        (Some(path), None) => path.display().to_string(),
        _ => "no library".to_owned(),
    };
    let needs = "a cuFile whose driver opens";
    if let Some(reason) = &seen.failed {
        let hint = seen.hint.clone().filter(|hint| !hint.is_empty());
        let is_missing = seen.library.is_none() && reason.starts_with("there is no");
        let step = hint.unwrap_or_else(|| match is_missing {
            true => {
                "install GPUDirect Storage (`nvidia-gds`), or `pip install nvidia-cufile`".into()
            }
            false => PROBE.into(),
        });
        // The reason's advice is moved to the step.
        let bare = reason.split(": install").next().unwrap_or(reason);
        let seen = if is_missing { bare.to_owned() } else { format!("{named}: {reason}") };
        let needs = if is_missing { "cuFile" } else { needs };
        return LIBRARY.problem(seen, BOTH).step(step).needs(needs);
    }
    match end {
        End::Exited(0) if seen.opened => LIBRARY.ok(format!("{named}; its driver opens")),
        // Problems after the open are from the library's own shutdown.
        _ if seen.opened => LIBRARY.ok(format!("{named}; its driver opens, its end does not come")),
        End::TimedOut(limit) => LIBRARY
            .problem(format!("{named}: its driver did not open in {} s", limit.as_secs()), BOTH)
            .step("use cuFile 1.15, or make /proc/modules readable: later ones spin without it")
            .needs(needs)
            .broken_if(is_wanted),
        End::Killed(signal) => LIBRARY
            .problem(format!("{named}: signal {signal} ended the helper"), BOTH)
            .step("install another version of cuFile")
            .needs(needs)
            .broken_if(is_wanted),
        End::NotRun(reason) => {
            LIBRARY.unknown(format!("the helper cannot be run: {reason}")).step(PROBE)
        }
        End::Exited(code) => {
            LIBRARY.unknown(format!("{named}: the helper ended with {code}")).step(PROBE)
        }
    }
}

fn served(seen: &Seen, facts: &Facts) -> Option<Check> {
    if !seen.opened {
        return None;
    }
    let wanted = match facts.storage.key() {
        _ if facts.storage.is_nfs() => "nfs",
        Some((_, "nvmeof")) => "nvmeof",
        Some((_, "virtiofs")) => "virtiofs",
        Some(_) => "nvme",
        None => return None,
    };
    let Some((_, ways)) = seen.storage.iter().find(|(name, _)| name == wanted) else {
        let check = SERVED
            .problem(format!("its driver serves no `{wanted}` here"), BOTH)
            .step("put the other problems right: the driver looks anew as it opens");
        return Some(check.needs(format!("a cuFile that serves `{wanted}`")));
    };
    let list = ways.join(", ");
    // Versions before 1.16 report only that the storage is supported, not the path.
    let closed: Vec<DirectPath> = match ways.is_empty() {
        true => Vec::new(),
        false => {
            let all = [(P2PDMA[0], "p2pdma"), (NVIDIA_FS[0], "nvidia-fs")];
            all.iter()
                .filter(|(_, name)| !ways.iter().any(|w| w == name))
                .map(|(w, _)| *w)
                .collect()
        }
    };
    let seen = if list.is_empty() { wanted.into() } else { format!("{wanted}: {list}") };
    Some(SERVED.ok(seen).closing(&closed))
}
