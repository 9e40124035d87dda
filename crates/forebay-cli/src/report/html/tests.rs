//! The page as a whole.

use std::collections::BTreeMap;

use serde_json::Value;

use super::*;
use crate::report::digest::Metric;
use crate::report::digest::gather::tests::digest_of;
use crate::report::made::{self, Sweep};
use markup::tests::{check_ids, elements};

fn of(text: &str) -> String {
    page(&digest_of(&[("results", text)]))
}

/// The JSON within a page.
fn data(page: &str) -> Value {
    let (_, after) = page.split_once("id=\"samples\">").unwrap();
    serde_json::from_str(after.split_once("</script>").unwrap().0).unwrap()
}

fn count(elements: &[String], name: &str) -> usize {
    elements.iter().filter(|other| *other == name).count()
}

#[test]
fn a_page_has_all_its_parts_and_needs_nothing_else() {
    let text = made::file(&Sweep { fails: 7, ..Sweep::default() });
    let page = of(&text);
    let found = elements(&page);
    // A bar chart, five line charts, two maps, and one data path.
    assert_eq!(count(&found, "figure"), 9);
    assert_eq!((count(&found, "table"), count(&found, "script")), (3, 2));
    assert_eq!(count(&found, "desc"), 9);
    for word in
        ["forebay sweep /data/model", "NVIDIA H200", "Linux 6.18.0", "2 of 15 points failed"]
    {
        assert!(page.contains(word), "{word}");
    }
    for tag in ["link", "img", "iframe", "object", "base", "form"] {
        assert_eq!(count(&found, tag), 0, "{tag}");
    }
    assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("@import"));
    check_ids(&page);
}

#[test]
fn a_ceiling_stands_beside_its_theory() {
    let sweep = Sweep { targets: vec!["cuda:0", "cuda:1"], ..Sweep::default() };
    let mut link = made::ceiling("link", "cuda:0", false, 25e9);
    link["theory_bytes_per_second"] = 50e9.into();
    link["limits"] = "trained down: it runs at x8".into();
    let mut both = made::ceiling("uplink", "cuda:0+cuda:1", false, 28e9);
    both["shared_by"] = serde_json::json!(["cuda:0", "cuda:1"]);
    let mut records = vec![made::run(&sweep), link, both];
    records.extend(made::samples(&sweep));
    let digest = digest_of(&[("results", &made::text(&records))]);
    let page = page(&digest);
    assert!(page.contains("25.0 GB/s, 50.0 % of theory"), "{page}");
    assert_eq!(page.matches("<line class=\"edge\"").count(), 1, "only the link has a theory");
    assert!(page.contains("trained down: it runs at x8") && page.contains("of theory, %"));
    // The shared part of two GPUs has the bytes of both, and each link has its own.
    let best = digest.lines.iter().filter_map(|line| line.rate()).fold(0.0, f64::max);
    let reached = |bound: usize| {
        crate::report::grid::people::reached(&digest, &digest.ceilings[bound]).unwrap() / best
    };
    assert!((reached(1) - 1.0).abs() < 0.02 && (reached(0) - 0.5).abs() < 0.02, "{}", reached(1));
}

#[test]
fn its_numbers_are_those_of_the_results() {
    let text = made::file(&Sweep::default());
    let digest = digest_of(&[("results", &text)]);
    let page = page(&digest);
    let (_, table) = page.split_once("id=\"results\">").unwrap();
    let rows: Vec<&str> = table.split_once("</table>").unwrap().0.split("<tr>").skip(2).collect();
    assert_eq!(rows.len(), digest.lines.len());
    for (row, line) in rows.iter().zip(&digest.lines) {
        for metric in [Metric::Rate, Metric::P50, Metric::P99] {
            let median = line.metric(metric).unwrap().median;
            assert!(row.contains(&format!("data-value=\"{median}\"")), "{metric:?} {row}");
        }
    }
    let data = data(&page);
    assert_eq!(data["left_out"], 0);
    let samples = data["samples"].as_array().unwrap();
    let records: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let rate = |value: &Value| value["bytes_per_second"].as_f64().unwrap().to_bits();
    let mut given: Vec<u64> = records
        .iter()
        .filter(|record| record["record"] == "sample")
        .map(|record| rate(&record["measured"]))
        .collect();
    let mut shown: Vec<u64> = samples.iter().map(rate).collect();
    given.sort_unstable();
    shown.sort_unstable();
    assert_eq!(given, shown);
    assert_eq!(data["lines"][0]["request_size"], "64 KiB");
}

#[test]
fn several_runs_stand_side_by_side() {
    let sweep = Sweep::default();
    let base = made::file(&sweep);
    let other = made::file(&Sweep { depths: vec![8, 32, 64], ..sweep.clone() });
    let rows = |page: &str, id: &str| {
        let (_, table) = page.split_once(&format!("id=\"{id}\">")).unwrap();
        table.split_once("</table>").unwrap().0.split("<tr>").count() - 2
    };
    let page = self::page(&digest_of(&[("a", &base), ("b", &other), ("c", &base)]));
    assert_eq!(rows(&page, "side-points"), 10 + 15);
    assert_eq!(rows(&page, "side-means"), 10 + 10);
    assert!(page.contains("<td class=\"text\">of 15: no significant difference</td>"));
    // Labels within one file as well; a report with nothing to compare has no such section.
    let labelled = |label: &'static str| made::file(&Sweep { label: Some(label), ..sweep.clone() });
    let page = of(&[labelled("1"), labelled("8")].concat());
    assert_eq!(rows(&page, "side-points"), 15);
    let far = made::file(&Sweep { depths: vec![5], ..sweep });
    for page in [of(&base), self::page(&digest_of(&[("a", &base), ("b", &far)]))] {
        assert!(!page.contains("Side by side"));
    }
}

#[test]
fn the_confidence_is_that_of_the_repeats() {
    for (repeats, percent) in [(2, "50 %"), (3, "75 %"), (5, "93 %")] {
        let text = made::file(&Sweep { repeats, ..Sweep::default() });
        let words = format!("a confidence of {percent} at least");
        assert!(of(&text).contains(&words), "{repeats}");
        let gauges = crate::report::forms::prometheus::text(&digest_of(&[("a", &text)]));
        assert!(gauges.contains(&words), "{gauges}");
    }
    let one = of(&made::file(&Sweep { repeats: 1, ..Sweep::default() }));
    assert!(!one.contains("confidence") && one.contains("The median of the repeats."));
}

#[test]
fn nothing_in_results_acts() {
    let page = of(&made::hostile());
    let found = elements(&page);
    assert_eq!((count(&found, "script"), count(&found, "img")), (2, 0));
    assert!(page.chars().all(|letter| letter == '\n' || !letter.is_control()));
    assert!(!page.replace(SCRIPT, "").contains("NaN"));
    // The text is there, escaped, and complete in the data.
    assert!(page.contains("&lt;script&gt;alert(1)"));
    assert!(data(&page)["samples"].as_array().unwrap().iter().any(|s| s["error"] == made::HARM));
}

#[test]
fn a_page_is_bounded() {
    let mut sweep = Sweep { repeats: 1, ways: vec!["a", "b"], ..Sweep::default() };
    sweep.depths = (1..=250).collect();
    let mut records = vec![made::run(&sweep)];
    records.extend(made::samples(&sweep));
    let warning = |n: u32| serde_json::json!({"record": "warning", "text": format!("{n}")});
    records.extend((0..2000).map(warning));
    let mut digest = digest_of(&[("many", &made::text(&records))]);
    assert_eq!(digest.raw.len(), 2500);
    digest.raw = (0..40).flat_map(|_| digest.raw.clone()).collect();
    let page = page(&digest);
    assert!(page.len() < 20 << 20, "{}", page.len());
    assert!(count(&elements(&page), "figure") <= 60);
    assert!(page.contains("500 more rows") && page.contains("900 more warnings"));
    let data = data(&page);
    let shown = data["samples"].as_array().unwrap().len() as u64;
    assert_eq!(shown + data["left_out"].as_u64().unwrap(), 100_000);
}

/// The colours of a block of the style, by their names.
fn colours(block: &str) -> BTreeMap<&str, [f64; 3]> {
    let parts = block.split(['{', ';', '}']).filter_map(|part| part.trim().split_once(": #"));
    parts.map(|(name, hex)| (name.trim_start_matches("--"), parsed(hex))).collect()
}

fn parsed(hex: &str) -> [f64; 3] {
    [0, 2, 4].map(|at| f64::from(u8::from_str_radix(&hex[at..at + 2], 16).unwrap()) / 255.0)
}

/// The contrast of two colours, as WCAG 2 defines it.
fn contrast(one: [f64; 3], other: [f64; 3]) -> f64 {
    let light = |part: f64| {
        if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
    };
    let of = |[red, green, blue]: [f64; 3]| {
        0.2126 * light(red) + 0.7152 * light(green) + 0.0722 * light(blue) + 0.05
    };
    let (one, other) = (of(one), of(other));
    one.max(other) / one.min(other)
}

#[test]
fn every_colour_can_be_read_in_both_themes_and_on_paper() {
    let themes: Vec<&str> = STYLE.split(":root {").skip(1).collect();
    assert_eq!(themes.len(), 3);
    for theme in themes {
        let colours = colours(theme.split_once('}').unwrap().0);
        assert_eq!(colours.len(), 15);
        for ground in ["paper", "panel"] {
            for name in colours.keys().filter(|name| !["paper", "panel", "rule"].contains(name)) {
                let found = contrast(colours[name], colours[ground]);
                assert!(found >= 4.5, "{name} on {ground}: {found}");
            }
        }
    }
    let fill = |class: &str| {
        let (_, rest) = STYLE.split_once(&format!("svg .{class} {{ fill: #")).unwrap();
        parsed(rest)
    };
    for step in 0..heat::STEPS {
        let text = if step >= heat::LIGHT_FROM { "light" } else { "dark" };
        let found = contrast(fill(&format!("h{step}")), fill(text));
        assert!(found >= 4.5, "h{step}: {found}");
    }
    assert!((contrast([0.0; 3], [1.0; 3]) - 21.0).abs() < 1e-9);
}

/// The hash of `text` as a policy names it, by the system's `sha256sum`; `None` if that is missing.
fn hash(text: &str) -> Option<String> {
    use std::io::Write as _;
    use std::process::{Command, Stdio};
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut command = Command::new("sha256sum");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
    child.stdin.take()?.write_all(text.as_bytes()).ok()?;
    let output = child.wait_with_output().ok()?;
    let hex = std::str::from_utf8(&output.stdout).ok()?.get(..64)?;
    let byte = |at: usize| u32::from_str_radix(&hex[at * 2..at * 2 + 2], 16).unwrap();
    let mut base_64 = String::new();
    for at in (0..32).step_by(3) {
        let three = [0, 1, 2].map(|more| if at + more < 32 { byte(at + more) } else { 0 });
        let bits = three[0] << 16 | three[1] << 8 | three[2];
        let digits = if at + 2 < 32 { 4 } else { 3 };
        for digit in 0..digits {
            base_64.push(DIGITS[(bits >> (18 - 6 * digit) & 63) as usize].into());
        }
    }
    Some(format!("'sha256-{base_64}='"))
}

#[test]
fn a_page_allows_its_own_style_and_script_alone() {
    for (kind, text) in [("style-src", STYLE), ("script-src", SCRIPT)] {
        let Some(hash) = hash(text) else {
            return println!("skipped: hashes of a page's policy: there is no `sha256sum`");
        };
        assert!(POLICY.contains(&format!("{kind} {hash};")), "{kind} is {hash}");
    }
    let page = page(&digest_of(&[("a", &made::hostile())]));
    assert!(!page.contains("unsafe-inline") && !page.contains(" style="));
    // A hash is that of the whole element.
    assert!(page.contains(&format!("<style>{STYLE}</style>")));
    assert!(page.contains(&format!("<script>{SCRIPT}</script>")));
}
