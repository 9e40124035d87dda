//! Queries to drives and servers that may never be answered.
//!
//! No signal reliably ends such a call, so it runs on a separate thread, and the caller waits for a
//! limited time. A drive or server that owes an answer gets no further queries until all earlier
//! ones are answered. At most four run at a time, so a drive or server blocks no more threads.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, TryRecvError, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use forebay_base::lock::{Condvar, Lock, woken};

use crate::events;

/// How long the start of a transfer waits for a query about its file. A spinning disk needs a few
/// hundredths of a second.
pub(super) const ANSWER_MAX: Duration = Duration::from_millis(250);

/// Maximum number of queries, with a thread per query, that run at a time for a device.
const RUNNING_MAX: usize = 4;

/// How long a caller waits for its turn while the device answers earlier queries. A thousand
/// callers with separate files on an overlay waited up to 2.3 s on two cores (2026-11-27,
/// `0e0d0bb5`).
const TURN_MAX: Duration = Duration::from_secs(10);

/// The queries to drives and servers, by the device number of their files.
#[derive(Debug, Default)]
pub(super) struct Overdue(Lock<HashMap<u64, Arc<Peer>>>);

#[derive(Debug, Default)]
struct Peer {
    queries: Lock<Queries>,
    /// A query ended or is late.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queries {
    running: usize,
    /// Whether a query was late and not all have ended since.
    is_late: bool,
}

/// Counts a query until it ends, also by a panic.
struct Running(Arc<Peer>);

impl Drop for Running {
    fn drop(&mut self) {
        let mut queries = self.0.queries.lock();
        queries.running -= 1;
        queries.is_late &= queries.running > 0;
        drop(queries);
        self.0.changed.notify_one();
    }
}

impl Overdue {
    /// Runs `question` to the drive or server of `device` on a thread with the caller's mounts, and
    /// returns its answer within `most` after its turn. If other callers have learned the answer by
    /// then, `known` returns it; it must not block. `None` if an answer is overdue, or no thread
    /// can be started.
    pub(super) fn query<T: Send + 'static>(
        &self,
        device: u64,
        most: Duration,
        known: impl FnOnce() -> Option<T>,
        question: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let peer = Arc::clone(self.0.lock().entry(device).or_default());
        let is_full = |queries: &mut Queries| !queries.is_late && queries.running >= RUNNING_MAX;
        let waited = peer.changed.wait_timeout_while(peer.queries.lock(), TURN_MAX, is_full);
        let mut queries = woken(waited).0;
        if queries.is_late || queries.running >= RUNNING_MAX {
            drop(queries);
            return known();
        }
        queries.running += 1;
        drop(queries);
        let running = Running(Arc::clone(&peer));
        if let Some(known) = known() {
            return Some(known);
        }
        let (send, answer) = sync_channel(1);
        let query = move || {
            let _running = running; // dropped after the channel, also by a panic
            let send = send;
            let _ = send.send(question());
        };
        Builder::new()
            .name("forebay-query".into())
            .spawn(query)
            .inspect_err(|error| events::thread_refused("thread that queries drives", error))
            .ok()?;
        match answer.recv_timeout(most) {
            Ok(answer) => Some(answer),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => {
                let mut queries = peer.queries.lock();
                // The query's end, from now on, finds that it is late.
                let answer = answer.try_recv();
                queries.is_late |= matches!(answer, Err(TryRecvError::Empty));
                drop(queries);
                peer.changed.notify_all();
                answer.ok()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;
    use std::sync::atomic::{AtomicBool, AtomicUsize};
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Instant;

    use super::*;

    /// Far above what the slowest machine needs: it only separates late from never.
    const BOUND: Duration = Duration::from_secs(100);
    const SOON: Duration = Duration::from_millis(1);

    fn none<T>() -> Option<T> {
        None
    }

    /// Waits until all queries to a device have ended.
    fn ended(overdue: &Overdue, device: u64) {
        let peer = Arc::clone(&overdue.0.lock()[&device]);
        while peer.queries.lock().running > 0 {
            thread::yield_now();
        }
    }

    #[test]
    fn a_drive_that_owes_an_answer_is_queried_after_it() {
        let overdue = Overdue::default();
        let (gate, shut) = channel::<()>();
        assert_eq!(overdue.query(1, SOON, none, move || shut.recv().is_err()), None);
        assert_eq!(overdue.query(1, BOUND, none, || -> u8 { unreachable!("not queried") }), None);
        assert_eq!(overdue.query(2, BOUND, none, || 1), Some(1));
        drop(gate);
        ended(&overdue, 1);
        assert_eq!(overdue.query(1, BOUND, none, || 2), Some(2));
    }

    #[test]
    fn a_drive_is_not_queried_again_while_one_of_several_answers_is_owed() {
        let overdue = Overdue::default();
        let gates: Vec<_> = (0..2).map(|_| channel::<()>()).collect();
        let (mut senders, receivers): (Vec<_>, Vec<_>) = gates.into_iter().unzip();
        thread::scope(|scope| {
            for shut in receivers {
                let overdue = &overdue;
                let late = Duration::from_millis(100);
                scope.spawn(move || overdue.query(1, late, none, move || shut.recv().is_err()));
            }
        });
        let peer = Arc::clone(&overdue.0.lock()[&1]);
        assert_eq!(peer.queries.lock().running, 2, "both were queried before one was late");
        senders.truncate(1);
        while peer.queries.lock().running == 2 {
            thread::yield_now();
        }
        assert_eq!(overdue.query(1, BOUND, none, || -> u8 { unreachable!("not queried") }), None);
        drop(senders);
        ended(&overdue, 1);
        assert_eq!(overdue.query(1, BOUND, none, || 2), Some(2));
    }

    #[test]
    fn a_question_that_panics_is_no_debt() {
        let overdue = Overdue::default();
        assert_eq!(overdue.query(1, BOUND, none, || -> u8 { panic!("on purpose") }), None);
        assert_eq!(overdue.query(1, BOUND, none, || 2), Some(2));
    }

    #[test]
    fn many_callers_start_few_queries_and_share_their_answers() {
        let overdue = Overdue::default();
        let (running, queries) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let is_known = Arc::new(AtomicBool::new(false));
        let query = |shares: bool| {
            let [running, queries] = [&running, &queries].map(Arc::clone);
            let (known, sets) = (Arc::clone(&is_known), Arc::clone(&is_known));
            let known = move || (shares && known.load(Relaxed)).then_some(7);
            overdue.query(1, BOUND, known, move || {
                assert!(running.fetch_add(1, Relaxed) < RUNNING_MAX);
                queries.fetch_add(1, Relaxed);
                thread::sleep(Duration::from_millis(5));
                running.fetch_sub(1, Relaxed);
                sets.store(true, Relaxed);
                7
            })
        };
        for shares in [true, false] {
            queries.store(0, Relaxed);
            thread::scope(|scope| {
                let callers: Vec<_> = (0..64).map(|_| scope.spawn(|| query(shares))).collect();
                let answers = callers.into_iter().map(|caller| caller.join().unwrap());
                assert!(answers.eq([Some(7); 64]));
            });
            let queries = queries.load(Relaxed);
            assert!(if shares { queries <= RUNNING_MAX } else { queries == 64 }, "{queries}");
        }
    }

    #[test]
    fn callers_that_wait_for_their_turn_give_up_when_an_answer_is_late() {
        let overdue = &Overdue::default();
        let began = Instant::now();
        let gates: Vec<_> = (0..RUNNING_MAX).map(|_| channel::<()>()).collect();
        let (senders, receivers): (Vec<_>, Vec<_>) = gates.into_iter().unzip();
        thread::scope(|scope| {
            for (number, shut) in receivers.into_iter().enumerate() {
                // The first is late soon; the others would wait for long.
                let most = if number == 0 { Duration::from_millis(200) } else { BOUND };
                scope.spawn(move || overdue.query(1, most, none, move || shut.recv().is_err()));
            }
            while overdue
                .0
                .lock()
                .get(&1)
                .is_none_or(|peer| peer.queries.lock().running < RUNNING_MAX)
            {
                thread::yield_now();
            }
            let waits = || overdue.query(1, BOUND, none, || -> bool { unreachable!("queried") });
            let waiters = [0; 3].map(|_| scope.spawn(waits));
            assert_eq!(waiters.map(|waiter| waiter.join().unwrap()), [None; 3]);
            drop(senders);
        });
        assert!(began.elapsed() < TURN_MAX, "they waited for their turn all the same");
    }
}
