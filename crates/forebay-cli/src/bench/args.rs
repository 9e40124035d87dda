//! The arguments of `forebay bench`.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};
use forebay::Route;
use forebay::gpu::GpuSelector;
use forebay::gpu::sim::{BadSetting, SimConfig};
use forebay::units::parse_duration;
use forebay_measure::kv::Model;
use forebay_measure::results::Cache;
use forebay_measure::workload::backend::Method;
use forebay_measure::workload::check::Most;
use forebay_measure::workload::pattern::Pattern;

use crate::values::{Format, GPUS, gpu, listed, local_path, positive_size, route};

/// Arguments of `forebay bench`.
#[derive(Debug, Clone, Default, Args)]
#[command(
    disable_help_flag = true,
    after_long_help = "Examples:\n  \
    forebay bench                             scratch file in this folder\n  \
    forebay bench model.safetensors           your file; it is only read\n  \
    forebay bench /mnt/a /mnt/b               each path, and both at once\n  \
    forebay bench /mnt/local --vs /mnt/remote\n  \
    forebay bench --gpu sim                   simulated GPU\n  \
    forebay bench /data --block-size 64K,1M --depth 1,8,32\n  \
    forebay bench /data --method forebay,cpu-gpu --threads 1,8 --block-size 1M\n  \
    forebay bench /data --kv llama-70b:fp8:tp8 --size 64G\n  \
    forebay bench /data --together 0-7 --cache warm\n  \
    forebay bench /data --method io-uring --depth 1,2,4,8,16,32,64"
)]
pub struct BenchArgs {
    /// Files or block devices to read, or folders for scratch files [default: this folder]
    ///
    /// Several paths, such as one on each drive, are measured one by one and all at once.
    #[arg(value_name = "PATH", value_parser = local_path(), help_heading = TARGETS)]
    pub paths: Vec<PathBuf>,

    /// Measure this path as well, in turn, and compare both
    #[arg(long, value_name = "PATH", value_parser = local_path(), help_heading = TARGETS)]
    pub vs: Option<PathBuf>,

    /// GPUs, each with rows of its own: an index, a UUID, a PCI address, `none`, or `sim`
    ///
    /// By default the first GPU, or host memory if there is none.
    /// `sim:bandwidth=50GB/s,latency=10us` configures a simulated GPU.
    #[arg(long, value_name = "WHICH,…", value_parser = listed(gpu_rows, GPUS),
        hide_possible_values = true, help_heading = TARGETS)]
    pub gpu: Vec<GpuRows>,

    /// GPUs that work at the same time, such as `0-3` or `0,2`
    ///
    /// There is a row for the first GPU, one for the first two, and so on. `sim:4` is four
    /// simulated GPUs, `sim:4,uplink=2GB/s` four below one switch.
    #[arg(
        long, alias = "gpus", value_name = "LIST", conflicts_with = "gpu", value_parser = gpus,
        help_heading = TARGETS
    )]
    pub together: Option<GpuList>,

    /// Size of the files of a path [default: by the rates of storage and link, at most 1G]
    #[arg(
        long, value_name = "SIZE", value_parser = positive_size, allow_negative_numbers = true,
        help_heading = TARGETS
    )]
    pub size: Option<u64>,

    /// Scratch files that the threads share [default: 1]
    #[arg(
        long, value_name = "N,…", value_delimiter = ',',
        value_parser = count, allow_negative_numbers = true, hide_short_help = true,
        help_heading = TARGETS
    )]
    pub files: Vec<u32>,

    /// Let several ranks use one file: `stripes`, a part each, or `all` of it, which they only read
    ///
    /// By default each rank has a scratch file of its own, and ranks of one host read all of a
    /// named file.
    #[arg(
        long, value_name = "HOW", value_enum, hide_possible_values = true,
        conflicts_with_all = ["kv", "vs"], hide_short_help = true, help_heading = TARGETS
    )]
    pub one_file: Option<OneFile>,

    /// The number of this rank, and of all that share a file.
    #[arg(skip)]
    pub(crate) stripe: Option<(u32, u32)>,

    /// Overwrite the files named here; otherwise only scratch in folders is written
    #[arg(long, hide_short_help = true, help_heading = TARGETS)]
    pub overwrite: bool,

    /// Overwrite the block devices named here; their content is lost
    #[arg(long, hide_short_help = true, help_heading = TARGETS)]
    pub overwrite_device: bool,

    /// Methods to compare [default: `standard`, `mmap`, `cufile-compat`, `forebay`]
    ///
    /// Others are `cufile-compat-tuned`, `cpu`, `cpu-gpu`, `cpu-async-gpu`, `cpu-cached-gpu` and
    /// `io-uring`: docs/bench.md describes each. With `--block-size` and the like, the default is
    /// `forebay`.
    #[arg(
        long, value_name = "NAME,…", value_delimiter = ',', hide_possible_values = true,
        value_parser = listed(Method::from_str, Method::all().map(Method::name)),
        help_heading = WORKLOAD
    )]
    pub method: Vec<Method>,

    /// Routes required of `forebay`: `any` (default), `direct`, `staged`, `cached`, `host`
    #[arg(
        long, value_name = "ROUTE,…", value_delimiter = ',', hide_possible_values = true,
        value_parser = listed(any_route, ["any"].into_iter().chain(Route::ALL.map(Route::name))),
        help_heading = WORKLOAD
    )]
    pub route: Vec<RouteChoice>,

    /// `read`, `write`, or `mixed:70` for 70 % reads [default: read; whole files in a folder also
    /// write]
    #[arg(
        long, value_name = "WHICH,…", value_delimiter = ',', hide_possible_values = true,
        value_parser = listed(direction, ["read", "write", "mixed:70"]),
        help_heading = WORKLOAD
    )]
    pub direction: Vec<u8>,

    /// Page cache before a sample: `warm`, `cold` [default: cold; reads of whole files also warm]
    #[arg(
        long, value_name = "STATE,…", value_delimiter = ',', hide_possible_values = true,
        value_parser = listed(Cache::from_str, ["warm", "cold"]),
        help_heading = WORKLOAD
    )]
    pub cache: Vec<Cache>,

    /// Block size: bytes of one request [default: whole files]
    #[arg(
        long, alias = "bs", value_name = "SIZE,…", value_delimiter = ',',
        value_parser = positive_size, allow_negative_numbers = true, help_heading = WORKLOAD
    )]
    pub block_size: Vec<u64>,

    /// Queue depth of each thread [default: 1 for whole files, else 32]
    #[arg(
        long, alias = "iodepth", value_name = "N,…", value_delimiter = ',',
        value_parser = count, allow_negative_numbers = true, help_heading = WORKLOAD
    )]
    pub depth: Vec<u32>,

    /// Threads that make requests, for each GPU [default: 1]
    #[arg(
        long, alias = "numjobs", value_name = "N,…", value_delimiter = ',',
        value_parser = count, allow_negative_numbers = true, help_heading = WORKLOAD
    )]
    pub threads: Vec<u32>,

    /// Requests of one call [default: 1]
    #[arg(
        long, value_name = "N,…", value_delimiter = ',',
        value_parser = count, allow_negative_numbers = true, hide_short_help = true,
        help_heading = WORKLOAD
    )]
    pub batch: Vec<u32>,

    /// Order of offsets: `sequential` (default), `random`, or `strided:SIZE`
    #[arg(
        long, value_name = "ORDER,…", value_delimiter = ',', conflicts_with = "kv",
        value_parser = listed(Pattern::from_str, ["sequential", "random", "strided:1M"]),
        hide_possible_values = true, hide_short_help = true, help_heading = WORKLOAD
    )]
    pub pattern: Vec<Pattern>,

    /// Serve conversations from a KV block store: `MODEL[:TYPE][:tpN][:pageN]`
    ///
    /// MODEL is `deepseek-r1`, `llama-8b`, `llama-70b` or `llama-405b`, TYPE `fp8`, `int8`, `fp16`
    /// or `bf16` (default). `--size` is the store's capacity (default: 4G, or a quarter of the free
    /// space).
    #[arg(
        long, value_name = "MODEL…,…", value_delimiter = ',',
        conflicts_with_all = [
            "block_size", "method", "route", "direction", "cache", "files", "rate", "bytes",
            "together",
        ],
        value_parser = listed(Model::from_str, Model::names()), hide_possible_values = true,
        hide_short_help = true, help_heading = WORKLOAD
    )]
    pub kv: Vec<Model>,

    /// Requests per second of all threads together [default: no limit]
    ///
    /// Latency counts from the time when a request was due.
    #[arg(
        long, value_name = "N", value_parser = rate, allow_negative_numbers = true,
        hide_short_help = true, help_heading = WORKLOAD
    )]
    pub rate: Option<f64>,

    /// Seed of random offsets [default: 1]
    #[arg(long, value_name = "N", hide_short_help = true, help_heading = WORKLOAD)]
    pub seed: Option<u64>,

    /// Duration of a sample [default: 100ms for whole files, 3s with `--kv`, else 1s]
    #[arg(
        long, alias = "runtime", value_name = "TIME", value_parser = time, help_heading = DURATION
    )]
    pub time: Option<Duration>,

    /// Samples of each row [default: 5; of whole files up to 20 in half a minute]
    #[arg(
        long, value_name = "N", value_parser = count, allow_negative_numbers = true,
        help_heading = DURATION
    )]
    pub repeats: Option<u32>,

    /// Bytes that each thread moves for a sample, instead of `--time`
    #[arg(
        long, value_name = "SIZE", value_parser = positive_size, conflicts_with = "time",
        allow_negative_numbers = true, hide_short_help = true, help_heading = DURATION
    )]
    pub bytes: Option<u64>,

    /// Time before each sample of requests that does not count [default: a tenth of `--time`]
    #[arg(
        long, value_name = "TIME", value_parser = time_or_none, hide_short_help = true,
        help_heading = DURATION
    )]
    pub warm_up: Option<Duration>,

    /// Write results to this file, one JSON record per line
    ///
    /// A file with a part of the same run is continued. `-` is stdout, as with `--format json`.
    #[arg(short, long, value_name = "FILE", help_heading = OUTPUT)]
    pub output: Option<PathBuf>,

    /// Make the file of the only path if it is missing; the caller fills it.
    #[arg(skip)]
    pub fills_file: bool,

    /// How many bytes are compared.
    #[arg(skip)]
    pub compared: Most,

    /// Name of these results in comparisons
    #[arg(long, value_name = "TEXT", hide_short_help = true, help_heading = OUTPUT)]
    pub label: Option<String>,

    /// Shell command that prints watts; runs once a second
    #[arg(long, value_name = "COMMAND", hide_short_help = true, help_heading = OUTPUT)]
    pub power_command: Option<String>,

    /// Form of what is printed: `table` (default), `json`, `csv`, `md` or `html`
    #[arg(
        long, value_name = "FORMAT", value_enum, hide_possible_values = true, help_heading = OUTPUT
    )]
    pub format: Option<Format>,

    /// No progress and no warnings
    #[arg(short, long, help_heading = OUTPUT)]
    pub quiet: bool,

    /// All warnings, limits and reasons
    #[arg(short, long, conflicts_with = "quiet", help_heading = OUTPUT)]
    pub verbose: bool,

    /// Print help: `-h` a summary, `--help` all
    #[arg(short, long, action = ArgAction::Help, help_heading = OUTPUT)]
    pub help: Option<bool>,
}

const TARGETS: &str = "Targets";
const WORKLOAD: &str = "Workload";
const DURATION: &str = "Duration";
const OUTPUT: &str = "Output";

impl BenchArgs {
    /// Whether a request moves a whole file: no flag speaks of smaller requests.
    #[must_use]
    pub fn moves_whole_files(&self) -> bool {
        let lists = [&self.depth, &self.threads, &self.batch, &self.files];
        let smaller = !self.block_size.is_empty() || !self.kv.is_empty();
        let smaller = smaller || !self.pattern.is_empty() || lists.iter().any(|l| !l.is_empty());
        let open = self.rate.is_some() || self.bytes.is_some();
        let mixed = self.direction.iter().any(|percent| !matches!(percent, 0 | 100));
        !smaller && !open && !mixed
    }
}

/// What ranks use of a shared file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OneFile {
    /// A part per rank.
    Stripes,
    /// All of it.
    All,
}

/// The required route; `None` leaves the choice to the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteChoice(pub Option<Route>);

/// GPUs that have rows of their own.
#[derive(Debug, Clone, PartialEq)]
pub struct GpuRows(pub Vec<GpuSelector>);

/// GPUs that work at the same time.
#[derive(Debug, Clone, PartialEq)]
pub enum GpuList {
    /// GPUs of this machine.
    Named(Vec<GpuSelector>),
    /// This many simulated ones, all alike.
    Simulated(u32, SimConfig),
}

fn count(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (1..=4096).contains(number));
    number.ok_or_else(|| "it takes a number from 1 to 4096".into())
}

fn direction(text: &str) -> Result<u8, String> {
    match text {
        "read" => Ok(100),
        "write" => Ok(0),
        _ => {
            let percent = text.strip_prefix("mixed:").and_then(|percent| percent.parse().ok());
            percent
                .filter(|percent| (1..=99).contains(percent))
                .ok_or_else(|| "it takes `read`, `write`, or `mixed:70` for 70 % reads".into())
        }
    }
}

fn any_route(text: &str) -> Result<RouteChoice, String> {
    if text == "any" {
        return Ok(RouteChoice(None));
    }
    let choice = route(text).map(|route| RouteChoice(Some(route)));
    choice.map_err(|_| "it takes `any`, `direct`, `staged`, `cached` or `host`".into())
}

/// Shorter samples have no rate ([`Measured::is_long_enough`]).
///
/// [`Measured::is_long_enough`]: forebay_measure::results::Measured::is_long_enough
const TIME_MIN: Duration = Duration::from_millis(100);
const TIME_MAX: Duration = Duration::from_secs(24 * 3600);

fn time_or_none(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text).filter(|time| *time <= TIME_MAX);
    time.ok_or_else(|| "it takes a time such as `500ms` or `10s`, a day at most".into())
}

fn time(text: &str) -> Result<Duration, String> {
    let time = time_or_none(text)?;
    if time < TIME_MIN {
        return Err("it takes 100ms or more: shorter samples have no rate".into());
    }
    Ok(time)
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (0.01..=1e9).contains(rate));
    rate.ok_or_else(|| "it takes requests per second, from 0.01 to 1e9".into())
}

const GPUS_MAX: u32 = 64;

/// GPUs separated by commas. After a simulated GPU, a word may also be a setting of it.
fn gpu_rows(text: &str) -> Result<GpuRows, String> {
    let begins =
        |word: &str| word.starts_with("sim") || word == "none" || word.parse::<u32>().is_ok();
    let mut names: Vec<String> = Vec::new();
    for word in text.split(',') {
        match names.last_mut().filter(|last| last.starts_with("sim:") && !begins(word)) {
            Some(last) => *last = format!("{last},{word}"),
            None => names.push(word.to_owned()),
        }
    }
    names.iter().map(|name| gpu(name)).collect::<Result<_, _>>().map(GpuRows)
}

fn gpus(text: &str) -> Result<GpuList, String> {
    let wrong = || format!("it takes GPUs such as `0-3` or `0,2`, or `sim:4`, {GPUS_MAX} at most");
    let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number < GPUS_MAX);
    if let Some(text) = text.strip_prefix("sim:") {
        let (many, settings) = match text.split_once(',') {
            Some((many, settings)) => (many, format!("sim:{settings}")),
            None => (text, "sim".into()),
        };
        let many = number(many).filter(|many| *many > 0).ok_or_else(wrong)?;
        let config = settings.parse().map_err(|error: BadSetting| error.to_string());
        return config.map(|config| GpuList::Simulated(many, config));
    }
    let mut indices: Vec<u32> = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = number(first).zip(number(last)).ok_or_else(wrong)?;
        if first > last {
            return Err(wrong());
        }
        indices.extend((first..=last).filter(|index| !indices.contains(index)).collect::<Vec<_>>());
    }
    let named = indices.into_iter().map(|index| gpu(&index.to_string()));
    named.collect::<Result<_, _>>().map(GpuList::Named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_listed_in_ranges_or_simulated() {
        let named = |list: &[&str]| GpuList::Named(list.iter().map(|n| gpu(n).unwrap()).collect());
        assert_eq!(gpus("0-2,1,5").unwrap(), named(&["0", "1", "2", "5"]));
        assert_eq!(gpus("sim:4").unwrap(), GpuList::Simulated(4, SimConfig::default()));
        let below = SimConfig { uplink: Some(2_000_000_000), ..SimConfig::default() };
        assert_eq!(gpus("sim:2,uplink=2GB/s").unwrap(), GpuList::Simulated(2, below));
        for wrong in ["", "3-1", "0-64", "sim", "sim:", "sim:65", "sim:2,", "sim:2,uplink=fast"] {
            assert!(gpus(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn gpus_with_rows_of_their_own_are_separated_by_commas() {
        let count = |text: &str| gpu_rows(text).map(|rows| rows.0.len());
        assert_eq!([count("0"), count("0,1"), count("sim,none")], [Ok(1), Ok(2), Ok(2)]);
        assert_eq!(count("sim:bandwidth=1GB/s,latency=10us,1"), Ok(2));
        assert!(count("0,").is_err() && count("").is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_list_of_gpus_ends_the_command(text: String, many: u64, settings: String) {
            let _ = (gpu_rows(&text), gpus(&text), gpus(&format!("sim:{many},{settings}")));
            let _ = gpus(&format!("{many}-{text}"));
        }
    }
}
