//! Trace spans of ops, windows and slots.

use forebay_base::units::ByteRange;

use super::op::{Completion, Op, OpKind, now_ns};
use super::scheduler::{Claim, SlotUse};
use super::window::Slot;
use crate::trace::{Recorder, Span, Track, What};
use crate::transfer::State;

fn pair(range: ByteRange) -> (u64, u64) {
    (range.start, range.len())
}

/// The span of a completion that was just reaped.
fn span_of(completion: &Completion) -> Span {
    let Completion { op, result, took_ns, at_ns, .. } = completion;
    let Op { kind, segment, address, .. } = op;
    let name = match kind {
        OpKind::Sync { .. } => "sync",
        OpKind::DropStale => "check",
        OpKind::Move(direction) => direction.name(),
    };
    let bytes = (segment.covered.start + op.moved, result.unwrap_or(0));
    let (reason, failed) = (segment.reason, result.is_err());
    Span {
        start_ns: at_ns.saturating_sub(*took_ns),
        end_ns: *at_ns,
        what: What::Op { name, bytes, address: address + op.moved, reason, failed },
    }
}

/// Records ops that were reaped. `overlaps`: several were in flight at a time.
pub(super) fn reaped(track: &mut Track, to: &Recorder, overlaps: bool, done: &[Completion]) {
    if to.is_on() {
        // An op that the kernel never saw took no time.
        let seen = done.iter().filter(|completion| completion.at_ns > 0);
        track.push(to, overlaps, seen.map(span_of));
    }
}

/// Plans a window and records the span.
pub(super) fn planned<T>(
    track: &mut Track,
    to: &Recorder,
    overlaps: bool,
    claim: &Claim,
    plan: impl FnOnce(&Claim) -> T,
) -> T {
    if !to.is_on() {
        return plan(claim);
    }
    let start_ns = now_ns();
    let plan = plan(claim);
    let what = What::Plan { bytes: pair(claim.range) };
    track.push(to, overlaps, [Span { start_ns, end_ns: now_ns(), what }]);
    plan
}

/// Records the use of slots.
pub(super) fn slots(to: &Recorder, uses: Vec<SlotUse>) {
    if !uses.is_empty() {
        let now = now_ns();
        let what = |SlotUse { slot, range }| {
            let Slot { address, whole, len, .. } = slot;
            match range {
                Some(range) => What::Taken { whole, address, len, bytes: pair(range) },
                None => What::Given { address },
            }
        };
        to.note(uses.into_iter().map(|one| Span { start_ns: now, end_ns: now, what: what(one) }));
    }
}

/// Records a transfer that ends now.
pub(super) fn ended(to: &Recorder, state: &State, failed: bool) {
    if to.is_on()
        && let Some((path, range, took)) = state.described()
    {
        let end_ns = now_ns();
        let start_ns = end_ns.saturating_sub(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        let what = What::Transfer { path, bytes: pair(range), failed };
        to.note([Span { start_ns, end_ns, what }]);
    }
}
