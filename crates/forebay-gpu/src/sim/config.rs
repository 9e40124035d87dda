//! Settings of a simulated GPU and their text form.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use forebay_base::units::{GIB, parse_duration, parse_rate, parse_size};

use super::SimulatedCuFile;

/// A text that is no [`SimConfig`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` cannot be `{value}`: it takes {expected}")]
pub struct BadSetting {
    /// The setting's name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// The values that it accepts.
    pub expected: String,
}

/// Settings of a simulated GPU.
///
/// The text form is `sim`, or `sim:` followed by settings with commas between them:
/// `bandwidth=50GB/s`, `latency=10us`, `uplink=100GB/s`, `memory=8G`, `pages=1G`, `seed=7`,
/// `copy-faults=0.01`, `lost-after=20` and `cufile`.
#[derive(Debug, Clone, PartialEq)]
pub struct SimConfig {
    /// Link bandwidth in bytes per second, each direction; `None`: as fast as memory copies.
    pub bandwidth: Option<u64>,
    /// Time that each copy takes on the link in addition to its bytes.
    pub latency: Duration,
    /// Bytes per second, each direction, of the link above its switch. It is shared with
    /// [sibling](super::SimDevice::sibling) GPUs that have the same uplink rate; `None`: not
    /// limited.
    pub uplink: Option<u64>,
    /// Bytes of device memory. Only address space is used until it is written.
    pub memory: u64,
    /// Limit in bytes of pinned [read-only memory](crate::Device::register_read_only), such as
    /// file pages, shared with sibling GPUs; `None`: no limit.
    pub pages: Option<u64>,
    /// Random seed of the faults.
    pub seed: u64,
    /// Fraction of copies that fail, 0 to 1.
    pub copy_faults: f64,
    /// Number of copies until the device is lost, like a GPU that falls off its bus; `None`: never.
    /// Copies queued by then still run, but their completion is not reported.
    pub lost_after: Option<u64>,
    /// Behaviour of the simulated cuFile (`cufile`, or `cufile=` and one of
    /// [`SimulatedCuFile::ALL`]); `None`: no cuFile.
    pub cufile: Option<SimulatedCuFile>,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            bandwidth: None,
            latency: Duration::ZERO,
            uplink: None,
            memory: 16 * GIB,
            pages: None,
            seed: 0,
            copy_faults: 0.0,
            lost_after: None,
            cufile: None,
        }
    }
}

/// Every setting, and the values that it accepts.
const KEYS: [(&str, &str); 9] = [
    ("bandwidth", "a rate above zero, such as `50GB/s`"),
    ("latency", "a time, such as `10us`"),
    ("uplink", "a rate above zero, such as `100GB/s`"),
    ("memory", "a size above zero, such as `8G`"),
    ("pages", "a size, such as `1G`"),
    ("seed", "a whole number"),
    ("copy-faults", "a share from 0 to 1, such as `0.01`"),
    ("lost-after", "a number of copies"),
    (
        "cufile",
        "nothing, `p2pdma`, `nvidia-fs`, `refuse`, `short`, `fail`, `lie`, `hang`, `hang-open` \
         or `hang-close`",
    ),
];

impl SimConfig {
    /// Parses one setting; `None` if `value` is not valid for `key`.
    fn set(&mut self, key: &str, value: &str) -> Option<()> {
        match key {
            "bandwidth" => self.bandwidth = Some(parse_rate(value).filter(|&rate| rate > 0)?),
            "latency" => self.latency = parse_duration(value)?,
            "uplink" => self.uplink = Some(parse_rate(value).filter(|&rate| rate > 0)?),
            "memory" => self.memory = parse_size(value).filter(|&len| len > 0)?,
            "pages" => self.pages = Some(parse_size(value)?),
            "seed" => self.seed = value.parse().ok()?,
            "copy-faults" => {
                let share: f64 = value.parse().ok()?;
                self.copy_faults = (0.0..=1.0).contains(&share).then_some(share)?;
            }
            "lost-after" => self.lost_after = Some(value.parse().ok()?),
            "cufile" if value.is_empty() => self.cufile = Some(SimulatedCuFile::P2pDma),
            "cufile" => {
                let (_, play) =
                    SimulatedCuFile::ALL.into_iter().find(|(name, _)| *name == value)?;
                self.cufile = Some(play);
            }
            _ => return None,
        }
        Some(())
    }
}

impl FromStr for SimConfig {
    type Err = BadSetting;

    fn from_str(text: &str) -> Result<Self, BadSetting> {
        let bad = |name: &str, value: &str, expected: String| {
            Err(BadSetting { name: name.into(), value: value.into(), expected })
        };
        let settings = match text.strip_prefix("sim") {
            Some("") => return Ok(Self::default()),
            Some(rest) if rest.starts_with(':') => &rest[1..],
            _ => return bad("gpu", text, "`sim`, or `sim:` and its settings".into()),
        };
        let mut config = Self::default();
        let mut seen = Vec::new();
        for setting in settings.split(',') {
            let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
            let Some((key, expected)) = KEYS.into_iter().find(|(known, _)| *known == key) else {
                let names = KEYS.map(|(known, _)| format!("`{known}=`"));
                return bad(
                    "sim",
                    setting,
                    format!("settings that start with {}", or_list(&names)),
                );
            };
            if seen.contains(&key) {
                return bad("sim", text, format!("`{key}` once"));
            }
            seen.push(key);
            if config.set(key, value).is_none() {
                return bad(&format!("sim:{key}"), value, expected.into());
            }
        }
        Ok(config)
    }
}

/// `a, b or c`.
fn or_list(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [only] => only.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

impl fmt::Display for SimConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = Self::default();
        let mut settings = Vec::new();
        if let Some(rate) = self.bandwidth {
            settings.push(format!("bandwidth={rate}B/s"));
        }
        if self.latency != plain.latency {
            settings.push(format!("latency={}ns", self.latency.as_nanos()));
        }
        if let Some(rate) = self.uplink {
            settings.push(format!("uplink={rate}B/s"));
        }
        if self.memory != plain.memory {
            settings.push(format!("memory={}", self.memory));
        }
        if let Some(bytes) = self.pages {
            settings.push(format!("pages={bytes}"));
        }
        if self.seed != plain.seed {
            settings.push(format!("seed={}", self.seed));
        }
        if self.copy_faults > 0.0 {
            settings.push(format!("copy-faults={}", self.copy_faults));
        }
        if let Some(copies) = self.lost_after {
            settings.push(format!("lost-after={copies}"));
        }
        if let Some(play) = self.cufile {
            settings.push(format!("cufile={}", play.name()));
        }
        let colon = if settings.is_empty() { "" } else { ":" };
        write!(f, "sim{colon}{}", settings.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::units::MIB;

    #[test]
    fn text_and_back() {
        let text = "sim:bandwidth=50GB/s,latency=10us,uplink=2GB/s,memory=8G,pages=1M,\
                    seed=7,copy-faults=0.01,lost-after=9,cufile=short";
        let config: SimConfig = text.parse().expect("a full text");
        let expected = SimConfig {
            bandwidth: Some(50_000_000_000),
            latency: Duration::from_micros(10),
            uplink: Some(2_000_000_000),
            memory: 8 * GIB,
            pages: Some(MIB),
            seed: 7,
            copy_faults: 0.01,
            lost_after: Some(9),
            cufile: Some(SimulatedCuFile::Short),
        };
        assert_eq!(config, expected);
        assert_eq!(config.to_string().parse::<SimConfig>().expect("its own text"), config);
        assert_eq!("sim".parse::<SimConfig>().expect("bare"), SimConfig::default());
        let bare: SimConfig = "sim:cufile".parse().expect("bare");
        assert_eq!(bare.cufile, Some(SimulatedCuFile::P2pDma));
        assert_eq!(SimConfig::default().to_string(), "sim");
    }

    #[test]
    fn an_invalid_setting_names_the_valid_ones() {
        let message = |text: &str| text.parse::<SimConfig>().expect_err(text).to_string();
        assert_eq!(
            message("sim:speed=1"),
            "`sim` cannot be `speed=1`: it takes settings that start with `bandwidth=`, \
             `latency=`, `uplink=`, `memory=`, `pages=`, `seed=`, `copy-faults=`, `lost-after=` or \
             `cufile=`"
        );
        assert_eq!(
            message("sim:bandwidth=fast"),
            "`sim:bandwidth` cannot be `fast`: it takes a rate above zero, such as `50GB/s`"
        );
        assert!(message("sim:").contains("settings that start with"));
        assert!(message("sim:seed=1,seed=2").contains("`seed` once"));
        for bad in [
            "simulated",
            "sim:seed",
            "sim:seed=-1",
            "sim:memory=0",
            "sim:pages=few",
            "sim:bandwidth=0GB/s",
            "sim:uplink=0GB/s",
            "sim:copy-faults=1.5",
            "sim:copy-faults=NaN",
            "sim:latency=x",
            "sim:lost-after=soon",
            "sim:cufile=maybe",
        ] {
            assert!(bad.parse::<SimConfig>().is_err(), "{bad}");
        }
    }
}
