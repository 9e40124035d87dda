//! How long a sweep takes: pure.

use std::time::Duration;

/// What is known beforehand, corrected by what was seen.
#[derive(Debug, Clone)]
pub(super) struct Pace {
    /// What each sample is to take; `None` where its bytes decide.
    times: Vec<Option<Duration>>,
    /// How many there have been.
    done: usize,
    /// What they took beside their times, in all.
    beside: Duration,
    /// The same of one sample, as it was found beforehand.
    practised: Duration,
    /// What those took whose bytes decide, and how many.
    open: (Duration, u32),
}

impl Pace {
    pub(super) fn new(times: Vec<Option<Duration>>) -> Self {
        let (beside, practised) = (Duration::ZERO, Duration::ZERO);
        Self { times, done: 0, beside, practised, open: (Duration::ZERO, 0) }
    }

    /// What one sample takes beside its time, as it was tried.
    pub(super) fn beside(&mut self, time: Duration) {
        self.practised = time;
    }

    /// The next sample is done.
    pub(super) fn took(&mut self, time: Duration) {
        match self.times.get(self.done).copied().flatten() {
            Some(wanted) => self.beside += time.saturating_sub(wanted),
            None => self.open = (self.open.0 + time, self.open.1 + 1),
        }
        self.done += 1;
    }

    /// What is left; `None` where nothing tells.
    pub(super) fn left(&self) -> Option<Duration> {
        let timed = self.times[..self.done.min(self.times.len())].iter().flatten().count();
        let beside = match u32::try_from(timed) {
            Ok(0) | Err(_) => self.practised,
            Ok(count) => self.beside / count,
        };
        let open = (self.open.1 > 0).then(|| self.open.0 / self.open.1.max(1));
        let left = self.times.iter().skip(self.done);
        left.map(|time| time.map(|time| time + beside).or(open)).sum()
    }

    /// What is left, in words.
    pub(super) fn left_words(&self) -> String {
        self.left().map_or_else(|| "some time".into(), words)
    }

    /// The announcement.
    pub(super) fn words(&self) -> String {
        self.left()
            .map_or_else(|| "as long as their bytes take".into(), |t| format!("about {}", words(t)))
    }
}

/// A time as people say it.
fn words(time: Duration) -> String {
    let seconds = time.as_secs() + u64::from(time.subsec_millis() >= 500);
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn it_is_announced_with_what_samples_take_beside_their_time() {
        let mut pace = Pace::new(vec![Some(2 * SECOND); 75]);
        pace.beside(SECOND / 10);
        assert_eq!(pace.left(), Some(Duration::from_millis(157_500)));
        assert_eq!(pace.words(), "about 2 min 38 s");
        pace.took(Duration::from_millis(2300));
        assert_eq!(pace.left(), Some(74 * Duration::from_millis(2300)), "what was seen counts");
    }

    #[test]
    fn what_bytes_decide_is_learned() {
        let mut pace = Pace::new(vec![None, Some(SECOND), None]);
        assert_eq!((pace.left(), pace.words().as_str()), (None, "as long as their bytes take"));
        pace.took(5 * SECOND);
        assert_eq!(pace.left(), Some(6 * SECOND));
        assert_eq!(pace.left_words(), "6 s");
        pace.took(SECOND);
        pace.took(SECOND);
        assert_eq!(pace.left(), Some(Duration::ZERO));
    }

    #[test]
    fn times_are_said_as_people_do() {
        let all = [(59, "59 s"), (60, "1 min 0 s"), (7384, "2 h 3 min")];
        for (seconds, text) in all {
            assert_eq!(words(Duration::from_secs(seconds)), text);
        }
    }
}
