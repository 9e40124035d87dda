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

fn bars_begin_at_one_line(browser: &mut Browser) {
    let places = "[...document.querySelectorAll('table')].map((table) => new Set(
        [...table.querySelectorAll('.bar svg')].map((bar) => bar.getBoundingClientRect().x)).size)";
    let places = browser.is(places);
    assert!(places.as_array().unwrap().iter().all(|count| count.as_u64() < Some(2)), "{places}");
}

fn narrow(browser: &mut Browser) {
    screen(browser, NARROW, 740, 2);
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

    bars_begin_at_one_line(&mut browser);
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
    for shade in ["light", "dark"] {
        theme(&mut browser, shade);
        grounds.push(browser.is("getComputedStyle(document.body).backgroundColor"));
    }
    assert_eq!(grounds, ["rgb(255, 255, 255)", "rgb(13, 17, 23)"]);
    narrow(&mut browser);
    let printed = browser.call("Page.printToPDF", json!({"printBackground": true}));
    let pdf = printed["data"].as_str().unwrap();
    // `%PDF-` in base64.
    assert!(pdf.starts_with("JVBERi") && pdf.len() > 20_000, "{}", pdf.len());
    is_quiet(&browser, &page);

    browser.call("Emulation.setScriptExecutionDisabled", json!({"value": true}));
    browser.load(&page);
    assert_eq!(browser.is("document.querySelectorAll('td.bar rect').length"), 26);
    is_quiet(&browser, &page);
}

fn screen(browser: &mut Browser, width: u64, height: u64, scale: u64) {
    let mobile = width == NARROW;
    let screen = json!({"width": width, "height": height, "deviceScaleFactor": scale,
        "mobile": mobile});
    browser.call("Emulation.setDeviceMetricsOverride", screen);
}

fn theme(browser: &mut Browser, theme: &str) {
    let features = json!({"features": [{"name": "prefers-color-scheme", "value": theme}]});
    browser.call("Emulation.setEmulatedMedia", features);
}

/// Gray pictures of an eighth of the size, and how far their dots are apart on average, of 255.
const SHRINK_AND_COMPARE: &str = "
    const gray = async (png) => {
        const image = new Image();
        image.src = 'data:image/png;base64,' + png;
        await image.decode();
        return image;
    };
    const drawn = (image, [width, height]) => {
        const canvas = new OffscreenCanvas(width, height);
        const context = canvas.getContext('2d');
        context.filter = 'grayscale(1)';
        context.drawImage(image, 0, 0, width, height);
        return [canvas, context.getImageData(0, 0, width, height).data];
    };
    const base64 = async (canvas) => {
        const bytes = new Uint8Array(await (await canvas.convertToBlob()).arrayBuffer());
        return btoa(String.fromCharCode(...bytes));
    };
    const now = await gray(NOW);
    const size = [now.width / 8, now.height / 8];
    const [canvas, dots] = drawn(now, size);
    const kept = KEPT ? drawn(await gray(KEPT), size)[1] : dots;
    const apart = dots.reduce((sum, dot, at) => sum + Math.abs(dot - kept[at]), 0);
    return [await base64(canvas), apart / dots.length];";
/// Without the bars of a wide table pictures are 0.2 apart, without those of sections 2, without
/// charts 5. Another font makes 2 to 12.
const APART_MAX: f64 = 0.1;
/// The width of this text in the font of the pictures, DejaVu Sans.
const FONT: (&str, u64) = ("Forebay 0123456789", 171);

#[test]
#[ignore = "slow: it starts a browser"]
fn pages_look_as_they_did() {
    let Some(program) = found() else {
        println!("skipped: pictures of reports: no `chromium` on this machine");
        return;
    };
    let sweep = Sweep { methods: vec!["forebay", "mmap", "standard"], ..Sweep::default() };
    let mut whole = vec![made::run(&sweep), made::limit("storage", &sweep.path, 1e10)];
    whole[0]["request"]["whole_files"] = true.into();
    whole.extend(made::samples(&sweep));
    let pictures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/report/pictures");
    let mut apart = Vec::new();
    for (name, text) in [("sweep", made::file(&sweep)), ("whole", made::text(&whole))] {
        let (folder, _) = folder(&text);
        let page = page(folder.path(), &["results"]);
        let mut browser = Browser::start(&program, folder.path());
        let width = "(() => { const c = new OffscreenCanvas(9, 9).getContext('2d');
             c.font = '16px system-ui'; return Math.round(c.measureText('TEXT').width); })()";
        if browser.is(&width.replace("TEXT", FONT.0)) != FONT.1 {
            println!("skipped: pictures of reports: another font than theirs");
            return;
        }
        for (width, shade) in [(1280, "light"), (NARROW, "dark")] {
            screen(&mut browser, width, 1000, 1);
            theme(&mut browser, shade);
            let file = pictures.join(format!("{name}-{width}-{shade}.png.base64"));
            let kept = std::fs::read_to_string(&file).unwrap_or_default();
            let mut compared = || {
                browser.load(&page);
                let picture = browser.call("Page.captureScreenshot", json!({"format": "png"}));
                // The page's own policy forbids pictures.
                browser.call("Page.navigate", json!({"url": "about:blank"}));
                let compare = SHRINK_AND_COMPARE.replace("NOW", &picture["data"].to_string());
                let compare = compare.replace("KEPT", &json!(kept.trim()).to_string());
                browser.is(&format!("(async () => {{ {compare} }})()"))
            };
            // On a busy machine a picture may be of a page that is not drawn to its end.
            let mut found = compared();
            for _ in 0..3 {
                if found[1].as_f64().unwrap() >= APART_MAX {
                    found = compared();
                }
            }
            if std::env::var_os("FOREBAY_WRITE_PICTURES").is_some() {
                std::fs::create_dir_all(&pictures).unwrap();
                std::fs::write(&file, format!("{}\n", found[0].as_str().unwrap())).unwrap();
            } else {
                assert!(!kept.is_empty(), "{} is missing", file.display());
            }
            apart.push((format!("{name}-{width}-{shade}"), found[1].as_f64().unwrap()));
        }
    }
    println!("{apart:?}");
    assert!(apart.iter().all(|(_, apart)| *apart < APART_MAX), "{apart:?}");
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
