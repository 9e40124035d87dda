//! The result as text: the curve as a plot with its knee, then all block sizes, then settings.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use forebay::units::format_size;

use super::curve::{Cell, Curve, Point};
use super::json::{Searched, TuneReport};
use crate::map::look::Look;
use crate::report::table::{place, rate};

/// Default columns if the terminal does not report its width, which is also the maximum.
const WIDTH: usize = 80;
/// Columns of a bar at least.
const BAR_MIN: usize = 10;
/// Columns of all but the bars: depth, rate, latency, the mark of the knee.
const BESIDE: usize = 38;
/// Columns for the program's name in lines of settings.
const NAME: usize = 9;

/// The fastest point is shown if it is faster than the result by this factor.
const WORTH: f64 = 1.005;

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
const GREEN: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Green)));

/// The whole report.
#[must_use]
pub(crate) fn render(report: &TuneReport, look: Look) -> String {
    let mut text = head(report, look);
    for searched in &report.searches {
        text.push('\n');
        plot(&mut text, searched, look);
        text.push('\n');
        sizes(&mut text, searched, look);
        text.push('\n');
        verdict(&mut text, searched, look);
    }
    text.push('\n');
    settings(&mut text, report, look);
    text
}

fn width(look: Look) -> usize {
    look.width.unwrap_or(WIDTH).clamp(BESIDE + BAR_MIN, WIDTH)
}

fn head(report: &TuneReport, look: Look) -> String {
    let path = look.fit(&report.path);
    let place = place(&report.environment, false).map(|place| format!("  {}", look.fit(&place)));
    let len = format_size(report.bytes);
    let what = if report.scratch { format!("{len} of scratch") } else { len };
    let place = place.unwrap_or_default();
    format!("{BOLD}{path}{BOLD:#}{place}\nmeasured with {what}, O_DIRECT\n")
}

/// The curve of the size that was chosen.
fn plot(text: &mut String, searched: &Searched, look: Look) {
    let Searched { direction, found, points, .. } = searched;
    let size = found.cell.request_size;
    let title = format!("{}, block size {}", direction.name(), format_size(size));
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{BOLD}{title}{BOLD:#}");
    let bar = width(look) - BESIDE;
    let _ = writeln!(text, "{DIM}  depth    GB/s  {:bar$}   latency{DIM:#}", "");
    let of_size: Vec<&Point> = points.of_size(size).collect();
    let top = of_size.iter().map(|point| point.rate()).fold(0.0, f64::max);
    for point in of_size {
        let drawn = bar_of(point.rate() / top, bar, look);
        let is_knee = point.cell == found.cell;
        let colour = if is_knee { GREEN } else { Style::new() };
        let mark = if is_knee { look.pick("  ◀ knee", "  <- knee") } else { "" };
        let line = format!(
            "  {:>5}  {:>6}  {colour}{drawn}{colour:#}  {:>8}{colour}{mark}{colour:#}",
            point.cell.depth,
            rate(point.rate()),
            time(point.latency_s, look),
        );
        let _ = writeln!(text, "{line}");
    }
}

/// A bar of length `share` of `columns`, padded with blanks.
fn bar_of(share: f64, columns: usize, look: Look) -> String {
    let steps = if look.ascii { 1 } else { 8 };
    let eighths = portion(share, columns * steps);
    let (whole, rest) = (eighths / steps, eighths % steps);
    let mut bar = look.pick("█", "#").repeat(whole);
    if rest > 0 {
        bar.push(['▏', '▎', '▍', '▌', '▋', '▊', '▉'][rest - 1]);
    }
    let drawn = whole + usize::from(rest > 0);
    bar + &" ".repeat(columns.saturating_sub(drawn))
}

/// `share` of `most`, rounded, from 0 to `most`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "columns are few, and casts saturate"
)]
fn portion(share: f64, most: usize) -> usize {
    ((share * most as f64).round() as usize).min(most)
}

/// One column of rates for each block size.
fn sizes(text: &mut String, searched: &Searched, look: Look) {
    let points = &searched.points;
    let all = points.sizes();
    let _ = writeln!(text, "{BOLD}GB/s by block size{BOLD:#}");
    let _ = write!(text, "{DIM}  depth");
    for size in &all {
        let _ = write!(text, "  {:>9}", format_size(*size));
    }
    let _ = writeln!(text, "{DIM:#}");
    for depth in points.depths() {
        let _ = write!(text, "  {depth:>5}");
        for size in &all {
            let cell = Cell { request_size: *size, depth };
            let shown = points.at(cell).map(|point| rate(point.rate()));
            let knee = searched.knees.iter().any(|knee| knee.cell == cell);
            let (colour, mark) =
                if knee { (GREEN, look.pick("◂", "*")) } else { (Style::new(), " ") };
            let shown = shown.unwrap_or_else(|| look.pick("·", ".").to_owned());
            let _ = write!(text, "  {colour}{shown:>8}{mark}{colour:#}");
        }
        let trimmed = text.trim_end_matches(' ').len();
        text.truncate(trimmed);
        text.push('\n');
    }
    let mark = look.pick("◂", "*");
    let note = format!("{mark} lowest depth within 2 % of the best rate of its block size");
    let _ = writeln!(text, "{DIM}  {note}{DIM:#}");
}

/// The result, in words.
fn verdict(text: &mut String, searched: &Searched, look: Look) {
    let Searched { direction, found, best, .. } = searched;
    let name = direction.name();
    let line = format!(
        "{} of {}: {} GB/s, {} each",
        requests(found.cell.depth),
        format_size(found.cell.request_size),
        rate(found.bytes_per_second),
        time(found.latency_s, look),
    );
    let _ = writeln!(text, "{name:<NAME$}{GREEN}{line}{GREEN:#}");
    if best.bytes_per_second > found.bytes_per_second * WORTH {
        let line = format!(
            "fastest: {} of {}, {} GB/s, {} each",
            best.cell.depth,
            format_size(best.cell.request_size),
            rate(best.bytes_per_second),
            time(best.latency_s, look),
        );
        let _ = writeln!(text, "{:NAME$}{line}", "");
    }
}

fn requests(count: u64) -> String {
    if count == 1 { "1 request".into() } else { format!("{count} requests") }
}

/// Settings of the engine and of other programs.
fn settings(text: &mut String, report: &TuneReport, look: Look) {
    for setting in &report.settings {
        let name = if setting.tool == "kvikio" { "KvikIO" } else { &setting.tool };
        wrapped(text, name, &look.fit(&setting.text), " \\", look);
        if let Some(note) = &setting.note {
            let mut lines = String::new();
            wrapped(&mut lines, "", &look.fit(note), "", look);
            let _ = write!(text, "{DIM}{lines}{DIM:#}");
        }
    }
}

/// A name and its text, wrapped over several lines; all but the last end with `more`.
fn wrapped(text: &mut String, name: &str, words: &str, more: &str, look: Look) {
    let room = width(look) - NAME - more.len();
    let (mut line, mut lines) = (String::new(), Vec::new());
    for word in words.split(' ') {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > room {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    for (index, line) in lines.iter().enumerate() {
        let name = if index == 0 { name } else { "" };
        let more = if index + 1 < lines.len() { more } else { "" };
        let _ = writeln!(text, "{name:<NAME$}{line}{more}");
    }
}

/// A time with three significant digits: `1.23 ms`, `850 µs`.
fn time(seconds: f64, look: Look) -> String {
    let (value, unit) = match seconds {
        1.0.. => (seconds, "s"),
        0.001.. => (seconds * 1e3, "ms"),
        _ => (seconds * 1e6, look.pick("µs", "us")),
    };
    match value {
        100.0.. => format!("{value:.0} {unit}"),
        10.0.. => format!("{value:.1} {unit}"),
        _ => format!("{value:.2} {unit}"),
    }
}

/// The knee of each block size.
pub(crate) fn knees(curve: &Curve) -> Vec<&Point> {
    curve.sizes().into_iter().filter_map(|size| curve.knee(size)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::json::tests::report;

    fn drawn(report: &TuneReport, look: Look) -> String {
        anstream::adapter::strip_str(&render(report, look)).to_string()
    }

    #[test]
    fn a_curve_with_its_knee() {
        let look = Look { ascii: false, width: Some(80) };
        insta::assert_snapshot!(drawn(&report(), look), @r"
        /data  ext4 on nvme0n1 (Fast One, x4 at 16 GT/s)
        measured with 1 GiB of scratch, O_DIRECT

        read, block size 1 MiB
          depth    GB/s                                               latency
              1    1.89  ███████████▋                                  554 µs
              2    3.78  ███████████████████████▍                      554 µs
              3    5.68  ███████████████████████████████████           554 µs
              4    6.80  ██████████████████████████████████████████    617 µs  ◀ knee
              6    6.80  ██████████████████████████████████████████    925 µs
              8    6.80  ██████████████████████████████████████████   1.23 ms
             16    6.80  ██████████████████████████████████████████   2.47 ms
             32    6.80  ██████████████████████████████████████████   4.93 ms

        GB/s by block size
          depth    128 KiB    512 KiB      1 MiB      4 MiB
              1     0.313       1.10       1.89       4.12
              2     0.625       2.20       3.78       6.80◂
              3         ·          ·       5.68          ·
              4      1.25       4.40       6.80◂      6.80
              6         ·          ·       6.80          ·
              8      2.50       6.80◂      6.80       6.80
             16      5.00       6.80       6.80          ·
             32      6.80◂      6.80       6.80          ·
          ◂ lowest depth within 2 % of the best rate of its block size

        read     4 requests of 1 MiB: 6.80 GB/s, 617 µs each

        forebay  FOREBAY_DEPTH=4 FOREBAY_SEGMENT_SIZE=1M
                 optional: the engine finds its queue depth by itself
        fio      fio --name=read --rw=read --ioengine=io_uring --direct=1 --bs=1m \
                 --iodepth=4 --directory=/data --size=1G --unlink=1 --time_based \
                 --runtime=10
        KvikIO   KVIKIO_NTHREADS=2 KVIKIO_TASK_SIZE=4194304 \
                 KVIKIO_AUTO_DIRECT_IO_READ=on
                 an estimate from this curve: each thread has one request in flight, and
                 none during its copy to the GPU; try a few more threads
        ");
    }

    #[test]
    fn plain_letters_and_few_columns() {
        let text = drawn(&report(), Look { ascii: true, width: Some(60) });
        assert!(text.is_ascii(), "{text}");
        insta::assert_snapshot!(text, @r"
        /data  ext4 on nvme0n1 (Fast One, x4 at 16 GT/s)
        measured with 1 GiB of scratch, O_DIRECT

        read, block size 1 MiB
          depth    GB/s                           latency
              1    1.89  ######                    554 us
              2    3.78  ############              554 us
              3    5.68  ##################        554 us
              4    6.80  ######################    617 us  <- knee
              6    6.80  ######################    925 us
              8    6.80  ######################   1.23 ms
             16    6.80  ######################   2.47 ms
             32    6.80  ######################   4.93 ms

        GB/s by block size
          depth    128 KiB    512 KiB      1 MiB      4 MiB
              1     0.313       1.10       1.89       4.12
              2     0.625       2.20       3.78       6.80*
              3         .          .       5.68          .
              4      1.25       4.40       6.80*      6.80
              6         .          .       6.80          .
              8      2.50       6.80*      6.80       6.80
             16      5.00       6.80       6.80          .
             32      6.80*      6.80       6.80          .
          * lowest depth within 2 % of the best rate of its block size

        read     4 requests of 1 MiB: 6.80 GB/s, 617 us each

        forebay  FOREBAY_DEPTH=4 FOREBAY_SEGMENT_SIZE=1M
                 optional: the engine finds its queue depth by
                 itself
        fio      fio --name=read --rw=read --ioengine=io_uring \
                 --direct=1 --bs=1m --iodepth=4 --directory=/data \
                 --size=1G --unlink=1 --time_based --runtime=10
        KvikIO   KVIKIO_NTHREADS=2 KVIKIO_TASK_SIZE=4194304 \
                 KVIKIO_AUTO_DIRECT_IO_READ=on
                 an estimate from this curve: each thread has one
                 request in flight, and none during its copy to the
                 GPU; try a few more threads
        ");
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        for width in [None, Some(20), Some(48), Some(80), Some(200)] {
            let text = drawn(&report(), Look { ascii: false, width });
            let most = text.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(most <= width.unwrap_or(80).clamp(62, 80), "{width:?}: {most}\n{text}");
        }
    }

    #[test]
    fn bars_are_as_long_as_their_share() {
        let look = |ascii| Look { ascii, width: None };
        assert_eq!(bar_of(0.5, 4, look(false)), "██  ");
        assert_eq!(bar_of(0.53, 4, look(false)), "██▏ ");
        assert_eq!(bar_of(1.0, 4, look(false)), "████");
        assert_eq!(bar_of(0.0, 4, look(false)), "    ");
        assert_eq!(bar_of(0.6, 4, look(true)), "##  ");
        assert_eq!(bar_of(f64::NAN, 4, look(true)), "    ");
    }

    #[test]
    fn times_have_three_digits() {
        let shown = |seconds| time(seconds, Look { ascii: false, width: None });
        let times = [0.000_012_3, 0.000_85, 0.0012, 0.0456, 0.789, 2.0].map(shown);
        assert_eq!(times, ["12.3 µs", "850 µs", "1.20 ms", "45.6 ms", "789 ms", "2.00 s"]);
        assert_eq!(time(0.000_5, Look { ascii: true, width: None }), "500 us");
        assert_eq!(requests(1), "1 request");
    }
}
