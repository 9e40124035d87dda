//! The size of one request for a file with a cache of keys and values. Pure.
//!
//! Bytes per token, and how they are divided, follow the models' published shapes. DeepSeek-R1 has
//! a latent of 512 and a rotary part of 64 for each of 61 layers, which tensor parallelism
//! replicates. Llama 3.1 has keys and values of 8 heads of 128, which it divides.

use std::fmt;
use std::str::FromStr;

/// A model's shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Model {
    name: &'static str,
    layers: u64,
    /// Heads of keys and values; 1 if every GPU holds all of them.
    heads: u64,
    /// Numbers of a token in each head.
    numbers: u64,
}

const MODELS: [Model; 4] = [
    Model { name: "deepseek-r1", layers: 61, heads: 1, numbers: 512 + 64 },
    Model { name: "llama-8b", layers: 32, heads: 8, numbers: 2 * 128 },
    Model { name: "llama-70b", layers: 80, heads: 8, numbers: 2 * 128 },
    Model { name: "llama-405b", layers: 126, heads: 8, numbers: 2 * 128 },
];

/// Types of numbers, and their bytes.
const TYPES: [(&str, u64); 4] = [("fp8", 1), ("int8", 1), ("fp16", 2), ("bf16", 2)];
/// Limit of plausible tokens of a page, and GPUs of one model.
const NUMBER_MAX: u64 = 65_536;

/// Blocks of a cache of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kv {
    model: Model,
    kind: (&'static str, u64),
    tensor_parallel: u64,
    page: u64,
    /// Whether one request has a page of all layers, not of one.
    all_layers: bool,
}

impl Kv {
    /// Bytes of one request.
    #[must_use]
    pub fn request_size(&self) -> u64 {
        let layers = if self.all_layers { self.model.layers } else { 1 };
        // On more GPUs than there are heads, several hold the same head.
        let heads = self.model.heads.div_ceil(self.tensor_parallel);
        heads * self.model.numbers * self.kind.1 * self.page * layers
    }
}

impl fmt::Display for Kv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, kind, tensor_parallel, page, all_layers } = self;
        let access = if *all_layers { "block" } else { "layer" };
        write!(f, "kv:{}:{}:tp{tensor_parallel}:page{page}:{access}", model.name, kind.0)
    }
}

impl FromStr for Kv {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.strip_prefix("kv:").unwrap_or(text);
        let mut words = text.split(':');
        let name = words.next().unwrap_or_default();
        let model = MODELS.into_iter().find(|model| model.name == name).ok_or_else(|| {
            let names = MODELS.map(|model| format!("`{}`", model.name)).join(", ");
            format!("`{name}` is not a known model: it takes {names}")
        })?;
        let mut kv =
            Self { model, kind: TYPES[3], tensor_parallel: 1, page: 16, all_layers: false };
        for word in words {
            let number = |prefix| {
                let digits = word.strip_prefix(prefix).filter(|digits| !digits.starts_with('+'));
                digits?.parse().ok().filter(|number| (1..=NUMBER_MAX).contains(number))
            };
            if let Some(kind) = TYPES.into_iter().find(|kind| kind.0 == word) {
                kv.kind = kind;
            } else if let Some(tp) = number("tp") {
                kv.tensor_parallel = tp;
            } else if let Some(page) = number("page") {
                kv.page = page;
            } else if word == "layer" || word == "block" {
                kv.all_layers = word == "block";
            } else {
                return Err(format!(
                    "`{word}` is none of `fp8`, `int8`, `fp16`, `bf16`, `tp8`, `page16`, `layer` \
                     and `block`"
                ));
            }
        }
        let (heads, gpus) = (kv.model.heads, kv.tensor_parallel);
        if !heads.max(gpus).is_multiple_of(heads.min(gpus)) {
            return Err(format!(
                "{heads} heads of keys and values cannot be divided among {gpus} GPUs: `tp` must \
                 be a divisor or a multiple of {heads}"
            ));
        }
        Ok(kv)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_models() {
        let size = |text: &str| text.parse::<Kv>().unwrap().request_size();
        assert_eq!(size("deepseek-r1:fp8:page16:layer"), 9_216);
        assert_eq!(size("deepseek-r1:fp8:page16:tp8:layer"), 9_216, "replicated");
        assert_eq!(size("deepseek-r1:fp8:page64:block"), 2_248_704);
        assert_eq!(size("deepseek-r1:bf16:page256:block"), 17_989_632);
        assert_eq!(size("llama-70b:fp8:page16:layer"), 32_768);
        assert_eq!(size("llama-70b:bf16:page256:block"), 80 << 20);
        assert_eq!(size("llama-70b:bf16:tp8:page16"), 8_192);
        assert_eq!(size("llama-70b:tp8:page64:block"), 2_621_440);
        assert_eq!(size("llama-405b:tp16"), size("llama-405b:tp8"), "heads are not cut");
    }

    #[test]
    fn a_name_is_read_back() {
        for text in ["llama-8b", "kv:llama-405b:fp8:tp4:page32:block", "deepseek-r1:int8:layer"] {
            let kv: Kv = text.parse().unwrap();
            assert_eq!(kv.to_string().parse::<Kv>().unwrap(), kv);
        }
        assert_eq!(
            "llama-8b".parse::<Kv>().unwrap().to_string(),
            "kv:llama-8b:bf16:tp1:page16:layer"
        );
    }

    #[test]
    fn wrong_words_are_named() {
        let why = |text: &str| text.parse::<Kv>().unwrap_err();
        assert!(why("gpt").contains("`llama-70b`"));
        assert!(why("llama-70b:fp4").starts_with("`fp4` is none of"));
        assert!(why("llama-70b:tp0").starts_with("`tp0`"));
        for gpus in ["tp7", "tp12"] {
            assert!(why(&format!("llama-70b:{gpus}")).contains("a divisor or a multiple of 8"));
        }
        assert!(why("llama-70b:page99999999999999999999").starts_with("`page9"));
    }

    proptest::proptest! {
        #[test]
        fn no_word_ends_the_command(words in "[a-z0-9:é-]{0,40}", any: String) {
            let _ = words.parse::<Kv>();
            let _ = any.parse::<Kv>();
            let _ = format!("llama-70b:{words}").parse::<Kv>();
            let _ = format!("llama-70b:{any}").parse::<Kv>();
        }
    }
}
