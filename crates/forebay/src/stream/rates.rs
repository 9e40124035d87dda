//! How fast layers come: over the link, from the page cache, from files by way of slots.

#![expect(unsafe_code, reason = "copies between memory of its own, to see how fast that is")]

use std::time::{Duration, Instant};

use super::homes::host;
use super::layer::Unit;
use super::mapped::Windows;
use super::placement::LayerCost;
use super::shared::{Shared, stuck};
use super::statistics::LayerTimes;
use crate::error::{Error, Result};
use crate::gpu::{DeviceResult, Stream};

/// Bytes that are copied to see how fast the link is, so many times: the best counts.
const PROBE_LEN: u64 = 16 << 20;
const PROBES: usize = 3;

impl Shared {
    /// Bytes per second that the link carries to the GPU; where that has no room to measure it,
    /// those that it carries from one of the stream's own buffers, whatever is in it.
    ///
    /// # Errors
    /// The GPU's, and the host's.
    pub(super) fn link_rate(&self) -> Result<f64> {
        let memory = self.engine.allocate_pinned(PROBE_LEN)?;
        let there = host(memory.address());
        match self.engine.allocate(self.device.id(), PROBE_LEN) {
            Ok(to) => {
                let (address, len) = (to.address(), PROBE_LEN);
                self.rate_of((memory, to), len, |stream, len| {
                    // SAFETY: both are kept until the copy is over, or for ever.
                    unsafe { self.device.copy_to_device(stream, address, there, len) }
                })
            }
            Err(Error::Device { source, .. }) if source.is_want_of_memory() => {
                let store = self.store()?;
                let (address, len) = (store.buffers[0].address(), store.buffers[0].len());
                self.rate_of((memory, store), len.min(PROBE_LEN), |stream, len| {
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
        let times: DeviceResult<Vec<Duration>> = (0..PROBES).map(|_| time()).collect();
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
        let is_resident = |unit: &Unit| costs.get(unit.layer).is_some_and(|cost| cost.resident);
        let units = self.units().iter().zip(is_open);
        for (unit, is_open) in units.filter(|(unit, _)| is_resident(unit)) {
            let len = unit.bytes();
            let fits = is_open && mapped + len <= budget && Windows::of(unit).is_ok();
            *(if fits { &mut mapped } else { &mut others }) += len;
        }
        let time = mapped as f64 / link + others as f64 / slots;
        if time > 0.0 { (mapped + others) as f64 / time } else { slots }
    }
}

/// How fast layers come from files, by those that came in a pass: from one to the next, where the
/// compute waited for them, or each alone, without the `ahead` bytes that may have lain in slots
/// before its buffer was free. Whichever is more: the other had to wait.
pub(super) fn file_rate(layers: &[&LayerTimes], ahead: u64) -> f64 {
    let from_file = |times: &&&LayerTimes| times.bytes > 0 && !times.pinned;
    let mut came: Vec<&LayerTimes> = layers.iter().filter(from_file).copied().collect();
    came.sort_by_key(|times| times.began + times.transfer);
    let rate = |bytes: u64, time: Duration| bytes as f64 / time.as_secs_f64().max(1e-9);
    let [first, rest @ ..] = &came[..] else { return 0.0 };
    let Some(last) = rest.last() else { return rate(first.bytes, first.transfer) };
    let ready = |times: &LayerTimes| times.began + times.transfer;
    let bytes = rest.iter().map(|times| times.bytes).sum();
    let in_turn = rate(bytes, ready(last).saturating_sub(ready(first)));
    let alone = |times: &&LayerTimes| rate(times.bytes.saturating_sub(ahead), times.transfer);
    let mut alone: Vec<f64> = came.iter().map(alone).collect();
    alone.sort_by(f64::total_cmp);
    in_turn.max(alone[alone.len() / 2])
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

    fn rate(times: &[LayerTimes], ahead: u64) -> f64 {
        file_rate(&times.iter().collect::<Vec<_>>(), ahead) / 1e9
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
        let pinned = LayerTimes::of((0, 0, 0), 5, From::Memory);
        assert_eq!(rate(&[pinned], 0), 0.0);
    }
}
