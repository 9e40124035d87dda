//! How a map looks on this terminal: colours, width.
//!
//! External text is sanitized here, in a single place, for all callers.

use std::fmt::Write as _;
use std::os::fd::AsFd;

use anstyle::{AnsiColor, Style};
use forebay_measure::plain::plain;

use crate::report::grid::WIDTH;

/// Minimum width of text in columns, however deep the tree is.
const WIDTH_MIN: usize = 40;

/// The width of lines, in columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look(pub(crate) usize);

impl Look {
    /// Suits the process's stdout: `COLUMNS`, or the terminal's width, or else 80.
    pub(crate) fn of_stdout() -> Self {
        Self::of(std::io::stdout()).unwrap_or(Self(WIDTH))
    }

    /// Suits a stream: `COLUMNS`, or its terminal's width.
    pub(crate) fn of(stream: impl AsFd) -> Option<Self> {
        let wanted = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        let size = || rustix::termios::tcgetwinsize(stream).ok();
        let width = wanted.or_else(|| size().map(|size| usize::from(size.ws_col)));
        width.filter(|columns| *columns > 0).map(Self)
    }

    /// Writes words after `first`, with continuation lines after `next`.
    pub(crate) fn line(self, out: &mut String, first: &str, next: &str, words: &[Word]) {
        let words = words.iter().map(|word| {
            let behind = if word.tone.is_head() { "  " } else { " · " };
            (plain(&word.text), word.tone.style(), behind)
        });
        self.flow(out, first, next, words);
    }

    /// Writes text in `style` like `line`, broken at its spaces.
    pub(crate) fn text(self, out: &mut String, first: &str, next: &str, style: Style, text: &str) {
        let text = plain(text);
        let words = text.split_whitespace().map(|word| (word.to_owned(), style, " "));
        self.flow(out, first, next, words);
    }

    /// Writes words, with their separators.
    fn flow<'a>(
        self,
        out: &mut String,
        first: &str,
        next: &str,
        words: impl Iterator<Item = (String, Style, &'a str)>,
    ) {
        let room = |lead: &str| self.0.saturating_sub(lead.chars().count()).max(WIDTH_MIN);
        out.push_str(first);
        let (mut left, mut before) = (room(first), "");
        for (text, style, behind) in words {
            let len = text.chars().count();
            if !before.is_empty() && before.chars().count() + len > left {
                // A trailing separator shows that the line continues.
                let _ = write!(out, "{}\n{next}", before.trim_end());
                (left, before) = (room(next), "");
            }
            let _ = write!(out, "{before}{style}{text}{style:#}");
            left = left.saturating_sub(before.chars().count() + len);
            before = behind;
        }
        out.push('\n');
    }
}

/// A piece of a line, which is never broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) text: String,
    pub(crate) tone: Tone,
}

impl Word {
    pub(crate) fn new(tone: Tone, text: impl Into<String>) -> Self {
        Self { text: text.into(), tone }
    }
}

/// The kind of a word, which decides its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    /// The path itself.
    Title,
    /// The name of a step.
    Name,
    /// The name of a drive.
    Drive,
    /// A fact.
    Fact,
    /// Helps speed.
    Good,
    /// Costs speed.
    Bad,
    /// Least important, or unknown.
    Dim,
}

impl Tone {
    pub(crate) fn style(self) -> Style {
        let colour = |colour: AnsiColor| Style::new().fg_color(Some(colour.into()));
        match self {
            Self::Title => Style::new().bold(),
            Self::Name => colour(AnsiColor::Cyan),
            Self::Drive => colour(AnsiColor::Green).bold(),
            Self::Fact => Style::new(),
            Self::Good => colour(AnsiColor::Green),
            Self::Bad => colour(AnsiColor::Yellow),
            Self::Dim => Style::new().dimmed(),
        }
    }

    const fn is_head(self) -> bool {
        matches!(self, Self::Title | Self::Name | Self::Drive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_wraps_behind_its_lead() {
        let look = Look(50);
        let mut words = vec![Word::new(Tone::Name, "name")];
        words.extend((0..4).map(|i| Word::new(Tone::Fact, format!("{i}").repeat(20))));
        let mut out = String::new();
        look.line(&mut out, "├─ ", "│  ", &words);
        let out = anstream::adapter::strip_str(&out).to_string();
        let (zero, one, two, three) =
            ("0".repeat(20), "1".repeat(20), "2".repeat(20), "3".repeat(20));
        assert_eq!(out, format!("├─ name  {zero} ·\n│  {one} · {two} ·\n│  {three}\n"));
    }

    #[test]
    fn text_is_broken_at_its_spaces() {
        let shown = |lead: &str, text: &str| {
            let mut out = String::new();
            Look(50).text(&mut out, lead, "     ", Style::new(), text);
            out
        };
        assert_eq!(
            shown("why  ", &"eight888 ".repeat(9)),
            "why  eight888 eight888 eight888 eight888 eight888\n     eight888 eight888 eight888 \
             eight888\n"
        );
        assert_eq!(shown("", &format!("a {}", "x".repeat(80))).lines().count(), 2, "never cut");
        assert_eq!(shown("", "a\u{1b}[31m\nb"), "a\\u{1b}[31m\\nb\n");
    }
}
