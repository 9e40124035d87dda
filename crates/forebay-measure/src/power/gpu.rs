//! Power and throttling of GPUs, by NVML.

use std::time::Duration;

use forebay::gpu::DeviceInfo;
use forebay_evidence::{Sensed, Sensors};

use super::result::{Absent, Part};
use super::track::{About, Reading, Value};
use super::{CHIP_WATTS_MAX, Found, PERIOD, Sensor, watts};

/// A shorter span has too few readings.
const ROUGH: Duration = Duration::from_millis(500);

/// Finds the sensors of GPUs.
pub(super) fn find(gpus: &[DeviceInfo], found: &mut Found) {
    for info in gpus {
        let name = format!("gpu {}", info.id);
        match Sensors::find(info) {
            Ok(sensors) => {
                let lacks = sensors.missing().iter().map(|why| Absent::silent(&name, why));
                found.absent.extend(lacks);
                let Some(power_is) = sensors.power_is() else { continue };
                let about = About {
                    name,
                    part: Part::Gpu,
                    how: format!("NVML: {power_is}, integrated"),
                    rough: ROUGH,
                    reach: 5 * PERIOD / 2,
                };
                let read = Box::new(move || reading(&sensors.read()));
                found.quick.push(Sensor { about, read });
            }
            Err(none) => {
                let absent = Absent::new(name, none.why);
                let there = !info.simulated;
                found.absent.push(Absent { remedy: none.remedy, there, ..absent });
            }
        }
    }
}

fn reading(sensed: &Sensed) -> Reading {
    let failed = || sensed.failed.clone().unwrap_or_else(|| "no value".into());
    #[expect(clippy::cast_precision_loss, reason = "no power needs more than 52 bits")]
    let power = sensed.power_mw.map(|milliwatts| milliwatts as f64 / 1e3).ok_or_else(failed);
    Reading {
        value: power.and_then(|power| watts(power, CHIP_WATTS_MAX)).map(Value::Watts),
        held_back: sensed.throttle.unwrap_or_default().held_back(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay::gpu::{DeviceId, DeviceKind};

    #[test]
    fn a_reading_is_checked() {
        let mut sensed = Sensed::default();
        assert_eq!(reading(&sensed).value, Err("no value".into()));
        sensed.power_mw = Some(69_500);
        assert_eq!(reading(&sensed).value, Ok(Value::Watts(69.5)));
        sensed.power_mw = Some(u64::MAX);
        assert!(reading(&sensed).value.unwrap_err().contains("not plausible"));
    }

    #[test]
    fn a_simulated_gpu_has_no_sensors_and_the_reason_is_reported() {
        let info = DeviceInfo {
            id: DeviceId { kind: DeviceKind::Sim, index: 0 },
            name: String::new(),
            uuid: String::new(),
            pci_address: String::new(),
            driver: String::new(),
            memory: 1,
            simulated: true,
        };
        let mut found = Found::default();
        find(&[info], &mut found);
        assert!(found.quick.is_empty());
        assert_eq!(found.absent, [Absent::new("gpu sim:0", "simulated: it takes no power")]);
    }
}
