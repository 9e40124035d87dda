//! Tests of what is read, and of what a record keeps.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;

use super::*;

fn pack(bytes: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed.write_all(bytes).expect("memory");
    packed.finish().expect("memory")
}

#[test]
fn addresses_of_symbols_are_left_out() {
    let text = b"ffffffff81000000 T pci_p2pdma_add_resource\nffffffff82 T pci_disable\n";
    let functions = |line: &str| line.contains(" T pci_p2pdma_");
    let found = symbols(text, functions);
    assert_eq!(found, b"0000000000000000 T pci_p2pdma_add_resource\n");
    assert_eq!(symbols(&found, functions), found, "a record says the same");
}

#[test]
fn only_relevant_settings_are_kept() {
    let all = "CONFIG_PCI=y\nCONFIG_PCI_P2PDMA=y\n# CONFIG_ZONE_DEVICE is not set\n";
    let kept = settings(&pack(all.as_bytes()));
    assert_eq!(kept, b"CONFIG_PCI_P2PDMA=y\n# CONFIG_ZONE_DEVICE is not set\n");
    assert_eq!(settings(&kept), kept, "a record says the same");
    assert_eq!(settings(b"no gzip"), b"");
}

#[test]
fn only_relevant_boot_options_are_kept() {
    let line = b"BOOT_IMAGE=/x root=UUID=1 password=iommu=pt intel_iommu=on iommu=pt \xff \
                 pci=disable_acs_redir=0000:40:01.0 pci quiet\n";
    let kept = booted(line);
    assert_eq!(kept, b"intel_iommu=on iommu=pt pci=disable_acs_redir=0000:40:01.0");
    assert_eq!(booted(&kept), kept, "a record says the same");
    let long = format!("pci={} iommu=off", "x".repeat(WORD_MAX));
    assert_eq!(booted(long.as_bytes()), b"iommu=off");
    let booted = vec!["iommu=pt".to_owned(), "pci=noaer".to_owned()];
    let kernel = Kernel { booted, ..Kernel::default() };
    let with = |part: &'static str| kernel.booted_with(move |word| word.contains(part));
    assert_eq!(with("iommu"), ", booted with `iommu=pt`");
    assert_eq!(with("acs"), "");
}

#[test]
fn versions_are_read_from_any_name() {
    let version = |name: &str| Kernel { release: Some(name.into()), ..Kernel::default() }.version();
    assert_eq!(version("6.18.5-generic"), Some((6, 18)));
    assert_eq!(version("6.1"), Some((6, 1)));
    for name in ["", "6", "six.one", "99999999999.1", "-6.1"] {
        assert_eq!(version(name), None, "{name}");
    }
}

proptest! {
    #[test]
    fn damaged_bytes_are_refused_or_bounded(
        bytes in proptest::collection::vec(any::<u8>(), 0..4096),
        at in any::<prop::sample::Index>(),
        with in any::<u8>(),
    ) {
        let mut packed = pack(&bytes);
        prop_assert_eq!(unpack(&packed, 4096), Some(bytes.clone()));
        if let Some(fewer) = bytes.len().checked_sub(1) {
            prop_assert_eq!(unpack(&packed, fewer), None);
        }
        let at = at.index(packed.len());
        prop_assert_eq!(unpack(&packed[..at], 4096), None);
        packed[at] = with;
        prop_assert!(unpack(&packed, 100).is_none_or(|found| found.len() <= 100));
    }
}

#[test]
fn versions_and_options_are_read_as_the_driver_writes_them() {
    let line = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release";
    assert_eq!(version(line), Some((580, 159)));
    assert_eq!(version("NVRM version: x.y 99999999999.1"), None);
    let line = "RegistryDwords: \"RMForceStaticBar1=1; RmForceDisableIomapWC=1;\"";
    assert_eq!(options(line), ["RMForceStaticBar1=1", "RmForceDisableIomapWC=1"]);
    assert!(options("RegistryDwordsPerDevice: \"\"").is_empty());
    assert!(options("").is_empty());
}

#[test]
fn devices_are_distinguished_by_their_names() {
    for name in ["nvidiactl", "nvidia-uvm", "nvidia0", "nvidia-fs15"] {
        assert!(is_device(name), "{name}");
    }
    for name in ["nvidia", "nvidia-caps", "nvidia-modeset", "nvidia-fs", "null", "nvidia0x"] {
        assert!(!is_device(name), "{name}");
    }
}

#[test]
fn limits_are_read_as_the_kernel_writes_them() {
    let limits = "8388608              8388608              bytes";
    assert_eq!(locked_bytes(limits), Some(8 << 20));
    assert_eq!(locked_bytes("unlimited    unlimited"), Some(u64::MAX));
    assert_eq!(locked_bytes(""), None);
}

#[test]
fn a_path_of_a_drive_is_recognized_by_its_head() {
    assert_eq!(head("nvme0c1n2").as_deref(), Some("nvme0n2"));
    for name in ["nvme0n2", "nvme0c1n2p1", "nvmec1n2", "sdc1", "nvme0c1", ""] {
        assert_eq!(head(name), None, "{name}");
    }
}

fn registers(chain: &[(usize, u16, u16)]) -> Vec<u8> {
    let mut bytes = vec![0; CONFIG_LEN];
    for &(at, id, next) in chain {
        bytes[at..at + 2].copy_from_slice(&id.to_le_bytes());
        bytes[at + 2..at + 4].copy_from_slice(&(next << 4 | 1).to_le_bytes());
    }
    bytes
}

#[test]
fn the_register_is_found_along_the_chain() {
    let mut bytes = registers(&[(0x100, 1, 0x148), (0x148, 0x0d, 0)]);
    bytes[0x14e..0x150].copy_from_slice(&0x1d_u16.to_le_bytes());
    assert_eq!(control(&bytes), Ok(Some(0x1d)));
    assert_eq!(control(&registers(&[(0x100, 1, 0)])), Ok(None));
    assert_eq!(control(&bytes[..256]), Ok(None));
    assert!(control(&bytes[..64]).is_err(), "without root");
    let circle = registers(&[(0x100, 1, 0x148), (0x148, 2, 0x100)]);
    assert_eq!(control(&circle), Ok(None));
}

proptest! {
    #[test]
    fn no_registers_are_too_strange(
        bytes in proptest::collection::vec(any::<u8>(), 0..600),
        chain in proptest::collection::vec((0x40_usize..0x3ff, 0_u16..16, 0_u16..0xfff), 0..40),
    ) {
        let _ = control(&bytes);
        let chain: Vec<_> = chain.iter().map(|(at, id, next)| (at * 4, *id, *next)).collect();
        let _ = control(&registers(&chain));
    }
}

#[test]
fn tables_are_read_as_the_module_writes_them() {
    assert_eq!(bridges("0000:40:01.0\n0000:C0:01.1\nx\n\n"), ["0000:40:01.0", "0000:c0:01.1"]);
    let table = "gpu\t\tpeer\t\tpeerrank\tp2pdist\tlink\tgen\tnuma\tnp2p\tclass\n\
                 0000:41:00.0 \t0000:44:00.0 \t0x0003005a\t0x0003\t0x04\t0x05\t0x00\t12\tnvme\n\
                 0000:41:00.0 \tdamaged\n";
    let found = distances(table);
    assert_eq!(found.len(), 1);
    let row = &found[0];
    assert_eq!((row.gpu.as_str(), row.peer.as_str()), ("0000:41:00.0", "0000:44:00.0"));
    assert_eq!((row.distance, row.moved, row.kind.as_str()), (3, 12, "nvme"));
    let table = "GPU P2P DMA distribution based on pci-distance\n\n\
                 (last column indicates p2p via root complex)\n\
                 GPU :0000:ca:00.0 :0 7 5 0 3\nGPU :0000:65:00.0:0 0\nGPU :x :1\nGPU\n";
    let rows = [("0000:ca:00.0".to_owned(), 12, 3), ("0000:65:00.0".to_owned(), 0, 0)];
    assert_eq!(affinity(table), rows);
}

proptest! {
    #[test]
    fn no_table_is_too_strange(
        text in "(?s).{0,200}",
        rows in proptest::collection::vec("(GPU ?:)?[0-9a-f:.x \t-]{0,60}", 0..20),
    ) {
        for text in [text, rows.join("\n")] {
            for address in bridges(&text) {
                prop_assert!(address.is_ascii() && address.len() <= 16);
            }
            for row in distances(&text) {
                prop_assert!(row.kind.len() <= 16);
            }
            for (_, below, past) in affinity(&text) {
                prop_assert!(below.checked_add(past).is_some());
            }
        }
    }
}
