//! Layers behind compute: for each run its sentences and its table, and a chart of passes over
//! their lines.

use super::markup::{Markup, cut};
use super::plots::{CHARTS_MAX, Chart, Measure, POINTS_MAX, Reach, SERIES_MAX, Series, Spot};
use super::{ROWS_MAX, RUNS_MAX, facts, lines, more, tables};
use crate::report::digest::{Digest, grouped};
use crate::report::grid;
use crate::report::layers::{Layers, said};

/// The quantity of the charts.
const OVER_LINE: Measure =
    Measure { name: "pass time over the line", unit: "", scale: 1.0, reach: Reach::One };

/// Calls `show` for each run, below its name if there are several.
pub(crate) fn each(markup: &mut Markup, digest: &Digest, show: impl Fn(&mut Markup, &Layers)) {
    for layers in digest.layers.iter().take(RUNS_MAX) {
        if digest.runs.len() + digest.layers.len() > 1 {
            markup.element("h3", &[], format!("{}: stream", layers.name));
        }
        show(markup, layers);
    }
}

/// The command and its settings.
pub(crate) fn asked(markup: &mut Markup, layers: &Layers) {
    facts::command(markup, &layers.command);
    let count = |count: Option<u64>| count.map(grouped);
    let told = [
        ("layers", count(Some(layers.count))),
        ("bytes of each", count(Some(layers.layer_bytes))),
        ("order", Some(layers.order.clone())),
        ("from", Some(layers.from.clone())),
        ("buffers", count(layers.buffers)),
        ("rounds", count(layers.rounds)),
        ("passes of a turn", count(layers.passes)),
        ("file", layers.file.clone()),
    ];
    let told = told.into_iter().filter_map(|(name, text)| Some((name, text?)));
    facts::list(markup, &told.collect::<Vec<_>>());
}

/// The machine.
pub(crate) fn environment(markup: &mut Markup, layers: &Layers) {
    let mut told = layers.machine.facts.clone();
    if layers.simulated {
        told.push(("simulated", "yes: its numbers say nothing about hardware".into()));
    }
    facts::list(markup, &told);
}

/// The section; `drawn` is how many drawings the page has already.
pub(crate) fn draw(markup: &mut Markup, digest: &Digest, drawn: usize) {
    let rows = ROWS_MAX / digest.layers.len().max(1);
    for (number, layers) in digest.layers.iter().take(RUNS_MAX).enumerate() {
        if digest.layers.len() > 1 {
            markup.element("h3", &[], &layers.name);
        }
        markup.within("ul", &[], |markup| {
            for text in said::sentences(layers).iter().chain(&said::left_out(layers)) {
                markup.element("li", &[], text);
            }
        });
        let id = format!("layers-{}", number + 1);
        tables::draw(markup, &grid::layers::people(layers, rows), &id);
    }
    charts(markup, digest, drawn);
    facts::list(markup, &said::LEGEND.map(|(name, text)| (name, text.to_owned())));
}

fn charts(markup: &mut Markup, digest: &Digest, drawn: usize) {
    let charts: Vec<Chart> = digest.layers.iter().filter_map(chart).collect();
    if charts.is_empty() {
        return;
    }
    markup.within("div", &[("class", &"plots")], |markup| {
        for (number, chart) in charts.iter().take(CHARTS_MAX).enumerate() {
            lines::draw(markup, chart, drawn + number + 1);
        }
    });
    let about = "A value is the median pass divided by the line, and its bar reaches from the \
                 shortest pass to the longest. Both axes are logarithmic.";
    markup.element("p", &[("class", &"note")], about);
    more(markup, charts.len().saturating_sub(CHARTS_MAX), "charts");
    let ways = |layers: &Layers| layers.ways().len().saturating_sub(SERIES_MAX);
    more(markup, digest.layers.iter().map(ways).sum(), "lines of charts");
}

/// Passes relative to their theoretical time, by tokens, with a line for each method. `None` if
/// nothing was measured.
fn chart(layers: &Layers) -> Option<Chart> {
    let mut points: Vec<_> = layers.points.iter().filter(|point| !point.ways.is_empty()).collect();
    points.sort_by_key(|point| point.tokens);
    points.truncate(POINTS_MAX);
    #[expect(clippy::cast_precision_loss, reason = "a place on an axis")]
    let ticks = points.iter().map(|point| (point.tokens as f64, grouped(point.tokens)));
    let ticks: Vec<(f64, String)> = ticks.collect();
    let series = layers.ways().into_iter().take(SERIES_MAX).map(|name| {
        let spots = points.iter().enumerate().filter_map(|(tick, point)| {
            let way = point.way(name)?;
            Some((tick, Spot { value: way.over_line(), bar: way.range_over_line() }))
        });
        Series { name: name.to_owned(), points: spots.collect() }
    });
    let limit = Some(("the line:".to_owned(), 1.0));
    let facet = format!("{}, {}", cut(&layers.name, 60), layers.about());
    let series: Vec<Series> = series.filter(|series| !series.points.is_empty()).collect();
    (!series.is_empty()).then_some(Chart { facet, x: "tokens", y: OVER_LINE, ticks, series, limit })
}

#[cfg(test)]
mod tests {
    use crate::report::digest::gather::tests::digest_of;
    use crate::report::html::markup::tests::{check_ids, elements};
    use crate::report::html::page;
    use crate::report::layers::tests::{HARM, MAPPED, hostile};
    use crate::report::made::{self, Sweep};

    fn count(elements: &[String], name: &str) -> usize {
        elements.iter().filter(|other| *other == name).count()
    }

    #[test]
    fn a_page_of_layers_alone_has_all_of_them() {
        let digest = digest_of(&[("large", MAPPED)]);
        let page = page(&digest);
        let found = elements(&page);
        assert_eq!((count(&found, "table"), count(&found, "figure")), (1, 1));
        for absent in ["<h2>Results", "<h2>Samples", "id=\"save\"", "<h3>"] {
            assert!(!page.contains(absent), "{absent}");
        }
        for word in [
            "<title>Report of large</title>",
            "two-buffers: free from 32,768 tokens on; on its line from 1,024 tokens on",
            "id=\"layers-1\"",
            "pass time over the line by tokens: large, 6 layers of 1,237 MB, forward, from mapped",
            "--tokens 1024,8192,32768",
            "NVIDIA H200, 139.8 GiB",
            "16 × Intel(R) Xeon(R) Processor",
        ] {
            assert!(page.contains(word), "{word}");
        }
        let pass = digest.layers[0].points[2].way("forebay").unwrap().pass_s;
        assert!(page.contains(&format!("data-value=\"{pass}\">481.1</td>")));
        let (_, figure) = page.split_once("<figure>").unwrap();
        let (figure, _) = figure.split_once("</figure>").unwrap();
        // Two lines with three markers, and both in the legend.
        assert_eq!(figure.matches("class=\"mark ").count(), 2 * 3 + 2);
        assert_eq!(figure.matches("class=\"limit\"").count(), 2);
        assert!(figure.contains("forebay, 32,768: 0.969 ("), "{figure}");
    }

    #[test]
    fn layers_stand_beside_results() {
        let results = made::file(&Sweep { repeats: 1, ..Sweep::default() });
        let page = page(&digest_of(&[("a", &results), ("l", MAPPED), ("l", MAPPED)]));
        let found = elements(&page);
        assert_eq!(count(&found, "h3"), 2 * 3 + 2);
        for word in ["<h2>Results", "id=\"layers-2\"", "Report of a, l, l (2)", "At best, forebay"]
        {
            assert!(page.contains(word), "{word}");
        }
        check_ids(&page);
    }

    #[test]
    fn nothing_in_it_acts_and_all_of_it_is_bounded() {
        let text = hostile();
        let page = page(&digest_of(&[(HARM, text.as_str()), ("b", &text)]));
        let found = elements(&page);
        assert_eq!((count(&found, "script"), count(&found, "img")), (2, 0));
        assert!(page.chars().all(|letter| letter == '\n' || !letter.is_control()));
        for word in ["more rows", "112 more lines of charts", "&lt;script&gt;alert(1)"] {
            assert!(page.contains(word), "{word}");
        }
        assert!(page.len() < 4 << 20, "{}", page.len());
        assert!(!page.contains("NaN</") && !page.contains("inf<"));
    }
}
