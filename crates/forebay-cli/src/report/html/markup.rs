//! Writes HTML in which external text cannot act: every text that is not from this program is
//! escaped, and every element is closed.

use std::fmt::{Display, Write as _};

pub(crate) use crate::report::plain::cut;
use crate::report::plain::{json_escaped, plain};

/// Most letters of one text, the length limit of a path.
const TEXT_MAX: usize = 4096;

/// An attribute: its name, and a value that is escaped.
pub(crate) type Attribute<'a> = (&'static str, &'a dyn Display);

/// A page, or a part of one.
#[derive(Debug, Default)]
pub(crate) struct Markup {
    text: String,
}

impl Markup {
    /// An element with the output of `inside`.
    pub(crate) fn within(
        &mut self,
        tag: &'static str,
        attributes: &[Attribute<'_>],
        inside: impl FnOnce(&mut Self),
    ) {
        self.tag(tag, attributes, ">");
        inside(self);
        self.text.push_str("</");
        self.text.push_str(tag);
        self.text.push('>');
        if !matches!(tag, "td" | "th" | "code" | "b" | "text" | "title" | "tspan" | "span") {
            self.text.push('\n');
        }
    }

    /// An element with text.
    pub(crate) fn element(
        &mut self,
        tag: &'static str,
        attributes: &[Attribute<'_>],
        text: impl AsRef<str>,
    ) {
        self.within(tag, attributes, |markup| markup.text(text.as_ref()));
    }

    /// An empty element.
    pub(crate) fn alone(&mut self, tag: &'static str, attributes: &[Attribute<'_>]) {
        self.tag(tag, attributes, " />");
    }

    fn tag(&mut self, tag: &'static str, attributes: &[Attribute<'_>], end: &str) {
        self.text.push('<');
        self.text.push_str(tag);
        for (name, value) in attributes {
            let value = escaped(&value.to_string());
            // Writing to a string cannot fail.
            let _ = write!(self.text, " {name}=\"{value}\"");
        }
        self.text.push_str(end);
    }

    /// Any text, escaped.
    pub(crate) fn text(&mut self, text: &str) {
        self.text.push_str(&escaped(text));
    }

    /// Writes text of this program unescaped.
    pub(crate) fn own(&mut self, text: &'static str) {
        self.text.push_str(text);
    }

    /// JSON for scripts: no letter in it can end the element.
    pub(crate) fn data(&mut self, id: &'static str, json: &str) {
        let json = json_escaped(json)
            .replace('<', "\\u003c")
            .replace('>', "\\u003e")
            .replace('&', "\\u0026");
        let attributes: [Attribute<'_>; 2] = [("type", &"application/json"), ("id", &id)];
        self.within("script", &attributes, |markup| markup.text.push_str(&json));
    }

    /// The complete page.
    pub(crate) fn done(self) -> String {
        self.text
    }
}

/// Text with HTML's special characters escaped, cut to a bounded length.
fn escaped(text: &str) -> String {
    let cut = text.char_indices().nth(TEXT_MAX).map(|(at, _)| &text[..at]);
    let mut shown = String::with_capacity(text.len().min(TEXT_MAX));
    for letter in plain(cut.unwrap_or(text)).chars() {
        match letter {
            '&' => shown.push_str("&amp;"),
            '<' => shown.push_str("&lt;"),
            '>' => shown.push_str("&gt;"),
            '"' => shown.push_str("&quot;"),
            '\'' => shown.push_str("&#39;"),
            letter => shown.push(letter),
        }
    }
    if cut.is_some() {
        shown.push('…');
    }
    shown
}

/// A coordinate.
pub(crate) fn at(value: f64) -> String {
    if value.is_finite() { format!("{value:.1}") } else { "0".into() }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Checks that no two elements have one identifier.
    pub(crate) fn check_ids(page: &str) {
        let mut ids: Vec<&str> =
            page.split(" id=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
        let all = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), all);
    }

    /// Checks that elements are closed in order and returns their names, in the order in which they
    /// begin. The contents of scripts and styles are skipped.
    pub(crate) fn elements(page: &str) -> Vec<String> {
        let (mut open, mut found): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
        let mut rest = page;
        while let Some((_, after)) = rest.split_once('<') {
            let (tag, after) = after.split_once('>').expect("a tag that ends");
            rest = after;
            assert!(!tag.contains('<'), "`{tag}`");
            if tag.starts_with('!') {
                continue;
            }
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop().as_deref(), Some(name));
                continue;
            }
            let name = tag.split([' ', '/']).next().unwrap().to_owned();
            assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric()), "`{tag}`");
            assert_eq!(tag.matches('"').count() % 2, 0, "`{tag}`");
            found.push(name.clone());
            if tag.ends_with('/') {
                continue;
            }
            if name == "script" || name == "style" {
                rest = rest.split_once(&format!("</{name}>")).expect("an end").1;
                continue;
            }
            open.push(name);
        }
        assert_eq!(open, Vec::<String>::new());
        found
    }

    proptest! {
        #[test]
        fn no_text_is_markup(name: String, text: String, json: String) {
            let mut markup = Markup::default();
            markup.within("p", &[("title", &name)], |markup| {
                markup.text(&text);
                markup.data("data", &serde_json::to_string(&json).unwrap());
            });
            let page = markup.done();
            prop_assert_eq!(elements(&page), ["p", "script"]);
            let (_, data) = page.split_once("id=\"data\">").unwrap();
            let (data, _) = data.split_once("</script>").unwrap();
            prop_assert_eq!(serde_json::from_str::<String>(data).unwrap(), json);
        }
    }

    #[test]
    fn long_text_is_cut() {
        assert!(escaped(&"ä".repeat(9999)).chars().count() == TEXT_MAX + 1);
        assert_eq!((at(f64::NAN), at(1.25)), ("0".into(), "1.2".into()));
    }
}
