//! The expected storage of a path: a line that the guest wrote when it built it.

use crate::process::Result;

/// The expected storage.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) path: String,
    /// The situation that the path is an example of.
    pub(crate) situation: String,
    /// The file's XXH3-64, in hexadecimal.
    pub(crate) sum: String,
    /// Serial numbers, sorted; `memory` and `network` if there are no drives.
    pub(crate) drives: Vec<String>,
    /// How bytes are spread over them.
    pub(crate) layout: Option<String>,
    /// Kinds of steps, each with a fact and its value if one matters.
    pub(crate) steps: Vec<String>,
    /// Rules that must have found something.
    pub(crate) warnings: Vec<String>,
    /// NUMA nodes of the paths to the drives, where these are not as the machine was built.
    pub(crate) nodes: Option<Vec<u64>>,
    /// How many of the paths to the first drive are live, if not all are.
    pub(crate) live: Option<usize>,
    /// The required error of a read; without it, the read must succeed.
    pub(crate) fails: Option<String>,
    /// Whether the map must locate all bytes.
    pub(crate) placed: bool,
    /// A part of the route of a cold read.
    pub(crate) route: Option<String>,
}

impl Expected {
    /// All lines of a file.
    pub(crate) fn parse(text: &str) -> Result<Vec<Self>> {
        text.lines().map(Self::line).collect()
    }

    fn line(line: &str) -> Result<Self> {
        let mut words = line.split('\t');
        let mut expected =
            Self { path: words.next().unwrap_or_default().to_owned(), ..Self::default() };
        let list = |value: &str| {
            let mut list: Vec<String> = value.split(',').map(str::to_owned).collect();
            list.sort();
            list
        };
        for word in words {
            let (key, value) =
                word.split_once('=').ok_or_else(|| format!("no `KEY=VALUE`: `{word}`"))?;
            let text = value.to_owned();
            match key {
                "of" => expected.situation = text,
                "sum" => expected.sum = text,
                "drives" => expected.drives = list(value),
                "layout" => expected.layout = Some(text),
                "step" => expected.steps.push(text),
                "warn" => expected.warnings.push(text),
                "nodes" => expected.nodes = Some(numbers(value)?),
                "live" => expected.live = numbers(value)?.first().and_then(|&n| n.try_into().ok()),
                "fails" => expected.fails = Some(text),
                "placed" => expected.placed = value == "yes",
                "route" => expected.route = Some(text),
                _ => return Err(format!("`{}`: no such key: `{key}`", expected.path)),
            }
        }
        Ok(expected)
    }
}

fn numbers(text: &str) -> Result<Vec<u64>> {
    let numbers = text
        .split(',')
        .map(|number| number.parse().map_err(|_| format!("no list of numbers: `{text}`")));
    numbers.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_holds_keys_in_any_order() {
        let line = "/mnt/a b\tsum=0123456789abcdef\tof=md\tdrives=B,A\tstep=md:level=raid0\t\
                    step=partition\tnodes=0,1\tlive=1";
        let expected = Expected::parse(line).unwrap().remove(0);
        assert_eq!((expected.path.as_str(), expected.situation.as_str()), ("/mnt/a b", "md"));
        assert_eq!(expected.drives, ["A", "B"]);
        assert_eq!(expected.steps, ["md:level=raid0", "partition"]);
        assert_eq!((expected.nodes, expected.live), (Some(vec![0, 1]), Some(1)));
        assert!(Expected::parse("/a\tcolour=red").unwrap_err().contains("colour"));
        assert!(Expected::parse("/a\tnothing").is_err());
    }
}
