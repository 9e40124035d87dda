//! The sessions of this process: one for each library that is loaded.
//!
//! A library's driver exists once per process, and so does its capacity. Two sessions would each
//! count only their requests and together submit twice as many as the driver takes. Sessions are
//! never closed, so they are never removed here. A forked child does not use them and does not take
//! the lock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_base::lock::{Condvar, Lock, woken};
use forebay_base::per_process::PerProcess;

use super::failure::CuFileFailure;

/// The sessions, by library.
pub(super) struct Sessions<S: 'static> {
    /// The sessions, and the condition variable for threads that wait for one.
    of_process: PerProcess<(Lock<All<S>>, Condvar)>,
    /// How long a thread waits for another one that is opening the same driver.
    within: Duration,
}

/// Keyed by the address at which a library is loaded: the loader detects identical files.
#[derive(Debug)]
struct All<S> {
    open: Vec<(usize, Arc<S>)>,
    /// Drivers that are being opened, with the start time.
    opening: Vec<(usize, Instant)>,
}

impl<S: Send + Sync> Sessions<S> {
    pub(super) const fn within(within: Duration) -> Self {
        Self { of_process: PerProcess::new(), within }
    }

    /// Fails in a child forked from a process that had loaded a library.
    pub(super) fn check_home(&self) -> Result<(), CuFileFailure> {
        self.of_process.inherited().map_or(Ok(()), |_| Err(CuFileFailure::Forked))
    }

    /// The session of a library, created by `open` if there is none yet. This may hang, so
    /// concurrent callers wait for it with a time limit.
    pub(super) fn of(
        &self,
        library: usize,
        open: impl FnOnce() -> Result<S, CuFileFailure>,
    ) -> Result<Arc<S>, CuFileFailure> {
        self.check_home()?;
        let none = || (Lock::new(All { open: Vec::new(), opening: Vec::new() }), Condvar::new());
        let (of_process, opened) = self.of_process.get_or_init(none);
        let mut all = of_process.lock();
        loop {
            if let Some((_, session)) = all.open.iter().find(|(of, _)| *of == library) {
                return Ok(Arc::clone(session));
            }
            let Some((_, since)) = all.opening.iter().find(|(of, _)| *of == library) else { break };
            let left = self.within.saturating_sub(since.elapsed());
            if left.is_zero() {
                return Err(CuFileFailure::Opening);
            }
            all = woken(opened.wait_timeout(all, left)).0;
        }
        all.opening.push((library, Instant::now()));
        drop(all);
        let _opening = Opening { all: of_process, opened, library };
        let session = Arc::new(open()?);
        of_process.lock().open.push((library, Arc::clone(&session)));
        Ok(session)
    }
}

/// Ends the turn of the thread that opens a driver, whatever the result.
struct Opening<S: 'static> {
    all: &'static Lock<All<S>>,
    opened: &'static Condvar,
    library: usize,
}

impl<S> Drop for Opening<S> {
    fn drop(&mut self) {
        self.all.lock().opening.retain(|(of, _)| *of != self.library);
        self.opened.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Session;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;
    use std::thread;

    const LONG: Duration = Duration::from_secs(60);

    fn fails() -> Result<Session, CuFileFailure> {
        Err(CuFileFailure::Library("it fails".into()))
    }

    #[test]
    fn each_library_has_one_session() {
        static SESSIONS: Sessions<Session> = Sessions::within(LONG);
        let opened = AtomicUsize::new(0);
        let of = |library| {
            SESSIONS.of(library, || {
                opened.fetch_add(1, Ordering::Relaxed);
                Session::of_simulated()
            })
        };
        let one = of(1).unwrap();
        assert!(Arc::ptr_eq(&one, &of(1).unwrap()) && !Arc::ptr_eq(&one, &of(2).unwrap()));
        assert_eq!(opened.into_inner(), 2);
    }

    #[test]
    fn a_session_that_failed_to_open_is_opened_again() {
        static SESSIONS: Sessions<Session> = Sessions::within(LONG);
        assert_eq!(SESSIONS.of(1, fails).unwrap_err().to_string(), "it fails");
        assert!(SESSIONS.of(1, Session::of_simulated).is_ok());
    }

    #[test]
    fn concurrent_callers_share_one_session() {
        static SESSIONS: Sessions<Session> = Sessions::within(LONG);
        let (begin, begun) = channel();
        thread::scope(|scope| {
            let sessions = &SESSIONS;
            let second = scope.spawn(move || {
                begun.recv().unwrap();
                sessions.of(1, || panic!("it is being opened already")).unwrap()
            });
            let first = sessions.of(1, || {
                begin.send(()).unwrap();
                thread::sleep(Duration::from_millis(50)); // so that it has to wait
                Session::of_simulated()
            });
            assert!(Arc::ptr_eq(&first.unwrap(), &second.join().unwrap()));
        });
    }

    #[test]
    fn a_driver_that_hangs_as_it_opens_blocks_no_other_caller() {
        static SESSIONS: Sessions<Session> = Sessions::within(Duration::from_millis(20));
        let sessions = &SESSIONS;
        let first = sessions.of(1, || {
            for _ in 0..2 {
                let late = sessions.of(1, fails).unwrap_err();
                assert_eq!(late, CuFileFailure::Opening);
                assert!(late.to_string().contains("for too long"), "{late}");
            }
            assert!(
                sessions.of(2, Session::of_simulated).is_ok(),
                "another library is not held up"
            );
            Session::of_simulated()
        });
        assert!(Arc::ptr_eq(&first.unwrap(), &sessions.of(1, fails).unwrap()));
    }
}
