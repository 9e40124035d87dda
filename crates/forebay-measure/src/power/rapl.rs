//! Energy of processors and memory, as they count it themselves (RAPL), from `/sys/class/powercap`.
//!
//! The kernel shows Intel's and AMD's counters alike, in zones `intel-rapl:N` with zones
//! `intel-rapl:N:M` inside. A package includes its cores (zones named `core` or `uncore`), so these
//! are skipped. `dram` is separate from the package, and `psys` is a platform that includes its
//! packages. Counters are in microjoules, wrap after `max_energy_range_uj`, and since Linux 5.10
//! only root can read them.

use std::time::{Duration, Instant};

use forebay_topology::{Absent as Unread, System};

use super::result::{Absent, Part};
use super::track::{About, Reading};
use super::{CHIP_WATTS_MAX, Found, OTHERS, PERIOD, Sensor};

const FOLDER: &str = "sys/class/powercap";
/// The name of the source when it is absent.
const NAME: &str = "package (RAPL)";
/// Most zones that are read: far more than a machine has.
const ZONES_MAX: usize = 1024;
/// A shorter span has too few steps of a counter: it advances about once a millisecond (Intel's
/// manual, volume 3, on RAPL).
const ROUGH: Duration = Duration::from_millis(10);
/// Joules in the counters' unit.
const MICROJOULE: f64 = 1e-6;

/// A counter.
struct Zone {
    system: System,
    folder: String,
    name: String,
    part: Part,
    joules: Joules,
}

/// Turns the readings of a counter into joules since the first of them.
#[derive(Debug, Default)]
struct Joules {
    /// The counter wraps after it.
    end: Option<u64>,
    last: Option<(u64, Instant)>,
    sum: f64,
}

impl Joules {
    fn add(&mut self, now: u64, at: Instant) -> Result<f64, String> {
        // Even on an error, the next step begins here.
        let Some((last, since)) = self.last.replace((now, at)) else { return Ok(self.sum) };
        let step = match (now.checked_sub(last), self.end) {
            (Some(step), _) => step,
            (None, Some(end)) if last <= end => (end - last) + now,
            (None, _) => return Err(format!("its counter went back from {last} to {now}")),
        };
        #[expect(clippy::cast_precision_loss, reason = "a larger step is refused below")]
        let joules = step as f64 * MICROJOULE;
        // Below a reading's own delay, the shortest step would give an absurd power.
        let seconds = at.saturating_duration_since(since).as_secs_f64().max(0.1);
        if joules > CHIP_WATTS_MAX * seconds {
            return Err(format!("its counter jumped from {last} to {now}"));
        }
        self.sum += joules;
        Ok(self.sum)
    }
}

/// Finds the counters.
pub(super) fn find(system: &System, found: &mut Found) {
    let names = match system.list(FOLDER) {
        Ok(names) => names,
        Err(error) => {
            let why = format!("`/{FOLDER}`: {error}; virtual machines have none");
            found.absent.push(Absent::new(NAME, why));
            return;
        }
    };
    let names = names.iter().filter(|name| name.starts_with("intel-rapl:")).take(ZONES_MAX);
    let mut zones: Vec<Zone> = names.filter_map(|name| zone(system, name)).collect();
    zones.sort_by(|one, other| one.name.cmp(&other.name));
    if zones.is_empty() {
        let why = format!(
            "no counter in `/{FOLDER}` that is visible here: a container hides them, and the \
             module `intel_rapl_msr`, also for AMD's processors, brings them"
        );
        found.absent.push(Absent::new(NAME, why));
    }
    for zone in zones {
        match zone.counter() {
            Ok(_) => found.quick.push(zone.sensor()),
            Err(lack) => found.absent.push(lack),
        }
    }
}

/// The zone in the folder of this name, if it should be counted.
fn zone(system: &System, folder: &str) -> Option<Zone> {
    let own_name = |folder: &str| system.text(format!("{FOLDER}/{folder}/name")).ok();
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
    let end = system.text(format!("{FOLDER}/{folder}/max_energy_range_uj")).ok();
    Some(Zone {
        system: system.clone(),
        folder: folder.to_owned(),
        name,
        part,
        joules: Joules {
            end: end.and_then(|text| text.parse().ok()).filter(|end| *end > 0),
            ..Joules::default()
        },
    })
}

impl Zone {
    fn counter(&self) -> Result<u64, Absent> {
        let path = format!("{FOLDER}/{}/energy_uj", self.folder);
        let text = self.system.text(&path).map_err(|error| {
            let remedy = match error {
                Unread::Denied => "run as root: only root may read this counter",
                _ => OTHERS,
            };
            let why = format!("cannot read `/{path}`: {error}");
            Absent::new(&self.name, why).remedy(remedy)
        })?;
        text.parse().map_err(|_| {
            let shown: String = text.chars().take(40).collect();
            let why = format!("`/{path}` is not a number: `{shown}`");
            Absent::new(&self.name, why).remedy(OTHERS)
        })
    }

    fn sensor(mut self) -> Sensor {
        let about = About {
            name: self.name.clone(),
            part: self.part,
            how: format!("RAPL: `/{FOLDER}/{}/energy_uj`", self.folder),
            is_counter: true,
            rough: ROUGH,
            reach: 5 * PERIOD / 2,
        };
        let mut read = move || {
            let counter = self.counter().map_err(|lack| lack.why)?;
            self.joules.add(counter, Instant::now())
        };
        Sensor { about, read: Box::new(move || Reading { value: read(), throttle: 0 }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::power::tests::Tree;

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

    fn parts(found: &Found) -> Vec<(String, Part)> {
        found.quick.iter().map(|sensor| (sensor.about.name.clone(), sensor.about.part)).collect()
    }

    #[test]
    fn each_part_of_a_server_counts_once() {
        let found = found(&server());
        let dram = |number: u32| (format!("dram-{number}"), Part::Dram);
        let package = |number: u32| (format!("package-{number}"), Part::Package);
        let psys = ("psys".to_owned(), Part::Platform);
        assert_eq!(parts(&found), [dram(0), dram(1), package(0), package(1), psys]);
        assert!(found.absent.is_empty());
        let how = &found.quick[2].about.how;
        assert_eq!(how, "RAPL: `/sys/class/powercap/intel-rapl:0/energy_uj`");
    }

    #[test]
    fn readings_grow_over_the_counters_end() {
        let tree = server();
        let mut found = found(&tree);
        let mut read = || (found.quick[2].read)().value;
        assert_eq!(read(), Ok(0.0));
        tree.zone("intel-rapl:0", "package-0", 501_000);
        assert_eq!(read(), Ok(0.5));
        // It ends at 262,143,328,850, as on Intel's servers.
        tree.zone("intel-rapl:0", "package-0", 262_143_328_850 - 500_000);
        assert!(read().unwrap_err().contains("jumped"));
        tree.zone("intel-rapl:0", "package-0", 250_000);
        assert_eq!(read(), Ok(1.25));
        tree.file("sys/class/powercap/intel-rapl:0/energy_uj", "many\n");
        assert!(read().unwrap_err().ends_with("is not a number: `many`"));
        tree.remove("sys/class/powercap/intel-rapl:0");
        assert!(read().unwrap_err().starts_with("cannot read `/sys/class/powercap/intel-rapl:0/"));
    }

    #[test]
    fn a_counter_without_an_end_may_not_go_back() {
        let mut joules = Joules::default();
        let mut add = |now| joules.add(now, Instant::now());
        assert_eq!(add(250_000), Ok(0.0));
        assert_eq!(add(100_000).unwrap_err(), "its counter went back from 250000 to 100000");
        assert_eq!(add(350_000), Ok(0.25), "it continues from there");
    }

    #[test]
    fn a_missing_counter_names_its_file_and_the_remedy() {
        let tree = Tree::new();
        let none = found(&tree).absent.remove(0);
        assert!(none.why.contains("`/sys/class/powercap`") && none.remedy.is_none(), "{none:?}");
        tree.file("sys/class/powercap/dtpm/enabled", "1\n");
        let none = found(&tree).absent.remove(0);
        assert!(none.remedy.is_none() && none.why.contains("intel_rapl_msr"));
        tree.zone("intel-rapl:0", "package-0", 5);
        tree.file("sys/class/powercap/intel-rapl:0/energy_uj", "18446744073709551616");
        let none = found(&tree).absent.remove(0);
        assert_eq!(none.name, "package-0");
        assert!(none.why.contains("is not a number"), "{none:?}");
    }

    #[test]
    fn a_file_that_only_root_may_read_names_itself_and_the_remedy() {
        let tree = server();
        let denied = ["intel-rapl:1", "intel-rapl:1:1"];
        denied.iter().for_each(|zone| tree.forbid(&format!("sys/class/powercap/{zone}/energy_uj")));
        if tree.system().text("sys/class/powercap/intel-rapl:1/energy_uj").is_ok() {
            println!("skipped: a counter that may not be read: this user may read everything");
            return;
        }
        let found = found(&tree);
        assert_eq!(parts(&found).len(), 3);
        let lack = &found.absent[1];
        assert_eq!(lack.name, "package-1");
        assert!(lack.why.contains("`/sys/class/powercap/intel-rapl:1/energy_uj`"), "{lack:?}");
        assert!(lack.remedy.as_ref().unwrap().starts_with("run as root"));
    }

    proptest::proptest! {
        /// Whatever the files hold, nothing panics, and accepted values are usable.
        #[test]
        fn no_file_causes_a_panic(
            texts in proptest::collection::vec(
                "(-?[0-9]{1,25}(\\.[0-9]+)?(e[0-9]{1,3})?|\\PC{0,20})", 3,
            ),
        ) {
            let (tree, zone) = (Tree::new(), "sys/class/powercap/intel-rapl:0");
            tree.file(&format!("{zone}/name"), "package-0");
            tree.file(&format!("{zone}/energy_uj"), &texts[0]);
            tree.file(&format!("{zone}/max_energy_range_uj"), &texts[1]);
            let mut found = found(&tree);
            // The counter continues from another value.
            tree.file(&format!("{zone}/energy_uj"), &texts[2]);
            for sensor in &mut found.quick {
                for _ in 0..2 {
                    if let Ok(joules) = (sensor.read)().value {
                        proptest::prop_assert!((0.0..=1e6).contains(&joules), "{}", joules);
                    }
                }
            }
        }
    }
}
