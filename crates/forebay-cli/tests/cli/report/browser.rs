//! The page in a real browser: nothing goes wrong, it sorts, copies, prints, fits a telephone, and
//! shows the numbers of the results.

mod several;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::devtools::{Browser, found};
use super::layers::LARGE;
use super::made::{self, Sweep};
use super::{folder, forebay};

/// A telephone's width, in CSS pixels.
const NARROW: u64 = 360;

/// The page of these results, in their folder.
fn page(folder: &Path) -> PathBuf {
    let output = forebay(folder, &["results", "-o", "report.html"]);
    assert!(output.status.success(), "{output:?}");
    folder.join("report.html")
}

/// Nothing was said on the console, no dialogue came up, and nothing but the page was asked for.
fn is_quiet(browser: &Browser, page: &Path) {
    for method in [
        "Runtime.consoleAPICalled",
        "Runtime.exceptionThrown",
        "Log.entryAdded",
        "Page.javascriptDialogOpening",
    ] {
        assert!(browser.told(method).is_empty(), "{:?}", browser.told(method));
    }
    let own = format!("file://{}", page.display());
    for request in browser.told("Network.requestWillBeSent") {
        assert_eq!(request["params"]["request"]["url"], own.as_str(), "{request}");
    }
}

/// The numbers of a column of the results, from the top.
fn column(browser: &mut Browser, key: &str) -> Vec<f64> {
    column_of(browser, "results", key)
}

/// The numbers of a column of a table, from the top.
fn column_of(browser: &mut Browser, table: &str, key: &str) -> Vec<f64> {
    let found = browser.is(&format!(
        "(() => {{ const t = document.getElementById('{table}');
         const at = [...t.tHead.rows[0].cells].findIndex((h) => h.dataset.key === '{key}');
         return [...t.tBodies[0].rows].map((r) => r.cells[at].dataset.value ?? ''); }})()"
    ));
    let numbers = found.as_array().unwrap().iter().filter_map(|text| text.as_str()?.parse().ok());
    numbers.collect()
}

/// Holds all columns of numbers of a table against what they should be, in their order.
fn check_numbers(browser: &mut Browser, table: &str, expected: &[(&str, Vec<f64>)]) {
    let found = browser.is(&format!(
        "[...document.querySelectorAll('#{table} th.number')].map((h) => h.dataset.key)"
    ));
    let keys: Vec<&str> = expected.iter().map(|(key, _)| *key).collect();
    assert_eq!(found, json!(keys), "{table}");
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-12 * b.abs();
    for (key, expected) in expected {
        let found = column_of(browser, table, key);
        let same = found.len() == expected.len() && found.iter().zip(expected).all(near);
        assert!(same && !found.is_empty(), "{table}, {key}: {found:?}, not {expected:?}");
    }
}

/// The numbers of an axis in the order of the points, those that failed among them.
fn places(text: &str, axis: &str) -> Vec<f64> {
    let mut points: Vec<Value> = Vec::new();
    for line in text.lines() {
        let record: Value = serde_json::from_str(line).unwrap();
        if record["record"] == "sample" && !points.contains(&record["point"]) {
            points.push(record["point"].clone());
        }
    }
    points.iter().map(|point| point[axis].as_f64().unwrap()).collect()
}

fn head(key: &str) -> String {
    format!("document.querySelector('#results th[data-key={key}] button')")
}

/// The medians of a quantity in the order of the points, from the file itself.
fn medians(text: &str, of: impl Fn(&Value) -> Option<f64>) -> Vec<f64> {
    let mut points: Vec<(String, Vec<f64>)> = Vec::new();
    for line in text.lines() {
        let record: Value = serde_json::from_str(line).unwrap();
        let Some(value) = of(&record["measured"]) else { continue };
        let point = record["point"].to_string();
        match points.iter_mut().find(|(other, _)| *other == point) {
            Some((_, values)) => values.push(value),
            None => points.push((point, vec![value])),
        }
    }
    let median = |(_, mut values): (String, Vec<f64>)| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    points.into_iter().map(median).collect()
}

fn narrow(browser: &mut Browser) {
    let screen = json!({"width": NARROW, "height": 740, "deviceScaleFactor": 2, "mobile": true});
    browser.ask("Emulation.setDeviceMetricsOverride", screen);
    let width = browser.is("document.documentElement.scrollWidth").as_u64().unwrap();
    assert!(width <= NARROW, "{width} pixels");
}

#[test]
#[ignore = "slow: it starts a browser"]
fn a_page_works_in_a_browser() {
    let Some(program) = found() else {
        println!("skipped: the report in a browser: no `chromium` on this machine");
        return;
    };
    let text =
        made::file(&Sweep { fails: 7, ways: vec!["forebay", "cpu-gpu"], ..Sweep::default() });
    let (folder, _) = folder(&text);
    let page = page(folder.path());
    let mut browser = Browser::start(&program, folder.path());
    browser.load(&page);
    is_quiet(&browser, &page);

    let of = |of: &dyn Fn(&Value) -> Option<f64>| medians(&text, of);
    let rates = of(&|measured| measured["bytes_per_second"].as_f64());
    let latency = |key: &str| of(&|measured| Some(measured["latency"][key].as_f64()? * 1e-9));
    // What the ceilings of the file allow; the storage binds.
    let ceilings = [25e9, 7e9, 7.9e9];
    let best = rates.iter().copied().fold(0.0, f64::max);
    let results = [
        ("request_size", places(&text, "request_size")),
        ("depth", places(&text, "depth")),
        ("bytes_per_second", rates.clone()),
        ("requests_per_second", of(&|measured| measured["requests_per_second"].as_f64())),
        ("latency_p50_s", latency("p50_ns")),
        ("latency_p90_s", latency("p90_ns")),
        ("latency_p99_s", latency("p99_ns")),
        ("latency_p99_9_s", latency("p99_9_ns")),
        ("latency_max_s", latency("max_ns")),
        ("cpu_s_per_gb", of(&|measured| measured["cpu"]["s_per_gb"].as_f64())),
        ("cpu_user_share", of(&|measured| Some(measured["cpu"]["user_s"].as_f64()? / 2.0))),
        ("cpu_system_share", of(&|measured| Some(measured["cpu"]["system_s"].as_f64()? / 2.0))),
        ("gpu_joules_per_gb", of(&|measured| measured["joules_per_gb"][0]["per_gb"].as_f64())),
        ("slope", of(&|measured| measured["steady"]["slope"].as_f64())),
        ("share_of_limit", rates.iter().map(|rate| rate / 7e9).collect()),
    ];
    check_numbers(&mut browser, "results", &results);
    let reached = ceilings.map(|ceiling| best / ceiling).into();
    let expected = [("bytes_per_second", ceilings.into()), ("reached", reached)];
    check_numbers(&mut browser, "ceilings", &expected);

    browser.click(&head("bytes_per_second"));
    let mut sorted = rates.clone();
    sorted.sort_by(f64::total_cmp);
    assert_eq!(column(&mut browser, "bytes_per_second"), sorted);
    let sort = "document.querySelector('#results th[aria-sort]').ariaSort";
    assert_eq!(browser.is(sort), "ascending");
    browser.click(&head("bytes_per_second"));
    sorted.reverse();
    assert_eq!(column(&mut browser, "bytes_per_second"), sorted);
    assert_eq!(browser.is(sort), "descending");
    copies(&mut browser, sorted.len());
    is_quiet(&browser, &page);

    themes(&mut browser);
    narrow(&mut browser);
    let smallest = browser.is("Math.min(...[...document.querySelectorAll('figure text')]
         .map((t) => t.getBoundingClientRect().height))");
    assert!(smallest.as_f64().unwrap() >= 9.0, "{smallest}");
    let printed = browser.ask("Page.printToPDF", json!({"printBackground": true}));
    let pdf = printed["data"].as_str().unwrap();
    // `%PDF-` in base64.
    assert!(pdf.starts_with("JVBERi") && pdf.len() > 20_000, "{}", pdf.len());
    is_quiet(&browser, &page);
}

/// A click copies the table as CSV, with all its rows.
fn copies(browser: &mut Browser, rows: usize) {
    browser.is(
        "document.addEventListener('copy', (e) => { window.copied = String(getSelection()) });
         Object.defineProperty(navigator, 'clipboard', {value: {writeText: async (text) =>
         { window.copied = text; }}}); 1",
    );
    let tools = "document.getElementById('results').parentElement.previousElementSibling";
    for (number, heads) in [["way,", "run,"], ["| method |", "| run |"]].iter().enumerate() {
        browser.click(&format!("{tools}.children[{number}]"));
        let copied = browser.is("window.copied");
        let copied = copied.as_str().unwrap();
        assert!(heads.iter().any(|head| copied.starts_with(head)), "{copied}");
        assert!(copied.lines().count() > rows, "{copied}");
    }
}

/// The ground is light or dark as the reader likes it.
fn themes(browser: &mut Browser) {
    let mut grounds = Vec::new();
    for theme in ["light", "dark"] {
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": theme}]});
        browser.ask("Emulation.setEmulatedMedia", features);
        grounds.push(browser.is("getComputedStyle(document.body).backgroundColor"));
    }
    assert_eq!(grounds, ["rgb(255, 255, 255)", "rgb(13, 17, 23)"]);
}

#[test]
#[ignore = "slow: it starts a browser"]
fn a_page_of_hostile_results_does_nothing() {
    let Some(program) = found() else {
        println!("skipped: a hostile report in a browser: no `chromium` on this machine");
        return;
    };
    let (folder, _) = folder(&made::hostile());
    let page = page(folder.path());
    let mut browser = Browser::start(&program, folder.path());
    browser.load(&page);
    assert_eq!(browser.is("document.scripts.length + document.images.length"), 2);
    narrow(&mut browser);
    is_quiet(&browser, &page);
}

#[test]
#[ignore = "slow: it starts a browser"]
fn a_page_of_layers_works_in_a_browser() {
    let Some(program) = found() else {
        println!("skipped: a report of layers in a browser: no `chromium` on this machine");
        return;
    };
    let (folder, _) = folder(LARGE);
    let page = page(folder.path());
    let mut browser = Browser::start(&program, folder.path());
    browser.load(&page);
    let sort = "document.querySelector('#layers-1 th[data-key=stall_s] button').click(), \
                document.querySelector('#layers-1 td').textContent";
    assert_eq!(browser.is(sort), "32,768");
    // Three of each way, and one in the legend.
    assert_eq!(browser.is("document.querySelectorAll('figure svg path.mark').length"), 8);
    narrow(&mut browser);
    is_quiet(&browser, &page);
}

#[test]
#[ignore = "slow: it starts a browser"]
fn a_page_can_be_read_without_scripts() {
    let Some(program) = found() else {
        println!("skipped: a report without scripts: no `chromium` on this machine");
        return;
    };
    let (folder, _) = folder(&made::file(&Sweep::default()));
    let page = page(folder.path());
    let mut browser = Browser::start(&program, folder.path());
    browser.ask("Emulation.setScriptExecutionDisabled", json!({"value": true}));
    browser.load(&page);
    let root = browser.ask("DOM.getDocument", json!({}))["root"]["nodeId"].clone();
    let html = browser.ask("DOM.getOuterHTML", json!({"nodeId": root}));
    let html = html["outerHTML"].as_str().unwrap();
    // No button that would do nothing.
    assert!(html.contains("<td") && !html.contains("<button"));
    is_quiet(&browser, &page);
}
