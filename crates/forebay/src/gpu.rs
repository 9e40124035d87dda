//! The GPUs of `forebay-gpu`, and the choice of a GPU by its name (`0`, `GPU-…`, `MIG-…`,
//! `0000:1b:00.0`, `none`, `sim`).

pub(crate) use cuda::address_kind;
pub use cuda::visible;
#[cfg(test)]
pub(crate) use forebay_gpu::sealed;
pub(crate) use forebay_gpu::{
    AddressKind, DeviceCopy, DeviceResult, DirectProvider, Event, GpuName, NotDeviceMemory, Port,
    PortError, Signal, Stream, check_range, cuda, is_quiet,
};
pub use forebay_gpu::{CallerStream, Device, DeviceError, DeviceId, DeviceInfo, DeviceKind, sim};

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use forebay_base::clock::SystemClock;

use crate::error::{Error, Result};
use cuda::CudaDevice;
use sim::{BadSetting, SimConfig, SimDevice};

/// The GPU to use.
///
/// ```
/// use forebay::gpu::{self, GpuSelector};
///
/// # fn main() -> forebay::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("weights.bin");
/// # std::fs::write(&path, vec![7; 100_000]).unwrap();
/// let gpu: GpuSelector = "sim:latency=10us".parse()?; // or `auto`, `0`, `GPU-…`
/// println!("{}", gpu::open(&gpu)?.expect("a simulated GPU").info().name);
/// match gpu::visible() {
///     Ok(gpus) => println!("{} GPUs", gpus.len()),
///     Err(reason) => println!("no driver: {reason}"),
/// }
/// if let Some(reason) = gpu::absence_reason() {
///     println!("`auto` is host memory: {reason}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub enum GpuSelector {
    /// The first CUDA GPU; host memory if there is none.
    #[default]
    Auto,
    /// No GPU: host memory.
    None,
    /// One CUDA GPU by index, PCI address or UUID (`GPU-…`, or `MIG-…` for a MIG instance; a unique
    /// prefix is enough).
    Cuda(String),
    /// A simulated GPU.
    Sim(SimConfig),
}

impl FromStr for GpuSelector {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.trim() {
            "auto" => Ok(Self::Auto),
            "none" => Ok(Self::None),
            sim if sim == "sim" || sim.starts_with("sim:") => {
                let bad = |bad: BadSetting| Error::bad_option(bad.name, bad.value, bad.expected);
                sim.parse().map(Self::Sim).map_err(bad)
            }
            cuda => {
                read_name(cuda)?;
                Ok(Self::Cuda(cuda.into()))
            }
        }
    }
}

impl fmt::Display for GpuSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::None => f.write_str("none"),
            Self::Cuda(name) => f.write_str(name),
            Self::Sim(config) => config.fmt(f),
        }
    }
}

/// Opens the GPU that `wanted` selects; `None` if it selects host memory.
///
/// # Errors
/// [`Error::NoDevice`] if the GPU is not available.
pub fn open(wanted: &GpuSelector) -> Result<Option<Arc<dyn Device>>> {
    match wanted {
        GpuSelector::None => Ok(None),
        GpuSelector::Auto => Ok(first_usable().ok()),
        GpuSelector::Sim(config) => {
            let clock = Arc::new(SystemClock::new());
            Ok(Some(Arc::new(SimDevice::new(0, config.clone(), clock))))
        }
        GpuSelector::Cuda(text) => {
            let none = |reason: String| Error::NoDevice { wanted: text.clone(), reason };
            let name = read_name(text)?;
            let gpus = visible().map_err(none)?;
            let index = name.find(&gpus).map_err(none)?;
            let device = CudaDevice::open(index).map_err(none)?;
            Ok(Some(Arc::new(device)))
        }
    }
}

/// Why [`GpuSelector::Auto`] finds no GPU; `None` if it finds one.
///
/// If GPUs are visible it tries to open one, which takes a while.
#[must_use]
pub fn absence_reason() -> Option<String> {
    first_usable().err()
}

/// The first GPU whose context can be created, or why there is none.
fn first_usable() -> Result<Arc<dyn Device>, String> {
    let mut first_reason = None;
    for gpu in visible()? {
        match CudaDevice::open(gpu.id.index) {
            Ok(device) => return Ok(Arc::new(device)),
            Err(reason) => {
                first_reason.get_or_insert(format!("{} cannot be used: {reason}", gpu.id));
            }
        }
    }
    Err(first_reason.unwrap_or_else(|| "the driver reports no GPU".into()))
}

fn read_name(text: &str) -> Result<GpuName> {
    let expected = "`auto`, `none`, an index, a UUID (`GPU-…`, `MIG-…`), a PCI address \
                    (`0000:1b:00.0`), or `sim` and its settings";
    GpuName::read(text).ok_or_else(|| Error::bad_option("gpu", text, expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read() {
        let read = |text: &str| text.parse::<GpuSelector>().expect(text);
        assert_eq!(read("auto"), GpuSelector::Auto);
        assert_eq!(read("none"), GpuSelector::None);
        assert_eq!(read("sim"), GpuSelector::Sim(SimConfig::default()));
        assert_eq!(read("1"), GpuSelector::Cuda("1".into()));
        for text in
            ["auto", "none", "3", "cuda:0", "GPU-1f3a", "MIG-0a", "00:1B:00.0", "sim:seed=7"]
        {
            assert_eq!(read(text).to_string(), text);
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in
            ["", "gpu", "GPU-", "GPU-xyz", "-1", "1.5", "1b:00.0.0", "12345:", "0:g:0", "simx"]
        {
            let error = bad.parse::<GpuSelector>().expect_err(bad);
            assert!(error.to_string().contains("an index, a UUID"), "{error}");
        }
        let error = "sim:x=1".parse::<GpuSelector>().expect_err("no such setting");
        assert!(error.to_string().contains("`bandwidth=`"), "{error}");
    }

    #[test]
    fn the_simulated_gpu_opens_and_host_memory_is_none() {
        assert!(open(&GpuSelector::None).expect("host memory").is_none());
        let wanted = "sim:memory=1G".parse().expect("a simulated GPU");
        let device = open(&wanted).expect("it opens").expect("it is a device");
        assert!(device.info().simulated);
        assert_eq!(device.info().memory, 1 << 30);
    }

    #[test]
    fn only_a_missing_gpu_has_a_reason() {
        let found = open(&GpuSelector::Auto).expect("never an error").is_some();
        match absence_reason() {
            None => assert!(found),
            Some(reason) => {
                assert!(!found && !reason.is_empty());
                let error = open(&GpuSelector::Cuda("4096".into())).expect_err("no such GPU");
                assert!(matches!(error, Error::NoDevice { .. }), "{error}");
            }
        }
    }
}
