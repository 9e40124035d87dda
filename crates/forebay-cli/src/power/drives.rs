//! Drive temperatures, as their drivers report them (`nvme`, `drivetemp`).
//!
//! A drive reports throttling only to its own commands, but it reports the temperature from which
//! it may throttle: `temp1_max` and `temp1_crit` are an NVMe drive's own warning and critical
//! thresholds, and `temp1_alarm` reports that one of them is passed. Each reading may be a command
//! to the drive (the kernel queries an NVMe drive once a second at most).

use forebay_topology::System;

use super::hwmon::shortened;
use super::result::Absent;
use super::sensor::{CELSIUS, Channel, Found, Kind, Sensor, Value};

/// Most drives that are read.
const DRIVES_MAX: usize = 256;
/// Most controllers of one drive that are read.
const PATHS_MAX: usize = 16;

/// At or above the temperature from which the drive warns.
const WARM: u64 = 1;
/// At or above its critical temperature.
const CRITICAL: u64 = 2;
/// The drive reports it itself.
const ALARM: u64 = 4;

/// A drive's sensor.
struct Thermometer {
    system: System,
    name: String,
    /// The folder of the chip.
    chip: String,
    warm: Option<f64>,
    critical: Option<f64>,
}

/// Finds the sensors of drives by the kernel's names for them: `nvme0n1`, `sda`, `nvme0`.
pub(super) fn find(system: &System, drives: &[String], found: &mut Found) {
    for drive in drives.iter().take(DRIVES_MAX) {
        let name = format!("drive {}", shortened(drive));
        let is_name = drive.len() <= 64
            && drive.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
        if drive.is_empty() || !is_name {
            found.absent.push(Absent::new(name, "not a kernel name of a block device"));
            continue;
        }
        let before = (found.slow.len(), found.absent.len());
        for (path, chip) in chips(system, drive) {
            let name = if path == *drive { name.clone() } else { format!("{name} ({path})") };
            let system = system.clone();
            let limit = |file: &str| celsius(&system, &format!("{chip}/{file}")).ok();
            let (warm, critical) = (limit("temp1_max"), limit("temp1_crit"));
            let sensor = Thermometer { system: system.clone(), name, chip, warm, critical };
            match sensor.now() {
                Ok(_) => found.slow.push(Box::new(sensor)),
                Err(why) => found.absent.push(Absent::silent(sensor.name, why)),
            }
        }
        if (found.slow.len(), found.absent.len()) == before {
            let lack = Absent::new(name, "it has no temperature sensor in `/sys`");
            let is_sata = drive.starts_with("sd");
            let module = "load the module `drivetemp`, which queries SATA drives";
            found.absent.push(if is_sata { lack.remedy(module) } else { lack });
        }
    }
}

/// The folders of a drive's chips, each with the name of its controller or of the drive.
fn chips(system: &System, drive: &str) -> Vec<(String, String)> {
    let list = |folder: &str| system.names_in(folder).unwrap_or_default();
    let below = |folder: &str| -> Option<String> {
        // A driver's chip is in its device's folder, or in `hwmon/` there.
        let places = [folder.to_owned(), format!("{folder}/hwmon")];
        places.into_iter().find_map(|place| {
            let is_chip = |name: &String| {
                let number = name.strip_prefix("hwmon").unwrap_or_default();
                !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
            };
            list(&place).into_iter().find(is_chip).map(|chip| format!("{place}/{chip}"))
        })
    };
    let own = [format!("sys/class/nvme/{drive}"), format!("sys/block/{drive}/device")];
    if let Some(chip) = own.iter().find_map(|folder| below(folder)) {
        return vec![(drive.to_owned(), chip)];
    }
    // With multipath a namespace's device is a subsystem, which has its controllers.
    let subsystem = format!("sys/block/{drive}/device");
    let controllers = list(&subsystem).into_iter().filter(|name| {
        let number = name.strip_prefix("nvme").unwrap_or_default();
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    });
    let chip = |name: String| below(&format!("{subsystem}/{name}")).map(|chip| (name, chip));
    controllers.take(PATHS_MAX).filter_map(chip).collect()
}

/// Degrees from a file of thousandths of them.
fn celsius(system: &System, path: &str) -> Result<f64, String> {
    let text = system.small_file(path).map_err(|error| format!("`/{path}`: {error}"))?;
    let thousandths: f64 =
        text.parse().map_err(|_| format!("`/{path}` is not a number: `{}`", shortened(&text)))?;
    let degrees = thousandths / 1e3;
    let can_be = CELSIUS.contains(&degrees);
    can_be.then_some(degrees).ok_or_else(|| format!("`/{path}`: {degrees} °C is not plausible"))
}

impl Thermometer {
    fn now(&self) -> Result<f64, String> {
        celsius(&self.system, &format!("{}/temp1_input", self.chip))
    }
}

impl Sensor for Thermometer {
    fn channels(&self) -> Vec<Channel> {
        let channel = |kind| Channel { name: self.name.clone(), kind };
        vec![channel(Kind::Heat), channel(Kind::Reasons { about })]
    }

    fn read(&mut self, _asked: bool) -> Vec<Result<Value, String>> {
        let now = self.now();
        let alarm = self.system.small_file(format!("{}/temp1_alarm", self.chip));
        let bits = now.clone().map(|now| {
            let above = |limit: Option<f64>| limit.is_some_and(|limit| now >= limit);
            let warm = if above(self.warm) { WARM } else { 0 };
            let critical = if above(self.critical) { CRITICAL } else { 0 };
            warm | critical | if alarm.is_ok_and(|alarm| alarm == "1") { ALARM } else { 0 }
        });
        vec![now.map(Value::Number), bits.map(Value::Bits)]
    }
}

fn about(bit: u64) -> Option<(String, &'static str)> {
    let what = match bit {
        WARM => "above its warning temperature, and may be slower",
        CRITICAL => "above its critical temperature",
        ALARM => "a temperature alarm",
        _ => return None,
    };
    Some((what.into(), "cool the drive, or pause between points"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::power::tree::Tree;

    fn found(tree: &Tree, drives: &[&str]) -> Found {
        let drives: Vec<String> = drives.iter().map(|drive| (*drive).to_owned()).collect();
        let mut found = Found::default();
        find(&tree.system(), &drives, &mut found);
        found
    }

    fn names(found: &Found) -> Vec<String> {
        found.slow.iter().map(|sensor| sensor.channels().remove(0).name).collect()
    }

    fn chip(tree: &Tree, folder: &str, now: &str) {
        let limits = [("temp1_input", now), ("temp1_max", "81850"), ("temp1_crit", "84850")];
        limits.iter().for_each(|(file, text)| tree.file(&format!("{folder}/{file}"), text));
        tree.file(&format!("{folder}/temp1_alarm"), "0");
    }

    #[test]
    fn drives_of_each_kind_are_found() {
        let tree = Tree::new();
        chip(&tree, "sys/devices/pci/nvme/nvme0/hwmon3", "38850\n");
        tree.link("sys/class/nvme/nvme0", "../../devices/pci/nvme/nvme0");
        tree.link("sys/devices/pci/nvme/nvme0/nvme0n1/device", "../../nvme0");
        tree.link("sys/block/nvme0n1", "../devices/pci/nvme/nvme0/nvme0n1");
        chip(&tree, "sys/block/sda/device/hwmon/hwmon5", "31000");
        // With multipath, through a subsystem with two controllers.
        for controller in ["nvme1", "nvme2"] {
            chip(&tree, &format!("sys/devices/subsystem/{controller}/hwmon7"), "40000");
        }
        tree.file("sys/devices/subsystem/nvme1n1/size", "1");
        tree.link("sys/block/nvme1n1/device", "../../devices/subsystem");
        let mut found = found(&tree, &["nvme0n1", "sda", "nvme1n1", "nvme0"]);
        let paths = ["drive nvme1n1 (nvme1)", "drive nvme1n1 (nvme2)"];
        assert_eq!(
            names(&found),
            ["drive nvme0n1", "drive sda", paths[0], paths[1], "drive nvme0"]
        );
        assert!(found.absent.is_empty(), "{:?}", found.absent);
        let told = found.slow[0].read(true);
        assert_eq!(told, [Ok(Value::Number(38.85)), Ok(Value::Bits(0))]);
    }

    #[test]
    fn a_drive_that_is_too_warm_is_told() {
        let tree = Tree::new();
        chip(&tree, "sys/class/nvme/nvme0/hwmon0", "30000");
        let mut found = found(&tree, &["nvme0"]);
        let mut bits = |now: &str, alarm: &str| {
            tree.file("sys/class/nvme/nvme0/hwmon0/temp1_input", now);
            tree.file("sys/class/nvme/nvme0/hwmon0/temp1_alarm", alarm);
            found.slow[0].read(true).remove(1)
        };
        assert_eq!(bits("81849", "0"), Ok(Value::Bits(0)));
        assert_eq!(bits("81850", "1"), Ok(Value::Bits(WARM | ALARM)));
        assert_eq!(bits("90000", "x"), Ok(Value::Bits(WARM | CRITICAL)));
        assert!(bits("300000", "1").unwrap_err().contains("300 °C is not plausible"));
        assert!(about(WARM).is_some() && about(CRITICAL).is_some() && about(8).is_none());
        tree.remove("sys/class/nvme/nvme0/hwmon0");
        assert!(found.slow[0].read(true).iter().all(Result::is_err));
    }

    #[test]
    fn what_has_no_thermometer_says_so_and_no_name_leads_elsewhere() {
        let tree = Tree::new();
        tree.file("sys/block/vda/size", "1");
        chip(&tree, "sys/secret/hwmon0", "30000");
        let odd = ["../../secret", "", "a b", "é", &"n".repeat(100), "vda", "sdb", "."];
        let found = found(&tree, &odd);
        assert!(found.slow.is_empty());
        assert_eq!(found.absent.len(), odd.len());
        let last = |back: usize| &found.absent[odd.len() - back];
        assert!(last(3).remedy.is_none() && last(3).why.contains("no temperature sensor"));
        assert!(last(2).remedy.as_ref().unwrap().contains("drivetemp"));
        assert!(found.absent[..5].iter().all(|absent| absent.why.starts_with("not a kernel name")));
        chip(&tree, "sys/block/vda/device/hwmon1", "warm");
        let none = super::tests::found(&tree, &["vda"]).absent.remove(0);
        assert!(none.why.ends_with("is not a number: `warm`"), "{none:?}");
    }
}
