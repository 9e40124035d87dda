//! The sockets of a GPU and of drives.

use std::path::PathBuf;

use forebay_cli::map::between_sockets;

use crate::tree::Tree;

/// Two GPUs on the socket `package`, whose node is `node`, and a drive and a GPU on node 0 of
/// socket 0.
fn machine(node: &str, package: &str) -> Tree {
    let mut tree = Tree::new();
    tree.drive(1);
    tree.mount(7, "259:1", "/data", "xfs /dev/nvme1n1 rw");
    let gpus = [("80", "81", node), ("80", "82", node), ("c0", "c1", "0")];
    for (bus, gpu, node) in gpus {
        let folder = format!("pci0000:{bus}/0000:{gpu}:00.0");
        tree.write(&format!("sys/devices/{folder}/class"), "0x030200\n");
        tree.write(&format!("sys/devices/{folder}/uevent"), "PCI_ID=10DE:2335\n");
        tree.write(&format!("sys/devices/{folder}/numa_node"), format!("{node}\n"));
        let link = format!("sys/bus/pci/devices/0000:{gpu}:00.0");
        tree.link(&link, &format!("../../../devices/{folder}"));
    }
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
fn drives_on_another_socket_are_named_once() {
    let paths = ["/data/f", "/data/f"].map(PathBuf::from);
    let printed = |node: &str, package: &str| {
        let tree = machine(node, package);
        between_sockets(&tree.resolver(), &paths, &["0000:81:00.0", "0000:99:00.0", "", "../../x"])
    };
    let expected = "`nvme1n1` is on another socket than GPU 0000:81:00.0, so bytes cross the link \
                    between sockets: use GPU 0000:c1:00.0, or a drive of that socket";
    assert_eq!(printed("1", "1"), [expected]);
    assert!(printed("0", "0").is_empty() && printed("-1", "1").is_empty());
}
