//! Device-mapper volumes: LVM, dm-crypt, multipath and the like.
//!
//! `/sys` names a volume, the tool that created it and the devices below it. The mapping itself is
//! in the table, which needs `CAP_SYS_ADMIN`. Without the table, the kind is derived from the name
//! and the queue limits; if those do not prove it, it is unknown.

use std::collections::BTreeSet;

use super::answers::Refusal;
use super::map::{Layer, LayerKind};
use super::resolve::Resolve;
use super::system::Folder;
use super::text::clean;
use super::volume::{Fan, Layout, Run, Span, Spread};

/// Unit of table numbers in bytes.
const SECTOR: u64 = 512;

impl Resolve<'_> {
    pub(super) fn dm(&mut self, folder: &Folder, layer: &mut Layer) -> Span {
        layer.kind = LayerKind::DeviceMapper;
        layer.say_if("volume", folder.text("dm/name").ok());
        let uuid = folder.text("dm/uuid").ok();
        let made_by = uuid.as_deref().and_then(maker);
        layer.say_if("made_by", made_by);
        layer.say_if("role", uuid.as_deref().and_then(role));
        if folder.flag("dm/suspended") == Some(true) {
            layer.say("suspended", true);
        }
        let members = folder.folders("slaves");
        let table = self.system.dm_table(folder.device_number());
        let targets: Vec<Target> = match &table {
            Ok(table) => table.lines().filter_map(Target::parse).collect(),
            Err(_) => Vec::new(),
        };
        let layout = if targets.is_empty() {
            derived(folder, layer, made_by, table.as_ref().err().copied())
        } else {
            described(layer, &targets)
        };
        if members.is_empty() {
            let number = folder.device_number();
            return self.unknown_drive(layer, number, "no device below the volume is named");
        }
        let mut spans = self.members(layer, &members);
        layer.spread = spread(&targets, layer).unwrap_or_default();
        layer.fan = fan(&targets, layout, spans.len());
        if layer.text("target") == Some("multipath") {
            say_down_paths(layer, self, &spans);
        }
        if spans.len() == 1 {
            return spans.pop().expect("there is one");
        }
        let key = || uuid.map_or_else(|| folder.name(), |uuid| format!("dm:{uuid}"));
        Span::joined(spans, key, layout)
    }
}

/// A line of a table: a run of the volume's sectors and its target.
struct Target<'a> {
    start: u64,
    len: u64,
    kind: &'a str,
    arguments: Vec<&'a str>,
}

impl<'a> Target<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let start = words.next()?.parse().ok()?;
        let len = words.next()?.parse().ok()?;
        let kind = words.next()?;
        Some(Self { start, len, kind, arguments: words.collect() })
    }

    fn number(&self, index: usize) -> Option<u64> {
        self.arguments.get(index)?.parse().ok()
    }
}

/// Records the facts of the table and returns the layout.
fn described(layer: &mut Layer, targets: &[Target<'_>]) -> Layout {
    let kinds: BTreeSet<&str> = targets.iter().map(|target| target.kind).collect();
    let kinds: Vec<&str> = kinds.into_iter().collect();
    let first = &targets[0];
    layer.say("target", clean(&kinds.join(", ")));
    layer.say("from", "its table");
    if targets.len() > 1 {
        layer.say("segments", targets.len() as u64);
    }
    let layout = match kinds.as_slice() {
        ["linear"] => Layout::Concatenated,
        ["striped"] => {
            layer.say_if("stripes", first.number(0));
            layer.say_if("chunk_bytes", first.number(1).and_then(|n| n.checked_mul(SECTOR)));
            Layout::Striped
        }
        ["mirror"] => Layout::Mirrored,
        ["raid"] => Layout::of_level(level(first)),
        _ => Layout::Unknown,
    };
    if let ["crypt"] = kinds.as_slice() {
        layer.say_if("cipher", first.arguments.first().map(|cipher| clean(cipher)));
    }
    if let ["linear"] = kinds.as_slice() {
        let places = targets.iter().take(64).map(|target| {
            let device = clean(target.arguments.first().unwrap_or(&"?"));
            let at = target.number(1).and_then(|n| n.checked_mul(SECTOR));
            let at = at.map_or_else(|| "?".to_owned(), |at| at.to_string());
            format!("{} bytes at {at} of {device}", target.len.saturating_mul(SECTOR))
        });
        layer.say("runs", places.collect::<Vec<_>>());
    }
    layer.say("layout", layout.name());
    layout
}

/// How the table maps addresses to the volume's children, which it names by device number.
fn spread(targets: &[Target<'_>], layer: &Layer) -> Option<Spread> {
    let child = |device: &str| layer.children.iter().position(|c| c.text("device") == Some(device));
    if let [target] = targets
        && target.kind == "striped"
    {
        let pairs = target.arguments.get(2..)?.chunks_exact(2);
        let starts = pairs
            .map(|pair| Some((child(pair[0])?, pair[1].parse::<u64>().ok()?.checked_mul(SECTOR)?)));
        let starts = starts.collect::<Option<_>>()?;
        let piece = target.number(1)?.checked_mul(SECTOR)?;
        return Some(Spread::Striped { piece, starts });
    }
    let runs = targets.iter().map(|target| {
        Some(Run {
            start: target.start.checked_mul(SECTOR)?,
            len: target.len.checked_mul(SECTOR)?,
            child: child(target.arguments.first().filter(|_| target.kind == "linear")?)?,
            offset: target.number(1)?.checked_mul(SECTOR)?,
        })
    });
    let runs: Vec<Run> = runs.collect::<Option<_>>()?;
    (!runs.is_empty()).then_some(Spread::Runs(runs))
}

/// `raid5` of `raid5_ls`.
fn level<'a>(raid: &Target<'a>) -> &'a str {
    raid.arguments.first().and_then(|level| level.split('_').next()).unwrap_or_default()
}

/// The bytes that the devices below the volume move.
fn fan(targets: &[Target<'_>], layout: Layout, count: usize) -> Fan {
    match (targets, layout) {
        ([raid], _) if raid.kind == "raid" => {
            // The level is followed by the number of parameters, the parameters, and the number of
            // devices (`Documentation/admin-guide/device-mapper/dm-raid.rst`).
            let parameters = raid.number(1).unwrap_or(0).try_into().unwrap_or(usize::MAX);
            let find = |name: &str| raid.arguments.iter().position(|word| *word == name);
            let copies = find("raid10_copies").and_then(|at| raid.number(at + 1)).unwrap_or(2);
            let slots = raid.number(2_usize.saturating_add(parameters));
            let slots = slots.and_then(|slots| slots.try_into().ok()).unwrap_or(count);
            Fan::of_level(level(raid), copies.try_into().unwrap_or(2), slots, slots)
        }
        (_, Layout::Striped) => Fan::striped(count),
        (_, Layout::Mirrored) => Fan::mirrored(),
        _ => Fan::default(),
    }
}

/// Derives the layout without the table.
fn derived(
    folder: &Folder,
    layer: &mut Layer,
    made_by: Option<&'static str>,
    refusal: Option<Refusal>,
) -> Layout {
    let reason = match refusal {
        Some(Refusal::NotRecorded) => "the table was not recorded".to_owned(),
        Some(refusal) => format!("reading the table requires `CAP_SYS_ADMIN` ({refusal})"),
        None => "the table cannot be read".to_owned(),
    };
    match made_by {
        Some("dm-crypt") => {
            layer.say("target", "crypt");
            layer.say("from", "its uuid");
            layer.unknown("cipher", reason);
            return Layout::Unknown;
        }
        Some("multipath") => {
            layer.say("target", "multipath");
            layer.say("from", "its uuid");
            return Layout::Unknown;
        }
        _ => {}
    }
    match stripes(folder) {
        Some((count, chunk)) => {
            layer.say("target", "striped");
            layer.say("from", "its queue limits");
            layer.say("stripes", count);
            layer.say("chunk_bytes", chunk);
            layer.say("layout", Layout::Striped.name());
            Layout::Striped
        }
        None => {
            layer.unknown("target", reason);
            Layout::Unknown
        }
    }
}

/// The number of stripes and their size in bytes, if the queue limits prove that the volume is
/// striped.
///
/// A volume inherits the largest `minimum_io_size` of the devices below it. A larger value is its
/// own. If `optimal_io_size` is then that value times the number of devices, it is a full stripe
/// (`stripe_io_hints` in `dm-stripe.c`; RAID-0 of `dm-raid.c` sets the same).
fn stripes(folder: &Folder) -> Option<(u64, u64)> {
    let names = folder.list("slaves").ok()?;
    let limit = |name: &str| folder.number(format!("queue/{name}"));
    let (least, best) = (limit("minimum_io_size")?, limit("optimal_io_size")?);
    let is_own = names.iter().all(|name| {
        let own = folder.number(format!("slaves/{name}/queue/minimum_io_size"));
        // A partition has the limits of its drive.
        let drive = || folder.number(format!("slaves/{name}/../queue/minimum_io_size"));
        own.or_else(drive).is_some_and(|below| below < least)
    });
    let count = names.len() as u64;
    (count > 1 && is_own && least.checked_mul(count) == Some(best)).then_some((count, least))
}

/// The tool that created a volume, from the prefix of its UUID.
fn maker(uuid: &str) -> Option<&'static str> {
    // kpartx puts a number before the UUID of the volume.
    let rest = uuid.strip_prefix("part").and_then(|rest| rest.split_once('-'));
    if let Some((number, _)) = rest
        && number.bytes().all(|byte| byte.is_ascii_digit())
    {
        return Some("kpartx");
    }
    let makers = [
        ("LVM-", "LVM"),
        ("CRYPT-", "dm-crypt"),
        ("mpath-", "multipath"),
        ("DMRAID-", "dmraid"),
        ("VDO-", "VDO"),
        ("stratis-", "Stratis"),
    ];
    makers.iter().find(|(prefix, _)| uuid.starts_with(prefix)).map(|(_, maker)| *maker)
}

/// The role of an LVM volume. After the UUIDs of the group and the volume, 32 letters each, its
/// UUID has a word for the role.
fn role(uuid: &str) -> Option<&'static str> {
    let word = uuid.strip_prefix("LVM-")?.get(64..)?.strip_prefix('-')?;
    let roles = [
        ("tpool", "thin pool"),
        ("pool", "pool"),
        ("tdata", "data of a thin pool"),
        ("tmeta", "metadata of a thin pool"),
        ("cdata", "data of a cache"),
        ("cmeta", "metadata of a cache"),
        ("corig", "origin of a cache"),
        ("cow", "changes of a snapshot"),
        ("real", "origin of snapshots"),
        ("vpool", "VDO pool"),
        ("vdata", "data of a VDO pool"),
    ];
    roles.iter().find(|(known, _)| *known == word).map(|(_, role)| *role)
}

fn say_down_paths(layer: &mut Layer, resolve: &Resolve<'_>, spans: &[Span]) {
    let drives = spans.iter().flat_map(|span| &span.drives).map(|&index| &resolve.drives[index]);
    let down = drives.flat_map(|drive| &drive.paths).filter(|path| !path.live);
    let down: BTreeSet<String> = down.map(|path| path.name.clone()).collect();
    layer.say_all("paths_down", down.into_iter().collect());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_uuid_has_the_maker_of_a_volume() {
        let lvm = format!("LVM-{}", "x".repeat(64));
        assert_eq!((maker(&lvm), role(&lvm)), (Some("LVM"), None));
        assert_eq!(role(&format!("{lvm}-cow")), Some("changes of a snapshot"));
        assert_eq!(maker("CRYPT-LUKS2-00-name"), Some("dm-crypt"));
        assert_eq!(maker("part2-mpath-3600"), Some("kpartx"));
        for uuid in ["", "LVM", "partx-mpath", "mpath", "LVM-é"] {
            assert_eq!((maker(uuid).filter(|m| *m != "LVM"), role(uuid)), (None, None), "{uuid}");
        }
    }

    #[test]
    fn a_table_has_the_layout() {
        let described = |table: &str| {
            let mut layer = Layer::new(LayerKind::DeviceMapper, "dm-0");
            let targets: Vec<_> = table.lines().filter_map(Target::parse).collect();
            (described(&mut layer, &targets), layer)
        };
        let (layout, layer) = described("0 262144 striped 2 128 259:4 2048 259:1 2048");
        assert_eq!(layout, Layout::Striped);
        assert_eq!((layer.number("stripes"), layer.number("chunk_bytes")), (Some(2), Some(65_536)));
        let (layout, layer) = described("0 8 linear 8:1 16\n8 8 linear 8:2 0");
        assert_eq!((layout, layer.number("segments")), (Layout::Concatenated, Some(2)));
        let (_, layer) = described("0 8 crypt aes-xts-plain64 - 0 8:1 4096");
        assert_eq!(layer.text("cipher"), Some("aes-xts-plain64"));
        assert_eq!(described("0 8 raid raid5_la 3 128").0, Layout::Parity);
        assert_eq!(described("0 8 linear\n8 8 zero").0, Layout::Unknown);
        assert_eq!(described("0 8 striped x 99999999999999999999").0, Layout::Striped);
    }
}
