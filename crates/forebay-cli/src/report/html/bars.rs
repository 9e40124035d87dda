//! The limits as bars in SVG: their length is the limit, their filled part the rate reached.

use super::markup::{Markup, at, cut};
use crate::report::digest::{Bound, Digest, digits, rate_text};
use crate::report::grid::people::{reached, reached_share};

const WIDTH: f64 = 460.0;
/// Pixels of one bar with its text.
const ROW: f64 = 44.0;
const BAR: f64 = 14.0;
/// Most bars; the table has all.
const BARS_MAX: usize = 24;

/// The bars of a digest.
pub(crate) fn draw(markup: &mut Markup, digest: &Digest) {
    let bounds: Vec<&Bound> =
        digest.ceilings.iter().filter(|bound| bound.rate.is_finite()).take(BARS_MAX).collect();
    if bounds.is_empty() {
        return;
    }
    let both = bounds.iter().flat_map(|bound| [Some(bound.rate), bound.in_theory]);
    let most = both.flatten().filter(|rate| rate.is_finite()).fold(0.0, f64::max);
    #[expect(clippy::cast_precision_loss, reason = "a few bars")]
    let size = format!("0 0 {WIDTH} {}", ROW * bounds.len() as f64);
    markup.within("figure", &[], |markup| {
        let attributes: [(&str, &dyn std::fmt::Display); 3] =
            [("viewBox", &size), ("role", &"img"), ("aria-labelledby", &"bars bars-about")];
        markup.within("svg", &attributes, |markup| {
            markup.element("title", &[("id", &"bars")], "Limits, and the share reached");
            let about = bounds.iter().map(|bound| said(digest, bound));
            let about = about.collect::<Vec<_>>().join("; ");
            markup.element("desc", &[("id", &"bars-about")], about);
            let mut y = 0.0;
            for bound in &bounds {
                bar(markup, digest, bound, most, y);
                y += ROW;
            }
        });
        let about = "The longest bar is the highest limit. The filled part was reached. A mark is \
                     the theoretical rate.";
        markup.element("p", &[("class", &"note")], about);
    });
}

/// A limit in words.
fn said(digest: &Digest, bound: &Bound) -> String {
    let theory = if bound.theory { ", theory" } else { "" };
    let name = format!("{} of {}", cut(&bound.name, 14), cut(&bound.of, 22));
    let reached = reached_share(digest, bound).map_or_else(
        || ", not comparable".to_owned(),
        |share| format!(", {} % reached", digits(share * 100.0)),
    );
    let share = bound.of_theory().map(|share| format!(", {} % of theory", digits(share * 100.0)));
    format!("{name}: {}{theory}{}{reached}", rate_text(bound.rate), share.unwrap_or_default())
}

fn bar(markup: &mut Markup, digest: &Digest, bound: &Bound, most: f64, y: f64) {
    let share = |value: f64| {
        let share = if most > 0.0 { value / most } else { 0.0 };
        if share.is_finite() { share.clamp(0.0, 1.0) * (WIDTH - 2.0) } else { 0.0 }
    };
    let whole = share(bound.rate);
    let filled = share(reached(digest, bound).unwrap_or(0.0)).min(whole);
    let attributes: [(&str, &dyn std::fmt::Display); 2] = [("x", &"1"), ("y", &at(y + 14.0))];
    markup.element("text", &attributes, cut(&said(digest, bound), 82));
    for (class, width) in [("fill", filled), ("room", whole)] {
        let attributes: [(&str, &dyn std::fmt::Display); 5] = [
            ("class", &class),
            ("x", &"1"),
            ("y", &at(y + 20.0)),
            ("width", &at(width)),
            ("height", &BAR),
        ];
        markup.alone("rect", &attributes);
    }
    if let Some(theory) = bound.in_theory.filter(|_| bound.of_theory().is_some()) {
        let x = at(1.0 + share(theory));
        let attributes: [(&str, &dyn std::fmt::Display); 5] = [
            ("class", &"edge"),
            ("x1", &x),
            ("x2", &x),
            ("y1", &at(y + 16.0)),
            ("y2", &at(y + 24.0 + BAR)),
        ];
        markup.alone("line", &attributes);
    }
}
