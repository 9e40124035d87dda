//! Results as a table for people.

use super::drives::DriveFacts;
use super::json::Environment;

/// Drives that the head of a report names.
const DRIVES_MAX: usize = 4;

/// The file system and drives in words: `ext4 on nvme0n1 (Fast One, x4 at 16 GT/s)`; with `several`
/// paths only the drives.
pub(crate) fn place(facts: &Environment, several: bool) -> Option<String> {
    // The file system is only the first path's.
    let file_system = facts.file_system.as_ref().filter(|_| !several);
    let kind = || file_system.map(|file_system| file_system.kind.as_str());
    if !facts.drives.is_empty() && kind().is_none_or(|kind| kind != facts.drives[0].transport) {
        let mut names: Vec<String> = facts.drives.iter().take(DRIVES_MAX).map(with_link).collect();
        match facts.drives.len().saturating_sub(DRIVES_MAX) {
            0 => {}
            more => names.push(format!("{more} more")),
        }
        let names = names.join(" + ");
        return Some(kind().map_or_else(|| names.clone(), |kind| format!("{kind} on {names}")));
    }
    kind().map(str::to_owned)
}

/// A drive with its link speed: `nvme0n1 (Fast One, x4 at 16 GT/s)`.
fn with_link(drive: &DriveFacts) -> String {
    let link = drive.link.map(|link| link.text(drive.link_max.as_ref()));
    let parts: Vec<String> = drive.model.clone().into_iter().chain(link).collect();
    match parts.as_slice() {
        [] => drive.name.clone(),
        parts => format!("{} ({})", drive.name, parts.join(", ")),
    }
}

/// A rate in GB/s (1e9) with three significant digits.
#[must_use]
pub fn rate(bytes_per_second: f64) -> String {
    let rate = bytes_per_second / 1e9;
    match rate {
        100.0.. => format!("{rate:.0}"),
        10.0.. => format!("{rate:.1}"),
        _ if rate >= 1.0 => format!("{rate:.2}"),
        _ => format!("{rate:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::json::tests::environment;

    #[test]
    fn what_is_not_known_is_not_named() {
        let mut facts = environment();
        let place = |facts: &Environment| place(facts, false);
        let link = "ext4 on nvme0n1 (Fast One, x4 at 16 GT/s)";
        assert_eq!(place(&facts).as_deref(), Some(link));
        facts.drives.resize_with(6, || DriveFacts { name: "d".into(), ..DriveFacts::default() });
        let several = format!("{link} + d + d + d + 2 more");
        assert_eq!(place(&facts), Some(several));
        facts.drives.clear();
        assert_eq!(place(&facts).as_deref(), Some("ext4"));
        facts.file_system = None;
        assert_eq!(place(&facts), None);
    }

    #[test]
    fn rates_have_three_digits() {
        let rates = [54.62e9, 5.4e9, 0.1234e9, 123.4e9, 9.999e9].map(rate);
        assert_eq!(rates, ["54.6", "5.40", "0.123", "123", "10.00"]);
    }
}
