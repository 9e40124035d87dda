//! gdsio's options, and the request they describe.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use forebay::gpu::GpuSelector;
use forebay::units::parse_duration;

use super::own::{Own, Words};
use super::words::{self, Io, Sizes, Transfer};
use crate::args::gpu;
use crate::failure::{Failure, Result};

/// Threads that a run may have; a batch has as many requests in flight.
pub(crate) const THREADS_MAX: u32 = 1024;
/// Requests of a batch that may be in flight.
const IN_FLIGHT_MAX: u32 = 4096;
/// The longest run, in seconds: a week.
pub(crate) const SECONDS_MAX: u64 = 7 * 24 * 3600;

/// Options that a job file sets itself.
const NOT_WITH_JOBS: [&str; 22] = [
    "file",
    "folder",
    "device",
    "node",
    "memory",
    "threads",
    "size",
    "start",
    "sizes",
    "nvlink",
    "unregistered",
    "verify",
    "transfer",
    "batch",
    "io",
    "seconds",
    "unaligned",
    "random_data",
    "refill",
    "alignment",
    "mixed",
    "rdma",
];

/// What `forebay gdsio` takes.
#[derive(Debug, Clone, Args)]
#[command(after_long_help = "Examples:\n  \
    forebay gdsio -D /data -d 0 -w 8 -s 1G -i 1M -x 0 -I 1      write /data/gdsio.0 to gdsio.7\n  \
    forebay gdsio -D /data -d 0 -w 8 -s 1G -i 1M -x 0 -I 0 -T 60   read them for a minute\n  \
    forebay gdsio -D /data -d 0 -w 8 -s 1G -i 1M -x 2 -I 0 -T 60   the usual way beside it\n  \
    forebay gdsio -D /a -d 0 -w 8 -D /b -d 1 -w 8 -s 1G -x 0       two jobs, each with its GPU\n  \
    forebay gdsio jobs.gdsio                                       as a job file says\n\n\
    docs/gdsio.md tells what is the same as in gdsio, and what is not.")]
pub struct GdsioArgs {
    /// A job file, in the place of all options of gdsio
    #[arg(value_name = "JOBS", conflicts_with_all = NOT_WITH_JOBS)]
    pub jobs: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) words: Words,

    /// Memory: 0 and 1 the GPU's, 2, 3 and 4 the host's (only with `-x` 0, 5, 6 and 7)
    #[arg(
        short = 'm', value_name = "TYPE", default_value_t = 0,
        value_parser = clap::value_parser!(u8).range(0..=4), allow_negative_numbers = true
    )]
    pub memory: u8,

    /// Bytes for each thread
    #[arg(
        short = 's', value_name = "SIZE", value_parser = words::positive_size,
        allow_negative_numbers = true
    )]
    pub size: Option<u64>,

    /// Where they begin in the file
    #[arg(
        short = 'o', value_name = "SIZE", default_value = "0", value_parser = words::size,
        allow_negative_numbers = true
    )]
    pub start: u64,

    /// Bytes of one request, or a range of sizes, `MIN:MAX:STEP`
    #[arg(
        short = 'i', value_name = "SIZE", default_value = "1M", value_parser = Sizes::parse,
        allow_negative_numbers = true
    )]
    pub(crate) sizes: Sizes,

    /// Use NVLink: taken, and of no effect
    #[arg(short = 'p')]
    pub nvlink: bool,

    /// Do not register the GPU's memory: taken, and of no effect
    #[arg(short = 'b')]
    pub unregistered: bool,

    /// Compare what was moved with the files; what was written is read back
    #[arg(short = 'V')]
    pub verify: bool,

    /// How bytes go: 0, 5, 6 and 7 straight to the GPU, 1 to 4 plainly through the host
    ///
    /// 0 direct, 1 drive to host memory, 2 that and a copy to the GPU, 3 the same with the copy
    /// behind the next request, 4 as 2 through the page cache, 5 direct, 6 and 7 direct in batches.
    /// Where there is no direct path the engine takes the best that there is, the line names the
    /// type that is nearest to that, and a warning says why.
    #[arg(
        short = 'x', value_name = "TYPE", default_value = "0", value_parser = Transfer::parse,
        allow_negative_numbers = true
    )]
    pub(crate) transfer: Transfer,

    /// Requests in one call of a batch (`-x` 6 and 7)
    #[arg(
        short = 'B', value_name = "N", default_value_t = 1,
        value_parser = count, allow_negative_numbers = true
    )]
    pub batch: u32,

    /// 0 reads, 1 writes, 2 reads at random, 3 writes at random
    #[arg(
        short = 'I', value_name = "TYPE", default_value = "0", value_parser = Io::parse,
        allow_negative_numbers = true
    )]
    pub(crate) io: Io,

    /// For how many seconds, over the same bytes again and again; without it one pass
    #[arg(
        short = 'T', value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true
    )]
    pub seconds: Option<u64>,

    /// What random places follow from; goes before a job file's `random_seed` [default: 0]
    #[arg(short = 'k', value_name = "SEED", allow_negative_numbers = true)]
    pub seed: Option<u64>,

    /// Random places that are no multiples of 4 KiB: they lie 512 bytes behind such
    #[arg(short = 'U')]
    pub unaligned: bool,

    /// Fill memory with random bytes, as always
    #[arg(short = 'R')]
    pub random_data: bool,

    /// Fill it anew before each write: taken, and not done
    #[arg(short = 'F')]
    pub refill: bool,

    /// Random places are multiples of this; `-i` has to be one
    #[arg(
        short = 'a', value_name = "SIZE", value_parser = words::positive_size,
        allow_negative_numbers = true
    )]
    pub alignment: Option<u64>,

    /// How many of 100 requests of a batch are reads
    #[arg(
        short = 'M', value_name = "PERCENT",
        value_parser = clap::value_parser!(u8).range(0..=100), allow_negative_numbers = true
    )]
    pub mixed: Option<u8>,

    /// A server for RDMA: refused
    #[arg(short = 'P', value_name = "URL")]
    pub rdma: Option<String>,

    /// A line for each job before that of all
    #[arg(short = 'J')]
    pub each_job: bool,

    /// 1 goes through the page cache
    #[arg(
        short = 'O', value_name = "0|1", default_value_t = 0,
        value_parser = clap::value_parser!(u8).range(0..=1), allow_negative_numbers = true
    )]
    pub cached: u8,

    /// Which GPU, before `-d` and job files: an index, a UUID, a PCI address, `none`, or `sim`
    #[arg(long, value_name = "WHICH", value_parser = gpu)]
    pub gpu: Option<GpuSelector>,

    /// Fail where the bytes cannot go as `-x` says
    #[arg(long)]
    pub strict: bool,

    /// Write to files that `forebay gdsio` did not make
    #[arg(long)]
    pub overwrite: bool,

    /// Write to block devices: what is on them is lost
    #[arg(long)]
    pub overwrite_device: bool,
}

/// The location of a job's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Where {
    File(PathBuf),
    Folder(PathBuf),
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
pub(crate) struct Asked {
    pub(crate) transfer: Transfer,
    pub(crate) io: Io,
    /// Bytes for each thread.
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

/// How far after a multiple of 4 KiB `-U` puts requests: most drives accept that, with O_DIRECT
/// too.
const UNALIGNED: u64 = 512;

pub(super) fn shift(unaligned: bool, io: Io) -> u64 {
    if unaligned && io.is_random() { UNALIGNED } else { 0 }
}

pub(super) const WRITTEN_TWICE: &str =
    "give each job a folder of its own, or in a job file parts apart by `start_offset`";

impl Asked {
    /// The request of the options, without a job file.
    ///
    /// # Errors
    /// They contradict each other.
    pub(crate) fn of_options(args: &GdsioArgs) -> Result<Self> {
        let of_all = Own { start: Some(args.start), sizes: Some(args.sizes), ..Own::default() };
        let (jobs, mut of_jobs) = args.words.jobs(of_all)?;
        if jobs.is_empty() {
            return Err(missing("`-f`, `-D` or a job file"));
        }
        let host = args.memory >= 2;
        if host && !args.transfer.is_direct() {
            let (memory, number) = (args.memory, args.transfer.number());
            return Err(wrong(format!("`-m {memory}` cannot stand beside `-x {number}`"))
                .hint("`-m` 2, 3 and 4 are for `-x` 0, 5, 6 and 7"));
        }
        let asked = Self {
            transfer: args.transfer,
            io: match read_percent(args)? {
                // A mix of only one kind is no mix, and the line shows the actual operation.
                100 => args.io.reading(),
                0 => args.io.writing(),
                _ => args.io,
            },
            size: args.size.ok_or_else(|| missing("`-s`"))?,
            time: args.seconds.map(Duration::from_secs),
            verify: args.verify,
            jobs,
            in_host_memory: host,
            batch: if args.transfer.is_batch() { args.batch } else { 1 },
            seed: args.seed.unwrap_or(0),
            shift: shift(args.unaligned, args.io),
            read_percent: read_percent(args)?,
            cached: args.cached == 1,
            each_job: args.each_job,
            notes: {
                of_jobs.extend(notes(args));
                of_jobs
            },
        };
        asked.check(args.alignment)?;
        Ok(asked)
    }

    /// Refuses impossible requests.
    ///
    /// # Errors
    /// It names the options that contradict each other.
    pub(crate) fn check(&self, alignment: Option<u64>) -> Result<()> {
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
                    .hint("give a smaller `-s`: it is for each thread"));
            }
            let is_pass = self.time.is_none() && !self.io.is_random() && job.sizes.min == most;
            if is_pass && !size.is_multiple_of(most) {
                let (rest, less) = (size % most, size - size % most);
                return Err(wrong(format!("`-s` ({size}) is no multiple of `-i` ({most})"))
                    .because(format!("one pass would leave out the last {rest} bytes"))
                    .hint(format!("give `-s` {less}, a `-i` that divides it, or a time by `-T`")));
            }
            let fits = |by: u64| job.sizes.all().iter().all(|size| size.is_multiple_of(by));
            if let Some(by) = alignment.filter(|by| self.io.is_random() && !fits(*by)) {
                return Err(wrong(format!("`-a {by}` does not divide `-i`"))
                    .because("random requests lie at multiples of their size here")
                    .hint("give a `-a` that divides `-i`, or leave it out"));
            }
        }
        let most = self.jobs.iter().map(|job| job.threads).max().unwrap_or(0);
        if self.transfer.is_batch() && most * self.batch > IN_FLIGHT_MAX {
            return Err(wrong(format!("`-w {most}` times `-B {}` is too much", self.batch))
                .because(format!("no more than {IN_FLIGHT_MAX} requests may be in flight"))
                .hint("give less of one of them"));
        }
        let threads: u32 = self.jobs.iter().map(|job| job.threads).sum();
        if threads > THREADS_MAX {
            return Err(wrong(format!(
                "{threads} threads are more than the {THREADS_MAX} there may \
                                      be"
            ))
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
            Err(wrong(format!("`-M` cannot stand beside `-x {}`", args.transfer.number()))
                .hint("a mix of reads and writes is for batches, `-x` 6 and 7"))
        }
        Some(percent) => Ok(percent),
        None => Ok(if args.io.writes() { 0 } else { 100 }),
    }
}

fn notes(args: &GdsioArgs) -> Vec<String> {
    let is_written = args.io.writes() || args.mixed.is_some();
    let is_plain = matches!(args.transfer, Transfer::CpuGpu | Transfer::CpuAsyncGpu);
    let all = [
        (args.cached == 1 && is_plain, "`-O 1` goes through the page cache: as `-x 4`"),
        (args.nvlink, "`-p` has no effect: the driver finds the way between GPUs"),
        (args.unregistered, "`-b` has no effect: the engine registers memory where that helps"),
        (args.refill && is_written, "`-F` is not done: the same bytes are written again"),
        (args.batch > 1 && !args.transfer.is_batch(), "`-B` has no effect without `-x` 6 or 7"),
        (args.memory == 1, "`-m 1` is as `-m 0`: memory of the GPU as the engine allocates it"),
        (args.memory > 2, "`-m 3` and `-m 4` are as `-m 2`: pinned memory of the host"),
    ];
    all.iter().filter(|(given, _)| *given).map(|(_, note)| (*note).to_owned()).collect()
}

fn missing(what: &str) -> Failure {
    wrong(format!("{what} is missing")).hint("`forebay gdsio --help` tells what it takes")
}

fn wrong(message: impl Into<String>) -> Failure {
    Failure::usage(message)
}

pub(crate) fn count(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (1..=THREADS_MAX).contains(number));
    number.ok_or_else(|| format!("it takes a number from 1 to {THREADS_MAX}"))
}

pub(crate) fn seconds(text: &str) -> Result<u64, String> {
    let time = parse_duration(text).filter(|time| time.subsec_nanos() == 0);
    let number = time.map(|time| time.as_secs()).filter(|n| (1..=SECONDS_MAX).contains(n));
    number.ok_or_else(|| format!("it takes a number of seconds from 1 to {SECONDS_MAX}"))
}
