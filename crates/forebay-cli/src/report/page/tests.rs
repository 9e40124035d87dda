//! The page as a whole.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Command, Stdio};

use super::*;
use crate::report::compare::compare;
use crate::report::made::{self, Sweep};
use crate::report::model::gather::tests::{model_of, records_of};

fn of(text: &str) -> String {
    page(&model_of(&[("results", text)]), &[], Metric::Rate)
}

/// A page without its own styles and scripts.
fn without_code(page: &str) -> String {
    let own = [STYLE, UPLOT_STYLE, SCRIPT, UPLOT];
    own.iter().fold(page.to_owned(), |page, code| page.replace(code, ""))
}

#[test]
fn a_page_has_all_its_parts_and_needs_nothing_else() {
    let page = without_code(&of(&made::file(&Sweep { fails: 7, ..Sweep::default() })));
    for word in [
        "best rate",
        "of its limit",
        "<dd>NVIDIA H200</dd>",
        "forebay bench /data/model",
        "2 of 15 points failed",
        "2023-11-14 22:13 UTC",
        "path /data/model.safetensors",
        "<title>forebay bench · /data/model.safetensors (ext4 on nvme0n1 (Fast One)) → H200 · \
         2023-11-14</title>",
        "<th class=\"bar\"></th><th class=\"number\" data-column=\"2\">GB/s</th>",
    ] {
        assert!(page.contains(word), "{word}: {page}");
    }
    assert_eq!(page.matches("<figure>").count(), 4);
    assert_eq!(page.matches("<table").count(), 2);
    for tag in ["<link", "<img", "<iframe", "<object", "<base", "<form", "http://", "https://"] {
        assert!(!page.contains(tag), "{tag}");
    }
}

#[test]
fn the_page_has_the_numbers_of_the_results() {
    let model = model_of(&[("results", &made::file(&Sweep::default()))]);
    let page = page(&model, &[], Metric::Rate);
    let (_, table) = page.split_once("<tbody>").unwrap();
    let rows: Vec<&str> = table.split_once("</tbody>").unwrap().0.split("<tr").skip(1).collect();
    assert_eq!(rows.len(), model.lines.len());
    for (row, line) in rows.iter().zip(&model.lines) {
        for metric in [Metric::Rate, Metric::P50, Metric::P99] {
            let median = line.estimate(metric).unwrap().median;
            assert!(row.contains(&format!("data-value=\"{median}\"")), "{metric:?} {row}");
        }
    }
}

#[test]
fn a_run_of_whole_files_has_the_sections_and_the_sentence_of_a_terminal() {
    let sweep = Sweep { methods: vec!["standard", "forebay"], ..Sweep::default() };
    let mut run = made::run(&sweep);
    run["request"]["whole_files"] = true.into();
    let mut records = vec![run, made::limit("storage", &sweep.path, 1e10)];
    records.extend(made::samples(&sweep));
    let page = without_code(&of(&made::text(&records)));
    let places = [
        "Forebay, cold</span>",
        "<p>Forebay: cold",
        "<th colspan=\"2\">READ, cold (from the drive)</th>",
        "<tr class=\"limit\"><td class=\"\">storage (limit)</td>",
        "<rect width=\"100.00\" height=\"10\"></rect></svg>",
        "<tr class=\"best\"><td class=\"\">forebay</td><td class=\"bar\"><svg",
        "<h2>All numbers</h2>",
    ];
    let mut rest = page.as_str();
    for place in places {
        let found = rest.find(place).unwrap_or_else(|| panic!("{place}: {page}"));
        rest = &rest[found..];
    }
}

#[test]
fn a_bar_has_the_range_of_its_samples() {
    let cell = Cell { range: Some((1.0, 3.0)), ..Cell::number(Some(2.0), |_| String::new()) };
    let text = bar(&cell, 4.0).into_string();
    assert!(text.contains("<rect width=\"50.00\"") && text.contains("M25.00 2V8"), "{text}");
    let exact = Cell { range: Some((2.0, 2.0)), ..cell };
    assert!(!bar(&exact, 4.0).into_string().contains("<path"));
    assert_eq!(bar(&Cell::text("failed"), 4.0).into_string(), "");
}

#[test]
fn percentiles_of_few_requests_are_left_out() {
    for (bytes, shown) in [(99_u64, false), (100, true)] {
        let sweep = Sweep { request_sizes: vec![1 << 20], ..Sweep::default() };
        let mut records = records_of(&sweep);
        for record in &mut records[1..] {
            record["measured"]["bytes"] = (bytes << 20).into();
        }
        let page = without_code(&of(&made::text(&records)));
        assert_eq!(page.contains(">p99</th>"), shown, "{bytes}");
        assert!(page.contains(">max</th>"));
    }
}

#[test]
fn a_second_machine_shows_its_differences_only() {
    let sweep = Sweep::default();
    let mut records = records_of(&sweep);
    let first = made::text(&records);
    records[0]["environment"]["kernel"] = "Linux 7.0".into();
    let model = model_of(&[("a", &first), ("b", &made::text(&records))]);
    let page = without_code(&page(&model, &[], Metric::Rate));
    assert!(page.contains("<p class=\"soft\">b differs: kernel Linux 7.0</p>"), "{page}");
    assert_eq!(page.matches("<dd>NVIDIA H200</dd>").count(), 1);
}

#[test]
fn two_files_have_their_ratio() {
    let sweep = Sweep::default();
    let slow = made::file(&Sweep { methods: vec!["cpu-gpu"], ..sweep.clone() });
    let model = model_of(&[("a", &made::file(&sweep)), ("b", &slow)]);
    let names = ["a".to_owned(), "b".to_owned()];
    let found = compare(&model, &names, None, None).unwrap();
    let page = without_code(&page(&model, &found, Metric::Rate));
    for word in ["b compared with a", "0.60×</b>", "0 faster, 15 slower", "of 15 points"] {
        assert!(page.contains(word), "{word}: {page}");
    }
}

#[test]
fn nothing_in_results_acts() {
    let page = of(&made::hostile());
    assert_eq!(page.matches("<script").count(), 3);
    assert!(!page.contains("<img"));
    let shown = without_code(&page);
    assert!(shown.chars().all(|letter| letter == '\n' || !letter.is_control()));
    assert!(!shown.contains("NaN") && shown.contains("&lt;script&gt;alert(1)"));
}

#[test]
fn a_page_is_bounded() {
    let mut sweep = Sweep { repeats: 1, methods: vec!["a", "b"], ..Sweep::default() };
    sweep.depths = (1..=250).collect();
    let mut records = records_of(&sweep);
    let warning = |n: u32| {
        let text = "x".repeat(n as usize + 1);
        serde_json::json!({"record": "warning", "text": text})
    };
    records.extend((0..100).map(warning));
    let page = of(&made::text(&records));
    assert!(page.len() < 4 << 20, "{}", page.len());
    assert!(page.contains("500 more rows") && page.contains("37 more warnings"));
}

/// The colours of a block of the style, by their names.
fn colours(block: &str) -> BTreeMap<&str, [f64; 3]> {
    let parts = block.split(['{', ';', '}']).filter_map(|part| part.trim().split_once(": #"));
    let parsed = |hex: &str| {
        [0, 2, 4].map(|at| f64::from(u8::from_str_radix(&hex[at..at + 2], 16).unwrap()) / 255.0)
    };
    parts.map(|(name, hex)| (name.trim_start_matches("--"), parsed(hex))).collect()
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
    assert!((contrast([0.0; 3], [1.0; 3]) - 21.0).abs() < 1e-9);
}

/// The hash of `text` as a policy names it, by the system's programs; `None` if one is missing.
fn hash(text: &str) -> Option<String> {
    let mut command = Command::new("sh");
    command.args(["-c", "openssl dgst -sha256 -binary | base64"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
    child.stdin.take()?.write_all(text.as_bytes()).ok()?;
    let hash = String::from_utf8(child.wait_with_output().ok()?.stdout).ok()?;
    (hash.trim().len() == 44).then(|| format!("'sha256-{}'", hash.trim()))
}

#[test]
fn a_page_allows_its_own_styles_and_scripts_alone() {
    let page = of(&made::hostile());
    for (kind, texts) in [("style-src", [UPLOT_STYLE, STYLE]), ("script-src", [UPLOT, SCRIPT])] {
        let Some(hashes) = texts.iter().map(|text| hash(text)).collect::<Option<Vec<_>>>() else {
            return println!("skipped: hashes of a page's policy: no `openssl` or `base64`");
        };
        let allowed = format!("{kind} {};", hashes.join(" "));
        assert!(POLICY.contains(&allowed), "it has to be {allowed}");
        // A hash is that of the whole element.
        let element = &kind[..kind.len() - 4];
        for text in texts {
            assert!(page.contains(&format!("<{element}>{text}</{element}>")));
        }
    }
    assert!(!page.contains("unsafe-inline") && !without_code(&page).contains(" style="));
}
