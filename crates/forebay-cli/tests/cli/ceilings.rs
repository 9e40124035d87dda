//! What a run says of limits: which of them takes over as GPUs are added, and what theory gives
//! the links on the way, by systems that are recorded or made by hand.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use forebay_cli::bench::limits::parts::{GpuAt, Part, parts};
use forebay_cli::bench::limits::reach::reach;
use forebay_cli::results::file::{read, samples};
use forebay_cli::results::{Ceiling, Measured, Record};
use forebay_topology::{PciDevice, gpu_at, gpus};

use crate::map::recorded::Recorded;
use crate::program::program;
use crate::tree::Tree;

fn sweep(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.current_dir(folder).env("XDG_STATE_HOME", folder).arg("bench").args(arguments);
    command.args(["--repeats=1", "--warm-up=0s", "-o", "results"]);
    command.stdin(Stdio::null()).output().unwrap()
}

/// A sweep over more and more GPUs: its ceilings, what was measured of each point, what it
/// showed. None where this machine was too busy for one of its samples.
fn added(arguments: &[&str]) -> Option<(Vec<Ceiling>, Vec<Measured>, String)> {
    let folder = tempfile::tempdir_in(".").unwrap();
    let output = sweep(folder.path(), arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if said.contains("use a longer `--time`, or a smaller block size") {
        return None;
    }
    assert!(output.status.success(), "{said}");
    let records = read(&folder.path().join("results")).unwrap();
    let ceilings = records.iter().filter_map(|record| match record {
        Record::Ceiling(ceiling) => Some(ceiling.clone()),
        _ => None,
    });
    let measured = samples(&records).map(|(_, sample)| sample.measured.clone().unwrap());
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    Some((ceilings.collect(), measured.collect(), shown))
}

/// What a sweep over up to four GPUs behind one uplink should have shown and did not, perhaps since
/// this machine was too busy. That links and uplink let no more through than they should is so in
/// each; none where a sample failed.
fn lacking_of_an_uplink() -> Option<BTreeSet<String>> {
    // So slow that this machine keeps up.
    let gpus = "--gpus=sim:4,bandwidth=50MB/s,uplink=100MB/s";
    let arguments = ["--block-size=64K", "--depth=16", "--cache=warm", "--size=8M"];
    let (ceilings, measured, shown) = added(&[&arguments[..], &[gpus, "--time=500ms"]].concat())?;
    let found = |name: &str, of: &str| {
        let found = ceilings.iter().find(|ceiling| ceiling.name == name && ceiling.of == of);
        found.unwrap_or_else(|| panic!("{name} of {of}: {ceilings:#?}"))
    };
    let all = ["sim:0", "sim:1", "sim:2", "sim:3"];
    let shared = found("uplink", "sim:port");
    assert!(shared.theory && shared.bytes_per_second == 100e6 && shared.shared_by == all);
    assert_eq!(found("link", "sim:1").theory_bytes_per_second, Some(50e6));
    let four = found("uplink", &all.join("+"));
    assert_eq!((four.theory, four.theory_bytes_per_second), (false, Some(100e6)));
    assert!(four.limits.as_ref().unwrap().contains("sim:port"), "{four:?}");
    assert!(four.bytes_per_second < 1.1 * 100e6, "{four:?}");
    assert_eq!(measured.len(), 4);
    let mut lacking = BTreeSet::new();
    let mut wanted = |is_so: bool, what: String, seen: &dyn std::fmt::Debug| {
        if !is_so {
            println!("{what}: {seen:?}");
            lacking.insert(what);
        }
    };
    wanted(four.bytes_per_second > 0.5 * 100e6, "the ceiling of four".into(), four);
    for (count, measured) in (1..).zip(&measured) {
        // No more passes than the links and the uplink let through, but for what was in flight.
        let most = f64::from(count).min(2.0) * 50e6;
        assert!(measured.bytes_per_second < 1.15 * most, "{count}: {measured:?}");
        wanted(measured.bytes_per_second > 0.25 * most, format!("a rate of {count}"), measured);
        let verdict = measured.verdict.as_ref().expect("each is judged");
        // The kernel may take pages back meanwhile, but not many.
        let cached = verdict.shares.iter().find(|share| share.way == "cached");
        let is_cached = cached.is_some_and(|share| share.share > 0.9);
        wanted(is_cached, format!("pages that stay, of {count}"), verdict);
        assert!(verdict.simulated, "{verdict:?}");
        let doubted = verdict.doubts.iter().any(|doubt| doubt.contains("all targets together"));
        assert_eq!(doubted, count > 1, "{verdict:?}");
    }
    for (measured, name) in [(&measured[0], "link"), (&measured[3], "uplink")] {
        let bound = measured.bound.as_ref().unwrap();
        // What is in flight binds where this machine is too busy for it.
        assert!([name, "in-flight", "processors"].contains(&bound.name.as_str()), "{bound:?}");
        wanted(bound.name == name, format!("a bound by the {name}"), bound);
    }
    assert!(shown.contains("4 simulated GPUs (0-3)"), "{shown}");
    // Where four GPUs are bound by what they share, each has a part of it.
    let shares = &measured[3].shares;
    assert!(shares.iter().all(|share| share.bytes_per_second < 50e6), "{shares:?}");
    Some(lacking)
}

#[test]
fn an_uplink_takes_over_as_gpus_are_added() {
    let mut never: Option<BTreeSet<String>> = None;
    for lacking in (0..12).filter_map(|_| lacking_of_an_uplink()) {
        let still = match never {
            Some(never) => &never & &lacking,
            None => lacking,
        };
        if still.is_empty() {
            return;
        }
        never = Some(still);
    }
    panic!("in no sweep: {never:?}");
}

/// Two real GPUs begin together, and together are no faster than their links.
#[test]
#[ignore = "takes two GPUs, and some seconds"]
fn two_real_gpus_begin_together() {
    let count = forebay::gpu::visible().map_or(0, |gpus| gpus.len());
    if count < 2 {
        let required = std::env::var_os("FOREBAY_REQUIRE_GPUS").is_some_and(|set| set == "1");
        assert!(!required, "FOREBAY_REQUIRE_GPUS is 1, but this machine has {count}");
        println!("skipped: two GPUs at once: this machine has {count}");
        return;
    }
    let arguments = ["--gpus=0-1", "--block-size=1M", "--depth=16", "--cache=warm"];
    let swept = added(&[&arguments[..], &["--time=2s", "--size=2G"]].concat());
    let (ceilings, measured, _) = swept.expect("GPUs that are not busy");
    let links: Vec<f64> = ceilings
        .iter()
        .filter(|ceiling| ceiling.name == "link")
        .map(|ceiling| ceiling.bytes_per_second)
        .collect();
    assert_eq!((links.len(), measured.len()), (2, 2), "{ceilings:?}");
    let both = ceilings.iter().find(|ceiling| ceiling.of == "cuda:0+cuda:1").unwrap();
    assert!(both.bytes_per_second < 1.1 * links.iter().sum::<f64>(), "{both:?}");
    let [first, second] = measured[1].shares.as_slice() else { panic!("{:?}", measured[1]) };
    assert_eq!((first.target.as_str(), second.target.as_str()), ("cuda:0", "cuda:1"));
    assert_eq!(first.bytes + second.bytes, measured[1].bytes.unwrap());
    assert!(first.bytes > 0 && second.bytes > 0 && measured[1].verified != Some(false));
    assert!(measured[1].verdict.is_some());
}

#[test]
fn settings_of_simulated_gpus_that_make_no_sense_are_named() {
    let folder = tempfile::tempdir().unwrap();
    for (gpus, named) in [
        ("sim:0", "it takes GPUs such as"),
        ("sim:2,uplink=0GB/s", "a rate above zero"),
        ("sim:2,uplinks=1GB/s", "`uplink=`"),
        ("sim:2,", "settings that start with"),
    ] {
        let output = sweep(folder.path(), &[&format!("--gpus={gpus}")]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{gpus}: {said}");
        assert!(said.contains(named), "{gpus}: {said}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was begun");
    }
}

/// Where two GPUs and two drives hang below a switch on node 1, and a drive on node 0.
fn machine() -> Tree {
    let mut tree = Tree::new();
    tree.drive(1);
    tree.mount(7, "259:1", "/data", "xfs /dev/nvme1n1 rw");
    let link = |path: &str, width: u32, speed: &str| {
        for (when, width) in [("current", width), ("max", 16)] {
            tree.write(&format!("sys/devices/{path}/{when}_link_width"), format!("{width}\n"));
            let speed = format!("{speed} GT/s PCIe\n");
            tree.write(&format!("sys/devices/{path}/{when}_link_speed"), speed);
        }
    };
    let up = "pci0000:80/0000:80:01.0";
    let switch = format!("{up}/0000:81:00.0");
    link(up, 16, "16.0");
    link(&switch, 16, "16.0");
    for (slot, address, width) in [("00", "0000:83:00.0", 16), ("01", "0000:84:00.0", 8)] {
        let port = format!("{switch}/0000:82:{slot}.0");
        let gpu = format!("{port}/{address}");
        link(&port, width, "16.0");
        link(&gpu, width, "16.0");
        tree.write(&format!("sys/devices/{gpu}/class"), "0x030200\n");
        tree.write(&format!("sys/devices/{gpu}/uevent"), "PCI_ID=10DE:2335\n");
        tree.write(&format!("sys/devices/{gpu}/numa_node"), "1\n");
        tree.link(&format!("sys/bus/pci/devices/{address}"), &format!("../../../devices/{gpu}"));
    }
    tree.write("sys/devices/system/node/online", "0-1\n");
    for (node, distances) in [("0", "10 32"), ("1", "32 10")] {
        let folder = format!("sys/devices/system/node/node{node}");
        tree.write(&format!("{folder}/cpulist"), format!("{node}\n"));
        tree.write(&format!("{folder}/distance"), format!("{distances}\n"));
        let package = format!("sys/devices/system/cpu/cpu{node}/topology/physical_package_id");
        tree.write(&package, format!("{node}\n"));
    }
    tree.settle();
    tree
}

fn at(tree: &Tree, name: &str, address: &str) -> GpuAt {
    let pci = gpu_at(tree.resolver().system(), address).unwrap().pci;
    GpuAt { name: name.into(), pci, simulated: false }
}

/// Bytes per second of a PCIe 4.0 link of 16 lanes, and of what is moved over it.
const WIRE: f64 = 31_507_692_304.0;

#[test]
fn each_link_between_drive_and_gpu_is_a_part() {
    let tree = machine();
    let gpus = [at(&tree, "cuda:0", "0000:83:00.0"), at(&tree, "cuda:1", "0000:84:00.0")];
    let map = tree.resolver().resolve(Path::new("/data/f"));
    let all = parts(&gpus, &map.drives, &[]);
    let names: Vec<(&str, &str)> = all.iter().map(|part| (part.name, part.of.as_str())).collect();
    assert_eq!(
        names,
        [
            ("pcie", "nvme1n1"),
            ("uplink", "0000:80:01.0"),
            ("sockets", "nvme1n1 – cuda:0"),
            ("sockets", "nvme1n1 – cuda:1"),
            ("pcie", "cuda:0"),
            ("pcie", "cuda:1"),
        ]
    );
    let [_, up, far, _, first, second] = all.as_slice() else { panic!("{all:?}") };
    let payload = up.rate.unwrap() / WIRE;
    assert!((payload - 256.0 / 280.0).abs() < 1e-9, "{up:?}");
    assert_eq!(up.how, "x16 at 16 GT/s; 128 of 130 bits, 91 % payload");
    assert_eq!(up.shared_by, ["cuda:0", "cuda:1"]);
    assert_eq!(up.source.as_deref(), Some("/sys/bus/pci/devices/0000:80:01.0"));
    assert_eq!(far.rate, None, "nobody tells the rate of the link between sockets");
    assert_eq!(far.limits.as_deref(), Some("NUMA nodes 1 and 0, distance 32"));
    assert_eq!((first.rate, first.limits.as_deref()), (up.rate, None));
    let down = second.limits.as_deref().unwrap();
    assert_eq!(down, "trained down: it runs at x8 of x16 at 16 GT/s");
    assert_eq!(far.record(), None);
    let record = up.record().unwrap();
    assert!(record.theory && record.shared_by.len() == 2 && !record.simulated);
}

/// A stripe over two sockets, as a kernel showed it.
#[test]
fn a_recorded_machine_shows_who_shares_its_uplinks() {
    let Some(recorded) = Recorded::with_gpus() else { return };
    let resolver = recorded.resolver();
    let map = resolver.resolve(Path::new("/mnt/md0/data.bin"));
    let gpus: Vec<GpuAt> = gpus(resolver.system())
        .into_iter()
        .zip(["cuda:0", "cuda:1"])
        .map(|(gpu, name)| GpuAt { name: name.into(), pci: gpu.pci, simulated: false })
        .collect();
    let all = parts(&gpus, &map.drives, &[]);
    let of = |name: &str| all.iter().filter(|part| part.name == name).collect::<Vec<_>>();
    let shared: Vec<(&str, String)> =
        of("uplink").iter().map(|part| (part.of.as_str(), part.shared_by.join(" "))).collect();
    assert_eq!(
        shared,
        [
            ("0000:40:02.0", "nvme3n1 nvme4n1 cuda:0".to_owned()),
            ("0000:a0:01.0", "nvme14n1 nvme1n1 cuda:1".to_owned()),
        ]
    );
    assert_eq!((of("pcie").len(), of("sockets").len()), (6, 4), "{all:#?}");
}

#[test]
fn what_devices_reach_together_is_bound_by_what_they_share() {
    let tree = machine();
    let [first, second] =
        ["0000:83:00.0", "0000:84:00.0"].map(|address| at(&tree, "gpu", address).pci);
    let alone = reach(&[&first]).unwrap();
    assert_eq!(alone.uplink, None);
    let both = reach(&[&first, &second]).unwrap();
    assert_eq!(both.uplink.as_deref(), Some("0000:80:01.0"));
    assert_eq!(both.rate, alone.rate, "16 and 8 lanes behind 16");
    let twice = reach(&[&second, &second]).unwrap().rate / alone.rate;
    assert!((0.499..0.501).contains(&twice), "one device is one: {twice}");
    assert_eq!(reach(&[]), None);
    // Of a link that tells nothing, what is above it is all that is known.
    let silent = |mut pci: PciDevice, above: bool| {
        pci.link = Default::default();
        if !above {
            pci.bridges.iter_mut().for_each(|bridge| bridge.link = Default::default());
        }
        reach(&[&pci])
    };
    assert_eq!(silent(second.clone(), true).unwrap().rate, alone.rate);
    assert_eq!(silent(second, false), None);
}

#[test]
fn a_drive_of_a_virtual_machine_tells_no_rate() {
    let mut tree = Tree::new();
    tree.device("254:0", "pci0000:00/0000:00:05.0/virtio2/block/vda");
    tree.link("sys/devices/pci0000:00/0000:00:05.0/virtio2/block/vda/device", "../../");
    tree.mount(7, "254:0", "/data", "ext4 /dev/vda rw");
    let map = tree.map("/data/f");
    let all = parts(&[], &map.drives, &[]);
    let [Part { name: "pcie", of, rate: None, how, .. }] = all.as_slice() else {
        panic!("{all:?}")
    };
    assert_eq!((of.as_str(), how.as_str()), ("vda", "no rate is reported (virtio)"));
    assert!(gpus(tree.resolver().system()).is_empty());
}
