//! A GPU's power, and why its clocks are held down, read through NVML.
//!
//! Measured on an H200 (driver 580.159.04): a reading lasts 2 µs, the instantaneous power updates
//! 10 times a second, and the other power call lags behind a load change by a second or more.

use forebay::gpu::DeviceInfo;

use crate::nvml::{Count, LIBRARY, LOOK, Nvml};
use crate::seen::Seen;

/// `NVML_FI_DEV_POWER_INSTANT`: instantaneous power in milliwatts, from Ampere on.
const POWER_INSTANT: u32 = 186;
/// The bits of NVML's `nvmlClocksEventReason…` that slow a busy GPU: too much power,
/// or too much heat. The other bits are settings, or mean that the GPU is idle.
pub const THROTTLES: [(u64, &str); 5] = [
    (0x4, "software power cap"),
    (0x8, "hardware slowdown"),
    (0x20, "software thermal slowdown"),
    (0x40, "hardware thermal slowdown"),
    (0x80, "hardware power brake"),
];

/// A GPU's sensors.
#[derive(Debug)]
pub struct Sensors {
    nvml: Nvml,
    is_instant: bool,
}

/// A reading of a GPU's sensors, or why a sensor failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sensed {
    /// Power in milliwatts.
    pub power_mw: Result<u64, String>,
    /// Why the clocks are lower than they could be: bits, of which [`THROTTLES`] names some.
    pub throttle: Result<u64, String>,
}

impl Sensors {
    /// Finds the sensors of a GPU. Loads NVML, which may be slow. A MIG instance shows the
    /// sensors of the whole GPU. Missing if its power cannot be read.
    pub fn find(info: &DeviceInfo) -> Seen<Self> {
        if info.simulated {
            return Seen::Nothing("simulated: it takes no power".into());
        }
        Self::find_in(LIBRARY, info)
    }

    fn find_in(library: &str, info: &DeviceInfo) -> Seen<Self> {
        Nvml::find(library, info).and_then(|nvml| {
            let is_instant = instant_power(&nvml).is_ok();
            // Older GPUs support only the average, so its error is reported.
            match nvml.power() {
                Err(why) if !is_instant => Seen::missing(why, LOOK),
                _ => Seen::Value(Self { nvml, is_instant }),
            }
        })
    }

    /// The GPU's PCI address, or its UUID.
    pub fn name(&self) -> &str {
        &self.nvml.name
    }

    /// Describes the power reading.
    pub fn power_is(&self) -> &'static str {
        match self.is_instant {
            true => "power of the moment",
            false => "power, which may be an average over a second",
        }
    }

    /// Reads all sensors.
    pub fn read(&self) -> Sensed {
        let power_mw = match self.is_instant {
            true => instant_power(&self.nvml),
            false => self.nvml.power().map(u64::from),
        };
        Sensed { power_mw, throttle: self.nvml.reasons() }
    }
}

fn instant_power(nvml: &Nvml) -> Result<u64, String> {
    let [power] = nvml.fields([POWER_INSTANT])?;
    power.map(Count::value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvml::fake::{FIND, INIT, library};
    use forebay::gpu::{DeviceId, DeviceKind};

    /// Reads after the second fail.
    const REASONS_AT_FIRST: &str = "static int reads;\n\
        int nvmlDeviceGetCurrentClocksEventReasons(void *d, unsigned long long *r)\n\
        { if (++reads > 2) return 15; *r = 0x24; return 0; }\n";
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
    fn found(parts: &[&str]) -> Option<Seen<Sensors>> {
        let (_folder, path) = library(parts)?;
        Some(Sensors::find_in(&path, &info()))
    }

    fn value(seen: Option<Seen<Sensors>>) -> Option<Sensors> {
        match seen? {
            Seen::Value(sensors) => Some(sensors),
            other => panic!("{:?}", other.absence()),
        }
    }

    #[test]
    fn all_sensors_are_read_and_what_falls_away_is_named() {
        let parts = [INIT, FIND, INSTANT, USAGE, REASONS_AT_FIRST];
        let Some(sensors) = value(found(&parts)) else { return };
        assert_eq!((sensors.power_is(), sensors.name()), ("power of the moment", "0000:1b:00.0"));
        let first = sensors.read();
        // The upper half of the field is ignored.
        let whole = Sensed { power_mw: Ok(0x12345), throttle: Ok(0x24) };
        assert_eq!((&first, &sensors.read()), (&whole, &whole));
        let after = sensors.read();
        assert_eq!(after.power_mw, first.power_mw);
        let why = after.throttle.unwrap_err();
        assert_eq!(why, "nvmlDeviceGetCurrentClocksEventReasons: Other (15)");
    }

    #[test]
    fn a_library_without_some_functions_has_the_other_sensors() {
        let parts = [INIT, FIND, USAGE, REASONS_BEFORE];
        let Some(sensors) = value(found(&parts)) else { return };
        assert!(sensors.power_is().contains("average"));
        assert_eq!(sensors.read(), Sensed { power_mw: Ok(69_000), throttle: Ok(1) });
        let sensors = value(found(&[INIT, FIND, USAGE])).unwrap();
        let why = sensors.read().throttle.unwrap_err();
        assert_eq!(why, "NVML has no `nvmlDeviceGetCurrentClocksEventReasons`");
    }

    #[test]
    fn missing_sensors_have_a_reason() {
        let simulated = Sensors::find(&DeviceInfo { simulated: true, ..info() });
        assert_eq!(simulated.absence().unwrap(), "simulated: it takes no power");
        let none = Sensors::find_in("/nonexistent/libnvidia-ml.so.1", &info()).absence().unwrap();
        assert!(none.contains("cannot load `/nonexistent/"), "{none}");
        assert!(none.ends_with("(install the driver's `libnvidia-ml.so.1`)"), "{none}");
        let Some(none) = found(&[INIT, FIND]) else { return };
        let none = none.absence().unwrap();
        assert!(none.contains("NVML has no `nvmlDeviceGetPowerUsage`"), "{none}");
        assert!(none.contains("nvidia-smi"), "{none}");
        let lost =
            found(&[INIT, "int nvmlDeviceGetHandleByUUID(char *a, void **d) { return 15; }"]);
        assert!(lost.unwrap().absence().unwrap().contains("Other (15) of `GPU-1`"));
    }
}
