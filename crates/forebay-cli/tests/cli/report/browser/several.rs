//! A page of several results: two files of several GPUs.

use serde_json::Value;

use super::*;

/// The medians of each target's share, point by point, and of each point the first target first.
fn shares(text: &str, key: &str) -> Vec<f64> {
    let of = |target: usize| medians(text, |measured| measured["shares"][target][key].as_f64());
    let (first, second) = (of(0), of(1));
    first.into_iter().zip(second).flat_map(|(one, other)| [one, other]).collect()
}

/// Rows of comma-separated values, of which some are in quotes.
fn parsed(csv: &str) -> Vec<Vec<String>> {
    let (mut rows, mut row, mut field) = (Vec::new(), Vec::new(), String::new());
    let (mut quoted, mut letters) = (false, csv.chars().peekable());
    while let Some(letter) = letters.next() {
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => field.extend(letters.next()),
            '"' => quoted = !quoted,
            ',' if !quoted => row.push(std::mem::take(&mut field)),
            '\r' if !quoted => {}
            '\n' if !quoted => {
                row.push(std::mem::take(&mut field));
                rows.push(std::mem::take(&mut row));
            }
            letter => field.push(letter),
        }
    }
    assert!(!quoted && field.is_empty() && row.is_empty(), "{csv}");
    rows
}

/// What a click copies of a table as CSV has its heads, its rows and its numbers.
fn copies_as_csv(browser: &mut Browser, table: &str) {
    let frame = format!("document.getElementById('{table}').parentElement");
    browser.click(&format!("{frame}.previousElementSibling.children[0]"));
    let copied = browser.is("window.copied");
    let rows = parsed(copied.as_str().unwrap());
    let heads = browser.is(&format!(
        "[...document.querySelectorAll('#{table} th')].map((head) => head.dataset.key)"
    ));
    assert_eq!(json!(rows[0]), heads, "{table}");
    assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{table}: {rows:?}");
    let count = browser.is(&format!("document.getElementById('{table}').tBodies[0].rows.length"));
    assert_eq!(count, rows.len() - 1, "{table}");
    let numbers = browser.is(&format!(
        "[...document.querySelectorAll('#{table} th.number')].map((head) => head.dataset.key)"
    ));
    for key in numbers.as_array().unwrap().iter().filter_map(Value::as_str) {
        let at = rows[0].iter().position(|head| head == key).unwrap();
        let copied: Vec<f64> = rows[1..].iter().filter_map(|row| row[at].parse().ok()).collect();
        assert_eq!(copied, column_of(browser, table, key), "{table}, {key}");
    }
}

#[test]
#[ignore = "slow: it starts a browser"]
fn a_page_of_several_gpus_and_files_works_in_a_browser() {
    let Some(program) = found() else {
        println!("skipped: a report of several files in a browser: no `chromium` here");
        return;
    };
    let sweep = |label, sizes: &[u64]| Sweep {
        label: Some(label),
        targets: vec!["cuda:0", "cuda:1"],
        request_sizes: sizes.into(),
        depths: vec![1, 8],
        ..Sweep::default()
    };
    let before = made::file(&sweep("before", &[64 << 10, 1 << 20]));
    // With a size more, which the other file has not.
    let after = made::file(&sweep("after", &[64 << 10, 1 << 20, 4 << 20]));
    let (folder, _) = folder(&before);
    std::fs::write(folder.path().join("after"), &after).unwrap();
    let output = forebay(folder.path(), &["results", "after", "-o", "report.html"]);
    assert!(output.status.success(), "{output:?}");
    let page = folder.path().join("report.html");
    let mut browser = Browser::start(&program, folder.path());
    browser.load(&page);
    is_quiet(&browser, &page);

    let of_both = |key| [shares(&before, key), shares(&after, key)].concat();
    let keys = ["bytes_per_second", "first_done_s", "last_done_s"];
    check_numbers(&mut browser, "targets", &keys.map(|key| (key, of_both(key))));
    let rate = |measured: &Value| measured["bytes_per_second"].as_f64();
    let rates = [medians(&before, rate), medians(&after, rate)].concat();
    let shown = column(&mut browser, "bytes_per_second");
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-12 * b.abs();
    assert!(shown.iter().zip(&rates).all(near), "{shown:?}, not {rates:?}");

    copies(&mut browser, shown.len());
    for table in ["ceilings", "results", "targets", "side-points"] {
        copies_as_csv(&mut browser, table);
    }
    narrow(&mut browser);
    is_quiet(&browser, &page);
}
