//! Threads for jobs that may block for long. Closing a file waits for its server (FUSE, NFS) or, if
//! the file is unlinked, for its drive. Freeing GPU memory waits for earlier work of the driver.
//!
//! The thread that ends a transfer has other work, so it hands the last reference to files and
//! memory to these threads. Files and memory have separate threads and queues, so that a server
//! that hangs does not keep memory from being freed. A thread is started when there is a job, and
//! ends when there is none. The number of threads is small. If all threads of a kind hang, its jobs
//! wait. Once too many wait, the engine starts no further transfers ([`Closers::is_stuck`]).

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use forebay_base::lock::{Lock, MutexGuard};
use rustix::io::Errno;

/// Kinds of jobs, by the party they may wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chore {
    /// Closing files: waits for a drive or a server.
    Close,
    /// Freeing memory: waits for the driver of a GPU.
    Free,
}

impl Chore {
    pub(crate) const ALL: [Self; 2] = [Self::Close, Self::Free];
}

/// Starts a thread that calls [`Closers::run`].
type Start = Box<dyn Fn(Chore) -> Result<(), Errno> + Send + Sync>;

type Job = Box<dyn FnOnce() + Send>;

/// Maximum jobs behind a hanging job: every job holds a file or memory.
const JOBS_MAX: usize = if cfg!(miri) { 64 } else { 64 << 10 };

/// Queues and threads for jobs that may block for long.
pub(crate) struct Closers {
    /// By kind of job.
    lanes: [Lock<ChoreQueue>; Chore::ALL.len()],
    most: usize,
    start: Start,
}

struct ChoreQueue {
    jobs: VecDeque<Job>,
    /// Threads that are started or about to be.
    running: usize,
    /// Time at which a job last began or ended.
    moved: Instant,
}

impl Closers {
    /// At most `most` threads for files and as many for memory, started by `start`.
    pub(crate) fn new(most: usize, start: Start) -> Self {
        let lane =
            || Lock::new(ChoreQueue { jobs: VecDeque::new(), running: 0, moved: Instant::now() });
        Self { lanes: [lane(), lane()], most, start }
    }

    fn lock(&self, chore: Chore) -> MutexGuard<'_, ChoreQueue> {
        self.lanes[chore as usize].lock()
    }

    /// Queues `job` for a thread; with a maximum of zero threads, runs it immediately.
    pub(super) fn push(&self, chore: Chore, job: impl FnOnce() + Send + 'static) {
        if self.most == 0 {
            return job();
        }
        let mut lane = self.lock(chore);
        lane.jobs.push_back(Box::new(job));
        if lane.running == self.most {
            return;
        }
        lane.running += 1;
        drop(lane);
        if (self.start)(chore).is_err() {
            // A running thread will run the job, or the next thread that can be started.
            self.lock(chore).running -= 1;
        }
    }

    /// True if too many jobs wait, and none began or ended within `time`.
    pub(super) fn is_stuck(&self, time: Duration) -> bool {
        let is_stuck = |chore| {
            let lane = self.lock(chore);
            lane.jobs.len() >= JOBS_MAX && lane.moved.elapsed() >= time
        };
        Chore::ALL.into_iter().any(is_stuck)
    }

    /// At shutdown: runs leftover jobs inline if no thread can be started.
    pub(super) fn finish(&self) {
        for chore in Chore::ALL {
            let mut lane = self.lock(chore);
            if lane.jobs.is_empty() || lane.running > 0 {
                continue;
            }
            lane.running += 1;
            drop(lane);
            if (self.start)(chore).is_err() {
                self.run(chore);
            }
        }
    }

    /// Runs all jobs of a kind.
    ///
    /// # Panics
    /// If a job panics; a new thread replaces this thread.
    pub(crate) fn run(&self, chore: Chore) {
        loop {
            let mut lane = self.lock(chore);
            lane.moved = Instant::now();
            let Some(job) = lane.jobs.pop_front() else {
                lane.running -= 1;
                return;
            };
            drop(lane);
            if let Err(panic) = catch_unwind(AssertUnwindSafe(job)) {
                if (self.start)(chore).is_err() {
                    self.lock(chore).running -= 1;
                }
                resume_unwind(panic);
            }
        }
    }
}

impl Default for Closers {
    /// Runs all jobs inline, without threads.
    fn default() -> Self {
        Self::new(0, Box::new(|_| Err(Errno::AGAIN)))
    }
}

impl fmt::Debug for Closers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Closers")?;
        for (chore, lane) in Chore::ALL.iter().zip(&self.lanes) {
            // Never blocks: in a forked child the lock may be held forever.
            match lane.try_lock() {
                Some(lane) => {
                    let ChoreQueue { running, jobs, .. } = &*lane;
                    write!(f, " {chore:?}: {running} of {} at {} jobs", self.most, jobs.len())?;
                }
                None => write!(f, " {chore:?}: busy")?,
            }
        }
        Ok(())
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
            let start = move |chore| {
                let closers = closers.upgrade().filter(|_| starts.load(Ordering::Relaxed));
                let closers = closers.ok_or(Errno::AGAIN)?;
                std::thread::spawn(move || closers.run(chore));
                Ok(())
            };
            Closers::new(most, Box::new(start))
        })
    }

    #[test]
    fn a_hanging_job_delays_no_other_and_threads_are_bounded() {
        let closers = closers(2, &Arc::new(AtomicBool::new(true)));
        let (gate, shut) = channel::<()>();
        let (sender, done) = channel();
        let running = Arc::new(AtomicUsize::new(0));
        closers.push(Chore::Close, move || assert!(shut.recv().is_err(), "its sender is dropped"));
        for number in 0..100 {
            let (sender, running) = (sender.clone(), Arc::clone(&running));
            closers.push(Chore::Close, move || {
                assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "during the one that hangs");
                running.fetch_sub(1, Ordering::SeqCst);
                sender.send(number).unwrap();
            });
        }
        assert!((0..100).eq(done.iter().take(100)));
        drop(gate);
    }

    #[test]
    fn a_job_that_panics_leaves_its_place_to_another_thread() {
        let closers = closers(1, &Arc::new(AtomicBool::new(true)));
        let (sender, done) = channel();
        for _ in 0..3 {
            closers.push(Chore::Free, || panic!("a destructor is broken"));
        }
        closers.push(Chore::Free, move || sender.send(7).unwrap());
        // The bound only distinguishes late from never.
        assert_eq!(done.recv_timeout(Duration::from_secs(60)), Ok(7));
        while closers.lock(Chore::Free).running > 0 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn work_without_a_thread_is_done_by_the_next() {
        let starts = Arc::new(AtomicBool::new(false));
        let closers = closers(2, &starts);
        let (sender, done) = channel();
        let job = |number| {
            let sender = sender.clone();
            move || sender.send(number).unwrap()
        };
        closers.push(Chore::Close, job(1));
        assert!(done.try_recv().is_err());
        starts.store(true, Ordering::Relaxed);
        closers.push(Chore::Close, job(2));
        assert!([1, 2].into_iter().eq(done.iter().take(2)));
    }

    #[test]
    fn jobs_left_at_the_end_run_without_a_thread() {
        let closers = closers(2, &Arc::new(AtomicBool::new(false)));
        let done = Arc::new(AtomicUsize::new(0));
        for _ in 0..3 {
            let done = Arc::clone(&done);
            closers.push(Chore::Close, move || {
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        assert_eq!(done.load(Ordering::Relaxed), 0);
        closers.finish();
        assert_eq!(done.load(Ordering::Relaxed), 3);
        closers.finish();
        assert_eq!(closers.lock(Chore::Close).running, 0);
    }

    #[test]
    fn memory_is_freed_during_closes_that_all_hang() {
        let closers = closers(2, &Arc::new(AtomicBool::new(true)));
        let (gate, shut) = channel::<()>();
        let shut = Arc::new(Lock::new(shut));
        for _ in 0..4 {
            let shut = Arc::clone(&shut);
            closers.push(Chore::Close, move || assert!(shut.lock().recv().is_err()));
        }
        let (sender, done) = channel();
        for number in 0..100 {
            let sender = sender.clone();
            closers.push(Chore::Free, move || sender.send(number).unwrap());
        }
        // The bound only distinguishes late from never.
        let next = |_| done.recv_timeout(Duration::from_secs(60)).expect("memory is freed");
        let mut freed: Vec<i32> = (0..100).map(next).collect();
        freed.sort_unstable();
        assert!((0..100).eq(freed));
        drop(gate);
    }

    #[test]
    fn jobs_behind_a_hanging_one_are_bounded() {
        let closers = closers(1, &Arc::new(AtomicBool::new(true)));
        let (gate, shut) = channel::<()>();
        let (begins, began) = channel();
        closers.push(Chore::Free, move || {
            begins.send(()).unwrap();
            assert!(shut.recv().is_err(), "its sender is dropped");
        });
        began.recv().unwrap();
        (1..JOBS_MAX).for_each(|_| closers.push(Chore::Free, || ()));
        assert!(!closers.is_stuck(Duration::ZERO), "one more has room");
        closers.push(Chore::Free, || ());
        assert!(!closers.is_stuck(Duration::from_secs(3600)), "it may only be slow");
        assert!(closers.is_stuck(Duration::ZERO));
        drop(gate);
        while closers.lock(Chore::Free).running > 0 {
            std::thread::yield_now();
        }
        assert!(!closers.is_stuck(Duration::ZERO));
    }
}
