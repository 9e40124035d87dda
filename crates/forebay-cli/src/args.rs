//! The command line: one definition of each flag yields parsing, help, man page and completions.

mod compare;
mod diff;
mod help;
mod import;
mod report;
mod stream;
pub(crate) mod sweep;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use forebay::Route;
use forebay::gpu::GpuSelector;
use forebay::units::{parse_duration, parse_size};

pub use self::compare::{CompareArgs, Mode};
pub use self::diff::DiffArgs;
pub use self::import::{ImportArgs, ImportTool};
pub use self::report::ReportArgs;
pub use self::stream::StreamArgs;
pub use self::sweep::SweepArgs;
use crate::gdsio::options::GdsioArgs;

/// Moves bytes between files and GPU memory at the speed of the slowest link on the way
#[derive(Debug, Parser)]
#[command(
    name = "forebay",
    version,
    styles = help::STYLES,
    max_term_width = 90,
    disable_help_subcommand = true,
    after_long_help = help::beyond_flags(),
)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// What the command can do.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Measure how fast bytes move, by every way, against what the machine can do
    ///
    /// One interleaved run measures the ceilings (the link to the GPU, the storage) and the ways to
    /// move bytes: `standard` (read into pageable memory, then copy), `mmap` (map, then copy),
    /// `cufile-compat` (cuFile's compat mode, where there are a GPU and cuFile: at its defaults and
    /// in its best settings) and `forebay`; of several paths `one-queue`, `kvikio` and `forebay`.
    /// Every byte that a way moved is checked. Without a GPU the target is host memory.
    Bench(BenchArgs),
    /// Compare the standard way with the direct path and with ours, run by run
    ///
    /// A file is written from the GPU and read back: in the standard way (by pageable memory and
    /// the page cache), by our engine as it chooses, and straight where there is a path for that.
    /// Every byte of every run is checked, the first run is shown apart from the others, and
    /// whether bytes went by DMA is said by what others counted, never by a speed. Without a GPU
    /// the target is host memory.
    Compare(CompareArgs),
    /// Move a file to the GPU (or host memory) and say what moved and how
    ///
    /// The engine takes the fastest route that this file and this machine have, and says why it
    /// was that one.
    Read(ReadArgs),
    /// Show the drives under a path, how far from each GPU, and what costs speed
    ///
    /// Every step is shown, from the path through mounts, file systems, arrays and volumes to the
    /// drives (marked `●`) and their PCI devices. Nothing is read from a file or a drive and
    /// nothing is written: the kernel is asked. What it does not tell is said to be unknown.
    Map(MapArgs),
    /// Find how much to keep in flight on a drive, and show the curve
    ///
    /// A search of a few seconds measures throughput and latency against depth and size of request,
    /// past the page cache, by the engine itself. What was found is kept for the engines to come
    /// (they find it by themselves too, a little later), and shown as settings of other programs.
    Tune(TuneArgs),
    /// Measure every size, depth and way that is named, and keep the results
    ///
    /// One value of each axis with each of the others is a point; each is measured several times,
    /// in turn. Each sample says throughput, latency, processor time, which way the bytes took and
    /// what binds. Results are kept as soon as they are there, so the same command goes on where
    /// it was stopped.
    Sweep(Box<SweepArgs>),
    /// Stream a model's layers to the GPU behind their compute, beside other ways
    ///
    /// Layers come while the ones before them are computed, as in a mixture of experts: by Forebay,
    /// by two buffers from pinned memory (the ceiling of the link), by a mapped file, and by KvikIO
    /// where it is installed, turn by turn; every layer's bytes are checked on the GPU. The compute
    /// is torch's, so this takes the Python package and a GPU.
    Stream(Box<StreamArgs>),
    /// Say what keeps bytes from going to the GPU directly, and what to do
    ///
    /// Kernel, driver, PCI, storage, network, limits and cuFile's settings are looked at. A check
    /// says what was seen, why it matters and the next step; what holds this path back most is
    /// first. Then a few MiB are moved each way by every route, each byte is compared, and the
    /// last line says how bytes travel here. Works without root and without a GPU, and says what it
    /// could not see. Ends with 1 where something that was set up does not work.
    Doctor(DoctorArgs),
    /// Make a report of results: a page for a browser, text, or tables
    ///
    /// Results files and what `forebay bench --json` or `forebay compare --json` printed stand in
    /// one report, each as a run of its own. Without `-o` it is shown here.
    Report(ReportArgs),
    /// Show results side by side: ratios, and how far to trust them
    ///
    /// Local against remote, before against after, one way against another: the same points of two
    /// files or more, or of what differs within one (`--by`). Each ratio of medians has the
    /// interval that so few samples allow, and a difference is only told where it is no chance
    /// among so many points.
    Diff(DiffArgs),
    /// Run gdsio's command lines and job files, and print its result line
    ///
    /// Takes gdsio's own options, and prints what scripts that read its output expect. `-x` 1 to 4
    /// do plainly what gdsio does; 0, 5, 6 and 7 go straight to the GPU where there is such a path,
    /// and else as well as the engine can, which the line and a warning say. A file that it did not
    /// make is never written to, unless `--overwrite` says so.
    Gdsio(GdsioArgs),
    /// Read what gdsio, fio, nixlbench or any table measured, to stand beside ours
    ///
    /// Each result becomes a record of a results file, which `forebay report` shows. Records say
    /// whose they are and which line they come from; what a tool does not tell is null, and nothing
    /// of it counts as proven.
    Import(Box<ImportArgs>),
    /// Open cuFile's driver and write down what it says of this machine, line by line
    ///
    /// Opening it may hang and may end the process, so the engine asks this program, for a limited
    /// time, before it uses the library itself. Made to be read by a program.
    #[command(hide = true)]
    Probe(ProbeArgs),
    /// Look whether paths answer, one after the other
    ///
    /// A file server that is gone holds up whoever asks it, also when that process is to end. So
    /// `forebay doctor` and `forebay map` ask in a process of its own. Made to be read by a
    /// program.
    #[command(hide = true)]
    Reach(ReachArgs),
    /// Move bytes by cuFile as `forebay bench` orders, line by line
    ///
    /// What the library does to its process must not be done to the one that measures. Made to be
    /// used by a program.
    #[command(hide = true)]
    Cufile(ProbeArgs),
    /// Print completions for a shell
    Completions {
        /// Which shell
        shell: Shell,
    },
    /// Print the manual page
    Man,
}

/// What `forebay bench` takes.
#[derive(Debug, Clone, Args)]
#[command(after_long_help = "Examples:\n  \
        forebay bench                                  a scratch file in this folder\n  \
        forebay bench model.safetensors                a file of yours; it is never written\n  \
        forebay bench --size 256M,8G --resident        two sizes, from the page cache only\n  \
        forebay bench /mnt/a /mnt/b /mnt/c             a folder on each drive, all at once\n  \
        forebay bench --gpu sim:bandwidth=50GB/s       a simulated GPU\n  \
        forebay bench --json >run.json                 for a program to read")]
pub struct BenchArgs {
    /// Files or block devices to read, or folders for scratch files; by default this folder
    ///
    /// Files are only ever read. Writes go to a scratch file beside them, and scratch is removed
    /// afterwards. Several paths, on several drives say, are measured each alone and all together
    /// in one engine, beside one pool of threads for all and KvikIO, where Python has it.
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,

    /// How many bytes to move, or a list of sizes
    ///
    /// By default as much as suits the memory, the free room and the speed of this machine.
    #[arg(
        long, value_name = "SIZE,…", value_delimiter = ',',
        value_parser = positive_size, allow_negative_numbers = true
    )]
    pub size: Vec<u64>,

    /// How often each way is measured, 3 or more
    #[arg(
        long, value_name = "N", default_value_t = 3,
        value_parser = repeats, allow_negative_numbers = true
    )]
    pub repeats: u32,

    /// Which GPU: an index, a UUID, a PCI address, `none`, or `sim`
    ///
    /// By default the first GPU, else host memory. `sim:bandwidth=50GB/s,latency=10us` sets what a
    /// simulated GPU plays.
    #[arg(long, value_name = "WHICH", value_parser = gpu)]
    pub gpu: Option<GpuSelector>,

    /// Take this route in `forebay` rows, or fail: `direct`, `staged`, `cached` or `host`
    #[arg(long, value_name = "ROUTE", value_parser = route)]
    pub route: Option<Route>,

    /// Measure reading (the default; with one place for scratch both are)
    #[arg(long)]
    pub read: bool,

    /// Measure writing, to a scratch file
    #[arg(long)]
    pub write: bool,

    /// Measure with the pages dropped from the page cache (the default; with one path both are)
    ///
    /// Only the file's own pages are dropped, never the machine's, and the drop is checked. A cold
    /// write counts only once its bytes are on the drive.
    #[arg(long)]
    pub cold: bool,

    /// Measure with the file in the page cache (with one path the default as well)
    #[arg(long)]
    pub resident: bool,

    /// Threads that read resident bytes in `forebay` rows, instead of the engine's choice
    #[arg(long, value_name = "N", value_parser = threads, allow_negative_numbers = true)]
    pub threads: Option<u16>,

    /// Print JSON instead of a table; docs/json-schema.md describes it
    #[arg(long)]
    pub json: bool,
}

/// What `forebay read` takes.
#[derive(Debug, Clone, Args)]
#[command(after_long_help = "Examples:\n  \
    forebay read model.safetensors\n  \
    forebay read model.safetensors --offset 8 --len 1M --checksum\n  \
    forebay read /dev/nvme0n1 --len 1G --gpu 0\n  \
    forebay read model.safetensors --stages\n  \
    forebay read model.safetensors --trace read.json\n  \
    forebay read model.safetensors --offset 4K --len 4K --output - | xxd")]
pub struct ReadArgs {
    /// File or block device to read
    pub file: PathBuf,

    /// Where to begin
    #[arg(
        long, value_name = "SIZE", default_value = "0",
        value_parser = size, allow_negative_numbers = true
    )]
    pub offset: u64,

    /// How many bytes; by default all up to the end
    #[arg(long, value_name = "SIZE", value_parser = size, allow_negative_numbers = true)]
    pub len: Option<u64>,

    /// Which GPU: an index, a UUID, a PCI address, `none`, or `sim`
    ///
    /// By default the first GPU, else host memory. `sim:bandwidth=50GB/s,latency=10us` sets what a
    /// simulated GPU plays.
    #[arg(long, value_name = "WHICH", value_parser = gpu)]
    pub gpu: Option<GpuSelector>,

    /// Take this route, or fail: `direct`, `staged`, `cached` or `host`
    #[arg(long, value_name = "ROUTE", value_parser = route)]
    pub route: Option<Route>,

    /// Print the XXH3-64 of the bytes as they lie in the target
    #[arg(long)]
    pub checksum: bool,

    /// Copy the bytes from the target to this new file; `-` is stdout
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Write what the engine did, thread by thread, to this new file of JSON
    ///
    /// `https://ui.perfetto.dev` opens it: readers, rings, slots and copies, each on a track of its
    /// own, with an arrow from each request to the copy that took its bytes away.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,

    /// Show how long the stages took: requests, copies, and the waits for slots and for the link;
    /// and why bytes did not go straight to the GPU, where there may be a path
    #[arg(long)]
    pub stages: bool,

    /// Print JSON, with the stages; docs/json-schema.md describes it
    #[arg(long)]
    pub json: bool,
}

/// What `forebay map` takes.
#[derive(Debug, Clone, Args)]
#[command(after_long_help = "Examples:\n  \
    forebay map                          this folder\n  \
    forebay map /data/model.safetensors --extents\n  \
    forebay map /data /scratch --json\n  \
    forebay map /data --record DIR       write down what it was made from\n  \
    forebay map --fixture DIR            show that again, on any machine")]
pub struct MapArgs {
    /// Files, folders or block devices, there or to be made; by default this folder
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,

    /// Show where the bytes of the files lie, as far as the kernel tells
    #[arg(long)]
    pub extents: bool,

    /// Copy to each GPU for a moment and read its link meanwhile
    ///
    /// An idle GPU rests at a lower speed, so only then can a link that is too slow be told.
    #[arg(long, conflicts_with_all = ["record", "fixture"])]
    pub measure_link: bool,

    /// Write a record of this system, as far as these paths touch it, to a new folder
    #[arg(long, value_name = "DIR", conflicts_with_all = ["fixture", "extents", "json"])]
    pub record: Option<PathBuf>,

    /// Show the system that was recorded in this folder instead of this machine
    ///
    /// Without a path, all recorded paths are shown.
    #[arg(long, value_name = "DIR")]
    pub fixture: Option<PathBuf>,

    /// Print JSON instead of a drawing; docs/json-schema.md describes it
    #[arg(long)]
    pub json: bool,
}

/// What `forebay doctor` takes.
#[derive(Debug, Clone, Args)]
#[command(after_long_help = "Examples:\n  \
    forebay doctor                       this folder and the first GPU\n  \
    forebay doctor /data --gpu 1 --json\n  \
    forebay doctor /data --record DIR    write down what it looks at\n  \
    forebay doctor --fixture DIR         diagnose that again, on any machine")]
pub struct DoctorArgs {
    /// File, folder or block device; by default this folder
    ///
    /// A file or device is only ever read. In a folder a scratch file is made, and removed
    /// afterwards.
    pub path: Option<PathBuf>,

    /// Which GPU: an index, a UUID, a PCI address, `none`, or `sim`
    ///
    /// By default the first GPU. Of a record an index or a PCI address.
    #[arg(long, value_name = "WHICH", value_parser = gpu)]
    pub gpu: Option<GpuSelector>,

    /// Write a record of what is looked at to a new folder, and move nothing
    #[arg(long, value_name = "DIR", conflicts_with_all = ["fixture", "json"])]
    pub record: Option<PathBuf>,

    /// Diagnose the system that was recorded in this folder instead of this machine
    #[arg(long, value_name = "DIR")]
    pub fixture: Option<PathBuf>,

    /// Print JSON instead of text; docs/json-schema.md describes it
    #[arg(long)]
    pub json: bool,
}

/// What `forebay probe` and `forebay cufile` take.
#[derive(Debug, Clone, Args)]
pub struct ProbeArgs {
    /// The library to open, instead of looking for one
    #[arg(long, value_name = "FILE")]
    pub library: Option<PathBuf>,

    /// A folder of Python's packages, which may hold the vendor's wheel; may be given again
    #[arg(long, value_name = "DIR")]
    pub packages: Vec<PathBuf>,
}

/// What `forebay reach` takes.
#[derive(Debug, Clone, Args)]
pub struct ReachArgs {
    /// Open them too
    #[arg(long)]
    pub open: bool,

    /// Files, folders or block devices
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,
}

/// What `forebay tune` takes.
#[derive(Debug, Clone, Args)]
#[command(after_long_help = "Examples:\n  \
    forebay tune                         the drive of this folder, by a scratch file\n  \
    forebay tune /data/model.safetensors the drive of a file, which is only read\n  \
    forebay tune /data --write           how writes fare there\n  \
    forebay tune /data --json >tune.json for a program to read")]
pub struct TuneArgs {
    /// File, block device or folder on the drive; by default this folder
    ///
    /// A file or device is only ever read, and the file's pages are dropped from the page cache. In
    /// a folder a scratch file is made, and removed afterwards.
    pub path: Option<PathBuf>,

    /// Measure reading (the default)
    #[arg(long)]
    pub read: bool,

    /// Measure writing, to a scratch file: as from a GPU, whose writes go past the page cache
    #[arg(long)]
    pub write: bool,

    /// How long each direction is searched
    #[arg(
        long, value_name = "TIME", default_value = "6s",
        value_parser = search_time, allow_negative_numbers = true
    )]
    pub duration: Duration,

    /// Print JSON instead of a drawing; docs/json-schema.md describes it
    #[arg(long)]
    pub json: bool,
}

/// The whole definition, for the man page and for completions.
#[must_use]
pub fn definition() -> clap::Command {
    Arguments::command()
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).ok_or_else(|| "it takes a size such as `64K` or `1.5GiB`".into())
}

pub(crate) fn positive_size(text: &str) -> Result<u64, String> {
    match size(text)? {
        0 => Err("it takes a size above zero".into()),
        len => Ok(len),
    }
}

pub(crate) fn gpu(text: &str) -> Result<GpuSelector, String> {
    text.parse().map_err(|error: forebay::Error| match error {
        // The flag has a name already.
        forebay::Error::BadOption { name, expected, .. } if name == "gpu" => {
            format!("it takes {expected}")
        }
        forebay::Error::BadOption { name, expected, .. } => format!("`{name}` takes {expected}"),
        other => other.to_string(),
    })
}

fn repeats(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (3..=1000).contains(number));
    number.ok_or_else(|| "it takes a number from 3 to 1000".into())
}

fn search_time(text: &str) -> Result<Duration, String> {
    let (least, most) = (Duration::from_secs(1), Duration::from_secs(3600));
    let time = parse_duration(text).filter(|time| (least..=most).contains(time));
    time.ok_or_else(|| "it takes a time from 1s to 1h, such as `10s`".into())
}

fn threads(text: &str) -> Result<u16, String> {
    let number = text.parse().ok().filter(|number| (1..=1024).contains(number));
    number.ok_or_else(|| "it takes a number from 1 to 1024".into())
}

pub(crate) fn route(text: &str) -> Result<Route, String> {
    text.parse().map_err(|_| "it takes `direct`, `staged`, `cached` or `host`".into())
}
