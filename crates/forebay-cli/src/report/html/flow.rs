//! The data path as SVG: from the drives by the page cache and staging memory to the GPU, with the
//! bytes that took each edge.
//!
//! The bytes of an edge follow from the verdicts alone. Unproven bytes have a separate edge, and so
//! do those that cuFile moved through host memory, for which the verdicts do not say whether the
//! pages were cached. The drives' counters are shown next to them.

use std::collections::BTreeMap;

use forebay::units::format_size;

use super::markup::{Markup, at, cut};
use crate::report::digest::{Axis, Digest, Line};

/// With no edge below the others, with one, and with two.
const SIZES: [&str; 3] = ["0 0 460 190", "0 0 460 250", "0 0 460 314"];
/// Most drawings of a page.
const FLOWS_MAX: usize = 8;

/// The bytes of one direction in one run.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Flow {
    /// Its name.
    pub(crate) name: String,
    /// Whether bytes come from the file.
    reads: bool,
    /// Whether bytes go to the file; a mixed load does both.
    writes: bool,
    /// Whether the bytes stay in the host's memory.
    host: bool,
    /// Bytes that the drives report as moved.
    drives: Option<u64>,
    /// With O_DIRECT into staging memory.
    staged: f64,
    /// From the page cache.
    cached: f64,
    /// Direct; for bytes that stay in host memory, with O_DIRECT.
    direct: f64,
    /// By cuFile through host memory, from drives or from the page cache.
    compat: f64,
    /// All other bytes.
    unproven: f64,
}

impl Flow {
    fn add(&mut self, line: &Line) {
        for (way, bytes) in &line.ways {
            match way.as_str() {
                "staged" => self.staged += bytes,
                "compat" => self.compat += bytes,
                "cached" => self.cached += bytes,
                // For a GPU target these words do not say how bytes get to the GPU.
                "host (page cache)" if self.host => self.cached += bytes,
                // For a host memory target, O_DIRECT is the whole path.
                "host (drive)" if self.host => self.direct += bytes,
                word if word.starts_with("direct (") && !self.host => self.direct += bytes,
                _ => self.unproven += bytes,
            }
        }
        if let Some(moved) = line.drive {
            let read = if self.reads { moved.read } else { 0 };
            let written = if self.writes { moved.written } else { 0 };
            let before = self.drives.unwrap_or(0);
            self.drives = Some(before.saturating_add(read).saturating_add(written));
        }
    }

    /// Each edge in words, with its bytes.
    pub(crate) fn edges(&self) -> Vec<(&'static str, f64)> {
        let mut edges = if self.host {
            vec![
                ("drives and host memory, with O_DIRECT", self.direct),
                ("page cache and host memory", self.cached),
                ("drives and staging memory", self.staged),
            ]
        } else {
            vec![
                ("drives and staging memory", self.staged),
                ("page cache and staging memory", self.cached),
                ("staging memory and GPU, over the link", self.staged + self.cached),
                ("drives and GPU, direct", self.direct),
            ]
        };
        let below = [
            ("through host memory by cuFile, from drives or page cache", self.compat),
            ("a path that is not proven", self.unproven),
        ];
        edges.extend(below.into_iter().filter(|(_, bytes)| *bytes > 0.0));
        edges
    }
}

/// The bytes of each run and direction.
pub(crate) fn flows(digest: &Digest) -> Vec<Flow> {
    let mut found: BTreeMap<(usize, String), Flow> = BTreeMap::new();
    for line in digest.lines.iter().filter(|line| !line.ways.is_empty()) {
        let direction = line.mark(Axis::Direction).unwrap_or("moved").to_owned();
        let host = line.stays_in_host();
        let key = (line.run, format!("{direction}{}", if host { ", host memory" } else { "" }));
        let flow = found.entry(key).or_insert_with_key(|(run, name)| {
            let run = digest.runs.get(*run).filter(|_| digest.runs.len() > 1);
            let name = run.map_or_else(|| name.clone(), |run| format!("{}: {name}", run.name));
            let (reads, writes) = (direction != "write", direction != "read");
            Flow { name, reads, writes, host, ..Flow::default() }
        });
        flow.add(line);
    }
    found.into_values().take(FLOWS_MAX).collect()
}

/// One drawing; `number` makes the ids of its elements unique.
pub(crate) fn draw(markup: &mut Markup, flow: &Flow, number: usize) {
    markup.within("figure", &[], |markup| {
        let name = format!("Data path: {}", cut(&flow.name, 100));
        markup.element("figcaption", &[], &name);
        let (title, about) = (format!("f{number}"), format!("g{number}"));
        let labels = format!("{title} {about}");
        let size = SIZES[usize::from(flow.compat > 0.0) + usize::from(flow.unproven > 0.0)];
        let attributes: [(&str, &dyn std::fmt::Display); 3] =
            [("viewBox", &size), ("role", &"img"), ("aria-labelledby", &labels)];
        markup.within("svg", &attributes, |markup| {
            markup.element("title", &[("id", &title)], &name);
            let edges = flow.edges();
            let words = edges.iter().map(|(edge, bytes)| format!("{edge}: {}", shown(*bytes)));
            markup.element("desc", &[("id", &about)], words.collect::<Vec<_>>().join("; "));
            drawn_edges(markup, flow);
            nodes(markup, flow);
        });
    });
}

/// Bytes may be fractional, since they are a share of a total.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast of a float stops at the ends of the integer"
)]
pub(crate) fn shown(bytes: f64) -> String {
    format_size(bytes.max(0.0) as u64)
}

fn nodes(markup: &mut Markup, flow: &Flow) {
    let drives = match flow.drives {
        Some(bytes) => format!("counted {}", format_size(bytes)),
        None => "not counted".into(),
    };
    let end = if flow.host { "host memory" } else { "GPU" };
    node(markup, (2.0, 92.0), &["drives", &drives]);
    node(markup, (168.0, 14.0), &["page cache"]);
    if !flow.host {
        node(markup, (168.0, 92.0), &["staging memory"]);
    }
    node(markup, (334.0, 92.0), &[end]);
}

fn node(markup: &mut Markup, (x, y): (f64, f64), words: &[&str]) {
    let attributes: [(&str, &dyn std::fmt::Display); 6] = [
        ("class", &"frame"),
        ("x", &at(x)),
        ("y", &at(y)),
        ("width", &124),
        ("height", &42),
        ("rx", &5),
    ];
    markup.alone("rect", &attributes);
    let mut line = if words.len() > 1 { y + 17.0 } else { y + 26.0 };
    for word in words {
        label(markup, (x + 62.0, line), word);
        line += 17.0;
    }
}

fn label(markup: &mut Markup, (x, y): (f64, f64), text: &str) {
    let attributes: [(&str, &dyn std::fmt::Display); 3] =
        [("x", &at(x)), ("y", &at(y)), ("text-anchor", &"middle")];
    markup.element("text", &attributes, text);
}

/// The edges, each with its bytes and an arrow head at its destination.
fn drawn_edges(markup: &mut Markup, flow: &Flow) {
    let between = flow.staged + flow.cached;
    if flow.host {
        edge(markup, flow, flow.cached, ((292.0, 35.0), (396.0, 92.0)), (390.0, 52.0));
    } else {
        edge(markup, flow, flow.cached, ((230.0, 56.0), (230.0, 92.0)), (272.0, 79.0));
        edge(markup, flow, flow.staged, ((126.0, 113.0), (168.0, 113.0)), (147.0, 149.0));
        edge(markup, flow, between, ((292.0, 113.0), (334.0, 113.0)), (313.0, 149.0));
    }
    // The bytes that the page cache got from the drives cannot be distinguished from those that it
    // already had.
    markup.alone("path", &[("class", &"idle"), ("d", &"M64 92L168 35")]);
    markup.within("g", &[], |markup| {
        let class = if flow.direct > 0.0 { "edge" } else { "idle" };
        markup.alone("path", &[("class", &class), ("d", &"M64 134Q230 226 396 134")]);
        if flow.direct > 0.0 && flow.writes {
            head(markup, ((100.0, 153.0), (64.0, 134.0)));
        }
        if flow.direct > 0.0 && flow.reads {
            head(markup, ((360.0, 153.0), (396.0, 134.0)));
        }
        let way = if flow.host { "O_DIRECT" } else { "direct" };
        label(markup, (230.0, 170.0), &format!("{way}: {}", shown(flow.direct)));
    });
    below(markup, flow);
}

/// The edges below the others, if bytes took them.
fn below(markup: &mut Markup, flow: &Flow) {
    // The start of a curve, its control point, its end, and the baseline of its text.
    let places = [(40.0, 290.0, 420.0, 234.0), (20.0, 418.0, 440.0, 298.0)];
    let found = [("edge", "by cuFile", flow.compat), ("doubt", "not proven", flow.unproven)];
    let found = found.into_iter().filter(|(_, _, bytes)| *bytes > 0.0);
    for ((class, words, bytes), (left, bend, right, line)) in found.zip(places) {
        let path = format!("M{} 134Q230 {} {} 134", at(left), at(bend), at(right));
        markup.alone("path", &[("class", &class), ("d", &path)]);
        let is_known = class == "edge";
        if is_known && flow.writes {
            head(markup, ((230.0, bend), (left, 134.0)));
        }
        if is_known && flow.reads {
            head(markup, ((230.0, bend), (right, 134.0)));
        }
        label(markup, (230.0, line), &format!("{words}: {}", shown(bytes)));
    }
}

type Place = (f64, f64);

fn edge(markup: &mut Markup, flow: &Flow, bytes: f64, (from, to): (Place, Place), words: Place) {
    let class = if bytes > 0.0 { "edge" } else { "idle" };
    let path = format!("M{} {}L{} {}", at(from.0), at(from.1), at(to.0), at(to.1));
    markup.alone("path", &[("class", &class), ("d", &path)]);
    if bytes > 0.0 && flow.writes {
        head(markup, (to, from));
    }
    if bytes > 0.0 && flow.reads {
        head(markup, (from, to));
    }
    label(markup, words, &shown(bytes));
}

/// The head of an arrow that ends at `to`.
fn head(markup: &mut Markup, (from, to): (Place, Place)) {
    let (x, y) = (to.0 - from.0, to.1 - from.1);
    let len = x.hypot(y).max(1.0);
    let (x, y) = (x / len * 8.0, y / len * 8.0);
    let side = |turn: f64| format!("{} {}", at(to.0 - x - turn * y), at(to.1 - y + turn * x));
    let path = format!("M{}L{} {}L{}", side(0.6), at(to.0), at(to.1), side(-0.6));
    markup.alone("path", &[("class", &"edge"), ("d", &path)]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::digest::Mark;
    use crate::report::digest::gather::tests::digest_of;
    use crate::report::html::markup::tests::elements;
    use crate::report::made::{self, Sweep};
    use crate::results::DriveBytes;

    #[test]
    fn edges_have_the_bytes_that_verdicts_prove() {
        let mut sweep = Sweep { read_percents: vec![100, 0], ..Sweep::default() };
        let digest = digest_of(&[("a", &made::file(&sweep))]);
        let flows = flows(&digest);
        let names: Vec<&str> = flows.iter().map(|flow| flow.name.as_str()).collect();
        assert_eq!(names, ["read", "write"]);
        let lines =
            || digest.lines.iter().filter(|line| line.mark(Axis::Direction) == Some("read"));
        #[expect(clippy::cast_precision_loss, reason = "a test")]
        let all: f64 = lines().map(|line| line.bytes as f64).sum();
        let edges = flows[0].edges();
        assert!((edges[0].1 / all - 0.75).abs() < 1e-9 && (edges[1].1 / all - 0.25).abs() < 1e-9);
        assert!((edges[2].1 / all - 1.0).abs() < 1e-9);
        assert_eq!((edges[3].1, edges.len()), (0.0, 4));
        assert_eq!(flows[0].drives, Some(lines().map(|line| line.bytes).sum()));
        sweep.label = Some("x");
        let text = made::file(&sweep);
        assert_eq!(super::flows(&digest_of(&[("a", &text), ("b", &text)])).len(), 4);
    }

    /// A line of these routes, with 100 bytes of each.
    fn line(target: &str, ways: &[&str]) -> Line {
        let ways = ways.iter().map(|way| ((*way).to_owned(), 100.0)).collect();
        let marks = [(Axis::Target, target), (Axis::Direction, "read")];
        let marks = marks.map(|(axis, text)| (axis, Mark { text: text.into(), number: None }));
        Line { ways, marks: marks.into(), ..Line::default() }
    }

    #[test]
    fn nothing_is_direct_without_that_verdict() {
        let edges = |target: &str, ways: &[&str]| {
            let digest = Digest { lines: vec![line(target, ways)], ..Digest::default() };
            flows(&digest).remove(0).edges()
        };
        // A plain method to host memory, though a GPU was the target.
        for target in ["cuda:0", "host"] {
            let found = edges(target, &["host (drive)", "host (page cache)"]);
            assert_eq!(found[0], ("drives and host memory, with O_DIRECT", 100.0));
            assert_eq!(found[1], ("page cache and host memory", 100.0));
            assert_eq!(found.len(), 3, "{found:?}");
        }
        let found = edges("cuda:0", &["host (drive)", "staged"]);
        assert_eq!(found[3], ("drives and GPU, direct", 0.0));
        assert_eq!(found[4], ("a path that is not proven", 100.0));
        assert_eq!(edges("cuda:0", &["direct (p2pdma)"])[3].1, 100.0);
    }

    #[test]
    fn of_a_mixed_load_both_directions_count() {
        let sweep = Sweep { read_percents: vec![70], ..Sweep::default() };
        let mut digest = digest_of(&[("a", &made::file(&sweep))]);
        for line in &mut digest.lines {
            line.drive = Some(DriveBytes { read: 70, written: 30 });
        }
        let flow = flows(&digest).remove(0);
        assert_eq!(flow.drives, Some(1500));
        let heads = |reads: bool, writes: bool| {
            let mut markup = Markup::default();
            let flow = Flow { direct: 1.0, reads, writes, ..flow.clone() };
            draw(&mut markup, &flow, 1);
            markup.done().matches("\"edge\"").count()
        };
        assert!(flow.reads && flow.writes);
        // One more for each of the four edges.
        assert_eq!(heads(true, true), heads(true, false) + 4);
        assert_eq!(heads(true, false), heads(false, true));
    }

    #[test]
    fn each_way_has_an_edge() {
        let mut line = Line::default();
        for (number, way) in
            ["direct (p2pdma)", "compat", "cached", "unproven", "odd"].iter().enumerate()
        {
            line.ways.insert((*way).into(), [1.0, 2.0, 4.0, 8.0, 16.0][number]);
        }
        let mut flow = Flow::default();
        flow.add(&line);
        assert_eq!((flow.direct, flow.staged, flow.cached), (1.0, 0.0, 4.0));
        assert_eq!((flow.compat, flow.unproven), (2.0, 24.0));
        for host in [false, true] {
            let mut markup = Markup::default();
            draw(&mut markup, &Flow { host, ..flow.clone() }, 1);
            let page = markup.done();
            assert!(page.contains(SIZES[2]), "{page}");
            assert!(page.contains("by cuFile: 2 B") && page.contains("not proven: 24 B"), "{page}");
            assert!(elements(&page).len() > 10);
        }
    }

    /// Whether cuFile read it from the drives or from the page cache is unknown.
    #[test]
    fn what_cufile_copied_is_no_drives() {
        for host in [false, true] {
            let mut flow = Flow { host, ..Flow::default() };
            flow.add(&line("cuda:0", &["compat"]));
            let edges: Vec<_> =
                flow.edges().into_iter().filter(|(_, bytes)| *bytes > 0.0).collect();
            let told = "through host memory by cuFile, from drives or page cache";
            assert_eq!(edges, [(told, 100.0)]);
            let mut markup = Markup::default();
            draw(&mut markup, &flow, 1);
            let page = markup.done();
            assert!(page.contains(SIZES[1]) && page.contains("by cuFile: 100 B"), "{page}");
            assert!(!page.contains("not proven"), "{page}");
        }
    }
}
