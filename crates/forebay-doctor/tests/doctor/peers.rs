//! What nvidia-fs says of bridges and distances, what the kernel was booted with, and the policy of
//! a drive's several paths.

use forebay_doctor::{Report, State};

use crate::check;
use crate::machine::{Machine, bridge_with, port};

const TABLES: &str = "proc/driver/nvidia-fs";
const HEAD: &str = "gpu\t\tpeer\t\tpeerrank\tp2pdist\tlink\tgen\tnuma\tnp2p\tclass\n";

/// What a machine with nvidia-fs says after `change`.
fn after(change: impl FnOnce(&Machine)) -> Report {
    let machine = Machine::nvidia_fs();
    change(&machine);
    machine.examine("/data/f")
}

/// A row of the drive `peer`, so far away, with so many requests.
fn row(peer: &str, distance: u32, moved: u32) -> String {
    format!(
        "0000:41:00.0 \t{peer} \t{:#010x}\t{distance:#06x}\t0x04\t0x05\t0x00\t{moved}\tnvme\n",
        distance << 16
    )
}

#[test]
fn distances_are_those_of_nvidia_fs() {
    let reported = |peer: &'static str, distance: u32, affinity: &'static str| {
        after(move |m| {
            let table = format!("{HEAD}{}{}", row("0000:99:00.0", 300, 0), row(peer, distance, 7));
            m.tree.write(&format!("{TABLES}/peer_distance"), table);
            m.tree.write(&format!("{TABLES}/peer_affinity"), affinity);
        })
    };
    let near = reported("0000:44:00.0", 3, "");
    let found = check(&near, "nvidia_fs_peers");
    let seen = "0000:44:00.0: 3 below a common root port; 7 requests so far";
    assert_eq!((found.state, found.seen.as_str()), (State::Ok, seen));
    let table = "GPU P2P DMA distribution based on pci-distance\n\n\
                 (last column indicates p2p via root complex)\nGPU :0000:41:00.0 :0 2 0 5\n";
    let far = reported("0000:44:00.0", 131, table);
    let found = check(&far, "nvidia_fs_peers");
    assert_eq!(found.state, State::Warning);
    let seen = "0000:44:00.0: past a root port; so far 5 of 7 requests went past one";
    assert_eq!(found.seen, seen);
    assert!(found.step.as_ref().unwrap().contains("`forebay doctor --tree`"));
    let other = reported("0000:45:00.0", 3, "");
    assert_eq!(check(&other, "nvidia_fs_peers").state, State::Unknown, "no row of this drive");
    assert!(after(|_| ()).check("nvidia_fs_peers").is_none(), "it does not report them");
}

#[test]
fn nvidia_fs_names_bridges_whose_registers_are_unreadable() {
    let acs = |list: &'static str| {
        let report = after(|m| {
            m.tree.write(&format!("{}/config", port()), [0; 64]);
            m.tree.write(&format!("{TABLES}/bridges"), list);
        });
        let found = check(&report, "acs");
        (found.state, found.seen.clone())
    };
    let on = (State::Warning, "0000:40:01.0 have ACS on, as nvidia-fs says".to_owned());
    assert_eq!(acs("0000:40:01.0\n"), on);
    assert_eq!(acs("0000:80:01.0\n").0, State::Ok, "that is none of this path");
    assert_eq!(acs("").0, State::Ok, "it is off everywhere");
    let hidden = after(|m| m.tree.write(&format!("{}/config", port()), [0; 64]));
    assert_eq!(check(&hidden, "acs").state, State::Unknown);
}

#[test]
fn the_kernels_boot_options_are_reported() {
    let line = "root=/dev/x password=secret intel_iommu=on pci=disable_acs_redir=0000:40:02.0\n";
    let report = after(|m| {
        m.tree.write("proc/cmdline", line);
        bridge_with(&m.tree, &port(), 0x1d);
    });
    let seen = &check(&report, "acs").seen;
    let booted = "redirect, booted with `pci=disable_acs_redir=0000:40:02.0`";
    assert!(seen.ends_with(booted), "{seen}");
    let seen = &check(&report, "iommu").seen;
    assert_eq!(seen, "there is none, or it is off, booted with `intel_iommu=on`");
    assert!(!format!("{report:?}").contains("secret"));
}
