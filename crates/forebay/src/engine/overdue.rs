//! Queries to drives and servers that may never be answered.
//!
//! No signal reliably ends such a call, so it runs on a separate thread, and the caller waits for a
//! limited time. A drive or server that owes an answer gets no further queries until all earlier
//! ones are answered. So it blocks only the threads that were started before the first one was
//! late.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, TryRecvError, sync_channel};
use std::thread::{Builder, ThreadId, current};
use std::time::Duration;

use forebay_base::lock::Lock;

use crate::events;

/// How long the start of a transfer waits for a query about its file. A spinning disk needs a few
/// hundredths of a second.
pub(super) const TOLD_MAX: Duration = Duration::from_millis(250);

/// The threads with overdue answers, and for each the drive or server, by a name that the caller
/// chooses.
#[derive(Debug, Clone, Default)]
pub(super) struct Overdue(Arc<Lock<HashMap<ThreadId, String>>>);

/// Removes this thread from the list when its answer has arrived, or never will.
struct Owed(Overdue);

impl Drop for Owed {
    fn drop(&mut self) {
        self.0.0.lock().remove(&current().id());
    }
}

impl Overdue {
    /// Runs `question` to the drive or server `peer` on a thread with the caller's mounts, and
    /// returns its answer within `most`. `None` if it owes this answer or an earlier one, or no
    /// thread can be started.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        peer: &str,
        most: Duration,
        question: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        if self.0.lock().values().any(|owing| owing == peer) {
            return None;
        }
        let (send, answer) = sync_channel(1);
        let owed = Owed(self.clone());
        let asks = move || {
            let _owed = owed; // dropped after the channel, also by a panic
            let send = send;
            let _ = send.send(question());
        };
        let thread = Builder::new().name("forebay-ask".into()).spawn(asks);
        let thread = thread
            .inspect_err(|error| events::thread_refused("thread that asks drives", error))
            .ok()?;
        match answer.recv_timeout(most) {
            Ok(answer) => Some(answer),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => {
                let mut overdue = self.0.lock();
                // A thread that answers from now on finds its entry in the list.
                match answer.try_recv() {
                    Ok(answer) => Some(answer),
                    Err(TryRecvError::Disconnected) => None,
                    Err(TryRecvError::Empty) => {
                        overdue.insert(thread.thread().id(), peer.to_owned());
                        None
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    /// Far above what the slowest machine needs: it only separates late from never.
    const BOUND: Duration = Duration::from_secs(100);
    const SOON: Duration = Duration::from_millis(1);

    #[test]
    fn a_drive_that_owes_an_answer_is_asked_again_when_it_has_answered() {
        let overdue = Overdue::default();
        let (gate, shut) = channel::<()>();
        assert_eq!(overdue.ask("drive", SOON, move || shut.recv().is_err()), None);
        assert_eq!(overdue.ask("drive", BOUND, || -> u8 { unreachable!("it is not asked") }), None);
        assert_eq!(overdue.ask("other", BOUND, || 1), Some(1));
        drop(gate);
        while !overdue.0.lock().is_empty() {
            thread::yield_now();
        }
        assert_eq!(overdue.ask("drive", BOUND, || 2), Some(2));
        assert!(overdue.0.lock().is_empty());
    }

    #[test]
    fn a_drive_is_not_asked_again_while_one_of_several_answers_is_owed() {
        let overdue = Overdue::default();
        let gates: Vec<_> = (0..2).map(|_| channel::<()>()).collect();
        let (mut senders, receivers): (Vec<_>, Vec<_>) = gates.into_iter().unzip();
        thread::scope(|scope| {
            for shut in receivers {
                let overdue = &overdue;
                let late = Duration::from_millis(100);
                scope.spawn(move || overdue.ask("drive", late, move || shut.recv().is_err()));
            }
        });
        assert_eq!(overdue.0.lock().len(), 2, "both were asked before one was late");
        senders.truncate(1);
        while overdue.0.lock().len() == 2 {
            thread::yield_now();
        }
        assert_eq!(overdue.ask("drive", BOUND, || -> u8 { unreachable!("it is not asked") }), None);
        drop(senders);
        while !overdue.0.lock().is_empty() {
            thread::yield_now();
        }
        assert_eq!(overdue.ask("drive", BOUND, || 2), Some(2));
    }

    #[test]
    fn a_question_that_panics_is_no_debt() {
        let overdue = Overdue::default();
        assert_eq!(overdue.ask("drive", BOUND, || -> u8 { panic!("on purpose") }), None);
        assert_eq!(overdue.ask("drive", BOUND, || 2), Some(2));
    }
}
