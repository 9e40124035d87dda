//! The arguments of `forebay stream`, passed on unchanged: the measurement reports errors in them,
//! also for negative numbers.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

/// What `forebay stream` takes.
#[derive(Debug, Clone, Args)]
#[command(after_long_help = "Examples:\n  \
    forebay stream --layers 6 --tokens 1024,8192,32768   layers in the page cache\n  \
    forebay stream --from mapped --layers 24 --layer-mb 200 --out results\n  \
    forebay stream --from drive --ways forebay,mmap\n  \
    forebay stream --order train --layers 8 --from pinned --tokens 4096")]
pub struct StreamArgs {
    /// Layers of a pass (3)
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub layers: Option<OsString>,

    /// 10^6 bytes of each layer (1237)
    #[arg(long, value_name = "MB", allow_negative_numbers = true)]
    pub layer_mb: Option<OsString>,

    /// Tokens of a pass, one number or several (8192)
    #[arg(long, value_name = "N,…", allow_negative_numbers = true)]
    pub tokens: Option<OsString>,

    /// How layers are taken: forward, backward, or train, which goes there and, with recompute and
    /// gradients, back again (forward)
    #[arg(long, value_name = "ORDER")]
    pub order: Option<OsString>,

    /// Where Forebay finds the layers: drive, page-cache, mapped (the page cache's own pages,
    /// registered), pinned, or half (half of them pinned, the others on the drive) (page-cache)
    #[arg(long, value_name = "PLACE")]
    pub from: Option<OsString>,

    /// Only these ways beside compute and transfer alone: forebay, two-buffers, mmap, kvikio
    #[arg(long, value_name = "NAME,…")]
    pub ways: Option<OsString>,

    /// Layers on the GPU at once, for Forebay (3)
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub buffers: Option<OsString>,

    /// Turns of each way (5)
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub rounds: Option<OsString>,

    /// Passes of a turn, one behind the other; the first, which begins from rest, is told apart
    /// where others follow (2; 1 where a drive takes part)
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub passes: Option<OsString>,

    /// The file, two times the layers, made where it is not there (layers.bin)
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,

    /// What the file's bytes are made from (1)
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub seed: Option<OsString>,

    /// Hidden size (5120)
    #[arg(long, value_name = "N", help_heading = "The model", allow_negative_numbers = true)]
    pub hidden: Option<OsString>,

    /// Heads of queries (96)
    #[arg(long, value_name = "N", help_heading = "The model", allow_negative_numbers = true)]
    pub query_heads: Option<OsString>,

    /// Heads of keys and values (8)
    #[arg(long, value_name = "N", help_heading = "The model", allow_negative_numbers = true)]
    pub key_heads: Option<OsString>,

    /// Size of a head (128)
    #[arg(long, value_name = "N", help_heading = "The model", allow_negative_numbers = true)]
    pub head: Option<OsString>,

    /// Size of an expert (1536)
    #[arg(long, value_name = "N", help_heading = "The model", allow_negative_numbers = true)]
    pub expert: Option<OsString>,

    /// Routed experts of a token (8)
    #[arg(long, value_name = "N", help_heading = "The model", allow_negative_numbers = true)]
    pub active: Option<OsString>,

    /// Write `stream_bench.json` and `stream_bench.svg` to this folder
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
}

impl StreamArgs {
    /// The arguments, as passed on to the measurement.
    pub(crate) fn given(&self) -> Vec<OsString> {
        let path = |path: &Option<PathBuf>| path.clone().map(PathBuf::into_os_string);
        let all = [
            ("--layers", self.layers.clone()),
            ("--layer-mb", self.layer_mb.clone()),
            ("--tokens", self.tokens.clone()),
            ("--order", self.order.clone()),
            ("--from", self.from.clone()),
            ("--ways", self.ways.clone()),
            ("--buffers", self.buffers.clone()),
            ("--rounds", self.rounds.clone()),
            ("--passes", self.passes.clone()),
            ("--file", path(&self.file)),
            ("--seed", self.seed.clone()),
            ("--hidden", self.hidden.clone()),
            ("--query-heads", self.query_heads.clone()),
            ("--key-heads", self.key_heads.clone()),
            ("--head", self.head.clone()),
            ("--expert", self.expert.clone()),
            ("--active", self.active.clone()),
            ("--out", path(&self.out)),
        ];
        // One word each (`--name=value`), so that no value is parsed as a flag.
        let word = |name: &str, value: OsString| {
            let mut word = OsString::from(name);
            word.push("=");
            word.push(value);
            word
        };
        all.into_iter().filter_map(|(name, value)| Some(word(name, value?))).collect()
    }
}
