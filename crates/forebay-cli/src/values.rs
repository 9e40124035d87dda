//! The values of arguments: sizes, GPUs, routes and paths.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use clap::builder::{PathBufValueParser, PossibleValue, PossibleValuesParser, TypedValueParser};
use forebay::Route;
use forebay::gpu::GpuSelector;
use forebay::units::parse_size;

/// The form of what a verb prints or writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Text for people.
    #[default]
    Table,
    /// JSON; of results, one record per line.
    Json,
    /// CSV with every number.
    Csv,
    /// Markdown.
    Md,
    /// A page for a browser.
    Html,
}

impl Format {
    /// The form of a file by its name; `None` if it has no suffix.
    ///
    /// # Errors
    /// The suffix, if it is that of no form.
    pub(crate) fn of_name(path: &Path) -> Result<Option<Self>, String> {
        let suffix = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
        match suffix.as_str() {
            "" => Ok(None),
            "txt" => Ok(Some(Self::Table)),
            "json" | "jsonl" => Ok(Some(Self::Json)),
            "csv" => Ok(Some(Self::Csv)),
            "md" | "markdown" => Ok(Some(Self::Md)),
            "html" | "htm" => Ok(Some(Self::Html)),
            _ => Err(suffix),
        }
    }
}

/// The forms of verbs whose output is no table of results.
pub(crate) fn text_or_json() -> impl TypedValueParser<Value = Format> {
    let parser = PossibleValuesParser::new(["table", "json"]);
    parser.map(|name| if name == "json" { Format::Json } else { Format::Table })
}

/// A parser whose usual values completions offer.
#[derive(Clone)]
pub(crate) struct Listed<T> {
    parse: fn(&str) -> Result<T, String>,
    names: Vec<&'static str>,
}

pub(crate) fn listed<T>(
    parse: fn(&str) -> Result<T, String>,
    names: impl IntoIterator<Item = &'static str>,
) -> Listed<T> {
    Listed { parse, names: names.into_iter().collect() }
}

impl<T: Clone + Send + Sync + 'static> TypedValueParser for Listed<T> {
    type Value = T;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<T, clap::Error> {
        self.parse.parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.names.iter().map(PossibleValue::new)))
    }
}

/// Usual names of GPUs.
pub(crate) const GPUS: [&str; 3] = ["0", "none", "sim"];

/// A GPU.
pub(crate) fn one_gpu() -> Listed<GpuSelector> {
    listed(gpu, GPUS)
}

/// A route.
pub(crate) fn one_route() -> Listed<Route> {
    listed(route, Route::ALL.map(Route::name))
}

pub(crate) fn size(text: &str) -> Result<u64, String> {
    // `1g`, as other tools take it.
    let size = parse_size(text).or_else(|| parse_size(&text.to_uppercase()));
    size.ok_or_else(|| "it takes a size such as `64K` or `1.5GiB`".into())
}

pub(crate) fn positive_size(text: &str) -> Result<u64, String> {
    match size(text)? {
        0 => Err("it takes a size above zero".into()),
        len => Ok(len),
    }
}

pub(crate) fn gpu(text: &str) -> Result<GpuSelector, String> {
    text.parse().map_err(|error: forebay::Error| match error {
        // The flag has a name already.
        forebay::Error::BadOption { name, expected, .. } if name == "gpu" => {
            format!("it takes {expected}")
        }
        forebay::Error::BadOption { name, expected, .. } => format!("`{name}` takes {expected}"),
        other => other.to_string(),
    })
}

/// A path on this machine.
pub(crate) fn local_path() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| {
        let scheme = path.to_str().and_then(|path| Some(path.split_once("://")?.0));
        match scheme.filter(|scheme| scheme.chars().all(|c| c.is_ascii_alphanumeric())) {
            Some(_) => Err("remote objects are not supported: copy or mount them first"),
            None => Ok(path),
        }
    })
}

pub(crate) fn route(text: &str) -> Result<Route, String> {
    text.parse().map_err(|_| "it takes `direct`, `staged`, `cached` or `host`".into())
}
