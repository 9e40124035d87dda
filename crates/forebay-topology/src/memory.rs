//! The channels of the machine's memory, where its firmware says which modules are on which.

use std::collections::BTreeMap;

use super::system::System;

/// What udev's `dmi_memory_id` reads from the DMI tables as root, and stores for all users (systemd
/// 248 or later). Containers rarely have it.
pub(super) const DATABASE: &str = "run/udev/data/+dmi:id";
/// The keys of a module that are read, after `E:MEMORY_DEVICE_` and its number.
const KEYS: [&str; 6] =
    ["PRESENT", "LOCATOR", "BANK_LOCATOR", "DATA_WIDTH", "SPEED_MTS", "CONFIGURED_SPEED_MTS"];

/// The memory channels of a machine.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Channels {
    /// Those with a module.
    pub used: usize,
    /// Those whose slots are all empty.
    pub empty: usize,
    /// What those with a module carry together, in bytes per second.
    pub bytes_per_second: f64,
}

impl Channels {
    /// Reads them; `None` unless all slots name their channel and all modules have a speed.
    pub fn read(system: &System) -> Option<Self> {
        let text = system.table(DATABASE).ok()?;
        let mut modules: BTreeMap<u32, BTreeMap<&str, &str>> = BTreeMap::new();
        for (module, key, value) in text.lines().filter_map(entry) {
            modules.entry(module).or_default().insert(key, value);
        }
        // Several modules of a channel work at the speed of the slowest.
        let mut channels: BTreeMap<String, Option<f64>> = BTreeMap::new();
        for module in modules.values() {
            let text = |key: &str| module.get(key).copied();
            let place = ["BANK_LOCATOR", "LOCATOR"].map(|key| text(key).unwrap_or_default());
            let known = channels.entry(place.into_iter().find_map(channel_of)?).or_default();
            let is_empty = text("PRESENT") == Some("0");
            let rate = if is_empty { None } else { Some(rate_of(text)?) };
            *known = [*known, rate].into_iter().flatten().reduce(f64::min);
        }
        let used = channels.values().flatten().count();
        let bytes_per_second = channels.values().flatten().sum();
        (used > 0).then(|| Self { used, empty: channels.len() - used, bytes_per_second })
    }
}

/// The lines of the database that [`Channels::read`] uses: without serial numbers.
pub(super) fn without_serials(database: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(database);
    let kept = text.lines().filter(|line| entry(line).is_some());
    kept.map(|line| format!("{line}\n")).collect::<String>().into_bytes()
}

/// `E:MEMORY_DEVICE_3_LOCATOR=DIMM_A1` in parts.
fn entry(line: &str) -> Option<(u32, &str, &str)> {
    let (name, value) = line.strip_prefix("E:MEMORY_DEVICE_")?.split_once('=')?;
    let (module, key) = name.split_once('_')?;
    KEYS.contains(&key).then_some((module.parse().ok()?, key, value))
}

/// What a module carries, in bytes per second.
fn rate_of<'a>(text: impl Fn(&str) -> Option<&'a str>) -> Option<f64> {
    let number = |key: &str| text(key)?.parse::<u32>().ok().filter(|number| *number > 0);
    let megatransfers = number("CONFIGURED_SPEED_MTS").or_else(|| number("SPEED_MTS"))?;
    Some(f64::from(megatransfers) * 1e6 * f64::from(number("DATA_WIDTH")?) / 8.0)
}

/// The channel in the name of a slot, with its processor: `P0 CHANNEL A`, `P0_Node0_Channel0` of
/// `P0_Node0_Channel0_Dimm0`, `CPU1_DIMM_A` of `CPU1_DIMM_A1`. Other names, such as `A1` or
/// `PROC 1 DIMM 3`, do not show it. A channel is at most three slots: where `DIMM_A4` exists, the
/// letter is a processor.
fn channel_of(slot: &str) -> Option<String> {
    let slot = slot.to_ascii_uppercase();
    let end = match slot.split_once("CHANNEL") {
        Some((before, after)) => {
            let id = after.trim_start_matches([' ', '_', '-']);
            let length = id.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(id.len());
            (length > 0).then(|| before.len() + "CHANNEL".len() + (after.len() - id.len()) + length)
        }
        None => slot.split_once("DIMM").and_then(|(before, after)| {
            let id = after.trim_start_matches(['_', ' ']);
            let number = id.strip_prefix(|c: char| c.is_ascii_uppercase())?;
            matches!(number, "1" | "2" | "3")
                .then(|| before.len() + "DIMM".len() + (after.len() - id.len()) + 1)
        }),
    };
    Some(slot[..end?].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    /// A module as `dmi_memory_id` of systemd 252 prints it, with a few of its other keys.
    fn module(number: u32, slot: &str, bank: &str, speed: Option<u32>) -> String {
        let mut keys = vec![format!("LOCATOR={slot}"), format!("BANK_LOCATOR={bank}")];
        match speed {
            None => keys.insert(0, "PRESENT=0".into()),
            Some(speed) => {
                keys.insert(0, "TOTAL_WIDTH=80".into());
                keys.insert(1, "DATA_WIDTH=64".into());
                keys.extend(["SPEED_MTS=5600".into(), "SERIAL_NUMBER=SECRET".into()]);
                keys.push(format!("CONFIGURED_SPEED_MTS={speed}"));
            }
        }
        keys.iter().map(|key| format!("E:MEMORY_DEVICE_{number}_{key}\n")).collect()
    }

    fn read(database: &str) -> Option<Channels> {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join(DATABASE);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, database).unwrap();
        Channels::read(&System::at(folder.path()))
    }

    #[test]
    fn modules_of_one_channel_share_it() {
        let mut database =
            String::from("I:1\nE:ID_VENDOR=a vendor\nE:MEMORY_ARRAY_NUM_DEVICES=6\n");
        for (number, (slot, bank, speed)) in [
            ("DIMM 0", "P0 CHANNEL A", Some(4800)),
            ("DIMM 1", "P0 CHANNEL A", Some(4400)),
            ("DIMM 0", "P0 CHANNEL B", Some(4800)),
            ("DIMM 0", "P1 CHANNEL A", Some(4800)),
            ("DIMM 0", "P1 CHANNEL B", None),
            ("DIMM 1", "P0 CHANNEL B", None),
        ]
        .into_iter()
        .enumerate()
        {
            database += &module(u32::try_from(number).unwrap(), slot, bank, speed);
        }
        let found = read(&database).unwrap();
        assert_eq!((found.used, found.empty), (3, 1));
        assert!((found.bytes_per_second - 8.0 * (4.4e9 + 4.8e9 + 4.8e9)).abs() < 1.0, "{found:?}");
        // A record has what is read and no serial number.
        let kept = String::from_utf8(without_serials(database.as_bytes())).unwrap();
        assert!(!kept.contains("SECRET") && !kept.contains("VENDOR"), "{kept}");
        assert_eq!(read(&kept), Some(found));
    }

    #[test]
    fn a_module_without_channel_or_speed_leaves_them_unknown() {
        let known = module(0, "CPU0_DIMM_A1", "NODE 1", Some(4800));
        assert_eq!(read(&known).unwrap().used, 1);
        for other in [
            module(1, "A1", "Not Specified", Some(4800)),
            module(1, "DIMM_B1", "", Some(0)).replace("SPEED_MTS=5600", ""),
            module(1, "DIMM_B1", "", Some(4800)).replace("DATA_WIDTH=64", "DATA_WIDTH=-1"),
        ] {
            assert_eq!(read(&format!("{known}{other}")), None, "{other}");
        }
        assert_eq!(read(&format!("{known}{}", module(1, "CPU0_DIMM_A4", "", None))), None);
        for none in ["", "\0\0", "E:MEMORY_DEVICE_0_PRESENT=0\n", "E:MEMORY_DEVICE_=\n"] {
            assert_eq!(read(none), None, "{none}");
        }
    }

    #[test]
    fn a_slot_names_its_channel_or_not() {
        for (slot, channel) in [
            ("P0 CHANNEL A", "P0 CHANNEL A"),
            ("NODE 1 CHANNEL 2 DIMM 0", "NODE 1 CHANNEL 2"),
            ("P0_Node0_Channel11_Dimm0", "P0_NODE0_CHANNEL11"),
            ("ChannelB-DIMM1", "CHANNELB"),
            ("CPU1_DIMM_H2", "CPU1_DIMM_H"),
            ("P2-DIMMA1", "P2-DIMMA"),
        ] {
            assert_eq!(channel_of(slot).as_deref(), Some(channel), "{slot}");
        }
        for slot in ["", "A1", "DIMM 0", "DIMM_A", "DIMM_A4", "PROC 1 DIMM 3", "CHANNEL", "DIMM é1"]
        {
            assert_eq!(channel_of(slot), None, "{slot}");
        }
    }
}
