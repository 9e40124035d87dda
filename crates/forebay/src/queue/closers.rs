//! Threads that let go of what may take long to let go of: the close of a file waits for its server
//! (FUSE, NFS) or, where the file has no name any more, for its drive; memory of a GPU waits for
//! what the driver has to do before.
//!
//! Whoever ends a transfer has others to serve, so the last share in such a thing is dropped here.
//! A thread is started when there is something to do, and ends when there is nothing left. There
//! are few; where all of them hang, the rest waits, and so do files and memory that nobody uses.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

/// Starts a thread that calls [`Closers::run`].
type Start = Box<dyn Fn() -> Result<(), Errno> + Send + Sync>;

type Job = Box<dyn FnOnce() + Send>;

/// See the module's own text.
pub(crate) struct Closers {
    state: Mutex<State>,
    most: usize,
    start: Start,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Threads that are started, or about to be.
    running: usize,
}

impl Closers {
    /// Of at most `most` threads, each made by `start`.
    pub(crate) fn new(most: usize, start: Start) -> Self {
        Self { state: Mutex::default(), most, start }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a thread run `job`; where there is to be none, it is run at once.
    pub(super) fn push(&self, job: impl FnOnce() + Send + 'static) {
        if self.most == 0 {
            return job();
        }
        let mut state = self.lock();
        state.jobs.push_back(Box::new(job));
        if state.running == self.most {
            return;
        }
        state.running += 1;
        drop(state);
        if (self.start)().is_err() {
            // Another one does it: one that runs, or the next that can be started.
            self.lock().running -= 1;
        }
    }

    /// Does what no thread could be had for, where none can be had now either: nobody who comes
    /// later would.
    pub(super) fn finish(&self) {
        let mut state = self.lock();
        if state.jobs.is_empty() || state.running > 0 {
            return;
        }
        state.running += 1;
        drop(state);
        if (self.start)().is_err() {
            self.run();
        }
    }

    /// Runs what there is to do.
    pub(crate) fn run(&self) {
        loop {
            let mut state = self.lock();
            let Some(job) = state.jobs.pop_front() else {
                state.running -= 1;
                return;
            };
            drop(state);
            job();
        }
    }
}

impl Default for Closers {
    /// Without threads.
    fn default() -> Self {
        Self::new(0, Box::new(|| Err(Errno::AGAIN)))
    }
}

impl fmt::Debug for Closers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never waits: in a forked child the lock may be held for ever.
        let Ok(state) = self.state.try_lock() else { return f.write_str("Closers(busy)") };
        let State { jobs, running } = &*state;
        write!(f, "Closers({running} of {} at {} jobs)", self.most, jobs.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::mpsc::channel;
    use std::sync::{Arc, Weak};

    use super::*;

    fn closers(most: usize, starts: &Arc<AtomicBool>) -> Arc<Closers> {
        let starts = Arc::clone(starts);
        Arc::new_cyclic(|closers: &Weak<Closers>| {
            let closers = closers.clone();
            let start = move || {
                let closers = closers.upgrade().filter(|_| starts.load(Ordering::Relaxed));
                let closers = closers.ok_or(Errno::AGAIN)?;
                std::thread::spawn(move || closers.run());
                Ok(())
            };
            Closers::new(most, Box::new(start))
        })
    }

    #[test]
    fn one_that_hangs_holds_up_no_other_and_no_more_than_the_bound_run() {
        let closers = closers(2, &Arc::new(AtomicBool::new(true)));
        let (gate, shut) = channel::<()>();
        let (sender, done) = channel();
        let running = Arc::new(AtomicUsize::new(0));
        closers.push(move || assert!(shut.recv().is_err(), "its sender is dropped"));
        for number in 0..100 {
            let (sender, running) = (sender.clone(), Arc::clone(&running));
            closers.push(move || {
                assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "beside the one that hangs");
                running.fetch_sub(1, Ordering::SeqCst);
                sender.send(number).unwrap();
            });
        }
        assert!((0..100).eq(done.iter().take(100)));
        drop(gate);
    }

    #[test]
    fn what_no_thread_could_be_had_for_is_done_by_the_next() {
        let starts = Arc::new(AtomicBool::new(false));
        let closers = closers(2, &starts);
        let (sender, done) = channel();
        let job = |number| {
            let sender = sender.clone();
            move || sender.send(number).unwrap()
        };
        closers.push(job(1));
        assert!(done.try_recv().is_err());
        starts.store(true, Ordering::Relaxed);
        closers.push(job(2));
        assert!([1, 2].into_iter().eq(done.iter().take(2)));
    }

    #[test]
    fn what_is_left_at_the_end_is_done_without_a_thread() {
        let closers = closers(2, &Arc::new(AtomicBool::new(false)));
        let done = Arc::new(AtomicUsize::new(0));
        for _ in 0..3 {
            let done = Arc::clone(&done);
            closers.push(move || {
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        assert_eq!(done.load(Ordering::Relaxed), 0);
        closers.finish();
        assert_eq!(done.load(Ordering::Relaxed), 3);
        closers.finish();
        assert_eq!(closers.lock().running, 0);
    }
}
