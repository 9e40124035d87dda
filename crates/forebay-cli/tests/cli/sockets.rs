//! The sockets of a GPU and of drives.

use std::path::{Path, PathBuf};

use forebay_cli::sockets::{Sockets, warnings};

use crate::tree::Tree;

fn look(node: &str, package: &str) -> Option<Sockets> {
    let tree = machine(node, package);
    Sockets::look(&tree.resolver(), Path::new("/data/f"), "0000:81:00.0")
}

/// A GPU on the socket `package`, whose node is `node`, beside a drive on node 0 of socket 0.
fn machine(node: &str, package: &str) -> Tree {
    let mut tree = Tree::new();
    tree.drive(1);
    tree.mount(7, "259:1", "/data", "xfs /dev/nvme1n1 rw");
    let gpu = "pci0000:80/0000:81:00.0";
    tree.write(&format!("sys/devices/{gpu}/class"), "0x030200\n");
    tree.write(&format!("sys/devices/{gpu}/uevent"), "PCI_ID=10DE:2335\n");
    tree.write(&format!("sys/devices/{gpu}/numa_node"), format!("{node}\n"));
    tree.link("sys/bus/pci/devices/0000:81:00.0", &format!("../../../devices/{gpu}"));
    tree.write("sys/devices/system/node/online", "0-1\n");
    for (node, cpu, distances) in [("0", "0", "10 32"), ("1", "1", "32 10")] {
        let folder = format!("sys/devices/system/node/node{node}");
        tree.write(&format!("{folder}/cpulist"), format!("{cpu}\n"));
        tree.write(&format!("{folder}/distance"), format!("{distances}\n"));
    }
    let topology = |cpu| format!("sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id");
    tree.write(&topology(0), "0\n");
    tree.write(&topology(1), format!("{package}\n"));
    tree.settle();
    tree
}

#[test]
fn another_socket_is_named_with_its_distance() {
    let sockets = look("1", "1").unwrap();
    assert_eq!((sockets.gpu.as_str(), sockets.numa_node), ("0000:81:00.0", Some(1)));
    let drive = &sockets.drives[0];
    assert_eq!((drive.name.as_str(), drive.numa_node), ("nvme1n1", Some(0)));
    assert_eq!((drive.distance.as_str(), drive.node_distance), ("across_sockets", Some(32)));
    let expected = "`nvme1n1` (NUMA node 0, distance 32, local is 10) is on another socket than \
                    the GPU on NUMA node 1, so bytes cross the link between sockets: use a drive \
                    or a GPU on the same socket; `forebay doctor --map` shows where they are";
    assert_eq!(sockets.warning().as_deref(), Some(expected));
}

#[test]
fn each_pair_that_is_apart_is_told_once() {
    let paths = ["/data/f", "/data/f"].map(PathBuf::from);
    let said = |node: &str, package: &str| {
        let tree = machine(node, package);
        warnings(&tree.resolver(), &paths, &["0000:81:00.0", "0000:99:00.0"])
    };
    assert_eq!(said("1", "1"), [look("1", "1").unwrap().warning().unwrap()]);
    assert!(said("0", "0").is_empty());
}

#[test]
fn one_socket_is_no_news() {
    let sockets = look("0", "0").unwrap();
    assert_eq!(sockets.drives[0].distance, "same_socket");
    assert_eq!(sockets.warning(), None);
}

#[test]
fn what_is_not_told_is_unknown() {
    let sockets = look("-1", "1").unwrap();
    assert_eq!((sockets.numa_node, sockets.drives[0].distance.as_str()), (None, "unknown"));
    assert!(sockets.drives[0].text.contains("has no NUMA node"), "{sockets:?}");
    assert_eq!(sockets.warning(), None);
    let tree = Tree::new();
    tree.settle();
    for address in ["", "0000:99:00.0", "../../x", "\u{1b}[2J"] {
        assert_eq!(Sockets::look(&tree.resolver(), Path::new("/data/f"), address), None);
    }
}
