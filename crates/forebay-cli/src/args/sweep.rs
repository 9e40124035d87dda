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

/// What `forebay sweep` takes.
#[derive(Debug, Clone, Default, Args)]
#[command(after_long_help = "Examples:\n  \
    forebay sweep                                    sizes and depths, in this folder\n  \
    forebay sweep /data --request-size 64K,1M --depth 1,8,32\n  \
    forebay sweep /data --way forebay,cpu-gpu --threads 1,8,24\n  \
    forebay sweep /data --kv llama-70b:bf16:tp8:page64 --depth 64\n  \
    forebay sweep /data --direction mixed:70 --pattern random\n  \
    forebay sweep /mnt/local --vs /mnt/remote\n  \
    forebay sweep /mnt/remote --io-queues 1,2,4,8 --set-queues './connect {}'\n  \
    forebay sweep /data --until-steady 60s           until a rate holds still\n  \
    forebay sweep --job nightly.toml -o nightly.jsonl\n\n\
    A job file has the flags by their long names: `request-size = [\"64K\", \"1M\"]`.")]
pub struct SweepArgs {
    /// Files or block devices to read, or folders for scratch files; by default this folder
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,

    /// Measure the same on this path too, turn by turn, and show both side by side at the end
    ///
    /// `forebay diff FILE --by path` shows it again.
    #[arg(long, value_name = "PATH")]
    pub vs: Option<PathBuf>,

    /// Take flags from this file of TOML as well; those that are given here come first
    #[arg(long, value_name = "FILE")]
    pub job: Option<PathBuf>,

    /// Bytes of one request; by default `4K,64K,1M,16M`
    #[arg(
        long, value_name = "SIZE,…", value_delimiter = ',',
        value_parser = positive_size, allow_negative_numbers = true
    )]
    pub request_size: Vec<u64>,

    /// Requests as of a cache of keys and values: `MODEL[:TYPE][:tpN][:pageN][:layer|block]`
    ///
    /// Sizes follow from the model (`deepseek-r1`, `llama-8b`, `llama-70b`, `llama-405b`), the type
    /// of its numbers (`bf16`), over how many GPUs a layer is divided (`tp1`), the tokens of a page
    /// (`page16`) and whether one request has a page of one layer or of all of them (`layer`).
    /// They lie at random. Instead of request sizes.
    #[arg(
        long, value_name = "MODEL…,…", value_delimiter = ',', conflicts_with = "request_size",
        value_parser = Kv::from_str
    )]
    pub kv: Vec<Kv>,

    /// Calls in flight of each thread; by default `1,32`
    #[arg(
        long, value_name = "N,…", value_delimiter = ',',
        value_parser = count, allow_negative_numbers = true
    )]
    pub depth: Vec<u32>,

    /// Requests in one call; by default 1
    #[arg(
        long, value_name = "N,…", value_delimiter = ',',
        value_parser = count, allow_negative_numbers = true
    )]
    pub batch: Vec<u32>,

    /// Threads that make requests, for each GPU; by default 1
    #[arg(
        long, value_name = "N,…", value_delimiter = ',',
        value_parser = count, allow_negative_numbers = true
    )]
    pub threads: Vec<u32>,

    /// Scratch files that the threads share; by default 1
    #[arg(
        long, value_name = "N,…", value_delimiter = ',',
        value_parser = count, allow_negative_numbers = true
    )]
    pub files: Vec<u32>,

    /// Numbers of queues for I/O, or of connections, that `--set-queues` sets one after the other
    ///
    /// All points are measured with one before the next is set. Beside each stands what the kernel
    /// tells then, which may be another. `forebay diff FILE --by queues` compares them.
    #[arg(
        long, value_name = "N,…", value_delimiter = ',',
        value_parser = count, allow_negative_numbers = true
    )]
    pub io_queues: Vec<u32>,

    /// What a shell runs to connect PATH with so many queues: a command with `{}` for the number
    ///
    /// It has to unmount what PATH lies in, connect anew and mount again, in 60 s; at the end the
    /// last number stays. docs/diff.md has such commands for NVMe over fabrics and NFS. A job file
    /// cannot hold it.
    #[arg(long, value_name = "COMMAND")]
    pub set_queues: Option<String>,

    /// Where requests lie: `sequential` (the default), `random`, `strided:SIZE`
    #[arg(
        long, value_name = "ORDER,…", value_delimiter = ',', conflicts_with = "kv",
        value_parser = Pattern::from_str
    )]
    pub pattern: Vec<Pattern>,

    /// `read` (the default), `write`, or `mixed:70`, where 70 of 100 calls are reads
    #[arg(long, value_name = "WHICH,…", value_delimiter = ',', value_parser = direction)]
    pub direction: Vec<u8>,

    /// What moves the bytes: `forebay` (the default), or a plain way
    ///
    /// `cpu` reads past the page cache into host memory, `cpu-gpu` copies to the GPU then,
    /// `cpu-async-gpu` does so while the next request is read, `cpu-cached-gpu` reads through the
    /// page cache. Each thread has a buffer of its own, and makes one request at a time. `io-uring`
    /// reads past the page cache into host memory with `--depth` calls of a thread in flight, as
    /// `fio` does: what the drive gives by itself.
    #[arg(long, value_name = "WAY,…", value_delimiter = ',', value_parser = way)]
    pub way: Vec<WayName>,

    /// Routes that are demanded of `forebay`: `direct`, `staged`, `cached`, `host`; or `any`
    #[arg(long, value_name = "ROUTE,…", value_delimiter = ',', value_parser = any_route)]
    pub route: Vec<Demand>,

    /// Which GPU, one point for each: an index, a UUID, a PCI address, `none`, or `sim`
    ///
    /// By default the first GPU, else host memory.
    #[arg(long, value_name = "WHICH", value_parser = gpu)]
    pub gpu: Vec<GpuSelector>,

    /// GPUs that work at once, as `0-3` or `0,2`: a point for the first, for the first two, and so
    /// on; `sim:4` are four simulated ones, `sim:4,uplink=2GB/s` four below one switch
    #[arg(long, value_name = "LIST", conflicts_with = "gpu", value_parser = gpus)]
    pub gpus: Option<GpuList>,

    /// Where the files' pages are at first: `cold` (the default), `resident`
    ///
    /// A cold write counts only once its bytes are on the drive.
    #[arg(long, value_name = "STATE,…", value_delimiter = ',', value_parser = cache)]
    pub cache: Vec<Cache>,

    /// How long each sample takes; by default `2s`
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub time: Option<Duration>,

    /// Goes on with a sample until a span of `--time` is steady, for this long at most
    ///
    /// Spans follow each other without a pause, and the first whose rate rises or falls by no more
    /// than 5 % of its mean is the one that counts; the last, and told as not steady, where none
    /// is. What goes over the files once (cold writes, cold reads through the page cache) has one
    /// span.
    #[arg(long, value_name = "LIMIT", value_parser = time, conflicts_with = "bytes")]
    pub until_steady: Option<Duration>,

    /// Instead: how many bytes each thread moves for a sample
    #[arg(
        long, value_name = "SIZE", value_parser = positive_size, conflicts_with = "time",
        allow_negative_numbers = true
    )]
    pub bytes: Option<u64>,

    /// What goes before a sample and does not count; by default a tenth of its time
    ///
    /// Cold writes, and cold reads through the page cache, have none: what it leaves there would be
    /// in the way.
    #[arg(long, value_name = "TIME", value_parser = time_or_none)]
    pub warm_up: Option<Duration>,

    /// How often each point is measured; by default 3
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub repeats: Option<u32>,

    /// Bytes that the files of a path hold together; by default 1G, or what a point needs
    #[arg(long, value_name = "SIZE", value_parser = positive_size, allow_negative_numbers = true)]
    pub size: Option<u64>,

    /// Requests per second of all threads together, instead of as many as it goes
    ///
    /// Each is due at its time whether those before it have ended or not, and is measured from
    /// then on, so that a drive that stalls is not asked less for it.
    #[arg(long, value_name = "N", value_parser = rate, allow_negative_numbers = true)]
    pub rate: Option<f64>,

    /// What random places follow from; by default 1
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// What a shell runs once a second to measure power: a command that prints watts
    ///
    /// Beside it the GPUs' own sensors are read, and the processors' and the server's, where the
    /// system lets them.
    #[arg(long, value_name = "COMMAND")]
    pub power_command: Option<String>,

    /// Write to files that are named here; else writes go to scratch in folders
    #[arg(long)]
    pub overwrite: bool,

    /// Write to block devices that are named here: what is on them is lost
    #[arg(long)]
    pub overwrite_device: bool,

    /// What these results are called where they are compared
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,

    /// Write results to this file, one record of JSON to a line
    ///
    /// By default a file in `forebay` under `$XDG_STATE_HOME` or `~/.local/state`, whose name is
    /// told. A file that holds a part of the same sweep is continued.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Begin anew where there is a part of the same sweep
    ///
    /// A new file beside the old one is begun then. A file that is named by `--output` and is there
    /// is never begun anew: the command is refused. Name another file instead.
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
