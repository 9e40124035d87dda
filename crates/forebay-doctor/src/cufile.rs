//! Checks of cuFile itself, from the report of the probe child.

use super::facts::Facts;
use super::report::{BOTH, Check, DirectPath};
use super::topics::*;
use forebay_cufile::{End, Seen};

const PROBE: &str = "`forebay probe` shows what it says";

pub(super) fn checks(facts: &Facts) -> Vec<Check> {
    let Some((seen, end)) = &facts.cufile else {
        if facts.gpu.is_err() {
            let check = CUFILE_LIBRARY.unknown("not queried, since it needs a GPU");
            return vec![check.step("look for the GPU first (`gpu_class`)")];
        }
        return vec![CUFILE_LIBRARY.unknown("not queried").step(PROBE)];
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
        return CUFILE_LIBRARY.problem(seen, BOTH).step(step).needs(needs);
    }
    match end {
        End::Exited(0) if seen.opened => CUFILE_LIBRARY.ok(format!("{named}; its driver opens")),
        // Problems after the open are from the library's own shutdown.
        _ if seen.opened => {
            CUFILE_LIBRARY.ok(format!("{named}; its driver opens, its end does not come"))
        }
        End::TimedOut(limit) => CUFILE_LIBRARY
            .problem(format!("{named}: its driver did not open in {} s", limit.as_secs()), BOTH)
            .step("use cuFile 1.15, or make /proc/modules readable: later ones spin without it")
            .needs(needs)
            .broken_if(is_wanted),
        End::Killed(signal) => CUFILE_LIBRARY
            .problem(format!("{named}: signal {signal} ended the helper"), BOTH)
            .step("install a different version of cuFile")
            .needs(needs)
            .broken_if(is_wanted),
        End::NotRun(reason) => {
            CUFILE_LIBRARY.unknown(format!("the helper cannot be run: {reason}")).step(PROBE)
        }
        End::Exited(code) => {
            CUFILE_LIBRARY.unknown(format!("{named}: the helper ended with {code}")).step(PROBE)
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
        let check = CUFILE_STORAGE
            .problem(format!("its driver serves no `{wanted}` here"), BOTH)
            .step("put the other problems right: the driver looks anew as it opens");
        return Some(check.needs(format!("a cuFile that serves `{wanted}`")));
    };
    let list = ways.join(", ");
    // Versions before 1.16 report only that the storage is supported, not the path.
    let names = |path: &DirectPath| ways.is_empty() || ways.iter().any(|way| way == path.name());
    let closed: Vec<DirectPath> = BOTH.iter().copied().filter(|path| !names(path)).collect();
    let seen = if list.is_empty() { wanted.into() } else { format!("{wanted}: {list}") };
    Some(CUFILE_STORAGE.ok(seen).closing(&closed))
}
