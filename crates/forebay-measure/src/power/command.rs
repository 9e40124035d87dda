//! The power that a command of the user's prints, such as one that queries a server's meter.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::result::Part;
use super::track::{About, Reading};
use super::{Sensor, watts};
use crate::failure::{Failure, Result};
use crate::shell::{self, Rest, shortened};

/// How often it runs.
pub(super) const PERIOD: Duration = Duration::from_secs(1);
/// Time limit of one run.
const LIMIT: Duration = Duration::from_secs(2);
/// More than any server or rack consumes.
const WATTS_MAX: f64 = 1e6;

/// Runs `line` once to check that it prints a power; `stop` ends later runs.
///
/// # Errors
/// It prints no power.
pub(super) fn sensor(line: &str, stop: &Arc<AtomicBool>) -> Result<Sensor> {
    let (owned, stop) = (line.to_owned(), Arc::clone(stop));
    let read = move || {
        let text = shell::run(&owned, LIMIT, &stop, Rest::Killed)?;
        watts(parse(&text)?, WATTS_MAX)
    };
    read().map_err(|why| {
        Failure::new(format!("cannot measure power by `{}`", shortened(line)))
            .because(why)
            .hint("the command must print only the watts, such as `123.4`, within 2 s")
    })?;
    let about = About {
        name: "server".into(),
        part: Part::Server,
        how: format!("the command `{}`", shortened(line)),
        is_counter: false,
        rough: 5 * PERIOD,
        // One run may itself take long.
        reach: 3 * PERIOD / 2 + LIMIT,
    };
    Ok(Sensor { about, read: Box::new(move || Reading { value: read(), throttle: 0 }) })
}

/// A power in watts: one number, with an optional unit.
fn parse(text: &str) -> Result<f64, String> {
    let text = text.trim();
    let none = || format!("its output is not a power: `{}`", shortened(text));
    let end =
        text.find(|c: char| !c.is_ascii_digit() && !".+-eE".contains(c)).unwrap_or(text.len());
    let number: f64 = text[..end].parse().map_err(|_| none())?;
    let unit = match text[end..].trim() {
        "" | "W" | "w" | "watt" | "watts" | "Watt" | "Watts" => 1.0,
        "mW" => 1e-3,
        "kW" => 1e3,
        _ => return Err(none()),
    };
    Ok(number * unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_power_is_one_number_with_or_without_its_unit() {
        for (text, watts) in [
            ("123", 123.0),
            (" 123 W\n", 123.0),
            ("98.5watts", 98.5),
            ("1.2 kW", 1200.0),
            ("250000 mW", 250.0),
            ("1e2", 100.0),
        ] {
            assert_eq!(parse(text), Ok(watts), "{text}");
        }
        for text in ["", "W", "many", "12 34", "12 V", "12\n13", "0x10", "nan", "inf", "1,5", "é"]
        {
            assert!(parse(text).unwrap_err().starts_with("its output is not a power: `"), "{text}");
        }
    }

    #[test]
    fn a_command_without_a_plausible_power_is_refused() {
        for (line, cause) in [
            ("echo 1e308", "W is not plausible"),
            ("echo -5", "-5 W is not plausible"),
            ("echo power", "not a power: `power`"),
            ("echo no meter >&2; exit 3", "it failed: no meter"),
        ] {
            // On a busy machine a shell may take longer than its limit.
            let failures = (0..20).filter_map(|_| sensor(line, &Arc::default()).err());
            let mut failures = failures.skip_while(|f| f.causes[0].starts_with("it takes more"));
            let failure = failures.next().unwrap();
            assert!(failure.message.starts_with("cannot measure power by `"), "{failure:?}");
            assert!(failure.causes[0].contains(cause), "{failure:?}");
            assert!(failure.hint.unwrap().contains("print only the watts"));
        }
    }

    proptest! {
        #[test]
        fn every_accepted_power_is_plausible(text in "\\PC{0,40}|-?[0-9]{1,9}(e[0-9]{1,3})?m?W?") {
            if let Ok(found) = parse(&text).and_then(|number| watts(number, WATTS_MAX)) {
                prop_assert!(found > 0.0 && found <= WATTS_MAX);
            }
        }
    }
}
