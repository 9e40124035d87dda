//! Bytes that crossed a GPU's PCIe link, from NVML counters for all processes.
//!
//! NVML's fields 197 and 198 are cumulative. On an H200 (driver 580.159) a copy of 1 GiB to the GPU
//! raised 198 by 1.078 GiB, and back from it raised 197 by 1.094 GiB. So they count the payload
//! plus the link's headers, and are complete as soon as the copy is. They are 32 bits wide there
//! and wrap after 4 GiB, so a sampling thread also reads them during a span that may move more.

mod meter;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay::gpu::DeviceInfo;
use forebay_base::units::GIB;

use serde::Serialize;

use self::meter::{Meter, Reading};
use super::observers;
use super::seen::Seen;
use crate::nvml::{LIBRARY, LOOK, Nvml};

/// Bytes a span may move before a 32-bit counter may wrap unnoticed, headers included.
const EDGES_MAX: u64 = 3 * GIB;
/// Sampling period within a longer span: at 55 GB/s, 4 GiB last 78 ms.
const PERIOD: Duration = Duration::from_millis(20);
/// A pause after which 4 GiB may have passed unnoticed.
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// Samples after which an abandoned thread stops itself: five hours.
const SAMPLES_MAX: u64 = 900_000;
/// `NVML_FI_DEV_PCIE_COUNT_TX_BYTES` and `…_RX_BYTES`: bytes that the GPU sent and received.
const SENT: u32 = 197;
const RECEIVED: u32 = 198;

/// Bytes that crossed a GPU's PCIe link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PcieBytes {
    /// The GPU's PCI address, or its UUID.
    pub gpu: String,
    /// Bytes that the GPU received, headers included.
    pub received: u64,
    /// Bytes that the GPU sent, headers included.
    pub sent: u64,
    /// The counting method.
    pub how: How,
    /// Number of readings.
    pub samples: u64,
    /// Whether a counter may have wrapped unnoticed, so that the real count may be higher.
    pub may_have_wrapped: bool,
}

/// The counting method of [`PcieBytes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum How {
    /// Counters read only at the edges of the span.
    Edges,
    /// Counters also read within the span.
    Sampled,
}

/// A GPU's PCIe link. Any number of spans may use it concurrently.
#[derive(Debug, Clone)]
pub struct GpuLink(pub(super) Seen<Arc<Link>>);

impl GpuLink {
    /// No link, for spans without a GPU.
    pub fn none() -> Self {
        Self(Seen::Nothing("no GPU is part of it".into()))
    }

    /// Finds the link of a GPU. Loads the driver's management library, which may be slow.
    pub fn find(info: &DeviceInfo) -> Self {
        Self(Link::find(info))
    }
}

/// A GPU's link, found in NVML.
#[derive(Debug)]
pub(super) struct Link {
    nvml: Nvml,
}

impl Link {
    fn find(info: &DeviceInfo) -> Seen<Arc<Self>> {
        if info.simulated {
            return Seen::Nothing("simulated: it has no PCIe link".into());
        }
        Self::find_in(LIBRARY, info)
    }

    fn find_in(library: &str, info: &DeviceInfo) -> Seen<Arc<Self>> {
        Nvml::find(library, info)
            .and_then(|nvml| Seen::tried(read(&nvml).map(|_| Arc::new(Self { nvml })), LOOK))
    }

    /// Starts counting a span that may move `bytes`.
    pub(super) fn begin(self: &Arc<Self>, bytes: u64) -> Seen<Watch> {
        Seen::tried(read(&self.nvml), LOOK).and_then(|first| {
            let is_sampled = bytes > EDGES_MAX && first.is_narrow();
            let sampler = is_sampled.then(|| self.sample(first)).transpose().map_err(|error| {
                format!("no thread to read the GPU's counters: {error}") //
            });
            Seen::tried(sampler, "raise the limit on threads").map(|sampler| {
                let (link, begun) = (Arc::clone(self), Instant::now());
                Watch { link, first, sampler, bytes, begun }
            })
        })
    }

    /// Starts a thread that reads the counters until its sampler is stopped.
    fn sample(self: &Arc<Self>, first: Reading) -> std::io::Result<Sampler> {
        let (stop, stopped) = mpsc::channel();
        let link = Arc::clone(self);
        let work = move || link.watch(first, &stopped);
        let thread = std::thread::Builder::new().name("forebay-pcie".into()).spawn(work)?;
        Ok(Sampler { stop, thread })
    }

    /// Reads the counters until it is stopped.
    fn watch(&self, first: Reading, stopped: &mpsc::Receiver<()>) -> Meter {
        let mut meter = Meter::new(first);
        let mut last = Instant::now();
        while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
            if meter.samples >= SAMPLES_MAX {
                meter.wrapped = true;
                return meter;
            }
            meter.add(read(&self.nvml));
            if meter.failed.is_some() {
                return meter;
            }
            observers::add();
            meter.wrapped |= last.elapsed() > PAUSE_MAX;
            last = Instant::now();
        }
        meter.wrapped |= last.elapsed() > PAUSE_MAX;
        meter
    }
}

/// The current values of both counters.
fn read(nvml: &Nvml) -> Result<Reading, String> {
    let [received, sent] = nvml.fields([RECEIVED, SENT])?;
    Ok(Reading { received: received?, sent: sent? })
}

/// Whether a 32-bit counter may have wrapped between the edges of a span that may move `bytes`.
/// Other processes' bytes on the same link count too.
fn may_have_wrapped(bytes: u64, elapsed: Duration) -> bool {
    bytes > EDGES_MAX || elapsed > PAUSE_MAX
}

struct Sampler {
    stop: Sender<()>,
    thread: JoinHandle<Meter>,
}

/// A running span on a link. If it is dropped without `end`, its thread stops within a period.
pub(super) struct Watch {
    link: Arc<Link>,
    first: Reading,
    sampler: Option<Sampler>,
    bytes: u64,
    begun: Instant,
}

impl Watch {
    /// Stops counting.
    pub(super) fn end(self) -> Seen<PcieBytes> {
        let is_sampled = self.sampler.is_some();
        let mut meter = match self.sampler {
            Some(sampler) => {
                drop(sampler.stop);
                match sampler.thread.join() {
                    Ok(meter) => meter,
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            None => {
                let mut meter = Meter::new(self.first);
                meter.wrapped = may_have_wrapped(self.bytes, self.begun.elapsed());
                meter
            }
        };
        if meter.failed.is_none() {
            meter.add(read(&self.link.nvml));
        }
        if let Some(why) = meter.failed {
            return Seen::missing(why, LOOK);
        }
        Seen::Value(PcieBytes {
            gpu: self.link.nvml.name.clone(),
            received: meter.received,
            sent: meter.sent,
            how: if is_sampled { How::Sampled } else { How::Edges },
            samples: meter.samples,
            may_have_wrapped: self.first.is_narrow() && meter.wrapped,
        })
    }
}
