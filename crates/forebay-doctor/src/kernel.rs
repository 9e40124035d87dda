//! Checks of the kernel: its support of peer-to-peer DMA, and known problems of its version.

use std::io::Read as _;

use flate2::read::GzDecoder;
use forebay_topology::System;

use super::facts::Facts;
use super::report::{Check, P2PDMA, Topic};

const TRANSFERS: Topic = Topic {
    name: "kernel_p2pdma",
    why: "without it the kernel moves no bytes between two PCI devices; only nvidia-fs remains",
};
const VERSION: Topic = Topic {
    name: "kernel_version",
    why: "some kernels are known to break a direct path, or to slow it down",
};

const UNAME: &str = "`uname -r` shows the version: kernels from 6.15 on need a newer driver";
/// Maximum lengths of a kernel's configuration, packed and unpacked; most have 70 and 300 KiB.
const PACKED_MAX: usize = 1 << 20;
const SETTINGS_MAX: usize = 4 << 20;
/// Maximum length of the symbol table of a kernel with many modules.
const SYMBOLS_MAX: usize = 64 << 20;
/// Maximum length of the kernel's command line; most machines allow 4 KiB.
const LINE_MAX: usize = 64 << 10;
const WORD_MAX: usize = 200;
const WORDS_MAX: usize = 16;

/// The facts about a kernel.
#[derive(Debug, Default)]
pub(super) struct Kernel {
    /// Its release, such as `6.18.5-generic`.
    pub(super) release: Option<String>,
    /// Whether `CONFIG_PCI_P2PDMA` and `CONFIG_ZONE_DEVICE` are set.
    p2pdma: Option<bool>,
    zone_device: Option<bool>,
    /// The source of these settings, or the reason why they are unknown.
    source: String,
    /// The boot parameters that concern PCI and IOMMUs.
    booted: Vec<String>,
}

impl Kernel {
    pub(super) fn read(system: &System) -> Self {
        let release = system.text("proc/sys/kernel/osrelease").ok();
        // The rest of that line is private: it may hold passwords.
        let line = system.masked("proc/cmdline".as_ref(), LINE_MAX, booted).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        let booted = line.split_whitespace().map(str::to_owned).collect();
        let mut kernel = Self { release, booted, ..Self::default() };
        let settings = system.masked("proc/config.gz".as_ref(), PACKED_MAX, settings);
        if let Ok(settings) = settings.as_ref().map(|bytes| String::from_utf8_lossy(bytes))
            && !settings.is_empty()
        {
            kernel.settings(&settings, "/proc/config.gz");
            return kernel;
        }
        let name = kernel.release.as_deref().filter(|name| !name.contains(['/', '\0']));
        let file = format!("boot/config-{}", name.unwrap_or_default());
        if let Ok(lines) = system.lines_of(&file, SETTINGS_MAX, wanted) {
            kernel.settings(&lines.join("\n"), &format!("/{file}"));
            return kernel;
        }
        // A readable symbol table always contains functions, but data only in some kernels.
        let functions =
            |line: &str| line.contains(" T pci_p2pdma_") || line.contains("p2pdma_pgmap");
        match system.masked("proc/kallsyms".as_ref(), SYMBOLS_MAX, |text| symbols(text, functions))
        {
            Ok(found) => {
                kernel.p2pdma = Some(!found.is_empty());
                kernel.source = "/proc/kallsyms".into();
            }
            Err(absent) => {
                kernel.source = format!(
                    "/proc/config.gz and /{file} cannot be read, nor can /proc/kallsyms ({absent})"
                );
            }
        }
        kernel
    }

    fn settings(&mut self, text: &str, source: &str) {
        let is_set = |name: &str| {
            text.lines().any(|line| line.strip_prefix(name).is_some_and(|rest| rest.trim() == "=y"))
        };
        self.p2pdma = Some(is_set("CONFIG_PCI_P2PDMA"));
        self.zone_device = Some(is_set("CONFIG_ZONE_DEVICE"));
        self.source = source.to_owned();
    }

    /// Whether the kernel is known to lack support for P2PDMA.
    pub(super) fn lacks_p2pdma(&self) -> bool {
        self.p2pdma == Some(false) || self.zone_device == Some(false)
    }

    /// ``, booted with `iommu=pt` `` if it was booted with such a parameter; else empty.
    pub(super) fn booted_with(&self, wanted: impl Fn(&str) -> bool) -> String {
        let words = self.booted.iter().filter(|word| wanted(word));
        let words = words.map(|word| format!("`{word}`")).collect::<Vec<_>>();
        if words.is_empty() { String::new() } else { format!(", booted with {}", words.join(", ")) }
    }

    /// The first two numbers of its version.
    pub(super) fn version(&self) -> Option<(u32, u32)> {
        let mut numbers = self.release.as_deref()?.split(|c: char| !c.is_ascii_digit());
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }

    pub(super) fn checks(&self, facts: &Facts) -> Vec<Check> {
        let mut checks = vec![self.transfers()];
        checks.extend(self.versions(facts));
        checks
    }

    fn transfers(&self) -> Check {
        let source = &self.source;
        let missing = |name: &str| {
            // Source: NVIDIA's troubleshooting guide, "Linux Kernel Requirements" of NVMe P2PDMA.
            TRANSFERS
                .problem(format!("{source}: `{name}` is not set"), P2PDMA)
                .step(
                    "boot a kernel with `CONFIG_PCI_P2PDMA=y` and `CONFIG_ZONE_DEVICE=y`: Ubuntu's \
                     from 6.2 on, or one that is built so",
                )
                .needs("a kernel with `CONFIG_PCI_P2PDMA`")
        };
        match (self.p2pdma, self.zone_device) {
            (Some(false), _) => missing("CONFIG_PCI_P2PDMA"),
            (_, Some(false)) => missing("CONFIG_ZONE_DEVICE"),
            (Some(true), _) => TRANSFERS.ok(format!("{source}: `CONFIG_PCI_P2PDMA` is set")),
            (None, _) => TRANSFERS
                .unknown(source.clone())
                .step("`grep -i p2pdma /boot/config-$(uname -r)` on the machine itself, as root"),
        }
    }

    fn versions(&self, facts: &Facts) -> Vec<Check> {
        let Some(release) = &self.release else {
            return vec![VERSION.unknown("/proc/sys/kernel/osrelease cannot be read").step(UNAME)];
        };
        let Some(version) = self.version() else {
            let seen = format!("`{release}` begins with no version");
            return vec![VERSION.unknown(seen).step(UNAME)];
        };
        let mut checks = Vec::new();
        // Source: NVIDIA's release notes. Drives with scatter-gather lists hang with nvidia-fs.
        if version >= (6, 17) && facts.driver.nvidia_fs.is_some() {
            let seen = format!("{release}, and nvidia-fs is loaded");
            checks.push(VERSION.warning(seen).step(
                "use P2PDMA in the place of nvidia-fs from 6.17 on: drives that take \
                 scatter-gather lists were seen to hang",
            ));
        }
        // Source: user reports. CUDA's query for P2PDMA fails with `INVALID_VALUE`.
        let is_old = facts.driver.version.is_some_and(|(major, _)| (565..595).contains(&major));
        if version >= (6, 15) && is_old && facts.driver.has_pool() {
            let seen = format!("{release} with driver {}", facts.driver.version_text());
            checks.push(VERSION.warning(seen).step(
                "use driver 595 or later: users saw that earlier ones refuse P2PDMA on 6.15 and \
                 later",
            ));
        }
        if checks.is_empty() {
            checks.push(VERSION.ok(release.clone()));
        }
        checks
    }
}

/// Whether the checks use this setting.
fn wanted(line: &str) -> bool {
    line.contains("PCI_P2PDMA") || line.contains("ZONE_DEVICE")
}

/// The settings in use of a packed configuration, or of the unpacked lines of a record.
fn settings(bytes: &[u8]) -> Vec<u8> {
    let unpacked = unpack(bytes, SETTINGS_MAX);
    let text = String::from_utf8_lossy(unpacked.as_deref().unwrap_or(bytes));
    let kept = text.lines().filter(|line| wanted(line)).map(|line| format!("{line}\n"));
    kept.collect::<String>().into_bytes()
}

/// The kernel parameters that concern IOMMUs and bridges
/// (`Documentation/admin-guide/kernel-parameters.txt`).
fn booted(line: &[u8]) -> Vec<u8> {
    let line = String::from_utf8_lossy(line);
    let names = ["iommu", "intel_iommu", "amd_iommu", "iommu.passthrough", "iommu.strict", "pci"];
    let words = line.split_whitespace().filter(|word| {
        let name = word.split_once('=').map(|(name, _)| name);
        name.is_some_and(|name| names.contains(&name)) && word.len() <= WORD_MAX
    });
    words.take(WORDS_MAX).collect::<Vec<_>>().join(" ").into_bytes()
}

/// The wanted lines of the symbol table, without addresses.
fn symbols(text: &[u8], wanted: impl Fn(&str) -> bool) -> Vec<u8> {
    let lines = text.split(|&byte| byte == b'\n').filter_map(|line| {
        let line = std::str::from_utf8(line).ok().filter(|line| wanted(line))?;
        Some(format!("0000000000000000 {}\n", line.split_once(' ')?.1))
    });
    lines.collect::<String>().into_bytes()
}

/// The unpacked bytes, or `None` if there are more than `most` or `packed` is not gzip.
fn unpack(packed: &[u8], most: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let bound = u64::try_from(most).ok()?.saturating_add(1);
    GzDecoder::new(packed).take(bound).read_to_end(&mut bytes).ok()?;
    (bytes.len() <= most).then_some(bytes)
}

#[cfg(test)]
mod tests {
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
        let version =
            |name: &str| Kernel { release: Some(name.into()), ..Kernel::default() }.version();
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
}
