//! Stores of KV blocks, which `forebay.blocks` describes.

use std::iter;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay::{Histogram, Operation};
use forebay_base::lock::Lock;
use forebay_blocks::{Batch, Block, End, Key, Options, Policy, RootOptions, Store, Why};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBytes, PyDict, PyList, PyString};

use crate::callbacks;
use crate::ended::{self, Ended};
use crate::engine::{Engine, make_ready};
use crate::failure::{noted, raised};
use crate::memory::{Use, find, lend_together};
use crate::moving::{bound, late};
use crate::stream::Ordering;
use crate::waiting::Apart;
use crate::whole;

/// A store of blocks.
#[pyclass(frozen, module = "forebay._forebay", weakref)]
pub(crate) struct Blocks {
    store: Lock<Option<Arc<Apart<Store>>>>,
    /// Calls that ended and were started with a number.
    ended: Arc<Ended<(u64, Batch)>>,
}

type RootTuple = (PathBuf, u64, Option<u64>);

#[pymethods]
impl Blocks {
    #[new]
    #[pyo3(signature = (
        engine, roots, *, namespace, policy, ttl, page_cache, unwritten, memory, timeout, threads
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn new(
        py: Python<'_>,
        engine: &Bound<'_, Engine>,
        roots: Vec<RootTuple>,
        namespace: &[u8],
        policy: &str,
        ttl: Option<Bound<'_, PyAny>>,
        page_cache: bool,
        unwritten: u64,
        memory: u64,
        timeout: &Bound<'_, PyAny>,
        threads: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let root = |(path, capacity, keep_free)| RootOptions { path, capacity, keep_free };
        let mut options = Options::new(roots.into_iter().map(root).collect());
        namespace.clone_into(&mut options.namespace);
        options.policy = match policy {
            "lru" => Policy::Lru,
            "lfu" => Policy::Lfu,
            _ => {
                let text = format!("`policy` cannot be `{policy}`: it takes `lru` or `lfu`");
                return Err(PyValueError::new_err(text));
            }
        };
        let seconds = |name: &str, value: &Bound<'_, PyAny>| {
            Duration::try_from_secs_f64(whole::within(name, value, "seconds")?).map_err(|_| {
                let text = format!("`{name}` cannot be {value}: it takes seconds");
                PyValueError::new_err(text)
            })
        };
        options.ttl = ttl.map(|ttl| seconds("ttl", &ttl)).transpose()?;
        options.timeout = seconds("timeout", timeout)?;
        options.page_cache = page_cache;
        options.unwritten = unwritten;
        options.memory = memory;
        options.threads = whole::within("threads", threads, "a whole number from 1")?;
        let store = {
            let inner = engine.get().engine.live(py)?;
            raised(py, py.detach(|| Store::open(&inner, &options)))?
        };
        let ended = Arc::new(Ended::new()?);
        Ok(Self { store: Lock::new(Some(Arc::new(Apart::new(store)))), ended })
    }

    /// Starts reading blocks into memory; `here` if the caller waits for the call.
    #[pyo3(signature = (keys, memory, number = None, here = false))]
    fn get(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        memory: &Bound<'_, PyAny>,
        number: Option<u64>,
        here: bool,
    ) -> PyResult<BlockCall> {
        let run = if here { Store::get_here } else { Store::get };
        self.start(py, number, |store| blocks_of(py, store, keys, memory, Use::Target), run)
    }

    /// Starts writing blocks from memory.
    #[pyo3(signature = (keys, memory, number = None))]
    fn set(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        memory: &Bound<'_, PyAny>,
        number: Option<u64>,
    ) -> PyResult<BlockCall> {
        let blocks = |store: &Store| blocks_of(py, store, keys, memory, Use::Source);
        self.start(py, number, blocks, Store::set)
    }

    /// Starts looking for blocks.
    #[pyo3(signature = (keys, number = None))]
    fn exists(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        number: Option<u64>,
    ) -> PyResult<BlockCall> {
        self.start(py, number, |store| keys_of(store, keys), |store, keys| store.exists(&keys))
    }

    /// Starts noting that blocks are in use.
    #[pyo3(signature = (keys, number = None))]
    fn touch(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        number: Option<u64>,
    ) -> PyResult<BlockCall> {
        self.start(py, number, |store| keys_of(store, keys), |store, keys| store.touch(&keys))
    }

    /// Starts removing blocks.
    #[pyo3(signature = (keys, number = None))]
    fn delete(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        number: Option<u64>,
    ) -> PyResult<BlockCall> {
        self.start(py, number, |store| keys_of(store, keys), |store, keys| store.delete(&keys))
    }

    /// Whether each block is stored; `None` where that is not in memory.
    fn find_at_once(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<Vec<Option<bool>>> {
        let store = self.store(py)?;
        let keys = keys_of(&store, keys)?;
        Ok(py.detach(|| store.find_at_once(&keys)))
    }

    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        let store = self.store(py)?;
        raised(py, py.detach(|| store.clear()))
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let store = self.store(py)?;
        raised(py, py.detach(|| store.sync()))
    }

    fn usage(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let store = self.store(py)?;
        raised(py, py.detach(|| store.usage()))
    }

    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let roots = PyList::empty(py);
        for root in self.store(py)?.statistics() {
            let it = PyDict::new(py);
            it.set_item("path", &root.path)?;
            it.set_item("hits", root.hits)?;
            it.set_item("missed", by_reason(py, &root.missed)?)?;
            it.set_item("stored", root.stored)?;
            it.set_item("present", root.present)?;
            it.set_item("evicted", root.evicted)?;
            it.set_item("bytes_read", root.bytes_read)?;
            it.set_item("bytes_written", root.bytes_written)?;
            it.set_item("dropped", by_reason(py, &root.dropped)?)?;
            it.set_item("queued", times(py, &root.queued)?)?;
            it.set_item("load", times(py, &root.load)?)?;
            it.set_item("store", times(py, &root.store)?)?;
            it.set_item("last_error", &root.last_error)?;
            roots.append(it)?;
        }
        Ok(roots)
    }

    /// A descriptor that is readable while `take_ended` has calls.
    fn event_fd(&self) -> i32 {
        self.ended.event_fd()
    }

    /// The calls with a number that have ended since the last call.
    fn take_ended(&self) -> Vec<(u64, Vec<bool>)> {
        let ends = |(number, batch): (u64, Batch)| {
            drop(batch.take_memory());
            (number, batch.wait().into_iter().map(End::is_good).collect())
        };
        self.ended.take().into_iter().map(ends).collect()
    }

    /// Closes the store: all calls end, and afterwards nothing touches their memory.
    fn close(&self, py: Python<'_>) {
        let store = self.store.lock().take();
        py.detach(|| {
            store.iter().for_each(|store| store.close());
            drop(store);
        });
    }
}

impl Blocks {
    fn store(&self, py: Python<'_>) -> PyResult<Arc<Apart<Store>>> {
        let store = self.store.lock().as_ref().map(Arc::clone);
        let store = store.ok_or_else(|| PyValueError::new_err("the block store is closed"))?;
        raised(py, store.engine().check_process(Operation::Open))?;
        Ok(store)
    }

    /// Runs a call on what `given` makes of its arguments.
    fn start<T: Send>(
        &self,
        py: Python<'_>,
        number: Option<u64>,
        given: impl FnOnce(&Store) -> PyResult<T>,
        run: impl FnOnce(&Store, T) -> Batch + Send,
    ) -> PyResult<BlockCall> {
        let store = self.store(py)?;
        let given = given(&store)?;
        let batch = py.detach(|| run(&store, given));
        if let Some(number) = number {
            let (ended, same) = (Arc::clone(&self.ended), batch.clone());
            batch.on_end(move || ended.add((number, same)));
        }
        Ok(BlockCall { batch })
    }
}

fn blocks_of(
    py: Python<'_>,
    store: &Store,
    keys: &Bound<'_, PyAny>,
    memory: &Bound<'_, PyAny>,
    usage: Use,
) -> PyResult<Vec<Block>> {
    let (engine, keys) = (store.engine(), keys_of(store, keys)?);
    // Of each block how many pieces of memory it has, and all pieces.
    let (mut counts, mut pieces) = (Vec::with_capacity(keys.len()), Vec::new());
    let note = |number| move |error| noted(py, error, &format!("it is for block {number}"));
    for (number, object) in memory.try_iter()?.enumerate() {
        let object = object?;
        if number == keys.len() {
            let text = format!("memory has more blocks than keys ({number})");
            return Err(PyValueError::new_err(text));
        }
        let before = pieces.len();
        match object.cast::<PyList>() {
            Ok(list) => {
                for piece in list {
                    pieces.push(find(&piece, usage, None).map_err(note(number))?);
                }
            }
            Err(_) => pieces.push(find(&object, usage, None).map_err(note(number))?),
        }
        counts.push(pieces.len() - before);
    }
    let numbers = counts.iter().enumerate().flat_map(|(at, &count)| iter::repeat_n(at, count));
    let lent = match lend_together(engine, &mut pieces) {
        Some(lent) => lent,
        None => pieces
            .into_iter()
            .zip(numbers)
            .map(|(piece, number)| piece.lend(py, engine).map_err(note(number)))
            .collect::<PyResult<_>>()?,
    };
    let mut ready = None;
    for lent in &lent {
        let queue = (lent.buffer.device(), lent.order);
        if ready.replace(queue) != Some(queue) {
            make_ready(py, engine, lent, Ordering::Ready)?;
        }
    }
    let mut lent = lent.into_iter().map(|lent| lent.buffer);
    let blocks: Vec<_> = keys
        .iter()
        .zip(&counts)
        .map(|(&key, &count)| Block { key, memory: lent.by_ref().take(count).collect() })
        .collect();
    if blocks.len() < keys.len() {
        let (keys, blocks) = (keys.len(), blocks.len());
        let text = format!("memory has fewer blocks ({blocks}) than keys ({keys})");
        return Err(PyValueError::new_err(text));
    }
    Ok(blocks)
}

/// Keys, each bytes or text.
fn keys_of(store: &Store, keys: &Bound<'_, PyAny>) -> PyResult<Vec<Key>> {
    if keys.is_instance_of::<PyString>() || keys.is_instance_of::<PyBytes>() {
        return Err(PyTypeError::new_err("`keys` must be a list of keys, not one key"));
    }
    let key = |name: PyResult<Bound<'_, PyAny>>| {
        let name = name?;
        if let Ok(text) = name.cast::<PyString>() {
            return match text.to_str() {
                Ok(text) => Ok(store.key(text.as_bytes())),
                // A text with surrogates has no UTF-8.
                Err(_) => {
                    let bytes = text.call_method1("encode", ("utf-8", "surrogatepass"))?;
                    Ok(store.key(bytes.cast::<PyBytes>()?.as_bytes()))
                }
            };
        }
        if let Ok(bytes) = name.cast::<PyBytes>() {
            return Ok(store.key(bytes.as_bytes()));
        }
        let bytes: Vec<u8> = name.extract().map_err(|_| {
            let kind = name.get_type().name().map_or_else(|_| "?".into(), |it| it.to_string());
            PyTypeError::new_err(format!("a key must be `bytes` or `str`, not `{kind}`"))
        })?;
        Ok(store.key(&bytes))
    };
    keys.try_iter()?.map(key).collect()
}

fn by_reason<'py>(py: Python<'py>, counts: &[(Why, u64)]) -> PyResult<Bound<'py, PyDict>> {
    counts.iter().map(|(why, count)| (why.name(), count)).into_py_dict(py)
}

/// A histogram in microseconds.
fn times<'py>(py: Python<'py>, histogram: &Histogram) -> PyResult<Bound<'py, PyDict>> {
    let it = PyDict::new(py);
    let micros = |share| histogram.quantile(share).map(|time| time.as_secs_f64() * 1e6);
    it.set_item("count", histogram.count())?;
    it.set_item("p50_us", micros(0.5))?;
    it.set_item("p99_us", micros(0.99))?;
    it.set_item("max_us", histogram.max().as_secs_f64() * 1e6)?;
    Ok(it)
}

/// A call of a store in progress.
#[pyclass(frozen, module = "forebay.blocks", weakref)]
pub(crate) struct BlockCall {
    batch: Batch,
}

impl callbacks::Future for BlockCall {
    fn is_over(&self, _py: Python<'_>) -> bool {
        self.batch.is_over()
    }

    fn on_end(&self, _py: Python<'_>, step: impl FnOnce() + Send + 'static) {
        self.batch.on_end(step);
    }

    fn reclaim(&self) {
        drop(self.batch.take_memory());
    }
}

impl BlockCall {
    fn ends(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Vec<End>> {
        let until = bound(timeout)?.and_then(|bound| Instant::now().checked_add(bound));
        let pause = Duration::from_millis(50);
        loop {
            let left = until.map_or(pause, |it| it.saturating_duration_since(Instant::now()));
            let ends = match self.batch.is_over() {
                true => self.batch.wait_for(Duration::ZERO),
                false => py.detach(|| self.batch.wait_for(left.min(pause))),
            };
            if let Some(ends) = ends {
                drop(self.batch.take_memory());
                return Ok(ends);
            }
            py.check_signals().inspect_err(|_| self.batch.cancel())?;
            if left <= pause && until.is_some() {
                return Err(late(timeout));
            }
        }
    }
}

#[pymethods]
impl BlockCall {
    /// Waits for the end; for each block whether it was read, found, removed, or is stored.
    #[pyo3(signature = (timeout = None))]
    fn result(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = whole::timeout)] timeout: Option<f64>,
    ) -> PyResult<Vec<bool>> {
        Ok(self.ends(py, timeout)?.into_iter().map(End::is_good).collect())
    }

    /// Waits for the end; for each block why it failed, or `None`.
    #[pyo3(signature = (timeout = None))]
    fn reasons(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = whole::timeout)] timeout: Option<f64>,
    ) -> PyResult<Vec<Option<&'static str>>> {
        let why = |end| match end {
            End::Not(why) => Some(why.name()),
            End::Done | End::Present => None,
        };
        Ok(self.ends(py, timeout)?.into_iter().map(why).collect())
    }

    /// Whether all blocks have ended. Then their memory is free again.
    fn done(&self) -> bool {
        let is_over = self.batch.is_over();
        if is_over {
            drop(self.batch.take_memory());
        }
        is_over
    }

    /// Ends all blocks. A block that is being copied ends after its copy.
    fn cancel(&self, py: Python<'_>) {
        py.detach(|| self.batch.cancel());
    }

    /// Calls `callback` with the call when it has ended: from a dedicated thread, or immediately
    /// if it has already ended.
    fn add_done_callback(this: &Bound<'_, Self>, callback: Py<PyAny>) -> PyResult<()> {
        callbacks::add(this, callback)
    }

    fn __await__<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        ended::awaited(this)
    }
}
