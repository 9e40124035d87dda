//! NVMe namespaces, their controllers, and the paths of native multipath.
//!
//! A namespace with several paths is a head in the folder of its subsystem. Its paths are hidden
//! block devices `nvmeScCnH` in the controllers' folders, and lead to the same drive
//! (`Documentation/admin-guide/nvme-multipath.rst`).

use super::block;
use super::drive::{Drive, DriveId, DriveKind, DrivePath, Transport};
use super::map::{Layer, LayerKind};
use super::pci::{self, PciDevice};
use super::resolve::Resolve;
use super::system::Folder;
use super::text::{device_text, is_number};
use super::volume::Span;

/// Signs of a drive that a network card, a DPU or a cloud emulates on PCI.
struct Emulator {
    by: &'static str,
    vendor: Option<u16>,
    /// Lower-case words in the model or the NVMe qualified name by which the drive identifies
    /// itself.
    words: &'static [&'static str],
}

const EMULATORS: [Emulator; 3] = [
    Emulator { by: "a DPU (NVIDIA SNAP)", vendor: Some(0x15b3), words: &["snap", "nvda"] },
    Emulator { by: "Amazon EBS", vendor: None, words: &["amazon elastic block store"] },
    Emulator { by: "Google Persistent Disk", vendor: None, words: &["nvme_card-pd"] },
];

impl Resolve<'_> {
    /// Describes a namespace. `device` is the target of its folder's `device` link: the controller
    /// or the subsystem.
    pub(super) fn nvme(
        &mut self,
        folder: &Folder,
        device: &Folder,
        number: u64,
        layer: &mut Layer,
    ) -> Span {
        layer.kind = LayerKind::NvmeNamespace;
        let name = folder.name();
        let nsid = folder.number("nsid");
        layer.say_if("nsid", nsid);
        let ways = ways(&name, device);
        if ways.is_empty() {
            layer.unknown("controllers", "no controller of the namespace can be read");
        }
        let first = ways.first().map(|way| &way.controller);
        // The subsystem shows the facts of all its controllers; older kernels lack some of its
        // files.
        let text = |file: &str| {
            device.text(file).or_else(|absent| first.map_or(Err(absent), |first| first.text(file)))
        };
        let nqn = text("subsysnqn").ok();
        let serial = text("serial").ok();
        let id = match (&nqn, nsid, folder.text("wwid"), &serial) {
            (Some(nqn), Some(nsid), ..) => format!("nvme:{nqn}/{nsid}"),
            (_, _, Ok(wwid), _) => format!("wwid:{wwid}"),
            (_, _, _, Some(serial)) => format!("serial:nvme:{serial}:{name}"),
            _ => format!("device:{}", device_text(number)),
        };
        let mut drive = Drive::new(DriveId(id), DriveKind::Block, name);
        drive.model = text("model").ok();
        drive.firmware = text("firmware_rev").ok();
        drive.serial = serial;
        block::fill(&mut drive, folder, layer, number);
        layer.say_if("nqn", nqn.clone());
        if let Ok(policy) = device.text("iopolicy")
            && ways.len() > 1
        {
            layer.say("path_policy", policy);
        }
        let mut down = Vec::new();
        for way in &ways {
            let pci = pci::above(&way.controller);
            let path = way.path(pci, nqn.as_deref(), drive.model.as_deref());
            if !path.live {
                down.push(path.name.clone());
            }
            // The namespaces of a controller on the host's own PCI share its hardware.
            if path.pci.is_some()
                && let Some(nqn) = &nqn
            {
                drive.hardware = DriveId(format!("nvme:{nqn}"));
            }
            let child = self.controller(way, &path);
            layer.children.push(child);
            drive.paths.push(path);
        }
        layer.say_all("paths_down", down);
        self.found(layer, drive)
    }

    fn controller(&mut self, way: &NamespacePath, path: &DrivePath) -> Layer {
        let mut layer = Layer::new(LayerKind::NvmeController, path.name.as_str());
        layer.say("transport", way.controller.text("transport"));
        layer.say_if("address", way.controller.text("address").ok());
        // The count includes the admin queue; older kernels lack the file.
        let queues = way.controller.number("queue_count");
        layer.say_if("io_queues", queues.and_then(|count| count.checked_sub(1)));
        layer.say("carried", path.transport.to_string());
        if let Transport::Emulated { signs, .. } = &path.transport {
            layer.say("signs", signs.clone());
        }
        layer.say_if("state", path.state.clone());
        layer.say("live", path.live);
        layer.say_if("numa_node", path.numa_node);
        self.pci(&mut layer, path.pci.as_ref(), way.controller.path());
        layer
    }
}

/// A path to a namespace.
struct NamespacePath {
    controller: Folder,
    /// The ANA (asymmetric namespace access) state of this path.
    access: Option<String>,
}

impl NamespacePath {
    fn path(&self, pci: Option<PciDevice>, nqn: Option<&str>, model: Option<&str>) -> DrivePath {
        let state = self.controller.text("state").ok();
        let transport = self.transport(pci.as_ref(), nqn, model);
        let refused = ["inaccessible", "persistent-loss", "change"];
        let live = state.as_deref().is_none_or(|state| state == "live")
            && !self.access.as_deref().is_some_and(|access| refused.contains(&access));
        let node = self.controller.number("numa_node").and_then(|node| node.try_into().ok());
        let words: Vec<String> = [state, self.access.clone()].into_iter().flatten().collect();
        DrivePath {
            name: self.controller.name(),
            transport,
            live,
            state: (!words.is_empty()).then(|| words.join(", ")),
            numa_node: pci.as_ref().and_then(|pci| pci.numa_node).or(node),
            pci,
            ..DrivePath::default()
        }
    }

    fn transport(
        &self,
        pci: Option<&PciDevice>,
        nqn: Option<&str>,
        model: Option<&str>,
    ) -> Transport {
        match self.controller.text("transport").as_deref() {
            Ok("pcie") => emulated(pci, nqn, model).unwrap_or(Transport::Pcie),
            Ok(kind) => {
                let address = self.controller.text("address").unwrap_or_default();
                Transport::Fabric { kind: kind.to_owned(), address }
            }
            // Kernels before 4.15 have no such file, but a controller on PCI is certain.
            Err(_) if pci.is_some() => Transport::Pcie,
            Err(_) => Transport::Unknown,
        }
    }
}

/// Detects an emulated drive by its PCI vendor, model and qualified name.
fn emulated(pci: Option<&PciDevice>, nqn: Option<&str>, model: Option<&str>) -> Option<Transport> {
    EMULATORS.iter().find_map(|emulator| {
        let says = |what: &str, text: Option<&str>| {
            let text = text?;
            let lower = text.to_ascii_lowercase();
            emulator
                .words
                .iter()
                .any(|word| lower.contains(word))
                .then(|| format!("{what} `{text}`"))
        };
        let own: Vec<String> =
            [says("model", model), says("qualified name", nqn)].into_iter().flatten().collect();
        let vendor = emulator.vendor.filter(|&id| pci.and_then(|pci| pci.vendor) == Some(id));
        // If the emulator's PCI vendor is known, a word alone is no evidence.
        if vendor.is_none() && (own.is_empty() || emulator.vendor.is_some()) {
            return None;
        }
        let certain = !own.is_empty();
        let vendor = vendor.map(|id| format!("PCI vendor {id:#06x}"));
        let signs = vendor.into_iter().chain(own).collect();
        Some(Transport::Emulated { by: emulator.by.to_owned(), signs, certain })
    })
}

/// The paths to the namespace `name`.
fn ways(name: &str, device: &Folder) -> Vec<NamespacePath> {
    if is_controller(&device.name()) {
        return vec![NamespacePath { controller: device.clone(), access: None }];
    }
    let Some((subsystem, head)) = name.strip_prefix("nvme").and_then(|name| name.split_once('n'))
    else {
        return Vec::new();
    };
    let names = device.list("").unwrap_or_default();
    let mut ways: Vec<(u32, NamespacePath)> = names
        .iter()
        .filter_map(|entry| {
            let instance: u32 = entry.strip_prefix("nvme")?.parse().ok()?;
            let controller = device.folder(entry).ok()?;
            let path = format!("nvme{subsystem}c{instance}n{head}");
            // A controller of the subsystem need not serve every namespace.
            controller.has(&path).then(|| {
                let access = controller.text(format!("{path}/ana_state")).ok();
                (instance, NamespacePath { controller, access })
            })
        })
        .collect();
    ways.sort_by_key(|(instance, _)| *instance);
    ways.into_iter().map(|(_, way)| way).collect()
}

fn is_controller(name: &str) -> bool {
    name.strip_prefix("nvme").is_some_and(is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simulated_drive_is_recognized_by_its_signs() {
        let certain = |model| match emulated(None, None, Some(model)) {
            Some(Transport::Emulated { certain, by, .. }) => Some((certain, by)),
            _ => None,
        };
        let ebs = certain("Amazon Elastic Block Store");
        assert_eq!(ebs, Some((true, "Amazon EBS".to_owned())));
        // NVIDIA's word in another vendor's model is no evidence.
        assert_eq!(certain("SnapDrive 9"), None);
        assert_eq!(certain("PM1743"), None);
    }
}
