//! The arguments of `forebay gpu-file-benchmark`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use forebay::gpu::GpuSelector;
use forebay::units::{KIB, MIB, parse_size};

use crate::values::one_gpu;

/// Sizes are whole multiples of this, which suits every drive and every GPU.
const UNIT: u64 = 4 * KIB;

/// The methods to compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// The standard copy, Forebay, and the direct route if it is available
    Compare,
    /// The standard copy and the direct route, which is required
    Dma,
    /// As `compare`, and a GPU kernel alone and during a read
    All,
}

/// Arguments of `forebay gpu-file-benchmark`.
#[derive(Debug, Clone, Args)]
#[command(after_long_help = "Examples:\n  \
    forebay gpu-file-benchmark                      scratch file in this folder\n  \
    forebay gpu-file-benchmark -s 8G -r 5 -f /data  8 GiB in `/data`, five runs\n  \
    forebay gpu-file-benchmark -m dma -f /data/new  direct route, or an error\n  \
    forebay gpu-file-benchmark --gpu sim            simulated GPU")]
pub struct GpuFileArgs {
    /// What to compare
    #[arg(short, long, value_name = "MODE", value_enum, default_value_t = Mode::All)]
    pub mode: Mode,

    /// Bytes of the file: a number of MiB, or a size such as `512M` or `8G`
    #[arg(
        short, long, value_name = "SIZE_MB", default_value = "512",
        value_parser = size, allow_negative_numbers = true
    )]
    pub size: u64,

    /// New file, or folder for a scratch file [default: this folder]
    ///
    /// A new file is removed afterwards. It is refused in `/`, and where a file system of
    /// `/etc/fstab` is not mounted. An existing one requires `--overwrite`, a block device
    /// `--overwrite-device`.
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,

    /// Samples of each method
    #[arg(
        short, long, value_name = "RUNS", default_value_t = 3,
        value_parser = runs, allow_negative_numbers = true
    )]
    pub runs: u32,

    /// GPU: an index, a UUID, a PCI address, `none`, or `sim`
    ///
    /// By default the first GPU, or host memory if there is none.
    /// `sim:bandwidth=50GB/s,latency=10us` configures a simulated GPU.
    #[arg(long, value_name = "WHICH", value_parser = one_gpu(), hide_possible_values = true)]
    pub gpu: Option<GpuSelector>,

    /// Overwrite FILE if it exists; its content is lost
    ///
    /// Afterwards it holds SIZE_MB of test data, and is not removed.
    #[arg(long, requires = "file")]
    pub overwrite: bool,

    /// Overwrite FILE if it is a block device; its content is lost
    ///
    /// A device that is mounted, or part of another, is still refused.
    #[arg(long, requires = "file")]
    pub overwrite_device: bool,
}

fn size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let is_bare = text.ends_with(|letter: char| letter.is_ascii_digit());
    let parsed = if is_bare { parse_size(&format!("{text}M")) } else { parse_size(text) };
    let whole = |len: &u64| *len >= MIB && len.is_multiple_of(UNIT);
    parsed.filter(whole).ok_or_else(|| {
        "it takes a number of MiB, or a size such as `512M` or `8G`, of 1 MiB or more and in whole \
         4 KiB"
            .into()
    })
}

fn runs(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (1..=1000).contains(number));
    number.ok_or_else(|| "it takes a number from 1 to 1000".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_numbers_are_mebibytes() {
        assert_eq!(size("512"), Ok(512 * MIB));
        assert_eq!(size("512M"), Ok(512 * MIB));
        assert_eq!(size("8G"), Ok(8 << 30));
        assert_eq!(size("8GB"), Ok(8_000_000_000));
        assert_eq!(size("1.5"), Ok(MIB + MIB / 2));
        for text in ["", "0", "0.5", "-1", "1MB", "1e3", "512 x", "4096K+"] {
            assert!(size(text).is_err(), "{text}");
        }
        for text in ["99999999999999", "18446744073709551615G", "1023K", "1025B"] {
            assert!(size(text).unwrap_err().contains("`512M` or `8G`"), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_word_ends_the_command(text: String, number: u64) {
            let _ = (size(&text), runs(&text));
            for unit in ["", "K", "M", "G", "T", "MB"] {
                if let Ok(len) = size(&format!("{number}{unit}")) {
                    proptest::prop_assert!(len >= MIB && len % UNIT == 0);
                }
            }
        }
    }
}
