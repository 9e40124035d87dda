//! A report as one page of HTML that needs no network and no other file.
//!
//! Everything in it has a bound, whatever the results hold. `markup` escapes all external text, and
//! the page also forbids itself to load anything. `plots` decides what is drawn; `lines`, `heat`,
//! `bars` and `flow` draw it. `side` shows runs side by side, `layers` the results of
//! `forebay.stream_bench`.

mod bars;
mod facts;
mod flow;
mod heat;
mod layers;
mod lines;
mod markup;
mod plots;
mod samples;
mod side;
mod tables;

use markup::Markup;

use super::digest::{Digest, Metric, answer, notes};
use super::grid::people;

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");
/// Allows only the page's own style and script, by the hashes of their text, and loads nothing.
/// This also protects if external text was not escaped. A test recomputes the hashes.
const POLICY: &str = "default-src 'none'; \
    style-src 'sha256-ykQwW+uz++U2VNqCkccEnKSuq3nIRtJQKoXbfMh5VHE='; \
    script-src 'sha256-qjBGk7vRbKFzxEKMZGO1xH+vyzDpW87Ht5IDxCSS510='; \
    base-uri 'none'; form-action 'none'";

/// Most rows of a table: a browser sorts this many at once.
const ROWS_MAX: usize = 2000;
/// Most warnings.
const WARNINGS_MAX: usize = 100;
/// Most runs whose settings and machine are shown.
const RUNS_MAX: usize = 64;

/// The page.
#[must_use]
pub fn page(digest: &Digest) -> String {
    let mut markup = Markup::default();
    markup.own("<!doctype html>\n");
    markup.within("html", &[("lang", &"en")], |markup| {
        let title = title(digest);
        markup.within("head", &[], |markup| head(markup, &title));
        markup.within("body", &[], |markup| {
            markup.within("header", &[], |markup| {
                markup.element("h1", &[], &title);
                let answer = answer::of(digest);
                markup.element("p", &[("class", &"answer"), ("id", &"answer")], answer);
            });
            markup.within("main", &[], |markup| body(markup, digest));
            markup.data("samples", &samples::json(digest));
            markup.within("script", &[], |markup| markup.own(SCRIPT));
        });
    });
    markup.done()
}

fn title(digest: &Digest) -> String {
    let runs = digest.runs.iter().map(|run| run.name.as_str());
    let all = runs.chain(digest.layers.iter().map(|layers| layers.name.as_str()));
    let names: Vec<&str> = all.clone().take(4).collect();
    let more = if all.count() > 4 { " and more" } else { "" };
    markup::cut(&format!("Report of {}{more}", names.join(", ")), 200)
}

fn head(markup: &mut Markup, title: &str) {
    markup.alone("meta", &[("charset", &"utf-8")]);
    let wide = "width=device-width, initial-scale=1";
    markup.alone("meta", &[("name", &"viewport"), ("content", &wide)]);
    markup.alone("meta", &[("name", &"color-scheme"), ("content", &"light dark")]);
    markup.alone("meta", &[("http-equiv", &"Content-Security-Policy"), ("content", &POLICY)]);
    markup.element("title", &[], title);
    markup.within("style", &[], |markup| markup.own(STYLE));
}

fn body(markup: &mut Markup, digest: &Digest) {
    warnings(markup, digest);
    section(markup, "Command and settings", |markup| {
        each_run(markup, digest, facts::asked);
        layers::each(markup, digest, layers::asked);
    });
    if !digest.ceilings.is_empty() {
        section(markup, "Limits", |markup| {
            bars::draw(markup, digest);
            tables::draw(markup, &people::ceilings(digest, ROWS_MAX), "ceilings");
        });
    }
    let drawn = drawings(markup, digest);
    if !digest.lines.is_empty() {
        section(markup, "Results", |markup| results(markup, digest));
    }
    if let Some(diff) = side::of(digest) {
        section(markup, "Side by side", |markup| side::draw(markup, &diff));
    }
    if !digest.layers.is_empty() {
        section(markup, "Layers behind compute", |markup| layers::draw(markup, digest, drawn));
    }
    section(markup, "Environment", |markup| {
        each_run(markup, digest, facts::environment);
        layers::each(markup, digest, layers::environment);
    });
    if !digest.lines.is_empty() {
        section(markup, "Samples", |markup| samples::draw(markup, digest));
    }
}

fn results(markup: &mut Markup, digest: &Digest) {
    let mut about = "The median of the repeats. GB are 1e9 bytes.".to_owned();
    if let Some(percent) = notes::confidence(digest, Metric::Rate) {
        about = format!(
            "The median of the repeats, and in brackets an interval that holds it with a \
             confidence of {percent} at least (more repeats, more confidence). GB are 1e9 bytes."
        );
    }
    markup.element("p", &[("class", &"note")], &about);
    tables::draw(markup, &people::results(digest, ROWS_MAX), "results");
    tables::draw(markup, &people::targets(digest, ROWS_MAX), "targets");
}

fn section(markup: &mut Markup, heading: &str, inside: impl FnOnce(&mut Markup)) {
    markup.within("section", &[], |markup| {
        markup.element("h2", &[], heading);
        inside(markup);
    });
}

fn each_run(
    markup: &mut Markup,
    digest: &Digest,
    show: impl Fn(&mut Markup, &super::digest::RunFacts),
) {
    for run in digest.runs.iter().take(RUNS_MAX) {
        if digest.runs.len() + digest.layers.len() > 1 {
            markup.element("h3", &[], format!("{}: {}", run.name, run.verb));
        }
        show(markup, run);
    }
}

fn warnings(markup: &mut Markup, digest: &Digest) {
    for warning in digest.warnings.iter().take(WARNINGS_MAX) {
        markup.within("p", &[("class", &"warning")], |markup| {
            markup.element("b", &[], "Warning:");
            markup.text(" ");
            markup.text(warning);
        });
    }
    more(markup, digest.warnings.len().saturating_sub(WARNINGS_MAX), "warnings");
}

fn more(markup: &mut Markup, count: usize, what: &str) {
    if count > 0 {
        markup.element("p", &[("class", &"note")], format!("{count} more {what} are left out."));
    }
}

/// Draws the results; returns the number of drawings.
fn drawings(markup: &mut Markup, digest: &Digest) -> usize {
    let (charts, maps, flows) = (plots::charts(digest), plots::maps(digest), flow::flows(digest));
    let mut number = 0;
    let mut next = || {
        number += 1;
        number
    };
    if !charts.shown.is_empty() {
        section(markup, "Throughput, latency and processors", |markup| {
            markup.within("div", &[("class", &"plots")], |markup| {
                charts.shown.iter().for_each(|chart| lines::draw(markup, chart, next()));
            });
            more(markup, charts.left_out, "charts");
        });
    }
    if !maps.shown.is_empty() {
        section(markup, "Maps", |markup| {
            markup.within("div", &[("class", &"plots")], |markup| {
                maps.shown.iter().for_each(|map| heat::draw(markup, map, next()));
            });
            more(markup, maps.left_out, "maps");
        });
    }
    if !flows.is_empty() {
        section(markup, "Data path", |markup| {
            markup.within("div", &[("class", &"plots")], |markup| {
                flows.iter().for_each(|flow| flow::draw(markup, flow, next()));
            });
            let about = "Bytes of all samples, by the routes that their verdicts prove. The drives \
                         count the bytes of all processes.";
            markup.element("p", &[("class", &"note")], about);
        });
    }
    number
}

#[cfg(test)]
mod tests;
