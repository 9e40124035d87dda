//! How fast layers come: over the link, from the page cache, from files by way of slots.

#![expect(unsafe_code, reason = "copies between memory of its own, to see how fast that is")]

use std::time::{Duration, Instant};

use super::homes::host;
use super::mapped::Windows;
use super::placement::LayerCost;
use super::shared::{Shared, stuck};
use super::statistics::LayerTimes;
use crate::error::{Error, Result};
use crate::gpu::{DeviceResult, Stream};

/// Bytes that are copied to see how fast the link is, or a layer's where that is less, so many
/// times: the best counts. Meanwhile no layer comes.
const PROBE_LEN: u64 = 16 << 20;
const PROBES: usize = 3;

/// No layer is brought meanwhile, whose copies would be in the way.
struct Measuring<'a>(&'a Shared);

impl<'a> Measuring<'a> {
    fn begin(shared: &'a Shared) -> Self {
        shared.lock().is_measuring = true;
        Self(shared)
    }
}

impl Drop for Measuring<'_> {
    fn drop(&mut self) {
        self.0.lock().is_measuring = false;
        if let Ok(mut turn) = self.0.submit() {
            // What goes wrong then is told to whoever takes a layer.
            let _ = self.0.pump(&mut turn);
        }
        self.0.came.notify_all();
        self.0.group.ring();
    }
}

impl Shared {
    /// Bytes per second that the link carries to the GPU; where that has no room to measure it,
    /// those that it carries from one of the stream's own buffers, whatever is in it.
    ///
    /// # Errors
    /// The GPU's, and the host's.
    pub(super) fn link_rate(&self) -> Result<f64> {
        let largest = self.units().iter().map(|unit| unit.len).max().unwrap_or(0);
        let probe_len = largest.clamp(1, PROBE_LEN);
        let memory = self.engine.allocate_pinned(probe_len)?;
        let there = host(memory.address());
        match self.engine.allocate(self.device.id(), probe_len) {
            Ok(to) => {
                let (address, len) = (to.address(), probe_len);
                self.rate_of((memory, to), len, |stream, len| {
                    // SAFETY: both are kept until the copy is over, or for ever.
                    unsafe { self.device.copy_to_device(stream, address, there, len) }
                })
            }
            Err(Error::Device { source, .. }) if source.is_want_of_memory() => {
                let store = self.store()?;
                let (address, len) = (store.buffers[0].address(), store.buffers[0].len());
                self.rate_of((memory, store), len.min(probe_len), |stream, len| {
                    // SAFETY: as above; what is copied nobody looks at.
                    unsafe { self.device.copy_to_host(stream, there, address, len) }
                })
            }
            Err(error) => Err(error),
        }
    }

    /// Bytes per second of the best of some copies of `len` bytes that `copy` queues, between what
    /// is `kept` until they are over.
    fn rate_of<T>(
        &self,
        kept: T,
        len: u64,
        copy: impl Fn(Stream, usize) -> DeviceResult<()>,
    ) -> Result<f64> {
        let stream = self.device.create_stream().map_err(|source| self.failed(len, source))?;
        let bytes = usize::try_from(len).expect("small");
        let until = Instant::now() + self.engine.options().watchdog;
        let time = || {
            let begun = self.marks.put(stream)?;
            copy(stream, bytes)?;
            let ended = self.marks.put(stream)?;
            match ended.wait_while(&mut || Instant::now() < until)? {
                true => Ok(ended.since(&begun)),
                false => Err(stuck()),
            }
        };
        let measuring = Measuring::begin(self);
        let times: DeviceResult<Vec<Duration>> = (0..PROBES).map(|_| time()).collect();
        drop(measuring);
        let _ = self.device.destroy_stream(stream);
        match times {
            Ok(times) => {
                let best = times.into_iter().min().unwrap_or(Duration::MAX);
                Ok(len as f64 / best.as_secs_f64().max(1e-9))
            }
            Err(source) => {
                std::mem::forget(kept); // a copy may be under way
                Err(self.not_over(source))
            }
        }
    }

    /// Bytes per second at which layers come from the page cache: what can be pinned where it lies
    /// crosses the link as fast as that goes, the others come by way of slots.
    pub(super) fn page_cache_rate(&self, costs: &[LayerCost], (link, slots): (f64, f64)) -> f64 {
        let (budget, is_open) = {
            let homes = self.group.homes();
            let is_open = (0..self.units().len()).map(|number| homes.maps.is_open(number));
            (homes.maps.budget, is_open.collect::<Vec<bool>>())
        };
        let (mut mapped, mut others) = (0, 0);
        let units = self.units().iter().zip(is_open).zip(costs);
        for ((unit, is_open), _) in units.filter(|(_, cost)| cost.resident) {
            let len = unit.bytes();
            let fits = is_open && mapped + len <= budget && Windows::of(unit).is_ok();
            *(if fits { &mut mapped } else { &mut others }) += len;
        }
        let time = mapped as f64 / link + others as f64 / slots;
        if time > 0.0 { (mapped + others) as f64 / time } else { slots }
    }
}

/// How fast layers came in a pass, in bytes per second; nothing where none came so.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Came {
    /// Those of which most came from drives.
    pub(super) drive: Option<f64>,
    /// Those of which most came from the page cache, by way of slots.
    pub(super) page_cache: Option<f64>,
    /// The fastest of those that were copied from where they lie.
    pub(super) copied: Option<f64>,
}

impl Came {
    /// How fast the link is, where nothing but copies from where layers lie crossed it.
    pub(super) fn alone(&self) -> Option<f64> {
        self.copied.filter(|_| self.drive.is_none() && self.page_cache.is_none())
    }

    /// Without the `ahead` bytes of a layer that may have lain in slots before its buffer was free.
    pub(super) fn of(layers: &[&LayerTimes], ahead: u64) -> Self {
        let came = layers.iter().filter(|times| times.bytes > 0).copied();
        let (copied, mut read): (Vec<_>, Vec<_>) =
            came.partition(|times| times.pinned || times.mapped);
        read.sort_by_key(|times| times.began + times.transfer);
        let is_of_drive = |times: &LayerTimes| times.drive_bytes * 2 > times.bytes;
        let copied = copied.iter().filter(|times| !times.transfer.is_zero());
        Self {
            drive: file_rate(&read, is_of_drive, ahead),
            page_cache: file_rate(&read, |times| !is_of_drive(times), ahead),
            copied: copied.map(|times| rate(times.bytes, times.transfer)).max_by(f64::total_cmp),
        }
    }
}

fn rate(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64().max(1e-9)
}

/// How fast layers of one place came, of all that came from files, in the order in which they were
/// there: from one to the next, where the compute waited for them, or each alone, without the bytes
/// that came `ahead`. Whichever is more: the other had to wait. Where neither tells anything, as of
/// small layers that come in turn with those of another place, each with all of its bytes.
fn file_rate(
    came: &[&LayerTimes],
    is_own: impl Fn(&LayerTimes) -> bool,
    ahead: u64,
) -> Option<f64> {
    let own: Vec<&LayerTimes> = came.iter().copied().filter(|times| is_own(times)).collect();
    let [first, rest @ ..] = &own[..] else { return None };
    if rest.is_empty() {
        return Some(rate(first.bytes, first.transfer));
    }
    let ready = |times: &LayerTimes| times.began + times.transfer;
    let (mut bytes, mut time) = (0, Duration::ZERO);
    for pair in came.windows(2).filter(|pair| pair.iter().all(|times| is_own(times))) {
        bytes += pair[1].bytes;
        time += ready(pair[1]).saturating_sub(ready(pair[0]));
    }
    let median = |ahead: u64| {
        let alone = |times: &&LayerTimes| rate(times.bytes.saturating_sub(ahead), times.transfer);
        let mut alone: Vec<f64> = own.iter().map(alone).collect();
        alone.sort_by(f64::total_cmp);
        alone[alone.len() / 2]
    };
    let known = rate(bytes, time).max(median(ahead));
    Some(if known > 0.0 { known } else { median(0) })
}

#[cfg(test)]
mod tests {
    use super::super::shared::From;
    use super::*;

    /// Layers of 100 MB that come in so many ms each, and could begin so many ms apart.
    fn came(milliseconds: u64, apart: u64) -> Vec<LayerTimes> {
        let made = (0..6).map(|number| {
            let mut times = LayerTimes::of((number, 0, 0), 100_000_000, From::Files);
            times.began = Duration::from_millis(number * apart);
            times.transfer = Duration::from_millis(milliseconds);
            times
        });
        made.collect()
    }

    fn came_so(times: &[LayerTimes], ahead: u64) -> Came {
        Came::of(&times.iter().collect::<Vec<_>>(), ahead)
    }

    fn rate(times: &[LayerTimes], ahead: u64) -> f64 {
        let known = came_so(times, ahead);
        assert_eq!((known.drive, known.copied), (None, None));
        known.page_cache.unwrap() / 1e9
    }

    #[test]
    fn a_drive_is_no_faster_than_layers_came() {
        // One behind the other, the last part of each out of slots.
        assert_eq!(rate(&came(40, 50), 40_000_000), 2.0);
        // Each waited for the compute, with nearly half of it in slots before.
        assert_eq!(rate(&came(20, 500), 40_000_000), 3.0);
        // Of little layers all of it was: then it is not known better.
        assert_eq!(rate(&came(20, 50), 100_000_000), 2.0);
        assert_eq!(rate(&came(50, 0)[..1], 0), 2.0);
        assert_eq!(came_so(&[], 0), Came::default());
    }

    #[test]
    fn each_place_has_a_rate_of_its_own() {
        // Every other layer is in the page cache, from which it comes ten times as fast.
        let mut layers = came(50, 100);
        for times in layers.iter_mut().step_by(2) {
            times.transfer = Duration::from_millis(5);
        }
        for times in layers.iter_mut().skip(1).step_by(2) {
            times.drive_bytes = times.bytes;
        }
        let known = came_so(&layers, 0);
        assert_eq!((known.drive, known.page_cache), (Some(2e9), Some(20e9)));
        assert_eq!(known.copied, None);
        // Of what may all have lain in slots it is not known better either.
        let known = came_so(&layers, 100_000_000);
        assert_eq!((known.drive, known.page_cache), (Some(2e9), Some(20e9)));
        // One alone in the page cache leaves the others as they came, one behind the other.
        let mut few = came(40, 50);
        few.iter_mut().skip(1).for_each(|times| times.drive_bytes = times.bytes);
        let known = came_so(&few, 100_000_000);
        assert_eq!((known.drive, known.page_cache), (Some(2e9), Some(2.5e9)));
        // What is copied from where it lies is no measure of files.
        for (from, less) in [(From::Memory, 0), (From::Pages, 1)] {
            let mut copied = LayerTimes::of((9, 0, 0), 100_000_000, from);
            copied.transfer = Duration::from_millis(4 - less);
            layers.push(copied);
        }
        let known = came_so(&layers, 0);
        assert_eq!((known.drive, known.page_cache), (Some(2e9), Some(20e9)));
        assert!((known.copied.unwrap() / 1e9 - 33.333).abs() < 1e-3, "{known:?}");
        // The link had to carry them as well.
        assert_eq!(known.alone(), None);
        assert_eq!(came_so(&layers[6..], 0).alone(), known.copied);
    }
}
