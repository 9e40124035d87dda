//! The arguments of `forebay diff`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

use crate::diff::quantity::Quantity;
use crate::diff::sides::{By, by};

/// Arguments of `forebay diff`.
#[derive(Debug, Clone, Args)]
#[command(after_long_help = "Examples:\n  \
    forebay diff before.jsonl after.jsonl\n  \
    forebay diff local.jsonl remote.jsonl --metric p99\n  \
    forebay diff queues.jsonl --by queues        sweep with `--io-queues`\n  \
    forebay diff dpu.jsonl --by label            runs labelled 1, 7, 15, 23, 31\n  \
    forebay diff sweep.jsonl --by way --base cpu-gpu\n  \
    forebay diff base.jsonl new.jsonl --fail-if-worse 5%")]
pub struct DiffArgs {
    /// Results files, or output of `bench --json`; the first is the base
    #[arg(value_name = "RESULTS", required = true)]
    pub results: Vec<PathBuf>,

    /// Compare the values of this axis, instead of one file with another
    ///
    /// Axes are `label`, `path`, `queues`, `way`, `settings`, `route`, `gpu`, `cache`, `pattern`,
    /// `direction`, `request-size`, `depth`, `batch`, `threads` and `files`.
    #[arg(long, value_name = "AXIS", value_parser = by)]
    pub by: Option<By>,

    /// Value of the axis that is the base [default: the first, or the smallest number]
    #[arg(long, value_name = "VALUE", requires = "by")]
    pub base: Option<String>,

    /// Quantity to draw and judge first: `throughput` (default), `requests`, `mean`, `p50`, `p90`,
    /// `p99`, `p99.9`, `max` (the slowest request), `cpu`, `gpu-energy`, `package-energy`,
    /// `server-energy`
    #[arg(long, value_name = "WHAT", value_parser = Quantity::from_str)]
    pub metric: Option<Quantity>,

    /// Exit with 1 if a side is significantly worse than the base by more than this
    ///
    /// That is a point, or the mean of all points, whose whole confidence interval is worse. A
    /// point that fails more often than on the base counts too.
    #[arg(long, value_name = "PERCENT", value_parser = share, allow_negative_numbers = true)]
    pub fail_if_worse: Option<f64>,

    /// Write Markdown
    #[arg(long, conflicts_with_all = ["csv", "json"])]
    pub markdown: bool,

    /// Write CSV: a row for each quantity of each point, with every number
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,

    /// Print JSON instead of a table; docs/json-schema.md describes it
    #[arg(long)]
    pub json: bool,
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
    use crate::diff::quantity::QUANTITIES;

    #[test]
    fn the_help_names_every_quantity() {
        let command = DiffArgs::augment_args(clap::Command::new("diff"));
        let metric = command.get_arguments().find(|argument| argument.get_id() == "metric");
        let help = metric.and_then(|metric| metric.get_help()).unwrap().to_string();
        for (_, name) in QUANTITIES {
            assert!(help.contains(&format!("`{name}`")), "{name}: {help}");
            assert!(Quantity::from_str(name).is_ok(), "{name}");
        }
        assert_eq!(help.matches('`').count(), 2 * QUANTITIES.len(), "{help}");
    }
}
