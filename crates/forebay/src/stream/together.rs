//! Which streams of a group have a layer read at once, and how long one waits for the others. Pure.
//!
//! Each stream asks for its layers by itself. A layer is read when all have asked for it that are
//! about to, and whose buffer for it is free by then, so that nothing is held up on its way by a
//! GPU that is busy. Whoever is late is waited for a while, and left behind then until it goes on.

use std::time::Duration;

/// How long a stream waits for others: longer than what keeps those apart that take the same layers
/// in step, and short enough to be no hang. A guess, which no run has measured.
const PATIENCE: Duration = Duration::from_millis(250);

/// A layer that a stream has asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask {
    /// Which stream.
    pub(super) seat: usize,
    pub(super) unit: usize,
    /// The position that it is brought for.
    pub(super) position: u64,
    /// Whether its buffer may be written to.
    pub(super) free: bool,
    /// Since when it was asked for.
    pub(super) waited: Duration,
}

/// How far a stream is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Progress {
    /// The position that it takes next.
    pub(super) next: u64,
    /// The first whose layer it has not asked for, as far as that is known.
    pub(super) missing: Option<u64>,
    /// How many layers its GPU has room for.
    pub(super) buffers: u64,
    /// Where it was when others went on without it.
    pub(super) apart: Option<u64>,
}

/// What is begun.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pick {
    /// Asks, by their places, all for the same layer.
    pub(super) asks: Vec<usize>,
    /// Streams that are left behind.
    pub(super) without: Vec<usize>,
}

/// What is begun now of what was asked for; `None`: nothing yet.
pub(super) fn pick(asks: &[Ask], streams: &[Option<Progress>]) -> Option<Pick> {
    let is_first = |&(place, ask): &(usize, &Ask)| {
        asks[..place].iter().all(|before| before.unit != ask.unit) //
    };
    let firsts = asks.iter().enumerate().filter(is_first);
    firsts.into_iter().find_map(|(_, first)| pick_unit(asks, streams, first))
}

fn pick_unit(asks: &[Ask], streams: &[Option<Progress>], first: &Ask) -> Option<Pick> {
    let of_unit = || asks.iter().enumerate().filter(|(_, ask)| ask.unit == first.unit);
    let (free, busy): (Vec<_>, Vec<_>) = of_unit().partition(|(_, ask)| ask.free);
    if free.is_empty() {
        return None;
    }
    let has_asked = |seat: usize| of_unit().any(|(_, ask)| ask.seat == seat);
    let seats = streams.iter().enumerate();
    let late = seats.filter(|&(seat, stream)| !has_asked(seat) && is_due(stream, first.position));
    let late = late.map(|(seat, _)| seat).chain(busy.into_iter().map(|(_, ask)| ask.seat));
    let late: Vec<usize> = late.filter(|&seat| is_with(streams[seat].as_ref())).collect();
    if !late.is_empty() && first.waited < PATIENCE {
        return None;
    }
    Some(Pick { asks: free.into_iter().map(|(place, _)| place).collect(), without: late })
}

/// Whether a stream is about to ask for the layer at a position.
fn is_due(stream: &Option<Progress>, position: u64) -> bool {
    stream.is_some_and(|stream| {
        let is_near = position < stream.next.saturating_add(2 * stream.buffers);
        is_near && stream.missing.is_some_and(|missing| missing <= position)
    })
}

/// Whether a stream was not left behind, or has gone on since.
fn is_with(stream: Option<&Progress>) -> bool {
    stream.is_some_and(|stream| stream.apart != Some(stream.next))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = PATIENCE;

    fn ask(seat: usize, unit: usize, waited: Duration) -> Ask {
        Ask { seat, unit, position: unit as u64, free: true, waited }
    }

    /// A stream that takes the layer `next`, and has asked for all before `missing`.
    fn at(next: u64, missing: u64) -> Option<Progress> {
        Some(Progress { next, missing: Some(missing), buffers: 3, apart: None })
    }

    fn begun(asks: &[usize], without: &[usize]) -> Option<Pick> {
        Some(Pick { asks: asks.to_vec(), without: without.to_vec() })
    }

    #[test]
    fn a_layer_is_read_once_all_have_asked_for_it() {
        let streams = [at(4, 8), at(4, 7)];
        let one = ask(0, 7, Duration::ZERO);
        assert_eq!(pick(&[one], &streams), None, "the other is about to");
        let both = [one, ask(1, 7, Duration::ZERO)];
        assert_eq!(pick(&both, &[at(4, 8), at(4, 8)]), begun(&[0, 1], &[]));
        assert_eq!(pick(&[one], &[at(4, 8), None]), begun(&[0], &[]), "the other has ended");
        assert_eq!(pick(&[one], &[at(4, 8), at(4, 9)]), begun(&[0], &[]), "it has it");
        assert_eq!(pick(&[], &streams), None);
    }

    #[test]
    fn whoever_is_late_is_left_behind_until_it_goes_on() {
        let (one, streams) = (ask(0, 7, LONG), [at(4, 8), at(3, 7)]);
        assert_eq!(pick(&[one], &streams), begun(&[0], &[1]));
        let soon = ask(0, 8, Duration::ZERO);
        let behind = |next| [at(5, 9), at(next, 7).map(|s| Progress { apart: Some(3), ..s })];
        assert_eq!(pick(&[soon], &behind(3)), begun(&[0], &[]), "it is where it was");
        assert_eq!(pick(&[soon], &behind(4)), None, "it goes on");
        let far = [at(10, 14), at(4, 7)];
        assert_eq!(pick(&[ask(0, 13, Duration::ZERO)], &far), begun(&[0], &[]), "too far behind");
    }

    #[test]
    fn what_is_behind_is_read_by_itself() {
        // The first waits for layer 8, the second for layer 7, which the first has.
        let asks = [ask(0, 8, Duration::ZERO), ask(1, 7, Duration::ZERO)];
        assert_eq!(pick(&asks, &[at(6, 9), at(5, 8)]), begun(&[1], &[]));
    }

    #[test]
    fn a_buffer_that_is_busy_is_waited_for() {
        let busy = Ask { free: false, ..ask(1, 7, Duration::ZERO) };
        let streams = [at(4, 8), at(4, 8)];
        assert_eq!(pick(&[ask(0, 7, Duration::ZERO), busy], &streams), None);
        assert_eq!(pick(&[ask(0, 7, LONG), busy], &streams), begun(&[0], &[1]));
        assert_eq!(pick(&[busy], &streams), None, "for ever, by itself");
        let behind = [at(4, 8), at(4, 8).map(|s| Progress { apart: Some(4), ..s })];
        assert_eq!(pick(&[ask(0, 7, Duration::ZERO), busy], &behind), begun(&[0], &[]));
    }
}
