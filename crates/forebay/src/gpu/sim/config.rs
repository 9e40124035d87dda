//! How a simulated GPU behaves, and the text that people write for it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::units::{GIB, parse_duration, parse_rate, parse_size};

/// How the simulated GPU behaves.
///
/// Its text form is `sim`, or `sim:` and any of `bandwidth=50GB/s`, `latency=10us`,
/// `uplink=100GB/s`, `memory=8G`, `pages=1G`, `seed=7`, `copy-faults=0.01`, `lost-after=20` and
/// `cufile`, with commas between them.
#[derive(Debug, Clone, PartialEq)]
pub struct SimConfig {
    /// Link speed in bytes per second, each direction; `None` is as fast as memory copies.
    pub bandwidth: Option<u64>,
    /// Time that each copy takes of the link beside its bytes.
    pub latency: Duration,
    /// Bytes per second, each direction, of the switch above it, which it shares with those
    /// [beside](super::SimDevice::beside) it whose uplink is as fast; `None`: it shares nothing.
    pub uplink: Option<u64>,
    /// Bytes of device memory. It is only address space until it is written.
    pub memory: u64,
    /// Bytes of [read-only memory](crate::gpu::Device::register_read_only), as pages of files are,
    /// that its driver pins at most, those pinned for GPUs beside it counted in; `None`: whatever
    /// it is asked to.
    pub pages: Option<u64>,
    /// Seed of the faults.
    pub seed: u64,
    /// Share of copies that fail, 0 to 1.
    pub copy_faults: f64,
    /// Copies that it takes before it is lost, as a GPU that falls off its bus; `None`: it never
    /// is. What is queued by then is carried out, but nobody is told.
    pub lost_after: Option<u64>,
    /// How the cuFile that is played with it behaves (`cufile`, or `cufile=` and one of
    /// [`CuFilePlay::ALL`]); `None`: there is none.
    pub cufile: Option<CuFilePlay>,
}

/// How a played cuFile behaves, by its seed where that matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CuFilePlay {
    /// Bytes go straight to the GPU, by peer-to-peer DMA as it says.
    P2pDma,
    /// The same, by nvidia-fs as it says.
    NvidiaFs,
    /// It refuses every file.
    Refuse,
    /// It answers some requests with fewer bytes.
    Short,
    /// After some requests it answers with errors.
    Fail,
    /// It says that it has moved what it has not.
    Lie,
    /// After some requests it answers no more.
    Hang,
    /// It does not answer when it is to know a file.
    HangOpen,
    /// It does not answer when it is to forget a file.
    HangClose,
}

impl CuFilePlay {
    /// Every way, with its name.
    pub const ALL: [(&'static str, Self); 9] = [
        ("p2pdma", Self::P2pDma),
        ("nvidia-fs", Self::NvidiaFs),
        ("refuse", Self::Refuse),
        ("short", Self::Short),
        ("fail", Self::Fail),
        ("lie", Self::Lie),
        ("hang", Self::Hang),
        ("hang-open", Self::HangOpen),
        ("hang-close", Self::HangClose),
    ];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, play)| *play == self).map_or("", |(name, _)| name)
    }
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

/// Every setting, and what it may hold.
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
    /// Takes one setting; `None` where `value` is nothing that `key` may hold.
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
            "cufile" if value.is_empty() => self.cufile = Some(CuFilePlay::P2pDma),
            "cufile" => {
                let (_, play) = CuFilePlay::ALL.into_iter().find(|(name, _)| *name == value)?;
                self.cufile = Some(play);
            }
            _ => return None,
        }
        Some(())
    }
}

impl FromStr for SimConfig {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = |name: &str, value: &str, expected: String| {
            Err(Error::BadOption { name: name.into(), value: value.into(), expected })
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
    use crate::units::MIB;

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
            cufile: Some(CuFilePlay::Short),
        };
        assert_eq!(config, expected);
        assert_eq!(config.to_string().parse::<SimConfig>().expect("its own text"), config);
        assert_eq!("sim".parse::<SimConfig>().expect("bare"), SimConfig::default());
        let bare: SimConfig = "sim:cufile".parse().expect("bare");
        assert_eq!(bare.cufile, Some(CuFilePlay::P2pDma));
        assert_eq!(SimConfig::default().to_string(), "sim");
    }

    #[test]
    fn nonsense_names_what_may_stand_there() {
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
