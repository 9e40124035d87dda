//! Memory that a provider of a way between drives and GPUs knows, so that bytes take no detour on
//! the way to it.

/// Keeps memory known to a provider until it is dropped.
pub(crate) trait KnownMemory: Send + Sync {
    /// Whether the provider has had to make room for other memory.
    fn is_forgotten(&self) -> bool;
}

/// Uses before which a provider is not asked: knowing memory takes it milliseconds
/// (docs/internals/cufile.md).
const USES_FIRST: u64 = 2;

/// When a provider is asked: when memory is used again, and after twice as many uses each time that
/// it was refused or forgotten, so that memories that displace one another do so seldom.
#[derive(Default)]
pub(super) struct Known {
    /// Since it was asked last.
    uses: u64,
    asked: u32,
    /// The last is what counts. What was forgotten stays until the memory goes: to let go of it may
    /// wait for a provider that hangs.
    keeps: Vec<Box<dyn KnownMemory>>,
}

impl Known {
    /// Takes note of a use, before which the provider is asked if it is time.
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

    /// After how many uses each next question comes.
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
