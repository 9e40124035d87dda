//! Checks of what `report` shows, in each form.

use forebay_cli::report::compare;
use forebay_cli::report::model::{Axis, Metric, gather};
use forebay_cli::report::{forms, grid, page, show};
use forebay_measure::failure::Failure;
use forebay_measure::results::Record;
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
    for row in csv::Reader::from_reader(text.as_bytes()).records() {
        row.expect("a row");
    }
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
    assert!(text.ends_with("</html>"));
    assert!(!text.contains("<xmp"), "{text}");
    let shown = without_code(text);
    // All attributes are in double quotes.
    assert!(!shown.contains("\" onxmp"), "{shown}");
    let (_, data) = text.split_once("id=\"data\">").unwrap_or_default();
    if let Some((data, _)) = data.split_once("</script>") {
        serde_json::from_str::<Value>(data).expect("the data of a page");
    }
}

/// Checks all forms of files, compared or not.
pub(super) fn check_report(sources: &[(String, Vec<Record>)], may_hold: bool) {
    let names: Vec<String> = sources.iter().map(|(name, _)| name.clone()).collect();
    let model = gather::model(sources);
    // Their letters are escaped where they are shown.
    for warning in &model.warnings {
        assert_eq!(no_number(warning).filter(|_| !may_hold), None, "a warning");
    }
    for by in [None, Some(Axis::Method)] {
        let found = compare::compare(&model, &names, by, None).unwrap_or_default();
        for metric in [Metric::Rate, Metric::P99, Metric::CpuCost] {
            let blocks = show::report(&model, &found, metric, 200);
            let table = forms::terminal(&blocks, Some(80));
            let plain = anstream::adapter::strip_str(&table).to_string();
            assert!(plain.lines().all(|line| line.chars().count() <= grid::WIDTH), "{plain}");
            let markdown = forms::markdown(&blocks, &model.warnings);
            for (form, text) in [
                ("a table", &table),
                ("all", &forms::terminal(&blocks, None)),
                ("Markdown", &markdown),
            ] {
                check_text(form, text, may_hold);
            }
            check_markdown(&markdown);
            let _ = compare::gate(&found, metric, 0.05);
        }
        if let Ok(csv) = show::csv(&model, &found) {
            check_text("CSV", &csv, may_hold);
            check_csv(&csv);
        }
        let html = page::page(&model, &found, Metric::Rate);
        check_text("HTML", &without_code(&html), may_hold);
        check_html(&html);
    }
}

pub(super) fn check_failure(failure: &Failure) {
    assert!(failure.exit_code() <= 2 && failure.message.contains("mutated"), "{failure:?}");
    let text = anstream::adapter::strip_str(&failure.text()).to_string();
    assert!(text.starts_with("error: "), "{text}");
    check_text("an error", &text, true);
}
