//! A diagnosis as text: the answer, what to do, and on request everything else.

use anstyle::{AnsiColor, Style};
use forebay::units::format_size;
use forebay_doctor::{Check, State};

use super::json::{DoctorReport, End, Transfer};
use crate::map::look::Look;
use crate::read::proof;

/// Spaces as wide as the words before the answer.
const INDENT: &str = "           ";
/// Spaces as wide as the word before an entry.
const LEAD: &str = "          ";

/// The answer, with escape codes for colours.
pub(super) fn answer(report: &DoctorReport, look: Look) -> String {
    let (bold, indent) = (Style::new().bold(), INDENT);
    let colour = style(if report.answer.starts_with("no") { State::Problem } else { State::Ok });
    let colour = colour.bold();
    let mut answer = String::new();
    look.text(&mut answer, indent, indent, colour, &report.answer);
    format!("{bold}GPUDirect:{bold:#} {}", answer.trim_start())
}

/// The whole text, with escape codes for colours: the answer, then what to do; with `verbose` every
/// check and transfer.
pub(super) fn render(report: &DoctorReport, verbose: bool, look: Look) -> String {
    let mut out = answer(report, look);
    if report.replay.is_none() {
        look.text(&mut out, INDENT, INDENT, Style::new(), &report.sentence);
    }
    out.push('\n');
    let (shown, rest): (Vec<_>, Vec<_>) =
        report.found.checks.iter().partition(|check| verbose || matters(report, check));
    for check in shown {
        entry(
            &mut out,
            check.state,
            check.state.name(),
            &format!("{}: {}", check.name, check.seen),
            look,
        );
        let is_ok = check.state == State::Ok;
        let why = Some(check.why).filter(|_| verbose);
        for (name, text) in [("why   ", why), ("next  ", check.step.as_deref())] {
            if let Some(text) = text.filter(|_| !is_ok) {
                let (first, next) = (format!("{LEAD}{name}"), format!("{LEAD}      "));
                look.text(&mut out, &first, &next, Style::new(), text);
            }
        }
    }
    for transfer in report.transfers.iter().filter(|one| verbose || one.has_failed()) {
        moved(&mut out, transfer, look);
    }
    if let Some(reason) = &report.not_moved {
        entry(&mut out, State::Unknown, "not moved", reason, look);
    }
    if !rest.is_empty() {
        let states = [State::Problem, State::Warning, State::Unknown, State::Ok];
        let counts = states.into_iter().filter_map(|state| {
            let count = rest.iter().filter(|check| check.state == state).count();
            let s = if count > 1 && state <= State::Warning { "s" } else { "" };
            (count > 0).then(|| format!("{count} {}{s}", state.name()))
        });
        let counts: Vec<String> = counts.collect();
        let (more, transfers) = (rest.len(), report.transfers.len());
        let (s, ss) = (if more == 1 { "" } else { "s" }, if transfers == 1 { "" } else { "s" });
        let text = format!(
            "{more} more check{s} ({}) and {transfers} transfer{ss}: `forebay doctor -v`",
            counts.join(", ")
        );
        look.text(&mut out, "", "", Style::new(), &text);
    }
    out
}

/// Whether a check belongs to the answer: something is broken, costs speed, or keeps the nearest
/// direct path closed. Without a GPU only its own check matters, if it names a step.
fn matters(report: &DoctorReport, check: &Check) -> bool {
    let closes = || match report.found.ways.first() {
        Some(way) if !way.is_open => check.blocks.contains(&way.way),
        _ => check.blocks.is_empty(),
    };
    let costs = check.state == State::Warning || (check.state == State::Problem && closes());
    let matters = match report.found.gpu {
        Some(_) => costs,
        None => check.name == "gpu_class" && check.step.is_some(),
    };
    check.is_broken || matters
}

fn moved(out: &mut String, transfer: &Transfer, look: Look) {
    let (direction, required) = (transfer.direction.name(), &transfer.required);
    let (word, state) = match transfer.end {
        End::Moved => ("ok", State::Ok),
        End::Refused => ("refused", State::Unknown),
        End::Failed => ("failed", State::Problem),
    };
    let text = if transfer.end == End::Moved {
        let shares = transfer.routes.iter().map(|share| {
            format!("{} by `{}` ({})", format_size(share.bytes), share.route, share.reason)
        });
        let shares = shares.collect::<Vec<_>>().join(", ");
        let ms = transfer.seconds * 1e3;
        let path = transfer.verdict.as_ref().map(|verdict| format!("; path: {}", proof(verdict)));
        format!("{shares}, {ms:.1} ms, all bytes verified{}", path.unwrap_or_default())
    } else {
        transfer.reason.clone().unwrap_or_default()
    };
    entry(out, state, word, &format!("{direction} by `{required}`: {text}"), look);
}

fn entry(out: &mut String, state: State, word: &str, text: &str, look: Look) {
    let (style, width) = (style(state), LEAD.len() - 1);
    let mut rest = String::new();
    look.text(&mut rest, LEAD, LEAD, Style::new(), text);
    *out += &format!("{style}{word:width$}{style:#} {}", rest.trim_start());
}

fn style(state: State) -> Style {
    let colour = |colour: AnsiColor| Style::new().fg_color(Some(colour.into()));
    match state {
        State::Problem => colour(AnsiColor::Red).bold(),
        State::Warning => colour(AnsiColor::Yellow),
        State::Ok => colour(AnsiColor::Green),
        _ => Style::new().dimmed(),
    }
}
