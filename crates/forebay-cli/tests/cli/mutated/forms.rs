//! Checks of what `report` and `diff` show, in each form.

use forebay_cli::diff::sides::By;
use forebay_cli::diff::{self, draw};
use forebay_cli::failure::Failure;
use forebay_cli::report::digest::{Axis, Digest, Metric, gather};
use forebay_cli::report::forms::{csv, markdown, prometheus, terminal};
use forebay_cli::report::grid::{full, layers};
use forebay_cli::report::input::Source;
use forebay_cli::report::{html, plain};
use serde_json::Value;

/// The first word of a text that stands for no number, with what is around it.
pub(super) fn no_number(text: &str) -> Option<&str> {
    let words = text.split(|letter: char| !letter.is_alphanumeric());
    let found = words.into_iter().find(|word| matches!(*word, "inf" | "NaN"))?;
    let at = found.as_ptr().addr() - text.as_ptr().addr();
    let start = (at.saturating_sub(80)..=at).find(|at| text.is_char_boundary(*at))?;
    let end = (at + 40..).find(|at| *at >= text.len() || text.is_char_boundary(*at))?;
    Some(&text[start..end.min(text.len())])
}

/// Checks what a person reads.
pub(super) fn check_text(form: &str, text: &str, may_hold: bool) {
    let shown = no_number(text).filter(|_| !may_hold);
    assert_eq!(shown, None, "{form}");
    let plain = anstream::adapter::strip_str(text).to_string().replace("\r\n", "\n");
    let acts = plain.chars().find(|letter| letter.is_control() && *letter != '\n');
    assert_eq!(acts, None, "{form}: {text:?}");
}

/// Checks that all rows have as many fields as the first.
fn check_csv(text: &str) {
    let (mut fields, mut rows, mut quoted) = (1, Vec::new(), false);
    for letter in text.chars() {
        match letter {
            '"' => quoted = !quoted,
            ',' if !quoted => fields += 1,
            '\n' if !quoted => {
                rows.push(fields);
                fields = 1;
            }
            _ => {}
        }
    }
    assert!(!quoted && fields == 1, "{text}");
    assert!(rows.iter().all(|fields| *fields == rows[0]), "{rows:?} {text}");
}

/// Checks the tables of Markdown.
fn check_markdown(text: &str) {
    let mut width = 0;
    for line in text.lines() {
        let bars = line.replace("\\|", "").matches('|').count();
        let in_table = line.starts_with('|');
        assert!(!in_table || width == 0 || bars == width, "{line}: {text}");
        width = if in_table { bars } else { 0 };
    }
    assert!(!text.contains("<xmp"), "{text}");
}

fn check_prometheus(text: &str) {
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let number = line.rsplit_once(' ').and_then(|(_, number)| number.parse::<f64>().ok());
        assert!(number.is_some_and(f64::is_finite), "{line}");
    }
}

/// A page without its scripts and styles.
fn without_code(page: &str) -> String {
    let mut shown = page.to_owned();
    for (begin, end) in [("<style", "</style>"), ("<script", "</script>")] {
        while let Some(start) = shown.find(begin) {
            let len = shown[start..].find(end).expect("an end");
            shown.replace_range(start..start + len + end.len(), "");
        }
    }
    shown
}

fn check_html(text: &str) {
    assert!(text.ends_with("</html>\n"));
    assert!(!text.contains("<xmp"), "{text}");
    let shown = without_code(text);
    for word in ["\" onxmp", "' onxmp"] {
        assert!(!shown.contains(word), "{word}: {shown}");
    }
    let (_, data) = text.split_once("id=\"samples\">").unwrap_or_default();
    if let Some((data, _)) = data.split_once("</script>") {
        serde_json::from_str::<Value>(data).expect("the data of a page");
    }
}

pub(super) fn check_report(digest: &Digest, may_hold: bool) {
    let table =
        if digest.runs.is_empty() { layers::full(&digest.layers) } else { full::results(digest) };
    let (csv, markdown) = (csv::text(&table), markdown::text(digest));
    let (prometheus, html) = (prometheus::text(digest), html::page(digest));
    for (form, text) in [
        ("a table", &terminal::text(digest)),
        ("Markdown", &markdown),
        ("CSV", &csv),
        ("Prometheus", &prometheus),
        ("HTML", &without_code(&html)),
    ] {
        check_text(form, text, may_hold);
    }
    for warning in &digest.warnings {
        check_text("a warning", warning, may_hold);
    }
    check_csv(&csv);
    check_markdown(&markdown);
    check_prometheus(&prometheus);
    check_html(&html);
}

pub(super) fn check_diff(sources: &[(String, Source)], may_hold: bool) {
    let names: Vec<String> = sources.iter().map(|(name, _)| name.clone()).collect();
    let digest = gather::digest(sources);
    for by in [By::File, By::Axis(Axis::Way)] {
        for metric in [Metric::Rate, Metric::P99, Metric::CpuPerGb] {
            let Ok(found) = diff::diff(&digest, &names, (by, None), metric) else { continue };
            let csv = csv::text(&diff::grid::all(&found));
            let markdown = diff::markdown::text(&found, metric);
            check_text("a comparison", &draw::text(&found, metric), may_hold);
            check_text("Markdown of a comparison", &markdown, may_hold);
            check_text("CSV of a comparison", &csv, may_hold);
            check_csv(&csv);
            check_markdown(&markdown);
            for warning in &found.warnings {
                check_text("a warning", warning, may_hold);
            }
            let text = plain::json_lines(&found).expect("JSON");
            check_text("JSON of a comparison", &text, may_hold);
            serde_json::from_str::<Value>(&text).expect("JSON of a comparison");
        }
    }
}

pub(super) fn check_failure(failure: &Failure) {
    assert!(failure.exit_code() <= 2 && failure.message.contains("mutated"), "{failure:?}");
    let text = anstream::adapter::strip_str(&failure.text()).to_string();
    assert!(text.starts_with("error: "), "{text}");
    check_text("an error", &text, true);
}
