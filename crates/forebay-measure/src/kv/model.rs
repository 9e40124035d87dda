//! The bytes of a block of a KV cache. Pure.
//!
//! Bytes per token, and how they are divided, follow the models' published shapes. DeepSeek-R1 has
//! a latent of 512 and a rotary part of 64 for each of 61 layers, which tensor parallelism
//! replicates. Llama 3.1 has keys and values of 8 heads of 128, which it divides.

use std::fmt;
use std::str::FromStr;

use forebay::units::format_size;
use forebay_blocks::BLOCK_MAX;

/// The shape of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    name: &'static str,
    layers: u64,
    /// Heads of keys and values; 1 if every GPU holds all of them.
    heads: u64,
    /// Numbers of a token in each head.
    numbers: u64,
}

const MODELS: [Shape; 4] = [
    Shape { name: "deepseek-r1", layers: 61, heads: 1, numbers: 512 + 64 },
    Shape { name: "llama-8b", layers: 32, heads: 8, numbers: 2 * 128 },
    Shape { name: "llama-70b", layers: 80, heads: 8, numbers: 2 * 128 },
    Shape { name: "llama-405b", layers: 126, heads: 8, numbers: 2 * 128 },
];

/// Types of numbers, and their bytes.
const TYPES: [(&str, u64); 4] = [("fp8", 1), ("int8", 1), ("fp16", 2), ("bf16", 2)];
/// Limit of plausible tokens of a page, and GPUs of one model.
const NUMBER_MAX: u64 = 65_536;

/// A model, and how its KV cache is cut into blocks: a block has a page of tokens of all layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Model {
    shape: Shape,
    kind: (&'static str, u64),
    tensor_parallel: u64,
    page: u64,
}

impl Model {
    /// The names of the models.
    pub fn names() -> impl Iterator<Item = &'static str> {
        MODELS.into_iter().map(|shape| shape.name)
    }

    /// Bytes of one block.
    #[must_use]
    pub fn block_len(&self) -> u64 {
        // On more GPUs than there are heads, several hold the same head.
        let heads = self.shape.heads.div_ceil(self.tensor_parallel);
        heads * self.shape.numbers * self.kind.1 * self.page * self.shape.layers
    }

    /// Tokens of one block.
    #[must_use]
    pub const fn page(&self) -> u64 {
        self.page
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shape, kind, tensor_parallel, page } = self;
        write!(f, "kv:{}:{}:tp{tensor_parallel}:page{page}", shape.name, kind.0)
    }
}

impl FromStr for Model {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.strip_prefix("kv:").unwrap_or(text);
        let mut words = text.split(':');
        let name = words.next().unwrap_or_default();
        let shape = MODELS.into_iter().find(|shape| shape.name == name).ok_or_else(|| {
            let names = MODELS.map(|shape| format!("`{}`", shape.name)).join(", ");
            format!("`{name}` is not a known model: it takes {names}")
        })?;
        let mut model = Self { shape, kind: TYPES[3], tensor_parallel: 1, page: 16 };
        for word in words {
            let number = |prefix| {
                let digits = word.strip_prefix(prefix).filter(|digits| !digits.starts_with('+'));
                digits?.parse().ok().filter(|number| (1..=NUMBER_MAX).contains(number))
            };
            if let Some(kind) = TYPES.into_iter().find(|kind| kind.0 == word) {
                model.kind = kind;
            } else if let Some(tp) = number("tp") {
                model.tensor_parallel = tp;
            } else if let Some(page) = number("page") {
                model.page = page;
            } else {
                return Err(format!(
                    "`{word}` is none of `fp8`, `int8`, `fp16`, `bf16`, `tp8` and `page16`"
                ));
            }
        }
        let (heads, gpus) = (model.shape.heads, model.tensor_parallel);
        if !heads.max(gpus).is_multiple_of(heads.min(gpus)) {
            return Err(format!(
                "{heads} heads of keys and values cannot be divided among {gpus} GPUs: `tp` must \
                 be a divisor or a multiple of {heads}"
            ));
        }
        if model.block_len() > BLOCK_MAX {
            return Err(format!(
                "its blocks have {}, and the store's have {} at most: use a smaller `page`, or a \
                 larger `tp`",
                format_size(model.block_len()),
                format_size(BLOCK_MAX)
            ));
        }
        Ok(model)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_models() {
        let size = |text: &str| text.parse::<Model>().unwrap().block_len();
        assert_eq!(size("deepseek-r1:fp8"), 562_176);
        assert_eq!(size("deepseek-r1:fp8:tp8"), 562_176, "replicated");
        assert_eq!(size("deepseek-r1:bf16:page256"), 17_989_632);
        assert_eq!(size("llama-70b:fp8"), 2_621_440);
        assert_eq!(size("llama-70b:tp8:page64"), 2_621_440);
        assert_eq!(size("llama-405b:tp16"), size("llama-405b:tp8"), "heads are not cut");
    }

    #[test]
    fn a_name_is_read_back() {
        for text in ["llama-8b", "kv:llama-405b:fp8:tp4:page32", "deepseek-r1:int8"] {
            let model: Model = text.parse().unwrap();
            assert_eq!(model.to_string().parse::<Model>().unwrap(), model);
        }
        assert_eq!("llama-8b".parse::<Model>().unwrap().to_string(), "kv:llama-8b:bf16:tp1:page16");
    }

    #[test]
    fn wrong_words_are_named() {
        let why = |text: &str| text.parse::<Model>().unwrap_err();
        assert!(why("gpt").contains("`llama-70b`"));
        assert!(why("llama-70b:fp4").starts_with("`fp4` is none of"));
        assert!(why("llama-70b:tp0").starts_with("`tp0`"));
        for gpus in ["tp7", "tp12"] {
            assert!(why(&format!("llama-70b:{gpus}")).contains("a divisor or a multiple of 8"));
        }
        assert!(why("llama-70b:page99999999999999999999").starts_with("`page9"));
        assert!(why("llama-70b:page256").contains("80 MiB"), "{}", why("llama-70b:page256"));
    }

    proptest::proptest! {
        #[test]
        fn no_word_ends_the_command(words in "[a-z0-9:é-]{0,40}", any: String) {
            let _ = words.parse::<Model>();
            let _ = any.parse::<Model>();
            let _ = format!("llama-70b:{words}").parse::<Model>();
            let _ = format!("llama-70b:{any}").parse::<Model>();
        }
    }
}
