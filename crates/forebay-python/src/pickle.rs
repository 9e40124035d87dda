//! Reads a pickle, and runs nothing that it names.
//!
//! The interpreter knows the operations that CPython's picklers write in protocols 2 to 5 for
//! `torch.save` and `torch.distributed.checkpoint`, and refuses every other form: frames that do
//! not fit their operations, numbers in the memo out of order, objects that change after their use
//! or contain themselves. Classes and functions are names, and what they would return is a
//! [`Record`]. Nothing else reads the pickle, so no operation escapes the checks.
//!
//! Time and memory follow from the length of the file: values have no references to themselves,
//! and the interpreter hashes none of them.

use pyo3::exceptions::{PyLookupError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyDict, PyFloat, PyInt, PyList, PyNone, PyString, PyTuple,
};

/// Most objects in a tuple, with those in its tuples. Shapes have at most 64 numbers, and hashing
/// or printing a tuple of tuples may take exponential time.
const TUPLE_MAX: u32 = 1024;

/// Most objects inside each other; CPython's pickler has this limit.
const DEPTH_MAX: u32 = 1000;

/// Memory that any pickle may take, and how many times its file's length is added.
const MEMORY_FREE: u64 = 32 << 20;
const MEMORY_TIMES: u64 = 24;

/// Bytes of an object that is not complete, and of a complete one.
const OPEN: u64 = 2 * size_of::<Open<'_>>() as u64;
const RECORD: u64 = 96;

/// Bytes of a place on the stack, and of one in a collection.
const PLACE: u64 = size_of::<Item<'_>>() as u64;
const POINTER: u64 = 8;

/// Operations between two checks for signals.
const PAUSE: u32 = 1 << 12;

/// The name of a record for a persistent identifier. No pickle can give it to a class.
const PERSISTENT: &str = "persistent";

/// The name of a record for a dictionary.
const DICT: &str = "builtins.dict";

/// Most fields of an object of torch.
const FIELDS_MAX: usize = 64;

/// A class or function that a pickle names.
#[pyclass(frozen, get_all, module = "forebay._forebay")]
pub(crate) struct Global {
    /// The module and the name in it.
    name: Py<PyString>,
}

/// What a class or function would return; also a dictionary, a set or a persistent identifier.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Record {
    #[pyo3(get)]
    name: Py<PyString>,
    /// Whether it is made by `__new__`, instead of a call.
    #[pyo3(get)]
    is_new: bool,
    #[pyo3(get)]
    arguments: Py<PyTuple>,
    /// The argument of `__setstate__`.
    #[pyo3(get)]
    state: Option<Py<PyAny>>,
    // Tuples would be objects of the garbage collector.
    items: Vec<Py<PyAny>>,
    keys: Vec<Py<PyAny>>,
    values: Vec<Py<PyAny>>,
}

#[pymethods]
impl Record {
    /// The objects that are appended, or added to a set.
    #[getter]
    fn items<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.items)
    }

    #[getter]
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.keys)
    }

    #[getter]
    fn values<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.values)
    }

    /// The values of fields in its state, `None` for those that the state does not have. `None` if
    /// the state is not a dictionary of few texts.
    #[pyo3(signature = (*names))]
    fn fields<'py>(
        &self,
        py: Python<'py>,
        names: Bound<'py, PyTuple>,
    ) -> PyResult<Option<Vec<Option<Py<PyAny>>>>> {
        let mut found: Vec<_> = names.iter().map(|_| None).collect();
        let Some(state) = &self.state else { return Ok(Some(found)) };
        let Ok(state) = state.bind(py).cast::<Self>() else { return Ok(None) };
        let state = state.get();
        let is_dict = state.name.bind(py).to_str()? == DICT && state.items.is_empty();
        if !is_dict || state.keys.len() > FIELDS_MAX {
            return Ok(None);
        }
        for (key, value) in state.keys.iter().zip(&state.values) {
            let Ok(key) = key.bind(py).cast::<PyString>() else { return Ok(None) };
            for (name, place) in names.iter().zip(&mut found) {
                if key.as_any().eq(&name)? && place.replace(value.clone_ref(py)).is_some() {
                    return Ok(None);
                }
            }
        }
        Ok(Some(found))
    }
}

/// A complete object.
#[derive(Clone)]
struct Value<'py> {
    object: Bound<'py, PyAny>,
    /// The objects in a tuple, with all repetitions.
    weight: u32,
    depth: u32,
}

/// What an object that is not complete takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    List,
    Set,
    Dict,
    Call { is_new: bool },
}

/// An object that following operations may still fill.
struct Open<'py> {
    kind: Kind,
    /// Its number in the memo.
    number: Option<usize>,
    name: Bound<'py, PyString>,
    arguments: Bound<'py, PyTuple>,
    items: Vec<Bound<'py, PyAny>>,
    keys: Vec<Bound<'py, PyAny>>,
    values: Vec<Bound<'py, PyAny>>,
    state: Option<Bound<'py, PyAny>>,
    weight: u32,
    depth: u32,
}

enum Item<'py> {
    Value(Value<'py>),
    Open(Box<Open<'py>>),
}

/// An object in the memo.
enum Numbered<'py> {
    Value(Value<'py>),
    /// It is not complete; its place on the stack.
    Open(usize),
}

struct Interpreter<'a, 'py> {
    py: Python<'py>,
    bytes: &'a [u8],
    at: usize,
    /// The end of the frame, if the operation is in one, or of the pickle.
    end: usize,
    is_framed: bool,
    stack: Vec<Item<'py>>,
    marks: Vec<usize>,
    memo: Vec<Numbered<'py>>,
    /// Bytes that the objects may still take.
    left: u64,
    called: Option<Bound<'py, PyAny>>,
    made: Option<Bound<'py, PyAny>>,
    keys_max: Option<usize>,
}

/// Reads a pickle in a file of `length` bytes: numbers, strings, lists, tuples, `Global` and
/// `Record`.
///
/// `called` has the names that may be called and `made` those whose `__new__` may be; `None` allows
/// all. A dictionary or set has at most `keys_max` keys whose hashes a file could make collide.
///
/// Raises `LookupError` for another name, and `ValueError` for what is not such a pickle. The text
/// is the reason to refuse it.
#[pyfunction]
#[pyo3(signature = (bytes, length, called=None, made=None, keys_max=None))]
pub(crate) fn unpickled<'py>(
    py: Python<'py>,
    bytes: &[u8],
    length: u64,
    called: Option<Bound<'py, PyAny>>,
    made: Option<Bound<'py, PyAny>>,
    keys_max: Option<usize>,
) -> PyResult<Bound<'py, PyAny>> {
    let left = MEMORY_FREE.saturating_add(length.saturating_mul(MEMORY_TIMES));
    let (stack, marks, memo) = (Vec::new(), Vec::new(), Vec::new());
    let (at, end, is_framed) = (2, bytes.len(), false);
    Interpreter { py, bytes, at, end, is_framed, stack, marks, memo, left, called, made, keys_max }
        .run()
}

fn refuse<T>(reason: impl Into<String>) -> PyResult<T> {
    Err(PyValueError::new_err(reason.into()))
}

impl<'a, 'py> Interpreter<'a, 'py> {
    fn run(mut self) -> PyResult<Bound<'py, PyAny>> {
        match self.bytes {
            [] | [0x80] => return refuse(format!("it is truncated: it has {} bytes", self.end)),
            [0x80, 2..=5, ..] => {}
            _ => return refuse("it is not a pickle of protocol 2 to 5"),
        }
        let mut steps = 0_u32;
        loop {
            steps = steps.wrapping_add(1);
            if steps.is_multiple_of(PAUSE) {
                self.py.check_signals()?;
                self.py.detach(|| ()); // other threads run
            }
            if self.is_framed && self.at == self.end {
                (self.is_framed, self.end) = (false, self.bytes.len());
            }
            let code = self.take(1)?[0];
            if code == b'.' {
                break;
            }
            if !self.literal(code)? && !self.fill(code)? {
                self.other(code)?;
            }
        }
        if self.at != self.bytes.len() {
            return refuse(format!("it has bytes after its end at byte {}", self.at));
        }
        let value = self.pop()?;
        match self.stack.is_empty() && self.marks.is_empty() {
            true => Ok(value.object),
            false => refuse("it has more than one object"),
        }
    }

    /// Operations that push a new object.
    fn literal(&mut self, code: u8) -> PyResult<bool> {
        let py = self.py;
        match code {
            b'N' => self.push(PyNone::get(py).to_owned().into_any(), 0)?,
            0x88 | 0x89 => self.push(PyBool::new(py, code == 0x88).to_owned().into_any(), 0)?,
            b'K' => self.integer(1, false)?,
            b'M' => self.integer(2, false)?,
            b'J' => self.integer(4, true)?,
            0x8a => {
                let length = self.length(1)?;
                self.integer(length, true)?;
            }
            b'G' => {
                let number = self.take(8)?.iter().fold(0, |all, &byte| all << 8 | u64::from(byte));
                self.push(PyFloat::new(py, f64::from_bits(number)).into_any(), 24)?;
            }
            0x8c => self.text(1)?,
            b'X' => self.text(4)?,
            b'C' | b'B' => {
                let length = self.length(if code == b'C' { 1 } else { 4 })?;
                let bytes = self.take(length)?;
                self.push(PyBytes::new(py, bytes).into_any(), 40 + length as u64)?;
            }
            0x96 => {
                let length = self.length(8)?;
                let bytes = self.take(length)?;
                self.push(PyByteArray::new(py, bytes).into_any(), 64 + length as u64)?;
            }
            b')' => self.push(PyTuple::empty(py).into_any(), 0)?,
            b']' => self.open(Kind::List, "list")?,
            b'}' => self.open(Kind::Dict, DICT)?,
            0x8f => self.open(Kind::Set, "builtins.set")?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Operations that add objects to one that is not complete.
    fn fill(&mut self, code: u8) -> PyResult<bool> {
        let count = match code {
            b'a' => 1, // APPEND
            b's' => 2, // SETITEM
            // APPENDS, SETITEMS, ADDITEMS
            b'e' | b'u' | 0x90 => {
                let begin = self.marked()?;
                self.stack.len() - begin
            }
            _ => return Ok(false),
        };
        let added = self.popped(count)?;
        let is_pairs = matches!(code, b's' | b'u');
        let open = self.opened()?;
        let fits = match open.kind {
            Kind::List => matches!(code, b'a' | b'e'),
            Kind::Set => code == 0x90,
            Kind::Dict => is_pairs,
            Kind::Call { .. } => code != 0x90,
        };
        if !fits || is_pairs && added.len() % 2 != 0 {
            return refuse("it adds other objects than a collection takes");
        }
        for (place, value) in added.into_iter().enumerate() {
            open.depth = open.depth.max(value.depth);
            match (is_pairs, place % 2) {
                (false, _) => open.items.push(value.object),
                (true, 0) => open.keys.push(value.object),
                (true, _) => open.values.push(value.object),
            }
        }
        Ok(true)
    }

    fn other(&mut self, code: u8) -> PyResult<()> {
        match code {
            0x95 => self.frame(),
            b'(' => {
                self.spend(16)?;
                self.marks.push(self.stack.len());
                Ok(())
            }
            0x85..=0x87 => self.tuple(usize::from(code - 0x84)),
            b't' => {
                let begin = self.marked()?;
                self.tuple(self.stack.len() - begin)
            }
            0x91 => self.frozen_set(),
            0x94 => self.memoize(self.memo.len()),
            b'q' | b'r' => {
                let number = self.length(if code == b'q' { 1 } else { 4 })?;
                self.memoize(number)
            }
            b'h' | b'j' => {
                let number = self.length(if code == b'h' { 1 } else { 4 })?;
                self.recall(number)
            }
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.global(module, name)
            }
            0x93 => {
                let (name, module) = (self.pop()?.object, self.pop()?.object);
                match (module.extract::<&str>(), name.extract::<&str>()) {
                    (Ok(module), Ok(name)) => self.global(module, name),
                    _ => refuse("the name of a class in it is not a text"),
                }
            }
            b'R' => self.call(false),
            0x81 => self.call(true),
            b'b' => {
                let state = self.pop()?;
                let open = self.opened()?;
                if !matches!(open.kind, Kind::Call { .. }) || open.state.is_some() {
                    return refuse("it sets the state of an object that has none");
                }
                open.depth = open.depth.max(state.depth);
                open.state = Some(state.object);
                Ok(())
            }
            b'Q' => {
                let id = self.pop()?;
                let name = PyString::intern(self.py, PERSISTENT);
                let arguments = PyTuple::new(self.py, [id.object])?;
                self.opening(Kind::Call { is_new: false }, name, arguments, id.weight, id.depth)?;
                let id = self.pop()?; // no operation changes it
                self.again(id)
            }
            code => refuse(format!("it has the opcode 0x{code:02x} at byte {}", self.at - 1)),
        }
    }

    /// The following bytes, which have to be in the same frame.
    fn take(&mut self, count: usize) -> PyResult<&'a [u8]> {
        match self.at.checked_add(count) {
            Some(end) if end <= self.end => {
                let taken = &self.bytes[self.at..end];
                self.at = end;
                Ok(taken)
            }
            _ => self.ended(count),
        }
    }

    fn ended<T>(&self, count: usize) -> PyResult<T> {
        if self.end < self.bytes.len() {
            return refuse(format!(
                "an operation crosses the end of its frame at byte {}",
                self.end
            ));
        }
        let (at, end) = (self.at, self.end);
        refuse(format!(
            "it is truncated: it needs {count} bytes at byte {at}, but ends at byte {end}"
        ))
    }

    /// A number of `width` bytes.
    fn length(&mut self, width: usize) -> PyResult<usize> {
        let mut number = [0; 8];
        number[..width].copy_from_slice(self.take(width)?);
        // One that does not fit is longer than the pickle.
        Ok(usize::try_from(u64::from_le_bytes(number)).unwrap_or(usize::MAX))
    }

    /// The bytes up to the end of a line.
    fn line(&mut self) -> PyResult<&'a str> {
        let rest = &self.bytes[self.at..self.end];
        let Some(len) = rest.iter().position(|&byte| byte == b'\n') else {
            return self.ended(rest.len() + 1);
        };
        self.at += len + 1;
        std::str::from_utf8(&rest[..len]).or_else(|_| refuse("a name in it is not UTF-8"))
    }

    fn frame(&mut self) -> PyResult<()> {
        let length = self.length(8)?;
        if self.bytes[1] < 4 || self.is_framed || length == 0 {
            return refuse(format!("it has an invalid frame at byte {}", self.at));
        }
        match self.at.checked_add(length) {
            Some(end) if end <= self.bytes.len() => {
                (self.is_framed, self.end) = (true, end);
                Ok(())
            }
            _ => self.ended(length),
        }
    }

    fn spend(&mut self, bytes: u64) -> PyResult<()> {
        match self.left.checked_sub(bytes) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => refuse("it has more objects than its file's length explains"),
        }
    }

    fn push(&mut self, object: Bound<'py, PyAny>, bytes: u64) -> PyResult<()> {
        self.spend(bytes)?;
        self.again(Value { object, weight: 1, depth: 0 })
    }

    /// Pushes an object that has its memory.
    fn again(&mut self, value: Value<'py>) -> PyResult<()> {
        self.spend(PLACE + POINTER)?;
        self.stack.push(Item::Value(value));
        Ok(())
    }

    fn integer(&mut self, width: usize, is_signed: bool) -> PyResult<()> {
        let bytes = self.take(width)?;
        let mut number =
            [if is_signed && bytes.last().is_some_and(|&last| last > 127) { 255 } else { 0 }; 8];
        let object = if width > number.len() {
            // Random generators of NumPy have states of 128 bits.
            let how = PyDict::new(self.py);
            how.set_item("signed", true)?;
            let whole = self.py.get_type::<PyInt>();
            whole.call_method("from_bytes", (PyBytes::new(self.py, bytes), "little"), Some(&how))?
        } else {
            number[..width].copy_from_slice(bytes);
            PyInt::new(self.py, i64::from_le_bytes(number)).into_any()
        };
        self.push(object, 24 + width as u64)
    }

    fn text(&mut self, width: usize) -> PyResult<()> {
        let length = self.length(width)?;
        let bytes = self.take(length)?;
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => PyString::new(self.py, text).into_any(),
            // Names of files that are not UTF-8.
            Err(_) => match PyBytes::new(self.py, bytes)
                .call_method1("decode", ("utf-8", "surrogatepass"))
            {
                Ok(text) => text,
                Err(_) => return refuse("a text in it is not UTF-8"),
            },
        };
        // A text with characters beyond ASCII takes up to four bytes for each.
        let each = if bytes.is_ascii() { 1 } else { 4 };
        self.push(text, 64 + each * length as u64)
    }

    /// Completes the last object.
    fn pop(&mut self) -> PyResult<Value<'py>> {
        self.last()?;
        self.left = self.left.saturating_add(PLACE);
        match self.stack.pop() {
            Some(Item::Value(value)) => Ok(value),
            Some(Item::Open(open)) => self.completed(*open),
            None => refuse("its stack is empty"),
        }
    }

    /// Completes the last `count` objects.
    fn popped(&mut self, count: usize) -> PyResult<Vec<Value<'py>>> {
        let mut values = (0..count).map(|_| self.pop()).collect::<PyResult<Vec<_>>>()?;
        values.reverse();
        Ok(values)
    }

    fn completed(&mut self, open: Open<'py>) -> PyResult<Value<'py>> {
        let py = self.py;
        self.left = self.left.saturating_add(OPEN);
        let Open { kind, number, name, arguments, items, keys, values, state, weight, depth } =
            open;
        self.check_keys(keys.iter())?;
        if kind == Kind::Set {
            self.check_keys(items.iter())?;
        }
        let object = if kind == Kind::List {
            PyList::new(py, items)?.into_any()
        } else {
            let record = Record {
                name: name.unbind(),
                is_new: kind == Kind::Call { is_new: true },
                arguments: arguments.unbind(),
                state: state.map(Bound::unbind),
                items: items.into_iter().map(Bound::unbind).collect(),
                keys: keys.into_iter().map(Bound::unbind).collect(),
                values: values.into_iter().map(Bound::unbind).collect(),
            };
            Bound::new(py, record)?.into_any()
        };
        let value = Value { object, weight, depth: deeper(depth)? };
        if let Some(number) = number {
            self.memo[number] = Numbered::Value(value.clone());
        }
        Ok(value)
    }

    /// Refuses many keys of one dictionary or set whose hashes a file could make collide.
    fn check_keys<'b>(&self, keys: impl Iterator<Item = &'b Bound<'py, PyAny>>) -> PyResult<()>
    where
        'py: 'b,
    {
        let Some(most) = self.keys_max else { return Ok(()) };
        let is_random = |key: &Bound<'py, PyAny>| {
            key.is_instance_of::<PyString>()
                || key.is_instance_of::<PyBytes>()
                || key.is_instance_of::<Record>()
                || key.extract::<i32>().is_ok()
        };
        match keys.filter(|key| !is_random(key)).nth(most) {
            Some(_) => {
                refuse(format!("it has more than {most} keys of one dictionary that are not texts"))
            }
            None => Ok(()),
        }
    }

    /// The last object, if it is not complete.
    fn opened(&mut self) -> PyResult<&mut Open<'py>> {
        match self.last()? {
            Item::Open(open) => Ok(open),
            Item::Value(_) => refuse("it changes an object that is complete"),
        }
    }

    /// The last object, which is behind the last mark.
    fn last(&mut self) -> PyResult<&mut Item<'py>> {
        let is_there = self.stack.len() > self.marks.last().copied().unwrap_or(0);
        match self.stack.last_mut().filter(|_| is_there) {
            Some(item) => Ok(item),
            None => refuse("its stack is empty"),
        }
    }

    /// Removes the last mark, and returns where its objects begin.
    fn marked(&mut self) -> PyResult<usize> {
        let Some(begin) = self.marks.pop() else { return refuse("it has no mark") };
        Ok(begin)
    }

    fn open(&mut self, kind: Kind, name: &str) -> PyResult<()> {
        let name = PyString::intern(self.py, name);
        self.opening(kind, name, PyTuple::empty(self.py), 1, 0)
    }

    fn opening(
        &mut self,
        kind: Kind,
        name: Bound<'py, PyString>,
        arguments: Bound<'py, PyTuple>,
        weight: u32,
        depth: u32,
    ) -> PyResult<()> {
        self.spend(OPEN + RECORD + PLACE + POINTER)?;
        let (items, keys, values) = (Vec::new(), Vec::new(), Vec::new());
        let (number, state) = (None, None);
        let open =
            Open { kind, number, name, arguments, items, keys, values, state, weight, depth };
        self.stack.push(Item::Open(Box::new(open)));
        Ok(())
    }

    fn tuple(&mut self, count: usize) -> PyResult<()> {
        let values = self.popped(count)?;
        let (weight, depth) = size(&values)?;
        let object = PyTuple::new(self.py, values.into_iter().map(|value| value.object))?;
        self.spend(48 + 8 * count as u64)?;
        self.again(Value { object: object.into_any(), weight, depth })
    }

    fn frozen_set(&mut self) -> PyResult<()> {
        let begin = self.marked()?;
        let values = self.popped(self.stack.len() - begin)?;
        let (weight, depth) = size(&values)?;
        let name = PyString::intern(self.py, "builtins.frozenset");
        self.opening(Kind::Set, name, PyTuple::empty(self.py), weight, depth)?;
        self.opened()?.items.extend(values.into_iter().map(|value| value.object));
        let complete = self.pop()?;
        self.again(complete)
    }

    fn memoize(&mut self, number: usize) -> PyResult<()> {
        if number != self.memo.len() {
            return refuse(format!(
                "it numbers an object {number} after {} objects",
                self.memo.len()
            ));
        }
        self.spend(32)?;
        let place = self.stack.len().saturating_sub(1);
        let numbered = match self.last()? {
            Item::Value(value) => Numbered::Value(value.clone()),
            Item::Open(open) if open.number.is_none() => {
                open.number = Some(number);
                Numbered::Open(place)
            }
            Item::Open(_) => return refuse("it numbers an object twice"),
        };
        self.memo.push(numbered);
        Ok(())
    }

    /// Pushes an object of the memo. It is complete from now on: a later change, as of one that
    /// contains itself, is refused.
    fn recall(&mut self, number: usize) -> PyResult<()> {
        let place = match self.memo.get(number) {
            Some(Numbered::Value(value)) => return self.again(value.clone()),
            Some(&Numbered::Open(place)) => place,
            None => return refuse("it uses an object that it does not have"),
        };
        let nothing = Value { object: self.py.None().into_bound(self.py), weight: 1, depth: 0 };
        let value = match std::mem::replace(&mut self.stack[place], Item::Value(nothing)) {
            Item::Open(open) => self.completed(*open)?,
            Item::Value(value) => value,
        };
        self.stack[place] = Item::Value(value.clone());
        self.again(value)
    }

    fn global(&mut self, module: &str, name: &str) -> PyResult<()> {
        let name = PyString::new(self.py, &format!("{module}.{name}"));
        self.spend((module.len() + name.len()?) as u64)?;
        let global = Bound::new(self.py, Global { name: name.unbind() })?;
        self.push(global.into_any(), 80)
    }

    fn call(&mut self, is_new: bool) -> PyResult<()> {
        let (arguments, function) = (self.pop()?, self.pop()?.object);
        let (Ok(function), Ok(tuple)) =
            (function.cast::<Global>(), arguments.object.cast_into::<PyTuple>())
        else {
            return refuse("it calls an object that is not a class");
        };
        let name = function.get().name.bind(self.py);
        let known = if is_new { &self.made } else { &self.called };
        if let Some(known) = known
            && !known.contains(name)?
        {
            let shown: String = name.to_str().unwrap_or_default().chars().take(100).collect();
            let verb = if is_new { "makes" } else { "calls" };
            return Err(PyLookupError::new_err(format!("it {verb} `{shown}`")));
        }
        if let Ok(list) = tuple.get_item(0).and_then(|first| Ok(first.cast_into::<PyList>()?))
            && self.keys_max.is_some()
        {
            let items: Vec<_> = list.iter().collect();
            self.check_keys(items.iter())?; // of a set
        }
        let kind = Kind::Call { is_new };
        self.opening(kind, name.clone(), tuple, arguments.weight, arguments.depth)
    }
}

/// The weight and depth of a collection of these.
fn size(values: &[Value<'_>]) -> PyResult<(u32, u32)> {
    let weights = values.iter().fold(1_u32, |all, value| all.saturating_add(value.weight));
    if weights > TUPLE_MAX {
        return refuse(format!("a tuple in it has more than {TUPLE_MAX} objects"));
    }
    Ok((weights, deeper(values.iter().map(|value| value.depth).max().unwrap_or(0))?))
}

fn deeper(depth: u32) -> PyResult<u32> {
    if depth >= DEPTH_MAX {
        return refuse(format!("it has more than {DEPTH_MAX} objects inside each other"));
    }
    Ok(depth + 1)
}
