//! Parses a GPU selector (`0`, `GPU-…`, `MIG-…`, `0000:1b:00.0`, `none`, `sim`) and opens that GPU.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use forebay_base::clock::SystemClock;

use super::cuda::{self, CudaDevice};
use super::sim::{BadSetting, SimConfig, SimDevice};
use super::{AddressKind, Device, DeviceInfo};
use crate::error::{Error, Result};

/// The GPU to use.
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
                Name::read(cuda)?;
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
            let name = Name::read(text)?;
            let gpus = visible().map_err(none)?;
            let index = name.find(&gpus).map_err(none)?;
            let device = CudaDevice::open(index).map_err(none)?;
            Ok(Some(Arc::new(device)))
        }
    }
}

/// The CUDA GPUs of this machine, or why there are none.
///
/// # Errors
/// The reason, as text for users.
pub fn visible() -> Result<Vec<DeviceInfo>, String> {
    cuda::visible()
}

/// The kind of memory at `address`, from this machine's drivers. No GPU has to be open.
pub(crate) fn address_kind(address: u64) -> AddressKind {
    cuda::address_kind(address)
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

/// A parsed CUDA GPU selector.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Name {
    Index(u32),
    /// A prefix of a UUID, lower case.
    Uuid(String),
    Pci(PciAddress),
}

/// Domain, bus, device and function.
type PciAddress = (u32, u8, u8, u8);

impl Name {
    fn read(text: &str) -> Result<Self> {
        let index = text.strip_prefix("cuda:").unwrap_or(text);
        if !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit()) {
            // An index that overflows the type cannot exist; use the largest one.
            return Ok(Self::Index(index.parse().unwrap_or(u32::MAX)));
        }
        let lower = text.to_ascii_lowercase();
        if let Some(digits) = lower.strip_prefix("gpu-").or_else(|| lower.strip_prefix("mig-"))
            && digits.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
            && !digits.is_empty()
        {
            return Ok(Self::Uuid(lower));
        }
        let expected = "`auto`, `none`, an index, a UUID (`GPU-…`, `MIG-…`), a PCI address \
                        (`0000:1b:00.0`), or `sim` and its settings";
        let address = parse_pci(&lower).map(Self::Pci);
        address.ok_or_else(|| Error::bad_option("gpu", text, expected))
    }

    /// The index of the only GPU that matches.
    fn find(&self, gpus: &[DeviceInfo]) -> Result<u32, String> {
        let count = match gpus.len() {
            1 => "there is 1 GPU, 0".to_owned(),
            many => format!("there are {many} GPUs, 0 to {}", many.saturating_sub(1)),
        };
        let list = |name: fn(&DeviceInfo) -> &str| -> String {
            gpus.iter().map(name).collect::<Vec<_>>().join(", ")
        };
        match self {
            Self::Index(index) => {
                gpus.iter().any(|gpu| gpu.id.index == *index).then_some(*index).ok_or(count)
            }
            Self::Uuid(prefix) => {
                let matches = |gpu: &&DeviceInfo| gpu.uuid.to_ascii_lowercase().starts_with(prefix);
                let found: Vec<_> = gpus.iter().filter(matches).collect();
                match found[..] {
                    [gpu] => Ok(gpu.id.index),
                    [] => Err(format!("there is {}", list(|gpu| &gpu.uuid))),
                    _ => {
                        let names: Vec<_> = found.iter().map(|gpu| &*gpu.uuid).collect();
                        Err(format!("several GPUs begin so: {}", names.join(", ")))
                    }
                }
            }
            Self::Pci(address) => gpus
                .iter()
                .find(|gpu| parse_pci(&gpu.pci_address) == Some(*address))
                .map(|gpu| gpu.id.index)
                .ok_or_else(|| format!("there is {}", list(|gpu| &gpu.pci_address))),
        }
    }
}

/// Parses `[DOMAIN:]BUS:DEVICE[.FUNCTION]`, all hexadecimal.
fn parse_pci(text: &str) -> Option<PciAddress> {
    let hex = |part: &str, digits_max: usize| -> Option<u32> {
        let right = (1..=digits_max).contains(&part.len())
            && part.bytes().all(|byte| byte.is_ascii_hexdigit());
        right.then(|| u32::from_str_radix(part, 16).ok())?
    };
    let (rest, device) = text.rsplit_once(':')?;
    let (device, function) = device.split_once('.').unwrap_or((device, "0"));
    let (domain, bus) = rest.split_once(':').unwrap_or(("0", rest));
    let byte = |part: &str, digits_max| u8::try_from(hex(part, digits_max)?).ok();
    Some((hex(domain, 8)?, byte(bus, 2)?, byte(device, 2)?, byte(function, 1)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{DeviceId, DeviceKind};

    fn gpus() -> Vec<DeviceInfo> {
        let known = [
            ("GPU-1f3a-00", "0000:1b:00.0"),
            ("GPU-1fff-11", "0001:1b:00.0"),
            ("MIG-1fff-22", "0002:1b:00.0"),
        ];
        let numbered = (0..).zip(known);
        let describe = |(index, (uuid, pci)): (u32, (&str, &str))| DeviceInfo {
            id: DeviceId { kind: DeviceKind::Cuda, index },
            name: "GPU".into(),
            uuid: uuid.into(),
            pci_address: pci.into(),
            driver: String::new(),
            memory: 1,
            simulated: false,
        };
        numbered.map(describe).collect()
    }

    fn find(text: &str) -> Result<u32, String> {
        Name::read(text).expect(text).find(&gpus())
    }

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
    fn names_find_their_gpu() {
        assert_eq!(find("1"), Ok(1));
        assert_eq!(find("cuda:0"), Ok(0));
        assert_eq!(find("gpu-1F3"), Ok(0));
        assert_eq!(find("GPU-1fff"), Ok(1));
        assert_eq!(find("1B:00.0"), Ok(0));
        assert_eq!(find("00000001:1b:0"), Ok(1));
        assert_eq!(find("MIG-1fff"), Ok(2));
        assert_eq!(find("mig-1FFF-22"), Ok(2));
        assert_eq!(find("3"), Err("there are 3 GPUs, 0 to 2".into()));
        assert_eq!(find("99999999999"), Err("there are 3 GPUs, 0 to 2".into()));
        let several = "several GPUs begin so: GPU-1f3a-00, GPU-1fff-11";
        assert_eq!(find("GPU-1f"), Err(several.into()));
        assert_eq!(find("GPU-2"), Err("there is GPU-1f3a-00, GPU-1fff-11, MIG-1fff-22".into()));
        assert_eq!(find("4:1b:0"), Err("there is 0000:1b:00.0, 0001:1b:00.0, 0002:1b:00.0".into()));
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
