//! Machines that are damaged or hostile: no panic, an end, and nothing from outside.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use forebay_doctor::{Report, State};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::lab::watchdog::Watchdog;
use crate::machine::Machine;

/// What may stand where a file was.
#[derive(Debug, Clone)]
enum Damage {
    Gone,
    Bytes(Vec<u8>),
    Long(u8),
    Link(&'static str),
    Folder,
    Fifo,
}

fn damage() -> impl Strategy<Value = Damage> {
    let targets = ["/etc/passwd", "../../../../../..", ".", "/proc/self", "itself", "/dev/zero"];
    prop_oneof![
        Just(Damage::Gone),
        Just(Damage::Folder),
        Just(Damage::Fifo),
        any::<u8>().prop_map(Damage::Long),
        select(targets.to_vec()).prop_map(Damage::Link),
        proptest::collection::vec(any::<u8>(), 0..80).prop_map(Damage::Bytes),
        "[ -~\n\t=:;.,]{0,80}".prop_map(|text| Damage::Bytes(text.into_bytes())),
    ]
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = fs::read_dir(folder).unwrap().flatten().collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            files(&entry.path(), found);
        } else {
            found.push(entry.path());
        }
    }
}

fn apply(file: &Path, damage: &Damage) {
    // An earlier damage may have taken it away, or put a folder there.
    let _ = fs::remove_file(file).or_else(|_| fs::remove_dir(file));
    let done = match damage {
        Damage::Gone => return,
        Damage::Bytes(bytes) => fs::write(file, bytes),
        Damage::Long(byte) => fs::write(file, vec![*byte; 100_000]),
        Damage::Link(target) => symlink(target, file),
        Damage::Folder => fs::create_dir(file),
        Damage::Fifo => {
            let mode = Mode::RUSR | Mode::WUSR;
            mknodat(CWD, file, FileType::Fifo, mode, 0).map_err(Into::into)
        }
    };
    done.unwrap();
}

/// Adds what only some machines have: nvidia-fs's tables, devices that are closed, a boot line.
fn furnish(machine: &mut Machine) {
    let table = "gpu peer peerrank p2pdist link gen numa np2p class\n\
                 0000:41:00.0 0000:44:00.0 0x00030000 0x0003 0x04 0x05 0x00 7 nvme\n";
    for (file, text) in [
        ("proc/driver/nvidia-fs/peer_distance", table),
        ("proc/driver/nvidia-fs/peer_affinity", "GPU :0000:41:00.0 :0 0 7 0\n"),
        ("proc/driver/nvidia-fs/bridges", "0000:40:01.0\n"),
        ("proc/cmdline", "iommu=pt pci=disable_acs_redir=0000:40:01.0\n"),
        ("proc/self/cgroup", "5:devices:/job\n0::/job\n"),
        ("sys/fs/cgroup/devices/job/cgroup.procs", ""),
        ("sys/fs/cgroup/devices/job/devices.list", "c 1:3 rwm\n"),
        ("dev/nvidiactl", ""),
    ] {
        machine.tree.write(file, text);
    }
    machine.tree.answer(r#"{"access":"/dev/nvidiactl","errno":1}"#);
}

/// What holds of every report.
fn judge(report: &Report) -> Result<(), TestCaseError> {
    prop_assert_eq!(report.ways.len(), 2);
    for check in &report.checks {
        prop_assert!(!check.seen.contains(|c: char| c.is_control()), "{:?}", check);
        prop_assert!(check.seen.len() < 20_000 && !check.why.is_empty());
        prop_assert!(!check.seen.contains("root:x"), "from outside: {:?}", check);
        prop_assert!(check.state != State::Problem || !check.blocks.is_empty() || check.is_broken);
        let has_step = check.step.as_ref().is_some_and(|step| !step.is_empty());
        let is_later = report.gpu.is_none() && !check.blocks.is_empty();
        let needs_none = check.state == State::Ok || check.is_final || is_later;
        prop_assert!(has_step || needs_none, "{:?}", check);
    }
    let states: Vec<State> = report.checks.iter().map(|check| check.state).collect();
    prop_assert!(states.is_sorted());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn no_machine_is_too_strange(
        damages in proptest::collection::vec((any::<Index>(), damage()), 1..6),
        nvidia_fs in any::<bool>(),
        cufile in "(?s)((storage|version|failed|hint|opened) .{0,20}\n){0,4}",
    ) {
        let _watchdog = Watchdog::start();
        let mut machine = if nvidia_fs { Machine::nvidia_fs() } else { Machine::p2pdma() };
        machine.cufile = Some(cufile);
        furnish(&mut machine);
        machine.settle();
        let mut found = Vec::new();
        files(&machine.tree.root(), &mut found);
        for (index, damage) in &damages {
            apply(&found[index.index(found.len())], damage);
        }
        judge(&machine.examine_settled("/data/f"))?;
    }
}

#[test]
fn damaged_facts_are_read_by_the_checks() {
    let mut machine = Machine::nvidia_fs();
    furnish(&mut machine);
    let report = machine.examine("/data/f");
    judge(&report).unwrap();
    let seen = |name: &str| report.check(name).unwrap().seen.clone();
    assert!(seen("nvidia_fs_peers").contains("below a common root port"));
    assert!(seen("gpu_devices").contains("devices.list has `c 1:3 rwm`"));
    assert!(seen("iommu").contains("`iommu=pt`"));
}

#[test]
fn a_machine_that_shows_nothing_is_unknown() {
    let machine = Machine::empty();
    let report = machine.examine("/data/f");
    judge(&report).unwrap();
    let known = report.checks.iter().filter(|check| check.state == State::Ok);
    assert_eq!(known.count(), 0, "{report:#?}");
    assert!(!report.ways[0].is_open && !report.is_broken());
}
