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
