//! A meter on machines made of files, on simulated sensors, and on this machine.

use std::sync::atomic::AtomicU32;
use std::sync::mpsc;
use std::thread::sleep;

use forebay_evidence::observers;
use proptest::prelude::*;

use super::sensor::{Kind, Value};
use super::tree::Tree;
use super::*;

const LONG: Duration = Duration::from_secs(60);

/// Polls until `is_so`, and fails after a time limit.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LONG, "{what}");
        sleep(Duration::from_millis(5));
    }
}

fn wanted(tree: &Tree) -> Wanted {
    // There may be a real program on this machine.
    let programs = Some(tree.program("none", "").join("nowhere"));
    Wanted { system: tree.system(), programs, ..Wanted::default() }
}

fn source<'a>(power: &'a Power, name: &str) -> &'a Source {
    let found = power.sources.iter().find(|source| source.name == name);
    found.unwrap_or_else(|| panic!("no `{name}` in {power:?}"))
}

/// A sensor of watts that reports what `read` returns.
struct Played<F>(F);

impl<F: FnMut() -> Result<f64, String> + Send> Sensor for Played<F> {
    fn channels(&self) -> Vec<Channel> {
        let kind = Kind::Power { part: Part::Server, how: "played".into() };
        vec![Channel { name: "played".into(), kind }]
    }

    fn read(&mut self, _asked: bool) -> Vec<Result<Value, String>> {
        vec![(self.0)().map(Value::Number)]
    }
}

#[test]
fn a_whole_server_is_measured() {
    let tree = Tree::new();
    tree.zone("intel-rapl:0", "package-0", 262_143_328_850 - 1_000_000);
    tree.zone("intel-rapl:0:0", "dram", 1_000_000);
    tree.file("sys/class/hwmon/hwmon0/name", "power_meter");
    tree.file("sys/class/hwmon/hwmon0/power1_average", "412000000");
    tree.file("sys/class/nvme/nvme0/hwmon1/temp1_input", "81000");
    tree.file("sys/class/nvme/nvme0/hwmon1/temp1_max", "80000");
    tree.file("dev/ipmi0", "");
    let programs = tree.program("ipmitool", "echo 'Instantaneous power reading: 220 Watts'");
    let meter = Meter::begin(&Wanted {
        drives: vec!["nvme0".into(), "vda".into()],
        command: Some("echo 350 W".into()),
        programs: Some(programs),
        ..wanted(&tree)
    });
    let meter = meter.unwrap();
    let slow = ["server (hwmon power_meter)", "server (ipmi)", "command"];
    let start = meter.mark();
    // Before this, nothing has been read yet.
    meter.mark();
    tree.zone("intel-rapl:0", "package-0", 3_000_000);
    tree.zone("intel-rapl:0:0", "dram", 3_000_000);
    // And with this one, all.
    meter.mark();
    let mut power = Power::default();
    until("slow sources", || {
        power = meter.between(start, Instant::now());
        slow.iter().all(|name| power.sources.iter().any(|source| source.name == *name))
            && !power.temperatures.is_empty()
    });
    let observed = observers::total().as_secs_f64();
    assert!(power.cpu_seconds > 0.0 && observed >= power.cpu_seconds, "{observed}: {power:?}");
    // Across the counter's wrap: a joule before, three after.
    assert!((source(&power, "package-0").joules - 4.0).abs() < 1e-6, "{power:?}");
    assert!((source(&power, "dram-0").joules - 2.0).abs() < 1e-6);
    assert_eq!(power.joules_of(Part::Package), Some(source(&power, "package-0").joules));
    assert_eq!(joules_per_gb(power.joules_of(Part::Dram).unwrap().round(), 4 << 30).unwrap(), {
        2.0 / (4.0 * 1.073_741_824)
    });
    let watts = slow.map(|name| source(&power, name).watts.round());
    assert_eq!(watts, [412.0, 220.0, 350.0]);
    assert_eq!(source(&power, "command").how, "the command `echo 350 W`");
    let name = "drive nvme0".to_owned();
    let warm = Temperature { name: name.clone(), first: 81.0, last: 81.0, max: 81.0 };
    assert_eq!(power.temperatures, [warm]);
    let reason = "above its warning temperature, and may be slower".into();
    assert_eq!(power.throttled, [Throttled { name, reason, share: 1.0 }]);
    assert!(power.warnings.iter().any(|warning| warning.contains("cool the drive")));
    let none = Absent::new("drive vda", "it has no temperature sensor in `/sys`");
    assert_eq!(meter.absent(), [none]);
    assert!(meter.warnings().is_empty());
    let text = serde_json::to_string(&power).unwrap();
    let again: Power = serde_json::from_str(&text).unwrap();
    // Its numbers may be read back with another last digit.
    assert_eq!((again.throttled, again.warnings), (power.throttled, power.warnings));
    assert_eq!(again.sources.len(), power.sources.len());
}

#[test]
fn a_counter_that_vanishes_is_known_as_far_as_it_was_there() {
    let tree = Tree::new();
    tree.zone("intel-rapl:0", "package-0", 1_000_000);
    let meter = Meter::begin(&wanted(&tree)).unwrap();
    let start = meter.mark();
    tree.zone("intel-rapl:0", "package-0", 2_000_000);
    meter.mark();
    tree.remove("sys/class/powercap/intel-rapl:0");
    let mut power = Power::default();
    until("the lack of it", || {
        power = meter.between(start, Instant::now());
        power.warnings.iter().any(|warning| warning.contains("No such file"))
    });
    let source = source(&power, "package-0");
    assert!(source.watts > 0.0 && source.covered < 0.9, "{source:?}");
    // And later there is no reading at all, only the reason.
    let start = meter.mark();
    sleep(Duration::from_millis(5));
    let power = meter.between(start, Instant::now());
    assert!(power.sources.is_empty() && power.warnings[0].contains("no power"), "{power:?}");
}

#[test]
fn a_counter_that_only_root_may_read_is_a_warning_with_its_file() {
    let tree = Tree::new();
    tree.zone("intel-rapl:0", "package-0", 1);
    tree.file("sys/class/powercap/intel-rapl:0/energy_uj", "secret");
    let meter = Meter::begin(&wanted(&tree)).unwrap();
    let [warning] = &meter.warnings()[..] else { panic!("{:?}", meter.absent()) };
    assert!(warning.contains("`/sys/class/powercap/intel-rapl:0/energy_uj`"), "{warning}");
    // Sources that no virtual machine has cause no warning.
    assert!(meter.absent().len() > 1);
}

#[test]
fn a_command_that_hangs_later_ends_with_the_meter() {
    let tree = Tree::new();
    let folder = tree.program("x", "");
    let (been, pid) = (folder.join("been"), folder.join("pid"));
    let line = format!(
        "if [ -e {0} ]; then echo $$ > {1}.new; mv {1}.new {1}; sleep 100; fi; touch {0}; echo 7",
        been.display(),
        pid.display()
    );
    let meter = Meter::begin(&Wanted { command: Some(line), ..wanted(&tree) }).unwrap();
    until("its second run", || pid.exists());
    let pid = std::fs::read_to_string(pid).unwrap();
    let begun = Instant::now();
    drop(meter);
    assert!(begun.elapsed() < LONG);
    until("its end", || !std::path::Path::new("/proc").join(pid.trim()).exists());
    let failure = Meter::begin(&Wanted { command: Some("echo 1e308".into()), ..wanted(&tree) });
    assert!(failure.unwrap_err().causes[0].contains("not plausible"));
}

#[test]
fn a_slow_source_that_fails_is_asked_three_times_and_no_more() {
    let calls = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&calls);
    let fails = move || match count.fetch_add(1, Ordering::Relaxed) {
        // It recovers once.
        0 | 1 | 3 | 4 | 5 => Err("no meter".into()),
        _ => Ok(70.0),
    };
    let found = Found { slow: vec![Box::new(Played(fails))], ..Found::default() };
    let meter = Meter::of(found, Arc::default(), Duration::from_millis(2));
    until("six calls", || calls.load(Ordering::Relaxed) == 6);
    sleep(Duration::from_millis(50));
    assert_eq!(calls.load(Ordering::Relaxed), 6);
    let power = meter.between(Instant::now(), Instant::now() + LONG);
    assert!(power.warnings[0].contains("no meter"), "{power:?}");
}

/// A driver that hangs delays callers only briefly, and the other sources are read.
#[test]
fn a_source_that_hangs_holds_up_nobody() {
    let (hang, hangs) = mpsc::channel::<()>();
    let stuck = move || hangs.recv().map(|()| 1.0).map_err(|_| "let go".to_owned());
    let found = Found {
        quick: vec![Box::new(Played(stuck))],
        slow: vec![Box::new(Played(|| Ok(5.0)))],
        ..Found::default()
    };
    let meter = Meter::of(found, Arc::default(), Duration::from_millis(10));
    let start = Instant::now();
    until("the other", || {
        let power = meter.between(start, Instant::now());
        power.sources.iter().any(|source| source.watts == 5.0)
    });
    drop(meter);
    assert!(start.elapsed() < LONG);
    drop(hang); // the thread ends, long left behind
}

#[test]
fn readings_are_made_without_being_asked_for() {
    let calls = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&calls);
    let counts = move || Ok(f64::from(count.fetch_add(1, Ordering::Relaxed) + 1));
    let found = Found { quick: vec![Box::new(Played(counts))], ..Found::default() };
    let meter = Meter::of(found, Arc::default(), SLOW_PERIOD);
    assert!(calls.load(Ordering::Relaxed) >= 1, "the first, before it is there");
    until("more", || calls.load(Ordering::Relaxed) >= 3);
    let before = calls.load(Ordering::Relaxed);
    meter.mark();
    assert!(calls.load(Ordering::Relaxed) > before, "at once");
    drop(meter);
    let after = calls.load(Ordering::Relaxed);
    sleep(2 * PERIOD);
    assert_eq!(calls.load(Ordering::Relaxed), after, "it has stopped");
}

/// Files with arbitrary contents, special files, or dangling links.
#[test]
fn files_that_are_none_are_said_and_never_waited_for() {
    let tree = Tree::new();
    tree.zone("intel-rapl:0", "package-0", 1);
    let energy = "sys/class/powercap/intel-rapl:0/energy_uj";
    let lack = |tree: &Tree| {
        let meter = Meter::begin(&wanted(tree)).unwrap();
        let absent = meter.absent().iter().find(|absent| absent.name == "package-0");
        absent.unwrap().why.clone()
    };
    tree.remove(energy);
    tree.link(energy, "energy_uj");
    assert!(lack(&tree).ends_with("not a file"), "{}", lack(&tree));
    tree.remove(energy);
    tree.fifo(energy);
    assert!(lack(&tree).ends_with("not a file"), "{}", lack(&tree));
    tree.remove(energy);
    tree.file(energy, &"7".repeat(1 << 20));
    assert!(lack(&tree).contains("is not a number: `7777"), "{}", lack(&tree));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Whatever the files hold, nothing panics, and accepted values are usable.
    #[test]
    fn no_file_is_a_panic(
        texts in proptest::collection::vec(
            "(-?[0-9]{1,25}(\\.[0-9]+)?(e[0-9]{1,3})?|\\PC{0,20})",
            8,
        ),
    ) {
        let tree = Tree::new();
        let zone = "sys/class/powercap/intel-rapl:0";
        let meter = "sys/class/hwmon/hwmon0";
        let drive = "sys/class/nvme/nvme0/hwmon0";
        tree.file(&format!("{zone}/name"), "package-0");
        tree.file(&format!("{meter}/name"), "power_meter");
        let files = [
            format!("{zone}/energy_uj"),
            format!("{zone}/max_energy_range_uj"),
            format!("{meter}/power1_average"),
            format!("{meter}/power1_oem_info"),
            format!("{drive}/temp1_input"),
            format!("{drive}/temp1_max"),
            format!("{drive}/temp1_crit"),
            format!("{drive}/temp1_alarm"),
        ];
        files.iter().zip(&texts).for_each(|(file, text)| tree.file(file, text));
        let mut found = Found::default();
        rapl::find(&tree.system(), &mut found);
        hwmon::find(&tree.system(), &mut found);
        drives::find(&tree.system(), &["nvme0".to_owned()], &mut found);
        // The counter continues from another value.
        tree.file(&files[0], &texts[1]);
        let sensors = found.quick.iter_mut().chain(&mut found.slow);
        for told in sensors.flat_map(|sensor| [sensor.read(true), sensor.read(false)]).flatten() {
            if let Ok(Value::Number(number)) = told {
                prop_assert!((-60.0..=1e6).contains(&number), "{}", number);
            }
        }
    }
}

/// Everything that this machine has or lacks is reported, and nothing is an error.
#[test]
fn this_machine_tells_what_it_can() {
    let gpus = forebay::gpu::visible().unwrap_or_default();
    let system = System::live();
    let drives = system.names_in("sys/block").unwrap_or_default();
    let drives = drives.into_iter().filter(|name| !name.starts_with("loop")).collect();
    let meter = Meter::begin(&Wanted { gpus, drives, ..Wanted::default() }).unwrap();
    let start = meter.mark();
    sleep(3 * PERIOD);
    let power = meter.between(start, Instant::now());
    println!("{power:#?}");
    for absent in meter.absent() {
        println!("skipped: {}: {}", absent.name, absent.why);
    }
    assert!(!power.sources.is_empty() || !meter.absent().is_empty());
    assert!(power.sources.iter().all(|source| source.watts >= 0.0 && source.joules.is_finite()));
    assert!(power.cpu_seconds < power.seconds * 100.0);
}
