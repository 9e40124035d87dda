//! A comparison in words: printed by `forebay compare`, and repeated in reports.

use forebay::units::format_size;

use super::facts::{ComputeFacts, Sockets};
use super::runs::{Judgement, faster};
use crate::report::json::{Cache, Direction, MethodName, Row};
use crate::report::plain::cut;
use crate::report::proof::VerdictFacts;
use crate::report::table::rate;

/// A sentence, after its subject.
pub type Said = (&'static str, String);

/// Most methods in one sentence: a comparison has three.
const WAYS_MAX: usize = 8;
/// Most letters of a verdict or a route.
const TEXT_MAX: usize = 200;

/// A sentence as a line of a terminal, after its subject.
#[must_use]
pub fn line((about, text): &Said) -> String {
    format!("{about:<8} {text}\n")
}

/// The meaning of the table's columns.
pub const LEGEND: [(&str, &str); 3] = [
    ("first", "the first run; it includes setup, so the other columns leave it out"),
    ("variation", "the range of the other runs, divided by their mean"),
    ("against standard", "the ratio of the medians"),
];

/// How far each drive is from the GPU.
pub fn distances(sockets: &Sockets) -> impl Iterator<Item = Said> {
    sockets.lines().map(|text| ("distance", text))
}

/// The size of each run, and its source and target.
#[must_use]
pub fn each_run(len: u64, cache: Cache, simulated: bool) -> Said {
    let how = match cache {
        Cache::Cold => "writes end on the drive, reads begin there",
        Cache::Resident => "writes end in the page cache, reads begin there",
    };
    let note = if simulated { ", simulated GPU" } else { "" };
    ("each run", format!("{} written and read; {how}{note}", format_size(len)))
}

/// A method, with its required route.
#[must_use]
pub fn method(name: &str, demanded: Option<&str>) -> String {
    match demanded {
        Some(route) => format!("{name}, by `{}`", cut(route, TEXT_MAX)),
        None => name.to_owned(),
    }
}

/// Whether the engine's bytes went by DMA between drive and GPU, by the verdicts alone. If the data
/// are wrong, a verdict proves nothing: drives count for all processes, so another process may have
/// moved the counted bytes.
#[must_use]
pub fn dma<'a>(rows: impl IntoIterator<Item = &'a Row>, direction: Direction) -> Option<Said> {
    let ours = rows.into_iter().filter(|row| {
        row.method == MethodName::Forebay && row.direction == direction && row.verdict.is_some()
    });
    let ours: Vec<&Row> = ours.collect();
    let of = |is_so: &dyn Fn(&Row, &VerdictFacts) -> bool| -> Vec<&Row> {
        let of = |row: &&Row| row.verdict.as_ref().is_some_and(|verdict| is_so(row, verdict));
        ours.iter().copied().filter(of).collect()
    };
    let is_wrong = |row: &Row| row.verified == Some(false);
    let answers = [
        ("yes", of(&|row, verdict| verdict.is_direct() && !is_wrong(row))),
        ("in part", of(&|row, verdict| verdict.is_partly_direct() && !is_wrong(row))),
        ("not proven", of(&|row, verdict| verdict.shares.is_empty() || is_wrong(row))),
        ("no", ours.clone()),
    ];
    let (answer, rows) = answers.into_iter().find(|(_, rows)| !rows.is_empty())?;
    let said = rows.iter().take(WAYS_MAX).map(|row| {
        let verdict = row.verdict.as_ref().map_or("", |verdict| &verdict.text);
        let but = if is_wrong(row) { ", but its data are wrong" } else { "" };
        let name = method(row.method.name(), row.demanded.as_deref());
        format!("{name}: {}{but}", cut(verdict, TEXT_MAX))
    });
    let mut said: Vec<String> = said.collect();
    if rows.len() > WAYS_MAX {
        said.push(format!("{} more", rows.len() - WAYS_MAX));
    }
    let note = if rows.iter().any(|row| row.simulated) { ", simulated" } else { "" };
    Some(("DMA", format!("{}: {answer}: {}{note}", direction.name(), said.join("; "))))
}

/// The kernel compared with the memory's limit, and with its rate during a read.
#[must_use]
pub fn compute(facts: &ComputeFacts) -> [Said; 2] {
    let by = match facts.limit_by.as_str() {
        "filling" => "the fastest fill",
        _ => "clock times width",
    };
    let share = |share: f64| format!("{:.0} %", share * 100.0);
    let read = facts.share_of_read.map(|of| format!(", {} of its rate alone", share(of)));
    let data = if facts.verified { "right" } else { "WRONG" };
    let note = if facts.simulated { ", simulated" } else { "" };
    let alone = format!(
        "{} of the GPU's memory, read and written: {} GB/s, {} of its limit of {} GB/s ({by}); \
         data {data}{note}",
        format_size(facts.bytes),
        rate(facts.alone.median),
        share(facts.share_of_limit),
        rate(facts.limit),
    );
    let beside = format!(
        "a read: {} GB/s, {} of its rate alone; that read {} GB/s{}{note}",
        rate(facts.beside.median),
        share(facts.beside.median / facts.alone.median),
        rate(facts.read.median),
        read.unwrap_or_default(),
    );
    [("xor", alone), ("during", beside)]
}

/// The variation of runs, with its word.
#[must_use]
pub fn variation(share: f64, judgement: Judgement) -> String {
    format!("{:.0} %, {}", share * 100.0, judgement.name())
}

/// A method's speed relative to the standard one. `None` for the standard method itself, and if the
/// data are wrong, since their speed means nothing.
#[must_use]
pub fn against(speed_up: Option<f64>, is_standard: bool, verified: Option<bool>) -> Option<String> {
    speed_up.filter(|_| !is_standard && verified != Some(false)).map(faster)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::json::tests::report;
    use crate::report::proof::ShareFacts;

    /// The sentence on `count` reads by the engine with such a verdict.
    fn judged(word: &str, shares: &[&str], verified: bool, count: usize) -> String {
        let ours = |row: &Row| row.method == MethodName::Forebay;
        let mut row = report().results.into_iter().find(ours).unwrap();
        row.verified = Some(verified);
        let verdict = row.verdict.as_mut().unwrap();
        (verdict.word, verdict.text) = (word.into(), word.into());
        let of = |way: &&str| ShareFacts { way: (*way).into(), share: 0.5 };
        verdict.shares = shares.iter().map(of).collect();
        dma(&vec![row; count], Direction::Read).unwrap().1
    }

    #[test]
    fn dma_is_what_the_verdict_says() {
        let said = |word: &str, shares: &[&str]| judged(word, shares, true, 1);
        let direct = "direct (p2pdma)";
        assert_eq!(said(direct, &[direct]), "read: yes: forebay: direct (p2pdma)");
        assert_eq!(said("mixed", &["staged", direct]), "read: in part: forebay: mixed");
        assert_eq!(said("staged", &["staged"]), "read: no: forebay: staged");
        for word in ["unproven", "contradictory"] {
            assert_eq!(said(word, &[]), format!("read: not proven: forebay: {word}"));
        }
        for (word, shares) in [(direct, &[direct][..]), ("mixed", &["staged", direct])] {
            let told = format!("read: not proven: forebay: {word}, but its data are wrong");
            assert_eq!(judged(word, shares, false, 1), told);
        }
        assert_eq!(dma(&report().results, Direction::Write), None, "nothing was written");
    }

    #[test]
    fn what_is_said_of_many_ways_is_bounded() {
        let said = judged(&"x".repeat(9999), &["staged"], true, 999);
        assert!(said.ends_with("; 991 more") && said.len() < 2000, "{said}");
        assert!(method("forebay", Some(&"x".repeat(9999))).len() < 250);
    }

    #[test]
    fn the_speed_of_wrong_data_is_held_against_nothing() {
        let said = |is_standard, verified| against(Some(1.843), is_standard, verified);
        assert_eq!(said(false, Some(true)).as_deref(), Some("[+84 % faster]"));
        assert_eq!((said(true, Some(true)), said(false, Some(false))), (None, None));
        assert_eq!(against(None, false, None), None);
    }
}
