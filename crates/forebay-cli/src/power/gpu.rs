//! Energy, power, temperature and throttling of GPUs.
//!
//! If a GPU reports both an energy counter and its power, both are read: the counter advances too
//! seldom for a short span. The counter also takes so long to read (`forebay_evidence::Sensors` has
//! the numbers) that it is read where spans begin and end, and once a second between.

use std::time::{Duration, Instant};

use forebay::gpu::DeviceInfo;
use forebay_evidence::{Sensed, Sensors, ThrottleReasons};

use super::result::{Absent, Part};
use super::sensor::{CELSIUS, CHIP_WATTS_MAX, Channel, Found, Joules, Kind, Sensor, Value, watts};

/// Joules in the unit of the GPU's counter.
const MILLIJOULE: f64 = 1e-3;
/// How often the counter advances on an H200.
const STEP: Duration = Duration::from_millis(100);
/// How often it is read when no span begins or ends.
const PERIOD: Duration = Duration::from_secs(1);

/// The sensors of one GPU.
struct Gpu {
    name: String,
    has_energy: bool,
    power_is: Option<&'static str>,
    has_temperature: bool,
    has_reasons: bool,
    /// Reads the sensors, including the energy counter if requested.
    read: Box<dyn FnMut(bool) -> Sensed + Send>,
    joules: Joules,
    /// When the counter was last read.
    last: Option<Instant>,
}

/// Finds the sensors of GPUs.
pub(super) fn find(gpus: &[DeviceInfo], found: &mut Found) {
    for info in gpus {
        let name = format!("gpu {}", info.id);
        match Sensors::find(info) {
            Ok(sensors) => {
                let lacks = sensors.missing().iter().map(|why| Absent::silent(&name, why));
                found.absent.extend(lacks);
                found.quick.push(Box::new(Gpu {
                    name,
                    has_energy: sensors.has_energy(),
                    power_is: sensors.power_is(),
                    has_temperature: sensors.has_temperature(),
                    has_reasons: sensors.has_throttle_reasons(),
                    read: Box::new(move |all| {
                        if all { sensors.read() } else { sensors.read_without_energy() }
                    }),
                    joules: Joules::default(),
                    last: None,
                }));
            }
            Err(none) => {
                let absent = Absent::new(name, none.why);
                let there = !info.simulated;
                found.absent.push(Absent { remedy: none.remedy, there, ..absent });
            }
        }
    }
}

impl Sensor for Gpu {
    fn channels(&self) -> Vec<Channel> {
        let energy = self.has_energy.then(|| {
            let how = "NVML: energy counter".into();
            Kind::Energy { part: Part::Gpu, how, step: STEP }
        });
        let power = self.power_is.map(|what| {
            let how = format!("NVML: {what}, integrated");
            Kind::Power { part: Part::Gpu, how }
        });
        let heat = self.has_temperature.then_some(Kind::Heat);
        let reasons = self.has_reasons.then_some(Kind::Reasons { about });
        let kinds = [energy, power, heat, reasons].into_iter().flatten();
        kinds.map(|kind| Channel { name: self.name.clone(), kind }).collect()
    }

    fn read(&mut self, asked: bool) -> Vec<Result<Value, String>> {
        let all = asked || self.last.is_none_or(|last| last.elapsed() >= PERIOD);
        let sensed = (self.read)(all);
        let untold = || sensed.failed.clone().unwrap_or_else(|| "no value".into());
        let energy = self.has_energy.then(|| {
            if !all {
                return Ok(Value::Unread);
            }
            let now = Instant::now();
            let elapsed = self.last.replace(now).map(|last| now - last).unwrap_or_default();
            let counter = sensed.energy_mj.ok_or_else(untold)?;
            self.joules.add(counter, None, MILLIJOULE, elapsed).map(Value::Number)
        });
        let power = self.power_is.map(|_| {
            #[expect(clippy::cast_precision_loss, reason = "no power needs more than 52 bits")]
            let told = sensed.power_mw.ok_or_else(untold)? as f64 / 1e3;
            watts(told, CHIP_WATTS_MAX).map(Value::Number)
        });
        let heat = self.has_temperature.then(|| {
            #[expect(clippy::cast_precision_loss, reason = "no temperature does either")]
            let told = sensed.temperature_c.ok_or_else(untold)? as f64;
            let can_be = CELSIUS.contains(&told).then_some(Value::Number(told));
            can_be.ok_or_else(|| format!("{told} °C is not plausible"))
        });
        let reasons = self.has_reasons.then(|| {
            let told = sensed.throttle.ok_or_else(untold)?;
            Ok(Value::Bits(told.held_back().0))
        });
        [energy, power, heat, reasons].into_iter().flatten().collect()
    }
}

fn about(bit: u64) -> Option<(String, &'static str)> {
    let reason = ThrottleReasons(bit);
    let advice = "`nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER` shows what limits it";
    (reason.held_back().0 != 0).then(|| (reason.to_string(), advice))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay::gpu::{DeviceId, DeviceKind};

    /// A GPU whose sensors report the entries of `told` in order.
    fn gpu(mut told: Vec<Sensed>) -> Gpu {
        Gpu {
            name: "gpu cuda:0".into(),
            has_energy: true,
            power_is: Some("power of the moment"),
            has_temperature: true,
            has_reasons: true,
            read: Box::new(move |all| {
                let told = told.remove(0);
                if all { told } else { without_energy(told) }
            }),
            joules: Joules::default(),
            last: None,
        }
    }

    fn without_energy(mut sensed: Sensed) -> Sensed {
        sensed.energy_mj = None;
        sensed
    }

    fn sensed(energy_mj: u64, power_mw: u64, temperature_c: i64, reasons: u64) -> Sensed {
        let mut sensed = Sensed::default();
        sensed.energy_mj = Some(energy_mj);
        sensed.power_mw = Some(power_mw);
        sensed.temperature_c = Some(temperature_c);
        sensed.throttle = Some(ThrottleReasons(reasons));
        sensed
    }

    #[test]
    fn each_sensor_has_a_channel() {
        let mut gpu = gpu(vec![sensed(5_000, 70_000, 31, 1), sensed(12_000, 80_500, 40, 0x61)]);
        let kinds: Vec<String> = gpu
            .channels()
            .into_iter()
            .map(|channel| format!("{:?}", channel.kind).chars().take(4).collect())
            .collect();
        assert_eq!(kinds, ["Ener", "Powe", "Heat", "Reas"]);
        let [zero, bits] = [Value::Number(0.0), Value::Bits(0)].map(Ok);
        let number = |number| Ok(Value::Number(number));
        assert_eq!(gpu.read(false), [zero, number(70.0), number(31.0), bits]);
        let bits = Ok(Value::Bits(0x60)); // it was idle as well, which is no throttling
        assert_eq!(gpu.read(true), [number(7.0), number(80.5), number(40.0), bits]);
    }

    #[test]
    fn the_counter_is_read_where_somebody_asks_and_now_and_then() {
        let told = |n: u64| sensed(n * 1000, 1, 20, 0);
        let mut gpu = gpu(vec![told(1), told(2), told(3), told(5)]);
        let number = |number| Ok(Value::Number(number));
        assert_eq!(gpu.read(false)[0], number(0.0), "the first");
        assert_eq!(gpu.read(false)[0], Ok(Value::Unread));
        assert_eq!(gpu.read(true)[0], number(2.0));
        gpu.last = Instant::now().checked_sub(PERIOD);
        assert_eq!(gpu.read(false)[0], number(4.0));
    }

    #[test]
    fn what_cannot_be_or_is_not_told_is_no_reading() {
        let mut lost = Sensed::default();
        lost.failed = Some("GPU is lost (15)".into());
        let mut gpu =
            gpu(vec![sensed(0, 0, 1 << 40, 0), lost, sensed(u64::MAX, u64::MAX, -300, 0)]);
        gpu.read(true);
        assert!(gpu.read(true).iter().all(|told| told == &Err("GPU is lost (15)".into())));
        let told = gpu.read(true);
        assert!(told[..3].iter().all(Result::is_err) && told[3].is_ok(), "{told:?}");
    }

    #[test]
    fn only_what_holds_back_has_a_name_and_advice() {
        assert_eq!(about(0x40).unwrap().0, "hardware thermal slowdown");
        assert!(about(0x40).unwrap().1.contains("nvidia-smi"));
        assert!(about(0x1).is_none() && about(1 << 40).is_none());
    }

    #[test]
    fn a_simulated_gpu_has_no_sensors_and_the_reason_is_said() {
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
        assert!(found.quick.is_empty() && found.slow.is_empty());
        let absent = Absent::new("gpu sim:0", "simulated: it takes no power");
        assert_eq!(found.absent, [absent]);
    }
}
