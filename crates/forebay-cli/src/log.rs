//! Events of the engine, line by line on stderr, as `FOREBAY_LOG` selects.

use std::io::{self, Write};

use forebay::Error;
use forebay_measure::failure::Result;
use forebay_measure::held::named;
use forebay_measure::plain::plain;
use forebay_measure::variables::{LOG, LOG_TAKES};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::time::uptime;
use tracing_subscriber::layer::SubscriberExt as _;

/// The prefix of all targets of the engine.
const OURS: &str = "forebay::";

/// Starts logging, if the variable enables it.
pub(crate) fn begin() -> Result<()> {
    let Some(value) = std::env::var_os(LOG) else { return Ok(()) };
    let value = value.to_string_lossy().into_owned();
    let Some(most) = level(&value) else {
        let (name, expected) = (LOG.into(), LOG_TAKES.into());
        return Err(Error::BadOption { name, value, expected }.into());
    };
    if most > LevelFilter::OFF {
        // Events include everything that spans have.
        let ours = filter_fn(|it| it.is_event() && it.target().starts_with(OURS));
        let lines = tracing_subscriber::fmt().with_max_level(most).with_timer(uptime());
        let lines = lines.with_ansi(false).with_writer(|| Lines).finish();
        // A second subscriber in the same process gets no events, which is the only possible
        // failure.
        let log = lines.with(ours.with_max_level_hint(most));
        let _ = tracing::subscriber::set_global_default(log);
    }
    Ok(())
}

/// Whether logging is on. Then no progress is shown, since lines may be printed at any time.
pub(crate) fn is_on() -> bool {
    LevelFilter::current() > LevelFilter::OFF
}

fn level(text: &str) -> Option<LevelFilter> {
    let levels = ["off", "warn", "info", "debug"];
    levels.contains(&text.trim()).then(|| text.trim().parse().ok()).flatten()
}

/// Stderr, which gets a whole line at a time. Text from elsewhere is escaped, and descriptors have
/// the names of their files.
struct Lines;

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = named(String::from_utf8_lossy(line).trim_end_matches('\n'));
        // Stderr may be closed.
        let _ = io::stderr().write_all(format!("{}\n", plain(&text)).as_bytes());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_documented_level_is_accepted() {
        for name in ["off", "warn", "info", "debug"] {
            assert!(level(name).is_some() && LOG_TAKES.contains(&format!("`{name}`")), "{name}");
        }
        assert!(level("bananas").is_none() && level("").is_none());
    }
}
