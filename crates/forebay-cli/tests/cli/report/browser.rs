//! The page in a real browser: nothing goes wrong, it draws, sorts, prints, fits a telephone, and
//! works without a script.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::devtools::{Browser, found};
use super::made::{self, Sweep};
use super::{folder, forebay};

/// A telephone's width, in CSS pixels.
const NARROW: u64 = 360;

/// The page of the files in a folder.
fn page(folder: &Path, files: &[&str]) -> PathBuf {
    let output = forebay(folder, &[files, &["-o", "report.html"]].concat());
    assert!(output.status.success(), "{output:?}");
    folder.join("report.html")
}

/// Nothing was written on the console, no dialogue opened, and only the page was requested.
fn is_quiet(browser: &Browser, page: &Path) {
    for method in [
        "Runtime.consoleAPICalled",
        "Runtime.exceptionThrown",
        "Log.entryAdded",
        "Page.javascriptDialogOpening",
    ] {
        assert!(browser.events_of(method).is_empty(), "{:?}", browser.events_of(method));
    }
    let own = format!("file://{}", page.display());
    for request in browser.events_of("Network.requestWillBeSent") {
        assert_eq!(request["params"]["request"]["url"], own.as_str(), "{request}");
    }
}

/// The numbers of a column of the first table, from the top.
fn column(browser: &mut Browser, heading: &str) -> Vec<f64> {
    let found = browser.is(&format!(
        "(() => {{ const t = document.querySelector('table');
         const at = [...t.tHead.rows[0].cells].findIndex((h) => h.textContent === '{heading}');
         return [...t.tBodies[0].rows].map((r) => r.cells[at].dataset.value ?? ''); }})()"
    ));
    let numbers = found.as_array().unwrap().iter().filter_map(|text| text.as_str()?.parse().ok());
    numbers.collect()
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
    let sweep = Sweep { fails: 7, methods: vec!["forebay", "cpu-gpu"], ..Sweep::default() };
    let (folder, _) = folder(&made::file(&sweep));
    let page = page(folder.path(), &["results"]);
    let mut browser = Browser::start(&program, folder.path());
    browser.load(&page);
    is_quiet(&browser, &page);
    assert_eq!(browser.is("document.querySelectorAll('.plot canvas').length"), 4);

    // No word of a table is broken, and a click sorts.
    let heights = "[...document.querySelectorAll('tbody tr')].every((r) => r.offsetHeight < 40)";
    assert_eq!(browser.is(heights), true);
    let mut rates = column(&mut browser, "GB/s");
    rates.sort_by(f64::total_cmp);
    let head = "[...document.querySelectorAll('th button')].find((b) => b.textContent === 'GB/s')";
    browser.click(head);
    assert_eq!(column(&mut browser, "GB/s"), rates);
    browser.click(head);
    rates.reverse();
    assert_eq!(column(&mut browser, "GB/s"), rates);
    let hidden = "document.querySelector('th.more').offsetWidth";
    assert_eq!(browser.is(hidden), 0);
    browser.click("document.querySelector('.all')");
    assert!(browser.is(hidden).as_u64().unwrap() > 0);

    let mut grounds = Vec::new();
    for theme in ["light", "dark"] {
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": theme}]});
        browser.ask("Emulation.setEmulatedMedia", features);
        grounds.push(browser.is("getComputedStyle(document.body).backgroundColor"));
    }
    assert_eq!(grounds, ["rgb(255, 255, 255)", "rgb(13, 17, 23)"]);
    narrow(&mut browser);
    let printed = browser.ask("Page.printToPDF", json!({"printBackground": true}));
    let pdf = printed["data"].as_str().unwrap();
    // `%PDF-` in base64.
    assert!(pdf.starts_with("JVBERi") && pdf.len() > 20_000, "{}", pdf.len());
    is_quiet(&browser, &page);

    browser.ask("Emulation.setScriptExecutionDisabled", json!({"value": true}));
    browser.load(&page);
    assert_eq!(browser.is("document.querySelectorAll('meter').length"), 26);
    is_quiet(&browser, &page);
}

#[test]
#[ignore = "slow: it starts a browser"]
fn other_pages_fit_a_telephone_and_run_nothing_foreign() {
    let Some(program) = found() else {
        println!("skipped: other reports in a browser: no `chromium` on this machine");
        return;
    };
    let (folder, path) = folder(&made::hostile());
    std::fs::write(path.with_file_name("other"), made::file(&Sweep::default())).unwrap();
    let mut browser = Browser::start(&program, folder.path());
    for files in [&["results"][..], &["results", "other"]] {
        let page = page(folder.path(), files);
        browser.load(&page);
        assert_eq!(browser.is("document.scripts.length + document.images.length"), 3);
        narrow(&mut browser);
        is_quiet(&browser, &page);
        std::fs::remove_file(page).unwrap();
    }
}
