//! A comparison as text: its subject, a line for each run, then the table. Texts that a report
//! repeats come from `report/compared/said.rs`.

use std::path::Path;

use super::beside::Turn;
use super::json::{CompareReport, CompareRow};
use super::run::Told;
use super::sockets::Sockets;
use crate::report::compared::said;
use crate::report::json::{Cache, Direction, Environment, MethodName};
use crate::report::plain::plain;
use crate::report::proof;
use crate::report::table::{self, rate};

const HEADINGS: [&str; 11] = [
    "method",
    "direction",
    "first",
    "average",
    "median (min–max)",
    "variation",
    "against standard",
    "CPU s/GB",
    "data",
    "route",
    "verdict",
];
/// Columns of numbers.
const NUMBERS: std::ops::Range<usize> = 2..8;

/// The subject of the comparison, and the machine.
#[derive(Debug)]
pub(super) struct Head<'a> {
    pub(super) environment: &'a Environment,
    pub(super) sockets: Option<&'a Sockets>,
    pub(super) path: &'a Path,
    pub(super) len: u64,
    pub(super) cache: Cache,
}

impl Head<'_> {
    pub(super) fn text(&self, simulated: bool) -> String {
        let path = self.path.display().to_string();
        let mut text = table::header(self.environment, Some(&path), false);
        for (about, distance) in self.sockets.into_iter().flat_map(said::distances) {
            text.push_str(&said::line(&(about, plain(&distance))));
        }
        text.push_str(&said::line(&said::each_run(self.len, self.cache, simulated)));
        text.push('\n');
        text
    }
}

/// The line of one run.
pub(super) fn run(told: &Told, simulated: bool) -> String {
    let verified = match told.verified {
        (true, true) => "verified",
        (false, true) => "WRONG DATA written",
        (true, false) => "WRONG DATA read",
        (false, false) => "WRONG DATA written and read",
    };
    let played = if simulated { ", simulated" } else { "" };
    format!(
        "{}, run {}: write {} GB/s, read {} GB/s, {verified}{played}\n",
        plain(&told.name),
        told.run,
        rate(told.write),
        rate(told.read),
    )
}

/// The line of the kernel's turn.
pub(super) fn turn(turn: &Turn, simulated: bool) -> String {
    let verified = if turn.verified { "verified" } else { "WRONG DATA" };
    let played = if simulated { ", simulated" } else { "" };
    format!(
        "xor, run {}: alone {} GB/s, during a read {} GB/s, that read {} GB/s, \
         {verified}{played}\n",
        turn.run,
        rate(turn.alone),
        rate(turn.beside),
        rate(turn.read),
    )
}

/// The line of a kernel's turn that failed after it found wrong data.
pub(super) fn kernel_wrong(run: u32, simulated: bool) -> String {
    let played = if simulated { ", simulated" } else { "" };
    format!("xor, run {run}: WRONG DATA{played}\n")
}

/// The summary of all runs.
pub(super) fn summary(report: &CompareReport) -> String {
    let mut text = String::from("\n");
    text.push_str(&table(&report.results));
    text.push('\n');
    let rows = || report.results.iter().map(|found| &found.row);
    let directions = [Direction::Write, Direction::Read].into_iter();
    let dma = directions.filter_map(|direction| said::dma(rows(), direction));
    let compute = report.compare.compute.iter().flat_map(said::compute);
    text.extend(dma.chain(compute).map(|sentence| said::line(&sentence)));
    text
}

fn table(rows: &[CompareRow]) -> String {
    let mut reasons = Vec::new();
    let rows: Vec<_> = rows.iter().map(|row| cells(row, &mut reasons)).collect();
    table::drawn(HEADINGS, rows, |index| NUMBERS.contains(&index)) + &table::footnotes(&reasons)
}

fn cells<'a>(CompareRow { row, runs }: &'a CompareRow, reasons: &mut Vec<&'a str>) -> [String; 11] {
    let none = || "–".to_owned();
    let variation = runs.variation.zip(runs.judgement);
    let is_standard = row.method == MethodName::Standard;
    [
        said::method(row.method.name(), row.demanded.as_deref()),
        row.direction.name().to_owned(),
        rate(runs.first),
        rate(runs.mean),
        table::rates(row),
        variation.map_or_else(none, |(share, judgement)| said::variation(share, judgement)),
        said::against(row.speed_up, is_standard, row.verified).unwrap_or_else(none),
        row.cpu_s_per_gb.map_or_else(none, |seconds| format!("{seconds:.3}")),
        table::data(row).to_owned(),
        table::route(row, reasons),
        proof::cell(row, reasons),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::json::{Compared, ComputeFacts, Runs};
    use crate::compare::sockets::Away;
    use crate::report::json::Row;
    use crate::report::json::tests::report as bench;

    /// A report of fixed data.
    fn report(simulated: bool) -> CompareReport {
        let bench = bench();
        let rows = bench.results.into_iter().filter(|row| !row.method.is_ceiling());
        let rows = rows.map(|row| {
            let row = Row { simulated, speed_up: Some(1.843), ..row };
            CompareRow { runs: Runs::of(row.bytes, &row.seconds).unwrap().0, row }
        });
        let runs = |rates: &[f64]| Runs::of_rates(rates).unwrap().0;
        let (alone, beside) =
            (runs(&[1.0e12, 4.2e12, 4.2e12]), runs(&[1.0e12, 4.1e12, 4.1e12, 1.0e12]));
        let compute = ComputeFacts {
            kernel: "xor".into(),
            bytes: 512 << 20,
            limit: 4.8e12,
            limit_by: "clock_and_width".into(),
            alone,
            share_of_limit: alone.median / 4.8e12,
            beside,
            read: runs(&[1e9, 3e9, 3e9]),
            share_of_read: Some(0.97),
            verified: true,
            simulated,
        };
        let mode = "all".into();
        CompareReport {
            schema: bench.schema,
            environment: bench.environment,
            compare: Compared {
                mode,
                runs: 3,
                topology: None,
                compute: Some(compute),
                compute_wrong: false,
            },
            results: rows.collect(),
            warnings: Vec::new(),
        }
    }

    /// The text in lines that fit this file.
    fn folded(text: &str) -> String {
        let fold = |line: &str| {
            let cut = line.char_indices().nth(87).map(|(at, _)| at);
            // The end of a column or of a word.
            match cut.and_then(|at| line[..at].rfind(' ')) {
                Some(at) => format!("{}\n  {}\n", line[..at].trim_end(), line[at..].trim()),
                None => format!("{line}\n"),
            }
        };
        text.lines().map(fold).collect()
    }

    #[test]
    fn the_whole_summary() {
        insta::assert_snapshot!(folded(&summary(&report(false))), @"

        method    direction  first  average  median (min–max)  variation  against standard
          CPU s/GB  data   route       verdict
        standard  read        2.15     2.15  2.15 (2.11–2.19)  4 %, good                 –
          0.125  right  –           staged [1]
        forebay   read        54.5     54.5  54.5 (54.2–54.8)  1 %, good    [+84 % faster]
          0.125  right  cached [2]  cached
        [1] others used it as well
        [2] resident in the page cache

        DMA      read: no: forebay: cached
        xor      512 MiB of the GPU's memory, read and written: 4200 GB/s, 88 % of its limit
          of 4800 GB/s (clock times width); data right
        during   a read: 4100 GB/s, 98 % of its rate alone; that read 3.00 GB/s, 97 % of its
          rate alone
        ");
    }

    #[test]
    fn what_is_played_says_so_in_each_line_with_a_number() {
        let text = summary(&report(true));
        let is_number = |line: &&str| line.contains("GB/s") || line.contains(" right ");
        let headings = |line: &&str| !line.starts_with("method");
        let lines: Vec<&str> = text.lines().filter(is_number).filter(headings).collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines.iter().all(|line| line.contains("simulated")), "{text}");
    }

    #[test]
    fn the_speed_of_wrong_data_is_compared_with_nothing() {
        let mut report = report(false);
        assert_eq!(summary(&report).matches("faster").count(), 1);
        report.results[1].row.verified = Some(false);
        report.compare.compute.as_mut().unwrap().verified = false;
        let text = summary(&report);
        assert_eq!((text.matches("faster").count(), text.matches("WRONG").count()), (0, 2));
    }

    #[test]
    fn the_head_names_file_target_and_distance() {
        let environment = bench().environment;
        let away = Away {
            drive: "nvme:1".into(),
            name: "nvme0n1\u{1b}[2J".into(),
            numa_node: Some(0),
            distance: "across_sockets".into(),
            text: "across sockets".into(),
            node_distance: Some(21),
        };
        let gpu = "0000:1b:00.0".to_owned();
        let sockets = Sockets { gpu, numa_node: Some(1), drives: vec![away] };
        let mut head = Head {
            environment: &environment,
            sockets: Some(&sockets),
            path: Path::new("/data/new"),
            len: 512 << 20,
            cache: Cache::Cold,
        };
        insta::assert_snapshot!(head.text(false), @r"
        machine  16 × Some CPU, 128 GiB memory, Linux 6.18.0
        file     /data/new, ext4 on nvme0n1 (Fast One, x4 at 16 GT/s)
        target   cuda:0, NVIDIA H200, GPU-1234, 0000:1b:00.0, driver 580.159
        distance nvme0n1\u{1b}[2J: across sockets, NUMA nodes 1 and 0, distance 21
        each run 512 MiB written and read; writes end on the drive, reads begin there
        ");
        head.cache = Cache::Resident;
        assert!(head.text(true).contains("in the page cache, reads begin there, simulated GPU\n"));
    }
}
