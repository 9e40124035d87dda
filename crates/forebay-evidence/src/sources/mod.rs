//! Finds the counters for a span of work, and reads them at the edges of the span.
//!
//! Devices, mounts, ports and the GPU in NVML are found once, before the span. An edge then only
//! reads: every counter once, the most precise closest to the work.

use std::fmt;
use std::time::{Duration, Instant};

use forebay::{Engine, File};
use forebay_base::counts::{Counts as _, all_since};
use forebay_base::units::grown;
use forebay_cufile::Counters;
use forebay_topology::{DriveKind, RdmaPort, Resolver, StorageMap, System};
use rustix::time::ClockId;

use super::cufile::cufile_counters;
use super::dram;
use super::drives::{self, Device, DriveBytes};
use super::evidence::{Evidence, Storage};
use super::nfs::{self, NfsMount};
use super::nvidia_fs::NvidiaFs;
use super::pages::Pages;
use super::pcie::{GpuLink, Watch};
use super::process::{ProcessBytes, processor_time};
use super::rdma::{self, PortBytes};
use super::seen::Seen;

type QueryCufile = Box<dyn Fn() -> Seen<Counters> + Send + Sync>;

/// The counters to read around spans of the same work.
#[derive(Default)]
pub struct Sources {
    system: System,
    storage: Option<Storage>,
    files: Vec<(File, u64, u64)>,
    bytes: u64,
    encoded: u64,
    block: u64,
    devices: Vec<(Device, bool)>,
    points: Vec<String>,
    ports: Vec<RdmaPort>,
    domains: Vec<String>,
    gpus: Vec<GpuLink>,
    cufile: Option<QueryCufile>,
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources").field("files", &self.files.len()).finish_non_exhaustive()
    }
}

impl Sources {
    /// The counters of `system` that need no file and no GPU.
    pub fn new(system: &System) -> Self {
        Self {
            system: system.clone(),
            ports: system.rdma_ports().unwrap_or_default(),
            domains: dram::domains(system),
            ..Self::default()
        }
    }

    /// Adds the counters of a range of a file: its pages, and the devices that `map` finds below
    /// it.
    pub fn file(mut self, file: &File, offset: u64, len: u64, map: &StorageMap) -> Self {
        let mut found = Vec::new();
        drives::devices(map, &mut found);
        nfs::points(map, &mut self.points);
        let below = storage(map, &found);
        self.storage = Some(match self.storage {
            None => below,
            Some(known) if known == below => known,
            // Reads from memory fetch nothing, so the process's counter is right for both.
            Some(Storage::Block) if below == Storage::Memory => Storage::Block,
            Some(Storage::Memory) if below == Storage::Block => Storage::Block,
            Some(_) => Storage::Other,
        });
        for device in found {
            if self.devices.iter().all(|(known, _)| *known != device) {
                let silent = device.counts_nothing(&self.system);
                self.devices.push((device, silent));
            }
        }
        self.bytes = self.bytes.saturating_add(len);
        // New writes during the span are unknown; bytes stored before it do not change.
        let range = offset..offset.saturating_add(len);
        let stored = Resolver::new(self.system.clone()).stored(file.path(), range);
        let stored = stored.unwrap_or_default();
        self.encoded = self.encoded.saturating_add(stored.compressed + stored.encrypted);
        self.block = self.block.max(file.direct_block().unwrap_or_default());
        self.files.push((file.clone(), offset, len));
        self
    }

    /// Adds the counters of a GPU. Several GPUs get separate [`Evidence`].
    pub fn gpu(mut self, link: &GpuLink) -> Self {
        self.gpus.push(link.clone());
        self
    }

    /// Adds cuFile's counters, read by `query`.
    pub fn cufile(mut self, query: impl Fn() -> Seen<Counters> + Send + Sync + 'static) -> Self {
        self.cufile = Some(Box::new(query));
        self
    }

    /// Adds the counters of `engine`'s cuFile session, if any.
    pub fn engine(self, engine: &Engine) -> Self {
        let engine = engine.clone();
        self.cufile(move || match engine.cufile() {
            Some(session) => cufile_counters(&session),
            None => Seen::Nothing("the engine uses no cuFile".into()),
        })
    }

    /// Reads all counters; the work should begin when this returns.
    pub fn begin(&self) -> Span<'_> {
        let start = Instant::now();
        let outer = Outer::read(self);
        let none = [GpuLink::none()];
        let links = if self.gpus.is_empty() { &none[..] } else { &self.gpus };
        let gpus = links.iter().map(|link| link.0.clone().and_then(|link| link.begin(self.bytes)));
        let gpus = gpus.collect();
        let inner = Inner::read(self);
        Span { sources: self, outer, inner, gpus, read_in: start.elapsed(), begun: Instant::now() }
    }
}

/// Classifies the storage below a file.
fn storage(map: &StorageMap, devices: &[Device]) -> Storage {
    let mut points = Vec::new();
    nfs::points(map, &mut points);
    let mut kinds = map.drives.iter().map(|drive| drive.kind);
    if devices.iter().any(Device::is_front) {
        Storage::Block
    } else if !points.is_empty() {
        Storage::Nfs
    } else if !map.drives.is_empty() && kinds.all(|kind| kind == DriveKind::Memory) {
        Storage::Memory
    } else {
        Storage::Other
    }
}

/// Counters that are slower to read and that only other work changes in between.
struct Outer {
    nvidia_fs: Seen<NvidiaFs>,
    nfs: Seen<Vec<NfsMount>>,
    vast: Seen<String>,
    rdma: Seen<Vec<PortBytes>>,
    dram: Seen<u64>,
    pages: Seen<Pages>,
}

impl Outer {
    fn read(sources: &Sources) -> Self {
        let system = &sources.system;
        Self {
            nvidia_fs: NvidiaFs::look(system),
            nfs: nfs::look(system, &sources.points),
            vast: nfs::vast(system),
            rdma: rdma::look(system, &sources.ports),
            dram: dram::look(system, &sources.domains),
            pages: Pages::look(&sources.files, sources.bytes),
        }
    }
}

/// Counters read last before the work and first after it.
struct Inner {
    drives: Vec<Seen<DriveBytes>>,
    cufile: Seen<Counters>,
    process: Seen<ProcessBytes>,
    processor: Duration,
}

impl Inner {
    fn read(sources: &Sources) -> Self {
        let system = &sources.system;
        let drive = |(device, silent): &(Device, bool)| {
            if *silent { device.silent() } else { device.read(system) }
        };
        let absent = || Seen::Nothing("cuFile is no part of it".into());
        Self {
            drives: sources.devices.iter().map(drive).collect(),
            cufile: sources.cufile.as_ref().map_or_else(absent, |query| query()),
            process: ProcessBytes::look(system),
            processor: processor_time(ClockId::ProcessCPUTime),
        }
    }
}

/// A running span of work.
#[must_use = "a span has a result only when it is ended"]
pub struct Span<'a> {
    sources: &'a Sources,
    outer: Outer,
    inner: Inner,
    /// Never empty.
    gpus: Vec<Seen<Watch>>,
    read_in: Duration,
    begun: Instant,
}

impl fmt::Debug for Span<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Span").field("sources", &self.sources).finish_non_exhaustive()
    }
}

impl Span<'_> {
    /// Reads all counters again and returns the differences, with the first GPU's link.
    pub fn end(self) -> Evidence {
        self.end_each().swap_remove(0)
    }

    /// Like [`end`](Self::end), but returns evidence per GPU, in their order. Links are the GPUs'
    /// own; all other counts are for all GPUs together, and [`Evidence::of_part`] divides them.
    pub fn end_each(self) -> Vec<Evidence> {
        let (elapsed, ending) = (self.begun.elapsed(), Instant::now());
        let Self { sources, outer: before, inner: first, .. } = self;
        let last = Inner::read(sources);
        let gpus = self.gpus.into_iter().map(|gpu| gpu.and_then(Watch::end)).collect::<Vec<_>>();
        let after = Outer::read(sources);
        let mut nvidia_fs = after.nvidia_fs.since(before.nvidia_fs, |a, b| b.since(a));
        if let Seen::Value(counts) = &mut nvidia_fs {
            counts.describe(&sources.system);
        }
        let all = Evidence {
            storage: sources.storage.unwrap_or_default(),
            cufile: last.cufile.since(first.cufile, |a, b| Counters::since(&b, &a)),
            nvidia_fs,
            process: last.process.since(first.process, |a, b| b.since(a)),
            drives: between(&sources.devices, first.drives, last.drives),
            page_cache: after
                .pages
                .since(before.pages, |a, b| Ok(a.until(b, sources.encoded, sources.block))),
            gpu: Seen::Nothing(String::new()),
            nfs: nfs::since(after.nfs, before.nfs),
            vast: after.vast.since(before.vast, |a, b| Ok((a, b))),
            rdma: after.rdma.since(before.rdma, |a, b| all_since(b, a)),
            dram: after.dram.since(before.dram, |a, b| grown("the memory's counter", a, b)),
            processor: last.processor.saturating_sub(first.processor),
            elapsed,
            read_in: self.read_in + ending.elapsed(),
        };
        gpus.into_iter().map(|gpu| Evidence { gpu, ..all.clone() }).collect()
    }
}

/// The bytes of the devices; missing if any device is missing.
fn between(
    devices: &[(Device, bool)],
    first: Vec<Seen<DriveBytes>>,
    last: Vec<Seen<DriveBytes>>,
) -> Seen<Vec<DriveBytes>> {
    if devices.is_empty() {
        return Seen::Nothing("no block device".into());
    }
    let edges = devices.iter().zip(first).zip(last);
    edges.map(|(((device, _), first), last)| device.between(first, last)).collect()
}

#[cfg(test)]
mod tests;
