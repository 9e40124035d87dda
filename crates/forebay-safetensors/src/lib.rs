//! The header of a safetensors file: where the bytes of each tensor are.
//!
//! A file begins with eight bytes, the length of its header. The header is JSON. The bytes of the
//! tensors follow, one after another without gaps, up to the end of the file. This is the format
//! of safetensors 0.8.
//!
//! Reading takes time linear in the header, and a header takes at most twice its own length in
//! memory, whatever it contains. `parse` reads the JSON, `dtype` has the types, and `texts` keeps
//! many strings in one allocation. `index` reads the index of a model in several files.

mod dtype;
mod index;
mod parse;
#[cfg(test)]
mod tests;
mod texts;

use forebay::File;

pub use dtype::Dtype;
pub use index::Index;
use texts::Texts;

/// Bytes of the header's length, with which a file begins.
pub const LENGTH: u64 = 8;

/// Most bytes of a header, as in safetensors.
pub const HEADER_MAX: u64 = 100_000_000;

/// The name in a header that does not name a tensor.
pub const METADATA: &str = "__metadata__";

/// Why a header could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file could not be read.
    #[error(transparent)]
    Read(#[from] forebay::Error),
    /// The file is not a valid safetensors file; the text says what is wrong with "it" or "its".
    #[error("{0}")]
    Invalid(String),
}

/// The content of a file's header.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = forebay::Engine::new(forebay::Options::from_env()?)?;
/// let file = engine.open("model.safetensors")?;
/// let header = forebay_safetensors::Header::read(&file)?;
/// for tensor in header.tensors() {
///     println!("{} {} {:?} at {}", tensor.name, tensor.dtype, tensor.shape, tensor.offset);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Header {
    names: Texts,
    /// In the order of their bytes.
    tensors: Vec<Entry>,
    /// Shapes as varints: the number of dimensions, then each of them.
    shapes: Vec<u8>,
    /// Keys and values in turn.
    metadata: Option<Texts>,
}

/// A tensor of a header, without its name and shape.
#[derive(Clone, Copy, Debug)]
struct Entry {
    name: u32,
    shape: u32,
    dtype: Dtype,
    offset: u64,
    nbytes: u64,
}

/// A tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor<'a> {
    /// Its name.
    pub name: &'a str,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its shape, in elements.
    pub shape: Vec<u64>,
    /// The offset of its bytes in the file.
    pub offset: u64,
    /// The number of its bytes.
    pub nbytes: u64,
}

impl Header {
    /// Reads and checks the header of a file.
    ///
    /// # Errors
    /// [`Error::Read`] if the file cannot be read, [`Error::Invalid`] if it is not a safetensors
    /// file.
    pub fn read(file: &File) -> Result<Self, Error> {
        let size = file.len()?;
        let mut length = [0; 8];
        let found = file.read(&mut length).run()?;
        let length = Self::length(&length, found.bytes, size)?;
        let mut text = vec![0; length];
        file.read(&mut text).at(LENGTH).exact().run()?;
        Self::parse(&text, size)
    }

    /// The length of a file's header, from the first `found` bytes of the file.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a file of `size` bytes cannot have such a header.
    pub fn length(head: &[u8; 8], found: u64, size: u64) -> Result<usize, Error> {
        if size < LENGTH || found < LENGTH {
            let text = format!("it has {size} bytes, but the length of its header takes {LENGTH}");
            return Err(Error::Invalid(text));
        }
        let length = u64::from_le_bytes(*head);
        let its = format!("its header would have {length} bytes");
        if length > HEADER_MAX {
            return Err(Error::Invalid(format!("{its}, more than {HEADER_MAX}")));
        }
        match usize::try_from(length) {
            Ok(length) if length as u64 <= size - LENGTH => Ok(length),
            _ => Err(Error::Invalid(format!("{its}, but the file has {size}"))),
        }
    }

    /// Checks the header of a file of `size` bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub fn parse(text: &[u8], size: u64) -> Result<Self, Error> {
        parse::header(text, size).map_err(Error::Invalid)
    }

    /// The number of tensors.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether the file has no tensor.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// The tensors in the order of their bytes.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Tensor<'_>> {
        self.tensors.iter().map(|entry| self.tensor(entry))
    }

    /// The names of the tensors in the order of their bytes.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.tensors.iter().map(|entry| self.names.get(entry.name))
    }

    /// The tensor of a name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Tensor<'_>> {
        self.at(self.place(name)?)
    }

    /// The number of a tensor, in the order of their bytes.
    #[must_use]
    pub fn place(&self, name: &str) -> Option<usize> {
        self.names.find(name)
    }

    /// The tensor of a number.
    #[must_use]
    pub fn at(&self, place: usize) -> Option<Tensor<'_>> {
        self.tensors.get(place).map(|entry| self.tensor(entry))
    }

    /// The strings under [`METADATA`], if the header has that.
    pub fn metadata(&self) -> Option<impl ExactSizeIterator<Item = (&str, &str)>> {
        let texts = self.metadata.as_ref()?;
        Some((0..texts.len() / 2).map(|pair| (texts.get(2 * pair), texts.get(2 * pair + 1))))
    }

    fn tensor(&self, entry: &Entry) -> Tensor<'_> {
        let mut bytes = self.shapes[entry.shape as usize..].iter().copied();
        let dimensions = varint(&mut bytes);
        Tensor {
            name: self.names.get(entry.name),
            dtype: entry.dtype,
            shape: (0..dimensions).map(|_| varint(&mut bytes)).collect(),
            offset: entry.offset,
            nbytes: entry.nbytes,
        }
    }
}

/// Takes a number of seven bits a byte, the lowest first; the last byte has no high bit.
fn varint(bytes: &mut impl Iterator<Item = u8>) -> u64 {
    let mut number = 0;
    for (place, byte) in bytes.enumerate() {
        number |= u64::from(byte & 127) << (7 * place);
        if byte < 128 {
            break;
        }
    }
    number
}
