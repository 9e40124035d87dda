//! Streams the layers of a model that is larger than GPU memory: a layer is loaded while its
//! predecessor is computed.
//!
//! ```text
//! order      the order of layers; known in advance, or given while it runs
//! layer      file ranges; their layout on the GPU, in slots and in pinned memory
//!   slices     pure: where layers are cut
//! placement  pure: which layers are kept on the GPU and in pinned memory
//! schedule   pure: which layer is loaded into which buffer
//! prediction the time of a pass, from that of the last pass
//!   taking     the caller's side: take, keep, release; copies of layers kept on the host
//!   loader     a thread: reads layers to slots (or to pinned memory) and copies them to the GPU
//!     together   pure: which streams read a layer together
//!     reading    a layer during its read; `ring` is the slots, small ones for reads from drives
//!   pinning    a thread: pins and unpins file pages for the GPU (`mapped`); `pages` maps them,
//!              `maps` counts them, `mapper` is its state
//!     after      checks that files did not change while their pages were copied
//! turn       which thread submits work of a stream; the order of the locks
//! closing    closing a stream, within the watchdog time
//! shared     state of the caller and the loader; `store` is their memory on the GPU
//! group      state shared by streams of the same layers to several GPUs; `homes`: the host
//!            copies of layers
//! writing    a thread: writes changed layers back
//!   ties       pure: which layers share bytes or files
//! taken      the caller's handle: memory that is valid until it is released
//! statistics times of the layers: transfer, compute, stall; `trace` draws them
//! ```
//!
//! Order between the caller's compute and our copies is kept with events on both sides. The host
//! waits only for storage, and for a slot if all slots hold bytes for a buffer still in use by
//! compute. In that case taking a layer from files waits for that compute. A copy to a buffer waits
//! on the GPU until the previous layer in it has been computed. Such copies hold slots, so a stream
//! uses separate slots and cannot delay other transfers.

#![expect(unsafe_code, reason = "orders work on streams that a caller names")]

mod after;
mod closing;
mod group;
mod homes;
mod layer;
mod loader;
mod mapped;
mod mapper;
mod maps;
mod marks;
mod options;
mod order;
mod pages;
mod pinning;
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
pub use options::StreamOptions;
pub use order::Order;
use order::Sequence;
pub use pages::{FilePages, Stamp};
use placement::Placement;
pub use placement::Tier;
pub use prediction::{Limit, Prediction};
use shared::Shared;
pub use statistics::{LayerTimes, PassTimes, StreamStatistics};
pub use taken::{LayerMemory, Step, Taken};

use forebay::gpu::{CallerStream, Device, DeviceId};
use forebay::{Engine, Error, Result};

/// Default number of GPU buffers: for the layers in compute, ready, and in transfer. So a layer may
/// be late by the time of a whole layer.
const BUFFERS: u64 = 3;

/// Layers loaded to the GPU in sequence, ahead of the compute that needs them.
///
/// ```
/// use forebay::gpu::CallerStream;
/// use forebay_layers::{Layer, LayerStream, Order, StreamOptions};
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
    /// Creates a stream of `layers` to a GPU of `engine`. It allocates the GPU buffers and the
    /// slots now, and the first layers are being loaded when it returns.
    ///
    /// # Errors
    /// There are no layers; a layer is empty, reaches beyond the end of its file, or has a file of
    /// another engine. The order is empty or has numbers without a layer. The budget is too small;
    /// the error says what is needed. Host or GPU memory is not available.
    pub fn new(
        engine: &Engine,
        device: &Arc<dyn Device>,
        layers: &[Layer],
        options: StreamOptions,
    ) -> Result<Self> {
        let mut streams = Self::group(engine, std::slice::from_ref(device), layers, options)?;
        Ok(streams.pop().expect("one for the device"))
    }

    /// Creates a stream of `layers` for every GPU of `devices`, in their order. The streams share
    /// reads: if they advance in step, a layer is read once for all. A stream that requests a
    /// layer waits for streams that are not far behind, for at most 250 ms. A later one has the
    /// layer read again. One thread that takes from all streams in turn needs one extra buffer on
    /// each GPU for that. Host copies of layers are shared; `host_budget` and `mapped_budget` apply
    /// to all streams together. Each stream is closed separately; a GPU that fails ends all of
    /// them. Layers cannot be written back.
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
        // Without an explicit budget, fewer buffers are acceptable.
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

    /// Releases the previous layer, unless it is kept, and takes the next one for work queued on
    /// `compute` from now on. The call returns when the last copy of the layer has been queued;
    /// `compute` waits for that copy. `None` means that the pass is over, and its last layer is
    /// released. The next contents of the previous layer's buffer wait for the work queued so far
    /// on the stream for which that layer was taken, which may be another one.
    ///
    /// # Safety
    /// `compute` is alive and belongs to the GPU. So does the stream named when the previous layer
    /// was taken, and all work that uses that layer has been queued on it. If another stream uses
    /// the layer too, release the layer with [`Taken::release`] on that stream, once it waits for
    /// the first. `compute` stays alive until this layer is released, or until the stream is closed
    /// or dropped, which waits for the work that uses the layer.
    ///
    /// # Errors
    /// [`Error::Layer`] if this layer failed; the next call tries it again. If the file of an
    /// earlier layer was overwritten while its pages were copied, it contains
    /// [`Error::FileOverwritten`]. All buffers are held by kept layers. The stream is being
    /// captured, is closed, or is in use by another thread. A GPU failure, which ends the stream.
    pub unsafe fn next(&self, compute: CallerStream) -> Result<Option<Taken>> {
        // SAFETY: the caller's promise.
        Ok(match unsafe { self.next_while(compute, &mut || true) }? {
            Step::Taken(taken) => Some(taken),
            Step::End | Step::Interrupted => None, // the next call resumes
        })
    }

    /// Like [`next`](Self::next), while `go_on`, called about 20 times a second, returns true. When
    /// it returns false the previous layer is released, none is taken, and the next call waits for
    /// the same layer.
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

    /// Appends layers to the order if it is [`Order::Appended`]. They are loaded as far as there is
    /// room.
    ///
    /// # Errors
    /// A number without a layer; another order; a closed stream; a failed GPU.
    pub fn prefetch(&self, layers: &[usize]) -> Result<()> {
        self.shared.check_home()?;
        self.shared.append(layers)
    }

    /// Starts a pass. If the previous pass was taken to its last layer but its end was not
    /// requested, the next call takes the first layer. In the middle of a pass it has no effect.
    pub fn begin_pass(&self) {
        let _ = self.shared.check_home().map(|()| self.shared.begin_pass());
    }

    /// Makes the next call take the first layer of a pass. A pass left in the middle is repeated
    /// and counted once. The previous layer stays valid until then. Layers loaded ahead are reused
    /// or replaced. Positions continue after the pass that was left.
    ///
    /// # Errors
    /// The order is [`Order::Appended`]; another thread takes a layer; the stream has ended.
    pub fn rewind(&self) -> Result<()> {
        self.shared.check_home()?;
        self.shared.rewind()
    }

    /// Number of layers, or slices, in a pass; `None` if the order is [`Order::Appended`].
    ///
    /// # Errors
    /// In a forked child.
    pub fn pass_len(&self) -> Result<Option<u64>> {
        self.shared.check_home()?;
        Ok(Some(self.shared.lock().schedule.sequence().pass_len()).filter(|&len| len > 0))
    }

    /// Positions of the layers that were taken and not released. Their compute streams must stay
    /// alive.
    pub fn held(&self) -> Vec<u64> {
        let held = |()| self.shared.lock().taken.iter().map(|held| held.position).collect();
        self.shared.check_home().map(held).unwrap_or_default()
    }

    /// The GPU.
    pub fn device(&self) -> DeviceId {
        self.shared.device.id()
    }

    /// Number of slices per layer.
    pub fn slices(&self) -> usize {
        self.shared.slices
    }

    /// Number of layers, or slices, that fit on the GPU.
    pub fn buffers(&self) -> usize {
        self.shared.buffers
    }

    /// Statistics of the layers so far.
    pub fn statistics(&self) -> StreamStatistics {
        self.shared.check_home().map(|()| self.shared.statistics()).unwrap_or_default()
    }

    /// The tiers of the layers, or of the slices, with the slices of a layer in a row.
    pub fn tiers(&self) -> Vec<Tier> {
        self.shared.group.tiers()
    }

    /// Predicts the time of the next pass from the last whole pass that the GPU finished. `None`
    /// until that is at least the second one, and if the order is [`Order::Appended`].
    pub fn prediction(&self) -> Option<Prediction> {
        self.shared.check_home().ok().and_then(|()| self.shared.prediction())
    }

    /// Writes the [`statistics`](Self::statistics) as trace events in JSON, for `ui.perfetto.dev`.
    /// There is a track per transfer route, and a track for the compute.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_trace(&self, out: &mut dyn std::io::Write) -> std::io::Result<()> {
        let name =
            |times: &LayerTimes| self.shared.units()[self.shared.unit_of(times)].name.as_str();
        trace::write(&self.statistics().layers, name, out)
    }

    /// Bytes of layers that are pinned in the page cache, and the reason if any layers are not.
    pub fn mapped(&self) -> (u64, Option<String>) {
        self.shared.check_home().map(|()| self.shared.group.mapped()).unwrap_or_default()
    }

    /// Waits until all requested [`write_back`](Taken::write_back)s are done, while `go_on`, called
    /// periodically, returns true. Returns whether they are. The data is durable once the files are
    /// synced.
    ///
    /// # Errors
    /// [`Error::Layer`] for a failed write. If several failed, a call reports the next, in the
    /// order in which they failed.
    pub fn flush_while(&self, go_on: &mut dyn FnMut() -> bool) -> Result<bool> {
        self.shared.check_home()?;
        self.shared.flush(go_on)
    }

    /// Closes the stream: loads are cancelled, pending writes are finished. When the call returns
    /// all copies are done, and so is the work queued so far on the streams of layers not yet
    /// released. Returns the names of layers whose memory is still referenced; that memory stays
    /// valid as long as the references.
    ///
    /// # Errors
    /// A layer that could not be written back, if not reported before. A copy, or compute with a
    /// layer, that does not end; the memory it may touch is then never freed. A driver call that
    /// does not return within a few times [`watchdog`](forebay::Options::watchdog); the rest is
    /// freed when it does. A file that changed while its pages were copied. Of several errors the
    /// first; another call returns the next.
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
        } // otherwise it belongs to the parent: a child may find its locks held
    }
}

/// Returns the first of the GPUs that the streams are for.
///
/// # Errors
/// There are none, or some cannot use the same pinned memory.
fn check_devices(devices: &[Arc<dyn Device>]) -> Result<&Arc<dyn Device>> {
    let bad = |value: &str, expected| Error::bad_option("devices", value, expected);
    let first = devices.first().ok_or_else(|| bad("none", "one GPU at least"))?;
    let shares = |device: &&Arc<dyn Device>| {
        device.id().kind == first.id().kind && device.registry() == first.registry()
    };
    match devices.iter().find(|device| !shares(device)) {
        Some(other) => {
            let value = format!("{} and {}", first.id(), other.id());
            Err(bad(&value, "GPUs of one kind, which use the same pinned memory"))
        }
        None => Ok(first),
    }
}

/// Builds the sequence of layers from the options.
///
/// # Errors
/// A list that is empty or has numbers without a layer.
fn sequence_of(options: &StreamOptions, layers: usize, slices: usize) -> Result<Sequence> {
    let bad = |value: String, expected| Err(Error::bad_option("order", value, expected));
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
