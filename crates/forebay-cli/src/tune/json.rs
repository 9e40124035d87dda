//! The result of `forebay tune` as JSON, version 2; docs/json-schema.md describes every key.
//!
//! Plain data that hold everything drawn, so that the drawing is a pure function of them.

use serde::{Deserialize, Serialize};

use super::curve::{Cell, Curve, Point};
use crate::report::json::{Direction, Environment};

/// The version of the schema: it grows when a key changes its meaning or is removed.
pub const SCHEMA: u32 = 2;

/// One run of `forebay tune`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TuneReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The machine and the command.
    pub environment: Environment,
    /// The path as given.
    pub path: String,
    /// Whether a scratch file was measured instead of a file of the user's.
    pub scratch: bool,
    /// Bytes of the file that were moved, repeatedly.
    pub bytes: u64,
    /// One for each direction.
    pub searches: Vec<Searched>,
    /// Settings for other programs.
    pub settings: Vec<Setting>,
    /// Notes for the reader of the numbers, as sentences.
    pub warnings: Vec<String>,
}

impl TuneReport {
    /// The report as text, with a line feed at its end.
    ///
    /// # Errors
    /// None are known: numbers and text always serialize.
    pub fn to_text(&self) -> serde_json::Result<String> {
        crate::report::plain::json_lines(self)
    }
}

/// The result in one direction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Searched {
    /// The direction.
    pub direction: Direction,
    /// Identifies the queue that serves the file.
    pub queue: String,
    /// The choice for the engine.
    pub found: Choice,
    /// The fastest point of all.
    pub best: Choice,
    /// The lowest sufficient depth of each block size.
    pub knees: Vec<Choice>,
    /// Everything that was measured.
    pub points: Curve,
    /// Whether there was time to measure the likely cells twice.
    pub complete: bool,
}

/// One point without its samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// Queue depth and block size.
    #[serde(flatten)]
    pub cell: Cell,
    /// The median rate.
    pub bytes_per_second: f64,
    /// Mean time of one request.
    pub latency_s: f64,
}

impl From<&Point> for Choice {
    fn from(point: &Point) -> Self {
        let latency_s = point.latency_s;
        Self { cell: point.cell, bytes_per_second: point.rate(), latency_s }
    }
}

/// The result as the settings of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// The program: `forebay`, `fio`, `kvikio`.
    pub tool: String,
    /// The direction that it applies to.
    pub direction: Direction,
    /// Variables or a command line, for a shell.
    pub text: String,
    /// Whether it is estimated from the curve, not measured.
    pub estimate: bool,
    /// A note on it.
    pub note: Option<String>,
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;

    use forebay::units::{KIB, MIB};

    use super::*;
    use crate::report::json::tests::report as bench;
    use crate::tune::curve::tests::pipe;
    use crate::tune::draw::knees;
    use crate::tune::settings::{Ground, settings};

    /// A report of fixed data: 6.8 GB/s with 0.4 ms latency.
    pub(crate) fn report() -> TuneReport {
        let sizes = [128 * KIB, 512 * KIB, MIB, 4 * MIB];
        let mut points = pipe(6.8e9, 0.0004, &sizes, &[1, 2, 3, 4, 6, 8, 16, 32, 64]);
        points.0.retain(|point| {
            let Cell { request_size, depth } = point.cell;
            let middle = depth == 3 || depth == 6;
            (request_size == MIB || !middle) && depth * request_size <= 32 * MIB && depth < 64
        });
        let found = points.found(MIB).unwrap();
        let ground = Ground::Folder(Path::new("/data"));
        let searched = Searched {
            direction: Direction::Read,
            queue: "nvme:nqn/1".into(),
            found: found.into(),
            best: points.best(u64::MAX).unwrap().into(),
            knees: knees(&points).into_iter().map(Choice::from).collect(),
            complete: true,
            points: points.clone(),
        };
        TuneReport {
            schema: SCHEMA,
            environment: bench().environment,
            path: "/data".into(),
            scratch: true,
            bytes: 1024 * MIB,
            settings: settings(Direction::Read, found.cell, &points, ground, true),
            searches: vec![searched],
            warnings: vec!["unsteady".into()],
        }
    }

    #[test]
    fn keys_are_those_of_the_schema() {
        let value = serde_json::to_value(report()).unwrap();
        let keys = |value: &serde_json::Value| {
            let object = value.as_object().unwrap();
            object.keys().map(String::as_str).collect::<Vec<_>>().join(" ")
        };
        let searched = &value["searches"][0];
        let all = [
            keys(&value),
            keys(searched),
            keys(&searched["found"]),
            keys(&searched["knees"][0]),
            keys(&searched["points"][0]),
            keys(&searched["points"][0]["bytes_per_second"]),
            keys(&value["settings"][0]),
        ];
        insta::assert_snapshot!(all.join("\n"), @"
        bytes environment path schema scratch searches settings warnings
        best complete direction found knees points queue
        bytes_per_second depth latency_s request_size
        bytes_per_second depth latency_s request_size
        bytes_per_second depth latency_s request_size samples
        max median min
        direction estimate note text tool
        ");
        assert_eq!(searched["direction"], "read");
    }

    #[test]
    fn what_is_written_is_read() {
        let text = report().to_text().unwrap();
        assert_eq!(serde_json::from_str::<TuneReport>(&text).unwrap(), report());
    }
}
