//! Values that the user adds to a file (`--map NAME:=VALUE`): the same for all of its measurements,
//! and never contradicting the file.

use forebay::units::parse_size;

use super::near::near;
use crate::report::json::Cache;
use crate::results::Point;

/// The axes that can be set, by name.
pub(crate) const AXES: [&str; 10] = [
    "path",
    "target",
    "direction",
    "pattern",
    "size",
    "depth",
    "batch",
    "threads",
    "files",
    "cache",
];

/// Most characters of a text.
const TEXT_MAX: usize = 4096;

/// A value of an axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Said {
    axis: &'static str,
    value: String,
}

impl Said {
    /// The value of an axis, or of `method`.
    ///
    /// # Errors
    /// The name is unknown, or it is not a value of that axis.
    pub(super) fn of(name: &str, value: &str) -> Result<Self, String> {
        let known = AXES.into_iter().chain(["method"]).find(|axis| *axis == name.trim());
        let axis = known.ok_or_else(|| match near(name, AXES) {
            Some(near) => format!("unknown axis `{name}`: perhaps `{near}` was meant"),
            None => format!("unknown axis `{name}`: use method, {}", AXES.join(", ")),
        })?;
        let said = Self { axis, value: value.trim().to_owned() };
        let mut point = super::found::point("", 100);
        said.put(&mut point, &mut None)?;
        Ok(said)
    }

    /// The axis of the value.
    pub(super) const fn axis(&self) -> &'static str {
        self.axis
    }

    /// The method, if it was set.
    pub(super) fn method(&self) -> Option<&str> {
        (self.axis == "method").then_some(self.value.as_str())
    }

    /// The share of reads, if the direction was set.
    pub(super) fn read_percent(&self) -> Option<u8> {
        (self.axis == "direction").then(|| direction(&self.value).ok().map(|(reads, _)| reads))?
    }

    /// Sets the value on a point; `reads` is where the direction goes.
    ///
    /// # Errors
    /// It is not a value of the axis.
    pub(super) fn put(&self, point: &mut Point, reads: &mut Option<u8>) -> Result<(), String> {
        put(self.axis, &self.value, point, reads)
    }

    /// Sets the value on a point that has none.
    ///
    /// # Errors
    /// It has another value.
    pub(super) fn add_to(&self, point: &mut Point) -> Result<(), String> {
        let told = match self.axis {
            // If the file does not report it, the parser already used this value.
            "method" => !point.way.is_empty(),
            "direction" => self.read_percent() != Some(point.read_percent),
            "path" => !point.path.is_empty(),
            // A file seldom names its GPU.
            "target" => !(point.targets.is_empty() || point.targets == ["gpu"]),
            "pattern" => !point.pattern.is_empty(),
            "size" => point.request_size != 0,
            "depth" => point.depth != 0,
            "batch" => point.batch != 0,
            "threads" => point.threads != 0,
            "files" => point.files != 0,
            _ => point.cache.is_some(),
        };
        let mut changed = point.clone();
        self.put(&mut changed, &mut None)?;
        if told && (changed != *point || self.axis == "direction") {
            return Err(format!("the file already has the {}", self.axis));
        }
        *point = changed;
        Ok(())
    }
}

/// Sets a value, as a user or a table has it, on an axis.
///
/// # Errors
/// It is not a value of the axis.
pub(super) fn put(
    axis: &str,
    value: &str,
    point: &mut Point,
    reads: &mut Option<u8>,
) -> Result<(), String> {
    let count = || {
        let count = value.parse::<u32>().ok().filter(|count| *count > 0);
        count.ok_or_else(|| format!("`{axis}` takes a number of 1 or more"))
    };
    if value.is_empty() || value.chars().count() > TEXT_MAX {
        return Err(format!("`{axis}` needs a value of at most {TEXT_MAX} characters"));
    }
    match axis {
        "method" => point.way = value.into(),
        "path" => point.path = value.into(),
        "target" => point.targets = value.split('+').map(|part| part.trim().to_owned()).collect(),
        "direction" => {
            let (percent, pattern) = direction(value)?;
            *reads = Some(percent);
            if let Some(pattern) = pattern.filter(|_| point.pattern.is_empty()) {
                point.pattern = pattern.into();
            }
        }
        "pattern" => point.pattern = value.into(),
        "size" => {
            let size = parse_size(value).filter(|size| *size > 0);
            point.request_size = size.ok_or("`size` takes a size such as `64K`")?;
        }
        "depth" => point.depth = count()?,
        "batch" => point.batch = count()?,
        "threads" => point.threads = count()?,
        "files" => point.files = count()?,
        _ => {
            let known = [Cache::Cold, Cache::Resident].into_iter();
            let known = known.into_iter().find(|cache| cache.name() == value);
            point.cache = Some(known.ok_or("`cache` takes `cold` or `resident`")?);
        }
    }
    Ok(())
}

/// The share of reads, and the order if the word includes it.
fn direction(text: &str) -> Result<(u8, Option<&'static str>), String> {
    let lower = text.to_lowercase();
    let mixed = lower.strip_prefix("mixed:").and_then(|percent| percent.parse().ok());
    match lower.as_str() {
        "read" | "r" => Ok((100, None)),
        "write" | "w" => Ok((0, None)),
        "randread" => Ok((100, Some("random"))),
        "randwrite" => Ok((0, Some("random"))),
        "seqread" => Ok((100, Some("sequential"))),
        "seqwrite" => Ok((0, Some("sequential"))),
        _ => {
            let percent = mixed.filter(|percent| (0..=100).contains(percent));
            let why = "`direction` takes `read`, `write`, or `mixed:70` for 70 % reads";
            percent.map(|percent| (percent, None)).ok_or_else(|| why.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::foreign::found::point;

    fn said(text: &str) -> Result<Said, String> {
        let (name, value) = text.split_once('=').unwrap();
        Said::of(name, value)
    }

    #[test]
    fn a_value_fills_a_gap_and_contradicts_nothing() {
        let mut of = point("fio-psync", 100);
        of.depth = 4;
        for text in ["path=/data", "target=cuda:1", "size=64K", "cache=cold", "depth=4", "files=2"]
        {
            said(text).unwrap().add_to(&mut of).unwrap();
        }
        assert_eq!((of.path.as_str(), of.request_size, of.files), ("/data", 65536, 2));
        assert_eq!(
            (of.targets.as_slice(), of.cache),
            (&["cuda:1".to_owned()][..], Some(Cache::Cold))
        );
        let failure = said("depth=5").unwrap().add_to(&mut of).unwrap_err();
        assert_eq!(failure, "the file already has the depth");
        assert!(said("direction=write").unwrap().add_to(&mut of).is_err());
        assert_eq!(said("direction=mixed:70").unwrap().read_percent(), Some(70));
    }

    #[test]
    fn unknown_names_and_values_are_refused() {
        let why = |text: &str| said(text).unwrap_err();
        assert_eq!(why("threds=3"), "unknown axis `threds`: perhaps `threads` was meant");
        assert!(why("colour=3").contains("use method, path"));
        assert!(why("depth=0").contains("1 or more") && why("size=-1").contains("`64K`"));
        assert!(why("cache=warm").contains("`resident`") && why("path=").contains("needs a value"));
        assert!(why("direction=mixed:101").contains("mixed:70"));
    }

    proptest::proptest! {
        #[test]
        fn no_text_ends_the_command(text: String, number in 0..AXES.len()) {
            let _ = Said::of(AXES[number], &text);
        }
    }
}
