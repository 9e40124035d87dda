//! Volumes that were asked something and have not answered in time.
//!
//! A question to a volume with a drive that hangs may hang in its thread, and of those there are
//! few. So nobody waits for long, and a volume that owes an answer is not asked again.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use crate::topology::QueueId;

/// See the module's own text.
#[derive(Debug, Clone, Default)]
pub(super) struct Overdue(Arc<Mutex<HashSet<QueueId>>>);

impl Overdue {
    fn lock(&self) -> MutexGuard<'_, HashSet<QueueId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What `question` finds about a volume, where it does within `most`; `aside` has a thread run
    /// it. `None`: the volume owes this answer, or an earlier one.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        volume: &QueueId,
        most: Duration,
        question: impl FnOnce() -> T + Send + 'static,
        aside: impl FnOnce(Box<dyn FnOnce() + Send>),
    ) -> Option<T> {
        if self.lock().contains(volume) {
            return None;
        }
        let (tell, told) = mpsc::sync_channel(1);
        let (owed, asked) = (self.clone(), volume.clone());
        aside(Box::new(move || {
            let _ = tell.send(question());
            owed.lock().remove(&asked);
        }));
        told.recv_timeout(most).ok().or_else(|| {
            let mut overdue = self.lock();
            // If it has not come meanwhile, whoever brings it will find the volume here.
            let answer = told.try_recv().ok();
            if answer.is_none() {
                overdue.insert(volume.clone());
            }
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;
    use crate::topology::Resolver;

    /// Far above what the slowest machine needs: it only tells late from never.
    const BOUND: Duration = Duration::from_secs(100);

    fn beside(job: Box<dyn FnOnce() + Send>) {
        thread::spawn(job);
    }

    #[test]
    fn a_volume_that_owes_an_answer_is_asked_again_when_it_has_answered() {
        let overdue = Overdue::default();
        let folder = tempfile::tempdir().unwrap();
        let volume = Resolver::default().resolve(folder.path()).queue.id.clone();
        let (gate, shut) = channel::<()>();
        let hangs = move || shut.recv().is_err();
        assert_eq!(overdue.ask(&volume, Duration::from_millis(1), hangs, beside), None);
        let never = |_| unreachable!("it owes an answer");
        assert_eq!(overdue.ask(&volume, BOUND, || 1, never), None);
        drop(gate);
        while !overdue.lock().is_empty() {
            thread::yield_now();
        }
        assert_eq!(overdue.ask(&volume, BOUND, || 2, beside), Some(2));
        assert!(overdue.lock().is_empty());
    }
}
