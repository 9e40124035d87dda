//! By which queue a file's bytes go straight to and from a GPU, as it was found not long ago: to
//! find it takes locks that all transfers share, and what it rests on changes slowly.

use std::time::{Duration, Instant};

use crate::gpu::DeviceId;
use crate::lock::Lock;

/// How long a choice stands: no longer than what it rests on takes to be measured anew.
const STANDS: Duration = Duration::from_millis(100);

/// A queue, and whether slots have been seen to be much faster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) queue: usize,
    pub(crate) slots_are_faster: bool,
}

/// The choices for each GPU, of reads and of writes.
#[derive(Debug, Default)]
pub(crate) struct Choices {
    known: Lock<Vec<Known>>,
}

/// Of a GPU, for writes or for reads: a choice, and when it was made.
type Known = ((DeviceId, bool), Instant, Choice);

impl Choices {
    /// The choice, made by `choose` where there is none that stands.
    pub(crate) fn of(
        &self,
        gpu: DeviceId,
        writes: bool,
        choose: impl FnOnce() -> Choice,
    ) -> Choice {
        let key = (gpu, writes);
        let recent = |(known, made, choice): &Known| {
            (*known == key && made.elapsed() < STANDS).then_some(*choice)
        };
        if let Some(choice) = self.known.lock().iter().find_map(recent) {
            return choice;
        }
        let choice = choose();
        let mut known = self.known.lock();
        known.retain(|(known, ..)| *known != key);
        known.push((key, Instant::now(), choice));
        choice
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::DeviceKind;

    #[test]
    fn a_choice_stands_for_a_while_and_for_itself_alone() {
        let choices = Choices::default();
        let choice = |queue| Choice { queue, slots_are_faster: queue > 2 };
        let gpu = |index| DeviceId { kind: DeviceKind::Sim, index };
        let start = Instant::now();
        assert_eq!(choices.of(gpu(0), false, || choice(1)), choice(1));
        assert_eq!(choices.of(gpu(0), true, || choice(2)), choice(2));
        assert_eq!(choices.of(gpu(1), false, || choice(3)), choice(3));
        let again = choices.of(gpu(0), false, || choice(4));
        assert!(again == choice(1) || start.elapsed() >= STANDS);
        std::thread::sleep(STANDS);
        assert_eq!(choices.of(gpu(0), false, || choice(5)), choice(5));
        assert_eq!(choices.known.lock().len(), 3);
    }
}
