//! The options of one job, in a job file or on a command line, where each `-D` or `-f` begins one.

use std::path::PathBuf;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use forebay::units::MIB;

use super::options::{self, Job, Where};
use super::words::Sizes;
use crate::failure::{Failure, Result};

/// Limit of a plausible number of jobs.
pub(super) const JOBS_MAX: usize = 64;

/// The options of one job, or of all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Own {
    pub(super) at: Option<Where>,
    pub(super) node: Option<u32>,
    pub(super) device: Option<u32>,
    pub(super) threads: Option<u32>,
    pub(super) start: Option<u64>,
    pub(super) sizes: Option<Sizes>,
}

impl Own {
    /// The job, with the common options where it has none; `None` if the location of its bytes is
    /// missing.
    pub(super) fn job(self, of_all: &Self) -> Option<Job> {
        Some(Job {
            at: self.at.or_else(|| of_all.at.clone())?,
            device: self.device.or(of_all.device).unwrap_or(0),
            node: self.node.or(of_all.node),
            threads: self.threads.or(of_all.threads).unwrap_or(1),
            start: self.start.or(of_all.start).unwrap_or(0),
            sizes: self.sizes.or(of_all.sizes).unwrap_or(Sizes::one(MIB)),
        })
    }

    /// The number that `flag` sets.
    const fn number(&mut self, flag: Flag) -> &mut Option<u32> {
        match flag {
            Flag::Device => &mut self.device,
            Flag::Node => &mut self.node,
            Flag::Threads => &mut self.threads,
        }
    }
}

/// A flag that each job may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flag {
    Device,
    Node,
    Threads,
}

impl Flag {
    const ALL: [Self; 3] = [Self::Device, Self::Node, Self::Threads];

    const fn name(self) -> &'static str {
        match self {
            Self::Device => "`-d`",
            Self::Node => "`-n`",
            Self::Threads => "`-w`",
        }
    }

    /// The default, in words.
    const fn without(self) -> &'static str {
        match self {
            Self::Device => "GPU 0",
            Self::Node => "any node",
            Self::Threads => "one thread",
        }
    }
}

/// The flags, as the command line defines them.
#[derive(Debug, Clone, Args)]
struct Flags {
    /// File or block device for all threads; each further `-f` begins another job
    #[arg(short = 'f', value_name = "FILE", conflicts_with = "folder")]
    file: Vec<PathBuf>,

    /// Folder with a file for each thread (`gdsio.0`, `gdsio.1`, …); each further `-D` begins
    /// another job
    ///
    /// A read makes missing files first and removes them afterwards; a write leaves its files. Jobs
    /// run concurrently. `-d`, `-n` and `-w` after a `-D` or `-f` belong to that job. Before the
    /// first one they are the defaults of all jobs. All other options are for all jobs.
    #[arg(short = 'D', value_name = "DIR")]
    folder: Vec<PathBuf>,

    /// GPU index; host memory if the machine has no GPU [default: 0]
    #[arg(short = 'd', value_name = "INDEX", allow_negative_numbers = true)]
    device: Vec<u32>,

    /// NUMA node whose processors run the threads
    #[arg(short = 'n', value_name = "NODE", allow_negative_numbers = true)]
    node: Vec<u32>,

    /// Threads; with `-x` 6 and 7, calls in flight of one thread [default: 1]
    #[arg(
        short = 'w', value_name = "N", value_parser = options::count,
        allow_negative_numbers = true
    )]
    threads: Vec<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Word {
    At(Where),
    Number(Flag, u32),
}

/// The job options of a command line, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Words(Vec<Word>);

impl Args for Words {
    fn augment_args(command: Command) -> Command {
        Flags::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Flags::augment_args_for_update(command)
    }
}

impl FromArgMatches for Words {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let Flags { file, folder, device, node, threads } = Flags::from_arg_matches(matches)?;
        let mut words: Vec<(usize, Word)> = Vec::new();
        let places = |id| matches.indices_of(id).into_iter().flatten();
        let file = file.into_iter().map(|path| Word::At(Where::File(path)));
        words.extend(places("file").zip(file));
        let folder = folder.into_iter().map(|path| Word::At(Where::Folder(path)));
        words.extend(places("folder").zip(folder));
        let numbers = [
            ("device", Flag::Device, device),
            ("node", Flag::Node, node),
            ("threads", Flag::Threads, threads),
        ];
        for (id, flag, values) in numbers {
            let values = values.into_iter().map(|value| Word::Number(flag, value));
            words.extend(places(id).zip(values));
        }
        words.sort_by_key(|(place, _)| *place);
        Ok(Self(words.into_iter().map(|(_, word)| word).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Words {
    /// The jobs, with `of_all` applied, and notes for the user.
    ///
    /// # Errors
    /// An option of a job is repeated or ambiguous.
    pub(super) fn jobs(&self, mut of_all: Own) -> Result<(Vec<Job>, Vec<String>)> {
        let mut jobs: Vec<Own> = Vec::new();
        for word in &self.0 {
            match word {
                Word::At(_) if jobs.len() == JOBS_MAX => {
                    return Err(Failure::usage(format!("there are more than {JOBS_MAX} jobs"))
                        .hint("give fewer `-D` or `-f`"));
                }
                Word::At(at) => jobs.push(Own { at: Some(at.clone()), ..Own::default() }),
                Word::Number(flag, value) => {
                    let own = jobs.last_mut().unwrap_or(&mut of_all);
                    if own.number(*flag).replace(*value).is_some() {
                        return Err(twice(*flag, own.at.as_ref()));
                    }
                }
            }
        }
        let mut notes = Vec::new();
        for flag in Flag::ALL {
            notes.extend(check(flag, &mut of_all, &mut jobs)?);
        }
        Ok((jobs.into_iter().filter_map(|own| own.job(&of_all)).collect(), notes))
    }
}

/// Refuses a repeated or contradictory `flag`; returns a note for the user.
fn check(flag: Flag, of_all: &mut Own, jobs: &mut [Own]) -> Result<Option<String>> {
    let is_for_all = of_all.number(flag).is_some();
    let has: Vec<bool> = jobs.iter_mut().map(|own| own.number(flag).is_some()).collect();
    let Some((last, others)) = has.split_last() else { return Ok(None) };
    let name = flag.name();
    let at = |own: Option<&Own>| own.and_then(|own| own.at.as_ref()).map_or("".into(), named);
    match (is_for_all, *last, others) {
        (true, true, []) => Err(twice(flag, jobs[0].at.as_ref())),
        (true, true, others) if others.iter().all(|has| *has) => {
            Err(Failure::usage(format!("{name} before {} applies to no job", at(jobs.first())))
                .because("each job has its own")
                .hint("remove it"))
        }
        // Each job's own option could precede it.
        (true, false, others @ [_, ..]) if others.iter().all(|has| *has) => {
            Err(Failure::usage(format!("{name} is ambiguous"))
                .because("it precedes each job, and follows all but the last")
                .hint(format!("put the {name} of each job after its `-D` or `-f`")))
        }
        (false, true, others @ [_, ..]) if others.iter().all(|has| !has) => {
            let (at, without) = (at(jobs.last()), flag.without());
            Ok(Some(format!(
                "{name} after {at} applies to that job only, and the others have {without}; put it \
                 before the first `-D` or `-f` for all jobs"
            )))
        }
        _ => Ok(None),
    }
}

fn twice(flag: Flag, at: Option<&Where>) -> Failure {
    let of = at.map_or_else(|| "all jobs".into(), named);
    Failure::usage(format!("{} is given twice for {of}", flag.name()))
        .hint("remove one of them: options after a `-D` or `-f` belong to that job")
}

/// The words that begin a job.
fn named(at: &Where) -> String {
    match at {
        Where::File(path) => format!("`-f {}`", path.display()),
        Where::Folder(path) => format!("`-D {}`", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Arguments, Verb};
    use crate::gdsio::options::Asked;

    fn asked(line: &str) -> Result<Asked> {
        let words = format!("forebay gdsio {line}");
        let parsed = Arguments::try_parse_from(words.split_whitespace()).unwrap();
        let Verb::Gdsio(args) = parsed.verb else { panic!("{parsed:?}") };
        Asked::of_options(&args)
    }

    /// The jobs of a line: location, GPU, node and threads.
    fn jobs(line: &str) -> String {
        let asked = asked(line).unwrap();
        let one = |job: &Job| {
            let node = job.node.map_or("-".into(), |node| node.to_string());
            format!("{} {} {node} {}", named(&job.at), job.device, job.threads)
        };
        asked.jobs.iter().map(one).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn what_stands_behind_a_folder_belongs_to_it() {
        let line = "-D a -d 0 -n 0 -w 48 -D b -d 1 -n 1 -w 4 -s 2G -i 1m -x 0";
        assert_eq!(jobs(line), "`-D a` 0 0 48, `-D b` 1 1 4");
        assert_eq!(jobs("-s 1M -f a -d 3 -x 1 -f b -w 2"), "`-f a` 3 - 1, `-f b` 0 - 2");
        let line = "-w 4 -d 2 -D a -s 1M -D b -d 3 -D c";
        assert_eq!(jobs(line), "`-D a` 2 - 4, `-D b` 3 - 4, `-D c` 2 - 4");
        for line in ["-d 1 -w 2 -D a -s 1M", "-d 1 -D a -w 2 -s 1M", "-s 1M -D a -w 2 -d 1"] {
            assert_eq!(jobs(line), "`-D a` 1 - 2", "{line}");
        }
        let both = asked("-D a -w 2 -s 64K -o 1M -D b -i 4K -w 1 -T 3").unwrap();
        let (sizes, start) = (Sizes::one(4096), MIB);
        assert!(both.jobs.iter().all(|job| (job.sizes, job.start) == (sizes, start)), "{both:?}");
        // Jobs that read may share files.
        assert_eq!(jobs("-D a -s 1M -D a"), "`-D a` 0 - 1, `-D a` 0 - 1");
        asked("-f a -w 2 -d 0 -f b -d 1 -w 2 -s 1M -I 1").unwrap();
    }

    #[test]
    fn what_is_for_one_job_alone_is_said() {
        let notes = |line: &str| asked(line).unwrap().notes.join("\n");
        let note = notes("-D a -D b -w 8 -s 1M");
        assert!(note.contains("`-w` after `-D b` applies to that job only"), "{note}");
        assert!(note.contains("the others have one thread"), "{note}");
        assert!(notes("-D a -D b -d 1 -w 2 -s 1M").lines().count() == 2);
        for line in ["-D a -w 8", "-w 8 -D a -D b", "-w 8 -D a -D b -w 4", "-D a -w 8 -D b"] {
            assert_eq!(notes(&format!("{line} -s 1M")), "", "{line}");
        }
    }

    #[test]
    fn what_contradicts_itself_is_told_with_its_remedy() {
        let said = |line: &str| {
            let failure = asked(&format!("{line} -s 1M")).unwrap_err();
            assert!(failure.usage, "{failure:?}");
            format!("{}\n  {}", failure.in_one_line(), failure.hint.unwrap())
        };
        let many = "-D a ".repeat(JOBS_MAX + 1);
        let all = [
            said("-D a -d 0 -D b -d 1 -w 2 -d 2"),
            said("-d 0 -d 1 -D a"),
            said("-w 2 -f a -w 2"),
            said("-n 0 -D a -n 0 -D b -n 1"),
            said("-d 0 -w 2 -D a -d 1 -D b"),
            said("-D a -w 2 -d 0 -D a -d 1 -I 1"),
            said("-x 2 -I 3 -f a -w 4 -f a"),
            said("-d 0 -w 2"),
            said(&many),
        ];
        insta::assert_snapshot!(all.join("\n"), @"
        `-d` is given twice for `-D b`
          remove one of them: options after a `-D` or `-f` belong to that job
        `-d` is given twice for all jobs
          remove one of them: options after a `-D` or `-f` belong to that job
        `-w` is given twice for `-f a`
          remove one of them: options after a `-D` or `-f` belong to that job
        `-n` before `-D a` applies to no job: each job has its own
          remove it
        `-d` is ambiguous: it precedes each job, and follows all but the last
          put the `-d` of each job after its `-D` or `-f`
        two jobs write to the same files
          give each job its own folder; in a job file, `start_offset` can separate their bytes
        two jobs write to the same files
          give each job its own folder; in a job file, `start_offset` can separate their bytes
        `-f`, `-D` or a job file is missing
          `forebay gdsio --help` lists its arguments
        there are more than 64 jobs
          give fewer `-D` or `-f`
        ");
        asked(&format!("{} -s 1M", "-D a ".repeat(JOBS_MAX))).unwrap();
    }

    proptest::proptest! {
        #[test]
        fn every_job_has_its_own_or_what_is_for_all(
            jobs in proptest::collection::vec(proptest::option::of(1_u32..99), 2..9),
            of_all in proptest::option::of(100_u32..109),
        ) {
            let mut line = of_all.map_or_else(String::new, |count| format!("-w {count} "));
            for (index, own) in jobs.iter().enumerate() {
                line += &format!("-D {index} ");
                line += &own.map_or_else(String::new, |count| format!("-w {count} "));
            }
            let has = |own: &Option<u32>| own.is_some();
            let others = &jobs[..jobs.len() - 1];
            match asked(&format!("{line}-s 1M")) {
                Ok(asked) => {
                    let expected = jobs.iter().map(|own| own.or(of_all).unwrap_or(1));
                    proptest::prop_assert!(asked.jobs.iter().map(|job| job.threads).eq(expected));
                    proptest::prop_assert!(of_all.is_none() || !others.iter().all(has));
                }
                Err(_) => proptest::prop_assert!(of_all.is_some() && others.iter().all(has)),
            }
        }
    }
}
