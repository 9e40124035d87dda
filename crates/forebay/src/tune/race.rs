//! Which of two ways transfers of one size take, by how long they took by either.
//!
//! Pure: times come in, a way comes out. A way is known by the second shortest of its newest times,
//! which neither a slow one nor a single lucky one moves. What is not taken is tried now and then,
//! so that a change of the drive, or of what else the machine does, is noticed.

/// How bytes come from a drive to a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Past the host's memory.
    Straight,
    /// By way of slots.
    Slots,
}

impl Way {
    const fn other(self) -> Self {
        match self {
            Self::Straight => Self::Slots,
            Self::Slots => Self::Straight,
        }
    }
}

/// Times of a way that are kept.
const KEPT: usize = 8;

/// Times without which nothing is said of a way.
const LEAST: usize = 3;

/// Tries in a row that a way has to become known; how many transfers there are for each of them,
/// and for each later one: odd, so that work that repeats itself does not meet them always at the
/// same place.
const EARLY_TRIES: u32 = 16;
const EARLY_EVERY: u32 = 5;
const EVERY: u32 = 61;

/// Slots cost the host's memory and processors something, and what goes straight does not: they are
/// taken where they need no more than so many eighths of its time, and left where they need all.
const SLOTS_WITHIN: u128 = 7;

/// The newest times of a way.
#[derive(Debug, Default)]
struct Times {
    /// With the first, which paid for what is made once, and is not kept.
    seen: usize,
    kept: [u64; KEPT],
}

impl Times {
    fn add(&mut self, ns: u64) {
        if let Some(before) = self.seen.checked_sub(1) {
            self.kept[before % KEPT] = ns;
        }
        self.seen += 1;
    }

    /// The second shortest.
    fn low(&self) -> Option<u64> {
        let count = self.seen.saturating_sub(1).min(KEPT);
        let mut kept = self.kept;
        let kept = &mut kept[..count];
        kept.sort_unstable();
        kept.get(1).copied().filter(|_| count >= LEAST)
    }
}

/// Two ways for transfers of one size.
#[derive(Debug, Default)]
pub(crate) struct Race {
    straight: Times,
    slots: Times,
    /// Whether slots are over sooner.
    slots_lead: bool,
    /// Transfers since the last try, and how many tries there were, as far as that matters.
    since: u32,
    tries: u32,
}

impl Race {
    /// The way that is over sooner; nothing is known at first, and what goes straight leads.
    pub(crate) const fn leader(&self) -> Way {
        if self.slots_lead { Way::Slots } else { Way::Straight }
    }

    /// The way of the next transfer: the leader, or the other way as a try.
    pub(crate) fn next(&mut self) -> Way {
        let leader = self.leader();
        // As long as nobody knows how long the leader takes there is nothing to compare with.
        if self.times(leader).low().is_none() {
            return leader;
        }
        let is_known = self.times(leader.other()).low().is_some();
        let early = !is_known && self.tries < EARLY_TRIES;
        self.since += 1;
        if self.since < if early { EARLY_EVERY } else { EVERY } {
            return leader;
        }
        self.since = 0;
        self.tries = self.tries.saturating_add(1);
        leader.other()
    }

    /// A transfer took so long.
    pub(crate) fn took(&mut self, way: Way, ns: u64) {
        self.times(way).add(ns);
        if let (Some(straight), Some(slots)) = (self.straight.low(), self.slots.low()) {
            let (straight, slots) = (u128::from(straight), u128::from(slots));
            self.slots_lead = match self.slots_lead {
                false => slots * 8 <= straight * SLOTS_WITHIN && slots < straight,
                true => slots < straight,
            };
        }
    }

    const fn times(&mut self, way: Way) -> &mut Times {
        match way {
            Way::Straight => &mut self.straight,
            Way::Slots => &mut self.slots,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// So many transfers, whose times are asked for by way and number; how many went through slots.
    fn run(race: &mut Race, count: u32, ns: impl Fn(Way, u32) -> u64) -> u32 {
        let mut through_slots = 0;
        for number in 0..count {
            let way = race.next();
            race.took(way, ns(way, number));
            through_slots += u32::from(way == Way::Slots);
        }
        through_slots
    }

    fn constant(straight: u64, slots: u64) -> impl Fn(Way, u32) -> u64 {
        move |way, _| if way == Way::Straight { straight } else { slots }
    }

    #[test]
    fn the_faster_way_leads_and_the_other_is_tried() {
        let mut race = Race::default();
        run(&mut race, 40, constant(1000, 500));
        assert_eq!(race.leader(), Way::Slots);
        assert_eq!(run(&mut race, 6100, constant(1000, 500)), 6000);
        let mut race = Race::default();
        run(&mut race, 40, constant(500, 1000));
        assert_eq!(race.leader(), Way::Straight);
        assert_eq!(run(&mut race, 6100, constant(500, 1000)), 100);
        // A little sooner is not enough.
        let mut race = Race::default();
        run(&mut race, 1000, constant(1000, 900));
        assert_eq!(race.leader(), Way::Straight);
    }

    #[test]
    fn what_pays_for_set_up_does_not_count() {
        for (straight, slots) in [(1000, 500), (500, 1000)] {
            let mut race = Race::default();
            let slow = std::cell::Cell::new([true; 2]);
            run(&mut race, 100, |way, _| {
                let mut first = slow.get();
                let is_first = std::mem::take(&mut first[way as usize]);
                slow.set(first);
                constant(straight, slots)(way, 0) + if is_first { 1_000_000 } else { 0 }
            });
            assert_eq!(race.leader() == Way::Slots, slots < straight);
        }
    }

    #[test]
    fn single_ones_change_nothing_and_a_change_does() {
        let mut race = Race::default();
        run(&mut race, 100, constant(1000, 500));
        // One in nine is lucky, and one is held up by something.
        for number in 0..1000 {
            let odd = |way, _| match number % 9 {
                0 => 1,
                4 => 1_000_000,
                _ => constant(1000, 500)(way, 0),
            };
            run(&mut race, 1, odd);
            assert_eq!(race.leader(), Way::Slots, "{number}: {race:?}");
        }
        // Slots become slow: their own times tell. What goes straight becomes fast: its tries do.
        run(&mut race, 10, constant(1000, 5000));
        assert_eq!(race.leader(), Way::Straight);
        run(&mut race, 1000, constant(1000, 500));
        assert_eq!(race.leader(), Way::Slots);
        run(&mut race, 200, constant(100, 500));
        assert_eq!(race.leader(), Way::Straight);
    }

    proptest! {
        #[test]
        fn tries_are_few_and_any_time_is_taken(
            times in proptest::collection::vec((any::<u64>(), any::<bool>()), 0..2000),
        ) {
            let mut race = Race::default();
            let mut tries = 0;
            let count = u32::try_from(times.len()).unwrap();
            for (ns, counts) in times {
                let (leader, way) = (race.leader(), race.next());
                tries += u32::from(way != leader);
                // Of some nobody hears how long they took.
                if counts {
                    race.took(way, ns);
                }
            }
            prop_assert!(tries <= EARLY_TRIES + count / EVERY + 1, "{tries} of {count}");
        }

        #[test]
        fn with_steady_times_the_sooner_one_leads(straight in 1..u64::MAX, slots in 1..u64::MAX) {
            let mut race = Race::default();
            run(&mut race, 60, constant(straight, slots));
            let eighths = u128::from(straight) * 7 / 8;
            let expected = u128::from(slots) <= eighths;
            prop_assert_eq!(race.leader() == Way::Slots, expected);
        }
    }
}
