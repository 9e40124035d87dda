//! A meter on machines made of files, on simulated sensors, and on this machine.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::sync::atomic::AtomicU32;
use std::sync::mpsc;
use std::thread::sleep;

use tempfile::TempDir;

use super::result::Source;
use super::track::Reading;
use super::*;

const LONG: Duration = Duration::from_secs(60);

/// A machine that is made file by file.
pub(super) struct Tree(TempDir);

impl Tree {
    pub(super) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(super) fn system(&self) -> System {
        System::at(self.0.path())
    }

    pub(super) fn file(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(super) fn link(&self, path: &str, target: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    /// A pipe without a writer: a blocking open would never return.
    fn fifo(&self, path: &str) {
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let (kind, path) = (rustix::fs::FileType::Fifo, self.0.path().join(path));
        rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0).unwrap();
    }

    pub(super) fn remove(&self, path: &str) {
        let path = self.0.path().join(path);
        fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path)).unwrap();
    }

    pub(super) fn forbid(&self, path: &str) {
        let none = fs::Permissions::from_mode(0o000);
        fs::set_permissions(self.0.path().join(path), none).unwrap();
    }

    /// A counter of RAPL's.
    pub(super) fn zone(&self, folder: &str, name: &str, energy_uj: u64) {
        let folder = format!("sys/class/powercap/{folder}");
        self.file(&format!("{folder}/name"), &format!("{name}\n"));
        self.file(&format!("{folder}/energy_uj"), &format!("{energy_uj}\n"));
        self.file(&format!("{folder}/max_energy_range_uj"), "262143328850\n");
    }
}

/// Polls until `is_so`, and fails after a time limit.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LONG, "{what}");
        sleep(Duration::from_millis(5));
    }
}

fn wanted(tree: &Tree) -> Wanted {
    Wanted { system: tree.system(), ..Wanted::default() }
}

fn source<'a>(power: &'a Power, name: &str) -> &'a Source {
    let found = power.sources.iter().find(|source| source.name == name);
    found.unwrap_or_else(|| panic!("no `{name}` in {power:?}"))
}

/// A simulated sensor of watts.
fn simulated(mut read: impl FnMut() -> Result<f64, String> + Send + 'static) -> Sensor {
    let about = About {
        name: "simulated".into(),
        part: Part::Gpu,
        how: "simulated".into(),
        is_counter: false,
        rough: Duration::ZERO,
        reach: LONG,
    };
    Sensor { about, read: Box::new(move || Reading { value: read(), throttle: 0 }) }
}

fn meter(sensor: Sensor, command: Option<Sensor>) -> Meter {
    let found = Found { quick: vec![sensor], ..Found::default() };
    Meter::of(found, command, Arc::default())
}

#[test]
fn a_server_is_measured_by_its_counters_and_a_command() {
    let tree = Tree::new();
    tree.zone("intel-rapl:0", "package-0", 262_143_328_850 - 1_000_000);
    tree.zone("intel-rapl:0:0", "dram", 1_000_000);
    let command = Some("echo 350 W".into());
    let meter = Meter::begin(&Wanted { command, ..wanted(&tree) }).unwrap();
    let start = meter.mark();
    // A reading after the start: until then nothing is consumed.
    meter.mark();
    tree.zone("intel-rapl:0", "package-0", 3_000_000);
    tree.zone("intel-rapl:0:0", "dram", 3_000_000);
    meter.mark();
    let mut power = Power::default();
    until("the command's power", || {
        power = meter.between(start, Instant::now());
        power.sources.len() == 3
    });
    // Across the counter's wrap: a joule before, three after.
    assert!((source(&power, "package-0").joules - 4.0).abs() < 1e-6, "{power:?}");
    assert!((source(&power, "dram-0").joules - 2.0).abs() < 1e-6);
    assert_eq!(power.joules_of(Part::Package), Some(source(&power, "package-0").joules));
    let server = source(&power, "server");
    assert_eq!(server.watts.round(), 350.0);
    assert_eq!(server.how, "the command `echo 350 W`");
    assert!(meter.absent().is_empty() && meter.warnings().is_empty());
    assert!(observers::total() > Duration::ZERO);
    let failure = Meter::begin(&Wanted { command: Some("echo 1e308".into()), ..wanted(&tree) });
    assert!(failure.unwrap_err().causes[0].contains("not plausible"));
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
        power.warnings.iter().any(|warning| warning.contains("no such file"))
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
}

#[test]
fn a_command_that_hangs_later_ends_with_the_meter() {
    let tree = Tree::new();
    let (been, pid) = (tree.0.path().join("been"), tree.0.path().join("pid"));
    let line = format!(
        "if [ -e {0} ]; then echo $$ > {1}.new; mv {1}.new {1}; sleep 100; fi; touch {0}; echo 7",
        been.display(),
        pid.display()
    );
    let meter = Meter::begin(&Wanted { command: Some(line), ..wanted(&tree) }).unwrap();
    until("its second run", || pid.exists());
    let pid = fs::read_to_string(pid).unwrap();
    let begun = Instant::now();
    drop(meter);
    assert!(begun.elapsed() < LONG);
    until("its end", || !std::path::Path::new("/proc").join(pid.trim()).exists());
}

/// A driver that hangs delays callers only briefly, and the command is read.
#[test]
fn a_driver_that_hangs_holds_up_nothing() {
    let (hang, hangs) = mpsc::channel::<()>();
    let stuck = move || hangs.recv().map(|()| 1.0).map_err(|_| "released".to_owned());
    let meter = meter(simulated(stuck), Some(simulated(|| Ok(5.0))));
    let start = Instant::now();
    until("the other", || {
        let power = meter.between(start, Instant::now());
        power.sources.iter().any(|source| source.watts == 5.0)
    });
    drop(meter);
    assert!(start.elapsed() < LONG);
    drop(hang); // the thread ends, long after it was abandoned
}

#[test]
fn readings_are_periodic_and_on_request() {
    let calls = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&calls);
    let counts = move || Ok(f64::from(count.fetch_add(1, Ordering::Relaxed) + 1));
    let meter = meter(simulated(counts), None);
    assert!(calls.load(Ordering::Relaxed) >= 1, "the first one precedes the meter's use");
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
fn special_files_are_reported_and_never_waited_for() {
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

/// Every source of this machine is measured or reported as absent, and nothing is an error.
#[test]
fn every_source_of_this_machine_is_measured_or_absent() {
    let gpus = forebay::gpu::visible().unwrap_or_default();
    let meter = Meter::begin(&Wanted { gpus, ..Wanted::default() }).unwrap();
    let start = meter.mark();
    sleep(3 * PERIOD);
    let power = meter.between(start, Instant::now());
    println!("{power:#?}");
    for absent in meter.absent() {
        println!("skipped: {}: {}", absent.name, absent.why);
    }
    assert!(!power.sources.is_empty() || !meter.absent().is_empty());
    assert!(power.sources.iter().all(|source| source.watts >= 0.0 && source.joules.is_finite()));
}
