//! Bytes moved by the memory controllers, as `resctrl` counts them for all processes
//! (Documentation/filesystems/resctrl.rst).

use forebay_topology::System;

use super::seen::Seen;

const ROOT: &str = "sys/fs/resctrl";
/// Maximum number of memory-controller domains read.
pub(super) const DOMAINS_MAX: usize = 64;

/// The counter files of the domains.
pub(super) fn domains(system: &System) -> Vec<String> {
    let folder = format!("{ROOT}/mon_data");
    let names = system.list(&folder).unwrap_or_default();
    let domains = names.into_iter().take(DOMAINS_MAX);
    domains.map(|name| format!("{folder}/{name}/mbm_total_bytes")).collect()
}

/// The bytes of all domains so far.
pub(super) fn look(system: &System, domains: &[String]) -> Seen<u64> {
    if domains.is_empty() {
        return if system.exists(ROOT) {
            let remedy = "`mount -t resctrl resctrl /sys/fs/resctrl` as root";
            Seen::missing("the memory's bandwidth is not counted: resctrl is not mounted", remedy)
        } else {
            Seen::Nothing("this kernel or processor does not count the memory's bandwidth".into())
        };
    }
    let bytes: Seen<Vec<u64>> = domains
        .iter()
        .map(|path| {
            let remedy = "a processor with MBM counts it";
            let none = || Seen::missing(format!("there is no `/{path}`"), remedy);
            Seen::read(path, system.text(path), none).and_then(|text| {
                // The file says `Unavailable`, `Error` or `Unassigned` if no counter is available.
                let why = format!("`/{path}` says `{text}`");
                Seen::of(text.parse().ok(), why, "free a counter of resctrl, and repeat")
            })
        })
        .collect();
    bytes.map(|bytes| bytes.into_iter().fold(0, u64::saturating_add))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn each_domain_is_counted_where_resctrl_is_mounted() {
        let root = tempfile::tempdir().unwrap();
        let system = System::at(root.path());
        let seen = || look(&system, &domains(&system));
        assert!(matches!(seen(), Seen::Nothing(_)), "{:?}", seen());
        fs::create_dir_all(root.path().join(ROOT)).unwrap();
        assert!(seen().absence().unwrap().contains("mount -t resctrl"), "{:?}", seen());
        for (name, count) in [("mon_L3_00", "1000\n"), ("mon_L3_01", "24\n")] {
            let folder = root.path().join(ROOT).join("mon_data").join(name);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("mbm_total_bytes"), count).unwrap();
        }
        assert_eq!(seen(), Seen::Value(1024));
        let file = root.path().join(ROOT).join("mon_data/mon_L3_01/mbm_total_bytes");
        fs::write(&file, "Unavailable\n").unwrap();
        assert!(seen().absence().unwrap().contains("says `Unavailable`"), "{:?}", seen());
        fs::remove_file(&file).unwrap();
        assert!(seen().absence().unwrap().contains("there is no"), "{:?}", seen());
    }
}
