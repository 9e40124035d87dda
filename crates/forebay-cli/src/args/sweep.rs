//! The arguments of `forebay sweep`, on its command line or in a job file.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use forebay::Route;
use forebay::gpu::GpuSelector;
use forebay::gpu::sim::SimConfig;
use forebay::units::parse_duration;

use super::{gpu, positive_size, route};
use crate::report::json::Cache;
use crate::sweep::kv::Kv;
use crate::workload::issuer::Plain;
use crate::workload::pattern::Pattern;

/// Arguments of `forebay sweep`.
#[derive(Debug, Clone, Default, Args)]
#[command(after_long_help = "Examples:\n  \
    forebay sweep                           block sizes and queue depths\n  \
    forebay sweep /data --request-size 64K,1M --depth 1,8,32\n  \
    forebay sweep /data --way forebay,cpu-gpu --threads 1,8,24\n  \
    forebay sweep /data --kv llama-70b:bf16:tp8:page64 --depth 64\n  \
    forebay sweep /data --direction mixed:70 --pattern random\n  \
    forebay sweep /mnt/local --vs /mnt/remote\n  \
    forebay sweep /mnt/remote --io-queues 1,2,4,8 --set-queues './connect {}'\n  \
    forebay sweep /data --until-steady 60s  until the rate is steady\n  \
    forebay sweep --job nightly.toml -o nightly.jsonl\n\n\
    A job file holds flags by their long names: `request-size = [\"64K\", \"1M\"]`.")]
pub struct SweepArgs {
    /// Files or block devices to read, or folders for scratch files [default: this folder]
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,

    /// Measure this path as well, in turn, and compare both at the end
    ///
    /// `forebay report FILE --by path` shows the comparison again.
    #[arg(long, value_name = "PATH")]
    pub vs: Option<PathBuf>,

    /// Read flags from this TOML file; flags on the command line take precedence
    #[arg(long, value_name = "FILE")]
    pub job: Option<PathBuf>,

    /// Block size [default: 4K,64K,1M,16M]
    #[arg(
        long, value_name = "SIZE,…", value_delimiter = ',',
        value_parser = positive_size, allow_negative_numbers = true
    )]
    pub request_size: Vec<u64>,

    /// Block size of a KV cache: `MODEL[:TYPE][:tpN][:pageN][:layer|block]`
    ///
    /// MODEL is `deepseek-r1`, `llama-8b`, `llama-70b` or `llama-405b`. TYPE is the type of its
    /// numbers: `fp8`, `int8`, `fp16` or `bf16` (default). `tpN` is the number of GPUs that share a
    /// layer (default `tp1`). `pageN` is the number of tokens of a page (default `page16`). A
    /// request moves one page, of one layer (`layer`, default) or of all layers (`block`). Offsets
    /// are random. This flag replaces `--request-size`.
    #[arg(
        long, value_name = "MODEL…,…", value_delimiter = ',', conflicts_with = "request_size",
        value_parser = Kv::from_str
    )]
    pub kv: Vec<Kv>,

    /// Queue depth of each thread, in calls [default: 1,32]
    #[arg(
        long, value_name = "N,…", value_delimiter = ',',
        value_parser = count, allow_negative_numbers = true
    )]
    pub depth: Vec<u32>,

    /// Requests of one call [default: 1]
    #[arg(
        long, value_name = "N,…", value_delimiter = ',',
        value_parser = count, allow_negative_numbers = true
    )]
    pub batch: Vec<u32>,

    /// Threads that make requests, for each GPU [default: 1]
    #[arg(
        long, value_name = "N,…", value_delimiter = ',',
        value_parser = count, allow_negative_numbers = true
    )]
    pub threads: Vec<u32>,

    /// Scratch files that the threads share [default: 1]
    #[arg(
        long, value_name = "N,…", value_delimiter = ',',
        value_parser = count, allow_negative_numbers = true
    )]
    pub files: Vec<u32>,

    /// Numbers of I/O queues or connections, which `--set-queues` sets one by one
    ///
    /// All points are measured with one number before the next is set. Results show the number that
    /// the kernel reports, which may differ. `forebay report FILE --by queues` compares them.
    #[arg(
        long, value_name = "N,…", value_delimiter = ',',
        value_parser = count, allow_negative_numbers = true
    )]
    pub io_queues: Vec<u32>,

    /// Shell command to reconnect PATH; `{}` is the number of queues
    ///
    /// It must unmount the file system of PATH, connect and mount again, within 60 s. The last
    /// number stays set. docs/sweep.md has commands for NVMe over fabrics and NFS. Job files cannot
    /// hold this flag.
    #[arg(long, value_name = "COMMAND")]
    pub set_queues: Option<String>,

    /// Order of offsets: `sequential` (default), `random`, or `strided:SIZE`
    #[arg(
        long, value_name = "ORDER,…", value_delimiter = ',', conflicts_with = "kv",
        value_parser = Pattern::from_str
    )]
    pub pattern: Vec<Pattern>,

    /// `read` (default), `write`, or `mixed:70` for 70 % reads
    #[arg(long, value_name = "WHICH,…", value_delimiter = ',', value_parser = direction)]
    pub direction: Vec<u8>,

    /// Method that moves the bytes: `forebay` (default), or a plain one
    ///
    /// `cpu` uses O_DIRECT and host memory. `cpu-gpu` adds a copy between host memory and the GPU.
    /// `cpu-async-gpu` does so during the next request. `cpu-cached-gpu` uses the page cache
    /// instead of O_DIRECT. Each thread of these makes one request at a time. `io-uring` uses
    /// O_DIRECT and host memory with `--depth` calls in flight for each thread, as `fio` does.
    #[arg(long, value_name = "WAY,…", value_delimiter = ',', value_parser = way)]
    pub way: Vec<WayName>,

    /// Routes required of `forebay`: `any` (default), `direct`, `staged`, `cached`, `host`
    #[arg(long, value_name = "ROUTE,…", value_delimiter = ',', value_parser = any_route)]
    pub route: Vec<Demand>,

    /// GPU: an index, a UUID, a PCI address, `none`, or `sim`; repeat for more points
    ///
    /// By default the first GPU, or host memory if there is none.
    #[arg(long, value_name = "WHICH", value_parser = gpu)]
    pub gpu: Vec<GpuSelector>,

    /// GPUs that work concurrently, such as `0-3` or `0,2`
    ///
    /// There is a point for the first GPU, one for the first two, and so on. `sim:4` is four
    /// simulated GPUs, `sim:4,uplink=2GB/s` four below one switch.
    #[arg(long, value_name = "LIST", conflicts_with = "gpu", value_parser = gpus)]
    pub gpus: Option<GpuList>,

    /// Page cache before a sample: `cold` (default) or `resident`
    ///
    /// A cold write ends when its bytes are on the drive.
    #[arg(long, value_name = "STATE,…", value_delimiter = ',', value_parser = cache)]
    pub cache: Vec<Cache>,

    /// Duration of a sample [default: 2s]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub time: Option<Duration>,

    /// Repeat a sample until its rate is steady, for this long at most
    ///
    /// A sample becomes spans of `--time`, without a pause. The first steady span counts: its rate
    /// rises or falls by 5 % of its mean at most. If no span is steady, the last one counts and is
    /// marked. Cold writes, and cold reads through the page cache, go over the files once and have
    /// one span.
    #[arg(long, value_name = "LIMIT", value_parser = time, conflicts_with = "bytes")]
    pub until_steady: Option<Duration>,

    /// Bytes that each thread moves for a sample, instead of `--time`
    #[arg(
        long, value_name = "SIZE", value_parser = positive_size, conflicts_with = "time",
        allow_negative_numbers = true
    )]
    pub bytes: Option<u64>,

    /// Time before each sample that does not count [default: a tenth of `--time`]
    ///
    /// Cold writes, and cold reads through the page cache, have no warm-up: it would fill the page
    /// cache.
    #[arg(long, value_name = "TIME", value_parser = time_or_none)]
    pub warm_up: Option<Duration>,

    /// Samples of each point [default: 3]
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub repeats: Option<u32>,

    /// Size of all files of a path together [default: 1G, or what a point needs]
    #[arg(long, value_name = "SIZE", value_parser = positive_size, allow_negative_numbers = true)]
    pub size: Option<u64>,

    /// Requests per second of all threads together [default: no limit]
    ///
    /// Requests are due at even intervals, whether or not earlier ones have ended. Latency counts
    /// from the time when a request was due. So a drive that stalls does not get fewer requests.
    #[arg(long, value_name = "N", value_parser = rate, allow_negative_numbers = true)]
    pub rate: Option<f64>,

    /// Seed of random offsets [default: 1]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Shell command that prints watts; runs once a second
    ///
    /// Sensors of the GPUs, the processors and the server are read as well, if the system permits
    /// it.
    #[arg(long, value_name = "COMMAND")]
    pub power_command: Option<String>,

    /// Overwrite the files named here; otherwise only scratch in folders is written
    #[arg(long)]
    pub overwrite: bool,

    /// Overwrite the block devices named here; their content is lost
    #[arg(long)]
    pub overwrite_device: bool,

    /// Name of these results in comparisons
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,

    /// Write results to this file, one JSON record per line
    ///
    /// By default the file is in `$XDG_STATE_HOME/forebay` or `~/.local/state/forebay`, and its
    /// name is printed. A file with a part of the same sweep is continued.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Start over instead of continuing the same sweep
    ///
    /// The results go to a new file in the same folder. If `--output` names an existing file, the
    /// command is refused: name another one.
    #[arg(long)]
    pub anew: bool,

    /// Print the records instead of a table; docs/json-schema.md describes them
    #[arg(long)]
    pub json: bool,
}

/// The method that moves bytes, without a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WayName {
    /// Our engine.
    Forebay,
    /// A plain method.
    Plain(Plain),
}

/// The demanded route; `None` leaves the choice to the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand(pub Option<Route>);

/// GPUs that work at once.
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

/// The name of a share of reads on the command line.
#[must_use]
pub(crate) fn direction_name(read_percent: u8) -> String {
    match read_percent {
        100 => "read".into(),
        0 => "write".into(),
        percent => format!("mixed:{percent}"),
    }
}

fn way(text: &str) -> Result<WayName, String> {
    if text == "forebay" {
        return Ok(WayName::Forebay);
    }
    let plain = Plain::ALL.into_iter().find(|plain| plain.name() == text);
    plain.map(WayName::Plain).ok_or_else(|| {
        let names = Plain::ALL.map(|plain| format!("`{}`", plain.name())).join(", ");
        format!("it takes `forebay`, {names}")
    })
}

fn any_route(text: &str) -> Result<Demand, String> {
    if text == "any" {
        return Ok(Demand(None));
    }
    let demand = route(text).map(|route| Demand(Some(route)));
    demand.map_err(|_| "it takes `any`, `direct`, `staged`, `cached` or `host`".into())
}

fn cache(text: &str) -> Result<Cache, String> {
    let known = [Cache::Cold, Cache::Resident].into_iter().find(|cache| cache.name() == text);
    known.ok_or_else(|| "it takes `cold` or `resident`".into())
}

const TIME_MAX: Duration = Duration::from_secs(24 * 3600);

fn time_or_none(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text).filter(|time| *time <= TIME_MAX);
    time.ok_or_else(|| "it takes a time such as `500ms` or `10s`, a day at most".into())
}

fn time(text: &str) -> Result<Duration, String> {
    let time = time_or_none(text)?;
    if time < Duration::from_millis(10) {
        return Err("it takes 10ms or more".into());
    }
    Ok(time)
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (0.01..=1e9).contains(rate));
    rate.ok_or_else(|| "it takes requests per second, from 0.01 to 1e9".into())
}

const GPUS_MAX: u32 = 64;

fn gpus(text: &str) -> Result<GpuList, String> {
    let wrong = || format!("it takes GPUs such as `0-3` or `0,2`, or `sim:4`, {GPUS_MAX} at most");
    let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number < GPUS_MAX);
    if let Some(text) = text.strip_prefix("sim:") {
        let (many, settings) = match text.split_once(',') {
            Some((many, settings)) => (many, format!("sim:{settings}")),
            None => (text, "sim".into()),
        };
        let many = number(many).filter(|many| *many > 0).ok_or_else(wrong)?;
        let config = settings.parse().map_err(|error: forebay::Error| error.to_string());
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

    proptest::proptest! {
        #[test]
        fn no_list_of_gpus_ends_the_command(text: String, many: u64, settings: String) {
            let _ = (gpus(&text), gpus(&format!("sim:{many},{settings}")));
            let _ = gpus(&format!("{many}-{text}"));
        }
    }
}
