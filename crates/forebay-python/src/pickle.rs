//! Looks through a pickle before it is loaded, and refuses one that would take more time or memory
//! than its length explains, or that changes objects which it did not make.
//!
//! The operations are those of `pickletools`. Nothing is made of them: the scanner keeps for each
//! object only its kind and, for tuples, how many objects it has with all repetitions. A tuple of
//! tuples of tuples is short in a pickle and takes forever to hash or print.

use std::collections::HashSet;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Most objects in a tuple, with those in its tuples. Shapes have at most 64 numbers.
const TUPLE_MAX: u32 = 1024;

/// Memory that any pickle may take, and how many times its file's length is added.
const MEMORY_FREE: u64 = 48 << 20;
const MEMORY_TIMES: u64 = 4;

/// An object on the stack or in the memo.
#[derive(Clone, Copy)]
enum Item {
    /// A string, by its place in the pickle.
    Text {
        start: u32,
        len: u32,
    },
    /// A tuple, by the number of its objects.
    Tuple(u32),
    /// A class or function; whether the pickle may change what it makes.
    Global {
        is_open: bool,
    },
    /// What a class or function made.
    Made {
        is_open: bool,
    },
    Other,
}

impl Item {
    fn weight(self) -> u32 {
        match self {
            Self::Tuple(weight) => weight,
            _ => 1,
        }
    }
}

struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
    stack: Vec<Item>,
    marks: Vec<usize>,
    memo: Vec<Option<Item>>,
    /// Bytes that the objects may still take.
    left: u64,
    /// The names of classes whose objects the pickle may change.
    open: Option<&'a HashSet<String>>,
}

/// Looks through a pickle in a file of `length` bytes. `open` are the classes, as `module.name`,
/// whose objects may get attributes; with `None` the caller checks that.
///
/// Raises `ValueError`, whose text is the reason to refuse it.
#[pyfunction]
pub(crate) fn scan_pickle(
    py: Python<'_>,
    bytes: &[u8],
    length: u64,
    open: Option<HashSet<String>>,
) -> PyResult<()> {
    let left = MEMORY_FREE.saturating_add(length.saturating_mul(MEMORY_TIMES));
    py.detach(|| {
        let mut scanner = Scanner {
            bytes,
            at: 0,
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Vec::new(),
            left,
            open: open.as_ref(),
        };
        loop {
            if scanner.step()? {
                return Ok(());
            }
        }
    })
    .map_err(PyValueError::new_err::<String>)
}

impl Scanner<'_> {
    /// One operation; true at the end of the pickle.
    fn step(&mut self) -> Result<bool, String> {
        let code = self.take(1)?[0];
        if self.literal(code)? {
            return Ok(false);
        }
        match code {
            b'.' => return self.pop().map(|_| true),
            0x80 => drop(self.take(1)?), // PROTO
            0x95 => drop(self.take(8)?), // FRAME
            0x85..=0x87 => self.tuple(usize::from(code - 0x84))?,
            b't' => {
                let count = self.stack.len() - self.marked()?;
                self.tuple(count)?;
            }
            b'(' => {
                self.spend(16)?;
                self.marks.push(self.stack.len());
            }
            b'0' => drop(self.pop()?),
            b'1' => drop(self.marked().map(|begin| self.stack.truncate(begin))?),
            b'2' => {
                let top = self.top()?;
                self.push(top, 0)?;
            }
            b'l' | b'd' | 0x91 => {
                // LIST, DICT, FROZENSET
                let begin = self.marked()?;
                self.stack.truncate(begin);
                self.push(Item::Other, 64)?;
            }
            b'a' => self.drop_above(1)?,
            b's' => self.drop_above(2)?,
            b'e' | b'u' | 0x90 => {
                // APPENDS, SETITEMS, ADDITEMS
                let begin = self.marked()?;
                self.stack.truncate(begin);
                self.top()?;
            }
            b'q' => self.put(1)?,
            b'r' => self.put(4)?,
            0x94 => self.memoize(self.memo.len())?,
            b'h' => self.get(1)?,
            b'j' => self.get(4)?,
            b'p' | b'g' => self.numbered(code == b'p')?,
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.global(module, name)?;
            }
            0x93 => match (self.pop()?, self.pop()?) {
                (Item::Text { start, len }, Item::Text { start: begin, len: length }) => {
                    self.global((begin, length), (start, len))?;
                }
                _ => return Err("a name in it is no text".into()),
            },
            b'R' | 0x81 => self.make(1)?, // REDUCE, NEWOBJ
            0x92 => self.make(2)?,        // NEWOBJ_EX
            b'b' => {
                self.pop()?;
                let is_open = matches!(self.top()?, Item::Made { is_open: true });
                if self.open.is_some() && !is_open {
                    return Err("it changes an object that it did not make".into());
                }
            }
            b'Q' => {
                self.pop()?;
                self.push(Item::Other, 72)?;
            }
            other => {
                return Err(format!("it has the opcode 0x{other:02x}, which it does not need"));
            }
        }
        Ok(false)
    }

    /// Puts a new object on the stack, if the operation is one that does that.
    fn literal(&mut self, code: u8) -> Result<bool, String> {
        match code {
            b'N' | 0x88 | 0x89 => self.push(Item::Other, 0)?, // NONE, NEWTRUE, NEWFALSE
            b'K' => self.fixed(1)?,
            b'M' => self.fixed(2)?,
            b'J' => self.fixed(4)?,
            b'G' => self.fixed(8)?,
            b'I' | b'L' | b'F' | b'S' => {
                let line = self.line()?.1;
                self.push(Item::Other, 32 + u64::from(line))?;
            }
            0x8a => self.sized(1)?, // LONG1
            0x8b => self.sized(4)?, // LONG4
            b'C' | b'U' => self.sized(1)?,
            b'B' | b'T' => self.sized(4)?,
            0x8e | 0x96 => self.sized(8)?, // BINBYTES8, BYTEARRAY8
            0x8c => self.text(1)?,         // SHORT_BINUNICODE
            b'X' => self.text(4)?,
            0x8d => self.text(8)?, // BINUNICODE8
            b'V' => {
                let (start, len) = self.line()?;
                self.push(Item::Text { start, len }, 64 + u64::from(len))?;
            }
            b')' => self.push(Item::Tuple(1), 0)?,
            b']' | b'}' | 0x8f => self.push(Item::Other, 64)?, // lists, dictionaries, sets
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn take(&mut self, count: usize) -> Result<&[u8], String> {
        let end = self.at.checked_add(count).filter(|&end| end <= self.bytes.len());
        let end = end.ok_or("it is truncated")?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    /// A length of so many bytes.
    fn length(&mut self, width: usize) -> Result<usize, String> {
        let mut number = [0; 8];
        number[..width].copy_from_slice(self.take(width)?);
        usize::try_from(u64::from_le_bytes(number)).map_err(|_| "it is truncated".into())
    }

    /// The place and length of the bytes up to the end of a line.
    fn line(&mut self) -> Result<(u32, u32), String> {
        let rest = &self.bytes[self.at..];
        let len = rest.iter().position(|&byte| byte == b'\n').ok_or("it is truncated")?;
        let start = self.at;
        self.at += len + 1;
        place(start, len)
    }

    fn slice(&self, start: u32, len: u32) -> &str {
        let bytes = &self.bytes[start as usize..(start + len) as usize];
        std::str::from_utf8(bytes).unwrap_or_default()
    }

    fn spend(&mut self, bytes: u64) -> Result<(), String> {
        // Each object also takes a place in a list.
        let left = self.left.checked_sub(bytes + 8);
        self.left = left.ok_or("it has more objects than its file's length explains")?;
        Ok(())
    }

    fn push(&mut self, item: Item, bytes: u64) -> Result<(), String> {
        self.spend(bytes)?;
        self.stack.push(item);
        Ok(())
    }

    fn pop(&mut self) -> Result<Item, String> {
        let least = self.marks.last().copied().unwrap_or(0);
        let item = if self.stack.len() > least { self.stack.pop() } else { None };
        item.ok_or_else(|| "its stack is empty".into())
    }

    fn top(&self) -> Result<Item, String> {
        self.stack.last().copied().ok_or_else(|| "its stack is empty".into())
    }

    /// Removes objects that another one gets, which is then on top.
    fn drop_above(&mut self, count: usize) -> Result<(), String> {
        for _ in 0..count {
            self.pop()?;
        }
        self.top().map(drop)
    }

    /// Removes the last mark, and returns where its objects begin.
    fn marked(&mut self) -> Result<usize, String> {
        self.marks.pop().ok_or_else(|| "it has no mark".into())
    }

    fn fixed(&mut self, width: usize) -> Result<(), String> {
        self.take(width)?;
        self.push(Item::Other, 24)
    }

    fn sized(&mut self, width: usize) -> Result<(), String> {
        let length = self.length(width)?;
        self.take(length)?;
        self.push(Item::Other, 40 + length as u64)
    }

    fn text(&mut self, width: usize) -> Result<(), String> {
        let length = self.length(width)?;
        let start = self.at;
        self.take(length)?;
        let (start, len) = place(start, length)?;
        self.push(Item::Text { start, len }, 64 + u64::from(len))
    }

    fn tuple(&mut self, count: usize) -> Result<(), String> {
        let begin = self.stack.len().checked_sub(count).ok_or("its stack is empty")?;
        let weights = self.stack[begin..].iter().map(|item| u64::from(item.weight()));
        let weight = u32::try_from(1 + weights.sum::<u64>()).unwrap_or(u32::MAX);
        if weight > TUPLE_MAX {
            return Err(format!("a tuple in it has more than {TUPLE_MAX} objects"));
        }
        self.stack.truncate(begin);
        self.push(Item::Tuple(weight), 48 + 8 * count as u64)
    }

    /// An operation on the memo whose number is a line of text.
    fn numbered(&mut self, is_put: bool) -> Result<(), String> {
        let (start, len) = self.line()?;
        let number = self.slice(start, len).parse().map_err(|_| "a number in it is invalid")?;
        if is_put { self.memoize(number) } else { self.recall(number) }
    }

    fn put(&mut self, width: usize) -> Result<(), String> {
        let number = self.length(width)?;
        self.memoize(number)
    }

    fn memoize(&mut self, number: usize) -> Result<(), String> {
        let item = self.top()?;
        // `pickle` reserves memory up to the highest number.
        if number > self.bytes.len() {
            return Err(format!("it has more than {number} objects by their numbers"));
        }
        if number >= self.memo.len() {
            self.spend(16 * (number + 1 - self.memo.len()) as u64)?;
            self.memo.resize(number + 1, None);
        }
        self.memo[number] = Some(item);
        Ok(())
    }

    fn get(&mut self, width: usize) -> Result<(), String> {
        let number = self.length(width)?;
        self.recall(number)
    }

    fn recall(&mut self, number: usize) -> Result<(), String> {
        let item = self.memo.get(number).copied().flatten();
        self.push(item.ok_or("it uses an object that it has not")?, 0)
    }

    fn global(&mut self, module: (u32, u32), name: (u32, u32)) -> Result<(), String> {
        let (module, name) = (self.slice(module.0, module.1), self.slice(name.0, name.1));
        let is_open = self.open.is_some_and(|open| open.contains(&format!("{module}.{name}")));
        self.push(Item::Global { is_open }, 80)
    }

    /// A class or function is called with `count` arguments.
    fn make(&mut self, count: usize) -> Result<(), String> {
        let mut weight = 1;
        for _ in 0..count {
            weight = self.pop()?.weight();
        }
        let is_open = match self.pop()? {
            Item::Global { is_open } => is_open,
            _ => return Err("it calls an object that is no class".into()),
        };
        // What it makes may be a tuple, such as a shape.
        let made = if is_open { Item::Made { is_open } } else { Item::Tuple(weight) };
        self.push(made, 120)
    }
}

fn place(start: usize, len: usize) -> Result<(u32, u32), String> {
    let both = (u32::try_from(start), u32::try_from(len));
    match both {
        (Ok(start), Ok(len)) => Ok((start, len)),
        _ => Err("it is larger than a pickle may be".into()),
    }
}
