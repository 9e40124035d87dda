//! The arguments of `forebay import`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::import::{Map, Said};

/// Whose results are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ImportTool {
    /// The result lines of NVIDIA's gdsio, also within a log
    Gdsio,
    /// fio's `--output-format=json` or `json+`
    Fio,
    /// The table of NIXL's nixlbench
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

/// What `forebay import` takes.
#[derive(Debug, Clone, Args)]
#[command(after_long_help = "Examples:\n  \
    forebay import fio fio.json -o results         then: forebay report results\n  \
    forebay import gdsio *.log --label h200 -o results\n  \
    forebay import nixlbench out.txt --set cache=cold -o results\n  \
    forebay import csv t.csv --way elbencho --set direction=read \\\n    \
    --map 'size=Block,throughput=\"BW (MiB/s)\",p99=lat99:us' -o results\n\n\
    --map names columns: throughput, iops, bytes, requests, seconds, mean, p50, p90, p99,\n\
    p99.9, max, way, and what --set takes: path, target, direction, pattern, size, depth,\n\
    batch, threads, files, cache. docs/import.md has each key of each tool.")]
pub struct ImportArgs {
    /// Whose results these are
    #[arg(value_name = "TOOL")]
    pub tool: ImportTool,

    /// Files that the tool wrote, 64 MiB each at most
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,

    /// A results file to make, or to add to; without it records go to stdout
    #[arg(short, long, value_name = "RESULTS")]
    pub output: Option<PathBuf>,

    /// What to call these results in a report; by default the name of the file
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,

    /// Which column of a table is what: `NAME=COLUMN[:UNIT],…`
    ///
    /// A unit that stands in the heading or in the cells need not be named. Columns with commas
    /// stand in double quotes.
    #[arg(long, value_name = "NAME=COLUMN,…")]
    pub map: Option<Map>,

    /// What moved the bytes of a table, where no column tells
    #[arg(long, value_name = "NAME")]
    pub way: Option<String>,

    /// What the files do not tell, the same for all of it: `cache=cold`, `target=cuda:0`, …
    #[arg(long, value_name = "AXIS=VALUE,…", value_delimiter = ',')]
    pub set: Vec<Said>,
}
