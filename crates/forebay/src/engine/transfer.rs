//! The handle with which a caller waits for a transfer, cancels it or detaches from it.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use forebay_base::lock::Lock;

use super::Engine;
use crate::error::{Error, Operation, Result};
use crate::memory::Buffer;
use crate::transfer::{Completions, Ender, Outcome, RouteShare, Stages, State};

/// How long a thread polls for a small read whose bytes are in pinned memory.
const SMALL_AWAKE: Duration = Duration::from_micros(200);

/// Waits for the end of a transfer in a task of any executor. Dropping it drops the transfer.
pub(super) type TransferFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A transfer in progress. A thread waits for it by [`wait`](Self::wait) or
/// [`wait_for`](Self::wait_for), a task of any executor by `.await`; both return its memory.
///
/// Dropping it cancels what has not started, as dropping a future does; I/O in flight drains in the
/// background, and only then is the memory that it owns freed. [`detach`](Self::detach) lets it
/// continue. In Python a dropped transfer continues: its memory belongs to an object of the caller.
///
/// In a forked child it is inert: waiting fails with [`Error::Forked`], and dropping it cancels
/// nothing.
///
/// ```
/// use std::time::Duration;
///
/// use forebay::{Engine, Options};
///
/// # fn main() -> forebay::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("weights.bin");
/// # std::fs::write(&path, vec![7; 100_000]).unwrap();
/// let engine = Engine::new(Options::default())?;
/// let file = engine.open(&path)?;
/// let transfer = file.read(engine.allocate_pinned(100_000)?).start()?;
/// transfer.on_end(|| println!("done")); // on a thread of the engine
/// while transfer.wait_for(Duration::from_millis(10)).is_none() {
///     let (done, requested) = transfer.progress();
///     println!("{done} of {requested} bytes, {:?}", transfer.routes());
/// }
/// println!("{:?}", transfer.stages());
/// let (outcome, buffer) = transfer.wait();
/// assert_eq!(outcome?.bytes, 100_000);
///
/// let transfer = file.read(buffer.unwrap()).start()?;
/// transfer.cancel();
/// let (outcome, _) = transfer.wait_at_most(Duration::from_secs(5));
/// assert!(outcome.is_ok() || matches!(outcome, Err(forebay::Error::Cancelled { .. })));
/// # let transfer = file.read(engine.allocate_pinned(100_000)?).start()?;
/// # println!("{}", transfer.is_done());
/// # transfer.detach();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Transfer {
    pub(crate) state: Arc<State>,
    pub(crate) engine: Engine,
    /// Whether dropping this handle cancels the transfer.
    pub(crate) cancels: bool,
}

impl Transfer {
    pub(crate) fn new(state: Arc<State>, engine: Engine) -> Self {
        state.set_ended_by(Ender::Holder);
        Self { state, engine, cancels: true }
    }

    /// Detaches from the transfer without cancelling it. Its memory is freed when it ends, and its
    /// result is only emitted as an event.
    pub fn detach(mut self) {
        self.cancels = false;
    }

    /// Waits for the end. The transfer's buffer is returned, also after an error.
    ///
    /// # Errors
    /// The first error of the transfer; everything in flight has drained by then.
    /// [`Error::CopyNotOver`] takes precedence over any other error, and is the only one without
    /// the buffer.
    pub fn wait(self) -> (Result<Outcome>, Option<Buffer>) {
        only(self.wait_for_all())
    }

    /// Like [`wait`](Self::wait), for a transfer that owns several buffers.
    pub(crate) fn wait_for_all(&self) -> (Result<Outcome>, Vec<Buffer>) {
        let end = self.end_of_all();
        if self.engine.home().is_here() {
            self.state.wait_for_closing();
        }
        end
    }

    /// Like [`wait_for_all`](Self::wait_for_all), but does not wait until the file is closed.
    pub(super) fn end_of_all(&self) -> (Result<Outcome>, Vec<Buffer>) {
        if let Some(error) = self.forked() {
            return (Err(error), Vec::new());
        }
        self.ends_by(None);
        self.state.wait_for_all()
    }

    /// Waits for the end, at most for `bound`. After that the transfer is cancelled. Its memory
    /// stays with the engine until nothing can touch it any more, and this call never returns it:
    /// to get it back later, use [`wait_for`](Self::wait_for), [`cancel`](Self::cancel) and
    /// [`wait`](Self::wait).
    ///
    /// # Errors
    /// [`Error::TimedOut`], or the first error of the transfer.
    pub fn wait_at_most(self, bound: Duration) -> (Result<Outcome>, Option<Buffer>) {
        if self.wait_for(bound).is_none()
            && let Some(place) = self.state.place()
        {
            return (Err(Error::TimedOut { place, bound, done: self.state.done() }), None);
        }
        only(self.end_of_all()) // it may have ended after the timeout
    }

    /// Waits for the end, at most for `bound`, and does not change the transfer: `None` if it is
    /// still in progress.
    #[must_use]
    pub fn wait_for(&self, bound: Duration) -> Option<Result<Outcome>> {
        if let Some(error) = self.forked() {
            return Some(Err(error));
        }
        // Without a bound if it exceeds the clock.
        self.ends_by(Instant::now().checked_add(bound))
            .then(|| self.state.wait_for(Duration::ZERO))?
    }

    /// Runs `step` when the transfer has ended: on the thread that ends it, or on this one if it
    /// already has. Other transfers depend on that thread, so the step must not block or call a
    /// GPU's driver; waking a thread is fine. A step that drops the last handle of its engine does
    /// not wait for the engine's threads. A panic on the engine's thread is ignored. In a forked
    /// child the step never runs.
    pub fn on_end(&self, step: impl FnOnce() + Send + 'static) {
        if self.engine.home().is_here() {
            self.state.on_end(step);
            self.settle();
        }
    }

    /// Reports its end to `completions`, by this tag. In a forked child it is never reported.
    pub fn report_to(&self, completions: &Completions, tag: u64) {
        if self.engine.home().is_here() {
            self.state.report_to(completions, tag);
            self.settle();
        }
    }

    /// Whether it has ended. In a forked child this is true, and waiting returns the error.
    #[must_use]
    pub fn is_done(&self) -> bool {
        !self.engine.home().is_here() || self.settle() || self.state.is_done()
    }

    /// The result; `None` while the transfer is in progress.
    pub(crate) fn ended(&self) -> Option<Result<Outcome>> {
        self.settle();
        self.state.ended()
    }

    /// The state shared with the engine.
    pub(crate) fn state(&self) -> &Arc<State> {
        &self.state
    }

    /// Cancels it: nothing new starts, I/O in flight drains, and waiting returns
    /// [`Error::Cancelled`] unless it had already ended.
    pub fn cancel(&self) {
        self.engine.cancel(&self.state);
    }

    /// Bytes done so far, and bytes requested.
    #[must_use]
    pub fn progress(&self) -> (u64, u64) {
        let _ = self.is_done(); // this takes completions that no thread waits for
        (self.state.done(), self.state.wanted())
    }

    /// Bytes by route and reason so far. None in a forked child.
    #[must_use]
    pub fn routes(&self) -> Vec<RouteShare> {
        let is_here = self.engine.home().is_here(); // a forked child takes no lock
        if is_here { self.state.routes(u64::MAX) } else { Vec::new() }
    }

    /// Time by stage so far.
    #[must_use]
    pub fn stages(&self) -> Stages {
        self.state.stages()
    }
}

impl Transfer {
    /// Waits for the end in a task.
    pub(super) async fn until_end(&self) {
        let task: Arc<Lock<Option<Waker>>> = Arc::default();
        let woken = Arc::clone(&task);
        self.on_end(move || {
            let task = woken.lock().take();
            task.into_iter().for_each(Waker::wake);
        });
        let poll = |context: &mut Context<'_>| {
            let last = task.lock().replace(context.waker().clone());
            drop(last); // without the lock: it may run the code of an executor
            if self.is_done() { Poll::Ready(()) } else { Poll::Pending }
        };
        poll_fn(poll).await;
    }

    fn settle(&self) -> bool {
        // A forked child takes no lock.
        self.engine.home().is_here() && self.engine.settle(&self.state)
    }

    /// Waits for the end, at most until `until`; whether the transfer has ended.
    fn ends_by(&self, until: Option<Instant>) -> bool {
        loop {
            let has_ended = self.state.ends_by(until);
            let is_late = || until.is_some_and(|until| Instant::now() >= until);
            if has_ended || !self.settle() && is_late() {
                return has_ended;
            }
        }
    }

    /// The error that a forked child gets from every wait.
    fn forked(&self) -> Option<Error> {
        let home = self.engine.home();
        (!home.is_here()).then(|| Error::forked(home, Operation::Wait, self.state.place_unlocked()))
    }
}

/// The end of a transfer that owns at most one buffer.
fn only<T>((end, mut buffers): (T, Vec<Buffer>)) -> (T, Option<Buffer>) {
    (end, buffers.pop())
}

impl IntoFuture for Transfer {
    type Output = (Result<Outcome>, Option<Buffer>);
    type IntoFuture = TransferFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            self.until_end().await;
            only(self.end_of_all())
        })
    }
}

impl Engine {
    /// Ends a transfer whose end the copy thread has only marked. False if it is not marked.
    fn settle(&self, state: &Arc<State>) -> bool {
        let over = state.take_over();
        over.map(|over| self.inner.core.end(Arc::clone(state), Ok(state.record(&over)))).is_some()
    }

    /// Polls a small read for the time that its copy should take, and ends it if that is over.
    pub(super) fn watch(&self, state: &Arc<State>) {
        if state.is_in_cell() {
            state.set_ended_by(Ender::Polling);
            state.polls(Instant::now() + SMALL_AWAKE);
            state.set_ended_by(Ender::CopyThread);
            self.settle(state);
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if self.cancels && !self.is_done() {
            self.cancel();
        }
        if self.engine.home().is_here() {
            self.state.set_ended_by(Ender::CopyThread);
            self.settle();
            self.state.leave_to_thread();
        }
    }
}
