//! Checks of storage behind a network: NFS over RDMA, RDMA devices, and their access to GPU memory.

use forebay_topology::{RdmaPort, System};

use super::facts::Facts;
use super::report::{BOTH, Check, NVIDIA_FS, P2PDMA, Topic};

const NFS: Topic = Topic {
    name: "nfs_transport",
    why: "over TCP each byte is copied by the processor; over RDMA the network card may write to \
          the GPU itself",
};
const DEVICES: Topic = Topic {
    name: "rdma_devices",
    why: "a direct path over a network takes a card that speaks RDMA, with a port that is up",
};
const PEERS: Topic = Topic {
    name: "peermem",
    why: "`nvidia_peermem` (or DMA-BUF in newer drivers) lets a network card reach a GPU's memory",
};

/// The facts about the network.
#[derive(Debug)]
pub(super) struct Network {
    /// `None` if unknown.
    ports: Option<Vec<RdmaPort>>,
    has_peermem: bool,
    has_rpcrdma: bool,
    /// The version of VAST's client, if it is in use.
    vast: Option<String>,
}

impl Network {
    pub(super) fn read(system: &System) -> Self {
        // Without the module there is no such folder, and so no such card.
        let none = || system.exists("sys/class").then(Vec::new);
        let ports = system.rdma_ports().ok().or_else(none);
        Self {
            ports,
            has_peermem: system.exists("sys/module/nvidia_peermem"),
            has_rpcrdma: system.exists("sys/module/rpcrdma"),
            vast: system.text("sys/module/sunrpc/parameters/nfs_bundle_version").ok(),
        }
    }

    pub(super) fn checks(&self, facts: &Facts) -> Vec<Check> {
        if !facts.storage.is_remote() {
            return Vec::new();
        }
        let mut checks: Vec<Check> = self.nfs(facts).into_iter().collect();
        checks.push(self.devices());
        checks.push(match self.has_peermem {
            true => PEERS.ok("/sys/module/nvidia_peermem is there"),
            // Source: NVIDIA's guide to GPUDirect RDMA, "Using nvidia-peermem".
            false => PEERS
                .warning("there is no /sys/module/nvidia_peermem")
                .step("`modprobe nvidia-peermem`, where the driver does not use DMA-BUF"),
        });
        checks
    }

    fn nfs(&self, facts: &Facts) -> Option<Check> {
        if !facts.storage.is_nfs() {
            return None;
        }
        let server = facts.storage.server()?;
        let protocol = server.text("protocol").unwrap_or("no known protocol");
        let step = "mount it with `-o proto=rdma,port=20049`, by the client of DOCA-OFED or VAST \
                    that knows nvidia-fs";
        if !server.flag("rdma") {
            let needs = "NFS over RDMA";
            return Some(NFS.problem(format!("over {protocol}"), BOTH).step(step).needs(needs));
        }
        let client = self.vast.as_ref().map(|version| format!(", by VAST's client {version}"));
        let seen = format!("over {protocol}{}", client.unwrap_or_default());
        if !self.has_rpcrdma {
            // The module may be built in, so a missing folder proves nothing.
            let seen = format!("{seen}; there is no /sys/module/rpcrdma");
            return Some(NFS.unknown(seen).step("`modprobe rpcrdma`, where it is not built in"));
        }
        // P2PDMA works only with drives on PCI; NFS needs nvidia-fs (NVIDIA's page of nvidia-fs).
        Some(match facts.driver.serves("rpcrdma") {
            Some(true) => NFS.ok(format!("{seen}, by nvidia-fs")).closing(P2PDMA).last(),
            _ => NFS.problem(seen, BOTH).step(step).needs("nvidia-fs with `rpcrdma`"),
        })
    }

    fn devices(&self) -> Check {
        let Some(ports) = &self.ports else {
            return DEVICES
                .unknown("/sys/class/infiniband cannot be read")
                .step("`ibv_devinfo` lists cards and ports");
        };
        let up: Vec<&str> = ports
            .iter()
            .filter(|port| port.state.starts_with("4:"))
            .map(|port| port.name.as_str())
            .collect();
        if !up.is_empty() {
            return DEVICES.ok(format!("{} up", up.join(", ")));
        }
        let seen = match ports.first() {
            None => "/sys/class/infiniband is empty".to_owned(),
            Some(port) => format!("no port is up: {} is `{}`", port.name, port.state),
        };
        DEVICES
            .problem(seen, NVIDIA_FS)
            .step("`ibv_devinfo` lists cards and ports: connect one, or install its driver")
            .needs("an RDMA port that is up")
    }
}
