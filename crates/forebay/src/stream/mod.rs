//! Layers of a model that is larger than the GPU's memory, each brought while the one before it is
//! computed.
//!
//! ```text
//! order      what is taken when; known in advance, or told
//! layer      ranges of files; how they lie on the GPU, in slots and in pinned memory
//!   slices     pure: where layers are cut
//! placement  pure: which layers are kept on the GPU and in pinned memory
//! schedule   pure: which layer is brought into which buffer
//! prediction how long a pass takes, by what the last one took
//!   taking     the caller's side: take, keep, release; copies of what is kept on the host
//!   loader     a thread: has layers read to slots (or to pinned memory), and copied to the GPU
//!     together   pure: which streams have a layer read at once
//!     reading    one layer on that way; `ring` is the slots, small ones where a drive brings it
//!   mapper     a thread: pins pages of files for the GPU, and lets them go (`mapped`)
//!     after      whether the files stayed what they were while their pages were copied
//! turn       which thread submits work of a stream; the order of the locks
//! closing    the end of a stream, within the watchdog's time
//! shared     what both know: who has which layer; `store` is their memory on the GPU
//! group      what streams of the same layers to several GPUs share; `homes`: where on the host
//!            layers are kept
//! writing    a thread: writes layers back that were changed
//!   ties       pure: which layers have bytes, or files, of others
//! taken      what the caller has: memory that is valid until it is released
//! statistics what each layer took: transfer, compute, stall; `trace` draws them
//! ```
//!
//! All orders between the caller's compute and our copies are events, on both sides; the host waits
//! for storage, and where all slots hold bytes for a buffer that is computed with, for one of them:
//! then taking a layer that comes from files waits for that compute. What is copied to a buffer
//! waits on the GPU until the layer that was there has been computed. Such copies hold slots, so a
//! stream has slots of its own, and can hold up nobody else's transfers.

#![expect(unsafe_code, reason = "orders work on streams that a caller names")]

mod after;
mod closing;
mod failing;
mod group;
mod homes;
mod layer;
mod loader;
mod mapped;
mod mapper;
mod marks;
mod order;
mod placement;
mod prediction;
mod reading;
mod ring;
mod schedule;
mod shared;
mod slices;
mod statistics;
mod store;
mod taken;
mod taking;
#[cfg(test)]
mod tests;
mod ties;
mod together;
mod trace;
mod turn;
mod writing;

use std::fmt;
use std::sync::Arc;

use group::Group;
use layer::Shelf;
pub use layer::{Layer, LayerPart};
use loader::Loader;
pub use order::Order;
use order::Sequence;
use placement::Placement;
pub use placement::Tier;
pub use prediction::{Ceiling, Prediction};
use shared::Shared;
pub use statistics::{LayerTimes, PassTimes, StreamStatistics};
pub use taken::{LayerMemory, Step, Taken};

use crate::engine::Engine;
use crate::error::{Error, Operation, Result};
use crate::gpu::{CallerStream, Device, DeviceId};

/// Buffers on the GPU where nobody says how many: one that is computed, one that is there, and one
/// that comes, so that a layer may be late by as long as another takes.
const BUFFERS: u64 = 3;

/// How a stream brings its layers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamOptions {
    /// The order in which layers are taken.
    pub order: Order,
    /// How often; `None`: until it is closed.
    pub passes: Option<u64>,
    /// Bytes of GPU memory for layers. Room for two is the least; where even that is too much,
    /// layers are taken in slices. `None`: room for three, or as many as there are, and for two
    /// where the GPU has no memory for more.
    pub gpu_budget: Option<u64>,
    /// Bytes of pinned host memory for layers, beside the slots through which the others pass. As
    /// many layers as fit are read to it when they first come, and copied from there from then on.
    /// They are spread evenly over the order; where that is told, they are the first that fit.
    /// Layers that come in slices are placed slice by slice.
    pub host_budget: u64,
    /// Bytes of layers in the page cache whose pages may be pinned where they lie, when they are
    /// brought, so that the GPU copies them from there from then on. `None`: once they are brought
    /// again, up to half of what the machine has left, where there are passes enough to be worth
    /// it. They go when others need the memory.
    pub mapped_budget: Option<u64>,
    /// Fills what is released with bytes that are no number in the usual types of floating point
    /// (of 64, 32 and 16 bits, bfloat16, and of 8 bits `e4m3fn` and `e5m2`), so that whoever uses a
    /// layer too long finds out. Each is then read anew, also where it would stay on the GPU.
    pub check: bool,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self {
            order: Order::Forward,
            passes: None,
            gpu_budget: None,
            host_budget: 0,
            mapped_budget: None,
            check: false,
        }
    }
}

impl StreamOptions {
    /// In that order.
    #[must_use]
    pub fn ordered(order: Order) -> Self {
        Self { order, ..Self::default() }
    }
}

/// Layers that come to the GPU one after the other, ahead of the compute that needs them.
///
/// ```
/// use forebay::gpu::CallerStream;
/// use forebay::stream::{Layer, LayerStream, Order, StreamOptions};
/// use forebay::{Engine, Options};
///
/// # fn main() -> forebay::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("weights.bin");
/// # std::fs::write(&path, vec![7; 4 << 20]).unwrap();
/// let engine = Engine::new(Options::from_env()?)?;
/// let gpu = engine.device(&"sim".parse()?)?.expect("a GPU");
/// let file = engine.open(&path)?;
/// let layers: Vec<Layer> = (0..4)
///     .map(|n| Layer::named(format!("layer {n}")).with(&file, n << 20, 1 << 20))
///     .collect();
/// let stream = LayerStream::new(&engine, &gpu, &layers, StreamOptions::ordered(Order::Forward))?;
/// let compute = CallerStream(0); // the stream on which the layers are used
/// // SAFETY: the default stream is alive.
/// while let Some(layer) = unsafe { stream.next(compute) }? {
///     let memory = layer.memory()?;
///     // Queue what uses `memory.address()` on `compute`; the host does not wait for it.
/// #   assert_eq!(memory.len(), 1 << 20);
/// }
/// // One pass is over; the next call takes the first layer again.
/// stream.close()?;
/// # Ok(())
/// # }
/// ```
pub struct LayerStream {
    shared: Arc<Shared>,
}

impl LayerStream {
    /// A stream of `layers` to a GPU of `engine`. The GPU's buffers and slots are taken now, and
    /// the first layers are on their way when it returns.
    ///
    /// # Errors
    /// No layers, or what is wrong with one: no bytes, some behind its file's end, a file of
    /// another engine. An order that is empty, or with numbers that are no layer's. A budget that
    /// is too small, with what it needs. Memory that cannot be had, on the host or on the GPU.
    pub fn new(
        engine: &Engine,
        device: &Arc<dyn Device>,
        layers: &[Layer],
        options: StreamOptions,
    ) -> Result<Self> {
        let mut streams = Self::group(engine, std::slice::from_ref(device), layers, options)?;
        Ok(streams.pop().expect("one for the device"))
    }

    /// Streams of `layers`, one to each GPU of `devices`, in their order, which share what is read:
    /// where they are taken in step, each layer is read once for all. A stream that asks for a
    /// layer waits for the others, as long as they are not far behind, for a quarter of a second at
    /// most; whoever is later has it read again. One thread that takes from all in turn needs a
    /// buffer to spare on each GPU for that. Layers that are kept on the host are kept once, and
    /// `host_budget` and `mapped_budget` are for all streams together. Each is closed by itself; a
    /// GPU that fails ends all of them. Layers are not written back.
    ///
    /// # Errors
    /// Those of [`new`](Self::new); no GPU, or GPUs that cannot use the same pinned memory.
    pub fn group(
        engine: &Engine,
        devices: &[Arc<dyn Device>],
        layers: &[Layer],
        options: StreamOptions,
    ) -> Result<Vec<Self>> {
        let first = check_devices(devices)?;
        devices.iter().try_for_each(|device| engine.add_device(device))?;
        let room = devices.iter().map(|device| device.info().memory).min().unwrap_or(0);
        let (slices, units) = layer::cut(engine, layers, (options.gpu_budget, room))?;
        let sequence = sequence_of(&options, layers.len(), slices)?;
        let largest = units.iter().map(|unit| unit.len).max().unwrap_or(0);
        let count = options.gpu_budget.map_or(BUFFERS, |budget| budget / largest.max(1));
        let count = count.min(units.len() as u64).max(2);
        let count = usize::try_from(count).expect("no more than there are layers");
        // Room that nobody has asked for is not insisted on.
        let least = if options.gpu_budget.is_some() { count } else { 2 };
        let group = Group::new(engine, first, units, &options);
        let made = devices.iter().enumerate().map(|place| {
            Shared::new(&group, place, (sequence.clone(), slices), least..=count, &options) //
        });
        let made = made.collect::<Result<Vec<Arc<Shared>>>>()?;
        let lens: Vec<u64> = group.units.iter().map(|it| Shelf::new(&it.packing).len).collect();
        let buffers = made.iter().map(|stream| stream.buffers).min().unwrap_or(count);
        let placement = Placement::new(&sequence, &lens, buffers, options.host_budget);
        group.place(&placement.tiers)?;
        made.iter().for_each(|stream| stream.arrange(&placement));
        Loader::start(&group, &made)?;
        let streams: Vec<Self> = made.into_iter().map(|shared| Self { shared }).collect();
        streams.iter().try_for_each(|stream| stream.shared.begin())?;
        Ok(streams)
    }

    /// Releases the layer that was taken before, unless it is kept, and takes the next one, for
    /// work that is queued on `compute` from now on. The call returns when the last copy of the
    /// layer has been queued, and `compute` waits for that copy; `None`: a pass is over, and with
    /// it the last layer is released. What comes to the place of the layer before waits for what is
    /// queued by now on the stream for which that was taken, which may be another one.
    ///
    /// # Safety
    /// `compute` is alive and one of the GPU, and so is the stream that was named when the layer
    /// before was taken, on which all that uses that layer has been queued. Where another stream
    /// uses it too, the layer is released by [`Taken::release`] on that one, once that waits for
    /// the first. `compute` stays alive until this layer is released, or the stream is closed or
    /// dropped, which waits for what uses the layer.
    ///
    /// # Errors
    /// What went wrong with this layer, as [`Error::Layer`]: it is tried again by the next call.
    /// An earlier layer whose file was overwritten while its pages were copied, as
    /// [`Error::FileOverwritten`] in one. All buffers are held by layers that are kept. A stream
    /// that is captured, is closed, or is taken from by another thread. The GPU's own failure,
    /// which ends the stream.
    pub unsafe fn next(&self, compute: CallerStream) -> Result<Option<Taken>> {
        self.shared.check_home()?;
        // SAFETY: the caller's promise.
        Ok(match unsafe { self.shared.next(compute, &mut || true) }? {
            Step::Taken(taken) => Some(taken),
            Step::End | Step::Interrupted => None, // it goes on
        })
    }

    /// As [`next`](Self::next), as long as `go_on`, asked some 20 times a second, says so. Where it
    /// does not, the layer before is released, nothing is taken, and the next call waits for the
    /// same layer.
    ///
    /// # Safety
    /// As for [`next`](Self::next).
    ///
    /// # Errors
    /// As for [`next`](Self::next).
    pub unsafe fn next_while(
        &self,
        compute: CallerStream,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Step> {
        self.shared.check_home()?;
        // SAFETY: the caller's promise.
        unsafe { self.shared.next(compute, go_on) }
    }

    /// Tells which layers are taken behind all that were told before, where the order is
    /// [`Order::Told`]: they are brought as far as there is room.
    ///
    /// # Errors
    /// A number that is no layer's; another order; a stream that is closed; a GPU that fails.
    pub fn prefetch(&self, layers: &[usize]) -> Result<()> {
        self.shared.check_home()?;
        self.shared.tell(layers)
    }

    /// Says that a pass begins: where the one before it was taken to its last layer, and its end
    /// was not asked for, the next call takes the first layer. In the middle of a pass nothing
    /// changes: it goes on where it was left.
    pub fn begin_pass(&self) {
        if self.shared.check_home().is_ok() {
            self.shared.begin_pass();
        }
    }

    /// Has the next call take the first layer of a pass, also in the middle of one, which is then
    /// made again and counted once. The layer that was taken before stays as it is until then; what
    /// was brought ahead is taken from where it is, or gives way. Positions go on behind the pass
    /// that was left.
    ///
    /// # Errors
    /// An order that is told; another thread that takes a layer; a stream that has ended.
    pub fn rewind(&self) -> Result<()> {
        self.shared.check_home()?;
        self.shared.rewind()
    }

    /// How many layers, or slices, one pass takes; `None` where the order is told.
    ///
    /// # Errors
    /// A forked child.
    pub fn pass_len(&self) -> Result<Option<u64>> {
        self.shared.check_home()?;
        Ok(Some(self.shared.lock().schedule.sequence().pass_len()).filter(|&len| len > 0))
    }

    /// Where layers stand in the order that were taken and not released: their streams are to stay
    /// alive.
    #[must_use]
    pub fn held(&self) -> Vec<u64> {
        if self.shared.check_home().is_err() {
            return Vec::new();
        }
        self.shared.lock().taken.iter().map(|held| held.position).collect()
    }

    /// The GPU.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.shared.device.id()
    }

    /// In how many slices each layer is taken.
    #[must_use]
    pub fn slices(&self) -> usize {
        self.shared.slices
    }

    /// How many layers, or slices, the GPU has room for.
    #[must_use]
    pub fn buffers(&self) -> usize {
        self.shared.buffers
    }

    /// What the layers took so far.
    #[must_use]
    pub fn statistics(&self) -> StreamStatistics {
        if self.shared.check_home().is_err() {
            return StreamStatistics::default();
        }
        self.shared.statistics()
    }

    /// Where each layer is kept, or each slice, those of a layer one behind the other.
    #[must_use]
    pub fn tiers(&self) -> Vec<Tier> {
        self.shared.group.tiers()
    }

    /// How long the next pass takes, by the last whole pass that the GPU is done with; `None` until
    /// that is the second one, and where the order is told.
    #[must_use]
    pub fn prediction(&self) -> Option<Prediction> {
        if self.shared.check_home().is_err() {
            return None;
        }
        self.shared.prediction()
    }

    /// Writes what [`statistics`](Self::statistics) tells as trace events in JSON, which
    /// `ui.perfetto.dev` opens: a track for what comes by each way, and one for the compute.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_trace(&self, out: &mut dyn std::io::Write) -> std::io::Result<()> {
        let name =
            |times: &LayerTimes| self.shared.units()[self.shared.unit_of(times)].name.as_str();
        trace::write(&self.statistics().layers, name, out)
    }

    /// How many bytes of layers are pinned where they lie in the page cache, and why others, if
    /// any, are not.
    #[must_use]
    pub fn mapped(&self) -> (u64, Option<String>) {
        if self.shared.check_home().is_err() {
            return (0, None);
        }
        self.shared.group.mapped()
    }

    /// Waits until all layers are written whose [`write_back`](Taken::write_back) was asked for,
    /// as long as `go_on`, asked now and then, says so; whether they are. They are durable once
    /// their files are synced.
    ///
    /// # Errors
    /// What went wrong with one of them, as [`Error::Layer`]: of several each call tells one, in
    /// the order in which they failed.
    pub fn flush_while(&self, go_on: &mut dyn FnMut() -> bool) -> Result<bool> {
        self.shared.check_home()?;
        self.shared.flush(go_on)
    }

    /// Ends it: what comes is given up, what is to be written is, and all copies are over when the
    /// call returns, and so is what was queued by now on the streams for which layers were taken
    /// that are not released. The names of layers whose memory somebody still has; that stays valid
    /// as long.
    ///
    /// # Errors
    /// A layer that could not be written back, if nobody was told before, the first of several. A
    /// copy, or compute with
    /// a layer, that does not end; what it may touch is never given back then. A call of the driver
    /// that does not return within a few times [`watchdog`](crate::Options::watchdog); what is left
    /// is given back when it does. A file that changed
    /// while its pages were copied. Of several the first; called again, the next.
    pub fn close(&self) -> Result<Vec<String>> {
        self.shared.check_home()?;
        self.shared.close()
    }
}

impl fmt::Debug for LayerStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { buffers, device, .. } = &*self.shared;
        let (units, device) = (self.shared.units().len(), device.id());
        write!(f, "LayerStream({units} layers through {buffers} buffers on {device})")
    }
}

impl Drop for LayerStream {
    fn drop(&mut self) {
        if self.shared.check_home().is_ok() {
            let _ = self.close();
        } // else it is the parent's: a child may find its locks held
    }
}

/// The first of the GPUs that streams are for.
///
/// # Errors
/// None, or some that do not use the same pinned memory.
fn check_devices(devices: &[Arc<dyn Device>]) -> Result<&Arc<dyn Device>> {
    let bad = |value: String, expected: &str| Error::BadOption {
        name: "devices".into(),
        value,
        expected: expected.into(),
    };
    let first = devices.first().ok_or_else(|| bad("none".into(), "one GPU at least"))?;
    let shares = |device: &&Arc<dyn Device>| {
        device.id().kind == first.id().kind && device.registry() == first.registry()
    };
    match devices.iter().find(|device| !shares(device)) {
        Some(other) => {
            let value = format!("{} and {}", first.id(), other.id());
            Err(bad(value, "GPUs of one kind, which use the same pinned memory"))
        }
        None => Ok(first),
    }
}

/// What is taken when.
///
/// # Errors
/// A list that is empty, or with numbers that are no layer's.
fn sequence_of(options: &StreamOptions, layers: usize, slices: usize) -> Result<Sequence> {
    let bad = |value: String, expected: String| {
        Err(Error::BadOption { name: "order".into(), value, expected }) //
    };
    match Sequence::new(&options.order, layers, slices, options.passes) {
        Err(unknown) => {
            let expected = format!("numbers of the {layers} layers, from 0");
            bad(format!("a list with {unknown}"), expected)
        }
        Ok(_) if matches!(&options.order, Order::List(list) if list.is_empty()) => {
            bad("an empty list".into(), "one layer at least".into())
        }
        Ok(sequence) => Ok(sequence),
    }
}

/// Refuses to read a part of a layer.
fn refuse(part: &LayerPart, reason: String) -> Error {
    let place = part.file.place(part.offset, part.len);
    Error::BadRequest { operation: Operation::Read, place, reason }
}
