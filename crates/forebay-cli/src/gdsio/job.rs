//! gdsio's job files: a section `[global]` for the options that all jobs share, then a section per
//! job.

use std::error::Error as _;
use std::io::Read as _;
use std::path::Path;

use clap::{Args as _, Command, FromArgMatches as _};
use forebay_measure::failure::{Failure, Result};
use forebay_measure::steps::Step;

use super::options::{GdsioArgs, JOBS_MAX, Request};
use super::place;
use super::words::Io;
use crate::near::near;

/// Size limit of a plausible job file.
const BYTES_MAX: u64 = 1 << 20;

/// Reads the job file `path`.
///
/// # Errors
/// System errors; invalid contents, with their line.
pub(super) fn read(path: &Path, args: &GdsioArgs) -> Result<Request> {
    let cannot = |error| Failure::at("read", path, &error);
    let step = Step::begin("read", path);
    let mut bytes = Vec::new();
    // A pipe without a writer is opened and then refused, instead of blocking.
    let file = place::open(path).map_err(cannot)?;
    if !file.metadata().map_err(cannot)?.is_file() {
        return Err(Failure::usage(format!("`{}` is not a job file", path.display()))
            .hint("a job file is text; use `-D` for a folder of data, `-f` for a file"));
    }
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(cannot)?;
    drop(step);
    let text = str::from_utf8(forebay_measure::plain::without_mark(&bytes)).ok();
    let text = text.filter(|text| text.len() as u64 <= BYTES_MAX);
    let text = text.ok_or_else(|| {
        Failure::usage(format!("`{}` is not a job file", path.display()))
            .because(format!("it is not text, or has more than {BYTES_MAX} bytes"))
            .hint("use `-f` for a file of data")
    })?;
    parse(text, args).map_err(|failure| in_file(failure, path))
}

/// Names the file of a failure.
fn in_file(failure: Failure, path: &Path) -> Failure {
    Failure { message: format!("`{}`: {}", path.display(), failure.message), ..failure }
}

/// The failure of a line, or of the file if the line is 0.
fn wrong(line: usize, what: impl Into<String>, hint: impl Into<String>) -> Failure {
    let place = if line > 0 { format!("line {line}: ") } else { String::new() };
    Failure::usage(place + &what.into()).hint(hint)
}

/// The keys of `[global]` with their options; `name` is ignored.
const OF_ALL: &str = "name= xfer_type=-x rw=-I bs=-i size=-s runtime=-T do_verify=-V \
                      enable_nvlinks=-p skip_bufregister=-b random_seed=-k fill_random=-R \
                      refill_buffer=-F unaligned_random=-U";
/// The keys of jobs. In `[global]` they are the defaults of jobs without their own.
const OF_JOBS: &str = "numa_node=-n gpu_dev_id=-d num_threads=-w directory=-D filename=-f \
                       start_offset=-o io_size=-i";
/// Options without a value.
const SWITCHES: [&str; 6] = ["-V", "-p", "-b", "-R", "-F", "-U"];

fn keys(all: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    all.split(' ').filter_map(|key| key.split_once('='))
}

/// An option, and its word of a command line.
type Word = (&'static str, String);

fn parse(text: &str, args: &GdsioArgs) -> Result<Request> {
    let (mut global, mut jobs) = (Vec::<Word>::new(), Vec::<(usize, Vec<Word>)>::new());
    // The keys of the section.
    let mut seen: Option<Vec<&str>> = None;
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        let pair = line.split_once('=').filter(|_| !line.starts_with('['));
        let Some((key, value)) = pair.map(|(key, value)| (key.trim(), value.trim())) else {
            section(number, line, &mut jobs)?;
            seen = Some(Vec::new());
            continue;
        };
        let Some(seen) = &mut seen else {
            return Err(wrong(number, "it is outside any section", "put `[global]` above it"));
        };
        if seen.contains(&key) {
            return Err(wrong(number, format!("`{key}` is given twice"), "remove one of them"));
        }
        seen.push(key);
        let mut known = keys(OF_JOBS).chain(keys(OF_ALL).filter(|_| jobs.is_empty()));
        let Some((_, flag)) = known.find(|(known, _)| *known == key) else {
            return Err(unknown(number, key, !jobs.is_empty()));
        };
        let words = jobs.last_mut().map_or(&mut global, |(_, own)| own);
        let has_path = words.iter().any(|(flag, _)| ["-D", "-f"].contains(flag));
        let word = match flag {
            "-D" | "-f" if has_path => Err("the job already has a path".into()),
            _ => option(flag, value),
        };
        let bad = |why| wrong(number, format!("`{key}` cannot be `{value}`"), why);
        words.extend(word.map_err(bad)?.map(|word| (flag, word)));
    }
    request(&global, jobs, args)
}

fn section(line: usize, name: &str, jobs: &mut Vec<(usize, Vec<Word>)>) -> Result<()> {
    let inner = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let (what, hint) = match inner {
        Some("global") if jobs.is_empty() => return Ok(()),
        Some("global") => ("`[global]` follows a job".into(), "put it first"),
        Some(inner) if inner.starts_with("job") && jobs.len() < JOBS_MAX => {
            jobs.push((line, Vec::new()));
            return Ok(());
        }
        Some(inner) if inner.starts_with("job") => {
            (format!("there are more than {JOBS_MAX} jobs"), "remove some")
        }
        Some(_) => {
            let hint = "sections are `[global]`, `[job1]`, `[job2]` and so on";
            (format!("unknown section `{name}`"), hint)
        }
        None => ("it is neither `[section]` nor `key=value`".into(), "fix or remove it"),
    };
    Err(wrong(line, what, hint))
}

fn unknown(line: usize, key: &str, in_job: bool) -> Failure {
    let names = |all| keys(all).map(|(key, _)| key);
    let listed = |all| names(all).map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ");
    let hint = match near(key, names(OF_ALL).chain(names(OF_JOBS))) {
        Some(known) if in_job && names(OF_ALL).any(|key| key == known) => {
            format!("`{known}` belongs in `[global]`, and applies to all jobs")
        }
        Some(known) => format!("perhaps `{known}` was meant"),
        _ if in_job => format!("a job has {}", listed(OF_JOBS)),
        _ => format!("`[global]` has {}", listed(OF_ALL)),
    };
    wrong(line, format!("unknown key `{key}`"), hint)
}

/// The word of a command line for an option with this value; `None` without an effect.
fn option(flag: &str, value: &str) -> std::result::Result<Option<String>, String> {
    let is_switch = SWITCHES.contains(&flag);
    let word = match value {
        _ if flag.is_empty() => return Ok(None),
        "0" if is_switch || flag == "-T" => return Ok(None),
        "1" if is_switch => flag.to_owned(),
        _ if is_switch => return Err("it takes 0 or 1".into()),
        word if flag == "-I" => format!("-I{}", Io::parse_word(word)?.number()),
        _ => format!("{flag}={value}"),
    };
    match parsed([&word]) {
        Ok(_) => Ok(Some(word)),
        Err(error) => {
            let reason = error.source().map(ToString::to_string);
            Err(reason.unwrap_or_else(|| "it needs a value".into()))
        }
    }
}

/// The arguments of a command line with these words.
fn parsed<'a>(words: impl IntoIterator<Item = &'a String>) -> clap::error::Result<GdsioArgs> {
    let command = GdsioArgs::augment_args(Command::new("gdsio").no_binary_name(true));
    GdsioArgs::from_arg_matches(&command.try_get_matches_from(words)?)
}

/// The request of a file: a job is a command line of its own options and those of `[global]`. Some
/// `args` of the command line count as well.
fn request(global: &[Word], jobs: Vec<(usize, Vec<Word>)>, args: &GdsioArgs) -> Result<Request> {
    if jobs.is_empty() {
        return Err(wrong(0, "it has no job", "add a section `[job1]`"));
    }
    let parsed = |line, words: &[Word]| {
        parsed(words.iter().map(|(_, word)| word))
            .map_err(|error| wrong(line, error.to_string(), "correct it"))
    };
    let of_file = parsed(0, global)?;
    if of_file.size.is_none() {
        return Err(wrong(0, "it has no `size`", "add it to `[global]`"));
    }
    let job = |(line, mut own): (usize, Vec<Word>)| {
        let place = |flag: &str| if flag == "-f" { "-D" } else { flag }.to_owned();
        for word in global {
            if own.iter().all(|(flag, _)| place(flag) != place(word.0)) {
                own.push(word.clone());
            }
        }
        let (mut jobs, _) = parsed(line, &own)?.jobs_of_words()?;
        let missing = || wrong(line, "the job has no `directory`", "add the folder of its files");
        jobs.pop().ok_or_else(missing)
    };
    let jobs = jobs.into_iter().map(job).collect::<Result<Vec<_>>>()?;
    let seed = args.seed.or(of_file.seed);
    let (each_job, cached) = (args.each_job, args.cached);
    let all = GdsioArgs { seed, each_job, cached, ..of_file };
    Request::of_jobs(&all, jobs, Vec::new()).map_err(|failure| {
        let hint = failure.hint.unwrap_or_default();
        wrong(0, in_keys(&failure.message), in_keys(&hint))
    })
}

/// Converts a message on options to the keys of job files.
fn in_keys(text: &str) -> String {
    text.replace("`-s`", "`size`")
        .replace("`-i`", "`bs`")
        .replace("`-w`", "`num_threads`")
        .replace("`-T`", "`runtime`")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser as _;
    use forebay::units::{KIB, MIB};
    use proptest::prelude::*;

    use super::*;
    use crate::args::{Arguments, Verb};
    use crate::gdsio::options::Where;
    use crate::gdsio::words::{Sizes, Transfer};

    fn args() -> GdsioArgs {
        match Arguments::try_parse_from(["forebay", "gdsio", "jobs"]).unwrap().verb {
            Verb::Gdsio(args) => args,
            other => panic!("{other:?}"),
        }
    }

    const TWO_JOBS: &str = "# two drives\n[global]\nname=x\nxfer_type=2\nrw=randwrite\nbs=4k\n\
                            size = 500M\nruntime=120\ndo_verify=1\n[job1]\nnuma_node=0\n\
                            gpu_dev_id=1\nnum_threads=16\ndirectory=/a\n; more\n[job2]\n\
                            num_threads=2\ndirectory=/b\nstart_offset=1M\nio_size=64K\n";

    #[test]
    fn a_job_file_is_read() {
        let request = parse(TWO_JOBS, &args()).unwrap();
        assert_eq!(
            (request.transfer, request.io),
            (Transfer::CpuGpu, Io { writes: true, is_random: true })
        );
        assert_eq!((request.size, request.time), (500 * MIB, Some(Duration::from_secs(120))));
        assert!(request.verify && request.read_percent == 0);
        let (one, two) = (&request.jobs[0], &request.jobs[1]);
        assert_eq!((one.node, one.device, one.threads), (Some(0), 1, 16));
        assert_eq!(one.sizes, Sizes::one(4 * KIB));
        assert_eq!((two.node, two.device, two.threads), (None, 0, 2));
        assert_eq!((two.start, two.sizes), (MIB, Sizes::one(64 * KIB)));
        assert_eq!(two.at, Where::Folder("/b".into()));
    }

    #[test]
    fn flags_have_their_keys() {
        let keys = "[global]\nrw=randwrite\nbs=1MB\nsize=2GB\nskip_bufregister=1\nrandom_seed=9\n\
                    fill_random=1\nrefill_buffer=1\nunaligned_random=1\n[job0]\ndirectory=/a\n";
        let request = parse(keys, &args()).unwrap();
        assert_eq!((request.size, request.jobs[0].sizes), (2 << 30, Sizes::one(MIB)));
        assert_eq!((request.seed, request.shift), (9, 512));
        assert!(request.notes.is_empty(), "{:?}", request.notes);
        let off = parse(&keys.replace("=1\n", "=0\n"), &args()).unwrap();
        assert_eq!((off.seed, off.shift), (9, 0));
        let read = parse(&keys.replace("randwrite", "read"), &args()).unwrap();
        assert_eq!(read.shift, 0);
        // The command line has precedence.
        let seeded = GdsioArgs { seed: Some(3), ..args() };
        assert_eq!(parse(keys, &seeded).unwrap().seed, 3);
        for (from, to, says) in [
            ("fill_random=1", "fill_random=yes", "it takes 0 or 1"),
            ("random_seed=9", "random_seed=-1", "it takes a number of 0 or more"),
            ("random_seed=9", "random_seeds=9", "perhaps `random_seed` was meant"),
            ("fill_random=1", "fillrandom=1", "perhaps `fill_random` was meant"),
            ("fill_random=1", "fill_rnadom=1", "perhaps `fill_random` was meant"),
            ("fill_random=1", "colour=1", "`[global]` has `name`, "),
        ] {
            let wrong = parse(&keys.replacen(from, to, 1), &args()).unwrap_err();
            assert!(wrong.hint.as_ref().unwrap().starts_with(says), "{to}: {wrong:?}");
        }
    }

    /// The error for the published file with one line changed.
    fn refusal(from: &str, to: &str) -> String {
        let wrong = parse(&TWO_JOBS.replacen(from, to, 1), &args()).unwrap_err();
        let failure = in_file(wrong, Path::new("x.gdsio"));
        assert!(failure.usage);
        format!("{}\n  {}", failure.message, failure.hint.unwrap())
    }

    #[test]
    fn an_invalid_line_is_named_with_its_number() {
        let all = [
            refusal("xfer_type=2", "xfer_type=9"),
            refusal("xfer_type=2", "xfertype=2"),
            refusal("rw=randwrite", "rw=trim"),
            refusal("bs=4k", "bs=4 pages"),
            refusal("size = 500M", "size=99999999999G"),
            refusal("size = 500M", ""),
            refusal("runtime=120", "runtime=2 min"),
            refusal("do_verify=1", "do_verify=yes"),
            refusal("num_threads=16", "num_threads=100000"),
            refusal("num_threads=16", "size=3M"),
            refusal("directory=/a", ""),
            refusal("directory=/a", "directory=/b"),
            refusal("directory=/a", "directory=/a\ndirectory=/c"),
            refusal("directory=/a", "directory=/a\nfilename=/c"),
            refusal("[job1]", "[task1]"),
            refusal("[job1]", "[job1"),
            refusal("[global]", ""),
            refusal("[job2]", "[global]"),
            refusal("bs=4k", "bs=1G"),
        ];
        insta::assert_snapshot!(all.join("\n"), @"
        `x.gdsio`: line 4: `xfer_type` cannot be `9`
          it takes a type from 0 to 7
        `x.gdsio`: line 4: unknown key `xfertype`
          perhaps `xfer_type` was meant
        `x.gdsio`: line 5: `rw` cannot be `trim`
          it takes `read`, `write`, `randread` or `randwrite`
        `x.gdsio`: line 6: `bs` cannot be `4 pages`
          it takes a whole number, optionally with K, M or G, such as `64K`
        `x.gdsio`: line 7: `size` cannot be `99999999999G`
          no file is that large
        `x.gdsio`: it has no `size`
          add it to `[global]`
        `x.gdsio`: line 8: `runtime` cannot be `2 min`
          it takes a number of seconds from 1 to 604800
        `x.gdsio`: line 9: `do_verify` cannot be `yes`
          it takes 0 or 1
        `x.gdsio`: line 13: `num_threads` cannot be `100000`
          it takes a number from 1 to 1024
        `x.gdsio`: line 13: unknown key `size`
          `size` belongs in `[global]`, and applies to all jobs
        `x.gdsio`: line 10: the job has no `directory`
          add the folder of its files
        `x.gdsio`: two jobs write to the same files
          give each job its own folder; in a job file, `start_offset` can separate their bytes
        `x.gdsio`: line 15: `directory` is given twice
          remove one of them
        `x.gdsio`: line 15: `filename` cannot be `/c`
          the job already has a path
        `x.gdsio`: line 10: unknown section `[task1]`
          sections are `[global]`, `[job1]`, `[job2]` and so on
        `x.gdsio`: line 10: it is neither `[section]` nor `key=value`
          fix or remove it
        `x.gdsio`: line 3: it is outside any section
          put `[global]` above it
        `x.gdsio`: line 16: `[global]` follows a job
          put it first
        `x.gdsio`: no request of 1073741824 bytes fits into 524288000
          give a larger `size`, or a smaller `bs`
        ");
        let failure = in_file(parse("", &args()).unwrap_err(), Path::new("x"));
        assert_eq!(failure.message, "`x`: it has no job");
        let colour = refusal("num_threads=16", "colour=3");
        assert!(colour.contains("\n  a job has `numa_node`, `gpu_dev_id`, "), "{colour}");
        let many =
            "[global]\nsize=1M\n".to_owned() + &"[job1]\ndirectory=/a\n".repeat(JOBS_MAX + 1);
        assert!(parse(&many, &args()).unwrap_err().message.contains("more than 64 jobs"));
    }

    proptest! {
        #[test]
        fn no_file_ends_the_command(text: String) {
            let _ = parse(&text, &args());
        }

        #[test]
        fn no_line_ends_the_command(
            lines in prop::collection::vec(
                ("(\\[global\\]|\\[job[0-9]?\\]|[a-z_]{1,14}|bs|size|directory)",
                 "[ =]{0,2}", "[0-9a-zA-Z:/+-]{0,20}"),
                0..20,
            )
        ) {
            let line = |(key, between, value): &(String, String, String)| {
                format!("{key}{between}{value}\n")
            };
            let text: String = lines.iter().map(line).collect();
            let _ = parse(&text, &args());
        }
    }
}
