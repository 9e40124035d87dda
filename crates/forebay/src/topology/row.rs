//! Volumes whose members stand in a row, one behind the other: which stretch of the volume each
//! has, and, with the extents of a file, which of the file's bytes.
//!
//! A member is what has a queue of its own: a drive, a loop device, a striped volume. What cannot
//! be told belongs to no member. All of it is a hint: bytes are read by their place in the file.

use std::borrow::Cow;
use std::collections::HashMap;
use std::os::fd::BorrowedFd;

use rustix::fs::FileType;

use super::map::{Layer, Layout, Queue, QueueId};
use super::placement::{self, Spread};
use super::probe::Extent;
use super::resolve::{Below, Resolve};
use super::{calls, chunks, mount};
use crate::units::ByteRange;

/// Extents of a file that are asked for: the kernel tells 8,192 in about a millisecond.
const EXTENTS_MAX: usize = 8192;
/// Stretches of a volume, and runs of a file, that are kept.
const STRETCHES_MAX: usize = 64 << 10;
const RUNS_MAX: usize = 512;

/// See the module's own text.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    /// The queue of each member.
    pub(crate) queues: Vec<Queue>,
    stretches: Stretches,
}

/// Which stretches of a volume its members have.
#[derive(Debug, Clone, PartialEq)]
enum Stretches {
    /// These, in order.
    Told(Vec<Run>),
    /// btrfs puts them anywhere, and goes on to do so: its chunks tell. The device numbers of its
    /// members, with the numbers that these have here.
    Chunks(Vec<(u64, usize)>),
}

/// Bytes of a volume or of a file, and the number of the member that has them.
pub(crate) type Run = (ByteRange, usize);

impl Below {
    /// The members, where they stand in a row and this is told.
    pub(crate) fn row(&self) -> Option<&Row> {
        self.row.as_ref()
    }
}

impl Resolve<'_> {
    /// The members of the volume below `root`, which is served by `queue`.
    pub(super) fn row(&self, root: &Layer, queue: &Queue) -> Option<Row> {
        if queue.layout != Layout::Concatenated {
            return None;
        }
        let mut queues = Queues::default();
        let stretches = if let Some(btrfs) = placement::btrfs(root) {
            let member = |child: &Layer| {
                let device = mount::device_number(child.text("device")?)?;
                Some((device, queues.number(self.member(child)?)))
            };
            Stretches::Chunks(btrfs.children.iter().filter_map(member).collect())
        } else {
            let mut runs = Vec::new();
            let whole = ByteRange { start: 0, end: u64::MAX };
            self.follow(placement::device(root).ok()?, whole, 0, &mut |range, queue| {
                runs.push((range, queues.number(queue)));
                runs.len() < STRETCHES_MAX
            })?;
            Stretches::Told(in_order(runs))
        };
        let queues = queues.all;
        (queues.len() > 1).then_some(Row { queues, stretches })
    }

    /// The queue of a member, where anything is known of it.
    fn member(&self, layer: &Layer) -> Option<Queue> {
        let span = layer.span.as_ref().filter(|span| !span.drives.is_empty())?;
        Some(self.queue(span, None))
    }

    /// Follows `range` of a volume, which begins at `at` of this step's device, down to members;
    /// `None` where `found` wants no more.
    fn follow(
        &self,
        layer: &Layer,
        range: ByteRange,
        at: u64,
        found: &mut impl FnMut(ByteRange, Queue) -> bool,
    ) -> Option<()> {
        match &layer.spread {
            Spread::Shifted(by) => {
                let Some(at) = at.checked_add(*by) else { return Some(()) };
                self.follow(layer.children.first()?, range, at, found)
            }
            Spread::Runs(runs) => {
                let here = ByteRange { start: at, end: at.saturating_add(range.len()) };
                for run in runs {
                    let end = run.start.saturating_add(run.len);
                    let part = here.intersect(ByteRange { start: run.start, end });
                    let child = layer.children.get(run.child);
                    let below = run.offset.checked_add(part.start.saturating_sub(run.start));
                    if let (Some(child), Some(below), false) = (child, below, part.is_empty()) {
                        let inside = ByteRange::at(range.start + (part.start - at), part.len());
                        self.follow(child, inside, below, found)?;
                    }
                }
                Some(())
            }
            Spread::Untold | Spread::Striped { .. } => match self.member(layer) {
                Some(queue) => found(range, queue).then_some(()),
                None => Some(()), // nobody's
            },
        }
    }
}

/// Queues, each once.
#[derive(Debug, Default)]
struct Queues {
    all: Vec<Queue>,
    numbers: HashMap<QueueId, usize>,
}

impl Queues {
    fn number(&mut self, queue: Queue) -> usize {
        *self.numbers.entry(queue.id.clone()).or_insert_with(|| {
            self.all.push(queue);
            self.all.len() - 1
        })
    }
}

/// Stretches by where they begin. Of what two have, which makes no sense, the first one has it.
fn in_order(mut runs: Vec<Run>) -> Vec<Run> {
    runs.sort_unstable_by_key(|(range, _)| range.start);
    let mut end = 0;
    runs.retain(|(range, _)| {
        let is_new = range.start >= end;
        end = if is_new { range.end } else { end };
        is_new
    });
    runs
}

impl Row {
    /// What of an open file each member has, in order and never twice: the first runs of many. May
    /// wait for a drive.
    pub(crate) fn runs_of(&self, fd: BorrowedFd<'_>) -> Vec<Run> {
        let stretches = match &self.stretches {
            Stretches::Told(stretches) => Cow::Borrowed(stretches.as_slice()),
            Stretches::Chunks(members) => {
                let member = |device| members.iter().find(|(of, _)| *of == device);
                let chunks = chunks::of(fd).unwrap_or_default().into_iter();
                let runs = chunks.filter_map(|(chunk, device)| {
                    Some((ByteRange::at(chunk.logical, chunk.len), member(device)?.1))
                });
                Cow::Owned(in_order(runs.collect()))
            }
        };
        let mode = rustix::fs::fstat(fd).map_or(0, |stat| stat.st_mode);
        if FileType::from_raw_mode(mode) == FileType::BlockDevice {
            return stretches.iter().take(RUNS_MAX).copied().collect();
        }
        runs(&stretches, &calls::extents(fd, EXTENTS_MAX).unwrap_or_default())
    }
}

/// Which bytes of a file each member has, by its extents and the stretches of the volume.
fn runs(stretches: &[Run], extents: &[Extent]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    // Up to where it is known who has what: from there to the next bytes is a hole.
    let mut known = 0;
    for (range, member) in extents.iter().flat_map(|extent| cut(stretches, extent)) {
        if range.start < known {
            continue; // told twice
        }
        let whole = ByteRange { start: known, end: range.end };
        known = range.end;
        let Some(member) = member else { continue };
        let is_full = runs.len() == RUNS_MAX;
        match runs.last_mut() {
            Some((last, of)) if *of == member && last.end == whole.start => last.end = known,
            _ if is_full => break,
            _ => runs.push((whole, member)),
        }
    }
    runs
}

/// Which members have the bytes of an extent, by their place in the file.
fn cut(stretches: &[Run], extent: &Extent) -> Vec<(ByteRange, Option<usize>)> {
    let Extent { logical, physical, len, flags } = *extent;
    if placement::placeless(flags).is_some() {
        return vec![(ByteRange::at(logical, len), None)];
    }
    let mut parts = Vec::new();
    let (mut at, end) = (physical, physical.saturating_add(len));
    while at < end {
        let next = stretches.partition_point(|(range, _)| range.end <= at);
        let (until, member) = match stretches.get(next) {
            Some((range, member)) if range.start <= at => (range.end, Some(*member)),
            Some((range, _)) => (range.start, None),
            None => (end, None),
        };
        let until = until.min(end);
        let start = logical.saturating_add(at - physical);
        parts.push((ByteRange::at(start, until - at), member));
        at = until;
    }
    parts
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;
    use crate::topology::{Resolver, System};

    fn row(stretches: &[(u64, u64, usize)]) -> Vec<Run> {
        let run = |&(start, end, member): &(u64, u64, usize)| (ByteRange { start, end }, member);
        stretches.iter().map(run).collect()
    }

    fn extent(logical: u64, physical: u64, len: u64, flags: u32) -> Extent {
        Extent { logical, physical, len, flags }
    }

    fn runs(row: &[Run], extents: &[Extent]) -> Vec<(u64, u64, usize)> {
        let runs = super::runs(row, extents);
        runs.into_iter().map(|(range, member)| (range.start, range.end, member)).collect()
    }

    /// The virtual machine of `cargo xtask lab`, unpacked; `None` where there is no `tar`.
    fn lab(folder: &Path) -> Option<Resolver> {
        let archive = folder.join("record.tar.gz");
        std::fs::write(&archive, include_bytes!("../../tests/topology/lab-whole.tar.gz")).unwrap();
        let mut tar = Command::new("tar");
        let unpacked = tar.arg("-xzf").arg(&archive).arg("-C").arg(folder).status();
        if unpacked.is_err() {
            println!("skipped: recorded machine: no `tar`");
            return None;
        }
        Some(Resolver::new(System::fixture(&folder.join("record-whole")).unwrap()))
    }

    #[test]
    fn a_recorded_array_has_its_members_in_a_row() {
        let folder = tempfile::tempdir().unwrap();
        let Some(resolver) = lab(folder.path()) else { return };
        let below = |path: &str| {
            let stat = resolver.system().probe().stat(path.as_ref());
            Resolve::new(resolver.system()).below(path.as_ref(), &stat)
        };
        let path = Path::new("/mnt/row/file");
        let row = below("/mnt/row/file").row.expect("two members");
        let map = resolver.resolve(path);
        let alone = |queue: &Queue| queue.layout == Layout::Single && queue.hardware.len() == 1;
        assert!(row.queues.len() == 2 && row.queues.iter().all(alone), "{:?}", row.queues);
        let ids: Vec<&str> = row.queues.iter().map(|queue| queue.id.as_str()).collect();
        assert_eq!(ids, map.drives.iter().map(|drive| drive.id.as_str()).collect::<Vec<_>>());
        // Whoever asks where each byte lies is told the same.
        let extents = resolver.extents(path, 64).unwrap();
        let Stretches::Told(stretches) = &row.stretches else { panic!("{row:?}") };
        let runs = super::runs(stretches, &extents);
        assert!(runs.iter().any(|run| run.1 == 0) && runs.iter().any(|run| run.1 == 1), "{runs:?}");
        for piece in extents.iter().flat_map(|extent| map.locate(extent).unwrap()) {
            let run =
                runs.iter().find(|(run, _)| run.start <= piece.logical && piece.logical < run.end);
            let (run, member) = *run.expect("it is placed");
            assert_eq!(ids[member], piece.drive.as_str());
            assert!(piece.logical + piece.len <= run.end);
        }
        for other in
            ["/mnt/stripes/file", "/mnt/mirror/file", "/mnt/linear/file", "/mnt/plain/file"]
        {
            assert_eq!(below(other).row, None, "{other}");
        }
    }

    #[test]
    fn neighbours_on_one_member_are_one_run() {
        let row = row(&[(0, 100, 0), (100, 200, 1), (200, 300, 0)]);
        let extents = [extent(0, 10, 20, 0), extent(20, 70, 50, 0), extent(70, 210, 10, 1)];
        assert_eq!(runs(&row, &extents), [(0, 50, 0), (50, 70, 1), (70, 80, 0)]);
        assert_eq!(runs(&row, &[extent(0, 90, 120, 1)]), [(0, 10, 0), (10, 110, 1), (110, 120, 0)]);
    }

    #[test]
    fn holes_belong_to_the_bytes_behind_them() {
        let row = row(&[(0, 100, 0), (100, 200, 1)]);
        let extents = [extent(30, 10, 10, 0), extent(60, 20, 10, 0), extent(90, 120, 10, 0)];
        assert_eq!(runs(&row, &extents), [(0, 70, 0), (70, 100, 1)]);
    }

    #[test]
    fn what_has_no_place_is_nobody_s() {
        let row = row(&[(0, 100, 0), (150, 200, 1)]);
        // On its way to the drive; compressed; beyond what is known of the volume.
        for untold in [extent(10, 0, 10, 0x6), extent(10, 20, 10, 0x8), extent(10, 120, 10, 0)] {
            let extents = [extent(0, 0, 10, 0), untold, extent(25, 60, 5, 0)];
            assert_eq!(runs(&row, &extents), [(0, 10, 0), (20, 30, 0)]);
        }
        assert_eq!(runs(&row, &[extent(0, 80, 100, 0)]), [(0, 20, 0), (70, 100, 1)]);
        assert_eq!(runs(&row, &[extent(0, u64::MAX - 5, 100, 0)]), []);
    }

    #[test]
    fn of_many_runs_the_first_are_kept() {
        let row = row(&[(0, 1 << 20, 0), (1 << 20, 1 << 21, 1)]);
        let extents: Vec<Extent> =
            (0..2000).map(|index| extent(index, (index % 2) << 20, 1, 0)).collect();
        assert_eq!(runs(&row, &extents).len(), RUNS_MAX);
    }

    proptest! {
        #[test]
        fn runs_never_meet(
            stretches in proptest::collection::vec((0_u64..50, 1_u64..50, 0_usize..3), 0..9),
            extents in proptest::collection::vec(
                (any::<u64>(), 0_u64..400, any::<u64>(), any::<u32>()), 0..20),
        ) {
            let mut at = 0;
            let stretches: Vec<_> = stretches.into_iter().map(|(gap, len, member)| {
                let start = at + gap;
                at = start + len;
                (start, at, member)
            }).collect();
            let extents: Vec<Extent> = extents
                .into_iter()
                .map(|(logical, physical, len, flags)| extent(logical % 1000, physical, len, flags))
                .collect();
            let runs = super::runs(&row(&stretches), &extents);
            prop_assert!(runs.iter().all(|(range, _)| !range.is_empty()));
            prop_assert!(runs.windows(2).all(|two| two[0].0.end <= two[1].0.start));
        }
    }
}
