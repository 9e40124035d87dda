//! gdsio's options, and the request they describe. On a command line every `-D` or `-f` begins a
//! job, and `-d`, `-n` and `-w` after it belong to that job.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, ArgMatches, Args, Command, FromArgMatches};
use forebay::gpu::GpuSelector;
use forebay::units::parse_duration;
use forebay_measure::failure::{Failure, Result};

use super::words::{self, Io, Sizes, Transfer};
use crate::values::one_gpu;

/// Most threads of a run, or calls in flight of a batch.
const THREADS_MAX: u32 = 1024;
/// Most requests in flight of a batch.
const IN_FLIGHT_MAX: u32 = 4096;
/// The longest run, in seconds: a week.
const SECONDS_MAX: u64 = 7 * 24 * 3600;

/// Limit of a plausible number of jobs.
pub(super) const JOBS_MAX: usize = 64;

/// Options that a job file sets itself.
const NOT_WITH_JOBS: &str = "file folder device node memory threads size start sizes ignored \
                             verify transfer batch io seconds unaligned alignment mixed rdma";

/// Arguments of `forebay gdsio`.
#[derive(Debug, Clone, Args)]
#[command(
    allow_negative_numbers = true,
    after_long_help = "Examples:\n  \
    forebay gdsio -D /data -w 8 -s 1G -x 0 -I 1        write gdsio.0 to gdsio.7\n  \
    forebay gdsio -D /data -w 8 -s 1G -x 0 -I 0 -T 60  read them for a minute\n  \
    forebay gdsio -D /data -w 8 -s 1G -x 2 -I 0 -T 60  the same through the host\n  \
    forebay gdsio -D /a -d 0 -w 8 -D /b -d 1 -w 8 -s 1G -x 0  two jobs, two GPUs\n  \
    forebay gdsio jobs.gdsio                           jobs of a file\n\n\
    docs/gdsio.md lists the differences from gdsio."
)]
pub struct GdsioArgs {
    /// Job file, instead of gdsio's options
    #[arg(value_name = "JOBS", conflicts_with_all = NOT_WITH_JOBS.split(' '))]
    pub jobs: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) words: Words,

    /// Memory: 0 and 1 the GPU's; 2, 3 and 4 the host's (only with `-x` 0, 5, 6 and 7)
    #[arg(
        short = 'm', value_name = "TYPE", default_value_t = 0,
        value_parser = clap::value_parser!(u8).range(0..=4)
    )]
    pub memory: u8,

    /// Bytes of each thread
    #[arg(short = 's', value_name = "SIZE", value_parser = words::positive_size)]
    pub size: Option<u64>,

    /// Offset of the first byte in the file
    #[arg(short = 'o', value_name = "SIZE", default_value = "0", value_parser = words::size)]
    pub start: u64,

    /// Block size, or a range of sizes: `MIN:MAX:STEP`
    #[arg(short = 'i', value_name = "SIZE", default_value = "1M", value_parser = Sizes::parse)]
    pub(crate) sizes: Sizes,

    /// Without effect: NVLink, unregistered memory, random data, and refilled memory
    #[arg(short = 'p', short_aliases = ['b', 'R', 'F'], action = ArgAction::Count, hide = true)]
    pub ignored: u8,

    /// Verify the bytes that were moved; written bytes are read back
    #[arg(short = 'V')]
    pub verify: bool,

    /// Data path: 0, 5, 6 and 7 direct to the GPU, 1 to 4 through the host
    ///
    /// 0 is the direct route. 1 is drive to host memory. 2 adds a copy to the GPU. 3 is 2 with the
    /// copy during the next request. 4 is 2 through the page cache. 5 is the direct route. 6 and 7
    /// are the direct route in batches. Without a direct route the engine takes its best one. The
    /// result line then names the nearest type, and a warning says why.
    #[arg(short = 'x', value_name = "TYPE", default_value = "0", value_parser = Transfer::parse)]
    pub(crate) transfer: Transfer,

    /// Requests in one call of a batch (`-x` 6 and 7)
    #[arg(short = 'B', value_name = "N", default_value_t = 1, value_parser = count)]
    pub batch: u32,

    /// Operation: 0 read, 1 write, 2 random read, 3 random write
    #[arg(short = 'I', value_name = "TYPE", default_value = "0", value_parser = Io::parse)]
    pub(crate) io: Io,

    /// Run for this many seconds, over the same bytes [default: one pass]
    #[arg(short = 'T', value_name = "SECONDS", value_parser = seconds)]
    pub seconds: Option<u64>,

    /// Seed of random offsets; overrides a job file's `random_seed` [default: 0]
    #[arg(short = 'k', value_name = "SEED", value_parser = number::<u64>)]
    pub seed: Option<u64>,

    /// Shift random offsets by 512 bytes, so that they are unaligned
    #[arg(short = 'U')]
    pub unaligned: bool,

    /// Alignment of random offsets; it must divide `-i`
    #[arg(short = 'a', value_name = "SIZE", value_parser = words::positive_size)]
    pub alignment: Option<u64>,

    /// Percentage of reads in a batch (`-x` 6 and 7)
    #[arg(
        short = 'M', value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100)
    )]
    pub mixed: Option<u8>,

    /// RDMA server (not supported)
    #[arg(short = 'P', value_name = "URL")]
    pub rdma: Option<String>,

    /// Print a line for each job before the line for all
    #[arg(short = 'J')]
    pub each_job: bool,

    /// Use the page cache if 1
    #[arg(
        short = 'O', value_name = "0|1", default_value_t = 0,
        value_parser = clap::value_parser!(u8).range(0..=1)
    )]
    pub cached: u8,

    /// GPU instead of `-d` and job files: an index, a UUID, a PCI address, `none`, or `sim`
    #[arg(long, value_name = "WHICH", value_parser = one_gpu(), hide_possible_values = true)]
    pub gpu: Option<GpuSelector>,

    /// Fail if the data path of `-x` is not available
    #[arg(long)]
    pub strict: bool,

    /// Overwrite files that `forebay gdsio` did not make
    #[arg(long)]
    pub overwrite: bool,

    /// Overwrite block devices; their content is lost
    #[arg(long)]
    pub overwrite_device: bool,
}

/// The location of a job's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Where {
    File(PathBuf),
    Folder(PathBuf),
}

impl Where {
    /// The words that begin its job.
    fn words(&self) -> String {
        match self {
            Self::File(path) => format!("`-f {}`", path.display()),
            Self::Folder(path) => format!("`-D {}`", path.display()),
        }
    }
}

/// The job options of a command line, as it defines them.
#[derive(Debug, Clone, Args)]
struct JobFlags {
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
    #[arg(short = 'd', value_name = "INDEX", value_parser = number::<u32>)]
    device: Vec<u32>,

    /// NUMA node whose processors run the threads
    #[arg(short = 'n', value_name = "NODE", value_parser = number::<u32>)]
    node: Vec<u32>,

    /// Threads; with `-x` 6 and 7, calls in flight of one thread [default: 1]
    #[arg(short = 'w', value_name = "N", value_parser = count)]
    threads: Vec<u32>,
}

/// The numbers that a job may have: the option's id, its flag, and the default in words.
const NUMBERS: [(&str, &str, &str); 3] =
    [("device", "`-d`", "GPU 0"), ("node", "`-n`", "any node"), ("threads", "`-w`", "one thread")];

/// The options of a job, or of all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Own {
    at: Option<Where>,
    /// In the order of [`NUMBERS`].
    numbers: [Option<u32>; 3],
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Word {
    At(Where),
    /// The index of a number, and its value.
    Number(usize, u32),
}

/// The job options of a command line, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Words(Vec<Word>);

impl Args for Words {
    fn augment_args(command: Command) -> Command {
        JobFlags::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        JobFlags::augment_args_for_update(command)
    }
}

impl FromArgMatches for Words {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let JobFlags { file, folder, device, node, threads } = JobFlags::from_arg_matches(matches)?;
        let places = |id| matches.indices_of(id).into_iter().flatten();
        let file = file.into_iter().map(|path| Word::At(Where::File(path)));
        let folder = folder.into_iter().map(|path| Word::At(Where::Folder(path)));
        let mut words: Vec<(usize, Word)> = places("file").zip(file).collect();
        words.extend(places("folder").zip(folder));
        for (index, values) in [device, node, threads].into_iter().enumerate() {
            let values = values.into_iter().map(|value| Word::Number(index, value));
            words.extend(places(NUMBERS[index].0).zip(values));
        }
        words.sort_by_key(|(place, _)| *place);
        Ok(Self(words.into_iter().map(|(_, word)| word).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl GdsioArgs {
    /// The jobs of the words, and notes for the user.
    ///
    /// # Errors
    /// An option of a job is repeated or ambiguous.
    pub(super) fn jobs_of_words(&self) -> Result<(Vec<Job>, Vec<String>)> {
        let (mut of_all, mut jobs) = (Own::default(), Vec::<Own>::new());
        for word in &self.words.0 {
            match word {
                Word::At(_) if jobs.len() == JOBS_MAX => {
                    return Err(Failure::usage(format!("there are more than {JOBS_MAX} jobs"))
                        .hint("give fewer `-D` or `-f`"));
                }
                Word::At(at) => jobs.push(Own { at: Some(at.clone()), ..Own::default() }),
                Word::Number(index, value) => {
                    let own = jobs.last_mut().unwrap_or(&mut of_all);
                    if own.numbers[*index].replace(*value).is_some() {
                        return Err(twice(*index, own));
                    }
                }
            }
        }
        let mut notes = Vec::new();
        for index in 0..NUMBERS.len() {
            notes.extend(check_number(index, &of_all, &jobs)?);
        }
        let job = |own: Own| {
            let number = |index: usize| own.numbers[index].or(of_all.numbers[index]);
            Some(Job {
                device: number(0).unwrap_or(0),
                node: number(1),
                threads: number(2).unwrap_or(1),
                start: self.start,
                sizes: self.sizes,
                at: own.at?,
            })
        };
        Ok((jobs.into_iter().filter_map(job).collect(), notes))
    }
}

/// Refuses a repeated or ambiguous number; returns a note for the user.
fn check_number(index: usize, of_all: &Own, jobs: &[Own]) -> Result<Option<String>> {
    let has = |own: &Own| own.numbers[index].is_some();
    let Some((last, others)) = jobs.split_last() else { return Ok(None) };
    let (_, name, without) = NUMBERS[index];
    let at = |own: &Own| own.at.as_ref().map(Where::words).unwrap_or_default();
    match (has(of_all), has(last)) {
        (true, true) if others.is_empty() => Err(twice(index, last)),
        (true, true) if others.iter().all(has) => {
            Err(Failure::usage(format!("{name} before {} applies to no job", at(&jobs[0])))
                .because("each job has its own")
                .hint("remove it"))
        }
        // Every job's own option could precede it.
        (true, false) if !others.is_empty() && others.iter().all(has) => {
            Err(Failure::usage(format!("{name} is ambiguous"))
                .because("it precedes each job, and follows all but the last")
                .hint(format!("put the {name} of each job after its `-D` or `-f`")))
        }
        (false, true) if !others.is_empty() && !others.iter().any(has) => Ok(Some(format!(
            "{name} after {} applies to that job only, and the others have {without}; put it \
             before the first `-D` or `-f` for all jobs",
            at(last)
        ))),
        _ => Ok(None),
    }
}

fn twice(index: usize, own: &Own) -> Failure {
    let of = own.at.as_ref().map_or_else(|| "all jobs".into(), Where::words);
    Failure::usage(format!("{} is given twice for {of}", NUMBERS[index].1))
        .hint("remove one of them: options after a `-D` or `-f` belong to that job")
}

/// Threads with the same work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) at: Where,
    pub(crate) device: u32,
    pub(crate) node: Option<u32>,
    pub(crate) threads: u32,
    pub(crate) start: u64,
    pub(crate) sizes: Sizes,
}

/// The complete request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) transfer: Transfer,
    pub(crate) io: Io,
    /// Bytes per thread.
    pub(crate) size: u64,
    pub(crate) time: Option<Duration>,
    pub(crate) verify: bool,
    pub(crate) jobs: Vec<Job>,
    pub(crate) in_host_memory: bool,
    pub(crate) batch: u32,
    pub(crate) seed: u64,
    /// Bytes by which random offsets are shifted.
    pub(crate) shift: u64,
    pub(crate) read_percent: u8,
    pub(crate) cached: bool,
    pub(crate) each_job: bool,
    /// Notes for the user on these options.
    pub(crate) notes: Vec<String>,
}

/// Bytes by which `-U` shifts requests: most drives accept such offsets, with O_DIRECT too.
const UNALIGNED: u64 = 512;

pub(super) const WRITTEN_TWICE: &str =
    "give each job its own folder; in a job file, `start_offset` can separate their bytes";

impl Request {
    /// The request of the options, without a job file.
    ///
    /// # Errors
    /// They are contradictory.
    pub(crate) fn of_options(args: &GdsioArgs) -> Result<Self> {
        let (jobs, notes) = args.jobs_of_words()?;
        if jobs.is_empty() {
            return Err(missing("`-f`, `-D` or a job file"));
        }
        Self::of_jobs(args, jobs, notes)
    }

    /// The request of `jobs` with the options of all, and notes for the user.
    ///
    /// # Errors
    /// They are contradictory.
    pub(super) fn of_jobs(
        args: &GdsioArgs,
        jobs: Vec<Job>,
        mut notes: Vec<String>,
    ) -> Result<Self> {
        let host = args.memory >= 2;
        if host && !args.transfer.is_direct() {
            let (memory, number) = (args.memory, args.transfer.number());
            return Err(wrong(format!("`-m {memory}` cannot be combined with `-x {number}`"))
                .hint("`-m` 2, 3 and 4 are for `-x` 0, 5, 6 and 7"));
        }
        let read_percent = read_percent(args)?;
        notes.extend(self::notes(args));
        let request = Self {
            transfer: args.transfer,
            io: match read_percent {
                // The line shows the actual operation of a mix with a single operation.
                100 => Io { writes: false, ..args.io },
                0 => Io { writes: true, ..args.io },
                _ => args.io,
            },
            size: args.size.ok_or_else(|| missing("`-s`"))?,
            time: args.seconds.map(Duration::from_secs),
            verify: args.verify,
            jobs,
            in_host_memory: host,
            batch: if args.transfer.is_batch() { args.batch } else { 1 },
            seed: args.seed.unwrap_or(0),
            shift: if args.unaligned && args.io.is_random { UNALIGNED } else { 0 },
            read_percent,
            cached: args.cached == 1,
            each_job: args.each_job,
            notes,
        };
        request.check(args.alignment)?;
        Ok(request)
    }

    /// Refuses impossible requests.
    ///
    /// # Errors
    /// The text names the contradictory options.
    fn check(&self, alignment: Option<u64>) -> Result<()> {
        for job in &self.jobs {
            let (size, most) = (self.size, job.sizes.max);
            if size.checked_sub(self.shift).is_none_or(|size| size < most) {
                return Err(wrong(format!("no request of {most} bytes fits into {size}"))
                    .hint("give a larger `-s`, or a smaller `-i`"));
            }
            let bytes = size.checked_mul(u64::from(job.threads));
            if bytes.and_then(|bytes| bytes.checked_add(job.start)).is_none_or(|end| end >> 62 > 0)
            {
                return Err(wrong("`-s` times `-w` is more than any file has")
                    .hint("give a smaller `-s`, which is the size for each thread"));
            }
            let is_pass = self.time.is_none() && !self.io.is_random && job.sizes.min == most;
            if is_pass && !size.is_multiple_of(most) {
                let (rest, less) = (size % most, size - size % most);
                return Err(wrong(format!("`-s` ({size}) is not a multiple of `-i` ({most})"))
                    .because(format!("one pass would leave out the last {rest} bytes"))
                    .hint(format!("give `-s` {less}, a `-i` that divides it, or a time: `-T`")));
            }
            let fits = |by: u64| job.sizes.all().iter().all(|size| size.is_multiple_of(by));
            if let Some(by) = alignment.filter(|by| self.io.is_random && !fits(*by)) {
                return Err(wrong(format!("`-a {by}` does not divide `-i`"))
                    .because("random offsets are multiples of the block size")
                    .hint("give a `-a` that divides `-i`, or omit it"));
            }
        }
        let most = self.jobs.iter().map(|job| job.threads).max().unwrap_or(0);
        if self.transfer.is_batch() && most * self.batch > IN_FLIGHT_MAX {
            return Err(wrong(format!("`-w {most}` times `-B {}` is too large", self.batch))
                .because(format!("at most {IN_FLIGHT_MAX} requests may be in flight"))
                .hint("lower one of them"));
        }
        let threads: u32 = self.jobs.iter().map(|job| job.threads).sum();
        if threads > THREADS_MAX {
            return Err(wrong(format!("{threads} threads exceed the limit of {THREADS_MAX}"))
                .hint("give the jobs fewer threads"));
        }
        // Whether files of different names are the same is only known once they exist.
        let jobs = &self.jobs;
        let meets = |at: usize| jobs[..at].iter().any(|one| self.meet(one, &jobs[at]));
        if self.writes() && (1..jobs.len()).any(meets) {
            return Err(wrong("two jobs write to the same files").hint(WRITTEN_TWICE));
        }
        Ok(())
    }

    /// Whether two jobs use bytes of the same file, by its name.
    fn meet(&self, one: &Job, other: &Job) -> bool {
        let end = |job: &Job| {
            let parts = match job.at {
                Where::File(_) if !self.transfer.is_batch() => u64::from(job.threads),
                _ => 1,
            };
            job.start.saturating_add(self.size * parts)
        };
        one.at == other.at && one.start < end(other) && other.start < end(one)
    }

    /// Whether files are written.
    pub(crate) const fn writes(&self) -> bool {
        self.read_percent < 100
    }
}

fn read_percent(args: &GdsioArgs) -> Result<u8> {
    match args.mixed {
        Some(_) if !args.transfer.is_batch() => {
            Err(wrong(format!("`-M` cannot be combined with `-x {}`", args.transfer.number()))
                .hint("a mix of reads and writes is for batches, `-x` 6 and 7"))
        }
        Some(percent) => Ok(percent),
        None => Ok(if args.io.writes { 0 } else { 100 }),
    }
}

fn notes(args: &GdsioArgs) -> impl Iterator<Item = String> {
    let is_plain = matches!(args.transfer, Transfer::CpuGpu | Transfer::CpuAsyncGpu);
    let all = [
        (args.cached == 1 && is_plain, "`-O 1` uses the page cache, like `-x 4`"),
        (args.batch > 1 && !args.transfer.is_batch(), "`-B` has no effect without `-x` 6 or 7"),
        (args.memory == 1, "`-m 1` is the same as `-m 0`: GPU memory, allocated by the engine"),
        (args.memory > 2, "`-m 3` and `-m 4` are the same as `-m 2`: pinned host memory"),
    ];
    all.into_iter().filter(|(given, _)| *given).map(|(_, note)| note.to_owned())
}

/// The number of a GPU or a node, or a seed.
fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "it takes a number of 0 or more".into())
}

fn missing(what: &str) -> Failure {
    wrong(format!("{what} is missing")).hint("`forebay gdsio --help` lists its arguments")
}

fn wrong(message: impl Into<String>) -> Failure {
    Failure::usage(message)
}

fn count(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (1..=THREADS_MAX).contains(number));
    number.ok_or_else(|| format!("it takes a number from 1 to {THREADS_MAX}"))
}

fn seconds(text: &str) -> Result<u64, String> {
    let time = parse_duration(text).filter(|time| time.subsec_nanos() == 0);
    let number = time.map(|time| time.as_secs()).filter(|n| (1..=SECONDS_MAX).contains(n));
    number.ok_or_else(|| format!("it takes a number of seconds from 1 to {SECONDS_MAX}"))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Arguments, Verb};

    fn request(line: &str) -> Result<Request> {
        let words = format!("forebay gdsio {line}");
        let parsed = Arguments::try_parse_from(words.split_whitespace()).unwrap();
        let Verb::Gdsio(args) = parsed.verb else { panic!("{parsed:?}") };
        Request::of_options(&args)
    }

    /// The jobs of a line: location, GPU, node and threads.
    fn jobs(line: &str) -> String {
        let request = request(line).unwrap();
        let one = |job: &Job| {
            let node = job.node.map_or("-".into(), |node| node.to_string());
            format!("{} {} {node} {}", job.at.words(), job.device, job.threads)
        };
        request.jobs.iter().map(one).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn flags_after_a_folder_belong_to_it() {
        let line = "-D a -d 0 -n 0 -w 48 -D b -d 1 -n 1 -w 4 -s 2G -i 1m -x 0";
        assert_eq!(jobs(line), "`-D a` 0 0 48, `-D b` 1 1 4");
        assert_eq!(jobs("-s 1M -f a -d 3 -x 1 -f b -w 2"), "`-f a` 3 - 1, `-f b` 0 - 2");
        let line = "-w 4 -d 2 -D a -s 1M -D b -d 3 -D c";
        assert_eq!(jobs(line), "`-D a` 2 - 4, `-D b` 3 - 4, `-D c` 2 - 4");
        for line in ["-d 1 -w 2 -D a -s 1M", "-d 1 -D a -w 2 -s 1M", "-s 1M -D a -w 2 -d 1"] {
            assert_eq!(jobs(line), "`-D a` 1 - 2", "{line}");
        }
        let both = request("-D a -w 2 -s 64K -o 1M -D b -i 4K -w 1 -T 3").unwrap();
        let (sizes, start) = (Sizes::one(4096), 1 << 20);
        assert!(both.jobs.iter().all(|job| (job.sizes, job.start) == (sizes, start)), "{both:?}");
        // Jobs that read may share files.
        assert_eq!(jobs("-D a -s 1M -D a"), "`-D a` 0 - 1, `-D a` 0 - 1");
        request("-f a -w 2 -d 0 -f b -d 1 -w 2 -s 1M -I 1").unwrap();
    }

    #[test]
    fn a_flag_of_one_job_alone_has_a_note() {
        let notes = |line: &str| request(line).unwrap().notes.join("\n");
        let note = notes("-D a -D b -w 8 -s 1M");
        assert!(note.contains("`-w` after `-D b` applies to that job only"), "{note}");
        assert!(note.contains("the others have one thread"), "{note}");
        assert!(notes("-D a -D b -d 1 -w 2 -s 1M").lines().count() == 2);
        for line in ["-D a -w 8", "-w 8 -D a -D b", "-w 8 -D a -D b -w 4", "-D a -w 8 -D b"] {
            assert_eq!(notes(&format!("{line} -s 1M")), "", "{line}");
        }
    }

    #[test]
    fn contradicting_options_are_errors_with_a_remedy() {
        let refusal = |line: &str| {
            let failure = request(&format!("{line} -s 1M")).unwrap_err();
            assert!(failure.usage, "{failure:?}");
            format!("{}\n  {}", failure.in_one_line(), failure.hint.unwrap())
        };
        let many = "-D a ".repeat(JOBS_MAX + 1);
        let all = [
            refusal("-D a -d 0 -D b -d 1 -w 2 -d 2"),
            refusal("-d 0 -d 1 -D a"),
            refusal("-w 2 -f a -w 2"),
            refusal("-n 0 -D a -n 0 -D b -n 1"),
            refusal("-d 0 -w 2 -D a -d 1 -D b"),
            refusal("-D a -w 2 -d 0 -D a -d 1 -I 1"),
            refusal("-x 2 -I 3 -f a -w 4 -f a"),
            refusal("-d 0 -w 2"),
            refusal(&many),
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
        request(&format!("{} -s 1M", "-D a ".repeat(JOBS_MAX))).unwrap();
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
            match request(&format!("{line}-s 1M")) {
                Ok(request) => {
                    let expected = jobs.iter().map(|own| own.or(of_all).unwrap_or(1));
                    proptest::prop_assert!(request.jobs.iter().map(|job| job.threads).eq(expected));
                    proptest::prop_assert!(of_all.is_none() || !others.iter().all(has));
                }
                Err(_) => proptest::prop_assert!(of_all.is_some() && others.iter().all(has)),
            }
        }
    }
}
