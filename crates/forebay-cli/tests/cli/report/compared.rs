//! Reports of comparisons: what `forebay compare --json` printed, and what somebody made of it who
//! means harm.

use std::fs;
use std::process::{Command, Output};

use serde_json::{Value, json};

use super::made::HARM;
use super::{folder, forebay};
use crate::program::program;

/// What a comparison with these arguments prints.
pub(super) fn compare(arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir_in(".").unwrap();
    let mut command = Command::new(program());
    command.current_dir(folder.path()).args(["compare", "-s", "2", "--gpu", "sim"]);
    command.args(arguments);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// What a report of the file `results` says in a form.
fn said(folder: &std::path::Path, arguments: &[&str]) -> String {
    let output = forebay(folder, &[&["results"], arguments].concat());
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout)
}

/// Text as it stands in HTML.
fn in_html(text: &str) -> String {
    text.replace('&', "&amp;").replace('\'', "&#39;").replace('<', "&lt;").replace('>', "&gt;")
}

#[test]
fn a_comparison_is_told_in_its_own_words_in_each_form() {
    let printed = text(&compare(&["-r", "4", "--json"]).stdout);
    let (folder, _) = folder(&printed);
    let found: Value = serde_json::from_str(&printed).unwrap();
    let rate = |value: &Value| forebay_cli::report::table::rate(value.as_f64().unwrap());
    let compute = &found["compare"]["compute"];
    let xor = format!(
        "2 MiB of the GPU's memory, read and written: {} GB/s, ",
        rate(&compute["alone"]["median"])
    );
    let beside = format!("a read: {} GB/s, ", rate(&compute["beside"]["median"]));
    let row = &found["results"][3];
    assert_eq!(
        (row["method"].as_str(), row["direction"].as_str()),
        (Some("forebay"), Some("read"))
    );
    let share = row["runs"]["variation"].as_f64().unwrap() * 100.0;
    let variation = format!("{share:.0} %, {}", row["runs"]["judgement"].as_str().unwrap());
    let first = format!("{}", row["runs"]["first"]);
    let dma = |to: &str| {
        let word = found["results"].as_array().unwrap().iter().find_map(|row| {
            let is = row["direction"] == to && row["method"] == "forebay";
            is.then(|| row["verdict"]["text"].as_str().unwrap())
        });
        format!(": forebay: {}, simulated", word.unwrap())
    };
    let against: Vec<&str> = ["% faster]", "% slower]", "[as fast]"].into();

    let shown = said(folder.path(), &[]);
    assert!(shown.contains("\nresults: compare\n"), "{shown}");
    for line in [
        "xor      ",
        "during   ",
        "each run 2 MiB written and read; ",
        "DMA      write: ",
        "DMA      read: ",
    ] {
        assert!(shown.contains(&format!("\n{line}")), "{line}: {shown}");
    }
    for word in [&xor, &beside, &variation, &dma("write"), &dma("read")] {
        assert!(shown.contains(word.as_str()), "{word}: {shown}");
    }
    assert!(against.iter().any(|word| shown.contains(word)), "{shown}");

    let shown = said(folder.path(), &["--markdown"]);
    assert!(shown.contains("\n## Comparison: results\n") && shown.contains("\n- xor: 2 MiB of"));
    for word in [&xor, &beside, &variation] {
        assert!(shown.contains(word.as_str()), "{word}: {shown}");
    }

    said(folder.path(), &["-o", "page"]);
    let page = fs::read_to_string(folder.path().join("page")).unwrap();
    for word in [
        "<h2>Comparison</h2>",
        "<dt>xor</dt>",
        "<dt>DMA</dt>",
        "id=\"compared-1\"",
        "<dt>mode</dt>\n<dd>all</dd>",
    ] {
        assert!(page.contains(word), "{word}: {page}");
    }
    for word in [&xor, &beside, &variation, &dma("read")] {
        assert!(page.contains(&in_html(word)), "{word}: {page}");
    }
    assert!(page.contains(&format!("data-value=\"{first}\"")), "{first}: {page}");
}

#[test]
fn programs_have_the_numbers_of_a_comparison() {
    let printed = text(&compare(&["-r", "3", "--json"]).stdout);
    let (folder, _) = folder(&printed);
    let found: Value = serde_json::from_str(&printed).unwrap();
    let first = found["results"][3]["runs"]["first"].to_string();
    let table = said(folder.path(), &["--csv"]);
    let head = table.lines().next().unwrap();
    assert!(head.ends_with(",first_bytes_per_second,mean_bytes_per_second,variation,speed_up"));
    assert!(table.lines().nth(4).unwrap().contains(&format!(",{first},")), "{table}");
    let gauges = said(folder.path(), &["--prometheus"]);
    assert!(
        gauges.contains("\nforebay_kernel_alone_bytes_per_second{run=\"results\",kernel=\"xor\",")
    );
    assert!(gauges.contains("\nforebay_first_bytes_per_second{run=\"results\",path="), "{gauges}");
}

#[test]
fn what_compare_says_of_its_rows_is_said_again() {
    // The sentences of one run in both: those that hold no number of this run alone.
    let printed = text(&compare(&["-m", "compare", "-r", "1"]).stdout);
    let (folder, path) = folder(&text(&compare(&["-m", "compare", "-r", "1", "--json"]).stdout));
    let shown = said(folder.path(), &[]);
    let about = |text: &str| -> Vec<String> {
        let is_about = |line: &&str| line.starts_with("each run ") || line.starts_with("distance ");
        text.lines().filter(is_about).map(str::to_owned).collect()
    };
    assert!(!about(&shown).is_empty() && about(&printed) == about(&shown), "{printed}{shown}");
    assert!(!shown.contains("xor"), "{shown}");
    // Beside another file each is headed by its verb.
    fs::copy(path, folder.path().join("other")).unwrap();
    said(folder.path(), &["other", "-o", "page"]);
    let page = fs::read_to_string(folder.path().join("page")).unwrap();
    assert!(page.contains("<h3>results: compare</h3>") && page.contains("<h3>other: compare</h3>"));
    assert!(page.contains("id=\"compared-2\""));
}

/// A comparison with harm in every text and absurd numbers.
fn hostile() -> Value {
    let mut found: Value = serde_json::from_slice(&compare(&["-r", "2", "--json"]).stdout).unwrap();
    let drive = json!({"drive": HARM, "name": HARM, "numa_node": 7, "distance": HARM,
        "text": HARM, "node_distance": u32::MAX});
    found["compare"]["mode"] = HARM.into();
    found["compare"]["runs"] = u64::MAX.into();
    found["compare"]["topology"] = json!({"gpu": HARM, "numa_node": 0, "drives": vec![drive; 999]});
    let rows = found["results"].as_array_mut().unwrap();
    for (index, row) in rows.iter_mut().enumerate() {
        row["evidence"] = Value::Null;
        row["verdict"]["text"] = HARM.into();
        row["verdict"]["word"] = HARM.into();
        row["demanded"] = HARM.into();
        row["speed_up"] = [1.7e308, -1.0, 0.0, 5e-324][index % 4].into();
        row["runs"] = [
            json!({"first": 1.7e308, "mean": -5, "variation": 1.7e308, "judgement": HARM}),
            json!({"first": null, "mean": "many", "variation": -1}),
            json!(HARM),
            json!([[[[]]]]),
        ][index % 4]
            .clone();
    }
    let more: Vec<Value> = rows.iter().cycle().take(2100).cloned().collect();
    found["results"] = more.into();
    found
}

#[test]
fn what_is_hostile_does_nothing_and_is_bounded() {
    let mut found = hostile();
    let (folder, path) = folder(&found.to_string());
    let shown = said(folder.path(), &[]);
    assert!(shown.chars().all(|letter| letter == '\n' || !letter.is_control()));
    for word in
        ["983 more drives are left out", "1900 more rows: `--csv` has all", "; 517 more, simulated"]
    {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    assert!(shown.lines().count() < 600 && !shown.contains("NaN") && !shown.contains("inf"));
    said(folder.path(), &["-o", "page"]);
    let page = fs::read_to_string(folder.path().join("page")).unwrap();
    assert_eq!((page.matches("<script").count(), page.matches("<img").count()), (2, 0));
    assert!(page.chars().all(|letter| letter == '\n' || !letter.is_control()));
    said(folder.path(), &["--csv"]);
    said(folder.path(), &["--prometheus"]);
    assert!(!said(folder.path(), &["--markdown"]).contains("<img"));

    // Parts that make no sense are left out, and that is said.
    found["results"].as_array_mut().unwrap().truncate(4);
    for (key, value) in
        [("alone", json!({"first": 1})), ("limit", json!(1e308)), ("kernel", json!(HARM))]
    {
        let before = found["compare"]["compute"][key].take();
        found["compare"]["compute"][key] = value;
        fs::write(&path, found.to_string()).unwrap();
        let output = forebay(folder.path(), &["results"]);
        let talk = text(&output.stderr);
        assert!(output.status.success() && !text(&output.stdout).contains("\nxor "), "{output:?}");
        let told = "warning: a part of results is invalid and left out, `compute`: ";
        assert!(talk.contains(told), "{key}: {talk}");
        assert!(talk.chars().all(|letter| letter == '\n' || !letter.is_control()));
        found["compare"]["compute"][key] = before;
    }
}

#[test]
fn wrong_data_of_the_kernel_are_a_warning() {
    let mut found: Value = serde_json::from_slice(&compare(&["-r", "1", "--json"]).stdout).unwrap();
    found["compare"]["compute_wrong"] = true.into();
    found["compare"]["compute"] = Value::Null;
    found["results"] = json!([]);
    let (folder, _) = folder(&found.to_string());
    let output = forebay(folder.path(), &["results"]);
    let talk = text(&output.stderr);
    assert!(output.status.success(), "{talk}");
    assert!(
        talk.contains("the GPU's own work of results, or the read during it, found wrong data")
    );
}
