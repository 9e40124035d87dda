//! A GPU's power, and why its clocks are held down, read through NVML. Either may be missing.
//!
//! Measured on an H200 (driver 580.159.04): a reading takes 2 µs, the instantaneous power updates
//! 10 times a second, and the other power call lags behind a load change by a second or more.

use std::fmt;

use forebay::gpu::DeviceInfo;

use crate::nvml::{Count, Handle, INSTALL, LIBRARY, LOOK, Nvml};

/// `NVML_FI_DEV_POWER_INSTANT`: instantaneous power in milliwatts, from Ampere on.
const POWER_INSTANT: u32 = 186;

/// A GPU's sensors.
#[derive(Debug)]
pub struct Sensors {
    nvml: Nvml,
    handle: Handle,
    name: String,
    power: Option<Power>,
    throttle: bool,
    missing: Vec<String>,
}

/// The NVML call that power is read with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Power {
    Instant,
    Usage,
}

/// One reading of a GPU's sensors. A sensor that is missing, or whose read failed, is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sensed {
    /// Power in milliwatts.
    pub power_mw: Option<u64>,
    /// Why the clocks are lower than they could be.
    pub throttle: Option<ThrottleReasons>,
    /// Why a sensor that worked before could not be read this time.
    pub failed: Option<String>,
}

/// Why no sensors are available.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}{}", remedy.as_ref().map(|remedy| format!(" ({remedy})")).unwrap_or_default())]
pub struct NoSensors {
    /// The reason.
    pub why: String,
    /// How to fix it; `None` if nothing can be done.
    pub remedy: Option<String>,
}

impl Sensors {
    /// Finds the sensors of a GPU. Loads NVML, which may take a while. A MIG instance has the
    /// sensors of the whole GPU.
    ///
    /// # Errors
    /// NVML or the GPU is missing, or no sensor can be read.
    pub fn find(info: &DeviceInfo) -> Result<Self, NoSensors> {
        if info.simulated {
            let why = "simulated: it takes no power".into();
            return Err(NoSensors { why, remedy: None });
        }
        Self::find_in(LIBRARY, info)
    }

    fn find_in(library: &str, info: &DeviceInfo) -> Result<Self, NoSensors> {
        let none = |why, remedy: &str| NoSensors { why, remedy: Some(remedy.into()) };
        let nvml = Nvml::load(library).map_err(|why| none(why, INSTALL))?;
        let found = nvml.find(&info.pci_address, &info.uuid).map_err(|why| none(why, LOOK))?;
        let (handle, name) = found;
        let mut missing = Vec::new();
        let mut has = |told: Result<(), String>| told.map_err(|why| missing.push(why)).is_ok();
        let power = match instant_power(&nvml, handle) {
            Ok(_) => Some(Power::Instant),
            // Older GPUs have only this call, so the error reported is the one of this call.
            Err(_) => has(nvml.power(handle).map(drop)).then_some(Power::Usage),
        };
        let throttle = has(nvml.reasons(handle).map(drop));
        if power.is_none() && !throttle {
            return Err(none(missing.join("; "), LOOK));
        }
        Ok(Self { nvml, handle, name, power, throttle, missing })
    }

    /// The GPU's PCI address, or its UUID.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Describes the power reading; `None` if there is none.
    #[must_use]
    pub fn power_is(&self) -> Option<&'static str> {
        Some(match self.power? {
            Power::Instant => "power of the moment",
            Power::Usage => "power, which may be an average over a second",
        })
    }

    /// Whether throttle reasons can be read.
    #[must_use]
    pub fn has_throttle_reasons(&self) -> bool {
        self.throttle
    }

    /// Why sensors are missing, one entry for each.
    #[must_use]
    pub fn missing(&self) -> &[String] {
        &self.missing
    }

    /// Reads all sensors.
    #[must_use]
    pub fn read(&self) -> Sensed {
        fn note<T>(told: Result<T, String>, failed: &mut Option<String>) -> Option<T> {
            told.map_err(|why| failed.get_or_insert(why).len()).ok()
        }
        let (nvml, gpu) = (&self.nvml, self.handle);
        let mut sensed = Sensed::default();
        let failed = &mut sensed.failed;
        let power = self.power.map(|power| match power {
            Power::Instant => instant_power(nvml, gpu),
            Power::Usage => nvml.power(gpu).map(u64::from),
        });
        sensed.power_mw = power.and_then(|told| note(told, failed));
        let reasons = self.throttle.then(|| nvml.reasons(gpu));
        sensed.throttle = reasons.and_then(|told| note(told, failed)).map(ThrottleReasons);
        sensed
    }
}

fn instant_power(nvml: &Nvml, gpu: Handle) -> Result<u64, String> {
    let [power] = nvml.fields(gpu, [POWER_INSTANT])?;
    power.map(Count::value)
}

/// Why a GPU's clocks are lower than they could be: the bits of NVML's `nvmlClocksEventReason…`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct ThrottleReasons(pub u64);

/// Each bit, its name, and whether it slows a GPU that has work to do. The other bits are settings,
/// or mean that the GPU is idle.
const REASONS: [(u64, &str, bool); 9] = [
    (0x1, "idle", false),
    (0x2, "application clocks setting", false),
    (0x4, "software power cap", true),
    (0x8, "hardware slowdown", true),
    (0x10, "sync boost", false),
    (0x20, "software thermal slowdown", true),
    (0x40, "hardware thermal slowdown", true),
    (0x80, "hardware power brake", true),
    (0x100, "display clock setting", false),
];

impl ThrottleReasons {
    /// Only the reasons that slow a GPU that has work to do: too much power, or too much heat.
    #[must_use]
    pub fn held_back(self) -> Self {
        let bits = REASONS.iter().filter(|(_, _, holds)| *holds).map(|(bit, ..)| bit);
        Self(self.0 & bits.sum::<u64>())
    }

    /// The reasons one by one.
    pub fn each(self) -> impl Iterator<Item = Self> {
        (0..u64::BITS).map(move |bit| Self(self.0 & 1 << bit)).filter(|reason| reason.0 != 0)
    }
}

impl fmt::Display for ThrottleReasons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("none");
        }
        for (index, reason) in self.each().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            match REASONS.iter().find(|(bit, ..)| *bit == reason.0) {
                Some((_, name, _)) => write!(f, "{comma}{name}")?,
                None => write!(f, "{comma}reason {:#x}", reason.0)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvml::played::{FIND, INIT, library};
    use forebay::gpu::{DeviceId, DeviceKind};

    /// Reads after the third fail.
    const REASONS_AT_FIRST: &str = "static int reads;\n\
        int nvmlDeviceGetCurrentClocksEventReasons(void *d, unsigned long long *r)\n\
        { if (++reads > 3) return 15; *r = 0x24; return 0; }\n";
    const INSTANT: &str = "struct value { unsigned field, scope; long long time, latency;\n\
          unsigned kind, status; unsigned long long value; };\n\
        int nvmlDeviceGetFieldValues(void *d, int n, struct value *v)\n\
        { if (n != 1 || v->field != 186 || v->scope) return 2;\n\
          v->status = 0; v->kind = 1; v->value = 0xffffffff00012345ull; return 0; }\n";
    const USAGE: &str =
        "int nvmlDeviceGetPowerUsage(void *d, unsigned *mw) { *mw = 69000; return 0; }\n";
    const REASONS_BEFORE: &str = "\
        int nvmlDeviceGetCurrentClocksThrottleReasons(void *d, unsigned long long *r)\n\
        { *r = 0x1; return 0; }\n";

    fn info() -> DeviceInfo {
        DeviceInfo {
            id: DeviceId { kind: DeviceKind::Cuda, index: 0 },
            name: "H200".into(),
            uuid: "GPU-1".into(),
            pci_address: "0000:1b:00.0".into(),
            driver: "580.159".into(),
            memory: 1 << 30,
            simulated: false,
        }
    }

    /// The sensors of a mock library of these `parts`; `None` without a compiler.
    fn found(parts: &[&str]) -> Option<Result<Sensors, NoSensors>> {
        let (_folder, path) = library(parts)?;
        Some(Sensors::find_in(&path, &info()))
    }

    #[test]
    fn all_sensors_are_read_and_what_falls_away_is_named() {
        let parts = [INIT, FIND, INSTANT, USAGE, REASONS_AT_FIRST];
        let Some(sensors) = found(&parts) else { return };
        let sensors = sensors.unwrap();
        assert!(sensors.has_throttle_reasons());
        assert_eq!(sensors.power_is(), Some("power of the moment"));
        assert_eq!((sensors.name(), sensors.missing().len()), ("0000:1b:00.0", 0));
        let first = sensors.read();
        let whole = Sensed {
            power_mw: Some(0x12345), // the upper half of the field is ignored
            throttle: Some(ThrottleReasons(0x24)),
            failed: None,
        };
        assert_eq!((&first, &sensors.read()), (&whole, &whole));
        let after = sensors.read();
        assert_eq!((after.throttle, after.power_mw), (None, first.power_mw));
        let why = after.failed.unwrap();
        assert_eq!(why, "nvmlDeviceGetCurrentClocksEventReasons: Other (15)");
    }

    #[test]
    fn a_library_without_some_functions_has_the_other_sensors() {
        let Some(sensors) = found(&[INIT, FIND, USAGE, REASONS_BEFORE]) else { return };
        let sensors = sensors.unwrap();
        assert!(sensors.power_is().unwrap().contains("average"));
        assert_eq!(sensors.missing(), [""; 0]);
        let sensed = sensors.read();
        assert_eq!((sensed.power_mw, sensed.failed), (Some(69_000), None));
        assert_eq!(sensed.throttle, Some(ThrottleReasons(1)));
        let sensors = found(&[INIT, FIND, USAGE]).unwrap().unwrap();
        assert!(!sensors.has_throttle_reasons());
        assert_eq!(sensors.missing(), ["NVML has no `nvmlDeviceGetCurrentClocksEventReasons`"]);
    }

    #[test]
    fn where_there_are_none_the_reason_is_said() {
        let why = |info: &DeviceInfo| Sensors::find(info).unwrap_err();
        let simulated = why(&DeviceInfo { simulated: true, ..info() });
        assert_eq!(simulated.to_string(), "simulated: it takes no power");
        let none = Sensors::find_in("/nonexistent/libnvidia-ml.so.1", &info()).unwrap_err();
        assert!(none.why.contains("cannot load `/nonexistent/"), "{none}");
        assert!(none.to_string().ends_with("(install the driver's `libnvidia-ml.so.1`)"), "{none}");
        let Some(none) = found(&[INIT, FIND]) else { return };
        let none = none.unwrap_err();
        assert!(none.why.contains("NVML has no `nvmlDeviceGetPowerUsage`; "), "{none}");
        assert!(none.remedy.unwrap().contains("nvidia-smi"));
        let lost =
            found(&[INIT, "int nvmlDeviceGetHandleByUUID(char *a, void **d) { return 15; }"]);
        assert!(lost.unwrap().unwrap_err().why.contains("Other (15) of `GPU-1`"));
    }

    #[test]
    fn what_holds_a_gpu_back_is_told_from_settings() {
        let all = ThrottleReasons(0x3ff);
        assert_eq!(all.held_back(), ThrottleReasons(0xec));
        assert_eq!(ThrottleReasons(0x113).held_back(), ThrottleReasons(0));
        assert_eq!(all.each().count(), 10);
        assert_eq!(ThrottleReasons(0).to_string(), "none");
        let text = ThrottleReasons(0x60 | 1 << 63).to_string();
        let heat = "software thermal slowdown, hardware thermal slowdown";
        assert_eq!(text, format!("{heat}, reason 0x8000000000000000"));
    }
}
