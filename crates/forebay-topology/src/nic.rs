//! Network ports: those that carry the bytes of a file server or a remote drive, and their rates.
//!
//! The route to the server's address names an interface. Bonds, VLANs and bridges stand on other
//! interfaces (`lower_*` in `/sys/class/net`); at the bottom are ports with a PCI device.

use std::cmp::Reverse;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::drive::{Drive, Transport};
use super::map::Layer;
use super::pci::{self, PciDevice};
use super::system::{Absent, Folder, System};
use super::text::option;

/// A port of a network card.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Nic {
    /// The kernel's name: `eth0`, or `mlx5_0/1` for RDMA.
    pub name: String,
    /// What its line carries without line code and headers, in bytes per second.
    pub bytes_per_second: f64,
    /// Its PCI device.
    pub pci: Option<PciDevice>,
}

/// A port of a network card with RDMA.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RdmaPort {
    /// Card and port: `mlx5_0/1`.
    pub name: String,
    /// Its folder in `/sys`.
    pub folder: String,
    /// Its state, such as `4: ACTIVE`, or why it is unknown.
    pub state: String,
}

/// Most ports that are read.
const RDMA_PORTS_MAX: usize = 64;

impl System {
    /// The ports of all network cards with RDMA, if the kernel lists such cards.
    pub fn rdma_ports(&self) -> Result<Vec<RdmaPort>, Absent> {
        let cards = self.names("sys/class/infiniband", |_| true)?;
        let ports = cards.iter().flat_map(|card| {
            let folder = format!("sys/class/infiniband/{card}/ports");
            let numbers = self.list(&folder).unwrap_or_default();
            numbers.into_iter().map(move |number| {
                let folder = format!("{folder}/{number}");
                let state = self.text(format!("{folder}/state"));
                let state = state.unwrap_or_else(|absent| absent.to_string());
                RdmaPort { name: format!("{card}/{number}"), folder, state }
            })
        });
        Ok(ports.take(RDMA_PORTS_MAX).collect())
    }
}

/// The other end of a network.
#[derive(Debug, Clone, Copy)]
struct Server {
    address: IpAddr,
    is_rdma: bool,
    connections: u64,
}

/// Maximum depth of stacked interfaces, such as a VLAN on a bond.
const DEPTH_MAX: usize = 8;
/// Headers of a TCP segment with timestamps: 20 of TCP, 12 of its option, 20 of IPv4 or 40 of IPv6.
const TCP: [u64; 2] = [52, 72];
/// An Ethernet frame besides its payload: preamble 8, header 14, checksum 4, gap 12 (IEEE 802.3).
const ETHERNET: u64 = 38;
/// RDMA in a frame: IPv4 20 or IPv6 40, UDP 8, transport header 12, checksum 4 (InfiniBand
/// Architecture Specification, annex A17).
const ROCE: [u64; 2] = [44, 64];
/// An InfiniBand packet besides its payload: local header 8, transport header 12, checksums 4 and
/// 2. Datagrams of IP over InfiniBand have 8 and 4 more (the same, chapter 5; RFC 4391).
const INFINIBAND: u64 = 26;
const IPOIB: u64 = 12;
/// The largest payload of an RDMA packet.
const RDMA_MAX: u64 = 4096;
/// What the kernel reserves in a frame for headers of RDMA (`iboe_get_mtu` in `rdma/ib_addr.h`).
const ROCE_ROOM: u64 = 96;

/// The ports that the bytes of a remote drive pass; `root` holds the steps of its path. `None` if
/// its server's address, the route to it or the rate of a port is unknown, or if the server is this
/// machine.
pub fn ports(system: &System, root: &Layer, drive: &Drive) -> Option<Vec<Nic>> {
    let servers: Option<Vec<Server>> = match drive.transport() {
        Transport::Fabric { .. } => {
            let live = drive.paths.iter().filter(|path| path.live);
            live.map(|path| fabric(&path.transport)).collect()
        }
        Transport::Network(_) => {
            let mut layers = root.walk().map(|(_, layer)| layer);
            let own = layers.find(|layer| layer.text("drive") == Some(drive.id.as_str()))?;
            mounted(own).map(|server| vec![server])
        }
        _ => None,
    };
    let mut all: Vec<Nic> = Vec::new();
    for server in servers? {
        for port in below(system, &interface(system, server.address)?, server, 0)? {
            if all.iter().all(|known| known.name != port.name) {
                all.push(port);
            }
        }
    }
    (!all.is_empty()).then_some(all)
}

/// The server of a mount: from its options, or an address in its source, such as
/// `10.0.0.1@o2ib:/scratch` or `//10.0.0.1/data`.
fn mounted(layer: &Layer) -> Option<Server> {
    let source = || layer.name.trim_start_matches('/').split(['@', ':', '/']).next();
    let address = layer.text("server").or_else(source)?.parse().ok()?;
    let known = layer.number("connections").or_else(|| layer.number("connections_wanted"));
    let is_rdma = layer.flag("rdma") || layer.name.contains("@o2ib");
    Some(Server { address, is_rdma, connections: known.unwrap_or(1) })
}

/// The target of a controller with an address such as `traddr=10.0.0.1,trsvcid=4420`. Its queues
/// are connections.
fn fabric(transport: &Transport) -> Option<Server> {
    let Transport::Fabric { kind, address } = transport else { return None };
    let address = option(address, "traddr")?.parse().ok()?;
    let is_ip = matches!(kind.as_str(), "tcp" | "rdma");
    is_ip.then_some(Server { address, is_rdma: kind == "rdma", connections: u64::MAX })
}

/// The interface of the route to `address`: that with the longest prefix, then the lowest metric.
/// Rules for several tables are not visible in `/proc`.
fn interface(system: &System, address: IpAddr) -> Option<String> {
    if address.is_loopback() {
        return None;
    }
    let table = system.own_table(if address.is_ipv4() { "net/route" } else { "net/ipv6_route" });
    let table = table.ok()?;
    let table = String::from_utf8_lossy(&table);
    let routes = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (name, (prefix, metric)) = match address {
            IpAddr::V4(address) => (fields.first()?, route_4(&fields, address)?),
            IpAddr::V6(address) => (fields.last()?, route_6(&fields, address)?),
        };
        Some(((prefix, Reverse(metric)), (*name).to_owned()))
    });
    let (_, name) = routes.max_by_key(|(rank, _)| *rank)?;
    (name != "lo").then_some(name)
}

/// The length of the prefix and the metric of a line of `/proc/net/route`, if it covers `address`.
fn route_4(fields: &[&str], address: Ipv4Addr) -> Option<(u32, u64)> {
    let [_, target, _, flags, _, _, metric, mask, ..] = fields else { return None };
    // The kernel prints the bytes of an address as a number of a little-endian machine.
    let number = |text: &str| Some(u32::from_str_radix(text, 16).ok()?.swap_bytes());
    let (target, mask) = (number(target)?, number(mask)?);
    let is_up = u32::from_str_radix(flags, 16).ok()? & 0x201 == 1;
    let covers = Ipv4Addr::to_bits(address) & mask == target;
    (is_up && covers).then_some((mask.count_ones(), metric.parse().ok()?))
}

/// The same of a line of `/proc/net/ipv6_route`.
fn route_6(fields: &[&str], address: Ipv6Addr) -> Option<(u32, u64)> {
    let [target, prefix, _, _, _, metric, _, _, flags, _] = fields else { return None };
    let target = u128::from_str_radix(target, 16).ok()?;
    let prefix = u32::from_str_radix(prefix, 16).ok().filter(|prefix| *prefix <= 128)?;
    let mask = u128::MAX.checked_shl(128 - prefix).unwrap_or(0);
    let is_up = u32::from_str_radix(flags, 16).ok()? & 0x201 == 1;
    let covers = Ipv6Addr::to_bits(address) & mask == target & mask;
    (is_up && covers).then_some((prefix, u64::from_str_radix(metric, 16).ok()?))
}

/// The ports below an interface that carry bytes of `server`.
fn below(system: &System, name: &str, server: Server, depth: usize) -> Option<Vec<Nic>> {
    let folder = system.folder(format!("sys/class/net/{name}")).ok()?;
    if let Ok(device) = folder.folder("device") {
        return Some(vec![port(&folder, &device, server)?]);
    }
    if depth == DEPTH_MAX {
        return None;
    }
    let word = |file: &str| folder.text(file).ok()?.split(' ').next().map(str::to_owned);
    let mode = word("bonding/mode");
    if mode.as_deref() == Some("active-backup") {
        return below(system, &word("bonding/active_slave")?, server, depth + 1);
    }
    let names = folder.list("").ok()?;
    let lower = names.iter().filter_map(|name| name.strip_prefix("lower_"));
    let found: Option<Vec<Vec<Nic>>> =
        lower.map(|lower| below(system, lower, server, depth + 1)).collect();
    let mut found: Vec<Nic> = found?.into_iter().flatten().collect();
    // A connection uses a single port, unless frames rotate over all; without its port number in
    // the hash, all connections to one server do (`Documentation/networking/bonding.rst`). The
    // switch is assumed to do the same for the way back.
    let by_connection = word("bonding/xmit_hash_policy").is_none_or(|hash| hash.contains("3+4"));
    let used = match mode.as_deref() {
        Some("balance-rr") => u64::MAX,
        None => server.connections,
        Some("802.3ad" | "balance-xor") if by_connection => server.connections,
        Some(_) => 1,
    };
    found.sort_by(|one, other| other.bytes_per_second.total_cmp(&one.bytes_per_second));
    found.truncate(usize::try_from(used.max(1)).unwrap_or(usize::MAX));
    Some(found)
}

/// The port of the interface in `folder`.
fn port(folder: &Folder, device: &Folder, server: Server) -> Option<Nic> {
    /// The kernel's number of this kind of interface (`ARPHRD_INFINIBAND` in `linux/if_arp.h`).
    const ARPHRD_INFINIBAND: u64 = 32;
    let is_infiniband = folder.number("type") == Some(ARPHRD_INFINIBAND);
    let mtu = folder.number("mtu").filter(|mtu| (1280..=65_536).contains(mtu))?;
    let version = usize::from(server.address.is_ipv6());
    let card = device.list("infiniband").ok().and_then(|cards| cards.into_iter().next());
    let number = folder.number("dev_port").unwrap_or(0).saturating_add(1);
    let ib = card.and_then(|card| {
        Some((format!("{card}/{number}"), device.folder(format!("infiniband/{card}")).ok()?))
    });
    let rate = match &ib {
        Some((_, card)) if server.is_rdma || is_infiniband => card_rate(card, number)?,
        // Megabits per second; -1 without a link.
        _ => folder.text("speed").ok()?.parse::<u32>().ok().map(|rate| f64::from(rate) * 1e6)?,
    };
    let (payload, packet) = match (server.is_rdma, is_infiniband) {
        (true, true) => (RDMA_MAX, RDMA_MAX + INFINIBAND),
        (true, false) => {
            let payload =
                (256..=RDMA_MAX.min(mtu - ROCE_ROOM)).rev().find(|n| n.is_power_of_two())?;
            (payload, payload + ROCE[version] + ETHERNET)
        }
        // Connected mode splits large packets.
        (false, true) => {
            let packets = (mtu + IPOIB).div_ceil(RDMA_MAX + IPOIB);
            (mtu - TCP[version], mtu + 4 + packets * (INFINIBAND + 8))
        }
        (false, false) => (mtu - TCP[version], mtu + ETHERNET),
    };
    let name = ib.filter(|_| server.is_rdma).map_or_else(|| folder.name(), |(name, _)| name);
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let bytes_per_second = rate / 8.0 * payload as f64 / packet as f64;
    Some(Nic { name, bytes_per_second, pci: pci::above(device) })
}

/// The rate of a card's active port without line code, in bits per second, from a text such as
/// `40 Gb/sec (4X QDR)`.
///
/// On InfiniBand, up to QDR 8 of 10 bits are data, with FDR 64 of 66. The remaining rates, and
/// of Ethernet, are already without (InfiniBand Architecture Specification, volume 2).
fn card_rate(card: &Folder, number: u64) -> Option<f64> {
    let text = |file: &str| card.text(format!("ports/{number}/{file}")).ok();
    let rate = text("rate").filter(|_| text("state").is_some_and(|it| it.contains("ACTIVE")))?;
    let bits = rate.split(' ').next()?.parse::<f64>().ok()? * 1e9;
    let is_coded = text("link_layer").is_none_or(|layer| layer == "InfiniBand");
    let coded = |speed: &str| is_coded && rate.contains(&format!("X {speed})"));
    let data = match () {
        () if ["SDR", "DDR", "QDR"].into_iter().any(coded) => 0.8,
        () if coded("FDR") => 64.0 / 66.0,
        () => 1.0,
    };
    (1e8..1e14).contains(&bits).then_some(bits * data)
}
