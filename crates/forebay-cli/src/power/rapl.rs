//! Energy of processors and memory, as they count it themselves (RAPL), from `/sys/class/powercap`.
//!
//! The kernel shows Intel's and AMD's counters alike, in zones `intel-rapl:N` with zones
//! `intel-rapl:N:M` inside. A package includes its cores (zones named `core` or `uncore`), so these
//! are skipped. `dram` is separate from the package, and `psys` is a platform that includes its
//! packages. The zones `intel-rapl-mmio:N` are the same packages through another interface, used if
//! the first cannot be read. Counters are in microjoules, wrap after `max_energy_range_uj`, and
//! since Linux 5.10 only root can read them.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use forebay_topology::System;

use super::result::{Absent, Part};
use super::sensor::{Channel, Found, Joules, Kind, Sensor, Value};

const FOLDER: &str = "sys/class/powercap";
/// The name of the source when it is absent.
const NAME: &str = "package (RAPL)";
/// Most zones that are read: far more than a machine has.
const ZONES_MAX: usize = 1024;
/// How often a counter advances: about once a millisecond (Intel's manual, volume 3, on RAPL).
const STEP: Duration = Duration::from_millis(1);
/// Joules in the counters' unit.
const MICROJOULE: f64 = 1e-6;

/// A counter.
struct Zone {
    system: System,
    folder: String,
    name: String,
    part: Part,
    end: Option<u64>,
    joules: Joules,
    read: Option<Instant>,
}

/// Finds the counters.
pub(super) fn find(system: &System, found: &mut Found) {
    let names = match system.names_in(FOLDER) {
        Ok(names) => names,
        Err(error) => {
            let why = format!("`/{FOLDER}`: {error}; virtual machines have none");
            found.absent.push(Absent::new(NAME, why));
            return;
        }
    };
    let mut zones: BTreeMap<String, Zone> = BTreeMap::new();
    let mut absent: BTreeMap<String, Absent> = BTreeMap::new();
    // The alternative interface comes last, so that it is used only where the first is missing.
    let is_zone = |name: &&String| name.starts_with("intel-rapl") && name.contains(':');
    let mut names: Vec<_> = names.iter().filter(is_zone).take(ZONES_MAX).collect();
    names.sort_by_key(|name| name.starts_with("intel-rapl-mmio"));
    let is_any = !names.is_empty();
    for zone in names.into_iter().filter_map(|name| zone(system, name)) {
        if zones.contains_key(&zone.name) {
            continue;
        }
        match zone.counter() {
            Ok(_) => drop(zones.insert(zone.name.clone(), zone)),
            Err(lack) => drop(absent.entry(zone.name.clone()).or_insert(lack)),
        }
    }
    if zones.is_empty() && absent.is_empty() {
        found.absent.push(none(system, is_any));
    }
    found.absent.extend(absent.into_values().filter(|lack| !zones.contains_key(&lack.name)));
    found.quick.extend(zones.into_values().map(|zone| Box::new(zone) as Box<dyn Sensor>));
}

/// Why there is no counter, though the kernel shows a folder for them, and zones if `is_any`.
fn none(system: &System, is_any: bool) -> Absent {
    if is_any && !system.has("sys/devices/virtual/powercap/intel-rapl") {
        let why = format!("`/{FOLDER}` links to counters that are not visible");
        let remedy = "containers hide them: run on the host, or in a container with all of `/sys`";
        return Absent::silent(NAME, why).remedy(remedy);
    }
    let remedy = "load the module `intel_rapl_msr`, which serves AMD's processors as well";
    Absent::new(NAME, format!("no counter in `/{FOLDER}`")).remedy(remedy)
}

/// The zone in the folder of this name, if it should be counted.
fn zone(system: &System, folder: &str) -> Option<Zone> {
    let own_name = |folder: &str| system.small_file(format!("{FOLDER}/{folder}/name")).ok();
    let own = own_name(folder).filter(|name| name.len() <= 64)?;
    let parent = folder.rsplit_once(':').map(|(parent, _)| parent).filter(|p| p.contains(':'));
    let (name, part) = match parent {
        None if own.starts_with("package") => (own, Part::Package),
        None if own.starts_with("psys") => (own, Part::Platform),
        Some(parent) if own == "dram" => {
            let package = own_name(parent).unwrap_or_default();
            let number = package.strip_prefix("package").unwrap_or_default();
            (format!("dram{number}"), Part::Dram)
        }
        _ => return None,
    };
    let end = system.small_file(format!("{FOLDER}/{folder}/max_energy_range_uj")).ok();
    Some(Zone {
        system: system.clone(),
        folder: folder.to_owned(),
        name,
        part,
        end: end.and_then(|text| text.parse().ok()).filter(|end| *end > 0),
        joules: Joules::default(),
        read: None,
    })
}

impl Zone {
    fn counter(&self) -> Result<u64, Absent> {
        let path = format!("{FOLDER}/{}/energy_uj", self.folder);
        let text = self.system.small_file(&path).map_err(|error| {
            let lack = Absent::silent(&self.name, format!("cannot read `/{path}`: {error}"));
            match error.kind() {
                ErrorKind::PermissionDenied => {
                    lack.remedy("run as root: only root may read this counter")
                }
                _ => lack,
            }
        })?;
        text.parse().map_err(|_| {
            let shown: String = text.chars().take(40).collect();
            Absent::silent(&self.name, format!("`/{path}` is not a number: `{shown}`"))
        })
    }
}

impl Sensor for Zone {
    fn channels(&self) -> Vec<Channel> {
        let how = format!("RAPL: `/{FOLDER}/{}/energy_uj`", self.folder);
        let kind = Kind::Energy { part: self.part, how, step: STEP };
        vec![Channel { name: self.name.clone(), kind }]
    }

    fn read(&mut self, _asked: bool) -> Vec<Result<Value, String>> {
        let counter = match self.counter() {
            Ok(counter) => counter,
            Err(lack) => return vec![Err(lack.why)],
        };
        let now = Instant::now();
        let elapsed = self.read.replace(now).map(|last| now - last).unwrap_or_default();
        let joules = self.joules.add(counter, self.end, MICROJOULE, elapsed);
        vec![joules.map(Value::Number)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::power::tree::Tree;

    /// Two packages with all their zones, the first with both interfaces, and a platform.
    fn server() -> Tree {
        let tree = Tree::new();
        let zones = [
            ("intel-rapl:0", "package-0", 1_000),
            ("intel-rapl:0:0", "core", 500),
            ("intel-rapl:0:1", "dram", 2_000),
            ("intel-rapl:1", "package-1", 3_000),
            ("intel-rapl:1:0", "uncore", 500),
            ("intel-rapl:1:1", "dram", 4_000),
            ("intel-rapl:2", "psys", 9_000),
            ("intel-rapl-mmio:0", "package-0", 1_001),
        ];
        for (folder, name, energy) in zones {
            tree.zone(folder, name, energy);
        }
        tree.file("sys/class/powercap/intel-rapl/enabled", "1\n");
        tree.file("sys/class/powercap/dtpm/enabled", "1\n");
        tree
    }

    fn found(tree: &Tree) -> Found {
        let mut found = Found::default();
        find(&tree.system(), &mut found);
        found
    }

    fn channels(found: &Found) -> Vec<(String, Part)> {
        let all = found.quick.iter().flat_map(|sensor| sensor.channels());
        let part = |channel: Channel| match channel.kind {
            Kind::Energy { part, .. } => (channel.name, part),
            other => panic!("{other:?}"),
        };
        all.map(part).collect()
    }

    #[test]
    fn each_part_of_a_server_counts_once() {
        let found = found(&server());
        let dram = |number: u32| (format!("dram-{number}"), Part::Dram);
        let package = |number: u32| (format!("package-{number}"), Part::Package);
        let psys = ("psys".to_owned(), Part::Platform);
        let all = [dram(0), dram(1), package(0), package(1), psys];
        assert_eq!(channels(&found), all);
        assert!(found.absent.is_empty() && found.slow.is_empty());
        let how = found.quick[2].channels().remove(0).kind;
        let Kind::Energy { how, .. } = how else { panic!("{how:?}") };
        assert_eq!(how, "RAPL: `/sys/class/powercap/intel-rapl:0/energy_uj`");
    }

    #[test]
    fn an_amd_processor_looks_the_same() {
        let tree = Tree::new();
        tree.zone("intel-rapl:0", "package-0", 5);
        tree.zone("intel-rapl:0:0", "core", 5);
        assert_eq!(channels(&found(&tree)), [("package-0".to_owned(), Part::Package)]);
    }

    #[test]
    fn readings_grow_over_the_counters_end() {
        let tree = server();
        let mut found = found(&tree);
        let mut read = || found.quick[2].read(true).remove(0);
        assert_eq!(read(), Ok(Value::Number(0.0)));
        tree.zone("intel-rapl:0", "package-0", 501_000);
        assert_eq!(read(), Ok(Value::Number(0.5)));
        // It ends at 262,143,328,850, as on Intel's servers.
        tree.zone("intel-rapl:0", "package-0", 262_143_328_850 - 500_000);
        assert!(read().unwrap_err().contains("jumped"));
        tree.zone("intel-rapl:0", "package-0", 250_000);
        assert_eq!(read(), Ok(Value::Number(1.25)));
        tree.file("sys/class/powercap/intel-rapl:0/energy_uj", "many\n");
        assert!(read().unwrap_err().ends_with("is not a number: `many`"));
        tree.remove("sys/class/powercap/intel-rapl:0");
        assert!(read().unwrap_err().starts_with("cannot read `/sys/class/powercap/intel-rapl:0/"));
    }

    #[test]
    fn the_other_way_serves_where_the_first_does_not() {
        let tree = server();
        tree.remove("sys/class/powercap/intel-rapl:0/energy_uj");
        let found = found(&tree);
        assert!(found.absent.is_empty(), "{:?}", found.absent);
        let how = format!("{:?}", found.quick[2].channels());
        assert!(how.contains("intel-rapl-mmio:0"), "{how}");
    }

    #[test]
    fn what_cannot_be_read_is_said_with_the_file() {
        let tree = Tree::new();
        let none = found(&tree).absent.remove(0);
        assert!(none.why.contains("`/sys/class/powercap`") && none.remedy.is_none(), "{none:?}");
        tree.file("sys/class/powercap/dtpm/enabled", "1\n");
        let none = found(&tree).absent.remove(0);
        assert!(!none.there && none.remedy.unwrap().contains("intel_rapl_msr"));
        // As in a container with an empty folder mounted over the devices.
        let device = "../../devices/virtual/powercap/intel-rapl/intel-rapl:1";
        tree.link("sys/class/powercap/intel-rapl:1", device);
        let none = found(&tree).absent.remove(0);
        assert!(none.there && none.remedy.unwrap().contains("containers"));
        tree.zone("intel-rapl:0", "package-0", 5);
        tree.file("sys/class/powercap/intel-rapl:0/energy_uj", "18446744073709551616");
        let none = found(&tree).absent.remove(0);
        assert_eq!(none.name, "package-0");
        assert!(none.why.contains("is not a number"), "{none:?}");
    }

    #[test]
    fn a_file_that_only_root_reads_names_itself_and_the_remedy() {
        let tree = server();
        let denied = ["intel-rapl:1", "intel-rapl:1:1"];
        denied.iter().for_each(|zone| tree.forbid(&format!("sys/class/powercap/{zone}/energy_uj")));
        if tree.system().small_file("sys/class/powercap/intel-rapl:1/energy_uj").is_ok() {
            println!("skipped: a counter that may not be read: this user may read everything");
            return;
        }
        let found = found(&tree);
        assert_eq!(channels(&found).len(), 3);
        let lack = &found.absent[1];
        assert_eq!(lack.name, "package-1");
        assert!(lack.why.contains("`/sys/class/powercap/intel-rapl:1/energy_uj`"), "{lack:?}");
        assert!(lack.there && lack.remedy.as_ref().unwrap().starts_with("run as root"));
    }
}
