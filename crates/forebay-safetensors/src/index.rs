//! The index of a model in several files: which file each tensor is in.

use std::collections::HashMap;
use std::fmt;
use std::sync::OnceLock;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::HEADER_MAX;
use crate::parse::{Text, shortened};
use crate::texts::Texts;

/// Most files of a model. The largest ones have about a thousand.
const FILES_MAX: usize = 100_000;

/// The `weight_map` of an index file, such as `model.safetensors.index.json`.
#[derive(Debug)]
pub struct Index {
    names: Texts,
    /// The number of each tensor's file.
    of_tensor: Vec<u32>,
    files: Vec<String>,
    /// Numbers of tensors, those of the first file first, and where each file's begin.
    by_file: Vec<u32>,
    begins: Vec<usize>,
    /// Numbers of tensors in the order of their names, made by the first look for a name.
    sorted: OnceLock<Vec<u32>>,
}

impl Index {
    /// Parses an index.
    ///
    /// # Errors
    /// The reason why it is not one.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        if text.len() as u64 > HEADER_MAX {
            return Err(format!("it has {} bytes, more than {HEADER_MAX}", text.len()));
        }
        let mut index = Self {
            names: Texts::default(),
            of_tensor: Vec::new(),
            files: Vec::new(),
            by_file: Vec::new(),
            begins: Vec::new(),
            sorted: OnceLock::new(),
        };
        let mut json = serde_json::Deserializer::from_slice(text);
        let found =
            json.deserialize_map(Top(&mut index)).and_then(|found| json.end().map(|()| found));
        match found {
            Ok(true) => {
                index.names.shrink();
                index.group();
                Ok(index)
            }
            Ok(false) => Err("it has no `weight_map`".into()),
            Err(error) if error.is_data() => {
                Err(format!("its `weight_map` does not say which file each tensor is in: {error}"))
            }
            Err(error) => Err(format!("it is not JSON: {error}")),
        }
    }

    /// The names of the files, in the order in which the index has them.
    #[must_use]
    pub fn files(&self) -> &[String] {
        &self.files
    }

    /// The number of tensors in a file, by its number in [`files`](Self::files).
    #[must_use]
    pub fn len(&self, file: usize) -> usize {
        self.begins.get(file + 1).map_or(0, |end| end - self.begins[file])
    }

    /// The name of a file's tensor, in the order in which the index has them.
    #[must_use]
    pub fn name(&self, file: usize, place: usize) -> Option<&str> {
        let all = self.by_file.get(*self.begins.get(file)?..*self.begins.get(file + 1)?)?;
        Some(self.names.get(*all.get(place)?))
    }

    /// Sorts the numbers of tensors by their files.
    fn group(&mut self) {
        self.begins = vec![0; self.files.len() + 1];
        for &file in &self.of_tensor {
            self.begins[file as usize + 1] += 1;
        }
        for file in 1..self.begins.len() {
            self.begins[file] += self.begins[file - 1];
        }
        let mut ends = self.begins.clone();
        self.by_file = vec![0; self.of_tensor.len()];
        for (tensor, &file) in (0..).zip(&self.of_tensor) {
            let place = &mut ends[file as usize];
            self.by_file[*place] = tensor;
            *place += 1;
        }
    }

    /// The number of a tensor's file.
    ///
    /// # Errors
    /// A name that the index has twice.
    pub fn file_of(&self, name: &str) -> Result<Option<usize>, String> {
        let sorted = self.sorted.get_or_init(|| {
            let mut sorted: Vec<u32> = self.by_file.clone();
            sorted.sort_unstable_by(|&one, &other| self.names.get(one).cmp(self.names.get(other)));
            sorted
        });
        let place = sorted.partition_point(|&number| self.names.get(number) < name);
        let mut found =
            sorted[place..].iter().take_while(|&&number| self.names.get(number) == name);
        let first = found.next().map(|&number| self.of_tensor[number as usize] as usize);
        match found.next() {
            Some(_) => Err(format!("it has the tensor `{}` twice", shortened(name))),
            None => Ok(first),
        }
    }
}

/// Reads an index; false if it has no `weight_map`.
struct Top<'a>(&'a mut Index);

impl<'de> Visitor<'de> for Top<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with `weight_map`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        let mut found = false;
        while let Some(key) = map.next_key::<Key>()? {
            match key {
                Key::WeightMap if found => {
                    return Err(serde::de::Error::custom("it has `weight_map` twice"));
                }
                Key::WeightMap => {
                    map.next_value_seed(Weights(&mut *self.0))?;
                    found = true;
                }
                Key::Other => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(found)
    }
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum Key {
    WeightMap,
    #[serde(other)]
    Other,
}

/// Reads the file of each tensor.
struct Weights<'a>(&'a mut Index);

impl<'de> DeserializeSeed<'de> for Weights<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Weights<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a file for each tensor")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let index = self.0;
        let mut numbers: HashMap<String, u32> = HashMap::new();
        while map.next_key_seed(Text(&mut index.names))?.is_some() {
            let file: std::borrow::Cow<'_, str> = map.next_value()?;
            let number = match numbers.get(file.as_ref()) {
                Some(&number) => number,
                None if index.files.len() == FILES_MAX => {
                    let text = format!("it names more than {FILES_MAX} files");
                    return Err(serde::de::Error::custom(text));
                }
                None => {
                    let number = u32::try_from(index.files.len()).unwrap_or(u32::MAX);
                    index.files.push(file.clone().into_owned());
                    numbers.insert(file.into_owned(), number);
                    number
                }
            };
            index.of_tensor.push(number);
        }
        Ok(())
    }
}
