//! The arguments of `forebay stream`, passed on unchanged: the measurement reports errors in them,
//! also for negative numbers.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

/// Arguments of `forebay stream`.
#[derive(Debug, Clone, Args)]
#[command(after_long_help = "Examples:\n  \
    forebay stream --layers 6 --tokens 1024,8192,32768   layers in the page cache\n  \
    forebay stream --from mapped --layers 24 --layer-mb 200 --out results\n  \
    forebay stream --from drive --ways forebay,mmap\n  \
    forebay stream --order train --layers 8 --from pinned --tokens 4096")]
pub struct StreamArgs {
    /// Layers of a pass [default: 3]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub layers: Option<OsString>,

    /// Size of a layer, in 10^6 bytes [default: 1237]
    #[arg(long, value_name = "MB", allow_negative_numbers = true)]
    pub layer_mb: Option<OsString>,

    /// Tokens of a pass, one number or several [default: 8192]
    #[arg(long, value_name = "N,…", allow_negative_numbers = true)]
    pub tokens: Option<OsString>,

    /// Order of the layers: `forward`, `backward` or `train` [default: forward]
    ///
    /// `train` goes forward, then backward with recompute and gradients.
    #[arg(long, value_name = "ORDER")]
    pub order: Option<OsString>,

    /// Where Forebay finds the layers: `drive`, `page-cache`, `mapped`, `pinned` or `half`
    /// [default: page-cache]
    ///
    /// `mapped` is the pages of the page cache, registered. With `half`, half of the layers are
    /// pinned and the others are on the drive.
    #[arg(long, value_name = "PLACE")]
    pub from: Option<OsString>,

    /// Methods, besides compute and transfer alone: `forebay`, `two-buffers`, `mmap`
    /// [default: all]
    #[arg(long, value_name = "NAME,…")]
    pub ways: Option<OsString>,

    /// Layers on the GPU at once, for Forebay [default: 3]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub buffers: Option<OsString>,

    /// Turns of each method [default: 5]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub rounds: Option<OsString>,

    /// Passes of a turn, without a pause [default: 2, or 1 if a drive is read]
    ///
    /// The first pass starts from rest. It is reported separately if others follow.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub passes: Option<OsString>,

    /// File with two sets of the layers, made if it is missing [default: layers.bin]
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,

    /// Seed of the file's bytes [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub seed: Option<OsString>,

    /// Hidden size [default: 5120]
    #[arg(long, value_name = "N", help_heading = "The model", allow_negative_numbers = true)]
    pub hidden: Option<OsString>,

    /// Query heads [default: 96]
    #[arg(long, value_name = "N", help_heading = "The model", allow_negative_numbers = true)]
    pub query_heads: Option<OsString>,

    /// Key and value heads [default: 8]
    #[arg(long, value_name = "N", help_heading = "The model", allow_negative_numbers = true)]
    pub key_heads: Option<OsString>,

    /// Size of a head [default: 128]
    #[arg(long, value_name = "N", help_heading = "The model", allow_negative_numbers = true)]
    pub head: Option<OsString>,

    /// Size of an expert [default: 1536]
    #[arg(long, value_name = "N", help_heading = "The model", allow_negative_numbers = true)]
    pub expert: Option<OsString>,

    /// Routed experts of a token [default: 8]
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
