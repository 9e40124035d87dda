//! A report as a single page of HTML that needs no network and no further file.
//!
//! maud escapes all external text, and the page forbids itself to load or run anything else. Its
//! charts are drawn by uPlot; without a script, tables and bars show the same numbers. A run of
//! whole files shows the sections and the last sentence of the terminal.

mod charts;

use forebay_measure::plain::{cut, plain};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use self::charts::Charts;
use super::bars::{self, State};
use super::compare::{self, Comparison};
use super::grid::{Cell, Grid};
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
    'sha256-++oc/JzKbkxyjS/WJAmObUITABCeFmRxNWqmLe8qOSI='; \
    script-src 'sha256-NFfSEO/c4FA1Ho1UuJIAHhyu0zIIT3kTwudAOwRKtnc=' \
    'sha256-nYUea1qylCsqBs0J4WO+yTvEb4RD2lNEjYg105KW8ww='; \
    base-uri 'none'; form-action 'none'";

/// Most rows of a table that a browser sorts quickly.
const ROWS_MAX: usize = 2000;
/// Most warnings, and most runs whose machine is shown.
const LISTED_MAX: usize = 64;
/// Most runs that the title names.
const NAMED_MAX: usize = 3;
/// Letters of a cell from which it is wrapped.
const LONG: usize = 50;

/// The page.
#[must_use]
pub fn page(model: &Model, comparisons: &[Comparison], metric: Metric) -> String {
    let title = title(model);
    let charts = Charts::of(model);
    let is_whole = comparisons.is_empty() && model.runs.len() == 1 && model.has_whole_files();
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
                @if is_whole {
                    @if let Some(text) = bars::closing(model) { p { (coded(&text)) } }
                }
                @for found in comparisons {
                    section { (blocks(&show::comparison(found, metric, ROWS_MAX))) }
                }
                @if !model.warnings.is_empty() { (warnings(model)) }
                @if is_whole {
                    section { (blocks(&bars::sections(model))) }
                }
                @if !charts.charts.is_empty() { (drawn(&charts)) }
                @if !model.lines.is_empty() {
                    section {
                        h2 { @if is_whole { "All numbers" } @else { "Results" } }
                        @if is_whole {
                            (table(&bars::table(model, ROWS_MAX)))
                        } @else {
                            (blocks(&show::results(model, ROWS_MAX)))
                        }
                    }
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

/// The program, the path, the target and the day; before it the names of several runs.
fn title(model: &Model) -> String {
    let names: Vec<&str> = model.runs.iter().map(|run| run.name.as_str()).collect();
    let names = match names.len() {
        0 | 1 => String::new(),
        2..=NAMED_MAX => names.join(", "),
        many => counted(many, "run"),
    };
    let began = model.runs.last().and_then(|run| facts::began(&run.record)).unwrap_or_default();
    let day = began.split(' ').next().unwrap_or_default();
    let parts = [names, bars::title(model), day.to_owned()];
    let parts = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>();
    cut(&plain(&parts.join(" · ")), 200)
}

/// The commands, and below them their machines in a line: of a later run, only the differences from
/// the first machine.
fn head(model: &Model, title: &str) -> Markup {
    let list = |facts: &[(String, String)]| {
        html! {
            dl { @for (name, value) in facts { dt { (plain(name)) } dd { (plain(value)) } } }
        }
    };
    let machines = model.runs.iter().take(LISTED_MAX).map(|run| facts::machine(&run.record));
    let machines: Vec<_> = machines.collect();
    html! {
        header {
            h1 { (title) }
            @for (number, (run, machine)) in model.runs.iter().zip(&machines).enumerate() {
                @let command = plain(&run.record.environment.command);
                @if !command.is_empty() {
                    p {
                        code { (command) } " "
                        span.soft { (facts::began(&run.record).unwrap_or_default()) }
                    }
                }
                @if number == 0 {
                    details {
                        summary { (plain(&show::machine(model, 0))) }
                        (list(machine))
                        @let settings = facts::settings(&run.record);
                        @if !settings.is_empty() { h3 { "Settings" } (list(&settings)) }
                    }
                } @else {
                    @let other: Vec<String> = machine
                        .iter()
                        .filter(|fact| !machines[0].contains(fact))
                        .map(|(name, value)| format!("{name} {value}"))
                        .collect();
                    @if !other.is_empty() {
                        p.soft { (plain(&run.name)) " differs: " (plain(&other.join(" · "))) }
                    }
                }
            }
        }
    }
}

/// Three tiles: the best rate, its share of the limit, and its path. A comparison shows the change,
/// its points, and how well it is known.
fn tiles(model: &Model, comparisons: &[Comparison], metric: Metric) -> Markup {
    let tiles: Vec<[String; 3]> = match (comparisons.first(), model.best(|_| true)) {
        (Some(found), _) => compared_tiles(found, metric),
        (None, Some(_)) if model.runs.len() == 1 && model.has_whole_files() => {
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
    let value = match mean.is_some_and(|mean| mean.is_significant()) {
        true => ratio.split(' ').next().unwrap_or_default().to_owned(),
        false => "no significant change".into(),
    };
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

/// A text with its pairs of backticks as code.
fn coded(text: &str) -> Markup {
    let text = plain(text);
    let has_code = text.matches('`').count().is_multiple_of(2);
    html! {
        @if has_code {
            @for (number, part) in text.split('`').enumerate() {
                @if number % 2 == 1 { code { (part) } } @else { (part) }
            }
        } @else { (text) }
    }
}

fn warnings(model: &Model) -> Markup {
    let more = model.warnings.len().saturating_sub(LISTED_MAX);
    html! {
        ul.warnings {
            @for warning in model.warnings.iter().take(LISTED_MAX) { li { (coded(warning)) } }
            @if more > 0 { li { (counted(more, "more warning")) } }
        }
    }
}

fn drawn(charts: &Charts) -> Markup {
    html! {
        section {
            h2 { "Charts" }
            ul.legend {
                @for series in &charts.series {
                    li {
                        svg class=(format!("line s{}", series.color)) viewBox="0 0 28 4" {
                            path d="M0 2H28" stroke-dasharray=[series.dashes()] {}
                        }
                        (plain(&series.name))
                    }
                }
                @for (name, dashes) in charts.charts[0].limits() {
                    li {
                        svg.line.s7 viewBox="0 0 28 4" {
                            path d="M0 2H28" stroke-dasharray=(dashes) {}
                        }
                        (plain(name))
                    }
                }
            }
            @if let Some(text) = &charts.charts[0].lowest { p.soft { (plain(text)) } }
            @if charts.left_out > 0 {
                p.soft { (counted(charts.left_out, "more line")) " in the table" }
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
                Block::Line(text) => p.soft { (coded(text)) },
                Block::Table(grid) => (table(grid)),
            }
        }
    }
}

/// A table. Bars, which need no script, have their own column and the same start; a thin line on a
/// bar spans the least to the largest sample.
fn table(grid: &Grid) -> Markup {
    let grid = grid.clone().fitted(None);
    let ranges = grid.bars.map(|at| grid.rows.iter().filter_map(move |row| row.get(at)?.range));
    let most = ranges.map_or(0.0, |ranges| ranges.map(|(_, most)| most).fold(0.0, f64::max));
    let most = grid.bars_end().max(most);
    let bars_at = grid.bars.filter(|_| most > 0.0);
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
            table.section[grid.is_section] {
                thead {
                    tr {
                        @for (at, column) in grid.columns.iter().enumerate() {
                            @if grid.is_section && at == 0 {
                                th colspan="2" { (column.heading) }
                            } @else {
                                @if bars_at == Some(at) && !grid.is_section { th.bar {} }
                                th class=(kind(at)) data-column=(at) { (column.heading) }
                            }
                        }
                    }
                }
                tbody {
                    @for (number, row) in grid.rows.iter().enumerate() {
                        tr class=(grid.mark(number).name()) {
                            @for (at, cell) in row.iter().enumerate() {
                                @if bars_at == Some(at) { td.bar { (bar(cell, most)) } }
                                @let long = if is_long(&cell.text) { " long" } else { "" };
                                td class=(kind(at) + long) data-value=[cell.number] { (cell.text) }
                            }
                        }
                    }
                }
            }
        }
        @if grid.left_out > 0 {
            p.soft { (counted(grid.left_out, "more row")) ": --format csv has all" }
        }
    }
}

/// The bar of a number, and the range of its samples; nothing without a number.
fn bar(cell: &Cell, most: f64) -> Markup {
    let at = |value: f64| format!("{:.2}", value / most * 100.0);
    html! {
        @if let Some(value) = cell.number {
            svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true" {
                rect width=(at(value)) height="10" {}
                @if let Some((least, largest)) = cell.range.filter(|(least, most)| least < most) {
                    path d=(format!("M{0} 2V8M{0} 5H{1}M{1} 2V8", at(least), at(largest))) {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
