//! Power and throttling of GPUs, by NVML.

use std::time::Duration;

use forebay::gpu::DeviceInfo;
use forebay_evidence::{Missing, Seen, Sensed, Sensors};

use super::result::{Absent, Part};
use super::track::{About, Reading};
use super::{CHIP_WATTS_MAX, Found, OTHERS, PERIOD, Sensor, watts};

/// A shorter span has too few readings.
const ROUGH: Duration = Duration::from_millis(500);

/// Finds the sensors of GPUs.
pub(super) fn find(gpus: &[DeviceInfo], found: &mut Found) {
    for info in gpus {
        let name = format!("gpu {}", info.id);
        let sensors = match Sensors::find(info) {
            Seen::Value(sensors) => sensors,
            Seen::Missing(Missing { why, remedy }) => {
                found.absent.push(Absent::new(name, why).remedy(remedy));
                continue;
            }
            none => {
                found.absent.push(Absent::new(name, none.absence().unwrap_or_default()));
                continue;
            }
        };
        let lack = |why| Absent::new(&name, why).remedy(OTHERS);
        found.absent.extend(sensors.read().throttle.err().map(lack));
        let about = About {
            name,
            part: Part::Gpu,
            how: format!("NVML: {}, integrated", sensors.power_is()),
            is_counter: false,
            rough: ROUGH,
            reach: 5 * PERIOD / 2,
        };
        found.quick.push(Sensor { about, read: Box::new(move || reading(sensors.read())) });
    }
}

fn reading(sensed: Sensed) -> Reading {
    #[expect(clippy::cast_precision_loss, reason = "no power needs more than 52 bits")]
    let power = sensed.power_mw.map(|milliwatts| milliwatts as f64 / 1e3);
    Reading {
        value: power.and_then(|power| watts(power, CHIP_WATTS_MAX)),
        throttle: sensed.throttle.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay::gpu::{DeviceId, DeviceKind};

    #[test]
    fn a_reading_is_checked() {
        let value = |power_mw| reading(Sensed { power_mw, throttle: Ok(0) }).value;
        assert_eq!(value(Err("no value".into())), Err("no value".into()));
        assert_eq!(value(Ok(69_500)), Ok(69.5));
        assert!(value(Ok(u64::MAX)).unwrap_err().contains("not plausible"));
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
