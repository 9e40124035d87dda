//! Parses a header in one pass, without a tree of its values.

use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::error::Category;

use crate::{Dtype, Entry, Header, LENGTH, METADATA, Texts};

/// Most characters of a name in a message.
const SHOWN: usize = 100;

/// What is being read, for the message if it has another type than expected.
#[derive(Clone, Copy)]
enum Step {
    Header,
    Metadata,
    Tensor,
    Dtype,
    Shape,
    Offsets,
}

/// The header so far.
struct Parser {
    step: Step,
    /// The reason for which the header is refused, if it is not the JSON.
    refused: Option<String>,
    names: Texts,
    tensors: Vec<Entry>,
    shapes: Vec<u8>,
    /// `None` until the header has it; inside, `None` for `null`.
    metadata: Option<Option<Texts>>,
    begin: u64,
}

/// Parses the header of a file of `size` bytes; the error is the reason to refuse it.
pub(crate) fn header(text: &[u8], size: u64) -> Result<Header, String> {
    if text.first() != Some(&b'{') {
        return Err("its header is not a JSON object".into());
    }
    let mut parser = Parser {
        step: Step::Header,
        refused: None,
        names: Texts::default(),
        tensors: Vec::new(),
        shapes: Vec::new(),
        metadata: None,
        begin: LENGTH + text.len() as u64,
    };
    let mut json = serde_json::Deserializer::from_slice(text);
    let parsed = json.deserialize_map(&mut parser).and_then(|()| json.end());
    parsed.map_err(|error| parser.reason(&error))?;
    parser.finished(size)
}

impl Parser {
    /// The reason for an error of the JSON parser.
    fn reason(&mut self, error: &serde_json::Error) -> String {
        if let Some(reason) = self.refused.take() {
            return reason;
        }
        match (error.classify(), self.step) {
            (Category::Data, Step::Metadata) => {
                format!("`{METADATA}` of its header is not an object of strings")
            }
            (Category::Data, Step::Tensor) => format!("{} is not a JSON object", self.its()),
            (Category::Data, Step::Dtype) => format!("{} has an invalid `dtype`", self.its()),
            (Category::Data, Step::Shape) => format!("{} has an invalid shape", self.its()),
            (Category::Data, Step::Offsets) => {
                format!("{} has invalid `data_offsets`", self.its())
            }
            _ => format!("its header is not JSON: {error}"),
        }
    }

    /// The tensor that is being read.
    fn its(&self) -> String {
        let name = self.names.len().checked_sub(1).map_or("", |last| self.names.get(last));
        format!("its tensor `{}`", shortened(name))
    }

    /// Ends the parsing with a reason.
    fn refuse<E: serde::de::Error>(&mut self, reason: String) -> E {
        self.refused = Some(reason);
        E::custom("refused")
    }

    fn finished(mut self, size: u64) -> Result<Header, String> {
        self.tensors.sort_by_key(|tensor| (tensor.offset, tensor.nbytes));
        let order = self.tensors.iter().map(|tensor| tensor.name);
        if let Some(twice) = self.names.sort(order) {
            return Err(format!("its header has the name `{}` twice", shortened(twice)));
        }
        if let Some(Some(metadata)) = &mut self.metadata {
            let keys = (0..u32::try_from(metadata.len()).unwrap_or(0)).step_by(2);
            if let Some(twice) = metadata.sort(keys) {
                let twice = shortened(twice);
                return Err(format!("`{METADATA}` of its header has the key `{twice}` twice"));
            }
        }
        let mut end = self.begin;
        for tensor in &self.tensors {
            if tensor.offset != end {
                let kind = if tensor.offset < end { "overlap with" } else { "gap before" };
                let name = shortened(self.names.get(tensor.name));
                return Err(format!("{kind} its tensor `{name}`"));
            }
            end = end.saturating_add(tensor.nbytes);
        }
        if end != size {
            return Err(format!("its tensors end at byte {end}, but the file at byte {size}"));
        }
        self.names.shrink();
        self.tensors.shrink_to_fit();
        self.shapes.shrink_to_fit();
        let Self { names, tensors, shapes, metadata, .. } = self;
        Ok(Header { names, tensors, shapes, metadata: metadata.flatten() })
    }
}

/// A name for messages, cut after a hundred characters.
pub(crate) fn shortened(name: &str) -> String {
    match name.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.into(),
    }
}

impl<'de> Visitor<'de> for &mut Parser {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(number) = map.next_key_seed(Text(&mut self.names))? {
            if self.names.get(number) != METADATA {
                self.step = Step::Tensor;
                let about = map.next_value_seed(About(self))?;
                let entry = about.entry(self, number).map_err(|reason| self.refuse(reason))?;
                self.tensors.push(entry);
            } else if self.metadata.is_some() {
                return Err(self.refuse(format!("its header has `{METADATA}` twice")));
            } else {
                self.step = Step::Metadata;
                self.metadata = Some(map.next_value_seed(Strings)?);
            }
            self.step = Step::Header;
        }
        Ok(())
    }
}

/// Appends a string to others, and returns its number.
pub(crate) struct Text<'a>(pub(crate) &'a mut Texts);

impl<'de> DeserializeSeed<'de> for Text<'_> {
    type Value = u32;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<u32, D::Error> {
        from.deserialize_str(self)
    }
}

impl Visitor<'_> for Text<'_> {
    type Value = u32;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E>(self, text: &str) -> Result<u32, E> {
        Ok(self.0.push(text))
    }
}

/// Reads an object of strings, or `null`.
struct Strings;

impl<'de> DeserializeSeed<'de> for Strings {
    type Value = Option<Texts>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strings {
    type Value = Option<Texts>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut texts = Texts::default();
        while map.next_key_seed(Text(&mut texts))?.is_some() {
            map.next_value_seed(Text(&mut texts))?;
        }
        texts.shrink();
        Ok(Some(texts))
    }
}

/// The fields of a tensor.
#[derive(Default)]
struct Fields {
    dtype: Option<Dtype>,
    /// Where its shape begins in `Parser::shapes`, and its number of elements, unless that is more
    /// than 2**64 - 1.
    shape: Option<(usize, Option<u64>)>,
    offsets: Option<(u64, u64)>,
}

impl Fields {
    /// Checks the fields against each other.
    fn entry(&self, parser: &Parser, name: u32) -> Result<Entry, String> {
        let its = parser.its();
        let dtype = self.dtype.ok_or_else(|| format!("{its} has no `dtype`"))?;
        let (shape, elements) = self.shape.ok_or_else(|| format!("{its} has no `shape`"))?;
        let (begin, end) = self.offsets.ok_or_else(|| format!("{its} has no `data_offsets`"))?;
        let bits = elements.and_then(|elements| elements.checked_mul(dtype.bits()));
        let bits = bits.ok_or_else(|| format!("{its} has more than 2**64 bits"))?;
        if bits % 8 != 0 {
            return Err(format!("{its} has {bits} bits, which is not a whole number of bytes"));
        }
        let invalid = || format!("{its} has invalid `data_offsets`");
        let nbytes = end.checked_sub(begin).ok_or_else(invalid)?;
        let offset = parser.begin.checked_add(begin).ok_or_else(invalid)?;
        if nbytes != bits / 8 {
            let shape = parser.shown_shape(shape);
            let takes = bits / 8;
            return Err(format!(
                "{its} has {nbytes} bytes, but `{dtype}` of shape {shape} takes {takes}"
            ));
        }
        let shape = u32::try_from(shape).map_err(|_| invalid())?;
        Ok(Entry { name, shape, dtype, offset, nbytes })
    }
}

impl Parser {
    /// A shape for messages.
    fn shown_shape(&self, begin: usize) -> String {
        let mut bytes = self.shapes[begin..].iter().copied();
        let dimensions = crate::varint(&mut bytes);
        let first: Vec<_> = (0..dimensions.min(32)).map(|_| crate::varint(&mut bytes)).collect();
        shortened(&format!("{first:?}"))
    }

    /// Appends a number to the shapes.
    fn push(&mut self, mut number: u64) {
        while number >= 128 {
            self.shapes.push(number.to_le_bytes()[0] | 128);
            number >>= 7;
        }
        self.shapes.push(number.to_le_bytes()[0]);
    }
}

/// Reads what a header says about a tensor.
struct About<'a>(&'a mut Parser);

impl<'de> DeserializeSeed<'de> for About<'_> {
    type Value = Fields;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Fields, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for About<'_> {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
        let (parser, mut fields) = (self.0, Fields::default());
        while let Some(field) = map.next_key::<Field>()? {
            let twice = match field {
                Field::Dtype => {
                    parser.step = Step::Dtype;
                    fields.dtype.replace(map.next_value_seed(Type(parser))?).is_some()
                }
                Field::Shape => {
                    parser.step = Step::Shape;
                    fields.shape.replace(map.next_value_seed(Shape(parser))?).is_some()
                }
                Field::DataOffsets => {
                    parser.step = Step::Offsets;
                    fields.offsets.replace(map.next_value_seed(Offsets)?).is_some()
                }
                Field::Unknown => map.next_value_seed(Skipped).map(|()| false)?,
            };
            if twice {
                let its = parser.its();
                return Err(parser.refuse(format!("{its} has a field twice")));
            }
            parser.step = Step::Header;
        }
        Ok(fields)
    }
}

/// A field of a tensor.
#[derive(serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum Field {
    Dtype,
    Shape,
    DataOffsets,
    #[serde(other)]
    Unknown,
}

/// Reads the name of a type.
struct Type<'a>(&'a mut Parser);

impl<'de> DeserializeSeed<'de> for Type<'_> {
    type Value = Dtype;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Dtype, D::Error> {
        from.deserialize_str(self)
    }
}

impl Visitor<'_> for Type<'_> {
    type Value = Dtype;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Dtype, E> {
        name.parse().map_err(|()| {
            let (its, name) = (self.0.its(), shortened(name));
            let reason = format!("{its} has the type `{name}`, which safetensors does not have");
            self.0.refuse(reason)
        })
    }
}

/// Reads a shape.
struct Shape<'a>(&'a mut Parser);

impl<'de> DeserializeSeed<'de> for Shape<'_> {
    type Value = (usize, Option<u64>);

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Shape<'_> {
    type Value = (usize, Option<u64>);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of whole numbers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let parser = self.0;
        let begin = parser.shapes.len();
        // The product overflows even if a later size is zero, as in safetensors.
        let (mut dimensions, mut elements) = (0_u64, Some(1_u64));
        while let Some(size) = list.next_element::<u64>()? {
            parser.push(size);
            dimensions += 1;
            elements = elements.and_then(|elements| elements.checked_mul(size));
        }
        let sizes = parser.shapes.len();
        parser.push(dimensions);
        parser.shapes[begin..].rotate_left(sizes - begin);
        Ok((begin, elements))
    }
}

/// Reads where a tensor begins and ends.
struct Offsets;

impl<'de> DeserializeSeed<'de> for Offsets {
    type Value = (u64, u64);

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(u64, u64), D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Offsets {
    type Value = (u64, u64);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("two whole numbers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(u64, u64), A::Error> {
        match (list.next_element()?, list.next_element()?, list.next_element::<IgnoredAny>()?) {
            (Some(begin), Some(end), None) => Ok((begin, end)),
            _ => Err(A::Error::custom("not two numbers")),
        }
    }
}

/// Reads any value, as safetensors does: numbers that no type can hold are refused.
struct Skipped;

impl<'de> DeserializeSeed<'de> for Skipped {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Skipped {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(Skipped)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_key::<IgnoredAny>()?.is_some() {
            map.next_value_seed(Skipped)?;
        }
        Ok(())
    }
}
