//! Cuts a window of a transfer into segments: every wanted byte exactly once, direct segments
//! aligned, none across a border of the window's grid.

use forebay_base::units::{ByteRange, align_down, align_up};

use super::route::{Reason, Route};

/// The file descriptor that a segment uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Io {
    /// Through the page cache.
    Buffered,
    /// Bypassing the page cache, with O_DIRECT.
    ODirect,
}

impl Io {
    /// The route of bytes that move this way, without a port, to or from a GPU or the host.
    pub(crate) const fn route(self, on_gpu: bool) -> Route {
        match (on_gpu, self) {
            (false, _) => Route::Host,
            (true, Self::ODirect) => Route::Staged,
            (true, Self::Buffered) => Route::Cached,
        }
    }
}

/// The alignment that O_DIRECT requires for a file, in bytes; powers of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Alignment {
    /// For the memory address.
    pub(crate) memory: u64,
    /// For offset and length.
    pub(crate) offset: u64,
}

impl Alignment {
    /// The alignment for requests to a file. Offsets also follow the memory alignment, so that a
    /// request may be split at any aligned offset.
    pub(crate) fn of(memory: u64, offset: u64) -> Self {
        Self { memory, offset: offset.max(memory) }
    }

    /// The alignment that satisfies both.
    pub(crate) fn max(self, other: Self) -> Self {
        Self { memory: self.memory.max(other.memory), offset: self.offset.max(other.offset) }
    }
}

/// How a call reaches its file, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Access {
    /// The alignment of O_DIRECT, for bytes that are not resident; `None`: the page cache.
    pub(crate) direct: Option<Alignment>,
    pub(crate) reason: Reason,
}

impl Access {
    pub(crate) const fn o_direct(alignment: Alignment, reason: Reason) -> Self {
        Self { direct: Some(alignment), reason }
    }

    pub(crate) const fn cached(reason: Reason) -> Self {
        Self { direct: None, reason }
    }

    pub(crate) const fn is_o_direct(self) -> bool {
        self.direct.is_some()
    }

    /// True if the caller requires O_DIRECT, for resident bytes too.
    pub(crate) fn requires_o_direct(self) -> bool {
        self.is_o_direct() && self.reason == Reason::Required
    }

    /// The access of a read whose file does not report its size: O_DIRECT would end at the reported
    /// size.
    pub(crate) fn of_unknown_size(self) -> Self {
        if self.requires_o_direct() { self } else { Self::cached(Reason::NoDirectIo) }
    }

    pub(crate) const fn io(self) -> Io {
        if self.is_o_direct() { Io::ODirect } else { Io::Buffered }
    }
}

/// How a window's bytes are split between the page cache and the drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Split {
    /// All through the page cache.
    Buffered(Reason),
    /// All with O_DIRECT.
    ODirect(Reason),
    /// These runs (sorted, disjoint, inside the window) are resident, the rest is not.
    Resident(Vec<ByteRange>),
}

/// An aligned piece of a plan, which becomes a request to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    /// The bytes that the caller wants.
    pub(crate) wanted: ByteRange,
    /// The bytes that the request covers; larger than `wanted` only for direct reads.
    pub(crate) covered: ByteRange,
    /// Through the page cache or O_DIRECT.
    pub(crate) io: Io,
    /// Why this path was chosen.
    pub(crate) reason: Reason,
    /// Whether the request needs the ring's bounce memory: the target is not aligned, or the
    /// request covers more bytes than wanted.
    pub(crate) bounce: bool,
}

impl Segment {
    /// A segment that covers just the bytes that the caller wants.
    pub(crate) fn plain(range: ByteRange, io: Io, reason: Reason) -> Self {
        Self { wanted: range, covered: range, io, reason, bounce: false }
    }
}

/// Where a window's bytes are in host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// A slot: aligned, with space for the padding that alignment adds.
    Slot,
    /// The caller's memory, by the address of the window's first wanted byte.
    Caller(u64),
}

/// Cuts `wanted` into segments for reading.
///
/// Pieces are `[base + i × piece, base + (i + 1) × piece)`; `base` is at most `wanted.start` and
/// aligned, `piece` a power of two and a multiple of the alignment. Without an `alignment` nothing
/// is read with O_DIRECT, whatever `split` says.
pub(crate) fn cut_read(
    wanted: ByteRange,
    base: u64,
    piece: u64,
    split: &Split,
    alignment: Option<Alignment>,
    layout: Layout,
) -> Vec<Segment> {
    let parts = runs(wanted, split, alignment).into_iter().map(|(range, io, reason)| {
        let layout = match layout {
            Layout::Caller(first) => Layout::Caller(first.wrapping_add(range.start - wanted.start)),
            Layout::Slot => Layout::Slot,
        };
        Part { range, layout, how: (io, reason) }
    });
    cut_parts(parts, base, piece, alignment)
}

/// Adjacent bytes that are read the same way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub(crate) range: ByteRange,
    /// Where they are stored; for host memory, the address of the first byte.
    pub(crate) layout: Layout,
    pub(crate) how: (Io, Reason),
}

/// Cuts the parts of a window into segments on the grid of [`cut_read`]. Adjacent parts that are in
/// memory share a segment, so that a single reader call covers both.
pub(crate) fn cut_parts(
    parts: impl Iterator<Item = Part>,
    base: u64,
    piece: u64,
    alignment: Option<Alignment>,
) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    for Part { range, layout, how: (io, reason) } in parts {
        for part in on_grid(range, base, piece) {
            let number = |at: u64| (at - base) / piece;
            let joins = |last: &&mut Segment| {
                let same = last.io == Io::Buffered && last.reason == reason;
                same && reason.is_in_memory() && number(last.wanted.start) == number(part.start)
            };
            match (io, alignment) {
                (Io::ODirect, Some(alignment)) => {
                    push_o_direct(&mut segments, part, range, alignment, layout, reason);
                }
                _ if let Some(last) = segments.last_mut().filter(joins) => {
                    (last.wanted.end, last.covered.end) = (part.end, part.end);
                }
                _ => segments.push(Segment::plain(part, Io::Buffered, reason)),
            }
        }
    }
    segments
}

/// Cuts `wanted`, which is aligned, into segments for direct transfers between a drive and a GPU.
pub(crate) fn cut_direct(wanted: ByteRange, base: u64, piece: u64, reason: Reason) -> Vec<Segment> {
    let segment = |part| Segment::plain(part, Io::ODirect, reason);
    on_grid(wanted, base, piece).map(segment).collect()
}

/// The runs of `wanted` in order, with their paths and reasons.
fn runs(
    wanted: ByteRange,
    split: &Split,
    alignment: Option<Alignment>,
) -> Vec<(ByteRange, Io, Reason)> {
    let Some(alignment) = alignment else {
        let reason = match split {
            Split::Buffered(reason) => *reason,
            _ => Reason::NoDirectIo,
        };
        return vec![(wanted, Io::Buffered, reason)];
    };
    match split {
        Split::Buffered(reason) => vec![(wanted, Io::Buffered, *reason)],
        Split::ODirect(reason) => vec![(wanted, Io::ODirect, *reason)],
        Split::Resident(resident) => {
            let mut all = Vec::with_capacity(resident.len() * 2 + 1);
            let mut at = wanted.start;
            for run in resident {
                // A direct neighbour reads whole aligned units, so a resident run loses the units
                // that it only partly covers. The window's own edges have no neighbour and stay.
                let start = if run.start <= wanted.start {
                    wanted.start
                } else {
                    align_up(run.start, alignment.offset)
                };
                let end = if run.end >= wanted.end {
                    wanted.end
                } else {
                    align_down(run.end, alignment.offset)
                };
                if end <= start || start < at {
                    continue;
                }
                if start > at {
                    all.push((
                        ByteRange { start: at, end: start },
                        Io::ODirect,
                        Reason::NotResident,
                    ));
                }
                all.push((ByteRange { start, end }, Io::Buffered, Reason::Resident));
                at = end;
            }
            if at < wanted.end {
                all.push((
                    ByteRange { start: at, end: wanted.end },
                    Io::ODirect,
                    Reason::NotResident,
                ));
            }
            all
        }
    }
}

/// Splits `run` at the borders of the grid.
fn on_grid(run: ByteRange, base: u64, piece: u64) -> impl Iterator<Item = ByteRange> {
    let mut at = run.start;
    std::iter::from_fn(move || {
        if at >= run.end {
            return None;
        }
        let border = base + ((at - base) / piece + 1) * piece;
        let part = ByteRange { start: at, end: border.min(run.end) };
        at = part.end;
        Some(part)
    })
}

fn push_o_direct(
    segments: &mut Vec<Segment>,
    part: ByteRange,
    window: ByteRange,
    alignment: Alignment,
    layout: Layout,
    reason: Reason,
) {
    let unit = alignment.offset;
    let covering = |wanted: ByteRange, bounce: bool| Segment {
        wanted,
        covered: ByteRange {
            start: align_down(wanted.start, unit),
            end: align_up(wanted.end, unit),
        },
        io: Io::ODirect,
        reason,
        bounce,
    };
    let Layout::Caller(address) = layout else {
        segments.push(covering(part, false));
        return;
    };
    let inner = ByteRange { start: align_up(part.start, unit), end: align_down(part.end, unit) };
    let inner_address = address.wrapping_add(inner.start - window.start);
    if inner.is_empty() || !inner_address.is_multiple_of(alignment.memory) {
        segments.push(covering(part, true));
        return;
    }
    if part.start < inner.start {
        segments.push(covering(ByteRange { start: part.start, end: inner.start }, true));
    }
    segments.push(covering(inner, false));
    if inner.end < part.end {
        segments.push(covering(ByteRange { start: inner.end, end: part.end }, true));
    }
}

/// The parts of a write in execution order; a part starts only when all before it are done.
///
/// O_DIRECT writes only whole units of the page cache (`page`: a page, or the file system's block
/// if larger). The kernel dirties units as a whole, so in a unit written half direct and half
/// cached the old bytes of either half could overwrite the new bytes of the other. So the edges use
/// the page cache, after the body is on the drive.
pub(crate) fn split_write(
    wanted: ByteRange,
    direct: Option<Alignment>,
    page: u64,
    reason: Reason,
) -> Vec<(ByteRange, Io, Reason)> {
    if wanted.is_empty() {
        return Vec::new();
    }
    let Some(alignment) = direct else {
        return vec![(wanted, Io::Buffered, reason)];
    };
    let unit = alignment.offset.max(page);
    let body = ByteRange { start: align_up(wanted.start, unit), end: align_down(wanted.end, unit) };
    if body.is_empty() {
        return vec![(wanted, Io::Buffered, Reason::UnalignedEdge)];
    }
    let mut parts = vec![(body, Io::ODirect, reason)];
    for edge in [
        ByteRange { start: wanted.start, end: body.start },
        ByteRange { start: body.end, end: wanted.end },
    ] {
        if !edge.is_empty() {
            parts.push((edge, Io::Buffered, Reason::UnalignedEdge));
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split_strategy(wanted: ByteRange, page: u64) -> impl Strategy<Value = Split> {
        let pages = (wanted.end / page + 2) - wanted.start / page;
        prop_oneof![
            Just(Split::Buffered(Reason::Resident)),
            Just(Split::ODirect(Reason::Required)),
            proptest::collection::vec((0..pages, 1..8_u64), 0..12).prop_map(move |raw| {
                let mut at = wanted.start / page * page;
                let mut runs = Vec::new();
                for (skip, len) in raw {
                    let run = ByteRange::at(at + (skip % 16 + 1) * page, len * page);
                    at = run.end;
                    let run = run.intersect(wanted);
                    if !run.is_empty() {
                        runs.push(run);
                    }
                }
                Split::Resident(runs)
            }),
        ]
    }

    fn cases() -> impl Strategy<Value = (ByteRange, Split, Alignment, u64, Layout)> {
        let page = prop_oneof![Just(4096_u64), Just(16384), Just(65536)];
        let unit = prop_oneof![Just(512_u64), Just(4096), Just(65536)];
        let memory = prop_oneof![Just(4_u64), Just(512), Just(4096)];
        (0..3_000_000_u64, 1..2_000_000_u64, page, unit, memory, any::<Option<u16>>())
            .prop_flat_map(|(start, len, page, unit, memory, address)| {
                let wanted = ByteRange::at(start, len);
                let layout = match address {
                    None => Layout::Slot,
                    Some(a) => Layout::Caller(0x7f00_0000_0000 + u64::from(a)),
                };
                split_strategy(wanted, page).prop_map(move |split| {
                    (wanted, split, Alignment { memory, offset: unit }, 1 << 17, layout)
                })
            })
    }

    proptest! {
        #[test]
        fn every_requested_byte_once_aligned_and_on_the_grid(
            (wanted, split, alignment, piece, layout) in cases(),
        ) {
            let base = align_down(wanted.start, alignment.offset);
            let segments = cut_read(wanted, base, piece, &split, Some(alignment), layout);
            let mut at = wanted.start;
            for s in &segments {
                prop_assert_eq!(s.wanted.start, at);
                prop_assert!(!s.wanted.is_empty());
                prop_assert!(s.covered.start <= s.wanted.start && s.covered.end >= s.wanted.end);
                prop_assert_eq!((s.wanted.start - base) / piece, (s.wanted.end - 1 - base) / piece);
                prop_assert!(s.covered.start >= base);
                match s.io {
                    Io::Buffered => prop_assert!(s.covered == s.wanted && !s.bounce),
                    Io::ODirect => {
                        prop_assert_eq!(s.covered.start % alignment.offset, 0);
                        prop_assert_eq!(s.covered.end % alignment.offset, 0);
                        prop_assert!(s.covered.len() <= piece);
                        if let (Layout::Caller(address), false) = (layout, s.bounce) {
                            prop_assert_eq!(s.covered, s.wanted);
                            let at = address + (s.covered.start - wanted.start);
                            prop_assert_eq!(at % alignment.memory, 0);
                        }
                    }
                }
                at = s.wanted.end;
            }
            prop_assert_eq!(at, wanted.end);
            // Two requests must never touch the same bytes of a slot at once.
            if layout == Layout::Slot {
                for pair in segments.windows(2) {
                    prop_assert!(pair[0].covered.end <= pair[1].covered.start);
                }
            }
        }

        #[test]
        fn without_o_direct_all_is_buffered((wanted, split, _, piece, layout) in cases()) {
            let base = align_down(wanted.start, 4096);
            let segments = cut_read(wanted, base, piece, &split, None, layout);
            prop_assert!(segments.iter().all(|s| s.io == Io::Buffered && s.covered == s.wanted));
            prop_assert_eq!(segments.iter().map(|s| s.wanted.len()).sum::<u64>(), wanted.len());
        }

        #[test]
        fn writes_touch_their_range_only(
            start in 0..1_000_000_u64, len in 1..1_000_000_u64, direct in any::<bool>(),
            page in prop_oneof![Just(4096_u64), Just(65536)], address in any::<u16>(),
        ) {
            let wanted = ByteRange::at(start, len);
            let alignment = direct.then_some(Alignment { memory: 512, offset: 512 });
            let parts = split_write(wanted, alignment, page, Reason::Required);
            let mut bytes = 0;
            for (range, io, reason) in parts {
                prop_assert_eq!(range.intersect(wanted), range);
                if io == Io::ODirect {
                    prop_assert!(range.start % page == 0 && range.end % page == 0);
                }
                let layout = Layout::Caller(u64::from(address) + (range.start - start));
                let base = align_down(range.start, page);
                let part = Part { range, layout, how: (io, reason) };
                for s in cut_parts(std::iter::once(part), base, 1 << 17, alignment) {
                    prop_assert_eq!(s.covered, s.wanted);
                    bytes += s.wanted.len();
                }
            }
            prop_assert_eq!(bytes, len);
        }
    }

    #[test]
    fn a_resident_page_amid_cold_ones_is_taken_from_the_cache() {
        let wanted = ByteRange { start: 0, end: 12288 };
        let split = Split::Resident(vec![ByteRange { start: 4096, end: 8192 }]);
        let alignment = Alignment { memory: 512, offset: 512 };
        let ways: Vec<_> = cut_read(wanted, 0, 1 << 20, &split, Some(alignment), Layout::Slot)
            .iter()
            .map(|s| (s.wanted.start, s.io, s.reason))
            .collect();
        assert_eq!(
            ways,
            [
                (0, Io::ODirect, Reason::NotResident),
                (4096, Io::Buffered, Reason::Resident),
                (8192, Io::ODirect, Reason::NotResident)
            ]
        );
    }
}
