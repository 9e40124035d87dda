//! A report as one page of HTML that needs no network and no other file.
//!
//! maud escapes all external text, and the page forbids itself to load or run anything else. Its
//! charts are drawn by uPlot; without a script, tables and bars show the same numbers.

mod charts;

use forebay_measure::plain::{cut, plain};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use self::charts::Charts;
use super::bars::{self, State};
use super::compare::{self, Comparison};
use super::grid::Grid;
use super::model::{Metric, Model, facts};
use super::numbers::{counted, percent, rate_text};
use super::show::{self, Block};

const UPLOT_STYLE: &str = include_str!("uplot/uPlot.min.css");
const UPLOT: &str = include_str!("uplot/uPlot.iife.min.js");
const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");
/// Allows only the page's own styles and scripts, by the hashes of their texts, and loads nothing.
/// A test recomputes the hashes.
const POLICY: &str = "default-src 'none'; \
    style-src 'sha256-DPCb4F+gdgypozMOo3T2ZV8Idmx7KzcORir+mIUhR84=' \
    'sha256-UfVflj08T95EKUtBQ3ForAL2MS8k0o8X2fpz0s7mKOY='; \
    script-src 'sha256-NFfSEO/c4FA1Ho1UuJIAHhyu0zIIT3kTwudAOwRKtnc=' \
    'sha256-YX59NWSnStfWijgf2vlittf7iGQYxwJScS1Z5SMqDtc='; \
    base-uri 'none'; form-action 'none'";

/// Most rows of a table: a browser sorts this many at once.
const ROWS_MAX: usize = 2000;
/// Most warnings, and most runs whose machine is shown.
const LISTED_MAX: usize = 64;
/// Letters of a cell from which it is wrapped.
const LONG: usize = 50;

/// The page.
#[must_use]
pub fn page(model: &Model, comparisons: &[Comparison], metric: Metric) -> String {
    let names: Vec<&str> = model.runs.iter().map(|run| run.name.as_str()).take(4).collect();
    let title = cut(&plain(&names.join(", ")), 100);
    let charts = Charts::of(model);
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                title { (title) }
                style { (PreEscaped(UPLOT_STYLE)) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                (head(model, &title))
                (tiles(model, comparisons, metric))
                @if !model.warnings.is_empty() { (warnings(model)) }
                (machines(model))
                @if !charts.charts.is_empty() { (drawn(&charts)) }
                @for found in comparisons {
                    section { (blocks(&show::comparison(found, metric, ROWS_MAX))) }
                }
                @if !model.lines.is_empty() {
                    section { h2 { "Results" } (blocks(&show::results(model, ROWS_MAX))) }
                }
                @if !model.limits.is_empty() {
                    section { h2 { "Limits" } (table(&show::limits(model))) }
                }
                script type="application/json" id="data" { (PreEscaped(charts.json())) }
                script { (PreEscaped(UPLOT)) }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    markup.into_string()
}

fn head(model: &Model, title: &str) -> Markup {
    let commands = model.runs.iter().take(LISTED_MAX).filter_map(|run| {
        let command = plain(&run.record.environment.command);
        let began = facts::began(&run.record).unwrap_or_default();
        (!command.is_empty()).then_some((command, began))
    });
    html! {
        header {
            h1 { (title) }
            @for (command, began) in commands {
                p { code { (command) } " " span.soft { (began) } }
            }
        }
    }
}

/// Three tiles: the best rate, its share of the limit, and its path. A comparison has the change,
/// its points, and how well it is known.
fn tiles(model: &Model, comparisons: &[Comparison], metric: Metric) -> Markup {
    let tiles: Vec<[String; 3]> = match (comparisons.first(), model.best(|_| true)) {
        (Some(found), _) => compared_tiles(found, metric),
        (None, Some(_)) if model.runs.len() == 1 && bars::has_whole_files(model) => {
            let tile = |state: State| {
                let parts = [state.note, state.share].into_iter().filter(|part| !part.is_empty());
                let label = format!("Forebay, {}", state.name);
                [label, state.speed, parts.collect::<Vec<_>>().join(" · ")]
            };
            bars::states(model).into_iter().map(tile).collect()
        }
        (None, Some((_, best))) => {
            let rate = best.rate().map(rate_text).unwrap_or_default();
            let share = best.share().filter(|share| *share < 1.1).map(|share| share.min(1.0));
            let share = share.map_or_else(|| "unknown".into(), percent);
            let limit = best.limit.as_ref();
            let limit = limit.map(|(name, rate)| format!("{name}, {}", rate_text(*rate)));
            let limit = limit.unwrap_or_else(|| "no limit was measured".into());
            let data = match best.verified {
                Some(true) => "data verified",
                Some(false) => "WRONG data",
                None => "data not verified",
            };
            vec![
                ["best rate".into(), rate, model.name(best, &model.varying())],
                ["of its limit".into(), share, limit],
                ["path".into(), show::path(best), data.into()],
            ]
        }
        (None, None) => Vec::new(),
    };
    html! {
        @if !tiles.is_empty() {
            section.tiles {
                @for [label, value, note] in &tiles {
                    div.tile {
                        span { (label) }
                        b.long[value.chars().count() > 14] { (plain(value)) }
                        span { (plain(note)) }
                    }
                }
            }
        }
    }
}

fn compared_tiles(found: &Comparison, metric: Metric) -> Vec<[String; 3]> {
    let mean = found.mean(metric);
    let (better, worse) = metric.words();
    let ratio = mean.map_or_else(|| "none".into(), |mean| compare::text(mean.ratio));
    let value = ratio.split(' ').next().unwrap_or_default().to_owned();
    let (more, less, points) =
        mean.map_or((0, 0, 0), |mean| (mean.better, mean.worse, mean.points));
    let counts = format!("{more} {better}, {less} {worse}");
    let sides = format!("{} over {}, geometric mean", found.other, found.base);
    let interval = ratio.split_once('(').map_or("none", |(_, rest)| rest.trim_end_matches(')'));
    let samples = found.of(metric).map(|(_, one)| one.samples.0.min(one.samples.1)).min();
    let samples = format!("{} of each point or more", counted(samples.unwrap_or(0), "sample"));
    vec![
        [metric.name().into(), value, sides],
        ["significant points".into(), counts, format!("of {}", counted(points, "point"))],
        ["interval of 95 %".into(), interval.into(), samples],
    ]
}

fn warnings(model: &Model) -> Markup {
    let more = model.warnings.len().saturating_sub(LISTED_MAX);
    html! {
        ul.warnings {
            @for warning in model.warnings.iter().take(LISTED_MAX) { li { (plain(warning)) } }
            @if more > 0 { li { (more) " more warnings" } }
        }
    }
}

/// The machine of each run, where it differs from that of the run before.
fn machines(model: &Model) -> Markup {
    let mut shown = Vec::new();
    for run in model.runs.iter().take(LISTED_MAX) {
        let machine = facts::machine(&run.record);
        if !shown.iter().any(|(_, other, _)| *other == machine) {
            shown.push((&run.name, machine, facts::settings(&run.record)));
        }
    }
    let list = |facts: &[(String, String)]| {
        html! {
            dl { @for (name, value) in facts { dt { (plain(name)) } dd { (plain(value)) } } }
        }
    };
    html! {
        @for (name, machine, settings) in &shown {
            section {
                h2 { "Machine" @if shown.len() > 1 { " of " (plain(name)) } }
                (list(machine))
                @if !settings.is_empty() {
                    details { summary { "Settings" } (list(settings)) }
                }
            }
        }
    }
}

fn drawn(charts: &Charts) -> Markup {
    html! {
        section {
            h2 { "Charts" }
            ul.legend {
                @for (number, name) in charts.series.iter().enumerate() {
                    li { i class=(format!("s{}", number % 8)) {} (plain(name)) }
                }
                @if let Some(limit) = &charts.charts[0].limit {
                    li { i.limit.s7 {} (plain(limit)) }
                }
            }
            @if charts.left_out > 0 {
                p.soft { (charts.left_out) " more lines are in the table" }
            }
            div.charts {
                @for chart in &charts.charts {
                    figure {
                        figcaption {
                            b { (chart.metric.name()) } " "
                            span data-usual=(chart.note) { (chart.note) }
                        }
                        div.plot id=(chart.id) {}
                    }
                }
            }
            noscript { p.soft { "Charts need a script; the table has the same numbers." } }
        }
    }
}

fn blocks(blocks: &[Block]) -> Markup {
    html! {
        @for block in blocks {
            @match block {
                Block::Title(text) => h2 { (plain(text)) },
                Block::Line(text) => p.soft { (plain(text)) },
                Block::Table(grid) => (table(grid)),
            }
        }
    }
}

/// A table, with bars as meters, so that they need no script.
fn table(grid: &Grid) -> Markup {
    let grid = grid.clone().fitted(None);
    let values = grid.bars.map(|at| grid.rows.iter().filter_map(move |row| row.get(at)?.number));
    let most = values.map_or(0.0, |values| values.fold(0.0, f64::max));
    let kind = |at: usize| {
        let column = &grid.columns[at];
        let detail = if column.rank >= show::DETAIL { "more" } else { "" };
        let number = if column.number { "number" } else { "" };
        format!("{number} {detail}").trim().to_owned()
    };
    let is_long = |text: &str| text.chars().count() > LONG;
    let has_details = grid.columns.iter().any(|column| column.rank >= show::DETAIL);
    html! {
        @if has_details { label { input.all type="checkbox"; " all columns" } }
        div.scroll tabindex="0" {
            table {
                thead {
                    tr {
                        @for (at, column) in grid.columns.iter().enumerate() {
                            th class=(kind(at)) data-column=(at) { (column.heading) }
                        }
                    }
                }
                tbody {
                    @for (number, row) in grid.rows.iter().enumerate() {
                        tr.best[grid.best == Some(number)] {
                            @for (at, cell) in row.iter().enumerate() {
                                @let long = if is_long(&cell.text) { " long" } else { "" };
                                td class=(kind(at) + long) data-value=[cell.number] {
                                    @if grid.bars == Some(at) && most > 0.0 {
                                        @if let Some(value) = cell.number {
                                            meter min="0" max="1" value=(value / most) {}
                                        }
                                    }
                                    (cell.text)
                                }
                            }
                        }
                    }
                }
            }
        }
        @if grid.left_out > 0 { p.soft { (grid.left_out) " more rows: --format csv has all" } }
    }
}

#[cfg(test)]
mod tests;
