//! Cold reads that go through the page cache, if a file system has no direct I/O or ignores it. A
//! file is in memory after its first read, so a second pass would measure memory.
//!
//! Such paths are not known beforehand, but detected by the first sample of a method whose bytes
//! are in the page cache afterwards. From then on its samples read each part of the files once,
//! like samples that request the page cache.

use std::time::Duration;

use super::Sweep;
use super::plan::Planned;
use crate::failure::Result;
use crate::report::json::Cache;
use crate::results::{Measured, Record};
use crate::stdio::say;

/// If at least this share of the bytes is in the page cache, they went through it; direct I/O
/// leaves only the edges of requests there.
const THROUGH: f64 = 0.5;

/// Whether a point must be measured with its files staying on the drive only.
pub(super) fn is_to_stay_cold(planned: &Planned) -> bool {
    let load = &planned.load;
    planned.point.cache == Some(Cache::Cold) && !load.writes() && !load.once
}

/// Whether the bytes that a sample read from files of `len` bytes are in the page cache afterwards.
#[expect(clippy::cast_precision_loss, reason = "a share")]
fn came_through(measured: &Measured, len: u64) -> bool {
    let rise = measured.page_cache.as_ref().and_then(|share| Some(share.after? - share.before?));
    let read = measured.bytes.unwrap_or(0).min(len) as f64;
    rise.is_some_and(|rise| read > 0.0 && rise * len as f64 >= THROUGH * read)
}

impl Sweep<'_> {
    /// After a sample showed the need, makes all points that read the same path by the same method
    /// read each part once; returns whether it did.
    pub(super) fn goes_once(&mut self, index: usize, measured: &Measured) -> Result<bool> {
        let planned = &self.planned[index];
        let Some(place) = self.places.get(planned.path).filter(|_| is_to_stay_cold(planned)) else {
            return Ok(false);
        };
        let files = u64::from(planned.point.files).min(place.files.len() as u64);
        if !came_through(measured, place.len * files) {
            return Ok(false);
        }
        let (path, way) = (planned.path, planned.load.way);
        let alike = |one: &&mut Planned| (one.path, one.load.way) == (path, way);
        for one in self.planned.iter_mut().filter(alike).filter(|one| is_to_stay_cold(one)) {
            (one.load.once, one.load.warm_up) = (true, Duration::ZERO);
        }
        let text = format!(
            "reads of `{1}` by `{0}` go through the page cache, so a cold sample reads each part \
             once and may end early; a larger `--size` makes it longer",
            way.name(),
            self.path(path)
        );
        say(&text);
        self.note(Record::Warning { text })?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::PageCacheShare;

    #[test]
    fn what_is_in_memory_afterwards_came_through_it() {
        let seen = |bytes: u64, before: f64, after: f64| {
            let share = PageCacheShare { before: Some(before), after: Some(after) };
            let measured =
                Measured { bytes: Some(bytes), page_cache: Some(share), ..Measured::default() };
            came_through(&measured, 1000)
        };
        assert!(seen(100, 0.0, 0.1) && seen(5000, 0.1, 1.0) && seen(10, 0.0, 0.2));
        assert!(!seen(1000, 0.0, 0.02) && !seen(5000, 0.9, 0.9) && !seen(0, 0.0, 0.0));
        let unknown = Measured { bytes: Some(10), ..Measured::default() };
        assert!(!came_through(&unknown, 1000));
    }
}
