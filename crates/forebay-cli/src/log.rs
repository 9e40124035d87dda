//! Events of the engine, line by line on stderr, as `FOREBAY_LOG` selects.
//!
//! A small subscriber of ours: `tracing-subscriber` would bring four more crates, for spans,
//! filters and formats that this command does not need.

use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::time::{Duration, Instant};

use anstyle::{AnsiColor, Style};
use forebay::Error;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::bench::held::named;
use crate::failure::Result;
use crate::report::plain::plain;
use crate::variables::LOG;

/// The prefix of all targets of the engine.
const OURS: &str = "forebay::";

/// Starts logging, if the variable enables it.
pub(crate) fn begin() -> Result<()> {
    let Some(value) = std::env::var_os(LOG.name) else { return Ok(()) };
    let value = value.to_string_lossy().into_owned();
    let Some(most) = level(&value) else {
        let (name, expected) = (LOG.name.into(), LOG.takes.into());
        return Err(Error::BadOption { name, value, expected }.into());
    };
    if most > LevelFilter::OFF {
        // A second subscriber in the same process gets no events, which is the only possible
        // failure.
        let _ = tracing::subscriber::set_global_default(Log { most, since: Instant::now() });
    }
    Ok(())
}

/// Whether logging is on. Then no progress is shown, since lines may be printed at any time.
pub(crate) fn is_on() -> bool {
    LevelFilter::current() > LevelFilter::OFF
}

fn level(text: &str) -> Option<LevelFilter> {
    Some(match text.trim() {
        "off" => LevelFilter::OFF,
        "warn" => LevelFilter::WARN,
        "info" => LevelFilter::INFO,
        "debug" => LevelFilter::DEBUG,
        _ => return None,
    })
}

/// Writes events up to the level `most` to stderr.
struct Log {
    most: LevelFilter,
    since: Instant,
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Only events: they include everything that spans have.
        let wanted = *metadata.level() <= self.most && metadata.is_event();
        wanted && metadata.target().starts_with(OURS)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.most)
    }

    fn event(&self, event: &Event<'_>) {
        let mut said = Said::default();
        event.record(&mut said);
        let metadata = event.metadata();
        let target = metadata.target().strip_prefix(OURS).unwrap_or_default();
        let line = said.line(self.since.elapsed(), *metadata.level(), target);
        // Writes whole lines; stderr may be closed.
        let _ = anstream::stderr().write_all(line.as_bytes());
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

/// An event's message, and its other fields.
#[derive(Default)]
struct Said {
    message: String,
    fields: String,
}

impl Said {
    fn add(&mut self, field: &Field, text: &str) {
        let text = &named(text);
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{text}"),
            name if text.contains(' ') => write!(self.fields, " {name}=`{text}`"),
            name => write!(self.fields, " {name}={text}"),
        };
    }

    fn line(&self, at: Duration, level: Level, target: &str) -> String {
        let (seconds, Self { message, fields }) = (at.as_secs_f64(), self);
        let (name, style) = match level {
            Level::ERROR | Level::WARN => {
                ("warn", Style::new().bold().fg_color(Some(AnsiColor::Yellow.into())))
            }
            Level::INFO => ("info", Style::new().bold()),
            Level::DEBUG | Level::TRACE => ("debug", Style::new()),
        };
        let said = plain(&format!("{target}: {message}{fields}"));
        format!("{seconds:9.6} {style}{name:<5}{style:#} {said}\n")
    }
}

impl Visit for Said {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, &format!("{value:?}"));
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        let mut text = value.to_string();
        let mut source = value.source();
        while let Some(cause) = source {
            let _ = write!(text, ": {cause}");
            source = cause.source();
        }
        self.add(field, &text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_time_level_and_what_was_said() {
        let (message, fields) = ("file opened".to_owned(), " path=a\u{1b}[2Jb len=7".to_owned());
        let line = Said { message, fields }.line(Duration::from_millis(1500), Level::WARN, "file");
        let line = anstream::adapter::strip_str(&line).to_string();
        assert_eq!(line, " 1.500000 warn  file: file opened path=a\\u{1b}[2Jb len=7\n");
    }

    #[test]
    fn every_level_that_is_told_of_is_taken() {
        for name in ["off", "warn", "info", "debug"] {
            assert!(level(name).is_some() && LOG.takes.contains(&format!("`{name}`")), "{name}");
        }
        assert!(level("bananas").is_none() && level("").is_none());
    }
}
