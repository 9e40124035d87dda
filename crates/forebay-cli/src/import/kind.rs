//! Detects the tool that wrote a text, to suggest it if another one was given. Pure.

use super::{gdsio, nixlbench};
use crate::args::ImportTool;

/// Most bytes of a text that are searched.
const LOOK_MAX: usize = 1 << 20;

/// The apparent kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Another tool's.
    Of(ImportTool),
    /// Our own, which need not be imported.
    Ours,
}

/// The apparent tool of a text, if it has marks of any.
pub(super) fn of(text: &str) -> Option<Kind> {
    let mut end = text.len().min(LOOK_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let text = &text[..end];
    let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let record = first.trim_start().starts_with('{') && first.contains("\"record\":");
    let is_report = || text.contains("\"schema\"") && text.contains("\"bytes_per_second\"");
    if record || (first.trim_start().starts_with('{') && is_report()) {
        return Some(Kind::Ours);
    }
    if text.contains("\"fio version\"") {
        return Some(Kind::Of(ImportTool::Fio));
    }
    if text.lines().any(|line| gdsio::begin_of(line).is_some()) {
        return Some(Kind::Of(ImportTool::Gdsio));
    }
    let is_table = |line: &str| nixlbench::MARKS.iter().all(|mark| line.contains(mark));
    if text.contains("NIXLBench Configuration") || text.lines().any(is_table) {
        return Some(Kind::Of(ImportTool::Nixlbench));
    }
    let parted = |mark: char| first.matches(mark).count() >= 2;
    let table = [',', ';', '\t'].into_iter().any(parted) && !first.starts_with(['{', '[']);
    table.then_some(Kind::Of(ImportTool::Csv))
}
