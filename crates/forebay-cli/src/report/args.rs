//! The arguments of `forebay report`.

use std::path::PathBuf;
use std::str::FromStr as _;

use clap::Args;

use crate::report::foreign::{Map, Tool};
use crate::report::model::{Axis, Metric};
use crate::values::{Format, listed, local_path};

/// Arguments of `forebay report`.
#[derive(Debug, Clone, Default, Args)]
#[command(after_long_help = "Examples:\n  \
    forebay report results.jsonl                   table\n  \
    forebay report results.jsonl -o report.html    page for a browser\n  \
    forebay report before.jsonl after.jsonl        ratios of the medians\n  \
    forebay report before.jsonl after.jsonl --fail-if-worse 5%\n  \
    forebay report sweep.jsonl --by method --base cpu-gpu\n  \
    forebay report fio.json gdsio.log              results of other tools\n  \
    forebay report t.csv --columns 'throughput=BW:MiB/s,block-size=Block,direction:=read'\n\n\
    Names for `--columns`: throughput, iops, bytes, requests, seconds, mean, p50, p90,\n\
    p99, p99.9, max, method, path, gpu, direction, pattern, block-size, depth, batch,\n\
    threads, files, cache.")]
pub struct ReportArgs {
    /// Results files, `-` for stdin, or results of gdsio, fio, nixlbench, elbencho or CSV
    #[arg(value_name = "FILE", value_parser = local_path(), required = true, num_args = 1..=64)]
    pub files: Vec<PathBuf>,

    /// Write to this new file: page .html, Markdown .md, CSV .csv, text .txt, or JSON .jsonl
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Replace an existing output FILE
    #[arg(long, requires = "output")]
    pub overwrite: bool,

    /// Form of the report [default: that of the name of the output, else `table`]
    ///
    /// `table`, `json`, `csv`, `md` or `html`. `csv` has every number. `json` has the results in
    /// Forebay's own form, also those of other tools.
    #[arg(long, value_name = "FORMAT", value_enum, hide_possible_values = true)]
    pub format: Option<Format>,

    /// Show all columns, in lines of any length
    #[arg(long)]
    pub wide: bool,

    /// No warnings
    #[arg(short, long)]
    pub quiet: bool,

    /// Show all warnings
    #[arg(short, long, conflicts_with = "quiet")]
    pub verbose: bool,

    /// Tool that wrote the files, if their contents do not show it
    #[arg(long = "as", value_name = "TOOL", help_heading = "Results of other tools")]
    pub tool: Option<Tool>,

    /// Columns of a table (`block-size=Block`), and values that files lack (`cache:=cold`)
    ///
    /// A unit may follow the column: `throughput=BW:MiB/s`. Columns with commas need double quotes.
    #[arg(
        long,
        alias = "map",
        value_name = "NAME=COLUMN,…",
        help_heading = "Results of other tools"
    )]
    pub columns: Option<Map>,

    /// Compare the values of this axis, instead of one file with another
    ///
    /// Axes are `label`, `path`, `method`, `route`, `direction`, `pattern`, `cache`,
    /// `gpu`, `block-size`, `depth`, `batch`, `threads` and `files`.
    #[arg(
        long, value_name = "AXIS", hide_possible_values = true, help_heading = "Comparison",
        value_parser = listed(Axis::from_str, Axis::ALL.map(Axis::key))
    )]
    pub by: Option<Axis>,

    /// Value of the axis that is the base [default: the smallest number, or the first value]
    #[arg(long, value_name = "VALUE", requires = "by", help_heading = "Comparison")]
    pub base: Option<String>,

    /// Quantity of the points that are compared [default: throughput]
    ///
    /// `throughput`, `iops`, `mean`, `p50`, `p90`, `p99`, `p99.9`, `max`, `cpu`, `gpu-energy`,
    /// `package-energy` or `server-energy`; of `bench --kv` also `loads`, `hits`, `first-p50` and
    /// `first-p99` (the time to the first byte).
    #[arg(
        long, value_name = "WHAT", hide_possible_values = true, help_heading = "Comparison",
        value_parser = listed(metric, Metric::compared().map(|one| one.0))
    )]
    pub metric: Option<Metric>,

    /// Exit with 1 if a side is significantly worse than the base by more than this
    ///
    /// That is a point, or the mean of all points, with its whole confidence interval. More failed
    /// samples, and points that cannot be judged, count too.
    #[arg(
        long,
        value_name = "PERCENT",
        value_parser = share,
        allow_negative_numbers = true,
        help_heading = "Comparison"
    )]
    pub fail_if_worse: Option<f64>,
}

fn metric(text: &str) -> Result<Metric, String> {
    let known = Metric::compared().find(|(name, _)| *name == text);
    known.map(|(_, metric)| metric).ok_or_else(|| {
        let names: Vec<&str> = Metric::compared().map(|(name, _)| name).collect();
        format!("it takes `{}`", names.join("`, `"))
    })
}

fn share(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim().parse().ok();
    let share = number.map(|percent: f64| percent / 100.0);
    share
        .filter(|share| (0.0..1.0).contains(share))
        .ok_or_else(|| "it takes percent from `0%` to below `100%`, as `5%`".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_names_every_axis_and_quantity() {
        let command = ReportArgs::augment_args(clap::Command::new("report"));
        let help = |id: &str| {
            let argument = command.get_arguments().find(|argument| argument.get_id() == id);
            argument.and_then(|argument| argument.get_long_help()).unwrap().to_string()
        };
        for axis in Axis::ALL.into_iter() {
            assert!(help("by").contains(&format!("`{}`", axis.key())), "{axis:?}");
            assert_eq!(axis.key().parse(), Ok(axis));
        }
        for (name, of) in Metric::compared() {
            assert!(help("metric").contains(&format!("`{name}`")), "{name}");
            assert_eq!(metric(name), Ok(of));
        }
        let examples = command.get_after_long_help().unwrap().to_string();
        let (_, names) = examples.split_once("Names for `--columns`: ").unwrap();
        for name in names.trim_end_matches('.').split(',').map(str::trim) {
            assert!(format!("{name}=x").parse::<Map>().is_ok(), "{name}");
        }
        assert_eq!((share("5%"), share("0")), (Ok(0.05), Ok(0.0)));
        assert!(share("100%").is_err() && metric("speed").is_err());
    }
}
