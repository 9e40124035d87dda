//! Names of a GPU, and the GPU that a name means.

use super::DeviceInfo;

/// The name of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GpuName {
    /// Its index.
    Index(u32),
    /// A prefix of its UUID, lower case.
    Uuid(String),
    /// Its PCI domain, bus, device and function.
    Pci(PciAddress),
}

/// Domain, bus, device and function.
type PciAddress = (u32, u8, u8, u8);

impl GpuName {
    /// Reads `0`, `cuda:0`, `GPU-…`, `MIG-…`, `0000:1b:00.0` or its short forms; `None` for another
    /// text.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let index = text.strip_prefix("cuda:").unwrap_or(text);
        if !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit()) {
            // An index that overflows the type cannot exist; use the largest one.
            return Some(Self::Index(index.parse().unwrap_or(u32::MAX)));
        }
        let lower = text.to_ascii_lowercase();
        if let Some(digits) = lower.strip_prefix("gpu-").or_else(|| lower.strip_prefix("mig-"))
            && digits.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
            && !digits.is_empty()
        {
            return Some(Self::Uuid(lower));
        }
        parse_pci(&lower).map(Self::Pci)
    }

    /// The index of the only GPU that matches.
    ///
    /// # Errors
    /// No GPU matches, or several do, as text for users.
    pub fn find(&self, gpus: &[DeviceInfo]) -> Result<u32, String> {
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
    use crate::{DeviceId, DeviceKind};

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
        GpuName::read(text).expect(text).find(&gpus())
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
}
