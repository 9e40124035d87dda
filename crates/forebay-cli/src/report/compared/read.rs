//! Parses the keys that `forebay compare --json` has in addition to `forebay bench`.
//!
//! Nothing in a file is trusted: missing or invalid values are left out, numbers have a range,
//! lists a maximum length, and text is cut.

use serde::Deserialize;
use serde_json::Value;

use super::facts::{Away, ComputeFacts, Sockets};
use super::{Comparison, Told};
use crate::report::plain::cut;

/// Most drives whose distance is reported.
const DRIVES_MAX: usize = 16;
/// Most letters of a text.
const TEXT_MAX: usize = 200;
/// The valid range of a rate, in bytes per second.
const RATE: (f64, f64) = (0.0, 1e18);
/// The valid range of a share.
const SHARE: (f64, f64) = (0.0, 1e6);

/// Whether a report is that of a comparison.
#[must_use]
pub fn is_comparison(report: &Value) -> bool {
    report.get("compare").is_some_and(|told| !told.is_null())
}

/// Parses the comparison's part of a report.
#[must_use]
pub fn comparison(report: &Value) -> Comparison {
    let told = &report["compare"];
    let mut found = Comparison {
        mode: cut(told["mode"].as_str().unwrap_or_default(), TEXT_MAX),
        runs: told["runs"].as_u64(),
        compute_wrong: told["compute_wrong"].as_bool().unwrap_or_default(),
        ..Comparison::default()
    };
    match part(&told["topology"], topology) {
        Ok(Some((sockets, left_out))) => {
            (found.topology, found.drives_left_out) = (Some(sockets), left_out);
        }
        Ok(None) => {}
        Err(why) => found.refused.push(format!("`topology`: {why}")),
    }
    match part(&told["compute"], compute) {
        Ok(facts) => found.compute = facts,
        Err(why) => found.refused.push(format!("`compute`: {why}")),
    }
    found.compute_wrong |= found.compute.as_ref().is_some_and(|facts| !facts.verified);
    found
}

/// The runs of each row, in their order.
#[must_use]
pub fn runs(report: &Value) -> Vec<Told> {
    let rows = report["results"].as_array().map(Vec::as_slice).unwrap_or_default();
    rows.iter().map(|row| told(&row["runs"])).collect()
}

fn told(runs: &Value) -> Told {
    let number = |key: &str, (least, most): (f64, f64)| {
        runs[key].as_f64().filter(|value| (least..=most).contains(value))
    };
    Told {
        first: number("first", RATE),
        mean: number("mean", RATE),
        variation: number("variation", SHARE),
    }
}

/// Parses a part that may be absent, and checks it by `of`.
fn part<'a, Part: Deserialize<'a>, Found>(
    value: &'a Value,
    of: impl FnOnce(Part) -> Result<Found, String>,
) -> Result<Option<Found>, String> {
    if value.is_null() {
        return Ok(None);
    }
    let told = Part::deserialize(value).map_err(|error| cut(&error.to_string(), TEXT_MAX))?;
    of(told).map(Some)
}

/// The first drives, and the number of those left out.
fn topology(told: Sockets) -> Result<(Sockets, usize), String> {
    let left_out = told.drives.len().saturating_sub(DRIVES_MAX);
    let short = |text: &str| cut(text, TEXT_MAX);
    let drives = told.drives.iter().take(DRIVES_MAX).map(|drive| Away {
        drive: short(&drive.drive),
        name: short(&drive.name),
        distance: short(&drive.distance),
        text: short(&drive.text),
        ..*drive
    });
    let drives = drives.collect();
    Ok((Sockets { gpu: short(&told.gpu), numa_node: told.numa_node, drives }, left_out))
}

fn compute(told: ComputeFacts) -> Result<ComputeFacts, String> {
    if told.kernel != "xor" {
        return Err("its kernel is unknown to this version".into());
    }
    for (key, runs) in [("alone", &told.alone), ("beside", &told.beside), ("read", &told.read)] {
        within(&format!("{key}.median"), runs.median, RATE)?;
    }
    within("limit", told.limit, RATE)?;
    within("share_of_limit", told.share_of_limit, SHARE)?;
    within("share_of_read", told.share_of_read.unwrap_or_default(), SHARE)?;
    // Its rate alone is the baseline of the others.
    within("alone.median", told.alone.median, (f64::MIN_POSITIVE, RATE.1))?;
    within("beside.median over alone.median", told.beside.median / told.alone.median, SHARE)?;
    Ok(ComputeFacts { limit_by: cut(&told.limit_by, TEXT_MAX), ..told })
}

fn within(key: &str, value: f64, (least, most): (f64, f64)) -> Result<(), String> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(format!("`{key}` has to be from {least:e} to {most:e}, not `{value:?}`"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::report::made::HARM;

    fn runs_of(rate: f64) -> Value {
        json!({"first": rate, "mean": rate, "median": rate, "variation": 0.1, "judgement": "good"})
    }

    fn kernel() -> Value {
        json!({
            "kernel": "xor", "bytes": 2 << 20, "limit": 4e12, "limit_by": "filling",
            "alone": runs_of(2e12), "share_of_limit": 0.5, "beside": runs_of(1e12),
            "read": runs_of(1e9), "share_of_read": null, "verified": true, "simulated": false
        })
    }

    fn of(compute: &Value) -> Comparison {
        comparison(&json!({"compare": {"compute": compute}}))
    }

    #[test]
    fn what_is_absent_is_nothing() {
        assert!(!is_comparison(&json!({"compare": null})) && !is_comparison(&json!([])));
        for told in [json!({"compare": {}}), json!({"compare": HARM}), json!(7)] {
            assert_eq!(comparison(&told), Comparison::default());
        }
        assert_eq!(runs(&json!({"results": [{}, 1, {"runs": 1e300}]})), [Told::default(); 3]);
        assert!(runs(&json!({})).is_empty());
        let some = told(&json!({"first": 1e300, "mean": 2, "variation": -1}));
        assert_eq!((some.first, some.mean, some.variation_text()), (None, Some(2.0), None));
    }

    #[test]
    fn a_kernel_that_makes_no_sense_is_refused_with_the_reason() {
        let whole = of(&kernel());
        assert!(whole.refused.is_empty() && whole.compute.is_some() && !whole.compute_wrong);
        for (key, value, why) in [
            ("alone", runs_of(0.0), "`alone.median` has to be from"),
            ("beside", runs_of(1e19), "`beside.median` has to be from 0e0 to 1e18"),
            ("beside", runs_of(-1.0), "not `-1.0`"),
            ("limit", json!(null), "invalid type: null"),
            ("share_of_limit", json!(1e308), "`share_of_limit`"),
            ("kernel", json!(HARM), "its kernel is unknown to this version"),
        ] {
            let mut facts = kernel();
            facts[key] = value;
            let found = of(&facts);
            assert!(found.compute.is_none() && found.refused.len() == 1, "{key}: {found:?}");
            assert!(found.refused[0].contains(why), "{:?}", found.refused);
        }
        let mut wrong = kernel();
        wrong["verified"] = false.into();
        assert!(of(&wrong).compute_wrong);
        assert!(of(&json!("x".repeat(9999))).refused[0].len() < 300);
    }

    #[test]
    fn drives_are_bounded() {
        let drive = json!({"drive": HARM, "name": "x".repeat(9999), "numa_node": 1,
            "distance": HARM, "text": HARM, "node_distance": u32::MAX});
        let told = json!({"compare": {"topology":
            {"gpu": HARM, "numa_node": 0, "drives": vec![drive; 99]}}});
        let sentences = comparison(&told).sentences();
        assert_eq!(sentences.len(), DRIVES_MAX + 1);
        assert_eq!(sentences[DRIVES_MAX].1, "83 more drives are left out");
        assert!(sentences.iter().all(|(_, text)| text.chars().count() < 3 * TEXT_MAX));
        let far = comparison(&json!({"compare": {"topology": {"gpu": 1}}}));
        assert!(far.topology.is_none() && far.refused[0].starts_with("`topology`: "));
    }
}
