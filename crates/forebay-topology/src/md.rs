//! Arrays of the kernel's `md` driver (`Documentation/admin-guide/md.rst`).

use super::map::{Layer, LayerKind};
use super::resolve::Resolve;
use super::system::{Absent, Folder};
use super::volume::{Fan, Layout, Run, Span, Spread};

impl Resolve<'_> {
    pub(super) fn md(&mut self, folder: &Folder, layer: &mut Layer) -> Span {
        layer.kind = LayerKind::Md;
        let level = folder.text("md/level");
        let layout = Layout::of_level(level.as_deref().unwrap_or_default());
        layer.say("level", level);
        layer.say("layout", layout.name());
        layer.say_if("chunk_bytes", folder.number("md/chunk_size").filter(|&chunk| chunk > 0));
        let wanted = folder.number("md/raid_disks");
        layer.say_if("raid_disks", wanted);
        layer.say_if("state", folder.text("md/array_state").ok());
        layer.say_if("sync_action", folder.text("md/sync_action").ok());
        let mut members = members(folder);
        members.sort_by_key(|member| (member.slot.unwrap_or(u64::MAX), member.name.clone()));
        let faulty: Vec<String> =
            members.iter().filter(|m| m.is_faulty()).map(|m| m.name.clone()).collect();
        let spare: Vec<String> = members
            .iter()
            .filter(|m| !m.is_faulty() && m.slot.is_none() && m.state.is_some())
            .map(|m| m.name.clone())
            .collect();
        // RAID-0 and linear arrays have no such file: they stop when they lose a member.
        let missing = folder.number("md/degraded");
        layer.say_if("degraded", missing.map(|count| count > 0));
        layer.say_if("missing_members", missing.filter(|&count| count > 0));
        layer.say_all("faulty", faulty);
        layer.say_all("spares", spare);
        let chunk = layer.number("chunk_bytes");
        let spread = match layout {
            Layout::Striped => striped(chunk, &members),
            Layout::Concatenated => in_a_row(chunk, &members),
            _ => None,
        };
        // Without states, active members and spares look alike, so all count as active.
        let serving: Vec<(String, Result<Folder, Absent>)> = members
            .into_iter()
            .filter(|member| {
                member.state.is_none() || (!member.is_faulty() && member.slot.is_some())
            })
            .map(|member| (member.name, member.folder))
            .collect();
        if serving.is_empty() {
            layer.unknown("members", "no member can be read");
            let number = folder.device_number();
            return self.unknown_drive(layer, number, "no member of the array can be read");
        }
        let spans = self.members(layer, &serving);
        layer.spread = spread.unwrap_or_default();
        let slots = wanted.and_then(|slots| slots.try_into().ok()).unwrap_or(serving.len());
        let level = layer.text("level").unwrap_or_default();
        layer.fan = Fan::of_level(level, copies(folder), slots, serving.len());
        let key =
            || folder.text("md/uuid").map_or_else(|_| folder.name(), |uuid| format!("md:{uuid}"));
        Span::joined(spans, key, layout)
    }
}

/// The copies of a chunk in a RAID-10: near ones in the lowest byte of its layout, far ones in
/// the next (`raid10.c`).
fn copies(folder: &Folder) -> usize {
    let layout = folder.number("md/layout").unwrap_or(0x102);
    let [near, far, ..] = layout.to_le_bytes().map(usize::from);
    near * far
}

struct Member {
    name: String,
    /// Its slot in the array; `None` for a spare.
    slot: Option<u64>,
    state: Option<String>,
    /// Start of its data in sectors, and their length in KiB.
    data: Option<(u64, u64)>,
    folder: Result<Folder, Absent>,
}

impl Member {
    fn is_faulty(&self) -> bool {
        self.state.as_deref().is_some_and(|s| s.split(',').any(|word| word.trim() == "faulty"))
    }
}

/// The devices of the array, from the folders `dev-NAME`. If those cannot be read, the `slaves`
/// links, common to all stacked devices, still name them.
fn members(folder: &Folder) -> Vec<Member> {
    let names = folder.list("md").unwrap_or_default();
    let mut members: Vec<Member> = names
        .iter()
        .filter_map(|entry| {
            let name = entry.strip_prefix("dev-")?;
            let file = |file: &str| format!("md/{entry}/{file}");
            Some(Member {
                slot: folder.number(file("slot")),
                state: folder.text(file("state")).ok(),
                data: folder.number(file("offset")).zip(folder.number(file("size"))),
                folder: folder.folder(file("block")),
                name: name.to_owned(),
            })
        })
        .collect();
    if members.is_empty() {
        let slaves = folder.folders("slaves").into_iter();
        let member = |(name, folder)| Member { name, slot: None, state: None, data: None, folder };
        members = slaves.map(member).collect();
    }
    members
}

/// How a RAID-0 maps addresses. `None` if members differ in size: the layout then changes where the
/// smaller members end, which is not modelled.
fn striped(chunk: Option<u64>, members: &[Member]) -> Option<Spread> {
    let len = members.first()?.data?.1;
    let starts = members.iter().enumerate().map(|(index, member)| {
        let (start, own) = member.data?;
        let in_turn = member.slot == Some(index as u64);
        if own == len && in_turn { Some((index, start.checked_mul(512)?)) } else { None }
    });
    Some(Spread::Striped { piece: chunk?, starts: starts.collect::<Option<_>>()? })
}

/// How a linear array maps addresses: in sequence over the members, rounded down to whole chunks
/// if the array defines a chunk size (`linear_conf` in `md-linear.c`).
fn in_a_row(chunk: Option<u64>, members: &[Member]) -> Option<Spread> {
    let mut start = 0_u64;
    let mut runs = Vec::with_capacity(members.len());
    for (child, member) in members.iter().enumerate() {
        let (offset, size) = member.data.filter(|_| member.slot == Some(child as u64))?;
        let len = size.checked_mul(1024)?;
        let len = chunk.map_or(len, |chunk| len - len % chunk);
        runs.push(Run { start, len, child, offset: offset.checked_mul(512)? });
        start = start.checked_add(len)?;
    }
    (!runs.is_empty()).then_some(Spread::Runs(runs))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(slot: u64, offset: u64, size: u64) -> Member {
        let folder = Err(Absent::NotAFile);
        let (slot, data) = (Some(slot), Some((offset, size)));
        Member { name: format!("m{slot:?}"), slot, state: None, data, folder }
    }

    #[test]
    fn members_in_a_row_follow_each_other_in_whole_pieces() {
        let run = |start, len, child, offset| Run { start, len, child, offset };
        let members = [member(0, 2048, 100), member(1, 4096, 64)];
        let runs = vec![run(0, 65_536, 0, 1 << 20), run(65_536, 65_536, 1, 2 << 20)];
        assert_eq!(in_a_row(Some(65_536), &members), Some(Spread::Runs(runs)));
        let runs = vec![run(0, 102_400, 0, 1 << 20), run(102_400, 65_536, 1, 2 << 20)];
        assert_eq!(in_a_row(None, &members), Some(Spread::Runs(runs)));
    }

    #[test]
    fn a_row_with_a_gap_or_without_end_is_left_out() {
        assert_eq!(in_a_row(None, &[member(1, 0, 4)]), None);
        assert_eq!(in_a_row(None, &[member(0, u64::MAX, 4)]), None);
        assert_eq!(in_a_row(None, &[member(0, 0, u64::MAX)]), None);
        assert_eq!(in_a_row(None, &[]), None);
    }
}
