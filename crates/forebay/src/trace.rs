//! Records what an engine's threads, slots and links did and when.
//!
//! When off, a recording point costs a load. When on, threads append to their own lists. The total
//! is limited, so that a forgotten trace does not fill memory. All times are from a single clock
//! (`CLOCK_MONOTONIC`). This module knows nothing of ops or windows: `queue/spans.rs` describes
//! them as spans.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_base::lock::Lock;

use crate::plan::Reason;

/// Maximum number of spans kept, about 40 MB: enough for 100 GiB in requests of 1 MiB.
const SPANS_MAX: u64 = 1 << 19;

/// An activity with a start and an end time.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "times of `CLOCK_MONOTONIC`")]
pub struct Span {
    pub start_ns: u64,
    pub end_ns: u64,
    pub what: What,
}

/// The kind of activity; `bytes` are an offset and a length in the file.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "each variant's text names its fields")]
pub enum What {
    /// A request to the kernel, with its memory at `address`.
    Op { name: &'static str, bytes: (u64, u64), address: u64, reason: Reason, failed: bool },
    /// Planning of a window.
    Plan { bytes: (u64, u64) },
    /// A transfer made on the caller's own thread.
    Small { name: &'static str, bytes: (u64, u64) },
    /// A copy on a link, from or to memory at `address`. The span starts when the copy was queued.
    Copy { link: usize, name: &'static str, bytes: (u64, u64), address: u64 },
    /// A slot, or part of the slot at `whole`, that holds bytes from now on. Recorded with equal
    /// start and end; a separate span marks the end.
    Taken { whole: u64, address: u64, len: u64, bytes: (u64, u64) },
    /// The end of a `Taken` span.
    Given { address: u64 },
    /// A transfer, from the call to its end.
    Transfer { path: Box<Path>, bytes: (u64, u64), failed: bool },
}

/// The spans of a thread.
#[derive(Debug)]
struct Thread {
    /// The kernel's thread id.
    number: u64,
    name: String,
    /// Whether its spans overlap, like requests in a ring.
    overlaps: bool,
    spans: Lock<Vec<Span>>,
}

impl Thread {
    /// The calling thread.
    fn this(overlaps: bool) -> Self {
        let name = std::thread::current().name().unwrap_or("caller").to_owned();
        Self { number: this_thread(), name, overlaps, spans: Lock::default() }
    }
}

fn this_thread() -> u64 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs().into()
}

/// A thread's handle for recording spans.
#[derive(Debug, Default)]
pub(crate) struct Track {
    run: u64,
    thread: Option<Arc<Thread>>,
}

impl Track {
    /// Records spans of the calling thread if recording is on. `overlaps`: its spans may overlap.
    pub(crate) fn push(
        &mut self,
        recorder: &Recorder,
        overlaps: bool,
        spans: impl IntoIterator<Item = Span>,
    ) {
        let run = recorder.run.load(Ordering::Relaxed);
        if run != 0 {
            self.push_in(run, recorder, overlaps, spans);
        }
    }

    #[cold]
    fn push_in(
        &mut self,
        run: u64,
        recorder: &Recorder,
        overlaps: bool,
        spans: impl IntoIterator<Item = Span>,
    ) {
        if recorder.seen.load(Ordering::Relaxed) >= SPANS_MAX {
            recorder.seen.fetch_add(spans.into_iter().count() as u64, Ordering::Relaxed);
            return;
        }
        if self.run != run {
            let thread = Arc::new(Thread::this(overlaps));
            recorder.threads.lock().push(Arc::clone(&thread));
            (self.run, self.thread) = (run, Some(thread));
        }
        let Some(thread) = &self.thread else { return };
        recorder.append(&thread.spans, spans);
    }
}

/// Collects the spans of all threads while recording is on.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    /// The number of the recording; zero if recording is off.
    run: AtomicU64,
    runs: AtomicU64,
    start_ns: AtomicU64,
    threads: Lock<Vec<Arc<Thread>>>,
    /// Spans of no particular thread.
    others: Lock<Vec<Span>>,
    /// Small transfers, with the kernel's ids of their threads.
    small: Lock<Vec<(u64, Span)>>,
    /// Number of spans so far, including those that were dropped.
    seen: AtomicU64,
}

impl Recorder {
    /// Whether recording is on.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.run.load(Ordering::Relaxed) != 0
    }

    /// Starts a new recording at `now_ns`.
    pub(crate) fn start(&self, now_ns: u64) {
        self.take();
        self.start_ns.store(now_ns, Ordering::Relaxed);
        self.seen.store(0, Ordering::Relaxed);
        self.run.store(self.runs.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// Stops recording and returns the trace up to `now_ns`.
    pub(crate) fn end(&self, now_ns: u64) -> Trace {
        self.run.store(0, Ordering::Release);
        let mut trace = self.take();
        trace.start_ns = self.start_ns.load(Ordering::Relaxed);
        trace.end_ns = now_ns;
        trace.left_out = self.seen.load(Ordering::Relaxed).saturating_sub(SPANS_MAX);
        trace
    }

    fn take(&self) -> Trace {
        let recorded = |thread: Arc<Thread>| Recorded {
            number: thread.number,
            name: thread.name.clone(),
            overlaps: thread.overlaps,
            spans: std::mem::take(&mut *thread.spans.lock()),
        };
        let threads = std::mem::take(&mut *self.threads.lock());
        Trace {
            threads: threads.into_iter().map(recorded).collect(),
            small: std::mem::take(&mut *self.small.lock()),
            others: std::mem::take(&mut *self.others.lock()),
            ..Trace::default()
        }
    }

    /// Records spans of no particular thread.
    pub(crate) fn note(&self, spans: impl IntoIterator<Item = Span>) {
        if self.is_on() {
            self.append(&self.others, spans);
        }
    }

    /// Records a small transfer of the calling thread.
    pub(crate) fn note_small(&self, span: impl FnOnce() -> Span) {
        if self.is_on() {
            self.append(&self.small, [(this_thread(), span())]);
        }
    }

    fn append<T>(&self, list: &Lock<Vec<T>>, spans: impl IntoIterator<Item = T>) {
        let mut list = list.lock();
        for span in spans {
            if self.seen.fetch_add(1, Ordering::Relaxed) < SPANS_MAX {
                list.push(span);
            }
        }
    }
}

/// The spans of a thread.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// The kernel's thread id.
    pub number: u64,
    /// The thread's name; `caller` for a thread of a caller.
    pub name: String,
    /// Whether its spans overlap, like requests in a ring.
    pub overlaps: bool,
    /// The spans, in the order of their records.
    pub spans: Vec<Span>,
}

/// An engine's activity between [`Engine::start_trace`](crate::Engine::start_trace) and
/// [`Engine::end_trace`](crate::Engine::end_trace).
#[derive(Debug, Clone, Default)]
pub struct Trace {
    /// The start of the recording, by `CLOCK_MONOTONIC`. Spans may have begun before it.
    pub start_ns: u64,
    /// Its end.
    pub end_ns: u64,
    /// The spans by thread; a caller's thread may have several entries.
    pub threads: Vec<Recorded>,
    /// Small transfers, with the kernel's ids of the threads that made them.
    pub small: Vec<(u64, Span)>,
    /// Spans of slots and transfers.
    pub others: Vec<Span>,
    /// Number of spans dropped because of the limit.
    pub left_out: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start_ns: u64) -> Span {
        Span { start_ns, end_ns: start_ns + 1, what: What::Plan { bytes: (0, 1) } }
    }

    #[test]
    fn events_are_recorded_only_on_request() {
        let (recorder, mut track) = (Recorder::default(), Track::default());
        track.push(&recorder, false, [span(1)]);
        recorder.note([span(2)]);
        recorder.start(5);
        track.push(&recorder, false, [span(6)]);
        recorder.note([span(7)]);
        recorder.note_small(|| span(8));
        let trace = recorder.end(9);
        track.push(&recorder, false, [span(10)]);
        let [thread] = &trace.threads[..] else { panic!("{trace:?}") };
        let starts: Vec<u64> = thread.spans.iter().map(|span| span.start_ns).collect();
        assert_eq!((starts, trace.others.len(), trace.left_out), (vec![6], 1, 0));
        assert_eq!((trace.small.len(), trace.small[0].1.start_ns), (1, 8));
        recorder.start(11);
        let again = recorder.end(12);
        assert!(again.threads.is_empty() && again.others.is_empty());
    }

    #[test]
    fn a_list_has_an_end_and_says_what_is_missing() {
        let (recorder, mut track) = (Recorder::default(), Track::default());
        recorder.start(0);
        track.push(&recorder, false, (0..SPANS_MAX + 3).map(span));
        Track::default().push(&recorder, false, [span(1), span(2)]);
        let trace = recorder.end(1);
        assert_eq!(trace.threads.len(), 1);
        assert_eq!((trace.threads[0].spans.len() as u64, trace.left_out), (SPANS_MAX, 5));
    }
}
