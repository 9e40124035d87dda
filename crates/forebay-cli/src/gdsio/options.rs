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

/// Most threads of a run, or calls in flight of a batch.
pub(crate) const THREADS_MAX: u32 = 1024;
/// Most requests in flight of a batch.
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

/// Arguments of `forebay gdsio`.
#[derive(Debug, Clone, Args)]
#[command(after_long_help = "Examples:\n  \
    forebay gdsio -D /data -w 8 -s 1G -x 0 -I 1        write gdsio.0 to gdsio.7\n  \
    forebay gdsio -D /data -w 8 -s 1G -x 0 -I 0 -T 60  read them for a minute\n  \
    forebay gdsio -D /data -w 8 -s 1G -x 2 -I 0 -T 60  the same through the host\n  \
    forebay gdsio -D /a -d 0 -w 8 -D /b -d 1 -w 8 -s 1G -x 0  two jobs, two GPUs\n  \
    forebay gdsio jobs.gdsio                           jobs of a file\n\n\
    docs/gdsio.md lists the differences from gdsio.")]
pub struct GdsioArgs {
    /// Job file, instead of gdsio's options
    #[arg(value_name = "JOBS", conflicts_with_all = NOT_WITH_JOBS)]
    pub jobs: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) words: Words,

    /// Memory: 0 and 1 the GPU's; 2, 3 and 4 the host's (only with `-x` 0, 5, 6 and 7)
    #[arg(
        short = 'm', value_name = "TYPE", default_value_t = 0,
        value_parser = clap::value_parser!(u8).range(0..=4), allow_negative_numbers = true
    )]
    pub memory: u8,

    /// Bytes of each thread
    #[arg(
        short = 's', value_name = "SIZE", value_parser = words::positive_size,
        allow_negative_numbers = true
    )]
    pub size: Option<u64>,

    /// Offset of the first byte in the file
    #[arg(
        short = 'o', value_name = "SIZE", default_value = "0", value_parser = words::size,
        allow_negative_numbers = true
    )]
    pub start: u64,

    /// Block size, or a range of sizes: `MIN:MAX:STEP`
    #[arg(
        short = 'i', value_name = "SIZE", default_value = "1M", value_parser = Sizes::parse,
        allow_negative_numbers = true
    )]
    pub(crate) sizes: Sizes,

    /// Use NVLink (accepted, without effect)
    #[arg(short = 'p')]
    pub nvlink: bool,

    /// Do not register GPU memory (accepted, without effect)
    #[arg(short = 'b')]
    pub unregistered: bool,

    /// Verify the bytes that were moved; written bytes are read back
    #[arg(short = 'V')]
    pub verify: bool,

    /// Data path: 0, 5, 6 and 7 direct to the GPU, 1 to 4 through the host
    ///
    /// 0 is the direct route. 1 is drive to host memory. 2 adds a copy to the GPU. 3 is 2 with the
    /// copy during the next request. 4 is 2 through the page cache. 5 is the direct route. 6 and 7
    /// are the direct route in batches. Without a direct route the engine takes its best one. The
    /// result line then names the nearest type, and a warning says why.
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

    /// Operation: 0 read, 1 write, 2 random read, 3 random write
    #[arg(
        short = 'I', value_name = "TYPE", default_value = "0", value_parser = Io::parse,
        allow_negative_numbers = true
    )]
    pub(crate) io: Io,

    /// Run for this many seconds, over the same bytes [default: one pass]
    #[arg(
        short = 'T', value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true
    )]
    pub seconds: Option<u64>,

    /// Seed of random offsets; overrides a job file's `random_seed` [default: 0]
    #[arg(short = 'k', value_name = "SEED", allow_negative_numbers = true)]
    pub seed: Option<u64>,

    /// Shift random offsets by 512 bytes, so that they are unaligned
    #[arg(short = 'U')]
    pub unaligned: bool,

    /// Fill memory with random bytes (always on)
    #[arg(short = 'R')]
    pub random_data: bool,

    /// Refill memory before each write (accepted, not done)
    #[arg(short = 'F')]
    pub refill: bool,

    /// Alignment of random offsets; it must divide `-i`
    #[arg(
        short = 'a', value_name = "SIZE", value_parser = words::positive_size,
        allow_negative_numbers = true
    )]
    pub alignment: Option<u64>,

    /// Percentage of reads in a batch (`-x` 6 and 7)
    #[arg(
        short = 'M', value_name = "PERCENT",
        value_parser = clap::value_parser!(u8).range(0..=100), allow_negative_numbers = true
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
        value_parser = clap::value_parser!(u8).range(0..=1), allow_negative_numbers = true
    )]
    pub cached: u8,

    /// GPU instead of `-d` and job files: an index, a UUID, a PCI address, `none`, or `sim`
    #[arg(long, value_name = "WHICH", value_parser = gpu)]
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

/// Bytes by which `-U` shifts requests: most drives accept such offsets, with O_DIRECT too.
const UNALIGNED: u64 = 512;

pub(super) fn shift(unaligned: bool, io: Io) -> u64 {
    if unaligned && io.is_random() { UNALIGNED } else { 0 }
}

pub(super) const WRITTEN_TWICE: &str =
    "give each job its own folder; in a job file, `start_offset` can separate their bytes";

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
            return Err(wrong(format!("`-m {memory}` cannot be combined with `-x {number}`"))
                .hint("`-m` 2, 3 and 4 are for `-x` 0, 5, 6 and 7"));
        }
        let asked = Self {
            transfer: args.transfer,
            io: match read_percent(args)? {
                // The line shows the actual operation if the mix has only one.
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
    /// The text names the options that contradict each other.
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
                    .hint("give a smaller `-s`, which is the size for each thread"));
            }
            let is_pass = self.time.is_none() && !self.io.is_random() && job.sizes.min == most;
            if is_pass && !size.is_multiple_of(most) {
                let (rest, less) = (size % most, size - size % most);
                return Err(wrong(format!("`-s` ({size}) is not a multiple of `-i` ({most})"))
                    .because(format!("one pass would leave out the last {rest} bytes"))
                    .hint(format!("give `-s` {less}, a `-i` that divides it, or a time: `-T`")));
            }
            let fits = |by: u64| job.sizes.all().iter().all(|size| size.is_multiple_of(by));
            if let Some(by) = alignment.filter(|by| self.io.is_random() && !fits(*by)) {
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
        None => Ok(if args.io.writes() { 0 } else { 100 }),
    }
}

fn notes(args: &GdsioArgs) -> Vec<String> {
    let is_written = args.io.writes() || args.mixed.is_some();
    let is_plain = matches!(args.transfer, Transfer::CpuGpu | Transfer::CpuAsyncGpu);
    let all = [
        (args.cached == 1 && is_plain, "`-O 1` uses the page cache, like `-x 4`"),
        (args.nvlink, "`-p` has no effect: the driver picks the path between GPUs"),
        (args.unregistered, "`-b` has no effect: the engine registers memory where that helps"),
        (args.refill && is_written, "`-F` has no effect: the same bytes are written again"),
        (args.batch > 1 && !args.transfer.is_batch(), "`-B` has no effect without `-x` 6 or 7"),
        (args.memory == 1, "`-m 1` is the same as `-m 0`: GPU memory, allocated by the engine"),
        (args.memory > 2, "`-m 3` and `-m 4` are the same as `-m 2`: pinned host memory"),
    ];
    all.iter().filter(|(given, _)| *given).map(|(_, note)| (*note).to_owned()).collect()
}

fn missing(what: &str) -> Failure {
    wrong(format!("{what} is missing")).hint("`forebay gdsio --help` lists its arguments")
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
