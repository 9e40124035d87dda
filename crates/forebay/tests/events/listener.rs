//! A subscriber that keeps its events, and queries engines at each event: an
//! event under the lock of one would never come to an end.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, RwLock};

use forebay::Engine;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// An event.
#[derive(Debug, Clone)]
pub(crate) struct Heard {
    pub(crate) level: Level,
    pub(crate) target: String,
    pub(crate) fields: BTreeMap<String, String>,
    /// The name of the span that it belongs to, and of that one's parent.
    pub(crate) spans: [Option<String>; 2],
}

impl Heard {
    pub(crate) fn message(&self) -> &str {
        self.get("message").unwrap_or_default()
    }

    pub(crate) fn get(&self, field: &str) -> Option<&str> {
        self.fields.get(field).map(String::as_str)
    }
}

/// A span: its name, its parent, and whether it is closed.
#[derive(Debug)]
struct Known {
    name: String,
    parent: Option<u64>,
    is_closed: bool,
}

/// See the module's own text.
#[derive(Default)]
pub(crate) struct Listener {
    reported: Mutex<Vec<Heard>>,
    spans: Mutex<BTreeMap<u64, Known>>,
    next: AtomicU64,
    /// Engines that are called at each event; none of them is dropped meanwhile.
    engines: RwLock<BTreeMap<u64, Engine>>,
}

thread_local! {
    static ENTERED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// What the subscriber of this program hears; the first call makes it.
pub(crate) fn listener() -> &'static Listener {
    static LISTENER: OnceLock<&'static Listener> = OnceLock::new();
    LISTENER.get_or_init(|| {
        let listener: &'static Listener = Box::leak(Box::default());
        tracing::subscriber::set_global_default(listener).expect("there is no other");
        listener
    })
}

impl Listener {
    /// The events so far whose `field` is `value`.
    pub(crate) fn about(&self, field: &str, value: &str) -> Vec<Heard> {
        let reported = self.reported.lock().expect("no thread panics while it holds this");
        reported.iter().filter(|event| event.get(field) == Some(value)).cloned().collect()
    }

    /// Those of them with this message.
    pub(crate) fn with(&self, message: &str) -> Vec<Heard> {
        self.about("message", message)
    }

    /// How many spans of this name are open.
    pub(crate) fn open_spans(&self, parent: &str) -> usize {
        let spans = self.spans.lock().expect("no thread panics while it holds this");
        let is_of = |known: &&Known| {
            let above = known.parent.and_then(|id| spans.get(&id));
            above.is_some_and(|above| above.name == parent) && !known.is_closed
        };
        spans.values().filter(is_of).count()
    }

    /// Calls `engine` from within each event while `step` runs.
    pub(crate) fn calling<T>(&self, engine: &Engine, step: impl FnOnce() -> T) -> T {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.engines
            .write()
            .expect("no thread panics while it holds this")
            .insert(number, engine.clone());
        let answer = step();
        self.engines.write().expect("no thread panics while it holds this").remove(&number);
        answer
    }
}

impl Subscriber for &'static Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("forebay::") || metadata.target() == "events"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let id = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let current = ENTERED.with_borrow(|entered| entered.last().copied());
        let parent = span.parent().map(Id::into_u64).or(current.filter(|_| span.is_contextual()));
        let name = span.metadata().name().to_owned();
        self.spans
            .lock()
            .expect("no thread panics while it holds this")
            .insert(id, Known { name, parent, is_closed: false });
        Id::from_u64(id)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let spans = self.spans.lock().expect("no thread panics while it holds this");
        let own = event.parent().and_then(|id| spans.get(&id.into_u64()));
        let above = own.and_then(|own| own.parent).and_then(|id| spans.get(&id));
        let spans_of = [own, above].map(|known| known.map(|known| known.name.clone()));
        drop(spans);
        let metadata = event.metadata();
        self.reported.lock().expect("no thread panics while it holds this").push(Heard {
            level: *metadata.level(),
            target: metadata.target().to_owned(),
            fields: fields.0,
            spans: spans_of,
        });
        for engine in self.engines.read().expect("no thread panics while it holds this").values() {
            let _ = (engine.statistics(), engine.notes());
        }
    }

    fn enter(&self, span: &Id) {
        ENTERED.with_borrow_mut(|entered| entered.push(span.into_u64()));
    }

    fn exit(&self, _span: &Id) {
        ENTERED.with_borrow_mut(|entered| entered.pop());
    }

    fn try_close(&self, id: Id) -> bool {
        if let Some(known) =
            self.spans.lock().expect("no thread panics while it holds this").get_mut(&id.into_u64())
        {
            known.is_closed = true;
        }
        true
    }
}

#[derive(Default)]
struct Fields(BTreeMap<String, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.0.insert(field.name().to_owned(), value.to_string());
    }
}
