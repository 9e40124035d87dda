//! What cuFile itself says, as a helper asked it.

use super::facts::Facts;
use super::report::{BOTH, Check, NVIDIA_FS, P2PDMA, Topic, Way};
use crate::direct::{End, Seen};

const LIBRARY: Topic =
    Topic { name: "cufile_library", why: "cuFile is the library that moves bytes directly" };
const SERVED: Topic = Topic {
    name: "cufile_storage",
    why: "what cuFile's driver says that it serves is the nearest to proof before bytes move",
};

/// What a helper saw, and how it ended.
pub type Answer = (Seen, End);

/// `(1, 19)` of `1.19`.
pub(super) fn version(seen: &Seen) -> Option<(u32, u32)> {
    let (major, minor) = seen.version.as_deref()?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

pub(super) fn checks(answer: Option<&Answer>, facts: &Facts) -> Vec<Check> {
    let Some((seen, end)) = answer else {
        return vec![LIBRARY.unknown("nobody asked it")];
    };
    let mut checks = vec![library(seen, end, facts)];
    checks.extend(served(seen, facts));
    checks
}

fn library(seen: &Seen, end: &End, facts: &Facts) -> Check {
    // Where nobody has set up a direct path, nobody misses it.
    let is_wanted = facts.config.wants_p2pdma() || facts.driver.nvidia_fs.is_some();
    let named = match (&seen.library, &seen.version) {
        (Some(path), Some(version)) => format!("{version}, {}", path.display()),
        (Some(path), None) => path.display().to_string(),
        _ => "no library".to_owned(),
    };
    let needs = "a cuFile whose driver opens";
    if let Some(reason) = &seen.failed {
        let hint = seen.hint.clone();
        let is_missing = seen.library.is_none() && reason.starts_with("there is no");
        let step = hint.unwrap_or_else(|| match is_missing {
            true => {
                "install GPUDirect Storage (`nvidia-gds`), or `pip install nvidia-cufile`".into()
            }
            false => "`forebay probe` shows what it says".into(),
        });
        // What the reason advises stands in the step.
        let bare = reason.split(": install").next().unwrap_or(reason);
        let seen = if is_missing { bare.to_owned() } else { format!("{named}: {reason}") };
        let needs = if is_missing { "cuFile" } else { needs };
        return LIBRARY.problem(seen, BOTH).step(step).needs(needs);
    }
    match end {
        End::Exited(0) if seen.opened => LIBRARY.ok(format!("{named}; its driver opens")),
        // What comes behind the opening is the library's own end.
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
        End::NotRun(reason) => LIBRARY.unknown(format!("the helper cannot be run: {reason}")),
        End::Exited(code) => LIBRARY.unknown(format!("{named}: the helper ended with {code}")),
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
        let check = SERVED.problem(format!("its driver serves no `{wanted}` here"), BOTH);
        return Some(check.needs(format!("a cuFile that serves `{wanted}`")));
    };
    let list = ways.join(", ");
    // Versions before 1.16 say only that it is served.
    let closed: Vec<Way> = match ways.is_empty() {
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

/// The lines from which [`Seen::parse`] reads the same again, and how the helper ended.
pub(super) fn to_lines((seen, end): &Answer) -> String {
    let mut lines = Vec::new();
    let mut say = |word: &str, rest: &str| {
        lines.push(format!("{word} {}", rest.replace(['\n', '\r'], " ")));
    };
    if let Some(path) = &seen.library {
        say("library", &path.to_string_lossy());
    }
    let texts = [("version", &seen.version), ("failed", &seen.failed), ("hint", &seen.hint)];
    for (word, text) in texts.into_iter().chain([("nvidia-fs", &seen.nvidia_fs)]) {
        text.iter().for_each(|text| say(word, text));
    }
    if seen.opened {
        say("opened", "");
    }
    for (name, ways) in &seen.storage {
        say("storage", &[std::slice::from_ref(name), ways].concat().join(" "));
    }
    seen.features.iter().for_each(|feature| say("feature", feature));
    seen.settings.iter().for_each(|(name, value)| say("setting", &format!("{name} {value}")));
    if let Some((io, batch)) = seen.limits {
        say("limits", &format!("{io} {batch}"));
    }
    let end = match end {
        End::Exited(code) => format!("exited {code}"),
        End::Killed(signal) => format!("killed {signal}"),
        End::TimedOut(limit) => format!("late {}", limit.as_millis()),
        End::NotRun(reason) => format!("not-run {reason}"),
    };
    say("end", &end);
    lines.into_iter().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// What [`to_lines`] wrote; what makes no sense is left out.
pub(super) fn from_lines(text: &str) -> Answer {
    let end = text.lines().rev().find_map(|line| line.strip_prefix("end "));
    let (word, rest) = end.unwrap_or_default().split_once(' ').unwrap_or_default();
    let end = match (word, rest.parse::<u32>()) {
        ("exited", Ok(code)) => End::Exited(i32::try_from(code).unwrap_or(1)),
        ("killed", Ok(signal)) => End::Killed(i32::try_from(signal).unwrap_or(0)),
        ("late", Ok(limit)) => End::TimedOut(std::time::Duration::from_millis(limit.into())),
        ("not-run", _) => End::NotRun(rest.to_owned()),
        _ => End::NotRun("the record does not say how it ended".into()),
    };
    (Seen::parse(text), end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    #[test]
    fn an_answer_is_written_and_read_again() {
        let text = "library /x y/libcufile.so.0\nversion 1.19\nopened\nnvidia-fs 2.28\n\
                    storage nvme p2pdma nvidia-fs\nstorage nfs\nfeature batch\n\
                    setting use_pci_p2pdma true\nlimits 16384 128\n";
        let ends = [
            End::Exited(0),
            End::Killed(11),
            End::TimedOut(Duration::from_millis(1500)),
            End::NotRun("`x`: no such file".into()),
        ];
        for end in ends {
            let answer = (Seen::parse(text), end);
            assert_eq!(from_lines(&to_lines(&answer)), answer);
        }
    }

    proptest! {
        #[test]
        fn no_answer_is_too_strange(
            text in "(?s).{0,200}",
            end in "end (exited|late|killed) .{0,30}",
        ) {
            let _ = from_lines(&text);
            let answer = from_lines(&end);
            prop_assert_eq!(from_lines(&to_lines(&answer)).1, answer.1);
        }
    }
}
