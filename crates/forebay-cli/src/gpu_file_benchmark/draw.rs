//! The benchmark as text: its subject, a line for each run, then the table.

use std::fmt::Write as _;
use std::path::Path;

use forebay::units::format_size;

use super::runs::{Judgement, Runs, counted, faster};
use super::{Method, Work};
use crate::bench::stats::Spread;
use crate::report::json::{Cache, Direction, Environment};
use crate::report::plain::plain;
use crate::report::table::{self, rate};
use crate::report::warnings::some;
use crate::results::Measured;
use crate::sockets::Sockets;

/// The subject of the runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head<'a> {
    pub(super) path: &'a Path,
    pub(super) len: u64,
    pub(super) cache: Cache,
    pub(super) simulated: bool,
}

/// The machine, the file and what a run is.
pub(super) fn head(
    environment: &Environment,
    sockets: Option<&Sockets>,
    head: &Head<'_>,
) -> String {
    let path = head.path.display().to_string();
    let mut text = table::header(environment, Some(&path), false);
    for distance in sockets.into_iter().flat_map(Sockets::lines) {
        text += &format!("distance {}\n", plain(&distance));
    }
    let how = match head.cache {
        Cache::Cold => "writes end on the drive, reads begin there",
        Cache::Resident => "writes end in the page cache, reads begin there",
    };
    let note = if head.simulated { ", simulated GPU" } else { "" };
    text + &format!("each run {} written and read; {how}{note}\n\n", format_size(head.len))
}

fn note(simulated: bool) -> &'static str {
    if simulated { ", simulated" } else { "" }
}

/// The line of a method's last run.
pub(super) fn run(method: &Method, run: u32, simulated: bool) -> String {
    let last = |runs: &[Measured]| {
        let last = runs.last();
        let wrong = last.is_some_and(|run| run.verified == Some(false));
        (rate(last.map_or(0.0, |run| run.bytes_per_second)), wrong)
    };
    let ((write, write_wrong), (read, read_wrong)) = (last(&method.write), last(&method.read));
    let verified = match (write_wrong, read_wrong) {
        (false, false) => "verified",
        (true, false) => "MISMATCH in the file",
        (false, true) => "MISMATCH of the read",
        (true, true) => "MISMATCH in the file and of the read",
    };
    let (name, note) = (method.name, note(simulated));
    format!("{name}, run {run}: write {write} GB/s, read {read} GB/s, {verified}{note}\n")
}

/// The line of the kernel's last turn.
pub(super) fn work(work: &Work, run: u32, simulated: bool) -> String {
    let last = |rates: &[f64]| rate(rates.last().copied().unwrap_or_default());
    let verified = if work.found_wrong() { "MISMATCH" } else { "verified" };
    format!(
        "xor, run {run}: alone {} GB/s, during a read {} GB/s, that read {} GB/s, {verified}{}\n",
        last(&work.alone),
        last(&work.during),
        last(&work.read),
        note(simulated)
    )
}

/// The line of a kernel's turn that failed after it found wrong data.
pub(super) fn work_wrong(run: u32, simulated: bool) -> String {
    format!("xor, run {run}: MISMATCH{}\n", note(simulated))
}

/// The runs of one method in one direction.
#[derive(Debug)]
pub(super) struct Row<'a> {
    name: &'static str,
    direction: Direction,
    samples: &'a [Measured],
    runs: Runs,
    wrong: bool,
}

impl Row<'_> {
    fn cpu_s_per_gb(&self) -> Option<f64> {
        let costs = counted(self.samples).iter();
        let costs = costs.filter_map(|run| run.cpu.as_ref()?.s_per_gb);
        Spread::of(costs).map(|spread| spread.median)
    }

    fn name(&self) -> String {
        format!("`{}` {}", self.name, self.direction.name())
    }
}

/// The rows of all methods, writes before reads. Methods that were left out have none, unless their
/// data were wrong: a later failure does not hide that.
pub(super) fn rows(methods: &[Method]) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    for direction in [Direction::Write, Direction::Read] {
        for method in methods {
            let samples = match direction {
                Direction::Write => &method.write,
                Direction::Read => &method.read,
            };
            let wrong = samples.iter().any(|run| run.verified == Some(false));
            let rates: Vec<f64> = samples.iter().map(|run| run.bytes_per_second).collect();
            if let Some(runs) = Runs::of(&rates).filter(|_| method.left_out.is_none() || wrong) {
                rows.push(Row { name: method.name, direction, samples, runs, wrong });
            }
        }
    }
    rows
}

/// The table, whether bytes went by DMA, and the kernel's rates.
pub(super) fn summary(rows: &[Row<'_>], work: Option<&Work>, simulated: bool) -> String {
    let mut text = String::new();
    for direction in [Direction::Write, Direction::Read] {
        let own: Vec<&Row<'_>> = rows.iter().filter(|row| row.direction == direction).collect();
        if !own.is_empty() {
            table_of(&mut text, direction, &own, simulated);
        }
    }
    text.push('\n');
    for direction in [Direction::Write, Direction::Read] {
        text.extend(dma(rows, direction, simulated));
    }
    if let Some(work) = work.filter(|work| !work.failed) {
        text.extend(compute(work, rows, simulated));
    }
    text
}

fn table_of(text: &mut String, direction: Direction, rows: &[&Row<'_>], simulated: bool) {
    let last = if simulated { "" } else { "CPU s/GB" };
    let line = format!(
        "\n{:<11}  {:>5}  {:>7}  {:>6}  {:<14}  {:<14}  {last}",
        format!("{}, GB/s", direction.name()),
        "first",
        "average",
        "median",
        "variation",
        "vs standard"
    );
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{}", line.trim_end());
    // The speed of wrong data means nothing.
    let standard = rows.iter().find(|row| row.name == "standard" && !row.wrong);
    for row in rows {
        let Runs { first, mean, median, variation, judgement } = row.runs;
        let variation = variation.zip(judgement);
        let variation = variation.map_or("–".into(), |(share, word)| {
            format!("{:.0} % {}", share * 100.0, word.name())
        });
        let against = match standard {
            _ if row.wrong => "MISMATCH".into(),
            Some(standard) if row.name != "standard" => faster(median / standard.runs.median),
            _ => "–".into(),
        };
        let cost = row.cpu_s_per_gb().map_or("–".into(), |seconds| format!("{seconds:.3}"));
        let line = format!(
            "{:<11}  {:>5}  {:>7}  {:>6}  {variation:<14}  {against:<14}  {:>8}",
            row.name,
            rate(first),
            rate(mean),
            rate(median),
            if simulated { "simulated" } else { cost.as_str() }
        );
        let _ = writeln!(text, "{line}");
    }
}

/// Whether the engine's bytes went by DMA between drive and GPU, by the verdicts alone. Wrong data
/// prove nothing: drives count for all processes, so another one may have moved the counted bytes.
fn dma(rows: &[Row<'_>], direction: Direction, simulated: bool) -> Option<String> {
    let judged = |row: &Row<'_>| {
        let verdicts = || row.samples.iter().filter_map(|run| run.verdict.as_ref());
        let last = verdicts().next_back()?;
        let answer = if row.wrong || verdicts().any(|verdict| verdict.shares.is_empty()) {
            "not proven"
        } else if verdicts().all(|verdict| verdict.is_direct()) {
            "yes"
        } else if verdicts().any(|verdict| verdict.is_partly_direct()) {
            "in part"
        } else {
            "no"
        };
        let but = if row.wrong { ", but its data are wrong" } else { "" };
        let why = last.note().map_or_else(String::new, |note| format!(" ({})", plain(note)));
        Some((answer, format!("{}: {}{but}{why}", row.name, plain(&last.text))))
    };
    let ours = rows.iter().filter(|row| row.direction == direction && row.name != "standard");
    let ours: Vec<(&str, String)> = ours.filter_map(judged).collect();
    let answers = ["yes", "in part", "not proven", "no"];
    let answer = answers.into_iter().find(|one| ours.iter().any(|(answer, _)| answer == one))?;
    let ours = ours.into_iter().filter(|(one, _)| *one == answer).map(|(_, text)| text);
    let (name, texts) = (direction.name(), ours.collect::<Vec<_>>().join("; "));
    Some(format!("DMA      {name}: {answer}: {texts}{}\n", note(simulated)))
}

/// The kernel compared with the memory's limit, and with its rate during a read.
fn compute(work: &Work, rows: &[Row<'_>], simulated: bool) -> Option<String> {
    let of = |rates: &[f64]| Runs::of(rates).map(|runs| runs.median);
    let (alone, during, read) = (of(&work.alone)?, of(&work.during)?, of(&work.read)?);
    let by = if work.limit.filled { "the fastest fill" } else { "clock times width" };
    let share = |share: f64| format!("{:.0} %", share * 100.0);
    let engine = |row: &&Row<'_>| row.name == "forebay" && row.direction == Direction::Read;
    // The speed of wrong data means nothing.
    let engine = rows.iter().find(engine).filter(|row| !row.wrong && !work.found_wrong());
    let of_read =
        engine.map(|row| format!(", {} of its rate alone", share(read / row.runs.median)));
    let data = if work.found_wrong() { "MISMATCH" } else { "verified" };
    let (limit, note) = (work.limit.bytes_per_second, note(simulated));
    Some(format!(
        "xor      {} of the GPU's memory, read and written: {} GB/s, {} of its limit of {} GB/s \
         ({by}); {data}{note}\nduring   a read: {} GB/s, {} of its rate alone; that read {} \
         GB/s{}{note}\n",
        format_size(work.compute.len()),
        rate(alone),
        share(alone / limit),
        rate(limit),
        rate(during),
        share(during / alone),
        rate(read),
        of_read.unwrap_or_default()
    ))
}

/// Shorter samples are too inaccurate.
const SECONDS_MIN: f64 = 0.002;

/// Warnings on the rows: wrong data, runs that are too short, and runs that vary too much.
pub(super) fn notes(rows: &[Row<'_>], runs: u32) -> Vec<String> {
    let mut warnings = Vec::new();
    let (mut short, mut unstable, mut most) = (Vec::new(), Vec::new(), 0.0_f64);
    for row in rows {
        if row.wrong {
            warnings.push(format!(
                "{} moved wrong data: its speed means nothing; check whether the file changed \
                 during the run, and the kernel's log",
                row.name()
            ));
        }
        let is_short = |run: &Measured| run.seconds.is_some_and(|seconds| seconds < SECONDS_MIN);
        if row.samples.iter().any(is_short) {
            short.push(row.name());
        } else if row.runs.judgement == Some(Judgement::Unstable) {
            unstable.push(row.name());
            most = most.max(row.runs.variation.unwrap_or_default());
        }
    }
    if !short.is_empty() {
        let short = some(&short);
        warnings
            .push(format!("samples shorter than 2 ms are inaccurate: {short}; try a larger `-s`"));
    }
    if !unstable.is_empty() {
        warnings.push(format!(
            "unstable, by up to {:.0} %: {}; end other work on this machine, or try `-r {}` or a \
             larger `-s`",
            most * 100.0,
            some(&unstable),
            (runs * 3).max(9)
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::proof::{ShareFacts, tests::verdict};
    use crate::results::CpuCost;
    use crate::workload::backend::{Plain, Way};

    fn measured(gb_per_second: f64) -> Measured {
        Measured {
            seconds: Some(1.0),
            bytes_per_second: gb_per_second * 1e9,
            cpu: Some(CpuCost { s_per_gb: Some(0.125), ..CpuCost::default() }),
            verdict: Some(verdict(Cache::Resident)),
            verified: Some(true),
            ..Measured::default()
        }
    }

    fn methods() -> Vec<Method> {
        let method = |name, way, rates: [f64; 3]| {
            let mut method = Method::new(name, way, false);
            method.write = rates.map(|rate| measured(rate / 2.0)).into();
            method.read = rates.map(measured).into();
            method
        };
        vec![
            method("standard", Way::Plain(Plain::CpuCachedGpu), [1.9, 2.15, 2.19]),
            method("forebay", Way::Forebay(None), [40.0, 54.2, 54.8]),
        ]
    }

    #[test]
    fn the_summary_fits_80_columns() {
        let methods = methods();
        let text = summary(&rows(&methods), None, false);
        insta::assert_snapshot!(text, @"

        write, GB/s  first  average  median  variation       vs standard     CPU s/GB
        standard     0.950     1.08    1.08  2 % good        –                  0.125
        forebay       20.0     27.2    27.2  1 % good        +2412 % faster     0.125

        read, GB/s   first  average  median  variation       vs standard     CPU s/GB
        standard      1.90     2.17    2.17  2 % good        –                  0.125
        forebay       40.0     54.5    54.5  1 % good        +2412 % faster     0.125

        DMA      write: no: forebay: cached
        DMA      read: no: forebay: cached
        ");
        let text = summary(&rows(&methods), None, true);
        let numbers = text.lines().filter(|line| line.starts_with(['s', 'f', 'D']));
        assert!(numbers.clone().count() == 6 && numbers.clone().all(|l| l.contains("simulated")));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn the_speed_of_wrong_data_is_compared_with_nothing() {
        let mut methods = methods();
        methods[1].read[1].verified = Some(false);
        let text = summary(&rows(&methods), None, false);
        assert_eq!((text.matches("faster").count(), text.matches("MISMATCH").count()), (1, 1));
        assert!(
            text.contains("DMA      read: not proven: forebay: cached, but its data are wrong")
        );
        methods[1].read[1].verified = Some(true);
        methods[0].write[2].verified = Some(false);
        let text = summary(&rows(&methods), None, false);
        assert_eq!(text.matches("faster").count(), 1, "the baseline had wrong data: {text}");
    }

    #[test]
    fn wrong_data_are_not_forgotten_if_something_fails_later() {
        let mut methods = methods();
        methods[1].left_out = Some("half of it".into());
        assert_eq!(rows(&methods).len(), 2);
        methods[1].read[0].verified = Some(false);
        let rows = rows(&methods);
        let found: Vec<_> = rows.iter().map(|row| (row.name(), row.wrong)).collect();
        assert_eq!(found[2], ("`forebay` read".into(), true), "{found:?}");
        let notes = notes(&rows, 3);
        assert!(
            notes.len() == 1 && notes[0].starts_with("`forebay` read moved wrong"),
            "{notes:?}"
        );
    }

    #[test]
    fn short_and_unstable_runs_are_named() {
        let mut methods = methods();
        methods[0].write[0].seconds = Some(SECONDS_MIN / 2.0);
        methods[1].read[2].bytes_per_second = 9e9;
        let rows = rows(&methods);
        let notes = notes(&rows, 3);
        let found = [("inaccurate: `standard` write;", 0), ("%: `forebay` read;", 1)];
        let named = |(words, at): &(&str, usize)| notes[*at].contains(words);
        assert!(notes.len() == 2 && found.iter().all(named), "{notes:?}");
    }

    #[test]
    fn dma_is_what_the_verdicts_say() {
        let said = |word: &str, shares: &[&str]| {
            let mut methods = methods();
            for run in &mut methods[1].read {
                let verdict = run.verdict.as_mut().unwrap();
                (verdict.word, verdict.text) = (word.into(), word.into());
                let share = |way: &&str| ShareFacts { way: (*way).into(), share: 0.5 };
                verdict.shares = shares.iter().map(share).collect();
            }
            dma(&rows(&methods), Direction::Read, false).unwrap()
        };
        let direct = "direct (p2pdma)";
        assert_eq!(said(direct, &[direct]), "DMA      read: yes: forebay: direct (p2pdma)\n");
        assert_eq!(said("mixed", &["staged", direct]), "DMA      read: in part: forebay: mixed\n");
        assert_eq!(said("staged", &["staged"]), "DMA      read: no: forebay: staged\n");
        for word in ["unproven", "contradictory"] {
            assert_eq!(said(word, &[]), format!("DMA      read: not proven: forebay: {word}\n"));
        }
    }
}
