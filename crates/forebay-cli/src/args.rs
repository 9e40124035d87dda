//! The command line: one definition of each flag yields parsing, help, man page and completions.

mod help;

use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use forebay::Route;
use forebay::gpu::GpuSelector;

use crate::bench::args::BenchArgs;
use crate::gdsio::options::GdsioArgs;
use crate::gpu_file_benchmark::args::GpuFileArgs;
use crate::report::args::ReportArgs;
use crate::values::{Format, local_path, one_gpu, one_route, size, text_or_json};

/// Move bytes between files and GPU memory at the speed of the slowest link
#[derive(Debug, Parser)]
#[command(
    name = "forebay",
    version,
    styles = help::STYLES,
    term_width = help::width(),
    after_help = help::OTHER_TOOLS,
    after_long_help = help::beyond_flags(),
)]
pub struct Arguments {
    /// The verb.
    #[command(subcommand)]
    pub verb: Verb,
}

/// The verbs of the command.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Compare methods to move files to a GPU; lists of values make a sweep
    ///
    /// By default a whole file is read, warm and cold, and written by each method: `read()` and a
    /// copy, a mapping and a copy, cuFile's compat mode, and Forebay. The limits of the machine
    /// (PCIe link, storage) are measured as well, and the bytes are verified. Lists of block sizes,
    /// queue depths, threads, GPUs or paths make a row for each combination. Results with `-o`
    /// survive a stop: the same command continues.
    Bench(Box<BenchArgs>),
    /// Read a file into GPU or host memory; print checksum, route and proof
    ///
    /// The engine takes the fastest route that this file and this machine allow, and reports the
    /// reason. Counters of the kernel, the driver and libraries verify the route. The checksum is
    /// of the bytes in the target.
    Read(ReadArgs),
    /// Find what prevents direct transfers to the GPU, and how to fix it
    ///
    /// The checks cover kernel, driver, PCI, storage, network, limits and cuFile's settings. Each
    /// reports what it found, why that matters and the next step; the largest obstacle comes first.
    /// Then a few MiB are read by each route, and written too if the path is a folder. Every byte
    /// is verified. The first line answers whether bytes can go to the GPU directly. Neither root
    /// nor a GPU is required. The exit code is 1 if something installed is broken.
    /// Lacking a direct path is no error.
    Doctor(DoctorArgs),
    /// Show results as a table, page, CSV or Markdown; compare several files
    ///
    /// A file holds results of `forebay`, or of gdsio, fio, nixlbench, elbencho or any CSV: its
    /// contents show which. Several files are compared point by point, by the ratio of their
    /// medians. A difference is reported only if it is significant, given the number of points.
    Report(Box<ReportArgs>),
    /// Run gdsio's command lines and job files; print its result line
    ///
    /// The options are gdsio's, and scripts can parse the output as before. `-x` 1 to 4 do what
    /// gdsio does. `-x` 0, 5, 6 and 7 take the direct route if it is available. Otherwise the
    /// engine takes its fastest route, and the result line and a warning say so. A file that
    /// `forebay gdsio` did not make is written only with `--overwrite`.
    #[command(hide = true)]
    Gdsio(GdsioArgs),
    /// Run the GPU file benchmark's modes: standard copy, engine, direct route
    ///
    /// `forebay bench` writes a file from the GPU and reads it back, by each method in turn: a
    /// standard copy through the page cache, Forebay by the route that it chooses, and the direct
    /// route if it is available. Every byte is verified. Counters of the kernel, the driver and
    /// libraries prove the route, not the speed. Without a GPU the target is host memory.
    #[command(hide = true)]
    GpuFileBenchmark(GpuFileArgs),
    /// Print completions for a shell
    #[command(hide = true)]
    Completions {
        /// Name of the shell
        shell: Shell,
    },
    /// Print the manual page of the command, or of a verb
    #[command(hide = true)]
    Man {
        /// The verb
        verb: Option<String>,
    },
}

impl Verb {
    /// Whether warnings are left out.
    pub(crate) fn is_quiet(&self) -> bool {
        match self {
            Self::Bench(args) => args.quiet,
            Self::Read(args) => args.quiet,
            Self::Doctor(args) => args.quiet,
            Self::Report(args) => args.quiet,
            _ => false,
        }
    }
}

/// The command line of a process that the command starts for its own work.
#[derive(Debug, Parser)]
#[command(name = "forebay")]
pub(crate) struct InternalArguments {
    #[command(subcommand)]
    pub(crate) verb: Internal,
}

/// The verbs of such a process.
#[derive(Debug, Subcommand)]
pub(crate) enum Internal {
    /// Open cuFile's driver and report what it says, line by line
    ///
    /// Opening the driver may hang or end the process. So the engine runs this program first, with
    /// a time limit, before it uses the library itself. The output is for programs.
    Probe(ProbeArgs),
    /// Check whether paths answer, one after the other
    ///
    /// A file server that does not answer blocks the calling process, even as it exits. So `forebay
    /// doctor` checks paths in a child process. The output is for programs.
    Reach(ReachArgs),
    /// Move bytes by cuFile on orders of `forebay bench`, line by line
    ///
    /// The library changes the process that loads it, so the measuring process does not load it.
    /// The interface is for programs.
    Cufile(ProbeArgs),
}

/// Arguments of `forebay read`.
#[derive(Debug, Clone, Args)]
#[command(after_long_help = "Examples:\n  \
    forebay read model.safetensors\n  \
    forebay read model.safetensors --offset 8 --len 1M\n  \
    forebay read /dev/nvme0n1 --len 1G --gpu 0\n  \
    forebay read model.safetensors --trace read.json\n  \
    forebay read model.safetensors --offset 4K --len 4K --output - | xxd")]
pub struct ReadArgs {
    /// File or block device to read
    #[arg(value_parser = local_path())]
    pub file: PathBuf,

    /// Offset of the first byte
    #[arg(
        long, value_name = "SIZE", default_value = "0",
        value_parser = size, allow_negative_numbers = true
    )]
    pub offset: u64,

    /// Bytes to read [default: all up to the end]
    #[arg(long, value_name = "SIZE", value_parser = size, allow_negative_numbers = true)]
    pub len: Option<u64>,

    /// GPU: an index, a UUID, a PCI address, `none`, or `sim`
    ///
    /// By default the first GPU, or host memory if there is none.
    /// `sim:bandwidth=50GB/s,latency=10us` configures a simulated GPU.
    #[arg(long, value_name = "WHICH", value_parser = one_gpu(), hide_possible_values = true)]
    pub gpu: Option<GpuSelector>,

    /// Require this route: `direct`, `staged`, `cached` or `host`
    #[arg(long, value_name = "ROUTE", value_parser = one_route(), hide_possible_values = true)]
    pub route: Option<Route>,

    /// Copy the bytes from the target to this new file; `-` is stdout
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Write a trace of the engine's threads to this new JSON file
    ///
    /// Open it in `https://ui.perfetto.dev`. Readers, rings, slots and copies have a track each. An
    /// arrow leads from each request to the copy of its bytes.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,

    /// Print the checksum alone, and no warnings
    #[arg(short, long, conflicts_with = "format")]
    pub quiet: bool,

    /// Print how long the stages of the read took as well
    #[arg(short, long, conflicts_with = "quiet")]
    pub verbose: bool,

    /// `table`, or `json` with the stages: docs/json-schema.md describes it
    #[arg(
        long, value_name = "FORMAT", value_parser = text_or_json(), default_value = "table",
        hide_possible_values = true, hide_default_value = true
    )]
    pub format: Format,
}

/// Groups of the doctor's flags.
const TREE: &str = "Storage map";
const RECORDS: &str = "Recorded systems";

/// Arguments of `forebay doctor`.
#[derive(Debug, Clone, Args)]
#[command(after_long_help = "Examples:\n  \
    forebay doctor                       this folder and the first GPU\n  \
    forebay doctor /data -v              every check and transfer\n  \
    forebay doctor /data --gpu 1 --format json\n  \
    forebay doctor --tree /data /scratch drives, and their distance to each GPU\n  \
    forebay doctor /data --record DIR    record what is checked\n  \
    forebay doctor --fixture DIR         diagnose the record, on any machine")]
pub struct DoctorArgs {
    /// File, folder or block device [default: this folder]
    ///
    /// A file or device is only read. In a folder a scratch file is made, and removed afterwards.
    /// Several paths require `--tree`, which reads and writes none of them.
    #[arg(value_name = "PATH", value_parser = local_path())]
    pub paths: Vec<PathBuf>,

    /// GPU: an index, a UUID, a PCI address, `none`, or `sim`
    ///
    /// By default the first GPU. With `--fixture`, an index or a PCI address.
    #[arg(
        long, value_name = "WHICH", value_parser = one_gpu(), hide_possible_values = true,
        conflicts_with = "tree"
    )]
    pub gpu: Option<GpuSelector>,

    /// Print the answer alone, and no warnings
    #[arg(short, long, conflicts_with_all = ["tree", "format"])]
    pub quiet: bool,

    /// Show every check and transfer
    #[arg(short, long, conflicts_with = "quiet")]
    pub verbose: bool,

    /// Show the storage map instead: drives under the paths, distance to each GPU
    ///
    /// The map leads from the path through mounts, file systems, arrays and volumes to the drives
    /// (marked `●`) and their PCI devices. Warnings name settings that cost speed. All facts come
    /// from the kernel; what it does not report is shown as unknown. Paths need not exist.
    #[arg(long, alias = "map", help_heading = TREE)]
    pub tree: bool,

    /// With `--tree`: show where the bytes of the files are
    #[arg(long, requires = "tree", help_heading = TREE)]
    pub extents: bool,

    /// With `--tree`: predict from what `forebay bench -o FILE` measured on one drive and one GPU
    ///
    /// The table of ceilings then uses the shares of theory that these reached.
    #[arg(
        long, value_name = "FILE", requires = "tree", help_heading = TREE, hide_short_help = true
    )]
    pub measured: Option<PathBuf>,

    /// Record what is checked, or mapped, in a new folder, and move nothing
    #[arg(
        long, value_name = "DIR", help_heading = RECORDS,
        conflicts_with_all = ["fixture", "extents", "format"]
    )]
    pub record: Option<PathBuf>,

    /// Diagnose or map the system recorded in this folder instead of this machine
    ///
    /// With `--tree` and without a path, all recorded paths are shown.
    #[arg(long, value_name = "DIR", help_heading = RECORDS)]
    pub fixture: Option<PathBuf>,

    /// `table`, or `json`: docs/json-schema.md describes it
    #[arg(
        long, value_name = "FORMAT", value_parser = text_or_json(), default_value = "table",
        hide_possible_values = true, hide_default_value = true
    )]
    pub format: Format,
}

/// Arguments of `forebay probe` and `forebay cufile`.
#[derive(Debug, Clone, Args)]
pub struct ProbeArgs {
    /// Library to open, instead of searching for one
    #[arg(long, value_name = "FILE")]
    pub library: Option<PathBuf>,

    /// Folder of Python packages that may hold the vendor's wheel; may be repeated
    #[arg(long, value_name = "DIR")]
    pub packages: Vec<PathBuf>,
}

/// Arguments of `forebay reach`.
#[derive(Debug, Clone, Args)]
pub struct ReachArgs {
    /// Open the paths as well
    #[arg(long)]
    pub open: bool,

    /// Files, folders or block devices
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,
}

/// The whole definition, for the man page and for completions.
#[must_use]
pub fn definition() -> clap::Command {
    Arguments::command()
}
