//! A diagnosis as text: the answer, what to do, and on request everything else.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use forebay::units::format_size;

use super::json::{Check, DoctorReport, Transfer};
use crate::map::look::Look;
use crate::report::proof::VerdictFacts;

/// Columns of the state before each check.
const STATE: usize = 9;
/// Minimum width of text, in columns.
const WIDTH_MIN: usize = 40;

/// The whole text, with escape codes for colours: the answer, then what to do; with `verbose` every
/// check and transfer.
pub(super) fn render(report: &DoctorReport, verbose: bool, look: Look) -> String {
    let mut out = String::new();
    let (bold, red, green) = (Style::new().bold(), style("problem"), style("ok").bold());
    let colour = if report.answer.starts_with("no") { red } else { green };
    let _ = write!(out, "{bold}GPUDirect:{bold:#} ");
    let mut answer = String::new();
    wrapped(&mut answer, "           ", "           ", &report.answer, look);
    let _ = write!(out, "{colour}{}{colour:#}", answer.trim_start());
    if report.replay.is_none() {
        wrapped(&mut out, "           ", "           ", &report.sentence, look);
    }
    out.push('\n');
    let (told, rest): (Vec<_>, Vec<_>) =
        report.checks.iter().partition(|check| verbose || matters(report, check));
    for check in &told {
        block(&mut out, check, verbose, look);
    }
    let failed = |transfer: &&Transfer| verbose || transfer.has_failed();
    for transfer in report.transfers.iter().filter(failed) {
        moved(&mut out, transfer, look);
    }
    if let Some(reason) = report.not_moved.as_ref() {
        entry(&mut out, style("unknown"), "not moved", reason, look);
    }
    if !rest.is_empty() {
        let count = |state: &str| rest.iter().filter(|check| check.state == state).count();
        let (fine, transfers) = (count("ok"), report.transfers.len());
        let text = format!(
            "{} more checks ({fine} ok) and {transfers} transfers: `forebay doctor -v`",
            rest.len()
        );
        wrapped(&mut out, "", "", &text, look);
    }
    out
}

/// Whether a check belongs to the answer: something is broken, costs speed, or keeps the nearest
/// direct path closed. Without a GPU nothing else matters.
fn matters(report: &DoctorReport, check: &Check) -> bool {
    let has_gpu = report.gpu.is_some();
    let closes = || match report.ways.first() {
        Some(way) if !way.open => check.blocks.contains(&way.way),
        _ => check.blocks.is_empty(),
    };
    check.broken
        || (has_gpu && check.state == "warning")
        || (has_gpu && check.state == "problem" && closes())
}

fn block(out: &mut String, check: &Check, verbose: bool, look: Look) {
    let seen = format!("{}: {}", check.name, check.seen);
    entry(out, style(&check.state), &check.state, &seen, look);
    let lead = " ".repeat(STATE + 1);
    if verbose && check.state != "ok" {
        wrapped(out, &format!("{lead}why   "), &format!("{lead}      "), check.why.as_str(), look);
    }
    if let Some(step) = check.step.as_ref().filter(|_| check.state != "ok") {
        wrapped(out, &format!("{lead}next  "), &format!("{lead}      "), step, look);
    }
}

fn moved(out: &mut String, transfer: &Transfer, look: Look) {
    let (demanded, reason) = (&transfer.demanded, transfer.reason.as_deref().unwrap_or_default());
    let (word, style) = match transfer.end.as_str() {
        "moved" => ("ok", style("ok")),
        "refused" => ("refused", style("unknown")),
        _ => ("failed", style("problem")),
    };
    let direction = &transfer.direction;
    let text = match transfer.end.as_str() {
        "moved" => {
            let shares = transfer.routes.iter().map(|share| {
                format!("{} by `{}` ({})", format_size(share.bytes), share.route, share.reason)
            });
            let shares = shares.collect::<Vec<_>>().join(", ");
            let ms = transfer.seconds * 1e3;
            let proven = transfer.verdict.as_ref().map(proven).unwrap_or_default();
            format!("{direction} by `{demanded}`: {shares}, {ms:.1} ms, all bytes verified{proven}")
        }
        _ => format!("{direction} by `{demanded}`: {reason}"),
    };
    entry(out, style, word, &text, look);
}

/// The path that independent counters prove, or why they prove none.
fn proven(verdict: &VerdictFacts) -> String {
    let text = &verdict.text;
    let missing = verdict.missing.first().map(|missing| &missing.why);
    match (verdict.contradictions.first().or(missing), verdict.shares.is_empty()) {
        (Some(note), true) => format!("; {text}: {note}"),
        (None, true) => format!("; {text}"),
        (_, false) => format!("; verified path: {text}"),
    }
}

fn entry(out: &mut String, style: Style, word: &str, text: &str, look: Look) {
    let _ = write!(out, "{style}{word:STATE$}{style:#} ");
    // The lead is already written, and has no more columns than its letters.
    let lead = " ".repeat(STATE + 1);
    let mut rest = String::new();
    wrapped(&mut rest, &lead, &lead, text, look);
    out.push_str(rest.strip_prefix(lead.as_str()).unwrap_or(&rest));
}

fn style(state: &str) -> Style {
    let colour = |colour: AnsiColor| Style::new().fg_color(Some(colour.into()));
    match state {
        "problem" => colour(AnsiColor::Red).bold(),
        "warning" => colour(AnsiColor::Yellow),
        "ok" => colour(AnsiColor::Green),
        _ => Style::new().dimmed(),
    }
}

/// Writes text after `first`, with continuation lines after `next`.
fn wrapped(out: &mut String, first: &str, next: &str, text: &str, look: Look) {
    let text = look.fit(text);
    let width = look.width.unwrap_or(100).max(next.len() + WIDTH_MIN);
    let mut line = first.to_owned();
    let mut is_empty = true;
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let len = line.chars().count() + word.chars().count() + usize::from(!is_empty);
        if len > width && !is_empty {
            let _ = writeln!(out, "{line}");
            line = next.to_owned();
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    let _ = writeln!(out, "{}", line.trim_end());
}

#[cfg(test)]
mod tests {
    use super::*;

    const NARROW: Look = Look { ascii: true, width: Some(50) };

    #[test]
    fn words_are_wrapped_behind_their_lead() {
        let mut out = String::new();
        wrapped(&mut out, "why  ", "     ", &"eight888 ".repeat(9), NARROW);
        assert_eq!(
            out,
            "why  eight888 eight888 eight888 eight888 eight888\n     eight888 eight888 eight888 \
             eight888\n"
        );
        let mut out = String::new();
        wrapped(&mut out, "", "", &format!("a {}", "x".repeat(80)), NARROW);
        assert_eq!(out.lines().count(), 2, "a word is never cut");
    }

    #[test]
    fn nothing_obeys_what_a_machine_says() {
        let mut out = String::new();
        entry(&mut out, Style::new(), "problem", "a\u{1b}[31m\nb → c", NARROW);
        assert!(!out.contains('\u{1b}') && out.lines().count() == 1 && out.contains("->"), "{out}");
    }
}
