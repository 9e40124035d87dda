//! The arguments of `forebay import`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::import::{Map, Said};

/// The tool whose results are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ImportTool {
    /// Result lines of NVIDIA's gdsio, also within a log
    Gdsio,
    /// fio's `--output-format=json` or `json+`
    Fio,
    /// Table of NIXL's nixlbench
    Nixlbench,
    /// Any table with a heading, by its columns (`--map`)
    Csv,
}

impl ImportTool {
    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gdsio => "gdsio",
            Self::Fio => "fio",
            Self::Nixlbench => "nixlbench",
            Self::Csv => "csv",
        }
    }
}

/// Arguments of `forebay import`.
#[derive(Debug, Clone, Args)]
#[command(after_long_help = "Examples:\n  \
    forebay import fio fio.json -o results    then: forebay report results\n  \
    forebay import gdsio *.log --label h200 -o results\n  \
    forebay import nixlbench out.txt --set cache=cold -o results\n  \
    forebay import csv t.csv --way elbencho --set direction=read \\\n    \
    --map 'size=Block,throughput=\"BW (MiB/s)\",p99=lat99:us' -o results\n\n\
    Names for `--map`: throughput, iops, bytes, requests, seconds, mean, p50, p90,\n\
    p99, p99.9, max, way, and the axes. Axes for `--set`: path, target, direction,\n\
    pattern, size, depth, batch, threads, files, cache. docs/import.md lists the\n\
    keys of each tool.")]
pub struct ImportArgs {
    /// Tool that made the results
    #[arg(value_name = "TOOL")]
    pub tool: ImportTool,

    /// Files that the tool wrote, 64 MiB each at most
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,

    /// Results file to create or append to [default: stdout]
    #[arg(short, long, value_name = "RESULTS")]
    pub output: Option<PathBuf>,

    /// Name of these results in a report [default: the name of the file]
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,

    /// Meaning of the columns of a table: `NAME=COLUMN[:UNIT],…`
    ///
    /// The unit may be left out if the heading or the cells have it. Columns with commas need
    /// double quotes.
    #[arg(long, value_name = "NAME=COLUMN,…")]
    pub map: Option<Map>,

    /// Method that moved the bytes of a table, if no column names it
    #[arg(long, value_name = "NAME")]
    pub way: Option<String>,

    /// Values that the files lack, for all results: `cache=cold`, `target=cuda:0`, …
    #[arg(long, value_name = "AXIS=VALUE,…", value_delimiter = ',')]
    pub set: Vec<Said>,
}
