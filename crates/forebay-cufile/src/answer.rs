//! The result of a cuFile probe as lines of text, for machine records and the user's cache.

use super::child::End;
use super::probe::Seen;

/// What the probe saw, and how its process ended.
pub type Answer = (Seen, End);

/// Formats an answer as the lines that [`Seen::parse`] reads back, plus how the process ended.
pub fn answer_to_lines((seen, end): &Answer) -> String {
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

/// Parses the output of [`answer_to_lines`]; malformed lines are ignored.
pub fn answer_from_lines(text: &str) -> Answer {
    let end = text.lines().rev().find_map(|line| line.strip_prefix("end "));
    let (word, rest) = end.unwrap_or_default().split_once(' ').unwrap_or_default();
    let end = match (word, rest.parse::<u32>()) {
        ("exited", Ok(code)) => End::Exited(i32::try_from(code).unwrap_or(1)),
        ("killed", Ok(signal)) => End::Killed(i32::try_from(signal).unwrap_or(0)),
        ("late", Ok(limit)) => End::TimedOut(std::time::Duration::from_millis(limit.into())),
        ("not-run", _) => End::NotRun(rest.to_owned()),
        _ => End::NotRun("its end is not recorded".into()),
    };
    (Seen::parse(text), end)
}

/// Whether the driver opened in the probe's process and serves any storage without a copy.
pub(super) fn usable((seen, end): &Answer) -> Result<(), String> {
    let version = seen.version.as_deref().unwrap_or("of an unknown version");
    match (end, &seen.failed) {
        (End::TimedOut(limit), _) => {
            Err(format!("the driver of cuFile {version} did not open within {} s", limit.as_secs()))
        }
        (End::Killed(signal), _) => {
            Err(format!("cuFile {version} ended its process by signal {signal} as it opened"))
        }
        (End::NotRun(why), _) => Err(format!("cuFile could not be queried: {why}")),
        (_, Some(failed)) => Err(match &seen.hint {
            Some(hint) => format!("{failed}: {hint}"),
            None => failed.clone(),
        }),
        _ if !seen.opened => Err(format!("the driver of cuFile {version} did not open")),
        _ if seen.storage.is_empty() => Err(format!(
            "cuFile {version} opens, but serves no kind of storage without a copy on the host: \
             `forebay doctor` says what is missing"
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    #[test]
    fn an_answer_is_written_and_read_again() {
        let text = "library /x y/libcufile.so.0\nversion 1.19\n\
                    opened\nnvidia-fs 2.28\n\
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
            assert_eq!(answer_from_lines(&answer_to_lines(&answer)), answer);
        }
    }

    #[test]
    fn each_end_has_its_reason() {
        let opened = "library /x\nversion 1.15\nopened\n";
        let why = |answer: &str, end| usable(&(Seen::parse(answer), end)).unwrap_err();
        let served = Seen::parse(&format!("{opened}storage nvme p2pdma\n"));
        assert_eq!(usable(&(served, End::Exited(0))), Ok(()));
        assert!(why(opened, End::Exited(0)).contains("1.15 opens, but serves no kind"));
        let bound = Duration::from_secs(3);
        assert!(why("version 1.16\n", End::TimedOut(bound)).contains("1.16 did not open within 3"));
        assert!(why("", End::Killed(11)).contains("signal 11"));
        assert!(why("failed no file\nhint install it\n", End::Exited(0)).ends_with("install it"));
        assert!(why("", End::NotRun("`x`: not found".into())).contains("`x`: not found"));
        assert!(why("", End::Exited(1)).contains("did not open"));
    }

    proptest! {
        #[test]
        fn no_answer_is_too_strange(
            text in "(?s).{0,200}",
            end in "end (exited|late|killed) .{0,30}",
        ) {
            let _ = answer_from_lines(&text);
            let answer = answer_from_lines(&end);
            prop_assert_eq!(answer_from_lines(&answer_to_lines(&answer)).1, answer.1);
        }
    }
}
