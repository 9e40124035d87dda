//! What an engine's threads, slots and links did, and when: recorded while somebody asks for it,
//! and written as a trace that `ui.perfetto.dev` opens.
//!
//! Off, each place where something could be recorded costs one load. On, a thread appends to a list
//! of its own; there is an end to what all of them keep, so that a trace that is forgotten fills no
//! memory. All times are of one clock (`CLOCK_MONOTONIC`). Nothing here knows of ops or windows:
//! `queue/spans.rs` describes them as spans.

pub(crate) mod json;
mod lanes;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::lock::Lock;
use crate::plan::Reason;

/// Spans at most, some 40 MB of them: enough for 100 GiB in requests of 1 MiB.
const SPANS_MAX: u64 = 1 << 19;

/// Something that took time.
#[derive(Debug, Clone)]
pub(crate) struct Span {
    pub(crate) start_ns: u64,
    pub(crate) end_ns: u64,
    pub(crate) what: What,
}

/// What it was; offsets and lengths are the file's.
#[derive(Debug, Clone)]
pub(crate) enum What {
    /// A request to the kernel, into or out of memory at `address`.
    Op { name: &'static str, bytes: (u64, u64), address: u64, reason: Reason, failed: bool },
    /// The plan of a window.
    Plan { bytes: (u64, u64) },
    /// A transfer on its caller's own thread.
    Small { name: &'static str, bytes: (u64, u64) },
    /// A copy by a link, from or to memory at `address`. It was queued when the span begins.
    Copy { link: usize, name: &'static str, bytes: (u64, u64), address: u64 },
    /// A slot, or a part of the one at `whole`, while it holds bytes. Recorded with its beginning
    /// for an end; the end is a span of its own.
    Taken { whole: u64, address: u64, len: u64, bytes: (u64, u64) },
    /// The end of that.
    Given { address: u64 },
    /// A transfer, from the call to its end.
    Transfer { path: Box<Path>, bytes: (u64, u64), failed: bool },
}

/// The spans of one thread.
#[derive(Debug)]
struct Thread {
    /// Its number, as the kernel has it.
    number: u64,
    name: String,
    /// Whether several of its spans run at once, as requests in a ring do.
    overlaps: bool,
    spans: Lock<Vec<Span>>,
}

impl Thread {
    /// The calling one.
    fn this(overlaps: bool) -> Self {
        let name = std::thread::current().name().unwrap_or("caller").to_owned();
        Self { number: this_thread(), name, overlaps, spans: Lock::default() }
    }
}

fn this_thread() -> u64 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs().into()
}

/// Where a thread's spans go; each thread has its own.
#[derive(Debug, Default)]
pub(crate) struct Track {
    run: u64,
    thread: Option<Arc<Thread>>,
}

impl Track {
    /// Records spans of the calling thread, where that is wanted; `overlaps`: several of them run
    /// at once.
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

/// See the module's own text.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    /// The number of the recording; zero: nothing is recorded.
    run: AtomicU64,
    runs: AtomicU64,
    start_ns: AtomicU64,
    threads: Lock<Vec<Arc<Thread>>>,
    /// What belongs to no thread, and small transfers.
    others: Lock<Vec<Span>>,
    small: Lock<Vec<(u64, Span)>>,
    /// Spans that there were, those that there was no room for as well.
    seen: AtomicU64,
}

impl Recorder {
    /// Whether anything is to be recorded.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.run.load(Ordering::Relaxed) != 0
    }

    /// Begins anew at `now_ns`.
    pub(crate) fn start(&self, now_ns: u64) {
        self.take();
        self.start_ns.store(now_ns, Ordering::Relaxed);
        self.seen.store(0, Ordering::Relaxed);
        self.run.store(self.runs.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// Ends, and hands over what was recorded up to `now_ns`.
    pub(crate) fn end(&self, now_ns: u64) -> Trace {
        self.run.store(0, Ordering::Release);
        let mut trace = self.take();
        trace.start_ns = self.start_ns.load(Ordering::Relaxed);
        trace.end_ns = now_ns;
        trace.left_out = self.seen.load(Ordering::Relaxed).saturating_sub(SPANS_MAX);
        trace
    }

    fn take(&self) -> Trace {
        let threads = std::mem::take(&mut *self.threads.lock());
        let mut tracks: Vec<Recorded> = Vec::new();
        for thread in threads {
            let spans = std::mem::take(&mut *thread.spans.lock());
            let same = |other: &&mut Recorded| other.number == thread.number;
            match tracks.iter_mut().find(same) {
                Some(known) => known.spans.extend(spans),
                None => tracks.push(Recorded {
                    number: thread.number,
                    name: thread.name.clone(),
                    overlaps: thread.overlaps,
                    spans,
                }),
            }
        }
        for (number, span) in std::mem::take(&mut *self.small.lock()) {
            match tracks.iter_mut().find(|track| track.number == number) {
                Some(known) => known.spans.push(span),
                None => {
                    let name = "caller".to_owned();
                    tracks.push(Recorded { number, name, overlaps: false, spans: vec![span] });
                }
            }
        }
        let others = std::mem::take(&mut *self.others.lock());
        Trace { threads: tracks, others, ..Trace::default() }
    }

    /// Records what belongs to no thread.
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

/// What one thread did.
#[derive(Debug, Clone)]
struct Recorded {
    number: u64,
    name: String,
    overlaps: bool,
    spans: Vec<Span>,
}

/// What an engine did between [`Engine::start_trace`](crate::Engine::start_trace) and
/// [`Engine::end_trace`](crate::Engine::end_trace).
#[derive(Debug, Clone, Default)]
pub struct Trace {
    start_ns: u64,
    end_ns: u64,
    threads: Vec<Recorded>,
    others: Vec<Span>,
    left_out: u64,
}

impl Trace {
    /// Writes it as trace events in JSON, which `ui.perfetto.dev` and `chrome://tracing` open: a
    /// track for each thread, slot and link, with arrows from what filled a slot to the copy that
    /// took it away, and one for each request that a ring had in flight at once.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_json(&self, out: &mut dyn std::io::Write) -> std::io::Result<()> {
        json::write(self, out)
    }

    /// How much is missing, because more was done than is kept.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start_ns: u64) -> Span {
        Span { start_ns, end_ns: start_ns + 1, what: What::Plan { bytes: (0, 1) } }
    }

    #[test]
    fn nothing_is_recorded_unless_asked_for() {
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
        assert_eq!((starts, trace.others.len(), trace.left_out), (vec![6, 8], 1, 0));
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
        assert_eq!((trace.threads[0].spans.len() as u64, trace.left_out()), (SPANS_MAX, 5));
    }
}
