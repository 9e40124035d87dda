//! Sizes of cold reads that are over sooner by way of slots than straight from the drive.
//!
//! Of each drive, GPU and size (to the next power of two) a race is kept of how long reads took by
//! either way, by those that were alone: beside others the rate counts, which the queues of both
//! ways find. A read that fits a slot is one copy there, so above that nothing is compared.
//! Neighbours: `peers` asks for the way, the transfer tells its end.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use super::Engine;
use super::start::Call;
use crate::gpu::DeviceId;
use crate::lock::Lock;
use crate::plan::Route;
use crate::transfer::Outcome;
use crate::tune::{Race, Way};
use crate::units::format_size;

/// The races of an engine: of a drive's queue and a GPU one for each size.
#[derive(Debug, Default)]
pub(super) struct Sizes(Lock<HashMap<(usize, DeviceId), Vec<Size>>>);

/// Reads of one size.
#[derive(Debug, Default)]
struct Size {
    race: Race,
    /// What is said of those that go through slots since these lead, and of tries.
    led: Option<Arc<str>>,
    tried: Option<Arc<str>>,
}

/// A read that takes part.
#[derive(Debug)]
pub(crate) struct Entrant {
    sizes: Arc<Sizes>,
    of: (usize, DeviceId),
    len: u64,
    way: Way,
    started: Instant,
}

/// The number of a size.
const fn number(len: u64) -> usize {
    len.next_power_of_two().trailing_zeros() as usize
}

impl Sizes {
    fn with<T>(&self, of: (usize, DeviceId), len: u64, step: impl FnOnce(&mut Size) -> T) -> T {
        let mut races = self.0.lock();
        let sizes = races.entry(of).or_default();
        let number = number(len);
        if sizes.len() <= number {
            sizes.resize_with(number + 1, Size::default);
        }
        step(&mut sizes[number])
    }
}

impl Size {
    /// The way of the next read; through slots, why.
    fn next(&mut self, len: u64) -> (Way, Option<Arc<str>>) {
        let leader = self.race.leader();
        let way = self.race.next();
        let most = || format_size(len.next_power_of_two());
        let why = match (way, leader) {
            (Way::Straight, _) => return (way, None),
            (Way::Slots, Way::Slots) => self.led.get_or_insert_with(|| {
                let most = most();
                format!("transfers of up to {most} are over sooner by way of slots here").into()
            }),
            (Way::Slots, Way::Straight) => self.tried.get_or_insert_with(|| {
                let most = most();
                format!("now and then slots are tried for a transfer of up to {most}").into()
            }),
        };
        (way, Some(Arc::clone(why)))
    }
}

impl Engine {
    /// A read of which all could go straight, and why it is to go through slots all the same; none
    /// where its size is not compared.
    pub(super) fn enter(&self, call: &Call<'_>, len: u64) -> Option<(Entrant, Option<Arc<str>>)> {
        let gpu = call.span.gpu.as_ref()?.id();
        let fits = len > 0 && len <= self.options().slot_size;
        // Through the page cache it would be resident from then on.
        let can_differ = fits && call.file.direct().is_ok();
        if !can_differ || !self.inner.core.lock().is_idle() {
            return None;
        }
        let of = (self.drive(call.file, true).ok()?, gpu);
        let sizes = Arc::clone(&self.inner.sizes);
        let (way, why) = sizes.with(of, len, |size| size.next(len));
        Some((Entrant { sizes, of, len, way, started: Instant::now() }, why))
    }
}

impl Entrant {
    /// It starts now: what was done before, once for its memory, does not count.
    pub(super) fn start(self) -> Self {
        Self { started: Instant::now(), ..self }
    }

    /// Its transfer has ended so. What went another way than it was to, or less far, tells nothing.
    pub(crate) fn ended(&self, outcome: &Outcome) {
        let route = match self.way {
            Way::Straight => Route::Direct,
            Way::Slots => Route::Staged,
        };
        let as_meant = outcome.routes.iter().all(|share| share.route == route);
        if as_meant && outcome.bytes == self.len {
            let ns = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.sizes.with(self.of, self.len, |size| size.race.took(self.way, ns));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::gpu::DeviceKind;

    proptest! {
        #[test]
        fn a_size_reaches_up_to_a_power_of_two(len in 1..=1_u64 << 40) {
            let most = 1_u64 << number(len);
            prop_assert!(len <= most && (most == 1 || most < 2 * len));
        }
    }

    #[test]
    fn drives_gpus_and_sizes_race_each_for_itself() {
        let gpu = |index| DeviceId { kind: DeviceKind::Sim, index };
        let sizes = Sizes::default();
        let of = (3, gpu(0));
        for _ in 0..40 {
            let way = sizes.with(of, 65536, |size| size.next(65536).0);
            let ns = if way == Way::Slots { 100 } else { 1000 };
            sizes.with(of, 65536, |size| size.race.took(way, ns));
        }
        let said = |of, len| sizes.with(of, len, |size| size.next(len).1);
        let why = said(of, 40_000).expect("slots lead");
        assert_eq!(&*why, "transfers of up to 64 KiB are over sooner by way of slots here");
        let again = said(of, 65_536).expect("slots lead");
        assert!(Arc::ptr_eq(&why, &again), "it is made once");
        for (of, len) in [(of, 65_537), (of, 32_768), ((3, gpu(1)), 65_536), ((4, gpu(0)), 65_536)]
        {
            assert_eq!(said(of, len), None, "{of:?}, {len}");
        }
    }
}
