//! Checks that the bytes of files are where the map says, by reading the drives themselves, below
//! every volume and file system.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

use serde_json::Value;

use crate::Result;

/// Bytes that are compared at either end of a run.
const PIECE: u64 = 4096;

/// `map` is the output of `forebay map --json --extents`; the caches were dropped after the files
/// were written.
pub(crate) fn run(map: &str) -> Result<()> {
    let report: Value = serde_json::from_slice(&std::fs::read(map)?)?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let names: BTreeMap<String, String> = list(&report["drives"])
        .iter()
        .map(|drive| (text(&drive["id"]), format!("/dev/{}", text(&drive["name"]))))
        .collect();
    let mut wrong = Vec::new();
    for map in list(&report["maps"]) {
        let path = text(&map["path"]);
        for run in list(&map["extents"]["first"]) {
            let device = names.get(&text(&run["drive"])).ok_or("a run on no drive")?;
            let number = |key: &str| run[key].as_u64().ok_or(format!("no `{key}`"));
            let (logical, offset, len) = (number("logical")?, number("offset")?, number("len")?);
            for at in [0, len.saturating_sub(PIECE)] {
                let len = usize::try_from(PIECE.min(len))?;
                let bytes = part(&path, logical + at, len)?;
                if bytes != part(device, offset + at, bytes.len())? {
                    let (logical, offset) = (logical + at, offset + at);
                    wrong.push(format!("{path} at {logical} is not {device} at {offset}"));
                }
            }
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n").into()) }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Up to `len` bytes; a file may end inside its last run.
fn part(path: &str, offset: u64, len: usize) -> Result<Vec<u8>> {
    let file = File::open(path)?;
    let mut bytes = vec![0; len];
    let end = file.read_at(&mut bytes, offset)?;
    bytes.truncate(end);
    Ok(bytes)
}
