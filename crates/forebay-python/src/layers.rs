//! Layers of a model, loaded to a GPU ahead of the compute, for Python.

#![expect(unsafe_code, reason = "orders work on callers' streams")]

use std::sync::{Arc, Mutex, PoisonError};

use forebay::gpu::{CallerStream, Device};
use forebay_layers::{
    self, LayerTimes, Limit, Order, PassTimes, Prediction, Step, StreamOptions, Tier,
};
use pyo3::exceptions::{PyIndexError, PyKeyboardInterrupt, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

use crate::buffer::Buffer;
use crate::engine::{self, Engine, routes};
use crate::failure::raised;
use crate::file::File;
use crate::stream::{Given, number};
use crate::waiting::{Apart, interruptible};

/// A layer: its name, and its parts as files with offsets and lengths.
type Described<'py> = (String, Vec<(Bound<'py, File>, u64, u64)>);

/// Loads layers to a GPU, each while the one before it is computed.
#[pyclass(frozen, module = "forebay", weakref)]
pub(crate) struct LayerStream {
    stream: Apart<forebay_layers::LayerStream>,
    /// The compute streams of held layers, by position. Closing waits for the work queued there, so
    /// it must come before these are released.
    computes: Mutex<Vec<(u64, Py<PyAny>)>>,
    /// The engine of the files.
    _engine: Py<Engine>,
}

/// A layer on the GPU, or a slice of one: released when the next one is taken, unless it is kept.
#[pyclass(frozen, module = "forebay", weakref)]
pub(crate) struct TakenLayer {
    taken: Apart<forebay_layers::Taken>,
}

#[pymethods]
impl LayerStream {
    /// Streams of the same layers, one for each of `devices`, in their order.
    #[staticmethod]
    #[pyo3(signature = (
        engine, devices, layers, *, order, passes, gpu_budget, host_budget, mapped_budget, check
    ))]
    #[expect(clippy::too_many_arguments, reason = "the keywords of one call")]
    fn group(
        py: Python<'_>,
        engine: Py<Engine>,
        devices: Vec<Bound<'_, PyAny>>,
        layers: Vec<Described<'_>>,
        order: &Bound<'_, PyAny>,
        passes: Option<u64>,
        gpu_budget: Option<u64>,
        host_budget: u64,
        mapped_budget: Option<u64>,
        check: bool,
    ) -> PyResult<Vec<Self>> {
        let own = &engine.get().engine.live(py)?;
        let gpu = |device| gpu_of(py, own, device);
        let gpus = devices.iter().map(gpu).collect::<PyResult<Vec<_>>>()?;
        let mut options = StreamOptions::ordered(order_of(order)?);
        (options.passes, options.check) = (passes, check);
        (options.gpu_budget, options.host_budget) = (gpu_budget, host_budget);
        options.mapped_budget = mapped_budget;
        let mut described = Vec::with_capacity(layers.len());
        for (name, parts) in layers {
            let mut layer = forebay_layers::Layer::named(name);
            for (file, offset, len) in parts {
                layer = layer.with(&*file.get().file()?, offset, len);
            }
            described.push(layer);
        }
        let made =
            py.detach(move || forebay_layers::LayerStream::group(own, &gpus, &described, options));
        let of = |stream| Self {
            stream: Apart::new(stream),
            computes: Mutex::default(),
            _engine: engine.clone_ref(py),
        };
        Ok(raised(py, made)?.into_iter().map(of).collect())
    }

    /// Releases the previous layer, and takes the next one for the work queued on a stream from now
    /// on; `None` at the end of a pass.
    fn take(&self, py: Python<'_>, compute: &Bound<'_, PyAny>) -> PyResult<Option<TakenLayer>> {
        let named = number(compute)?;
        // SAFETY: the caller has promised that the stream is alive and belongs to the GPU; its
        // object is kept as long as the layer is held.
        let taken = interruptible(py, |go_on| unsafe { self.stream.next_while(named, go_on) });
        let position = match &taken {
            Ok(Ok(Step::Taken(taken))) => Some(taken.position()),
            _ => None,
        };
        self.keep_computes(py, position.map(|position| (position, compute.clone().unbind())));
        match raised(py, taken?)? {
            Step::Taken(taken) => Ok(Some(TakenLayer { taken: Apart::new(taken) })),
            Step::End => Ok(None),
            // The exception of a signal's handler is raised above.
            Step::Interrupted => Err(PyKeyboardInterrupt::new_err(())),
        }
    }

    /// Appends layers to the order.
    fn prefetch(&self, py: Python<'_>, layers: Vec<usize>) -> PyResult<()> {
        raised(py, py.detach(|| self.stream.prefetch(&layers)))
    }

    /// Waits until all layers to be written back are written.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let written = interruptible(py, |go_on| self.stream.flush_while(go_on))?;
        raised(py, written).map(drop)
    }

    /// Trace events of the layers, in JSON.
    fn trace(&self, py: Python<'_>) -> PyResult<Vec<u8>> {
        let mut json = Vec::new();
        py.detach(|| self.stream.write_trace(&mut json))?;
        Ok(json)
    }

    /// Closes it; returns the names of layers whose memory is still in use.
    fn close(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        raised(py, py.detach(|| self.stream.close()))
    }

    /// Begins a pass.
    fn begin_pass(&self, py: Python<'_>) {
        py.detach(|| self.stream.begin_pass());
    }

    /// Makes the first layer of a pass the next one.
    fn rewind(&self, py: Python<'_>) -> PyResult<()> {
        raised(py, py.detach(|| self.stream.rewind()))
    }

    /// The number of layers, or slices, of one pass, if known.
    fn pass_len(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        raised(py, py.detach(|| self.stream.pass_len()))
    }

    /// The GPU: `cuda:0`.
    #[getter]
    fn device(&self) -> String {
        self.stream.device().to_string()
    }

    /// The number of slices of each layer.
    #[getter]
    fn slices(&self) -> usize {
        self.stream.slices()
    }

    /// How many layers, or slices, the GPU has room for.
    #[getter]
    fn buffers(&self) -> usize {
        self.stream.buffers()
    }

    /// Bytes of layers that are pinned in place, and why the rest is not.
    fn mapped(&self, py: Python<'_>) -> (u64, Option<String>) {
        py.detach(|| self.stream.mapped())
    }

    /// The storage tier of each layer, or slice.
    #[getter]
    fn tiers(&self) -> Vec<&'static str> {
        let tier = |tier: &Tier| match tier {
            Tier::Gpu => "gpu",
            Tier::Pinned => "pinned",
            Tier::File => "file",
        };
        self.stream.tiers().iter().map(tier).collect()
    }

    /// The predicted duration of the next pass, from the last one.
    fn prediction<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let prediction = py.detach(|| self.stream.prediction());
        prediction.map(|prediction| prediction_of(py, &prediction)).transpose()
    }

    /// Statistics of the layers and passes so far.
    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let reported = py.detach(|| self.stream.statistics());
        let known = PyDict::new(py);
        let layers = reported.layers.iter().map(|times| layer_times(py, times));
        let passes = reported.passes.iter().map(|times| pass_times(py, times));
        known.set_item("layers", PyList::new(py, layers.collect::<PyResult<Vec<_>>>()?)?)?;
        known.set_item("passes", PyList::new(py, passes.collect::<PyResult<Vec<_>>>()?)?)?;
        known.set_item("routes", routes(py, &reported.routes)?)?;
        known.set_item("written_bytes", reported.written_bytes)?;
        Ok(known)
    }
}

impl LayerStream {
    /// Keeps the streams of held layers, with one more, and drops all others.
    fn keep_computes(&self, py: Python<'_>, more: Option<(u64, Py<PyAny>)>) {
        let held = py.detach(|| self.stream.held());
        let mut computes = self.computes.lock().unwrap_or_else(PoisonError::into_inner);
        let (kept, gone) = computes.drain(..).chain(more).partition(|(at, _)| held.contains(at));
        *computes = kept;
        drop(computes);
        let gone: Vec<(u64, Py<PyAny>)> = gone;
        drop(gone); // after the lock is released: it may run user code
    }
}

#[pymethods]
impl TakenLayer {
    /// Its position in the order, from 0.
    #[getter]
    fn position(&self) -> u64 {
        self.taken.position()
    }

    /// Its number in the list of layers.
    #[getter]
    fn layer(&self) -> usize {
        self.taken.layer()
    }

    /// Which slice of the layer, from 0.
    #[getter]
    fn slice(&self) -> usize {
        self.taken.slice()
    }

    /// The index in the layer of its first part.
    #[getter]
    fn first_part(&self) -> usize {
        self.taken.first_part()
    }

    /// Its name in errors and reports.
    #[getter]
    fn name(&self) -> &str {
        self.taken.name()
    }

    /// The position of its parts in its memory: first byte and length of each.
    #[getter]
    fn places(&self) -> Vec<(u64, u64)> {
        self.taken.parts().map(|range| (range.start, range.end - range.start)).collect()
    }

    /// All of its memory.
    fn memory(&self, py: Python<'_>) -> PyResult<Buffer> {
        Ok(Buffer::of_layer(raised(py, self.taken.memory())?))
    }

    /// The memory of one of its parts.
    fn part(&self, py: Python<'_>, part: usize) -> PyResult<Buffer> {
        let count = self.taken.parts().count();
        if part >= count {
            return Err(PyIndexError::new_err(format!("part {part} of {count}")));
        }
        Ok(Buffer::of_layer(raised(py, self.taken.part(part))?))
    }

    /// Keeps it when the next one is taken.
    fn keep(&self, py: Python<'_>) -> PyResult<()> {
        raised(py, py.detach(|| self.taken.keep()))
    }

    /// Writes it to its files after the work queued on a stream: by default, the one for which it
    /// was taken.
    #[pyo3(signature = (compute = Given::Current))]
    fn write_back(&self, py: Python<'_>, compute: Given<'_>) -> PyResult<()> {
        let compute = self.ordered_by(py, &compute)?;
        // SAFETY: as in `LayerStream::take`; after a release no stream is used.
        raised(py, py.detach(|| unsafe { self.taken.write_back(compute) }))
    }

    /// Releases it after the work queued on a stream, by default the same.
    #[pyo3(signature = (compute = Given::Current))]
    fn release(&self, py: Python<'_>, compute: Given<'_>) -> PyResult<()> {
        let compute = self.ordered_by(py, &compute)?;
        // SAFETY: as in `LayerStream::take`; after a release no stream is used.
        raised(py, py.detach(|| unsafe { self.taken.release(compute) }))
    }
}

impl TakenLayer {
    /// The given stream, or the one for which the layer was taken.
    fn ordered_by(&self, py: Python<'_>, given: &Given<'_>) -> PyResult<CallerStream> {
        match given {
            // If it was released, the operation itself reports that.
            Given::Current => Ok(py.detach(|| self.taken.compute()).unwrap_or(CallerStream(0))),
            Given::Stream(stream) => number(stream),
        }
    }
}

/// The GPU of the layers.
fn gpu_of(
    py: Python<'_>,
    engine: &forebay::Engine,
    device: &Bound<'_, PyAny>,
) -> PyResult<Arc<dyn Device>> {
    let refused = |given: String| {
        PyValueError::new_err(format!(
            "`device` cannot be `{given}`: layers need a GPU, such as `cuda:0`, or a simulated \
             one, `sim`"
        ))
    };
    if device.is_none() {
        return Err(refused("None".into()));
    }
    let found = engine::gpu_of(py, engine, device).inspect_err(|error| {
        // The engine's own hint suggests host memory, which cannot hold layers.
        if error.get_type(py).name().is_ok_and(|name| name == "NoDevice") {
            let hint = "layers need a GPU: `forebay doctor` reports why there is none, and \
                        `device=\"sim\"` is a simulated one";
            let _ = error.value(py).setattr("hint", hint);
        }
    });
    found?.ok_or_else(|| refused(device.str().map_or("the host".into(), |text| text.to_string())))
}

fn order_of(order: &Bound<'_, PyAny>) -> PyResult<Order> {
    let Ok(word) = order.cast::<PyString>() else {
        let list = order.extract::<Vec<usize>>().map_err(|_| unknown_order(order))?;
        return Ok(Order::List(list));
    };
    Ok(match word.to_cow()?.as_ref() {
        "forward" => Order::Forward,
        "backward" => Order::Backward,
        "training" => Order::Training,
        "appended" => Order::Appended,
        _ => return Err(unknown_order(order)),
    })
}

fn unknown_order(order: &Bound<'_, PyAny>) -> PyErr {
    let given = order.str().map_or_else(|_| "that".into(), |text| text.to_string());
    PyTypeError::new_err(format!(
        "`order` cannot be `{given}`: it takes `forward`, `backward`, `training`, `appended`, or a \
         list of layer numbers"
    ))
}

fn layer_times<'py>(py: Python<'py>, times: &LayerTimes) -> PyResult<Bound<'py, PyDict>> {
    let known = PyDict::new(py);
    known.set_item("position", times.position)?;
    known.set_item("layer", times.layer)?;
    known.set_item("slice", times.slice)?;
    known.set_item("bytes", times.bytes)?;
    known.set_item("drive_bytes", times.drive_bytes)?;
    known.set_item("routes", routes(py, &times.routes)?)?;
    known.set_item("pinned", times.pinned)?;
    known.set_item("mapped", times.mapped)?;
    known.set_item("began_s", times.began.as_secs_f64())?;
    known.set_item("entered_s", times.entered.as_secs_f64())?;
    known.set_item("transfer_s", times.transfer.as_secs_f64())?;
    known.set_item("compute_s", times.compute.as_secs_f64())?;
    known.set_item("stall_s", times.stall.as_secs_f64())?;
    known.set_item("overhead_s", times.overhead().as_secs_f64())?;
    Ok(known)
}

fn pass_times<'py>(py: Python<'py>, times: &PassTimes) -> PyResult<Bound<'py, PyDict>> {
    let known = PyDict::new(py);
    known.set_item("pass", times.pass)?;
    known.set_item("layers", times.layers)?;
    known.set_item("brought", times.brought)?;
    known.set_item("pinned_bytes", times.pinned_bytes)?;
    known.set_item("mapped_bytes", times.mapped_bytes)?;
    known.set_item("file_bytes", times.file_bytes)?;
    known.set_item("drive_bytes", times.drive_bytes)?;
    known.set_item("routes", routes(py, &times.routes)?)?;
    known.set_item("transfer_s", times.transfer.as_secs_f64())?;
    known.set_item("file_transfer_s", times.file_transfer.as_secs_f64())?;
    known.set_item("compute_s", times.compute.as_secs_f64())?;
    known.set_item("stall_s", times.stall.as_secs_f64())?;
    known.set_item("overhead_s", times.overhead().as_secs_f64())?;
    Ok(known)
}

fn prediction_of<'py>(py: Python<'py>, reported: &Prediction) -> PyResult<Bound<'py, PyDict>> {
    let known = PyDict::new(py);
    let limit = match reported.limit {
        Limit::Compute => "compute",
        Limit::Link => "link",
        Limit::PageCache => "page_cache",
        Limit::Drive => "drive",
    };
    known.set_item("pass_s", reported.pass.as_secs_f64())?;
    known.set_item("compute_s", reported.compute.as_secs_f64())?;
    known.set_item("limit", limit)?;
    known.set_item("more_gpu", reported.more_gpu)?;
    known.set_item("more_host", reported.more_host)?;
    Ok(known)
}
