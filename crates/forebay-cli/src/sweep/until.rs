//! Samples that run until their rate is steady: checks that they can.

use super::pace::words;
use super::plan::Planned;
use crate::args::SweepArgs;
use crate::failure::{Failure, Result};
use crate::workload::End;
use crate::workload::clock::JUDGED_MIN;

/// Refuses `--until-steady` if no span could be judged, or none could follow another.
///
/// # Errors
/// The cause says why.
pub(super) fn check(args: &SweepArgs, planned: &[Planned]) -> Result<()> {
    let Some(limit) = args.until_steady else { return Ok(()) };
    let refused = |why: String, hint: String| {
        let text = format!("`--until-steady` cannot be {}", words(limit));
        Err(Failure::usage(text).because(why).hint(hint))
    };
    let times = planned.iter().filter_map(|one| match one.load.end {
        End::Time(time) => Some(time),
        End::Bytes(_) => None,
    });
    let Some(time) = times.max() else { return Ok(()) };
    if time < JUDGED_MIN {
        let least = format!("{} ms", JUDGED_MIN.as_millis());
        return refused(
            format!("a span of {} ms is too short to be judged", time.as_millis()),
            format!("give a `--time` of {least} or more"),
        );
    }
    if limit < 2 * time {
        let time = words(time);
        return refused(
            format!("a span takes {time}, so there is no time for a second one"),
            "give twice `--time`, or more".into(),
        );
    }
    if planned.iter().all(|one| one.load.once) {
        return refused(
            "every point goes over its files once, and then ends".into(),
            "omit it, or measure `--cache resident`; cold writes and cold reads through the page \
             cache have one span"
                .into(),
        );
    }
    Ok(())
}

/// The words after the announced time.
pub(super) const fn words_at_most(args: &SweepArgs) -> &'static str {
    if args.until_steady.is_some() { " at most, less if rates are steady earlier" } else { "" }
}
