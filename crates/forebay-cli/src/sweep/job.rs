//! Job files: the flags of the command line by their long names, in TOML.
//!
//! A job is turned into the words of a command line, and parsed by the same definition. So both
//! accept the same values and report the same errors.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use clap::{Args, Command, FromArgMatches};
use forebay::units::{MIB, format_size};
use toml::{Table, Value};

use crate::args::SweepArgs;
use crate::failure::{Failure, Result};
use crate::usage;

/// Bytes of a job file at most.
const LEN_MAX: u64 = MIB;
/// The hint for a file that is no job.
const IS_TEXT: &str = "`--job` takes a text file of flags, as docs/sweep.md shows; give files and \
                       folders to measure without `--job`";
/// The hint for invalid lines.
const IS_TOML: &str =
    "each line is a flag's long name and its value: `depth = [1, 8]`, `request-size = \"64K\"`";
/// Options that a job file cannot set.
const COMMAND_LINE_ONLY: [&str; 6] =
    ["job", "help", "overwrite", "overwrite-device", "power-command", "set-queues"];

/// The arguments of a job file.
///
/// # Errors
/// It cannot be read, is not TOML, or has an unknown key.
pub(super) fn read(path: &Path) -> Result<SweepArgs> {
    let failed = |error| Failure::io(format!("cannot read the job `{}`", path.display()), &error);
    let mut bytes = Vec::new();
    // O_NONBLOCK: a pipe without a writer is opened and then refused, instead of blocking.
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = opened.map_err(failed)?;
    let kind = file.metadata().map_err(failed)?.file_type();
    let parsed = if kind.is_file() {
        file.take(LEN_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
        text(&bytes).and_then(parse)
    } else {
        let what = if kind.is_dir() { "it is a folder" } else { "it is not a text file" };
        Err(Failure::usage(what).hint(IS_TEXT))
    };
    parsed.map_err(|failure| {
        let message = format!("the job `{}` is invalid", path.display());
        let mut whole = Failure::usage(message).because(failure.message);
        whole.causes.extend(failure.causes);
        whole.hint = failure.hint;
        whole
    })
}

fn text(bytes: &[u8]) -> Result<&str> {
    if bytes.len() as u64 > LEN_MAX {
        let text = format!("it has more than {}", format_size(LEN_MAX));
        return Err(Failure::usage(text).hint(IS_TEXT));
    }
    str::from_utf8(crate::without_mark(bytes))
        .map_err(|_| Failure::usage("it is not text in UTF-8").hint(IS_TEXT))
}

fn parse(text: &str) -> Result<SweepArgs> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map(|span| text[..span.start.min(text.len())].lines().count());
        let line = line.map_or_else(String::new, |line| format!("line {}: ", line.max(1)));
        Failure::usage(format!("{line}{}", error.message().trim())).hint(IS_TOML)
    })?;
    let mut words: Vec<OsString> = vec!["forebay sweep".into()];
    for (key, value) in &table {
        if COMMAND_LINE_ONLY.contains(&key.as_str()) {
            // Options that destroy data or run a program must be on the command line.
            return Err(Failure::usage(format!("a job file cannot set `{key}`"))
                .hint("give it on the command line"));
        }
        add(&mut words, key, value)?;
    }
    let definition = SweepArgs::augment_args(Command::new("forebay sweep").no_binary_name(false));
    let matches = definition.try_get_matches_from(words);
    let parsed = matches.and_then(|matches| SweepArgs::from_arg_matches(&matches));
    parsed.map_err(|error| usage::failure(&error))
}

/// Adds the words of one key.
fn add(words: &mut Vec<OsString>, key: &str, value: &Value) -> Result<()> {
    let wrong = |what: &str, hint: &str| {
        Err(Failure::usage(format!("`{key}` cannot be {what}")).hint(hint))
    };
    let scalar = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Boolean(_) | Value::Datetime(_) | Value::Array(_) | Value::Table(_) => None,
    };
    let values: Vec<String> = match value {
        Value::Boolean(true) => {
            words.push(format!("--{key}").into());
            return Ok(());
        }
        Value::Boolean(false) => return Ok(()),
        Value::Table(_) => return wrong("a table", IS_TOML),
        Value::Datetime(_) => return wrong("a date", "put it in quotes if it is text"),
        Value::Array(values) => match values.iter().map(scalar).collect() {
            Some(values) => values,
            None => return wrong("a list of other values than text and numbers", IS_TOML),
        },
        other => scalar(other).into_iter().collect(),
    };
    for value in values {
        // A path may begin with anything.
        match key {
            "paths" | "path" => words.push(if value.starts_with('-') {
                format!("./{value}").into()
            } else {
                value.into()
            }),
            _ => words.push(format!("--{key}={value}").into()),
        }
    }
    Ok(())
}

/// The options of the command line, completed from the job.
pub(super) fn merge(line: &SweepArgs, job: SweepArgs) -> SweepArgs {
    fn list<T: Clone>(line: &[T], job: Vec<T>) -> Vec<T> {
        if line.is_empty() { job } else { line.to_vec() }
    }
    fn unless<T>(said: bool, job: Vec<T>) -> Vec<T> {
        if said { Vec::new() } else { job }
    }
    // These exclude each other, so the one on the command line overrides the other.
    let sizes = line.request_size.is_empty() && line.kv.is_empty() && line.pattern.is_empty();
    let gpus = line.gpu.is_empty() && line.gpus.is_none();
    let ends = line.time.is_none() && line.bytes.is_none();
    let kv = !line.kv.is_empty();
    SweepArgs {
        paths: list(&line.paths, job.paths),
        vs: line.vs.clone().or(job.vs),
        job: line.job.clone(),
        request_size: list(&line.request_size, unless(kv, job.request_size)),
        kv: list(&line.kv, unless(!sizes, job.kv)),
        io_queues: list(&line.io_queues, job.io_queues),
        set_queues: line.set_queues.clone(),
        depth: list(&line.depth, job.depth),
        batch: list(&line.batch, job.batch),
        threads: list(&line.threads, job.threads),
        files: list(&line.files, job.files),
        pattern: list(&line.pattern, unless(kv, job.pattern)),
        direction: list(&line.direction, job.direction),
        way: list(&line.way, job.way),
        route: list(&line.route, job.route),
        gpu: list(&line.gpu, unless(!gpus, job.gpu)),
        gpus: line.gpus.clone().or(job.gpus.filter(|_| gpus)),
        cache: list(&line.cache, job.cache),
        time: line.time.or(job.time.filter(|_| ends)),
        until_steady: line.until_steady.or(job.until_steady.filter(|_| line.bytes.is_none())),
        bytes: line.bytes.or(job.bytes.filter(|_| ends && line.until_steady.is_none())),
        warm_up: line.warm_up.or(job.warm_up),
        repeats: line.repeats.or(job.repeats),
        size: line.size.or(job.size),
        rate: line.rate.or(job.rate),
        seed: line.seed.or(job.seed),
        power_command: line.power_command.clone(),
        overwrite: line.overwrite,
        overwrite_device: line.overwrite_device,
        label: line.label.clone().or(job.label),
        output: line.output.clone().or(job.output),
        anew: line.anew || job.anew,
        json: line.json || job.json,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::workload::pattern::Pattern;

    #[test]
    fn a_job_has_the_flags_of_the_command_line() {
        let job = r#"
            path = ["/data", "-odd"]
            request-size = ["64K", 4096]
            depth = [1, 8]
            pattern = ["random", "strided:1M"]
            direction = "mixed:70"
            time = "500ms"
            until-steady = "20s"
            rate = 1000.5
            json = true
        "#;
        let args = parse(job).unwrap();
        assert_eq!(args.paths, ["/data", "./-odd"].map(std::path::PathBuf::from));
        assert_eq!((args.request_size, args.depth), (vec![65_536, 4096], vec![1, 8]));
        assert_eq!(args.pattern, [Pattern::Random, Pattern::Strided(1 << 20)]);
        assert_eq!((args.direction, args.rate), (vec![70], Some(1000.5)));
        assert_eq!((args.time, args.json), (Some(Duration::from_millis(500)), true));
        assert_eq!(args.until_steady, Some(Duration::from_secs(20)));
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let why = |text: &str| {
            let failure = parse(text).unwrap_err();
            assert!(failure.usage, "{failure:?}");
            format!("{}; {}", failure.message, failure.hint.unwrap_or_default())
        };
        assert!(
            why("request-sise = 1").contains("`--request-size` was meant"),
            "{}",
            why("request-sise = 1")
        );
        assert!(why("depth = [1,").starts_with("line 1: "), "{}", why("depth = [1,"));
        assert!(why("a = 1\n\nb = [").starts_with("line 3: "), "{}", why("a = 1\n\nb = ["));
        assert!(why("request-size = \"64Q\"").contains("`--request-size` cannot be `64Q`"));
        assert!(why("depth = 99999999").contains("from 1 to 4096"));
        assert!(why("size = \"99999999999999999G\"").contains("it takes a size"));
        assert!(why("depth = { a = 1 }").contains("cannot be a table"));
        assert!(why("overwrite = true").contains("on the command line"));
        assert!(why("set-queues = \"reboot {}\"").contains("on the command line"));
        assert!(why("io-queues = [0]").contains("from 1 to 4096"));
        assert!(why("job = \"other\"").contains("cannot set `job`"));
    }

    #[test]
    fn what_is_no_job_is_told_with_its_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job");
        let told = |bytes: &[u8], what: &str, remedy: &str| {
            std::fs::write(&path, bytes).unwrap();
            let failure = read(&path).unwrap_err();
            assert!(failure.usage && failure.message.contains("is invalid"), "{failure:?}");
            assert!(failure.causes.concat().contains(what), "{failure:?}");
            assert!(failure.hint.as_ref().unwrap().contains(remedy), "{failure:?}");
        };
        let long = format!("label = \"{}\"", "x".repeat(2 << 20));
        for (bytes, what, remedy) in [
            (&b"depth = { a = 1 }"[..], "`depth` cannot be a table", "`depth = [1, 8]`"),
            (b"[depth]\na = 1", "`depth` cannot be a table", "`depth = [1, 8]`"),
            (b"label = 2026-01-01", "`label` cannot be a date", "in quotes"),
            (b"depth = [[1], [2]]", "a list of other values", "`depth = [1, 8]`"),
            (b"depth = [1,", "line 1: ", "`depth = [1, 8]`"),
            (b"depth: 8", "line 1: ", "`request-size = \"64K\"`"),
            (long.as_bytes(), "more than 1 MiB", "without `--job`"),
            (b"label = \"\xff\"", "not text in UTF-8", "without `--job`"),
        ] {
            told(bytes, what, remedy);
        }
        let failure = read(folder.path()).unwrap_err();
        assert_eq!((failure.usage, failure.causes), (true, vec!["it is a folder".to_owned()]));
        assert!(failure.hint.unwrap().contains("without `--job`"));
    }

    #[test]
    fn the_command_line_comes_first() {
        let job = parse("depth = 8\nrequest-size = 4096\ntime = \"1s\"\nkv = []").unwrap();
        let line = SweepArgs {
            depth: vec![2],
            kv: vec!["llama-8b".parse().unwrap()],
            bytes: Some(1),
            ..SweepArgs::default()
        };
        let both = merge(&line, job.clone());
        assert_eq!((both.depth, both.request_size, both.time), (vec![2], vec![], None));
        assert_eq!((both.kv.len(), both.bytes), (1, Some(1)));
        let both = merge(&SweepArgs::default(), job);
        assert_eq!((both.depth, both.request_size), (vec![8], vec![4096]));
        // A sample of some bytes has no spans.
        let steady = parse("until-steady = \"9s\"").unwrap();
        assert_eq!(merge(&line, steady.clone()).until_steady, None);
        let both = merge(&steady, parse("bytes = 1").unwrap());
        assert_eq!((both.until_steady, both.bytes), (Some(Duration::from_secs(9)), None));
    }

    proptest::proptest! {
        #[test]
        fn no_text_ends_the_command(text: String, key in "[a-z-]{1,12}", value: String) {
            let _ = parse(&text);
            let _ = parse(&format!("{key} = {value:?}"));
        }
    }
}
