//! Checks of storage behind a network: NFS over RDMA, RDMA devices, and their access to GPU memory.

use forebay_topology::System;

use super::facts::Facts;
use super::report::{BOTH, Check, NVIDIA_FS, P2PDMA};
use super::topics::*;

pub(super) fn checks(facts: &Facts) -> Vec<Check> {
    let (nfs, devices) = (nfs(facts), devices(&facts.system));
    let peermem = match facts.system.exists("sys/module/nvidia_peermem") {
        true => PEERMEM.ok("/sys/module/nvidia_peermem is there"),
        // Source: NVIDIA's guide to GPUDirect RDMA, "Using nvidia-peermem".
        false => PEERMEM
            .warning("there is no /sys/module/nvidia_peermem")
            .step("`modprobe nvidia-peermem`, where the driver does not use DMA-BUF"),
    };
    if !facts.storage.is_remote() {
        return Vec::new();
    }
    nfs.into_iter().chain([devices, peermem]).collect()
}

fn nfs(facts: &Facts) -> Option<Check> {
    let has_rpcrdma = facts.system.exists("sys/module/rpcrdma");
    // The version of VAST's client, if it is in use.
    let client = facts.system.text("sys/module/sunrpc/parameters/nfs_bundle_version").ok();
    if !facts.storage.is_nfs() {
        return None;
    }
    let server = facts.storage.server()?;
    let protocol = server.text("protocol").unwrap_or("no known protocol");
    let step = "mount it with `-o proto=rdma,port=20049`, by the client of DOCA-OFED or VAST \
                    that knows nvidia-fs";
    if !server.flag("rdma") {
        let needs = "NFS over RDMA";
        return NFS_TRANSPORT
            .problem(format!("over {protocol}"), BOTH)
            .step(step)
            .needs(needs)
            .into();
    }
    let client = client.map(|version| format!(", by VAST's client {version}"));
    let seen = format!("over {protocol}{}", client.unwrap_or_default());
    if !has_rpcrdma {
        // The module may be built in, so a missing folder proves nothing.
        let seen = format!("{seen}; there is no /sys/module/rpcrdma");
        return NFS_TRANSPORT
            .unknown(seen)
            .step("`modprobe rpcrdma`, where it is not built in")
            .into();
    }
    // P2PDMA works only with drives on PCI; NFS needs nvidia-fs (NVIDIA's page of nvidia-fs).
    Some(match facts.driver.serves("rpcrdma") {
        Some(true) => NFS_TRANSPORT.ok(format!("{seen}, by nvidia-fs")).closing(P2PDMA).last(),
        _ => NFS_TRANSPORT.problem(seen, BOTH).step(step).needs("nvidia-fs with `rpcrdma`"),
    })
}

fn devices(system: &System) -> Check {
    // Without the module there is no such folder, and so no such card.
    let none = || system.exists("sys/class").then(Vec::new);
    let Some(ports) = system.rdma_ports().ok().or_else(none) else {
        return RDMA_DEVICES
            .unknown("/sys/class/infiniband cannot be read")
            .step("`ibv_devinfo` lists cards and ports");
    };
    let up: Vec<&str> = ports
        .iter()
        .filter(|port| port.state.starts_with("4:"))
        .map(|port| port.name.as_str())
        .collect();
    if !up.is_empty() {
        return RDMA_DEVICES.ok(format!("{} up", up.join(", ")));
    }
    let seen = match ports.first() {
        None => "/sys/class/infiniband is empty".to_owned(),
        Some(port) => format!("no port is up: {} is `{}`", port.name, port.state),
    };
    RDMA_DEVICES
        .problem(seen, NVIDIA_FS)
        .step("`ibv_devinfo` lists cards and ports: connect one, or install its driver")
        .needs("an RDMA port that is up")
}
