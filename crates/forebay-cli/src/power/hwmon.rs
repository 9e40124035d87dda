//! Power of the server, as its own meter reports it to the kernel by ACPI (`power_meter`).
//!
//! The files of such a meter are in `/sys/class/hwmon/hwmonN`, on older kernels in `device/` below
//! that. Their unit is microwatts, averaged over a time that the firmware chooses, and a reading
//! may take long. Other chips are skipped: they measure a part (a GPU, a drive, a voltage
//! regulator) that is reported elsewhere or cannot be named. A machine may have several meters, and
//! one may include another (a module and its processor), so each is reported separately.

use forebay_topology::System;

use super::result::{Absent, Part};
use super::sensor::{Channel, Found, Kind, SERVER_WATTS_MAX, Sensor, Value, watts};

pub(super) const FOLDER: &str = "sys/class/hwmon";
/// The name of the source when it is absent.
const NAME: &str = "server (hwmon)";
/// Most chips that are read.
pub(super) const CHIPS_MAX: usize = 1024;
/// The driver of ACPI's power meters.
const DRIVER: &str = "power_meter";

/// A meter.
struct PowerMeter {
    system: System,
    path: String,
    name: String,
}

/// Finds the meters.
pub(super) fn find(system: &System, found: &mut Found) {
    let chips = match system.names_in(FOLDER) {
        Ok(chips) => chips,
        Err(error) => {
            found.absent.push(Absent::new(NAME, format!("`/{FOLDER}`: {error}")));
            return;
        }
    };
    let mut meters: Vec<PowerMeter> = Vec::new();
    let before = found.absent.len();
    for chip in chips.iter().take(CHIPS_MAX) {
        let Some((mut meter, path)) = meter(system, chip) else { continue };
        if meters.iter().any(|other| other.name == meter.name) {
            meter.name = format!("server (hwmon {chip})");
        }
        match meter.watts() {
            Ok(_) => meters.push(meter),
            Err(why) => found.absent.push(Absent::silent(meter.name, format!("`/{path}`: {why}"))),
        }
    }
    if meters.is_empty() && found.absent.len() == before {
        let why = format!("no chip in `/{FOLDER}` is a `{DRIVER}`");
        found.absent.push(Absent::new(NAME, why));
    }
    found.slow.extend(meters.into_iter().map(|meter| Box::new(meter) as Box<dyn Sensor>));
}

/// The meter of `chip`, if it has one, and the file with its power.
fn meter(system: &System, chip: &str) -> Option<(PowerMeter, String)> {
    let places = [format!("{FOLDER}/{chip}"), format!("{FOLDER}/{chip}/device")];
    let text = |file: &str| {
        let mut texts = places.iter().map(|place| system.small_file(format!("{place}/{file}")));
        texts.find_map(Result::ok)
    };
    if text("name")? != DRIVER || text("power1_is_battery").is_some_and(|is| is != "0") {
        return None;
    }
    let files = ["power1_average", "power1_input"];
    let mut paths = places.iter().flat_map(|place| files.map(|file| format!("{place}/{file}")));
    let path = paths.find(|path| system.has(path))?;
    // The maker's name for the measured part, on machines with several meters.
    let label = text("power1_oem_info").filter(|label| label.len() <= 64);
    let name = format!("server (hwmon {})", label.as_deref().unwrap_or(DRIVER));
    Some((PowerMeter { system: system.clone(), path: path.clone(), name }, path))
}

impl PowerMeter {
    fn watts(&self) -> Result<f64, String> {
        let text = self.system.small_file(&self.path).map_err(|error| error.to_string())?;
        let microwatts: f64 =
            text.parse().map_err(|_| format!("not a number: `{}`", shortened(&text)))?;
        watts(microwatts * 1e-6, SERVER_WATTS_MAX)
    }
}

/// The start of a text, short enough for a message.
pub(crate) fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

impl Sensor for PowerMeter {
    fn channels(&self) -> Vec<Channel> {
        let how = format!("hwmon: `/{}`", self.path);
        vec![Channel { name: self.name.clone(), kind: Kind::Power { part: Part::Server, how } }]
    }

    fn read(&mut self, _asked: bool) -> Vec<Result<Value, String>> {
        let told = self.watts().map_err(|why| format!("`/{}`: {why}", self.path));
        vec![told.map(Value::Number)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::power::tree::Tree;

    fn found(tree: &Tree) -> Found {
        let mut found = Found::default();
        find(&tree.system(), &mut found);
        found
    }

    fn names(found: &Found) -> Vec<String> {
        found.slow.iter().flat_map(|sensor| sensor.channels()).map(|channel| channel.name).collect()
    }

    #[test]
    fn only_the_servers_own_meters_are_read() {
        let tree = Tree::new();
        let chips = [("hwmon0", "nvme"), ("hwmon1", "amdgpu"), ("hwmon3", "ina3221")];
        for (chip, name) in chips {
            tree.file(&format!("sys/class/hwmon/{chip}/name"), name);
            tree.file(&format!("sys/class/hwmon/{chip}/power1_average"), "5000000");
        }
        tree.file("sys/class/hwmon/hwmon2/name", "power_meter\n");
        tree.file("sys/class/hwmon/hwmon2/power1_average", "412000000\n");
        let mut found = found(&tree);
        assert_eq!(names(&found), ["server (hwmon power_meter)"]);
        assert_eq!(found.slow[0].read(true), [Ok(Value::Number(412.0))]);
        assert!(found.absent.is_empty() && found.quick.is_empty());
        tree.file("sys/class/hwmon/hwmon2/power1_average", "-1");
        let why = found.slow[0].read(true).remove(0).unwrap_err();
        assert!(why.starts_with("`/sys/class/hwmon/hwmon2/power1_average`: "), "{why}");
    }

    /// As on machines whose modules, processors and memory have a meter each.
    #[test]
    fn several_meters_are_told_by_what_the_maker_calls_them() {
        let tree = Tree::new();
        let infos = [
            ("hwmon1", "Module Power Socket 0"),
            ("hwmon2", "CPU Power Socket 0"),
            ("hwmon3", "CPU Power Socket 0"),
        ];
        for (chip, info) in infos {
            let device = format!("sys/class/hwmon/{chip}/device");
            tree.file(&format!("{device}/name"), "power_meter");
            tree.file(&format!("{device}/power1_oem_info"), info);
            tree.file(&format!("{device}/power1_average"), "60000000");
        }
        tree.file("sys/class/hwmon/hwmon4/name", "power_meter");
        tree.file("sys/class/hwmon/hwmon4/power1_is_battery", "1");
        tree.file("sys/class/hwmon/hwmon4/power1_input", "60000000");
        let found = found(&tree);
        let module = "server (hwmon Module Power Socket 0)";
        let cpu = "server (hwmon CPU Power Socket 0)";
        assert_eq!(names(&found), [module, cpu, "server (hwmon hwmon3)"]);
    }

    #[test]
    fn what_is_no_meter_or_tells_no_power_is_absent() {
        let tree = Tree::new();
        let why = |tree: &Tree| found(tree).absent.remove(0).why;
        assert_eq!(why(&tree), "`/sys/class/hwmon`: No such file or directory (os error 2)");
        tree.file("sys/class/hwmon/hwmon0/name", "coretemp");
        assert_eq!(why(&tree), "no chip in `/sys/class/hwmon` is a `power_meter`");
        tree.file("sys/class/hwmon/hwmon0/name", "power_meter");
        assert!(why(&tree).starts_with("no chip"));
        for (text, because) in
            [("0", "0 W"), ("1e300", "W is not plausible"), ("lots", "not a number: `lots`")]
        {
            tree.file("sys/class/hwmon/hwmon0/power1_average", text);
            let why = why(&tree);
            assert!(why.starts_with("`/sys/class/hwmon/hwmon0/power1_average`: "), "{why}");
            assert!(why.contains(because), "{why}");
            assert_eq!(found(&tree).absent.len(), 1);
        }
    }
}
