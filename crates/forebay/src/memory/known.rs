//! GPU memory registered with a provider of direct transfers, such as cuFile, so that bytes reach
//! it without a bounce buffer.

/// Keeps memory registered with a provider until dropped.
pub(crate) trait KnownMemory: Send + Sync {
    /// Whether the provider has deregistered it to make room for other memory.
    fn is_forgotten(&self) -> bool;
}

/// Uses before the first registration: registering takes milliseconds (docs/internals/cufile.md).
const USES_FIRST: u64 = 2;

/// Decides when to register memory: on its second use, then after twice as many uses each time that
/// it was refused or evicted. So buffers that evict each other do it rarely.
#[derive(Default)]
pub(super) struct Known {
    /// Uses since the last attempt.
    uses: u64,
    asked: u32,
    /// Registrations; only the last counts. Evicted ones are kept until the memory is freed,
    /// because dropping one may block on a provider that hangs.
    keeps: Vec<Box<dyn KnownMemory>>,
}

impl Known {
    /// Counts a use, and calls `ask` first if a registration is due.
    pub(super) fn used(&mut self, ask: impl FnOnce() -> Option<Box<dyn KnownMemory>>) {
        if self.keeps.last().is_some_and(|known| !known.is_forgotten()) {
            return;
        }
        self.uses += 1;
        if self.uses >= USES_FIRST << self.asked.min(32) {
            self.asked += 1;
            self.uses = 0;
            self.keeps.extend(ask());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    impl KnownMemory for Arc<AtomicBool> {
        fn is_forgotten(&self) -> bool {
            self.load(Ordering::Relaxed)
        }
    }

    /// The use counts at which registration is attempted.
    fn questions(uses: u64, mut answer: impl FnMut() -> Option<Box<dyn KnownMemory>>) -> Vec<u64> {
        let (mut known, mut asked) = (Known::default(), Vec::new());
        for use_ in 1..=uses {
            known.used(|| {
                asked.push(use_);
                answer()
            });
        }
        asked
    }

    #[test]
    fn memory_is_made_known_once_when_it_is_used_again() {
        let kept = || Some(Box::new(Arc::new(AtomicBool::new(false))) as _);
        assert_eq!(questions(1000, kept), [2]);
    }

    #[test]
    fn what_is_forgotten_or_refused_is_asked_for_more_and_more_seldom() {
        assert_eq!(questions(100, || None), [2, 6, 14, 30, 62]);
        let forgotten = || Some(Box::new(Arc::new(AtomicBool::new(true))) as _);
        assert_eq!(questions(100, forgotten), [2, 6, 14, 30, 62]);
    }
}
